"""From nodes to tensors: what a graph computes, in the primitives of `gpuedge.opset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Final

import numpy as np

from gpuedge.core.errors import GpuEdgeError, ShapeError, UnsupportedOpError
from gpuedge.graph import schema
from gpuedge.graph.flow import why_open
from gpuedge.graph.functions import body, branch
from gpuedge.graph.ir import Array, Graph, Node, TensorType
from gpuedge.graph.reference import MOST_SAID, run_node
from gpuedge.opset import described
from gpuedge.opset.call import OperatorCall, node_label
from gpuedge.opset.halves import halve
from gpuedge.opset.limits import Limit
from gpuedge.opset.operator import Operator
from gpuedge.opset.tensor import Tensor, constant, given
from gpuedge.safety.interrupts import is_of_handler

FAULTS = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError,
          RuntimeError)  # fmt: skip
"""What mistakes of planning raise, ours or the onnx package's: a refusal of the node, no crash.

Not every Exception: one that a signal handler of the application raises here is the application's.
"""

NOTHING: Final = constant(np.empty(0, np.float32))
"""Stands for an output that nobody asked for."""

MOST_FOLDED = 1 << 24
"""Most elements of a constant inside an operator that is computed while planning."""


def operator_of(node: Node) -> Operator | None:
    """Return the description of a node's operator, None if there is none."""
    return described(node.op, node.domain)


def is_known(node: Node) -> bool:
    """Return whether a node's operator has a description (its attributes may not fit it)."""
    return operator_of(node) is not None


def operands(node: Node) -> tuple[str, ...]:
    """Return the inputs that carry tensors; those that only parametrise the node are left out."""
    known = operator_of(node)
    return tuple(
        name for i, name in enumerate(node.inputs) if name and (known is None or known.carries(i))
    )


def parameters(node: Node, opset: Mapping[str, int]) -> tuple[str, ...]:
    """Return the inputs that only parametrise a node; of composed ones, those that ONNX has int64.

    Such inputs are shapes, axes and counts, which a function's body passes on to other operators.
    """
    known = operator_of(node)
    if known is not None:
        return tuple(n for i, n in enumerate(node.inputs) if n and not known.carries(i))
    return tuple(n for i, n in enumerate(node.inputs) if n and schema.is_int64(node, i, opset))


def outside(name: str, graph: Graph) -> Tensor | None:
    """Return a value that nothing of the program computes; None if its type is unknown."""
    if name in graph.constants:
        return constant(graph.constants[name], name)
    kind = graph.types.get(name)
    return None if kind is None else given(name, kind.shape, kind.dtype)


@contextmanager
def _refused(node: Node) -> Iterator[None]:
    """Make what planning a node stumbles over the refusal of that node."""
    try:
        yield
    except (GpuEdgeError, RecursionError):  # the latter tells that a formula is too deep
        raise
    except FAULTS as error:
        if is_of_handler(error):
            raise
        raise UnsupportedOpError(
            f"{node_label(node.op, node.name, node.outputs)} cannot be planned.",
            known=" ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID],
            hint="this is a mistake of gpuedge's: please report it, with the model",
        ) from error


def expand(
    node: Node, graph: Graph, known: dict[str, Tensor] | None = None, *, is_half: bool = False
) -> tuple[Tensor, ...]:
    """Return the tensors that a node computes, at least as many as the outputs that it names.

    Of what it does not name (an optional output) there is any tensor.

    Parameters
    ----------
    node : Node
    graph : Graph
        Gives the operator set, the types of the node's inputs and the values of constants.
    known : dict of str to Tensor, optional
        What has been computed so far, by name. What the node takes from outside is added.
    is_half : bool
        Whether it is to be computed in float16 (`gpuedge.opset.halves`).

    Raises
    ------
    UnsupportedOpError (GE-501)
        The operator is not known, or these attributes, parameters or dtypes of it are not, or
        planning it fails in a way that nobody foresaw.
    ShapeError (GE-201)
        The shapes do not fit the operator.
    """
    with _refused(node):
        outputs = _outputs(node, graph, {} if known is None else known, is_half=is_half)
    asked = max((i for i, name in enumerate(node.outputs) if name), default=0)
    if asked >= len(outputs):
        label = node_label(node.op, node.name, node.outputs)
        raise UnsupportedOpError(
            f"{label} is asked for {asked + 1} outputs; {len(outputs)} are known."
        )
    return outputs


