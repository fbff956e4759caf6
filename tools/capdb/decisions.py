"""What a database decides for a saved identity, level by level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from gpuedge.capdb.database import Database
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.judgement import Judgement, lookup
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
    """Return the judgement on every level through which a device would be used.

    Levels of another API follow where entries that know the device by this one's strings forbid
    them: a list that names drivers by ``GL_VERSION`` is about Vulkan.
    """
    who = subject(record)
    asked = {"database": database, "ignore": ignore, "today": today}
    others = lookup(who, **asked).restrictions.levels if who.level is None else ()
    return {
        level: lookup(replace(who, level=level), **asked)
        for level in dict.fromkeys([*levels(who), *sorted(others)])
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
