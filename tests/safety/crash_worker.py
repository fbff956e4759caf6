"""A process that reports to the crash memory and then ends as it is told.

``crash_worker.py FOLDER KEY WORD...``: words are steps, ``quiet``, ``shut``, ``late``, ``host``
(the device lives in a process of its own), ``crash``, ``wait`` (print a line, then wait for one),
``fork`` (a child that lives on and meddles), and at last ``segv``, ``kill``, ``exit`` or nothing.
"""

from __future__ import annotations

import os
import signal
import sys

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


def main(folder: str, key: str, *words: str) -> None:
    watch = Blocklist(folder).begin(key, "fake:0")
    for word in words:
        if word in blocklist.STEPS:
            watch.step(word)
        elif word == "late":
            for _ in range(blocklist.LATE_AFTER):
                watch.quiet()
        elif word == "wait":
            os.write(1, b"ready\n")
            sys.stdin.readline()
        elif word == "fork":
            if os.fork() == 0:
                meddle(watch)
        elif word == "host":
            watch = Blocklist(folder).begin(key, "fake:0", is_hosted=True)
        elif word == "crash":
            watch.crashed("its host was killed by SIGSEGV")
        elif word == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "exit":
            os._exit(0)
        elif word == "shut":
            watch.close()
        else:
            watch.quiet()


if __name__ == "__main__":
    main(*sys.argv[1:])
