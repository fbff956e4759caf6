"""What entries of the capability database ask of a device under probe, and what came of it.

Lookup, restrictions, tests to run, final restrictions: an entry about crashes or hangs blocks at
once; one about wrong numbers is evidence, and requires tests that confirm it or clear the device of
it. How each entry came out is kept here.

The cases of all tests are run in turns: each once, then each a second time, and so on. So a fault
that is always there shows at once, each kernel runs after every other one, and where time is short
every case has had about as many runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from gpuedge.capdb.classes import family
from gpuedge.capdb.identity.host import host_facts
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.capdb.restrict import with_storages
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    KernelLimitError,
    UnsupportedOpError,
)
from gpuedge.core.reasons import Reason
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.probing import kat
from gpuedge.probing.protocol import (
    APPLIES,
    CLEARED,
    CONFIRMED,
    CUT,
    FAILED,
    RUNS,
    UNFINISHED,
    reason_of,
)
from gpuedge.probing.report import ProbeRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuedge.backends.base import Candidate, DeviceImpl, DeviceInfo
    from gpuedge.capdb.entries import Demand
    from gpuedge.executors.base import Executable
    from gpuedge.executors.gpu import GpuExecutable
    from gpuedge.plan.plan import Plan

MOST_WORDS = 200

MOST_ELEMENTS = 1 << 22
"""Elements of the outputs of all runs of one case: small kernels are run as often as they are to
be, large ones a few times."""

ORDER: Final = ("standard", "kernels", "half", "storages", "large", "repeat")
"""Tests in the order they are run."""

ESSENTIAL: Final = 4
"""Runs of each case, all of them right and alike, that clear a device where time is short, however
many an entry asks for. They are twice as many as every device must pass."""


class Quirks:
    """The entries about one device, and what has come of them so far.

    `answers` are outcomes of required tests that earlier processes found, by entry: they are not
    run again.
    """

    def __init__(
        self, info: DeviceInfo, level: str, answers: Mapping[str, bool] | None = None
    ) -> None:
        self.level = level
        self.judgement: Judgement = lookup(info.identity)
        self.outcomes = dict.fromkeys(self.judgement.restrictions.entries, APPLIES)
        self.details: dict[str, str] = {}
        asked = {demand.entry for demand in self.demands}
        known = {name: passed for name, passed in (answers or {}).items() if name in asked}
        self.settle({n: (CLEARED if passed else CONFIRMED, "") for n, passed in known.items()})

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Tests that are still to be run."""
        return self.judgement.demands

    def restricted(self, info: DeviceInfo) -> DeviceInfo:
        """Return the device as the backend is to open it."""
        found = self.judgement.restrictions
        return info.replace(disabled=found.features, limits=dict(found.limits))

    def settle(self, found: Mapping[str, tuple[str, str]]) -> None:
        """Note how required tests came out, and why; what did not pass applies from now on."""
        passed = {name: outcome == CLEARED for name, (outcome, _) in found.items()}
        self.judgement = self.judgement.after(passed)
        self.outcomes |= {name: outcome for name, (outcome, _) in found.items()}
        self.details |= {name: why for name, (_, why) in found.items()}

    def settle_all(self, outcome: str, detail: str = "") -> None:
        """Note the same outcome for all tests that are still to be run."""
        self.settle({demand.entry: (outcome, detail) for demand in self.demands})

    def reason(self) -> Reason | None:
        """Return why the level is blocked on this device, None if it is not."""
        names = blocking(self.judgement, self.level)
        return told(self.judgement, names, self.outcomes) if names else None

    def event(self) -> dict[str, Any]:
        """Return the fields of a device's event about restrictions."""
        told = {"reason": self._untested} if self._untested else {}
        return {"restrictions": self.judgement.restrictions.to_dict(), **told}

    @property
    def _untested(self) -> str:
        """Why the level is blocked, where nothing but a lack of time is to blame; empty if not."""
        names = blocking(self.judgement, self.level)
        if not names or any(self.outcomes.get(name) != CUT for name in names):
            return ""
        why = self.details.get(names[0]) or "time was over"
        asked = "asks for tests" if len(names) == 1 else "ask for tests"
        return (
            f"it could not be tested in time, and {', '.join(names)} {asked} ({why}): "
            f"{self._summary(names[0])}"
        )

    def evidence(self) -> dict[str, Any]:
        """Return what the row keeps of the entries; nothing where none came to anything."""
        if not self.outcomes:
            return {}
        rows = [
            {"id": name, "outcome": outcome, "summary": self._summary(name)}
            | ({"detail": self.details[name]} if self.details.get(name) else {})
            for name, outcome in sorted(self.outcomes.items())
        ]
        unfinished = not UNFINISHED.isdisjoint(self.outcomes.values())
        flags = {"is_unfinished": unfinished, "is_untested": bool(self._untested)}
        return {"entries": rows, **{name: True for name, is_set in flags.items() if is_set}}

    def _summary(self, name: str) -> str:
        return _summary(self.judgement, name)


