"""From a probe report to a decision: filter cheaply, calibrate only what is left, then decide.

Nothing is opened or measured unless a GPU survives the cheap filters, and no GPU is opened before
the CPU path has been measured (a GPU that warms up shares its power budget).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gpuedge.core.errors import GpuEdgeError, KernelError, ModelError
from gpuedge.core.reasons import SENTENCES, Reason
from gpuedge.decide.calibrate import Clock, open_and_calibrate
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.model import DeviceModel
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, BY_NAME, CPU, Evidence, Record
from gpuedge.decide.store import CalibrationStore, calibration_key

if TYPE_CHECKING:
    from gpuedge.executors.base import Executor, Work

CPU_SHARE = 0.4
"""Share of the budget the CPU may take; it has no driver to open and compiles faster."""

MIN_WINDOW_S = 0.1
"""Below this no device is opened and answers ten graphs; the first one gets at least this."""


class Row(Protocol):
    """What is needed of a row of a probe report (`gpuedge.probing.report.ProbeRow` has it)."""

    @property
    def device(self) -> str:
        """Device string, or the backend's name where no device was reached."""

    @property
    def status(self) -> str:
        """``ok`` or why not."""

    @property
    def code(self) -> str:
        """Reason code."""

    @property
    def reason(self) -> str:
        """One sentence."""

    @property
    def name(self) -> str:
        """What the driver calls the device."""

    @property
    def is_software(self) -> bool | None:
        """True for a software rasteriser."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Who the device says it is."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the driver's files change."""

    @property
    def physical(self) -> str:
        """The same text for all roads to one physical device."""


class Report(Protocol):
    """What is needed of a probe report."""

    @property
    def devices(self) -> Sequence[Row]:
        """Usable devices, best first."""

    @property
    def tried(self) -> Sequence[Row]:
        """Every candidate."""


WorkOf = Callable[[str], "Work"]
"""Counts the model's cost on a device; raises UnsupportedOpError or KernelLimitError if it cannot
run there. Must not open the device."""


