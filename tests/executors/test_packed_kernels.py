"""Printed kernels that a packed model brings: used where they fit the pass, and no others."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.executors.kernels import fitting, key_of, printed
from gpuedge.graph.build import chain
from gpuedge.lang.cache import packed
from gpuedge.plan.plan import Pass
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import kernel_kinds

MUTATIONS = 600


def passes(caps: Caps) -> list[tuple[Pass, dict[str, str]]]:
    x, w = np.zeros((1, 8, 16, 16), np.float32), np.ones((8, 8, 3, 3), np.float32)
    graph = chain({"x": x, "w": w}, ("Conv", "xw", {}), ("Relu", "1", {}), ("Softmax", "2", {}),
                  constants="w")  # fmt: skip
    planned = plan(graph, caps)
    return [(one, kernel_kinds(one, planned.tensors, caps)) for one in planned.passes]


def test_a_kernel_that_was_printed_is_used_under_a_digest_of_its_own() -> None:
    for launch, kinds in passes(VULKAN_MINIMUM):
        key, blob = key_of(launch, kinds, "spirv"), printed(launch, kinds, "spirv")
        found = fitting({key: packed(blob)}, key, launch, kinds, "spirv")
        assert found is not None
        assert replace(found, digest=blob.digest) == blob
        assert found.digest != blob.digest  # it never stands in for what was printed here
        assert fitting({}, key, launch, kinds, "spirv") is None
        assert fitting({key: packed(blob)}, key, launch, kinds, "wgsl") is None


def test_kernels_of_another_interface_are_not_used() -> None:
    """What is left of a record after a change either is refused, or means the same to a backend."""
    source = random.Random(3)
    odd: list[Any] = [None, -1, 2**40, 1.5, True, "", "X", "write", [], {}, [0, 0]]
    (launch, kinds) = passes(VULKAN_MINIMUM)[0]
    key, blob = key_of(launch, kinds, "spirv"), printed(launch, kinds, "spirv")
    kept = 0
    for _ in range(MUTATIONS):
        record = json.loads(json.dumps(blob.to_record()))
        place = record
        while True:
            at = source.randrange(len(place)) if place else 0
            if not place or not isinstance(place[at], list) or source.random() < 0.1:
                break
            place = place[at]
        if place:
            place[at] = source.choice(odd)
        data = json.dumps(record).encode() + b"\n" + blob.code
        found = fitting({key: data}, key, launch, kinds, "spirv")
        if found is None:
            continue
        kept += 1
        assert {t.name: t.storage for t in found.tensors} == kinds
        assert [t.binding for t in found.tensors] == [*range(len(kinds))]
        assert all(0 <= p.offset < found.push_bytes < 1 << 12 for p in found.push)
        assert all(type(s.default) in (bool, int, float) for s in found.specs)
        found.values({k: v for k, v in launch.specs.items() if k in {s.name for s in found.specs}})
    assert kept < MUTATIONS / 2


def test_code_that_cannot_be_code_is_not_used() -> None:
    (launch, kinds) = passes(VULKAN_MINIMUM)[0]
    for dialect, code in (("spirv", b""), ("spirv", b"abc"), ("wgsl", b"\xff")):
        blob = replace(printed(launch, kinds, dialect), code=code)
        assert fitting({"k": packed(blob)}, "k", launch, kinds, dialect) is None
    for data in (b"", b"[]\n", b"\n", b"{}\nabc", b"[" * 10_000 + b"\n"):
        assert fitting({"k": data}, "k", launch, kinds, "spirv") is None
