"""Layers with operands that hurt, for any device: hypothesis strategies of `Case`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
from hypothesis import strategies as st
from op_cases import Case, disguised, generators, integers, normals

import gpuedge

ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "hard_swish", "silu", "gelu",
)  # fmt: skip
SIDES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 11, 13])
CHANNELS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 31, 64, 67, 70])


def activated(name: str | None, wanted: oracle.Result) -> oracle.Result:
    """Apply an activation to a result within a bound. None of them is steeper than 1.5."""
    if name is None:
        return wanted
    value, bound = wanted
    out, own = oracle.elementwise(name, value)
    return out, 1.5 * bound + 1.05 * own


def exact(wanted: oracle.Result) -> oracle.Result:
    """The same without a tolerance: for integers."""
    return wanted[0], np.zeros_like(wanted[1])


def _pads(pads: Sequence[int]) -> Any:
    top, left, bottom, right = pads
    return ((top, bottom), (left, right))


@st.composite
def conv2d(draw: st.DrawFn, *, whole: bool) -> Case:
    """Convolutions: groups, strides and padding beyond the kernel, dilation, empty batches."""
    rng = draw(generators())
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 9]))
    if draw(st.booleans()):
        per_in = per_out = 1
    else:
        per_in, per_out = (max(1, draw(CHANNELS) // groups) for _ in range(2))
    if per_in == per_out == 1:
        groups = draw(CHANNELS)
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    dilation = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(2))
    stride = tuple(draw(st.sampled_from([1, 1, 2, 3, 5])) for _ in range(2))
    size = [draw(SIDES) for _ in range(2)]
    pads = [draw(st.integers(0, 5)) for _ in range(4)]
    for axis in range(2):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        pads[axis + 2] += max(0, reach - size[axis] - pads[axis] - pads[axis + 2])
    fill = integers if whole else normals
    x = fill(rng, (draw(st.sampled_from([1, 1, 2, 3, 0])), groups * per_in, *size))
    w = fill(rng, (groups * per_out, per_in, *kernel))
    b = fill(rng, (groups * per_out,)) if draw(st.booleans()) else None
    names = (None, None, "relu", "relu6") if whole else (None, *ACTIVATIONS)
    act = draw(st.sampled_from(names))
    # Results in float16 would round integers above 2048, so only operands of float32 are whole.
    x = disguised(draw(st.sampled_from([0, 0, 2, 3, 4])), x)
    wanted = oracle.conv2d(
        x, w, b, stride=stride, pads=tuple(pads), dilation=dilation, groups=groups
    )
    wanted = activated(act, wanted)
    return Case(
        f"conv2d {x.shape} {w.shape} groups={groups} {stride=} {pads=} {dilation=} {act}",
        lambda d: gpuedge.conv2d(
            x, w, b, stride=stride, padding=_pads(pads), dilation=dilation, groups=groups,
            activation=act, device=d,
        ),
        exact(wanted) if whole else wanted,
    )  # fmt: skip


@st.composite
def conv_transpose2d(draw: st.DrawFn, *, whole: bool) -> Case:
    """Transposed convolutions."""
    rng = draw(generators())
    groups = draw(st.sampled_from([1, 1, 2, 3, 7]))
    per_in, per_out = (draw(st.sampled_from([1, 2, 3, 4, 5, 9])) for _ in range(2))
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    stride = tuple(draw(st.sampled_from([1, 2, 3, 5])) for _ in range(2))
    dilation = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(2))
    size = [draw(st.sampled_from([1, 2, 3, 5, 7])) for _ in range(2)]
    extra = tuple(
        draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
    )
    full = [
        stride[i] * (size[i] - 1) + extra[i] + (kernel[i] - 1) * dilation[i] + 1 for i in range(2)
    ]
    pads = [0, 0, 0, 0]
    for i in range(2):
        pads[i] = draw(st.integers(0, min(4, full[i] - 1)))
        pads[i + 2] = draw(st.integers(0, min(4, full[i] - 1 - pads[i])))
    fill = integers if whole else normals
    x = fill(rng, (draw(st.sampled_from([1, 1, 2, 0])), groups * per_in, *size))
    w = fill(rng, (groups * per_in, per_out, *kernel))
    b = fill(rng, (groups * per_out,)) if draw(st.booleans()) else None
    act = draw(st.sampled_from([None, "relu"]))
    wanted = activated(
        act,
        oracle.conv_transpose2d(
            x, w, b, stride=stride, pads=tuple(pads), output_padding=extra, dilation=dilation,
            groups=groups,
        ),
    )  # fmt: skip
    return Case(
        f"conv_transpose2d {x.shape} {w.shape} {groups=} {stride=} {pads=} {extra=} {dilation=}",
        lambda d: gpuedge.conv_transpose2d(
            x, w, b, stride=stride, padding=_pads(pads), output_padding=extra, dilation=dilation,
            groups=groups, activation=act, device=d,
        ),
        exact(wanted) if whole else wanted,
    )  # fmt: skip


BATCHES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), ()), ((), ()), ((), ()), ((2,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)),
    ((2, 1, 3), (2, 2, 1)), ((1,), (5,)), ((0,), ()), ((1, 1), (1,)),
)  # fmt: skip
LENGTHS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33, 41, 64, 67])


@st.composite
def matmul(draw: st.DrawFn, *, whole: bool) -> Case:
    """Products of matrices, of batches of them and of vectors."""
    rng = draw(generators())
    batch_a, batch_b = draw(st.sampled_from(BATCHES))
    m, k, n = (draw(LENGTHS) for _ in range(3))
    vectors = draw(st.sampled_from(["", "", "", "a", "b", "ab"]))
    shape_a = (k,) if "a" in vectors else (*batch_a, m, k)
    shape_b = (k,) if "b" in vectors else (*batch_b, k, n)
    fill = integers if whole else normals
    a = disguised(draw(st.sampled_from([0, 0, 2, 3, 4])), fill(rng, shape_a))
    b = fill(rng, shape_b)
    wanted = oracle.matmul(a, b)
    return Case(
        f"matmul {shape_a} {shape_b}",
        lambda d: gpuedge.matmul(a, b, device=d),
        exact(wanted) if whole else wanted,
    )


@st.composite
def gemm(draw: st.DrawFn, *, whole: bool) -> Case:
    """Scaled products plus anything that broadcasts to them."""
    rng = draw(generators())
    m, k, n = (draw(LENGTHS) for _ in range(3))
    ta, tb = draw(st.booleans()), draw(st.booleans())
    alpha, beta = (draw(st.sampled_from([1.0, 1.0, 2.0, -0.5, 0.0])) for _ in range(2))
    fill = integers if whole else normals
    a = fill(rng, (k, m) if ta else (m, k))
    b = fill(rng, (n, k) if tb else (k, n))
    shape = draw(st.sampled_from([None, (), (n,), (1, n), (m, 1), (m, n), (1, 1)]))
    c = None if shape is None else fill(rng, shape)
    wanted = oracle.gemm(a, b, c, alpha, beta, ta, tb)
    return Case(
        f"gemm {a.shape} {b.shape} c={shape} {alpha=} {beta=} {ta=} {tb=}",
        lambda d: gpuedge.gemm(
            a, b, c, alpha=alpha, beta=beta, trans_a=ta, trans_b=tb, device=d
        ),
        exact(wanted) if whole else wanted,
    )  # fmt: skip


@st.composite
def pooling(draw: st.DrawFn, kind: str) -> Case:
    """Maximum and mean over windows; divisors that are powers of two or not."""
    rng = draw(generators())
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(2))
    stride = tuple(draw(st.sampled_from([1, 2, 3, 5])) for _ in range(2))
    size = [draw(SIDES) for _ in range(2)]
    dilation = (1, 1)
    pads = [draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4)]
    if kind == "max" and draw(st.booleans()):
        # Some windows then meet no pixel at all.
        dilation = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        pads = [draw(st.integers(0, (kernel[i % 2] - 1) * dilation[i % 2])) for i in range(4)]
    size = [max(size[i], (kernel[i] - 1) * dilation[i] + 1) for i in range(2)]
    ceil_mode, include = draw(st.booleans()), draw(st.booleans()) and kind == "avg"
    x = integers(rng, (draw(st.sampled_from([1, 2, 0])), draw(CHANNELS), *size), 100)
    what = f"{kind}_pool2d {x.shape} {kernel=} {stride=} {pads=} {dilation=} {ceil_mode=} {include}"
    common: dict[str, Any] = {"stride": stride, "padding": _pads(pads), "ceil_mode": ceil_mode}
    wanted = oracle.pool2d(
        kind, x, kernel, stride, tuple(pads), dilation, ceil_mode=ceil_mode, include_pad=include
    )
    if kind == "max":
        return Case(
            what,
            lambda d: gpuedge.max_pool2d(x, kernel, dilation=dilation, device=d, **common),
            wanted,
        )
    return Case(
        what,
        lambda d: gpuedge.avg_pool2d(x, kernel, count_include_pad=include, device=d, **common),
        wanted,
    )