def _outputs(
    node: Node, graph: Graph, known: dict[str, Tensor], *, is_half: bool
) -> tuple[Tensor, ...]:
    operator = operator_of(node)
    call = _call(node, graph, known)
    if operator is not None:
        outputs = operator.outputs(call)
        if is_half:
            halve(node.op, outputs, call.inputs)
        return outputs
    inner = _body(node, graph, call)
    if inner is None:
        why = why_open(node, graph)
        if why is not None:
            raise call.unsupported(why)
        domain = node.domain or "ai.onnx"
        raise UnsupportedOpError(f"{call.label} (domain '{domain}') is not known.")
    return _by_body(inner, call)


def _body(node: Node, graph: Graph, call: OperatorCall) -> Graph | None:
    given = zip(call.names, call.inputs, strict=True)
    types = {n: TensorType(x.dtype, x.shape) for n, x in given if x is not None}
    return body(node, replace(graph, types={**graph.types, **types}))  # of a body's own as well


def settled(node: Node, graph: Graph, known: dict[str, Tensor] | None = None) -> Graph | None:
    """Return the body of a node for inputs of these types, None if it has none.

    What depends on constants only is computed, branches are chosen, and inner nodes bring their own
    bodies: planning it takes no onnx package.

    Parameters
    ----------
    node : Node
    graph : Graph
    known : dict of str to Tensor, optional
        As for `expand`.

    Raises
    ------
    UnsupportedOpError (GE-501), ShapeError (GE-201)
        As `expand`.
    """
    with _refused(node):
        call = _call(node, graph, {} if known is None else known)
        inner = None if operator_of(node) is not None else _body(node, graph, call)
        if inner is None:
            return None
        kept = list[Node]()
        values = _inside(inner, call)
        _compute(inner.nodes, inner, values, kept)
    outputs = tuple(takewhile(values.__contains__, inner.outputs))  # a body may lack optional ones
    made = {*inner.inputs, *(n for each in kept for n in each.outputs)}
    read = {n for each in kept for n in each.inputs if n} | {*outputs}
    arrays = {n: values[n].array for n in sorted(read - made)}
    constants = {n: a for n, a in arrays.items() if a is not None}
    return replace(inner, nodes=tuple(kept), outputs=outputs, constants=constants)


def _inside(inner: Graph, call: OperatorCall) -> dict[str, Tensor]:
    """Return what is known inside a body before its nodes: its inputs and constants."""
    given = zip(inner.inputs, call.inputs, strict=False)
    known = {name: constant(array) for name, array in inner.constants.items()}
    return known | {name: tensor for name, tensor in given if tensor is not None}


def _by_body(inner: Graph, call: OperatorCall) -> tuple[Tensor, ...]:
    """Compose an operator that ONNX defines by others; what depends on constants only is folded."""
    known = _inside(inner, call)
    _compute(inner.nodes, inner, known)
    # A body may lack what is optional and not asked for; whoever names no output looks at none.
    asked = [*zip(inner.outputs, call.outputs, strict=False)]
    for name, outer in asked:
        if outer and name not in known:
            raise call.unsupported(f"is asked for {outer}, which it does not have in this form")
    return tuple(known[name] if outer else NOTHING for name, outer in asked)


