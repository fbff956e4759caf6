"""Running the probes that entries demand on an open device, as far as there is time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from gpuedge.capdb.restrict import with_storages
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    KernelLimitError,
    UnsupportedOpError,
)
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.probing import demanded, kat
from gpuedge.probing.device import Announcing, Steps, poisoned_run
from gpuedge.probing.faults import reason_of
from gpuedge.probing.quirks import CLEARED, CUT, FAILED

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.capdb.entries import Demand
    from gpuedge.executors.gpu import GpuExecutable
    from gpuedge.kernels.plan import Plan

ORDER: Final = ("standard", "kernels", "half", "storages", "large", "repeat")
"""Tests in the order they are run."""

MOST_ELEMENTS: Final = 1 << 22
"""Elements of the outputs of all runs of one case: small kernels are run as often as an entry says,
large ones a few times."""


class Asked:
    """The demanded probes of one device.

    Parameters
    ----------
    device : Announcing
    demands : sequence of Demand
    announce : Steps
    ends : float
        When they must be over, on the clock of `time.monotonic`.

    Attributes
    ----------
    checks : list of dict
        What was run, for the evidence: case, test, kernel variants, runs, largest error.
    """

    def __init__(
        self, device: Announcing, demands: Sequence[Demand], announce: Steps, ends: float
    ) -> None:
        self.checks: list[dict[str, Any]] = []
        self._device = device
        self._demands = demands
        self._announce = announce
        self._ends = ends
        self._executors: dict[str, GpuExecutor] = {}
        self._came: dict[str, tuple[str, str]] = {}
        self._passed: dict[tuple[str, ...], int] = {}

    def run(self) -> None:
        """Run every test that is asked for, once for all entries that ask for it."""
        wanted = {test for demand in self._demands for test in demand.tests}
        for test in ORDER:
            if test in wanted:
                runs = max(d.runs for d in self._demands if test in d.tests)
                self._came[test] = self._tried(test, runs)
                if self._came[test][0] == "lost":
                    break

    def outcomes(self) -> dict[str, str]:
        """Return what came of each entry's probe."""
        return {demand.entry: self._outcome(demand)[0] for demand in self._demands}

    def details(self) -> dict[str, str]:
        """Return why probes did not pass, by entry."""
        return {demand.entry: self._outcome(demand)[1] for demand in self._demands}

    def _outcome(self, demand: Demand) -> tuple[str, str]:
        lost = next((why for out, why in self._came.values() if out == "lost"), "")
        found = [self._came.get(test, (FAILED, lost)) for test in demand.tests]
        for word, outcome in (("lost", FAILED), (FAILED, FAILED), (CUT, CUT)):
            for out, why in found:
                if out == word:
                    return outcome, why
        return CLEARED, ""

    def _tried(self, test: str, runs: int) -> tuple[str, str]:
        """Run a test; return its outcome (``lost`` where the device is gone) and why."""
        try:
            cases = demanded.cases(test, self._device.caps)
            together = test == "repeat"  # each kernel after every other one
            groups = [cases] if together else [[c] for c in cases if self._is_new(c, runs)]
            for group in groups:
                outcome, why = self._group(test, group, runs)
                if outcome != CLEARED:
                    return outcome, why
        except Exception as error:
            lost = isinstance(error, (DeviceLostError, DeviceTimeoutError))
            reason = reason_of(error, "kernel-failed")
            return ("lost" if lost else FAILED), f"{test}: {reason.sentence}"
        return CLEARED, ""

    def _group(self, test: str, cases: list[kat.Case], runs: int) -> tuple[str, str]:
        trials = []
        try:
            for case in cases:
                if self._is_over:
                    break
                made = self._compiled(case)
                if made is not None:
                    trials.append(Trial(test, case, made))
                    self.checks.append(trials[-1].check)
            for number in range(runs):
                for trial in trials:
                    if self._is_over:
                        break
                    if number < trial.most:
                        finding = trial.run(self._announce)
                        if finding is not None:
                            return FAILED, f"{test}: {finding}"
        finally:
            for trial in trials:
                trial.executable.close()
        if self._is_over and not _are_done(trials, cases, runs):
            return CUT, f"{test}: time was over after {_counted(trials)}"
        self._passed |= {self._key(trial.case): runs for trial in trials}
        return CLEARED, ""

    def _key(self, case: kat.Case) -> tuple[str, ...]:
        return case.name, case.keeping.kind, case.storage or self._device.caps.storages[0]

    def _is_new(self, case: kat.Case, runs: int) -> bool:
        """Say whether a case was not yet run so often for another test."""
        return self._passed.get(self._key(case), 0) < runs

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def _compiled(self, case: kat.Case) -> GpuExecutable | None:
        """Return the case built; None where the device does not offer what it takes."""
        self._announce("build")
        try:
            return self._executor(case.storage).compile(case.graph, case.keeping)
        except (KernelLimitError, UnsupportedOpError):  # so it is for the product, too
            return None

    def _executor(self, storage: str) -> GpuExecutor:
        if storage not in self._executors:
            device, caps = self._device, self._device.caps
            if storage and storage != caps.storages[0]:
                kinds = (storage, *(kind for kind in caps.storages if kind != storage))
                device = device.with_caps(with_storages(caps, kinds))
            self._executors[storage] = GpuExecutor(cast("DeviceImpl", device), "probe")
        return self._executors[storage]


class Trial:
    """One case on one executable, run again and again.

    Attributes
    ----------
    check : dict
        The evidence.
    most : int
        Runs that are worth their time.
    """

    def __init__(self, test: str, case: kat.Case, executable: GpuExecutable) -> None:
        storage = ", ".join(sorted({t.storage.kind for t in executable.plan.tensors.values()}))
        self.case = case
        self.executable = executable
        self.most = max(2, MOST_ELEMENTS // max(1, case.expected.size))
        self.check: dict[str, Any] = {
            "name": case.name, "test": test, "storage": storage,
            "kernels": variants(executable.plan), "runs": 0, "seconds": 0.0,
        }  # fmt: skip
        self._first = b""

    def run(self, announce: Steps) -> str | None:
        """Run it once more; return what is wrong, None if nothing is."""
        start = time.monotonic()
        array = poisoned_run(self.executable, self.case, announce)
        self.check["runs"] += 1
        self.check["seconds"] = round(self.check["seconds"] + time.monotonic() - start, 6)
        data = array.tobytes()
        if data == self._first:
            return None
        is_first, self._first = not self._first, self._first or data
        finding, evidence = kat.judge_runs(self.case, [array])
        self.check |= {**evidence, "runs": self.check["runs"]}
        if finding is not None:
            return f"{finding.code}, {finding.detail}"
        return None if is_first else f"unstable-numbers, {self.case.name}"


def variants(plan: Plan) -> list[str]:
    """Return the kernel variants of a plan."""
    return sorted({one.variant for one in plan.passes})


def _are_done(trials: Sequence[Trial], cases: Sequence[kat.Case], runs: int) -> bool:
    done = all(trial.check["runs"] >= min(runs, trial.most) for trial in trials)
    return done and len(trials) == len(cases)


def _counted(trials: Iterable[Trial]) -> str:
    counts = [f"{trial.check['runs']} runs of {trial.case.name}" for trial in trials]
    return ", ".join(counts[:3]) or "no run"
