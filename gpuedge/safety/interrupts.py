"""Exceptions of the application's signal handlers: kept out of drivers, and what they leave held.

Python runs the handler of a signal between any two instructions of the main thread, also in
callbacks that C code makes in the middle of a driver call, and what it raises (KeyboardInterrupt,
the error of a time limit set by SIGALRM) comes out there. Libraries that do not expect that crash
(moderngl 5.13 while a shader is compiled, wgpu-native 29 while work is submitted: both seen), and
what was bound, mapped or locked stays so.

Calls into drivers, and what must happen as a whole or not at all, are therefore made in a block in
which handlers wait (`held`). What every request does is not: there, locks are made by `rlock`, and
a function that the application calls gives back with `let_go` what an exception has left locked.
"""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar, cast

from gpuedge.core.errors import GpuEdgeError

F = TypeVar("F", bound=Callable[..., Any])

# What the module `signal` wraps, where it is known: without enums it is ten times faster.
_plain: Any = sys.modules.get("_signal", signal)

_SIGINT = int(signal.SIGINT)

_NOT_HELD = {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL", "SIGABRT"}
"""Signals that have no handler, or whose handler cannot wait."""

_SIGNALS = tuple(
    sorted(
        int(s)
        for s in signal.valid_signals()
        if isinstance(s, signal.Signals) and s.name not in _NOT_HELD
    )
)


class Held:
    """A block in which the handlers of signals wait until the block is left.

    Only a second Ctrl-C does not wait. Does nothing outside the main thread, where no handler ever
    runs. Blocks may be nested. It costs two microseconds.
    """

    _depth = 0
    _found: list[Any] | None = None  # the handlers of all signals
    _handlers: tuple[tuple[int, Any], ...] = ()  # those among them that are functions
    _came: list[Any] = []  # noqa: RUF012  (one for the process, as the handlers are)

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if not Held._depth:
            handlers = list(map(_plain.getsignal, _SIGNALS))
            if handlers != Held._found:
                pairs = zip(_SIGNALS, handlers, strict=True)
                Held._handlers = tuple((n, handler) for n, handler in pairs if callable(handler))
                Held._found = handlers
            try:
                for number, _ in Held._handlers:
                    _plain.signal(number, _note)
            except BaseException:  # of a handler that does not wait yet
                _restore()
                raise
        Held._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not Held._depth or threading.current_thread() is not threading.main_thread():
            return
        if Held._depth > 1:
            Held._depth -= 1
            return
        try:
            Held._depth = 0
            for number, handler in Held._handlers:
                _plain.signal(number, handler)
            if Held._came:
                _restore()
        except BaseException:  # of a handler that waits no longer
            _restore()
            raise


def _restore() -> None:
    """Put all handlers back, and have those run whose signal came meanwhile."""
    Held._depth = 0
    for number, handler in Held._handlers:
        if _plain.getsignal(number) is _note:
            _plain.signal(number, handler)
    came, Held._came = Held._came, []
    list(map(cast("Any", _thread.interrupt_main), came))  # all, before the first handler runs


def _note(number: int, frame: FrameType | None) -> None:
    """Remember that a signal came; let the second Ctrl-C through."""
    if number not in Held._came:
        Held._came.append(number)
    elif number == _SIGINT:
        dict(Held._handlers)[number](number, frame)


held = Held()
"""The block, as in ``with held:``."""


def is_of_handler(error: BaseException) -> bool:
    """Tell whether a handler of the application raised an exception, and not what was called.

    Such an exception is the application's: it is passed on as it is, and says nothing of what it
    came out of. KeyboardInterrupt always is: Python's own handler leaves no trace.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = map(_code, (handler for _, handler in Held._handlers))
    codes = {*handlers, *map(_code, map(_plain.getsignal, _SIGNALS))} - {None, _note.__code__}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, a partial one, or an object that can be called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


# --- what stays locked ----------------------------------------------------------------------------

_locks: dict[int, weakref.ref[Any]] = {}
_entries: set[CodeType] = set()


def rlock() -> Any:
    """Return a `threading.RLock` that `let_go` knows."""
    lock = threading.RLock()
    key = id(lock)
    # In C: what a handler raises in a function that is called by a reference is lost.
    _locks[key] = weakref.ref(lock, functools.partial(_locks.pop, key))
    return lock


def entry(function: F) -> F:
    """Mark a function that the application calls, and that calls `let_go` after an exception."""
    _entries.add(cast("Any", function).__code__)
    return function


def let_go(error: BaseException) -> None:
    """Release every lock of `rlock` that this thread still has, because an exception leaves it.

    ``with lock`` does so already, but for an exception that comes between the end of the block and
    the release. To be called by an `entry` alone. One that was called by another, by way of a
    handler or a callback, leaves that one what it has.

    Raises what a handler has raised where that was taken for an error of what it came out of.
    """
    _release_all()
    cause: BaseException | None = error
    while isinstance(cause, GpuEdgeError):
        cause = cause.__cause__ or (cause.__context__ if cause.__suppress_context__ else None)
        if cause is not None and is_of_handler(cause):
            before = cause.__context__
            try:
                raise cause
            finally:
                cause.__context__ = before


def _release_all() -> None:
    frame = sys._getframe(2).f_back  # of whatever called the entry
    while frame is not None:
        if frame.f_code in _entries:
            return
        frame = frame.f_back
    if threading.current_thread() is threading.main_thread():
        _restore()  # a second Ctrl-C may have come out of leaving a block
    with held:
        for reference in list(_locks.values()):
            lock = reference()
            with suppress(RuntimeError):  # it is another thread's, or nobody's
                while lock is not None:
                    lock.release()


def whole(function: F) -> F:
    """Make a function an `entry`, for those that are not called often."""

    @entry
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except BaseException as error:
            let_go(error)
            raise

    return cast("F", functools.update_wrapper(call, function))
