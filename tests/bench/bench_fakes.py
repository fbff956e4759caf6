"""Results with times that are known, and a package in a folder whose functions take their time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from gpuedge.bench.results import Accuracy, BenchResult, Cold, Energy

MS = 1_000_000


def result(
    subject: str = "cpu", *, ms: float = 1.0, case: str = "net", at: int = 0, seed: int = 0,
    session: str = "s", blocks: int = 24, runs: int = 4, **more: Any,
) -> BenchResult:  # fmt: skip
    """A result whose warm runs lie around `ms`, with 5 % of noise."""
    rng = np.random.default_rng([seed, at, len(subject)])
    times = np.exp(rng.normal(np.log(ms * MS), 0.05, (blocks, runs)))
    return BenchResult(
        case, subject, f"2026-11-{1 + at:02}T10:00:00.000000Z", "board", session, "0.1.0",
        more.pop("commit", ""), "a GPU", "3.12.1", "",
        (Cold(5 * MS, 7 * MS, 3 * MS, (2 * MS,)),) * 12,
        tuple(tuple(int(ns) for ns in block) for block in times), (3 * MS,) * blocks, **more,
    )  # fmt: skip


FULL: dict[str, Any] = {
    "accuracy": Accuracy(1e-6, 2e-7, "float64"), "peak_bytes": 64 << 20,
    "work": {"flops": 2e6, "bytes_moved": 4e5, "bytes_in": 10.0, "bytes_out": 4.0,
             "launches": 3.0},
    "energy": (Energy("RAPL", 12.0, 4.0, 100),),
}  # fmt: skip
"""What a result may hold besides times."""


def open_model() -> bytes:
    """An ONNX model y = x + x of shape [N, 4]."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def git(folder: Path, *arguments: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *own, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, bodies: Sequence[str]) -> list[str]:
    """A git repository with a commit for each body of ``work.step``; returns their hashes."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q", "-b", "main", ".")
    found = []
    for at, body in enumerate(bodies):
        (folder / "work.py").write_text(f"import time\nN = {at}\ndef step():\n    {body}\n")
        git(folder, "add", "work.py")
        git(folder, "commit", "-q", "-m", f"commit {at}")
        found.append(git(folder, "rev-parse", "HEAD"))
    return found
