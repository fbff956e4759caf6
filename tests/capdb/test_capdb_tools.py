"""`python tools/capdb`: what maintainers of databases check, compare, seal and publish."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import capdb_folders as made
import pytest
from capdb.seal import seal

from gpuedge.capdb.database import load
from gpuedge.capdb.updates.update import rollback, update

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "capability_db"
Capture = pytest.CaptureFixture[str]


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("capdb_main", ROOT / "tools/capdb/__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _loaded()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUEDGE_DB", "GPUEDGE_IGNORE", "GPUEDGE_DB_ROOT", "GPUEDGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))


def folder(place: Path, *entries: dict[str, Any]) -> Path:
    made.folder(place, list(entries))
    for name in ("families.json", "names.json", "classes.json"):
        shutil.copy(PACKAGED / name, place)
    return place


def document(arguments: list[str], capture: Capture, code: int = 0) -> dict[str, Any]:
    capture.readouterr()
    assert TOOL.main([*arguments, "--json"]) == code
    body: dict[str, Any] = json.loads(capture.readouterr().out)
    return body


def refusal(arguments: list[str], capture: Capture, code: int = 1) -> str:
    capture.readouterr()
    assert TOOL.main(arguments) == code
    return capture.readouterr().err


def test_validate_seals_only_what_is_right(tmp_path: Path, capsys: Capture) -> None:
    place = folder(tmp_path / "db", made.entry(effect="hang"), made.entry(id="adreno-0002"))
    wrong = document(["validate", str(place), "--seal"], capsys, 1)
    assert {p["rule"] for p in wrong["problems"]} == {"duplicate"}
    assert not (place / "database.json").exists()
    made.folder(place, [made.entry()])
    good = document(["validate", str(place), "--seal"], capsys)
    assert (good["result"], good["sealed"]) == ("PASS", True)
    assert good["coverage"] == {"facts": 1, "in_entries": 1, "in_notes": 0, "left_out": 0}
    assert json.loads((place / "database.json").read_text())["db_version"] == 1
    assert document(["validate", str(place)], capsys)["sealed"] is False
    file = place / "entries/vulkan/qualcomm.json"
    file.write_text(file.read_text().replace("wrong numbers", "Wrong numbers"))
    (problem,) = document(["validate", str(place)], capsys, 1)["problems"]
    assert problem["text"].startswith("entries/vulkan/qualcomm.json: its digest")


@pytest.mark.parametrize("name", ["classes.json", "names.json", "families.json"])
def test_folder_that_is_not_good_is_not_sealed(tmp_path: Path, name: str, capsys: Capture) -> None:
    place = folder(tmp_path / "db", made.entry())
    (place / name).write_text("{")
    before = sorted(place.rglob("*"))
    told = document(["validate", str(place), "--seal"], capsys, 1)
    assert (told["sealed"], told["result"]) == (False, "FAIL")
    assert any(name in problem["text"] for problem in told["problems"])
    assert sorted(place.rglob("*")) == before


def test_folder_of_something_else_is_not_sealed(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "letter").write_text("")
    assert "no database" in refusal(["validate", str(tmp_path), "--seal"], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["letter"]


def test_warnings_fail_where_that_is_asked(tmp_path: Path, capsys: Capture) -> None:
    place = folder(tmp_path / "db", made.entry())
    seal(place)
    record = json.loads((place / "database.json").read_text())
    (place / "database.json").write_text(json.dumps({**record, "valid_until": "2026-01-01"}))
    body = document(["validate", str(place)], capsys)
    assert body["counts"] == {"error": 0, "warning": 1}
    assert document(["validate", str(place), "--strict"], capsys, 1)["result"] == "FAIL"
    assert "GE-600" in refusal(["diff", str(tmp_path / "nowhere"), str(place)], capsys)


def test_diff_lists_what_changes_and_fails_only_if_strict(tmp_path: Path, capsys: Capture) -> None:
    action = {"disable_backend": True}
    old = folder(tmp_path / "old", made.entry(effect="crash", action=action))
    new = folder(tmp_path / "new", made.entry(effect="crash"), made.entry(id="adreno-0002"))
    body = document(["diff", str(old), str(new)], capsys)
    assert body["entries"] == {
        "added": ["adreno-0002"], "removed": [], "changed": ["adreno-0001"],
    }  # fmt: skip
    (change,) = body["changes"]
    assert (change["device"], change["before"]["use"], change["after"]["use"]) == (
        "D001", "no", "yes",
    )  # fmt: skip
    assert document(["diff", str(old), str(new), "--strict"], capsys, 1)["changes"]
    assert document(["diff", str(old), str(old), "--strict"], capsys)["changes"] == []
    assert TOOL.main(["diff", str(old), str(new)]) == 0
    assert '"no" -> "yes"' in capsys.readouterr().out


def test_from_keys_to_an_update_and_back(tmp_path: Path, capsys: Capture) -> None:
    """The publisher's steps and the client's, with the packaged database one version on."""
    mirror, keys = str(tmp_path / "mirror"), str(tmp_path / "keys")
    newer = shutil.copytree(PACKAGED, tmp_path / "newer")
    number = json.loads((PACKAGED / "database.json").read_text())["db_version"]
    seal(newer, db_version=number + 1)
    sign = ["sign", "init", mirror, "--keys", keys]
    root = Path(document(sign, capsys)["root"])
    publish = ["sign", "publish", mirror, "--keys", keys]
    assert "--database" in refusal(publish, capsys, 2)
    publish += ["--database", str(newer)]
    assert document(publish, capsys)["db_version"] == number + 1
    assert "not higher than the published one" in refusal(publish, capsys)
    assert document(["sign", "renew", mirror, "--keys", keys], capsys)["db_version"] == number + 1
    assert update(mirror, root=root).db_version == number + 1
    assert load().version == number + 1
    assert rollback().db_version == number
    assert update(mirror, root=root).code == "held-back"
    rotate = ["sign", "rotate", mirror, "--keys", keys]
    assert "--role" in refusal(rotate, capsys, 2)
    assert document([*rotate, "--role", "root"], capsys)["root"].endswith("2.root.json")


def test_an_unfit_database_is_not_published(tmp_path: Path, capsys: Capture) -> None:
    mirror, keys = str(tmp_path / "mirror"), str(tmp_path / "keys")
    place = folder(tmp_path / "db", made.entry(), made.entry(id="adreno-0002"))
    seal(place)
    assert TOOL.main(["sign", "init", mirror, "--keys", keys]) == 0
    publish = ["sign", "publish", mirror, "--keys", keys, "--database", str(place)]
    assert "duplicate" in refusal(publish, capsys)


def test_golden_table_is_checked(capsys: Capture) -> None:
    assert document(["golden", "--check"], capsys)["is_changed"] is False


def test_kernels_that_entries_may_name_are_those_there_are() -> None:
    assert {"pool_map", "reduce_map"} <= TOOL.kernels()
