"""Running the tests that entries of the capability database require, as far as there is time.

All cases take turns: each is run once, then each a second time, and so on. So a fault that is
always there shows at once, each kernel runs after every other one, and where time is short every
case has had about as many runs. A few runs of every case are essential: they clear a device of an
entry that asks for more, and may take time that further runs may not.
"""

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
from gpuedge.probing import kat
from gpuedge.probing.device import Announcing, Steps, poisoned_run, times
from gpuedge.probing.faults import reason_of
from gpuedge.probing.quirks import CLEARED, CUT, FAILED

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.capdb.entries import Demand
    from gpuedge.executors.gpu import GpuExecutable
    from gpuedge.plan.plan import Plan

ORDER: Final = ("standard", "kernels", "half", "storages", "large", "repeat")
"""Tests in the order they are run."""

ESSENTIAL: Final = 4
"""Runs of each case, all of them right and alike, that clear a device where time is short, however
many an entry asks for. They are twice as many as every device must pass."""


class RequiredTests:
    """The tests that entries require of one open device.

    Parameters
    ----------
    device : Announcing
    demands : sequence of Demand
        The entries, each with its tests and how often they are to be run.
    announce : Steps
    ends, most : float
        When the essential runs must be over, and when further ones, on the clock of
        `time.monotonic`.

    Attributes
    ----------
    outcomes : dict
        By entry, what came of it, and why it did not pass or how far it came.
    checks : list of dict
        What was run, for the evidence: case, tests, kernel variants, runs, largest error.
    """

    def __init__(
        self,
        device: Announcing,
        demands: Sequence[Demand],
        announce: Steps,
        ends: float,
        most: float,
    ) -> None:
        self.outcomes: dict[str, tuple[str, str]] = {}
        self._device = device
        self._demands = demands
        self._announce = announce
        self._ends, self._most = ends, most
        self._executors: dict[str, GpuExecutor] = {}
        self._failed: dict[str, str] = {}
        self._lost = ""
        self._longest = 0.0
        self._cases = self._listed()

    @property
    def is_partial(self) -> bool:
        """True if an entry was cleared by fewer runs than it asks for."""
        return any(outcome == CLEARED and why for outcome, why in self.outcomes.values())

    @property
    def checks(self) -> list[dict[str, Any]]:
        """What was run."""
        return [case.check for case in self._cases if "name" in case.check]

    def run(self) -> None:
        """Run every case that is asked for, once for all entries and tests that ask for it."""
        try:
            for number in range(max((case.goal for case in self._cases), default=0)):
                for case in self._cases:
                    if case.goal <= number or case.tests <= self._failed.keys():
                        continue
                    if not self._has_time(number) or self._lost:
                        return
                    start = time.monotonic()
                    self._try(case)
                    self._longest = max(self._longest, time.monotonic() - start)
        finally:
            for case in self._cases:
                case.close()
            self.outcomes = {demand.entry: self._outcome(demand) for demand in self._demands}

    def _has_time(self, number: int) -> bool:
        ends = self._ends if number < ESSENTIAL else self._most
        return time.monotonic() + self._longest < ends

    def _outcome(self, demand: Demand) -> tuple[str, str]:
        for test in ORDER:
            if test in demand.tests and test in self._failed:
                return FAILED, self._failed[test]
        if self._lost:
            return FAILED, self._lost
        asked = [case for case in self._cases if not case.tests.isdisjoint(demand.tests)]
        short = [case for case in asked if case.lacks(min(demand.runs, ESSENTIAL))]
        if short:
            counts = [f"{case.runs} runs of {case.case.name}" for case in short]
            more = f" and {len(counts) - 3} more" if len(counts) > 3 else ""
            return (
                CUT,
                f"{_first(short[0].tests)}: time was over after {', '.join(counts[:3])}{more}",
            )
        fewest = min((case.runs for case in asked if case.lacks(demand.runs)), default=None)
        return CLEARED, "" if fewest is None else f"passed with {fewest} of {demand.runs} runs"

    def _listed(self) -> list[RequiredCase]:
        """Gather the cases; one that several tests have is run for all of them."""
        known: dict[tuple[str, ...], RequiredCase] = {}
        first = self._device.caps.storages[0]
        for test in ORDER:
            runs = max((d.runs for d in self._demands if test in d.tests), default=0)
            if not runs:
                continue
            try:
                cases = kat.cases(self._device.caps, test)
            except Exception as error:
                self._failed[test] = f"{test}: {reason_of(error, 'kernel-failed').sentence}"
                continue
            for case in cases:
                key = (case.name, case.keeping.kind, case.storage or first)
                known.setdefault(key, RequiredCase(case)).ask(test, runs)
        return list(known.values())

    def _try(self, case: RequiredCase) -> None:
        """Run a case once more; what is wrong fails every test that it is part of."""
        try:
            if case.executable is None:
                self._announce("build")
                case.built(self._compiled(case.case))
            why = case.run(self._announce)
        except Exception as error:
            why = reason_of(error, "kernel-failed").sentence
            if isinstance(error, (DeviceLostError, DeviceTimeoutError)):
                self._lost = f"{_first(case.tests)}: {why}"
        if why is not None:
            self._failed |= {test: f"{test}: {why}" for test in case.tests}
            case.close()

    def _compiled(self, case: kat.Case) -> GpuExecutable | None:
        """Return the case built; None where the device does not offer what it takes."""
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


