"""What somebody with some of the keys can try, and how owners get rid of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from capdb import signing
from update_fakes import (
    ROLES,
    World,
    bundle_of,
    cache,
    contents,
    database,
    honest,
    in_use,
    refused,
    world,
)

__all__ = ["cache", "honest", "world"]


# fast forward


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_fast_forward_is_recovered_from_by_new_keys(world: World, role: str) -> None:
    def forward(signed: Any) -> None:
        signed.version = 2**31 - 2

    before = world.copy()
    world.forge({role: forward}, roles=ROLES[ROLES.index(role) :])
    assert world.update().code == "current"  # signed with the stolen keys, so it is believed
    shutil.rmtree(world.repository)
    shutil.copytree(before, world.repository)
    world.publish(3)
    assert world.update().code in {"rollback", "current"} and in_use() == 2  # locked out
    signing.rotate(world.repository, world.keys, ROLES)
    assert world.update().code == "updated" and in_use() == 3


# keys below the threshold


@pytest.fixture
def guarded(tmp_path: Path, cache: Path) -> World:
    """A world whose root needs two of three keys."""
    made = World(tmp_path, threshold=2, root_keys=3)
    made.publish(2)
    assert made.update().code == "updated"
    return made


def test_one_stolen_root_key_of_two_needed(guarded: World) -> None:
    thief = World(guarded.folder / "thief")

    def take_over(signed: Any) -> None:
        for role in ("targets", "snapshot", "timestamp"):
            signed.add_key(thief.signer(role).public_key, role)

    guarded.new_root(take_over, ["root-1"])
    assert "1/2" in refused(guarded, "signature")


def test_one_stolen_root_key_that_signs_twice(guarded: World) -> None:
    guarded.new_root(lambda signed: None, ["root-1"])
    document = json.loads((guarded.metadata / "2.root.json").read_bytes())
    document["signatures"] *= 2
    guarded.write("root", json.dumps(document).encode(), 2)
    refused(guarded, "malformed")


def test_one_stolen_root_key_under_two_names(guarded: World) -> None:
    guarded.new_root(lambda signed: None, ["root-1"])
    document = json.loads((guarded.metadata / "2.root.json").read_bytes())
    keyid = document["signatures"][0]["keyid"]
    twin = "0" * 64
    document["signed"]["keys"][twin] = document["signed"]["keys"][keyid]
    document["signed"]["roles"]["root"]["keyids"].append(twin)
    document["signatures"].append({**document["signatures"][0], "keyid": twin})
    guarded.write("root", json.dumps(document).encode(), 2)
    refused(guarded, "signature")


@pytest.mark.parametrize("stolen", ROLES)
def test_one_stolen_key_cannot_bring_a_database(world: World, honest: None, stolen: str) -> None:
    made = bundle_of(contents(database(world.folder / "database", 9)))
    world.offer(made, 9, signers={role: [stolen] for role in ROLES})
    refused(world, "signature")


# rotation of the root


def test_root_signed_by_the_new_keys_only(world: World, honest: None) -> None:
    def replace(signed: Any) -> None:
        signed.revoke_key(world.signer("root-1").public_key.keyid, "root")
        signed.add_key(world.signer("targets").public_key, "root")

    world.new_root(replace, ["targets"])
    refused(world, "signature")


def test_root_signed_by_the_old_keys_only(world: World, honest: None) -> None:
    def replace(signed: Any) -> None:
        signed.revoke_key(world.signer("root-1").public_key.keyid, "root")
        signed.add_key(world.signer("targets").public_key, "root")

    world.new_root(replace, ["root-1"])
    refused(world, "signature")


def test_root_that_is_no_root(world: World, honest: None) -> None:
    world.write("root", world.read("targets").to_bytes(), 2)
    refused(world, "malformed")
