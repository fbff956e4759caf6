"""One table of operators: a node with operands, and what it gives, for every level there is.

What it gives says the oracle, in float64 with a bound, or numpy where a row names a function. The
cases of the conformance suite are the same for public functions and for what devices run; here are
attributes, versions and operands that those have not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from planrun import FLOAT_TEXTURES, TEXTURES, Seen, run_graph
from single_node import single

from gpuedge.conformance.units import DOMAINS
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import NEWER
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.opset import FUNCTIONS
from gpuedge.opset.bounds import Num
from gpuedge.oracle.layers import convolve
from gpuedge.oracle.nodes import compute

GLES31 = replace(
    VULKAN_MINIMUM, level="gles31", dialect="essl310", max_invocations=256, offset_alignment=16,
    max_storage_buffers=16, max_push_bytes=320, device_class="cpu-llvm",
)  # fmt: skip
WGPU = replace(
    VULKAN_MINIMUM, level="wgpu", dialect="wgsl", max_invocations=256, offset_alignment=32,
    max_storage_buffers=8, max_push_bytes=65536, device_class="cpu-llvm", subgroup_lanes=8,
    has_suballocation=False,
)  # fmt: skip

CAPS: dict[str, Caps] = {
    "vulkan": VULKAN_MINIMUM, "gles31": GLES31, "gles30": FLOAT_TEXTURES,
    "gles20": replace(TEXTURES, is_finite_only=False), "wgpu": WGPU,
}  # fmt: skip
"""Imaginary devices, one of each level, which the interpreter stands in for."""

LEVELS = (*CAPS, "numpy", "onnxruntime")

Feeds = Mapping[str, Array]


def run_on(level: str, graph: Graph, feeds: Feeds, seen: Seen | None = None) -> dict[str, Array]:
    """Run a graph on a level, or by an engine of the CPU."""
    if level in CAPS:
        return run_graph(graph, feeds, CAPS[level], seen=seen)
    return CpuExecutor(engine=level, threads=1).compile(graph).run(feeds)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """A node: operands (None is absent), of which those at `constant` are constants of the model.

    `wanted` takes the operands; without it the oracle says what is right, and how exactly. `within`
    is a bound to use instead of the oracle's. `lacking` are levels that do not have it.
    """

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constant: tuple[int, ...] = ()
    opset: int = OPSET
    wanted: Callable[..., Any] | None = None
    within: float | None = None
    lacking: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Name, attributes and shapes."""
        shapes = ("x".join(map(str, np.shape(o))) for o in self.operands if o is not None)
        said = (f"{n}={np.ravel(v)[0]}" for n, v in self.attrs.items())
        return "-".join([self.op, *said, *shapes])

    def named(self) -> dict[str, Array]:
        """Return the operands that are there by name."""
        return {f"x{i}": np.asarray(o) for i, o in enumerate(self.operands) if o is not None}

    def feeds(self) -> dict[str, Array]:
        """Return the inputs of the graph."""
        constants = {f"x{i}" for i in self.constant}
        return {name: array for name, array in self.named().items() if name not in constants}

    def graph(self) -> Graph:
        """Return the node as a graph."""
        named, feeds = self.named(), self.feeds()
        order = [f"x{i}" if o is not None else "" for i, o in enumerate(self.operands)]
        constants = {name: array for name, array in named.items() if name not in feeds}
        types = {name: type_of(array) for name, array in feeds.items()}
        opset = max(self.opset, NEWER.get(self.op, 0))
        return single(self.op, types, self.attrs, constants, order=order, opset=opset)

    @cached_property
    def exact(self) -> Num:
        """Return what the node gives, with a bound."""
        if self.wanted is not None:
            return Num.of(np.asarray(self.wanted(*self.operands)))
        arrays = [None if o is None else np.asarray(o) for o in self.operands]
        is_whole = all((a == np.rint(a)).all() for a in arrays if a is not None)
        names = tuple(f"x{i}" if o is not None else "" for i, o in enumerate(self.operands))
        node = Node(self.op, names, ("y",), dict(self.attrs), self.op)
        return Num.of(compute(node, arrays, self.graph().opset[""], whole=is_whole)[0])


