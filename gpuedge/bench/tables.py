"""Results as tables, for terminals and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuedge.bench.estimates import Quantile, Ratio
from gpuedge.bench.results import BenchResult, ratio
from gpuedge.core.text import Table, duration

NOT_AVAILABLE = "not available"

MARKS = "~: the interval holds 1; ?: too few rounds or runs for an interval"

COLD_COLUMNS = ("subject", "start", "compile", "first run", "operations", "bytes", "memory",
                "error", "power and energy")  # fmt: skip


def result_tables(results: Sequence[BenchResult]) -> Iterator[Table]:
    """Yield a table of warm latencies for each case, and one of the rest."""
    columns = ("subject", "p50", "p90", "p99", "runs/s", "ratio to the first", "device")
    for case in dict.fromkeys(result.case for result in results):
        members = [result for result in results if result.case == case]
        first = members[0]
        rows = []
        for one in members:
            if not one.blocks:
                rows.append((one.subject, *[None] * 5, one.failed))
                continue
            is_same = one is first or not first.blocks
            against = "1" if is_same else shown_ratio(ratio(first, one))
            rows.append((one.subject, *map(shown_quantile, one.latency().values()),
                         f"{one.throughput:.4g}", against, f"{one.device} {one.version}"
                         ))  # fmt: skip
        yield Table(f"{case}: warm runs, with 95 % intervals", columns, rows)
        cold = [_cold(one) for one in members if one.cold]
        title = f"{case}: cold, medians of {len(members[0].cold)} starts; and what it costs"
        yield Table(title, COLD_COLUMNS, cold)


def _error(result: BenchResult) -> str:
    if result.accuracy is None:
        return NOT_AVAILABLE
    relative = result.accuracy.relative
    size = "not finite" if relative is None else f"{relative:.1e}"
    return f"{size} ({result.accuracy.reference})"


def _cold(result: BenchResult) -> tuple[str, ...]:
    work, times = result.work, [shown_quantile(found) for found in result.starts().values()]
    costs = [NOT_AVAILABLE] * 2 if work is None else [
        f"{work[name]:.4g}" for name in ("flops", "bytes_moved")]  # fmt: skip
    peak = NOT_AVAILABLE if result.peak_bytes is None else f"{result.peak_bytes / 2**20:.0f} MiB"
    power = ", ".join(f"{p['watts']:.1f} W, {p['joules_per_run']:.3g} J a run ({p['meter']})"
                      for p in result.power or ())  # fmt: skip
    return (result.subject, *times, *costs, peak, _error(result),
            power or NOT_AVAILABLE)  # fmt: skip


def shown_quantile(found: Quantile) -> str:
    """Return a time with its interval, as ``1.2 [1.1, 1.4] ms``; ? is a bound without samples."""
    unit = duration(found.value).partition(" ")[2]
    size = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    value, *bounds = (
        "?" if ns is None else f"{ns / size:.3g}" if ns < 1000 * size else f"{ns / size:.0f}"
        for ns in (found.value, found.low, found.high)
    )
    return f"{value} [{', '.join(bounds)}] {unit}"


def shown_ratio(found: Ratio) -> str:
    """Return a ratio with its interval, marked as `MARKS` says."""
    if found.low == 0:  # too few rounds bound neither side
        return f"? {found.value:.3f}x [?, ?]"
    mark = "" if found.is_different else "~ "
    return f"{mark}{found.value:.3f}x [{found.low:.3f}, {found.high:.3f}]"
