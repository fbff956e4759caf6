"""Evidence of fatal signals: Python's fault handler writes where one struck, and no kill does.

SIGSEGV, SIGBUS, SIGABRT, SIGFPE and SIGILL are handled by `faulthandler`, at the level of C, which
writes the stacks of all Python threads into a file and lets the signal end the process. SIGKILL,
SIGTERM, ``exit()`` and a loss of power write nothing. So a file per process, empty as long as all
is well, tells a driver's crash from a kill, and the stack tells whose code the signal struck.

The fault handler has one file. Where the application (a test runner, ``python -X faulthandler``)
has enabled it, it is left to the application, and there is no evidence.
"""

from __future__ import annotations

import os
import re

SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
    "Windows fatal exception": "a fatal exception",
}
"""What the fault handler writes, and what people call it."""

MAX_BYTES = 1 << 20
"""Bytes of a file: 100 threads of 100 frames each are less."""

_fd: int | None = None
"""Where the fault handler writes; open to the end of the process, since it writes to the number."""


def keep(path: str) -> None:
    """Have a fatal signal of this process leave its evidence in a file, made if needed.

    Raises OSError where it cannot be written; nothing has changed then.
    """
    import faulthandler

    global _fd  # noqa: PLW0603
    if os.path.exists(path) or (_fd is None and faulthandler.is_enabled()):
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if _fd is None:
        _fd = fd
        faulthandler.enable(fd)
    else:  # the file before is gone; the application may have enabled its own since
        os.dup2(fd, _fd, inheritable=False)
        os.close(fd)


def after_fork() -> None:
    """Let a forked child write no evidence against its parent."""
    if _fd is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, _fd, inheritable=False)
        os.close(null)


def struck(trace: str, code: str) -> str:
    """Return the signal by which a process ended in the code of a backend, "" if it did not.

    The thread that was struck is looked at; where it was none of Python's (a driver's own), a
    Python thread must have been in that code meanwhile.

    Parameters
    ----------
    trace : str
        What the fault handler wrote.
    code : str
        The file or folder of the backend, as it stands in the code objects of its functions.
    """
    name = next((name for words, name in SIGNALS.items() if words in trace[:200]), "")
    threads = re.split(r"^(?=Thread 0x|Current thread 0x)", trace, flags=re.MULTILINE)[1:]
    current = [thread for thread in threads if thread.startswith("Current")]
    # Written as the fault handler writes what is not ASCII.
    place = 'File "' + code.encode("ascii", "backslashreplace").decode()
    is_there = any(place in thread for thread in current or threads)
    return name if code and is_there else ""