def check(row: Row, level: str) -> None:
    """Compare what a level computes with what it is."""
    graph = row.graph()
    (got,) = run_on(level, graph, row.feeds()).values()
    exact = row.exact
    assert got.shape == exact.v.shape
    assert "y" not in graph.types or got.dtype == graph.types["y"].dtype
    bound = exact.e if row.within is None else row.within
    if got.dtype == np.float16:
        bound = bound + 2.0**-11 * np.abs(exact.v)
    with np.errstate(invalid="ignore"):
        is_right = (np.abs(got - exact.v) <= bound) | (got == exact.v)
    is_right |= np.isnan(got) & np.isnan(exact.v)
    assert is_right.all(), (row.id, got[~is_right][:3], exact.v[~is_right][:3])


# --- operands ------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)


def whole(*shape: int) -> Array:
    """Return small whole numbers."""
    return RNG.integers(-3, 4, shape).astype(np.float32)


def least(*shape: int) -> Array:
    """Return small whole numbers above zero."""
    return RNG.integers(1, 4, shape).astype(np.float32)


def normal(*shape: int) -> Array:
    """Return numbers that float32 rounds."""
    return RNG.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype: str = "uint8") -> Array:
    """Return small integers of 8 bits."""
    return RNG.integers(0, 9, shape).astype(dtype)


def ints(*numbers: int) -> Array:
    """Return int64."""
    return np.array(numbers, np.int64)


def floats(*numbers: float) -> Array:
    """Return float32."""
    return np.array(numbers, np.float32)


def row(op: str, *operands: Any, **more: Any) -> Row:
    """Return a row; what is not a field of it is an attribute of the node."""
    fields = {n: more.pop(n) for n in ("constant", "opset", "wanted", "within", "lacking")
              if n in more}  # fmt: skip
    return Row(op, operands, more, **fields)


RUNTIME = ("onnxruntime",)
"""ONNX Runtime lacks it, or rounds more than the oracle allows."""

HALF, TWO, POINT = np.float32(0.5), np.float32(2), np.uint8(3)

# --- rows ----------------------------------------------------------------------------------------


def _quantised(x: Array, *others: Any) -> Array:
    """Return a convolution of codes, which the reference rounds in another way."""
    w, bias = others[2], others[7].reshape(-1, 1, 1)
    total = convolve(x.astype(np.int64) - 3, w.astype(np.int64) - 3) + bias
    return np.clip(np.rint(total * 0.125) + 3, 0, 255)


COMBINED: tuple[Row, ...] = (
    row("Conv", whole(1, 3, 5, 5), whole(6, 3, 3, 3), whole(6)),
    row("Conv", whole(1, 5, 4, 4), whole(5, 1, 3, 3), whole(5), group=5),
    row("Conv", whole(2, 3, 9), whole(5, 3, 3), whole(5), pads=[1, 1]),
    row("ConvTranspose", whole(1, 3, 4, 4), whole(3, 5, 3, 3), whole(5), strides=[2, 2]),
    row("Gemm", whole(3, 7), whole(7, 5), whole(5)),
    row("MatMul", whole(2, 3, 7), whole(7, 5)),
    row("BatchNormalization", whole(2, 3, 4), least(3), whole(3), whole(3), least(3),
        lacking=RUNTIME),
    row("LayerNormalization", whole(2, 3, 5), whole(5), whole(5)),
    row("InstanceNormalization", whole(2, 3, 5), whole(3), whole(3)),
    row("PRelu", whole(2, 3, 4), whole(3, 1)),
    row("Where", whole(3, 4) > 0, whole(2, 3, 4), whole(4)),
    row("Clip", whole(2, 3, 4), np.float32(-1), TWO),
    row("Concat", whole(2, 3, 4), whole(2, 1, 4), whole(2, 2, 4), axis=1),
    row("Sum", whole(2, 3, 4), whole(3, 1), whole(4)),
    row("Gather", whole(5, 4), ints(0, 2, -1)),
    row("ScatterND", whole(5, 4), ints(0, 2).reshape(2, 1), whole(2, 4)),
    row("QuantizeLinear", whole(5, 4), HALF, POINT),
    row("DequantizeLinear", codes(5, 4), HALF, POINT),
    row("ConvInteger", codes(1, 3, 5, 5), codes(4, 3, 3, 3), POINT, POINT),
    row("QLinearConv", codes(1, 3, 5, 5), HALF, POINT, codes(4, 3, 3, 3), HALF, POINT, TWO, POINT,
        np.arange(4, dtype=np.int32), wanted=_quantised, lacking=("vulkan",)),  # binds 4 tensors
    row("QLinearMatMul", codes(3, 5), HALF, POINT, codes(5, 4), HALF, POINT, TWO, POINT),
)  # fmt: skip
"""Operators whose operands the planner arranges together; each may be a constant or an input."""

