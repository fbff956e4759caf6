"""Watching a choice in service: is the other alternative faster by now, and is that sure.

The alternative in use shows its latency with every request. The other one is tried in short bursts,
never in single runs, which would only ever meet it cold. Each burst is one more observation of
theta (`gpuedge.decide.belief`), and between bursts theta is taken to wander, so this is a Kalman
filter of one dimension. Switching needs a gain that is large, sure and not the second one in a
moment.

Nothing here looks at a clock: time comes in, as whole nanoseconds, so that a simulator and the
product drive the same code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from gpuedge.decide.belief import MICRO, Belief, Noise, bounded, forget, seen, updated
from gpuedge.decide.conditions import UNKNOWN, Conditions
from gpuedge.decide.exact import exp, ln, phi, root
from gpuedge.decide.trial import Alternative

SECOND = 10**9
BURST, DROP = 6, 2
"""Runs of a burst, and how many of its first ones are cold and do not count."""

CALM_S, LONGEST_S, GROWTH = 15.0, 300.0, 1.6
"""Seconds between bursts: the least, the most, and how they grow while nothing surprising shows."""

EXPLORED = 0.01
"""Most that bursts may cost beyond what the alternative in use would have, as a share of all
served."""

GAIN = 0.07
DWELL_S = 30.0
"""A switch needs this expected gain, and this time since the last one."""

DOUBT, CALMER, CALMER_S = 0.03, 4, 3600.0
"""A switch needs any gain to be this sure: 1 - `DOUBT`, where the doubt is divided by `CALMER` for
each switch within the last `CALMER_S`. Between two alternatives that are about as good, this is
what ends going back and forth."""

RATE = 2
"""Most switches within a minute, whatever the settings above."""

SURPRISE, WIDEN, CLIP = 2.5, 0.35, 1.5
"""One observation this many standard deviations off is a spike until the next one, which comes
soon: it counts as if it were `CLIP` off. If that is off on the same side, something changed, and
the standard deviation of the belief grows by `WIDEN` before it is taken in."""

CHANGED = 0.2
"""Standard deviation added when the conditions of the machine change."""

KEPT = 512
"""Served latencies remembered for each alternative."""

RECENT, LEVEL = 8, 24
"""Of these, how many a burst is compared with: those that shared the load of the moment with it.
And how many say what the latency is by now."""

BURST_WINDOW = 0.27
"""Least standard deviation of what the runs of a burst share: they are few, and from one moment."""

MOVED = 0.5
"""Where the alternative in use is this many nats off what it was at the last burst, the next one
comes at once, but never sooner than `CALM_S` after it."""


class Monitor:
    """One model in service on one of two alternatives, both of which are open.

    Parameters
    ----------
    belief : Belief
        What was believed when it was placed.
    alternative : {"cpu", "gpu"}
        The alternative in use.
    cpu_ns : int
        Latency of the CPU path, as far as it is known; served requests take its place.
    noise : Noise
    now : int
        Monotonic, in nanoseconds.
    speedup_milli : int
        How many times as fast the GPU must be to be switched to, in thousandths. To stay on it, it
        must only not be the slower one.
    """

    def __init__(
        self,
        belief: Belief,
        alternative: Alternative,
        *,
        cpu_ns: int,
        noise: Noise,
        now: int,
        speedup_milli: int = 1_000,
    ) -> None:
        self.belief = belief
        self.alternative: Alternative = alternative
        self.noise = noise
        self._burst_noise = replace(noise, window=max(noise.window, BURST_WINDOW))
        self._surprise = 0  # on which side the last burst was surprising
        self.speedup_milli = speedup_milli
        self.bursts = 0
        self.served_ns = 0
        """Time that all requests took, those of bursts too."""
        self.explored_ns = 0
        """Of that, what bursts took beyond what the alternative in use would have."""
        self._typical: dict[Alternative, int] = {"cpu": max(cpu_ns, 1)}
        self._typical["gpu"] = max(round(cpu_ns * exp(belief.theta)), 1)
        self._latencies: dict[Alternative, deque[int]] = {
            a: deque(maxlen=KEPT) for a in ("cpu", "gpu")
        }
        self._since_look = 0  # requests of the alternative in use since the last burst or switch
        self._last = now  # up to when the belief has wandered
        self._looked = now  # when the last burst ended
        self._level_then: int | None = None  # of the alternative in use, at the last burst
        self._wait_s = CALM_S
        self._due = now + round(CALM_S * SECOND)
        self._planned = self._wait_s, self._due  # before the last switch
        self._short_ns = 0  # what the last burst cost, if it ended early
        self._switched: deque[int] = deque(maxlen=16)  # when, the last ones
        self._settled_at = now
        self._conditions = UNKNOWN

    @property
    def other(self) -> Alternative:
        """The alternative that is not in use."""
        return "gpu" if self.alternative == "cpu" else "cpu"

    def served(self, alternative: Alternative, ns: int, now: int) -> None:
        """Take the latency of a request that was served, outside of a burst."""
        self.served_ns += ns
        self._latencies[alternative].append(max(ns, 1))
        if alternative != self.alternative:
            return
        self._since_look += 1
        if self._since_look % LEVEL == 0:
            self._follow(now)

    def _follow(self, now: int) -> None:
        """Have a burst soon where the alternative in use changed its pace."""
        level = self._level(self.alternative)
        if self._level_then is None:
            self._level_then = level
        elif abs(ln(level / self._level_then)) > MOVED:
            self._level_then = level
            self._due = min(self._due, max(now, self._looked + round(CALM_S * SECOND)))

    def percentiles(self, alternative: Alternative) -> tuple[int, int, int] | None:
        """Return p50, p90 and p99 of an alternative's recent requests, in nanoseconds."""
        ordered = sorted(self._latencies[alternative])
        if not ordered:
            return None
        last = len(ordered) - 1
        return ordered[last * 50 // 100], ordered[last * 90 // 100], ordered[last * 99 // 100]

    # -- exploring ----------------------------------------------------------------------------

    def wants_burst(self, now: int) -> bool:
        """Say whether the next `BURST` requests should go to the other alternative."""
        if now < self._due or self._since_look < BURST - DROP:
            return False
        cost = self._burst_cost()
        return cost == 0 or self.explored_ns + cost <= EXPLORED * self.served_ns

    def _burst_cost(self) -> int:
        """Return what a burst is expected to cost beyond serving as usual.

        By what the other alternative took when it was last seen: the ratio may be what has changed.
        """
        usual = self._level(self.alternative)
        if self._latencies[self.other]:
            other: float = self._level(self.other)
        else:
            sign = 1 if self.alternative == "cpu" else -1
            other = usual * exp(min(sign * self.belief.theta, 40.0))
        # After a burst that ended early there must be enough for the next one to get further.
        return max(round(BURST * (other - usual)) + 2 * self._short_ns, 0)

    def is_too_dear(self, burst: Sequence[int]) -> bool:
        """Say whether a burst is to end with the runs of the other alternative that it has had.

        It may always cost as much as it takes the alternative in use: cold runs alone are no
        reason.
        """
        excess = self._excess(burst)
        is_over = self.explored_ns + excess > EXPLORED * (self.served_ns + sum(burst))
        return is_over and excess > BURST * self._level(self.alternative)

    def _excess(self, burst: Sequence[int]) -> int:
        """Return what runs of the other alternative cost beyond those of the one in use."""
        usual = list(self._latencies[self.alternative])[-RECENT:] or [
            self._typical[self.alternative]
        ]
        return max(sum(burst) - len(burst) * median_low(usual), 0)

    def _level(self, alternative: Alternative) -> int:
        recent = list(self._latencies[alternative])[-LEVEL:]
        return median_low(recent) if recent else self._typical[alternative]

    def burst(self, gpu_ns: Sequence[int], cpu_ns: Sequence[int], now: int) -> None:
        """Take the latencies of a burst: those of the other alternative, first ones included.

        Those of the alternative in use may be left out: its recent requests are taken then. Without
        runs of the other alternative (the burst was given up) nothing is learned.
        """
        burst, mine = (gpu_ns, cpu_ns) if self.other == "gpu" else (cpu_ns, gpu_ns)
        usual = (
            mine
            or list(self._latencies[self.alternative])[-RECENT:]
            or [self._typical[self.alternative]]
        )
        self.served_ns += sum(burst)
        excess = max(sum(burst) - len(burst) * median_low(usual), 0)
        self.explored_ns += excess
        self._short_ns = excess if len(burst) < BURST else 0
        self.bursts += 1
        self._since_look, self._looked, self._level_then = 0, now, None
        warm = list(burst[DROP:])
        if not warm:
            self._plan(now, is_calm=True)
            return
        self._latencies[self.other].extend(max(ns, 1) for ns in warm)
        gpu, cpu = (warm, usual) if self.other == "gpu" else (usual, warm)
        self._observe(gpu, cpu, now)

    def failed(self, burst: Sequence[int], now: int) -> None:
        """Take that the other alternative failed in a burst, with what its runs took until then.

        Nothing is learned of an alternative that does not answer, and it is asked as rarely as can
        be.
        """
        self.served_ns += sum(burst)
        self.explored_ns += self._excess(burst)
        self._since_look, self._looked, self._level_then = 0, now, None
        self._wait_s = LONGEST_S
        self._due = now + round(LONGEST_S * SECOND)

    def _observe(self, gpu: Sequence[int], cpu: Sequence[int], now: int) -> None:
        self._wander(now)
        y, v = seen(gpu, cpu, self._burst_noise)
        sd = root(self.belief.var + round(v * MICRO))
        z = (y - self.belief.theta) / sd
        side = 0 if -SURPRISE <= z <= SURPRISE else 1 if z > 0 else -1
        if side and side == self._surprise:
            self._widen(WIDEN)
        elif side:
            y = self.belief.theta + side * CLIP * sd
        self._surprise = side
        self.belief = updated(self.belief, y, v)
        self._plan(now, is_calm=not side)

    def _plan(self, now: int, is_calm: bool) -> None:
        self._wait_s = min(self._wait_s * GROWTH, LONGEST_S) if is_calm else CALM_S
        self._due = now + round(self._wait_s * SECOND)

    def _wander(self, now: int) -> None:
        self.belief = forget(self.belief, (now - self._last) / SECOND)
        self._last = now

    def _widen(self, sd: float) -> None:
        belief = self.belief
        self.belief = bounded(belief.theta, belief.var / MICRO + sd * sd, belief.windows)

    # -- switching ----------------------------------------------------------------------------

    def choose(self, now: int, load: Conditions = UNKNOWN) -> Alternative:
        """Return the alternative that the next requests should use.

        Parameters
        ----------
        now : int
        load : Conditions
            What the machine is like. Where that changed, nothing is switched at once, but the
            belief widens and the next burst comes soon.
        """
        if load.differ(self._conditions):
            self._widen(CHANGED)
            self._wait_s = CALM_S
            self._due = min(self._due, now + round(CALM_S * SECOND))
        if load != UNKNOWN:
            self._conditions = load
        if self._may_switch(now) and self._is_better(now):
            self.alternative = self.other
            self._planned, self._short_ns = (self._wait_s, self._due), 0
            self._switched.append(now)
            self._settled_at = now
            self._since_look, self._level_then = 0, None
            self._plan(now, is_calm=False)
        return self.alternative

    def refuse(self) -> None:
        """Take back the switch that `choose` has just made; the next one waits as after it."""
        self.alternative = self.other
        self._switched.pop()
        self._wait_s, self._due = self._planned

    def _may_switch(self, now: int) -> bool:
        if self.bursts == 0 or now - self._settled_at < DWELL_S * SECOND:
            return False
        return len(self._switched) < RATE or now - self._switched[-RATE] >= 60 * SECOND

    def _sureness(self, now: int) -> float:
        """Return the probability of any gain that a switch needs now."""
        recent = sum(now - then < CALMER_S * SECOND for then in self._switched)
        doubt = DOUBT
        for _ in range(recent):
            doubt /= CALMER
        return 1 - doubt

    def _is_better(self, now: int) -> bool:
        """Say whether the other alternative is faster by enough, and surely enough."""
        bar = min(1 - GAIN, 1000 / self.speedup_milli if self.other == "gpu" else 1.0)
        mean = self.belief.theta if self.other == "gpu" else -self.belief.theta
        var = self.belief.var + self.noise.lasting_micro
        expected = exp(min(mean + var / MICRO / 2, 40.0))
        return expected <= bar and phi((ln(1.0) - mean) / root(var)) >= self._sureness(now)

    def state(self) -> dict[str, object]:
        """Return what a report of the service shows, JSON-ready."""
        return {
            "alternative": self.alternative,
            "belief": [self.belief.mean, self.belief.var, self.belief.windows],
            "bursts": self.bursts,
            "explored_ns": self.explored_ns,
            "percentiles_ns": {a: self.percentiles(a) for a in self._latencies},
            "served_ns": self.served_ns,
        }