def choose(
    graph_work: WorkOf,
    report: Report,
    policy: Policy,
    open_executor: Callable[[str], Executor],
    cpu: Executor,
    *,
    asked: str = AUTO,
    kernel_of: Callable[[str], str] | None = None,
    store: CalibrationStore | None = None,
    on_hang: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Decision:
    """Decide where a model runs.

    Parameters
    ----------
    graph_work : callable
        `WorkOf`: device string to `Work`; called with ``cpu`` too.
    report : Report
        What probing found.
    policy : Policy
    open_executor : callable
        Opens a device by its string. What it returns stays the caller's: nothing is closed here.
        It is called from a worker thread, within the budget; it must not hold, while it opens, a
        lock that the caller holds or will need.
    cpu : Executor
        The CPU path that would run the model.
    asked : str
        ``auto``, or a device string; naming a device opens and measures nothing here.
    kernel_of : callable, optional
        Device string to what computes there, with its version: part of the cache key.
    store : CalibrationStore, optional
        Where calibrations are kept, one per process; None keeps none.
    on_hang : callable, optional
        Called with the string of a device that did not come back in time. A thread is stuck in it
        for good: it must be forgotten, neither used nor closed.
    clock : callable
        Monotonic, in integer nanoseconds.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        The device asked for by name is not there or cannot be used.
    """
    found = _gather(report)
    if asked == AUTO:
        budget = _Budget(policy.calibration_s, clock)
        chooser = _Chooser(
            graph_work,
            policy,
            open_executor,
            cpu,
            store,
            kernel_of or (lambda _: ""),
            on_hang or (lambda _: None),
            budget,
        )
        candidates, calibration = chooser.predict(found)
    else:
        candidates = [e for e, _ in found] + [Evidence(CPU, is_software=False)]
        calibration = BY_NAME
    from gpuedge import __version__

    return decide(Record(asked, policy, tuple(candidates), __version__, calibration))


def _gather(report: Report) -> list[tuple[Evidence, Row]]:
    """Return usable devices, best first, then everything else that was tried."""
    usable = list(report.devices)
    rest = [r for r in report.tried if r.status != "ok"]
    return [(_evidence(r), r) for r in usable + rest if r.device != CPU]


def _evidence(row: Row) -> Evidence:
    code = "ok" if row.status == "ok" else row.code
    detail = "" if code == "ok" else row.reason
    if code not in SENTENCES or (code == "ok") != (row.status == "ok"):
        code = "open-failed"  # a report of another version: its sentence still says what happened
    return Evidence(row.device, code, detail, row.name, row.is_software, physical=row.physical)


class _Budget:
    """What is left of the time all calibrations share."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self.begin: int | None = None
        self.used: list[str] = []

    def left(self) -> float:
        if self.begin is None:
            self.begin = self.clock()
        return self.seconds - (self.clock() - self.begin) / 1e9

    def summary(self, cached: int) -> str:
        if not self.used:
            return "cached" if cached else "none"
        spent = self.seconds - self.left()
        text = f"measured {', '.join(self.used)} in {spent:.2f} s"
        return text + (", the rest cached" if cached else "")


@dataclass
class _Chooser:
    """Predicts for every GPU that survives the cheap filters, and for the CPU."""

    graph_work: WorkOf
    policy: Policy
    open_executor: Callable[[str], Executor]
    cpu: Executor
    store: CalibrationStore | None
    kernel_of: Callable[[str], str]
    on_hang: Callable[[str], None]
    budget: _Budget
    cached: int = 0

    def predict(self, found: Sequence[tuple[Evidence, Row]]) -> tuple[list[Evidence], str]:
        """Return the evidence with predictions, the CPU last, and how calibration went."""
        cpu = Evidence(CPU, is_software=False)
        looked = [(*self._filter(e), row) for e, row in found]
        if all(work is None for _, work, _ in looked):
            evidence = [e for e, _, _ in looked]
            return [*evidence, cpu], "not needed: no GPU came into question"
        cpu = self._predict_cpu(cpu)
        if cpu.prediction is None:
            why = f"the CPU path could not be predicted: {cpu.detail}"
            evidence = [
                replace(e, code="not-calibrated", detail=why) if work is not None else e
                for e, work, _ in looked
            ]
            return [*evidence, replace(cpu, code="ok", detail="")], why
        return [*self._predict_gpus(looked), cpu], self.budget.summary(self.cached)

    def _predict_gpus(self, looked: Sequence[tuple[Evidence, Work | None, Row]]) -> list[Evidence]:
        """Predict for the best road to each device that works, and for others already measured."""
        waiting = {e.physical or e.device for e, work, _ in looked if work is not None}
        served: dict[str, str] = {}
        evidence = []
        for e, work, row in looked:
            name = e.physical or e.device
            if work is None:
                evidence.append(e)
            elif name in served:
                evidence.append(self._with_cached(e, work, row, served[name]))
            else:
                share = max(self.budget.left() / max(len(waiting), 1), MIN_WINDOW_S)
                opener = partial(self.open_executor, e.device)
                evidence.append(self._with_model(e, work, row, share, opener))
                if evidence[-1].prediction is not None:
                    served[name] = e.device
                    waiting.discard(name)
        return evidence

    def _with_cached(self, e: Evidence, work: Work, row: Row, better: str) -> Evidence:
        """Add the prediction of a road that an earlier choice measured; nothing is opened."""
        key = calibration_key(e.device, _facts(row), self.kernel_of(e.device))
        model = self.store.get(key) if self.store is not None else None
        if model is None:
            detail = f"{SENTENCES['other-road']}, {better}"
            return replace(e, code="other-road", detail=detail)
        self.cached += 1
        return replace(e, prediction=model.predict(work, self.policy.percentile), source="cached")

    def _filter(self, e: Evidence) -> tuple[Evidence, Work | None]:
        """Return the evidence and the work, or what speaks against the device and None."""
        if e.code != "ok" or (e.is_software and not self.policy.allow_software):
            return e, None
        try:
            return e, self.graph_work(e.device)
        except (KernelError, ModelError) as error:
            return replace(e, code="unsupported-op", detail=_sentence(error)), None
        except GpuEdgeError as error:
            return replace(e, code="not-calibrated", detail=_sentence(error)), None

    def _predict_cpu(self, cpu: Evidence) -> Evidence:
        try:
            work = self.graph_work(CPU)
        except GpuEdgeError as error:
            return replace(cpu, code="not-calibrated", detail=_sentence(error))
        share = self.policy.calibration_s * CPU_SHARE
        return self._with_model(cpu, work, None, share, lambda: self.cpu)

    def _with_model(
        self, e: Evidence, work: Work, row: Row | None, share: float, opener: Callable[[], Executor]
    ) -> Evidence:
        """Add the prediction of a cached or freshly calibrated model, or the reason for none."""
        key = calibration_key(e.device, _facts(row), self.kernel_of(e.device))
        model = self.store.get(key) if self.store is not None else None
        source = "cached"
        if model is not None:
            self.cached += 1
        else:
            answer = self._calibrate(e.device, key, share, opener)
            if isinstance(answer, Reason):
                return replace(e, code=answer.code, detail=answer.sentence)
            model, source = answer, "measured"
        prediction = model.predict(work, self.policy.percentile)
        return replace(e, prediction=prediction, source=source)

    def _calibrate(
        self, device: str, key: str, share: float, opener: Callable[[], Executor]
    ) -> DeviceModel | Reason:
        share = min(share, self.budget.left())
        before = self.store.failure(key, share) if self.store is not None else None
        if before is not None:
            return before
        if share < MIN_WINDOW_S:
            return Reason("not-calibrated", f"no time left of {self.policy.calibration_s:g} s")
        self.budget.used.append(device)
        answer = open_and_calibrate(opener, share, clock=self.budget.clock)
        if isinstance(answer, DeviceModel):
            if self.store is not None:
                self.store.put(key, answer)
            return answer
        if self.store is not None:
            self.store.fail(key, answer, share)
        if answer.code == "deadline":
            self.on_hang(device)
        return answer


def _facts(row: Row | None) -> dict[str, Any]:
    """Return what identifies a device and its driver; the CPU has no row."""
    if row is None:
        return {}
    return {"identity": dict(row.identity), "fingerprint": row.fingerprint}


def _sentence(error: GpuEdgeError) -> str:
    return " ".join(error.what.split()).rstrip(".")
