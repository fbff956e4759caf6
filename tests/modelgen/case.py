"""A model under construction: nodes, numbers, and what every value is in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from modelgen.meanings import Array, CannotError, compute

MOST = 40_000
"""Elements of a value."""

FINEST, LARGEST = 2.0**10, 2.0**13
"""Numbers that are multiples of 1 / FINEST, and sums of them up to LARGEST, are exact anywhere."""

EXACT = frozenset((
    "Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Relu", "ThresholdedRelu", "Identity", "Clip",
    "Dropout", "Cast", "Add", "Sub", "Mul", "Max", "Min", "Sum", "Where", "Conv", "ConvTranspose",
    "MatMul", "Gemm", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare",
    "CumSum", "MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
    "Transpose", "Concat", "Split", "Slice", "Pad", "Tile", "Expand", "Gather", "GatherElements",
    "GatherND", "ScatterElements", "ScatterND", "Scatter", "DepthToSpace", "SpaceToDepth",
    "ReverseSequence", "Trilu", "CenterCropPad", "Upsample", "OneHot", "Compress", "TopK",
    "Hardmax", "EyeLike", "ConstantOfShape", "Range", "PRelu", "LeakyRelu",
))  # fmt: skip
"""Operators that give exact results of exact operands, where these are short enough."""

SUMMING = frozenset(("Conv", "ConvTranspose", "MatMul", "Gemm", "ReduceSum", "ReduceL1", "CumSum",
                     "ReduceSumSquare", "Sum"))  # fmt: skip
"""Those whose partial sums may be larger than what they give."""


def is_short(array: Array) -> bool:
    """Tell whether all numbers are exact in float32, and products and sums of few such as well."""
    if array.dtype.kind != "f":
        return True
    return bool(
        np.isfinite(array).all()
        and (np.abs(array) <= LARGEST).all()
        and (array * FINEST == np.rint(array * FINEST)).all()
    )


@dataclass
class Case:
    """A model with numbers for its inputs.

    Attributes
    ----------
    opset : int
    nodes : list of NodeProto
    constants, feeds : dict of str to ndarray
        Initialisers, and inputs; floats are float32.
    outputs : list of str
    values : dict of str to ndarray
        Every value, floats in float64.
    exact : set of str
        Values that float32 computes without any rounding.
    """

    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def put(self, name: str, array: Array, *, is_constant: bool) -> str:
        """Add an initialiser or an input."""
        (self.constants if is_constant else self.feeds)[name] = array
        self.values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
        if is_short(self.values[name]):
            self.exact.add(name)
        return name

    def add(self, node: onnx.NodeProto) -> None:
        """Append a node and compute it.

        Raises
        ------
        CannotError
            It cannot be computed, or gives too much, nothing or no finite numbers.
        """
        arrays = [self.values[n] if n else None for n in node.input]
        results = compute(node, arrays, self.opset)
        for array in results:
            fits = 0 < array.size <= MOST and array.ndim <= 6 and array.dtype.kind in "fiub"
            if not fits or (array.dtype.kind == "f" and not np.abs(array).max() < 1e6):
                raise CannotError(f"{node.op_type} gives what is not wanted")
        self.nodes.append(node)
        for name, array in zip((o for o in node.output if o), results, strict=True):
            self.values[name] = array
            if self._is_exact(node, array):
                self.exact.add(name)

    def _is_exact(self, node: onnx.NodeProto, array: Array) -> bool:
        if not all(n in self.exact for n in node.input if n):
            return False
        if array.dtype.kind != "f":
            return True
        if node.op_type not in EXACT or not is_short(array):
            return node.op_type == "DequantizeLinear" and is_short(array)
        if node.op_type not in SUMMING:
            return True
        sizes = [
            None if not n else np.abs(v) if (v := self.values[n]).dtype.kind == "f" else v
            for n in node.input
        ]
        return is_short(compute(node, sizes, self.opset)[0])

    def evaluated(self) -> Case:
        """Return the same model with all values computed anew. Raises CannotError."""
        case = Case(self.opset, outputs=list(self.outputs))
        for name, array in self.constants.items():
            case.put(name, array, is_constant=True)
        for name, array in self.feeds.items():
            case.put(name, array, is_constant=False)
        for node in self.nodes:
            case.add(node)
        return case

    def proto(self) -> onnx.ModelProto:
        """Return the model."""
        kinds = {"float64": np.dtype("float32")}

        def info(name: str) -> onnx.ValueInfoProto:
            array = self.values[name]
            dtype = kinds.get(array.dtype.name, array.dtype)
            return helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(dtype), array.shape
            )

        graph = helper.make_graph(
            self.nodes, "random", [info(n) for n in self.feeds], [info(n) for n in self.outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", self.opset)]
        # before 4, initialisers had to be inputs as well
        version = max(4, helper.find_min_ir_version_for(imports))
        return helper.make_model(graph, opset_imports=imports, ir_version=version)

    def pruned(self) -> Case:
        """Return the case without nodes, constants and inputs that no output depends on."""
        wanted, kept = set(self.outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                kept.append(node)
                wanted.update(node.input)
        return replace(
            self, nodes=kept[::-1],
            constants={n: a for n, a in self.constants.items() if n in wanted},
            feeds={n: a for n, a in self.feeds.items() if n in wanted},
        )  # fmt: skip


class Builder:
    """Makes a case from random choices; steps and networks call it.

    Parameters
    ----------
    rng : numpy.random.Generator
    opset : int
    is_whole : bool
        Whether operands are small whole numbers instead of normal ones.
    """

    def __init__(self, rng: np.random.Generator, opset: int, *, is_whole: bool) -> None:
        self.rng = rng
        self.case = Case(opset)
        self.is_whole = is_whole
        self._count = 0

    @property
    def opset(self) -> int:
        """Operator set of the model."""
        return self.case.opset

    def pick(self, *choices: Any) -> Any:
        """Return one of some things."""
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """Return a whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        """Return True in so large a share of calls."""
        return bool(self.rng.random() < share)

    def name(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"v{self._count}"

    def array(self, name: str) -> Array:
        """Return what a value is."""
        return self.case.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.case.values[name].shape

    def is_exact(self, name: str) -> bool:
        """Return whether float32 computes a value without rounding."""
        return name in self.case.exact

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Return numbers: small whole ones, or normal ones of a deviation."""
        if self.is_whole:
            return self.rng.integers(-3, 4, shape).astype(np.float32)
        return np.asarray(self.rng.normal(0, scale, shape)).astype(np.float32)

    def put(self, array: Any, *, is_constant: bool | None = None, dtype: Any = None) -> str:
        """Add an operand: a constant, or in a fifth of the cases an input."""
        held = self.chance(0.8) if is_constant is None else is_constant
        return self.case.put(self.name(), np.asarray(array, dtype), is_constant=held)

    def held(self, array: Any, dtype: Any = None) -> str:
        """Add a constant."""
        return self.put(array, is_constant=True, dtype=dtype)

    def ints(self, *numbers: int) -> str:
        """Add a constant of int64."""
        return self.held(np.array(numbers, np.int64))

    def many(self, op: str, inputs: Iterable[str], outputs: int, **attrs: Any) -> list[str]:
        """Add a node of several outputs. Raises CannotError."""
        names = [self.name() for _ in range(outputs)]
        given = {k: v for k, v in attrs.items() if v is not None}
        self.case.add(helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", **given))
        return names

    def node(self, op: str, inputs: Iterable[str], **attrs: Any) -> str:
        """Add a node of one output; attributes that are None are left out. Raises CannotError."""
        return self.many(op, inputs, 1, **attrs)[0]

    def axes(self, op: str, x: str, axes: Sequence[int], since: int, **attrs: Any) -> str:
        """Add a node whose axes became an input with an operator set."""
        if self.opset >= since:
            return self.node(op, [x, self.ints(*axes)], **attrs)
        return self.node(op, [x], axes=list(axes), **attrs)

    def need(self, opset: int) -> None:
        """Raise CannotError where the model's operator set is older."""
        if self.opset < opset:
            raise CannotError(f"not before operator set {opset}")
