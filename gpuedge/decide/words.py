"""Small pieces of sentences about times, ratios and losses; pure text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuedge.core import text
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.policy import Policy

if TYPE_CHECKING:
    from gpuedge.decide.assess import Assessment

NINE_OF_TEN = 1.6448536269514722
"""Half the width, in standard deviations, of the interval that holds nine cases of ten."""


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


def times(ratio: float) -> str:
    """Return a ratio as text with two significant digits: ``2.9x``, ``0.042x``, ``340x``."""
    if ratio >= 100:
        return f"{float(f'{ratio:.2g}'):.0f}x" if ratio < 1e6 else "over 1000000x"
    return f"{ratio:.2g}x" if ratio >= 0.001 else "under 0.001x"


def percent(ppm: int) -> str:
    """Return millionths as a percentage: ``0.35 %``, ``12 %``."""
    value = ppm / 10_000
    if value >= 10_000:
        return "over 10000 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def size(nbytes: int) -> str:
    """Return bytes as text: ``512 KiB``, ``1.5 GiB``."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one:
            return f"{nbytes / one:.4g} {unit}"
    return f"{nbytes} B"


def windows(weighed: Assessment, served: int) -> str:
    """Return what a belief rests on: ``prior only``, ``1 window``, ``in service`` ..."""
    if served:
        return "in service"
    if weighed.belief.visits:
        return text.counted(weighed.belief.visits, "window")
    return (
        "screened" if not weighed.verdict.use_gpu and weighed.verdict.is_settled else "prior only"
    )


def startup(weighed: Assessment) -> str:
    """Return how much start-up is spread over how many inferences."""
    spread = text.counted(weighed.stakes.inferences, "inference")
    return f"{duration(weighed.stakes.startup_ns)} of start-up spread over {spread}"


def interval(weighed: Assessment) -> str:
    """Return the range of speedups that holds nine cases of ten."""
    low, high = weighed.speedup(-NINE_OF_TEN), weighed.speedup(NINE_OF_TEN)
    return f"{times(low)} to {times(high)} in 9 of 10 cases"


def speedup(weighed: Assessment, policy: Policy, cpu_at_ns: int) -> str:
    """Say how much faster a GPU is, as far as is known."""
    known = f"p{policy.percentile}, {duration(weighed.at_ns)} against {duration(cpu_at_ns)}"
    if weighed.belief.visits:
        return (
            f"measured {times(weighed.speedup())} as fast as the CPU path at {known} "
            f"({interval(weighed)}), with {startup(weighed)}"
        )
    ratio = 1 / max(1 / max(weighed.speedup(), 1e-9) + weighed.stakes.share, 1e-9)
    return f"predicted {times(ratio)} as fast as the CPU path at {known}, with {startup(weighed)}"


def comparison(weighed: Assessment, policy: Policy, cpu_at_ns: int) -> str:
    """Say why a GPU is not worth it."""
    how = "measured" if weighed.belief.visits else "predicted"
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
    """Say that a device saves no energy."""
    return f"{mine_uj / 1000:.3g} mJ for an inference, against {host_uj / 1000:.3g} mJ on the CPU"


def kept(device: str, saved_ppm: int) -> str:
    """Say why the choice of an earlier launch stands."""
    return (
        f"an earlier launch chose {device}, and changing is expected to save only "
        f"{percent(max(saved_ppm, 0))}"
    )
