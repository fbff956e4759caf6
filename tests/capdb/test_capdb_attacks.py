"""What mirrors, networks and thieves of keys can try: refused, with an error of ours.

Whether metadata is good is python-tuf's to say and to test: each of its verdicts comes here once.
After every attack the database from before must be in use, and an honest mirror must be able to
bring the next one.
"""

from __future__ import annotations

import datetime
import os
import random
import shutil
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from capdb import signing
from tuf.api.metadata import DelegatedRole, Delegations, MetaFile
from update_fakes import (
    ROLES,
    World,
    bundle_of,
    cache,
    contents,
    database,
    dripping,
    endless,
    honest,
    in_use,
    newest_target,
    refused,
    serving,
    world,
)

from gpuedge.capdb import place
from gpuedge.capdb.updates import bundle

__all__ = ["cache", "honest", "world"]


# arbitrary software


def test_bundle_of_the_same_length_in_place_of_the_signed_one(world: World, honest: None) -> None:
    world.publish(3)
    target = newest_target(world)
    data = target.read_bytes()
    target.write_bytes(data.replace(b'\\"db_version\\": 3', b'\\"db_version\\": 9'))
    assert target.read_bytes() != data and target.stat().st_size == len(data)
    refused(world, "mismatch")


def test_repository_of_somebody_else(world: World, honest: None) -> None:
    other = World(world.folder / "other")
    other.publish(9)
    refused(world, "signature", other.repository)


# endless data


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("2.root.json", 256 << 10),
        ("timestamp.json", 16 << 10),
        ("snapshot.json", 64 << 10),
        ("targets.json", 256 << 10),
        (bundle.NAME, 1 << 20),
    ],
)
def test_endless_data(world: World, honest: None, name: str, most: int) -> None:
    world.publish(3)
    sent = [0]

    def behaviour(handler: Any, path: str) -> bool:
        if not path.endswith(name):
            return False
        endless(handler, sent)
        return True

    with serving(world.repository, behaviour) as address:
        refused(world, "too-large", address)
    assert sent[0] < most + (8 << 20)  # what queues and sockets hold


def test_endless_data_in_a_folder(world: World, honest: None) -> None:
    with (world.metadata / "timestamp.json").open("wb") as file:
        file.truncate(1 << 40)
    refused(world, "too-large")


def test_signed_length_beyond_what_the_client_reads(world: World, honest: None) -> None:
    world.publish(3)
    asked = []

    def behaviour(handler: Any, path: str) -> bool:
        asked.append(path)
        return False

    with serving(world.repository, behaviour) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuedge.capdb.updates.client.MAX_BYTES", 1000)
        refused(world, "too-large", address)
    assert not any("targets/" in path for path in asked)


def test_more_roots_than_anybody_needs(world: World, honest: None) -> None:
    # each is good, so the client follows as far as it ever does, and goes on next time
    for _ in range(300):
        world.new_root(lambda signed: None, ["root-1"])
    assert world.update().code in {"current", "kept"}
    assert in_use() == 2


# slow retrieval


@pytest.mark.parametrize("name", ["timestamp.json", bundle.NAME])
def test_one_byte_after_the_other(world: World, honest: None, name: str) -> None:
    world.publish(3)

    def behaviour(handler: Any, path: str) -> bool:
        if not path.endswith(name):
            return False
        dripping(handler, 60.0)
        return True

    start = time.monotonic()
    with serving(world.repository, behaviour) as address:
        refused(world, "slow", address, deadline_s=1.0)
        assert time.monotonic() - start < 50.0  # the server would go on for 60


def test_one_byte_of_the_headers_after_the_other(world: World, honest: None) -> None:
    def behaviour(handler: Any, path: str) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(3000):
            handler.wfile.write(b"x")
            time.sleep(0.02)
        return True

    start = time.monotonic()
    with serving(world.repository, behaviour) as address:
        refused(world, "slow", address, deadline_s=0.5)
        assert time.monotonic() - start < 50.0  # the server would go on for 60


def test_server_that_never_answers(world: World, honest: None) -> None:
    def behaviour(handler: Any, path: str) -> bool:
        handler.rfile.read(1)  # until the client goes away
        return True

    with serving(world.repository, behaviour) as address:
        refused(world, "slow", address, deadline_s=0.5)


def test_pipe_that_nobody_writes_to(world: World, honest: None) -> None:
    (world.metadata / "timestamp.json").unlink()
    os.mkfifo(world.metadata / "timestamp.json")
    assert "not a file" in refused(world, "unreachable")


# extraneous dependencies, mix and match


def test_file_that_the_database_does_not_name(world: World, honest: None) -> None:
    files = contents(database(world.folder / "database", 3))
    world.offer(bundle_of({**files, "entries/more.json": "{}"}), 3)
    assert "entries/more.json" in refused(world, "bad-database")


