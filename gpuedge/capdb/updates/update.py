"""Signed updates of the capability database, from any folder or web server.

>>> from gpuedge.capdb.updates.update import update
>>> update("https://example.org/gpuedge/", root=Path("root.json"))     # doctest: +SKIP
UpdateOutcome(status='updated', code='updated', ...)

Whatever a mirror does, the database in use is afterwards either the one from before or a newer one
that was signed, is whole, and loads here. The packaged database is the floor.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuedge.capdb.check import check_folder, check_schemas, import_extra
from gpuedge.capdb.place import folder as folder_in_use
from gpuedge.capdb.updates import bundle, installed
from gpuedge.capdb.updates.bundle import MAX_ROOT
from gpuedge.capdb.updates.installed import RefusedError
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError, UpdateError
from gpuedge.safety import databases, paths
from gpuedge.safety.databases import Version, current
from gpuedge.safety.deadline import call_within
from gpuedge.safety.lock import Lock

if TYPE_CHECKING:
    from gpuedge.capdb.updates.client import Offer

ANCHOR: Final = "anchor.json"
"""The first root of a repository's metadata folder: what its trust began with."""

MAX_HELD_BACK: Final = 16

SENTENCES: dict[str, str] = {
    "updated": "the database was updated",
    "current": "the database in use is the newest one offered",
    "rolled-back": "the database was taken back to an earlier version",
    "pinned": "the setting 'db' names the database to use, so updates are left alone",
    "nothing-installed": "no update is installed; the packaged database is in use",
    "busy": "another process is updating, or the cache folder has no locks",
    "not-writable": "the cache folder cannot be written to",
    "unreachable": "the mirror cannot be read",
    "slow": "the mirror did not answer before the deadline",
    "too-large": "the mirror sends more than it may",
    "signature": "the metadata do not have the signatures they need",
    "expired": "the metadata have expired; the mirror may be withholding newer ones",
    "rollback": "the mirror offers something older than what it offered before",
    "mismatch": "a file is not the one that was signed",
    "malformed": "the metadata cannot be understood",
    "no-target": "the mirror offers no capability database",
    "bad-database": "the offered database cannot be used",
    "older": "the offered database is not newer than the one in use",
    "conflict": "the offered database has the version number of the one in use and differs from it",
    "held-back": "the offered database is the one that was rolled back from",
}
"""Codes of outcomes. Codes are stable; sentences may improve."""


@dataclass(frozen=True, slots=True)
class UpdateOutcome:
    """What became of an update.

    Attributes
    ----------
    status : str
        ``updated``, ``current`` (nothing newer is offered) or ``kept`` (refused, or not possible;
        the database in use is the one from before).
    code : str
        Why, as a stable word: a key of `SENTENCES`.
    detail : str
        The specifics of this case.
    db_version : int
        Version of the database in use now.
    before : int
        Version of the database in use before.
    offered : int or None
        Version that was offered, where the signatures on it were good.
    """

    status: str
    code: str
    detail: str
    db_version: int
    before: int
    offered: int | None = None

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        text = SENTENCES[self.code]
        if self.status == "kept":
            text = f"version {self.db_version} is kept: {text}"
        return f"{text} ({self.detail})" if self.detail else text


def update(
    source: str | Path, *, root: Path | None = None, deadline_s: float = 30.0
) -> UpdateOutcome:
    """Ask a mirror for a newer database, and use it from now on if it is good.

    Parameters
    ----------
    source : str or Path
        A folder or an ``http(s)`` address that holds ``metadata/`` and ``targets/``.
    root : Path, optional
        The root of trust, a TUF ``root.json`` that came by another way than this mirror. Where
        none is given: the setting ``db_root``, else the packaged one, else the one that the last
        update was checked with.
    deadline_s : float
        Seconds within which everything must have been read, above zero.

    Returns
    -------
    UpdateOutcome
        Whatever a mirror, the disk or another process does is told here, not raised.

    Raises
    ------
    UpdateError (GE-601)
        No root of trust is known, it cannot be used, the source is neither kind of mirror, the
        deadline is no time, or the extra ``updates`` is not installed.
    """
    for package in ("tuf.ngclient", "securesystemslib.signer", "jsonschema"):
        import_extra(package)
    from gpuedge.capdb.updates.client import Fetcher, UpdateClient  # loads tuf

    if not 0 < deadline_s < math.inf:
        raise UpdateError(
            f"The deadline {deadline_s!r} cannot be kept.", known="it is in seconds, above zero"
        )
    fetcher, anchor = Fetcher(source, deadline_s), _anchor(root)

    def work(offered: list[int]) -> str:
        client = UpdateClient(fetcher, _state(anchor), anchor)
        offer = call_within(fetcher.left(), client.look)
        offered.append(offer.db_version)
        is_newer = _is_newer(offer)
        if is_newer:
            _install(call_within(fetcher.left(), lambda: client.download(offer)), offer)
        with suppress(RefusedError):  # then the next update must be told its root again
            installed.remember(trust=_trust(anchor))
        installed.sweep()
        return "updated" if is_newer else "current"

    return _alone(work)


def rollback() -> UpdateOutcome:
    """Use the version from before the last update, or the packaged one, and hold the last back.

    What was rolled back from is not installed again; the next higher version is.
    """

    def work(_: list[int]) -> str:
        bad, good = current()
        if bad is None:
            raise RefusedError("nothing-installed")
        held = [*installed.memory()["held_back"], bad.bundle]
        # first: nobody shall install it in between
        installed.remember(held_back=held[-MAX_HELD_BACK:])
        installed.make_current(good if good is not None and _loads(good) else None)
        return "rolled-back"

    return _alone(work)


