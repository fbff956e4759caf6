"""Models of which a GPU runs parts: the cut that `auto` tries against every other one.

Usage: python benchmarks/partition.py [CONFIGURATION ...] [--save]    (some minutes)

Einsum, which no GPU runs here, cuts each model between parts that are expensive on a processor
(`mish`: transcendental functions), that are cheap there (`conv`, `relu`), or both. Every assignment
of parts to the device (a driver of tests/drivers/farm.py) and the CPU is timed, in turns; beside
them stands what the prediction alone would choose, and what is chosen after every part was timed on
both sides (`gpuedge.runtime.gates`), in each of five launches. --save writes
results/DATE-partition.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE.parent / "tests" / "drivers")]

from common import medians  # noqa: E402
from farm import FARM, environment_of  # noqa: E402
from truth.measure import graph_of  # noqa: E402
from truth.models import Net  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.graph.bound import BoundModel  # noqa: E402
from gpuedge.graph.ir import Array  # noqa: E402
from gpuedge.runtime.background import Pace  # noqa: E402
from gpuedge.runtime.compiled import OnDevice  # noqa: E402
from gpuedge.runtime.devices import POOL  # noqa: E402
from gpuedge.runtime.forecast import Forecast  # noqa: E402
from gpuedge.runtime.gates import Gates, Passed  # noqa: E402
from gpuedge.runtime.inputs import samples  # noqa: E402
from gpuedge.runtime.request import Request  # noqa: E402
from gpuedge.runtime.segments import Segments  # noqa: E402
from gpuedge.runtime.strings import CPU  # noqa: E402

MODELS = ("mish", "mish conv", "conv mish", "mish conv mish", "relu mish relu", "mish relu mish",
          "conv conv", "relu conv")  # fmt: skip
LAUNCHES = 5
CONFIGURATIONS = ["vulkan-lavapipe", "gles30-llvmpipe"]


def made(parts: str) -> bytes:
    """Return a model of these parts, each followed by an operator that no GPU runs."""
    net = Net(1, 16, 96, 96)
    for part in parts.split():
        if part == "conv":
            net.conv(16, 16).relu().conv(16, 16)
        elif part == "relu":
            net.relu()
        for _ in range(4 * (part == "mish")):
            x = net.at
            net.op("Softplus")
            net.op("Tanh")
            net.op("Mul", x, net.at)
        net.op("Einsum", equation="nchw->nchw")
    return net.done()


class Case:
    """One model on the device of this process."""

    def __init__(self, parts: str) -> None:
        self.request = Request("auto", gpuedge.Policy(allow_software=True))
        self.model = BoundModel(partial(graph_of, made(parts)))
        self.seen = Forecast(self.model.graph, gpuedge.probe(deadline_s=60).devices[0])
        self.executor = POOL.executor(self.seen.device)
        self.parts = [i for i, s in enumerate(self.seen.cut) if s.device != CPU]

    def nodes(self, taken: list[int]) -> frozenset[int]:
        """Return the identities of the nodes of some segments."""
        return frozenset(id(n) for i in taken for n in self.seen.cut[i].graph.nodes)

    def said(self, nodes: frozenset[int]) -> str:
        """Return where the parts run: G for the device, C for the CPU."""
        return "".join("CG"[self.nodes([i]) <= nodes] for i in self.parts)

    def times(self) -> dict[str, float]:
        """Return the seconds that every assignment takes."""
        sides = {}
        for on_gpu in product((False, True), repeat=len(self.parts)):
            nodes = self.nodes([i for i, is_gpu in zip(self.parts, on_gpu, strict=True) if is_gpu])
            own = Segments(self.model, self.request, POOL.cpu())
            if nodes:
                sides[self.said(nodes)] = partial(self._run, OnDevice(own, self.executor, nodes))
            else:
                sides[self.said(nodes)] = partial(own.on_cpu().run, samples(self.model.graph))
        return medians(sides)

    def _run(self, side: OnDevice) -> dict[str, Array]:
        values = samples(self.model.graph)
        for part in side.parts:
            values |= part.executable.run({name: values[name] for name in part.graph.inputs})
        return values

    def measured(self) -> str:
        """Return what is chosen once every part was timed."""
        gates = Gates(self.model, self.request, POOL, self.seen.device, self.nodes(self.parts), 1,
                      lambda _: None)  # fmt: skip
        found = gates.passed(Pace())
        if not isinstance(found, Passed):
            raise SystemExit(found.reason.sentence)
        ran = (n for p in found.side.parts if p.device != CPU for n in p.graph.nodes)
        said = self.said(frozenset(map(id, ran)))
        found.side.close_all()
        return said


def row(parts: str) -> list[str]:
    """Return a row of the table."""
    case = Case(parts)
    times = case.times()
    cpu, best = "C" * len(case.parts), min(times, key=lambda one: times[one])
    predicted = case.said(case.nodes(case.seen.mixture(round(times[cpu] * 1e9))[0]))
    chosen = Counter(case.measured() for _ in range(LAUNCHES))
    shown = [f"{one} {times[one] * 1e3:.2f}" for one in (cpu, "G" * len(case.parts), predicted)]
    tried = ", ".join(f"{one} {times[one] * 1e3:.2f} ({n}x)" for one, n in chosen.most_common())
    # what is tried is compared with the CPU alone on requests, and serves if it is faster
    worst = max(min(times[one], times[cpu]) for one in chosen) / times[best]
    return [parts, *shown, tried, f"{best} {times[best] * 1e3:.2f}", f"{worst:.2f}"]


def main() -> None:
    """Print a table for each driver; --save keeps them."""
    if "--child" in sys.argv:
        for parts in MODELS:
            print(f"| {' | '.join(row(parts))} |", flush=True)
        return
    header = ["parts", "all on the CPU", "all on the GPU", "as predicted", "as measured", "best",
              "worst served / best"]  # fmt: skip
    about = "C is a part on the CPU (ONNX Runtime), G one on the device"
    lines = [
        "# Parts of models on a GPU",
        "",
        f"Milliseconds; {about} (`benchmarks/partition.py`).",
    ]
    for name in [a for a in sys.argv if a in FARM] or CONFIGURATIONS:
        command = [sys.executable, "-W", "ignore", __file__, "--child"]
        done = subprocess.run(
            command, env=environment_of(name), check=True, text=True, stdout=subprocess.PIPE
        )
        load = f"Load average afterwards, on {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}."
        lines += ["", f"## {name}", "", load, ""]
        lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        lines += done.stdout.splitlines()
    print("\n".join(lines))
    if "--save" in sys.argv:
        place = HERE / "results" / f"{time.strftime('%Y-%m-%d')}-partition.md"
        place.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
