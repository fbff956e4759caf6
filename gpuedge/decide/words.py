"""Small pieces of sentences about times, ratios and losses; pure text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuedge.core import text
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.policy import Policy

if TYPE_CHECKING:
    from gpuedge.decide.assess import Assessment

NINE_OF_TEN = 1.6448536269514722
"""Half the width, in standard deviations, of the interval that holds nine cases of ten."""

TIMED = "this model was timed on the CPU path"
"""What is said of the CPU path's figures where they are measured and not predicted."""

SLOW = 0.5
"""Ratio of speeds below which is said how many times slower a device is."""


def duration(ns: int) -> str:
    """Return nanoseconds as text with three significant digits: ``850 ns``, ``1.25 ms``, ``2 s``.

    >>> duration(1_250_000), duration(999_999), duration(61_000_000_000)
    ('1.25 ms', '1 ms', '61 s')
    """
    for unit, size in (("ns", 1), ("us", 10**3), ("ms", 10**6), ("s", 10**9)):
        value = float(f"{ns / size:.3g}")
        if value < 1000 or unit == "s":
            break
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def sentence(code: str, detail: str = "") -> str:
    """Return a code's sentence, or the more specific `detail` where there is one."""
    return detail.rstrip(". ") or SENTENCES[code]


def number(value: float) -> str:
    """Return a number with two significant digits: ``2.9``, ``0.042``, ``340``.

    >>> number(2.94), number(0.0421), number(344.0), number(3e7)
    ('2.9', '0.042', '340', 'over 1000000')
    """
    if value >= 100:
        return f"{float(f'{value:.2g}'):.0f}" if value < 1e6 else "over 1000000"
    return f"{value:.2g}" if value >= 0.001 else "under 0.001"


def times(ratio: float) -> str:
    """Return a ratio as text with two significant digits: ``2.9x``, ``0.042x``, ``340x``."""
    return f"{number(ratio)}x"


def pace(ratio: float) -> str:
    """Say how fast a device is, by the ratio of its speed to that of the CPU path.

    >>> print(pace(2.34), "/", pace(0.002))
    2.3x as fast as the CPU path / about 500 times slower than the CPU path
    """
    if ratio >= SLOW:
        return f"{times(ratio)} as fast as the CPU path"
    slower = 1 / max(ratio, 1e-9)
    about = "" if slower >= 1e6 else "about "
    return f"{about}{number(slower)} times slower than the CPU path"


