"""Demanded probes that fail are tried again; rows keep what applies, and until when."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quirk_db
from quirk_db import entry
from quirk_fakes import be_quick
from quirk_worker import WORKER

from gpuedge.backends.base import Candidate
from gpuedge.capdb import Restrictions
from gpuedge.probing import api, report, run, verdicts
from gpuedge.safety import child as safe_child


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the interpreter do with smaller tensors."""
    be_quick(monkeypatch, tmp_path)


def tried(
    tmp_path: Path, key: str, deadline_s: float = 30.0
) -> tuple[report.ProbeRow, list[dict[str, Any]]]:
    """Return the row of a device that `quirk_fakes` plays, and what each of its children got."""
    starts = tmp_path / f"{key}.starts"
    candidate = Candidate("vulkan", key, "f", {"STARTS": str(starts)})
    ((row,),) = run.probe_all([candidate], deadline_s, WORKER)
    return row, [json.loads(line) for line in starts.read_text().splitlines()]


@pytest.mark.parametrize(
    ("key", "children", "status", "outcome"),
    [
        ("fails", 1, "ok", "failed"),
        ("fails-and-blocks", 1, "blocked", "failed"),
        ("is-cut", 1, "ok", "cut"),
        ("dies", 2, "ok", "failed"),
    ],
)
def test_what_comes_of_a_required_test(
    tmp_path: Path, key: str, children: int, status: str, outcome: str
) -> None:
    row, starts = tried(tmp_path, key)
    assert (row.status, row.evidence["entries"][0]["outcome"]) == (status, outcome)
    assert len(starts) == children
    assert (row.restrictions == {}) is (outcome == "cleared")
    assert row.evidence.get("is_unfinished", False) is (outcome == "cut")
    assert row.database == "3 abc"


def test_test_that_kills_its_process_is_not_run_again(tmp_path: Path) -> None:
    _, starts = tried(tmp_path, "dies")
    assert [start["answers"] for start in starts] == [{}, {"mesa-0001": False}]


def test_crash_outside_a_demand_is_the_devices(tmp_path: Path) -> None:
    row, starts = tried(tmp_path, "dies-after")
    assert (row.status, len(starts)) == ("crashed", 2)


@pytest.mark.parametrize(
    ("key", "children", "code", "first"),
    [
        ("wrong", 2, "wrong-numbers", "wrong-numbers"),
        ("wrong-once", 2, "ok", "wrong-numbers"),
        ("full-once", 2, "ok", "out-of-memory"),
        ("crashes-once", 2, "ok", "crashed"),
        ("exits", 2, "exited", "exited"),
        ("exits-then-crashes", 2, "crashed", "exited"),
        ("lacking", 2, "no-shaders", "no-shaders"),
    ],
)
def test_every_failure_is_tried_once_more(
    tmp_path: Path, key: str, children: int, code: str, first: str | None
) -> None:
    row, starts = tried(tmp_path, key)
    assert (row.code, len(starts)) == (code, children)
    assert row.evidence.get("first_attempt", {}).get("code") == first
    assert ("on the second attempt" in row.reason) is (code == "ok")
    assert "is_unfinished" not in row.evidence


def test_numbers_that_were_wrong_once_are_tested_harder(tmp_path: Path) -> None:
    for key, harder in (("wrong-once", 16), ("crashes-once", 2)):
        _, starts = tried(tmp_path, key)
        assert [start["runs"] for start in starts] == [2, harder]


def test_hang_is_not_tried_again(tmp_path: Path) -> None:
    row, starts = tried(tmp_path, "hangs", 1.6)
    assert (row.status, len(starts)) == ("timeout", 1)


def test_failure_without_time_for_a_second_try_is_not_believed_for_long(tmp_path: Path) -> None:
    row, starts = tried(tmp_path, "wrong-slowly", 2.5)
    assert (row.code, len(starts)) == ("wrong-numbers", 1)
    assert row.evidence["is_unfinished"] is True


def table(**more: Any) -> dict[str, Any]:
    return Restrictions(entries=("mesa-0001",), **more).to_dict()


def row(name: str, **more: Any) -> report.ProbeRow:
    identity = {"api": "vulkan", "name": name, "os": "linux", "device_type": "DISCRETE_GPU"}
    fields = {"identity": identity, "is_software": False, "index": 0, "name": name, "model": name}
    made = report.ProbeRow("vulkan", "vulkan", "ok", "ok", "because")
    return made.replace(**{**fields, **more})