class RequiredCase:
    """One case, run again and again.

    Attributes
    ----------
    case : Case
    tests : set of str
        Tests that it is part of.
    goal : int
        Runs that are to be made; 0 where the device does not offer what it takes.
    executable : GpuExecutable or None
        What it is run on.
    check : dict
        The evidence.
    """

    def __init__(self, case: kat.Case) -> None:
        self.case = case
        self.tests: set[str] = set()
        self.goal = 0
        self.executable: GpuExecutable | None = None
        self.check: dict[str, Any] = {"runs": 0}
        self._first = b""

    @property
    def runs(self) -> int:
        """Runs so far."""
        return int(self.check["runs"])

    def ask(self, test: str, runs: int) -> None:
        """Note that a test asks for so many runs."""
        self.tests.add(test)
        self.goal = max(self.goal, times(self.case, runs))

    def lacks(self, runs: int) -> bool:
        """Say whether so many runs, or as many as are worth their time, were not made."""
        return self.runs < min(self.goal, times(self.case, runs))

    def built(self, executable: GpuExecutable | None) -> None:
        """Take what the case is run on; None where there is nothing to run it on."""
        self.executable = executable
        if executable is None:
            self.goal = 0
            return
        kinds = sorted({t.storage.kind for t in executable.plan.tensors.values()})
        self.check |= {
            "name": self.case.name,
            "test": ", ".join(test for test in ORDER if test in self.tests),
            "storage": ", ".join(kinds), "kernels": variants(executable.plan), "seconds": 0.0,
        }  # fmt: skip

    def close(self) -> None:
        """Let go of what it was run on."""
        if self.executable is not None:
            self.executable.close()
            self.executable = None

    def run(self, announce: Steps) -> str | None:
        """Run it once more; return what is wrong, None if nothing is."""
        if self.executable is None:
            return None
        start = time.monotonic()
        array = poisoned_run(self.executable, self.case, announce)
        self.check["runs"] += 1
        self.check["seconds"] = round(self.check["seconds"] + time.monotonic() - start, 6)
        data = array.tobytes()
        if data == self._first:
            return None
        is_first, self._first = not self._first, self._first or data
        finding, evidence = kat.judge_runs(self.case, [array])
        self.check |= {**evidence, "runs": self.runs}
        if finding is not None:
            return f"{finding.code}, {finding.detail}"
        return None if is_first else f"unstable-numbers, {self.case.name}"


def variants(plan: Plan) -> list[str]:
    """Return the kernel variants of a plan."""
    return sorted({one.variant for one in plan.passes})


def _first(tests: Iterable[str]) -> str:
    return min(tests, key=ORDER.index)
