"""A process that reports to the crash memory and then ends as it is told.

``crash_worker.py FOLDER KEY WORD...``: words are steps, ``quiet``, ``shut``, ``anew`` (it is opened
once more), ``host`` (the device lives in a process of its own), ``crash``, ``wait`` (print a line,
then wait for one), ``own`` (the application has enabled the fault handler itself), ``reboot`` (what
is written is of an earlier start of the system), ``fork`` (a child that lives on and meddles),
``forked-segv`` (a child that dies of a signal), and at last ``segv``, ``abrt``, ``kill``, ``term``,
``exit``, a signal in a thread of somebody else (``strange-segv``) or of the driver
(``driver-segv``), or nothing.

This file plays the code of the backend.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading

from gpuedge.safety import blocklist
from gpuedge.safety.blocklist import Blocklist


def meddle(watch: blocklist.Marker) -> None:
    """What a forked child may do with what it inherited; then it lives until its input ends."""
    watch.step("open")
    watch.quiet()
    watch.close()
    os.write(1, b"child\n")
    sys.stdin.readline()
    os._exit(0)


def strange_segv() -> None:
    """Die of a signal in a thread of the application, while this one waits."""
    thread = threading.Thread(target=signal.raise_signal, args=(signal.SIGSEGV,))
    thread.start()
    thread.join()


def driver_segv() -> None:
    """Die of a signal in a thread that Python does not know, while this one waits for it."""
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    number = ctypes.c_void_p(int(signal.SIGSEGV))
    libc.pthread_create(ctypes.byref(thread), None, libc["raise"], number)
    libc.pthread_join(thread, None)


def forked_segv() -> None:
    """Have a forked child die of a signal."""
    pid = os.fork()
    if pid == 0:
        signal.raise_signal(signal.SIGSEGV)
    os.waitpid(pid, 0)


def main(folder: str, key: str, *words: str) -> None:
    if "own" in words:
        faulthandler.enable()
    watch = Blocklist(folder).begin(key, "fake:0", code=__file__)
    step = "open"
    for word in words:
        if word in blocklist.STEPS:
            step = word
            watch.step(word)
        elif word == "reboot":
            watch._facts = watch._facts.replace(boot="an earlier one")
        elif word == "own":
            continue
        elif word == "wait":
            os.write(1, b"ready\n")
            sys.stdin.readline()
        elif word == "fork":
            if os.fork() == 0:
                meddle(watch)
        elif word == "host":
            watch = Blocklist(folder).begin(key, "fake:0", is_hosted=True)
        elif word == "crash":
            watch.crashed("its host was killed by SIGSEGV", step)
        elif word in ("segv", "abrt", "kill", "term"):
            signal.raise_signal(getattr(signal, f"SIG{word.upper()}"))
        elif word.endswith("-segv"):
            globals()[word.replace("-", "_")]()
        elif word == "exit":
            os._exit(0)
        elif word == "anew":
            watch = Blocklist(folder).begin(key, "fake:0", code=__file__)
        elif word == "shut":
            watch.close()
        else:
            watch.quiet()


if __name__ == "__main__":
    main(*sys.argv[1:])
