"""How verbs speak: results on stdout (a table, or one JSON document), talk on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from gpuedge.core import config, paths
from gpuedge.core.errors import GpuEdgeError, InputError
from gpuedge.core.text import plain, table

COLOURS = {
    "title": "bold",
    "PASS": "green",
    "ok": "green",
    "INFO": "cyan",
    "WARN": "yellow",
    "absent": "dim",
    "FAIL": "bold red",
    "broken": "red",
    "blocked": "yellow",
    "wrong": "bold red",
    "timeout": "red",
    "crashed": "bold red",
}
"""Style of a cell that is exactly one of these words, and of titles."""


def is_colourless(asked: bool) -> bool:
    """Return whether output is to be plain: asked for, or ``NO_COLOR`` is set (no-color.org)."""
    return asked or bool(os.environ.get("NO_COLOR"))


RULE = "\u2500"
"""What the line under a table's head is made of, where the output can write it."""

MAX_JSON = 64 << 20
"""Bytes of a JSON file that are read."""

ECHOES = ("device=", "fallback=")
"""How errors repeat the arguments of a Python call, which nobody made here."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a verb prints. With `json`, tables and text are dropped and `document` is printed."""

    json: bool = False
    quiet: bool = False
    colourless: bool = False

    def say(self, text: str) -> None:
        """Print talk on stderr, unless quiet."""
        if not self.quiet:
            _put(_clean(text), sys.stderr)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show on a terminal's stderr that something takes time, while the block runs."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        console = Console(stderr=True, color_system=None if self.colourless else "auto")
        with console.status(text):
            yield

    def document(self, body: dict[str, Any]) -> None:
        """Print the JSON document, if JSON was asked for. `body` has a ``schema`` key."""
        if self.json:
            import json

            print(json.dumps(body, indent=2, allow_nan=False))

    def text(self, text: str) -> None:
        """Print a line of result, unless JSON was asked for."""
        if not self.json:
            _put(_clean(text), sys.stdout)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, unless JSON was asked for; the last column wraps at the terminal's width.

        Cells are shown as they are, None as a dash; columns that are empty are left out.
        """
        if self.json:
            return
        cells = [["-" if c is None else _printable(str(c)) for c in row] for row in rows]
        paint = self._painter()
        head, *body = table([columns, *cells], paint=paint)
        rule = RULE * max(map(len, table([columns, *cells])))
        title = _printable(title)
        first = paint("title", title) if paint else title
        _put("\n".join((first, head, rule, *body, "")), sys.stdout)

    def error(self, error: GpuEdgeError) -> None:
        """Print an error: its four-part message on stderr, and a document if JSON was asked for."""
        _put(_clean(str(error)), sys.stderr)
        self.document(
            {
                "schema": "gpuedge.error/1",
                "code": error.code,
                "what": error.what,
                "asked_by": error.asked_by,
                "known": error.known,
                "hint": error.hint,
            }
        )

    def _painter(self) -> Callable[[str, str], str] | None:
        """Return what colours a cell, None where the output has no colours."""
        if self.colourless or not sys.stdout.isatty():
            return None
        from rich.console import Console
        from rich.style import Style
        from rich.text import Text

        console = Console()

        def paint(cell: str, padded: str) -> str:
            word = cell if cell in COLOURS else cell.partition(" ")[0]
            if word not in COLOURS:
                return padded
            with console.capture() as drawn:
                console.print(Text(padded, Style.parse(COLOURS[word])), end="", soft_wrap=True)
            return drawn.get()

        return paint


def _put(text: str, stream: TextIO) -> None:
    """Print a line, in the characters that the stream can write: terminals know few at times."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        text = text.replace(RULE, "-").encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=stream)


def _clean(text: str) -> str:
    """Return text that may hold what drivers and mirrors say: it must not steer a terminal."""
    return plain(text, None, lines=True)


def _printable(text: str) -> str:
    # As above, but in cells, whose width is counted.
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


ARGUMENTS = {"probe(deadline_s=...)": "--deadline", "probe(backends=...)": "--backend"}
"""Arguments in Python, as errors name them, and the options they come from here."""


@contextmanager
def blaming(**options: tuple[type[GpuEdgeError], ...]) -> Iterator[None]:
    """Name the option that an error in this block is about.

    Parameters
    ----------
    **options : tuple of error classes
        Options that were given, by name without dashes, and the errors they are to blame for. An
        error that already names a variable, a file or another option keeps what it says.
    """
    try:
        yield
    except GpuEdgeError as error:
        asked = error.asked_by
        if asked in ARGUMENTS:
            error.asked_by = ARGUMENTS[asked]
        elif asked is None or asked == "argument" or asked.startswith(ECHOES):
            blamed = (n for n, kinds in options.items() if isinstance(error, kinds))
            error.asked_by = next((f"--{name}" for name in blamed), _origin(asked))
        raise


def _origin(asked: str | None) -> str | None:
    """Return which setting an error means where it repeats the argument that a call defaults to."""
    name = (asked or "").partition("=")[0]
    if name not in config.SETTINGS:
        return asked
    source = config.get(name).source
    return asked if source == "default" else source


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in the file `path`.

    Raises
    ------
    InputError (GE-203)
        It is no file (a pipe would be waited for), it cannot be read, or holds something else.
    """
    import json

    try:
        data = paths.read_start(path, MAX_JSON + 1)
        if len(data) > MAX_JSON:
            raise ValueError(f"it is larger than {MAX_JSON >> 20} MiB")
        body = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InputError(f"{path} holds JSON, but not an object.")
    return body
