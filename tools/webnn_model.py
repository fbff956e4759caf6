"""WebNN's conformance cases as ONNX models: what each operator of WebNN is there, and how exact.

The cases are in tests/data/webnn, whose README says what they are and where they are from. The
operators are those of https://www.w3.org/TR/webnn/, the tolerances those of WPT's
webnn/resources/utils.js and, of reductions, normalisations and casts, of the test files themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "webnn"
OPSET, IR_VERSION = 20, 9
Array = NDArray[Any]
Case = dict[str, Any]
OUTPUTS = "output"
"""What outputs are called, with a number; names of the cases hold any letter there is."""


@cache
def every_case() -> dict[str, Case]:
    """Return all cases by file and name, such as ``add/add float32 1D constant tensors``."""
    return {
        f"{file.stem}/{case['name']}": case
        for file in sorted(DATA.glob("*.json"))
        for case in json.loads(file.read_text(encoding="utf-8"))
    }


def array_of(tensor: Case) -> Array:
    """Return a tensor of a case; one number stands for all of its elements."""
    kind, shape = np.dtype(tensor["type"]), tuple(tensor["shape"])
    data = tensor["data"]
    if not isinstance(data, list):
        return np.full(shape, data, kind)
    if kind.kind == "f":
        data = [float(value) for value in data]  # also of "Infinity"
    return np.array(data, kind).reshape(shape)


def group(case: Case) -> str:
    """Return which of the `GROUPS` a case is of."""
    found = {one["type"] for one in (*case["inputs"].values(), *case["expected"].values())}
    if found <= {"float32", "int8", "uint8"}:
        return PLAIN
    return GROUPS[1] if "float16" in found else GROUPS[2]


PLAIN = "float32, int8, uint8 alone"
GROUPS = (PLAIN, "float16 among them", "int32, int64 and unsigned ones among them")
"""Element types of cases, the most important first."""


class Maker:
    """Collects the nodes and constants of a case's model; values are names."""

    def __init__(self, case: Case) -> None:
        self.options: Case = case["options"]
        self.arguments: Case = case["arguments"]
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self._named: dict[str, str] = {}
        self._arrays: dict[str, Array] = {}
        for number, (name, tensor) in enumerate(case["inputs"].items()):
            self._named[name] = f"input{number}"
            self._arrays[name] = array = array_of(tensor)
            # A graph of nothing but constants would be computed while it is read.
            constant = tensor.get("constant") and not all(
                other.get("constant") for other in case["inputs"].values()
            )
            (self.constants if constant else self.feeds)[self._named[name]] = array

    def array(self, key: str) -> Array:
        """Return the operand that an argument or option names."""
        return self._arrays[self.options.get(key, self.arguments.get(key))]

    def value(self, key: str, default: Array | None = None) -> str:
        """Return the value that an argument or option names, or a constant."""
        name = self.options.get(key, self.arguments.get(key))
        if name is None and default is not None:
            return self.constant(default)
        return self._named[name]

    def values(self, key: str) -> list[str]:
        """Return the values that an argument lists."""
        return [self._named[name] for name in self.arguments[key]]

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        """Return a constant, of integers unless it is an array."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = value if isinstance(value, np.ndarray) else np.array(value, kind)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return its first output."""
        name = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def give(self, value: str, name: str) -> None:
        """Call the value of a node by another name, that of an output."""
        made = [node for node in self.nodes if value in node.output]
        for node in made:
            node.output[:] = [name if one == value else one for one in node.output]
        if not made:
            self.nodes.append(helper.make_node("Identity", [value], [name]))

    def swap(self, value: str, order: Sequence[int]) -> str:
        """Return a value with its axes in another order."""
        same = list(order) == sorted(order)
        return value if same else self.add("Transpose", value, perm=list(order))


# --- operators -----------------------------------------------------------------------------------


def _node(op: str, *keys: str) -> Callable[[Maker], str]:
    """One node of the operands named; attributes are options with their defaults."""

    def build(make: Maker) -> str:
        given = {a: float(make.options.get(a, default)) for a, default in DEFAULTS.get(op, ())}
        return make.add(op, *(make.value(key) for key in keys), **given)

    return build


