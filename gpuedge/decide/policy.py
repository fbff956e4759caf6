"""What the user wants of a decision, as a small checked value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from gpuedge.core.errors import ConfigError
from gpuedge.core.words import Arithmetic, StoragePrecision, Tuning, WhenToDecide

_CHOICES = {"storage": get_args(StoragePrecision), "arithmetic": get_args(Arithmetic),
            "decide": get_args(WhenToDecide), "tune": get_args(Tuning),
            "allow_software": (True, False), "monitor": (True, False),
            "rewrites": (True, False)}  # fmt: skip
_NUMBERS: dict[str, tuple[type[float], float, float]] = {
    "min_speedup": (float, 1, 1000), "percentile": (int, 1, 99), "crosscheck": (float, 0, 1),
    "watchdog_s": (float, 0.001, 86400), "deadline_s": (float, 1e-6, 3600),
    "max_memory_bytes": (int, 1, 2**63 - 1), "max_shapes": (int, 1, 4096),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """When a GPU is worth using. The CPU is taken unless a GPU meets all of this.

    Parameters
    ----------
    min_speedup : float
        How many times faster than the CPU path a GPU must be expected to be; 1 to 1000, kept to
        three decimals.
    percentile : int
        Which percentile of latency `deadline_s` is held against, 1 to 99.
    allow_software : bool
        Whether ``auto`` may consider software rasterisers, which are CPUs in disguise.
    decide : {"service", "load"}
        When ``auto`` decides. ``service``: the CPU answers from the first request, and a GPU is
        opened and compared in the background once that is expected to pay. ``load``: GPUs are
        opened and compared before the first request, which waits for that.
    storage : {"float32", "float16", "fixed16"}
        How a GPU keeps tensors. ``float32``: exactly, in whatever the device has for that.
        ``float16`` and ``fixed16`` (16-bit steps of each tensor's own range) take less memory and
        time where the device offers them, and give up exactness (docs/numerics.md); where it does
        not, tensors are kept exactly.
    arithmetic : {"float32", "float16"}
        What a GPU computes in. ``float16``: elementwise operators, and the products of convolutions
        and matrix products, are computed in float16 where the device offers it (Vulkan, WebGPU);
        sums over more than four products, softmax, normalisations, reductions and models with
        integer operators stay as they are (docs/numerics.md has the error). A device that was named
        and lacks it is an error; under ``auto`` it computes in float32, and `explain()` says so.
    calibration : sequence of mappings, optional
        Inputs of the model that stand for what it will see, each a mapping from name to array. For
        ``fixed16``, which takes the ranges of tensors from them; by default from the first inputs.
        It takes no part in comparisons and is not recorded.
    crosscheck : float
        Share of a session's inferences on a GPU, 0 to 1, that are computed on the CPU as well and
        compared (docs/failures.md); the first one is among them. 0 compares none.
    watchdog_s : float, optional
        Seconds that a run on a device may take, 0.001 to 86400, before the device counts as hung.
        By default ten times as long as its slowest runs so far, or as a first run is predicted to
        take, and at least 2 s; longer while it shows signs of life (docs/failures.md).
    deadline_s : float, optional
        Seconds that every inference has at the percentile, 0.000001 to 3600. Devices that miss it
        are out; where all miss it, the fastest is taken.
    max_memory_bytes : int, optional
        Most device memory that the model may take on a GPU; at least 1.
    monitor : bool
        Whether a session goes on comparing its devices while it serves, and changes over if
        another one has become faster.
    rewrites : bool
        Whether a model is rewritten before it runs: constants folded, operators joined in one
        kernel, views read in place, layouts kept from one operator to the next. False computes
        operator by operator, as the model has them: slower, and the same within the error bounds
        (docs/numerics.md), so that one can tell whether a rewrite is to blame.
    tune : {"off", "fast", "full"}
        Whether kernels are chosen by what was measured on the very device, where something was
        (docs/decision.md), and what is measured when a session is made for it. ``off``:
        nothing is, and nothing that is known is used. ``fast``: the most expensive kernels, for 2 s
        at most. ``full``: all, which takes minutes; `gpuedge tune --full` does it ahead. No request
        ever waits for that. Other variants have the same error bounds, and may have other last
        bits.
    max_shapes : int
        Sets of input shapes, 1 to 4096, for which a session keeps a model compiled whose shapes are
        open; the one used least recently is dropped. Each has its own weights and scratch memory
        on a GPU, and decides for itself under ``auto``. It takes no part in comparisons and is not
        recorded.

    Raises
    ------
    ConfigError (GE-101)
        A field is out of range or of the wrong type; the message names it.
    """

    min_speedup: float = 1.1
    percentile: int = 90
    allow_software: bool = False
    decide: WhenToDecide = "service"
    storage: StoragePrecision = "float32"
    arithmetic: Arithmetic = "float32"
    calibration: Sequence[Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    crosscheck: float = 1 / 256
    watchdog_s: float | None = None
    deadline_s: float | None = None
    max_memory_bytes: int | None = None
    monitor: bool = True
    rewrites: bool = True
    tune: Tuning = "off"
    max_shapes: int = field(default=8, compare=False)

    def __post_init__(self) -> None:
        for name, (kind, low, high) in _NUMBERS.items():
            value = getattr(self, name)
            is_optional = self.__dataclass_fields__[name].default is None
            if value is None and is_optional:
                continue
            is_number = isinstance(value, (int, kind)) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                what = "a number" if kind is float else "a whole number"
                end = " or None" if is_optional else ""
                raise _refused(name, value, f"{what} from {low} to {high}{end}")
            object.__setattr__(self, name, kind(value))
        object.__setattr__(self, "min_speedup", round(self.min_speedup, 3))
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if type(value) is not type(known[0]) or value not in known:
                raise _refused(name, value, f"one of {', '.join(map(str, known))}")
        if self.calibration is not None:
            object.__setattr__(self, "calibration", _feeds(self.calibration))

    @property
    def speedup_milli(self) -> int:
        """`min_speedup` in thousandths."""
        return round(self.min_speedup * 1000)

    @property
    def deadline_ns(self) -> int | None:
        """`deadline_s` in whole nanoseconds."""
        return None if self.deadline_s is None else round(self.deadline_s * 10**9)


def _feeds(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the inputs of calibration; what they hold is checked against the model later."""
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not is_list or not len(value) or not all(isinstance(feed, Mapping) for feed in value):
        raise ConfigError(
            f"Policy.calibration cannot be this {type(value).__name__}.",
            asked_by="Policy(calibration=...)",
            known="calibration must be a list of dicts, each with every input of the model by name",
            hint="the default is None: the first inputs calibrate",
        )
    return tuple(dict(feed) for feed in value)


def _refused(name: str, value: object, allowed: str) -> ConfigError:
    try:
        shown = repr(value)
    except ValueError:  # a number of thousands of digits
        shown = f"this {type(value).__name__}"
    return ConfigError(
        f"Policy.{name} cannot be {shown}.",
        asked_by=f"Policy({name}=...)",
        known=f"{name} must be {allowed}",
        hint=f"the default is {Policy.__dataclass_fields__[name].default!r}",
    )
