"""What `GPUEDGE_DEBUG` shows on stderr, the same ladder for every backend.

1 choices (and messages of drivers), 2 times of each run, 3 variants of each pass, 4 kernel text,
5 every call of a device. Logging through the ``gpuedge`` loggers goes on whatever the level.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from gpuedge.core import config


def level() -> int:
    """Return the debug level, 0 to 5."""
    return int(config.get("debug").value)


def say(at: int, text: str | Callable[[], str]) -> None:
    """Print `text` if the level is at least `at`; a callable is only called then."""
    if level() >= at:
        words = text if isinstance(text, str) else text()
        print(f"gpuedge[{at}] {words}", file=sys.stderr)


class Traced:
    """Any object, with each of its method calls printed at level 5."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return value(*args, **kwargs)
            finally:
                took = (time.perf_counter() - start) * 1e6
                shown = ", ".join(_short(a) for a in (*args, *kwargs.values()))
                say(5, f"{name}({shown}) {took:.0f} us")

        return call


def _short(value: Any) -> str:
    if isinstance(value, (int, float, str)):
        return repr(value)
    nbytes = getattr(value, "nbytes", None)
    return type(value).__name__ + ("" if nbytes is None else f"[{nbytes}]")
