"""The publisher's side of updates: a repository that any TUF client can read, signed step by step.

    init(repository, keys)                     once: keys, and the root of trust that clients need
    publish(database, repository, keys)        a new version of the database
    renew(repository, keys)                    regularly: a new timestamp, before the last expires
    rotate(repository, keys, roles)            new keys, when old ones are lost or were seen

A repository is a folder of plain files; serving it is up to any web server. Files that clients
already know are never changed, and the timestamp, which leads to all others, is replaced last: a
client sees the old state or the new one.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tuf.api.metadata import Metadata, Root

from capdb.keys import check_apart, make_key, read_keys
from capdb.repository import (
    LONG_DAYS,
    ONLINE,
    ROLES,
    Published,
    Repository,
    later,
    sign,
    write,
)
from gpuedge.capdb.check import check_folder, check_schemas
from gpuedge.capdb.files import contents
from gpuedge.capdb.source import FILE as ENVELOPE
from gpuedge.capdb.source import envelope
from gpuedge.capdb.updates import bundle
from gpuedge.core.errors import UpdateError
from gpuedge.safety.lock import Lock

EXPIRES_DAYS = 30
"""Life of a timestamp: for so long a mirror can withhold news without clients noticing it."""


def init(
    repository: Path,
    keys: Path,
    *,
    threshold: int = 1,
    root_keys: int | None = None,
    expires_days: int = LONG_DAYS,
    now: datetime.datetime | None = None,
) -> Path:
    """Make keys and an empty repository; return the root of trust, to be given to clients.

    Parameters
    ----------
    repository : Path
        Folder that will be published.
    keys : Path
        Folder for the private keys, apart from it.
    threshold : int
        Signatures that a change of the root needs.
    root_keys : int, optional
        Keys of the root; as many as the threshold where nothing is said.
    expires_days : int
        Life of the root.
    now : datetime, optional
        Present time; the clock's where none is given.

    Raises
    ------
    UpdateError (GE-601)
        There is a repository or a key already, or the folders are not apart.
    """
    check_apart(keys, repository)
    count = threshold if root_keys is None else root_keys
    if not 1 <= threshold <= count <= 32:
        raise UpdateError("The threshold cannot be met.", known=f"{threshold} of {count} keys")
    if (repository / "metadata").exists():
        raise UpdateError("There is a repository already.", known=str(repository / "metadata"))
    root = Root(expires=later(now, expires_days), consistent_snapshot=True)
    names = {"root": [f"root-{i + 1}" for i in range(count)]}
    for role in ROLES:
        for name in names.get(role, [role]):
            root.add_key(make_key(keys, name), role)
    root.roles["root"].threshold = threshold
    place = repository / "metadata" / "1.root.json"
    write(place, sign(Metadata(root), "root", [root], read_keys(keys)))
    return place


def publish(
    database: Path,
    repository: Path,
    keys: Path,
    *,
    expires_days: int = EXPIRES_DAYS,
    check: Callable[[Path], Sequence[str]] | None = None,
    now: datetime.datetime | None = None,
) -> Published:
    """Sign a database folder and offer it to clients.

    Parameters
    ----------
    database : Path
        A whole database; it is checked as clients will check it.
    repository, keys : Path
        As given to `init`; needed are the keys of targets, snapshot and timestamp.
    expires_days : int
        Life of the timestamp.
    check : callable, optional
        Given the folder, returns what else is wrong with it: the lint.
    now : datetime, optional
        Present time; the clock's where none is given.

    Raises
    ------
    UpdateError (GE-601)
        The version is not higher than the published one, `check` found something, a key is missing.
    DatabaseError (GE-600)
        The database cannot be used.
    """
    check_apart(keys, repository)
    check_folder(database)
    check_schemas(database)
    problems = list(check(database)) if check else []
    if problems:
        raise UpdateError("The database is not fit to be published.", known="; ".join(problems[:5]))
    try:
        data = pack(database)
    except ValueError as error:
        raise UpdateError("The database cannot be bundled.", known=str(error)) from None
    number = int(json.loads(json.loads(data)["files"][ENVELOPE])["db_version"])
    with _held(keys):
        state = Repository(repository)
        if number <= state.db_version:
            raise UpdateError(
                "The database's version is not higher than the published one.",
                known=f"db_version is {number}, published is {state.db_version}",
                hint="raise db_version in database.json, then: python tools/capdb validate --seal",
            )
        state.offer(data, number)
        return state.sign(read_keys(keys), ONLINE, later(now, expires_days))


def renew(
    repository: Path,
    keys: Path,
    *,
    expires_days: int = EXPIRES_DAYS,
    now: datetime.datetime | None = None,
) -> Published:
    """Sign a new timestamp; and new targets and snapshot metadata where they expire before it.

    Raises
    ------
    UpdateError (GE-601)
        Nothing was published yet, or a key that is needed is missing.
    """
    check_apart(keys, repository)
    with _held(keys):
        state = Repository(repository)
        if not state.db_version:
            raise UpdateError("Nothing was published yet.", known=str(repository))
        end = later(now, expires_days)
        return state.sign(read_keys(keys), state.needs(end), end)


def rotate(
    repository: Path,
    keys: Path,
    roles: Iterable[str],
    *,
    expires_days: int = LONG_DAYS,
    now: datetime.datetime | None = None,
) -> Path:
    """Replace the keys of some roles by new ones, and sign a new root with old and new root keys.

    What was signed with keys that are replaced is signed anew, so the keys of targets, snapshot
    and timestamp are needed, too. The old private keys stay where they are; delete them.

    Returns
    -------
    Path
        The new root. Clients find it by themselves; new installations may be given it.

    Raises
    ------
    UpdateError (GE-601)
        A role is unknown, or too few of the old root keys are here.
    """
    changed = set(roles)
    if not changed <= set(ROLES):
        raise UpdateError("There is no such role.", known=f"roles: {', '.join(ROLES)}")
    check_apart(keys, repository)
    with _held(keys):
        state = Repository(repository)
        old = state.root.signed
        new = copy.deepcopy(old)
        new.version, new.expires = old.version + 1, later(now, expires_days)
        for role in sorted(changed):
            for i, keyid in enumerate(list(new.roles[role].keyids)):
                new.revoke_key(keyid, role)
                new.add_key(make_key(keys, f"{role}-{i + 1}-v{new.version}"), role)
        state.root.signed = new
        signers = read_keys(keys)
        place = repository / "metadata" / f"{new.version}.root.json"
        write(place, sign(state.root, "root", [old, new], signers))
        if state.db_version:
            state.sign(signers, ONLINE, later(now, EXPIRES_DAYS))
    return place


def pack(folder: Path) -> bytes:
    """Return the bundle of a database folder: its envelope and the files that are named there.

    The same folder always gives the same bytes.

    Raises
    ------
    ValueError
        A file is not UTF-8 text, has a name that clients would refuse, or all are too large.
    DatabaseError (GE-600)
        A file is missing or too large.
    """
    files = {ENVELOPE: contents(folder / ENVELOPE).decode()}
    for name in sorted(envelope(folder).files or {}):
        files[name] = contents(folder / name).decode()
    document = {"files": files, "schema": bundle.SCHEMA}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    data = text.encode()
    if len(data) > bundle.MAX_BYTES:
        raise ValueError(f"it is larger than {bundle.MAX_BYTES} bytes, which clients do not read")
    return data


@contextmanager
def _held(keys: Path) -> Iterator[None]:
    """Hold a publisher's lock: two publications at once would give one version two contents."""
    with Lock(keys) as is_held:
        if not is_held:
            raise UpdateError("Another process is publishing, or the keys' folder has no locks.")
        yield
