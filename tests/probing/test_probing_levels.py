"""Levels of one driver in one child: streaming, whose crash it was, and whose time ran out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from probing_fakes import WORKER

from gpuedge.backends.base import Candidate
from gpuedge.probing import judge as judge_module
from gpuedge.probing import launcher
from gpuedge.probing.api import ProgressTeller, _is_lasting, _probe_new
from gpuedge.probing.judge import (
    BUDGET_S,
    Transcript,
    judge,
    parts,
)
from gpuedge.probing.launcher import group
from gpuedge.probing.protocol import ROWS, DeviceTold
from gpuedge.probing.report import ProbeRow
from gpuedge.probing.run import probe_all
from gpuedge.safety.channel import EventReader
from gpuedge.safety.child import CLEAN, Ending

LONG = 20.0


def driver(*misdeeds: str) -> list[Candidate]:
    """One driver with a level for each misdeed."""
    key = "+".join([*misdeeds, ""])
    return [Candidate(f"level{i}", key, "f") for i in range(len(misdeeds))]


def verdicts(candidates: list[Candidate], deadline_s: float = LONG) -> list[list[str]]:
    return [[r.code for r in rows] for rows in probe_all(candidates, deadline_s, WORKER)]


@pytest.fixture(autouse=True)
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    return tmp_path / "count"


def test_same_file_and_environment_are_one_driver() -> None:
    a, b = Candidate("x", "k", "1"), Candidate("y", "k", "2")
    other, lone = Candidate("y", "k", "2", {"A": "b"}), Candidate("z", "l", "1")
    assert group([a, other, lone, b]) == [[0, 3], [1], [2]]


def test_levels_that_work_share_one_child(count: Path) -> None:
    assert verdicts(driver("ok", "absent", "wrong", "ok")[:2]) == [["ok"], ["no-device"]]
    assert count.read_text() == "x"


def test_rows_belong_to_their_level() -> None:
    found = probe_all(driver("ok", "discrete"), LONG, WORKER)
    assert [[(r.backend, r.name) for r in rows] for rows in found] == [
        [("level0", "soft ok")],
        [("level1", "hard discrete")],
    ]


@pytest.mark.parametrize("misdeed", ["segv", "abort", "exit0", "exit3", "torn"])
def test_crash_costs_its_level_only(misdeed: str) -> None:
    codes = verdicts(driver("ok", misdeed, "ok"))
    assert (codes[0], codes[2]) == (["ok"], ["ok"])
    assert codes[1] in (["crashed"], ["exited"])


def test_what_fails_only_beside_others_is_not_condemned(count: Path) -> None:
    assert verdicts(driver("ok", "shy")) == [["ok"], ["ok"]]
    assert count.read_text() == "xx"


def test_bad_numbers_are_tried_once_more_alone(count: Path) -> None:
    assert verdicts(driver("ok", "wrong", "ok")) == [["ok"], ["untouched-output"], ["ok"]]
    assert count.read_text() == "xx"


def test_crash_after_all_results_is_found_alone() -> None:
    """Nobody knows which level it was: each is tried alone, and only the one at fault is out."""
    assert verdicts(driver("ok", "crash-at-exit")) == [["ok"], ["crashed"]]
    assert verdicts(driver("crash-at-exit", "ok")) == [["crashed"], ["ok"]]


def test_hang_of_one_level_spares_the_others() -> None:
    start = time.monotonic()
    rows = [r for (r,) in probe_all(driver("ok", "hang", "ok"), 4.0, WORKER)]
    assert time.monotonic() - start < 30  # it would hang for ever
    assert [r.status for r in rows] == ["ok", "timeout", "ok"]
    assert "it hung while loading the driver" in rows[1].reason
    assert _is_lasting(rows[1])


def test_level_that_computes_is_not_said_to_hang() -> None:
    ((row,),) = probe_all(driver("busy"), 2.5, WORKER)
    assert row.status == "timeout"
    assert "was at work while loading" in row.reason


def test_level_behind_one_that_computes_is_not_remembered() -> None:
    busy, late = (r for (r,) in probe_all(driver("busy", "ok"), 2.0, WORKER))
    assert (busy.status, late.status) == ("timeout", "timeout")
    assert "was not reached before the deadline of 2 s" in late.reason
    assert not _is_lasting(late)


@pytest.mark.parametrize(
    ("had", "lasting"),
    [
        ({"seconds": 4.0, "idle_s": 0.2, "cpu_s": 0.5}, False),
        ({"seconds": 4.0, "idle_s": 0.2, "cpu_s": 3.9}, False),
        ({"seconds": 21.0, "idle_s": 0.2, "cpu_s": BUDGET_S}, True),
        ({"seconds": 1.0, "idle_s": 0.2, "cpu_s": 0.9}, False),
        ({"seconds": 4.0, "idle_s": 3.5, "cpu_s": 0.1}, True),
        ({"seconds": 1.2, "idle_s": 1.1, "cpu_s": 0.1}, True),
        ({"seconds": 4.0, "idle_s": 0.9, "cpu_s": 1.0}, False),
        ({"seconds": 4.0}, True),
    ],
)
def test_only_what_had_its_chance_is_held_against_a_driver(
    had: dict[str, Any], lasting: bool
) -> None:
    events = [{"event": "step", "step": "run"}]
    whole = Transcript(events, 0, Ending("deadline"), "", deadline_s=4.0, **had)
    (row,) = judge(Candidate("b", "k", "f"), whole)[0]
    assert (row.status, row.code) == ("timeout", "deadline")
    assert _is_lasting(row) is lasting
    assert row.is_starved is not lasting


def event(at: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"event": kind, "at": at, **more}


def test_parts_of_a_transcript() -> None:
    crash = Ending("signal", 11, "SIGSEGV")
    first = [event(0, "step", step="start", when=0.1), event(0, "done", when=1.0)]
    second = [event(1, "step", step="load", when=1.5)]
    made = parts(
        Transcript([*first, *second], 0, crash, "", 2.0), [frozenset({3}), frozenset()] * 2
    )
    assert [None if p is None else p.ending for p in made] == [CLEAN, crash, None, None]
    assert made[0] is not None
    assert made[0].skipped == {3}
    assert made[1] is not None
    assert (made[1].seconds, made[1].events) == (0.5, second)


def test_time_of_the_levels_before_is_not_a_levels_own() -> None:
    first = [event(0, "step", step="start", when=0.1, cpu=0.1), event(0, "done", when=19.0)]
    second = [event(1, "step", step="run", when=19.5, cpu=18.0, index=None)]
    whole = Transcript(
        [*first, *second], 0, Ending("deadline"), "", 24.0, idle_s=0.0, cpu_s=BUDGET_S + 2.0
    )
    _, part = parts(whole, [frozenset()] * 2)
    assert part is not None and part.cpu_s == 4.0
    (row,) = judge(Candidate("b", "k", "f"), part)[0]
    assert row.is_starved


def test_device_whose_turn_did_not_come_is_not_held_against_the_driver() -> None:
    listed = tuple(DeviceTold(i, {}, False) for i in range(2))
    events = [
        event(0, "devices", devices=listed), event(0, "step", step="run", index=0)
    ]  # fmt: skip
    whole = Transcript(events, 0, Ending("deadline"), "", 4.0, idle_s=3.0, cpu_s=0.1)
    (hung,), (other,) = judge(Candidate("b", "k", "f"), whole)
    assert (hung.status, hung.is_starved) == ("timeout", False)
    assert (other.status, other.is_starved) == ("timeout", True)


@pytest.mark.parametrize(
    ("limit", "misdeed", "says"),
    [("BUDGET_S", "busy", "it computed for"), ("MOST_SILENCE_S", "hang", "it hung")],
)
def test_driver_that_spins_or_hangs_is_ended_after_a_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, misdeed: str, says: str
) -> None:
    """However late the deadline is; the others have the rest."""
    monkeypatch.setattr(launcher, limit, 1.2)
    monkeypatch.setattr(judge_module, "BUDGET_S", launcher.BUDGET_S)
    monkeypatch.setattr(launcher.Launcher, "_is_orphan", lambda self: False)
    drivers = [*driver(misdeed), *driver("ok")]
    request = {
        "folder": str(tmp_path), "token": "t", "deadline_s": 50.0, "ends": time.monotonic() + 50,
        "command": WORKER, "candidates": [one.as_dict() for one in drivers],
    }  # fmt: skip
    launcher.Launcher(request).run()
    assert time.monotonic() < request["ends"] - 10
    told = EventReader(tmp_path / "rows", "t", ROWS).take(is_over=True)
    judged = sorted((e for e in told if e["event"] == "rows"), key=lambda e: int(e["at"]))
    ((bad,), (good,)) = (e["rows"] for e in judged)
    assert (bad.status, good.status) == ("timeout", "ok")
    assert says in bad.reason
    assert _is_lasting(bad)


def test_end_after_everything_is_everybodys() -> None:
    crash = Ending("signal", 6, "SIGABRT")
    done = [event(0, "done"), event(1, "done")]
    made = parts(Transcript(done, 0, crash, "", 2.0), [frozenset()] * 2)
    assert [p and p.ending for p in made] == [crash, crash]


def test_events_for_levels_that_do_not_exist_are_ignored() -> None:
    events = [event(7, "done"), event(-1, "done")]
    (part,) = parts(Transcript(events, 0, CLEAN, "", 1.0), [frozenset()])
    assert part is not None
    assert part.first("done") is not None or not part.events


def test_starved_rows_are_no_news(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    row = ProbeRow(
        "b",
        "b",
        "timeout",
        "deadline",
        "was not done",
        evidence={"step": "run", "is_unfinished": True},
    )
    rows = [row, row.replace(evidence={"step": "run"})]
    monkeypatch.setattr("gpuedge.probing.run.probe_all", lambda *_, **__: [rows])
    teller = ProgressTeller(None, 1)
    _probe_new({"key": Candidate("b", "k", "f")}, 4.0, 0.0, teller, lambda: False)
    assert [r.levelname for r in caplog.records if r.levelno >= 30] == ["WARNING"]
