"""Running the probes that entries demand on an open device, as far as there is time.

All cases of all tests take turns: each is run once, then each a second time, and so on. So a fault
that is always there shows at once, each kernel runs after every other one, and where time is short
every case has had about as many runs. A few runs of every case are essential: they clear a device
of an entry that asks for more, and may take time that further runs may not.
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
from gpuedge.probing import demanded, kat
from gpuedge.probing.device import Announcing, Steps, poisoned_run, times
from gpuedge.probing.faults import reason_of
from gpuedge.probing.quirks import CLEARED, CUT, FAILED

if TYPE_CHECKING:
    from gpuedge.backends.base import DeviceImpl
    from gpuedge.capdb.entries import Demand
    from gpuedge.executors.gpu import GpuExecutable
    from gpuedge.kernels.plan import Plan

ORDER: Final = ("standard", "kernels", "half", "storages", "large", "repeat")
"""Tests in the order they are run."""

ESSENTIAL: Final = 4
"""Runs of each case, all of them right and alike, that clear a device where time is short, however
many an entry asks for. They are twice as many as every device must pass."""

HEAVY: Final = 1 << 20
"""Elements of an output from which on a case does not take turns: it is run to its end and let go,
so that few large tensors exist at a time."""


class Asked:
    """The demanded probes of one device.

    Parameters
    ----------
    device : Announcing
    demands : sequence of Demand
    announce : Steps
    ends, most : float
        When the essential runs must be over, and when further ones, on the clock of
        `time.monotonic`.

    Attributes
    ----------
    checks : list of dict
        What was run, for the evidence: case, tests, kernel variants, runs, largest error.
    """

    def __init__(
        self,
        device: Announcing,
        demands: Sequence[Demand],
        announce: Steps,
        ends: float,
        most: float | None = None,
    ) -> None:
        self.checks: list[dict[str, Any]] = []
        self._device = device
        self._demands = demands
        self._announce = announce
        self._ends = ends
        self._most = ends if most is None else most
        self._executors: dict[str, GpuExecutor] = {}
        self._trials: list[Trial] = []
        self._failed: dict[str, str] = {}
        self._lost = ""
        self._is_over = False
        self._longest = 0.0

    def run(self) -> None:
        """Run every case that is asked for, once for all entries and tests that ask for it."""
        try:
            self._list()
            number = 0
            while any(trial.is_wanted(number) for trial in self._trials):
                for trial in self._trials:
                    self._turn(trial, number)
                    if self._is_over or self._lost:
                        return
                number += 1
        finally:
            for trial in self._trials:
                trial.close()

    @property
    def is_partial(self) -> bool:
        """True if an entry was cleared by fewer runs than it asks for."""
        found = [self._outcome(demand) for demand in self._demands]
        return any(outcome == CLEARED and detail for outcome, detail in found)

    def outcomes(self) -> dict[str, str]:
        """Return what came of each entry's probe."""
        return {demand.entry: self._outcome(demand)[0] for demand in self._demands}

    def details(self) -> dict[str, str]:
        """Return why probes did not pass, or how far they came, by entry."""
        return {demand.entry: self._outcome(demand)[1] for demand in self._demands}

    def _outcome(self, demand: Demand) -> tuple[str, str]:
        for test in ORDER:
            if test in demand.tests and test in self._failed:
                return FAILED, self._failed[test]
        if self._lost:
            return FAILED, self._lost
        trials = [t for t in self._trials if not t.tests.isdisjoint(demand.tests)]
        short = [t for t in trials if t.lacks(min(demand.runs, ESSENTIAL))]
        if short:
            return CUT, f"{_first(short[0].tests)}: time was over after {_counted(short)}"
        fewest = min((t.runs for t in trials if t.lacks(demand.runs)), default=None)
        return CLEARED, "" if fewest is None else f"passed with {fewest} of {demand.runs} runs"

    def _list(self) -> None:
        """Gather the cases; one that several tests have is run for all of them."""
        known: dict[tuple[str, ...], Trial] = {}
        first = self._device.caps.storages[0]
        for test in ORDER:
            runs = max((d.runs for d in self._demands if test in d.tests), default=0)
            if not runs:
                continue
            try:
                cases = demanded.cases(test, self._device.caps)
            except Exception as error:
                self._failed[test] = f"{test}: {reason_of(error, 'kernel-failed').sentence}"
                continue
            for case in cases:
                key = (case.name, case.keeping.kind, case.storage or first)
                trial = known.setdefault(key, Trial(case))
                trial.tests.add(test)
                trial.goal = max(trial.goal, runs)
        self._trials = list(known.values())

    def _turn(self, trial: Trial, number: int) -> None:
        """Run a case once more, unless it has had enough; a large one until it has."""
        count = 1
        if trial.is_heavy:
            count = 0 if number else times(trial.case, trial.goal)
        for more in range(number, number + count):
            if trial.is_wanted(more) and not self._has_failed(trial):
                start = time.monotonic()
                ends = self._ends if more < ESSENTIAL else self._most
                self._is_over = start + self._longest >= ends
                if self._is_over:
                    return
                self._try(trial)
                self._longest = max(self._longest, time.monotonic() - start)
        if trial.is_heavy or self._has_failed(trial):
            trial.close()

    def _has_failed(self, trial: Trial) -> bool:
        return trial.tests <= self._failed.keys()

    def _try(self, trial: Trial) -> None:
        try:
            if trial.executable is None and not trial.is_ruled_out:
                self._announce("build")
                trial.built(self._compiled(trial.case))
                if not trial.is_ruled_out:
                    self.checks.append(trial.check)
            why = None if trial.is_ruled_out else trial.run(self._announce)
        except Exception as error:
            why = reason_of(error, "kernel-failed").sentence
            if isinstance(error, (DeviceLostError, DeviceTimeoutError)):
                self._lost = f"{_first(trial.tests)}: {why}"
        if why is not None:
            self._failed |= {test: f"{test}: {why}" for test in trial.tests}

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