IMAGE = normal(2, 6, 9, 8)
PADS: dict[str, Any] = {"pads": [1, 0, 2, 1], "strides": [2, 1]}
AXES = ints(1, -1)

WINDOWS: tuple[Row, ...] = (
    row("Conv", IMAGE, normal(4, 3, 2, 3), normal(4), group=2, dilations=[2, 1], **PADS),
    row("Conv", IMAGE, normal(4, 6, 3, 2), auto_pad="SAME_UPPER", strides=[2, 1]),
    row("Conv", IMAGE, normal(4, 6, 3, 2), auto_pad="SAME_LOWER", strides=[1, 2]),
    row("Conv", normal(1, 3, 11), normal(2, 3, 4), dilations=[2]),
    row("Conv", normal(1, 2, 1, 1), normal(3, 2, 1, 1)),
    row("ConvTranspose", IMAGE, normal(6, 4, 2, 3), normal(4), output_padding=[1, 0], **PADS),
    row("ConvTranspose", normal(1, 6, 4, 3), normal(6, 2, 3, 2), group=2, strides=[2, 3],
        dilations=[1, 2], pads=[1, 0, 1, 0], output_padding=[1, 2]),
    row("MaxPool", IMAGE, kernel_shape=[3, 2], dilations=[2, 1], **PADS),
    row("AveragePool", IMAGE, kernel_shape=[3, 2], count_include_pad=1, **PADS),
    row("LpPool", IMAGE, kernel_shape=[3, 2], p=3, **PADS),
    row("GlobalMaxPool", IMAGE), row("GlobalAveragePool", IMAGE),
    row("GlobalAveragePool", normal(2, 4, 6)), row("GlobalMaxPool", normal(1, 1, 1, 1)),
    # padding counts only when told, and where a ceiling reaches only inside of the pads
    row("AveragePool", np.ones((1, 1, 2, 2), np.float32), kernel_shape=[2, 2], pads=[1, 1, 0, 0],
        wanted=lambda _: [[[[1, 1], [1, 1]]]]),
    row("AveragePool", np.ones((1, 1, 2, 2), np.float32), kernel_shape=[2, 2], pads=[1, 1, 0, 0],
        count_include_pad=1, wanted=lambda _: [[[[0.25, 0.5], [0.5, 1]]]]),
    row("AveragePool", np.ones((1, 1, 4), np.float32), kernel_shape=[3], strides=[2], pads=[1, 1],
        ceil_mode=1, wanted=lambda _: [[[1, 1, 1]]]),
    row("AveragePool", np.ones((1, 1, 4), np.float32), kernel_shape=[3], strides=[2], pads=[1, 1],
        ceil_mode=1, count_include_pad=1, wanted=lambda _: [[[2 / 3, 1, 1 / 2]]], within=1e-6),
    row("AveragePool", np.ones((1, 1, 2, 2, 4), np.float32), kernel_shape=[1, 1, 3],
        strides=[1, 1, 2], pads=[0, 0, 1, 0, 0, 1], ceil_mode=1, count_include_pad=1, within=1e-6,
        wanted=lambda _: np.full((1, 1, 2, 2, 3), [2 / 3, 1, 1 / 2])),
    # windows that meet no pixel
    row("AveragePool", floats(5).reshape(1, 1, 1), kernel_shape=[2], dilations=[2], pads=[1, 1],
        wanted=lambda _: [[[0.0]]]),
    row("MaxPool", floats(5).reshape(1, 1, 1), kernel_shape=[2], dilations=[2], pads=[1, 1],
        wanted=lambda _: [[[np.finfo(np.float32).min]]]),
    row("MaxPool", codes(1, 2, 2, 2, dtype="int8"), kernel_shape=[2, 2], dilations=[3, 3],
        pads=[1, 1, 1, 1], wanted=lambda _: np.full((1, 2, 1, 1), -128)),
)  # fmt: skip

POSITIVE = RNG.uniform(0.1, 2, (2, 4, 7, 9)).astype(np.float32)
SCALES = RNG.uniform(0.5, 1, 4).astype(np.float32)
FAR = RNG.normal(10, 1e-3, (2, 4, 7, 9)).astype(np.float32)


