"""Saved records and decisions: what is checked on reading, damage, and hostile JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from decide_states import CPU, decided, measured, predicted
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.core.errors import InputError
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision
from gpuedge.decide.decision_record import METHOD, DecisionRecord, DeviceCandidate, candidates_of
from gpuedge.decide.policy import Policy
from gpuedge.probing.report import ProbeReport, ProbeRow

SAVED = json.loads(
    decided(
        measured(1.2, entries=("mali-0012",), is_demoted=True, memory_bytes=1 << 20, at_ns=5),
        predicted(device="wgpu:0", phase="late", waited_ns=1, retry_ns=2, since=3),
        CPU, previous_requests=(3, 4), deadline_s=0.5,
    ).to_json()
)  # fmt: skip


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    found = [at] if at else []
    if isinstance(value, dict):
        for key in value:
            found += paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            found += paths(item, (*at, i))
    return found


def put(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(SAVED)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return made


def read(saved: Any) -> None:
    """Read a document; it is refused, or everything can be done with what was read."""
    try:
        found = Decision.from_dict(saved)
    except InputError as error:
        assert error.code == "GE-203" and error.what and "\n" not in str(error.known)
        return
    assert Decision.from_dict(json.loads(found.to_json())).to_json() == found.to_json()
    assert str(found) and found.explain(verbose=True) and found._repr_html_()
    again = found.replay()
    assert Decision.from_dict(json.loads(again.to_json())).replay() == again


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


DEEP = nested(500)
HOSTILE = [
    None, True, -1, 0, 2**63, 10**4000, 1.5, float("nan"), float("inf"), -float("inf"), "", "x",
    "\x1b[2J\n", "\udc80", "x" * 10_000, [], {}, [[]], {"x": 1}, DEEP,
]  # fmt: skip


@pytest.mark.parametrize("path", paths(SAVED), ids=lambda p: ".".join(map(str, p)))
def test_hostile_values_anywhere_are_refused_or_harmless(path: tuple[Any, ...]) -> None:
    for value in HOSTILE:
        read(put(path, value))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(paths(SAVED)), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                max_size=3), max_leaves=8,
))  # fmt: skip
def test_any_json_anywhere_is_refused_or_harmless(path: tuple[Any, ...], value: Any) -> None:
    read(put(path, value))


@pytest.mark.parametrize("path", paths(SAVED), ids=lambda p: ".".join(map(str, p)))
def test_what_is_missing_is_refused(path: tuple[Any, ...]) -> None:
    made = copy.deepcopy(SAVED)
    place = made
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    if {"previous_requests", "entries"} & set(path[:-1]):
        read(made)
    else:
        with pytest.raises(InputError):
            Decision.from_dict(made)


WRONG: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a phase that is none": (("record", "candidates", 0, "phase"), "open"),
    "a code that is none": (("record", "candidates", 0, "code"), "kept"),
    "a time below zero": (("record", "candidates", 0, "latency_ns"), -1),
    "a time in fractions": (("record", "candidates", 0, "startup_ns"), 1.0),
    "a count that is true": (("record", "candidates", 0, "served"), True),
    "no count": (("record", "candidates", 0, "served"), None),
    "a belief of two numbers": (("record", "candidates", 0, "belief"), [1, 2]),
    "a belief without variance": (("record", "candidates", 0, "belief"), [0, 0, 1]),
    "entries in one text": (("record", "candidates", 0, "entries"), "mali"),
    "an unknown field": (("record", "candidates", 0, "energy_uj"), 1),
    "another method": (("record", "method"), "belief/1"),
    "an unknown wish": (("record", "policy", "caution"), 0.3),
    "requests below zero": (("record", "requests"), -1),
    "a launch of no number": (("record", "previous_requests"), [1, "2"]),
    "a status that is none": (("rows", 0, "status"), "maybe"),
    "a row of another device": (("rows", 0, "device"), "wgpu:0"),
    "a loss in fractions": (("rows", 0, "loss_cpu_ppm"), 0.5),
    "a row too few": (("rows",), SAVED["rows"][:-1]),
    "a reason of two lines": (("reason",), "Runs on cpu:\nyes."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_decision_has_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        Decision.from_dict(put(*WRONG[name]))
    assert caught.value.code == "GE-203"


def test_another_method_is_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        Decision.from_dict(put(("record", "method"), "belief/1"))
    assert "belief/1" in str(caught.value.known) and METHOD in str(caught.value.known)


@pytest.mark.parametrize("saved", [None, [], "x", 3, {}, {"schema": 4}, {"schema": "gpuedge.x/1"}])
def test_what_is_no_decision_is_refused(saved: Any) -> None:
    with pytest.raises(InputError, match="not a saved decision"):
        Decision.from_dict(saved)


WRONG_FIELDS: list[Callable[[], object]] = [
    lambda: DeviceCandidate("cpu", code="unknown"),
    lambda: DeviceCandidate("vulkan:0", phase="ready"),
    lambda: DecisionRecord("vulkan:0", Policy(), (CPU,), "1"),
    lambda: DecisionRecord("auto", Policy(), (CPU,), "1", in_use="vulkan:0"),
    lambda: DecisionRecord("auto", Policy(), (), "1"),
]


@pytest.mark.parametrize("make", WRONG_FIELDS)
def test_fields_are_checked_when_made(make: Callable[[], object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        make()


def test_every_field_is_in_the_file() -> None:
    made = SAVED["record"]["candidates"][0]
    assert set(made) == set(DeviceCandidate.__dataclass_fields__)
    assert set(SAVED["record"]) == set(DecisionRecord.__dataclass_fields__)
    loaded = Decision.from_dict(SAVED).record.candidates[0]
    assert loaded.belief == Belief(*made["belief"]) and loaded.entries == ("mali-0012",)
    assert all(type(v) is int for k, v in made.items() if k.endswith("_ns") and v is not None)


def test_candidates_are_taken_from_a_probe_report() -> None:
    good = ProbeRow(
        "vulkan:0", "vulkan", "ok", "ok", "fine", name="Mali", is_software=False, physical="p",
        evidence={"entries": [{"id": "a", "outcome": "cleared"}, {"id": "b"}, "c"], "n": 1},
    )  # fmt: skip
    rows = [
        ProbeRow("cpu", "cpu", "ok", "ok", "fine"),
        ProbeRow("gles31", "gles", "absent", "no-loader", "libEGL.so.1 was not found"),
        good,
        ProbeRow("wgpu:0", "wgpu", "broken", "of-tomorrow", "it broke",
                 restrictions={"entries": ["x"], "is_demoted": True}, evidence={"entries": 3}),
    ]  # fmt: skip
    found = candidates_of(ProbeReport(tuple(rows), "0.1.0"))
    assert [(e.device, e.code, e.detail) for e, _ in found] == [
        ("vulkan:0", "ok", ""), ("gles31", "no-loader", "libEGL.so.1 was not found"),
        ("wgpu:0", "open-failed", "it broke"),
    ]  # fmt: skip
    first, last = found[0][0], found[2][0]
    assert (first.entries, first.physical) == (("b", "c"), "p")
    assert found[0][1] is good
    assert last.entries == ("x",) and last.is_demoted
    assert not first.is_demoted
