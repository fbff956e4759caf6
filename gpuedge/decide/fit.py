"""From timed runs to a device model: arithmetic only, one term at a time, no solver.

Each case was chosen so that one unknown dominates it and everything else it contains is already
known when its turn comes. A difference of two noisy times can come out as zero or below; then the
term is taken to be `FLOOR` of the whole time, which understates the device and never yields an
infinite rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gpuedge.decide.model import Z90, DeviceModel

if TYPE_CHECKING:
    from gpuedge.executors.base import Work

FLOOR = 0.05
"""Least share of a measured time that the term it was made for is given. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What timing one case gave: integer nanoseconds, warm runs only in `runs_ns`."""

    case: str
    work: Work
    compile_ns: int
    first_ns: int
    runs_ns: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Median of the warm runs."""
        return median(self.runs_ns) / 1e9

    @property
    def startup_per_pass_s(self) -> float:
        """Compiling, and what the first run took beyond a warm one (drivers compile late)."""
        late = max(self.first_ns / 1e9 - self.seconds, 0.0)
        return (self.compile_ns / 1e9 + late) / max(self.work.launches, 1)

    @property
    def spread(self) -> float:
        """p90/p50 of a log-normal with the quartiles of the warm runs, at least 1.

        The quartiles and not the 90th percentile: of a handful of runs that is the one that was
        interrupted. 1.349 is the distance of the quartiles of the standard normal distribution.
        """
        ratio = quantile(self.runs_ns, 75) / max(quantile(self.runs_ns, 25), 1.0)
        return float(max(ratio, 1.0) ** (Z90 / 1.349))


