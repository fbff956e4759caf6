"""What many runs say together: a matrix, what got worse, what is not sure, what was covered."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gpuedge.conformance.bench import CRASHED, ERROR, FAILED, FLAKE, PASSED, SKIPPED, TIMEOUT
from gpuedge.conformance.results import UNSUPPORTED, outcome
from gpuedge.core.errors import InputError
from gpuedge.core.record import Record, read
from gpuedge.farm.devices import OWN
from gpuedge.farm.store import RunStore, runs_in
from gpuedge.farm.table import driver_of, shards_of
from gpuedge.farm.tasks import FarmRun

BAD = (FAILED, ERROR, CRASHED, TIMEOUT)

UPDATED = (*OWN, "driverVersion", "driverInfo", "GL_VERSION", "apiVersion")
"""What of an identity another version of the same driver changes."""


@dataclass
class DeviceResult:
    """What one run found of one kind of device.

    `rows` has the rows by case; `checks` the cases that came to another status on an equal device.
    """

    run: FarmRun
    key: str
    level: str
    identity: Mapping[str, Any]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    serials: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """What the driver calls the device."""
        return str(self.identity.get("name", "?"))

    @property
    def driver(self) -> str:
        """The driver's version, as the driver has it."""
        return driver_of(self.identity)

    @property
    def family(self) -> str:
        """What stays the same when a driver or gpuedge is updated."""
        same = {name: v for name, v in self.identity.items() if name not in UPDATED}
        return json.dumps([self.level, same], sort_keys=True)

    @property
    def coverage(self) -> float:
        """The share of all cases of the run that were executed: not skipped, not left out."""
        done = sum(row["status"] != SKIPPED for row in self.rows.values())
        return float(done / self.run.count)

    @property
    def failures(self) -> list[str]:
        """The cases that failed, were refused, crashed or hung."""
        return sorted(case for case, row in self.rows.items() if row["status"] in BAD)

    def statuses(self) -> Counter[str]:
        """Return how many cases came to each status, those that were not run too."""
        counts = Counter(str(row["status"]) for row in self.rows.values())
        return counts + Counter(not_run=self.run.count - len(self.rows))

    def by_operator(self) -> dict[str, Counter[str]]:
        """Return for each operator how many cases passed, did not, and do not apply."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.rows.values():
            came_to = outcome(row)
            known = came_to in (PASSED, UNSUPPORTED)
            found[row["op"]][came_to if known else "bad"] += 1
        return found


@dataclass(frozen=True)
class Regression:
    """Cases that passed with older versions and do not with newer ones, on one device."""

    old: DeviceResult
    new: DeviceResult
    cases: tuple[str, ...]

    @property
    def changed(self) -> str:
        """What was updated: gpuedge, the driver, or both."""
        parts = [("gpuedge", self.old.run.version, self.new.run.version),
                 ("driver", self.old.driver, self.new.driver)]  # fmt: skip
        return "; ".join(f"{what} {old} to {new}" for what, old, new in parts if old != new)


@dataclass(frozen=True)
class Flake:
    """A case that came to several statuses with the same versions on equal devices."""

    result: DeviceResult
    case: str
    statuses: tuple[str, ...]


class SummaryTold(Record):
    """What of a session's summary is reported."""

    IS_OPEN = True

    excluded: tuple[Mapping[str, str], ...] = ()


@dataclass
class FarmReport:
    """Everything that a page shows; `excluded` are workers that were not believed or asked."""

    runs: list[FarmRun]
    results: list[DeviceResult]
    excluded: list[Mapping[str, str]]
    regressions: list[Regression]
    flakes: list[Flake]

    def latest(self) -> list[DeviceResult]:
        """Return the newest result of each kind of device, by level and name."""
        newest = {result.key: result for result in self.results}
        return sorted(newest.values(), key=lambda one: (one.level, one.name, one.key))

    def counts(self) -> dict[str, int]:
        """Return the figures that a reader looks for first."""
        return {"runs": len(self.runs), "devices": len(self.latest()),
                "cases": sum(len(one.rows) for one in self.results),
                "failures": sum(len(one.failures) for one in self.latest()),
                "regressions": sum(len(one.cases) for one in self.regressions),
                "flakes": len(self.flakes)}  # fmt: skip


