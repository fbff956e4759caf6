"""How verbs speak: results on stdout (a table, or one JSON document), talk on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import GpuEdgeError, InputError

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Columns of a table that goes to a file or pipe, where nobody's window wraps it."""

COLOURS = {
    "PASS": "green",
    "ok": "green",
    "WARN": "yellow",
    "absent": "dim",
    "FAIL": "bold red",
    "broken": "red",
    "blocked": "yellow",
    "wrong": "bold red",
    "timeout": "red",
    "crashed": "bold red",
}
"""Style of a cell that is exactly one of these words."""


def is_colourless(asked: bool) -> bool:
    """Return whether output is to be plain: asked for, or ``NO_COLOR`` is set (no-color.org)."""
    return asked or bool(os.environ.get("NO_COLOR"))


@dataclass(frozen=True, slots=True)
class Output:
    """Where a verb prints. With `json`, tables and text are dropped and `document` is printed."""

    json: bool = False
    quiet: bool = False
    colourless: bool = False

    def say(self, text: str) -> None:
        """Print talk on stderr, unless quiet."""
        if not self.quiet:
            print(text, file=sys.stderr)

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
            print(text)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table, unless JSON was asked for. Cells are shown as they are, None as a dash."""
        if self.json:
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            cells = ["-" if cell is None else _printable(str(cell)) for cell in row]
            table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
        self._console().print(table)

    def error(self, error: GpuEdgeError) -> None:
        """Print an error: its four-part message on stderr, and a document if JSON was asked for."""
        print(error, file=sys.stderr)
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

    def _console(self) -> Console:
        from rich.console import Console

        width = None if sys.stdout.isatty() else PIPE_WIDTH
        if self.colourless:
            return Console(color_system=None, width=width)
        return Console(width=width)


def _printable(text: str) -> str:
    # Names come from drivers and files: an escape sequence must not reach the terminal.
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in the file `path`.

    Raises
    ------
    InputError (GE-203)
        The file cannot be read, or holds something else.
    """
    import json

    try:
        with open(path, encoding="utf-8") as file:
            body = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InputError(f"{path} holds JSON, but not an object.")
    return body