def _alone(work: Callable[[list[int]], str]) -> UpdateOutcome:
    """Do something with other updates kept out, and return what became of it.

    `work` is given a list for the version that is offered, and returns a code.
    """
    before, offered, detail = version_in_use(), list[int](), ""
    try:
        if config.get("db").value:
            raise RefusedError("pinned", f"from {config.get('db').source}")
        top = installed.cache() / "tuf"
        top.mkdir(parents=True, exist_ok=True)
        with Lock(top) as is_held:
            if not is_held:
                tempfile.TemporaryFile(dir=top).close()  # raises where nothing can be written
                raise RefusedError("busy")
            code = work(offered)
        status = "current" if code == "current" else "updated"
    except RefusedError as error:
        status, code, detail = "kept", error.code, error.detail
    except TimeoutError:
        status, code, detail = "kept", "slow", "the deadline has passed"
    except OSError as error:
        status, code, detail = "kept", "not-writable", str(error)
    return UpdateOutcome(status, code, detail, version_in_use(), before, next(iter(offered), None))


def version_in_use() -> int:
    """Return the version of the database in use; 0 where it has none or cannot be read."""
    try:
        return databases.version(folder_in_use())
    except (GpuEdgeError, OSError):
        return 0


def _anchor(root: Path | None) -> bytes:
    """Return the first root: given, set, packaged, or the one of the last update."""
    from gpuedge.capdb.updates.client import check_root  # loads tuf

    place: str | Path = root or config.get("db_root").value
    trust = None
    if not place:
        place = paths.data_dir("capability_db") / "root.json"
        if paths.stamp(place) is None:
            trust = installed.memory()["trust"]
            if trust is None:
                raise UpdateError(
                    "No root of trust is known, so no update can be checked.",
                    known="gpuedge comes with none: whoever publishes updates gives it to you",
                    hint="root=Path('root.json'), or GPUEDGE_DB_ROOT=root.json",
                )
            place = installed.cache() / "tuf" / trust / ANCHOR
    try:
        data = paths.read_regular(Path(place).expanduser(), MAX_ROOT)
        if data is None:
            raise ValueError(f"it is not a file of at most {MAX_ROOT} bytes")
        if trust not in (None, _trust(data)):
            raise ValueError("it is not the one that the last update was checked with")
        check_root(data)
    except RefusedError as error:
        why = f"{SENTENCES[error.code]}: {error.detail}"
    except (RuntimeError, ValueError) as error:  # RuntimeError: the home folder of nobody
        why = str(error)
    else:
        return data
    raise UpdateError("The root of trust cannot be used.", known=f"{place}: {why}")


def _trust(anchor: bytes) -> str:
    """Return the name that a first root goes by."""
    return bundle.digest(anchor)[:32]


def _state(anchor: bytes) -> Path:
    """Return the metadata folder of a root of trust, and leave the root there for next time."""
    folder = installed.cache() / "tuf" / _trust(anchor)
    place = folder / ANCHOR
    if paths.read_regular(place, MAX_ROOT) != anchor and not paths.write_atomic(place, anchor):
        raise RefusedError("not-writable", str(folder))
    return folder


def _is_newer(offer: Offer) -> bool:
    """Say whether an offer is to be installed; refuse one that is worse than what is here."""
    now, _ = current()
    if offer.bundle in installed.memory()["held_back"]:
        raise RefusedError("held-back", f"version {offer.db_version}")
    if now is not None and not _loads(now):
        now = None
    packaged = databases.version(paths.data_folder("capability_db"))
    newest = max(packaged, now.db_version if now else 0)
    if offer.db_version < newest:
        raise RefusedError("older", f"version {offer.db_version} is offered, {newest} is here")
    if now is not None and now.db_version == offer.db_version and now.bundle != offer.bundle:
        raise RefusedError("conflict", f"version {newest}")
    return offer.db_version > newest


def _loads(version: Version) -> bool:
    try:
        return check_folder(version.path).digest == version.digest
    except (GpuEdgeError, OSError):
        return False


def _install(data: bytes, offer: Offer) -> None:
    """Unpack a bundle beside the installed versions, check it, and put it into use."""
    # Not by tempfile, whose folders are of one user alone: others may share the cache folder.
    unpacked = installed.versions_folder() / f"new-{os.getpid()}-{os.urandom(4).hex()}"
    unpacked.mkdir(parents=True)
    try:
        version = _unpacked(data, offer, unpacked)
        if version.path.exists():  # left by a killed update, or rolled back from: this one is whole
            shutil.rmtree(version.path)
        unpacked.rename(version.path)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    good = (v for v in current() if v is not None and v != version and _loads(v))
    installed.make_current(version, next(good, None))


def _unpacked(data: bytes, offer: Offer, folder: Path) -> Version:
    try:
        bundle.unpack(data, folder)
        database = check_folder(folder)
        check_schemas(folder)
    except ValueError as error:
        raise RefusedError("bad-database", str(error)) from None
    except GpuEdgeError as error:
        why = (error.known or error.what).replace(f"{folder}{os.sep}", "")
        raise RefusedError("bad-database", why) from None
    number, signed = database.version, offer.db_version
    if number != signed:
        raise RefusedError("bad-database", f"it is version {number}, signed as {signed}")
    return Version(f"{number}-{database.digest[:12]}", number, database.digest, offer.bundle)
