"""One call of the public API with everything it takes to judge the answer.

A case is built from its name: the name's hash seeds all of its numbers, so it is the same on every
machine and in every run. Families of cases are functions that return a `Case`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

import gpuedge
from gpuedge.conformance.data import WHOLE
from gpuedge.conformance.maps import error_map
from gpuedge.conformance.storing import HALF_OVER, KEEPERS, Keeper
from gpuedge.core.words import StoragePrecision
from gpuedge.opset.bounds import Array, Num

Make = Callable[[np.random.Generator, str, str], "Built"]
"""Takes a generator, the kind of data and the dtype of the operands."""


class Built(NamedTuple):
    """A case with its numbers: runs on what ``device=`` takes, and a reference.

    `runs` yields what the device computes, anew each time. The reference takes the keeper of a
    storage kind and returns exact values with bounds.
    """

    runs: Callable[[Any], Generator[Any, None, None]]
    reference: Callable[[Keeper], Num]


@dataclass(frozen=True)
class Case:
    """A named case.

    `text` is the shape as part of a name, `data` a kind of `gpuedge.conformance.data`, `storage`
    what tensors are kept in (``float32`` is exact). `variant` is the kernel variant that must serve
    it, `rivals` are those ruled out for this. A small device may refuse what `is_large`. `facts`
    are sizes that the conditions of kernel variants speak of.
    """

    op: str
    text: str
    make: Make = field(compare=False, repr=False)
    dtype: str = "float32"
    data: str = "normal"
    storage: StoragePrecision = "float32"
    variant: str = ""
    rivals: tuple[str, ...] = field(default=(), compare=False)
    is_large: bool = field(default=False, compare=False)
    facts: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def id(self) -> str:
        """The name, such as ``conv2d/float32/n1c7h11w13-m5k3x3/integers/float32``."""
        parts = [self.op, self.dtype, self.text, self.data, self.storage]
        return "/".join([*parts, self.variant] if self.variant else parts)

    def described(self) -> dict[str, Any]:
        """Return the parts of the name as a row of results has them."""
        names = ("id", "op", "dtype", "data", "storage", "variant")
        return {"shape": self.text, **{name: getattr(self, name) for name in names}}

    def build(self, *, is_finite: bool = False) -> Built:
        """Return runs and reference; the numbers follow from operation, shape and kind alone.

        `is_finite`: of every number there is, those that are finite.
        """
        base = "/".join([self.op, self.dtype, self.text, self.data])
        data = "finite" if is_finite and self.data == "every" else self.data
        return self.make(generator(base), data, self.dtype)

    def judge(self, device: Any, *, is_finite: bool = False, twice: bool = False) -> CaseVerdict:
        """Run on a device and compare with the reference; `twice`: bit for bit with another run."""
        built, keeper = self.build(is_finite=is_finite), KEEPERS[self.storage]
        runs = built.runs(device)
        try:
            got = next(runs)
            verdict = compare(got, keeper(built.reference(keeper)), self.dtype)
            if twice and verdict.ok and not _is_same(got, next(runs)):
                return replace(verdict, ok=False, message="a second run gave other bits")
        finally:
            runs.close()
        return verdict


def repeated(call: Callable[[Any], Any]) -> Callable[[Any], Generator[Any, None, None]]:
    """Return what calls a function of a device again and again."""

    def runs(device: Any) -> Generator[Any, None, None]:
        while True:
            yield call(device)

    return runs


def _is_same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def case(
    op: str,
    text: str,
    draw: Callable[[np.random.Generator, str, str], Sequence[Any]],
    wanted: Callable[..., Num],
    how: Mapping[str, Any] | None = None,
    *,
    call: Callable[..., Array] | None = None,
    is_sum: bool = False,
    **more: Any,
) -> Case:
    """Return a case of a public function on operands that are drawn, of which None are absent.

    `wanted` is the oracle on the same as stored, which is told whether a sum (`is_sum`) is of whole
    numbers; `how` are further arguments of the function, or of `call` in its place.
    """

    def make(rng: np.random.Generator, data: str, dtype: str) -> Built:
        given = draw(rng, data, dtype)
        if dtype == "float16":
            given = [None if x is None else x.astype(dtype) for x in given]
        function = call or getattr(gpuedge, op)
        whole = {"whole": data in WHOLE} if is_sum else {}
        return Built(
            repeated(lambda device: function(*given, device=device, **how or {})),
            lambda keep: wanted(*(None if x is None else keep(x) for x in given), **whole),
        )

    return Case(op, text, make, **more)


def digest(text: str) -> int:
    """Return a number that depends on a name only, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def generator(name: str) -> np.random.Generator:
    """Return the random generator of a name."""
    return np.random.default_rng(digest(name))


