"""Updates where the disk, the clock, the user or the mirror is not as it should be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from capdb import signing
from capdb_rows import row, write
from somebody import as_somebody, reachable
from update_fakes import World, cache, contents, in_use, refused, serving, world

from gpuedge.capdb import database, lookup, place
from gpuedge.capdb.updates import bundle, installed
from gpuedge.capdb.updates.update import rollback, update
from gpuedge.core.errors import UpdateError
from gpuedge.safety import paths

__all__ = ["cache", "reachable", "world"]


def lying(version: installed.Version | None) -> Path:
    assert version is not None
    return version.path


def empty_folder(folder: Path) -> None:
    for found in folder.iterdir():
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return what changes a file of a folder."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def one_more(folder: Path) -> None:
    (folder / "entries" / "any").mkdir(parents=True)
    (folder / "entries" / "any" / "arm.json").write_text("{}")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": shutil.rmtree,
    "empty": empty_folder,
    "no envelope": lambda folder: (folder / "database.json").unlink(),
    "another envelope": changed("database.json", lambda data: data + b" "),
    "no table": lambda folder: (folder / "classes.json").unlink(),
    "cut": changed("names.json", lambda data: data[:-1]),
    "flip": changed("names.json", lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "added": one_more,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_installed_update_that_is_not_what_was_installed_is_passed_over(
    world: World, damage: str
) -> None:
    world.publish(3)
    assert world.update().code == "updated"
    now, before = installed.current()
    DAMAGES[damage](lying(now))
    assert in_use() == 2  # the last that was known to be good
    DAMAGES[damage](lying(before))
    assert in_use() == 1
    outcome = world.update()
    assert (outcome.code, outcome.before, outcome.db_version) == ("updated", 1, 3)
    assert in_use() == 3
    assert contents(place.folder()) == contents(world.folder / "database")


def test_installed_update_that_a_newer_gpuedge_understood_is_passed_over_whole(
    world: World,
) -> None:
    world.publish(3)
    assert world.update().code == "updated"
    now, before = installed.current()
    folder = lying(now)
    made = write(folder, row(match=[{"vendor": ["broadcom"]}]), vendor="broadcom")
    made.write_text(made.read_text().replace('["broadcom"]', '["broadcom"], "a_newer": 1'))
    name = made.relative_to(folder).as_posix()
    envelope = json.loads((folder / "database.json").read_bytes())
    envelope["files"][name] = sha256(made.read_bytes()).hexdigest()
    (folder / "database.json").write_text(json.dumps(envelope))
    assert now is not None
    digest = sha256((folder / "database.json").read_bytes()).hexdigest()
    installed.make_current(now.replace(digest=digest), before)
    assert in_use() == 2
    assert lookup({"vendorID": 0x5143}).database_version == 2  # of another maker


def test_others_can_read_what_was_installed(tmp_path: Path, cache: Path) -> None:
    before = os.umask(0o022)
    try:
        made = World(tmp_path)
        made.publish(2)
        assert made.update().code == "updated"
    finally:
        os.umask(before)
    folder = lying(installed.current()[0])
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {p.stat().st_mode & 0o777 for p in folder.rglob("*.json")} == {0o644}


@pytest.mark.parametrize(
    "name", ["", "capability_db", "capability_db/versions", "capability_db/current.json", "now"]
)
def test_installed_update_that_may_not_be_read_is_passed_over(
    reachable: Path, world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = reachable / "packaged"
    shutil.copytree(paths.data_folder("capability_db"), packaged)
    monkeypatch.setattr(paths, "data_folder", lambda name: str(packaged))
    shutil.copytree(paths.cache_dir(), reachable / "cache")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(reachable / "cache"))
    closed = lying(installed.current()[0]) if name == "now" else reachable / "cache" / name
    database.forget()
    closed.chmod(0)
    with as_somebody():
        assert lookup({"api": "vulkan"}).database_version == 1
        assert rollback().status == "kept"
        # the root of trust of the last update cannot be read either, at times
        with suppress(UpdateError):
            assert update(world.repository).status == "kept"


def test_cache_folder_that_cannot_be_written_is_not_called_busy(
    world: World, reachable: Path
) -> None:
    shutil.copytree(world.repository, reachable / "mirror")
    shutil.copy(world.root, reachable / "root.json")
    with as_somebody():  # who cannot even reach the cache folder
        assert rollback().code == "not-writable"
        outcome = update(reachable / "mirror", root=reachable / "root.json")
    assert (outcome.status, outcome.code) == ("kept", "not-writable")
    assert "Permission denied" in outcome.detail


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("http://[::1", "IPv6"), ("https://[::1/x", "IPv6"), ("~nouser-at-all/mirror", "home"),
        (Path("~nouser-at-all/mirror"), "home"), ("", "empty"), (" ", "empty"),
        ("ftp://x/", "http"), ("https://", "host"), ("http://host/?x", "?x"),
        ("s3://bucket", "http"),
    ],
)  # fmt: skip
def test_source_that_is_no_mirror(world: World, source: Any, why: str) -> None:
    with pytest.raises(UpdateError) as caught:
        update(source, root=world.root)
    assert (caught.value.code, why in str(caught.value)) == ("GE-601", True)


def test_home_folder_of_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UpdateError, match="root of trust"):
        update(world.repository, root=Path("~nouser-at-all/root.json"))
    monkeypatch.setenv("GPUEDGE_DB_ROOT", "~nouser-at-all/root.json")
    with pytest.raises(UpdateError, match="root of trust"):
        update(world.repository)
    with pytest.raises(UpdateError, match="folder"):
        signing.renew(world.repository, Path("~nouser-at-all/keys"))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_deadline_that_is_no_time(world: World, seconds: float) -> None:
    with pytest.raises(UpdateError, match="deadline"):
        world.update(deadline_s=seconds)


def test_answer_that_was_cut_is_told_as_such(world: World) -> None:
    world.publish(3)

    def behaviour(handler: Any, path: str) -> bool:
        if not path.endswith(bundle.NAME):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.wfile.flush()
        handler.connection.close()
        return True

    with serving(world.repository, behaviour) as address:
        assert "Observed length 1 does not match" in refused(world, "mismatch", address)


@pytest.mark.parametrize("name", ["timestamp.json", "1.snapshot.json", "2.root.json"])
def test_pipe_among_the_metadata_is_not_waited_for(world: World, name: str) -> None:
    place = world.metadata / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(UpdateError, match="not a file"):
        signing.renew(world.repository, world.keys)


def test_pipe_among_the_keys_is_not_waited_for(world: World) -> None:
    os.mkfifo(world.keys / "a.pem", 0o600)
    with pytest.raises(UpdateError, match="not a file"):
        signing.renew(world.repository, world.keys)