class RequiredTests:
    """The tests that entries require of one open device; `run` does them.

    The device's `caps` are those under the restrictions that apply already. Essential runs must be
    over by `ends`, further ones by `most`. `checks` is what was run, for the evidence.
    """

    def __init__(
        self, device: Any, demands: Sequence[Demand], announce: Callable[[str], None],
        *, ends: float, most: float,
    ) -> None:  # fmt: skip
        self._device = device
        self._demands = demands
        self._announce = announce
        self._ends, self._most = ends, most
        self._executors: dict[str, GpuExecutor] = {}
        self._failed: dict[str, str] = {}
        self._lost = ""
        self._cases = self._listed()

    @property
    def checks(self) -> list[dict[str, Any]]:
        """What was run."""
        return [case.check for case in self._cases if "name" in case.check]

    def run(self) -> dict[str, tuple[str, str]]:
        """Run each case once for all that ask for it; return the outcome of each entry, and why."""
        longest = 0.0
        try:
            for number in range(max((case.goal for case in self._cases), default=0)):
                ends = self._ends if number < ESSENTIAL else self._most
                for case in self._cases:
                    if case.goal <= number or case.tests <= self._failed.keys():
                        continue
                    start = time.monotonic()
                    if start + longest >= ends or self._lost:
                        return self._outcomes()
                    self._try(case)
                    longest = max(longest, time.monotonic() - start)
        finally:
            for case in self._cases:
                case.close()
        return self._outcomes()

    def _outcomes(self) -> dict[str, tuple[str, str]]:
        return {demand.entry: self._outcome(demand) for demand in self._demands}

    def _outcome(self, demand: Demand) -> tuple[str, str]:
        failed = [self._failed[t] for t in ORDER if t in demand.tests and t in self._failed]
        if failed or self._lost:
            return FAILED, [*failed, self._lost][0]
        asked = [case for case in self._cases if not case.tests.isdisjoint(demand.tests)]
        short = [case for case in asked if case.lacks(demand.runs)]
        if not short:
            return CLEARED, ""
        least = min(short, key=lambda case: case.runs)
        if any(case.lacks(min(demand.runs, ESSENTIAL)) for case in short):
            return CUT, f"time was over after {least.runs} runs of {least.case.name}"
        return CLEARED, f"passed with {least.runs} of {demand.runs} runs"

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
                self._lost = why
        if why is not None:
            self._failed |= {test: f"{test}: {why}" for test in case.tests}
            case.close()

    def _compiled(self, case: kat.Case) -> GpuExecutable | None:
        """Return the case built; None where the device does not offer what it takes."""
        device, caps = self._device, self._device.caps
        if case.storage and case.storage != caps.storages[0]:
            kinds = (case.storage, *(kind for kind in caps.storages if kind != case.storage))
            device = device.with_caps(with_storages(caps, kinds))
        if case.storage not in self._executors:
            self._executors[case.storage] = GpuExecutor(cast("DeviceImpl", device), "probe")
        try:
            return self._executors[case.storage].compile(case.graph, case.keeping)
        except (KernelLimitError, UnsupportedOpError):  # so it is for the product, too
            return None


