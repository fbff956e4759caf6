"""Results on disk: what is written can be read, and what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuedge.conformance import SCHEMA, results
from gpuedge.conformance.results import (
    Results,
    ResultSet,
    check_same,
    described,
    families,
    only,
    read,
    summary,
)
from gpuedge.core.errors import InputError

HEADER: dict[str, Any] = {
    "schema": SCHEMA, "device": "fake:0", "profile": "smoke", "identity": {"name": "Fake & Co"},
    "caps": {"forms": ["map", "group"], "max_texture_size": None},
    "versions": {"gpuedge": "9.9"}, "started": "2026-01-02T03:04:05Z",
}  # fmt: skip


def row(name: str, status: str = "passed", **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "op": name.split("/", maxsplit=1)[0],
        "status": status,
        "seconds": 0.5,
        **more,
    }


def of(*rows: dict[str, Any], **changes: Any) -> Results:
    made = Results({**HEADER, **changes})
    for each in rows:
        made.add(each)
    return made


def sample() -> Results:
    return of(
        row("add/1", worst=0.25), row("add/2", worst=0.75), row("mul/1", "failed", reason="1 < 2"),
        row("mul/2", "crashed", reason="bell \x07 and \ud800"), row("mul/3", "timeout"),
        row("div/1", "error", code="GE-301", reason="no"), row("div/2", "skipped", reason="large"),
    )  # fmt: skip


def test_a_file_too_large_is_refused_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(sample(), tmp_path / "r.jsonl")
    monkeypatch.setattr(results, "MAX_BYTES", file.stat().st_size)
    assert len(only(str(file)).rows) == 7
    monkeypatch.setattr(results, "MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(InputError, match="has more than"):
        read(str(file))


def written(made: Results, path: Path) -> Path:
    path.write_bytes(made.lines())
    return path


def test_results_come_back(tmp_path: Path) -> None:
    file = str(written(sample(), tmp_path / "r.jsonl"))
    again = only(file)
    assert read(file).damaged == []
    assert again.header == HEADER and again.rows == sample().rows
    assert {row["device"] for row in again.rows.values()} == {"fake:0"}
    assert again.counts() == {
        "cases": 7, "passed": 2, "failed": 1, "error": 1, "crashed": 1, "timeout": 1, "flake": 0,
        "skipped": 1, "executed": 6, "unsupported": 1, "quarantined": 0, "xfailed": 0, "xpassed": 0,
    }  # fmt: skip


def test_one_file_holds_several_devices(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    made = ResultSet([sample(), of(row("add/1", "flake"), device="fake:1")], str(file))
    made.write()
    again = read(str(file))
    assert [part.device for part in again] == ["fake:0", "fake:1"]
    assert again.of("fake:1") == made.of("fake:1") and again.of("fake:0") == made.of("fake:0")
    with pytest.raises(InputError, match="not about one device") as caught:
        only(str(file))
    assert caught.value.known == "devices: fake:0, fake:1"
    # rows are of the device they name, wherever they stand; those of a lost header are left out
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[-1], *lines[1:-2]]))
    again = read(str(file))
    assert again.of("fake:0") == made.of("fake:0") and again.damaged == [2]


def test_rows_without_a_device_are_of_the_header_above(tmp_path: Path) -> None:
    made = Results(HEADER, {"add/1": row("add/1")})
    assert only(str(written(made, tmp_path / "r.jsonl"))).rows["add/1"]["device"] == "fake:0"


def test_damaged_lines_are_named_and_left_out(tmp_path: Path) -> None:
    file = written(sample(), tmp_path / "r.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"id": "add/2", "op": "add", "status": "perfect"}\n'
    lines[3] = b"\xff\xfe\n"
    lines[4] = b'{"id": "add/3", "op": "add", "status": "passed", "seconds": NaN}\n'
    lines[5] = b'{"id": "add/3", "op": "add", "status": "failed", "map": ["12", "x"]}\n'
    lines[6] = b'{"id": "add/3", "op": "add", "status": "passed", "seconds": -1}\n'
    file.write_bytes(b"".join([*lines, json.dumps({**HEADER, "caps": 5}).encode()])[:-20])
    again = read(str(file))
    assert (len(again.parts[0].rows), again.damaged) == (2, [3, 4, 5, 6, 7, 9])
    assert described(again.damaged) == "6 damaged lines left out (lines 3, 4, 5, 6, 7, 9)"
    assert described(range(1, 30)).endswith("19, 20, ...)")


@pytest.mark.parametrize(
    "content", [b"{}\n", b"[]\n", b"\x00", b'{"schema": "gpuedge.run/1"}\n', b"torn"]
)
def test_files_of_something_else_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match="not a file of conformance results"):
        read(str(file))
    with pytest.raises(InputError, match="cannot be read"):
        read(str(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        read(str(tmp_path / "none\0"))


@pytest.mark.parametrize("first", [None, b"", b'{"schema": "gpuedge.conf\n'])
def test_without_a_header_there_is_nothing_to_go_on_from(
    first: bytes | None, tmp_path: Path
) -> None:
    file = written(sample(), tmp_path / "r.jsonl")
    rows = file.read_bytes().splitlines(keepends=True)[1:]
    file.write_bytes(b"" if first is None else b"".join([first, *rows]))
    assert read(str(file)).parts == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("device", "fake:1", "another device"),
        ("profile", "full", "another profile"),
        ("identity", {"name": "Other"}, "another identity"),
        ("versions", {"gpuedge": "10"}, "another version of gpuedge"),
    ],
)
def test_results_of_another_run_are_refused(key: str, value: Any, words: str) -> None:
    check_same(sample(), HEADER, "r.jsonl")
    with pytest.raises(InputError, match=words):
        check_same(sample(), {**HEADER, key: value}, "r.jsonl")


def test_summary_and_families() -> None:
    body = summary(ResultSet([sample()]), [("fake:0", "sub/1")], ["a note"])
    json.dumps(body, allow_nan=False)
    assert body["schema"] == SCHEMA
    assert body["counts"]["not_run"] == 1
    assert [r["id"] for r in body["problems"]] == ["div/1", "mul/1", "mul/2", "mul/3"]
    assert body["skipped"] == {"large": 1} and body["device"] == "fake:0"
    assert body["devices"][0]["counts"] == body["counts"]
    found = families(sample().rows.values())
    assert found["add"] == {
        "passed": 2, "run": 2, "skipped": 0, "quarantined": 0, "worst": 0.75, "seconds": 1.0,
    }  # fmt: skip
    assert found["div"]["run"] == 1 and found["div"]["worst"] is None


def test_good_and_lost() -> None:
    assert not sample().is_good and sample().is_lost
    good = of(row("a"), row("b", "skipped"))
    assert good.is_good and not good.is_lost
    lost = of(row("a", "error", code="GE-401"))
    assert lost.is_lost and not lost.is_good
    flaky = of(row("a", "flake"))
    assert not flaky.is_good and not flaky.is_lost


@pytest.mark.parametrize(
    ("kind", "status", "counted"),
    [
        ("xfail", "failed", "xfailed"), ("xfail", "crashed", "xfailed"),
        ("xfail", "passed", "xpassed"), ("quarantine", "timeout", "quarantined"),
        ("quarantine", "passed", "quarantined"), ("unsupported", "skipped", "unsupported"),
        ("xfail", "skipped", "unsupported"),
    ],
)  # fmt: skip
def test_what_is_expected_is_counted_apart(kind: str, status: str, counted: str) -> None:
    made = of(row("a", status, expectation={"kind": kind, "reason": "known"}), row("b"))
    assert made.is_good == (counted != "xpassed") and not made.is_lost
    counts = made.counts()
    assert counts[counted] == 1
    # each case stands in one place, so that what is in quarantine adds to nothing else
    assert counts["passed"] == 1 and counts["failed"] == counts["crashed"] == counts["timeout"] == 0
    assert counts["executed"] == 2 - (counted in ("quarantined", "unsupported"))
    tally = families(made.rows.values())
    assert (tally["a"]["run"], tally["a"]["passed"]) == (counts["executed"] - 1, 0)


def test_file_is_complete_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FLUSH_S", 0.0)
    part = Results(dict(HEADER))
    made = ResultSet([part], str(tmp_path / "r.jsonl"))
    for i in range(3):
        part.add(row(f"a/{i}"))
        made.flush()
        assert len(only(str(tmp_path / "r.jsonl")).rows) == i + 1
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]
    blocked = tmp_path / "file" / "r.jsonl"
    blocked.parent.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        ResultSet([part], str(blocked)).write()
    ResultSet([part]).write()
