"""Comparing a GPU with what serves now, on real requests: what runs next and when to stop.

A trial says which side to run and is told how long that took; it neither runs nor looks at a clock,
so the product and a simulator drive the same code. The GPU has run the model before: what is cold
in a driver is over. Runs of the two sides alternate in blocks, and begin and end near each other,
so that drift hits both alike; the first run after a switch finds the caches of the other side and
is not counted, unless it is so long that this says little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from gpuedge.decide.belief import MICRO, Belief, losses, seen, updated
from gpuedge.decide.options import DEFAULT, Noise, Options

Alternative = Literal["base", "other"]
"""``base`` is what serves now, the CPU or a GPU; ``other`` the GPU on trial."""


class Trial:
    """One window of measurements of a GPU against what serves now.

    Parameters
    ----------
    belief : Belief
        What was believed of ln(other / base) before.
    break_even : float
        The ratio of latencies below which the other one is worth it.
    noise : Noise
    options : Options
    ahead : int
        Requests that are expected to follow.
    beside : sequence of int
        Runs of what serves now, just before.

    Attributes
    ----------
    belief : Belief
        What is believed now.
    stop : str
        Why it ended: ``settled``, ``enough``, ``hopeless`` or ``runs``; empty until then.
    runs : int
        Runs so far, dropped ones included.
    """

    def __init__(
        self,
        belief: Belief,
        break_even: float,
        noise: Noise = DEFAULT.trial,
        options: Options = DEFAULT,
        *,
        ahead: int = 1000,
        beside: Sequence[int] = (),
    ) -> None:
        self.before = self.belief = belief
        self.stop = ""
        self.runs = 0
        self._break_even = break_even
        self._noise = noise
        self._options = options
        self._ahead = max(ahead, 1)
        self._kept: dict[Alternative, list[int]] = {"base": list(beside), "other": []}
        self._first_ns = beside[-1] if beside else 0
        self._latest: Alternative | None = "base" if beside else None
        self._order = self._serpentine()
        self._is_pair_end = False
        self.next: Alternative = next(self._order)

    def add(self, ns: int) -> None:
        """Take how long the run of `next` took.

        Raises
        ------
        ValueError
            The trial is over, or it is not a time.
        """
        if self.stop or type(ns) is not int or ns < 0:
            raise ValueError(f"a trial cannot take {ns!r} ns{' after its end' * bool(self.stop)}")
        alternative, self.runs = self.next, self.runs + 1
        self._first_ns = self._first_ns or ns
        if self._latest == alternative or ns > self._options.switch_ns:
            self._kept[alternative].append(ns)
        self._latest = alternative
        is_pair_end = self._is_pair_end
        self.belief = self.concluded()
        if self._is_hopeless():
            self.stop = "hopeless"
        elif self.runs >= self._options.max_runs:
            self.stop = "runs"
        elif is_pair_end:
            self._look()
        if not self.stop:
            self.next = next(self._order)

    def concluded(self) -> Belief:
        """Return what would be believed if it ended now."""
        other, base = self._kept["other"], self._kept["base"]
        if not other or not base:
            return self.before
        return updated(self.before, *seen(other, base, self._noise))

    def kept(self, alternative: Alternative) -> list[int]:
        """Return the runs that count, in order, those before the trial too."""
        return list(self._kept[alternative])

    def _serpentine(self) -> Iterator[Alternative]:
        """Yield sides forever: a few runs on the GPU, then blocks, or single runs if slow."""
        o, size = self._options, self._options.rough
        if not self._kept["base"]:
            yield "base"
        turn: tuple[Alternative, ...] = ("other", "base", "base", "other")
        while True:
            for alternative in turn:
                for i in range(size):
                    self._is_pair_end = i == size - 1
                    yield alternative
                size = o.block if self._first_ns <= o.fast_ns else 1

    def _is_hopeless(self) -> bool:
        """Say whether even the fastest run on the GPU is many times as long."""
        other, base = self._kept["other"], self._kept["base"]
        return bool(other and base) and min(other) > self._options.hopeless * max(base[-8:])

    def _look(self) -> None:
        """End where more runs are not worth their time."""
        other, base, o = self._kept["other"], self._kept["base"], self._options
        if not other or not base:
            return
        ratio = self._noise.window / self._noise.run
        block = o.block * math.exp(self.belief.theta)
        if min(losses(self.belief, self._break_even, o.lasting)) * self._ahead < block * MICRO:
            self.stop = "settled"
        elif 1 / len(other) + 1 / len(base) < o.enough * ratio * ratio / 1.57:
            self.stop = "enough"


class Burst:
    """A look at the side that is not in use: a few runs, between runs of the one that is.

    Runs before and after are those nearest in time, so that drift cancels as in a trial.

    Attributes
    ----------
    side : str
        What is looked at.
    beside : list of int
        Runs of the side in use.
    is_over : bool
    """

    def __init__(self, side: str, before: Sequence[int], options: Options = DEFAULT) -> None:
        self.side, self.is_over = side, False
        self._runs: list[int] = []
        self.beside = list(before)[-options.burst_beside :]
        self._after = -options.burst_switch
        self._options = options

    @property
    def is_looking(self) -> bool:
        """Whether the next request goes to the other side."""
        return len(self._runs) < self._options.burst_runs and self._after < 0

    def add(self, ns: int) -> None:
        """Take how long a request took."""
        o = self._options
        if self.is_looking:
            self._runs.append(ns)
            warm = self._runs[1:]
            if len(warm) > 1 and min(warm) > o.hopeless * max(self.beside, default=ns):
                self._after = 0
            return
        if self._after >= 0:
            self.beside.append(ns)
        self._after += 1
        self.is_over = self._after >= o.burst_beside

    @property
    def runs(self) -> list[int]:
        """Runs of the other side that count."""
        return self._runs[min(self._options.burst_dropped, len(self._runs) - 1) :]