def _far(x: Array, scale: Array) -> Array:
    """Return rows centred and scaled, which a float32 mean would be a thousandth off."""
    centred = x.astype(np.float64) - x.astype(np.float64).mean((1, 2, 3), keepdims=True)
    return scale * centred / np.sqrt((centred**2).mean((1, 2, 3), keepdims=True) + 1e-5)


def _grouped(x: Array, scale: Array, shift: Array) -> Array:
    """Return groups of two channels centred and scaled."""
    pairs = x.astype(np.float64).reshape(2, 2, -1)
    even = (pairs - pairs.mean(2, keepdims=True)) / np.sqrt(pairs.var(2, keepdims=True) + 1e-5)
    column = (np.float64(one).reshape(-1, 1, 1) for one in (scale, shift))
    by, plus = column
    return even.reshape(x.shape) * by + plus


def _even(x: Array) -> Array:
    """Return channels centred and scaled."""
    centred = x.astype(np.float64) - x.astype(np.float64).mean((0, 2, 3), keepdims=True)
    return centred / (np.sqrt((centred**2).mean((0, 2, 3), keepdims=True)) + 1e-9)


def _root(x: Array, scale: Array) -> Array:
    """Return rows divided by the root of their mean square."""
    wide = x.astype(np.float64)
    return scale * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)


def _first_selu(x: Array) -> Array:
    """Return Selu with the parameters that it had before operator set 6."""
    return 1.0507 * np.where(x > 0, x, 1.6732 * np.expm1(x.astype(np.float64)))


ROUNDED: tuple[Row, ...] = (
    row("MatMul", normal(2, 4, 7), normal(7, 5)),
    row("Gemm", normal(7, 4), normal(5, 7), normal(5), transA=1, transB=1, alpha=0.5),
    row("LpNormalization", IMAGE, axis=1),
    row("LayerNormalization", IMAGE, normal(8), normal(8)),
    row("LayerNormalization", FAR, np.full((4, 7, 9), 2, np.float32), axis=1, constant=(1,),
        wanted=_far, within=16 * 2.0**-24 * 2, lacking=RUNTIME),
    row("InstanceNormalization", IMAGE, normal(6), normal(6)),
    row("BatchNormalization", IMAGE, *normal(3, 6), normal(6) ** 2,
        lacking=RUNTIME),
    row("GroupNormalization", POSITIVE, SCALES, SCALES, num_groups=2, opset=21, constant=(1, 2),
        wanted=_grouped, within=4e-6),
    row("RMSNormalization", POSITIVE, np.ones(9, np.float32), opset=23, constant=(1,),
        wanted=_root, within=4e-6, lacking=RUNTIME),
    row("MeanVarianceNormalization", POSITIVE, opset=18, wanted=_even, within=4e-6),
    row("Softmax", IMAGE, axis=1), row("LogSoftmax", IMAGE, axis=-2),
    row("Softmax", floats(1000, 1001, 999, -1e30, 0, 1).reshape(2, 3), axis=1),
    # before operator set 13 all axes from the one named on are flattened
    row("Softmax", np.ones((2, 3, 4), np.float32), opset=11, within=1e-7,
        wanted=lambda x: np.full(x.shape, 1 / 12)),
    row("Softmax", np.ones((2, 3, 4), np.float32), opset=12, axis=2, within=1e-7,
        wanted=lambda x: np.full(x.shape, 1 / 4)),
    row("LogSoftmax", np.ones((2, 3, 4), np.float32), opset=11, within=1e-6,
        wanted=lambda x: np.full(x.shape, -np.log(12))),
    row("Hardmax", np.arange(24, dtype=np.float32).reshape(2, 3, 4), opset=11,
        wanted=lambda x: x % 12 == 11),
    row("CumSum", IMAGE, np.int64(2), reverse=1, exclusive=1, constant=(1,)),
    row("Mean", IMAGE, normal(8), normal(6, 1, 1)), row("Max", IMAGE, normal(8), normal(6, 1, 1)),
    row("ReduceMean", IMAGE, AXES, keepdims=0, constant=(1,)), row("ReduceSum", IMAGE),
    row("ReduceL1", IMAGE, AXES, constant=(1,)), row("ReduceSumSquare", IMAGE, AXES, constant=(1,)),
    row("ReduceL2", IMAGE, AXES, keepdims=0, constant=(1,)),
    row("ReduceLogSum", POSITIVE, AXES, constant=(1,)),
    row("ReduceLogSumExp", IMAGE, AXES, keepdims=0, constant=(1,)),
    row("ReduceMean", POSITIVE, axes=(2, 3), opset=13),
    row("ReduceMin", IMAGE, axes=(-1,), opset=11),
    row("Resize", IMAGE, None, floats(1, 1, 2, 0.5), mode="linear", constant=(2,), within=2e-6),
    row("Resize", IMAGE, None, None, ints(2, 6, 5, 13), mode="cubic", constant=(3,), within=4e-6),
    row("Gelu", POSITIVE, approximate="tanh"),
    row("Selu", IMAGE, opset=1, within=2e-6, lacking=RUNTIME, wanted=_first_selu),
    row("HardSigmoid", IMAGE, beta=0.25),
    # alpha leaves weights that it would make infinite or zero as they are
    *(row("Gemm", floats(1, 2).reshape(1, 2) / np.float32(size),
          np.full((2, 3), size, np.float32), alpha=alpha, constant=(1,), within=1e-6 * 3 * alpha,
          wanted=lambda *_, alpha=alpha: np.full((1, 3), 3 * alpha))
      for alpha, size in ((1e30, 1e30), (1e-30, 1e-30), (2.0, 3.0))),
)  # fmt: skip

