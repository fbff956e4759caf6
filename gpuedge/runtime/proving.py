"""Proving caches in the background: a driver that left its cache aside gets it tried in a child.

A driver may crash on its own pipeline cache, so one that no child has used yet is not given to it
in this process (`DeviceImpl.unproven`). Probing the driver in a child uses the cache there; if that
goes well the next start has it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from gpuedge.runtime.recovery import try_in_child

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeRow

WAIT_S = 2.0
"""How long proving waits after a device was opened: the first inferences come first."""

DEADLINE_S = 10.0

log = logging.getLogger("gpuedge")


class Prover:
    """Proves the cache of each device at most once, one after another, in a daemon thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[tuple[str, str, int | None]] = set()
        self._waiting: list[ProbeRow] = []
        self._is_running = False
        self._stop = threading.Event()

    def prove(self, row: ProbeRow) -> None:
        """Ask for the cache of a device to be proven; returns at once."""
        key = (row.backend, row.key, row.index)
        with self._lock:
            if key in self._asked or self._stop.is_set():
                return
            self._asked.add(key)
            self._waiting.append(row)
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._work, name="gpuedge-prove", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._is_running = False

    def stop(self) -> None:
        """Prove nothing any more; a child at work is ended. Does not wait."""
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(WAIT_S):
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                row = self._waiting.pop(0)
            why = try_in_child(row, DEADLINE_S, self._stop)
            log.info("%s: cache tried in a child: %s", row.device, why or "it is good")
