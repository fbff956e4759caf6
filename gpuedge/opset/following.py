"""Operators on values whose size only values tell: what they make is as long.

A device computes such a value at its longest (`Length`). What reads it can be computed so, too,
where each element is made of those at its own place: then it is right as far as the value is long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.opset.call import OPEN_SIZE, OperatorCall
from gpuedge.opset.expr import Expr, LoadExpr, apply, loads
from gpuedge.opset.index import Axis, Chosen, Index, Substitution, axis, sole, unflatten
from gpuedge.opset.tensor import Constant, Length, Map, Reduce, Tensor, at, computed, given
from gpuedge.opset.tensor import reachable as all_of

ELSEWHERE = 1 << 16
"""Added to the number of an axis that begins further on: no tensor has so many."""

Outputs = Sequence[Tensor]


def followed(
    call: OperatorCall, build: Callable[[OperatorCall], Outputs], *, cuts: bool = False
) -> tuple[Tensor, ...]:
    """Return what a node makes of inputs that have a `Length`, each with a `Length` of its own.

    Composed again, of inputs one longer, the outputs must be one longer along an axis, and read
    these inputs at its positions only. With `cuts` (Slice) an axis may also stay as it is: as many
    elements of it are right as the inputs have, at most. Or it may lack some at its end.

    Raises
    ------
    UnsupportedOpError (GE-501)
        An output follows in no axis, or two inputs are not equally long.
    """
    named = {n: t.length for n, t in zip(call.names, call.inputs, strict=True) if t and t.length}
    first, count = next((name, length.count) for name, length in named.items())
    extent = next(t.shape[t.length.axis] for t in call.inputs if t and t.length)
    if any(length.count is not count for length in named.values()):
        listed = " and ".join(map(repr, named))
        raise call.unsupported(f"reads {listed}, which need not be equally long, as values tell")
    outputs = tuple(build(call))
    try:
        stand_ins = [None if t is None else _longer(t) for t in call.inputs]
        longer = tuple(build(replace(call, inputs=tuple(stand_ins))))
        pairs = zip(stand_ins, call.inputs, strict=True)
        open_axes = {s.serial: t.length.axis for s, t in pairs if s and t and t.length}
        for tensor in all_of(longer):
            if any(t.serial in open_axes for t in tensor.reads):
                open_axes[tensor.serial] = _followed_along(tensor, open_axes, cuts=cuts)
        for tensor, other in zip(outputs, longer, strict=True):
            along = open_axes[other.serial]
            tensor.length = _length(
                tensor.shape, other.shape, along, count, extent if cuts else None
            )
    except (ShapeError, UnsupportedOpError, LookupError, ValueError):
        raise call.unsupported(
            f"reads {first!r}, {OPEN_SIZE}, other than place by place (the CPU can; or "
            "sort, sum and join before picking)"
        ) from None
    return outputs


def _longer(tensor: Tensor) -> Tensor:
    """Return what stands for an input, one longer if it has a length."""
    if isinstance(tensor.source, Constant):
        return tensor
    along = None if tensor.length is None else tensor.length.axis
    shape = tuple(n + (i == along) for i, n in enumerate(tensor.shape))
    return given("", shape, tensor.dtype)


def _followed_along(tensor: Tensor, open_axes: Mapping[int, int], *, cuts: bool) -> int:
    """Return the axis along which a tensor follows what it reads; raises if it does not."""
    if not isinstance(tensor.source, (Map, Reduce)):
        raise LookupError(tensor.label)
    found: set[int] = set()
    for load in loads(tensor.source.body):
        along = open_axes.get(load.tensor.serial)
        if along is not None:
            found |= _axes_of(load.at, load, along)
            extent = load.tensor.shape[along]
    (own,) = found or {ELSEWHERE}
    if not cuts and tensor.shape[own] != extent:
        raise LookupError(tensor.label)
    return own


def _axes_of(number: Index, load: LoadExpr, along: int) -> set[int]:
    """Return the axes that a load follows along one of what it reads; none at its begin.

    The begin is right wherever there is an element at all.
    """
    atom = sole(number)
    if isinstance(atom, Chosen):
        chosen = _axes_of(_where(atom.test, atom.yes), load, along)
        return chosen | _axes_of(atom.no, load, along)
    place = unflatten(number, load.tensor.shape)[along]
    atom = sole(place)
    if isinstance(atom, Axis):
        return {atom.number}
    return set() if place.value == 0 else {ELSEWHERE}


def _where(test: Sequence[Index], index: Index) -> Index:
    """Return an index whose axes reach no further than a test lets them."""
    ends: dict[int, tuple[int, int]] = {}
    for part in test:
        atom, factor = part.terms[0]
        if len(part.terms) == 1 and isinstance(atom, Axis) and factor in (1, -1):
            low, high = ends.get(atom.number, (0, atom.size - 1))
            moved = (
                (max(low, -part.constant), high) if factor > 0 else (low, min(high, part.constant))
            )
            ends[atom.number] = moved
    put = {
        number: axis(number + ELSEWHERE * (low > 0), high - low + 1) + low
        for number, (low, high) in ends.items()
    }
    return Substitution(put)(index)


def _length(
    shape: tuple[int, ...], longer: tuple[int, ...], along: int, count: Tensor, extent: int | None
) -> Length:
    """Return the length of an output. Raises LookupError where it does not follow.

    `extent` is that of what Slice cuts, None of other operators.
    """
    most = shape[along]
    if extent is not None and shape == longer:
        return Length(along, _cut(count, most, lambda n: apply("min", n, float(most))))
    if longer != tuple(n + (i == along) for i, n in enumerate(shape)):
        raise LookupError(along)
    if extent is None or most == extent:
        return Length(along, count)
    fewer = float(extent - most)  # those before a negative end
    return Length(along, _cut(count, most, lambda n: apply("max", n - fewer, 0.0)))


def _cut(count: Tensor, most: int, cut: Callable[[Expr], Expr]) -> Tensor:
    fewer = computed(count.shape, count.dtype, lambda p: cut(at(count, p)))
    fewer.span = 0.0, float(most)
    return fewer
