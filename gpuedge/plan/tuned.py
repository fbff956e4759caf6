"""What was measured of kernels on one device: what a choice of variants goes by before its class.

It is plain data, made by `gpuedge.runtime.tuner` and kept by `gpuedge.runtime.tunings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from gpuedge.core.kernel import Extents
from gpuedge.core.text import plain
from gpuedge.plan.library import HALF, variants

Effort = Literal["none", "fast", "full"]

BEGUN = "begun and not ended: a driver may have ended the process"
"""Why a variant is left out while it is compiled and run first: of all kernels of the device."""

Nanoseconds = Annotated[int, range(10**18 + 1)]


def _known(variant: str) -> str:
    if variant.removesuffix(HALF) not in {v.id for v in variants()}:
        raise ValueError(f"no variant is called {plain(repr(variant), 60)}")
    return variant


def one_line(text: str) -> str:
    """Return a text if it is one line that prints, for a record. Raises ValueError."""
    if plain(text, None) != text:
        raise ValueError("it is not one line of text that prints")
    return text


VariantId = Annotated[str, _known]
Why = Annotated[str, range(401), one_line]


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """What was found for one choice.

    Attributes
    ----------
    variant, usual : str
        What is to be used, and what the device's class would have used.
    ns, usual_ns : int, unit: nanoseconds
        What they took (medians of runs in turn); 0 where they were not timed.
    effort : {"none", "fast", "full"}
        How it was looked for. ``none``: there was no time left, or it was begun and not ended.
    left_out : mapping of str to str
        Variants that are not to be used, unless all are left out, and why.
    """

    variant: VariantId
    usual: VariantId
    ns: Nanoseconds = 0
    usual_ns: Nanoseconds = 0
    effort: Effort = "none"
    left_out: Mapping[VariantId, Why] = field(default_factory=dict)

    @property
    def is_other(self) -> bool:
        """Whether something else is used than the device's class would use."""
        return self.variant != self.usual

    @property
    def is_wrong(self) -> bool:
        """Whether no variant was right, so that the usual one is used all the same."""
        return self.effort != "none" and self.variant in self.left_out

    @property
    def gain(self) -> float:
        """How many times as fast as the usual one it is; 1.0 where that is not known."""
        return self.usual_ns / self.ns if self.ns and self.usual_ns else 1.0

    def after(self, old: TunedKernel | None, tried: Collection[str] = ()) -> TunedKernel:
        """Return what is known with an older record: the result of more effort, else the newer one.

        What either leaves out stays so, but for what the older one does and was `tried` anew; a
        result that is left out by now gives way to any other.
        """
        if old is None:
            return self
        efforts = get_args(Effort)
        is_less = efforts.index(self.effort) < efforts.index(old.effort)
        still = {variant: why for variant, why in old.left_out.items() if variant not in tried}
        left_out = {**still, **self.left_out}
        is_void = self.effort != "none" and old.variant in left_out
        return replace(old if is_less and not is_void else self, left_out=left_out)


Tunings = Mapping[str, TunedKernel]
"""What was found, by the keys of choices (`key_of`)."""

UNTUNED: Tunings = MappingProxyType({})


def begun(tuned: Tunings) -> dict[str, str]:
    """Return the variants that were begun and not ended, of whatever kernel, and why not to use."""
    return {
        variant: why for kernel in tuned.values() for variant, why in kernel.left_out.items()
        if why == BEGUN
    }  # fmt: skip


def key_of(
    op: str,
    facts: Mapping[str, int],
    out: Extents,
    parts: tuple[int, int] = (1, 1),
    *,
    is_half: bool = False,
    storage: str = "",
) -> str:
    """Return the key of a choice: all that the speed of its variants depends on.

    `storage` is how tensors are kept, where that is not the device's exact way. The rest is as for
    `gpuedge.plan.select.consider`. How many tensors an epilogue binds is no part of it.
    """
    known = {**facts, "half": int(is_half), "parts_x": parts[0], "parts_z": parts[1]}
    words = (f"{name}={value}" for name, value in sorted(known.items()) if name != "bindings")
    return " ".join((op, "x".join(map(str, out)), *words, *([storage] if storage else [])))


def label_of(key: str) -> str:
    """Return what a key is shown as: its operation, and its output in texels."""
    return " ".join(key.split(" ")[:2])
