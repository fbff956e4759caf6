"""What a process does first in which a driver is to be loaded: a probe's child, or a worker.

It must leave no orphan, no core file and no crash dialog behind, must not inherit what an
application set for itself, and must show a driver's ``exit()`` as what it is.
"""

from __future__ import annotations

import sys

ORPHAN_S = 1.0
"""A child whose parent died ends itself this long after the deadline."""


def contain(deadline_s: float) -> None:
    """Leave no orphan, no core file and no crash dialog behind, and inherit no signal settings.

    An application may block signals or ignore them, and its children begin so; a driver that
    waits for its own child, or for a timer, would wait forever.
    """
    import faulthandler

    if sys.stderr is not None and not faulthandler.is_enabled():  # in a frozen application
        faulthandler.enable()
    faulthandler.dump_traceback_later(deadline_s + ORPHAN_S, exit=True)
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0003)  # no dialog for critical errors or faults
    else:
        import resource

        reset_signals()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _leave_when_told()


def reset_signals() -> None:
    """Undo what an application set for signals: its children begin with it."""
    import signal

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
