"""The page, the JSON file and the plot of what was measured."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import cells
from .adapters import GPUEDGE
from .cells import CPU, WALL, Cell, Table

ORT = "onnxruntime"
FIRST = ("conv 3x3 64@56", "squeezenet", "mobilenet", "resnet50")
"""Works whose first results are measured: an operator and the usual classifiers."""

FLAGS = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni",
         "avx512_bf16", "amx_int8", "asimd", "asimddp", "sve")  # fmt: skip
"""Flags of a processor that decide how fast it multiplies."""


@dataclass(frozen=True)
class Found:
    """Everything that was measured: cells, costs of the works, ceilings by device."""

    table: Table
    works: Mapping[str, Mapping[str, Any]]
    ceilings: Mapping[str, Any]
    rounds: int
    burst_s: float

    @property
    def peers(self) -> list[str]:
        """Peers in order, those that have any result."""
        names = list(next(iter(self.table.values()), {}))
        return [
            p for p in names if any(cells.seconds(r[p]) is not None for r in self.table.values())
        ]


def shown(cell: Cell) -> str:
    """Return a cell as a line of progress."""
    cpu, wall = cells.seconds(cell), cells.seconds(cell, WALL)
    if cpu is None or wall is None:
        return str(cell.get("failed", "not measured"))
    where = cell.get("device") or "device not named"
    return f"{ms(cpu)} ms processor, {ms(wall)} ms wall, error {cell['error']:.0e}, {where}"


def ms(seconds: float | None) -> str:
    """Return milliseconds with three digits; a dash for None."""
    if seconds is None:
        return "-"
    number = seconds * 1e3
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def lines_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    rule = "|" + "---|" * len(header)
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def both(cell: Cell, clock: int) -> str:
    """Return the median and the least of a cell's rounds in milliseconds."""
    median = cells.seconds(cell, clock)
    if median is None:
        return "-"
    least = "once" if cell.get("is_slow") else ms(cells.seconds(cell, clock, min))
    return f"{ms(median)} ({least})"


def times(found: Found, clock: int) -> list[str]:
    """Return a table of median and least milliseconds a call by work and peer."""
    rows = []
    for work, row in found.table.items():
        if any(cells.seconds(cell) is not None for cell in row.values()):
            rows.append((work, *(both(row[peer], clock) for peer in found.peers)))
    return lines_of(("work", *found.peers), rows)


def ratios(found: Found) -> list[str]:
    """Return gpuedge against the fastest peer on its driver, ONNX Runtime, and the ceiling."""
    header = ("work", "device", "ms", "fastest peer on the driver", "times as long",
              "times as long as onnxruntime", "share of the ceiling")  # fmt: skip
    rows: list[tuple[str, ...]] = []
    means: dict[tuple[str, int], list[float]] = {}
    for work, row in found.table.items():
        for peer in (p for p in found.peers if p.startswith(GPUEDGE)):
            took, device = cells.seconds(row[peer]), peer.removeprefix(GPUEDGE)
            if took is None:
                continue
            best = cells.fastest(row, row[peer]["device"], GPUEDGE)
            ort = cells.seconds(row.get(ORT, {}))
            parts = [took / best[1] if best else None, took / ort if ort else None]
            for at, ratio in enumerate(parts):
                means.setdefault((device, at), []).extend([] if ratio is None else [ratio])
            ceiling = found.ceilings.get(device)
            share = cells.fraction(found.works[work], ceiling, took) if ceiling else None
            rows.append((
                work, device, ms(took), best[0] if best else "-",
                *("-" if r is None else f"{r:.2f}" for r in parts),
                "-" if share is None else f"{share:.0%}",
            ))  # fmt: skip
    lines = lines_of(header, rows)
    for (device, at), values in means.items():
        mean = cells.geometric_mean(values)
        if mean is not None:
            against = "onnxruntime" if at else "the fastest peer on the driver"
            lines.append(
                f"* {device} against {against}: geometric mean {mean:.2f} of {len(values)}"
            )
    return [*lines, ""]


def first_results(found: Found) -> list[str]:
    """Return a table of starts: seconds to the first result of a new process."""
    rows = [
        (work, peer, *(f"{cell[k]:.2f}" if cell.get(k) is not None else "-"
                       for k in ("cold_cpu", "warm_cpu", "cold", "warm")))
        for work, row in found.table.items() for peer, cell in row.items() if "warm" in cell
    ]  # fmt: skip
    header = ("work", "peer", "cold, processor", "warm, processor", "cold, wall", "warm, wall")
    return lines_of(header, rows) if rows else ["Not measured.", ""]


def left_out(found: Found) -> list[str]:
    """Return what peers were not timed, by reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for work, row in found.table.items():
        for peer, cell in row.items():
            why = "" if cells.seconds(cell) else cell.get("failed", "not measured")
            if why:
                reasons.setdefault((peer, why), []).append(work)
    return [
        f"* {peer}: `{why}`: " + ("all" if len(works) == len(found.table) else ", ".join(works))
        for (peer, why), works in reasons.items()
    ] or ["Nothing."]


def processor() -> str:
    """Return this machine's processor, its cores and the flags that matter."""
    model, flags = platform.processor() or platform.machine(), set[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            model = value if key == "model name" else model
            flags |= set(value.split()) if key in ("flags", "Features") else set()
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} cores; {' '.join(f for f in FLAGS if f in flags)}"


