"""ONNX's own reference evaluator: for constants, what nothing else computes, and as an oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.graph.writer import to_onnx
from gpuedge.safety.interrupts import is_of_handler
from gpuedge.safety.packages import needed

MOST_SAID = 200
"""Characters of its own words that a message has."""

MOST_NAMED = 8
"""Operators that a message names."""


class Reference:
    """A graph in the evaluator, which computes what numpy and ml_dtypes hold; slowly.

    Parameters
    ----------
    graph : Graph
        The types of its inputs are known.

    Raises
    ------
    UnsupportedOpError (GE-501)
        The evaluator lacks an operator in this version.
    MissingPackageError (GE-104)
    """

    def __init__(self, graph: Graph) -> None:
        ops = ", ".join(dict.fromkeys(node.op for node in graph.nodes[:MOST_NAMED]))
        with needed("onnx", ops):
            from onnx.reference import ReferenceEvaluator

        self._ops, self._graph = ops, graph
        with self._refused():
            self._evaluator = ReferenceEvaluator(to_onnx(graph))

    @contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            with np.errstate(all="ignore"):
                yield
        except GpuEdgeError:
            raise
        except Exception as error:  # of any kind: what it lacks shows anywhere
            if is_of_handler(error):
                raise
            why = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID]
            raise UnsupportedOpError(
                f"ONNX's reference evaluator cannot compute {self._ops}.", known=why
            ) from None

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name. Raises UnsupportedOpError (GE-501) where it fails."""
        with self._refused():
            arrays = self._evaluator.run(None, dict(feeds))
        named = zip(self._graph.outputs, arrays, strict=True)
        return {name: np.asarray(array) for name, array in named}


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
    feeds = {name: constants[name] for name in node.inputs if name}
    alone = Graph((node,), tuple(feeds), tuple(o for o in node.outputs if o),
                  {n: type_of(v) for n, v in feeds.items()}, {}, opset)  # fmt: skip
    arrays = Reference(alone).run(feeds)
    return tuple(arrays[name] if name else np.empty(0) for name in node.outputs)


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
