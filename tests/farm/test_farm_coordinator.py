"""Who is asked, who is believed, and what becomes of shards whose worker fails: nothing is lost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from farm_fakes import CASES, END, answers, begun, coordinator, desk, farm, key, names_in

from gpuedge.core.errors import FarmError, NoUsableDeviceError
from gpuedge.farm import coordinator as coordinators
from gpuedge.farm import store as stores
from gpuedge.farm import work
from gpuedge.farm.tasks import is_verified, shards

ALL = sorted(CASES)


@pytest.fixture(autouse=True)
def honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "answer", answers({}))
    monkeypatch.setattr(coordinators, "TICK_S", 0.1)


def hang(header: Any, rows: Any) -> None:
    END.wait(60)


def summary_of(made: Any) -> dict[str, Any]:
    made.work()
    body: dict[str, Any] = made.summary()
    assert json.loads(json.dumps(body)) == body
    return body


def test_each_kind_of_device_runs_everything_and_equal_ones_share_it(tmp_path: Path) -> None:
    with farm(desk("a", "G1"), desk("b", "G1", "G2")) as client:
        body = summary_of(coordinator(client, tmp_path, wanted=3))
    assert sorted(names_in(tmp_path)) == sorted(2 * ALL)
    shared, own = sorted(body["devices"], key=lambda one: -len(one["workers"]))
    assert (shared["workers"], own["workers"]) == (["a", "b"], ["b"])
    assert (body["counts"]["passed"], body["counts"]["not_run"]) == (2 * len(ALL), 0)
    assert not (body["excluded"] or body["moved"] or body["disagreements"])


def test_a_second_session_runs_what_is_missing_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, kept = stores.RunStore.put, []

    def full(self: Any, name: str, text: str) -> bool:
        if name.startswith("shards/") and len(kept) == 2:
            with self._reached("written"):
                raise OSError(28, "No space left on device")
        kept.extend([name] if name.startswith("shards/") else [])
        return put(self, name, text)

    monkeypatch.setattr(stores.RunStore, "put", full)
    with farm(desk("a", "G1")) as client, pytest.raises(FarmError) as caught:
        coordinator(client, tmp_path).work()
    assert "No space left" in str(caught.value) and "--resume" in str(caught.value)
    monkeypatch.setattr(stores.RunStore, "put", put)
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "shards").iterdir()}
    assert len(before) == 2
    torn = tmp_path / "shards" / next(iter(before)).name
    torn.write_text(torn.read_text()[:-40])  # as a crash may leave it where renaming is not safe
    with farm(desk("a", "G1")) as client:
        body = summary_of(coordinator(client, tmp_path))
    assert sorted(names_in(tmp_path)) == ALL and body["counts"]["not_run"] == 0
    same = [f for f, when in before.items() if f != torn and f.stat().st_mtime_ns == when]
    assert len(same) == 1, "what was whole was run again"
    assert len(list((tmp_path / "refused").glob("*.json"))) == 1


def test_a_store_that_vanishes_is_not_made_anew(tmp_path: Path) -> None:
    store, _ = begun(tmp_path / "s")
    (tmp_path / "s" / "run.json").unlink()
    with pytest.raises(FarmError, match=r"run\.json is gone"):
        store.put("shards/x.jsonl", "x")


@pytest.mark.parametrize("place", ["{}", "memory://once"])
def test_files_are_written_once(place: str, tmp_path: Path) -> None:
    store, _ = begun(place.format(tmp_path))
    assert store.put("shards/x.jsonl", "first") and not store.put("shards/x.jsonl", "second")
    assert store.text("shards/x.jsonl") == "first"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def forged(what: str) -> Any:
    def fate(header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        if what == "doubled":
            rows.append(dict(rows[0]))
        elif what == "missing":
            rows.pop()
        elif what == "another case":
            rows[0] |= {"id": "conv9d/float32/none/normal/float32"}
        elif what == "another operator":
            rows[0]["op"] = "conv2d"
        elif what == "no kernel":
            rows[0]["kernels"] = []
        elif what == "beyond its bound":
            rows[0]["worst"] = 3.0
        elif what == "no status":
            rows[0]["status"] = "splendid"
        elif what == "another device":
            header["identity"]["name"] = "Something else"
        elif what == "another version":
            header["versions"]["gpuedge"] = "9.9"
        elif what == "another task":
            header["farm"]["task"] += "x"
        elif what == "no results":
            header["schema"] = "x"

    return fate


LIES = ("doubled", "missing", "another case", "another operator", "no kernel", "beyond its bound",
        "no status", "another device", "another version", "another task", "no results")  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_reply_that_is_none_is_refused(lie: str, tmp_path: Path) -> None:
    from gpuedge.core.record import UnfitError
    from gpuedge.farm.tasks import accepted, request

    _, run = begun(tmp_path)
    one = desk("a", "G1")
    device = one.announcement.devices[0]
    task = shards(device.key, ALL, 4)[0]
    asked = json.loads(request(task, run, 30.0))
    good = answers({})(asked, one)
    assert sorted(accepted(good, task, run, CASES, device).rows) == sorted(task.ids)
    with pytest.raises(UnfitError):
        accepted(answers({"a": forged(lie)})(asked, one), task, run, CASES, device)


def test_a_liar_a_hanging_worker_and_one_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = []

    def lie_later(header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        lies.append(header["farm"]["task"])
        if len(lies) == 2:
            forged("doubled")(header, rows)

    monkeypatch.setattr(work, "answer", answers({"liar": lie_later, "stuck": hang}))
    desks = [desk("liar", "G1"), desk("stuck", "G1"), desk("good", "G1"),
             desk("old", "G1", version="0.0.1")]  # fmt: skip
    with farm(*desks) as client:
        start = time.monotonic()
        body = summary_of(coordinator(client, tmp_path, wanted=3, stall_s=1.5, parts=9))
        assert time.monotonic() - start < 30, "it waited for what hangs"
    assert sorted(names_in(tmp_path)) == ALL, "lost or doubled"
    (device,) = body["devices"]
    assert device["workers"] == ["good"], "what the liar gave before is not believed either"
    why = {row["serial"]: row["why"] for row in body["excluded"]}
    assert set(why) == {"liar", "stuck", "old"}
    assert "twice" in why["liar"] and "no case was done" in why["stuck"]
    assert "0.0.1" in why["old"] and "this run is of" in why["old"]
    assert {row["worker"] for row in body["moved"]} >= {"liar", "stuck"}


def test_devices_that_nobody_has_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(header: Any, rows: Any) -> None:
        raise NoUsableDeviceError("It is gone.")

    monkeypatch.setattr(work, "answer", answers({"b": broken}))
    with farm(desk("a", "G1"), desk("b", "G2")) as client:
        body = summary_of(coordinator(client, tmp_path, wanted=2))
    assert sorted(names_in(tmp_path)) == ALL
    assert (body["counts"]["passed"], body["counts"]["not_run"]) == (len(ALL), len(ALL))
    assert {n.partition("/")[2].partition(".")[0] for n in body["not_run"]} == {key("G2")}
    assert {row["why"] for row in body["moved"]} == {"GE-103: It is gone."}


def test_a_second_device_checks_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = ALL[3]

    def forge(header: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        for one in rows:
            if one["id"] == bad:
                one |= {"status": "failed", "reason": "so it is"}

    monkeypatch.setattr(work, "answer", answers({"b": forge}))
    with farm(desk("a", "G1"), desk("b", "G1"), desk("c", "G2")) as client:
        body = summary_of(coordinator(client, tmp_path, wanted=3, verify=1.0))
    assert [(d["id"], {d["first"], d["second"]}) for d in body["disagreements"]] == [
        (bad, {"passed", "failed"})
    ]
    assert body["disagreements"][0]["workers"] in ("a and b", "b and a")
    parts = len(shards(key("G1"), ALL, 4))
    assert (body["verified"], len(body["unverified"])) == (parts, parts)
    assert sorted(names_in(tmp_path)) == sorted(2 * ALL)


def test_the_share_that_is_checked_follows_from_the_seed(tmp_path: Path) -> None:
    tasks = shards("k", [f"case/{i}" for i in range(4000)], 2000)
    chosen = []
    for seed in (1, 2):
        _, run = begun(tmp_path / str(seed), verify=0.05, seed=seed)
        chosen.append({t.id for t in tasks if is_verified(run, t)})
        assert chosen[-1] == {t.id for t in tasks if is_verified(run, t)}
        assert 0.03 < len(chosen[-1]) / len(tasks) < 0.07
    assert chosen[0] != chosen[1]


def test_a_machine_does_not_check_itself(tmp_path: Path) -> None:
    parts = len(shards(key("G1"), ALL, 4))
    for _ in range(2):  # in the second session its worker has another address
        with farm(desk("a", "G1")) as client:
            body = summary_of(coordinator(client, tmp_path, verify=1.0))
        assert (body["verified"], len(body["unverified"])) == (0, parts)
    with farm(desk("b", "G1")) as client:
        body = summary_of(coordinator(client, tmp_path, verify=1.0))
    assert (body["verified"], body["unverified"]) == (parts, [])


def test_labels_say_who_is_asked(tmp_path: Path) -> None:
    with farm(desk("a", "G1", rack="1"), desk("b", "G1", rack="2")) as client:
        body = summary_of(coordinator(client, tmp_path, labels={"rack": "2"}))
    assert body["devices"][0]["workers"] == ["b"]


def test_nobody_comes(tmp_path: Path) -> None:
    start = time.monotonic()
    with farm() as client, pytest.raises(NoUsableDeviceError, match="no worker came"):
        coordinator(client, tmp_path).work()
    assert time.monotonic() - start < 10
