"""The graph: what to compute. Values, nodes and static shapes; no device word in it.

Nodes speak ONNX: `op`, `domain`, attribute names and their meaning are those of the operator set
versions in `Graph.opset`. What a node computes is said by `gpuedge.opset`, in few primitives
(`gpuedge.graph.expand`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

OPSET = 20
"""Operator set of graphs built here: old enough for every ONNX Runtime that gpuedge accepts."""


@cache
def _itemsize(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return 1


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (a numpy dtype name) and static shape of a value."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements; 1 for a scalar."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of memory; of a type that numpy does not know, at least so many."""
        return self.size * _itemsize(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Node:
    """One operator application. Inputs that are absent are the empty string, as in ONNX.

    `body` is what ONNX defines the operator by, where that was looked up before.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    body: Graph | None = None


@dataclass(frozen=True)
class Graph:
    """A static-shape, topologically ordered graph.

    `types` covers every value that a node reads or writes where it is known; values inside an
    operator that only ONNX Runtime understands may be missing. `constants` are initialisers and
    everything folded while reading. `folded` lists nodes evaluated on the host while planning.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array] = field(default_factory=dict)
    opset: Mapping[str, int] = field(default_factory=lambda: {"": 21})
    folded: tuple[Node, ...] = ()

    @cached_property
    def settled(self) -> Mapping[str, Node]:
        """Values that constants alone decide, too large to be folded, and the nodes they are of."""
        sources: dict[str, Node] = {}
        for node in self.nodes:
            if all(not i or i in self.constants or i in sources for i in node.inputs):
                sources.update((name, node) for name in node.outputs)
        return sources

    def shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.types[value].shape


def type_of(array: Array) -> TensorType:
    """Return the TensorType of a numpy array."""
    return TensorType(np.dtype(array.dtype).name, tuple(int(d) for d in array.shape))
