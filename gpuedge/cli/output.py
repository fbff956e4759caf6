"""How verbs print: results on stdout (tables, or one JSON document), messages on stderr.

Tables and text need no library. Colours and progress on a terminal come with ``rich``, which the
extra ``gpuedge[cli]`` installs; without it the same is printed plainly.
"""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError, InputError
from gpuedge.core.text import Table, plain, table
from gpuedge.safety import paths

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "title": "bold",
    "PASS": "green", "ok": "green",
    "INFO": "cyan", "absent": "dim",
    "WARN": "yellow", "blocked": "yellow",
    "FAIL": "bold red", "wrong": "bold red", "crashed": "bold red",
    "broken": "red", "timeout": "red",
}  # fmt: skip
"""Style of a cell that begins with one of these words, and of titles."""

EACH_S = 60.0
"""Where there is no bar, a line says so often how far a long run is."""

RULE = "\u2500"
"""What the line under a table's head is made of, where the output can write it."""

MAX_JSON = 64 << 20
"""Bytes of a JSON file that are read."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a verb prints. With `json`, the document is printed instead of text and tables."""

    json: bool = False
    quiet: bool = False
    colourless: bool = False

    def log(self, text: str) -> None:
        """Print a message on stderr, unless quiet."""
        if not self.quiet:
            _print(plain(text, None, lines=True), sys.stderr)

    @contextmanager
    def working(self, text: str, *, lines: bool = False) -> Iterator[Callable[[str], None]]:
        """Show on a terminal's stderr that something takes time; what is yielded changes the text.

        What is printed meanwhile appears above it. With `lines` a terminal without rich gets each
        change as a line.
        """
        console = None if self.quiet else _console(sys.stderr, self.colourless)
        if console is None:
            yield self.log if lines and _is_terminal(sys.stderr) else lambda _: None
            return
        from rich.text import Text

        with console.status(Text(plain(text))) as status:
            yield lambda new: status.update(Text(plain(new)))

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str, int, int], None]]:
        """Show a bar on a terminal's stderr, elsewhere a line each minute; not if quiet.

        JSON has no bar either. What is yielded takes a stage, what is done of it and how much it
        is.
        """
        console = None if self.quiet or self.json else _console(sys.stderr, self.colourless)
        if console is None:
            yield self._each_minute()
            return
        from rich import progress

        words = progress.TextColumn("{task.description}", markup=False)
        columns = (progress.SpinnerColumn(), words,
                   progress.BarColumn(), progress.TimeElapsedColumn())  # fmt: skip
        with progress.Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(plain(text), total=None)
            yield lambda stage, done, total: bar.update(
                task, description=f"{stage} {done} of {total}", completed=done, total=total
            )

    def _each_minute(self) -> Callable[[str, int, int], None]:
        told = time.monotonic()

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= EACH_S:
                told = time.monotonic()
                self.log(f"{stage} {done} of {total}")

        return tell

    def show(self, document: dict[str, Any], parts: Iterable[str | Table]) -> None:
        """Print a result: the document (it has a ``schema`` key) if JSON was asked for, else parts.

        Tables without rows are left out.
        """
        if self.json:
            print(json.dumps(document, indent=2, allow_nan=False))
            return
        for part in parts:
            if isinstance(part, str):
                _print(plain(part, None, lines=True), sys.stdout)
            elif part.rows:
                self._table(part)

    def _table(self, shown: Table) -> None:
        paint, title = self._painter(), plain(shown.title, None)
        head, *body = table(shown.cells, paint=paint)
        rule = RULE * max(map(len, table(shown.cells)))
        first = paint("title", title) if paint else title
        _print("\n".join((first, head, rule, *body, "")), sys.stdout)

    def error(self, error: GpuEdgeError) -> None:
        """Print an error: its four-part message on stderr, and a document if JSON was asked for."""
        _print(str(error), sys.stderr)
        parts = {name: getattr(error, name) for name in ("what", "asked_by", "known", "hint")}
        self.show({"schema": "gpuedge.error/1", "code": error.code, **parts}, ())

    def _painter(self) -> Callable[[str, str], str] | None:
        """Return what colours a cell, None where the output has no colours."""
        console = _console(sys.stdout, self.colourless)
        if console is None or console.no_color or console.color_system is None:
            return None
        from rich.style import Style

        def paint(cell: str, padded: str) -> str:
            style = STYLES.get(cell) or STYLES.get(cell.partition(" ")[0])
            return Style.parse(style).render(padded) if style else padded

        return paint


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # a daemon may have none


def _console(stream: TextIO | None, colourless: bool) -> Console | None:
    """Return a rich console for a terminal; None for anything else, or where rich is missing."""
    if not _is_terminal(stream):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None

    class Plain(Console):
        """Leaves the cursor visible: after SIGTERM or SIGKILL nobody would show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Plain(file=stream, color_system=None if colourless else "auto")


def _print(text: str, stream: TextIO) -> None:
    """Print a line in the characters that the stream can write: some terminals know few."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding, getattr(stream, "errors", None) or "strict")
    except UnicodeEncodeError:
        text = text.replace(RULE, "-").encode(encoding, "backslashreplace").decode(encoding)
    print(text, file=stream)


ECHOES = ("argument", "device=", "fallback=", "probe(")
"""How errors name the arguments of a Python call, which nobody made here."""

SHAPES = "shapes="
"""How errors tell what shapes to give in a Python call; a dict follows."""


@contextmanager
def blaming(**options: tuple[type[GpuEdgeError], ...]) -> Iterator[None]:
    """Name the option that an error in this block is about.

    `options` were given, by name without dashes; each is to blame for these kinds of errors. One
    that already names a variable, a file or another option keeps what it says.
    """
    try:
        yield
    except GpuEdgeError as error:
        asked = error.asked_by
        if asked is None or asked.startswith(ECHOES):
            blamed = (n for n, kinds in options.items() if isinstance(error, kinds))
            name = (asked or "").partition("=")[0]
            source = config.get(name).source if name in config.SETTINGS else "default"
            error.asked_by = next(
                (f"--{n}" for n in blamed), asked if source == "default" else source
            )
        if error.hint is not None and error.hint.startswith(SHAPES):
            given = ast.literal_eval(error.hint.removeprefix(SHAPES)).items()
            pairs = [f"{name}={'x'.join(map(str, s))}" for name, s in given]
            is_set = "shapes" in options  # an option that takes all of them at once
            each = " ".join(f"--shape {pair}" for pair in pairs)
            error.hint = f"--shapes {','.join(pairs)}" if is_set else each
        raise


def read_json(path: str, asked_by: str | None = None, hint: str | None = None) -> dict[str, Any]:
    """Return the JSON object in the file `path`; the rest is for the error where there is none.

    Raises InputError for what is not a file (a pipe would be waited for) or holds something else.
    """
    paths.check_readable(path, "file", asked_by, hint)
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
