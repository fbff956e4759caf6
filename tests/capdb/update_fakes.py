"""A publisher, a client and everybody between them, for tests of signed updates."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache as cache_results
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from capdb import signing
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, TargetFile

from gpuedge.capdb import place
from gpuedge.capdb.database import forget, load
from gpuedge.capdb.updates.bundle import NAME
from gpuedge.capdb.updates.update import SENTENCES, UpdateOutcome, update
from gpuedge.safety import paths

DATA = Path(__file__).resolve().parents[2] / "capability_db"
ROLES = ("targets", "snapshot", "timestamp")
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
Change = Callable[[Any], None]


def database(folder: Path, number: int, note: str = "") -> Path:
    """Make a small whole database: some of the packaged one's rows, no entries, its own version."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {}
    for name in ("classes.json", "families.json", "names.json"):
        text = rows(name) + " " * len(note)
        (folder / name).write_text(text, encoding="utf-8")
        files[name] = hashlib.sha256(text.encode()).hexdigest()
    envelope = {
        "schema": "gpuedge.database/1",
        "db_version": number,
        "generated_at": "2026-11-01T00:00:00Z",
        "valid_until": "2036-11-01T00:00:00Z",
        "engine_range": {"min": "0.1", "below": "2"},
        "retired_ids": [],
        "files": files,
    }
    (folder / "database.json").write_text(json.dumps(envelope), encoding="utf-8")
    return folder


def packaged_database(folder: Path, number: int = 1) -> Path:
    """Make a database that a client's library carries: with the schemas."""
    database(folder, number)
    for schema in DATA.glob("*.schema.json"):
        shutil.copy(schema, folder)
    return folder


@cache_results
def rows(name: str) -> str:
    """Return a table of the packaged database with few rows, which is checked in no time."""
    table = json.loads((DATA / name).read_bytes())
    return json.dumps({k: v[:4] if isinstance(v, list) else v for k, v in table.items()})


class World:
    """A repository with its keys, and one client with its cache folder."""

    def __init__(self, folder: Path, *, threshold: int = 1, root_keys: int = 1) -> None:
        self.folder = folder
        self.repository, self.keys = folder / "mirror", folder / "keys"
        self.metadata, self.targets = self.repository / "metadata", self.repository / "targets"
        self.root = folder / "trusted.json"
        if not self.root.exists():
            number = {"threshold": threshold, "root_keys": root_keys}
            shutil.copy(signing.init(self.repository, self.keys, **number), self.root)

    def publish(self, number: int, note: str = "", **options: Any) -> signing.Published:
        made = database(self.folder / "database", number, note)
        return signing.publish(made, self.repository, self.keys, **options)

    def update(self, source: str | Path | None = None, **options: Any) -> UpdateOutcome:
        return update(source or self.repository, **{"root": self.root, **options})

    def copy(self, name: str = "mirror before") -> Path:
        """Keep the mirror as it is now, for whoever shows it again later."""
        shutil.copytree(self.repository, self.folder / name)
        return self.folder / name

    # what somebody with some of the keys can do

    def signer(self, name: str) -> CryptoSigner:
        key = load_pem_private_key((self.keys / f"{name}.pem").read_bytes(), None)
        return CryptoSigner(key)  # type: ignore[arg-type]

    def read(self, role: str) -> Metadata[Any]:
        if role == "timestamp":
            return Metadata.from_file(str(self.metadata / "timestamp.json"))
        numbers = [int(p.name.split(".")[0]) for p in self.metadata.glob(f"*.{role}.json")]
        return Metadata.from_file(str(self.metadata / f"{max(numbers)}.{role}.json"))

    def write(self, role: str, made: Metadata[Any] | bytes, version: int | None = None) -> None:
        data = made if isinstance(made, bytes) else made.to_bytes()
        if version is None and not isinstance(made, bytes):
            version = made.signed.version
        name = f"{role}.json" if role == "timestamp" else f"{version}.{role}.json"
        (self.metadata / name).write_bytes(data)

    def forge(
        self,
        changes: dict[str, Change],
        signers: dict[str, Iterable[str]] | None = None,
        roles: Iterable[str] = ROLES,
        *,
        is_linked: bool = True,
    ) -> None:
        """Sign the next version of the roles, changed, each naming the one before it as it must.

        `signers` says which keys sign a role; its own where nothing is said.
        """
        made: dict[str, Metadata[Any]] = {}
        for role in roles:
            metadata = self.read(role)
            metadata.signed.version += 1
            below = {"snapshot": "targets", "timestamp": "snapshot"}.get(role)
            if is_linked and below in made:
                signed = made[below].signed
                meta = MetaFile.from_data(signed.version, made[below].to_bytes(), ["sha256"])
                if role == "snapshot":
                    metadata.signed.meta["targets.json"] = meta
                else:
                    metadata.signed.snapshot_meta = meta
            changes.get(role, lambda signed: None)(metadata.signed)
            metadata.signatures.clear()
            for name in (signers or {}).get(role, [role]):
                metadata.sign(self.signer(name), append=True)
            made[role] = metadata
        for role, metadata in made.items():
            self.write(role, metadata)

    def offer(self, data: bytes, number: int, **forged: Any) -> None:
        """Offer some bytes as the bundle, rightly signed."""
        target = TargetFile.from_data(NAME, data, ["sha256"])
        target.unrecognized_fields["custom"] = {"db_version": number}
        (self.targets / f"{target.hashes['sha256']}.{NAME}").write_bytes(data)

        def change(signed: Any) -> None:
            signed.targets = {NAME: target}

        self.forge({"targets": change}, **forged)

    def new_root(self, change: Change, signers: Iterable[str], version: int | None = None) -> None:
        """Write the next root, changed, signed by these keys."""
        root = self.read("root")
        root.signed.version += 1
        change(root.signed)
        root.signatures.clear()
        for name in signers:
            root.sign(self.signer(name), append=True)
        self.write("root", root, version)


