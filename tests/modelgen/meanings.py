"""One node in float64 by the oracle, and in older operator sets what it became later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from gpuedge.graph.ir import Node
from gpuedge.opset.bounds import Num
from gpuedge.oracle import nodes

Array = npt.NDArray[Any]


class CannotError(Exception):
    """A node that the oracle does not compute."""


FLATTENED = ("Softmax", "LogSoftmax", "Hardmax")
"""Operators over rows: in operator sets before 13 all from their axis on is a row."""

ENLARGING = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
"""What Upsample and the first Resize are."""

RENAMED = {"bilinear": "linear", "bicubic": "cubic"}
"""Modes of GridSample before operator set 20."""


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as numpy and Python have them."""
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {
        n: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v
        for n, v in values.items()
    }


def _gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Fewer indices than elements, which the reference does not take."""
    inside = [slice(0, n) for n in indices.shape]
    inside[axis] = slice(None)
    return np.take_along_axis(x[tuple(inside)], indices.astype(np.int64), axis)


def _mean_variance(x: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """The body that ONNX gives for it, which adds a little to the deviation."""
    centred = x - x.mean(tuple(axes), keepdims=True)
    deviation = np.sqrt((centred**2).mean(tuple(axes), keepdims=True))
    return np.asarray(centred / (deviation + 1e-9))


OWN = {"GatherElements": _gather_elements, "MeanVarianceNormalization": _mean_variance}
"""What the reference does not compute."""


def _by_oracle(node: Node, arrays: Sequence[Array | None], opset: int) -> list[Array]:
    """Return what the oracle says of a node that the reference may know in a newer form only."""
    if node.op in FLATTENED and opset < 13:
        x = arrays[0]
        assert x is not None
        axis = node.attrs.get("axis", 1)
        rows = x.reshape(prod(x.shape[: axis % max(x.ndim, 1)]), -1)
        (result,) = _by_oracle(replace(node, attrs={"axis": 1}), [rows], 13)
        return [result.reshape(x.shape)]
    if node.op in OWN:
        return [OWN[node.op](*arrays, **node.attrs)]
    if node.op == "Upsample" or (node.op == "Resize" and opset < 11):
        scales = node.attrs["scales"] if opset < 9 else arrays[1]
        arrays = [arrays[0], None, np.asarray(scales, np.float64)]
        node = replace(node, op="Resize", inputs=("x", "", "scales"), attrs=ENLARGING)
    if node.op == "GridSample" and opset < 20:
        mode = RENAMED[node.attrs["mode"].decode()]
        node, opset = replace(node, attrs={**node.attrs, "mode": mode}), 20
    if node.op == "DequantizeLinear":
        opset = max(opset, 19)
    results = nodes.compute(node, arrays, opset)
    return [np.asarray(r.v if isinstance(r, Num) else r) for r in results]


def compute(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> list[Array]:
    """Return the outputs of a node. Raises CannotError."""
    plain = Node(node.op_type, tuple(node.input), tuple(node.output), attributes(node), node.name)
    try:
        return _by_oracle(plain, arrays, opset)[: len(node.output)]
    except Exception as error:
        raise CannotError(f"{node.op_type}: {type(error).__name__}: {error}") from error
