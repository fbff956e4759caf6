"""What a database decides for saved identities, and how that differs between two databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from gpuedge.capdb.database import Database
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.core.config import config
from gpuedge.core.identity import Identity

LEVELS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "vulkan": ("vulkan",),
    "gles": ("gles31", "gles30", "gles20"),
    "wgpu": ("wgpu",),
    "metal": ("wgpu",),
    "d3d12": ("wgpu",),
}
"""The levels that a device of an API is used through."""

NEEDS: Final[Mapping[str, tuple[int, ...]]] = {"gles31": (3, 1), "gles30": (3,), "gles20": (2,)}
"""The version of OpenGL ES that a level needs."""


class Change(NamedTuple):
    """An identity that two databases decide differently about, on one level.

    Attributes
    ----------
    device, level, name : str
        Id of the identity, the level, and what its driver calls the device.
    before, after : dict
        What each decides, of the fields that differ (see `decision`).
    """

    device: str
    level: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return self._asdict()


def levels(who: Subject) -> tuple[str, ...]:
    """Return the levels through which a device would be used; none of an API of no level."""
    if who.level is not None:
        return (who.level,)
    apis = LEVELS_OF if who.apis is None else sorted(who.apis)
    found = dict.fromkeys(level for api in apis for level in LEVELS_OF.get(api, ()))
    offers = who.versions.get("gl-es", (99,))
    return tuple(level for level in found if offers >= NEEDS.get(level, ()))


def decision(judgement: Judgement, level: str) -> dict[str, Any]:
    """Return what a judgement comes to on a level, without what only explains it.

    Returns
    -------
    dict
        ``use``: ``yes``, ``no``, or ``tests`` where it depends on tests that entries ask for.
        ``true`` and ``unknown``: ids of entries that restrict something or ask for tests, by
        result. ``tests``: those of them that ask for tests. ``restrictions``: what is in force.
    """
    asking = [d.entry for d in judgement.demands]
    acting = judgement.in_force | set(asking)
    found = [f for f in judgement.relevant if f.id in acting]
    use = "yes" if judgement.unprobed().blocks(level) is None else "tests"
    return {
        "use": "no" if judgement.blocks(level) else use,
        "true": [f.id for f in found if f.result == "true"],
        "unknown": [f.id for f in found if f.result == "unknown"],
        "tests": asking,
        "restrictions": judgement.restrictions.to_dict(),
    }


def on_levels(
    database: Database | None,
    record: Mapping[str, Any] | Identity,
    *,
    today: str | None = None,
    ignore: Iterable[str] | None = None,
) -> dict[str, Judgement]:
    """Return the judgement on every level through which a device would be used."""
    who = subject(record)
    return {
        level: lookup(replace(who, level=level), database=database, ignore=ignore, today=today)
        for level in levels(who)
    }


def decisions(
    database: Database, identities: Mapping[str, Mapping[str, Any]], today: str
) -> dict[str, dict[str, Any]]:
    """Return what a database decides for every identity on every level.

    Settings of this user, such as entries to ignore, have no part in it.
    """
    return {
        name: {
            level: decision(judgement, level)
            for level, judgement in on_levels(database, record, today=today, ignore=()).items()
        }
        for name, record in identities.items()
    }


def compare(
    old: Database, new: Database, identities: Mapping[str, Mapping[str, Any]], today: str
) -> list[Change]:
    """Return every identity that two databases decide differently about, in order of the file.

    Who a device is comes from the tables of each database's own folder.
    """
    sides = []
    for database in (old, new):
        with config(db=str(database.folder)):
            sides.append(decisions(database, identities, today))
    before, after = sides
    changes = []
    for name, record in identities.items():
        for level in dict.fromkeys([*before[name], *after[name]]):
            one, other = (side[name].get(level, {}) for side in sides)
            fields = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            if fields:
                parts = ({key: side.get(key) for key in fields} for side in (one, other))
                changes.append(Change(name, level, title(record), *parts))
    return changes


def title(record: Mapping[str, Any]) -> str:
    """Return what a record calls its device."""
    found = [t for key in _NAMES if isinstance(t := record.get(key), str) and t]
    other = (record.get(key) for key in ("soc", "device", "GL_VERSION"))
    return next(iter(found), ", ".join(t for t in other if isinstance(t, str) and t) or "-")


_NAMES: Final = ("GL_RENDERER", "deviceName", "webgl_renderer", "name", "CL_DEVICE_NAME")


def entries_changed(old: Database, new: Database) -> dict[str, list[str]]:
    """Return ids of entries that were added, removed or changed."""
    before, after = ({e.id: e.source for e in database} for database in (old, new))
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in before.keys() & after.keys() if before[n] != after[n]),
    }