def percent(ppm: int) -> str:
    """Return millionths as a percentage: ``0.35 %``, ``12 %``."""
    value = ppm / 10_000
    if 0 < value < 0.01:
        return "under 0.01 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def size(nbytes: int) -> str:
    """Return bytes as text: ``512 KiB``, ``1.5 GiB``."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one:
            return f"{nbytes / one:.4g} {unit}"
    return f"{nbytes} B"


def conditions(now: Mapping[str, Any]) -> str:
    """Return what the machine is like (`Conditions.to_dict`), as far as is known; may be empty."""
    load, power = now.get("load_milli"), now.get("power_mw")
    battery, percent_left = now.get("is_on_battery"), now.get("battery_percent")
    thermal = now.get("thermal")
    known = [
        None if load is None else f"load {load / 10:.3g} %",
        None if battery is None else "on battery" if battery else "on mains",
        None if percent_left is None else f"battery at {percent_left} %",
        None if thermal is None else f"thermal state {thermal}",
        None if power is None else f"draws {power / 1000:.3g} W",
    ]
    return ", ".join(part for part in known if part is not None)


def database(label: str) -> str:
    """Return the label of a capability database: ``version 1 (ae70a3920baf)``.

    >>> database("1 ae70a3920baf0000"), database("12 (embedded)"), database("unknown")
    ('version 1 (ae70a3920baf)', 'version 12 (embedded)', 'unknown')
    """
    version, _, digest = label.partition(" ")
    if not version.isdigit():
        return label
    shown = digest if digest.startswith("(") else f"({digest.rstrip('.')[:12]})"
    return f"version {version} {shown}" if digest else f"version {version}"


def windows(weighed: Assessment, served: int) -> str:
    """Return the label of what a belief rests on: ``prior only``, ``1 window``, ``in service``."""
    if served:
        return "in service"
    if weighed.belief.windows:
        return text.counted(weighed.belief.windows, "window")
    return (
        "screened" if not weighed.verdict.use_gpu and weighed.verdict.is_settled else "prior only"
    )


def rests_on(label: str, served: int) -> str:
    """Say what such a label means."""
    if served:
        return f"measured in service, {text.counted(served, 'request')}"
    if label in ("screened", "prior only"):
        return "by prediction alone"
    return f"measured with this model, {label}"


def startup(weighed: Assessment) -> str:
    """Return how much start-up is spread over how many inferences."""
    spread = text.counted(weighed.stakes.inferences, "inference")
    return f"{duration(weighed.stakes.startup_ns)} of start-up spread over {spread}"


def interval(weighed: Assessment) -> str:
    """Return the range of speedups that holds nine cases of ten, in the form that `pace` takes."""
    low, high = weighed.speedup(-NINE_OF_TEN), weighed.speedup(NINE_OF_TEN)
    if weighed.speedup() >= SLOW:
        return f"{times(low)} to {times(high)} in 9 of 10 cases"
    slowest = f"{number(1 / max(low, 1e-9))} times"
    if high < 1:
        return f"{number(1 / max(high, 1e-9))} to {slowest} in 9 of 10 cases"
    return f"{slowest} slower to {times(high)} as fast in 9 of 10 cases"


def speedup(weighed: Assessment, policy: Policy, cpu_at_ns: int) -> str:
    """Say how much faster a GPU is, as far as is known."""
    known = f"p{policy.percentile}, {duration(weighed.at_ns)} against {duration(cpu_at_ns)}"
    if weighed.belief.windows:
        return (
            f"measured {pace(weighed.speedup())} at {known} "
            f"({interval(weighed)}), with {startup(weighed)}"
        )
    ratio = 1 / max(1 / max(weighed.speedup(), 1e-9) + weighed.stakes.share, 1e-9)
    return f"predicted {pace(ratio)} at {known}, with {startup(weighed)}"


def comparison(weighed: Assessment, policy: Policy, cpu_at_ns: int) -> str:
    """Say why a GPU is not worth it."""
    how = "measured" if weighed.belief.windows else "predicted"
    rule = f"{policy.min_speedup:g}x as fast is asked for"
    if 1 / weighed.speedup() < 1000 / policy.speedup_milli - weighed.stakes.share:
        rule += f", and that is not sure enough here ({interval(weighed)})"
    return (
        f"{how} {duration(weighed.at_ns)} at p{policy.percentile} with {startup(weighed)}, "
        f"against {duration(cpu_at_ns)} on the CPU path; {rule}"
    )


def unsure(weighed: Assessment) -> str:
    """Say that a GPU is expected to pay but may as well do harm."""
    return (
        f"expected to pay, but more than a tenth slower than the CPU path with a probability of "
        f"{percent(weighed.verdict.harm_ppm)}; at most {percent(weighed.rule.alpha_ppm)} is allowed"
    )


def deadline(at_ns: int | None, deadline_ns: int) -> str:
    """Say that a device is too slow for the deadline."""
    if at_ns is None:
        return sentence("misses-deadline")
    return f"needs {duration(at_ns)}, and the deadline is {duration(deadline_ns)}"


def memory(needs: int, bound: int) -> str:
    """Say that a model does not fit the bound."""
    return f"the model takes {size(needs)} of device memory; at most {size(bound)} is allowed"


def energy(mine_uj: int, host_uj: int) -> str:
    """Say what an inference takes of energy."""
    return f"{mine_uj / 1000:.3g} mJ for an inference, against {host_uj / 1000:.3g} mJ on the CPU"


def kept(device: str, saved_ppm: int) -> str:
    """Say why the choice of an earlier launch stands."""
    return (
        f"an earlier launch chose {device}, and changing is expected to save only "
        f"{percent(max(saved_ppm, 0))} of the CPU path's time"
    )
