"""Folders that are no database, that cannot be read, or that change while they are read."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from capdb_rows import six
from somebody import as_somebody, reachable

from gpuedge.capdb import database, lookup
from gpuedge.capdb.check import check_folder
from gpuedge.capdb.classes import load as load_classes
from gpuedge.capdb.identity.families import load_families
from gpuedge.capdb.identity.names import load_names
from gpuedge.core.errors import DatabaseError

__all__ = ["reachable"]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    database.forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return six(tmp_path / "db")


@pytest.mark.parametrize(
    "kept",
    [
        [],
        ["classes.json"],
        ["classes.json", "names.json", "families.json"],
        ["classes.json", "names.json", "families.json", "entries"],
    ],
)
def test_folder_that_is_no_whole_database_is_refused(
    folder: Path, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in folder.iterdir():
        if found.name not in kept:
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    for check in (database.load, check_folder):
        with pytest.raises(DatabaseError, match=r"database\.json"):
            check(folder)
    monkeypatch.setenv("GPUEDGE_DB", str(folder))
    with pytest.raises(DatabaseError, match="GPUEDGE_DB"):
        lookup({"api": "vulkan"})


@pytest.mark.parametrize("named", ["~", "."])
def test_folder_of_something_else_is_refused(
    tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    monkeypatch.setenv("GPUEDGE_DB", named)
    with pytest.raises(DatabaseError, match="no database"):
        lookup({"api": "vulkan"})


def test_file_in_place_of_a_folder_is_blamed_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "db").write_text("{}")
    monkeypatch.setenv("GPUEDGE_DB", str(tmp_path / "db"))
    asks: tuple[Callable[[], object], ...] = (load_classes, load_names, load_families)
    for ask in (lambda: lookup({"api": "vulkan"}), *asks):
        with pytest.raises(DatabaseError) as caught:
            ask()
        assert caught.value.known == f"{tmp_path / 'db'}: it is not a folder"


def test_folder_that_is_replaced_all_the_time_never_answers_nothing(
    folder: Path, tmp_path: Path
) -> None:
    spare, is_over = tmp_path / "spare", threading.Event()
    shutil.copytree(folder, spare)

    def replace() -> None:
        while not is_over.is_set():
            shutil.rmtree(folder)
            shutil.copytree(spare, folder)

    thread = threading.Thread(target=replace)
    thread.start()
    seen, refusals = set(), 0
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            database.forget()
            try:
                seen.add(len(database.load(folder)))
            except DatabaseError:
                refusals += 1
    finally:
        is_over.set()
        thread.join()
    assert refusals
    assert seen <= {6}
    assert len(database.load(folder)) == 6


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o711])
@pytest.mark.parametrize("inner", ["", "entries", "entries/vulkan"])
def test_folder_that_may_not_be_read_is_refused(
    folder: Path, reachable: Path, mode: int, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = reachable / "db"
    shutil.copytree(folder, place)
    (place / inner).chmod(mode)
    monkeypatch.setenv("GPUEDGE_DB", str(place))
    for check in (database.load, check_folder):
        with as_somebody(), pytest.raises(DatabaseError):
            check(place)
    with as_somebody(), pytest.raises(DatabaseError, match="GPUEDGE_DB"):
        lookup({"api": "vulkan"})


def test_database_without_rules_of_names_has_the_packaged_ones(tmp_path: Path) -> None:
    assert load_names(tmp_path) is load_names()
