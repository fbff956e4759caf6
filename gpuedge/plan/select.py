"""Choose a kernel variant: a pure function of operation, shape, caps and restrictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from gpuedge.core.caps import Caps
from gpuedge.core.errors import KernelLimitError
from gpuedge.core.kernel import Extents
from gpuedge.plan.library import Variant, variants
from gpuedge.plan.tuned import TunedKernel

EXTENTS_BYTES, PARAM_BYTES = 16, 4
"""What a tensor's extents and a parameter take of `Caps.max_push_bytes`."""

ONE: Extents = (1, 1, 1, 1)

BEATEN = "another variant scores higher here"
SLOWER = "another variant was measured to be faster here"
INEXACT = "the usual variant is exact for whole numbers, and this one is not"


@dataclass(frozen=True, slots=True)
class Considered:
    """One variant that was looked at; `why_not` is empty for the chosen one."""

    variant: Variant
    score: float
    why_not: str

    @property
    def fits(self) -> bool:
        """Whether it could be used, though perhaps another one is."""
        return self.why_not in ("", BEATEN, SLOWER)


def consider(
    op: str,
    facts: Mapping[str, int],
    caps: Caps,
    restricted: Collection[str] = (),
    *,
    is_half: bool = False,
    out: Extents = ONE,
    parts: tuple[int, int] = (1, 1),
    tuned: TunedKernel | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Considered, ...]:
    """Return all variants of `op`, best first, each with the reason it is not used.

    Parameters
    ----------
    op : str
        Operation name as in ``variants.toml``.
    facts : mapping of str to int
        Facts of the shape, such as ``width`` or ``depth``.
    caps : Caps
        The device, after restrictions.
    restricted : collection of str
        Variant ids that a failure in use has ruled out, besides those of `Caps.ruled_out`.
    is_half : bool
        Whether the kernel is to compute in float16.
    out : Extents
        Extents of the output, in texels: its workgroups must not be more than the device allows.
    parts : pair of int
        Those of `Variant.grid`.
    tuned : TunedKernel, optional
        What was measured: its variant is the best where it fits and is as exact as the usual one.
    left_out : mapping of str to str
        Variants that measuring ruled out besides those that `tuned` does, and why. Where that is
        all that fit, they are used.
    """
    mine = [v for v in variants() if v.op == op]
    if is_half:
        mine = [v.in_half() for v in mine if not v.transforms]
    scores = [(v.score.get(caps.device_class, v.score["any"]), v) for v in mine]
    scores.sort(key=lambda pair: -pair[0])
    whys = {
        v.id: _why_not(v, facts, caps, restricted) or too_many(v, out, parts, caps)
        for _, v in scores
    }
    fitting = [v for _, v in scores if not whys[v.id]]
    if fitting and fitting[0].is_exact:
        whys |= {v.id: INEXACT for v in fitting if not v.is_exact}
    offered = [v.id for v in fitting if not whys[v.id]]
    left_out = {**left_out, **(tuned.left_out if tuned else {})}
    if not all(variant in left_out for variant in offered):
        whys |= {v: f"left out on this device: {left_out[v]}" for v in offered if v in left_out}
    best, found = tuned.variant if tuned else "", ""
    rows = list[Considered]()
    for score, variant in sorted(scores, key=lambda pair: pair[1].id != best):
        why = whys[variant.id]
        if not why and found:
            why = SLOWER if found == best else BEATEN
        found = found or ("" if why else variant.id)
        rows.append(Considered(variant, score, why))
    return tuple(rows)


def select(
    op: str,
    facts: Mapping[str, int],
    caps: Caps,
    restricted: Collection[str] = (),
    *,
    is_half: bool = False,
    out: Extents = ONE,
    parts: tuple[int, int] = (1, 1),
) -> Variant:
    """Return the best variant that fits, as `taken` does."""
    return taken(op, consider(op, facts, caps, restricted, is_half=is_half, out=out, parts=parts))


