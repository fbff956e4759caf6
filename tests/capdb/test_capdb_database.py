"""The database folder: what is loaded, sealed, and refused whole."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from capdb.corpus import read_unsealed
from capdb.seal import seal
from capdb_rows import entries_of, six

import gpuedge
from gpuedge.capdb import database, lookup, source
from gpuedge.capdb.check import check_folder, check_schemas
from gpuedge.capdb.files import contents
from gpuedge.core.errors import DatabaseError
from gpuedge.safety import paths


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    database.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return six(tmp_path / "db")


def edit(
    folder: Path, change: Callable[[dict[str, Any]], Any], name: str = "database.json"
) -> None:
    path = folder / name
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")


def edit_entries(folder: Path, change: Callable[[list[Any]], Any]) -> None:
    """Change entries, and put the digest right: somebody sealed what he should not have."""
    edit(folder, lambda d: change(d["entries"]), "entries/vulkan/qualcomm.json")
    reseal(folder)


def reseal(folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["files"] = {
            name: sha256((folder / name).read_bytes()).hexdigest() for name in source.names(folder)
        }

    edit(folder, change)


def refused(folder: Path) -> str:
    """Return why a folder is refused; loading and checking must agree that it is."""
    with pytest.raises(DatabaseError) as caught:
        check_folder(folder)
    with pytest.raises(DatabaseError):
        database.load(folder).about()
    assert caught.value.code == "GE-600"
    assert caught.value.known is not None
    return caught.value.known


def test_good_folder_is_loaded_and_checked(folder: Path) -> None:
    for made in (database.load(folder), check_folder(folder)):
        assert (len(made), made.version) == (6, 2)
        assert made.ids == ("mali-0001", *(f"adreno-{i:04d}" for i in range(1, 6)))
        assert [entry.id for entry in made] == list(made.ids)
        assert "mali-0001" in made
        assert made.entry("adreno-0003").api == "vulkan"


@pytest.mark.parametrize("name", ["database.json", "entries/vulkan/qualcomm.json", "classes.json"])
def test_every_truncation_is_refused(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for size in [0, *random.Random(1).sample(range(len(whole) - 1), 12)]:
        (folder / name).write_bytes(whole[:size])
        assert Path(name).name in refused(folder)
    (folder / name).write_bytes(whole)
    check_folder(folder)


@pytest.mark.parametrize("name", ["entries/vulkan/qualcomm.json", "classes.json", "families.json"])
def test_every_bit_flip_is_refused(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    chance = random.Random(2)
    for _ in range(20):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(data)
        assert "digest" in refused(folder)


def test_bit_flip_in_the_envelope_is_refused_or_changes_nothing_that_matters(folder: Path) -> None:
    path = folder / "database.json"
    whole = path.read_bytes()
    harmless = {"generated_at", "valid_until", "db_version", "engine_range"}
    chance = random.Random(3)
    for _ in range(60):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            made = check_folder(folder)
        except DatabaseError:
            continue
        old, new = json.loads(whole), json.loads(data)
        assert {k for k in old if old[k] != new.get(k)} <= harmless
        assert len(made) == 6


def sparse(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        file.truncate(size)


@pytest.mark.parametrize("name", ["database.json", "entries/vulkan/qualcomm.json", "names.json"])
def test_gigabyte_is_refused_before_it_is_read(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(folder / name, 1 << 30)
    monkeypatch.setattr(paths, "read_start", lambda *_: pytest.fail("it was read"))
    assert "larger than" in source_of(folder / name)


def source_of(path: Path) -> str:
    with pytest.raises(DatabaseError) as caught:
        contents(path)
    return str(caught.value.known)


def test_many_large_files_are_refused_together(folder: Path) -> None:
    blank = {"schema": "gpuedge.entries/3", "api": "vulkan", "entries": []}
    for i in range(5):
        text = json.dumps({**blank, "vendor": f"v{i}"})
        (folder / "entries" / "vulkan" / f"v{i}.json").write_text(text + " " * (15 << 20))
    reseal(folder)
    assert "64 MiB together" in refused(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update(schema="gpuedge.database/2"), "schema: 'gpuedge.database/2' is not"),
        (lambda d: d.pop("files"), "files: it is missing"),
        (lambda d: d["engine_range"].update(min="99.0"), "for gpuedge from 99.0"),
        (lambda d: d["engine_range"].update(below=gpuedge.__version__), "this is"),
        (lambda d: d["engine_range"].update(min="new"), "not a version such as"),
        (lambda d: d.update(db_version=0), "db_version"),
        (lambda d: d.update(retired_ids=["adreno-0001"]), "ids are not used again"),
        (lambda d: d["files"].update({"../x.json": "0" * 64}), "is not of the form"),
        (lambda d: d["files"].update({"gone.json": "0" * 64}), "gone.json: it cannot be read"),
        (lambda d: d["files"].update({"names.json": "x"}), "its digest is not the one"),
        (lambda d: d["files"].pop("names.json"), "does not list it"),
    ],
)
def test_bad_envelope_is_refused(folder: Path, change: Any, why: str) -> None:
    edit(folder, change)
    assert why in refused(folder)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"schema": "\xff"}', "not JSON"),
        (b'{"a": 1, "a": 2}', "there twice"),
        (b'{"a": NaN}', "not a number"),
        (b'{"a": ' + DEEP + b"}", "nested too deeply"),
        (b"{}", "schema"),
    ],
    ids=["empty", "list", "latin", "twice", "nan", "deep", "schema"],
)
@pytest.mark.parametrize("name", ["database.json", "entries/vulkan/qualcomm.json"])
def test_file_that_is_no_document_is_refused(
    folder: Path, data: bytes, why: str, name: str
) -> None:
    (folder / name).write_bytes(data)
    if name != "database.json":
        reseal(folder)
    assert why in refused(folder)
    assert Path(name).name in refused(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda e: e[1].update(id="adreno-0001"), "two entries have the id adreno-0001"),
        (lambda e: e[1].update(id="mali-0001"), "two entries have the id mali-0001"),
        (lambda e: e[1]["match"][0].update(zz=1), "adreno-0002: there is no condition 'zz'"),
        (lambda e: e[1]["match"][0].update(name={"prefix": "a"}), "does not list"),
        (lambda e: e[1]["match"][0].update(name={"prefix": ["(a+)+"]}), "lower-case words"),
        (lambda e: e[1].pop("action"), "action: it is missing"),
        (lambda e: e.append(3), "entry 5: 3 is not an object"),
        (lambda e: e[1].update(id=None), "entry 1: id: None is not a text"),
        (lambda e: e[1].update(summary=json.loads("[" * 300 + "]" * 300)), "is not a text"),
        (lambda e: e[1].update(state=json.loads("[" * 300 + "]" * 300)), "state: "),
    ],
)
def test_bad_entry_refuses_the_whole_folder(folder: Path, change: Any, why: str) -> None:
    edit_entries(folder, change)
    known = refused(folder)
    assert why in known
    assert "qualcomm.json" in known or "two entries" in known


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(api="gles"),
        lambda d: d.update(vendor="arm"),
        lambda d: d.update(entries={}),
        lambda d: d.update(schema="gpuedge.entries/9"),
    ],
)
def test_bad_file_of_entries_is_refused(folder: Path, change: Any) -> None:
    edit(folder, change, "entries/vulkan/qualcomm.json")
    reseal(folder)
    assert "qualcomm.json" in refused(folder)


def test_file_that_is_not_listed_is_refused(folder: Path) -> None:
    shutil.copy(entries_of(folder), folder / "entries" / "vulkan" / "extra.json")
    assert "extra.json: database.json does not list it" in refused(folder)


def test_pipe_in_place_of_a_file_is_refused(folder: Path) -> None:
    entries_of(folder).unlink()
    os.mkfifo(entries_of(folder))
    assert "qualcomm.json: it cannot be read" in refused(folder)


def test_envelope_that_is_missing_is_refused_where_there_are_entries(folder: Path) -> None:
    (folder / "database.json").unlink()
    assert "it has no database.json" in refused(folder)


def test_sealing_keeps_its_number_until_something_changes(folder: Path) -> None:
    before = (folder / "database.json").read_bytes()
    seal(folder)
    assert (folder / "database.json").read_bytes() == before
    entries_of(folder).write_text(entries_of(folder).read_text().replace("sums", "sums,"))
    assert seal(folder)["db_version"] == 3
    assert check_folder(folder).version == 3
    assert seal(folder, db_version=9)["db_version"] == 9


def test_sealing_what_would_be_refused_changes_nothing(folder: Path) -> None:
    before = (folder / "database.json").read_bytes()
    edit(folder, lambda d: d["entries"][0].update(state=1), "entries/vulkan/qualcomm.json")
    with pytest.raises(DatabaseError, match="cannot be used"):
        seal(folder)
    assert (folder / "database.json").read_bytes() == before


def test_unsealed_folder_is_read_for_those_who_work_on_it(folder: Path) -> None:
    edit(folder, lambda d: d["entries"].pop(), "entries/vulkan/qualcomm.json")
    assert len(read_unsealed(folder)) == 5
    refused(folder)


def test_database_of_the_house_is_good() -> None:
    made = check_folder(Path(paths.data_folder("capability_db")))
    assert made.version >= 1
    assert len(made) > 100
    check_schemas(Path(paths.data_folder("capability_db")))


def test_process_reads_a_folder_once_and_again_when_it_is_sealed_anew(folder: Path) -> None:
    first = database.load(folder)
    assert database.load(folder) is first
    edit(folder, lambda d: d["entries"].pop(), "entries/vulkan/qualcomm.json")
    seal(folder)
    assert len(database.load(folder)) == 5


def test_damaged_schema_is_named(folder: Path) -> None:
    whole = Path(paths.data_folder("capability_db"), "classes.schema.json").read_text()
    for text, words in ((whole[:500], "is not JSON"), ('{"type": "objekt"}', "objekt")):
        (folder / "classes.schema.json").write_text(text)
        with pytest.raises(DatabaseError, match=words) as caught:
            check_schemas(folder)
        assert "classes.schema.json" in str(caught.value.known)


@pytest.mark.parametrize("name", ["entries/vulkan/qualcomm.json", "classes.json", "names.json"])
def test_what_breaks_a_schema_is_named_where_updates_are_installed(folder: Path, name: str) -> None:
    edit(folder, lambda d: d.update(zz=1), name)
    with pytest.raises(DatabaseError, match=r"\$: .*'zz' was unexpected") as caught:
        check_schemas(folder)
    assert name in str(caught.value.known)


def test_entry_that_cannot_be_read_is_found_by_whom_it_may_be_about(folder: Path) -> None:
    edit_entries(folder, lambda e: e[1]["match"][0].update(zz=1))
    mali = {"api": "vulkan", "vendorID": 0x13B5, "deviceName": "Mali-G76", "os": "android"}
    base = database.load(folder)
    assert [f.id for f in lookup(mali, database=base).relevant] == ["mali-0001"]
    adreno = {**mali, "vendorID": 0x5143, "deviceName": "Adreno (TM) 630"}
    for work in (lambda: lookup(adreno, database=base), lambda: list(base)):
        with pytest.raises(DatabaseError) as caught:
            work()
        assert "qualcomm.json: entry adreno-0002: there is no condition 'zz'" in str(caught.value)
