"""A run: which shard is asked of whom, which replies are believed, and what becomes of the rest.

Dask schedules. What it cannot know is decided here: a worker that makes no progress, one whose
reply is not what was asked for, one of another version, and devices that nobody has any more.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpuedge.conformance.case import Case
from gpuedge.conformance.results import Results
from gpuedge.core.errors import NoUsableDeviceError
from gpuedge.core.record import UnfitError, read
from gpuedge.core.text import plain
from gpuedge.farm.devices import Announcement, FarmDevice, announcement
from gpuedge.farm.store import RunStore
from gpuedge.farm.tasks import (
    FarmRun,
    FarmTask,
    Maker,
    accepted,
    differences,
    is_verified,
    maker,
    request,
    shards,
)
from gpuedge.farm.work import DESK

if TYPE_CHECKING:
    from distributed import Future

    from gpuedge.farm.engine import Engine

TICK_S = 0.5
"""How often it is looked who lives and who makes progress."""

MOST_WHY = 500
"""Characters of a reason that a summary keeps."""

MAX_TRIES = 4
"""Workers that a shard is given to before it is told as not run."""


@dataclass
class Flight:
    """A shard on its way: where it may run, where it does, and when it last made progress."""

    task: FarmTask
    name: str
    addresses: frozenset[str]
    worker: str = ""
    progress: object = None
    since: float = field(default_factory=time.monotonic)


@dataclass
class Coordinator:
    """Runs what a run's store lacks, on every device that workers announce.

    Attributes
    ----------
    case_s : float
        Seconds for a case.
    stall_s : float
        Seconds without a finished case after which a worker counts as hanging.
    grace_s : float
        How long a device may have no worker before its shards are given up.
    wanted : int
        So many devices, equal ones counted each, must be there before anything starts.
    labels : mapping of str
        Only workers with these labels are asked.
    say : callable
        Is told of every shard and every problem.
    is_new : bool
        Whether the store has no run yet: it begins with the first device.
    """

    engine: Engine
    store: RunStore
    run: FarmRun
    cases: Mapping[str, Case]
    case_s: float
    stall_s: float
    grace_s: float
    wanted: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _: None
    is_new: bool = False
    workers: dict[str, Announcement] = field(default_factory=dict, init=False)
    devices: dict[str, FarmDevice] = field(default_factory=dict, init=False)
    excluded: dict[str, dict[str, str]] = field(default_factory=dict, init=False)
    moved: list[dict[str, str]] = field(default_factory=list, init=False)
    not_run: dict[str, str] = field(default_factory=dict, init=False)
    unverified: list[str] = field(default_factory=list, init=False)
    disagreements: list[dict[str, str]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._pending: dict[str, deque[FarmTask]] = {}
        self._flying: dict[Future[str], Flight] = {}
        self._done: dict[str, Maker] = {}  # by the id of a task
        self._tasks: dict[str, FarmTask] = {}
        self._tries: Counter[str] = Counter()
        self._known: dict[str, Announcement] = {}
        self._unfit: set[tuple[str, str]] = set()  # an address and a device that it cannot open
        self._absent: dict[str, float] = {}
        self._begun = time.monotonic()
        self._session = f"{self.run.id[:8]}-{uuid4().hex[:8]}"

    def work(self) -> None:
        """Run until every device has run every shard, or nobody is left who could.

        Raises
        ------
        FarmError (GE-407)
            The scheduler or the store is gone; what was finished is kept.
        NoUsableDeviceError (GE-103)
            No worker that may be asked came within `grace_s`.
        """
        for body in self.store.documents("devices"):
            with suppress(UnfitError):
                self._add(read(FarmDevice, {n: v for n, v in body.items() if n != "key"}))
        try:
            while self._goes_on():
                for future in self.engine.ended(list(self._flying), TICK_S):
                    self._land(future)
        finally:
            for future in self._flying:
                future.cancel()
        if not self.devices:
            raise self._nobody_came()

    def _nobody_came(self) -> NoUsableDeviceError:
        asked = f"labelled {_labels(self.labels)}" if self.labels else "connected"
        told = [f"{who.serial} ({_labels(who.labels) or 'no label'})"
                for at, who in self._known.items() if at not in self.excluded]  # fmt: skip
        told += [f"{one['serial']}: {one['why']}" for one in self.excluded.values()]
        return NoUsableDeviceError(
            f"No worker that can be asked is {asked}.",
            asked_by="--label" if self.labels else "--scheduler",
            known=plain(f"workers: {'; '.join(told)}", MOST_WHY) if told else "no worker came",
            hint=f"gpuedge farm worker, or more than {self.grace_s:g} s of --grace",
        )

    def _goes_on(self) -> bool:
        """Look who is there, give out shards; return whether there is anything to wait for."""
        lively = self.engine.workers()
        self._meet(lively)
        is_waiting = self._slots() < self.wanted and not self._tasks
        if is_waiting and time.monotonic() - self._begun < self.grace_s:
            time.sleep(TICK_S)
            return True
        for one in [one for who in self.workers.values() for one in who.devices]:
            self._add(one)
        self._look_at_flights(lively)
        for key in self._pending:
            self._give_out(key)
        if not self._flying and any(self._pending.values()):
            time.sleep(TICK_S)  # until a device comes back, or its time is up
        return bool(self._flying or any(self._pending.values()))

    def _slots(self) -> int:
        return sum(len(who.devices) for who in self.workers.values())

    def _meet(self, lively: Mapping[str, Mapping[str, Any]]) -> None:
        """Bring up to date who lives and may be asked."""
        for address, said in lively.items():
            if address in self._known or address in self.excluded:
                continue
            try:
                who = announcement(said.get(DESK))
            except UnfitError as error:
                self._exclude(address, f"its announcement cannot be read: {error}")
                continue
            self._known[address] = who
            if who.version != self.run.version:
                why = f"it has gpuedge {who.version}, and this run is of {self.run.version}"
                self._exclude(address, why)
        self.workers = {a: who for a, who in self._known.items()
                        if a in lively and a not in self.excluded
                        and self.labels.items() <= who.labels.items()}  # fmt: skip

    def _exclude(self, address: str, why: str) -> None:
        who = self._known.get(address)
        serial = who.serial if who else "?"
        self.excluded[address] = {"worker": address, "serial": serial, "why": plain(why, MOST_WHY)}
        self.workers.pop(address, None)
        self.say(f"worker {serial} at {address} is not asked any more: {why}")

    def _add(self, device: FarmDevice) -> None:
        """Have a device run everything, from the first time that it is seen."""
        if device.key in self.devices:
            return
        if self.is_new:
            self.store.begin(self.run)
            self.is_new = False
        self.devices[device.key] = device
        body = {"key": device.key, **device.as_dict()}
        self.store.put(f"devices/{device.key}.json", json.dumps(body))
        queue = self._pending[device.key] = deque()
        for task in shards(device.key, list(self.cases), self.run.parts):
            self._tasks[task.id] = task
            if (by := self.store.maker_of(task)) is not None:
                self._done[task.id] = by
                self._want_check(task)
            else:
                queue.append(task)

    def _want_check(self, task: FarmTask) -> None:
        check = FarmTask(task.key, task.part, task.parts, task.ids, is_check=True)
        if is_verified(self.run, task) and check.id not in self._tasks:
            self._tasks[check.id] = check
            if (by := self.store.maker_of(check)) is not None:
                self._done[check.id] = by
                self._compare(check)
            else:
                self._pending[task.key].append(check)

    def _may_run(self, task: FarmTask) -> frozenset[str]:
        """Return the workers that may run a shard: with its device, and not twice."""
        other = self._done.get(FarmTask(task.key, task.part, task.parts, task.ids).id)
        return frozenset(
            address
            for address, who in self.workers.items()
            if any(one.key == task.key for one in who.devices)
            and (address, task.key) not in self._unfit
            and not (task.is_check and other is not None and who.serial == other.serial)
        )

    def _give_out(self, key: str) -> None:
        """Keep as many shards in flight as there are devices: each is given when it can start."""
        queue = self._pending[key]
        flying = sum(flight.task.key == key for flight in self._flying.values())
        for _ in range(len(queue)):
            task = queue.popleft()
            addresses = self._may_run(task)
            room = sum(one.key == key for a in addresses for one in self.workers[a].devices)
            if not addresses:
                self._nobody(task)
            elif flying >= room:
                queue.append(task)
            else:
                self._absent.pop(key, None)
                self._tries[task.id] += 1
                # no other run or session may take this reply for its own
                name = f"{self._session}/{task.id}-{self._tries[task.id]}"
                flight = Flight(task, name, addresses)
                asked = request(task, self.run, self.case_s, name)
                self._flying[self.engine.submit(flight.name, asked, key, addresses)] = flight
                flying += 1

    def _nobody(self, task: FarmTask) -> None:
        """Wait for a worker that can run a shard, for a while."""
        if task.is_check:
            self.unverified.append(task.shard)
            return
        since = self._absent.setdefault(task.key, time.monotonic())
        if time.monotonic() - since < self.grace_s:
            self._pending[task.key].append(task)
        else:
            self._give_up(task, "no worker has this device any more")

    def _give_up(self, task: FarmTask, why: str) -> None:
        if task.is_check:
            self.unverified.append(task.shard)
        else:
            self.not_run[task.id] = why
            self.say(f"{task.shard} was not run: {why}")

    def _look_at_flights(self, lively: Mapping[str, Mapping[str, Any]]) -> None:
        """Move the shards of workers that hang, and those that nobody can run any more."""
        running = self.engine.running() if self._flying else {}
        now = time.monotonic()
        for future, flight in list(self._flying.items()):
            if future.done():
                continue
            worker = running.get(flight.name, flight.worker)
            metrics = lively.get(worker, {}).get("metrics", {}).get(DESK) or {}
            # one that has not begun waits for another shard there, maybe another run's
            progress = metrics.get(flight.name, metrics)
            if (worker, progress) != (flight.worker, flight.progress):
                if flight.worker and worker != flight.worker:
                    self._tell_moved(flight, "the worker is gone")
                flight.worker, flight.progress, flight.since = worker, progress, now
            if now - flight.since > self.stall_s:
                if worker in self.workers:
                    self._exclude(worker, f"no case was done in {self.stall_s:g} s")
                self._again(future, f"no case was done in {self.stall_s:g} s")
            elif not flight.addresses & lively.keys():
                self._again(future, "the worker is gone")

    def _tell_moved(self, flight: Flight, why: str) -> None:
        who = self._known.get(flight.worker)
        row = {"task": flight.task.id, "worker": who.serial if who else flight.worker, "why": why}
        self.moved.append(row)
        self.say(f"{flight.task.shard} moves to another worker: {why}")

    def _again(self, future: Future[str], why: str) -> None:
        """Take a shard back, to be given to another worker."""
        flight = self._flying.pop(future)
        future.cancel()
        self._tell_moved(flight, why)
        self._queue(flight.task, why)

    def _queue(self, task: FarmTask, why: str) -> None:
        if self._tries[task.id] >= MAX_TRIES:
            self._give_up(task, f"{MAX_TRIES} attempts failed; the last: {why}")
        else:
            self._pending[task.key].appendleft(task)

    def _land(self, future: Future[str]) -> None:
        """Take a reply, if it is one that can be believed."""
        flight = self._flying[future]
        task = flight.task
        try:
            text, worker = self.engine.reply(future)
        except LookupError as error:
            del self._flying[future]
            self._give_up(task, str(error))
            return
        if not worker:
            return  # it is on its way again
        flight.worker = worker
        if not text and worker in self.workers:
            self._exclude(worker, "its reply cannot be fetched")
        who = self.workers.get(worker)
        if who is None:  # excluded or dead meanwhile
            self._again(future, "its worker is not asked any more")
            return
        if refusal := _refusal(text):
            self._unfit.add((worker, task.key))
            self._again(future, refusal)
            return
        device = next(one for one in who.devices if one.key == task.key)
        try:
            results = accepted(text, task, self.run, self.cases, device)
        except UnfitError as error:
            self.store.refuse(task, f"{who.serial} at {worker}: {error}", text)
            self._distrust(worker, f"a reply is not what was asked for: {error}")
            self._again(future, "its worker cannot be believed")
            return
        del self._flying[future]
        self._keep(task, results, worker)

    def _keep(self, task: FarmTask, results: Results, worker: str) -> None:
        results.header["farm"] |= {"worker": worker, "is_check": task.is_check}
        self.store.put(f"{task.id}.jsonl", results.lines().decode())
        self._done[task.id] = maker(results)
        done = sum(not self._tasks[name].is_check for name in self._done)
        total = sum(not one.is_check for one in self._tasks.values())
        self.say(f"{done} of {total} shards: {task.shard}")
        if task.is_check:
            self._compare(task)
        else:
            self._want_check(task)

    def _compare(self, check: FarmTask) -> None:
        first, second = self.store.results(f"shards/{check.shard}"), self.store.results(check.id)
        if first is None or second is None:
            return
        serials = [str(one.header.get("farm", {}).get("serial")) for one in (first, second)]
        for row in differences(first, second):
            said = {"key": check.key, **row, "workers": " and ".join(serials)}
            self.disagreements.append(said)
            self.say(f"{row['id']} is {row['first']}, then {row['second']} on an equal device")

    def _distrust(self, worker: str, why: str) -> None:
        """Believe nothing of a worker any more: what it gave before is run again by others."""
        self._exclude(worker, why)
        for name in [name for name, by in self._done.items() if by.worker == worker]:
            task = self._tasks[name]
            del self._done[name]
            self.store.refuse(task, f"it came from {worker}, which gave a reply that is none")
            self._pending[task.key].append(task)

    def summary(self) -> dict[str, Any]:
        """Return what became of the run so far, JSON-ready."""
        devices, counts = [], Counter[str]()
        for key, device in sorted(self.devices.items()):
            tasks = [t for t in self._tasks.values() if t.key == key and not t.is_check]
            own, serials = Counter[str](), set()
            for task in tasks:
                results = self.store.results(task.id) if task.id in self._done else None
                own["not_run"] += 0 if results else len(task.ids)
                if results:
                    own.update(results.counts())
                    serials.add(str(results.header.get("farm", {}).get("serial")))
            devices.append({"key": key, "name": device.identity["name"], "cases": len(self.cases),
                            "counts": dict(own), "workers": sorted(serials)})  # fmt: skip
            counts.update(own)
        verified = [t for t in self._done if self._tasks[t].is_check]
        return {
            "run": self.run.id, "store": self.store.url, "profile": self.run.profile,
            "only": list(self.run.only), "verify": self.run.verify, "version": self.run.version,
            "cases": len(self.cases), "counts": dict(counts),
            "devices": devices, "excluded": list(self.excluded.values()), "moved": self.moved,
            "not_run": self.not_run, "verified": len(verified), "unverified": self.unverified,
            "disagreements": self.disagreements,
        }  # fmt: skip


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _refusal(text: str) -> str | None:
    """Return why a worker could not run a shard, if that is what it says."""
    try:
        said = json.loads(text)["error"]
        return f"{said['code']}: {said['what']} {said['known'] or ''}".strip()[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
