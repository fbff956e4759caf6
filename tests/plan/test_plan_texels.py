"""Which tensors the kernels of a plan read as texel buffers, and which of copies in textures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.storage import (
    BUFFER,
    HALF_BUFFER,
    HALF_IMAGE,
    HALF_TEXELS,
    IMAGE,
    TEXELS,
    TEXTURE,
)
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.plan.arrange import arrange
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import StoragePrecision, copied, kernel_kinds

OFFERS = replace(
    VULKAN_MINIMUM, device_class="cpu-llvm", max_texel_buffers=16, max_texel_elements=1 << 16
)
"""A device of a class that reads them faster."""


def kinds(caps: Caps, rows: int = 4, keep: str = "float32") -> dict[str, str]:
    """Return the kinds of the kernel that adds a and b, of `rows` rows of 64 numbers."""
    types = {name: TensorType("float32", (rows * 64,)) for name in "aby"}
    graph = Graph((Node("Add", ("a", "b"), ("y",)),), ("a", "b"), ("y",), types)
    made = plan(graph, caps, (), StoragePrecision(keep))
    (one,) = (p for p in made.passes if len(p.tensors) == 3)
    found = kernel_kinds(one, made.tensors, caps)
    written = [found.pop(name) for name, value in one.tensors.items() if value in one.outputs]
    assert written == [HALF_BUFFER if keep == "float16" else BUFFER]
    return found


def test_tensors_that_are_only_read() -> None:
    assert list(kinds(OFFERS).values()) == [TEXELS, TEXELS]
    halves = replace(OFFERS, storages=(BUFFER, HALF_BUFFER))
    assert list(kinds(halves, keep="float16").values()) == [HALF_TEXELS, HALF_TEXELS]


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"device_class": "generic"}, [BUFFER, BUFFER]),
        ({"device_class": "mali"}, [BUFFER, BUFFER]),
        ({"device_class": "cpu-subzero"}, [TEXELS, TEXELS]),
        ({"max_texel_buffers": 0}, [BUFFER, BUFFER]),  # or an entry of the database rules them out
        ({"max_texel_buffers": 1}, [TEXELS, BUFFER]),
        ({"max_texel_elements": 0}, [BUFFER, BUFFER]),
        ({"max_texel_elements": 63}, [BUFFER, BUFFER]),
        ({"max_texel_elements": 64}, [TEXELS, TEXELS]),  # 4 rows of 64 numbers
    ],
)
def test_limits_and_classes(limits: dict[str, int | str], wanted: list[str]) -> None:
    assert list(kinds(replace(OFFERS, **limits)).values()) == wanted  # type: ignore[arg-type]


COPIES = replace(
    VULKAN_MINIMUM, device_class="cpu-llvm", max_texture_copies=16, max_copied_elements=1 << 16
)
"""A device of a class that reads images faster, and has no texel buffers."""


def copies(caps: Caps, keep: str = "float32") -> list[list[str]]:
    """Return the kinds that the passes of y = transposed(x @ k) + c read: of x and k, p and c."""
    types = {name: TensorType("float32", (64, 64)) for name in "xkcpty"}
    nodes = (
        Node("MatMul", ("x", "k"), ("p",)),
        Node("Transpose", ("p",), ("t",), {"perm": (1, 0)}),
        Node("Add", ("t", "c"), ("y",)),
    )
    constants = {name: np.ones((64, 64), np.float32) for name in "kc"}
    made = plan(Graph(nodes, ("x",), ("y",), types, constants), caps, (), StoragePrecision(keep))
    found = [(one, kernel_kinds(one, made.tensors, caps)) for one in made.passes]
    return [
        [kind for name, kind in kinds.items() if one.tensors[name] not in one.outputs]
        for one, kinds in found
    ]


def test_copies_count_as_memory_of_what_they_are_copies_of() -> None:
    types = {name: TensorType("float32", (64, 64)) for name in "xkpy"}
    nodes = (Node("MatMul", ("x", "k"), ("p",)), Node("MatMul", ("p", "p"), ("y",)))
    constants = {"k": np.ones((64, 64), np.float32)}
    made = plan(Graph(nodes, ("x",), ("y",), types, constants), COPIES)
    where = arrange(made, 256, has_suballocation=False, copies=copied(made, COPIES))
    plane = 64 * 64 * 4
    assert where.memory == {
        "constant": 2 * plane, "input": 2 * plane, "scratch": 2 * plane, "output": plane
    }  # fmt: skip
    assert copied(made, VULKAN_MINIMUM) == set()
    assert copied(made, replace(COPIES, has_texture_views=True)) == set()
    assert sum(arrange(made, 256).memory.values()) == 4 * plane


def test_copies_of_what_is_read() -> None:
    assert copies(COPIES) == [[IMAGE, IMAGE]] * 2
    halves = replace(COPIES, storages=(BUFFER, HALF_BUFFER))
    half = [[HALF_IMAGE, HALF_IMAGE], [HALF_IMAGE, IMAGE]]  # c is kept exactly
    assert copies(halves, keep="float16") == half


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"device_class": "generic"}, [[BUFFER, BUFFER]] * 2),
        ({"device_class": "adreno"}, [[BUFFER, BUFFER]] * 2),
        ({"device_class": "cpu-subzero"}, [[TEXTURE, TEXTURE]] * 2),
        ({"has_texture_views": True}, [[TEXTURE, TEXTURE]] * 2),  # which images cannot be
        ({"max_texture_copies": 0}, [[BUFFER, BUFFER]] * 2),
        ({"max_texture_copies": 1}, [[IMAGE, BUFFER]] * 2),
        ({"max_copied_elements": 64 * 16 - 1}, [[BUFFER, BUFFER]] * 2),
        ({"max_copied_elements": 64 * 16}, [[IMAGE, IMAGE]] * 2),
        # what fits neither kind is a storage buffer, and what fits both a texel buffer
        ({"max_texel_buffers": 16, "max_texel_elements": 64 * 16}, [[TEXELS, TEXELS]] * 2),
        (
            {"max_texel_buffers": 1, "max_texel_elements": 64 * 16, "max_texture_copies": 1},
            [[TEXELS, IMAGE]] * 2,
        ),
        (
            {"max_texel_buffers": 1, "max_texel_elements": 64 * 16 - 1},
            [[IMAGE, IMAGE]] * 2,
        ),
    ],
)
def test_limits_and_classes_of_copies(limits: dict[str, Any], wanted: list[list[str]]) -> None:
    assert copies(replace(COPIES, **limits)) == wanted
