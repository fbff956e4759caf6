"""One call of the public API with everything it takes to judge the answer.

A case is built from its name: the name's hash seeds all of its numbers, so it is the same on every
machine and in every run. `Spec` is the name and how to build it; `Case` is what was built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from gpuedge.conformance.storing import KEEPERS, Keeper
from gpuedge.opset.bounds import Array, Num

Call = Callable[[Any], Array]
"""Runs the operation on the device it is given."""


@dataclass(frozen=True)
class Case:
    """Operands and expectation of one call.

    Attributes
    ----------
    call : callable
        Takes what ``device=`` takes, returns the result.
    reference : callable
        Takes the keeper of a storage kind, returns exact values with bounds.
    what : str
        For messages.
    dtype : str
        Dtype of the result.
    """

    call: Call
    reference: Callable[[Keeper], Num]
    what: str = ""
    dtype: str = "float32"

    def judge(self, device: Any, storage: str = "float32") -> Verdict:
        """Run on a device and compare with the reference."""
        got = self.call(device)
        keeper = KEEPERS[storage]
        return judge(got, keeper.kept(self.reference(keeper)), self.dtype)


class Geometry(Protocol):
    """The shape of a case: which operation, how large, with which attributes."""

    @property
    def op(self) -> str:
        """Name of the operation."""

    @property
    def text(self) -> str:
        """The shape as part of a name: lower-case letters, digits, ``.``, ``-`` and ``x``."""

    def case(self, rng: np.random.Generator, data: str, dtype: str) -> Case:
        """Return the case with numbers of a kind."""


@dataclass(frozen=True)
class Spec:
    """A named case.

    Attributes
    ----------
    geometry : Geometry
    dtype : str
        ``float32``, ``float16``, ``uint8`` or ``int8``.
    data : str
        Kind of numbers, see `gpuedge.conformance.data`.
    storage : str
        What tensors are kept in: ``float32`` (exact), ``float16`` or ``fixed16``.
    variant : str
        Id of the kernel variant that must serve it; empty for whichever is best.
    rivals : tuple of str
        Variants that are ruled out for this.
    is_large : bool
        Whether a small device may refuse it.
    """

    geometry: Geometry
    dtype: str = "float32"
    data: str = "normal"
    storage: str = "float32"
    variant: str = ""
    rivals: tuple[str, ...] = field(default=(), compare=False)
    is_large: bool = field(default=False, compare=False)

    @property
    def op(self) -> str:
        """Name of the operation."""
        return self.geometry.op

    @property
    def id(self) -> str:
        """The name, such as ``conv2d/float32/n1c7h11w13-m5k3x3/integers/float32``."""
        parts = [self.op, self.dtype, self.geometry.text, self.data, self.storage]
        return "/".join([*parts, self.variant] if self.variant else parts)

    def build(self) -> Case:
        """Return the case; the numbers follow from the operation, shape and kind alone."""
        base = "/".join([self.op, self.dtype, self.geometry.text, self.data])
        made = self.geometry.case(generator(base), self.data, self.dtype)
        return replace(made, dtype=self.dtype)


def digest(text: str) -> int:
    """Return a number that depends on a name only, the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def generator(name: str) -> np.random.Generator:
    """Return the random generator of a name."""
    return np.random.default_rng(digest(name))


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes
    ----------
    ok : bool
    worst : float or None
        Largest error in units of the bound, over the elements that have one; None where all are to
        be exact.
    message : str
        Where the first wrong element is; empty if there is none.
    """

    ok: bool
    worst: float | None = None
    message: str = ""


def judge(got: Any, wanted: Num, dtype: str = "float32") -> Verdict:
    """Compare a result with exact values: dtype, shape, and every element within its bound."""
    if not isinstance(got, np.ndarray) or got.dtype != dtype:
        what = f"dtype {got.dtype}" if isinstance(got, np.ndarray) else type(got).__name__
        return Verdict(False, message=f"{what} instead of an array of {dtype}")
    if got.shape != wanted.v.shape:
        return Verdict(False, message=f"shape {got.shape} instead of {wanted.v.shape}")
    limit = np.broadcast_to(wanted.e, wanted.v.shape)
    if got.dtype == np.float16:
        limit = limit + 2.0**-11 * np.abs(wanted.v) + 2.0**-25
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - wanted.v)
        wrong = ~(error <= limit)
    wrong &= ~(np.isnan(got) & np.isnan(wanted.v)) & (got != wanted.v)
    bounded = (limit > 0) & np.isfinite(error)
    worst = float((error[bounded] / limit[bounded]).max()) if bounded.any() else None
    if not np.any(wrong):
        return Verdict(True, worst)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), np.shape(wrong)))
    where = f"at {at}" if at else "it"
    return Verdict(
        False,
        worst,
        f"{int(np.sum(wrong))} of {np.size(wrong)} wrong, first {where}: "
        f"{got[at]!s} instead of {wanted.v[at]!s} +- {limit[at]:.3g}",
    )
