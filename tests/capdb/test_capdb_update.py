"""Updates that go well, and everything on this side of the mirror that can be in their way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from capdb import signing
from update_fakes import World, cache, contents, database, in_use, packaged_database, serving, world

from gpuedge.capdb import place
from gpuedge.capdb.updates import installed, update
from gpuedge.capdb.updates.bundle import NAME
from gpuedge.core.config import config
from gpuedge.core.errors import UpdateError
from gpuedge.safety import databases, paths, store
from gpuedge.safety.lock import Lock

__all__ = ["cache", "world"]


def test_update_from_a_folder_and_from_a_server(world: World, cache: Path) -> None:
    assert in_use() == 2
    world.publish(3)
    with serving(world.repository) as address:
        outcome = world.update(address)
    assert (outcome.status, outcome.code) == ("updated", "updated")
    assert (outcome.before, outcome.db_version, outcome.offered) == (2, 3, 3)
    assert place.folder().parent == installed.versions_folder() == cache / "capability_db/versions"
    assert contents(place.folder()) == contents(world.folder / "database")


def test_what_is_current_is_not_downloaded_again(world: World) -> None:
    asked = []

    def behaviour(handler: Any, path: str) -> bool:
        asked.append(path)
        return False

    with serving(world.repository, behaviour) as address:
        outcome = world.update(address)
    assert (outcome.status, outcome.code, outcome.db_version) == ("current", "current", 2)
    assert asked == ["/metadata/2.root.json", "/metadata/timestamp.json"]


def test_versions_may_be_left_out(world: World) -> None:
    for number in (3, 5, 8):
        world.publish(number)
    assert world.update().db_version == in_use() == 8


def test_envelope_in_the_cache_is_the_agreed_one(world: World, cache: Path) -> None:
    world.publish(3)
    world.update()
    body = store.load_sealed(cache / "capability_db/current.json", "gpuedge.db.current/1")
    assert body is not None
    assert set(body) == {"schema", "folder", "db_version", "digest", "bundle", "previous"}
    assert (body["db_version"], body["previous"]["db_version"]) == (3, 2)
    for record in (body, body["previous"]):
        folder = cache / "capability_db/versions" / record["folder"]
        assert record["folder"] == f"{record['db_version']}-{record['digest'][:12]}"
        assert update.bundle.digest((folder / "database.json").read_bytes()) == record["digest"]


# the floor, and what is kept


def test_packaged_database_that_is_newer_than_the_offer(world: World) -> None:
    packaged_database(world.folder / "packaged", 7)
    assert in_use() == 7
    outcome = world.update()
    assert (outcome.status, outcome.code, outcome.db_version) == ("kept", "older", 7)
    world.publish(7, "not the packaged one")
    assert world.update().code == "current" and in_use() == 7
    world.publish(8)
    assert world.update().code == "updated" and in_use() == 8


@pytest.mark.parametrize("name", ["current.json", "updates.json"])
@pytest.mark.parametrize("text", ["", "{}", "[" * 9999, '{"body": {}}'])
def test_damaged_records(world: World, cache: Path, name: str, text: str) -> None:
    (cache / "capability_db" / name).write_text(text)
    assert in_use() == (1 if name == "current.json" else 2)
    assert world.update().code in {"updated", "current"}
    assert in_use() == 2


@pytest.mark.parametrize("folder", ["../../evil", "/evil", "", "x/y", 3, None])
def test_sealed_record_that_leads_elsewhere(world: World, cache: Path, folder: Any) -> None:
    database(cache / "evil", 99)
    path = cache / "capability_db/current.json"
    body = store.load_sealed(path, databases.CURRENT_SCHEMA)
    assert body is not None
    assert store.save_sealed(
        path, databases.CURRENT_SCHEMA, {**body, "db_version": 99, "folder": folder}
    )
    assert in_use() == 1


def test_metadata_that_was_deleted_is_fetched_again(world: World, cache: Path) -> None:
    shutil.rmtree(cache / "capability_db/tuf")
    world.publish(3)
    assert world.update().code == "updated"


def test_old_versions_are_removed_after_a_while(world: World, cache: Path) -> None:
    left = installed.versions_folder() / "new-left"
    left.mkdir()
    (left / "half.json").write_text("{")
    torn = next((cache / "capability_db/tuf").glob("*/")) / "tmpleft"
    torn.write_text("{")
    for number in (3, 4):
        world.publish(number)
        world.update()
    assert left.exists() and len(list(installed.versions_folder().iterdir())) == 4  # too young
    old = time.time() - installed.LEFT_S - 60
    for path in (*installed.versions_folder().iterdir(), torn):
        os.utime(path, (old, old))
    world.publish(5)
    assert world.update().code == "updated"
    names = sorted(p.name.partition("-")[0] for p in installed.versions_folder().iterdir())
    assert names == ["4", "5"] and not torn.exists()


# the root of trust


def test_no_root_of_trust(world: World, cache: Path) -> None:
    shutil.rmtree(cache)
    with pytest.raises(UpdateError, match=r"GE-601.*No root of trust"):
        update.update(world.repository)


def test_root_from_the_setting(world: World, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(cache)
    monkeypatch.setenv("GPUEDGE_DB_ROOT", str(world.root))
    assert update.update(world.repository).code == "updated"


def test_packaged_root(world: World, cache: Path) -> None:
    shutil.rmtree(cache)
    shutil.copy(world.root, world.folder / "packaged" / "root.json")
    assert update.update(world.repository).code == "updated"


def test_root_of_the_last_update_is_kept(world: World, cache: Path) -> None:
    world.publish(3)
    assert update.update(world.repository).code == "updated"
    signing.rotate(world.repository, world.keys, ["root", "targets"])
    world.publish(4)
    world.root.unlink()
    assert update.update(world.repository).code == "updated"
    anchor = next((cache / "capability_db/tuf").glob("*/anchor.json"))
    other = World(world.folder / "other")
    shutil.copy(other.root, anchor)
    with pytest.raises(UpdateError, match="not the one that the last update was checked with"):
        update.update(world.repository)


@pytest.mark.parametrize("text", [None, b"", b"{}", b"[" * 9999, b" " * (1 << 20), "targets"])
def test_root_that_is_none(world: World, text: Any) -> None:
    if text is None:
        world.root.unlink()
    else:
        world.root.write_bytes(world.read("targets").to_bytes() if text == "targets" else text)
    with pytest.raises(UpdateError, match="The root of trust cannot be used"):
        world.update()
    assert in_use() == 2


def test_root_with_a_broken_signature(world: World) -> None:
    document = json.loads(world.root.read_bytes())
    document["signed"]["version"] = 4
    world.root.write_text(json.dumps(document))
    with pytest.raises(UpdateError, match="do not have the signatures"):
        world.update()


# pins, rollback


@pytest.mark.parametrize("pin", ["embedded", "folder"])
def test_pinned_database_is_left_alone(world: World, pin: str) -> None:
    world.publish(3)
    other = database(world.folder / "mine", 40)
    with config(db=str(other) if pin == "folder" else pin):
        for outcome in (world.update(), update.rollback()):
            assert (outcome.status, outcome.code) == ("kept", "pinned")
            assert "config()" in outcome.sentence
        assert in_use() == (40 if pin == "folder" else 1)
    assert world.update().code == "updated" and in_use() == 3


def test_rollback_goes_back_and_holds_back(world: World) -> None:
    world.publish(3)
    world.update()
    outcome = update.rollback()
    assert (outcome.status, outcome.code, outcome.before) == ("updated", "rolled-back", 3)
    assert outcome.db_version == in_use() == 2
    again = world.update()
    assert (again.status, again.code, again.db_version) == ("kept", "held-back", 2)
    assert update.rollback().db_version == in_use() == 1
    assert update.rollback().code == "nothing-installed"
    world.publish(4)
    assert world.update().code == "updated" and in_use() == 4


def test_rollback_past_a_damaged_version(world: World) -> None:
    world.publish(3)
    world.update()
    before = installed.current()[1]
    assert before is not None
    (before.path / "names.json").write_text("")
    assert update.rollback().db_version == in_use() == 1


# this machine


def test_cache_folder_that_cannot_be(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(world.root))  # a file
    outcome = world.update()
    assert outcome.status == "kept" and outcome.code in {"busy", "not-writable"}
    assert in_use() == 1


def test_full_disk(world: World, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish(3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(update.bundle.os, "fsync", full)
        outcome = world.update()
        assert (outcome.status, outcome.code) == ("kept", "not-writable")
        assert "No space left" in outcome.sentence
    assert in_use() == 2
    assert not list(installed.versions_folder().glob("new-*"))
    assert world.update().code == "updated"


def test_one_update_at_a_time(world: World, cache: Path) -> None:
    world.publish(3)
    with Lock(cache / "capability_db/tuf") as is_held:
        assert is_held
        assert world.update().code == "busy"
    assert world.update().code == "updated"


def test_many_updates_at_once(world: World) -> None:
    world.publish(3)
    codes: list[str] = []
    threads = [threading.Thread(target=lambda: codes.append(world.update().code)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes.count("updated") == 1 and set(codes) <= {"updated", "current", "busy"}
    assert in_use() == 3


def test_deadline_that_is_over_before_it_starts(world: World) -> None:
    assert world.update(deadline_s=1e-9).code == "slow"


def test_every_code_has_a_sentence_and_an_outcome_says_it(world: World) -> None:
    assert all(text and text[0].islower() for text in update.SENTENCES.values())
    outcome = world.update(world.folder / "nothing")
    assert outcome.sentence.startswith("version 2 is kept: the mirror cannot be read (")
    page = Path(paths.__file__).parents[2] / "docs" / "capability-db.md"
    text = page.read_text(encoding="utf-8")
    assert [code for code in update.SENTENCES if f"`{code}`" not in text] == []


def test_libraries_for_signatures_are_loaded_by_updates_only() -> None:
    code = (
        "import sys\nfrom gpuedge.capdb.updates import update\n"
        "heavy = {'tuf', 'securesystemslib', 'cryptography', 'urllib3', 'jsonschema'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bundle_is_one_file_of_text(world: World) -> None:
    (target,) = world.targets.iterdir()
    assert target.name.endswith(f".{NAME}")
    document = json.loads(target.read_text(encoding="utf-8"))
    assert set(document) == {"schema", "files"}
    assert document["files"] == contents(world.folder / "database")
