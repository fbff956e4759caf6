"""From transcripts to rows, for endings that are hard to stage: Windows codes, lies, lost lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.backends.base import Candidate
from gpuedge.core.reasons import SENTENCES, STATUSES
from gpuedge.probing.judge import Transcript, judge, without_child
from gpuedge.probing.protocol import EVENTS, DeviceTold
from gpuedge.safety.channel import EventReader
from gpuedge.safety.child import Ending

CANDIDATE = Candidate("vulkan", "/usr/share/vulkan/icd.d/some_icd.json", "f")
TOKEN = "abc"


def step(name: str, index: int | None = None) -> dict[str, Any]:
    return {"event": "step", "step": name, "index": index}


def devices(count: int) -> dict[str, Any]:
    who = ({"api": "vulkan", "name": f"GPU {i}", "os": "linux"} for i in range(count))
    listed = tuple(DeviceTold(i, identity, False) for i, identity in enumerate(who))
    return {"event": "devices", "devices": listed}


def good(index: int) -> dict[str, Any]:
    return {"event": "device", "index": index, "status": "ok", "code": "ok"}


DONE = {"event": "done"}
CLEAN = Ending("exit", 0)


def verdicts(
    *events: dict[str, Any], ending: Ending = CLEAN, **more: Any
) -> list[tuple[int | None, str, str]]:
    transcript = Transcript(events, more.get("junk", 0), ending, more.get("tail", ""), 1.0)
    return [(r.index, r.status, r.code) for r in judge(CANDIDATE, transcript)[0]]


def test_success_needs_result_done_and_a_clean_end() -> None:
    whole = (devices(1), step("open", 0), good(0), DONE)
    assert verdicts(*whole) == [(0, "ok", "ok")]
    assert verdicts(*whole, ending=Ending("exit", 1)) == [(0, "crashed", "exited")]
    assert verdicts(*whole, ending=Ending("signal", 11, "SIGSEGV")) == [(0, "crashed", "crashed")]
    assert verdicts(*whole, ending=Ending("deadline")) == [(0, "timeout", "deadline")]


def test_a_launcher_that_failed_has_the_last_word() -> None:
    said = "ModuleNotFoundError: No module named '_ctypes'"
    (row,) = without_child(CANDIDATE, Ending("exit", 1, said))
    assert (row.status, row.code) == ("broken", "no-token")
    assert row.reason.endswith(f"exit status 1, last words: {said}")


def test_result_before_another_devices_crash_stands() -> None:
    events = (devices(2), good(0), step("open", 1))
    end = Ending("signal", 11, "SIGSEGV")
    assert verdicts(*events, ending=end) == [(0, "ok", "ok"), (1, "crashed", "crashed")]


def test_result_of_a_bad_device_stands_whatever_the_exit() -> None:
    bad = {"event": "device", "index": 0, "status": "wrong", "code": "wrong-numbers"}
    end = Ending("signal", 6, "SIGABRT")
    assert verdicts(devices(1), bad, DONE, ending=end) == [(0, "wrong", "wrong-numbers")]


@pytest.mark.parametrize("name", ["start", "prepare"])
def test_exit_before_the_driver_was_asked_is_not_the_drivers(name: str) -> None:
    assert verdicts(step(name), ending=Ending("exit", 1)) == [(None, "broken", "no-token")]


@pytest.mark.parametrize("events", [[], [step("start")], [step("start"), step("load")]])
def test_driver_that_was_not_reached_is_not_said_to_hang(
    events: list[dict[str, Any]],
) -> None:
    transcript = Transcript(events, 0, Ending("deadline"), "", 0.02, deadline_s=0.01)
    (row,) = judge(CANDIDATE, transcript)[0]
    assert (row.status, row.code) == ("timeout", "deadline")
    assert row.reason == "the driver was not reached before the deadline of 0.01 s"


def test_driver_that_hangs_is_said_to_hang() -> None:
    transcript = Transcript([step("enumerate")], 0, Ending("deadline"), "", 4.0, deadline_s=4.0)
    (row,) = judge(CANDIDATE, transcript)[0]
    assert "it hung while loading the driver" in row.reason


def test_name_of_an_unreached_driver_is_its_file() -> None:
    transcript = Transcript([step("load")], 0, Ending("exit", 1), "", 1.0)
    (row,) = judge(CANDIDATE, transcript)[0]
    assert row.name == "some_icd.json"
    assert row.device == "vulkan"


def line(**fields: Any) -> bytes:
    return json.dumps({"token": TOKEN, "at": 0, "when": 0.0, "cpu": 0.0, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xfe\n",
        b"[]\n",
        b"null\n",
        b"[" * 100000 + b"\n",
        line(event="done", token="abd"),
        line(event="finished"),
        line(event=[]),
        line(event="device", index=0, status="ok", code="ok", caps=5),
        line(),
        line(event="done")[:-9] + b"\n",
    ],
)
def test_unsound_line_is_junk(bad: bytes, tmp_path: Path) -> None:
    """What each field of each event may be, `tests/unit/test_records.py` tries."""
    good, path = line(event="done"), tmp_path / "result"
    reader = EventReader(path, TOKEN, EVENTS)
    assert reader.take() == []
    path.write_bytes(good + bad + good[:9])
    assert [e["event"] for e in reader.take()] == ["done"] and reader.take() == []
    with path.open("ab") as file:
        file.write(good[9:] + bad[:-1])
    events = [*reader.take(), *reader.take(is_over=True)]
    assert ([e["event"] for e in events], reader.junk) == (["done"], 2)


SOUND = st.sampled_from(
    [
        step("start"),
        step("load"),
        step("enumerate"),
        step("prepare"),
        *(step(s, i) for s in ("open", "build", "run", "read", "close") for i in range(3)),
        devices(3),
        good(0),
        good(1),
        good(2),
        DONE,
        {"event": "failed", "status": "absent", "code": "no-device"},
    ]
)
ENDINGS = st.sampled_from(
    [CLEAN, Ending("exit", 1), Ending("signal", 11, "SIGSEGV"), Ending("deadline")]
)


@given(st.lists(SOUND, max_size=12), ENDINGS, st.integers(0, 3))
def test_any_transcript_gives_rows_and_ok_only_with_a_result(
    events: list[dict[str, Any]], ending: Ending, junk: int
) -> None:
    rows, pending = judge(CANDIDATE, Transcript(events, junk, ending, "tail", 1.0))
    assert rows or pending
    for row in rows:
        assert row.status in STATUSES
        assert row.code in SENTENCES
        assert row.reason
        if row.status == "ok":
            assert good(row.index or 0) in events
        elif row.code not in {"no-device"}:
            assert row.evidence["step"]
    if DONE in events and ending != CLEAN and not any(e["event"] == "failed" for e in events):
        assert not any(row.status == "ok" for row in rows)


HOSTILE = "GPU\x1b[2J\r\nok\u202e\ud800"
SAFE = "GPU\\x1b[2J\\r\\nok\\u202e\\ud800"


def test_text_of_a_driver_cannot_steer_a_terminal() -> None:
    who = {"api": "vulkan", "name": HOSTILE, "os": "linux"}
    listed = {"event": "devices", "devices": (DeviceTold(0, who, False, HOSTILE),)}
    evidence = {
        "error": f"a\n\tb {HOSTILE}",
        "checks": [{HOSTILE: 1.5}],
        "deep": [[[[[[[[[1]]]]]]]]],
    }
    bad = {
        "event": "device", "index": 0, "status": "broken", "code": "open-failed",
        "detail": HOSTILE, "evidence": evidence,
    }  # fmt: skip
    tail = "said\x07" + "x" * 9000
    made = Transcript([listed, bad, DONE], 0, CLEAN, tail, 1.0)
    (row,) = judge(CANDIDATE, made)[0]
    assert (row.name, row.model) == (SAFE, SAFE)
    assert SAFE in row.reason
    assert row.evidence["error"] == "a\n\tb GPU\\x1b[2J\nok\\u202e\\ud800"
    assert row.evidence["checks"] == [{SAFE: 1.5}]
    assert row.evidence["output_tail"].startswith("said\\x07xxx")
    assert len(row.evidence["output_tail"]) < 5000
    own = {k: v for k, v in row.to_dict().items() if k != "identity"}
    json.dumps(own, ensure_ascii=False).encode()  # halves of characters cannot be written


def test_text_of_a_driver_is_bounded() -> None:
    end = Ending("signal", 11, "\U0010ffff" * 100000)
    (row,) = judge(Candidate("vulkan", "/a/" + "n" * 100000, "f"),
                   Transcript([step("load")], 0, end, "", 1.0))[0]  # fmt: skip
    assert len(row.reason) < 1100
    assert len(row.name) < 500