def collect(stores: Sequence[str]) -> FarmReport:
    """Return the report on runs, in the order in which they began.

    Raises InputError (GE-203) where a summary is damaged, and what `runs_in` does.
    """
    ordered = sorted(runs_in(stores), key=lambda both: both[0].started)
    results = [one for run, store in ordered for one in _results(run, store)]
    excluded = [row for _, store in ordered for row in _excluded(store)]
    return FarmReport([run for run, _ in ordered], results, excluded,
                      list(_regressions(results)), list(_flakes(results)))  # fmt: skip


def _excluded(store: RunStore) -> Iterator[Mapping[str, str]]:
    """Yield the workers that the last session did not believe or ask."""
    for name in store.names("summaries")[-1:]:
        file = f"summaries/{name}.json"
        try:
            yield from read(SummaryTold, json.loads(store.text(file) or "")).excluded
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{store.url} holds a summary that is damaged: {file}.", asked_by="the store",
                known=str(error), hint="remove it: the results are in other files",
            ) from None  # fmt: skip


def _results(run: FarmRun, store: RunStore) -> Iterator[DeviceResult]:
    made: dict[str, DeviceResult] = {}
    for body in store.documents("devices"):
        key, identity = str(body.get("key")), body.get("identity")
        if isinstance(identity, dict):
            made[key] = DeviceResult(run, key, key.partition("-")[0], identity)
    for name, shard in shards_of(store):
        key = name.partition(".")[0]
        if key not in made:  # the file of the device is lost
            made[key] = DeviceResult(
                run, key, key.partition("-")[0], shard.header.get("identity", {})
            )
        result = made[key]
        farm = shard.header.get("farm", {})
        result.serials.add(str(farm.get("serial")))
        for case, row in shard.rows.items():
            before = result.rows.setdefault(case, row)
            if before["status"] != row["status"]:
                result.checks[case] = row["status"]
    yield from made.values()


def _updates(results: Sequence[DeviceResult]) -> Iterator[tuple[DeviceResult, DeviceResult]]:
    """Yield the results of a device in two runs, one after the other.

    It is the same device where all of its identity is the same, or where a run knows one only that
    differs in nothing but versions.
    """
    families: dict[str, dict[str, dict[str, DeviceResult]]] = {}
    for one in results:
        if one.rows:
            families.setdefault(one.family, {}).setdefault(one.run.id, {})[one.key] = one
    for runs in families.values():
        for old, new in pairwise(runs.values()):
            both = old.keys() & new.keys()
            yield from ((old[key], new[key]) for key in sorted(both))
            before, after = ([o for k, o in one.items() if k not in both] for one in (old, new))
            if len(before) == len(after) == 1:
                yield before[0], after[0]


def _regressions(results: Sequence[DeviceResult]) -> Iterator[Regression]:
    for old, new in _updates(results):
        if (old.run.version, old.driver) == (new.run.version, new.driver):
            continue  # what differs is a flake
        cases = [c for c in new.failures if old.rows.get(c, {}).get("status") == PASSED]
        if cases:
            yield Regression(old, new, tuple(cases))


def _flakes(results: Sequence[DeviceResult]) -> Iterator[Flake]:
    """Yield cases that are not sure: in one run, between equal devices, or two runs of the same."""
    by_key: dict[tuple[str, str], list[DeviceResult]] = defaultdict(list)
    for one in results:
        by_key[one.key, one.run.version].append(one)
    for alike in by_key.values():
        seen: dict[str, set[str]] = defaultdict(set)
        for one in alike:
            for case, row in one.rows.items():
                seen[case] |= {row["status"], one.checks.get(case, row["status"])}
        for case, statuses in sorted(seen.items()):
            if len(statuses) > 1 or FLAKE in statuses:
                yield Flake(alike[-1], case, tuple(sorted(statuses)))


def as_json(report: FarmReport) -> str:
    """Return the figures of a report as JSON, for whoever reads the page with a program."""
    devices = [{"key": one.key, "level": one.level, "name": one.name, "driver": one.driver,
                "run": one.run.id, "coverage": round(one.coverage, 4),
                "statuses": dict(one.statuses())} for one in report.results]  # fmt: skip
    return json.dumps({"schema": "gpuedge.farm.report/1", **report.counts(), "results": devices})
