"""Plain text for terminals and files: its width, tables that keep to it, and foreign words in it.

What a model or a driver calls itself may be a megabyte, or steer a terminal: `plain` is how it is
shown everywhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

DEFAULT_WIDTH = 100
"""Columns of text that goes to a file, a pipe or a notebook, unless ``COLUMNS`` says otherwise."""

MIN_LAST = 24
"""Columns that prose needs beside the other cells; with fewer, or where a word of it would not fit,
it goes below its row."""

INDENT = 4

MOST = 80
"""Characters of a name that a message shows."""

MOST_SAID = 300
"""Characters of an exception of foreign code that a message shows."""

MOST_LISTED = 16
"""Inputs that a message lists."""

LINES = {"\n": "\n", "\t": "\t", "\r": ""}
"""What text of several lines keeps of what does not print."""


def width() -> int:
    """Return the columns to write for: ``COLUMNS``, else the terminal's, else `DEFAULT_WIDTH`."""
    import shutil

    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one: ``3 drivers``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def duration(ns: float, digits: int = 3) -> str:
    """Return nanoseconds as text with so many significant digits.

    >>> duration(1_250_000), duration(999_999), duration(61_000_000_000), duration(1_236_000, 2)
    ('1.25 ms', '1 ms', '61 s', '1.2 ms')
    """
    for unit, size in (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = float(f"{ns / size:.{digits}g}")
        if value < 1000 or unit == "s":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def plain(text: str, most: int | None = MOST, *, lines: bool = False) -> str:
    r"""Return foreign text as it can be shown: bounded, and with nothing that steers a terminal.

    The one function for names and messages of models, drivers and files. Control characters, marks
    that turn text round and halves of characters are escaped; what prints stays as it is.

    Parameters
    ----------
    text : str
    most : int, optional
        Of a longer text the middle is left out; None for no limit.
    lines : bool
        Keep line ends and tabs.

    Examples
    --------
    >>> print(plain("GPU\x1b[2J é"))
    GPU\x1b[2J é
    """
    clipped = _clipped(text, most)
    if clipped.isprintable():
        return clipped
    kept = LINES if lines else {}
    clipped = "".join(c if c.isprintable() else kept.get(c, _escape(c)) for c in clipped)
    return _clipped(clipped, None if most is None else 2 * most)


def shown(name: str, most: int = MOST) -> str:
    """Return a name in quotes: what does not print is escaped, the middle of a long one left out.

    >>> shown("conv1")
    "'conv1'"
    """
    return f"'{plain(name, most)}'"


def said(error: BaseException) -> str:
    """Return what an exception of foreign code says; its class, where it says nothing."""
    return plain(_text_of(error) or type(error).__name__, MOST_SAID, lines=True)


def named(error: BaseException) -> str:
    """Return the class of an exception of foreign code, and what it says if it says anything."""
    return plain(f"{type(error).__name__}: {_text_of(error)}".removesuffix(": "), MOST_SAID)


def _text_of(error: BaseException) -> str:
    try:
        return str(getattr(error, "what", None) or error).strip()
    except KeyboardInterrupt:
        raise
    except BaseException:  # of the exception itself
        return ""


def encoded(text: str) -> bytes:
    """Return foreign text in UTF-8, with halves of characters escaped as JSON does it."""
    return text.encode(errors="backslashreplace")


def utc_now() -> str:
    """Return the time as files have it, such as ``2026-11-27T03:04:05Z``."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str | None:
    """Return a question about the name that is most like an unknown one; None if none is.

    What all begin with, `prefix`, makes none alike.
    """
    from difflib import get_close_matches

    bare = [one.removeprefix(prefix) for one in known]
    near = get_close_matches(name.removeprefix(prefix), bare, n=1)
    return f"did you mean {prefix + near[0]!r}?" if near else None


def _clipped(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}...{text[-half:]}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class Table:
    """A table to be shown: its title, the heads of its columns, and rows of cells.

    None is shown as a dash.
    """

    def __init__(
        self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        self.title, self.columns, self.rows = title, columns, rows

    @property
    def cells(self) -> list[Sequence[str]]:
        """The heads and the rows as they can be shown."""
        shown = [["-" if c is None else _cell(str(c)) for c in row] for row in self.rows]
        return [self.columns, *shown]

    def __str__(self) -> str:
        return "\n".join([plain(self.title, None, lines=True), *table(self.cells)])


def _cell(text: str) -> str:
    return plain(text.replace("\t", " "), None, lines=True)


def table(
    rows: Sequence[Sequence[str]],
    columns: int | None = None,
    paint: Callable[[str, str], str] | None = None,
) -> list[str]:
    """Lay rows out in aligned columns; the last cell of a row is prose and wraps.

    Parameters
    ----------
    rows : sequence of sequences of str
        The first row holds the titles. Columns whose cells are all empty or ``-`` are left out.
    columns : int, optional
        Width to keep to; that of the terminal by default.
    paint : callable, optional
        Gets a cell and the same padded to its column, and returns the latter with colours.

    Returns
    -------
    list of str
        Lines without trailing spaces. Words (paths, names of errors) and cells other than the last
        are never broken; a line is longer than asked for only where one of them alone is.
    """
    head, *body = rows
    last = len(head) - 1
    kept = [i for i in range(last) if any(row[i] not in {"", "-"} for row in body)]
    sizes = [max(len(row[i]) for row in rows) for i in kept]
    limit = width() if columns is None else columns
    start = sum(sizes) + 2 * len(sizes)
    longest = max(len(line) for row in rows for line in row[last].split("\n"))
    word = max((len(word) for row in rows for word in row[last].split()), default=0)
    below = limit - start < max(min(MIN_LAST, longest), min(word, limit - INDENT))
    lines = []
    for row in rows:
        padded = [row[i].ljust(size) for i, size in zip(kept, sizes, strict=True)]
        if paint is not None:
            padded = [paint(row[i], cell) for i, cell in zip(kept, padded, strict=True)]
        cells = "".join(f"{cell}  " for cell in padded)
        if below and row is head:
            lines.append(cells.rstrip())
        elif below:
            lines += [cells.rstrip(), *_wrapped(row[last], " " * INDENT, limit)]
        else:
            prose = _wrapped(row[last], " " * start, limit) or [""]
            lines += [(cells + prose[0][start:]).rstrip(), *prose[1:]]
    return lines


def _wrapped(text: str, indent: str, limit: int) -> list[str]:
    from textwrap import wrap

    size = max(limit, len(indent) + MIN_LAST)
    lines = []
    for part in text.split("\n"):
        lines += wrap(
            part, size, initial_indent=indent, subsequent_indent=indent,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    return lines
