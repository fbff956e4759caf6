"""Positive controls of the cross-check: of every operator and type a planted error is seen.

ONNX's own cases give the operands, converted to every type that a description takes. What the CPU
computes stands for a device's answer: as it is it passes, and with one element ten bounds off (a
whole number: a step beyond what is allowed, a bool: the other one) it does not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import daily
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.expand import infer, operator_of
from gpuedge.graph.ir import Array, Graph, Node, type_of
from gpuedge.graph.reader import OnnxModel
from gpuedge.opset import OPERATORS
from gpuedge.opset.bounds import U
from gpuedge.opset.errors import allowed
from gpuedge.opset.operator import ANY, FLOATS
from gpuedge.runtime.crosscheck import SCREEN, CrossCheck, RunningErrors

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from onnx_cases import CASES

Feeds = dict[str, Array]


@cache
def cases() -> dict[str, list[tuple[Graph, Feeds]]]:
    """Return ONNX's cases of one node each, by operator."""
    found: dict[str, list[tuple[Graph, Feeds]]] = {name: [] for name in OPERATORS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for case in collected:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in found:
            continue
        if case.name.removeprefix("test_") not in CASES:
            continue
        model, given = OnnxModel.load(case.model), case.data_sets[0][0]
        feeds = {n: _array(a) for n, a in zip(model.inputs, given, strict=True)}
        known = {n: a for n, a in feeds.items() if n in model.parameters}
        graph = model.specialise({n: a.shape for n, a in feeds.items()}, known, rewrites=False)
        if graph.nodes and all(np.isfinite(a).all() for a in feeds.values() if a.dtype != bool):
            found[nodes[0].op_type].append((graph, {n: feeds[n] for n in graph.inputs}))
    return found


def _array(value: Any) -> Array:
    return np.asarray(value if hasattr(value, "dtype") else numpy_helper.to_array(value))


def typed(graph: Graph) -> Graph:
    """Return a graph of one node with the types of its outputs."""
    (node,) = graph.nodes
    made = {n: t for n, t in zip(node.outputs, infer(node, graph), strict=False) if n}
    given = {n: t for n, t in graph.types.items() if n in graph.inputs or n in graph.constants}
    return replace(graph, types={**given, **{n: t for n, t in made.items() if t is not None}})


def own(
    op: str, feeds: Feeds, attrs: Mapping[str, Any] | None = None, opset: int = 21,
    held: Feeds | None = None, order: Sequence[str] = "",
) -> Any:  # fmt: skip
    """Return a case of an operator that ONNX has none of which fits.

    Its inputs are `feeds`, then `held`, or as `order` has them, by letters.
    """
    held, domain = held or {}, OPERATORS[op].domain
    node = Node(
        op.rpartition(":")[2],
        (*(order or (*feeds, *held)),),
        ("y",),
        dict(attrs or {}),
        domain=domain,
    )
    types = {name: type_of(array) for name, array in (feeds | held).items()}
    graph = Graph((node,), tuple(feeds), ("y",), types, held, {domain: 1, "": opset})
    return typed(graph), feeds


X = np.float32([[0.5, -1.25, 3, 7.5], [-2, 0.25, 1, -6]])
CODES = np.arange(16, dtype=np.uint8).reshape(2, 8) * 13


def recurrent(gates: int) -> Feeds:
    """Return the weights of a layer of two units that reads two numbers."""
    w = np.resize(X / 8, (1, 2 * gates, 2))
    return {"w": w, "r": w[:, ::-1].copy()}


OWN = {
    "IsNaN": own("IsNaN", {"x": X}),
    "IsInf": own("IsInf", {"x": X}),
    "Cast": own("Cast", {"x": X}, {"to": 6}),
    "CastLike": own("CastLike", {"x": X, "like": np.zeros(1, np.int8)}),
    "GlobalLpPool": own("GlobalLpPool", {"x": X.reshape(1, 2, 2, 2)}),
    "ReduceLogSumExp": own("ReduceLogSumExp", {"x": X}),
    "Scatter": own("Scatter", {"x": X, "at": np.int64([[1, 0]]), "by": np.float32([[4, 9]])},
                   {"axis": 1}, 9),
    "Attention": own("Attention", {n: X.reshape(1, 2, 2, 2) / 4 for n in "qkv"}, opset=24),
    "LinearAttention": own("LinearAttention", {n: X.reshape(1, 2, 4) / 4 for n in "qkv"},
                           {"update_rule": "linear", "q_num_heads": 2, "kv_num_heads": 2}, 27),
    "RotaryEmbedding": own("RotaryEmbedding", {"x": X.reshape(1, 2, 2, 2),
                           "cos": X[:1, :2, None], "sin": X[:1, 2:, None] / 8}, opset=23),
    "TensorScatter": own("TensorScatter", {"x": X.reshape(1, 4, 2),
                         "new": X.reshape(1, 4, 2)[:, 2:]}, opset=24),
    "Einsum": own("Einsum", {"x": X, "b": X}, {"equation": "ij,kj->ik"}),
    "Det": own("Det", {"x": X.reshape(2, 2, 2)}),
    "CumProd": own("CumProd", {"x": X}, opset=26, held={"axis": np.array(1)}),
    "Compress": own("Compress", {"x": X}, {"axis": 1},
                    held={"kept": np.array([True, False, True, True])}),
    "Unique": own("Unique", {"x": X}),
    "BitCast": own("BitCast", {"x": np.int8([[1, -2], [3, 4]])}, {"to": 2}, 26),
    "Col2Im": own("Col2Im", {"x": X.reshape(1, 4, 2)},
                  held={"image": np.array([2, 3]), "block": np.array([2, 2])}),
    "DFT": own("DFT", {"x": X.reshape(1, 4, 2)}, held={"n": np.array(4), "axis": np.array(1)}),
    "STFT": own("STFT", {"x": X.reshape(1, 8, 1)}, held={"step": np.array(2), "w": X[0]}),
    "TfIdfVectorizer": own("TfIdfVectorizer", {"x": np.array([2, 3, 1, 2, 3])}, {
        "pool_int64s": [2, 3, 2, 3], "ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2],
        "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "mode": "TF"}),
    "MatMulNBits": own("MatMulNBits", {"x": X}, {"K": 4, "N": 2, "bits": 4, "block_size": 16},
                       held={"w": CODES.reshape(2, 1, 8), "s": X[:, :1]}),
    "GatherBlockQuantized": own("GatherBlockQuantized", {"i": np.array([1, 0, 1])},
                                {"bits": 4, "block_size": 16}, held={"w": CODES, "s": X[:, :1]},
                                order="wis"),
    "BiasGelu": own("BiasGelu", {"x": X, "b": X[0]}),
    "FastGelu": own("FastGelu", {"x": X, "b": X[0]}),
    "QuickGelu": own("QuickGelu", {"x": X}),
    "FusedMatMul": own("FusedMatMul", {"x": X, "b": X}, {"transB": 1, "alpha": 0.5}),
    "SkipLayerNormalization": own("SkipLayerNormalization", {"x": X, "b": X, "s": X[0]}),
    "SkipSimplifiedLayerNormalization": own(
        "SkipSimplifiedLayerNormalization", {"x": X, "b": X, "s": X[0]}),
    "com.microsoft:RotaryEmbedding": own(
        "com.microsoft:RotaryEmbedding", {"x": X.reshape(1, 2, 4), "p": np.array([[1, 0]]),
                                          "c": X[:, :2], "s": X[:, 2:] / 8}),
    "MultiHeadAttention": own("MultiHeadAttention", {n: X.reshape(1, 2, 4) / 4 for n in "qkv"},
                              {"num_heads": 2}),
    "GroupQueryAttention": own(
        "GroupQueryAttention", {"q": np.resize(X / 4, (1, 2, 16)), "k": np.resize(X / 4, (1, 2, 8)),
                                "v": np.resize(X / 8, (1, 2, 8)), "n": np.array([1], np.int32)},
        {"num_heads": 2, "kv_num_heads": 1}, held={"t": np.array(2, np.int32)},
        order=("q", "k", "v", "", "", "n", "t")),
    **{op: own(op, {"x": X.reshape(4, 1, 2)}, {"hidden_size": 2}, held=recurrent(gates))
       for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))},
}  # fmt: skip

FOLDED = {
    "Shape": "known from the shapes of inputs, so that no device computes it",
    "Size": "known from the shapes of inputs, so that no device computes it",
    "BlackmanWindow": "made of constants",
    "HammingWindow": "made of constants",
    "HannWindow": "made of constants",
    "MelWeightMatrix": "made of constants",
}
"""Operators of which there is nothing to compare."""


def operands(node: Node) -> list[int]:
    """Return the inputs that have the dtype of the operator."""
    operator = operator_of(node)
    assert operator is not None
    carried = [i for i, n in enumerate(node.inputs) if n and operator.carries(i)]
    return [i for i in carried if i not in operator.others]


def in_another_dtype(graph: Graph, feeds: Feeds, dtype: str) -> tuple[Graph, Feeds]:
    """Return a case whose operands have another dtype. Raises as `infer`."""
    (node,) = graph.nodes
    arrays = {**graph.constants, **feeds}
    carried = [node.inputs[i] for i in operands(node)]
    if not carried:  # made of parameters alone
        return graph, feeds
    before = arrays[carried[0]].dtype
    for name in carried:
        if arrays[name].dtype == before:
            arrays[name] = converted(arrays[name], dtype)
    types = {n: type_of(a) for n, a in arrays.items()}
    made = replace(graph, types=types, constants={n: arrays[n] for n in graph.constants})
    return typed(made), {n: arrays[n] for n in feeds}


def converted(array: Array, dtype: str) -> Array:
    if array.dtype == dtype:
        return array
    if dtype in FLOATS:
        return np.clip(array, -999, 999).astype(dtype)
    if dtype == "bool":
        return array > np.median(array)
    whole = np.rint(array.astype(np.float64) * (1 if array.dtype.kind in "iu" else 4)) % 100
    return np.where(whole == 0, 1, whole).astype(dtype)


def is_type(graph: Graph, dtype: str) -> bool:
    """Tell whether ONNX has a node for operands of a dtype."""
    (node,) = graph.nodes
    carried = [] if node.domain else operands(node)  # of ONNX Runtime's own no schema is at hand
    inputs = [] if node.domain else onnx.defs.get_schema(node.op, graph.opset[""], "").inputs
    name = {"float32": "float"}.get(dtype, dtype)
    return not carried or f"tensor({name})" in inputs[min(carried[0], len(inputs) - 1)].types


def variants(op: str) -> Iterator[tuple[str, Graph, Feeds, Feeds]]:
    """Yield an operator on operands of every type that its description and the CPU take.

    With what that computes.
    """
    operator, found = OPERATORS[op], [*cases()[op], *([OWN[op]] if op in OWN else [])]
    for dtype in (*FLOATS, *(ANY if operator.moves else operator.dtypes)):
        for graph, feeds in found:
            if not is_type(graph, dtype):
                continue
            try:
                made = in_another_dtype(graph, feeds, dtype)
                answer = CpuExecutor().compile(made[0]).run(made[1])
                if all(np.isfinite(y).all() for y in answer.values()):
                    yield dtype, *made, answer
                    break
            except GpuEdgeError:
                continue


def planted(y: Array, most: Array) -> tuple[Array, tuple[int, ...]] | None:
    """Return results with one element ten bounds off, and where; None if any is right anywhere."""
    with np.errstate(all="ignore"):
        known = np.isfinite(most) & np.isfinite(y.astype(np.float64))
        known &= (y.dtype != bool) | (most == 0)
    if not known.any():
        return None
    size = float(np.abs(y[known].astype(np.float64)).max())
    order = np.where(known, np.abs(y.astype(np.float64)), -1)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(order)), y.shape))
    made = y.copy()
    if y.dtype == bool:
        made[at] = not y[at]
    elif y.dtype.kind == "f":
        off = 10 * max(float(most[at]), SCREEN * U * max(size, 0.1))
        off = max(off, 2 * float(np.spacing(np.abs(y[at]))))  # a step of float16 is more
        made[at] = y[at] - np.copysign(off, y[at]).astype(y.dtype)
    else:
        off = int(most[at]) + (1 if most[at] == 0 else 2)
        made[at] = y[at] - off if int(y[at]) - off >= np.iinfo(y.dtype).min else y[at] + off
    return made, at


