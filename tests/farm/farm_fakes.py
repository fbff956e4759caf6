"""A farm within the process: Dask's scheduler and workers, whose devices and answers are made up.

What a worker does with a shard is the `Fate` of its serial.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.conformance.case import Case
from gpuedge.conformance.catalogue import everything
from gpuedge.farm import engine, tasks
from gpuedge.farm.coordinator import Coordinator
from gpuedge.farm.devices import Announcement, Desk, FarmDevice
from gpuedge.farm.store import RunStore

Fate = Callable[[dict[str, Any], list[dict[str, Any]]], None]
"""Changes the header and the rows of an honest reply, or waits, or raises."""

CASES = {c.id: c for c in everything("smoke") if c.op in ("add", "mul", "sub")}
END = threading.Event()
"""What workers that hang wait for."""


def identity(name: str) -> dict[str, Any]:
    return {"api": "vulkan", "name": name, "os": "linux", "driverVersion": 1}


def desk(serial: str, *names: str, version: str = gpuedge.__version__, **labels: str) -> Desk:
    devices = tuple(FarmDevice(f"vulkan:{i}", identity(n)) for i, n in enumerate(names))
    return Desk(Announcement(version, serial, labels, devices), 1)


def key(name: str) -> str:
    return FarmDevice("vulkan:0", identity(name)).key


def row(case: Case, status: str = "passed") -> dict[str, Any]:
    passed = {"kernels": ["elementwise_map"], "worst": 0.5}
    return {**case.described(), "status": status, "seconds": 0.01, **passed}


def answers(fates: Mapping[str, Fate]) -> Callable[[dict[str, Any], Desk], str]:
    """Return what stands in for `gpuedge.farm.work.answer`."""

    def answer(asked: dict[str, Any], at: Desk) -> str:
        with at.lent(asked["key"], asked["name"]) as device:
            who = at.announcement
            found = next(d for d in who.devices if d.device == device)
            header = {
                "schema": "gpuedge.conformance/1", "device": device,
                "identity": dict(found.identity), "profile": asked["profile"],
                "shard": asked["shard"], "versions": {"gpuedge": gpuedge.__version__},
                "farm": {"task": asked["task"], "serial": who.serial, "labels": dict(who.labels)},
            }  # fmt: skip
            rows = [row(CASES[name]) for name in asked["ids"]]
            fates.get(who.serial, lambda *_: None)(header, rows)
            return "\n".join(map(json.dumps, [header, *rows]))

    return answer


@contextmanager
def farm(*desks: Desk) -> Iterator[engine.Engine]:
    """Have a scheduler and a worker for each desk in this process."""
    END.clear()
    with engine._dask():
        from distributed import Client, Scheduler, SpecCluster, Worker

        own = {"dashboard_address": engine.NOWHERE, "protocol": "inproc://"}
        workers = {
            one.announcement.serial: {
                "cls": Worker,
                "options": {**own, **engine.worker_options(one)},
            }
            for one in desks
        }
        with SpecCluster(
            scheduler={"cls": Scheduler, "options": {**own, "dashboard": False}},
            workers=workers, silence_logs=False,
        ) as cluster, Client(cluster, set_as_default=False) as client:  # fmt: skip
            try:
                yield engine.Engine(client, "here")
            finally:
                END.set()


def begun(
    folder: Path | str, cases: Mapping[str, Case] = CASES, **changes: Any
) -> tuple[RunStore, Any]:
    """Return a store with a run that has begun."""
    store = RunStore(str(folder))
    given = {"parts": 4, "seed": 1, "verify": 0.0, "version": gpuedge.__version__, **changes}
    names = tasks.names_digest(list(cases))
    run = tasks.FarmRun("r", given["version"], "smoke", (), given["parts"], len(cases), names,
                        given["seed"], given["verify"], "2026-01-01T00:00:00Z")  # fmt: skip
    if store.run() is None:
        store.begin(run)
    return store, run


def coordinator(client: engine.Engine, folder: Path, **changes: Any) -> Coordinator:
    own = ("parts", "seed", "verify", "version", "cases")
    store, run = begun(folder, **{n: v for n, v in changes.items() if n in own})
    more = {n: v for n, v in changes.items() if n not in own}
    given = {"case_s": 30.0, "stall_s": 60.0, "grace_s": 0.5, **more}
    return Coordinator(client, store, run, changes.get("cases", CASES), **given)


def names_in(folder: Path) -> list[str]:
    """Return the names of all cases that the shards of a store hold, each as often as it does."""
    rows = [json.loads(line) for file in sorted((folder / "shards").glob("*.jsonl"))
            for line in file.read_text().splitlines()[1:]]  # fmt: skip
    return [r["id"] for r in rows]
