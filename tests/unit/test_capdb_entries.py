"""Reading entries: agreement with the JSON Schema, and what it cannot say."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from capdb_rows import PROBE, ROW, row

from gpuedge.capdb import fields
from gpuedge.capdb.entries import parse
from gpuedge.capdb.reading import ID_WORDS

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
            "family": ["adreno"], "model": {"from": 600}, "renderer": "^adreno.*$",
            "device_ids": [
                "0x1", {"value": "0x2", "mask": "0xff"}, {"first": "0x3", "last": "0x4"},
            ],
            "driver": {
                "scheme": "vk-adreno", "intervals": [{"from": [490], "below": [512, 1]}],
                "builds": ["abc"], "built": {"from": "2020-02-29"},
            },
            "without_feature": ["fp16"], "device_type": ["INTEGRATED_GPU"],
        }
    ],
    except_=[{"model": {"below": 640}}],
    on_unknown="skip",
    action={
        "disable_backend": True, "disable_levels": ["vulkan"], "disable_features": ["fp16"],
        "disable_kernels": ["matmul_tile"], "disable_storages": ["rgba16f"],
        "limits": {"max_invocations": 64}, "demote": True, "note": "A note of some length.",
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
    {"from": "2020-01-01"},
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


def refusal(record: Any) -> str:
    try:
        parse(record)
    except ValueError as error:
        return str(error)
    return ""


STRICTER = ("it is empty: from must be", "is no date", ".renderer: ", "last is less than first")
"""Refusals of what JSON Schema cannot say."""


@pytest.mark.parametrize("base", [ROW, FULL], ids=["plain", "full"])
def test_every_mutant_is_read_exactly_if_the_schema_allows_it(base: dict[str, Any]) -> None:
    assert not refusal(base)
    tried = [(p, v) for p in places(base) for v in (*ODD, "delete", "double", "rename")]
    differ = []
    for path, value in tried:
        record = mutant(base, path, value)
        why, is_allowed = refusal(record), VALID.is_valid(record)
        is_stricter = is_allowed and any(text in why for text in STRICTER)
        if is_allowed == bool(why) and not is_stricter:
            differ.append((path, value, why))
    assert len(tried) > 500
    assert differ == []


def test_pairs_of_mutations_agree_too() -> None:
    random.seed(5)
    spots = places(FULL)
    for _ in range(400):
        one = mutant(FULL, random.choice(spots), random.choice(ODD))
        other = mutant(one, random.choice(places(one)), random.choice([*ODD, "delete"]))
        if not refusal(other):
            assert VALID.is_valid(other)


def test_words_are_those_of_the_schema() -> None:
    defs = SCHEMA["$defs"]
    match, action = defs["match"]["properties"], defs["action"]["properties"]
    expected = {
        "api": (fields.APIS, match["api"]["items"]["enum"]),
        "level": (fields.LEVELS, defs["level"]["enum"]),
        "os": (fields.OPERATING_SYSTEMS, match["os"]["items"]["enum"]),
        "layer": (fields.LAYERS, match["layer"]["items"]["enum"]),
        "vendor": (fields.VENDORS, match["vendor"]["items"]["enum"]),
        "family": (tuple(fields.FAMILIES), match["family"]["items"]["enum"]),
        "scheme": (fields.SCHEMES, defs["scheme"]["enum"]),
        "feature": (fields.FEATURES, defs["feature"]["enum"]),
        "storage": (fields.STORAGES, action["disable_storages"]["items"]["enum"]),
        "limit": (fields.LIMITS, list(action["limits"]["properties"])),
        "test": (fields.TESTS, defs["probe"]["properties"]["tests"]["items"]["enum"]),
        "state": (fields.STATES, defs["entry"]["properties"]["state"]["enum"]),
        "effect": (fields.EFFECTS, defs["entry"]["properties"]["effect"]["enum"]),
        "type": (fields.KINDS_OF_DEVICE, match["device_type"]["items"]["enum"]),
    }
    for name, (ours, theirs) in expected.items():
        assert list(ours) == theirs, name
    assert defs["id"]["pattern"] == f"^({'|'.join(ID_WORDS)})-[0-9]{{4}}$"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("match", 0, "renderer"), "^(a+)+$", r"match\[0\]\.renderer: a group may not be repeated"),
        (("match", 0, "model"), {"from": 5, "below": 5}, r"match\[0\]\.model: it is empty"),
        (("match", 0, "driver", "intervals", 0), {"from": [9], "below": [8, 9]}, "it is empty"),
        (("match", 0, "driver", "intervals", 0), {"from": [9], "below": [9, 0]}, "it is empty"),
        (("match", 0, "android_sdk"), {"from": 1.0}, r"match\[0\]\.android_sdk\.from: .* whole"),
        (("review", "review_by"), "2026-02-30", r"review\.review_by: '2026-02-30' is no date"),
        (("match", 0, "device_ids", 2, "last"), "0x2", r"device_ids\[2\]: last is less than first"),
        (("match", 0, "zz"), 1, r"match\[0\]\.zz: there is no such field"),
        (("action", "limits", "zz"), 1, r"action\.limits\.zz: there is no such field"),
        (("summary",), "short", "summary: it must be text of 20 to 300"),
        (("id",), "adreno-1", "id: 'adreno-1' is no id"),
        (("id",), "adreno-0001\n", "id: .* is no id"),
        (("rev",), True, "rev: it must be a whole number"),
        (("action",), [], "action: it is no record"),
    ],
)
def test_refusal_names_the_place(path: tuple[Any, ...], value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(mutant(FULL, path, value))


def test_severe_slow_and_unexplained_are_bound() -> None:
    block = {"disable_backend": True}
    with pytest.raises(ValueError, match="slow may not be disabled"):
        parse(row(effect="slow", action=block))
    for effect in ("wrong_result", "unexplained"):
        with pytest.raises(ValueError, match="without a probe"):
            parse(row(effect=effect, action=block))
        parse(row(effect=effect, action=block, probe=PROBE))


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
    assert match.soc == {"sdm845"}
    assert match.driver is not None
    assert match.driver.intervals[0] == fields.Range((490,), (512, 1))
    assert match.device_ids == fields.DeviceIds(((1, 1), (3, 4)), ((2, 255),))
    assert match.layer == {"native", "angle"}
    assert parse(ROW).match[0].layer == {"native"}
    assert action.limits == (("max_invocations", 64),)
    assert (action.disable_backend, action.demote, action.blocks) == (True, True, True)
    assert (made.probe.runs if made.probe else 0) == 64
    assert made.supersedes == ("adreno-0001",)
    assert made.source is FULL
    assert len({name for name, _ in match.asked}) == len(FULL["match"][0])


def entry_files() -> list[Path]:
    return sorted((ROOT / "entries").glob("*/*.json"))


@pytest.mark.parametrize("path", entry_files(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_entries_of_the_database_are_read_as_the_schema_says(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    for record in document["entries"]:
        parse(record, document["api"])
