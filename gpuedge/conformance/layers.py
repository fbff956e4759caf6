"""Convolutions and matrix products: geometries picked by hand or drawn, and their cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

import gpuedge
from gpuedge.conformance import oracle
from gpuedge.conformance.case import Case
from gpuedge.conformance.data import WHOLE, fill, weights
from gpuedge.conformance.storing import Keeper
from gpuedge.opset.bounds import Num

T = TypeVar("T")

ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "hard_swish", "silu", "gelu",
)  # fmt: skip
"""Activations that layers fuse."""

COMPARING = ("relu", "relu6")
"""Those that keep whole numbers whole."""


def pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """Return one of some choices."""
    return choices[int(rng.integers(len(choices)))]


def dims(shape: Sequence[int]) -> str:
    """Return a shape as part of a name; ``0d`` for a scalar."""
    return "x".join(map(str, shape)) or "0d"


def pair(values: tuple[int, int]) -> str:
    """Return a pair as part of a name: one number where both are equal."""
    return str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"


def four(pads: Sequence[int]) -> str:
    """Return padding as part of a name."""
    return str(pads[0]) if len(set(pads)) == 1 else ".".join(map(str, pads))


def padding(pads: Sequence[int]) -> Any:
    """Return padding as operations take it."""
    top, left, bottom, right = pads
    return ((top, bottom), (left, right))


def typed(dtype: str, array: Any) -> Any:
    """Return an operand in the dtype of its case."""
    return None if array is None else array.astype(dtype)


@dataclass(frozen=True)
class Conv:
    """A convolution: `c` and `m` are channels in and out, `pads` top, left, bottom, right."""

    c: int = 4
    size: tuple[int, int] = (5, 5)
    m: int = 4
    k: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    n: int = 1
    bias: bool = False
    act: str | None = None
    mode: str = ""

    op = "conv2d"

    @property
    def text(self) -> str:
        """Such as ``n1c7h11w13-m5k3s2p1d1g1b-relu``."""
        parts = [
            f"n{self.n}c{self.c}h{self.size[0]}w{self.size[1]}-m{self.m}k{pair(self.k)}",
            f"s{pair(self.stride)}p{self.mode or four(self.pads)}d{pair(self.dilation)}",
            f"g{self.groups}{'b' if self.bias else ''}",
        ]
        return "".join(parts) + (f"-{self.act}" if self.act else "")

    @staticmethod
    def draw(rng: np.random.Generator, *, most: int = 24, whole: bool = False) -> Conv:
        """Return a random convolution with up to about `most` channels a group."""
        channels = [v for v in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 31, 64) if v <= most]
        groups = pick(rng, (1, 1, 1, 1, 2, 3, 5))
        per_in, per_out = (max(1, pick(rng, channels) // groups) for _ in range(2))
        if rng.random() < 0.25:
            groups, per_in, per_out = pick(rng, channels), 1, 1
        k, stride, dilation = (
            (pick(rng, choices), pick(rng, choices))
            for choices in ((1, 2, 3, 3, 4), (1, 1, 2, 3), (1, 1, 1, 2, 3))
        )
        size = (pick(rng, (1, 2, 3, 4, 5, 7, 8, 11)), pick(rng, (1, 2, 3, 4, 5, 7, 9, 13)))
        pads = [int(rng.integers(0, 4)) for _ in range(4)]
        for axis in range(2):
            reach = (k[axis] - 1) * dilation[axis] + 1
            pads[axis + 2] += max(0, reach - size[axis] - pads[axis] - pads[axis + 2])
        return Conv(
            groups * per_in, size, groups * per_out, k, stride,
            (pads[0], pads[1], pads[2], pads[3]), dilation, groups,
            n=pick(rng, (1, 1, 1, 2, 3)), bias=bool(rng.random() < 0.5),
            act=pick(rng, (None, None, *(COMPARING if whole else ACTIVATIONS))),
        )  # fmt: skip

    def _pads(self) -> tuple[int, int, int, int]:
        """Return the padding that ``same`` stands for: the odd one goes to the end."""
        if self.mode != "same":
            return self.pads
        both = []
        for axis in range(2):
            out = -(-self.size[axis] // self.stride[axis])
            reach = (self.k[axis] - 1) * self.dilation[axis] + 1
            total = max(0, (out - 1) * self.stride[axis] + reach - self.size[axis])
            both.append((total // 2, total - total // 2))
        return both[0][0], both[1][0], both[0][1], both[1][1]

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = typed(dtype, fill(rng, (self.n, self.c, *self.size), data))
        w = typed(dtype, weights(rng, (self.m, self.c // self.groups, *self.k), data))
        b = typed(dtype, weights(rng, (self.m,), data)) if self.bias else None
        pads = self._pads()

        def call(device: Any) -> Any:
            return gpuedge.conv2d(
                x, w, b, stride=self.stride, padding=self.mode or padding(pads),
                dilation=self.dilation, groups=self.groups, activation=self.act, device=device,
            )  # fmt: skip

        def reference(keep: Keeper) -> Num:
            wanted = oracle.conv2d(
                keep(x), keep(w), None if b is None else keep(b), stride=self.stride, pads=pads,
                dilation=self.dilation, groups=self.groups, whole=data in WHOLE,
            )  # fmt: skip
            return oracle.activated(self.act, wanted)

        return Case(call, reference, self.text)


@dataclass(frozen=True)
class ConvTranspose:
    """A transposed convolution."""

    c: int = 3
    size: tuple[int, int] = (3, 4)
    m: int = 4
    k: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (2, 2)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    extra: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    n: int = 1
    bias: bool = False
    act: str | None = None

    op = "conv_transpose2d"

    @property
    def text(self) -> str:
        """As that of `Conv`, with the output padding after ``o``."""
        parts = [
            f"n{self.n}c{self.c}h{self.size[0]}w{self.size[1]}-m{self.m}k{pair(self.k)}",
            f"s{pair(self.stride)}p{four(self.pads)}o{pair(self.extra)}d{pair(self.dilation)}",
            f"g{self.groups}{'b' if self.bias else ''}",
        ]
        return "".join(parts) + (f"-{self.act}" if self.act else "")

    @staticmethod
    def draw(rng: np.random.Generator) -> ConvTranspose:
        """Return a random transposed convolution."""
        groups = pick(rng, (1, 1, 2, 3, 7))
        stride = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
        dilation = (pick(rng, (1, 1, 2)), pick(rng, (1, 1, 2)))
        k = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
        size = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
        extra, pads = [0, 0], [0, 0, 0, 0]
        for i in range(2):
            extra[i] = int(rng.integers(0, stride[i]))
            full = stride[i] * (size[i] - 1) + extra[i] + (k[i] - 1) * dilation[i] + 1
            pads[i] = int(rng.integers(0, min(4, full - 1) + 1))
            pads[i + 2] = int(rng.integers(0, min(4, full - 1 - pads[i]) + 1))
        return ConvTranspose(
            groups * pick(rng, (1, 2, 3, 4, 5, 9)), size, groups * pick(rng, (1, 2, 3, 4, 5)), k,
            stride, (pads[0], pads[1], pads[2], pads[3]), (extra[0], extra[1]), dilation, groups,
            n=pick(rng, (1, 1, 2)), bias=bool(rng.random() < 0.5), act=pick(rng, (None, "relu")),
        )  # fmt: skip

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        x = typed(dtype, fill(rng, (self.n, self.c, *self.size), data))
        w = typed(dtype, weights(rng, (self.c, self.m // self.groups, *self.k), data))
        b = typed(dtype, weights(rng, (self.m,), data)) if self.bias else None

        def call(device: Any) -> Any:
            return gpuedge.conv_transpose2d(
                x, w, b, stride=self.stride, padding=padding(self.pads), output_padding=self.extra,
                dilation=self.dilation, groups=self.groups, activation=self.act, device=device,
            )  # fmt: skip

        def reference(keep: Keeper) -> Num:
            wanted = oracle.conv_transpose2d(
                keep(x), keep(w), None if b is None else keep(b), stride=self.stride,
                pads=self.pads, output_padding=self.extra, dilation=self.dilation,
                groups=self.groups, whole=data in WHOLE,
            )  # fmt: skip
            return oracle.activated(self.act, wanted)

        return Case(call, reference, self.text)


Shape = tuple[int, ...]
BATCHES: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((), ()), ((2,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)),
    ((2, 1, 3), (2, 2, 1)), ((1,), (5,)), ((1, 1), (1,)),
)  # fmt: skip
"""Leading axes of both operands that broadcast together."""

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 31, 33)


@dataclass(frozen=True)
class MatMul:
    """A matrix product by numpy's rules."""

    a: Shape
    b: Shape

    op = "matmul"

    @property
    def text(self) -> str:
        """Such as ``2x1x3x4-4x5``."""
        return f"{dims(self.a)}-{dims(self.b)}"

    @staticmethod
    def draw(rng: np.random.Generator, lengths: Sequence[int] = LENGTHS) -> MatMul:
        """Return a random product of matrices, batches of them or vectors."""
        batch_a, batch_b = pick(rng, BATCHES)
        m, k, n = (pick(rng, lengths) for _ in range(3))
        vectors = pick(rng, ("", "", "", "", "a", "b", "ab"))
        return MatMul(
            (k,) if "a" in vectors else (*batch_a, m, k),
            (k,) if "b" in vectors else (*batch_b, k, n),
        )

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        a = typed(dtype, fill(rng, self.a, data))
        b = typed(dtype, weights(rng, self.b, data))
        return Case(
            lambda device: gpuedge.matmul(a, b, device=device),
            lambda keep: oracle.matmul(keep(a), keep(b), whole=data in WHOLE),
            self.text,
        )


