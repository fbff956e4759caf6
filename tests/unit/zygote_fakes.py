"""A zygote whose children meet a backend of misbehaving drivers; run as the zygote's program.

A candidate's key says what its driver does when it is listed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gpuedge import backends
from gpuedge.backends.null import NullBackend

COMMAND = (sys.executable, __file__)


class ForkedBackend(NullBackend):
    """Does what a candidate's key says, then is the null backend."""

    def enumerate(self, candidate: Any) -> Any:
        key = candidate.key.partition("#")[0]
        getattr(self, "do_" + key)()
        return super().enumerate(candidate)

    def do_good(self) -> None:
        """Nothing out of the ordinary."""

    def do_segv(self) -> None:
        ctypes.string_at(8)

    def do_exit(self) -> None:
        ctypes.CDLL(None).exit(3)

    def do_hang(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(os.environ["PROBE_PIDFILE"]).write_text(str(os.getpid()))
        time.sleep(60)

    def do_patricide(self) -> None:
        if signal_zygote(signal.SIGKILL):
            time.sleep(60)

    def do_stop_parent(self) -> None:
        signal_zygote(signal.SIGSTOP)

    def do_tell(self) -> None:
        """Write down what this process was given."""
        from gpuedge.core.errors import BackendUnavailableError

        known = {
            "fds": sorted(int(fd.name) for fd in Path("/proc/self/fd").iterdir()),
            "group": os.getpgrp() == os.getsid(0) == os.getpid(),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "chld": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
            "alarm": signal.getitimer(signal.ITIMER_REAL)[0],
            "cwd": [path.name for path in Path.cwd().iterdir()],
            "own": os.environ.get("OWN_VARIABLE"),
            "stdin": os.read(0, 1).decode(),
        }
        os.write(1, b"said on standard output")
        Path(os.environ["PROBE_TOLD"]).write_text(json.dumps(known))
        raise BackendUnavailableError("told")


def signal_zygote(number: int) -> bool:
    """Signal the parent if that is the zygote: where a child was started alone it is the test."""
    parent = os.getppid()
    if Path(__file__).name.encode() in Path(f"/proc/{parent}/cmdline").read_bytes():
        os.kill(parent, number)
        return True
    return False


BACKEND = "zygote_fakes:ForkedBackend"

if __name__ == "__main__":
    backends.BUILTIN["forked"] = BACKEND
    with open(os.environ["PROBE_COUNT"], "a") as log:
        log.write("z")
    if os.environ.get("PROBE_ZYGOTE") == "dies":
        sys.exit(1)
    if os.environ.get("PROBE_ZYGOTE") == "hangs":
        time.sleep(60)
    while os.environ.get("PROBE_ZYGOTE") == "spins":
        pass
    if os.environ.get("PROBE_ZYGOTE") == "threads":
        import threading

        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    from gpuedge.probing import zygote

    sys.exit(zygote.main())
