"""What a database decides for saved identities, and how that differs between two databases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from capdb.decisions import decision, on_levels
from gpuedge.capdb.database import Database
from gpuedge.capdb.identities import title
from gpuedge.core.config import config


@dataclass(frozen=True, slots=True)
class Change:
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
        return asdict(self)


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


def entries_changed(old: Database, new: Database) -> dict[str, list[str]]:
    """Return ids of entries that were added, removed or changed."""
    before, after = ({e.id: e.source for e in database} for database in (old, new))
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "changed": sorted(n for n in before.keys() & after.keys() if before[n] != after[n]),
    }
