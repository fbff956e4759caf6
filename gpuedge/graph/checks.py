"""Values that come from outside, compared with what the nodes that read them can do with.

Before any driver and before ONNX Runtime, so that the CPU and every GPU refuse the same, and alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuedge.core.errors import InputError, ShapeError, UnsupportedOpError
from gpuedge.core.text import shown
from gpuedge.graph.expand import limits
from gpuedge.graph.ir import Array, Graph
from gpuedge.opset.call import node_label
from gpuedge.opset.limits import Limit


@dataclass(frozen=True)
class ValueCheck:
    """An input of a graph, the node that reads it, and what it may hold for that."""

    name: str
    label: str
    limit: Limit


def checks_of(graph: Graph) -> tuple[ValueCheck, ...]:
    """Return what has to be looked at in the inputs of a graph, where nodes read them directly."""
    given = {n for n in graph.inputs if n in graph.types and graph.types[n].dtype[:1] in "iu"}
    checks = []
    for node in graph.nodes if given else ():
        if given.isdisjoint(node.inputs):
            continue
        label = node_label(node.op, node.name, node.outputs)
        try:
            known = limits(node, graph)
        except (UnsupportedOpError, ShapeError):
            continue  # whoever is to run it says so
        names = [(node.inputs[check.position], check) for check in known]
        checks += [ValueCheck(name, label, check) for name, check in names if name in given]
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
