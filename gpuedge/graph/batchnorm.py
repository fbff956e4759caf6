"""Batch normalisation behind a convolution or product: folded into the weights of that.

For quantisers: what stands between two integer operators would be computed in floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.graph.ir import Array
from gpuedge.graph.writer import subgraph_reads

if TYPE_CHECKING:
    import onnx

BEFORE = ("Conv", "ConvTranspose", "Gemm")

EPSILON = 1e-5
"""ONNX's default."""


def fold(proto: onnx.ModelProto) -> int:
    """Fold BatchNormalization into a Conv, ConvTranspose or Gemm before it; return how many were.

    Where nothing else reads what is between, and weights and parameters are constant float32. The
    new weights are computed in float64 and rounded once. Others stay as they are.
    """
    from gpuedge.graph.onnx_package import numpy_helper

    graph = proto.graph
    held = {t.name: t for t in graph.initializer}
    held |= {n.output[0]: a.t for n in graph.node if n.op_type == "Constant"
             for a in n.attribute if a.name == "value"}  # fmt: skip
    maker = {name: node for node in graph.node for name in node.output if name}
    users = _users(graph)
    gone: list[int] = []
    for number, norm in enumerate(graph.node):
        before = maker.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if before is None or before.op_type not in BEFORE or users[norm.input[0]] != 1:
            continue
        arrays = _folded(before, norm, held)
        if arrays is None:
            continue
        names = [f"{norm.output[0]}/{part}" for part in ("weight", "bias")]
        graph.initializer.extend(map(numpy_helper.from_array, arrays, names))
        held |= {t.name: t for t in graph.initializer[-2:]}
        before.input[1:] = names
        before.output[0] = norm.output[0]
        maker[norm.output[0]] = before
        gone.append(number)
    _drop(graph.node, gone)
    users = _users(graph)  # ONNX Runtime warns of each weight that nothing reads
    _drop(graph.initializer, [i for i, t in enumerate(graph.initializer) if not users[t.name]])
    return len(gone)


def _folded(
    before: onnx.NodeProto, norm: onnx.NodeProto, held: Mapping[str, onnx.TensorProto]
) -> tuple[Array, Array] | None:
    """Return weight and bias that do the work of both; None where that cannot be."""
    ours, theirs = _attributes(norm), _attributes(before)
    parameters = [_constant(name, held) for name in norm.input[1:5]]
    weight = _constant(before.input[1], held)
    bias = _constant(before.input[2], held) if len(before.input) > 2 and before.input[2] else 0.0
    if weight is None or bias is None or ours.get("training_mode") or any(norm.output[1:]):
        return None
    scale, shift, mean, variance = (np.nan if p is None else p for p in parameters)
    with np.errstate(all="ignore"):
        factor = np.asarray(scale / np.sqrt(variance + ours.get("epsilon", EPSILON)))
        scaled = _scaled(before.op_type, theirs, weight, factor)
        if scaled is None:
            return None
        whole = (bias * theirs.get("beta", 1.0) - mean) * factor + shift
        filters_and_bias = scaled.astype(np.float32), np.asarray(whole, np.float32)
    if filters_and_bias[1].shape != factor.shape or not all(
        np.isfinite(a).all() for a in filters_and_bias
    ):
        return None
    if before.op_type == "Gemm":  # both are in the weights now
        kept = [a for a in before.attribute if a.name not in ("alpha", "beta")]
        del before.attribute[:]
        before.attribute.extend(kept)
    return filters_and_bias


def _scaled(op: str, attrs: Mapping[str, Any], weight: Array, factor: Array) -> Any:
    """Return weights times a factor for each channel of the result; None where they do not fit."""
    if factor.ndim != 1:
        return None
    if op == "Conv" and weight.shape[0] == factor.size:
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    # With groups, and so a bias, ONNX Runtime 1.32 fails to quantise it channel by channel.
    if op == "ConvTranspose" and (attrs.get("group", 1), weight.shape[1]) == (1, factor.size):
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 2))
    if op == "Gemm" and weight.shape[0 if attrs.get("transB") else 1] == factor.size:
        column = factor[:, None] if attrs.get("transB") else factor
        return weight * column * attrs.get("alpha", 1.0)
    return None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    from gpuedge.graph.onnx_package import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _constant(name: str, held: Mapping[str, onnx.TensorProto]) -> Array | None:
    """Return a float32 constant, in float64."""
    from gpuedge.graph.onnx_package import TensorProto, numpy_helper

    tensor = held.get(name)
    if tensor is None or tensor.data_type != TensorProto.FLOAT:
        return None
    return np.asarray(numpy_helper.to_array(tensor), np.float64)


def _users(graph: onnx.GraphProto) -> Counter[str]:
    """Return how often each value is read, in branches and as a result too."""
    readers = Counter(v.name for v in graph.output)
    for node in graph.node:
        readers.update(node.input)
        for attribute in node.attribute:
            readers.update(subgraph_reads(attribute))
    return readers


def _drop(messages: Any, numbers: Sequence[int]) -> None:
    for number in reversed(numbers):
        del messages[number]