class RequiredCase:
    """One case, run again and again for the `tests` that it is part of, `goal` times in all.

    The goal is 0 where the device does not offer what the case takes. `check` is the evidence.
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

    def run(self, announce: Callable[[str], None]) -> str | None:
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


def times(case: kat.Case, runs: int) -> int:
    """Return how often a case is run: a large one less often, but no less than `RUNS` times."""
    return min(runs, max(RUNS, MOST_ELEMENTS // max(1, case.expected.size)))


def poisoned_run(executable: Executable, case: kat.Case, announce: Callable[[str], None]) -> Any:
    """Run a case with its output filled with `kat.POISON` before, and return a copy of it."""
    announce("run")
    executable.poison()  # type: ignore[attr-defined]  # what GPU executables have besides
    return executable.run(case.inputs)[case.output].copy()


def version(judgement: Judgement) -> str:
    """Return the version and digest of the database that was asked.

    >>> from gpuedge.capdb.database import of_entries
    >>> version(lookup({}, database=of_entries([])))
    '0'
    """
    digest = "" if judgement.database is None else judgement.database.digest
    number = str(judgement.database_version)
    return f"{number} {digest}" if digest else number


def valid_until(judgement: Judgement) -> str:
    """Return the first day on which an entry that may be about the device is to be reviewed.

    Entries that stay as they are on that day do not count, nor do those that forbid nothing, nor
    those that were passed over because theirs is gone by.
    """
    database = judgement.database
    if database is None:
        return ""
    counted = {"applies", "probe", "skipped"}
    entries = [database.entry(f.id) for f in judgement.relevant if f.becomes in counted]
    ends = [
        entry.review.review_by
        for entry in entries
        if entry.review.on_expiry != "keep"
        and not entry.action.is_empty
        and entry.review.review_by >= judgement.today
    ]
    return min(ends, default="")


def blocking(judgement: Judgement, level: str) -> list[str]:
    """Return the ids of the entries in force that take a whole level or backend away."""
    names = {level, family(level)}
    return [
        name
        for name in sorted(judgement.in_force)
        if judgement.actions[name].is_backend_off
        or not names.isdisjoint(judgement.actions[name].levels)
    ]


def told(
    judgement: Judgement, names: Iterable[str], outcomes: Mapping[str, str] | None = None
) -> Reason:
    """Return the reason of a blocked device: the ids, and what the first of them is about."""
    names = list(names)
    words = {CONFIRMED: " (confirmed by a test)", FAILED: " (its test failed)",
             CUT: " (no time was left for its test)"}  # fmt: skip
    how = words.get((outcomes or {}).get(names[0], ""), "")
    return Reason("quirk", f"{', '.join(names)}{how}: {_summary(judgement, names[0])}")


def _summary(judgement: Judgement, name: str) -> str:
    for finding in judgement.relevant:
        if finding.id == name:
            return finding.summary[:MOST_WORDS]
    return ""


def barred_row(candidate: Candidate) -> ProbeRow | None:
    """Return the row of a driver that may not even be loaded; None if it may.

    Only entries about crashes at load count, and only where what this machine tells of itself
    makes them true, whatever the driver would say. It is taken to be called without a layer: to
    load a layer is to load the driver under it.
    """
    who = replace(subject({**host_facts(), "api": candidate.backend}), layers=())
    judgement = lookup(who)
    sure = {
        f.id
        for f in judgement.relevant
        if f.result == "true" and f.effect == "crash_at_load" and f.becomes == APPLIES
    }
    names = [name for name in blocking(judgement, candidate.backend) if name in sure]
    if not names:
        return None
    reason = told(judgement, names)
    rows = [{"id": n, "outcome": APPLIES, "summary": _summary(judgement, n)} for n in names]
    return ProbeRow(
        device=candidate.backend,
        backend=candidate.backend,
        status="blocked",
        code=reason.code,
        reason=reason.sentence,
        name=Path(candidate.key).name or candidate.key,
        key=candidate.key,
        fingerprint=candidate.fingerprint,
        env=dict(candidate.env),
        evidence={"entries": rows},
        database=version(judgement),
        valid_until=valid_until(judgement),
    )