PARTS = 8


@pytest.mark.parametrize("part", daily.some(range(PARTS), PARTS))
def test_a_planted_error_of_every_operator_and_type_is_seen(part: int) -> None:
    cpu, tried = CpuExecutor(), dict[str, list[str]]()
    for op in list(OPERATORS)[part::PARTS]:
        tried[op] = []
        for dtype, graph, feeds, right in variants(op) if op not in FOLDED else ():
            check = CrossCheck(graph, 1.0, cpu)
            assert check.compare(feeds, right, lambda _, y=right: y) is None, (op, dtype)
            assert check.note == "", (op, dtype)
            bounds = RunningErrors(graph, feeds, cpu)
            for name, y in right.items():
                if not y.size:
                    continue
                most = allowed(bounds.values[name], is_whole=y.dtype.kind != "f")
                wrong = planted(y, np.broadcast_to(most, y.shape))
                assert wrong is not None, (op, dtype, name, bounds.unknown)
                said = check.compare(feeds, {**right, name: wrong[0]}, lambda _, y=right: y)
                assert said is not None, (op, dtype, name, wrong[1], check.note)
                tried[op].append(dtype)
    assert {op for op, dtypes in tried.items() if not dtypes} == FOLDED.keys() & tried.keys()
    for op, dtypes in tried.items():  # ONNX Runtime computes few of the integer types of some
        assert op in FOLDED or {"float32", *OPERATORS[op].dtypes} & set(dtypes), op
