"""One peer in a process of its own, asked by lines of JSON.

``python -m benchmarks.peers.child PEER``, under the Python that has the peer.

``{"load": FOLDER}`` loads the folder's model and runs it once; ``{"time": SECONDS}`` runs it for
so long, at least once, and answers with the calls and what they took.
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

import numpy as np

from .adapters import Loaded, load


def error_of(found: list[Any], wanted: list[Any]) -> float:
    """Return the largest difference in units of the largest number wanted; inf if sizes differ."""
    worst = 0.0
    for got, right in zip(found, wanted, strict=True):
        if np.size(got) != right.size:
            return float("inf")
        apart = np.abs(np.asarray(got, np.float64).reshape(right.shape) - right)
        error = float(apart.max() / max(float(np.abs(right).max()), 1e-30))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    return worst


def short(text: str, most: int = 160) -> str:
    """Return the end of a message's first line, where peers say what happened; no folders."""
    line = (text.replace(f"{Path.cwd()}/", "").strip().splitlines() or ["no message"])[0]
    return line if len(line) <= most else f"... {line[-most:]}"


class Peer:
    """A peer and the model it holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loaded: Loaded | None = None

    def load(self, folder: Path) -> dict[str, Any]:
        """Load a model, run it once and compare."""
        self.loaded = None
        with np.load(folder / "data.npz") as data:
            feeds = {n[3:]: data[n] for n in data.files if n.startswith("in ")}
            wanted = [data[n] for n in data.files if n.startswith("out ")]
        self.loaded = load(self.name, folder / "model.onnx", feeds)
        error = error_of(self.loaded.run(), wanted)
        answer = {k: getattr(self.loaded, k) for k in ("device", "version", "on_cpu")}
        return {**answer, "error": error, "cpu_s": time.process_time()}

    def time(self, seconds: float) -> dict[str, Any]:
        """Run for so many seconds; wall and processor seconds are of all calls together."""
        assert self.loaded is not None
        run, calls = self.loaded.run, 0
        begin, busy = time.perf_counter(), time.process_time()
        while not calls or time.perf_counter() - begin < seconds:
            run()
            calls += 1
        return {"calls": calls, "wall_s": time.perf_counter() - begin,
                "cpu_s": time.process_time() - busy}  # fmt: skip


PR_SET_PDEATHSIG = 1
"""Of `prctl` (linux/prctl.h): the signal that a process gets when its parent has died."""


def main(name: str) -> None:
    """Answer until the pipe closes."""
    if sys.platform == "linux":  # a process that is stopped does not see its pipe close
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a peer prints is no answer
    peer = Peer(name)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = peer.load(Path(asked["load"])) if "load" in asked else peer.time(asked["time"])
        except Exception as error:  # whatever a peer raises is what it is reported for
            answer = {"failed": f"{type(error).__name__}: {short(str(error))}"}
        print(json.dumps(answer), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # some peers crash or hang while they are taken down


if __name__ == "__main__":
    main(sys.argv[1])
