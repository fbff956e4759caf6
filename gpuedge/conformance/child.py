"""The process that runs cases, with a request on standard input.

It opens the device, runs one case after the other, and writes a JSON line to a private file before
each and after each, so that whatever a driver does to this process costs one case. Every line
carries the request's token; standard output is not used, since drivers write there.
"""

from __future__ import annotations

import json
import sys
import time

from gpuedge.core.errors import GpuEdgeError
from gpuedge.safety.channel import EventChannel
from gpuedge.safety.contain import contain


def main() -> int:
    """Read the request, run its cases, and return the exit status."""
    request = json.loads(sys.stdin.buffer.readline())
    contain(2 * request["open_s"] + request["case_s"] * len(request["ids"]))
    channel = EventChannel(request["result"], request["token"])
    # only now, with the deadline set: these load the libraries of drivers
    from gpuedge.conformance.bench import Bench
    from gpuedge.conformance.catalogue import everything

    try:
        bench = Bench(request["device"], repeats=request["profile"] == "full")
    except GpuEdgeError as error:
        channel.send("failed", code=error.code, what=error.what, known=error.known, hint=error.hint)
        return 0
    wanted = set(request["ids"])
    cases = {c.id: c for c in everything(request["profile"]) if c.id in wanted}
    channel.send("open", **bench.described())
    for name in request["ids"]:
        channel.send("start", id=name)
        start = time.monotonic()
        row = bench.run(cases[name])
        channel.send("row", row={**row, "seconds": round(time.monotonic() - start, 4)})
        if bench.is_spent:
            break
    channel.send("done")
    bench.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
