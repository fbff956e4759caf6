"""Records that are read back from disks, pipes and processes: one table of every kind and field.

Each field of each kind is given values of every other type, numbers that are none or too large, and
what lies outside its range; it is left out, and another one is added. All that is refused, but for
what a kind's row names; and what is accepted comes back as it was.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
from trace_fakes import traced

from gpuedge.backends.base import Counters
from gpuedge.bench.trace import Trace
from gpuedge.capdb.entries import Probe
from gpuedge.capdb.restrict import Restrictions
from gpuedge.capdb.source import Envelope
from gpuedge.conformance.bench import RowFields
from gpuedge.conformance.runner import OpenTold, RefusalTold, RowTold, StartTold
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.errors import DeviceLostError
from gpuedge.core.identity import Identity
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.executors.answers import KeptAnswers
from gpuedge.farm.devices import Announcement, FarmDevice
from gpuedge.farm.tasks import FarmRun
from gpuedge.isolation.messages import RaisedError, Reply
from gpuedge.probing.protocol import (
    DemandTold,
    DevicesTold,
    DeviceTold,
    FailureTold,
    RowsTold,
    StepTold,
    VerdictTold,
)
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.probing.verdicts import Verdict
from gpuedge.safety.blocklist import MarkerFields
from gpuedge.safety.channel import Told
from gpuedge.safety.databases import Version


@dataclass(frozen=True)
class Kind:
    """A row of the table; paths leave out numbers of list items, and ``*`` is any.

    `good` has every field. `optional` may be missing and `null` may be null; in `free` any value
    may stand; objects at `open` may have other fields; `outside` are values out of range.
    """

    cls: type
    good: Any
    optional: str = ""
    null: str = ""
    free: str = ""
    open: str = ""
    outside: tuple[tuple[str, Any], ...] = ()


IDENTITY = Identity("vulkan", "GPU", "linux", *[1, 2, 3, "1.3", 4], *["x"] * 8)
ALL = Restrictions(
    *[frozenset({"a"}), True, *[frozenset({"a"})] * 3], limits={"m": 1}, is_demoted=True,
    entries=("a-1",),
)  # fmt: skip
CAPS_NULL = ("max_allocation_bytes", "has_fp16_storage", "has_int8_storage", "has_fp16_arithmetic",
             "max_texture_size")  # fmt: skip
CAPS_OPTIONAL = (*CAPS_NULL[1:], "device_class", "storages", "has_suballocation", "max_texel_*",
                 "subgroup_lanes", "max_texture_copies", "max_copied_elements", "max_outputs",
                 "dot_products", "has_texture_views", "map_texels", "is_finite_only",
                  "ruled_out")  # fmt: skip
CAPS = {**VULKAN_MINIMUM.to_dict(), **dict.fromkeys(CAPS_NULL[1:4], True), "max_texture_size": 1,
        "max_allocation_bytes": 1, "ruled_out": ["a"]}  # fmt: skip
COUNTS = Counters(1, 2, 3, 4).snapshot()
REPLY_NULL = ("counters", "error", "caps", "error.asked_by", "error.known", "error.hint",
              "error.reason")  # fmt: skip
ROW = ProbeRow(
    "vulkan:0", "vulkan", "ok", "ok", "because", "GPU", plain(IDENTITY), True, CAPS, "/a.json", "f",
    {"V": "/a"}, 0, 0.5, {"checks": [1]}, False, "gpu", "gpu", 1, ALL.to_dict(), "7 abc",
)  # fmt: skip
INFO = DeviceInfo(Candidate("b", "k", "f", {"V": "1"}), 0, IDENTITY, True, frozenset("a"), {"m": 1})
LOST = DeviceLostError("Gone.", asked_by="me", known="it died", hint="wait", reason="deadline")
EVENT = {"at": 0, "when": 0.5, "cpu": 0.5}
VERDICT = {"status": "ok", "code": "ok", "detail": "x", "evidence": {}}
CASE = {"id": "add/1", "op": "add", "status": "passed", "seconds": 0.5, "worst": 0.5,
        "code": "GE-301", "reason": "x"}  # fmt: skip
LONG = "x" * 2001
ENVELOPE = {
    "schema": "gpuedge.database/1", "engine_range": {"min": "0.1", "below": "2"}, "db_version": 6,
    "generated_at": "2026-11-23", "valid_until": "2027-11-23T09:57:02Z", "digest": "x",
    "files": {"names.json": "0" * 64}, "retired_ids": ["a-1"],
}  # fmt: skip

A_ROW = {
    "optional": "name identity* is_software caps key fingerprint env* index seconds evidence "
    "is_cached model physical route restrictions* database",
    "null": "identity.[!ano]* identity.apiVersion is_software index seconds route",
    "free": "evidence.* caps.*",
    "open": ". identity restrictions restrictions.limits caps evidence",
}  # fmt: skip
"""What a row of the probe report may be."""


def below(name: str, rules: dict[str, str], **more: str) -> dict[str, str]:
    """Return the rules of a record that is the field of another one, and those for the rest."""
    return {
        key: " ".join(name if p == "." else f"{name}.{p}" for p in text.split())
        + f" {more.get(key, '')}"
        for key, text in rules.items()
    }


KINDS = {
    "identity": Kind(
        Identity, plain(IDENTITY), "[!ano]* apiVersion", "[!ano]* apiVersion", open=".",
    ),
    "candidate": Kind(Candidate, plain(INFO.candidate), "env*"),
    "device": Kind(
        DeviceInfo, plain(INFO), "disabled limits* candidate.env* identity.[!ano]* "
        "identity.apiVersion", "identity.[!ano]* identity.apiVersion", open="identity limits",
    ),
    "caps": Kind(
        Caps, CAPS, " ".join(CAPS_OPTIONAL), " ".join(CAPS_NULL), open=".",
        outside=(("max_groups", [1, 2]), ("max_local_size", [1, 2, 3, 4])),
    ),
    "trace": Kind(
        Trace, plain(traced(np.random.default_rng(1), graphs=["relu-4k"], windows=1, runs=2)),
        "series.work*", open="series.work.flops",
        outside=(
            ("engine", "Bob's phone"), ("level", ""), ("version", "v" * 41), ("cores", 0),
            ("cores", 1 << 16), ("opening_ns", 0), ("series.graph", "bob-net"),
            ("series.compile_cpu_ns", 0), ("series.windows.sides", "xX"),
            ("series.windows.start_ns", -1), ("series.windows.took_ns", 0),
            ("series.windows.took_ns", 10**18 + 1), ("series.work.bytes_in", -1.0),
            ("series.work.launches", -1),
        ),
    ),
    "probe report": Kind(
        ProbeReport, {**ProbeReport((ROW,), "1", 0.5).to_dict(), "best": None, "devices": []},
        **below("tried", A_ROW, optional="seconds best devices", free="best devices*", open="."),
        outside=(("tried.status", "fine"),),
    ),
    "verdict": Kind(
        Verdict, plain(Verdict("b", "k", (ROW.to_dict(),), 1.5, 0.5)), free="rows.*", open="rows"
    ),
    "event": Kind(Told, EVENT),
    "step": Kind(
        StepTold, {**EVENT, "step": "run", "index": 1}, null="index", outside=(("step", "dance"),)
    ),
    "devices": Kind(
        DevicesTold,
        {**EVENT, "devices": [plain(DeviceTold(0, plain(IDENTITY), True, "m"))], "database": "x"},
        "database devices.model devices.identity.[!ano]* devices.identity.apiVersion",
        "database devices.model devices.identity.[!ano]* devices.identity.apiVersion",
        open="devices.identity",
    ),
    "demand": Kind(DemandTold, {**EVENT, "index": 1, "entries": ["a-1"]}),
    "failure": Kind(
        FailureTold, {**EVENT, **VERDICT}, "detail evidence", free="evidence.*", open="evidence",
        outside=(("status", "fine"), ("code", "gone")),
    ),
    "device's verdict": Kind(
        VerdictTold,
        {**EVENT, **VERDICT, "index": 0, "caps": {}, "restrictions": ALL.to_dict(), "seconds": 0.5},
        "detail evidence caps restrictions* seconds", "seconds",
        open="evidence caps restrictions restrictions.limits",
        outside=(("status", "fine"), ("code", "gone")),
    ),
    "rows": Kind(
        RowsTold, {**EVENT, "rows": [ROW.to_dict()]},
        **below("rows", A_ROW), outside=(("rows.status", "fine"),),
    ),
    "opened": Kind(
        OpenTold, {**EVENT, "device": "x:0", "identity": {}, "caps": {}, "versions": {}},
        open="identity caps versions",
    ),
    "refusal": Kind(
        RefusalTold, {**EVENT, "code": "GE-103", "what": "x", "known": "x", "hint": "x"},
        null="known hint",
    ),
    "case": Kind(StartTold, {**EVENT, "id": "add/1"}),
    "row of a case": Kind(
        RowTold, {**EVENT, "row": CASE}, "row.seconds row.worst row.code row.reason",
        "row.seconds row.worst", open="row", outside=(("row.status", "perfect"),),
    ),
    "conformance result": Kind(
        RowFields, CASE, "seconds worst code reason", "seconds worst", open=".",
        outside=(("status", "perfect"),),
    ),
    "reply": Kind(
        Reply, {"counters": COUNTS, "error": plain(RaisedError.of(LOST)), "caps": CAPS},
        " ".join([*REPLY_NULL, "counters.*", "error.reason.detail",
                  *(f"caps.{n}" for n in CAPS_OPTIONAL)]),
        " ".join([*REPLY_NULL, *(f"caps.{n}" for n in CAPS_NULL)]), open="caps",
        outside=(
            ("error.kind", "SystemExit"), ("error.what", LONG), ("error.hint", LONG),
            ("error.reason.code", "nonsense"),
        ),
    ),
    "envelope of a database": Kind(
        Envelope, ENVELOPE, "digest files.*", open=". files",
        outside=(
            ("db_version", 0), ("db_version", 1 << 53), ("valid_until", "soon"),
            ("engine_range.min", "99"), ("engine_range.below", "new"),
            ("files", {"../x.json": "0"}), ("files", {"database.json": "0"}),
            ("files", {f"a{i}.json": "0" for i in range(1001)}),
        ),
    ),
    "installed version": Kind(
        Version, plain(Version("7-ab", 7, "ab", "cd")), open=".",
        outside=(("folder", "../x"), ("folder", ""), ("digest", "a/b")),
    ),
    "probe of an entry": Kind(
        Probe, {"tests": ["standard"], "may": "confirm", "runs": 8}, "runs", open=".",
        outside=(("tests", ["luck"]), ("tests", []), ("runs", 1), ("may", "x")),
    ),
    "crash marker": Kind(
        MarkerFields, plain(MarkerFields("k", "n", 1.5, "w", "b", "c")), "why boot code", open="."
    ),
    "announcement of a worker": Kind(
        Announcement,
        plain(Announcement("1", "lab", {"rack": "3"}, (FarmDevice("x:0", plain(IDENTITY), "ab"),))),
        "labels.* devices.caps devices.identity.[!ano]* devices.identity.apiVersion",
        "devices.identity.[!ano]* devices.identity.apiVersion", open="labels devices.identity",
        outside=(("version", ""), ("serial", "x" * 200), ("devices.device", "")),
    ),
    "run of a farm": Kind(
        FarmRun, plain(FarmRun("x", "1", "full", ("a*",), 2, 9, "ab", 1, 0.5, "2026")),
        outside=(("parts", 0), ("count", 0), ("schema", "x")),
    ),
    "known answers of ONNX Runtime": Kind(
        KeptAnswers, plain(KeptAnswers((("MatMul", "u", "i", True),), 9.0, "ort 1", 1.5)),
        outside=(("wrong", [["MatMul", "u", "i"]]),),
    ),
}  # fmt: skip

OTHERS = {"null": None, "flag": True, "whole": 7, "number": 1.5, "text": "x", "list": [[]],
          "object": {"zz": 1}}  # fmt: skip
NO_NUMBERS, TOO_LARGE = (math.nan, math.inf, -math.inf, 1e40, 10**400), (1 << 64, -(1 << 64))


def kind_of(value: Any) -> str:
    names = {type(None): "null", bool: "flag", int: "whole", float: "number", str: "text",
             list: "list", dict: "object"}  # fmt: skip
    return names[type(value)]


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of everything in a record, of lists but their first item."""
    yield path
    items: Any = node.items() if isinstance(node, dict) else ()
    for key, inner in enumerate(node[:1]) if isinstance(node, list) else items:
        yield from places(inner, (*path, key))


