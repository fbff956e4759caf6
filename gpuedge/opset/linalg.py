"""Sums over products by named axes, and determinants."""

from __future__ import annotations

from math import prod

import numpy as np

from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import magnitude, pick
from gpuedge.opset.expr import Expr, Position
from gpuedge.opset.index import Index, Loaded, of
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import Operator
from gpuedge.opset.reduce import extreme_at
from gpuedge.opset.tensor import (
    Tensor,
    at,
    computed,
    constant,
    mapped,
    product,
    reduced,
    reshape,
    transpose,
    view,
)

MOST_ROWS = 64
"""Of a matrix whose determinant is computed; each row takes some kernels."""

EXPANDED = 3
"""Largest matrix whose determinant is written out, which is exact for small integers."""

# --- sums over products --------------------------------------------------------------------------

Labels = tuple[str, ...]


def _labels(term: str, ellipsis: Labels) -> Labels:
    """Return the axes of a term: letters, and what an ellipsis stands for."""
    before, dots, after = term.partition("...")
    return (*before, *ellipsis, *after) if dots else tuple(term)


def _parsed(call: OperatorCall, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """Return the axes of all operands and of the result. Raises UnsupportedOpError (GE-501)."""
    text = "".join(call.text("equation", "").split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    rest = text.replace("...", "").replace("->", "").replace(",", "")
    if len(terms) != len(ranks) or not (rest == "" or (rest.isascii() and rest.isalpha())):
        raise call.bad_shape(f"has the equation {text!r} for {len(ranks)} operands")
    free = [n - len(t.replace("...", "")) for t, n in zip(terms, ranks, strict=True)]
    if any(n < 0 or (n > 0 and "..." not in t) for t, n in zip(terms, free, strict=True)):
        raise call.bad_shape(f"has the equation {text!r}, which does not fit its operands")
    most = max(n if "..." in t else 0 for t, n in zip(terms, free, strict=True))
    dots = tuple(f".{i}" for i in range(most))
    each = [_labels(t, dots[most - n :]) for t, n in zip(terms, free, strict=True)]
    if arrow:
        return each, _labels(right, dots)
    seen = [label for labels in each for label in labels]
    return each, (*dots, *sorted(c for c in set(seen) if seen.count(c) == 1 and len(c) == 1))


def _diagonal(call: OperatorCall, x: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Return the elements whose positions agree on axes of one name."""
    kept = tuple(dict.fromkeys(labels))
    if kept == labels:
        return x, labels
    shape = []
    for label in kept:
        extents = {n for n, own in zip(x.shape, labels, strict=True) if own == label}
        if len(extents) > 1:
            raise call.bad_shape(f"names axes of {sorted(extents)} elements alike")
        shape.append(extents.pop())
    return view(x, tuple(shape), lambda p: [p[kept.index(label)] for label in labels]), kept


def _without(x: Tensor, labels: Labels, kept: set[str]) -> tuple[Tensor, Labels]:
    """Return the sums over all axes that are not kept."""
    along = [i for i, label in enumerate(labels) if label not in kept]
    if not along:
        return x, labels
    left = tuple(label for label in labels if label in kept)
    return reduced("sum", x, along, keepdims=False), left


def _ordered(x: Tensor, labels: Labels, wanted: Labels) -> Tensor:
    """Return x with its axes in another order, and of extent 1 where it has none."""
    there = [label for label in wanted if label in labels]
    moved = transpose(x, [labels.index(label) for label in there])
    extents = dict(zip(labels, x.shape, strict=True))
    return reshape(moved, tuple(extents.get(label, 1) for label in wanted))


def _contracted(
    call: OperatorCall, a: tuple[Tensor, Labels], b: tuple[Tensor, Labels], kept: set[str]
) -> tuple[Tensor, Labels]:
    """Return the product of two tensors, summed over axes that are not kept: of matrices."""
    left, right = a[1], b[1]
    both = [label for label in left if label in right]
    over = tuple(label for label in both if label not in kept)
    batch = tuple(label for label in both if label in kept)
    rows = tuple(label for label in left if label not in right)
    columns = tuple(label for label in right if label not in left)
    sizes = [dict(zip(n, t.shape, strict=True)) for t, n in (a, b)]
    for label in both:
        one, other = sizes[0][label], sizes[1][label]
        if one != other and not (len(label) > 1 and 1 in (one, other)):  # dots broadcast
            if 1 in (one, other):  # ONNX Runtime and numpy repeat the one, ONNX does not say so
                raise call.unsupported(f"repeats an element along {label!r}")
            raise call.bad_shape(f"has {one} and {other} elements along {label!r}")
    names = (*batch, *rows, *columns)
    if not over:
        wide = [_ordered(t, n, names) for t, n in (a, b)]
        return mapped(lambda u, v: u * v, *wide), names

    def matrix(part: tuple[Tensor, Labels], size: dict[str, int], *ends: Labels) -> Tensor:
        wide = _ordered(*part, (*batch, *ends[0], *ends[1]))
        flat = tuple(prod(size[n] for n in end) for end in ends)
        return reshape(wide, (*wide.shape[: len(batch)], *flat))

    left_matrix, right_matrix = matrix(a, sizes[0], rows, over), matrix(b, sizes[1], over, columns)
    result = product(left_matrix, right_matrix)
    extents = {**sizes[1], **sizes[0]}
    shape = (*result.shape[: len(batch)], *(extents[n] for n in (*rows, *columns)))
    return reshape(result, shape), names


def _einsum(call: OperatorCall) -> Tensor:
    operands = [call.input(i) for i in range(len(call.inputs))]
    each, result = _parsed(call, [x.rank for x in operands])
    if not set(result) <= {label for labels in each for label in labels} or len(set(result)) != len(
        result
    ):
        raise call.bad_shape("gives axes that no operand has, or one twice")
    parts = [_diagonal(call, x, labels) for x, labels in zip(operands, each, strict=True)]
    if not all(x.size for x in operands):
        raise call.unsupported("sums nothing")
    total, labels = parts[0]
    for i, part in enumerate(parts[1:], 1):
        later = {label for _, own in parts[i + 1 :] for label in own}
        kept = later | set(result)
        total, labels = _without(total, labels, kept | set(part[1]))
        right = _without(*part, kept | set(labels))
        total, labels = _contracted(call, (total, labels), right, kept)
    total, labels = _without(total, labels, set(result))
    return _ordered(total, labels, result)


# --- determinants --------------------------------------------------------------------------------


def _minor(m: Tensor, at_matrix: tuple[Index, ...], row: int, columns: tuple[int, ...]) -> Expr:
    """Return the determinant of some columns of the last rows, by its definition."""
    entries = [at(m, (*at_matrix, Index(row), Index(c))) for c in columns]
    if len(columns) == 1:
        return entries[0]
    total: Expr | None = None
    for i, entry in enumerate(entries):
        others = columns[:i] + columns[i + 1 :]
        term = entry * _minor(m, at_matrix, row + 1, others)
        total = term if total is None else total - term if i % 2 else total + term
    return entries[0] if total is None else total


def _eliminated(m: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pivot of matrices (N, n, n), with its sign, and what is left of the others.

    The row whose first element is the largest changes places with the first row (Golub and Van
    Loan, *Matrix Computations*, section 3.4).
    """
    count, size, _ = m.shape
    first = computed((count, size), m.dtype, lambda p: magnitude(at(m, (*p, Index()))))
    best = extreme_at(first, 1)

    def picked(p: tuple[Index, ...]) -> Index:
        return of(Loaded(at(best, (p[0], Index())), 0, size - 1))

    def pivot(p: tuple[Index, ...]) -> Expr:
        sign = 2.0 * equal(Position(picked(p)), 0.0) - 1.0
        return sign * at(m, (p[0], picked(p), Index()))

    top = computed((count, size), m.dtype, lambda p: at(m, (p[0], picked(p), p[1])))

    def below(p: tuple[Index, ...], column: Index) -> Expr:
        row = p[1] + 1
        is_top = equal(Position(row), Position(picked(p)))
        return pick(is_top, at(m, (p[0], Index(), column)), at(m, (p[0], row, column)))

    def left(p: tuple[Index, ...]) -> Expr:
        head = at(top, (p[0], Index()))
        times = below(p, Index()) / pick(equal(head, 0.0), 1.0, head)
        return below(p, p[2] + 1) - times * at(top, (p[0], p[2] + 1))

    return (computed((count,), m.dtype, pivot),
            computed((count, size - 1, size - 1), m.dtype, left))  # fmt: skip


def _det(call: OperatorCall) -> Tensor:
    x = call.input(0)
    size = x.shape[-1] if x.rank > 1 else 0
    if not size or x.shape[-2] != size:
        raise call.bad_shape("needs square matrices")
    if size > MOST_ROWS:
        raise call.unsupported(f"has matrices of {size} rows; the most is {MOST_ROWS}")
    outer = x.shape[:-2]
    if size <= EXPANDED:
        return computed(outer, x.dtype, lambda p: _minor(x, p, 0, tuple(range(size))))
    left = reshape(x, (prod(outer), size, size))
    result = constant(np.ones(prod(outer), np.float32))
    for _ in range(size - EXPANDED):
        pivot, left = _eliminated(left)
        result = mapped(lambda r, p: r * p, result, pivot)
    last = computed(result.shape, x.dtype, lambda p: _minor(left, p, 0, tuple(range(EXPANDED))))
    return reshape(mapped(lambda r, d: r * d, result, last), outer)


OPERATORS: tuple[Operator, ...] = (
    Operator("Einsum", _einsum),
    Operator("Det", _det, remark=f"of matrices of up to {MOST_ROWS} rows"),
)
