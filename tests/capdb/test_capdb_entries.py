"""Reading entries: all that the schema allows, and nothing that would be misunderstood."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import daily
import jsonschema
import pytest
from capdb.corpus import of_entries
from capdb_rows import PROBE, ROW, TODAY, adreno, row

from gpuedge.capdb import entries
from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity.versions import SCHEMES
from gpuedge.capdb.judgement import lookup
from gpuedge.capdb.restrict import apply
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import DriverError

ROOT = Path(__file__).resolve().parents[2] / "capability_db"
SCHEMA = json.loads((ROOT / "entries.schema.json").read_text(encoding="utf-8"))
VALID = jsonschema.Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": "#/$defs/entry"})

FULL = row(
    2,
    match=[
        {
            "api": ["vulkan"], "level": ["vulkan"], "os": ["android"],
            "android_sdk": {"from": 28, "below": 31}, "security_patch": {"below": "2021-05-05"},
            "layer": ["native", "angle"], "soc": ["SDM845"], "brand": ["google"],
            "device": ["blueline"], "vendor": ["qualcomm"], "driver_id": [8], "mesa": False,
            "family": ["adreno"], "model": {"from": 600}, "name": {"prefix": ["adreno "]},
            "device_ids": [
                "0x1", {"value": "0x2", "mask": "0xff"}, {"first": "0x3", "last": "0x4"},
            ],
            "driver": {
                "scheme": "vk-adreno", "intervals": [{"from": [490], "below": [512, 1]}],
                "builds": ["abc"], "built": {"from": "2020-02-29"},
            },
            "process_bits": [64],
        }
    ],
    except_=[{"model": {"below": 640}}],
    on_unknown="skip",
    action={
        "disable_backend": True, "disable_levels": ["vulkan"], "disable_features": ["fp16"],
        "disable_kernels": ["matmul_tile"], "disable_storages": ["rgba16f"],
        "limits": {"max_invocations": 64}, "demote": True,
    },
    probe=PROBE,
    evidence=[
        {
            "type": "imported_rule", "fact": "Q001", "project": "p", "commit": "0123abc",
            "path": None, "rule": "r", "bugs": [], "case": "c", "seen": "2026-01-01",
        }
    ],
    supersedes=["adreno-0001"],
)  # fmt: skip
"""An entry with every field there is."""

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2048, "", "x", "0x1g", "2026-13-01", "Q1", [], ["x"], [1],
    ["x", "x"], [[]], {}, {"from": 1}, {"zz": 1}, [{}], "crash", "slow", "y" * 500, [None],
    {"from": "2020-01-01"}, {"prefix": "a"}, 1.5,
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a record."""
    found = [path] if path else []
    if not isinstance(node, (dict, list)):
        return found
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
        found += places(inner, (*path, key))
    return found