PARAMETERS: dict[str, dict[str, Any]] = {
    "LeakyRelu": {"alpha": 0.3}, "Elu": {"alpha": 0.7}, "Selu": {"alpha": 1.5, "gamma": 1.25},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "ThresholdedRelu": {"alpha": 0.8},
    "Celu": {"alpha": 2.0}, "Swish": {"alpha": 1.5},
}  # fmt: skip

UNARY: tuple[Row, ...] = tuple(
    row(op, RNG.uniform(*ends, (13, 7)).astype(np.float32), **attrs, lacking=RUNTIME)
    for op, ends in {
        FUNCTIONS[name].op: ends for name, ends in DOMAINS.items() if name in FUNCTIONS
    }.items()
    for attrs in ([{}, PARAMETERS[op]] if op in PARAMETERS else [{}])
)
"""Functions of one operand where conformance cases draw it, as nodes."""

NUMBERS = RNG.integers(-9, 10, (3, 5, 7)).astype(np.float32)
ODD = floats(-np.inf, -2, 3, np.inf)


def _reductions() -> list[Row]:
    functions = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}
    return [
        row(op, NUMBERS, *([ints(*axes)] if axes else []), keepdims=0, constant=(1,),
            wanted=lambda x, *_, f=f, axes=axes: f(x.astype(np.float64), axis=axes or None))
        for op, f in functions.items()
        for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), ())
    ]  # fmt: skip


EXACT: tuple[Row, ...] = (
    *_reductions(),
    row("Clip", floats(-1e9, -2, 3, 1e9), min=-1.0, max=6.0, opset=10),
    row("Clip", floats(-1e9, -2, 3, 1e9), np.float32(0), np.float32(6), constant=(1, 2)),
    row("Clip", floats(-1e9, -2, 3, 1e9), None, TWO, constant=(2,)),
    row("Clip", floats(-1e9, -2, 3, 1e9), np.float32(-1), floats(5)),
    row("Clip", ODD, np.float32(-np.inf), constant=(1,), lacking=RUNTIME,
        wanted=lambda *_: [-np.inf, -2, 3, np.finfo(np.float32).max]),
    row("Clip", ODD, np.float32(-np.inf), TWO, constant=(1, 2),
        wanted=lambda *_: [-np.inf, -2, 2, 2]),
    row("Clip", ODD, np.float32(0), np.float32(np.inf), constant=(1, 2),
        wanted=lambda *_: [0, 0, 3, np.inf]),
    row("Clip", ODD, np.float32(-np.inf), np.float32(np.inf), constant=(1, 2),
        wanted=lambda *_: ODD),
    row("Clip", ODD, min=0.0, max=np.inf, opset=10,
        wanted=lambda _: [0, 0, 3, np.inf]),
    row("ConvInteger", codes(1, 3, 5, 6, dtype="int8"), codes(4, 3, 2, 2, dtype="int8"),
        np.int8(3), lacking=RUNTIME),
    row("MatMulInteger", codes(4, 7, dtype="int8"), codes(7, 5, dtype="int8"), np.int8(2),
        np.int8(-1)),
)  # fmt: skip

