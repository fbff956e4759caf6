"""Windows, rows and movements: pooling, softmax, normalisation, concatenation, transposes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import disguised, fill
from gpuedge.conformance.layers import Shape, dims, four, padding, pair, pick
from gpuedge.opset.bounds import Array

INTEGER_REACH = {"uint8": (0, 255), "int8": (-128, 127)}
"""The whole range of a dtype: cases of closed operations use all of it."""


def operand(rng: np.random.Generator, shape: Sequence[int], data: str, dtype: str) -> Array:
    """Return numbers of a kind in a dtype; integers of 8 bits take all their values."""
    if dtype in INTEGER_REACH:
        low, high = INTEGER_REACH[dtype]
        return rng.integers(low, high + 1, tuple(shape)).astype(dtype)
    return np.asarray(fill(rng, shape, data, 100).astype(dtype))


@dataclass(frozen=True)
class Pool:
    """Maximum or mean over windows."""

    kind: str
    c: int = 4
    size: tuple[int, int] = (6, 6)
    k: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil: bool = False
    include: bool = False
    n: int = 1

    @property
    def op(self) -> str:
        """``max_pool2d`` or ``avg_pool2d``."""
        return f"{self.kind}_pool2d"

    @property
    def text(self) -> str:
        """Such as ``n1c4h6w6-k2s2p0d1-ceil``."""
        flags = f"{'-ceil' if self.ceil else ''}{'-include' if self.include else ''}"
        return (
            f"n{self.n}c{self.c}h{self.size[0]}w{self.size[1]}-k{pair(self.k)}s{pair(self.stride)}"
            f"p{four(self.pads)}d{pair(self.dilation)}{flags}"
        )

    @staticmethod
    def draw(rng: np.random.Generator, kind: str) -> Pool:
        """Return a random one; windows of dilated maxima may meet no pixel at all."""
        k = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
        stride = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
        dilation, reach = (1, 1), k
        if kind == "max" and rng.random() < 0.5:
            dilation = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
            reach = ((k[0] - 1) * dilation[0] + 1, (k[1] - 1) * dilation[1] + 1)
        pads = [int(rng.integers(0, reach[i % 2])) for i in range(4)]
        sides = (1, 2, 3, 4, 5, 7, 8, 11)
        size = (max(pick(rng, sides), reach[0]), max(pick(rng, sides), reach[1]))
        return Pool(
            kind, pick(rng, (1, 2, 3, 4, 5, 8, 9, 13)), size, k, stride,
            (pads[0], pads[1], pads[2], pads[3]), dilation, ceil=bool(rng.random() < 0.5),
            include=kind == "avg" and bool(rng.random() < 0.5), n=pick(rng, (1, 1, 2)),
        )  # fmt: skip

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = operand(rng, (self.n, self.c, *self.size), data, dtype)
        how: dict[str, Any] = {
            "stride": self.stride, "padding": padding(self.pads), "ceil_mode": self.ceil,
        }  # fmt: skip
        if self.kind == "max":
            how["dilation"] = self.dilation
        else:
            how["count_include_pad"] = self.include
        function = gpuedge.max_pool2d if self.kind == "max" else gpuedge.avg_pool2d
        return Case(
            lambda device: function(x, self.k, device=device, **how),
            lambda keep: oracle.pool2d(
                self.kind, keep(x), self.k, self.stride, pads=self.pads, dilation=self.dilation,
                ceil_mode=self.ceil, include_pad=self.include,
            ),
            self.text,
        )  # fmt: skip


@dataclass(frozen=True)
class GlobalPool:
    """Maximum or mean over all pixels."""

    kind: str
    shape: Shape

    @property
    def op(self) -> str:
        """``global_max_pool2d`` or ``global_avg_pool2d``."""
        return f"global_{self.kind}_pool2d"

    @property
    def text(self) -> str:
        """The shape."""
        return dims(self.shape)

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind; no maximum may come from what is not there."""
        x = operand(rng, self.shape, data, dtype)
        if self.kind == "max":
            x = -np.abs(x) - np.float32(1)
        function = gpuedge.global_max_pool2d if self.kind == "max" else gpuedge.global_avg_pool2d
        return Case(
            lambda device: function(x, device=device),
            lambda keep: oracle.global_pool(self.kind, keep(x)),
            self.text,
        )


