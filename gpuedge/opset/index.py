"""Integers that index tensors: linear forms over ranged variables, simplified as they are built.

Views (reshape, transpose, slice, pad, ...) are maps from an output position to an input position.
Kept as sums of products with known ranges, chains of them collapse: a reshape of a transpose and
its inverse become the plain position again. Division and remainder are those of Python (floor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpuedge.opset.expr import Expr

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Position along an axis of what is computed: 0 to `size` - 1."""

    number: int
    size: int = field(hash=False)  # as `key` has it

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (0, self.number)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return 0, self.size - 1

    @property
    def loaded(self) -> tuple[Expr, ...]:
        """What it takes from memory."""
        return ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it depends on, except through memory."""
        return (self,)


class _OfIndex:
    """What is made of one other index."""

    __slots__ = ()
    of: Index

    @property
    def loaded(self) -> tuple[Expr, ...]:
        """What it takes from memory."""
        return self.of.loaded

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it depends on, except through memory."""
        return self.of.axes


@dataclass(frozen=True, slots=True)
class Quotient(_OfIndex):
    """``of // by``; `of` is never negative."""

    of: Index
    by: int

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (1, self.by, self.of.key)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return self.of.low // self.by, self.of.high // self.by


@dataclass(frozen=True, slots=True)
class Remainder(_OfIndex):
    """``of % by``; `of` is never negative."""

    of: Index
    by: int

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (2, self.by, self.of.key)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return 0, min(self.by - 1, self.of.high)


