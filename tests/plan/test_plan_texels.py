"""Which tensors the kernels of a plan read as texel buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.storage import BUFFER, HALF_BUFFER, HALF_TEXELS, TEXELS
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.plan.planner import plan
from gpuedge.plan.storages import StoragePrecision, kernel_kinds

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