def test_demoted_devices_come_after_others_but_before_software() -> None:
    demoted = table(is_demoted=True)
    rows = report.number([
        row("slow", restrictions=demoted),
        row("weak", identity={**row("weak").identity, "device_type": "INTEGRATED_GPU"}),
        row("strong"),
        row("none", is_software=True),
    ])  # fmt: skip
    found = report.ProbeReport(rows, "1")
    assert [r.name for r in found.devices] == ["strong", "weak", "slow", "none"]


def test_demoted_route_to_a_device_comes_after_the_other() -> None:
    rows = report.number([
        row("one", restrictions=table(is_demoted=True)), row("one", backend="gles31"),
    ])  # fmt: skip
    assert [(r.backend, r.route) for r in report.ProbeReport(rows, "1").devices] == [
        ("gles31", 1), ("vulkan", 2),
    ]  # fmt: skip


def test_row_names_what_a_backend_must_leave() -> None:
    restricted = table(
        features=frozenset({"pipeline-cache", "fp16"}), limits={"max_texture_size": 2048}
    )
    made = row("one", restrictions=restricted).info()
    assert (made.disabled, made.limits) == ({"pipeline-cache", "fp16"}, {"max_texture_size": 2048})
    assert row("one").info().disabled == frozenset()


def stored(folder: Path, made: report.ProbeRow, now: float, deadline_s: float = 4.0) -> None:
    candidate = Candidate("vulkan", "/a.json", "f")
    assert verdicts.Store(folder).save({"key": (candidate, [made])}, deadline_s, now)


def is_found(folder: Path, now: float, deadline_s: float = 4.0) -> bool:
    return verdicts.Store(folder).find("key", deadline_s, now) is not None


def test_unfinished_verdict_is_tried_again_soon(tmp_path: Path) -> None:
    stored(tmp_path, row("one", evidence={"is_unfinished": True}), 1e9)
    assert is_found(tmp_path, 1e9 + 590)
    assert not is_found(tmp_path, 1e9 + 610)
    assert not is_found(tmp_path, 1e9 + 10, deadline_s=20.0)
    stored(tmp_path, row("one"), 1e9)
    assert is_found(tmp_path, 1e9 + 90000, deadline_s=20.0)


def test_crash_seen_once_is_believed_for_minutes(tmp_path: Path) -> None:
    died = row("one", status="crashed", code="crashed", evidence={"is_unfinished": True})
    stored(tmp_path, died, 1e9)
    assert is_found(tmp_path, 1e9 + 500)
    assert not is_found(tmp_path, 1e9 + 1000)
    stored(tmp_path, died.replace(evidence={}), 1e9)
    assert is_found(tmp_path, 1e9 + 86000)


def test_newest_rows_are_found_whatever_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GPUEDGE_BACKENDS", "vulkan")
    here = Candidate("vulkan", "/a.json", "f")
    loaded = SimpleNamespace(candidates=lambda environ: [here])
    monkeypatch.setattr("gpuedge.backends.load", lambda name: loaded)
    assert api.latest() == ()
    store = verdicts.Store(tmp_path)
    for key, name, when in (("x", "old", 1.0), ("y", "new", 2.0), ("z", "older", 0.0)):
        store.save({key: (here, [row(name)])}, 4.0, when)
    store.save({"w": (Candidate("vulkan", "/gone.json", "f"), [row("other")])}, 4.0, 3.0)
    (found,) = api.latest()
    assert (found.name, found.device, found.is_cached) == ("new", "vulkan:0", True)


def test_key_covers_ignored_entries_and_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Candidate("vulkan", "/a.json", "f")
    place = quirk_db.folder(tmp_path / "db", entry(1, "crash", {"disable_backend": True}))
    monkeypatch.setenv("GPUEDGE_DB", str(place))
    keys = [verdicts.Keys({})(candidate)]
    for words in ("mesa-0001", "mesa-0001,mesa-0002", "all"):
        monkeypatch.setenv("GPUEDGE_IGNORE", words)
        keys.append(verdicts.Keys({})(candidate))
    monkeypatch.setenv("GPUEDGE_IGNORE", "mesa-0002 mesa-0001")
    assert verdicts.Keys({})(candidate) == keys[2]
    monkeypatch.delenv("GPUEDGE_IGNORE")
    assert verdicts.Keys({})(candidate) == keys[0]
    quirk_db.folder(tmp_path / "db", entry(1, "hang", {"disable_backend": True}))
    keys.append(verdicts.Keys({})(candidate))
    assert len(set(keys)) == len(keys)


def test_child_ignores_what_the_application_says_in_code() -> None:
    from gpuedge.core.config import config

    with config(ignore="mesa-0001 mesa-0002"):
        environ = safe_child.environment()
    assert environ["GPUEDGE_IGNORE"].split() == ["mesa-0001", "mesa-0002"]
