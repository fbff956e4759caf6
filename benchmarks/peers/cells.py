"""What was measured, one file per work and peer, and the plain arithmetic on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

Cell = dict[str, Any]
"""Of one peer and one work: ``failed`` with a reason, or ``samples``, (wall, processor) seconds a
call of each round, ``error``, ``device`` and ``version``; of some, seconds to the first result:
``cold``, ``warm``, and ``cold_cpu`` and ``warm_cpu``."""

Table = dict[str, dict[str, Cell]]
"""Cells by work and peer."""

WALL, CPU = 0, 1

TOLERANCES = {False: 1e-3, True: 0.1}
"""Largest error of a right result, in units of the largest number, by whether it is quantised.

Sums of float32 of a few thousand products in any order stay within 3e-4, and Winograd's transforms
enlarge that a few times; wrong networks seen so far were off by 0.09 and more. A quantised network
rounds between 8-bit steps wherever two peers' sums fall on two sides of a boundary.
"""


def plain(name: str) -> str:
    """Return a name that is a file's."""
    return re.sub(r"[^a-z0-9.+]+", "-", name.lower()).strip("-")


def place(folder: Path, work: str, peer: str, code: str) -> Path:
    """Return the file of a cell; `code` is a digest of what decides its numbers."""
    return folder / "cells" / plain(work) / f"{plain(peer)}-{code}.json"


def read(path: Path) -> Cell:
    """Return a cell; an empty one if the file is missing or damaged."""
    try:
        found: Cell = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"samples": []}
    return found


def write(path: Path, cell: Cell) -> None:
    """Write a cell whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(cell), encoding="utf-8")
    part.replace(path)


def verdict(answer: Mapping[str, Any], is_quantised: bool) -> str:
    """Return why an answer to ``load`` is not timed; empty if it is."""
    if "failed" in answer:
        return str(answer["failed"])
    if answer["on_cpu"]:
        return "ran on the CPU: " + ", ".join(answer["on_cpu"])
    if answer["error"] == float("inf"):
        return "wrong: results of another size, or not finite"
    if answer["error"] > TOLERANCES[is_quantised]:
        return f"wrong: off by {answer['error']:.2g} of the largest number"
    return ""


def seconds(cell: Cell, clock: int = CPU, pick: Any = median) -> float | None:
    """Return the median, or what `pick` says, of a cell's rounds; None if it has none."""
    if "failed" in cell or not cell.get("samples"):
        return None
    return float(pick(sample[clock] for sample in cell["samples"]))


def fastest(
    row: Mapping[str, Cell], device: str, without: str, clock: int = CPU
) -> tuple[str, float] | None:
    """Return the fastest peer on a device, and its seconds; None if there is no other.

    Peers that do not say what they ran on count as on the device of the environment, like all.
    """
    found = [
        (time, peer) for peer, cell in row.items()
        if not peer.startswith(without) and _is_on(cell.get("device", ""), device)
        and (time := seconds(cell, clock)) is not None
    ]  # fmt: skip
    return (min(found)[1], min(found)[0]) if found else None


def _is_on(said: str, device: str) -> bool:
    """Return whether a peer ran on a device; some add to its name, some do not say."""
    return not said or said.startswith(device)


def fraction(work: Mapping[str, float], ceiling: Mapping[str, float], took_s: float) -> float:
    """Return the share of what the driver can do that a work of so many seconds reached.

    Parameters
    ----------
    work : mapping
        ``flops``, and ``bytes`` of the inputs, outputs and weights.
    ceiling : mapping
        ``gflops_cpu`` and ``gbytes_cpu``: per processor second.
    took_s : float
        Processor seconds of a call.

    Returns
    -------
    float
        The greater of both shares: a work that reaches one limit can do no more.
    """
    operations = work["flops"] / took_s / 1e9 / ceiling["gflops_cpu"]
    moved = work["bytes"] / took_s / 1e9 / ceiling["gbytes_cpu"]
    return max(operations, moved)


def missing(cell: Cell, rounds: int) -> int:
    """Return how many rounds a cell still needs; none if it failed."""
    return 0 if "failed" in cell else max(0, rounds - len(cell["samples"]))


def geometric_mean(numbers: Iterable[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    product, count = 1.0, 0
    for number in numbers:
        product, count = product * number, count + 1
    return product ** (1 / count) if count else None
