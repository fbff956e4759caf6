"""The process that runs cases: ``python -m gpuedge.conformance.child``, request on standard input.

It opens the device, runs one case after the other, and writes a JSON line to a private file before
each and after each, so that whatever a driver does to this process costs one case. Every line
carries the request's token; standard output is not used, since drivers write there.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from typing import Any

ORPHAN_S = 5.0
"""A child whose parent died ends itself this long after a case's deadline."""


class RowChannel:
    """The private file of events, open for appending."""

    def __init__(self, path: str, token: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._token = token

    def send(self, event: str, **fields: Any) -> None:
        """Write one event; it survives the process from here on."""
        line = json.dumps({"token": self._token, "event": event, **fields})
        os.write(self._fd, line.encode() + b"\n")


def main() -> int:
    """Read the request, run its cases, and return the exit status."""
    request = json.loads(sys.stdin.buffer.readline())
    _contain()
    known = set(sys.path)
    sys.path += [p for p in request["path"] if p not in known]
    channel = RowChannel(request["result"], request["token"])
    faulthandler.dump_traceback_later(request["open_s"] + ORPHAN_S, exit=True)
    bench = _open(request["device"], channel)
    if bench is None:
        return 0
    wanted = set(request["ids"])
    from gpuedge.conformance.catalogue import everything

    cases = {c.id: c for c in everything(request["profile"]) if c.id in wanted}
    channel.send("open", **bench.described())
    parent = os.getppid()
    for name in request["ids"]:
        if os.getppid() != parent:  # nobody waits for these results any more
            break
        faulthandler.dump_traceback_later(request["case_s"] + ORPHAN_S, exit=True)
        channel.send("start", id=name)
        start = time.monotonic()
        row = bench.run(cases[name])
        channel.send("row", row={**row, "seconds": round(time.monotonic() - start, 4)})
        if bench.is_spent:
            break
    channel.send("done")
    faulthandler.dump_traceback_later(request["open_s"] + ORPHAN_S, exit=True)
    bench.close()
    return 0


def _contain() -> None:
    """Leave no core file and no crash dialog behind."""
    if sys.platform == "win32":
        import ctypes

        ctypes.windll.kernel32.SetErrorMode(0x0003)  # no dialog for critical errors or faults
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _open(device: str, channel: RowChannel) -> Any:
    from gpuedge.conformance.bench import Bench
    from gpuedge.core.errors import GpuEdgeError

    try:
        return Bench(device)
    except GpuEdgeError as error:
        channel.send("failed", code=error.code, what=error.what, known=error.known, hint=error.hint)
        return None


if __name__ == "__main__":
    sys.exit(main())
