"""What a handler of the application's raises in the middle of work on a file is no error of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuedge.capdb import database, files
from gpuedge.core.errors import DatabaseError
from gpuedge.probing import pins
from gpuedge.safety import blocklist, databases, paths

Come = Callable[[str], None]


@pytest.fixture
def come(monkeypatch: pytest.MonkeyPatch) -> Iterator[Come]:
    """Have a time limit end at the next call of a function of `os`."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("mine")

    def at(name: str) -> None:
        call = getattr(os, name)

        def patched(*arguments: Any, **options: Any) -> Any:
            setattr(os, name, call)  # once
            os.kill(os.getpid(), signal.SIGALRM)
            return call(*arguments, **options)

        monkeypatch.setattr(os, name, patched)

    before = signal.signal(signal.SIGALRM, stop)
    yield at
    signal.signal(signal.SIGALRM, before)


CALLS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "read_regular": ("stat", lambda path: paths.read_regular(path, 9)),
    "read_start": ("open", lambda path: paths.read_regular(path, 9)),
    "stamp": ("stat", paths.stamp),
    "write_atomic": ("fsync", lambda path: paths.write_atomic(path, b"2")),
    "contents": ("open", files.contents),
    "crash": ("open", lambda path: blocklist._read(str(path))),
    "crashes": ("listdir", lambda path: pins._blocks(None)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_time_limit_comes_out_of_work_on_a_file(name: str, come: Come, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    function, call = CALLS[name]
    come(function)
    with pytest.raises(TimeoutError, match="mine"):
        call(path)
    assert path.read_bytes() == b"1"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # and no temporary one


def test_errors_of_the_file_itself_are_what_they_were(come: Come, tmp_path: Path) -> None:
    path = tmp_path / "none"
    assert paths.read_regular(path, 9) is None
    assert paths.stamp(path) is None
    assert not paths.write_atomic(tmp_path / "a\0b", b"")
    assert blocklist._read(str(path)) is None
    with pytest.raises(DatabaseError):
        files.contents(path)


def test_a_database_that_was_being_read_is_not_taken_for_damaged(
    come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = paths.data_folder("capability_db")
    monkeypatch.setattr(databases, "installed", lambda: [packaged])
    monkeypatch.setattr(database, "_loaded", {})
    monkeypatch.setattr(database, "_damaged", {})
    monkeypatch.setattr(database.paths, "stamp", lambda path: (1, 2, 3))
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    come("open")
    with pytest.raises(TimeoutError, match="mine"):
        database._in_use()
    assert database._damaged == {}
    assert str(database._in_use().folder) == packaged