@dataclass(frozen=True)
class CaseVerdict:
    """What a comparison found.

    `worst` is the largest error in units of the bound, over the elements that have one; None where
    all are to be exact. `rms` is the root of the mean square of errors in units of what it may be
    at the most. `bits` is a digest of the result. `message` says where the first wrong element is,
    `map` where all are (`gpuedge.conformance.maps`).
    """

    ok: bool
    worst: float | None = None
    message: str = ""
    map: Sequence[str] = ()
    rms: float | None = None
    bits: str = ""


MOST_WORST = 1e9
"""What is farther off is told so: a bound may be the smallest number, where zero is asked for."""

ANSWERS = ("bool", "int64", "int32", "uint8")
"""What comparisons, positions, sums of integers and codes are, whatever dtype is asked about."""


_TOGETHER = "every element is within its bound, but all of them together are too far off"


def _together(error: Array, likely: Array, value: Array) -> float | None:
    """Return the root mean square of errors in units of what it may be; None where there are none.

    Errors that are equally likely anywhere within their bounds, relative to these, have a mean
    square of 1/3, with a variance of 4/45 for each; four deviations of the mean are allowed. Equal
    results have equal errors, so they count as one.
    """
    if not error.size:
        return None
    count = len(np.unique(value))
    allowed = 1 / 3 + 4 * math.sqrt(4 / 45 / count)
    return math.sqrt(float(np.mean((error / likely) ** 2)) / allowed)


def compare(got: Any, wanted: Num, dtype: str = "float32") -> CaseVerdict:
    """Compare a result with exact values: dtype, shape, and every element within its bound."""
    if not isinstance(got, np.ndarray) or (got.dtype != dtype and got.dtype not in ANSWERS):
        what = f"dtype {got.dtype}" if isinstance(got, np.ndarray) else type(got).__name__
        return CaseVerdict(False, message=f"{what} instead of an array of {dtype}")
    if got.shape != wanted.v.shape:
        return CaseVerdict(False, message=f"shape {got.shape} instead of {wanted.v.shape}")
    bare = limit = np.broadcast_to(wanted.e, wanted.v.shape)
    likely = wanted.likely
    with np.errstate(invalid="ignore", over="ignore"):
        if got.dtype == np.float16:
            rounding = 2.0**-11 * np.abs(np.nan_to_num(wanted.v)) + 2.0**-25
            limit, likely = limit + rounding, None if likely is None else likely + rounding
        error = np.abs(got.astype(np.float64) - wanted.v)
        wrong = ~((error <= limit) | (limit == np.inf))
        if got.dtype == np.float16:
            size, room = np.abs(wanted.v), np.nan_to_num(bare, posinf=np.inf)
            over = got == np.sign(wanted.v) * np.inf
            wrong &= ~(over & (size + room >= HALF_OVER))
            wrong |= np.isfinite(got) & (size - room >= HALF_OVER) & (limit < np.inf)
    wrong &= ~(np.isnan(got) & np.isnan(wanted.v)) & (got != wanted.v)
    bounded = (limit > 0) & np.isfinite(error) & np.isfinite(limit)
    most = float((error[bounded] / limit[bounded]).max()) if bounded.any() else None
    worst = None if most is None else min(most, MOST_WORST)
    if not np.any(wrong):
        usual = limit if likely is None else np.broadcast_to(likely, limit.shape)
        rms = _together(error[bounded], usual[bounded], wanted.v[bounded])
        is_right = rms is None or rms <= 1
        bits = hashlib.sha256(got.tobytes()).hexdigest()[:16]
        return CaseVerdict(is_right, worst, "" if is_right else _TOGETHER, rms=rms, bits=bits)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), np.shape(wrong)))
    where = f"at {at}" if at else "it"
    return CaseVerdict(
        False,
        worst,
        f"{int(np.sum(wrong))} of {np.size(wrong)} wrong, first {where}: "
        f"{got[at]!s} instead of {wanted.v[at]!s} +- {limit[at]:.3g}",
        map=error_map(error, limit, wrong),
    )
