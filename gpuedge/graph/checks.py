"""Values that come from outside, compared with what the nodes that read them can do with.

Before any driver and before ONNX Runtime, so that the CPU and every GPU refuse the same, and alike.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuedge.core.errors import InputError, ShapeError, UnsupportedOpError
from gpuedge.core.text import shown
from gpuedge.graph.expand import limits
from gpuedge.graph.ir import Array, Graph
from gpuedge.opset import facts_of
from gpuedge.opset.call import node_label
from gpuedge.opset.limits import Limit


@dataclass(frozen=True)
class ValueCheck:
    """An input of a graph, the node that reads it, and what it may hold for that."""

    name: str
    label: str
    limit: Limit


def passes_on(
    op: str, inputs: Sequence[str], outputs: Sequence[str], given: Container[str]
) -> bool:
    """Tell whether a node passes on all elements of a value that is given."""
    return facts_of(op).keeps and bool(inputs and outputs[0]) and inputs[0] in given


def checks_of(graph: Graph) -> tuple[ValueCheck, ...]:
    """Return what has to be looked at in the inputs of a graph.

    That is where nodes read them, or what other nodes pass on of them (`passes_on`).
    """
    given = {n: n for n in graph.inputs if n in graph.types and graph.types[n].dtype[:1] in "iu"}
    moved = set[str]()
    checks = []
    for node in graph.nodes if given else ():
        if given.keys().isdisjoint(node.inputs):
            continue
        if not node.domain and passes_on(node.op, node.inputs, node.outputs, given):
            given[node.outputs[0]] = given[node.inputs[0]]
            moved.add(node.outputs[0])
            continue
        label = node_label(node.op, node.name, node.outputs)
        try:
            known = limits(node, graph)
        except (UnsupportedOpError, ShapeError):
            continue  # whoever is to run it says so
        names = [(node.inputs[check.position], check) for check in known]
        checks += [
            ValueCheck(given[name], label, check) for name, check in names
            if name in given and (name not in moved or len(check.low) < 2)  # else by its old place
        ]  # fmt: skip
    return tuple(checks)


def check_values(checks: Iterable[ValueCheck], arrays: Mapping[str, Array]) -> None:
    """Compare arrays by name with what may be in them. Raises InputError (GE-203)."""
    for value_check in checks:
        wrong = value_check.limit.wrong(arrays[value_check.name])
        if wrong.size:
            raise InputError(
                f"{shown(value_check.name)} holds {wrong[0]}: {value_check.label} would have "
                f"{value_check.limit.said}.",
                known=f"{wrong.size} of {arrays[value_check.name].size} elements are such",
                hint="no device computes it; look at where the values come from",
            )
