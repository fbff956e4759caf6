"""`gpuedge db`: every action, its document, its exit code, and that bad input is told plainly."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import capdb_folders as made
import pytest
from capdb.seal import seal
from cli_fakes import GOOD

from gpuedge.capdb import entries
from gpuedge.capdb.identities import KEYS, identities, unfit
from gpuedge.cli import db
from gpuedge.cli.main import main
from gpuedge.probing import api
from gpuedge.probing.show import forbidden

PACKAGED = Path(__file__).resolve().parents[2] / "capability_db"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, wide tables, and no settings."""
    for name in ("GPUEDGE_DB", "GPUEDGE_IGNORE", "GPUEDGE_DB_ROOT", "GPUEDGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sealed database with one entry that blocks and one that asks for a test, in use."""
    probe = {"tests": ["standard"], "runs": 8, "may": "confirm_and_clear"}
    blocks = {"disable_backend": True}
    asking = made.entry(
        {"family": None, "model": None},
        id="adreno-0002",
        action=blocks,
        probe=probe,
        summary="Drivers of Qualcomm may be wrong, sometimes.",
    )
    crash = made.entry(effect="crash", action=blocks, summary="Adreno 620 brings processes down.")
    place = made.folder(tmp_path / "small", [crash, asking])
    for name in ("families.json", "names.json", "classes.json"):
        shutil.copy(PACKAGED / name, place)
    seal(place)
    monkeypatch.setenv("GPUEDGE_DB", str(place))
    return place


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "phone.json"
    path.write_text(json.dumps(made.IDENTITIES[0]))
    return str(path)


def document(arguments: list[str], capture: Capture, code: int = 0) -> dict[str, Any]:
    capture.readouterr()
    assert main(["db", *arguments, "--json"]) == code
    body: dict[str, Any] = json.loads(capture.readouterr().out)
    return body


def text(arguments: list[str], capture: Capture, code: int = 0) -> str:
    capture.readouterr()
    assert main(["db", *arguments]) == code
    done = capture.readouterr()
    return " ".join((done.out + done.err).split())


def test_why_traces_every_entry_in_order(small: Path, device: str, capsys: Capture) -> None:
    body = document(["why", "--device", device], capsys)
    assert body["schema"] == "gpuedge.db.why/1"
    assert [(f["id"], f["result"], f["becomes"]) for f in body["findings"]] == [
        ("adreno-0001", "true", "applies"),
        ("adreno-0002", "true", "probe"),
    ]
    assert body["driver_versions"]["vk-adreno"] == {"version": [512, 490, 0], "text": "512.490.0"}
    assert body["blocked_by"] == "adreno-0001"
    assert body["restrictions"]["entries"] == ["adreno-0001"]
    shown = text(["why", "--device", device], capsys)
    for word in (
        "512.490.0",
        "backend off",
        "adreno-0002: standard, 8 runs",
        "2 entries about",
    ):
        assert word in shown


def test_why_lists_every_entry_of_the_packaged_database_once(capsys: Capture) -> None:
    body = document(["why", "--device", "D066"], capsys)
    ids = [f["id"] for f in body["findings"]]
    order = [f["result"] for f in body["findings"]]
    listed = document(["show"], capsys)
    assert sorted(ids) == sorted(e["id"] for e in listed["entries"])
    assert len(ids) == body["database"]["entries"] == len(set(ids))
    assert order == sorted(order, key=["true", "unknown", "false"].index)
    assert all(f["decided_by"].split("[")[0] in {"match", "except"} for f in body["findings"])
    about, others = (sum((r == "false") is is_other for r in order) for is_other in (False, True))
    assert 0 < about < others
    for arguments, told, listed_ids in (
        ([], f"{others} entries not about it; --all shows them", ids[:about]),
        (["--all"], f"{others} entries not about it", ids),
    ):
        shown = text(["why", "--device", "D066", *arguments], capsys)
        assert told in shown
        assert {word for word in shown.split() if word in ids} == set(listed_ids)


def test_why_judges_a_record_that_says_nothing(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "empty.json"
    path.write_text("{}")
    body = document(["why", "--device", str(path)], capsys)
    assert body["subject"]["vendor"] is None
    assert body["blocked_by"] is None
    assert {f["result"] for f in body["findings"]} <= {"unknown", "false"}


WRONG = [
    ("vendorID", [1]), ("vendorID", -5), ("vendorID", "zz"), ("vendorID", True),
    ("deviceID", 3.5), ("deviceID", 2**32), ("driverVersion", 3.5), ("driverVersion", True),
    ("vendor", {}), ("GL_RENDERER", 5), ("GL_VERSION", ["x"]), ("os", True), ("api", 5),
    ("android_sdk", "x"), ("vendor_inferred", "yes"), ("apiVersion", 1.3),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_value_that_no_driver_reports_is_refused(
    key: str, value: object, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "phone.json"
    path.write_text(json.dumps({"api": "vulkan", "name": "x", key: value}))
    said = text(["why", "--device", str(path)], capsys, 2)
    assert f"cannot have {json.dumps(value)} as {key}. requested by: --device" in said
    assert "known here: it is " in said
    assert "leave out what is not known" in said


def test_every_stored_record_and_null_are_accepted(tmp_path: Path, capsys: Capture) -> None:
    for record in identities(PACKAGED).values():
        assert unfit(record) is None, record
    told = {"vendorID": 0x5143, "deviceID": "0x43050A01", "driverVersion": 7, "driverID": None}
    path = tmp_path / "phone.json"
    path.write_text(json.dumps({"api": "vulkan", **told}))
    body = document(["why", "--device", str(path)], capsys)
    assert body["subject"]["vendor"] == "qualcomm"


def test_ignored_entries_are_told_as_such(
    small: Path, device: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_IGNORE", "adreno-0001,adreno-0777")
    body = document(["why", "--device", device], capsys)
    assert body["findings"][0]["becomes"] == "ignored"
    assert body["blocked_by"] is None
    assert "adreno-0777" in body["notes"][-1]
    monkeypatch.setenv("GPUEDGE_IGNORE", "all")
    assert document(["why", "--device", device], capsys)["demands"] == []


def test_devices_of_the_last_probe_are_judged_by_their_device_string(
    small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {"vendorID": 0x5143, "deviceID": 0x6020001}
    row = GOOD.replace(identity={**made.IDENTITIES[0], **ids, "name": "x"})
    monkeypatch.setattr(api, "latest", lambda: (row,))
    assert document(["why", "--device", "vulkan:0"], capsys)["blocked_by"] == "adreno-0001"
    assert document(["why", "--device", "vulkan"], capsys)["blocked_by"] == "adreno-0001"
    here = document(["why"], capsys)
    assert here["schema"] == "gpuedge.db.machine/1"
    assert [d["device"] for d in here["devices"]] == ["vulkan:0"]
    assert "Adreno 620 brings processes down" in text(["why"], capsys)


def test_a_machine_without_devices_says_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "latest", lambda: ())
    assert document(["why"], capsys)["devices"] == []
    assert db.NOTHING in text(["why"], capsys)


@pytest.mark.parametrize(
    ("content", "code"), [("[1]", "GE-203"), ("{", "GE-203"), (None, "GE-203"), (b"\xff", "GE-203")]
)
def test_records_that_cannot_be_read(
    content: str | bytes | None, code: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "phone.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert document(["why", "--device", str(path)], capsys, 2)["code"] == code


def test_names_of_nothing_are_told_with_a_way_out(capsys: Capture) -> None:
    unknown = document(["why", "--device", "vulcan:9"], capsys, 2)
    assert unknown["code"] == "GE-102" and "gpuedge probe" in unknown["hint"]
    assert document(["why", "--device", "D001x"], capsys, 2)["hint"] == "did you mean 'D001'?"
    missing = document(["why", "--device", "no.json"], capsys, 2)
    assert missing["code"] == "GE-203" and missing["what"] == "There is no file at no.json."
    assert "gpuedge probe" in missing["hint"]
    unknown = document(["show", "adreno-9999"], capsys, 2)
    assert unknown["hint"].startswith("gpuedge db show adreno-")
    assert document([], capsys, 2)["code"] == "GE-200"


def test_show_prints_an_entry_in_full(small: Path, capsys: Capture) -> None:
    body = document(["show", "adreno-0002"], capsys)
    assert body["schema"] == "gpuedge.db.show/1"
    assert body["database"]["folder"] == str(small)
    (entry,) = body["entries"]
    assert (entry["api"], entry["probe"]["runs"]) == ("vulkan", 8)
    shown = text(["show", "adreno-0002"], capsys)
    for word in ("adreno-0002", "runs", "src/gpu.cpp"):
        assert word in shown
    assert "2 entries" in text(["show"], capsys)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"disable_backend": True}, "backend off"),
        ({"disable_levels": ["gles20", "gles30"]}, "no gles20, no gles30"),
        ({"limits": {"max_outputs": 1}, "demote": True}, "max_outputs at most 1, demoted"),
    ],
)
def test_actions_in_words(action: dict[str, Any], words: str) -> None:
    found = entries.parse(made.entry(action=action)).action
    assert forbidden(found.to_dict()) == words


def test_a_decision_replays_to_the_same_bytes_or_the_difference_is_shown(
    tmp_path: Path, capsys: Capture
) -> None:
    saved = json.loads(_decision())
    path = tmp_path / "decision.json"
    path.write_text(json.dumps(saved, indent=3))  # the spaces are not what is compared
    body = document(["replay", str(path)], capsys)
    assert (body["schema"], body["is_identical"]) == ("gpuedge.db.replay/1", True)
    saved["reason"] = "Because I say so."
    path.write_text(json.dumps({"schema": "gpuedge.run/1", "decision": saved}))
    body = document(["replay", str(path)], capsys, 1)
    assert [d["field"] for d in body["differences"]] == ["reason"]
    assert body["differences"][0]["saved"] == "Because I say so."
    assert "Because I say so." in text(["replay", str(path)], capsys, 1)
    saved = json.loads(_decision())
    asked = {**saved, "record": {**saved["record"], "asked": "vulkan:77"}}
    deep = _decision().replace('"schema"', '"x":' + "[" * 700 + "]" * 700 + ',"schema"')
    for forged in ("{}", json.dumps({**saved, "x": float("inf")}), json.dumps(asked), "[" * 10**5):
        path.write_text(forged)
        assert document(["replay", str(path)], capsys, 2)["code"] == "GE-203"
    path.write_text(deep)
    assert main(["db", "replay", str(path)]) in (
        1,
        2,
    )  # a difference, or refused; never a traceback


def _decision() -> str:
    from gpuedge.decide.decision import decide
    from gpuedge.decide.decision_record import AUTO, CPU, DecisionRecord, DeviceCandidate
    from gpuedge.decide.policy import Policy

    record = DecisionRecord(
        asked=AUTO, candidates=(DeviceCandidate(CPU),), policy=Policy(), version="0.1"
    )
    return decide(record).to_json()


def test_missing_packages_are_told_with_how_to_install_them(
    small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jsonschema", "tuf", "tuf.ngclient"):
        monkeypatch.setitem(sys.modules, name, None)
    error = document(["update", "mirror"], capsys, 2)
    assert error["code"] == "GE-601"
    assert error["hint"] == "pip install 'gpuedge[updates]'"


@pytest.mark.parametrize("arguments", [["update"], ["update", "x", "--rollback"], ["nonsense"]])
def test_wrong_usage(arguments: list[str], capsys: Capture) -> None:
    assert document(arguments, capsys, 2)["schema"] == "gpuedge.error/1"


@pytest.mark.parametrize(("key", "hint"), [("vendorId", "'vendorID'"), ("foo", "docs/cli.md")])
def test_a_key_that_no_record_has_is_an_error(
    key: str, hint: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "phone.json"
    path.write_text(json.dumps({key: 1, "api": "vulkan"}))
    said = document(["why", "--device", str(path)], capsys, 2)
    assert (said["code"], key in said["what"], hint in said["hint"]) == ("GE-203", True, True)
    assert "vendorID" in said["known"]
    lines = (PACKAGED.parent / "docs/cli.md").read_text()
    assert all(f"`{known}`" in lines for known in KEYS)