def is_in(path: tuple[Any, ...], patterns: str) -> bool:
    name = named(path)
    return any(fnmatch(name, pattern) for pattern in patterns.split())


def named(path: tuple[Any, ...]) -> str:
    return ".".join(key for key in path if isinstance(key, str)) or "."


def changed(good: Any, path: tuple[Any, ...], change: Any) -> Any:
    """Return a copy; `change` is given what holds the value, and its key."""
    made = copy.deepcopy([good])
    inner: Any = made
    for key in (0, *path)[:-1]:
        inner = inner[key]
    change(inner, (0, *path)[-1])
    return made[0]


def mutants(kind: Kind) -> Iterator[tuple[str, Any]]:
    """Yield what must not be read as this kind, and how to call it."""
    for path in places(kind.good):
        name, value = named(path), kind.good
        for key in path:
            value = value[key]
        if is_in(path, kind.free):
            continue
        was = kind_of(value)
        wrong = [v for k, v in OTHERS.items() if k != was and (k, was) != ("whole", "number")]
        wrong += NO_NUMBERS if was in ("whole", "number") else ()
        wrong += TOO_LARGE if was == "whole" else ()
        wrong += [v for where, v in kind.outside if where == name]
        for bad in wrong:
            if bad is not None or not is_in(path, kind.null):
                yield f"{name}={bad!r:.30}", changed(kind.good, path, put(bad))
        if path and isinstance(path[-1], str) and not is_in(path, kind.optional):
            yield f"{name} missing", changed(kind.good, path, lambda inner, key: inner.pop(key))
        if was == "object" and not is_in(path, kind.open):
            yield f"{name}.zz", changed(kind.good, path, put({**value, "zz": [[]]}))


def put(value: Any) -> Callable[[Any, Any], None]:
    return lambda inner, key: inner.__setitem__(key, value)


@pytest.mark.parametrize("name", KINDS)
def test_every_field_of_a_record_is_checked(name: str) -> None:
    kind = KINDS[name]
    assert json.loads(json.dumps(kind.good)) == kind.good
    read(kind.cls, kind.good)
    accepted = []
    for what, bad in mutants(kind):
        try:
            read(kind.cls, bad)
        except UnfitError as error:
            assert len(str(error)) < 300
        else:
            accepted.append(what)
    assert accepted == []
