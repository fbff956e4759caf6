"""ONNX's own reference evaluator, node by node: for constants, and as an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.graph.writer import to_onnx
from gpuedge.safety.interrupts import is_of_handler
from gpuedge.safety.packages import needed

MOST_SAID = 200
"""Characters of its own words that a message has."""


def run_node(
    node: Node, constants: Mapping[str, Array], opset: Mapping[str, int]
) -> tuple[Array, ...]:
    """Return the outputs of one node on arrays by name.

    Raises
    ------
    UnsupportedOpError (GE-501)
        The reference lacks the operator in this version, or these dtypes of it.
    MissingPackageError (GE-104)
    """
    with needed("onnx", node.op):
        from onnx.reference import ReferenceEvaluator

    feeds = {name: constants[name] for name in node.inputs if name}
    alone = Graph((node,), tuple(feeds), tuple(o for o in node.outputs if o),
                  {n: type_of(v) for n, v in feeds.items()}, {}, opset)  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            arrays = iter(ReferenceEvaluator(to_onnx(alone)).run(None, feeds))
    except Exception as error:  # of any kind: what it lacks shows anywhere
        if is_of_handler(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID]
        raise UnsupportedOpError(
            f"ONNX's reference evaluator cannot compute {node.op}.", known=why
        ) from None
    return tuple(np.asarray(next(arrays)) if name else np.empty(0) for name in node.outputs)


def by_reference(op: str, operands: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    """Return what the reference makes of arrays, in the dtype they have.

    Raises
    ------
    UnsupportedOpError (GE-501)
        It does not know the operator.
    """
    names = tuple(f"x{i}" for i in range(len(operands)))
    node = Node(op, names, ("y",), dict(attrs), op)
    return run_node(node, dict(zip(names, operands, strict=True)), {"": OPSET})[0]
