"""Which pipeline caches a driver has shown that it survives, and which it has not.

Drivers crash on their own caches, and at the next start as well. So a blob is given to a driver in
the application's process only if a *proof* beside it names its SHA-256. Disposable processes (a
probe's child, an isolated device's host) may use a blob without one: they leave a marker of the
trial first, and the proof when they are done. A trial whose process is gone puts the blob into
quarantine: the file is renamed, and its SHA-256 is refused.
"""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpuedge.safety import markers, paths
from gpuedge.safety.lock import Lock
from gpuedge.safety.markers import Watch
from gpuedge.safety.store import load_sealed, save_sealed

SCHEMA = "gpuedge.pipeline-proof/1"
TRIALS = "trials"
"""Folder of the markers of first uses, beside the blobs."""

MAX_BAD_FILES = 4
"""Quarantined files kept for whoever looks into the driver's fault."""

MAX_BAD = 16
BAD_FOR_S = 30 * 86400.0
"""How long a SHA-256 is refused. A driver that makes the same bytes again may be tried once more,
in a disposable process; the file that was quarantined never is."""


class Proofs:
    """What is known of the blobs of one pipeline cache file. Nothing here raises.

    Parameters
    ----------
    file : Path
        The pipeline cache; the proof lies beside it.
    header : int
        Bytes of the file before the blob.
    limit : int
        Larger files are not read.
    """

    def __init__(self, file: Path, header: int, limit: int) -> None:
        self._file, self._header, self._limit = file, header, limit
        self._folder = file.parent
        self._trials = str(file.parent / TRIALS)
        self.path = file.with_suffix(".ok")

    def is_proven(self, digest: str) -> bool:
        """Return whether a process used exactly this blob and came to no harm."""
        return bool(self._load()["sha256"] == digest)

    def is_bad(self, digest: str) -> bool:
        """Return whether a process that used this blob did not survive it."""
        when = self._load()["bad"].get(digest)
        return when is not None and abs(time.time() - when) < BAD_FOR_S

    def begin(self, digest: str) -> Watch:
        """Begin a trial: from ``step`` to ``quiet`` the end of this process is the blob's doing."""
        return Watch(self._trials, digest, self._file.name)

    def prove(self, digest: str) -> bool:
        """Note that a trial ended well; False where that cannot be written."""
        with Lock(self._folder):
            known = self._load()
            bad = {d: when for d, when in known["bad"].items() if d != digest}
            return save_sealed(self.path, SCHEMA, {"sha256": digest, "bad": bad})

    def collect(self) -> None:
        """Quarantine blobs whose trial ended a process. The lock is needed: a trial counts once."""
        if not markers.listed(self._trials):
            return
        with Lock(self._folder) as is_held:
            if not is_held:
                return
            markers.sweep_new(self._trials)
            for one in markers.dead(self._trials):
                marker = one.marker
                is_ours = marker is None or marker.name == self._file.name
                if is_ours and marker is not None and marker.step:
                    self._quarantine(marker.key)
                one.close(is_counted=is_ours)

    def _quarantine(self, digest: str) -> None:
        bad = {**self._load()["bad"], digest: time.time()}
        newest = sorted(bad, key=lambda d: bad[d])[-MAX_BAD:]
        save_sealed(self.path, SCHEMA, {"sha256": "", "bad": {d: bad[d] for d in newest}})
        if not self._path_holds(digest):
            return  # another blob took its place meanwhile
        try:
            self._file.replace(self._file.with_suffix(f".{digest[:8]}.bad"))
            old = sorted(self._folder.glob("*.bad"), key=lambda p: p.stat().st_mtime)
            for path in old[:-MAX_BAD_FILES]:
                path.unlink(missing_ok=True)
        except OSError:  # the SHA-256 is refused all the same
            return

    def _path_holds(self, digest: str) -> bool:
        file = paths.read_regular(self._file, self._limit)
        return file is not None and sha256(file[self._header :]).hexdigest() == digest

    def _load(self) -> dict[str, Any]:
        body = load_sealed(self.path, SCHEMA) or {}
        digest, bad = body.get("sha256"), body.get("bad")
        entries = bad.items() if isinstance(bad, dict) else ()
        return {
            "sha256": digest if isinstance(digest, str) else "",
            "bad": {d: w for d, w in entries if type(w) in (int, float)},
        }
