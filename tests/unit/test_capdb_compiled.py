"""The compiled form of a database, and which of several folders is in use."""

from __future__ import annotations

import json
import random
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from capdb_rows import TODAY, adreno, entries_of, row, six, write

from gpuedge.capdb import compiled, database, place, source
from gpuedge.capdb.judgement import lookup
from gpuedge.capdb.seal import seal
from gpuedge.core import config
from gpuedge.core.errors import DatabaseError
from gpuedge.safety import databases, paths, store


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    database.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return six(tmp_path / "db")


def test_second_load_reads_the_compiled_file_and_one_section(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = lookup(adreno(), database=database.check_folder(folder), today=TODAY)
    database.load(folder)
    database.forget()
    monkeypatch.setattr(source, "read", lambda *_: pytest.fail("the source was read"))
    made = database.load(folder)
    assert (made.opened, made.read) == (0, 0)
    found = lookup(adreno(), database=made, today=TODAY)
    assert (made.opened, made.read) == (1, 5)
    assert found.to_dict() == plain.to_dict()
    assert found.to_dict(all=True) == plain.to_dict(all=True)
    assert made.opened == 2
    assert database.load(folder) is made


def compiled_file() -> Path:
    (found,) = compiled.folder().glob("*.bin")
    return found


def test_damaged_compiled_file_is_rebuilt(folder: Path) -> None:
    wanted = lookup(adreno(), database=database.load(folder), today=TODAY).to_dict(all=True)
    whole = compiled_file().read_bytes()
    chance = random.Random(4)
    for i in range(40):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        compiled_file().write_bytes(data if i % 4 else data[: chance.randrange(len(data))])
        database.forget()
        made = database.load(folder)
        assert lookup(adreno(), database=made, today=TODAY).to_dict(all=True) == wanted
        if not compiled.folder().is_dir() or not list(compiled.folder().glob("*.bin")):
            database.forget()
            database.load(folder)


def test_sealed_compiled_file_of_other_contents_is_rebuilt(folder: Path) -> None:
    database.load(folder)
    _, line, *rest = compiled_file().read_bytes().split(b"\n")
    header = {**json.loads(line), "index": {}}
    made = json.dumps(header).encode() + b"\n"
    compiled_file().write_bytes(sha256(made).hexdigest().encode() + b"\n" + made + b"\n".join(rest))
    database.forget()
    assert len(database.load(folder)) == 6


def test_folder_that_was_replaced_in_use_is_told(folder: Path) -> None:
    database.load(folder)
    data = compiled_file().read_bytes()
    compiled_file().write_bytes(data[:-5] + b"x" * 4 + b"\n")
    database.forget()
    made = database.load(folder)
    write(folder, row(77))
    with pytest.raises(DatabaseError, match="cannot be used"):
        list(made)


def test_change_of_a_file_is_seen(folder: Path) -> None:
    assert len(database.load(folder)) == 6
    write(folder, row(1), row(2))
    assert len(database.load(folder)) == 3


def test_few_compiled_files_are_kept(tmp_path: Path) -> None:
    for i in range(compiled.KEPT + 3):
        write(tmp_path / f"db{i}", row(i + 1))
        database.load(tmp_path / f"db{i}")
    assert len(list(compiled.folder().glob("*.bin"))) == compiled.KEPT


def test_cache_that_cannot_be_written_does_not_matter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "file"))
    assert len(database.load(folder)) == 6


EMBEDDED = Path(paths.data_folder("capability_db"))


def install(number: int, previous: dict[str, Any] | None = None, name: str = "") -> dict[str, Any]:
    """Install an update as `gpuedge.capdb.updates.update` leaves it; return its record."""
    name = name or f"{number}-0123456789ab"
    folder = Path(databases.updates_folder()) / "versions" / name
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, row(1), row(2))
    seal(folder, db_version=number)
    digest = sha256((folder / "database.json").read_bytes()).hexdigest()
    record = {"folder": name, "db_version": number, "digest": digest, "bundle": "0" * 64}
    body = {**record, "schema": databases.CURRENT_SCHEMA, "previous": previous}
    path = Path(databases.updates_folder()) / databases.CURRENT
    assert store.save_sealed(path, databases.CURRENT_SCHEMA, body)
    return record


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def versions() -> Path:
    return Path(databases.updates_folder()) / "versions"


def test_packaged_database_is_in_use_where_nothing_else_is() -> None:
    assert place.folder() == Path(paths.database_folder()) == EMBEDDED


def test_newer_update_is_in_use() -> None:
    record = install(1000)
    assert place.folder() == Path(paths.database_folder()) == versions() / record["folder"]
    assert database.load().version == 1000


def test_update_that_is_not_newer_than_the_packaged_one_is_not_used() -> None:
    install(database.check_folder(EMBEDDED).version)
    assert place.folder() == Path(paths.database_folder()) == EMBEDDED


@pytest.mark.parametrize("how", ["setting", "environment"])
def test_word_embedded_leaves_updates_aside(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(1000)
    if how == "environment":
        monkeypatch.setenv("GPUEDGE_DB", "embedded")
        assert place.folder() == Path(paths.database_folder()) == EMBEDDED
    else:
        with config.config(db="embedded"):
            assert place.folder() == Path(paths.database_folder()) == EMBEDDED
        assert place.folder() != EMBEDDED


def test_named_folder_comes_before_updates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(1000)
    monkeypatch.setenv("GPUEDGE_DB", str(folder))
    assert place.folder() == Path(paths.database_folder()) == folder
    cut(entries_of(folder), 9)
    with pytest.raises(DatabaseError, match="GPUEDGE_DB"):
        database.load()


@pytest.mark.parametrize("name", ["database.json", "entries/vulkan/qualcomm.json", "names.json"])
def test_update_that_does_not_load_gives_way_to_the_one_before(name: str) -> None:
    old = install(1000)
    new = install(1001, old)
    cut(versions() / new["folder"] / name, 20)
    assert database.load().version == 1000
    assert place.folder() == Path(paths.database_folder()) == versions() / old["folder"]
    cut(versions() / old["folder"] / name, 20)
    place._loads.cache_clear()
    assert place.folder() == Path(paths.database_folder()) == EMBEDDED
    install(1001, old)  # anew, and whole
    assert database.load().version == 1001


@pytest.mark.parametrize("name", ["../../x", "..", "/etc", "a/b", "", "a b"])
def test_update_cannot_name_a_folder_elsewhere(name: str) -> None:
    install(1000)
    path = Path(databases.updates_folder()) / databases.CURRENT
    body = store.load_sealed(path, databases.CURRENT_SCHEMA)
    assert body is not None
    store.save_sealed(path, databases.CURRENT_SCHEMA, {**body, "folder": name})
    assert place.folder() == EMBEDDED


def test_damaged_record_of_updates_is_none() -> None:
    install(1000)
    cut(Path(databases.updates_folder()) / databases.CURRENT, 50)
    assert place.folder() == Path(paths.database_folder()) == EMBEDDED


def test_looking_for_the_folder_reads_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    record = install(1000)
    monkeypatch.setattr(source, "read", lambda *_: pytest.fail("the source was read"))
    monkeypatch.setattr(compiled, "find", lambda *_: pytest.fail("the compiled file was read"))
    assert paths.database_folder() == str(versions() / record["folder"])
    (Path(databases.updates_folder()) / databases.CURRENT).unlink()
    assert place.folder() == EMBEDDED
