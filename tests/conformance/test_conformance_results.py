"""Results on disk: what is written can be read, what is damaged is named, and JUnit is valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuedge.conformance import SCHEMA, results
from gpuedge.conformance.results import Results, check_same, families, junit, read, summary
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


def sample() -> Results:
    rows = [
        row("add/1", worst=0.25), row("add/2", worst=0.75), row("mul/1", "failed", reason="1 < 2"),
        row("mul/2", "crashed", reason="bell \x07 and \ud800"), row("mul/3", "timeout"),
        row("div/1", "error", code="GE-301", reason="no"), row("div/2", "skipped", reason="large"),
    ]  # fmt: skip
    return Results(HEADER, {r["id"]: r for r in rows})


def written(made: Results, path: Path) -> Path:
    path.write_bytes(made.lines())
    return path


def test_results_come_back(tmp_path: Path) -> None:
    again, damaged = read(str(written(sample(), tmp_path / "r.jsonl")))
    assert damaged == 0
    assert again.header == HEADER and again.rows == sample().rows
    assert again.counts() == {
        "cases": 7, "passed": 2, "failed": 1, "error": 1, "crashed": 1, "timeout": 1, "skipped": 1,
    }  # fmt: skip


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    file = written(sample(), tmp_path / "r.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"id": "add/2", "op": "add", "status": "perfect"}\n'
    lines[3] = b"\xff\xfe\n"
    lines[4] = b'{"id": "add/3", "op": "add", "status": "passed", "seconds": NaN}\n'
    file.write_bytes(b"".join(lines)[:-20])
    again, damaged = read(str(file))
    assert (len(again.rows), damaged) == (3, 4)


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
    found, _ = read(str(file))
    assert (found.header, found.rows) == ({}, {})


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


def test_junit_says_what_the_rows_say() -> None:
    root = ElementTree.fromstring(junit(sample()))
    assert root.tag == "testsuites"
    (suite,) = root
    wanted = {"tests": "7", "failures": "1", "errors": "3", "skipped": "1", "time": "3.500"}
    assert {k: suite.get(k) for k in wanted} == wanted
    assert suite.get("timestamp") == "2026-01-02T03:04:05Z"
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["identity.name"] == "Fake & Co"
    assert properties["caps.forms"] == "map group"
    assert properties["versions.gpuedge"] == "9.9"
    found = {c.get("name"): c for c in suite.iter("testcase")}
    assert {c.get("classname") for c in found.values()} == {"add", "mul", "div"}
    assert [e.tag for e in found["add/1"]] == []
    assert found["mul/1"][0].tag == "failure" and found["mul/1"][0].text == "1 < 2"
    assert found["mul/2"][0].tag == "error" and found["mul/2"][0].get("message") == "bell  and "
    assert found["div/1"][0].get("type") == "GE-301"
    assert found["div/2"][0].tag == "skipped" and found["div/2"].get("time") == "0.5000"


def test_summary_and_families() -> None:
    body = summary(sample(), ["sub/1"], ["a note"])
    json.dumps(body, allow_nan=False)
    assert body["schema"] == SCHEMA
    assert body["counts"]["not_run"] == 1
    assert [r["id"] for r in body["problems"]] == ["div/1", "mul/1", "mul/2", "mul/3"]
    assert body["skipped"] == {"large": 1}
    found = families(sample().rows.values())
    assert found["add"] == {"passed": 2, "run": 2, "skipped": 0, "worst": 0.75, "seconds": 1.0}
    assert found["div"]["run"] == 1 and found["div"]["worst"] is None


def test_good_and_lost() -> None:
    assert not sample().is_good and sample().is_lost
    good = Results(HEADER, {"a": row("a"), "b": row("b", "skipped")})
    assert good.is_good and not good.is_lost
    lost = Results(HEADER, {"a": row("a", "error", code="GE-401")})
    assert lost.is_lost and not lost.is_good


def test_file_is_complete_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FLUSH_S", 0.0)
    made = Results(dict(HEADER), path=str(tmp_path / "r.jsonl"))
    for i in range(3):
        made.add(row(f"a/{i}"))
        assert len(read(str(tmp_path / "r.jsonl"))[0].rows) == i + 1
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]
    blocked = tmp_path / "file" / "r.jsonl"
    blocked.parent.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        Results(HEADER, path=str(blocked)).write()
    Results(HEADER).write()
