"""The cost model: what one device needs for a piece of work, and how sure we are.

The time of one inference is modelled as

    overhead + launches * launch + bytes_in / rate_in + bytes_out / rate_out
             + max(bytes_moved / bandwidth, sum over classes of flops / rate of the class)

The maximum is the roofline bound (Williams, Waterman, Patterson: "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009), taken over the whole segment and
not kernel by kernel, because `Work` does not say which kernel moves which bytes. That can
underestimate a mixed graph by a factor of two at most, which is inside the error claimed below.

Noise is taken as log-normal and shared: a slow moment makes every part slow at once, so the
percentile of the sum is the sum of the percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpuedge.decide.exact import ln, quantile

if TYPE_CHECKING:  # executors.base pulls numpy in; a cached decision must not need it
    from gpuedge.executors.base import Work

CLASSES = ("conv", "matmul", "map")
"""Kernel classes whose arithmetic rate is measured; other classes are taken as the slowest."""

NAMES = {"conv": "convolutions", "matmul": "matrix products", "map": "other operators"}
"""What they are called in sentences."""

MIN_ERROR = 2.0
"""Least model error ever claimed: a factor, as one standard deviation of ln(latency). A model that
claims less than it should (1.2 where the truth is 4) screens itself out of being corrected;
claiming 2 where 1.2 is true costs little."""

ERROR = max(3.0, MIN_ERROR)
"""Error claimed by this version: nothing yet compares predictions with runs of the model itself."""

PARTIAL_ERROR = 4.0
"""Error claimed where calibration was cut short: rates are bounds then, or those of others."""

SIGMA_MICRO = round(ln(ERROR) * 10**6)
"""`ERROR` as a standard deviation of ln(latency), in millionths."""

MOST_NS = 10**18
"""Thirty years; a time beyond it is a mistake of a plug-in, and larger ones would not be exact."""

MIN_SPREAD = 1.31
"""Least p90/p50 believed: exp(1.2816 * 0.21). Throttling and background load outlast a window of
2 s, so its own spread says too little; 0.21 is the standard deviation of ln(latency) left over in
a simulated study of phones (log-normal noise with coefficient of variation 0.95)."""

MOST_S, MOST_RATE, MOST_SPREAD = 1e9, 1e21, 1e6
"""What a calibration may say at most: seconds, bytes or operations per second, and p90/p50. A file
that says more was not written by a measurement, and sums of it would not be finite."""

Z90 = 1.2815515655446004
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted latency of one inference in whole nanoseconds (so that a record replays exactly).

    `at_ns` is at the percentile that was asked for; `low_ns` to `high_ns` is the claimed interval
    of the median (one standard deviation); `startup_ns` is what opening and compiling cost once.
    `p99_ns` is None where nothing is known of it. `sigma_micro` is the claimed error of the
    logarithm of the latency, one standard deviation in millionths.
    """

    p50_ns: int
    p90_ns: int
    at_ns: int
    low_ns: int
    high_ns: int
    startup_ns: int
    confidence: str
    p99_ns: int | None = None
    sigma_micro: int = SIGMA_MICRO

    def __post_init__(self) -> None:
        for name in ("p50_ns", "p90_ns", "at_ns", "low_ns", "high_ns", "startup_ns", "p99_ns"):
            value: Any = getattr(self, name)
            if value is None and name == "p99_ns":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_NS:
                raise ValueError(f"Prediction.{name} must be a whole number of nanoseconds")
        if type(self.sigma_micro) is not int or not 0 <= self.sigma_micro <= 10**7:
            raise ValueError("Prediction.sigma_micro must be a whole number from 0 to 10000000")
        if not isinstance(self.confidence, str):
            raise ValueError("Prediction.confidence must be text")
        object.__setattr__(self, "confidence", printable(self.confidence))

    @property
    def p50_s(self) -> float:
        """Median in seconds."""
        return self.p50_ns / 1e9

    @property
    def p90_s(self) -> float:
        """90th percentile in seconds."""
        return self.p90_ns / 1e9

    @property
    def startup_s(self) -> float:
        """Seconds that opening the device and compiling take once."""
        return self.startup_ns / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Prediction:
        """Rebuild from `to_dict`. Raises TypeError or ValueError if it does not fit."""
        return cls(**record)


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Calibrated speeds of one device, as its executor delivers them.

    Seconds, bytes per second and operations per second. `flops_per_s` and `spread` (p90/p50) are
    by kernel class; `spread` also has ``fixed`` for launches, overhead and transfers. A rate is
    None, and a class is absent, where calibration did not get that far.
    """

    device: str
    launch_s: float
    overhead_s: float
    transfer_in_bps: float | None = None
    transfer_out_bps: float | None = None
    bandwidth_bps: float | None = None
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    open_s: float = 0.0
    compile_s_per_pass: float = 0.0
    complete: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.device, str) or not isinstance(self.complete, bool):
            raise TypeError("DeviceModel.device must be text, and complete true or false")
        for name in ("launch_s", "overhead_s", "open_s", "compile_s_per_pass"):
            _check(name, getattr(self, name), 0.0, MOST_S)
        for name in ("transfer_in_bps", "transfer_out_bps", "bandwidth_bps"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), 1e-9, MOST_RATE)
        for kind, rate in self.flops_per_s.items():
            _check(f"flops_per_s[{kind}]", rate, 1e-9, MOST_RATE)
        for kind, ratio in self.spread.items():
            _check(f"spread[{kind}]", ratio, 1.0, MOST_SPREAD)

    def scaled(self, factor: float) -> DeviceModel:
        """Return the model of a device that is `factor` times as fast in every respect."""
        times = ("launch_s", "overhead_s", "open_s", "compile_s_per_pass")
        rates = ("transfer_in_bps", "transfer_out_bps", "bandwidth_bps")
        changes: dict[str, Any] = {n: getattr(self, n) / factor for n in times}
        for name in rates:
            rate = getattr(self, name)
            changes[name] = None if rate is None else rate * factor
        changes["flops_per_s"] = {k: v * factor for k, v in self.flops_per_s.items()}
        return replace(self, **changes)

    def predict(self, work: Work, percentile: int = 90) -> Prediction:
        """Predict one inference of `work` on this device.

        Parameters
        ----------
        work : Work
            What the segment costs on this executor.
        percentile : int
            1 to 99; which percentile `Prediction.at_ns` is.
        """
        parts, assumed = self._parts(work)
        p50 = sum(seconds for seconds, _ in parts)
        p90 = sum(seconds * spread for seconds, spread in parts)

        def at(percent: int) -> int:
            power = quantile(percent / 100) / Z90
            return _ns(sum(seconds * spread**power for seconds, spread in parts))

        error = PARTIAL_ERROR if assumed or not self.complete else ERROR
        text = (
            "predicted from calibration, not measured with this model: expected to be off by less "
            f"than a factor of {error:g} in two cases of three"
        )
        if assumed:
            text += f" (not timed: {', '.join(assumed)}; estimated from what was)"
        elif not self.complete:
            text += " (calibration was cut short)"
        return Prediction(
            p50_ns=_ns(p50),
            p90_ns=_ns(p90),
            at_ns=at(percentile),
            low_ns=_ns(p50 / error),
            high_ns=_ns(p50 * error),
            startup_ns=_ns(self.open_s + self.compile_s_per_pass * work.launches),
            confidence=text,
            p99_ns=at(99),
            sigma_micro=round(ln(error) * 10**6),
        )

    def _parts(self, work: Work) -> tuple[list[tuple[float, float]], list[str]]:
        """Return (median seconds, p90/p50) of each part, and what had to be assumed."""
        assumed: list[str] = []
        fixed = self.overhead_s + self.launch_s * work.launches
        for name, nbytes, rate in (
            ("host to device", work.bytes_in, self.transfer_in_bps),
            ("device to host", work.bytes_out, self.transfer_out_bps),
        ):
            fixed += self._transfer(name, nbytes, rate, assumed)
        memory = self._transfer("memory bandwidth", work.bytes_moved, self.bandwidth_bps, assumed)
        compute = [
            (flops / self._rate(kind, assumed), self._spread(kind))
            for kind, flops in sorted(work.flops.items())
            if flops > 0
        ]
        parts = [(fixed, self._spread("fixed"))]
        if memory >= sum(seconds for seconds, _ in compute):
            parts.append((memory, self._spread("map")))
        else:
            parts.extend(compute)
        return parts, assumed

    def _transfer(self, name: str, nbytes: float, rate: float | None, assumed: list[str]) -> float:
        if nbytes <= 0:
            return 0.0
        if rate is None:
            assumed.append(name)
            known = (self.transfer_in_bps, self.transfer_out_bps, self.bandwidth_bps)
            rate = min((r for r in known if r is not None), default=None)
        return nbytes / rate if rate is not None else 0.0

    def _rate(self, kind: str, assumed: list[str]) -> float:
        rate = self.flops_per_s.get(kind)
        if rate is None:
            assumed.append(NAMES.get(kind, kind))
            rate = self._likely_rate(kind)
        return rate

    def _likely_rate(self, kind: str) -> float:
        """Return a rate for a class that was not timed.

        Convolutions and products do the same arithmetic. Kernels that gather are no slower than
        memory lets one operation on eight bytes be, and no faster than convolutions: the geometric
        mean of the two bounds is as far from either.
        """
        products = [self.flops_per_s[k] for k in ("conv", "matmul") if k in self.flops_per_s]
        if not products:
            return min(self.flops_per_s.values(), default=math.inf)
        if kind in ("conv", "matmul") or self.bandwidth_bps is None:
            return min(products)
        return math.sqrt(min(products) * self.bandwidth_bps / 8)

    def _spread(self, kind: str) -> float:
        known = self.spread.get(kind)
        return max(MIN_SPREAD, known if known is not None else max(self.spread.values(), default=1))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        record["flops_per_s"] = dict(self.flops_per_s)
        record["spread"] = dict(self.spread)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DeviceModel:
        """Rebuild from `to_dict`. Raises TypeError, ValueError or AttributeError if it misfits."""
        return cls(**record)


def printable(text: str) -> str:
    """Return text without control characters: it reaches terminals and one-line records."""
    return "".join(c if c.isprintable() else " " for c in text)


def _check(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"DeviceModel.{name} must be a number, not {value!r}")
    if not least <= value <= most:  # a comparison never overflows, and refuses what is no number
        raise ValueError(f"DeviceModel.{name} must be from {least:g} to {most:g}")


def _ns(seconds: float) -> int:
    return min(round(seconds * 1e9), MOST_NS)
