"""Each rule of the lint: an entry that breaks it is found, and one beside it that does not is not.

The faults are those that public lists of bad drivers really had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import capdb_folders as made
import pytest
from capdb import checks_entry
from capdb.lint import fitness, lint
from capdb.rules import RULES

from gpuedge.capdb.identity.versions import SCHEMES
from gpuedge.core.errors import DatabaseError
from gpuedge.plan import library

ROOT = Path(__file__).resolve().parents[2]


def found(place: Path, entries: list[dict[str, Any]], **options: Any) -> dict[str, list[str]]:
    """Return the texts of the problems in a folder of these entries, by rule."""
    problems = lint(
        made.folder(place, entries, **options), today=made.TODAY, kernels={"conv2d_map"}
    )
    rules: dict[str, list[str]] = {}
    for problem in problems:
        rules.setdefault(problem.rule, []).append(problem.text)
    return rules


def vulkan(**more: Any) -> dict[str, Any]:
    return {"api": ["vulkan"], "vendor": ["qualcomm"], **more}


def driver(*intervals: dict[str, Any], scheme: str = "vk-adreno") -> dict[str, Any]:
    return {"scheme": scheme, "intervals": list(intervals)}


def second(**fields: Any) -> dict[str, Any]:
    """Return another entry of the same device, about another fact."""
    evidence = [{**made.ENTRY["evidence"][0], "fact": "Q002"}]
    return made.entry(**({"id": "adreno-0002", "evidence": evidence} | fields))


BLOCKED = {"disable_backend": True}
PROBE = {"tests": ["standard", "kernels"], "runs": 64, "may": "confirm_and_clear"}
REVIEW = made.ENTRY["review"]
LOW, HIGH = {"from": [512, 400], "below": [512, 480]}, {"from": [512, 480], "below": [512, 500]}

BROKEN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "schema": ([made.entry(colour="red")], [made.entry()]),
    "duplicate-id": ([made.entry(), made.entry()], [made.entry()]),
    "misplaced": ([made.entry({"vendor": ["arm"], "family": None})], [made.entry()]),
    "must-match": ([made.entry({"device": ["a phone"]})], [made.entry()]),
    "must-not-match": (
        [made.entry({"vendor": None, "family": None, "model": None})],
        [made.entry()],
    ),
    "shadowed": (
        [
            made.entry(match=[vulkan()], action=BLOCKED, probe=PROBE),
            second(action=BLOCKED, probe={**PROBE, "runs": 4}),
        ],
        # The wide one may be cleared by a test, and the narrow one asks for more runs.
        [
            made.entry(match=[vulkan()], action=BLOCKED, probe=PROBE),
            second(action=BLOCKED, probe={**PROBE, "runs": 65}),
        ],
    ),
    "duplicate": (
        [made.entry(), second()],
        [made.entry(), second(action={"disable_features": ["suballocation"]})],
    ),
    "contradictory": (
        [made.entry(action=BLOCKED, effect="crash"), second(action=BLOCKED, probe=PROBE)],
        [made.entry(action=BLOCKED, effect="crash"), second(action={"demote": True})],
    ),
    "overlapping-intervals": (
        [made.entry({"driver": driver(LOW, {"from": [512, 479], "below": [512, 500]})})],
        [made.entry({"driver": driver(LOW, {"from": [512, 481], "below": [512, 500]})})],
    ),
    "vendor-scheme": (
        [made.entry({"driver": driver({"below": [40]}, scheme="vk-arm")})],
        [made.entry({"driver": driver({"below": [513]})})],
    ),
    "summary-differs": (
        [made.entry(summary="Adreno 619 and 620 give wrong numbers in float16, always.")],
        [made.entry(summary="Adreno 620, of the 6xx, gives wrong numbers in float16.")],
    ),
    "missing-evidence": (
        [made.entry(evidence=[{"type": "imported_rule", "fact": "Q001", "project": "a/b"}])],
        [made.entry()],
    ),
    "expired-review": (
        [made.entry(review={**REVIEW, "review_by": "2026-11-20"})],
        [made.entry(review={**REVIEW, "review_by": "2026-11-21"})],
    ),
    "unknown-kernel": (
        [made.entry(action={"disable_kernels": ["conv2d_typo"]})],
        [made.entry(action={"disable_kernels": ["conv2d_map"]})],
    ),
    "supersedes": (
        [made.entry(supersedes=["adreno-0002"]), second(action={"demote": True})],
        [made.entry()],
    ),
}
"""Per rule entries that break it, and entries beside them that do not."""


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: str, tmp_path: Path) -> None:
    bad, good = BROKEN[rule]
    assert rule in found(tmp_path / "bad", bad)
    # The good ones break no rule at all: each rule stays silent on the good sides of all others.
    facts = ["Q001-Q002"] if len(good) > 1 else ["Q001"]
    assert found(tmp_path / "good", good, facts=facts) == {}


def test_every_rule_has_a_test_here() -> None:
    elsewhere = {
        "no-fixture",
        "over-broad",
        "double-fact",
        "missing-fact",
        "stale-database",
        "refused",
    }
    assert set(BROKEN) | elsewhere == set(RULES)


@pytest.mark.parametrize(
    "change",
    [
        {"name": {"prefix": ["Adreno (TM) 6"]}},
        {"name": {"prefix": ["adreno.*"]}},
        {"device_ids": ["6020001"]},
        {"device_ids": [{"first": "0x1", "last": "2"}]},
        {"model": {"from": 5, "below": 5}},
        {"driver": driver({"from": [9], "below": [8, 9]})},
        {"security_patch": {"below": "2026-02-30"}},
    ],
)
def test_what_the_schema_or_the_calendar_forbids_is_told(
    change: dict[str, Any], tmp_path: Path
) -> None:
    assert "schema" in found(tmp_path, [made.entry(change)])


def test_broken_entries_are_told_all_at_once(tmp_path: Path) -> None:
    bad = [made.entry(colour="red"), second(match=[vulkan(moon="full")])]
    assert len(found(tmp_path, bad)["schema"]) == 2


def test_a_device_id_in_the_summary_is_compared_with_the_condition(tmp_path: Path) -> None:
    # As in a public list, whose text says 0x1066 and whose condition 0x0166.
    wrong = made.entry({"device_ids": ["0x166"]}, summary="The device 0x1066 gives wrong numbers.")
    assert "summary-differs" in found(tmp_path / "a", [wrong])
    right = made.entry({"device_ids": ["0x1066"]}, summary=wrong["summary"])
    assert "summary-differs" not in found(tmp_path / "b", [right])


def test_conditions_that_exclude_each_other_are_contradictory(tmp_path: Path) -> None:
    cases = {
        "families": made.entry({"family": ["mali-bifrost"]}),
        "exceptions": {**made.entry(), "except": [vulkan()]},
        "system": made.entry({"os": ["linux"], "android_sdk": {"from": 30}}),
    }
    for name, case in cases.items():
        assert "contradictory" in found(tmp_path / name, [case]), name
    harmless = {**made.entry(), "except": [vulkan(device=["x"])]}
    assert "contradictory" not in found(tmp_path / "harmless", [harmless])


def test_exact_touching_intervals_should_be_one(tmp_path: Path) -> None:
    touching = [made.entry({"driver": driver(LOW, HIGH)})]
    assert found(tmp_path, touching)["overlapping-intervals"] == [
        "match[0].driver: [512.400, 512.480) and [512.480, 512.500)"
    ]


def test_what_differs_is_not_shadowed(tmp_path: Path) -> None:
    """Wider in no way, or less strict: each is there for a reason."""
    wide = made.entry(match=[vulkan()], effect="crash", action=BLOCKED, on_unknown="probe")
    pairs = {
        "exception": ({**wide, "except": [vulkan(model={"from": 620})]}, second()),
        "weaker": ({**wide, "action": {"demote": True}}, second()),
        "unsure": (wide, second(effect="crash", on_unknown="apply")),
    }
    for name, pair in pairs.items():
        rules = found(tmp_path / name, list(pair), facts=["Q001-Q002"])
        assert "shadowed" not in rules, name
    strict = {**wide, "on_unknown": "apply"}
    assert "shadowed" in found(tmp_path / "strict", [strict, second()], facts=["Q001-Q002"])


def test_schemes_are_known_to_the_rule_about_them() -> None:
    assert set(checks_entry.SPOKEN_BY) | set(checks_entry.ONLY_ON) <= set(SCHEMES)


def test_a_scheme_that_only_one_maker_speaks_needs_its_name(tmp_path: Path) -> None:
    # Without it, every device of another maker would be unsure, and might be refused for it.
    anyone = made.entry({"vendor": None, "family": None, "driver": driver({"below": [513]})})
    (text,) = found(tmp_path, [anyone])["vendor-scheme"]
    assert "whoever made it" in text


def test_an_entry_that_blocks_many_is_over_broad(tmp_path: Path) -> None:
    place = made.folder(tmp_path, [made.entry(match=[vulkan()], action=BLOCKED, probe=PROBE)])
    rows = [{**made.IDENTITIES[0], "id": f"D{n:03d}"} for n in (1, 11, 12, 13, 14)]
    rows += [{**made.IDENTITIES[1], "id": f"D{n:03d}"} for n in (2, 21, 22, 23, 24, 25)]
    (place / "fixtures/identities.json").write_text(json.dumps(rows))
    (problem,) = lint(place, today=made.TODAY)
    assert (problem.rule, problem.severity) == ("over-broad", "warning")
    assert "5 of 11" in problem.text
    assert fitness(place) == []  # a warning does not keep it from being published
    (place / "fixtures/identities.json").write_text(json.dumps(rows[1:]))
    assert [p.rule for p in lint(place, today=made.TODAY)] == ["no-fixture"]  # 4 of 10


def test_every_entry_has_a_device_that_it_matches_and_a_near_miss(tmp_path: Path) -> None:
    pair = {"match": "D001", "near": {"deviceName": "Mali-G76", "vendorID": "0x13b5"}}
    wrong = {
        "none": {"adreno-0009": pair},
        "unknown device": {"adreno-0001": {**pair, "match": "D999"}},
        "no near miss": {"adreno-0001": {**pair, "near": {}}},
        "far away": {"adreno-0001": {**pair, "near": dict.fromkeys("abcde", 1)}},
    }
    for name, pairs in wrong.items():
        assert "no-fixture" in found(tmp_path / name, [made.entry()], pairs=pairs), name


def test_a_note_keeps_its_id_and_its_facts(tmp_path: Path) -> None:
    place = made.folder(tmp_path, [made.entry()], facts=["Q001-Q002"])
    note = {"id": "adreno-0002", "evidence": [{"type": "imported_rule", "fact": "Q002"}]}
    file = place / "notes/vulkan/qualcomm.json"
    file.parent.mkdir(parents=True)
    for row, rules in ((note, []), ({**note, "id": "adreno-0001"}, ["duplicate-id"])):
        file.write_text(json.dumps({"schema": "gpuedge.notes/1", "notes": [row]}))
        assert [p.rule for p in lint(place, today=made.TODAY)] == rules


def test_facts_are_used_or_left_out_and_never_both(tmp_path: Path) -> None:
    good = found(tmp_path / "a", [made.entry()], facts=["Q001-Q002"], left_out=["Q002"])
    assert good == {}
    both = found(tmp_path / "b", [made.entry()], facts=["Q001"], left_out=["Q001"])
    assert list(both) == ["double-fact"]
    twice = found(tmp_path / "c", [made.entry()], facts=["Q001-Q002"], left_out=["Q002", "Q002"])
    assert list(twice) == ["double-fact"]
    neither = found(tmp_path / "d", [made.entry()], facts=["Q001-Q003", "Q009"])
    assert list(neither) == ["missing-fact"]
    assert "3 of 4 facts" in neither["missing-fact"][0]


def test_a_database_that_is_past_its_time_is_told(tmp_path: Path) -> None:
    place = made.folder(tmp_path, [made.entry()])
    for day, rules in (("2026-11-20", ["stale-database"]), ("2026-11-21", [])):
        (place / "database.json").write_text(json.dumps({"valid_until": f"{day}T00:00:00Z"}))
        assert [p.rule for p in lint(place, today=made.TODAY)] == rules


def test_files_that_cannot_be_read_are_told_beside_the_others(tmp_path: Path) -> None:
    place = made.folder(tmp_path, [made.entry()], file="vulkan/qualcomm")
    (place / "entries/vulkan/arm.json").write_text("{")
    (place / "entries/vulkan/intel.json").write_text('{"schema": "gpuedge.entries/1"}')
    problems = lint(place, today=made.TODAY)
    assert [(p.rule, p.file) for p in problems] == [
        ("schema", "entries/vulkan/arm.json"),
        ("schema", "entries/vulkan/intel.json"),
    ]
    assert all(str(tmp_path) not in p.text for p in problems)
    (place / "fixtures/identities.json").write_text("[1]")
    with pytest.raises(DatabaseError, match="cannot be used"):
        lint(place)


def test_the_packaged_database_is_fit_to_be_published() -> None:
    kernels = {variant.id for variant in library.variants()}
    found = lint(ROOT / "capability_db", today=made.TODAY, kernels=kernels)
    assert [str(problem) for problem in found if problem.severity == "error"] == []