ONES = {shape: np.ones(shape, np.float32) for shape in product((0, 2, 3, 4), repeat=2)}

NOTHING: tuple[Row, ...] = (
    row("Reshape", ONES[4, 0], ints(0, 2, 2), allowzero=1, constant=(1,)),
    row("Transpose", np.ones((4, 0, 3), np.float32), perm=[2, 0, 1]),
    row("Unsqueeze", ONES[4, 0], ints(1), constant=(1,)),
    row("Gather", ONES[4, 3], ints(), axis=1, constant=(1,)),
    row("Concat", ONES[4, 0], ONES[4, 3], ONES[4, 0], axis=1, constant=(1, 2)),
    row("Concat", ONES[4, 0], ONES[2, 0], axis=0, constant=(1,)),
    row("Relu", ONES[4, 0]), row("Add", ONES[4, 0], np.ones((4, 1), np.float32)),
    row("CumSum", ONES[4, 0], np.int64(0), constant=(1,)), row("Softmax", ONES[0, 4], axis=1),
    row("MatMul", ONES[4, 0], ONES[0, 3]), row("MatMul", ONES[0, 4], ONES[4, 3]),
    row("MatMul", np.ones((4, 2, 0), np.float32), np.ones((4, 0, 3), np.float32)),
    row("MatMul", floats(), floats()),
    row("MatMul", ONES[2, 0].astype("f2"), ONES[0, 3].astype("f2")),
    row("Gemm", ONES[2, 0].astype("f2"), ONES[0, 3].astype("f2"), np.ones(3, "f2"), beta=2.0),
    row("Gemm", ONES[2, 0], ONES[0, 3], alpha=3.0),
    row("Gemm", ONES[0, 2], ONES[0, 3], np.ones(3, np.float32), transA=1, beta=2.0),
    row("Gemm", ONES[2, 0], ONES[3, 0], np.ones((2, 1), np.float32), transB=1, beta=0.5),
    row("Gemm", ONES[2, 0], ONES[0, 3], np.float32(1), beta=0.0),
    row("Conv", np.ones((0, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)),
    row("ConvTranspose", np.ones((0, 2, 3, 3), np.float32), np.ones((2, 4, 1, 1), np.float32)),
    row("MaxPool", np.ones((0, 2, 3, 3), np.float32), kernel_shape=[2, 2],
        wanted=lambda x: x[..., 1:, 1:]),
    row("AveragePool", np.ones((0, 2, 3), np.float32), kernel_shape=[2],
        wanted=lambda x: x[..., 1:]),
    row("GlobalAveragePool", np.ones((0, 2, 3, 3), np.float32)),
    row("GlobalMaxPool", np.ones((0, 2, 3, 3), np.float32)),
)  # fmt: skip
"""Operators on tensors without any element, or that make such."""


def _wrapping() -> list[Row]:
    """Integers of 8 and 16 bits wrap as numpy has it."""
    functions: dict[str, Callable[..., Array]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs,
        "Div": lambda a, b: np.trunc(a.astype(float) / b).astype(np.int64).astype(a.dtype),
    }  # fmt: skip
    a, b = np.array([200, 100, 3, 7]), np.array([100, 99, 2, 1])
    return [
        row(op, *((a if dtype == "uint8" else a - 150).astype(dtype), b.astype(dtype))[:count],
            wanted=f, lacking=RUNTIME)
        for op, f in functions.items()
        for dtype in ("uint8", "int8", "int16")
        if (op, dtype) not in (("Mul", "int16"), ("Neg", "uint8"))
        for count in [1 if op in ("Neg", "Abs") else 2]
    ]  # fmt: skip


def _places(share: float, dtype: str, *shape: int) -> Row:
    """Return a row of what is not zero, of which there is such a share."""
    x = (RNG.random(shape) < share) * RNG.integers(1, 4, shape)
    return row("NonZero", x.astype(dtype), wanted=lambda x: np.stack(np.nonzero(x)))


def _scene(count: int = 9) -> tuple[Array, Array]:
    """Return boxes of two images, and scores of two classes, many of which are equal."""
    centre, half = RNG.random((2, count, 2)), 0.1 + RNG.random((2, count, 2)) / 4
    scores = RNG.integers(0, 9, (2, 2, count)) / 8
    corners = np.concatenate([centre - half, centre + half], axis=2)
    return corners.astype(np.float32), scores.astype(np.float32)


def _boxes(boxes: Array, scores: Array, *limits: Any, **more: Any) -> Row:
    """Return a row of the best boxes; other levels than two take long for it.

    The reference cannot compute them: unless told, they are what ONNX Runtime gives.
    """
    made = row("NonMaxSuppression", boxes, scores, *map(np.asarray, limits),
               constant=tuple(range(2, 2 + len(limits))),
               lacking=("gles31", "gles30", "wgpu"), **more)  # fmt: skip
    if made.wanted is not None:
        return made
    by_runtime = lambda *_: run_on("onnxruntime", made.graph(), made.feeds())["y"]  # noqa: E731
    return replace(made, wanted=by_runtime)


CORNERS, SCORES = _scene()
MIDDLE, SIZE = (CORNERS[..., :2] + CORNERS[..., 2:]) / 2, CORNERS[..., 2:] - CORNERS[..., :2]
COVERING = floats(0, 0, 2, 2, 0, 0, 2, 1).reshape(1, 2, 4)
"""Two boxes that share exactly a half of what they cover."""

SHARED = (COVERING, floats(0.5, 0.75).reshape(1, 1, 2), 2)

PICKED: tuple[Row, ...] = (
    *(_boxes(CORNERS, SCORES, most, *limits)
      for most in (1, 100) for limits in ((), (floats(0.2), np.float32(0.375)))),
    _boxes(CORNERS[:, :, [2, 1, 0, 3]], SCORES, 9, np.float32(0.1)),
    _boxes(np.concatenate([MIDDLE[..., ::-1], SIZE[..., ::-1]], axis=2), SCORES, 9,
           np.float32(0.1), center_point_box=1),
    _boxes(*SHARED, HALF, wanted=lambda *_: [[0, 0, 1], [0, 0, 0]]),
    _boxes(*SHARED, np.nextafter(HALF, np.float32(0)), wanted=lambda *_: [[0, 0, 1]]),
    _boxes(CORNERS, SCORES, wanted=lambda *_: np.zeros((0, 3))),
    _boxes(CORNERS, SCORES, 0, wanted=lambda *_: np.zeros((0, 3))),
    _boxes(CORNERS, SCORES, 5, HALF, TWO, wanted=lambda *_: np.zeros((0, 3))),
    row("NonZero", ONES[3, 0], wanted=lambda _: np.zeros((2, 0)), lacking=tuple(CAPS)),
    _places(1.0, "float32", 1), _places(0.0, "int64", 9), _places(0.3, "float32", 9),
    _places(0.7, "bool", 3, 5), _places(1.0, "uint8", 3, 5), _places(0.0, "bool", 2, 3, 1, 5),
    _places(0.3, "float32", 2, 3, 1, 5), _places(0.7, "uint8", 2, 3, 1, 5),
)  # fmt: skip


# --- sampling at any place -----------------------------------------------------------------------


def _clamped(x: Array, grid: Array, aligns: int) -> Array:
    """Cubic interpolation of an image whose border goes on for ever, in float64."""
    high, wide = x.shape[2:]
    far = 40
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (far, far), (far, far)), mode="edge")
    y = np.zeros((x.shape[0], x.shape[1], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        places, taps = [], []
        for g, size in zip(grid[n, i, j, ::-1].astype(np.float64), (high, wide), strict=True):
            place = (g + 1) * (size - 1) / 2 if aligns else ((g + 1) * size - 1) / 2
            places.append(int(np.floor(place)) + far)
            d = np.abs(place - np.floor(place) - np.arange(-1, 3))
            near = 1.25 * d**3 - 2.25 * d**2 + 1
            outer = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            taps.append(np.where(d <= 1, near, outer))
        top, left = places
        patch = padded[n, :, top - 1 : top + 3, left - 1 : left + 3]
        y[n, :, i, j] = np.einsum("chw,h,w->c", patch, *taps)
    return y


def _sampled() -> list[Row]:
    """Every mode; the reference misreads one, and ONNX Runtime has no cubic one of volumes.

    The interpreter takes long for the many steps of each.
    """
    rows = []
    for mode, padding, aligns, shape in product(
        ("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1),
        ((2, 3, 5, 6), (1, 2, 4, 5, 3)),
    ):  # fmt: skip
        rank = len(shape) - 2
        if mode == "cubic" and rank == 3:
            continue
        grid = RNG.uniform(-1.8, 1.8, (shape[0], *(7 - rank,) * rank, rank)).astype(np.float32)
        is_clamped = (mode, padding) == ("cubic", "border")
        wanted = partial(_clamped, aligns=aligns) if is_clamped else None
        how = {"mode": mode, "padding_mode": padding, "align_corners": aligns}
        rows.append(row("GridSample", normal(*shape), grid, within=1e-5, wanted=wanted,
                        lacking=("gles31", "gles30", "wgpu"), **how))  # fmt: skip
    return rows


FAR_OUTSIDE = [
    row("GridSample", np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4),
        floats(place, 0).reshape(1, 1, 1, 2), mode="cubic", padding_mode="border",
        lacking=(*CAPS, "onnxruntime"),
        wanted=lambda *_, place=place: [[[[0 if place < 0 else 3]]]])
    for place in (-1e9, 1e9, -np.inf, np.inf)
]  # fmt: skip
"""Far outside of an image there is its border."""


def _trimmed(mode: str) -> list[Row]:
    """Return pads of which some cut off: what is left is what is padded with."""
    rows = []
    for before, after in ((-2, 3), (3, -2), (-1, 9), (9, -4), (-1, -3)):
        cut = slice(max(-before, 0), 5 - max(-after, 0))
        widths = (0, 0), (max(before, 0), max(after, 0))
        pad: Any = partial(np.pad, pad_width=widths, mode=mode)
        # ONNX Runtime refuses to reflect more than there is
        lacking = RUNTIME if mode == "reflect" and max(before, after) > 0 else ()
        rows.append(row("Pad", whole(2, 5), ints(0, before, 0, after), constant=(1,), mode=mode,
                        wanted=lambda x, _, cut=cut, pad=pad: pad(x[:, cut]), lacking=lacking)
                    )  # fmt: skip
    return rows


def _backwards() -> list[Row]:
    """Return slices that begin before the first element: ONNX has them begin with it."""
    return [
        row("Slice", whole(5, 3), ints(begin), ints(end), ints(0), ints(step),
            constant=(1, 2, 3, 4), wanted=lambda x, *_, count=count: x[:count])
        for begin, end, step, count in (
            (-9, -100, -1, 1), (-6, -(2**63), -2, 1), (-(2**63), -7, -3, 1), (-9, 0, -1, 0),
            (-9, 4, 1, 4),
        )
    ]  # fmt: skip


def _steep() -> list[Row]:
    """Return what is finite where exp(x) is not."""
    x = floats(-89.4, -88.8, -88.01, -88, 0, 1e-30, 87, 88.5, 88.73, 89.2, 89.41)
    return [
        row(op, x, within=np.abs(exact(x.astype(np.float64))) * (8 + 2 * np.abs(x)) * 2.0**-23,
            wanted=lambda x, exact=exact: exact(x.astype(np.float64)))
        for op, exact in (("Sinh", np.sinh), ("Cosh", np.cosh))
    ]  # fmt: skip


def _attended(q: Array, k: Array, v: Array, mask: Array, *, causal: bool) -> Array:
    """Return an attention of one mask for all queries."""
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / 2
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = weights / weights.sum(-1, keepdims=True) @ v
    return result


ROW = floats(0, -1, 0.5, 2)
MASKS = ROW, ROW[None], np.array([[[True, False, True, True]]])

SHARED: tuple[Row, ...] = tuple(
    row("Attention", normal(1, 2, 3, 4), normal(1, 2, 4, 4), normal(1, 2, 4, 2), mask, opset=opset,
        within=1e-5, wanted=partial(_attended, causal=bool(causal)), lacking=RUNTIME,
        is_causal=causal)
    for mask in MASKS for causal in (0, 1) for opset in (23, 24)
)  # fmt: skip
"""Masks that all queries share, which ONNX Runtime refuses."""

TABLE = (
    *_trimmed("wrap"),
    *_trimmed("reflect"),
    *_trimmed("edge"),
    *_backwards(),
    *_steep(),
    *SHARED,
    *_sampled(),
    *FAR_OUTSIDE,
    *COMBINED,
    *WINDOWS,
    *ROUNDED,
    *EXACT,
    *NOTHING,
    *_wrapping(),
    *PICKED,
)