def _compute(
    nodes: Iterable[Node], inner: Graph, known: dict[str, Tensor], kept: list[Node] | None = None
) -> None:
    """Add what the nodes of a body compute; of an If only the branch that a constant chooses.

    Those that are not folded are added to `kept`, if there is one.
    """
    for node in nodes:
        test = known[node.inputs[0]].array if node.op == "If" else None
        if test is not None:
            chosen, names = branch(node, is_true=bool(test.reshape(-1)[0]))
            _compute(chosen, inner, known, kept)
            for outer, name in zip(node.outputs, names, strict=True):
                known[outer] = known[name]
                if kept is not None and known[name].array is None:
                    kept.append(Node("Identity", (name,), (outer,), {}, node.name))
            continue
        arrays = {n: known[n].array for n in node.inputs if n in known}
        present = {n: a for n, a in arrays.items() if a is not None}
        trimmed = replace(node, inputs=_given(node, known))
        folded = _folded(trimmed, present, inner, known) if len(present) == len(arrays) else None
        if kept is not None and folded is None:
            kept.append(replace(trimmed, body=settled(trimmed, inner, known)))
        tensors = folded or expand(trimmed, inner, known)
        known.update((n, t) for n, t in zip(node.outputs, tensors, strict=False) if n)


def _folded(
    node: Node, arrays: Mapping[str, Array], inner: Graph, known: dict[str, Tensor]
) -> tuple[Tensor, ...] | None:
    """Return what a node makes of constants; None where its description is to say, or only can."""
    try:
        # What makes much of little has a description; results of others are about as large as they.
        if any(t.size > MOST_FOLDED for t in expand(node, inner, known)):
            return None
    except (UnsupportedOpError, ShapeError):
        pass
    try:
        return tuple(constant(a) for a in run_node(node, arrays, inner.opset))
    except UnsupportedOpError:
        return None


def _given(node: Node, known: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return a body's inputs, with the empty name for optional ones that the operator lacks."""
    return tuple(name if name in known else "" for name in node.inputs)


def _call(node: Node, graph: Graph, known: dict[str, Tensor]) -> OperatorCall:
    for name in node.inputs:
        tensor = outside(name, graph) if name and name not in known else None
        if tensor is not None:
            known[name] = tensor
    inputs = tuple(known.get(name) for name in node.inputs)
    version = graph.opset.get(node.domain, 0)
    return OperatorCall(
        node.op, inputs, node.inputs, node.outputs or ("",), node.attrs, version, node.name
    )


def limits(node: Node, graph: Graph) -> tuple[Limit, ...]:
    """Return what values the integer inputs of a node must have. Raises as `expand`."""
    operator = operator_of(node)
    if operator is None or operator.limits is None:
        return ()
    with _refused(node):
        return operator.limits(_call(node, graph, {}))


def is_contested(node: Node) -> bool:
    """Tell whether there are nodes of this operator that ONNX Runtime computes otherwise."""
    operator = operator_of(node)
    return operator is not None and operator.differs is not None


def differs(node: Node, graph: Graph) -> bool:
    """Tell whether ONNX Runtime does not compute a node as ONNX has it, but we or ONNX do."""
    operator = operator_of(node)
    if operator is None or operator.differs is None:
        return False
    try:
        with _refused(node):
            is_other = operator.differs(_call(node, graph, {}))
            return is_other and (not operator.domain or bool(expand(node, graph)))
    except (UnsupportedOpError, ShapeError):
        return False


def infer(node: Node, graph: Graph) -> tuple[TensorType | None, ...]:
    """Return the types of a node's outputs, None of one whose size only values tell.

    Raises as `expand`.
    """
    return tuple(
        None if t.length is not None else TensorType(t.dtype, t.shape) for t in expand(node, graph)
    )


def program(graph: Graph, *, is_half: bool = False) -> dict[str, Tensor]:
    """Return every value that the nodes of a graph compute or read. Raises as `expand`."""
    intermediate: dict[str, Tensor] = {}
    for node in graph.nodes:
        tensors = expand(node, graph, intermediate, is_half=is_half)
        intermediate.update((n, t) for n, t in zip(node.outputs, tensors, strict=False) if n)
    return intermediate
