"""What is signed or served and is no database: refused before any of it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tuf.api.metadata import TargetFile
from update_fakes import (
    World,
    bundle_of,
    cache,
    contents,
    database,
    honest,
    newest_target,
    refused,
    serving,
    world,
)

from gpuedge.capdb.updates import bundle

__all__ = ["cache", "honest", "world"]


# wrong software


def test_target_of_another_name(world: World, honest: None) -> None:
    made = TargetFile.from_data("../../other.json", b"{}", ["sha256"])
    world.forge({"targets": lambda signed: setattr(signed, "targets", {made.path: made})})
    refused(world, "no-target")


def test_signed_hash_that_leads_elsewhere(world: World, honest: None) -> None:
    world.publish(3)

    def lie(signed: Any) -> None:
        signed.targets[bundle.NAME].hashes = {"sha256": "../../../../other"}

    world.forge({"targets": lie})
    refused(world, "malformed")


def test_target_without_a_hash_we_trust(world: World, honest: None) -> None:
    world.publish(3)
    data = newest_target(world).read_bytes()
    made = TargetFile.from_data(bundle.NAME, data, ["md5"])
    made.unrecognized_fields["custom"] = {"db_version": 3}
    world.forge({"targets": lambda signed: setattr(signed, "targets", {bundle.NAME: made})})
    refused(world, "malformed")


@pytest.mark.parametrize(
    "custom", [None, {}, {"db_version": "3"}, {"db_version": True}, [3], {"db_version": -1}]
)
def test_target_without_a_version(world: World, honest: None, custom: Any) -> None:
    world.publish(3)

    def change(signed: Any) -> None:
        signed.targets[bundle.NAME].unrecognized_fields["custom"] = custom

    world.forge({"targets": change})
    refused(world, "malformed")


# what is no metadata


@pytest.mark.parametrize(
    "text",
    [
        b"<html>Sign in to use this network</html>",
        b"[" * 16000,
        b'{"signatures": [], "signed": {"_type": "timestamp", "version": ' + b"9" * 9000 + b"}}",
    ],
    ids=range(3),
)
def test_what_is_no_metadata(world: World, honest: None, text: bytes) -> None:
    (world.metadata / "timestamp.json").write_bytes(text)
    refused(world, "malformed")


@pytest.mark.parametrize("name", ["2.snapshot.json", "bundle"])
def test_missing_file(world: World, honest: None, name: str) -> None:
    world.publish(3)
    (newest_target(world) if name == "bundle" else world.metadata / name).unlink()
    refused(world, "unreachable")


@pytest.mark.parametrize("status", [404, 503])
def test_server_that_refuses(world: World, honest: None, status: int) -> None:
    def behaviour(handler: Any, path: str) -> bool:
        handler.send_error(status)
        return True

    with serving(world.repository, behaviour) as address:
        assert str(status) in refused(world, "unreachable", address)


def test_nobody_listens(world: World, honest: None) -> None:
    with serving(world.repository) as address:
        pass
    refused(world, "unreachable", address)


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_redirection_out_of_the_web(world: World, honest: None, to: str) -> None:
    def behaviour(handler: Any, path: str) -> bool:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.end_headers()
        return True

    with serving(world.repository, behaviour) as address:
        refused(world, "unreachable", address)


# names that lead elsewhere, from a publisher who has gone over to the other side


@pytest.mark.parametrize(
    "name",
    [
        "../../current.json",
        "/tmp/evil.json",
        "entries/../../../current.json",
        "entries\\..\\evil.json",
        "c:/evil.json",
        "./classes.json",
        "entries//arm.json",
        ".hidden.json",
        "com1.x.json",
        "Classes.json",
        "classes.json/x.json",
        "evil.py",
        "evil.json\0.json",
        "e\u0301.json",
        "a/b/c/d/e/f.json",
        "x" * 300 + ".json",
        "",
    ],
)
def test_name_that_no_file_may_have(world: World, honest: None, name: str) -> None:
    made = database(world.folder / "database", 3)
    envelope = json.loads((made / "database.json").read_text())
    envelope["files"][name] = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    (made / "database.json").write_text(json.dumps(envelope))
    seen = {p for p in world.folder.rglob("*") if "tuf" not in p.parts}
    world.offer(bundle_of({**contents(made), name: "{}"}), 3)
    refused(world, "bad-database")
    new = {p for p in world.folder.rglob("*") if "tuf" not in p.parts} - seen
    assert not [p for p in new if world.repository not in p.parents and p.is_file()]


def test_symlink_on_the_mirror_leads_to_no_device(world: World, honest: None) -> None:
    (world.metadata / "timestamp.json").unlink()
    (world.metadata / "timestamp.json").symlink_to("/dev/zero")
    assert "not a file" in refused(world, "unreachable")


def bundles() -> dict[str, Callable[[dict[str, str]], bytes]]:
    """Bundles that are none, by what is wrong with them."""
    whole: Callable[[dict[str, str]], str] = lambda files: bundle_of(files).decode()  # noqa: E731
    return {
        "cut": lambda files: whole(files)[:-40].encode(),
        "empty": lambda files: b"",
        "deep": lambda files: b"[" * 200000,
        "list": lambda files: b"[]",
        "schema": lambda files: whole(files).replace("bundle/1", "bundle/2").encode(),
        "more": lambda files: bundle_of(files, code="import os"),
        "numbers": lambda files: bundle_of({**files, "names.json": 3}),  # type: ignore[dict-item]
        "surrogate": lambda files: bundle_of({**files, "names.json": "\ud800"}),
        "latin": lambda files: whole(files).encode() + b"\xe9",
        "twice": lambda files: (
            whole(files).replace('{"classes', '{"names.json": "{}", "classes').encode()
        ),
        "no envelope": lambda files: bundle_of({k: v for k, v in files.items() if k[0] != "d"}),
        "no names": lambda files: bundle_of({k: v for k, v in files.items() if k[0] != "n"}),
        "envelope": lambda files: bundle_of({**files, "database.json": "[" * 100000}),
    }


@pytest.mark.parametrize("wrong", bundles())
def test_signed_bundle_that_is_none(world: World, honest: None, wrong: str) -> None:
    files = contents(database(world.folder / "database", 3))
    world.offer(bundles()[wrong](files), 3)
    assert refused(world, "bad-database")


def test_database_of_a_newer_engine(world: World, honest: None) -> None:
    files = contents(database(world.folder / "database", 3))
    envelope = json.loads(files["database.json"])
    envelope["engine_range"] = {"min": "9.0", "below": "10"}
    world.offer(bundle_of({**files, "database.json": json.dumps(envelope)}), 3)
    assert "9.0 to below 10" in refused(world, "bad-database")
