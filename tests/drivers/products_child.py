"""Computes 8-bit products on a device; run by test_products and tools/quantised_table.py.

``python products_child.py DEVICE [saturating]`` prints a JSON object: how many values of each case
are wrong, of how many, and what computed them. With ``saturating`` ONNX Runtime computes as on a
processor without VNNI.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import saturating
from products_cases import cases

import gpuedge
from gpuedge.executors.cpu import CpuExecutor, known_answers


def main(device: str, *how: str) -> None:
    """Compare bit for bit."""
    if how:
        saturating.install()
    found = {}
    gpuedge.probe(deadline_s=120)  # on a busy machine 4 s may not do
    with gpuedge.open(device) as opened:
        for case in cases():
            with gpuedge.Session(case.model, device=opened, fallback="error") as session:
                got = session.run(case.feeds)["y"]
                kernels = sorted({row.kernel for row in session.placement})
            is_same = got.dtype == case.wanted.dtype and got.shape == case.wanted.shape
            wrong = int(np.sum(got != case.wanted)) if is_same else got.size
            found[str(case)] = {"wrong": wrong, "of": got.size, "kernels": kernels}
    is_cpu = isinstance(opened.executor, CpuExecutor)
    mended = len(known_answers().wrong) if is_cpu else 0
    print(json.dumps({"cases": found, "mended": mended}))


if __name__ == "__main__":
    main(*sys.argv[1:])