def test_database_offered_by_a_delegated_role(world: World) -> None:
    world.publish(3)
    signer = world.signer("snapshot")
    role = DelegatedRole("helper", [signer.public_key.keyid], 1, True, paths=["*"])

    def delegate(signed: Any) -> None:
        made = Delegations({signer.public_key.keyid: signer.public_key}, {"helper": role})
        signed.targets, signed.delegations = {}, made

    helper = world.read("targets")
    helper.signatures.clear()
    helper.signed.version = 1
    helper.sign(signer)

    def name(signed: Any) -> None:
        signed.meta["helper.json"] = MetaFile(1)

    world.forge({"targets": delegate, "snapshot": name})
    world.write("helper", helper)
    refused(world, "no-target")


def test_files_of_two_databases_in_one_bundle(world: World, honest: None) -> None:
    files = contents(database(world.folder / "database", 3))
    other = contents(database(world.folder / "other", 3, "another state"))
    world.offer(bundle_of({**files, "classes.json": other["classes.json"]}), 3)
    refused(world, "bad-database")


def test_bundle_of_another_version_than_signed(world: World, honest: None) -> None:
    world.offer(bundle_of(contents(database(world.folder / "database", 3))), 4)
    assert "signed as 4" in refused(world, "bad-database")


# rollback


def test_old_mirror_shown_again(world: World, cache: Path) -> None:
    before = world.copy()
    world.publish(3)
    assert world.update().code == "updated"
    outcome = world.update(before)
    assert (outcome.status, outcome.code, outcome.db_version) == ("kept", "rollback", 3)
    assert in_use() == 3


def test_lower_database_in_higher_metadata(world: World, honest: None) -> None:
    world.offer(bundle_of(contents(database(world.folder / "database", 1))), 1)
    assert "version 1 is offered, 2 is here" in refused(world, "older")


def test_other_database_of_the_same_version(world: World, honest: None) -> None:
    world.offer(bundle_of(contents(database(world.folder / "database", 2, "changed"))), 2)
    refused(world, "conflict")


# indefinite freeze


def test_mirror_that_stands_still(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.update().code == "current"  # nothing is known against it yet
    real = datetime.datetime
    days = signing.EXPIRES_DAYS + 1

    class Later(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.now(tz) + datetime.timedelta(days=days)

    clock = types.SimpleNamespace(datetime=Later, timezone=datetime.timezone)
    monkeypatch.setattr("tuf.ngclient._internal.trusted_metadata_set.datetime", clock)
    assert "timestamp" in refused(world, "expired")
    signing.renew(world.repository, world.keys, expires_days=days + 1)
    assert world.update().code == "current"


# stolen keys


def test_one_stolen_root_key_of_two_needed(tmp_path: Path, cache: Path) -> None:
    guarded = World(tmp_path, threshold=2, root_keys=3)
    guarded.publish(2)
    assert guarded.update().code == "updated"
    guarded.new_root(lambda signed: None, ["root-1"])
    assert "1/2" in refused(guarded, "signature")


def test_fast_forward_is_recovered_from_by_new_keys(world: World) -> None:
    def forward(signed: Any) -> None:
        signed.version = 2**31 - 2

    before = world.copy()
    world.forge({"snapshot": forward}, roles=ROLES[ROLES.index("snapshot") :])
    assert world.update().code == "current"  # signed with the stolen keys, so it is believed
    shutil.rmtree(world.repository)
    shutil.copytree(before, world.repository)
    world.publish(3)
    assert world.update().code in {"rollback", "current"} and in_use() == 2  # locked out
    signing.rotate(world.repository, world.keys, ROLES)
    assert world.update().code == "updated" and in_use() == 3


# whatever else


def test_flipped_bits_anywhere(world: World, cache: Path) -> None:
    shutil.copytree(cache, world.folder / "before", symlinks=True)
    world.publish(3)
    paths = sorted(p for p in world.repository.rglob("*") if p.is_file())
    chosen = random.Random(5)
    codes = Counter()
    for _ in range(25):
        path = chosen.choice(paths)
        good = path.read_bytes()
        bad = bytearray(good)
        bad[chosen.randrange(len(bad))] ^= 1 << chosen.randrange(8)
        path.write_bytes(bad)
        code = world.update().code
        path.write_bytes(good)
        codes[code] += 1
        # a flip in an old file, or in the case of a signature's hexadecimal digits, changes nothing
        assert in_use() == (3 if code == "updated" else 2)
        assert code != "updated" or contents(place.folder()) == contents(world.folder / "database")
        shutil.rmtree(cache)
        shutil.copytree(world.folder / "before", cache, symlinks=True)
    assert {"updated", "signature", "mismatch", "malformed"} <= set(codes), codes
    assert world.update().code == "updated"
