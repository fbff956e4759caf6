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


def last(made: Runner) -> dict[str, Any]:
    """The last row of each case; one that did not pass is told at once, and again at the end."""
    rows = list(made.rows())
    final = [r for r in rows if "is_due" not in r]
    assert len({r["id"] for r in final}) == len(final), "a case has two rows"
    due = {r["id"] for r in rows if "is_due" in r}
    assert due <= {r["id"] for r in final}
    assert all(r["status"] not in ("passed", "skipped") for r in rows if "is_due" in r)
    return {r["id"]: r for r in final}


def statuses(made: Runner) -> dict[str, str]:
    return {name: r["status"] for name, r in last(made).items()}


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
    rows = last(runner({IDS[4]: fate, IDS[11]: fate}, case_s=limit))
    assert set(rows) == set(IDS)
    bad = [r for r in rows.values() if r["status"] != "passed"]
    assert {r["id"] for r in bad} == {IDS[4], IDS[11]}
    for row in bad:
        assert row["status"] == status and words in row["reason"]
        assert row["op"] == row["id"].partition("/")[0] and row["seconds"] >= 0


@pytest.mark.parametrize(("name", "status"), [("seen", "failed"), ("seen.dies", "crashed")])
def test_what_passes_when_it_is_run_again_alone_is_a_flake(
    name: str, status: str, tmp_path: Path
) -> None:
    rows = last(runner({IDS[4]: f"once {tmp_path / name}", IDS[6]: "failed"}))
    odd = {name: r for name, r in rows.items() if r["status"] != "passed"}
    assert {name: r["status"] for name, r in odd.items()} == {IDS[4]: "flake", IDS[6]: "failed"}
    assert odd[IDS[4]]["first"]["status"] == status and "after" not in odd[IDS[4]]
    assert "passes when run again alone, and after the same 4 cases" in odd[IDS[4]]["reason"]
    assert odd[IDS[6]]["again"] == "failed" and odd[IDS[6]]["reason"] == "so it is"


def test_nothing_is_run_again_unless_asked_for(tmp_path: Path) -> None:
    fates = {IDS[4]: f"once {tmp_path / 'a'}", IDS[6]: f"once {tmp_path / 'b'}"}
    assert statuses(runner(fates, retry=False))[IDS[4]] == "failed"
    for seen in tmp_path.iterdir():
        seen.unlink()
    found = statuses(runner(fates, final={IDS[4]}))
    assert (found[IDS[4]], found[IDS[6]]) == ("failed", "flake")


@pytest.mark.parametrize("spoiler", [0, 5, 12])
def test_the_case_that_makes_another_fail_is_found(spoiler: int) -> None:
    row = last(runner({IDS[13]: f"after {IDS[spoiler]}"}))[IDS[13]]
    assert (row["status"], row["after"]) == ("flake", IDS[spoiler])
    assert row["reason"].startswith(f"passes when run again alone, and fails after {IDS[spoiler]}")


def test_cases_that_only_fail_after_several_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    row = last(runner({IDS[9]: "batch8"}))[IDS[9]]
    assert row["status"] == "flake" and "after" not in row
    assert "fails after 9 cases together" in row["reason"]
    monkeypatch.setattr("gpuedge.conformance.runner.MOST_SEARCHES", 2)
    row = last(runner({IDS[9]: f"after {IDS[8]}"}))[IDS[9]]
    assert row["status"] == "flake" and "fails after one of 5 cases" in row["reason"]


def test_a_device_that_gets_everything_wrong_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuedge.conformance.runner.MOST_RETRIES", 3)
    made = runner({"*": "failed"})
    rows = last(made)
    assert {r["status"] for r in rows.values()} == {"failed"} and len(rows) == len(IDS)
    assert sum("again" in r for r in rows.values()) == 3
    assert made.notes == [f"{len(IDS) - 3} cases that did not pass were not run again"]


def test_a_device_that_is_gone_afterwards_keeps_the_first_rows(tmp_path: Path) -> None:
    fates = dict.fromkeys(IDS[2:8], "segfault") | {"open": f"until {tmp_path / 'n'} 7"}
    made = runner(fates)
    rows = last(made)
    assert {rows[name]["status"] for name in IDS[2:8]} == {"crashed"}
    assert [rows[name].get("again") for name in IDS[2:8]] == ["not reached"] * 3 + [None] * 3
    assert made.notes == ["cases that did not pass could not be run again"]


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
