"""The publisher's side: keys that stay private, versions that only rise, states that are whole."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from capdb import keys, repository, signing
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from update_fakes import PAST, ROLES, World, cache, contents, database, in_use, world

from gpuedge.capdb.updates import bundle
from gpuedge.core.errors import DatabaseError, UpdateError
from gpuedge.safety.lock import Lock

__all__ = ["cache", "world"]


def files(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def test_keys_are_private_and_apart(world: World) -> None:
    made = sorted(p.name for p in world.keys.glob("*.pem"))
    assert made == ["root-1.pem", "snapshot.pem", "targets.pem", "timestamp.pem"]
    assert stat.S_IMODE(world.keys.stat().st_mode) == 0o700
    for path in world.keys.glob("*.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        private = path.read_bytes()
        assert b"PRIVATE KEY" in private
        assert not any(private in data for data in files(world.repository).values())
    assert not any(b"PRIVATE" in data for data in files(world.repository).values())


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_key_that_others_can_read(world: World, mode: int) -> None:
    (world.keys / "targets.pem").chmod(mode)
    with pytest.raises(UpdateError, match="can be read by others") as error:
        world.publish(3)
    assert "chmod 600" in str(error.value)
    assert signing.Repository(world.repository).db_version == 2


@pytest.mark.parametrize("inner", ["mirror", "mirror/metadata", "mirror/../mirror/x", ".", "link"])
def test_keys_where_they_could_be_published(world: World, inner: str) -> None:
    (world.folder / "link").symlink_to(world.repository)
    before = files(world.repository)
    for call in (
        lambda: signing.init(world.repository, world.folder / inner),
        lambda: signing.publish(world.folder / "database", world.repository, world.folder / inner),
        lambda: signing.renew(world.repository, world.folder / inner),
        lambda: signing.rotate(world.repository, world.folder / inner, ["root"]),
    ):
        with pytest.raises(UpdateError, match="must not lie where they could be published"):
            call()
    assert files(world.repository) == before


def other_keys() -> dict[str, bytes]:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain, locked = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"word")
    curve = ec.generate_private_key(ec.SECP256R1())
    own = ed25519.Ed25519PrivateKey.generate()
    return {
        "empty": b"",
        "text": b"secret",
        "public": own.public_key().public_bytes(
            encoding, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "curve": curve.private_bytes(encoding, form, plain),
        "locked": own.private_bytes(encoding, form, locked),
        "cut": own.private_bytes(encoding, form, plain)[:-40],
    }


@pytest.mark.parametrize("kind", ["empty", "text", "public", "curve", "locked", "cut"])
def test_file_that_is_no_key(world: World, kind: str) -> None:
    path = world.keys / "targets.pem"
    path.write_bytes(other_keys()[kind])
    with pytest.raises(UpdateError, match=r"targets\.pem"):
        world.publish(3)


@pytest.mark.parametrize("role", ROLES)
def test_missing_key(world: World, role: str) -> None:
    (world.keys / f"{role}.pem").unlink()
    before = {k: v for k, v in files(world.repository).items() if k.startswith("metadata")}
    with pytest.raises(UpdateError, match=f"'{role}' are missing"):
        world.publish(3)
    after = {k: v for k, v in files(world.repository).items() if k.startswith("metadata")}
    assert after == before


def test_root_keys_may_be_elsewhere(world: World) -> None:
    shutil.move(world.keys / "root-1.pem", world.folder)
    assert world.publish(3).db_version == 3
    signing.renew(world.repository, world.keys)
    with pytest.raises(UpdateError, match="'root' are missing"):
        signing.rotate(world.repository, world.keys, ["timestamp"])
    assert world.update().db_version == 3


@pytest.mark.parametrize("number", [1, 2])
def test_version_that_is_not_higher(world: World, number: int) -> None:
    before = files(world.repository)
    with pytest.raises(UpdateError, match="not higher than the published one"):
        world.publish(number)
    assert files(world.repository) == before


def test_database_that_clients_would_refuse(world: World) -> None:
    made = database(world.folder / "database", 3)
    (made / "names.json").write_text("{}")
    with pytest.raises(DatabaseError, match=r"names\.json"):
        signing.publish(made, world.repository, world.keys)


def test_lint_may_refuse(world: World) -> None:
    with pytest.raises(UpdateError, match="arm-0001 is dead"):
        world.publish(3, check=lambda folder: ["arm-0001 is dead"])
    assert world.publish(3, check=lambda folder: []).db_version == 3


def test_published_files_are_never_changed(world: World) -> None:
    before = files(world.repository)
    world.publish(3)
    signing.renew(world.repository, world.keys)
    signing.rotate(world.repository, world.keys, ["timestamp"])
    after = files(world.repository)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"metadata/timestamp.json"}


def test_bundle_is_the_same_every_time(world: World) -> None:
    first = database(world.folder / "first", 9)
    shutil.copytree(first, world.folder / "second")
    (world.folder / "second" / "notes.txt").write_text("not part of it")
    assert signing.pack(first) == signing.pack(world.folder / "second")
    (world.folder / "unpacked").mkdir()
    bundle.unpack(signing.pack(first), world.folder / "unpacked")
    assert contents(world.folder / "unpacked") == contents(first)


def test_bundle_larger_than_clients_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    with pytest.raises(UpdateError, match="larger than 1000 bytes"):
        world.publish(3)


def test_what_is_published_is_told(world: World) -> None:
    now = datetime.datetime(2031, 5, 6, 7, 8, 9, 10, tzinfo=datetime.UTC)
    made = world.publish(3, expires_days=10, now=now)
    assert made.db_version == 3
    assert made.versions == {"root": 1, "targets": 2, "snapshot": 2, "timestamp": 2}
    assert made.expires == "2031-05-16T07:08:09+00:00"
    assert world.read("timestamp").signed.expires.isoformat() == made.expires
    assert (world.targets / f"{made.bundle}.{bundle.NAME}").is_file()


def test_renewal(world: World) -> None:
    made = signing.renew(world.repository, world.keys, expires_days=3)
    assert made.versions == {"root": 1, "targets": 1, "snapshot": 1, "timestamp": 2}
    long = signing.renew(world.repository, world.keys, expires_days=500)
    assert long.versions == {"root": 1, "targets": 2, "snapshot": 2, "timestamp": 3}
    assert all(world.read(r).signed.expires.isoformat() >= long.expires for r in ROLES)
    assert world.update().code == "current"


def test_renewal_of_what_is_not_there(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UpdateError, match="There is no repository"):
        signing.renew(tmp_path / "mirror", tmp_path / "keys")
    made = World(tmp_path)
    with pytest.raises(UpdateError, match="Nothing was published yet"):
        signing.renew(made.repository, made.keys)
    assert made.update().code == "unreachable"


def test_everything_expired_is_renewed(world: World) -> None:
    world.forge({role: lambda signed: setattr(signed, "expires", PAST) for role in ROLES})
    assert world.update().code == "expired"
    signing.renew(world.repository, world.keys)
    assert world.update().code == "current"


def test_every_key_is_replaced_and_clients_follow(world: World) -> None:
    trusted = world.root.read_bytes()
    for number in (3, 4):
        signing.rotate(world.repository, world.keys, repository.ROLES)
        for path in world.keys.glob("*.pem"):  # the old ones are gone for good
            if number == 4 and "-v3" not in path.name:
                path.unlink()
        world.publish(number)
        assert world.update().db_version == in_use() == number
    assert world.root.read_bytes() == trusted
    shutil.rmtree(world.folder / "cache")
    assert world.update().db_version == 4  # a new client that has the first root


def test_rotation_that_was_cut_short_is_completed_by_a_renewal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signing.Repository, "sign", lambda *_: None)  # killed after the root
        signing.rotate(world.repository, world.keys, ["targets", "snapshot", "timestamp"])
    assert world.update().code == "signature" and in_use() == 2
    signing.renew(world.repository, world.keys)
    assert world.update().code == "current"


@pytest.mark.parametrize(("threshold", "count"), [(0, 1), (3, 2), (1, 40)])
def test_threshold_that_cannot_be(tmp_path: Path, threshold: int, count: int) -> None:
    with pytest.raises(UpdateError, match="threshold"):
        signing.init(tmp_path / "m", tmp_path / "k", threshold=threshold, root_keys=count)
    assert not (tmp_path / "k").exists()


def test_nothing_is_overwritten(world: World) -> None:
    with pytest.raises(UpdateError, match="There is a repository already"):
        signing.init(world.repository, world.folder / "new")
    before = files(world.keys)
    with pytest.raises(UpdateError, match="A key cannot be written"):
        signing.init(world.folder / "new", world.keys)
    with pytest.raises(UpdateError, match="A key cannot be written"):
        keys.make_key(world.keys, "targets")
    assert files(world.keys) == before


def test_unknown_role(world: World) -> None:
    with pytest.raises(UpdateError, match="no such role"):
        signing.rotate(world.repository, world.keys, ["mirrors"])


def test_one_publisher_at_a_time(world: World) -> None:
    with Lock(world.keys) as is_held:
        assert is_held
        with pytest.raises(UpdateError, match="Another process is publishing"):
            world.publish(3)


@pytest.mark.parametrize("damage", ["", "{", '{"signed": {}}'])
def test_repository_that_cannot_be_read(world: World, damage: str) -> None:
    (world.metadata / "1.snapshot.json").write_text(damage)
    with pytest.raises(UpdateError, match=r"1\.snapshot\.json"):
        world.publish(3)


def test_repository_that_cannot_be_written_to(world: World) -> None:
    shutil.rmtree(world.targets)
    world.targets.write_text("a file")
    with pytest.raises(UpdateError, match="cannot be written to"):
        world.publish(3)


def test_metadata_are_tuf_for_any_client(world: World) -> None:
    """The wire format, read by hand: version 1 of the specification, Ed25519, sha256 links."""
    root = json.loads((world.metadata / "1.root.json").read_bytes())["signed"]
    assert root["spec_version"].startswith("1.0") and root["consistent_snapshot"] is True
    assert {key["scheme"] for key in root["keys"].values()} == {"ed25519"}
    assert {name: role["threshold"] for name, role in root["roles"].items()} == dict.fromkeys(
        ("root", "targets", "snapshot", "timestamp"), 1
    )

    def linked(name: str, meta: dict[str, Any]) -> dict[str, Any]:
        data = (world.metadata / f"{meta['version']}.{name}").read_bytes()
        assert (meta["length"], meta["hashes"]["sha256"]) == (len(data), bundle.digest(data))
        made: dict[str, Any] = json.loads(data)["signed"]
        return made

    timestamp = json.loads((world.metadata / "timestamp.json").read_bytes())["signed"]
    snapshot = linked("snapshot.json", timestamp["meta"]["snapshot.json"])
    targets = linked("targets.json", snapshot["meta"]["targets.json"])
    (about,) = targets["targets"].values()
    data = (world.targets / f"{about['hashes']['sha256']}.{bundle.NAME}").read_bytes()
    assert about["length"] == len(data) and about["custom"] == {"db_version": 2}
    assert os.path.commonpath([world.keys, world.repository]) == str(world.folder)
