"""Where elements lie in packed tensors, and which parts a body joins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set

from gpuedge.opset.expr import Apply, Expr, LoadExpr, Where, rewrite, where
from gpuedge.opset.index import (
    Atom,
    Chosen,
    Index,
    Quotient,
    Remainder,
    axes,
    axis,
    choose,
    flatten,
    of,
    unflatten,
)
from gpuedge.plan.layout import Layout

CHANNELS = 1
"""The axis that the layout of channels packs."""


def packed(at: Index, layout: Layout) -> Index:
    """Return which float of a tensor in the layout of channels holds element `at` of it."""
    batch, channel, *pixel = unflatten(at, layout.shape)
    slices = layout.extents[2]
    texel = (batch * slices + channel // 4) * layout.inner + flatten(pixel, layout.shape[2:])
    return texel * 4 + channel % 4


def guarded(body: Expr) -> Expr:
    """Return a body in which no load guards its place again by tests that guard the load already.

    What is read where the tests fail is not used; no access leaves a tensor.
    """
    return _guarded(body, frozenset(), {})


def _guarded(expr: Expr, known: frozenset[Index], done: dict[tuple[int, Set[Index]], Expr]) -> Expr:
    key = (id(expr), known)
    if key not in done:
        done[key] = _under(expr, known, done)
    return done[key]


def _under(expr: Expr, known: frozenset[Index], done: dict[tuple[int, Set[Index]], Expr]) -> Expr:
    if isinstance(expr, LoadExpr) and known and not expr.at.is_affine:
        return LoadExpr(expr.tensor, _settled(expr.at, known))
    if isinstance(expr, Apply):
        args = tuple(_guarded(a, known, done) for a in expr.args)
        same = all(new is old for new, old in zip(args, expr.args, strict=True))
        return expr if same else Apply(expr.function, args)
    if isinstance(expr, Where):
        tests = [_settled(t, known) for t in expr.test]
        passed = known | {*expr.test, *tests}
        failed = known | {negated(t) for t in (*expr.test, *tests) if len(expr.test) == 1}
        return where(tests, _guarded(expr.yes, passed, done), _guarded(expr.no, failed, done))
    return expr


def _settled(index: Index, known: Set[Index]) -> Index:
    """Return an index without the choices that known tests make."""
    if index.is_affine or not known:
        return index
    total = Index(index.constant)
    for atom, factor in index.terms:
        total = total + _chosen(atom, known) * factor
    return total


def _chosen(atom: Atom, known: Set[Index]) -> Index:
    if isinstance(atom, Quotient):
        return _settled(atom.of, known) // atom.by
    if isinstance(atom, Remainder):
        return _settled(atom.of, known) % atom.by
    if isinstance(atom, Chosen):
        if known >= set(atom.test):
            return _settled(atom.yes, known)
        tests = [_settled(t, known) for t in atom.test]
        return choose(tests, _settled(atom.yes, known), _settled(atom.no, known))
    return of(atom)


def negated(test: Index) -> Index:
    """Return the test that passes where `test`, which asks for no negative number, fails."""
    return -test - 1


def sections(body: Expr, shape: tuple[int, ...]) -> list[tuple[range, Expr]]:
    """Return the parts along the axis of channels that a body joins, in order.

    Each is given with what it is, over axes of its own shape. What joins nothing is one part.
    """
    return list(_sections(body, range(shape[CHANNELS])))


def _sections(expr: Expr, part: range) -> Iterator[tuple[range, Expr]]:
    if isinstance(expr, Where) and len(expr.test) == 1:
        before = expr.test[0] + axis(CHANNELS, len(part))  # the test is cut - 1 - channel
        if before.value is not None and 0 <= before.value < len(part) - 1:
            cut = before.value + 1
            for inner, some in ((expr.yes, part[:cut]), (expr.no, part[cut:])):
                place = axis(CHANNELS, len(some)) + (some.start - part.start)
                yield from _sections(rewrite(inner, {CHANNELS: place}), some)
            return
    yield part, expr


def part_of(body: Expr, shape: tuple[int, ...]) -> int | None:
    """Return the channel that a body takes neighbouring channels of one tensor from, else None."""
    if not isinstance(body, LoadExpr) or body.tensor.shape[2:] != shape[2:]:
        return None
    whole = body.tensor.shape
    if len(whole) != len(shape) or whole[0] != shape[0] != 1 or whole[1] < shape[1]:
        return None
    ahead = body.at - flatten(axes(shape), whole)
    step = whole[2] * (whole[3] if len(whole) > 3 else 1)
    return None if ahead.value is None or ahead.value % step else ahead.value // step
