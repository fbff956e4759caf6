"""A repository of updates on disk: its metadata, and signing the next version of them."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from gpuedge.capdb.updates import bundle
from gpuedge.capdb.updates.client import SNAPSHOT_BYTES, TARGETS_BYTES, TIMESTAMP_BYTES
from gpuedge.core.errors import UpdateError
from gpuedge.safety import paths

Keys = Mapping[str, Ed25519PrivateKey]

ROLES = ("root", "targets", "snapshot", "timestamp")
ONLINE = ROLES[1:]
"""The roles that a publication signs, each of which names what the one before it signed."""

LONG_DAYS = 365
"""Life of everything but timestamps. A timestamp that is alive names the ones that count."""

LIMITS = {
    "root": bundle.MAX_ROOT,
    "targets": TARGETS_BYTES,
    "snapshot": SNAPSHOT_BYTES,
    "timestamp": TIMESTAMP_BYTES,
}
"""What clients read of each role's metadata at most, in bytes."""

MAX_METADATA = max(LIMITS.values())

_ROOT = re.compile(r"([1-9][0-9]*)\.root\.json")


@dataclass(frozen=True, slots=True)
class Published:
    """What a repository offers now.

    Attributes
    ----------
    db_version : int
        Version of the database.
    bundle : str
        SHA-256 of the bundle.
    versions : dict
        Versions of the metadata by role.
    expires : str
        When the timestamp expires (ISO): `renew` or `publish` before that.
    """

    db_version: int
    bundle: str
    versions: dict[str, int]
    expires: str


class Repository:
    """What a repository's timestamp leads to; files beyond it are of a publication that was cut.

    Parameters
    ----------
    folder : Path
        Holds ``metadata/`` and ``targets/``.

    Raises
    ------
    UpdateError (GE-601)
        There is none, or its metadata cannot be read.
    """

    root: Metadata[Root]
    targets: Metadata[Targets]
    snapshot: Metadata[Snapshot]
    timestamp: Metadata[Timestamp]

    def __init__(self, folder: Path) -> None:

        self.folder = folder
        self.root = newest_root(folder)
        self.targets, self.snapshot = Metadata(Targets()), Metadata(Snapshot())
        self.timestamp = Metadata(Timestamp())
        for new in (self.targets, self.snapshot, self.timestamp):
            new.signed.version = 0
        if os.path.lexists(folder / "metadata" / "timestamp.json"):
            self.timestamp = read(folder, "timestamp.json")
            number = self.timestamp.signed.snapshot_meta.version
            self.snapshot = read(folder, f"{number}.snapshot.json")
            number = self.snapshot.signed.meta["targets.json"].version
            self.targets = read(folder, f"{number}.targets.json")

    @property
    def db_version(self) -> int:
        """The published database's version; 0 where there is none."""
        target = self.targets.signed.targets.get(bundle.NAME)
        return int(target.custom["db_version"]) if target and target.custom else 0

    def offer(self, data: bytes, number: int) -> None:
        """Write a bundle and name it in the targets, which are still to be signed."""
        target = TargetFile.from_data(bundle.NAME, data, ["sha256", "sha512"])
        target.unrecognized_fields["custom"] = {"db_version": number}
        self.targets.signed.targets = {bundle.NAME: target}
        write(self.folder / "targets" / f"{target.hashes['sha256']}.{bundle.NAME}", data)

    def needs(self, end: datetime.datetime) -> tuple[str, ...]:
        """Return the roles to sign so that clients are content until `end`."""
        for role in ("targets", "snapshot"):
            metadata = getattr(self, role)
            try:
                self.root.signed.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
            except UnsignedMetadataError:  # a rotation was cut short
                return ONLINE
            if metadata.signed.expires < end:
                return ONLINE
        return ONLINE[-1:]

    def sign(self, keys: Keys, roles: Sequence[str], end: datetime.datetime) -> Published:
        """Sign and write the next version of some roles; the timestamp lives until `end`.

        All is signed before the first file is written, and the timestamp is written last.
        """
        written = {}
        for role in roles:
            metadata = getattr(self, role)
            signed, is_last = metadata.signed, role == "timestamp"
            signed.version += 1
            signed.expires = end if is_last else max(end, later(None, LONG_DAYS))
            data = sign(metadata, role, [self.root.signed], keys)
            meta = MetaFile.from_data(signed.version, data, ["sha256"])
            if role == "targets":
                self.snapshot.signed.meta["targets.json"] = meta
            elif role == "snapshot":
                self.timestamp.signed.snapshot_meta = meta
            written["timestamp.json" if is_last else f"{signed.version}.{role}.json"] = data
        for name, data in written.items():
            write(self.folder / "metadata" / name, data)
        versions = {role: getattr(self, role).signed.version for role in ROLES}
        target = self.targets.signed.targets[bundle.NAME]
        return Published(self.db_version, target.hashes["sha256"], versions, end.isoformat())


def later(now: datetime.datetime | None, days: int) -> datetime.datetime:
    """Return the moment some days from now, in whole seconds."""
    now = now or datetime.datetime.now(datetime.UTC)
    return now.replace(microsecond=0) + datetime.timedelta(days=days)


def sign(metadata: Metadata[Any], role: str, roots: Sequence[Root], keys: Keys) -> bytes:
    """Sign with every key of the role that is here; return the bytes, which each root accepts.

    Raises
    ------
    UpdateError (GE-601)
        Too few keys are here, or the metadata are larger than clients read.
    """
    metadata.signatures.clear()
    for root in roots:
        for keyid in root.roles[role].keyids:
            key = root.keys[keyid]
            private = keys.get(key.keyval["public"])
            if private is not None and isinstance(key, SSlibKey):
                metadata.sign(CryptoSigner(private, key), append=True)
    try:
        for root in roots:
            root.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except UnsignedMetadataError as error:
        raise UpdateError(f"Keys of the role {role!r} are missing.", known=str(error)) from None
    data = metadata.to_bytes()
    if len(data) > LIMITS[role]:
        raise UpdateError(f"The metadata of {role!r} are larger than clients read.")
    return data


def newest_root(folder: Path) -> Metadata[Root]:
    """Return a repository's root with the highest version."""
    found = [_ROOT.fullmatch(path.name) for path in (folder / "metadata").glob("*.root.json")]
    numbers = [int(match[1]) for match in found if match]
    if not numbers:
        raise UpdateError("There is no repository.", known=str(folder), hint="capdb.signing.init")
    return read(folder, f"{max(numbers)}.root.json")


def read(folder: Path, name: str) -> Metadata[Any]:
    """Return metadata that lie in a repository.

    Raises
    ------
    UpdateError (GE-601)
        They are not there, or are none.
    """
    path = folder / "metadata" / name
    try:
        return Metadata.from_bytes(paths.read_start(path, MAX_METADATA))  # never waits for a pipe
    except (DeserializationError, OSError, ValueError) as error:
        raise UpdateError("The repository cannot be read.", known=f"{path}: {error}") from None


def write(path: Path, data: bytes) -> None:
    """Write a file of the repository in one step.

    Raises
    ------
    UpdateError (GE-601)
        The folder is read-only or full.
    """
    if not paths.write_atomic(path, data):
        raise UpdateError("The repository cannot be written to.", known=str(path))