def in_use() -> int:
    """Return the version that a process that starts now would use, having loaded it whole."""
    forget()
    return load(place.folder()).version


def bundle_of(files: dict[str, str], **more: Any) -> bytes:
    return json.dumps({"schema": "gpuedge.bundle/1", "files": files, **more}).encode()


def contents(folder: Path) -> dict[str, str]:
    """Return the texts of a database folder by relative path."""
    found = (p for p in folder.rglob("*.json") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8") for p in found}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a cache folder of its own, and a packaged database of version 1."""
    packaged = packaged_database(tmp_path / "packaged")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUEDGE_DB", raising=False)
    monkeypatch.delenv("GPUEDGE_DB_ROOT", raising=False)
    monkeypatch.setenv("no_proxy", "*")  # servers of tests are on this machine
    real = paths.data_folder
    named = {"capability_db": str(packaged)}
    monkeypatch.setattr(paths, "data_folder", lambda name: named.get(name) or real(name))
    return tmp_path / "cache"


WORLDS: list[Path] = []
"""Where the first world of this session was kept for all others: its keys and both its sides."""


@pytest.fixture
def world(tmp_path: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose client uses version 2, and whose publisher has not gone further."""
    if WORLDS:
        shutil.copytree(WORLDS[0], tmp_path, dirs_exist_ok=True)
        return World(tmp_path)
    made = World(tmp_path)
    made.publish(2)
    assert made.update().code == "updated"
    WORLDS.append(tmp_path_factory.mktemp("worlds") / "first")
    shutil.copytree(tmp_path, WORLDS[0])
    return made


def refused(world: World, code: str, source: Any = None, **options: Any) -> str:
    """Expect an update to be refused with this code, and the database from before to stay."""
    outcome = world.update(source, **options)
    assert (outcome.status, outcome.code) == ("kept", code), outcome
    assert outcome.db_version == outcome.before == in_use() == 2
    assert SENTENCES[code] in outcome.sentence
    return outcome.detail


@pytest.fixture
def honest(world: World) -> Iterator[None]:
    """Keep the honest mirror aside; after the test, it must still be able to bring version 3."""
    before = world.copy()
    yield
    shutil.rmtree(world.repository)
    shutil.copytree(before, world.repository)

    def ahead(signed: Any) -> None:
        signed.version += 10  # of whatever was signed with its own keys during the attack

    world.forge(dict.fromkeys(ROLES, ahead))
    world.publish(3)
    assert world.update().code == "updated"
    assert in_use() == 3


def newest_target(world: World) -> Path:
    return max(world.targets.iterdir(), key=lambda path: path.stat().st_mtime_ns)


Behaviour = Callable[[BaseHTTPRequestHandler, str], bool]


@contextmanager
def serving(folder: Path, behaviour: Behaviour | None = None) -> Iterator[str]:
    """Serve a folder; `behaviour` may answer a request itself, and says whether it did."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                if behaviour is None or not behaviour(self, self.path):
                    self._send_file()
            except OSError:  # the client has gone
                self.close_connection = True

        def _send_file(self) -> None:
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def endless(handler: BaseHTTPRequestHandler, sent: list[int], most: int = 1 << 28) -> None:
    """Send data until the client goes away, and count them."""
    handler.send_response(200)
    handler.end_headers()
    while sent[0] < most:
        handler.wfile.write(b" " * 65536)
        sent[0] += 65536


def dripping(handler: BaseHTTPRequestHandler, seconds: float, pause_s: float = 0.05) -> None:
    """Send one byte after the other, each soon enough for a time limit per read."""
    handler.send_response(200)
    handler.end_headers()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        handler.wfile.write(b" ")
        time.sleep(pause_s)
