"""Reading back what should be a file of ours: whatever else lies there is neither read nor awaited.

A pipe that nobody writes to is the hard case: opening one waits forever, so these tests have a
short limit of their own.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpuedge.safety import paths
from gpuedge.safety.databases import database_folder

pytestmark = pytest.mark.timeout(120)
ODD_NAMES = ["nul\0inside", "half a pair \ud800", "x" * 300, "d/" * 3000 + "deep"]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def test_a_file_within_the_limit_is_returned_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = os.urandom(200_000)
    path.write_bytes(data)
    assert paths.read_regular(path, len(data)) == data
    assert paths.read_regular(str(path), len(data) - 1) is None
    assert paths.read_start(path, 70_000) == data[:70_000]
    assert paths.read_start(path, 1 << 30) == data
    path.write_bytes(b"")
    assert paths.read_regular(path, 0) == b""


def test_line_ends_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb\x1ac\n")
    assert paths.read_regular(path, 100) == b"a\r\nb\x1ac\n"


def test_what_is_no_file_reads_as_absent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    before = open_files()
    for name in ("pipe", "folder", "loop", "link", "nowhere", "/dev/zero", "/dev/tty"):
        assert paths.read_regular(tmp_path / name, 100) is None, name
        with pytest.raises(OSError):
            paths.read_start(tmp_path / name, 100)
    assert open_files() == before


def test_what_is_no_file_is_not_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watchdog or a tape drive acts on that."""
    os.mkfifo(tmp_path / "pipe")

    def refuse(*_: object) -> int:
        raise AssertionError("it was opened")

    monkeypatch.setattr(os, "open", refuse)
    for name in ("pipe", "/dev/null"):
        assert paths.read_regular(tmp_path / name, 100) is None


def test_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert paths.read_regular(tmp_path / "link", 100) == b"data"


def test_pipe_put_there_after_the_first_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(b"data")
    looked = file.stat()
    before = open_files()
    monkeypatch.setattr(os, "stat", lambda *_, **__: looked)
    answer = paths.read_regular(pipe, 100)
    monkeypatch.undo()
    assert answer is None
    assert open_files() == before


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 40)

    def refuse(*_: object) -> bytes:
        raise AssertionError("it was read")

    monkeypatch.setattr(os, "read", refuse)
    assert paths.read_regular(path, 64 << 20) is None


def test_a_file_that_grows_meanwhile_keeps_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    small = path.stat()
    path.write_bytes(b"x" * 300_000)
    monkeypatch.setattr(os, "stat", lambda *_, **__: small)
    monkeypatch.setattr(os, "fstat", lambda *_: small)
    too_small, enough = (paths.read_regular(path, n) for n in (299_999, 300_000))
    monkeypatch.undo()
    assert too_small is None
    assert enough == b"x" * 300_000


@pytest.mark.parametrize("name", ODD_NAMES, ids=["nul", "surrogate", "long-name", "long-path"])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    assert paths.read_regular(tmp_path / name, 100) is None
    assert not paths.write_atomic(tmp_path / name / "file", b"data")


def special(folder: Path) -> list[Path]:
    """Make a pipe, a socket and a folder."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    (folder / "folder").mkdir()
    return [folder / name for name in ("pipe", "socket", "folder")]


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_what_is_no_file_is_never_replaced(short: Path) -> None:
    before = [(path, path.lstat().st_ino, path.lstat().st_mode) for path in special(short)]
    for path, inode, mode in before:
        assert not paths.write_atomic(path, b"data")
        assert paths.write_named(path, b"data") is not None
        assert (path.lstat().st_ino, path.lstat().st_mode) == (inode, mode)
    assert sorted(p.name for p in short.iterdir()) == ["folder", "pipe", "socket"]


def test_link_in_the_cache_is_replaced_and_what_it_names_is_not(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to("theirs")
    assert paths.write_atomic(tmp_path / "link", b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert not (tmp_path / "link").is_symlink()


def test_named_file_at_the_end_of_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_bytes(b"old")
    for name, target in (("link", "far/file"), ("chain", "link"), ("dangling", "far/new")):
        (tmp_path / name).symlink_to(target)
        assert paths.write_named(tmp_path / name, name.encode()) is None
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_bytes() == name.encode()
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["file", "new"]
    (tmp_path / "loop").symlink_to("loop")
    assert paths.write_named(tmp_path / "loop", b"data") is not None


def test_named_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert paths.write_named(pipe, b"data") == "nobody reads from it"
    data = os.urandom(300_000)  # more than a pipe holds at once
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(reader.communicate()[0]))
        thread.start()
        while paths.write_named(pipe, data) is not None:
            time.sleep(0.01)  # until the reader is there
        thread.join()
    assert found == [data]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_terminal_is_written_into(tmp_path: Path) -> None:
    """A character device that is nobody else's."""
    main, other = os.openpty()
    try:
        assert paths.is_stream(os.ttyname(other))
        assert paths.write_named(Path(os.ttyname(other)), b"data") is None
        assert os.read(main, 100) == b"data"
    finally:
        os.close(main)
        os.close(other)


@pytest.mark.parametrize("to_file", [True, False], ids=["file", "pipe"])
def test_own_output_is_written_into(to_file: bool, tmp_path: Path) -> None:
    """A file that the shell opened must not be another one afterwards."""
    code = (
        "from pathlib import Path; from gpuedge.safety.paths import write_named\n"
        "print('before')\n"
        "assert write_named(Path('/dev/stdout'), b'data\\n') is None\n"
        "print('after')\n"
    )
    with (tmp_path / "out").open("wb+") as file:
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=file if to_file else subprocess.PIPE
        )
        file.seek(0)
        shown = file.read() if to_file else done.stdout
    assert shown.split() == [b"before", b"data", b"after"]
    assert (tmp_path / "out").read_bytes() == (shown if to_file else b"")


def test_database_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    assert database_folder() == paths.data_folder("capability_db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUEDGE_DB", "inner/db")
    assert database_folder() == str(tmp_path / "inner" / "db")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("GPUEDGE_DB", "~/db")
    assert database_folder() == "/home/somebody/db"


def test_temporary_files_of_killed_writers_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    other = tmp_path / ".b.json.1.cd"
    other.write_text("another file's")
    os.utime(other, (1, 1))
    assert paths.write_atomic(path, b"x")
    old, new = tmp_path / ".a.json.1.0123abcd", tmp_path / ".a.json.2.0123abcd"
    users = tmp_path / ".a.json.swp"
    for place in (old, new, users):
        place.write_text("half")
        os.utime(place, (1, 1))
    os.utime(new)
    paths.sweep(path)
    kept = [".a.json.2.0123abcd", ".a.json.swp", ".b.json.1.cd", "a.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == kept
    paths.sweep(tmp_path / "nowhere" / "x")


def test_stamp_changes_with_each_replacement(tmp_path: Path) -> None:
    path = tmp_path / "a"
    stamps = [paths.stamp(path)]
    for _ in range(5):
        paths.write_atomic(path, b"same")
        stamps.append(paths.stamp(path))
    assert all(a != b for a, b in pairwise(stamps))
    assert stamps[0] is None
    assert paths.stamp("a\0b") is None


@pytest.mark.parametrize("named", ["", "~", "~/models"])
def test_user_without_a_home_gets_no_folder_called_tilde(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", named)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert not paths.write_atomic(paths.cache_dir() / "file", b"x")
    assert list(tmp_path.iterdir()) == []
