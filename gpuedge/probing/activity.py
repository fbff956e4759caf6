"""What a silent process does meanwhile: it computes, waits for a processor, or sleeps.

Only the last of these is hanging. Processor time in all tells little: what a process computed
before it fell silent, or did while its driver was being unloaded, hides that it sleeps now. So it
is looked at over the last `WINDOW_S` only. Linux alone says all this; elsewhere it is None.
"""

from __future__ import annotations

import os
from collections import deque

from gpuedge.probing import process
from gpuedge.probing.judge import HUNG_S, is_idle

WINDOW_S = HUNG_S
"""How far back it is looked."""

EVERY_S = 0.1
"""Between two looks: reading it costs some microseconds per thread of the process."""

MAX_TASKS = 64
"""Threads of a process that are looked at."""


class Activity:
    """Samples of one process since it last gave a sign of life.

    Attributes
    ----------
    window_s : float
        The seconds that `busy_s` and `waited_s` are about: the last ones, `WINDOW_S` if there
        were so many.
    busy_s : float or None
        Processor time used in these.
    waited_s : float or None
        How long of these some thread of it was ready and got no processor.
    """

    def __init__(self) -> None:
        self.window_s = 0.0
        self.busy_s: float | None = None
        self.waited_s: float | None = None
        self._samples: deque[tuple[float, float, float]] = deque()
        self._delay: float | None = None

    @property
    def is_idle(self) -> bool:
        """True if it only slept; also where the system does not say."""
        return is_idle(self.window_s, self.busy_s, self.waited_s)

    def restart(self, pid: int, now: float, cpu: float | None) -> None:
        """It gave a sign of life: look at what comes after."""
        self._samples.clear()
        self.window_s, self.busy_s, self.waited_s = 0.0, None, None
        self._delay, _ = waiting(pid)
        self.look(pid, now, cpu)

    def look(self, pid: int, now: float, cpu: float | None) -> None:
        """Take a sample where it is time for one; `cpu` is the processor time used so far."""
        if cpu is None or (self._samples and now - self._samples[-1][0] < EVERY_S):
            return
        waited = 0.0
        if self._samples:
            then, used, total = self._samples[-1]
            waited = total + self._waited(pid, now - then, cpu - used)
        self._samples.append((now, cpu, waited))
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        begin = self._samples[0]
        self.window_s, self.busy_s = now - begin[0], cpu - begin[1]
        self.waited_s = None if self._delay is None else waited - begin[2]

    def _waited(self, pid: int, seconds: float, busy: float) -> float:
        """Return how much of the last `seconds` it waited for a processor."""
        delay, is_ready = waiting(pid)
        if delay is None:
            return 0.0
        grown, self._delay = delay - (self._delay or 0.0), delay
        # The system counts a wait when it is over; until then the thread is only said to be ready.
        return min(seconds, max(grown, seconds - busy if is_ready else 0.0, 0.0))


def waiting(pid: int) -> tuple[float | None, bool]:
    """Return how long threads of a process waited for a processor so far, and if one is ready now.

    None where the system does not say.
    """
    total, is_ready, known = 0.0, False, False
    try:
        tasks = os.listdir(f"/proc/{pid}/task")[:MAX_TASKS]  # noqa: PTH208
    except OSError:
        return None, False
    for task in tasks:
        place = f"/proc/{pid}/task/{task}"
        try:
            with open(f"{place}/schedstat", "rb") as file:
                total += int(file.read(256).split()[1]) * 1e-9
            is_ready |= process.is_ready(place)
        except (OSError, ValueError, IndexError):  # it ended, or is not told
            continue
        known = True
    return (total if known else None), is_ready