def versions(found: Found) -> str:
    """Return the versions of all peers that answered."""
    known = {
        peer.split()[0]: cell["version"]
        for row in found.table.values() for peer, cell in row.items() if cell.get("version")
    }  # fmt: skip
    return ", ".join(f"{peer} {number}" for peer, number in known.items())


def facts(found: Found) -> list[str]:
    """Return what the numbers depend on."""
    devices = {c["device"] for r in found.table.values() for c in r.values() if c.get("device")}
    load = f"; load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return [
        f"* Python {platform.python_version()}, {platform.system()} {platform.release()}",
        f"* {versions(found)}",
        f"* {processor()}{load}",
        *(f"* {device}" for device in sorted(devices - {"CPU"})),
        "",
    ]


def ceilings(found: Found) -> list[str]:
    """Return a table of what the processor and the drivers can do at most."""
    keys = ("gflops_cpu", "gbytes_cpu", "gflops", "gbytes")
    rows = [
        (name, row["device"], row["driver"], *(f"{row[k]:.1f}" for k in keys))
        for name, row in found.ceilings.items() if isinstance(row, dict)
    ]  # fmt: skip
    header = ("device", "name", "driver", "Gflop per processor s", "GB per processor s", "Gflop/s",
              "GB/s")  # fmt: skip
    return lines_of(header, rows)


HEAD = """Made by `python -m benchmarks.peers.run --save` ([benchmarks](../README.md)). Every peer
gets numpy arrays and returns numpy arrays, float32 unless a name says int8, with its weights
resident; its results were compared with ONNX Runtime's first. Times are of one call: medians and,
in brackets, minima of {rounds} rounds of {burst:g} s, taken in turn by the peers that one command
asked for. Dashes are explained below.

Processor time is that of all threads of the peer's own process. It comes first because other jobs
share this machine: they move wall times by a factor, processor times less.
"""

NOTES = """ncnn gets copies of its inputs, for its layers may overwrite them. iree returns results
through a buffer of its own, for `to_host` fails on software drivers; on these its threads poll,
which is in its processor time.
"""

SHARE = """The share is of the device's own ceiling (below): of its operations or of its bytes,
whichever is larger. A convolution counts as multiplied out. Half of what a copy moves is written,
which costs more than reading; so what mostly reads may exceed 100 %.
"""

STARTS = """Seconds from a new process to its first result; converting ahead of time (ncnn, iree)
does not count. Cold: without any cache of gpuedge, the peer and Mesa; warm: with those that the
cold start left. Processor seconds leave out child processes, such as gpuedge's probes.
"""

LIMITS = """Of the CPU: numpy's BLAS (1024 by 1024) and its copy of 64 MiB. Of a device: a kernel
that multiplies and adds in registers only, and one that copies 64 MiB, read and written. Both are
written in the kernel language. The least of nine calls; what fits in caches may move faster.
"""


def page(found: Found, date: str) -> str:
    """Return the page."""
    parts = [
        f"# gpuedge and its peers, {date}\n",
        HEAD.format(rounds=found.rounds, burst=found.burst_s),
        *facts(found),
        "## gpuedge against the others, in processor time\n", SHARE, *ratios(found),
        "## Processor milliseconds\n", NOTES, *times(found, CPU),
        "## Wall milliseconds\n", *times(found, WALL),
        "## First results\n", STARTS, *first_results(found),
        "## Ceilings\n", LIMITS, *ceilings(found),
        "## What was not counted\n", *left_out(found), "",
    ]  # fmt: skip
    return "\n".join(parts)


def draw(found: Found, path: Path) -> bool:
    """Draw processor time against ONNX Runtime's, by work; False without that or matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - a tool, not a dependency
    except ImportError:
        return False
    works = [w for w, row in found.table.items() if cells.seconds(row.get(ORT, {}))]
    if not works:
        return False
    figure = Figure(figsize=(9, 1 + 0.28 * len(works)), layout="constrained")
    axes = figure.subplots()
    for number, peer in enumerate(found.peers):
        pairs = [
            (cells.seconds(found.table[w][peer]), cells.seconds(found.table[w][ORT])) for w in works
        ]
        points = [(a / b, at) for at, (a, b) in enumerate(pairs) if a and b] or [(np.nan, 0)]
        is_ours = peer.startswith(GPUEDGE)
        axes.plot(*zip(*points, strict=True), "D" if is_ours else "o", label=peer,
                  color=f"C{number}", alpha=1 if is_ours else 0.6)  # fmt: skip
    axes.set(xscale="log", xlabel="processor time, in times that of ONNX Runtime on the CPU")
    axes.set_yticks(range(len(works)), works)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=5, fontsize="small", frameon=False)
    figure.savefig(path)
    return True


def write(found: Found, folder: Path) -> None:
    """Write the page, the numbers and the plot into a folder, and print the page's ratios."""
    date = time.strftime("%Y-%m-%d")
    place = folder / f"peers-{date}"
    text = page(found, date)
    if draw(found, place.with_suffix(".svg")):
        text = text.replace("\n## gpuedge against", f"\n![processor times]({place.name}.svg)\n\n"
                            "## gpuedge against", 1)  # fmt: skip
    place.with_suffix(".md").write_text(text, encoding="utf-8")
    place.with_suffix(".json").write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    print("\n".join(ratios(found)))
    print(f"written: {place.name}.md")