@dataclass(frozen=True)
class Gemm:
    """alpha * a @ b + beta * c, each of the matrices transposed or not; `c` None for no addend."""

    m: int
    k: int
    n: int
    c: Shape | None = None
    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False

    op = "gemm"

    @property
    def text(self) -> str:
        """Such as ``3x4x5-ta-c1x5-a2-b-0.5``."""
        flags = f"{'-ta' if self.trans_a else ''}{'-tb' if self.trans_b else ''}"
        addend = "" if self.c is None else f"-c{dims(self.c)}"
        return f"{self.m}x{self.k}x{self.n}{flags}{addend}-a{self.alpha:g}-b{self.beta:g}"

    @staticmethod
    def draw(rng: np.random.Generator) -> Gemm:
        """Return a random one."""
        m, k, n = (pick(rng, LENGTHS) for _ in range(3))
        shapes: tuple[Shape | None, ...] = (None, (), (n,), (1, n), (m, 1), (m, n), (1, 1))
        return Gemm(
            m, k, n, pick(rng, shapes), pick(rng, (1.0, 1.0, 2.0, -0.5)),
            pick(rng, (1.0, 1.0, 2.0, -0.5, 0.0)),
            bool(rng.random() < 0.5), bool(rng.random() < 0.5),
        )  # fmt: skip

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""
        a = typed(dtype, fill(rng, (self.k, self.m) if self.trans_a else (self.m, self.k), data))
        b = typed(dtype, weights(rng, (self.n, self.k) if self.trans_b else (self.k, self.n), data))
        c = None if self.c is None else typed(dtype, weights(rng, self.c, data))
        how: dict[str, Any] = {
            "alpha": self.alpha, "beta": self.beta,
            "trans_a": self.trans_a, "trans_b": self.trans_b,
        }  # fmt: skip

        def reference(keep: Keeper) -> Num:
            addend = None if c is None else keep(c)
            return oracle.gemm(keep(a), keep(b), addend, whole=data in WHOLE, **how)

        return Case(
            lambda device: gpuedge.gemm(a, b, c, device=device, **how), reference, self.text
        )
