"""Judgements of devices: what is in force, what is demanded, and what a judgement shows."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, fields
from typing import Any

import pytest
from capdb.corpus import of_entries
from capdb_rows import PROBE, TODAY, adreno, entry, row
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb.entries import Entry, parse
from gpuedge.capdb.identity.subject import Subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.capdb.matching import FALSE, result
from gpuedge.core import config

BLOCK = {"disable_backend": True}
MAYBE = {"driver": {"scheme": "vk-raw", "intervals": [{"below": [9]}]}}


def judged(*entries: Entry, subject: Subject | None = None, **more: Any) -> Judgement:
    who = adreno() if subject is None else subject
    return lookup(who, database=of_entries(entries), today=TODAY, **more)


def blocks(number: int, **changes: Any) -> Entry:
    return entry(number, **{"effect": "crash", "action": BLOCK, **changes})


def asks(number: int, **changes: Any) -> Entry:
    return entry(number, **{"action": BLOCK, "probe": PROBE, **changes})


def test_crash_blocks_at_once() -> None:
    found = judged(blocks(1))
    assert found.blocks("vulkan") == "adreno-0001"
    assert found.restrictions.is_backend_off
    assert found.restrictions.entries == ("adreno-0001",)
    assert found.demands == ()


def test_level_is_blocked_by_its_own_entries_only() -> None:
    one = blocks(1, action={"disable_levels": ["gles31"]})
    found = judged(one, subject=adreno(level=None))
    assert found.blocks("gles31") == "adreno-0001"
    assert found.blocks("gles30") is None
    assert found.restrictions.levels == {"gles31"}


def test_adapters_of_webgpu_are_of_its_level() -> None:
    one = blocks(1, action={"disable_levels": ["wgpu"]})
    found = judged(one, subject=adreno(level=None))
    assert [found.blocks(name) for name in ("wgpu", "metal", "dx12")] == ["adreno-0001"] * 3
    assert found.blocks("vulkan") is None


@pytest.mark.parametrize(
    ("level", "action", "expected"),
    [
        ("vulkan", {"disable_levels": ["gles31"]}, "none"),
        ("gles31", {"disable_levels": ["gles31"]}, "applies"),
        (None, {"disable_levels": ["gles31"]}, "applies"),
        ("vulkan", {"disable_levels": ["gles31"], "demote": True}, "applies"),
        ("vulkan", {"disable_levels": ["gles31"], "disable_backend": True}, "applies"),
    ],
)
def test_entry_about_other_levels_only_comes_to_nothing(
    level: str | None, action: dict[str, Any], expected: str
) -> None:
    (row,) = judged(blocks(1, action=action), subject=adreno(level=level)).relevant
    assert row.becomes == expected
    asked = judged(asks(1, action=action), subject=adreno(level=level))
    assert bool(asked.demands) is (expected != "none")


def test_demand_restricts_nothing_until_it_is_answered() -> None:
    found = judged(asks(1), entry(2, action={"disable_features": ["suballocation"]}))
    assert [asdict(d) for d in found.demands] == [
        {
            "entry": "adreno-0001",
            "tests": ("standard", "kernels"),
            "runs": 64,
        }
    ]
    assert [d["may_clear"] for d in found.to_dict()["demands"]] == [True]
    assert found.blocks("vulkan") is None
    assert found.restrictions.features == {"suballocation"}
    passed, failed = found.after({"adreno-0001": True}), found.after({"adreno-0001": False})
    assert passed.blocks("vulkan") is None
    assert passed.restrictions == found.restrictions
    assert failed.blocks("vulkan") == "adreno-0001"
    assert failed.restrictions.entries == ("adreno-0001", "adreno-0002")
    assert passed.demands == failed.demands == ()
    assert found.unprobed().restrictions == failed.restrictions


def test_demands_are_answered_one_by_one() -> None:
    found = judged(asks(1), asks(2, action={"disable_features": ["fp16"]}), asks(3))
    some = found.after({"adreno-0001": True, "adreno-0002": False, "adreno-0099": False})
    assert [d.entry for d in some.demands] == ["adreno-0003"]
    assert some.restrictions.entries == ("adreno-0002",)
    rest = some.after({"adreno-0003": True, "adreno-0002": True})
    assert rest.restrictions.entries == ("adreno-0002",)
    assert rest.demands == ()


def test_unknown_entry_without_a_probe_gets_a_standard_one() -> None:
    (demanded,) = judged(entry(effect="leak", action=BLOCK, match=[MAYBE])).demands
    assert (demanded.tests, demanded.runs) == (("standard", "kernels"), 16)


def test_slow_entry_only_demotes() -> None:
    found = judged(entry(effect="slow", action={"demote": True}))
    assert found.restrictions.is_demoted
    assert found.blocks("vulkan") is None
    assert found.restrictions.features == frozenset()


@pytest.mark.parametrize(
    ("ignore", "left"), [((), [1, 2]), (("adreno-0001",), [2]), (("all",), []), (("x",), [1, 2])]
)
def test_ignored_entries_do_not_count(ignore: tuple[str, ...], left: list[int]) -> None:
    rows = (blocks(1), asks(2))
    for found in (judged(*rows, ignore=ignore), _configured(rows, ignore)):
        named = {*found.restrictions.entries, *(d.entry for d in found.demands)}
        assert named == {f"adreno-{i:04d}" for i in left}
        ignored = {f.id for f in found.findings if f.becomes == "ignored"}
        assert ignored == {"adreno-0001", "adreno-0002"} - named
        assert any("'x' is not in this database" in note for note in found.notes) is ("x" in ignore)


def _configured(rows: tuple[Entry, ...], ignore: tuple[str, ...]) -> Judgement:
    with config.config(ignore=ignore):
        return judged(*rows)


def test_settings_name_ids_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_IGNORE", "adreno-0002, adreno-0001")
    assert not judged(blocks(1), asks(2)).restrictions


def test_every_entry_is_listed_the_true_ones_first() -> None:
    rows = [
        entry(1, match=[{"os": ["linux"]}]),
        entry(2, match=[MAYBE]),
        entry(3),
        blocks(4),
    ]
    found = judged(*rows)
    assert [f.id for f in found.findings] == [f"adreno-000{i}" for i in (3, 4, 2, 1)]
    assert [f.result for f in found.findings] == ["true", "true", "unknown", "false"]
    assert [f.becomes for f in found.findings] == ["applies", "applies", "applies", "none"]
    assert [f.id for f in found.relevant] == ["adreno-0003", "adreno-0004", "adreno-0002"]
    short, long = found.to_dict(), found.to_dict(all=True)
    assert len(short["findings"]) == 3
    assert len(long["findings"]) == 4
    assert {**short, "findings": 0} == {**long, "findings": 0}


def test_judgement_is_written_as_json() -> None:
    record = judged(blocks(1), asks(2)).to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record["schema"] == "gpuedge.db.why/1"
    assert record["driver_versions"]["vk-adreno"]["version"] == [490, 0]
    assert "490" in record["driver_versions"]["vk-adreno"]["text"]
    assert record["blocked_by"] == "adreno-0001"
    assert record["subject"]["family"] == "adreno"
    assert record["restrictions"]["is_backend_off"] is True
    assert record["findings"][0] == {
        "id": "adreno-0001",
        "result": "true",
        "decided_by": "match[0]",
        "becomes": "applies",
        "effect": "crash",
        "summary": row()["summary"],
    }


@pytest.mark.parametrize(
    "record",
    [{}, {"api": 3}, {"GL_RENDERER": ["x"]}, {"api": "vulkan", "vendorID": "0xzz"}, {1: {2: 3}}],
)
def test_any_record_is_judged(record: dict[Any, Any]) -> None:
    found = lookup(record, database=of_entries([blocks(1), asks(2)]), today=TODAY)
    json.dumps(found.to_dict(all=True))
    assert len(found.findings) == 2
    assert found.blocks("vulkan") is None  # nothing is known of the maker: probe, do not refuse


def test_database_in_use_is_asked_by_default() -> None:
    found = lookup({"api": "vulkan", "deviceName": "Nothing in particular"})
    assert found.database_version == found.database.version >= 1
    assert len(found.findings) == len(found.database)


MATCHES: list[dict[str, Any]] = [
    {"vendor": ["qualcomm"]},
    {"vendor": ["arm"], "api": ["gles"]},
    {"family": ["adreno"], "model": {"below": 640}},
    {"family": ["mali-bifrost", "adreno"], "os": ["linux", "android"]},
    {"model": {"from": 630, "below": 631}},
    {"soc": ["sdm845", "x"]},
    {"soc": ["y"]},
    {"brand": ["google"]},
    {"device": ["z"]},
    {"android_sdk": {"below": 28}},
    {"security_patch": {"from": "2020-01-01"}},
    {"level": ["gles31"], "api": ["vulkan"]},
    {"layer": ["angle", "native"]},
    {"driver_id": [8], "mesa": False},
    {"process_bits": [32], "layer": ["zink"]},
    {"name": {"prefix": ["adreno"]}},
    {"driver": {"scheme": "vk-adreno", "intervals": [{"below": [500]}]}},
]
EFFECTS = ["crash", "hang", "leak", "feature_broken", "unexplained"]
ACTIONS: list[dict[str, Any]] = [
    BLOCK,
    {"disable_levels": ["vulkan"]},
    {"disable_features": ["fp16", "suballocation"]},
    {"disable_storages": ["rgba16f"], "limits": {"max_outputs": 2}},
    {"disable_kernels": ["matmul_tile"], "limits": {"max_outputs": 3}},
    {"demote": True},
]


@st.composite
def rows(draw: st.DrawFn) -> list[Entry]:
    size = draw(st.integers(1, 6))
    pick = st.lists(st.sampled_from(MATCHES), min_size=1, max_size=2)
    return [
        parse(
            row(
                i,
                match=draw(pick),
                effect=draw(st.sampled_from(EFFECTS)),
                action=draw(st.sampled_from(ACTIONS)),
                probe=PROBE,
                state=draw(st.sampled_from(["active", "active", "canary"])),
            )
        )
        for i in range(1, size + 1)
    ]


KNOWN = {f.name: getattr(adreno(), f.name) for f in fields(Subject)}
OTHERS: dict[str, list[Any]] = {
    "apis": [None, frozenset(), frozenset({"gles"}), frozenset({"wgpu", "vulkan"})],
    "level": [None, "gles31"],
    "os": [None, "linux", "windows"],
    "layers": [None, ("zink",), ("angle", "venus")],
    "vendor": [None, "arm", "nvidia"],
    "family": [None, "mali-bifrost"],
    "model": [None, 640, 76],
    "vendor_id": [None, 0, 0x13B5],
    "soc": [None, "X", ""],
    "brand": [None, "GOOGLE"],
    "device": [None, "z"],
    "android_sdk": [None, 26],
    "security_patch": [None],
    "driver_id": [None, 2],
    "process_bits": [None, 32],
}


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    names = draw(st.lists(st.sampled_from(sorted(OTHERS)), max_size=5, unique=True))
    return adreno(**{name: draw(st.sampled_from(OTHERS[name])) for name in names})


@settings(max_examples=100, deadline=None)
@given(rows(), subjects())
def test_entries_of_other_makers_are_left_out_only_if_false(
    entries: list[Entry], subject: Subject
) -> None:
    found = {f.id for f in judged(*entries, subject=subject).relevant}
    assert found == {e.id for e in entries if result(e, subject)[0] is not FALSE}


@settings(max_examples=60, deadline=None)
@given(rows(), subjects(), st.integers(0, 1 << 16))
def test_order_of_entries_changes_nothing(
    entries: list[Entry], subject: Subject, seed: int
) -> None:
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    one, other = judged(*entries, subject=subject), judged(*shuffled, subject=subject)
    assert one == other
    for name in ("vulkan", "gles31"):
        assert one.blocks(name) == other.blocks(name)
    assert one.to_dict(all=True) == other.to_dict(all=True)


@settings(max_examples=60, deadline=None)
@given(rows(), subjects(), st.sampled_from([True, False, None]))
def test_one_entry_more_enables_nothing(
    entries: list[Entry], subject: Subject, answer: bool | None
) -> None:
    def state(found: Judgement) -> Judgement:
        return found if answer is None else found.after({d.entry: answer for d in found.demands})

    less, more = (state(judged(*e, subject=subject)) for e in (entries[:-1], entries))
    for name in ("levels", "features", "kernels", "storages"):
        assert getattr(more.restrictions, name) >= getattr(less.restrictions, name)
    assert more.restrictions.is_backend_off >= less.restrictions.is_backend_off
    assert all(
        more.restrictions.limits[name] <= most for name, most in less.restrictions.limits.items()
    )
    assert {d.entry for d in more.demands} >= {d.entry for d in less.demands}
    for name in ("vulkan", "gles31"):
        assert (less.blocks(name) is None) or (more.blocks(name) is not None)


@settings(max_examples=100, deadline=None)
@given(rows(), subjects())
def test_passing_never_restricts_more_than_failing(entries: list[Entry], subject: Subject) -> None:
    found = judged(*entries, subject=subject)
    passed = found.after({d.entry: True for d in found.demands})
    failed = found.unprobed()
    assert set(passed.restrictions.entries) == set(found.restrictions.entries)
    assert set(failed.restrictions.entries) == {
        *found.restrictions.entries,
        *(d.entry for d in found.demands),
    }
