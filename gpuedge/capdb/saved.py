"""Saved identities of devices, and what the database decides for one on each level."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpuedge.capdb.database import Database
from gpuedge.capdb.files import bad, contents
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.core.identity import Identity
from gpuedge.safety import paths

IDENTITIES: Final = "fixtures/identities.json"

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

_NAMES: Final = ("GL_RENDERER", "deviceName", "webgl_renderer", "name", "CL_DEVICE_NAME")


def identities(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the saved identities that entries are tested on, by id.

    An installed update carries none; those of the packaged database stand in. Raises DatabaseError
    where the file cannot be read, or an identity has no id of its own.
    """
    own = folder / IDENTITIES
    path = own if own.exists() else paths.data_dir("capability_db") / IDENTITIES
    try:
        records = json.loads(contents(path))
        found = {str(record["id"]): record for record in records}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise bad(path, f"it is not a list of identities: {error!r}") from None
    if len(found) < len(records):
        raise bad(path, "an id is there twice")
    return found


def title(record: Mapping[str, Any]) -> str:
    """Return what a record calls its device."""
    found = [t for key in _NAMES if isinstance(t := record.get(key), str) and t]
    other = (record.get(key) for key in ("soc", "device", "GL_VERSION"))
    return next(iter(found), ", ".join(t for t in other if isinstance(t, str) and t) or "-")


def levels(who: Subject) -> tuple[str, ...]:
    """Return the levels through which a device would be used; none of an API of no level."""
    if who.level is not None:
        return (who.level,)
    apis = LEVELS_OF if who.apis is None else sorted(who.apis)
    found = dict.fromkeys(level for api in apis for level in LEVELS_OF.get(api, ()))
    offers = who.versions.get("gl-es", (99,))
    return tuple(level for level in found if offers >= NEEDS.get(level, ()))


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


def decision(judgement: Judgement, level: str) -> dict[str, Any]:
    """Return what a judgement comes to on a level, without what only explains it.

    ``use`` is ``yes``, ``no``, or ``tests`` where it depends on tests that entries ask for;
    ``true`` and ``unknown`` are ids of entries that restrict something or ask for tests, by
    result; ``tests`` those of them that ask for tests; ``restrictions`` what is in force.
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
