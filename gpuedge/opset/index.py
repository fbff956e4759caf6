"""Integers that index tensors: linear forms over ranged variables, simplified as they are built.

Views (reshape, transpose, slice, pad, ...) are maps from an output position to an input position.
Kept as sums of products with known ranges, chains of them collapse: a reshape of a transpose and
its inverse become the plain position again. Division and remainder are those of Python (floor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    size: int

    @property
    def key(self) -> Key:
        """What it is ordered and compared by."""
        return (0, self.number)

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest value."""
        return 0, self.size - 1


@dataclass(frozen=True, slots=True)
class Quotient:
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
class Remainder:
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


Atom = Axis | Quotient | Remainder | Chosen | Loaded


def _key_of(term: tuple[Atom, int]) -> Key:
    return term[0].key


class Index:
    """A constant plus multiples of atoms.

    Attributes
    ----------
    constant : int
    terms : tuple of (Atom, int)
        Each atom with its factor, ordered; no factor is zero.
    low, high : int
        Bounds that hold for every value of the atoms.
    is_affine : bool
        Whether all atoms are axes.
    """

    __slots__ = ("constant", "high", "is_affine", "key", "low", "terms")

    def __init__(self, constant: int = 0, terms: Mapping[Atom, int] | None = None) -> None:
        self.constant = constant
        kept = [term for term in terms.items() if term[1]] if terms else []
        if len(kept) > 1:
            kept.sort(key=_key_of)
        self.terms: tuple[tuple[Atom, int], ...] = tuple(kept)
        self.key: Key = (constant, tuple([(atom.key, factor) for atom, factor in kept]))
        low = high = constant
        self.is_affine = True
        for atom, factor in kept:
            self.is_affine = self.is_affine and type(atom) is Axis
            least, most = atom.range
            if factor < 0:
                least, most = most, least
            low += factor * least
            high += factor * most
        self.low, self.high = low, high

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return " + ".join([*(f"{f} * {a}" for a, f in self.terms), str(self.constant)])

    @property
    def value(self) -> int | None:
        """Its value if it is constant, else None."""
        return None if self.terms else self.constant

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, dict(self.terms)) if other else self
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
        return Index(self.constant * factor, {a: f * factor for a, f in self.terms})

    __rmul__ = __mul__

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


def substitute(index: Index, put: Mapping[int, Index], inner: Callable[[Expr], Expr]) -> Index:
    """Return `index` with axes replaced; `inner` does the same to what is loaded at run time."""

    def one(atom: Atom) -> Index:
        if isinstance(atom, Axis):
            return put.get(atom.number, of(atom))
        if isinstance(atom, Quotient):
            return again(atom.of) // atom.by
        if isinstance(atom, Remainder):
            return again(atom.of) % atom.by
        if isinstance(atom, Chosen):
            return choose([again(t) for t in atom.test], again(atom.yes), again(atom.no))
        return of(Loaded(inner(atom.value), atom.low, atom.high))

    def again(part: Index) -> Index:
        if not put and part.is_affine:
            return part
        total = Index(part.constant)
        for atom, factor in part.terms:
            total = total + one(atom) * factor
        return total

    return again(index)


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
