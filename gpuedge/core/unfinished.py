"""Finding the markers of processes that are gone, and what they died of.

To be used under the lock of the caches (`gpuedge.core.lock`): what is found must be counted once.
"""

from __future__ import annotations

import os

from gpuedge.core import lock, markers, paths

STALE_S = 60.0
"""A marker that was not finished by now never will be."""

TRIALS = os.path.join("pipelines", "trials")
"""Where backends keep the markers of first uses, in the cache folder."""

MAX_LISTED = 1024
MAX_NEW = 64


class Dead:
    """The marker of a process that is gone, held so that no other process counts it as well."""

    def __init__(self, path: str, fd: int, marker: markers.Marker | None) -> None:
        self.path, self._fd = path, fd
        self.marker = marker

    def close(self, *, remove: bool) -> None:
        """Let it go; `remove` once it was counted."""
        if remove and os.name != "nt":
            markers.remove(self.path)
        os.close(self._fd)
        if remove and os.name == "nt":
            markers.remove(self.path)


def listed(folder: str) -> list[str]:
    """Return the names of the markers in a folder, at most `MAX_LISTED` of them."""
    try:
        names = [n for n in os.listdir(folder) if n.endswith(markers.SUFFIX)]
    except OSError:
        return []
    return sorted(names)[:MAX_LISTED]


def dead(folder: str) -> list[Dead]:
    """Return the markers whose process is gone. What is damaged or of another kind has none."""
    own = {watch.path for watch in tuple(markers.watches)}
    found = []
    for name in listed(folder):
        path = os.path.join(folder, name)
        one = None if path in own else _dead(path, name.removesuffix(markers.SUFFIX))
        if one is not None:
            found.append(one)
    return found


def _dead(path: str, unique: str) -> Dead | None:
    try:
        fd = os.open(path, markers.OPEN)
    except OSError:
        return None
    try:
        if lock.take(fd) and os.path.samestat(os.fstat(fd), os.lstat(path)):
            os.lseek(fd, 0, os.SEEK_SET)
            data = os.read(fd, markers.SIZE + 1)
            return Dead(path, fd, markers.unpacked(data, unique, os.fstat(fd).st_mtime))
    except OSError:
        pass
    os.close(fd)
    return None


def has_trials() -> bool:
    """Say whether a process is using a cache for the first time, or died of it."""
    return bool(listed(os.path.join(paths.cache_folder(), TRIALS)))


def sweep_new(folder: str) -> None:
    """Remove markers that were never finished, because their writer was killed."""
    try:
        with os.scandir(folder) as entries:
            new = [e for e in entries if e.name.startswith(markers.NEW)][:MAX_LISTED]
            now = os.stat(folder).st_mtime
            stale = [
                e.path for e in new if abs(now - e.stat().st_mtime) > STALE_S or len(new) > MAX_NEW
            ]
    except OSError:
        return
    for path in stale:
        markers.remove(path)
