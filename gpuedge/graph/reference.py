"""ONNX's own reference evaluator: for constants, what nothing else computes, and as an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.graph.writer import to_onnx
from gpuedge.safety.interrupts import is_of_handler
from gpuedge.safety.packages import needed

Run = Callable[..., Any]

FAR = 2.0**20
"""Steps of a scale that saturate any type of up to 16 bits, whatever its zero point."""

MOST_SAID = 200
"""Characters of its own words that a message has."""

MOST_NAMED = 8
"""Operators that a message names."""


# What follows corrects mistakes of the evaluator, seen with onnx 1.23.2.


def _quantize(run: Run, x: Array, scale: Array, *rest: Array, **attrs: Any) -> Any:
    """Saturate what lies beyond int32, too, which wraps there."""
    axis, block = attrs.get("axis", 1), attrs.get("block_size")
    if scale.size == 1:
        each = scale.reshape(())
    elif block:
        each = np.repeat(scale, block, axis).take(range(x.shape[axis]), axis)
    else:
        each = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    most = np.abs(each.astype(np.float64)) * FAR
    return run(np.clip(x.astype(np.float64), -most, most).astype(x.dtype), scale, *rest, **attrs)


def _slice(run: Run, x: Array, *given: Any, **attrs: Any) -> Any:
    """Begin at the first element where a start lies before it, and not as numpy does."""
    if not given:  # before operator set 10, which has no steps
        return run(x, **attrs)
    starts, _, axes, *_ = (*given, None)
    extents = np.array(x.shape)[range(len(starts)) if axes is None else axes]
    return run(x, np.maximum(starts, -extents), *given[1:], **attrs)


def _attention(
    run: Run, q: Array, k: Array, v: Array, mask: Array | None = None, *rest: Any, **attrs: Any
) -> Any:  # fmt: skip
    """Give each query the mask that all of them share: causal ones differ in its first row only."""
    if mask is not None:
        mask = np.broadcast_to(mask, (*mask.shape[:-2], q.shape[-2], mask.shape[-1]))
    return run(q, k, v, mask, *rest, **attrs)


def _layer(usual: Sequence[str], run: Run, *given: Any, **attrs: Any) -> Any:
    """Refuse layers of which parts would be left out without a word."""
    said = [name.lower() for name in attrs.get("activations") or ()]
    has_others = any(name != usual[i % len(usual)] for i, name in enumerate(said))
    has_lengths = any(lengths is not None for lengths in given[4:5])
    if attrs.get("clip") or attrs.get("input_forget") or has_lengths or has_others:
        raise UnsupportedOpError(
            "ONNX's reference evaluator leaves out clips, lengths and activations of layers.",
            known="it is asked for what ONNX Runtime lacks of layers of many steps",
            hint="fewer steps are computed by gpuedge itself",
        )
    return run(*given, **attrs)


CORRECTED: dict[str, Callable[..., Any]] = {
    "QuantizeLinear": _quantize, "Slice": _slice, "Attention": _attention,
    "RNN": partial(_layer, ("tanh",)), "GRU": partial(_layer, ("sigmoid", "tanh")),
    "LSTM": partial(_layer, ("sigmoid", "tanh", "tanh")),
}  # fmt: skip


def _corrected(graph: Graph) -> list[Any]:
    """Return operators of the evaluator that the functions above stand before."""
    ops, version = {n.op for n in graph.nodes if not n.domain}, graph.opset.get("", 0)
    with needed("onnx", ", ".join(ops)):
        from onnx.defs import get_schema
        from onnx.reference.ops import load_op

    def made(op: str) -> Any:
        base = load_op("", op, version)

        def run(self: Any, *args: Any, **attrs: Any) -> Any:
            return CORRECTED[op](partial(base._run, self), *args, **attrs)

        own = {"_run": run, "op_domain": "", "op_schema": get_schema(op, version, "")}
        return type(op, (base,), own)

    return [made(op) for op in CORRECTED if op in ops]


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
            self._evaluator = ReferenceEvaluator(to_onnx(graph), new_ops=_corrected(graph))

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
