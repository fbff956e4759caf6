"""Known answers that only entries of the capability database ask for: every kernel, every storage.

As in `kat`, all references are written from the definitions of the operators, in float64, and share
no code with the kernels. Whole numbers must come back in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpuedge.core.caps import Caps
from gpuedge.core.storage import KINDS
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.storages import BYTES, FLOAT_TEXEL, HALF, Keeping, offers
from gpuedge.probing import kat
from gpuedge.probing.kat import F32, F64, UNIT, Case

LARGE: Final = 1 << 25
"""Bytes of the largest tensor of the test ``large``: all its places are exact float32."""

LARGE_WIDTH: Final = 1021

EXP_ERROR: Final = 2.0**-12
"""Relative error allowed where the device computes exponentials, which no API bounds well. With
half floats it would be larger."""

HALF_UNIT: Final = 2.0**-11
HALF_LEAST: Final = 2.0**-14
"""Smallest normal float16: below it a device may give zero."""


def cases(test: str, caps: Caps) -> list[Case]:
    """Return the cases of a test that an entry can ask for, in the order they run.

    Parameters
    ----------
    test : str
        Of `gpuedge.capdb.entries.TESTS`.
    caps : Caps
        The device they are for. What it does not offer is not tested: so the list may be empty.
    """
    return _MADE[test](caps)


def _rng() -> np.random.Generator:
    return np.random.default_rng(5)


def _whole(rng: np.random.Generator, *shape: int) -> F32:
    return rng.integers(-4, 5, shape).astype(np.float32)


def _graph(
    op: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    attrs: Mapping[str, Any] | None = None,
    constants: Sequence[str] = (),
) -> Graph:
    """Return one node whose inputs are `inputs`, in order; some of them are constants."""
    builder = GraphBuilder()
    for name, array in inputs.items():
        if name in constants:
            builder.constant(name, array)
        else:
            builder.input(name, TensorType(str(array.dtype), array.shape))
    builder.output(builder.add(op, list(inputs), attrs, output="y"))
    return builder.build()


def _exact(
    name: str,
    op: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    expected: npt.NDArray[Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    constants: Sequence[str] = (),
) -> Case:
    """Return a case on whole numbers, whose answer has no error."""
    answer = np.asarray(expected, np.float64)
    given = {key: array for key, array in inputs.items() if key not in constants}
    graph = _graph(op, inputs, attrs, constants)
    return Case(name, graph, given, answer, np.zeros_like(answer))


def _standard(caps: Caps) -> list[Case]:
    return kat.cases(caps)


def _kernels(caps: Caps) -> list[Case]:
    """Return a case for each way that selection can go: wide and narrow, many rows and few."""
    rng = _rng()
    return [
        *(c for c in kat.cases(caps) if c.name != "every byte"),
        *_windows(rng),
        *_products(rng),
        *_softmaxes(rng),
        *_moves(rng),
    ]


def _windows(rng: np.random.Generator) -> list[Case]:
    narrow, w, b = _whole(rng, 1, 5, 6, 3), _whole(rng, 6, 5, 3, 3), _whole(rng, 6)
    exact, _ = kat.conv_reference(narrow, w, b, (1, 1, 1, 1))
    graph = kat.conv_graph(TensorType("float32", narrow.shape), w, b, (1, 1, 1, 1))
    positive = np.maximum(exact, 0.0)
    found = [
        Case("narrow convolution", graph, {"x": narrow}, positive, np.zeros_like(positive)),
        _depthwise(rng),
        _transposed(rng),
    ]
    x = _whole(rng, 1, 6, 9, 11)
    blocks = [x[:, :, i : i + 7 : 2, j : j + 9 : 2] for i in range(3) for j in range(3)]
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2]}
    found.append(_exact("largest of nine", "MaxPool", {"x": x}, np.max(blocks, axis=0), attrs))
    blocks = [x[:, :, i : i + 8 : 2, j : j + 10 : 2] for i in range(2) for j in range(2)]
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    found.append(_exact("mean of four", "AveragePool", {"x": x}, np.mean(blocks, axis=0), attrs))
    return found


def _depthwise(rng: np.random.Generator) -> Case:
    x, w, b = _whole(rng, 1, 7, 9, 10), _whole(rng, 7, 1, 3, 3), _whole(rng, 7)
    each = [
        kat.conv_reference(x[:, c : c + 1], w[c : c + 1], b[c : c + 1], (1, 1, 1, 1))[0]
        for c in range(7)
    ]
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1], "group": 7}
    inputs = {"x": x, "w": w, "b": b}
    answer = np.concatenate(each, axis=1)
    return _exact("depthwise convolution", "Conv", inputs, answer, attrs, constants=("w", "b"))


def _transposed(rng: np.random.Generator) -> Case:
    x, w = _whole(rng, 1, 5, 4, 6), _whole(rng, 5, 6, 3, 3)
    answer = np.zeros((1, 6, 9, 13))
    for i in range(4):
        for j in range(6):
            pixel = np.einsum("nc,cmhw->nmhw", x[:, :, i, j].astype(np.float64), w)
            answer[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += pixel
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2]}
    inputs = {"x": x, "w": w}
    return _exact(
        "transposed convolution", "ConvTranspose", inputs, answer, attrs, constants=("w",)
    )


def _products(rng: np.random.Generator) -> list[Case]:
    """Return products of few rows, of many, and of so many that tiles pay."""
    found = []
    shapes = {"few rows": (3, 37, 5), "rows": (9, 37, 11), "tiles": (37, 67, 41)}
    for name, (m, k, n) in shapes.items():
        a, b = _whole(rng, m, k), _whole(rng, k, n)
        answer = a.astype(np.float64) @ b.astype(np.float64)
        found.append(_exact(f"product of {name}", "MatMul", {"a": a, "b": b}, answer))
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((37, 67), (67, 41)))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    # As in `kat`: about terms * UNIT * magnitude in any order, with a factor of 4 to spare.
    bound: F64 = 4 * 67 * UNIT * (abs(wide_a) @ abs(wide_b))
    inputs = {"a": a, "b": b}
    found.append(Case("random product", _graph("MatMul", inputs), inputs, wide_a @ wide_b, bound))
    return found


def _softmaxes(rng: np.random.Generator) -> list[Case]:
    """Return a row that one pass sums, and one that is so long that it takes several."""
    found = []
    for name, shape in (("short", (3, 37)), ("long", (2, 1500))):
        x = rng.uniform(-4, 4, shape).astype(np.float32)
        power = np.exp(x.astype(np.float64))
        answer: F64 = power / power.sum(axis=-1, keepdims=True)
        graph = _graph("Softmax", {"x": x}, {"axis": -1})
        found.append(Case(f"{name} softmax", graph, {"x": x}, answer, EXP_ERROR * answer))
    return found


def _moves(rng: np.random.Generator) -> list[Case]:
    """Return what only moves numbers: joining, and from one layout to another."""
    a, b = _whole(rng, 1, 5, 6, 7), _whole(rng, 1, 6, 6, 7)
    joined = np.concatenate([a, b], axis=1)
    found = [
        _exact("joined channels", "Concat", {"a": a, "b": b}, joined, {"axis": 1}),
        _exact("turned", "Transpose", {"a": a}, a.transpose(0, 2, 3, 1), {"perm": [0, 2, 3, 1]}),
    ]
    # A product of what a convolution gave: its texels hold channels, those of a product columns.
    w = _whole(rng, 6, 5, 1, 1)
    builder = GraphBuilder()
    builder.input("x", TensorType("float32", a.shape))
    builder.constant("w", w)
    builder.input("m", TensorType("float32", (7, 3)))
    attrs = {"kernel_shape": [1, 1]}
    made = builder.add("MatMul", [builder.add("Conv", ["x", "w"], attrs), "m"])
    builder.output(builder.add("Relu", [made], output="y"))
    m = _whole(rng, 7, 3)
    exact, _ = kat.conv_reference(a, w, np.zeros(6, np.float32), (0, 0, 0, 0))
    answer = np.maximum(exact @ m.astype(np.float64), 0.0)
    inputs = {"x": a, "m": m}
    found.append(Case("other layout", builder.build(), inputs, answer, np.zeros_like(answer)))
    return found


def _half(caps: Caps) -> list[Case]:
    """Return arithmetic on tensors that are kept in float16."""
    if not offers(caps, "float16"):
        return []
    keeping = Keeping("float16")
    rng, shape = _rng(), kat.ELEMENTWISE
    graph = kat.elementwise_graph(shape)
    whole = {name: _whole(rng, *shape) for name in ("a", "b", "c")}
    a, b, c = (whole[name].astype(np.float64) for name in ("a", "b", "c"))
    answer = a * b + c
    found = [Case("half integers", graph, whole, answer, np.zeros_like(answer), keeping)]
    parts = {
        name: rng.uniform(-1, 1, shape).astype(np.float16).astype(np.float32)
        for name in ("a", "b", "c")
    }
    a, b, c = (parts[name].astype(np.float64) for name in ("a", "b", "c"))
    answer = a * b + c
    # The inputs are kept as they are; the output is rounded, to nearest or towards zero.
    bound: F64 = 2 * HALF_UNIT * abs(answer) + HALF_LEAST + 4 * UNIT
    found.append(Case("half random", graph, parts, answer, bound, keeping))
    x, w, b32 = _whole(rng, 1, 7, 11, 13), _whole(rng, 9, 7, 3, 3), _whole(rng, 9)
    exact, _ = kat.conv_reference(x, w, b32, (1, 1, 1, 1))
    positive = np.maximum(exact, 0.0)  # at most 63 * 16 + 4, which float16 holds
    graph = kat.conv_graph(TensorType("float32", x.shape), w, b32, (1, 1, 1, 1))
    bound = np.zeros_like(positive)
    found.append(Case("half convolution", graph, {"x": x}, positive, bound, keeping))
    return found


def _storages(caps: Caps) -> list[Case]:
    """Return cases for each storage kind offered: exact ones as if each were the first."""
    found: list[Case] = []
    standard = [c for c in kat.cases(caps) if c.name != "every byte"]
    for kind in caps.storages:
        about = KINDS[kind]
        if about.is_exact and about.low is None:
            found += [_kept(case, kind) for case in standard]
    if FLOAT_TEXEL in caps.storages:
        found += [_bytes(dtype) for dtype, kind in BYTES.items() if kind in caps.storages]
    if offers(caps, "fixed16"):
        found.append(_fixed16())
    return found + (_half(caps) if HALF in caps.storages else [])


def _kept(case: Case, kind: str) -> Case:
    return Case(case.name, case.graph, case.inputs, case.expected, case.bound, storage=kind)


def _bytes(dtype: str) -> Case:
    low = int(np.iinfo(dtype).min)
    values = np.arange(low, low + 256)
    planes = [values, values[::-1], np.roll(values, 85), np.roll(values[::-1], 171)]
    x = np.stack(planes).astype(dtype).reshape(1, 4, 16, 16)
    graph = kat.gather_graph(TensorType(dtype, x.shape), (1, 1))
    exact = x.astype(np.float64)
    inputs = {"x": x}
    return Case(f"every {dtype}", graph, inputs, exact, np.zeros_like(exact), storage=FLOAT_TEXEL)


def _fixed16() -> Case:
    """Return a thousand numbers of a range, moved twice: each is off by one step at most."""
    shape = (1, 4, 16, 16)
    x = np.linspace(-100.0, 155.0, prod(shape)).astype(np.float32).reshape(shape)
    keeping = Keeping("fixed16", {"x": (-100.0, 155.0), "y": (-100.0, 155.0)})
    graph = kat.gather_graph(TensorType("float32", shape), (1, 1))
    exact = x.astype(np.float64)
    bound = np.full_like(exact, 2 * 255.0 / 65535 * (1 + 2.0**-7))
    return Case("16-bit fixed point", graph, {"x": x}, exact, bound, keeping)


def _large(caps: Caps) -> list[Case]:
    """Return the places of a tensor as large as the device takes, or as `LARGE`."""
    known = [caps.max_storage_buffer_bytes, caps.max_allocation_bytes]
    limit = min(LARGE, *(most for most in known if most is not None))
    if caps.is_finite_only:  # a texel is four fragments there, of which each computes all of it
        limit = min(limit, LARGE // 16)
    texels = max(2, limit // 16)
    width = min(LARGE_WIDTH, texels // 2)
    return [kat.places("large", max(1, texels // 2 // width), width)]


_MADE: Final[Mapping[str, Callable[[Caps], list[Case]]]] = {
    "standard": _standard,
    "kernels": _kernels,
    "half": _half,
    "storages": _storages,
    "large": _large,
    "repeat": _standard,
}
