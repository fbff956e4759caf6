"""Small readings of a node that every canonicaliser needs, and the errors they raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuedge.core.dtypes import ACCEPTED
from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.graph.ir import Array, Graph, Node, TensorType
from gpuedge.graph.names import shown

FLOATS = ACCEPTED

MAX_ELEMENTS = 2**36
"""Largest value a graph may compute, elements: 256 GiB of float32. More is an attack or a slip."""

MAX_LISTED = 16
"""Inputs of a node, and extents of a shape, that a message lists."""


def label(node: Node) -> str:
    """Return how messages name a node: its operator and its name, or its first output."""
    name = node.name or next((o for o in node.outputs if o), "")
    return f"{shown(node.op)[1:-1]} node {shown(name)}"


def unsupported(node: Node, why: str) -> UnsupportedOpError:
    """Return the error for a node that has no canonical form; `why` completes a sentence."""
    return UnsupportedOpError(f"{label(node)} {why}.")


def bad_shape(node: Node, graph: Graph, why: str) -> ShapeError:
    """Return the error for shapes that do not fit; names the node and all its input shapes."""
    known = [name for name in node.inputs if name in graph.types]
    listed = [f"{shown(n)[1:-1]}={_extents(graph.types[n].shape)}" for n in known[:MAX_LISTED]]
    shapes = ", ".join([*listed, "..."] if len(known) > MAX_LISTED else listed)
    return ShapeError(f"{label(node)} {why}.", known=f"inputs {shapes}" if shapes else None)


def _extents(shape: Sequence[int]) -> str:
    if len(shape) <= MAX_LISTED:
        return str(list(shape))
    return f"{list(shape[:MAX_LISTED])}"[:-1] + f", ...] of rank {len(shape)}"


def type_in(node: Node, graph: Graph, index: int) -> TensorType:
    """Return the type of input `index`. Raises UnsupportedOpError if absent or unknown."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        raise unsupported(node, f"lacks its input {index}")
    if name not in graph.types:
        raise unsupported(node, f"reads {shown(name)}, whose type is unknown")
    return graph.types[name]


def has_input(node: Node, index: int) -> bool:
    """Return whether optional input `index` is given."""
    return index < len(node.inputs) and bool(node.inputs[index])


def constant(node: Node, graph: Graph, index: int, what: str) -> Array | None:
    """Return the constant value of input `index`, or None where the input is absent.

    Raises UnsupportedOpError where the input is given but only known while running.
    """
    if not has_input(node, index):
        return None
    name = node.inputs[index]
    if name not in graph.constants:
        raise unsupported(node, f"takes its {what} from {shown(name)}, which is not constant")
    return graph.constants[name]


def version(node: Node, graph: Graph) -> int:
    """Return the operator set version that gives `node` its meaning."""
    return graph.opset.get(node.domain, 0)


def ints(node: Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return an integer-list attribute."""
    value = node.attrs.get(name)
    if value is None or (isinstance(value, (list, tuple)) and not value):
        value = default
    return tuple(int(v) for v in value)


def text(node: Node, name: str, default: str) -> str:
    """Return a string attribute, which may be stored as bytes."""
    value: Any = node.attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def axis_of(node: Node, graph: Graph, axis: int, rank: int) -> int:
    """Return `axis` counted from the front. Raises ShapeError where it is out of range."""
    if not -rank <= axis < rank:
        raise bad_shape(node, graph, f"has axis {axis}, outside a tensor of rank {rank}")
    return axis % rank if rank else 0


def require_dtypes(
    node: Node, graph: Graph, names: Sequence[str], also: Sequence[str] = ()
) -> None:
    """Check that the named values are all of one dtype: float32, float16 or one in `also`."""
    allowed = (*FLOATS, *also)
    listed = f"{', '.join(allowed[:-1])} and {allowed[-1]}"
    found = {graph.types[n].dtype for n in names if n in graph.types}
    if len(found) > 1:
        raise unsupported(node, f"mixes the dtypes {', '.join(sorted(found))}")
    for dtype in found:
        if dtype not in allowed:
            raise unsupported(node, f"computes in {dtype}; only {listed} are known")
