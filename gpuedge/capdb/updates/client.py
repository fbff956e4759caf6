"""The client's side of The Update Framework: from a mirror to a bundle that its owner signed.

python-tuf does the work that the specification describes: it follows the chain of roots, and checks
signatures, thresholds, expiry, versions, lengths and hashes. What is decided here: how large
anything may be, that no role is delegated to, which root is the first, and in which words a refusal
is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuedge.capdb.updates.bundle import MAX_BYTES, NAME, digest
from gpuedge.capdb.updates.mirror import Mirror, fetcher

if TYPE_CHECKING:
    from tuf.ngclient import TargetFile, Updater

ROOT_BYTES: Final = 256 << 10
TIMESTAMP_BYTES: Final = 16 << 10
SNAPSHOT_BYTES: Final = 64 << 10
TARGETS_BYTES: Final = 256 << 10
MAX_ROTATIONS: Final = 256

ANCHOR: Final = "anchor.json"
"""The first root of a repository's metadata folder: what its trust began with."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class RefusedError(Exception):
    """What was offered is not taken.

    Parameters
    ----------
    code : str
        Key of `gpuedge.capdb.updates.update.SENTENCES`.
    detail : str
        What was seen.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Offer:
    """What a mirror offers, after its signatures were checked.

    Attributes
    ----------
    bundle : str
        SHA-256 of the bundle.
    db_version : int
        Version of the database, as signed.
    """

    bundle: str
    db_version: int


class Client:
    """One look at a repository.

    Parameters
    ----------
    mirror : Mirror
        Where it is read from.
    state : Path
        Folder of what is known of this repository; everything with the same first root shares it,
        whatever the mirror, so that no mirror can go back behind what another has shown.
    anchor : bytes
        The first root.
    max_bytes : int
        Largest bundle that is read.
    """

    def __init__(self, mirror: Mirror, state: Path, anchor: bytes, max_bytes: int) -> None:
        self._mirror = mirror
        self._state = state
        self._anchor = anchor
        self._max_bytes = min(max_bytes, MAX_BYTES)
        self._updater: Updater | None = None
        self._target: TargetFile | None = None

    def look(self) -> Offer:
        """Bring the metadata up to date and return what they offer.

        Raises
        ------
        RefusedError
            They cannot be read, or something about them is wrong.
        """
        with _told():
            self._updater = self._made()
            self._updater.refresh()
            self._target = self._updater.get_targetinfo(NAME)
        if self._target is None:
            raise RefusedError("no-target", f"{NAME} is not among its targets")
        return self._offer(self._target)

    def download(self) -> bytes:
        """Return the bundle that `look` found, checked against its signed length and hashes.

        Raises
        ------
        RefusedError
            It cannot be read, or is not what was signed.
        """
        place = self._state / "bundle"
        with _told():
            if self._updater is None or self._target is None:
                raise RefusedError("no-target", "nothing was looked for yet")
            try:
                self._updater.download_target(self._target, str(place))
                data = place.read_bytes()
            finally:
                place.unlink(missing_ok=True)
        if digest(data) != self._target.hashes["sha256"]:  # the disk gave back something else
            raise RefusedError("mismatch", "the downloaded file changed on disk")
        return data

    def _made(self) -> Updater:
        from tuf.ngclient import Updater, UpdaterConfig

        self._state.mkdir(parents=True, exist_ok=True)
        config = UpdaterConfig(
            max_root_rotations=MAX_ROTATIONS,
            max_delegations=0,
            root_max_length=ROOT_BYTES,
            timestamp_max_length=TIMESTAMP_BYTES,
            snapshot_max_length=SNAPSHOT_BYTES,
            targets_max_length=TARGETS_BYTES,
        )
        return Updater(
            str(self._state), "metadata/", str(self._state), "targets/",
            fetcher(self._mirror), config, bootstrap=self._anchor,
        )  # fmt: skip

    def _offer(self, target: TargetFile) -> Offer:
        custom: Any = target.custom
        number = custom.get("db_version") if isinstance(custom, dict) else None
        if type(number) is not int or number < 1:
            raise RefusedError("malformed", f"the metadata give no db_version for {NAME}")
        if not _SHA256.fullmatch(str(target.hashes.get("sha256"))):
            raise RefusedError("malformed", f"the metadata give no SHA-256 for {NAME}")
        if target.length > self._max_bytes:
            raise RefusedError(
                "too-large", f"{target.length} bytes; at most {self._max_bytes} are read"
            )
        return Offer(target.hashes["sha256"], number)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what python-tuf raises into `RefusedError`; no other error leaves the block."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:  # hostile metadata make a library raise anything
        texts = [str(error) or type(error).__name__, str(error.__cause__ or "")]
        raise RefusedError(_code(error), "; ".join(filter(None, texts))[:500]) from None


def _code(error: Exception) -> str:
    from tuf.api import exceptions as tuf

    for kind, code in (
        (tuf.ExpiredMetadataError, "expired"),
        (tuf.BadVersionNumberError, "rollback"),
        (tuf.UnsignedMetadataError, "signature"),
        (tuf.LengthOrHashMismatchError, "mismatch"),
        (tuf.DownloadLengthMismatchError, "too-large"),
        (tuf.SlowRetrievalError, "slow"),
        (tuf.DownloadError, "unreachable"),
        (tuf.RepositoryError, "malformed"),
        (OSError, "not-writable"),
    ):
        if isinstance(error, kind):
            return code
    return "malformed"


def check_root(data: bytes) -> None:
    """Check that some bytes are a root that trust can begin with: signed by its own keys.

    Raises
    ------
    RefusedError
        They are not.
    """
    from tuf.api.metadata import Metadata, Root

    with _told():
        root: Metadata[Root] = Metadata.from_bytes(data)
        if not isinstance(root.signed, Root):
            raise RefusedError("malformed", "it is not root metadata")
        root.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