@dataclass(frozen=True)
class Softmax:
    """Softmax or its logarithm along an axis; operands are `scale` times normal, plus `offset`."""

    shape: Shape
    axis: int = -1
    log: bool = False
    scale: float = 1.0
    offset: float = 0.0

    @property
    def op(self) -> str:
        """``softmax`` or ``log_softmax``."""
        return "log_softmax" if self.log else "softmax"

    @property
    def text(self) -> str:
        """Such as ``2x31-axis-1-x5``."""
        more = f"-x{self.scale:g}" if self.scale != 1 else ""
        return f"{dims(self.shape)}-axis{self.axis}{more}" + (
            f"-plus{self.offset:g}" if self.offset else ""
        )

    @staticmethod
    def draw(rng: np.random.Generator) -> Softmax:
        """Return a random one."""
        rank = int(rng.integers(1, 5))
        shape = tuple(pick(rng, (1, 2, 3, 5, 7, 16)) for _ in range(rank))
        return Softmax(
            shape, int(rng.integers(-rank, rank)), bool(rng.random() < 0.5), pick(rng, (1, 5, 30)),
            pick(rng, (0.0, 0.0, 1000.0)),
        )  # fmt: skip

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        numbers = fill(rng, self.shape, data) * np.float32(self.scale) + np.float32(self.offset)
        x = np.asarray(numbers.astype(dtype))
        function = gpuedge.log_softmax if self.log else gpuedge.softmax
        return Case(
            lambda device: function(x, self.axis, device=device),
            lambda keep: oracle.softmax(keep(x), self.axis, log=self.log),
            self.text,
        )


@dataclass(frozen=True)
class BatchNorm:
    """Normalisation with given statistics."""

    shape: Shape

    op = "batch_norm"

    @property
    def text(self) -> str:
        """The shape."""
        return dims(self.shape)

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = operand(rng, self.shape, data, dtype)
        channels = self.shape[1]
        scale, bias, mean = (rng.standard_normal(channels).astype(np.float32) for _ in range(3))
        variance = rng.uniform(0.25, 4, channels).astype(np.float32)
        statistics = (scale, bias, mean, variance)
        return Case(
            lambda device: gpuedge.batch_norm(x, *statistics, epsilon=1e-3, device=device),
            lambda keep: oracle.batch_norm(keep(x), statistics, 1e-3),
            self.text,
        )


@dataclass(frozen=True)
class Concat:
    """Arrays joined along an axis, some of them perhaps empty."""

    shapes: tuple[Shape, ...]
    axis: int

    op = "concat"

    @property
    def text(self) -> str:
        """Such as ``2x3-2x5-axis1``."""
        return "-".join(map(dims, self.shapes)) + f"-axis{self.axis}"

    @staticmethod
    def draw(rng: np.random.Generator) -> Concat:
        """Return a random one of one to five arrays."""
        rank = int(rng.integers(1, 6))
        shape = [pick(rng, (1, 2, 3, 5, 8)) for _ in range(rank)]
        axis = int(rng.integers(-rank, rank))
        shapes = []
        for _ in range(int(rng.integers(1, 6))):
            shape[axis] = pick(rng, (0, 1, 2, 3, 4, 7))
            shapes.append(tuple(shape))
        if not any(math.prod(s) for s in shapes):
            shape[axis] = 3
            shapes.append(tuple(shape))
        return Concat(tuple(shapes), axis)

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        parts = [operand(rng, s, data, dtype) for s in self.shapes]
        return Case(
            lambda device: gpuedge.concat(parts, self.axis, device=device),
            lambda keep: oracle.concat([keep(p) for p in parts], self.axis),
            self.text,
        )


@dataclass(frozen=True)
class Move:
    """A transpose (`order` are the axes), a reshape or flattening (the shape or the axis)."""

    op: str
    shape: Shape
    order: Shape = ()
    guise: str = "plain"

    @property
    def text(self) -> str:
        """Such as ``2x3x4-2.0.1``; the guise is how the operand lies in the host's memory."""
        guise = "" if self.guise == "plain" else f"-{self.guise}"
        return f"{dims(self.shape)}-{'.'.join(map(str, self.order)) or 'all'}{guise}"

    @staticmethod
    def draw(rng: np.random.Generator, op: str) -> Move:
        """Return a random one of up to six axes."""
        rank = int(rng.integers(1, 7))
        shape = tuple(pick(rng, (1, 2, 3, 4, 5)) for _ in range(rank))
        guise = pick(rng, ("plain", "plain", "strided", "swapped"))
        order: dict[str, Shape] = {
            "transpose": tuple(int(i) for i in rng.permutation(rank)),
            "flatten": (int(rng.integers(0, rank + 1)),),
            "reshape": (-1, shape[-1]),
        }
        return Move(op, shape, order[op], guise)

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = disguised(self.guise, operand(rng, self.shape, data, dtype))
        calls: dict[str, tuple[Callable[[Any], Array], Callable[[Array], Array]]] = {
            "transpose": (
                lambda device: gpuedge.transpose(x, self.order or None, device=device),
                lambda a: a.transpose(self.order or None),
            ),
            "flatten": (
                lambda device: gpuedge.flatten(x, *self.order, device=device),
                lambda a: a.reshape(math.prod(a.shape[: self.order[0]]), -1),
            ),
            "reshape": (
                lambda device: gpuedge.reshape(x, self.order, device=device),
                lambda a: a.reshape(self.order),
            ),
        }
        call, move = calls[self.op]
        return Case(call, lambda keep: oracle.moved(move, keep(x)), self.text)
