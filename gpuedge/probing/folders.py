"""The private folder of a probe, and what is left of those whose probe was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from gpuedge.probing import leftovers

STALE_S = 3600.0
"""Folders of probes older than this were left by probes that were killed."""

REMOVE_S = 0.03
"""How long a probe waits for its folder to be removed."""

MAX_SWEPT = 64
"""Stale folders removed by one probe: it must begin at once, and the next one goes on."""

PREFIX = "gpuedge-probe-"
OURS = re.compile(PREFIX + r"[a-z0-9_]{8}")
"""What `tempfile.mkdtemp` makes of the prefix."""


def make() -> Path:
    """Return a new private folder, and remove some that were left behind.

    Raises
    ------
    OSError
        There is no place for temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    sweep(tempfile.gettempdir(), folder.stat().st_mtime)
    return folder


def remove(folder: Path, seconds: float = REMOVE_S) -> None:
    """Remove a folder with all that a driver put there, however much: the rest goes on behind."""
    try:
        leftovers.behind(lambda: shutil.rmtree(folder, ignore_errors=True), seconds)
    except RuntimeError:  # no more threads
        shutil.rmtree(folder, ignore_errors=True)


def sweep(temporary: str, now: float | None = None) -> None:
    """Remove what killed probes of this user left behind: folders of ours, never through links.

    `now` is the file system's own time, so that a wrong clock of this process harms no live probe.
    """
    now = time.time() if now is None else now
    try:
        with os.scandir(temporary) as entries:
            stale = [e.path for e in entries if OURS.fullmatch(e.name) and _is_stale(e, now)]
    except OSError:
        return
    for path in stale[:MAX_SWEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _is_stale(entry: os.DirEntry[str], now: float) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
        is_folder = entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return is_folder and is_mine and now - found.st_mtime > STALE_S