@dataclass(frozen=True, slots=True)
class Chosen:
    """`yes` where all of `test` are not negative, else `no`."""

    test: tuple[Index, ...]
    yes: Index
    no: Index

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (3, tuple(i.key for i in self.test), self.yes.key, self.no.key)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return min(self.yes.low, self.no.low), max(self.yes.high, self.no.high)

    @property
    def loaded(self) -> tuple[Expr, ...]:
        """What it takes from memory."""
        return tuple(e for part in (*self.test, self.yes, self.no) for e in part.loaded)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it depends on, except through memory."""
        return tuple(a for part in (*self.test, self.yes, self.no) for a in part.axes)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An integral value computed at run time, such as an element of a tensor of indices."""

    value: Expr
    low: int
    high: int

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (4, self.value.serial, self.low, self.high)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return self.low, self.high

    @property
    def loaded(self) -> tuple[Expr, ...]:
        """What it takes from memory."""
        return (self.value,)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it depends on, except through memory."""
        return ()


Atom = Axis | Quotient | Remainder | Chosen | Loaded


def _key_of(term: tuple[Atom, int]) -> Key:
    return term[0].key


class Index:
    """A constant plus multiples of atoms, equal to others whatever the sizes of their axes.

    Attributes
    ----------
    constant : int
    terms : tuple of (Atom, int)
        Each atom with its factor, ordered; no factor is zero.
    low, high : int
        Bounds that hold for every value of the atoms.
    is_affine : bool
        Whether all atoms are axes.
    loaded : tuple of Expr
        What it takes from memory, each once.
    """

    __slots__ = ("_axes", "_hash", "constant", "high", "is_affine", "key", "loaded", "low", "terms")

    def __init__(self, constant: int = 0, terms: Mapping[Atom, int] | None = None) -> None:
        self.constant = constant
        kept = [term for term in terms.items() if term[1]] if terms else []
        if len(kept) > 1:
            kept.sort(key=_key_of)
        self.terms: tuple[tuple[Atom, int], ...] = tuple(kept)
        self.key: Key = (constant, tuple([(atom.key, factor) for atom, factor in kept]))
        low = high = constant
        self.is_affine, self._hash = True, 0
        self._axes: tuple[Axis, ...] | None = None
        loaded: tuple[Expr, ...] = ()
        for atom, factor in kept:
            if type(atom) is not Axis:
                self.is_affine, loaded = False, loaded + atom.loaded
            least, most = atom.range
            if factor < 0:
                least, most = most, least
            low += factor * least
            high += factor * most
        self.low, self.high = low, high
        self.loaded = tuple(dict.fromkeys(loaded)) if len(loaded) > 1 else loaded

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self.key == other.key)

    def __hash__(self) -> int:
        if not self._hash:  # of what it is made of, whose hashes are known: keys are deep
            self._hash = hash((self.constant, self.terms)) or 1
        return self._hash

    def __repr__(self) -> str:
        return " + ".join([*(f"{f} * {a}" for a, f in self.terms), str(self.constant)])

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that it depends on, except through memory, each once."""
        if self._axes is None:
            self._axes = tuple(dict.fromkeys(a for atom, _ in self.terms for a in atom.axes))
        return self._axes

    @property
    def value(self) -> int | None:
        """Its value if it is constant, else None."""
        return None if self.terms else self.constant

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self._scaled(1, other) if other else self
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        total = dict(self.terms)
        for atom, factor in other.terms:
            total[atom] = total.get(atom, 0) + factor
        return _recombined(self.constant + other.constant, total)

    def __radd__(self, other: int) -> Index:
        return self + other

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: int) -> Index:
        return -self + other

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        return self._scaled(factor, 0) if factor else ZERO

    __rmul__ = __mul__

    def _scaled(self, factor: int, ahead: int) -> Index:
        """Return a multiple, not of 0, plus a number: its terms have the same order."""
        new: Index = object.__new__(Index)
        new.constant = self.constant * factor + ahead
        new.terms, keys = self.terms, self.key[1]
        if factor != 1:
            new.terms = tuple([(a, f * factor) for a, f in self.terms])
            keys = tuple([(k, f * factor) for k, f in keys])
        new.key = (new.constant, keys)
        ends = self.low * factor + ahead, self.high * factor + ahead
        new.low, new.high = ends if factor > 0 else ends[::-1]
        new.is_affine, new.loaded = self.is_affine, self.loaded
        new._hash, new._axes = 0, self._axes
        return new

    def __floordiv__(self, by: int) -> Index:
        """Divide by a positive number, rounding down."""
        if by == 1:
            return self
        whole, rest, least, _, _ = self._split(by)
        if rest.low // least == rest.high // least:
            return whole + rest.low // least
        shift = max(0, -(rest.low // least))
        rest = rest + shift * least
        atom = sole(rest)
        if isinstance(atom, Quotient):
            return whole + of(Quotient(atom.of, atom.by * least)) - shift
        if isinstance(atom, Remainder) and atom.by % least == 0:
            return whole + (atom.of // least) % (atom.by // least) - shift
        return whole + of(Quotient(rest, least)) - shift

    def __mod__(self, by: int) -> Index:
        """Return what is left by division by a positive number; never negative."""
        if by == 1:
            return ZERO
        _, rest, least, common, left = self._split(by)
        low = rest.low // least
        if low == rest.high // least:
            return (rest - low * least) * common + left
        rest = rest + max(0, -low) * least
        atom = sole(rest)
        if isinstance(atom, Remainder) and atom.by % least == 0:
            return atom.of % least * common + left
        return of(Remainder(rest, least)) * common + left

    def _split(self, by: int) -> tuple[Index, Index, int, int, Index]:
        """Return (whole, rest, least, common, left).

        ``self // by == whole + rest // least`` and ``self % by == common * (rest % least) + left``,
        with everything taken out that divides evenly or is too small to matter.
        """
        whole = {a: f // by for a, f in self.terms if f % by == 0}
        rest = {a: f for a, f in self.terms if f % by}
        constant, over = divmod(self.constant, by)
        for common in sorted({gcd(f, by) for f in rest.values()} - {1}, reverse=True):
            small = Index(over % common, {a: f for a, f in rest.items() if f % common})
            if small.low >= 0 and small.high < common:
                large = {a: f // common for a, f in rest.items() if f % common == 0}
                inner = Index(over // common, large)
                return Index(constant, whole), inner, by // common, common, small
        return Index(constant, whole), Index(over, rest), by, 1, ZERO


def sole(index: Index) -> Atom | None:
    """Return the only atom of an index that is nothing but this atom."""
    if len(index.terms) == 1 and index.constant == 0 and index.terms[0][1] == 1:
        return index.terms[0][0]
    return None


def _recombined(constant: int, terms: dict[Atom, int]) -> Index:
    """Join remainders with the quotients they were split from.

    ``(x // c) * c + x % c`` is x, and ``(x // c % m) * c + x % c`` is ``x % (c * m)``.
    """
    remainders = [a for a in terms if type(a) is Remainder]
    for atom in remainders:
        factor = terms.get(atom, 0)
        if not factor or not isinstance(atom, Remainder):
            continue
        above = atom.of // atom.by
        upper = sole(above)
        if upper is not None and terms.get(upper) == factor * atom.by:
            left = {a: f for a, f in terms.items() if a not in (atom, upper)}
            return Index(constant, left) + atom.of * factor
        for other, by in terms.items():
            if isinstance(other, Remainder) and other.of == above and by == factor * atom.by:
                left = {a: f for a, f in terms.items() if a not in (atom, other)}
                return Index(constant, left) + atom.of % (atom.by * other.by) * factor
    return Index(constant, terms)


ZERO: Final = Index()


def of(atom: Atom) -> Index:
    """Return an atom as an index; what has one possible value becomes that."""
    low, high = atom.range
    return Index(low) if low == high else Index(0, {atom: 1})


def axis(number: int, size: int) -> Index:
    """Return the position along an axis."""
    return of(Axis(number, size))


@lru_cache(maxsize=1024)
def axes(shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Return the positions along all axes of a shape."""
    return tuple(axis(i, size) for i, size in enumerate(shape))


@lru_cache(maxsize=1024)
def everything(shape: tuple[int, ...]) -> Index:
    """Return the number of each element of a shape in C order."""
    return flatten(axes(shape), shape)


def choose(test: Sequence[Index], yes: Index, no: Index) -> Index:
    """Return `yes` where no index of `test` is negative, else `no`."""
    open_tests = tuple(t for t in test if t.low < 0)
    if any(t.high < 0 for t in open_tests):
        return no
    if not open_tests or yes == no:
        return yes
    return of(Chosen(open_tests, yes, no))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the element strides of an array in C order."""
    result, step = [], 1
    for extent in reversed(shape):
        result.append(step)
        step *= extent
    return tuple(reversed(result))


def flatten(position: Sequence[Index], shape: Sequence[int]) -> Index:
    """Return the number of an element in C order."""
    constant = 0
    terms: dict[Atom, int] = {}
    for index, stride in zip(position, strides(shape), strict=True):
        constant += index.constant * stride
        for atom, factor in index.terms:
            terms[atom] = terms.get(atom, 0) + factor * stride
    return _recombined(constant, terms)


def unflatten(number: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Return the position of an element from its number in C order."""
    if number == everything(shape):
        return axes(shape)
    parts: list[Index] = []
    for i, (stride, extent) in enumerate(zip(strides(shape), shape, strict=True)):
        part = number // stride if stride else ZERO
        first = i == 0 or all(e == 1 for e in shape[:i])
        parts.append(part if first and part.low >= 0 and part.high < extent else part % extent)
    return tuple(parts)


Put = tuple[tuple[int, Index, tuple[Axis, ...]], ...]
"""New index by axis number, with its axes: these have sizes, which indices are not compared by."""


class Substitution:
    """Replaces axes of indices.

    Parameters
    ----------
    put : mapping of int to Index
        New index by axis number; axes that it does not name stay.
    inner : callable, optional
        Does the same to what is loaded at run time, which stays without it.
    """

    def __init__(
        self, put: Mapping[int, Index], inner: Callable[[Expr], Expr] | None = None
    ) -> None:
        self._put: Put = tuple([(number, index, index.axes) for number, index in put.items()])
        self._inner = inner
        self._done: dict[tuple[Atom, tuple[Axis, ...]], Index] = {}

    def __call__(self, index: Index) -> Index:
        """Return an index with axes replaced."""
        if not self._put and (self._inner is None or not index.loaded):
            return index
        total = Index(index.constant)
        for atom, factor in index.terms:
            total = total + self._of(atom) * factor
        return total

    def _of(self, atom: Atom) -> Index:
        key = atom, atom.axes
        known = self._done.get(key)
        if known is None:
            known = self.rebuilt(atom) if atom.loaded else _moved(*key, self._put)
            self._done[key] = known
        return known

    def rebuilt(self, atom: Atom) -> Index:
        """Return an atom made of parts with axes replaced."""
        if isinstance(atom, Axis):
            put = {number: index for number, index, _ in self._put}
            return put.get(atom.number, of(atom))
        if isinstance(atom, Quotient):
            return self(atom.of) // atom.by
        if isinstance(atom, Remainder):
            return self(atom.of) % atom.by
        if isinstance(atom, Chosen):
            return choose([self(t) for t in atom.test], self(atom.yes), self(atom.no))
        inner = self._inner
        return of(atom if inner is None else Loaded(inner(atom.value), atom.low, atom.high))


@lru_cache(maxsize=4096)
def _moved(atom: Atom, _: tuple[Axis, ...], put: Put) -> Index:
    """Return an atom that takes nothing from memory with axes replaced; `_` are its axes."""
    return Substitution({number: index for number, index, _ in put}).rebuilt(atom)


def affine(index: Index) -> dict[int, int] | None:
    """Return factor by axis number if the index is linear in the axes, else None."""
    factors: dict[int, int] = {}
    for atom, factor in index.terms:
        if not isinstance(atom, Axis):
            return None
        factors[atom.number] = factor
    return factors


def loaded_axes(index: Index) -> set[int]:
    """Return the numbers of all axes that an index depends on, except through memory."""
    numbers: set[int] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            numbers.add(atom.number)
        elif isinstance(atom, (Quotient, Remainder)):
            numbers |= loaded_axes(atom.of)
        elif isinstance(atom, Chosen):
            for part in (*atom.test, atom.yes, atom.no):
                numbers |= loaded_axes(part)
    return numbers
