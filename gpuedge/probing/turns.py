"""Turns to compute: one child more than there are processors has one, and a waiting one gives way.

Looks at a child as often as `process.supervise` asks, by its result file and what it does.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from gpuedge.probing import process
from gpuedge.probing.activity import Activity

STALLED_S = 0.75
"""A child that gave no sign of life for so long is waiting, not computing: another may start."""


class Turn:
    """A turn to compute, given back when its child ends, or earlier when it only waits.

    Attributes
    ----------
    silent_s : float
        For how long the result file did not grow.
    cpu_s : float or None
        Processor time used in all; None where the system does not say.
    activity : Activity
        What it did meanwhile.
    """

    def __init__(self, turns: threading.Semaphore, result: Path, patience_s: float | None) -> None:
        self._turns = turns
        self.result = result
        self._patience_s = patience_s
        self._size = 0
        self._grew = time.monotonic()
        self._holds = True
        self.silent_s = 0.0
        self.cpu_s: float | None = None
        self.activity = Activity()

    def is_stalled(self, pid: int) -> bool:
        """Look at the result file; True where the child is to make way for others."""
        cpu, now = process.cpu_seconds(pid), time.monotonic()
        try:
            size = self.result.stat().st_size
        except OSError:
            size = 0
        if size != self._size:
            self._size, self._grew = size, now
            self.activity.restart(pid, now, cpu)
        self.activity.look(pid, now, cpu)
        self.silent_s = now - self._grew
        self.cpu_s = cpu
        waits = self.activity.is_idle
        if waits and self.silent_s > STALLED_S:
            self.give_back()
        return waits and self._patience_s is not None and self.silent_s > self._patience_s

    def give_back(self) -> None:
        """Let another child begin."""
        if self._holds:
            self._holds = False
            self._turns.release()
