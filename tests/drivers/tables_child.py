"""Picks from tables larger than a binding; run by test_tables for each configuration.

``python tables_child.py DEVICE`` makes bindings small and prints a JSON object: the level, and how
many values of each case are wrong. ``python tables_child.py DEVICE MIB`` picks rows of a table of
so many MiB, and prints the limit of a binding, what constants take, and how many values are wrong.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
from table_cases import CASES, MOST, WIDTH, rows

import gpuedge


def small(device: str) -> None:
    """Compare bit for bit."""
    wrong = {}
    with gpuedge.open(device) as opened:
        executor = opened.executor
        executor.caps = replace(executor.caps, max_storage_buffer_bytes=MOST)
        for name, make in CASES.items():
            graph, feeds, wanted = make()
            made = executor.compile(graph)
            assert len(made.plan.passes) == 1, name
            found = made.run(feeds)
            wrong[name] = sum(int(np.sum(found[n] != value)) for n, value in wanted.items())
            made.close()
        print(json.dumps({"level": opened.caps.level, "wrong": wrong}))


def large(device: str, mib: int) -> None:
    """Pick from a table of this many MiB."""
    graph, feeds, wanted = rows(0, (mib * 2**20 // 4 // WIDTH, WIDTH))
    with gpuedge.open(device) as opened:
        made = opened.executor.compile(graph)
        (found,), (value,) = made.run(feeds).values(), wanted.values()
        tensors = [t for t in made.plan.tensors.values() if t.is_constant]
        print(json.dumps({
            "most": opened.caps.max_storage_buffer_bytes, "parts": [t.nbytes for t in tensors],
            "wrong": int(np.sum(found != value)),
        }))  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 2:
        large(sys.argv[1], int(sys.argv[2]))
    else:
        small(sys.argv[1])