def mutant(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(record)
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    if value == "delete":
        del inner[path[-1]]
    elif value == "double" and isinstance(inner, list):
        inner.append(inner[path[-1]])
    elif value == "rename" and isinstance(inner, dict):
        inner["renamed"] = inner.pop(path[-1])
    else:
        inner[path[-1]] = copy.deepcopy(value)
    return made


def is_read(record: Any) -> bool:
    """Say whether an entry is read; one that is must be judged and applied without an error."""
    try:
        made = parse(record)
    except ValueError as error:
        assert str(error)
        return False
    for who in (adreno(), adreno(vendor=None, vendor_id=None, family=None, versions={})):
        found = lookup(who, database=of_entries([made]), today=TODAY, ignore=())
        json.dumps(found.unprobed().to_dict(all=True))
        try:
            apply(CAPS, found.unprobed().restrictions)
        except DriverError as error:
            assert error.reason is not None and error.reason.code == "quirk"
    return True


CAPS = replace(VULKAN_MINIMUM, storages=("buffer",))


@pytest.mark.parametrize("days", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("base", [ROW, FULL], ids=["plain", "full"])
def test_all_that_the_schema_allows_is_read_and_nothing_raises(
    base: dict[str, Any], days: int
) -> None:
    """One in `days` of the changes, others on the next day."""
    assert is_read(base)
    tried = [(p, v) for p in places(base) for v in (*ODD, "delete", "double", "rename")]
    assert len(tried) > 500
    missed = []
    for path, value in tried[daily.turn(days) :: days]:
        record = mutant(base, path, value)
        if not is_read(record) and VALID.is_valid(record):
            missed.append((path, value))
    assert missed == []


def test_two_mutations_at_once_raise_nothing_either() -> None:
    random.seed(5)
    spots = places(FULL)
    for _ in range(100):
        one = mutant(FULL, random.choice(spots), random.choice(ODD))
        is_read(mutant(one, random.choice(places(one)), random.choice([*ODD, "delete"])))


@pytest.mark.parametrize("place", ["match", "except"])
def test_condition_that_is_not_known_is_refused_and_never_dropped(place: str) -> None:
    record = copy.deepcopy(FULL)
    record[place][0]["phase_of_the_moon"] = ["full"]
    with pytest.raises(ValueError, match="no condition 'phase_of_the_moon'"):
        parse(record)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("state",), "live"), (("on_unknown",), "maybe"), (("review", "on_expiry"), "never"),
        (("action", "limits"), {"max_wishes": 3}), (("action", "limits"), {"max_outputs": "3"}),
        (("action", "limits"), {"max_outputs": 0}),
        (("action", "limits"), {"max_texel_buffers": -1}),
        (("action", "limits"), {"max_texture_copies": -1}),
        (("action", "disable_levels"), "vulkan"), (("action", "undo"), True),
        (("probe", "tests"), ["luck"]), (("probe", "runs"), "many"),
        (("match", 0, "driver", "sheme"), "x"), (("match", 0, "api"), "vulkan"),
        (("match",), []), (("match", 0), {}),
    ],
)  # fmt: skip
def test_words_that_decide_what_happens_are_known(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(mutant(FULL, path, value))


def test_words_are_those_of_the_schema() -> None:
    defs = SCHEMA["$defs"]
    match, action = defs["match"]["properties"], defs["action"]["properties"]
    expected = {
        "family": (entries.FAMILIES, match["family"]["items"]["enum"]),
        "scheme": (SCHEMES, defs["scheme"]["enum"]),
        "limit": (entries.LIMITS, action["limits"]["properties"]),
        "test": (entries.TESTS, defs["probe"]["properties"]["tests"]["items"]["enum"]),
        "state": (entries.STATES, defs["entry"]["properties"]["state"]["enum"]),
        "condition": (entries.CONDITIONS, match),
    }
    for name, (ours, theirs) in expected.items():
        assert set(ours) == set(theirs), name


def test_runs_of_a_probe_are_bounded() -> None:
    made = parse(mutant(FULL, ("probe", "runs"), 10**9))
    assert made.demand.runs == entries.MAX_RUNS


@pytest.mark.parametrize("record", [None, 3, "x", [], [{}], {}, {"id": {}}, {1: 2}])
def test_what_is_no_entry_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(record)


@pytest.mark.parametrize(
    ("effect", "expected"),
    [("crash", "apply"), ("hang", "apply"), ("corrupt_pipeline_cache", "apply"), ("slow", "skip")]
    + [(e, "probe") for e in ("wrong_result", "leak", "feature_broken", "unexplained")],
)
def test_default_where_it_is_not_known_whether_an_entry_matches(effect: str, expected: str) -> None:
    assert parse(row(effect=effect)).on_unknown == expected


def test_all_that_an_entry_says_is_kept() -> None:
    made = parse(FULL)
    match, action = made.match[0], made.action
    assert match.get("soc") == {"sdm845"}
    assert match.get("driver").intervals[0] == entries.Range((490,), (512, 1))
    assert match.get("device_ids") == entries.DeviceIds(((1, 1), (3, 4)), ((2, 255),))
    assert match.get("layer") == {"native", "angle"}
    assert parse(ROW).match[0].get("layer") == {"native"}
    assert action.limits == {"max_invocations": 64}
    assert (action.is_backend_off, action.is_demoted, action.forbids_a_level) == (True, True, True)
    assert made.demand.runs == 64
    assert made.source is FULL
    assert list(match) == list(entries.CONDITIONS)


def entry_files() -> list[Path]:
    return sorted((ROOT / "entries").glob("*/*.json"))


@pytest.mark.parametrize("path", entry_files(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_entries_of_the_database_are_read_as_the_schema_says(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    for record in document["entries"]:
        parse(record, document["api"])
