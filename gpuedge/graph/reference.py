"""ONNX's own reference evaluator, node by node: for constants, and as an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.graph.writer import to_onnx


def run_node(
    node: Node, constants: Mapping[str, Array], opset: Mapping[str, int]
) -> tuple[Array, ...] | None:
    """Return the outputs of one node on arrays by name; None where the reference cannot do it."""
    from onnx.reference import ReferenceEvaluator

    feeds = {name: constants[name] for name in node.inputs if name}
    alone = Graph((node,), tuple(feeds), tuple(o for o in node.outputs if o),
                  {n: type_of(v) for n, v in feeds.items()}, {}, opset)  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            found = iter(ReferenceEvaluator(to_onnx(alone)).run(None, feeds))
    except Exception:
        # The reference lacks some operators and dtypes; what it cannot do is done at run time.
        return None
    return tuple(np.asarray(next(found)) if name else np.empty(0) for name in node.outputs)


def by_reference(op: str, operands: Sequence[Array], attrs: Mapping[str, Any]) -> Array:
    """Return what the reference makes of arrays, in the dtype they have.

    Raises
    ------
    UnsupportedOpError (GE-501)
        It does not know the operator.
    """
    names = tuple(f"x{i}" for i in range(len(operands)))
    node = Node(op, names, ("y",), dict(attrs), op)
    found = run_node(node, dict(zip(names, operands, strict=True)), {"": OPSET})
    if found is None:
        raise UnsupportedOpError(f"ONNX's reference evaluator cannot compute {op}.")
    return found[0]