class Trial:
    """One case, run again and again.

    Attributes
    ----------
    tests : set of str
        Tests that it is part of.
    goal : int
        Runs that are asked for.
    check : dict
        The evidence.
    is_ruled_out : bool
        True where the device does not offer what the case takes.
    """

    def __init__(self, case: kat.Case) -> None:
        self.case = case
        self.tests: set[str] = set()
        self.goal = 0
        self.executable: GpuExecutable | None = None
        self.is_ruled_out = False
        self.check: dict[str, Any] = {"runs": 0}
        self._first = b""

    @property
    def runs(self) -> int:
        """Runs so far."""
        return int(self.check["runs"])

    @property
    def is_heavy(self) -> bool:
        """True if it is to be let go as soon as it is done."""
        return self.case.expected.size >= HEAVY

    def is_wanted(self, number: int) -> bool:
        """Say whether one more run is asked for after this many."""
        return not self.is_ruled_out and number < times(self.case, self.goal)

    def lacks(self, runs: int) -> bool:
        """Say whether so many runs, or as many as are worth their time, were not made."""
        return not self.is_ruled_out and self.runs < times(self.case, runs)

    def built(self, executable: GpuExecutable | None) -> None:
        """Take what the case is run on; None where there is nothing to run it on."""
        self.executable, self.is_ruled_out = executable, executable is None
        if executable is not None:
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
        self.check |= {**evidence, "runs": self.check["runs"]}
        if finding is not None:
            return f"{finding.code}, {finding.detail}"
        return None if is_first else f"unstable-numbers, {self.case.name}"


def variants(plan: Plan) -> list[str]:
    """Return the kernel variants of a plan."""
    return sorted({one.variant for one in plan.passes})


def _first(tests: Iterable[str]) -> str:
    return min(tests, key=ORDER.index)


def _counted(trials: Iterable[Trial]) -> str:
    counts = [f"{trial.runs} runs of {trial.case.name}" for trial in trials]
    return ", ".join(counts[:3]) + (f" and {len(counts) - 3} more" if len(counts) > 3 else "")
