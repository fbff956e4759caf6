"""Arguments that several verbs take: numbers, and files that will be written.

All are checked before any driver is touched.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from gpuedge.core.errors import InputError
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


def check_writable(named: str | None, option: str, *, is_folder: bool = False) -> None:
    """Raise InputError (GE-203) where a file, or files in a folder, clearly cannot be written.

    Nothing is made yet: a run that fails leaves nothing behind.
    """
    if named is None:
        return
    try:
        why = _why_not(Path(named), is_folder)
    except (OSError, ValueError, RuntimeError) as error:  # too long, with a NUL, a circle of links
        raise InputError(f"{option} cannot be used: {error}.", asked_by=option) from None
    if why is not None:
        raise InputError(f"{named} cannot be written.", asked_by=option, known=why)


def _why_not(path: Path, is_folder: bool) -> str | None:
    if not is_folder and is_stream(path):
        return None if os.access(path, os.W_OK) else "this user may not write to it"
    target = path.resolve()
    if not is_folder and target.exists() and not target.is_file():
        return "it is a folder" if target.is_dir() else "it is not a file"
    places = (target, *target.parents) if is_folder else target.parents
    nearest = next(p for p in places if p.exists())
    is_open = nearest.is_dir() and os.access(nearest, os.W_OK)
    return None if is_open else f"{nearest} is not a folder that this user can write to"


def is_same_file(one: str, other: str) -> bool:
    """Return whether two names lead to one file, also where it does not exist yet."""
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):
        return os.path.normcase(os.path.realpath(one)) == os.path.normcase(os.path.realpath(other))
