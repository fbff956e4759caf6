"""The small graphs that calibration runs: each one makes a different term of the model large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuedge.executors.base import Work
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.cost import count
from gpuedge.graph.ir import Array, Graph, TensorType

CHAIN = 8
"""Nodes of the chain that separates the cost of a launch from the cost of an inference."""

SIDE, CHANNELS, STEP = 256, 16, 8
"""The large image is CHANNELS x SIDE x SIDE float32, 4 MiB: beyond the caches of most edge devices
and still a quarter of a second to move at 16 MB/s."""

SMALL_SIDE, MAP_SIDE = 64, 96


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """A graph to time. `name` says which term it is for; see `gpuedge.decide.fit`."""

    name: str
    graph: Graph

    @property
    def unread_bytes(self) -> float:
        """What `Work` counts as read by the last node and its strides skip."""
        node = self.graph.nodes[-1]
        if "strides" not in node.attrs:
            return 0.0
        sizes = [self.graph.types[v].size for v in (node.inputs[0], node.outputs[0])]
        return 4.0 * (sizes[0] - sizes[1])

    @property
    def work(self) -> Work:
        """What the graph costs, counted before anything is compiled."""
        return Work(**count(self.graph))

    def inputs(self) -> dict[str, Array]:
        """Return the same inputs every time: small whole numbers, so nothing is denormal."""
        return {
            name: pattern(self.graph.types[name].shape, salt)
            for salt, name in enumerate(self.graph.inputs)
        }


TILE = 4099
"""Length after which inputs repeat; a prime, so that no row or channel begins alike."""


def pattern(shape: tuple[int, ...], salt: int = 0) -> Array:
    """Return float32 values -3..3 in a fixed order that looks like none."""
    values = (np.arange(TILE, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(salt)) >> 7
    tile: Array = (values % np.uint64(7)).astype(np.float32) - np.float32(3)
    return np.resize(tile, shape)


def _float(*shape: int) -> TensorType:
    return TensorType("float32", shape)


def _tiny() -> Graph:
    b = GraphBuilder()
    x = b.input("x", _float(1, 4, 2, 2))
    b.output(b.add("Add", [x, b.constant("c", pattern((1, 4, 2, 2), 1))]))
    return b.build()


def _conv(channels: int, side: int) -> Graph:
    b = GraphBuilder()
    x = b.input("x", _float(1, channels, side, side))
    w = b.constant("w", pattern((channels, channels, 3, 3), 1))
    b.output(b.add("Conv", [x, w], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}))
    return b.build()


def _matmul() -> Graph:
    b = GraphBuilder()
    x = b.input("x", _float(64, 512))
    b.output(b.add("MatMul", [x, b.constant("w", pattern((512, 512), 1))]))
    return b.build()


def _chain() -> Graph:
    # Products of small matrices, because chains of elementwise operators are fused into one pass.
    b = GraphBuilder()
    x = b.input("x", _float(4, 8))
    for i in range(CHAIN):
        x = b.add("MatMul", [x, b.constant(f"w{i}", pattern((8, 8), i))])
    b.output(x)
    return b.build()


def _shrink(b: GraphBuilder, x: str) -> None:
    # Every STEP-th row and column: the result is small, and finding it costs next to nothing.
    b.output(b.add("MaxPool", [x], {"kernel_shape": [1, 1], "strides": [STEP, STEP]}))


def _resident() -> Graph:
    # Much device memory traffic, little that crosses between host and device.
    b = GraphBuilder()
    x = b.input("x", _float(1, CHANNELS, 1, 1))
    big = b.constant("c", pattern((1, CHANNELS, SIDE, SIDE), 1))
    _shrink(b, b.add("Add", [x, big]))
    return b.build()


def _map() -> Graph:
    # Many operations per element read: the arithmetic rate of kernels that gather.
    b = GraphBuilder()
    x = b.input("x", _float(1, CHANNELS, 1, 1))
    big = b.constant("c", pattern((1, CHANNELS, MAP_SIDE, MAP_SIDE), 1))
    sides = {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]}
    _shrink(b, b.add("MaxPool", [b.add("Add", [x, big])], sides))
    return b.build()


def _inward() -> Graph:
    b = GraphBuilder()
    _shrink(b, b.input("x", _float(1, CHANNELS, SIDE, SIDE)))
    return b.build()


def _copy(side: int) -> Graph:
    b = GraphBuilder()
    b.output(b.add("Relu", [b.input("x", _float(1, CHANNELS, side, side))]))
    return b.build()


_MAKERS: dict[str, Callable[[], Graph]] = {
    "tiny": _tiny,
    "conv-small": lambda: _conv(8, 28),
    "copy-small": lambda: _copy(SMALL_SIDE),
    "chain": _chain,
    "conv": lambda: _conv(32, 56),
    "matmul": _matmul,
    "resident": _resident,
    "inward": _inward,
    "copy": lambda: _copy(SIDE),
    "map": _map,
}

ORDER = tuple(_MAKERS)
"""Small ones first, to foresee how long the others take; then the most telling, so that a short
budget still gives a usable model."""

ESSENTIAL = ("tiny", "conv-small")
"""Without these there is no model at all."""


def case(name: str) -> CalibrationCase:
    """Return a case by its name; graphs are made when needed, they hold megabytes."""
    return CalibrationCase(name, _MAKERS[name]())
