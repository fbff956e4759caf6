"""What a run consists of: the same cases for every device, in shards, and what replies must be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from gpuedge.conformance.bench import PASSED, RowFields
from gpuedge.conformance.case import Case, digest
from gpuedge.conformance.catalogue import shard_of
from gpuedge.conformance.results import HeaderFields, Results
from gpuedge.core.record import Record, UnfitError, checked
from gpuedge.farm.devices import OWN, FarmDevice

RUN_SCHEMA = "gpuedge.farm.run/1"

SHARD_CASES = 64
"""About how many cases a shard has unless said otherwise: what is lost with a worker."""

PARTS = ("op", "dtype", "shape", "data", "storage", "variant")
"""Parts of a case's name, which its row repeats."""


class FarmRun(Record):
    """What all sessions of one run have in common; ``run.json`` of its store.

    `names` is a digest of the names of all cases, `verify` the share of shards that a second equal
    device runs too, chosen by `seed`.
    """

    SCHEMA = RUN_SCHEMA

    id: str
    version: str
    profile: str
    only: tuple[str, ...]
    parts: Annotated[int, range(1, 100_000)]
    count: Annotated[int, range(1, 1 << 32)]
    names: str
    seed: int
    verify: float
    started: str


@dataclass(frozen=True)
class FarmTask:
    """Cases for one device; `is_check` where another equal device has run them before."""

    key: str
    part: int
    parts: int
    ids: tuple[str, ...]
    is_check: bool = False

    @property
    def shard(self) -> str:
        """Its name within the device's work, the same in every session."""
        return f"{self.key}.{self.part}of{self.parts}"

    @property
    def id(self) -> str:
        """Its name in the run: a file of the store."""
        return f"{'checks' if self.is_check else 'shards'}/{self.shard}"


class Maker(NamedTuple):
    """Who did a shard: the address of a worker, new in each process, and its machine's name."""

    worker: str
    serial: str


def maker(results: Results) -> Maker:
    """Return who results are of. Raises KeyError and TypeError where they do not say."""
    farm = results.header["farm"]
    return Maker(str(farm["worker"]), str(farm["serial"]))


def names_digest(ids: Sequence[str]) -> str:
    """Return a digest of the names of cases, in any order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def parts_for(count: int) -> int:
    """Return how many shards so many cases are run in."""
    return max(1, -(-count // SHARD_CASES))


def shards(key: str, ids: Sequence[str], parts: int) -> list[FarmTask]:
    """Return the shards of a device that are not empty. A case's depends on its name only."""
    split: dict[int, list[str]] = {}
    for name in ids:
        split.setdefault(shard_of(name, parts), []).append(name)
    return [FarmTask(key, part, parts, tuple(split[part])) for part in sorted(split)]


def is_verified(run: FarmRun, task: FarmTask) -> bool:
    """Tell whether a shard is among those that a second device runs: known from the seed alone."""
    return digest(f"verify {run.seed} {task.shard}") < run.verify * 2.0**64


def request(task: FarmTask, run: FarmRun, case_s: float, name: str = "") -> str:
    """Return what a worker is asked; `name` is what it tells its progress under."""
    asked = {
        "name": name, "task": task.id, "key": task.key, "profile": run.profile,
        "shard": f"{task.part}/{task.parts}", "ids": list(task.ids), "case_s": case_s,
    }  # fmt: skip
    return json.dumps(asked)


def parsed(text: str) -> Results:
    """Return what a reply or a file of the store holds. Raises UnfitError."""
    try:
        header, *rows = [json.loads(line) for line in text.splitlines()]
    except (ValueError, RecursionError):
        raise UnfitError("it is not JSON, line by line") from None
    checked(HeaderFields, header)
    if not isinstance(header.get("farm", {}), dict):
        raise UnfitError("its header is damaged")
    results = Results(header)
    for row in rows:
        checked(RowFields, row)
        if row["id"] in results.rows:
            raise UnfitError(f"{row['id']} is there twice")
        results.rows[row["id"]] = row
    return results


def accepted(
    text: str, task: FarmTask, run: FarmRun, cases: Mapping[str, Case], device: FarmDevice
) -> Results:
    """Return the results of a reply. Raises UnfitError where they are not what was asked for.

    It must be of this task, this version, the device that was announced, and have a row for each
    case and no other, with the parts of the case's name; what passed must name its kernels.
    """
    results = parsed(text)
    header = results.header
    version, farm, identity = (header.get(name, {}) for name in ("versions", "farm", "identity"))
    wanted = ((version.get("gpuedge"), run.version, "version"), (farm.get("task"), task.id, "task"),
              (header.get("profile"), run.profile, "profile"))  # fmt: skip
    for said, meant, what in wanted:
        if said != meant:
            raise UnfitError(f"{said!r} instead of {meant!r}", what)
    for name in sorted({*identity, *device.identity} - set(OWN)):
        found, right = identity.get(name), device.identity.get(name)
        if found != right:
            raise UnfitError(f"announced {right!r}, found {found!r}", f"identity.{name}")
    if odd := results.rows.keys() ^ set(task.ids):
        name = min(odd)
        raise UnfitError(f"{name} is {'not of this shard' if name in results.rows else 'missing'}")
    for name, row in results.rows.items():
        _check_row(row, cases[name].described())
    return results


def _check_row(row: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    for part in PARTS:
        if row.get(part) != case[part]:
            raise UnfitError(f"{row.get(part)!r} is not what the name says", f"{row['id']} {part}")
    is_wrong = (row.get("worst") or 0) > 1 or not row.get("kernels")
    if row["status"] == PASSED and is_wrong:
        raise UnfitError("it passed, by no kernel or beyond its bound", row["id"])


def differences(one: Results, other: Results) -> list[dict[str, str]]:
    """Return the cases of a shard that came to another status on another equal device."""
    return [
        {"id": name, "first": row["status"], "second": other.rows[name]["status"]}
        for name, row in sorted(one.rows.items())
        if name in other.rows and other.rows[name]["status"] != row["status"]
    ]
