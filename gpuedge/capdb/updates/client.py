"""The client's side of The Update Framework: from a mirror to a bundle that its owner signed.

python-tuf does the work that the specification describes: it follows the chain of roots, and checks
signatures, thresholds, expiry, versions, lengths and hashes. What is decided here: how large
anything may be, that no role is delegated to, which root is the first, and in which words a refusal
is told. Importing this needs the extra ``updates``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tuf.api import exceptions as tuf
from tuf.api.metadata import Metadata, Root, TargetFile
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gpuedge.capdb.updates.bundle import MAX_BYTES, MAX_ROOT, NAME
from gpuedge.capdb.updates.installed import RefusedError
from gpuedge.core.errors import UpdateError
from gpuedge.safety import paths

TIMESTAMP_BYTES: Final = 16 << 10
SNAPSHOT_BYTES: Final = 64 << 10
TARGETS_BYTES: Final = 256 << 10
MAX_ROTATIONS: Final = 256

CHUNK: Final = 1 << 16

GAP_S: Final = 10.0
"""A connection is given up where nothing comes for this long, so that its thread ends, too."""

_SHA256 = re.compile(r"[0-9a-f]{64}")

_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (tuf.ExpiredMetadataError, "expired"),
    (tuf.BadVersionNumberError, "rollback"),
    (tuf.UnsignedMetadataError, "signature"),
    (tuf.LengthOrHashMismatchError, "mismatch"),
    (tuf.DownloadLengthMismatchError, "too-large"),
    (tuf.SlowRetrievalError, "slow"),
    (tuf.DownloadError, "unreachable"),
    (tuf.RepositoryError, "malformed"),
    (OSError, "not-writable"),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a mirror offers, after its signatures were checked: a bundle's SHA-256 and version."""

    bundle: str
    db_version: int
    target: TargetFile


class Fetcher(FetcherInterface):
    """Reads a mirror for python-tuf; its addresses are paths relative to the mirror.

    python-tuf's own fetcher reads no folders, and does not end where bytes drip. This one reads a
    folder or an ``http(s)`` address with ``metadata/`` and ``targets/``, until a deadline; a source
    that is neither is an UpdateError.
    """

    def __init__(self, source: str | Path, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s
        self._web, self._folder = _split(source)

    def left(self) -> float:
        """Return the seconds until the deadline, at least zero."""
        return max(0.0, self._end - time.monotonic())

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            for piece in self._pieces(url):
                yield piece
                if not self.left():
                    raise TimeoutError("the deadline has passed")
        except (FileNotFoundError, NotADirectoryError):
            raise tuf.DownloadHTTPError(f"{url}: there is no such file", 404) from None
        except HTTPError as error:
            error.close()
            raise tuf.DownloadHTTPError(f"{url}: status {error.code}", error.code) from None
        except TimeoutError as error:
            raise tuf.SlowRetrievalError(f"{url}: {error}") from None
        except Exception as error:  # servers make urllib raise nearly anything
            raise tuf.DownloadError(f"{url}: {error or type(error).__name__}") from None

    def _pieces(self, path: str) -> Iterator[bytes]:
        if not self._web:
            yield paths.read_start(self._folder / path, MAX_BYTES + 1)
            return
        asked = Request(self._web + path, headers={"User-Agent": "gpuedge"})
        gap_s = min(GAP_S, max(0.1, self.left()))
        with closing(urlopen(asked, timeout=gap_s)) as answer:
            while piece := answer.read1(CHUNK):
                yield piece


def _split(source: str | Path) -> tuple[str, Path]:
    """Return a mirror's web address, empty for a folder, and its folder."""
    try:
        parts = urlsplit("" if isinstance(source, Path) else source)
        if parts.scheme in {"http", "https"}:
            if not parts.netloc or parts.query or parts.fragment:
                raise ValueError("an address needs a host, and may have no '?' and no '#'")
            return str(source).rstrip("/") + "/", Path()
        if not str(source).strip():
            raise ValueError("it is empty")
        if len(parts.scheme) > 1:  # one letter is a drive
            raise ValueError("a mirror is a folder, or an address with https:// or http://")
        return "", Path(source).expanduser()
    except (ValueError, RuntimeError) as error:  # half of an IPv6 address; the home of nobody
        raise UpdateError(f"The mirror {str(source)!r} cannot be used.", known=str(error)) from None


class UpdateClient:
    """One look at a repository, from its first root on.

    In the folder `state` lies what is known of it; everything with the same first root shares that,
    whatever the mirror, so that no mirror can go back behind what another has shown.
    """

    def __init__(self, fetcher: Fetcher, state: Path, anchor: bytes) -> None:
        self._bundle = state / "bundle"
        config = UpdaterConfig(
            max_root_rotations=MAX_ROTATIONS,
            max_delegations=0,
            root_max_length=MAX_ROOT,
            timestamp_max_length=TIMESTAMP_BYTES,
            snapshot_max_length=SNAPSHOT_BYTES,
            targets_max_length=TARGETS_BYTES,
        )
        with _refusing():
            self._updater = Updater(
                os.fspath(state), "metadata/", os.fspath(state), "targets/", fetcher, config,
                bootstrap=anchor,
            )  # fmt: skip

    def look(self) -> Offer:
        """Bring the metadata up to date and return what they offer. Raises RefusedError."""
        with _refusing():
            self._updater.refresh()
            target = self._updater.get_targetinfo(NAME)
            if target is None:
                raise RefusedError("no-target", f"{NAME} is not among its targets")
            digest, number = target.hashes["sha256"], (target.custom or {})["db_version"]
            if type(number) is not int or number < 1 or not _SHA256.fullmatch(digest):
                raise RefusedError("malformed", f"no db_version or no SHA-256 for {NAME}")
        if target.length > MAX_BYTES:
            raise RefusedError("too-large", f"{target.length} bytes; at most {MAX_BYTES} are read")
        return Offer(digest, number, target)

    def download(self, offer: Offer) -> bytes:
        """Return a bundle, checked against its signed length and hashes. Raises RefusedError."""
        try:
            with _refusing():
                self._updater.download_target(offer.target, os.fspath(self._bundle))
                return self._bundle.read_bytes()
        finally:
            self._bundle.unlink(missing_ok=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what python-tuf raises into `RefusedError`; no other error leaves the block."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:  # hostile metadata make a library raise anything
        texts = [str(error) or type(error).__name__, str(error.__cause__ or "")]
        code = next((code for kind, code in _CODES if isinstance(error, kind)), "malformed")
        raise RefusedError(code, "; ".join(filter(None, texts))[:500]) from None


def check_root(data: bytes) -> None:
    """Refuse bytes that are not a root signed by its own keys. Raises RefusedError."""
    with _refusing():
        root: Metadata[Root] = Metadata.from_bytes(data)
        if not isinstance(root.signed, Root):
            raise RefusedError("malformed", "it is not root metadata")
        root.signed.verify_delegate(Root.type, root.signed_bytes, root.signatures)
