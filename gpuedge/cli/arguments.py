"""Arguments that several verbs take: numbers, and files that will be written.

All are checked before any driver is touched.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from gpuedge.core.errors import InputError, UsageError
from gpuedge.safety.paths import is_stream


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return parse


def seconds(low: float = 0.0, high: float = math.inf) -> Callable[[str], float]:
    """Return a parser of a time above zero, from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            number = float(text) if text.isascii() else 0.0
        except ValueError:
            number = 0.0
        if not (low <= number <= high and 0 < number < math.inf):
            where = f"from {low:g} to {high:g}" if low else "above zero"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds {where}")
        return number

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text) if text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse


def add_probing(parser: argparse.ArgumentParser) -> None:
    """Add what every verb that tests drivers takes."""
    add = parser.add_argument
    add("--refresh", action="store_true", help="test again, whatever the cache says")
    add("--deadline", type=seconds(high=999_999), metavar="S", default=4.0,
        help="seconds for all drivers together (4)")  # fmt: skip


def check_writable(named: str | None, option: str, *, is_folder: bool = False) -> None:
    """Raise InputError (GE-203) where a file, or files in a folder, clearly cannot be written.

    Nothing is made yet: a run that fails leaves nothing behind.
    """
    if named is None:
        return
    if not named:
        raise InputError("A file or folder without a name cannot be written.", asked_by=option)
    known = "a file needs a folder that this user can write to, and may replace only a file"
    try:
        if not is_folder and is_stream(named):
            is_good = os.access(named, os.W_OK)
        else:
            target = Path(named).resolve()
            is_good = is_folder or target.is_file() or not target.exists()
            place = target if is_folder else target.parent
            nearest = next(p for p in (place, *place.parents) if p.exists())
            is_good = is_good and nearest.is_dir() and os.access(nearest, os.W_OK)
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL, a circle of links
        is_good, known = False, str(error)
    if not is_good:
        raise InputError(f"{named} cannot be written.", asked_by=option, known=known)


def check_apart(
    files: Iterable[tuple[str, str | None]], inputs: Collection[tuple[str, str | None]] = ()
) -> None:
    """Raise UsageError (GE-200) where two names, such as options, are given one file.

    Those `inputs` among the files are only read, and may be what comes before them.
    """
    seen: dict[str, str] = {}
    for said, path in files:
        if not path or "\0" in path or is_stream(path):
            continue  # what no file can be called is told by who opens it
        real = os.path.realpath(path)
        first = seen.setdefault(real, said)
        if first != said and (said, path) not in inputs:
            raise UsageError(f"{said} and {first} name the same file.", asked_by=first, known=real)


def check_target(named: str, read: Iterable[str]) -> None:
    """Raise an error where the file of ``--output`` cannot be written, or is one of those read."""
    check_writable(named, "--output")
    check_apart([("--output", named), *(("what is read", path) for path in read)])
