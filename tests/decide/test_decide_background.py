"""What a choice knows beside probing and calibration, and what of it reaches the record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import MS, FakeRow
from test_decide_choose import GPU, SMALL, SOFT, Bench

from gpuedge.decide.attempts import next_attempt
from gpuedge.decide.belief import Belief
from gpuedge.decide.conditions import Conditions
from gpuedge.decide.decision import Decision
from gpuedge.decide.gather import Background, digest_of
from gpuedge.decide.policy import Policy
from gpuedge.decide.store import CalibrationStore, PastLaunch


@dataclass(frozen=True)
class Restricted(FakeRow):
    """A row as probing makes it where the capability database has something to say."""

    restrictions: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)


SLOW = {"is_demoted": True, "entries": ["mali-slow"], "features": ["fp16"]}


def replays(decision: Decision) -> bool:
    text = decision.to_json()
    return Decision.from_dict(json.loads(text)).replay().to_json() == text


def test_nothing_known_is_nothing_recorded() -> None:
    found = Bench().choose(GPU)
    record = found.record
    assert (record.database, record.previous, record.conditions) == ("", "", Conditions())
    assert (record.candidates[0].belief, record.candidates[0].draw) == (None, None)
    assert replays(found)


def test_everything_known_reaches_the_record() -> None:
    visit = PastLaunch(Belief(-900_000, 20_000, 2), 77 * MS, 55 * MS, 9_000, 0)
    known = Background(
        "7 (embedded)", Conditions(thermal="warm"), "vulkan:0", lambda _: visit,
        lambda _: 123, lambda _: 5 << 20, lambda device: 900 if device == "cpu" else 800,
    )  # fmt: skip
    found = Bench().choose(GPU, SOFT, background=known)
    gpu, soft, cpu = found.record.candidates
    assert (gpu.belief, gpu.base_ns, gpu.startup_ns) == (visit.belief, 77 * MS, 55 * MS)
    assert (gpu.draw, gpu.memory_bytes, gpu.energy_uj) == (123, 5 << 20, 800)
    assert (soft.belief, soft.draw, soft.energy_uj) == (None, None, None)
    assert (cpu.belief, cpu.energy_uj) == (None, 900)
    assert found.record.database == "7 (embedded)"
    assert found.record.conditions.thermal == "warm"
    assert found.record.previous == "vulkan:0"
    assert found.rows[0].confidence == "2 windows"
    assert replays(found)


def test_restrictions_and_entries_of_a_row_reach_the_record() -> None:
    row = Restricted("vulkan:0", restrictions=SLOW, evidence={"checks": {"add": 0.0}})
    found = Bench().choose(row)
    known = found.record.candidates[0]
    assert known.is_demoted
    assert known.entries == ("mali-slow",)
    assert known.probe == digest_of({"checks": {"add": 0.0}})
    assert len(known.probe) == 16
    assert known.probe != digest_of({"checks": {"add": 0.5}})
    assert replays(found)


def test_blocked_row_keeps_its_entries() -> None:
    row = Restricted("vulkan:0", "blocked", "quirk", "a-crash forbids it",
                     evidence={"entries": ["a-crash"]})  # fmt: skip
    found = Bench().choose(row)
    assert found.rows[0].entries == ("a-crash",)
    assert (found.device, found.rows[0].code) == ("cpu", "quirk")


def test_restricted_device_is_calibrated_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    bench = Bench()
    for row, opened in (
        (Restricted("vulkan:0"), 1),
        (Restricted("vulkan:0"), 1),
        (Restricted("vulkan:0", restrictions=SLOW), 2),
        (Restricted("vulkan:0", restrictions=SLOW), 2),
    ):
        bench.choose(row, store=CalibrationStore())
        assert len(bench.opened) == opened


def test_earlier_choice_is_kept_through_choose() -> None:
    """At break-even the figures say CPU by a hair; the launch before had chosen the GPU."""
    near = PastLaunch(Belief(-206_000, 10_000, 3), 60 * MS, 0, 9_000, 0)
    known = Background(launch_of=lambda _: near)
    assert Bench().choose(GPU, background=known).device == "cpu"
    kept = replace(known, previous="vulkan:0")
    assert Bench().choose(GPU, background=kept).device == "vulkan:0"


def test_choice_by_prediction_asks_for_a_trial_of_what_it_may_be_wrong_about() -> None:
    attempt = next_attempt(Bench().choose(GPU))
    assert attempt is not None
    assert attempt.device == "vulkan:0"
    assert next_attempt(Bench().choose(SOFT)) is None
    small = Bench(work=SMALL).choose(GPU, policy=Policy(inferences=1))
    assert small.rows[0].confidence == "screened"
    assert next_attempt(small) is None
    explored = Background(draw_of=lambda _: 0)
    drawn = Bench(work=SMALL).choose(GPU, policy=Policy(inferences=1), background=explored)
    attempt = next_attempt(drawn)
    assert attempt is not None
    assert attempt.why == "exploration"
