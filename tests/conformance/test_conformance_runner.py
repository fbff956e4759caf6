"""The runner against children that crash, hang, leave, scribble and refuse: one case each."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.runner import Runner
from gpuedge.core.errors import (
    BackendUnavailableError,
    ConfigError,
    DeviceError,
    DeviceTimeoutError,
    NoUsableDeviceError,
)

CHILD = Path(__file__).with_name("conformance_child.py")
SPECS = everything("smoke")[:20]
IDS = [s.id for s in SPECS]


def runner(fates: dict[str, str], **changes: Any) -> Runner:
    command = (sys.executable, str(CHILD), json.dumps(fates))
    given: dict[str, Any] = {"jobs": 1, "case_s": 30.0, "open_s": 30.0, "command": command}
    return Runner("fake:0", "smoke", SPECS, **{**given, **changes})


def statuses(made: Runner) -> dict[str, str]:
    rows = list(made.rows())
    assert len({r["id"] for r in rows}) == len(rows), "a case has two rows"
    return {r["id"]: r["status"] for r in rows}


def test_every_case_gets_its_row() -> None:
    made = runner({IDS[3]: "failed", IDS[5]: "skipped", IDS[7]: "error"}, jobs=2)
    found = statuses(made)
    odd = {IDS[3]: "failed", IDS[5]: "skipped", IDS[7]: "error"}
    assert found == {i: odd.get(i, "passed") for i in IDS}
    assert made.header == {
        "device": "fake:0", "identity": {"name": "Fake"}, "caps": {"level": "fake"},
        "versions": {},
    }  # fmt: skip
    assert made.notes == []


@pytest.mark.parametrize(
    ("fate", "status", "words"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("exit", "crashed", "exit code 0; it printed: giving up"),
        ("hang", "timeout", "no answer within 1.5 s"),
    ],
)
def test_a_bad_end_costs_one_case(fate: str, status: str, words: str) -> None:
    limit = 1.5 if fate == "hang" else 30.0
    rows = {r["id"]: r for r in runner({IDS[4]: fate, IDS[11]: fate}, case_s=limit).rows()}
    assert set(rows) == set(IDS)
    bad = [r for r in rows.values() if r["status"] != "passed"]
    assert {r["id"] for r in bad} == {IDS[4], IDS[11]}
    for row in bad:
        assert row["status"] == status and words in row["reason"]
        assert row["op"] == SPECS[0].op and row["seconds"] >= 0


def test_a_child_that_gives_the_device_up_is_followed_by_another() -> None:
    assert set(statuses(runner({IDS[2]: "spent"}))) == set(IDS)


def test_lines_of_others_are_no_results() -> None:
    assert set(statuses(runner({"*": "scribble"})).values()) == {"passed"}


def test_a_crash_after_the_last_case_is_noted() -> None:
    made = runner({"close": "crash"})
    assert set(statuses(made).values()) == {"passed"}
    assert made.notes and "SIGSEGV" in made.notes[0]


def test_a_device_that_is_refused() -> None:
    with pytest.raises(NoUsableDeviceError, match="No such device"):
        list(runner({"open": "refuse"}).rows())


def test_a_device_that_never_opens_is_given_up() -> None:
    with pytest.raises(DeviceError, match="cannot be opened any more") as caught:
        list(runner({"open": "die"}).rows())
    assert "exit code 3; it printed: the driver says goodbye" in str(caught.value)
    with pytest.raises(DeviceTimeoutError):
        list(runner({"open": "hang"}, open_s=0.2).rows())


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailableError, match="No such file or directory"):
        list(runner({}, command=("/nonexistent/python",)).rows())


def test_a_frozen_application_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr("gpuedge.safety.interpreter._is_ready", False)
    with pytest.raises(BackendUnavailableError, match=r"gpuedge\.freeze_support\(\)"):
        list(Runner("vulkan:0", "smoke", everything("smoke")[:1]).rows())


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(ConfigError, match=r"(?s)/proc/nowhere.*set TMPDIR"):
        list(runner({}).rows())


def test_no_cases_need_no_child() -> None:
    assert list(Runner("fake:0", "smoke", [], command=("/nonexistent",)).rows()) == []


def children() -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_stopping_early_ends_the_children() -> None:
    before, threads = children(), threading.active_count()
    made = runner({**dict.fromkeys(IDS, "hang"), IDS[0]: "pass"}, case_s=60.0)
    rows = made.rows()
    assert next(rows)["status"] == "passed"
    assert children() - before
    start = time.monotonic()
    rows.close()
    assert time.monotonic() - start < 40  # less than the case was given
    assert children() - before == set()
    assert threading.active_count() <= threads
