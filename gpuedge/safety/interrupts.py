"""Keeping Ctrl-C out of drivers.

Python raises KeyboardInterrupt between any two instructions of the main thread, also in callbacks
that C code makes in the middle of a driver call. Libraries that do not expect it crash (moderngl
5.13 while a shader is compiled, wgpu-native 29 while work is submitted: both seen), and what was
bound, mapped or locked stays so.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

# What the module `signal` wraps, where it is known: without enums it is ten times faster.
_plain: Any = sys.modules.get("_signal", signal)


_SIGINT = int(signal.SIGINT)


class Held:
    """A block in which the first Ctrl-C waits until the block is left; a second one does not.

    Does nothing outside the main thread, where KeyboardInterrupt is never raised, and where the
    application handles the signal itself. Blocks may be nested. It costs about a
    microsecond.
    """

    _depth = 0
    _came = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if Held._depth == 0:
            if _plain.getsignal(_SIGINT) is not signal.default_int_handler:
                return
            Held._came = False
            _plain.signal(_SIGINT, _note)
        Held._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not Held._depth or threading.current_thread() is not threading.main_thread():
            return
        Held._depth -= 1
        if Held._depth == 0:
            _plain.signal(_SIGINT, signal.default_int_handler)
            if Held._came:
                raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    """Remember the first interrupt; let the second one through."""
    if Held._came:
        signal.default_int_handler(number, frame)
    Held._came = True


held = Held()
"""The block, as in ``with held:``."""
