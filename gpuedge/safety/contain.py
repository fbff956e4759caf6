"""What a process does first in which a driver is to be loaded: of probing, conformance, a worker.

It must leave no orphan, no core file and no crash dialog behind, must not inherit what an
application set for itself, and must show a driver's ``exit()`` as what it is.
"""

from __future__ import annotations

import os
import signal
import sys

LATE_S = 1.0
"""A child that nothing else has ended ends itself this long after the deadline."""


def contain(deadline_s: float, life: int | None = None) -> None:
    """Leave no orphan, no core file and no crash dialog behind, and inherit no signal settings.

    `life` is a pipe that the parent holds the other end of (`end_with_parent`); None is standard
    input. An application may block signals or ignore them, and its children begin so; a driver that
    waits for its own child, or for a timer, would wait forever.
    """
    import faulthandler

    if sys.stderr is not None and not faulthandler.is_enabled():  # in a frozen application
        faulthandler.enable()
    faulthandler.dump_traceback_later(deadline_s + LATE_S, exit=True)
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0003)  # no dialog for critical errors or faults
    else:
        import resource

        reset_signals()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _leave_when_told()
    end_with_parent(_standard_input() if life is None else life)


def end_with_parent(life: int) -> None:
    """End this process when the other end of a pipe is closed: when its parent is gone.

    The one way for every child that loads a driver. On Linux the kernel does it, with a signal
    that cannot be blocked, whatever a driver is doing; nothing may be written to the pipe any more.
    Elsewhere a thread does, which a driver can keep waiting by holding Python's lock.
    """
    os.set_inheritable(life, False)
    try:
        import fcntl
        import select

        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())  # what drivers started ends too
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        import threading

        threading.Thread(target=_wait_for_end, args=(life,), daemon=True).start()
        return
    poll = select.poll()
    poll.register(life, select.POLLIN)
    if poll.poll(0):  # it was gone before
        os._exit(1)


def _wait_for_end(life: int) -> None:
    try:
        os.read(life, 1)
    finally:
        os._exit(1)


def _standard_input() -> int:
    """Return the pipe that standard input was, and put nothing in its place: drivers may read."""
    life, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return life


def reset_signals() -> None:
    """Undo what an application set for signals: its children begin with it."""
    for name in ("SIGCHLD", "SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _leave_when_told() -> None:
    """Make a driver's ``exit()`` end the process, with its status, before libraries are unloaded.

    A driver that gives up by calling ``exit()`` does so inside the API's loader, which holds its
    lock: Vulkan's loader (seen with 1.3.239) then waits for itself in its own destructor forever,
    and what was an exit would look like a hang. Exit handlers that drivers register still run:
    the last one registered runs first. Where the C library has no ``on_exit`` it stays a hang.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "fcloseall"):
        for function in (libc._exit, libc.fcloseall):  # run in reverse: first what was printed
            libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)
