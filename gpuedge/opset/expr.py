"""Expressions: what one element of a tensor is, as a tree over loads and functions.

The same tree is computed by numpy, printed as kernel text, counted and bounded. Nodes are compared
by identity, so a subtree that is used twice is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from gpuedge.opset.index import Index, Substitution

if TYPE_CHECKING:
    from gpuedge.opset.tensor import Tensor


_serials = count()


class Expr:
    """A value for each position; arithmetic makes larger expressions.

    Attributes
    ----------
    serial : int
        Larger than those of all that were made before. The order of terms follows it, so that the
        text of a kernel is the same in every process.
    """

    __slots__ = ("_loads", "serial")
    serial: int
    _loads: tuple[LoadExpr, ...] | None

    def __new__(cls, *_: object, **__: object) -> Any:
        """Number the expression."""
        expr = object.__new__(cls)
        expr.serial, expr._loads = next(_serials), None
        return expr

    def __add__(self, other: Expr | float) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Expr | float) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Expr | float) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Expr | float) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Expr:
        return apply("div", other, self)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The expressions it is made of directly."""
        return ()


class Number(Expr):
    """A constant, finite float32."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = float(value)


class LoadExpr(Expr):
    """Element number `at` (in C order) of a tensor."""

    __slots__ = ("at", "tensor")

    def __init__(self, tensor: Tensor, at: Index) -> None:
        self.tensor = tensor
        self.at = at

    @property
    def parts(self) -> tuple[Expr, ...]:
        """What is loaded to find the position."""
        return self.at.loaded


class Apply(Expr):
    """A function of `gpuedge.opset.functions` of other expressions."""

    __slots__ = ("args", "function")

    def __init__(self, function: str, args: tuple[Expr, ...]) -> None:
        self.function = function
        self.args = args

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The arguments."""
        return self.args


class Where(Expr):
    """`yes` where no index of `test` is negative, else `no`: padding and joining are made of it."""

    __slots__ = ("no", "test", "yes")

    def __init__(self, test: tuple[Index, ...], yes: Expr, no: Expr) -> None:
        self.test = test
        self.yes = yes
        self.no = no

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Both branches and what the test loads."""
        return (self.yes, self.no, *(e for t in self.test for e in t.loaded))


class Position(Expr):
    """An index as a number."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        self.index = index

    @property
    def parts(self) -> tuple[Expr, ...]:
        """What is loaded to find the position."""
        return self.index.loaded


ZERO: Final = Number(0.0)


def lift(value: Expr | float) -> Expr:
    """Return a number as an expression."""
    return value if isinstance(value, Expr) else Number(value)


def apply(function: str, *args: Expr | float) -> Expr:
    """Return a function of expressions and numbers."""
    return Apply(function, tuple(lift(a) for a in args))


def where(test: Sequence[Index], yes: Expr | float, no: Expr | float) -> Expr:
    """Return `yes` where no index of `test` is negative, else `no`."""
    open_tests = tuple(t for t in test if t.low < 0)
    if any(t.high < 0 for t in open_tests):
        return lift(no)
    return Where(open_tests, lift(yes), lift(no)) if open_tests else lift(yes)


def walk(root: Expr) -> list[Expr]:
    """Return every expression of a tree once, parts before wholes."""
    seen: set[int] = set()
    order: list[Expr] = []

    def visit(expr: Expr) -> None:
        if id(expr) not in seen:
            seen.add(id(expr))
            for part in expr.parts:
                visit(part)
            order.append(expr)

    visit(root)
    return order


def loads(root: Expr) -> Sequence[LoadExpr]:
    """Return every load of a tree, in order."""
    known = root._loads
    if known is None:
        known = tuple([e for e in walk(root) if isinstance(e, LoadExpr)])
        if not isinstance(root, LoadExpr):  # which would hold itself
            root._loads = known
    return known


def rewrite(
    root: Expr, put: Mapping[int, Index], load: Callable[[LoadExpr], Expr] | None = None
) -> Expr:
    """Return a tree with its axes replaced, and its loads by what `load` makes of them.

    Parameters
    ----------
    root : Expr
    put : mapping of int to Index
        New index by axis number; axes that it does not name stay.
    load : callable, optional
        Takes each load, its position replaced already.
    """
    done: dict[int, Expr] = {}

    def again(old: Expr) -> Expr:
        key = id(old)
        if key not in done:
            done[key] = one(old)
        return done[key]

    def one(old: Expr) -> Expr:
        if isinstance(old, LoadExpr):
            moved = LoadExpr(old.tensor, index(old.at))
            return moved if load is None else load(moved)
        if isinstance(old, Apply):
            return Apply(old.function, tuple(again(a) for a in old.args))
        if isinstance(old, Where):
            return where([index(t) for t in old.test], again(old.yes), again(old.no))
        if isinstance(old, Position):
            return Position(index(old.index))
        return old

    index = Substitution(put, again)
    return again(root)
