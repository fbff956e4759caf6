"""Three-valued matching against oracles that know no third value."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from capdb_rows import PROBE, TODAY, adreno, entry, judge
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.capdb.identity.subject import Subject
from gpuedge.capdb.matching import FALSE, TRUE, UNKNOWN, Truth, every, opposite, result, some

VALUES = (TRUE, FALSE, UNKNOWN)


def completions(values: tuple[Truth, ...]) -> list[tuple[bool, ...]]:
    """Return every way in which what is unknown can turn out."""
    options = [(True, False) if v is UNKNOWN else (v is TRUE,) for v in values]
    return list(itertools.product(*options))


def agreed(outcomes: set[bool]) -> Truth:
    return UNKNOWN if len(outcomes) > 1 else TRUE if outcomes.pop() else FALSE


@pytest.mark.parametrize("size", range(4))
def test_conjunction_and_disjunction_are_what_all_completions_agree_on(size: int) -> None:
    for values in itertools.product(VALUES, repeat=size):
        assert every(values) is agreed({all(c) for c in completions(values)})
        assert some(values) is agreed({any(c) for c in completions(values)})


def test_negation_is_what_all_completions_agree_on() -> None:
    for value in VALUES:
        assert opposite(value) is agreed({not c for (c,) in completions((value,))})


def test_truth_is_never_taken_for_a_boolean() -> None:
    with pytest.raises(TypeError):
        bool(UNKNOWN)


def value(match: dict[str, Any], subject: Subject, **more: Any) -> str:
    return judge(entry(match=[match], **more), subject, TODAY).result


UNIVERSE: dict[str, list[Any]] = {
    "vendor": ["qualcomm", "arm"],
    "model": [539, 540, 630],
    "soc": ["SDM845", "SM8150"],
    "android_sdk": [27, 28],
    "versions": [{"vk-adreno": (489, 9)}, {"vk-adreno": (490,)}, {"vk-adreno": (512, 0, 1)}],
    "is_mesa": [True, False],
}
"""Fields and what they may be; a small world that can be enumerated."""

ABSENT: dict[str, Any] = {"versions": {}}

CONDITIONS: list[dict[str, Any]] = [
    {"vendor": ["qualcomm"]},
    {"vendor": ["arm"]},
    {"model": {"from": 540}},
    {"model": {"below": 540}},
    {"soc": ["sdm845"]},
    {"android_sdk": {"below": 28}},
    {"mesa": True},
    {"driver": {"scheme": "vk-adreno", "intervals": [{"below": [490]}]}},
    {"driver": {"scheme": "vk-adreno", "intervals": [{"from": [490], "below": [512]}]}},
    {"driver": {"scheme": "gl-adreno", "intervals": [{"below": [490]}]}},
]
"""Conditions over that world."""


def conjunctions() -> st.SearchStrategy[dict[str, Any]]:
    pick = st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3)
    return pick.map(lambda parts: {k: v for part in parts for k, v in part.items()})


@st.composite
def partial_devices(draw: st.DrawFn) -> dict[str, Any]:
    """Return a device of which some fields are known."""
    names = draw(st.lists(st.sampled_from(sorted(UNIVERSE)), min_size=2, unique=True))
    return {name: draw(st.sampled_from(UNIVERSE[name])) for name in names}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(conjunctions(), min_size=1, max_size=2),
    st.lists(conjunctions(), max_size=1),
    partial_devices(),
)
def test_result_is_never_contradicted_by_what_the_unknown_turns_out_to_be(
    match: list[dict[str, Any]], excepted: list[dict[str, Any]], known: dict[str, Any]
) -> None:
    row = entry(match=match, **({"except_": excepted} if excepted else {}))
    base = adreno(vendor_id=None, **{name: ABSENT.get(name) for name in UNIVERSE})
    absent = [name for name in UNIVERSE if name not in known]
    found = result(row, _with(base, known))[0]
    whole = {
        result(row, _with(base, known | dict(zip(absent, rest, strict=True))))[0]
        for rest in itertools.product(*(UNIVERSE[name] for name in absent))
    }
    if found is not UNKNOWN:
        # Whatever is found out later leaves it so, or (another scheme) tells nothing.
        assert whole == {found}
    if any("gl-adreno" in str(part) for part in (*match, *excepted)):
        return
    assert UNKNOWN not in whole  # all is known: two values are enough


def _with(subject: Subject, fields: dict[str, Any]) -> Subject:
    from dataclasses import replace

    return replace(subject, **fields)


def driver(low: list[int] | None, below: list[int] | None, scheme: str = "vk-adreno") -> Any:
    sides = {"from": low, "below": below}
    return {
        "driver": {
            "scheme": scheme,
            "intervals": [{k: v for k, v in sides.items() if v is not None}],
        }
    }


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((489, 999), "false"),
        ((490,), "true"),
        ((490, 0, 0, 0), "true"),
        ((490, 1), "true"),
        ((511, 999), "true"),
        ((512, 0), "true"),
        ((512, 0, 0, 1), "true"),
        ((512, 0, 1), "false"),
        ((512, 1), "false"),
    ],
)
def test_interval_is_half_open_and_pads_with_zeros(version: tuple[int, ...], expected: str) -> None:
    subject = adreno(versions={"vk-adreno": version})
    assert value(driver([490], [512, 0, 1]), subject) == expected


def test_versions_compare_by_number_and_not_as_text() -> None:
    assert value(driver([9], [28]), adreno(versions={"vk-adreno": (10,)})) == "true"
    assert value(driver([3, 2], [4]), adreno(versions={"vk-adreno": (3, 10)})) == "true"


@pytest.mark.parametrize("versions", [{}, {"gl-adreno": (489,)}, {"vk-raw": (489,)}])
def test_version_of_a_foreign_scheme_is_unknown(versions: dict[str, tuple[int, ...]]) -> None:
    assert value(driver(None, [490]), adreno(versions=versions)) == "unknown"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "true"),  # the interval holds
        ({"versions": {"vk-adreno": (600,)}}, "true"),  # the build does
        ({"versions": {"vk-adreno": (600,)}, "builds": frozenset({"other"})}, "false"),
        ({"versions": {"vk-adreno": (600,)}, "builds": frozenset()}, "unknown"),
        ({"versions": {}, "builds": frozenset({"other"})}, "unknown"),
        ({"versions": {}, "builds": frozenset({"0F6D4A8"})}, "true"),
        ({"built": "2020-12-31"}, "false"),
        ({"built": "2021-01-01"}, "true"),
        ({"built": "2021-06-01"}, "false"),
        ({"built": None}, "unknown"),
        ({"built": "2020-12-31", "versions": {}, "builds": frozenset()}, "false"),
    ],
)
def test_builds_are_ored_with_intervals_and_the_date_is_anded(
    changes: dict[str, Any], expected: str
) -> None:
    wanted = {
        "scheme": "vk-adreno",
        "intervals": [{"below": [500]}],
        "builds": ["0f6d4a8"],
        "built": {"from": "2021-01-01", "below": "2021-06-01"},
    }
    assert value({"driver": wanted}, adreno(**changes)) == expected


@pytest.mark.parametrize(
    ("match", "changes", "expected"),
    [
        ({"api": ["gles"]}, {}, "false"),
        ({"api": ["vulkan"]}, {"apis": frozenset({"wgpu", "vulkan"})}, "true"),
        ({"api": ["vulkan"]}, {"apis": frozenset()}, "false"),
        ({"api": ["vulkan"]}, {"apis": None}, "unknown"),
        ({"vendor": ["qualcomm"]}, {"layers": ("angle",)}, "false"),  # without layer: native only
        ({"vendor": ["qualcomm"], "layer": ["angle"]}, {"layers": ("angle",)}, "true"),
        ({"vendor": ["qualcomm"], "layer": ["angle"]}, {}, "false"),
        ({"vendor": ["qualcomm"], "layer": ["venus"]}, {"layers": ("angle", "venus")}, "true"),
        ({"vendor": ["qualcomm"], "layer": ["native", "angle"]}, {}, "true"),
        ({"vendor": ["qualcomm"]}, {"layers": None}, "unknown"),
        ({"vendor": ["arm"]}, {"vendor": None, "vendor_id": 0x9999}, "false"),
        ({"vendor": ["arm"]}, {"vendor": None, "vendor_id": None}, "unknown"),
        ({"vendor": ["arm"]}, {"vendor": None, "vendor_id": 0}, "unknown"),
        ({"family": ["adreno"]}, {"family": None}, "unknown"),
        ({"family": ["mali-bifrost"]}, {"family": None}, "false"),  # Qualcomm makes none
        ({"family": ["adreno"]}, {"family": None, "vendor": None, "vendor_id": 7}, "false"),
        ({"family": ["adreno"]}, {"family": None, "vendor": None, "vendor_id": None}, "unknown"),
        ({"model": {"from": 600, "below": 630}}, {}, "false"),
        ({"model": {"from": 630}}, {}, "true"),
        ({"device_ids": ["0x6030001"]}, {}, "true"),
        ({"device_ids": [{"value": "0x6030000", "mask": "0xffff0000"}]}, {}, "true"),
        ({"device_ids": [{"value": "0x6040000", "mask": "0xffff0000"}]}, {}, "false"),
        ({"device_ids": [{"first": "0x6030002", "last": "0x7000000"}]}, {}, "false"),
        ({"device_ids": ["0x6030001"]}, {"device_id": None}, "unknown"),
        ({"name": {"prefix": ["adreno 6"]}}, {}, "true"),
        ({"name": {"prefix": ["adreno 5"]}}, {}, "false"),
        ({"name": {"prefix": ["adreno 5"]}}, {"name": None}, "unknown"),
        ({"name": {"prefix": ["adreno 5"]}}, {"name": ""}, "unknown"),
        ({"soc": ["sdm845"]}, {}, "true"),
        ({"soc": ["sdm845"]}, {"soc": None}, "unknown"),
        ({"brand": ["Google"]}, {"brand": " GOOGLE "}, "true"),
        ({"brand": ["google"]}, {"brand": None}, "unknown"),
        ({"brand": ["google"]}, {"brand": None, "os": "linux"}, "false"),
        ({"device": ["blueline"]}, {"device": None, "os": "windows"}, "false"),
        ({"android_sdk": {"below": 31}}, {"android_sdk": None}, "unknown"),
        ({"android_sdk": {"below": 31}}, {"android_sdk": None, "os": "linux"}, "false"),
        ({"android_sdk": {"below": 31}}, {"android_sdk": None, "os": None}, "unknown"),
        ({"security_patch": {"below": "2021-05-05"}}, {}, "false"),
        ({"security_patch": {"below": "2021-05-06"}}, {}, "true"),
        ({"security_patch": {"below": "2021-05-06"}}, {"security_patch": None}, "unknown"),
        ({"os": ["linux"]}, {"os": None}, "unknown"),
        ({"driver_id": [8]}, {}, "true"),
        ({"driver_id": [8]}, {"driver_id": None}, "unknown"),
        ({"mesa": False}, {}, "true"),
        ({"mesa": True}, {"is_mesa": None}, "unknown"),
        ({"level": ["gles20"]}, {}, "false"),
        ({"process_bits": [32]}, {}, "false"),
        ({"process_bits": [32]}, {"process_bits": 32}, "true"),
        ({"process_bits": [32]}, {"process_bits": None}, "unknown"),
    ],
)
def test_condition(match: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    assert value(match, adreno(**changes)) == expected


def test_file_of_an_api_asks_for_it_where_a_condition_names_none() -> None:
    gles = adreno(apis=frozenset({"gles"}))
    assert judge(entry(api="vulkan"), gles, TODAY).result == "false"
    assert judge(entry(api="any"), gles, TODAY).result == "true"
    named = entry(api="vulkan", match=[{"api": ["gles"]}])
    assert judge(named, gles, TODAY).result == "true"


@pytest.mark.parametrize(
    ("match", "excepted", "expected", "by"),
    [
        ([{"model": {"below": 9}, "os": ["linux"]}], [], "false", "match[0].os"),
        ([{"os": ["linux"]}, {"soc": ["x"]}], [], "false", "match[0].os"),
        ([{"os": ["linux"]}, {"vendor": ["qualcomm"]}], [], "true", "match[1]"),
        ([driver(None, [9], "vk-raw"), {"os": ["linux"]}], [], "unknown", "match[0].driver"),
        ([{"os": ["linux"]}, driver(None, [9], "vk-raw")], [], "unknown", "match[1].driver"),
        ([{"os": ["android"]}], [{"model": {"from": 630}}], "false", "except[0]"),
        ([{"os": ["android"]}], [{"model": {"from": 700}}], "true", "match[0]"),
        ([{"os": ["android"]}], [driver(None, [9], "vk-raw")], "unknown", "except[0].driver"),
        ([{"os": ["linux"]}], [{"model": {"from": 630}}], "false", "match[0].os"),
        ([driver(None, [9], "vk-raw")], [{"os": ["android"]}], "false", "except[0]"),
    ],
)
def test_finding_names_the_condition_that_decided(
    match: list[Any], excepted: list[Any], expected: str, by: str
) -> None:
    more = {"except_": excepted} if excepted else {}
    finding = judge(entry(match=match, **more), adreno(), TODAY)
    assert (finding.result, finding.decided_by) == (expected, by)


HIT, MAYBE, MISS = {"os": ["android"]}, driver(None, [9], "vk-raw"), {"os": ["linux"]}
BLOCK, CHEAP = {"disable_backend": True}, {"disable_features": ["fp16"]}
FIRM = {**PROBE, "may": "confirm"}


@pytest.mark.parametrize(
    ("match", "changes", "expected"),
    [
        (HIT, {"effect": "crash", "action": BLOCK}, "applies"),
        (HIT, {"effect": "crash", "action": BLOCK, "probe": PROBE}, "applies"),
        (MAYBE, {"effect": "crash", "action": BLOCK}, "applies"),
        (MAYBE, {"effect": "corrupt_pipeline_cache", "action": CHEAP}, "applies"),
        (MAYBE, {"effect": "hang", "action": BLOCK, "on_unknown": "skip"}, "skipped"),
        (MAYBE, {"effect": "hang", "action": BLOCK, "on_unknown": "probe"}, "probe"),
        (MISS, {"effect": "crash", "action": BLOCK}, "none"),
        (HIT, {"effect": "wrong_result", "action": BLOCK, "probe": PROBE}, "probe"),
        (HIT, {"effect": "wrong_result", "action": BLOCK, "probe": FIRM}, "applies"),
        (HIT, {"effect": "unexplained", "action": CHEAP}, "applies"),
        (HIT, {"effect": "unexplained", "action": CHEAP, "probe": PROBE}, "probe"),
        (MAYBE, {"effect": "wrong_result", "action": BLOCK, "probe": PROBE}, "probe"),
        (MAYBE, {"effect": "feature_broken", "action": CHEAP}, "applies"),
        (MAYBE, {"effect": "feature_broken", "action": CHEAP, "probe": PROBE}, "probe"),
        (MAYBE, {"effect": "feature_broken", "action": CHEAP, "probe": FIRM}, "probe"),
        (MAYBE, {"effect": "feature_broken", "action": BLOCK}, "probe"),
        (MAYBE, {"effect": "feature_broken", "action": CHEAP, "on_unknown": "apply"}, "applies"),
        (HIT, {"effect": "slow", "action": {"demote": True}}, "applies"),
        (MAYBE, {"effect": "slow", "action": {"demote": True}}, "skipped"),
        (HIT, {"effect": "crash", "action": BLOCK, "state": "canary"}, "probe"),
        (MAYBE, {"effect": "unexplained", "action": CHEAP, "state": "canary"}, "probe"),
        (HIT, {"effect": "crash", "action": BLOCK, "review_by": "2026-11-30"}, "probe"),
        (
            HIT,
            {"effect": "crash", "action": BLOCK, "review_by": "2026-11-30", "on_expiry": "keep"},
            "applies",
        ),
        (HIT, {"effect": "slow", "action": CHEAP, "review_by": TODAY}, "applies"),
    ],
)
def test_what_an_entry_comes_to(
    match: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    made = entry(match=[match], **changes)
    assert judge(made, adreno(), TODAY).becomes == expected


def test_unknown_maker_is_tested_and_not_refused() -> None:
    stranger = adreno(vendor=None, family=None, model=None, vendor_id=None)
    severe = entry(effect="crash", action=BLOCK)
    assert judge(severe, stranger, TODAY).becomes == "probe"
    named = entry(effect="crash", action=BLOCK, match=[{"os": ["android"]}])
    assert judge(named, stranger, TODAY).becomes == "applies"  # true, whoever made it


@pytest.mark.parametrize("changes", [{}, {"effect": "crash", "action": BLOCK}, {"match": [MAYBE]}])
def test_ignored_entry_comes_to_nothing(changes: dict[str, Any]) -> None:
    made = entry(**changes)
    assert judge(made, adreno(), TODAY, is_ignored=True).becomes == "ignored"
    assert judge(made, adreno(os="linux", layers=("zink",)), TODAY, is_ignored=True).becomes in {
        "none",
        "ignored",
    }