DEFAULTS: dict[str, tuple[tuple[str, float], ...]] = {
    "Elu": (("alpha", 1.0),),
    "LeakyRelu": (("alpha", 0.01),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}
"""Attributes of activations, with WebNN's defaults."""


def _compare(op: str) -> Callable[[Maker], str]:
    """Truth is uint8 in WebNN."""
    return lambda make: make.add("Cast", make.add(op, make.value("a"), make.value("b")), to=UINT8)


UINT8 = helper.np_dtype_to_tensor_dtype(np.dtype("uint8"))
BOOL = helper.np_dtype_to_tensor_dtype(np.dtype("bool"))


def _logical_not(make: Maker) -> str:
    truth = make.add("Cast", make.value("a"), to=BOOL)
    return make.add("Cast", make.add("Not", truth), to=UINT8)


def _cast(make: Maker) -> str:
    to = helper.np_dtype_to_tensor_dtype(np.dtype(make.arguments["type"]))
    return make.add("Cast", make.value("input"), to=to)


def _clamp(make: Maker) -> str:
    """Without a bound ONNX's Clip limits to the largest finite number, WebNN to infinity."""
    kind, value = make.array("input").dtype, make.value("input")
    bounds: dict[str, str] = {}
    for key, none in (("minValue", -math.inf), ("maxValue", math.inf)):
        bound = make.options.get(key, none)
        bound = float(bound) if isinstance(bound, str) else bound
        if bound != none and not math.isnan(bound):  # what is not a number limits nothing
            bounds[key] = make.constant(bound, kind)
    op = (
        "Clip"
        if len(bounds) == len(LIMITS)
        else "".join(LIMITS[key] for key in bounds) or "Identity"
    )
    return make.add(op, value, *bounds.values())


LIMITS = {"minValue": "Max", "maxValue": "Min"}


def _linear(make: Maker) -> str:
    kind = make.array("input").dtype
    alpha = make.constant(make.options.get("alpha", 1.0), kind)
    beta = make.constant(make.options.get("beta", 0.0), kind)
    return make.add("Add", make.add("Mul", make.value("input"), alpha), beta)


def _concat(make: Maker) -> str:
    return make.add("Concat", *make.values("inputs"), axis=make.arguments["axis"])


def _to_shape(op: str) -> Callable[[Maker], str]:
    return lambda make: make.add(op, make.value("input"), make.constant(make.arguments["newShape"]))


def _transpose(make: Maker) -> str:
    rank = make.array("input").ndim
    order = make.options.get("permutation", list(range(rank))[::-1])
    return make.swap(make.value("input"), order)


def _gather(make: Maker) -> str:
    """Indices of WebNN are clamped to what there is; ONNX has none of uint32."""
    axis = make.options.get("axis", 0)
    extent = make.array("input").shape[axis]
    indices = np.clip(make.array("indices").astype(np.int64), -extent, extent - 1)
    name = make.value("indices")
    (make.feeds if name in make.feeds else make.constants)[name] = indices
    return make.add("Gather", make.value("input"), name, axis=axis)


def _slice(make: Maker) -> str:
    starts, sizes = make.arguments["starts"], make.arguments["sizes"]
    steps = make.options.get("strides", [1] * len(starts))
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    if not starts:
        return make.add("Identity", make.value("input"))
    rows = (starts, ends, list(range(len(starts))), steps)
    return make.add("Slice", make.value("input"), *map(make.constant, rows))


def _split(make: Maker) -> list[str]:
    axis, splits = make.options.get("axis", 0), make.arguments["splits"]
    if isinstance(splits, int):
        splits = [make.array("input").shape[axis] // splits] * splits
    names = [f"part{number}" for number in range(len(splits))]
    inputs = [make.value("input"), make.constant(splits)]
    make.nodes.append(helper.make_node("Split", inputs, names, axis=axis))
    return names


def _softmax(make: Maker) -> str:
    return make.add("Softmax", make.value("input"), axis=make.arguments["axis"])


def _reduce(op: str) -> Callable[[Maker], str]:
    """No axes given mean all of them; an empty list, each element by itself."""

    def build(make: Maker) -> str:
        value, axes = make.value("input"), make.options.get("axes")
        kept = int(make.options.get("keepDimensions", False))
        if axes == []:
            value, axes, kept = make.add("Unsqueeze", value, make.constant([-1])), [-1], 0
        given = () if axes is None else (make.constant(axes),)
        return make.add(op, value, *given, keepdims=kept)

    return build


CHANNELS_LAST = (0, 3, 1, 2)
TO_OIHW = {"oihw": (0, 1, 2, 3), "hwio": (3, 2, 0, 1), "ohwi": (0, 3, 1, 2), "ihwo": (3, 0, 1, 2)}
TO_IOHW = {"iohw": (0, 1, 2, 3), "hwoi": (3, 2, 0, 1), "ohwi": (3, 0, 1, 2)}
"""Where the axes of a filter are that ONNX wants."""


def _convolution(make: Maker) -> str:
    return _convolved(make, "Conv", TO_OIHW[make.options.get("filterLayout", "oihw")], {})


def _transposed(make: Maker) -> str:
    order = TO_IOHW[make.options.get("filterLayout", "iohw")]
    added = make.options.get("outputPadding", [0, 0])
    if sizes := make.options.get("outputSizes"):
        strides = make.options.get("strides", [1, 1])
        dilations = make.options.get("dilations", [1, 1])
        top, bottom, left, right = make.options.get("padding", [0, 0, 0, 0])
        images = make.array("input").shape
        images = images[1:3] if make.options.get("inputLayout") == "nhwc" else images[2:]
        window = [make.array("filter").shape[axis] for axis in order[2:]]
        added = [
            size - ((n - 1) * stride + (k - 1) * dilation + 1 - pad)
            for size, n, stride, k, dilation, pad in zip(
                sizes, images, strides, window, dilations, (top + bottom, left + right),
                strict=True)
        ]  # fmt: skip
    return _convolved(make, "ConvTranspose", order, {"output_padding": added})


def _convolved(make: Maker, op: str, order: Sequence[int], more: Case) -> str:
    last = make.options.get("inputLayout") == "nhwc"
    value = make.swap(make.value("input"), CHANNELS_LAST if last else range(4))
    top, bottom, left, right = make.options.get("padding", [0, 0, 0, 0])
    bias = [make.value("bias")] if "bias" in make.options else []
    got = make.add(
        op, value, make.swap(make.value("filter"), order), *bias,
        pads=[top, left, bottom, right], strides=make.options.get("strides", [1, 1]),
        dilations=make.options.get("dilations", [1, 1]), group=make.options.get("groups", 1),
        **more,
    )  # fmt: skip
    return make.swap(got, np.argsort(CHANNELS_LAST).tolist() if last else range(4))


EPSILON = 1e-5


def _batch_norm(make: Maker) -> str:
    """ONNX wants the channels as the second axis."""
    mean, axis = make.array("mean"), make.options.get("axis", 1)
    value, rank = make.value("input"), make.array("input").ndim
    order = [axis, *(i for i in range(rank) if i != axis)]
    value = make.add("Unsqueeze", make.swap(value, order), make.constant([0]))
    scale = make.value("scale", np.ones_like(mean))
    bias = make.value("bias", np.zeros_like(mean))
    rows = (scale, bias, make.value("mean"), make.value("variance"))
    epsilon = make.options.get("epsilon", EPSILON)
    got = make.add("BatchNormalization", value, *rows, epsilon=epsilon)
    back = np.argsort(order).tolist()
    return make.swap(make.add("Squeeze", got, make.constant([0])), back)


def _instance_norm(make: Maker) -> str:
    last = make.options.get("layout") == "nhwc"
    image = make.array("input")
    channels = image.shape[3 if last else 1]
    value = make.swap(make.value("input"), CHANNELS_LAST if last else range(4))
    rows = [make.value("scale", np.ones(channels, image.dtype)),
            make.value("bias", np.zeros(channels, image.dtype))]  # fmt: skip
    epsilon = make.options.get("epsilon", EPSILON)
    got = make.add("InstanceNormalization", value, *rows, epsilon=epsilon)
    return make.swap(got, np.argsort(CHANNELS_LAST).tolist() if last else range(4))


def _layer_norm(make: Maker) -> str:
    """ONNX wants the axes as the last ones, and one at least; scale and bias follow their order."""
    image = make.array("input")
    axes = make.options.get("axes", list(range(1, image.ndim)))
    others = [axis for axis in range(image.ndim) if axis not in axes]
    value = make.swap(make.value("input"), order := [*others, *axes])
    shape = [image.shape[axis] for axis in axes] or [1]
    if not axes:
        value = make.add("Unsqueeze", value, make.constant([-1]))
    rows = [make.value("scale", np.ones(shape, image.dtype)),
            make.value("bias", np.zeros(shape, image.dtype))]  # fmt: skip
    if not axes:
        rows = [make.add("Reshape", row, make.constant([1])) for row in rows]
    epsilon = make.options.get("epsilon", EPSILON)
    got = make.add("LayerNormalization", value, *rows, axis=len(others), epsilon=epsilon)
    if not axes:
        got = make.add("Squeeze", got, make.constant([-1]))
    return make.swap(got, np.argsort(order).tolist())


OPERATORS: dict[str, Callable[[Maker], str | list[str]]] = {
    **{name: _node(op, "input") for name, op in (
        ("abs", "Abs"), ("ceil", "Ceil"), ("exp", "Exp"), ("floor", "Floor"), ("log", "Log"),
        ("neg", "Neg"), ("sqrt", "Sqrt"), ("relu", "Relu"), ("sigmoid", "Sigmoid"),
        ("tanh", "Tanh"), ("hardSwish", "HardSwish"), ("elu", "Elu"), ("leakyRelu", "LeakyRelu"),
        ("hardSigmoid", "HardSigmoid"))},
    **{name: _node(op, "a", "b") for name, op in (
        ("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("max", "Max"),
        ("min", "Min"), ("pow", "Pow"), ("matmul", "MatMul"))},
    **{name: _compare(op) for name, op in (
        ("equal", "Equal"), ("greater", "Greater"), ("greaterOrEqual", "GreaterOrEqual"),
        ("lesser", "Less"), ("lesserOrEqual", "LessOrEqual"))},
    **{f"reduce{name}": _reduce(f"Reduce{op}") for name, op in (
        ("L1", "L1"), ("L2", "L2"), ("LogSum", "LogSum"), ("LogSumExp", "LogSumExp"),
        ("Max", "Max"), ("Mean", "Mean"), ("Min", "Min"), ("Product", "Prod"), ("Sum", "Sum"),
        ("SumSquare", "SumSquare"))},
    "logicalNot": _logical_not, "cast": _cast, "clamp": _clamp, "linear": _linear,
    "concat": _concat, "expand": _to_shape("Expand"), "reshape": _to_shape("Reshape"),
    "transpose": _transpose, "gather": _gather, "slice": _slice, "split": _split,
    "softmax": _softmax, "conv2d": _convolution, "convTranspose2d": _transposed,
    "batchNormalization": _batch_norm, "instanceNormalization": _instance_norm,
    "layerNormalization": _layer_norm,
}  # fmt: skip
"""What each operator of WebNN is in ONNX."""


def model_of(case: Case) -> tuple[ModelProto, dict[str, Array], dict[str, Array]]:
    """Return the model of a case, what it takes, and what WPT expects of it."""
    make = Maker(case)
    made = OPERATORS[case["operator"]](make)
    wanted = {f"{OUTPUTS}{i}": array_of(case["expected"][name])
              for i, name in enumerate(case["outputs"])}  # fmt: skip
    for name, value in zip(wanted, [made] if isinstance(made, str) else made, strict=True):
        make.give(value, name)

    def described(arrays: dict[str, Array]) -> list[Any]:
        element = helper.np_dtype_to_tensor_dtype
        rows = ((name, element(a.dtype), a.shape) for name, a in arrays.items())
        return [helper.make_tensor_value_info(*row) for row in rows]

    graph = helper.make_graph(
        make.nodes, case["operator"], described(make.feeds), described(wanted),
        [numpy_helper.from_array(a, n) for n, a in make.constants.items()],
    )  # fmt: skip
    versions = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION)
    return model, make.feeds, wanted


# --- how exact -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be off: in units in the last place, or absolutely."""

    ulps: int = 0
    absolute: float = 0.0

    def excess(self, got: Array, wanted: Array) -> str:
        """Return what is wrong with a result, nothing if it is near enough."""
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"{got.dtype} {got.shape} instead of {wanted.dtype} {wanted.shape}"
        if self.absolute:
            off = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
            near = (off <= self.absolute) | (got == wanted)
        else:
            off = ulps_between(got, wanted)
            near = off <= self.ulps
        near |= np.isnan(got) & np.isnan(wanted)
        if near.all():
            return ""
        at = int(np.argmax(np.where(near, -1, off)))
        limit = self.absolute or f"{self.ulps} ulp"
        return (f"{got.flat[at]!r} instead of {wanted.flat[at]!r}, off by {off.flat[at]:g}, "
                f"allowed {limit}; {np.count_nonzero(~near)} of {near.size}")  # fmt: skip


def ulps_between(got: Array, wanted: Array) -> Array:
    """Return how many values of their type lie between two arrays', as float64; zeros are equal."""
    if got.dtype.kind != "f":
        apart = np.maximum(got, wanted) - np.minimum(got, wanted)
        return np.asarray(apart).view(f"u{got.dtype.itemsize}").astype(np.float64)

    def place(array: Array) -> Array:
        bits = np.abs(array).view(f"i{array.dtype.itemsize}").astype(np.int64)
        return np.where(np.signbit(array), -bits, bits)

    off = np.abs(place(got) - place(wanted)).astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(wanted)
    return np.where(finite | (got == wanted), off, np.inf)


ULPS: dict[str, tuple[int, int]] = {
    "add": (1, 1), "sub": (1, 1), "mul": (1, 1), "div": (2, 2), "pow": (32, 2), "exp": (32, 1),
    "sqrt": (1, 1), "elu": (18, 18), "hardSigmoid": (2, 2), "hardSwish": (4, 4),
    "leakyRelu": (1, 2), "linear": (2, 2), "sigmoid": (34, 10), "tanh": (16, 16), "cast": (1, 1),
    "batchNormalization": (6, 6), "instanceNormalization": (840, 8400),
}  # fmt: skip
"""Units in the last place of float32 and of float16; what is not here is exact."""
ABSOLUTE = {"log": (1 / 1024, 1 / 1024), "layerNormalization": (1 / 1024, 1 / 512)}
"""Absolute tolerances of float32 and of float16."""


def _reduced(each: int, once: int) -> Callable[[Case], int]:
    """So many for each element that a reduction adds, and once."""

    def ulps(case: Case) -> int:
        shape = _shapes(case)[0]
        axes = case["options"].get("axes", range(len(shape)))
        return math.prod(shape[axis] for axis in axes) * each + once

    return ulps


def _products(case: Case) -> int:
    """Two for each product that a convolution adds, as WPT counts them."""
    image, window = _shapes(case)[:2]
    options = case["options"]
    orders = TO_OIHW if case["operator"] == "conv2d" else TO_IOHW
    order = orders[options.get("filterLayout", next(iter(orders)))]
    channels = image[3 if options.get("inputLayout") == "nhwc" else 1]
    size = window[order[2]] * window[order[3]]
    return int(size * channels / options.get("groups", 1) * 2)


def _shapes(case: Case) -> list[list[int]]:
    return [one["shape"] for one in case["inputs"].values()]


COUNTED: dict[str, Callable[[Case], int]] = {
    "reduceL1": _reduced(1, 0), "reduceProduct": _reduced(1, 0), "reduceSum": _reduced(1, 0),
    "reduceL2": _reduced(2, 1), "reduceMean": _reduced(1, 2), "reduceLogSum": _reduced(1, 18),
    "reduceLogSumExp": _reduced(2, 18), "reduceSumSquare": _reduced(2, 0),
    "conv2d": _products, "convTranspose2d": _products,
    "matmul": lambda case: _shapes(case)[0][-1] * 2,
    "softmax": lambda case: _shapes(case)[0][case["arguments"]["axis"]] * 3 + 3,
}  # fmt: skip
"""Units in the last place of operators whose shapes count."""


def tolerance(case: Case) -> Tolerance:
    """Return how far the results of a case may be off."""
    name, kind = case["operator"], next(iter(case["expected"].values()))["type"]
    if kind not in ("float32", "float16"):
        return Tolerance()
    half = int(kind == "float16")
    if name in ABSOLUTE:
        return Tolerance(absolute=ABSOLUTE[name][half])
    return Tolerance(COUNTED[name](case) if name in COUNTED else ULPS.get(name, (0, 0))[half])
