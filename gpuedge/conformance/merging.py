"""Results of several runs put together: shards of a device, and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gpuedge.conformance.bench import FLAKE, PASSED, SKIPPED, STATUSES
from gpuedge.conformance.catalogue import PROFILES, everything
from gpuedge.conformance.results import Results, ResultSet, at
from gpuedge.core.errors import InputError

WORST = (SKIPPED, PASSED, FLAKE, *(s for s in STATUSES if s not in (SKIPPED, PASSED, FLAKE)))
"""Statuses, the worst last: of two that differ it is kept."""

MERGED = "gpuedge.conformance.merge/1"


@dataclass
class Merged:
    """What came of merging: the results, and what is wrong with the whole.

    `conflicts` are cases that came out differently in two files: device, id and what each file
    said; `missing` are shards without a file, and `absent` the number of cases without a row, by
    device.
    """

    results: ResultSet = field(default_factory=ResultSet)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    absent: dict[str, int] = field(default_factory=dict)


def merge(files: Mapping[str, ResultSet]) -> Merged:
    """Put results of shards and devices together; `files` are by name.

    Two devices of one name, such as ``vulkan:0`` of two machines, are told apart by their identity,
    host and serial number: the second becomes ``vulkan:0~2``.

    Raises
    ------
    InputError (GE-203)
        Results of one device are of two profiles, or two versions of gpuedge.
    """
    made = Merged()
    shards: dict[str, set[str]] = {}
    came_from: dict[tuple[str, str], str] = {}
    for file, found in files.items():
        for part in found:
            whole = _place(made.results, part, file)
            shards.setdefault(whole.device, set()).update(part.header.get("shard", "1/1").split())
            for row in part.rows.values():
                key = whole.device, row["id"]
                old = whole.rows.get(row["id"])
                if old is not None and old["status"] != row["status"]:
                    said = {came_from[key]: old["status"], file: row["status"]}
                    made.conflicts.append({"device": key[0], "id": key[1], "said": said})
                if old is None or WORST.index(row["status"]) > WORST.index(old["status"]):
                    whole.add(row)
                    came_from[key] = file
    for part in made.results:
        _count(made, part, shards[part.device])
    return made


def _place(results: ResultSet, part: Results, file: str) -> Results:
    """Return the results that a part of a file belongs to."""
    base = part.device.partition("~")[0]  # another merge may have told devices apart
    alike = [each for each in results if each.device.partition("~")[0] == base]
    whole = next((each for each in alike if _who(each) == _who(part)), None)
    if whole is None:
        name = f"{base}~{len(alike) + 1}" if alike else base
        whole = Results({"only": ["*"], **part.header, "device": name})
        results.parts.append(whole)
        return whole
    for key, said in (("profile", "profile"), ("versions.gpuedge", "version of gpuedge")):
        there, here = (at(each.header, key) for each in (whole, part))
        if there != here:
            raise InputError(
                f"{file} holds results of {whole.device} of another {said}.",
                asked_by="merge",
                known=f"there {key} is {here!r}, before {there!r}",
                hint="gpuedge conformance compare sets such results side by side",
            )
    seconds = (each.header.get("seconds") or 0 for each in (whole, part))
    whole.header["seconds"] = round(sum(seconds), 2)
    whole.header.setdefault("caps", part.header.get("caps", {}))
    whole.header["only"] = sorted({*whole.header["only"], *part.header.get("only", ["*"])})
    return whole


def _who(part: Results) -> tuple[Any, ...]:
    return tuple(part.header.get(key) for key in ("identity", "host", "serial"))


def _count(made: Merged, part: Results, shards: set[str]) -> None:
    """Say which shards and how many cases a device lacks; keep in its header what there is."""
    counts = {each.partition("/")[2] for each in shards}
    wanted = {f"{i}/{n}" for n in counts for i in range(1, int(n) + 1)}
    if len(counts) == 1 and wanted <= shards:
        part.header["shard"] = "1/1"
    else:
        part.header["shard"] = " ".join(sorted(shards, key=_number))
        # of several divisions any one may be whole
        lacking = [sorted((w for w in wanted - shards if w.endswith(f"/{n}")), key=_number)
                   for n in counts]  # fmt: skip
        if all(lacking):
            made.missing[part.device] = min(lacking, key=len)
    if "*" in part.header["only"]:
        part.header["only"] = ["*"]
    profile = part.header.get("profile")
    if profile in PROFILES:
        lacks = [
            case.id
            for case in everything(profile)
            if case.id not in part.rows
            and any(case.id == glob or fnmatchcase(case.id, glob) for glob in part.header["only"])
        ]
        if lacks:
            made.absent[part.device] = len(lacks)


def _number(shard: str) -> tuple[int, ...]:
    return tuple(map(int, reversed(shard.split("/"))))


def merged_told(made: Merged) -> dict[str, Any]:
    """Return the document of a merge."""
    devices = {part.device: part.counts() for part in made.results}
    return {
        "schema": MERGED, "devices": devices, "conflicts": made.conflicts,
        "missing_shards": made.missing, "cases_without_row": made.absent,
    }  # fmt: skip