def taken(op: str, rows: tuple[Considered, ...]) -> Variant:
    """Return the best variant that fits.

    Raises
    ------
    KernelLimitError (GE-303)
        None fits; the message lists why.
    """
    for row in rows:
        if not row.why_not:
            return row.variant
    raise KernelLimitError(
        f"No kernel for '{op}' fits this device.",
        known="; ".join(f"{r.variant.id}: {r.why_not}" for r in rows) or "no variant exists",
    )


def _why_not(
    variant: Variant, facts: Mapping[str, int], caps: Caps, restricted: Collection[str]
) -> str:
    if variant.id in restricted or variant.id in caps.ruled_out:
        return "ruled out on this device"
    if lacking := lacks(variant, caps):
        return lacking
    for name, (low, high) in variant.when.items():
        if not low <= facts[name] <= high:
            return f"for {name} from {low} to {high}, here {facts[name]}"
    return _too_large(variant, caps) or _pushes_too_much(variant, facts, caps)


def lacks(variant: Variant, caps: Caps) -> str:
    """Say what a device lacks for a variant, whatever the shape; empty if it lacks nothing."""
    if variant.form not in caps.forms:
        return f"the {caps.level} level has no {variant.form} kernels"
    for name, least in variant.needs.items():
        has = getattr(caps, name)
        if has is None or has < least:
            return f"needs {name} >= {least}, the device has {has}"
    lanes = prod(variant.local)
    if variant.has_lanes and caps.subgroup_lanes != lanes:
        return f"needs subgroup_lanes == {lanes}, the device has {caps.subgroup_lanes}"
    return ""


def too_many(variant: Variant, out: Extents, parts: tuple[int, int], caps: Caps) -> str:
    """Say that an output takes more workgroups than a device allows; empty if it does not."""
    if variant.form != "group":
        return ""  # the workgroups of map kernels are fitted to the output
    grid = variant.grid(out, parts)
    groups = groups_of(grid, workgroup(variant, grid, caps))
    if all(count <= most for count, most in zip(groups, caps.max_groups, strict=True)):
        return ""
    return f"needs {groups} workgroups, the device allows {list(caps.max_groups)}"


def workgroup(variant: Variant, grid: tuple[int, int, int], caps: Caps) -> tuple[int, int, int]:
    """Return the workgroup of a kernel: wider along a flat grid that takes too many of its own.

    Invocations of flat tiles have nothing to do with each other, so any number may be a group,
    unless it must be a subgroup.
    """
    x, y, z = variant.local
    most = min(caps.max_local_size[0], caps.max_invocations // (y * z))
    may_grow = variant.is_flat and not (variant.has_lanes or variant.run)
    while may_grow and -(-grid[0] // x) > caps.max_groups[0] and 2 * x <= most:
        x *= 2
    return x, y, z


def groups_of(grid: tuple[int, int, int], local: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return how many workgroups cover a grid of invocations along each axis."""
    x, y, z = (-(-size // of) for size, of in zip(grid, local, strict=True))
    return x, y, z


def _pushes_too_much(variant: Variant, facts: Mapping[str, int], caps: Caps) -> str:
    needed = EXTENTS_BYTES * facts.get("bindings", 0) + PARAM_BYTES * variant.params
    if needed <= caps.max_push_bytes:
        return ""
    return f"needs {needed} bytes of extents and parameters, the device has {caps.max_push_bytes}"


def _too_large(variant: Variant, caps: Caps) -> str:
    size = prod(variant.local)
    if size > caps.max_invocations:
        return f"workgroups of {size} exceed the device's {caps.max_invocations}"
    sides = zip(variant.local, caps.max_local_size, strict=True)
    if variant.form == "group" and any(side > most for side, most in sides):
        return f"workgroups of {variant.local} exceed the device's {caps.max_local_size}"
    return ""  # the workgroups of map kernels are fitted to the device