def quantile(values: Sequence[int], percent: int) -> float:
    """Return a quantile by linear interpolation between order statistics (Hyndman-Fan type 7)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def fit(device: str, samples: Sequence[Sample], open_s: float, complete: bool) -> DeviceModel:
    """Fit a device model.

    Parameters
    ----------
    device : str
    samples : sequence of Sample
        At least the cases ``tiny`` and ``conv-small``.
    open_s : float
        What opening the device took.
    complete : bool
        Whether every case was timed.
    """
    return _Fit({s.case: s for s in samples}).model(device, open_s, complete)


_RATES = {"conv": ("conv", "conv-small"), "matmul": ("matmul",), "map": ("map",)}
"""Cases that show the rate of a class, best first; a later one only bounds it from below."""

_SPREADS = {
    "fixed": ("tiny",), "conv": ("conv", "conv-small"), "matmul": ("matmul",),
    "map": ("resident", "copy-small"),
}  # fmt: skip
"""Cases that show the spread of a class, best first."""


def expected_s(work: Work, samples: Sequence[Sample]) -> float:
    """Return how long a first run of `work` may take, from what was timed so far; 0 if unknown.

    For each kind of unit (operations of products, of other kernels, bytes) the sample that spent
    least on one is scaled up, as if it had done nothing else. Small graphs use a device worse than
    large ones, so this errs on the long side.
    """
    tiny = next((s.seconds for s in samples if s.case == "tiny"), 0.0)

    def scaled(units: Callable[[Work], float]) -> float:
        costs = [
            max(s.seconds - tiny, FLOOR * s.seconds) / units(s.work)
            for s in samples
            if s.case != "tiny" and units(s.work) > 0
        ]
        return units(work) * min(costs, default=0.0)

    return tiny + scaled(_products) + max(scaled(_gathers), scaled(_traffic))


def _products(work: Work) -> float:
    return work.flops.get("conv", 0.0) + work.flops.get("matmul", 0.0)


def _gathers(work: Work) -> float:
    return work.flops.get("map", 0.0)


def _traffic(work: Work) -> float:
    return work.bytes_moved + work.bytes_in + work.bytes_out


class _Fit:
    """The terms found so far, in seconds per unit; None where its case is missing."""

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        self.samples = samples
        self.launch, self.overhead = self._fixed_costs()
        self.memory = self._memory()
        self.inward = self._inward()
        self.outward = self._outward()

    def _fixed_costs(self) -> tuple[float, float]:
        tiny = self.samples["tiny"]
        launches = max(tiny.work.launches, 1)
        whole = tiny.seconds / launches
        chain = self.samples.get("chain")
        if chain is None or chain.work.launches <= launches:
            per_launch = min(whole, self._most_per_launch(tiny, launches))
        else:
            per_launch = (chain.seconds - tiny.seconds) / (chain.work.launches - launches)
            per_launch = min(max(per_launch, 0.0), whole)
        return per_launch, tiny.seconds - per_launch * launches

    def _most_per_launch(self, tiny: Sample, launches: int) -> float:
        """Bound a launch from above by graphs with more of them, as if they did nothing else."""
        return min(
            (
                max(s.seconds - tiny.seconds, 0.0) / (s.work.launches - launches)
                for s in self.samples.values()
                if s.work.launches > launches
            ),
            default=tiny.seconds,
        )

    def _fixed(self, work: Work) -> float:
        return self.overhead + self.launch * work.launches

    def _rest(self, sample: Sample, known: float) -> float:
        return max(sample.seconds - known, FLOOR * sample.seconds, 1e-9)

    def _memory(self) -> float | None:
        sample = self.samples.get("resident")
        if sample is None or sample.work.bytes_moved <= 0:
            return self._any_byte()
        return self._rest(sample, self._fixed(sample.work)) / sample.work.bytes_moved

    def _any_byte(self) -> float | None:
        """Return what a byte costs where only a copy was timed, wherever it comes from or goes."""
        sample = self.samples.get("copy") or self.samples.get("copy-small")
        if sample is None:
            return None
        work = sample.work
        moved = work.bytes_moved + work.bytes_in + work.bytes_out
        return self._rest(sample, self._fixed(work)) / moved if moved > 0 else None

    def _inside(self, work: Work) -> float:
        return work.bytes_moved * (self.memory or 0.0)

    def _inward(self) -> float | None:
        sample = self.samples.get("inward")
        if sample is None or sample.work.bytes_in <= 0:
            return self._any_byte()
        known = self._fixed(sample.work) + self._inside(sample.work)
        return self._rest(sample, known) / sample.work.bytes_in

    def _outward(self) -> float | None:
        sample = self.samples.get("copy")
        if sample is None or sample.work.bytes_out <= 0:
            return self._any_byte()
        work, whole = sample.work, sample.seconds
        constant = self._fixed(work)
        small = self.samples.get("copy-small")
        if small is not None and small.work.bytes_out < work.bytes_out:
            # The slope between two sizes needs no constant from another graph.
            slope = (whole - small.seconds) / (work.bytes_out - small.work.bytes_out)
            if slope > 0:
                constant = max(whole - slope * work.bytes_out, 0.0)
        known = constant + self._inside(work) + work.bytes_in * (self.inward or 0.0)
        return self._rest(sample, known) / work.bytes_out

    def _rates(self) -> dict[str, float]:
        rates: dict[str, float] = {}
        for kind, names in _RATES.items():
            name = next((n for n in names if n in self.samples), "")
            sample = self.samples.get(name)
            flops = sample.work.flops.get(kind, 0.0) if sample is not None else 0.0
            if sample is not None and flops > 0:
                crossing = sample.work.bytes_in * (self.inward or 0.0)
                crossing += sample.work.bytes_out * (self.outward or 0.0)
                rates[kind] = flops / self._rest(sample, self._fixed(sample.work) + crossing)
        return rates

    def model(self, device: str, open_s: float, complete: bool) -> DeviceModel:
        starts = [s.startup_per_pass_s for s in self.samples.values()]
        spreads = {
            kind: next((self.samples[n].spread for n in names if n in self.samples), None)
            for kind, names in _SPREADS.items()
        }
        return DeviceModel(
            device=device,
            launch_s=self.launch,
            overhead_s=self.overhead,
            transfer_in_bps=_rate(self.inward),
            transfer_out_bps=_rate(self.outward),
            bandwidth_bps=_rate(self.memory),
            flops_per_s=self._rates(),
            spread={kind: ratio for kind, ratio in spreads.items() if ratio is not None},
            open_s=open_s,
            compile_s_per_pass=median(starts),
            complete=complete,
        )


def _rate(seconds_per_byte: float | None) -> float | None:
    return None if seconds_per_byte is None else 1.0 / seconds_per_byte
