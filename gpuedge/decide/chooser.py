"""Who answers the requests of one model, decided while it serves.

The CPU answers from the first request. A GPU is opened once the requests served so far have lost as
much by not using it as opening it is expected to cost: the rule of ski rental (Karlin, Manasse,
Rudolph and Sleator 1988), with the expected loss in the place of rent. It is compared with the CPU
on real requests, taken where its expected loss is smaller, and looked at again in bursts that the
accumulated expected loss pays for.

A chooser neither runs nor opens anything and has no clock: `gpuedge.runtime` and the simulator of
`benchmarks/fleet` drive the same one. What it chooses from is what a `DecisionRecord` holds, and
`best_side` is the rule: a replayed decision calls it, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Literal

from gpuedge import __version__
from gpuedge.decide.belief import (
    MICRO,
    Belief,
    bounded,
    forget,
    losses,
    prior,
    seen,
    share_surprise,
    surprise,
    updated,
)
from gpuedge.decide.decision_record import (
    AUTO,
    CPU,
    DecisionRecord,
    DeviceCandidate,
    DeviceHistory,
    Phase,
)
from gpuedge.decide.options import DEFAULT, MOST, Options
from gpuedge.decide.policy import Policy
from gpuedge.decide.trial import Burst, Trial

RECENT = 31
"""Latencies of a side that are kept; their median counts."""

DEFAULT_POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Turn:
    """Who runs the next request.

    Attributes
    ----------
    side : str
        ``cpu`` or a device string.
    kind : {"serve", "trial", "burst"}
        ``trial``: the device is not trusted yet, so the answer is the CPU's and the device's is
        compared with it. ``burst``: a look at the side that is not in use.
    """

    side: str
    kind: Literal["serve", "trial", "burst"]


def best_side(
    candidates: Iterable[DeviceCandidate],
    policy: Policy,
    in_use: str,
    at_ns: Callable[[str], int],
    *,
    has_switched: bool = False,
    options: Options = DEFAULT,
) -> str:
    """Return the side that is expected to lose least; start-up is paid by now.

    One that keeps the deadline goes before one that does not.

    Parameters
    ----------
    candidates : iterable of DeviceCandidate
        Only those that are ready and not ruled out count; the CPU need not be among them.
    policy : Policy
    in_use : str
        The side that answers.
    at_ns : callable
        Side to its latest latency at the policy's percentile; 0 where it did not run.
    has_switched : bool
        Whether sides have changed before: then only for one that is clearly better.
    options : Options
    """
    ready = [c for c in candidates if c.phase == "ready" and not c.ruled_out(policy)]
    if not ready:
        return CPU
    best = min(ready, key=lambda c: (c.is_demoted, c.belief.mean))
    cpu, gpu = losses(best.belief, 1 / policy.min_speedup, options.lasting)
    stay = options.stay if has_switched else 1.0
    is_gpu = gpu * stay < cpu if in_use == CPU else gpu < cpu * stay
    side = best.device if is_gpu else CPU
    if policy.deadline_ns is None or at_ns(side) <= policy.deadline_ns:
        return side
    return min(filter(at_ns, [CPU, *(c.device for c in ready)]), key=at_ns)


def price_and_rent(
    candidate: DeviceCandidate, cpu_ns: int, policy: Policy, options: Options = DEFAULT
) -> tuple[float, float]:
    """Return what trying a route is expected to cost, and what a request loses without it (ns)."""
    belief = candidate.belief
    rent = losses(belief, 1 / policy.min_speedup, options.lasting)[0] / MICRO * cpu_ns
    if candidate.is_measured:
        return candidate.startup_ns, rent
    run = math.exp(belief.theta + belief.var / MICRO / 2) * cpu_ns
    return candidate.startup_ns + options.exploration * run, rent


def opens_after(candidate: DeviceCandidate, cpu_ns: int, policy: Policy) -> int | None:
    """Return the requests on the CPU after which a closed route is opened; None if never.

    `cpu_ns` is the latency of the CPU; 0 where it is not known.
    """
    if candidate.phase not in ("closed", "lost") or not cpu_ns:
        return None
    price, rent = price_and_rent(candidate, cpu_ns, policy)
    due = candidate.since + price / rent if rent > 0 else math.inf
    return max(math.ceil(due), 1) if due < MOST else None


class Chooser:
    """Decides for one model in one launch.

    Parameters
    ----------
    candidates : iterable of DeviceCandidate
        Those with a phase are routes to GPUs that may be opened. The chooser keeps their beliefs
        and phases.
    policy : Policy
    past_requests : sequence of int
        Requests of earlier launches, oldest first.
    cpu_ns : int, optional
        Latency of the CPU path as earlier launches measured it.
    options : Options

    Attributes
    ----------
    pick : str
        ``cpu`` or the device that answers now.
    calm : int
        So many next requests need neither `turn` nor `served`: `note` is enough for them.
    requests : int
        Requests served up to the last look.
    switches : int
        How often `pick` has changed.
    candidates : dict
        The routes, by device.
    """

    def __init__(
        self,
        candidates: Iterable[DeviceCandidate],
        policy: Policy = DEFAULT_POLICY,
        *,
        past_requests: Sequence[int] = (),
        cpu_ns: int | None = None,
        options: Options = DEFAULT,
    ) -> None:
        self.pick = CPU
        self.calm = 0
        self.requests = self.switches = 0
        self._o, self._policy = options, policy
        self._k = 1 / policy.min_speedup
        past = sorted(past_requests[-options.launches :])
        self._past = sum(past)
        self.expected = past[len(past) // 2] if past else 0
        self.cpu_ns = cpu_ns or 0
        self._all = tuple(candidates)
        self._routes = tuple(c for c in self._all if c.phase)
        self.candidates = {c.device: c for c in self._routes}
        for c in self._routes:
            if not c.is_measured:
                c.belief = self._prior(c)
        self._runs = {side: deque[int](maxlen=RECENT) for side in (CPU, *self.candidates)}
        self._stalls: dict[str, tuple[int, int]] = {}  # how often opening stalled, and the next try
        self._trial: Trial | None = None
        self._on_trial = ""
        self._base = CPU  # what the trial compares with
        self._burst: Burst | None = None
        self._odd = 0.0  # how far the last burst was from what was believed
        self._level = 0.0  # latency of the pick when it was last compared
        self._is_doubted = False  # whether the next burst is due whatever it costs
        self._last_burst_ns: int | None = None
        self._bursts = 0
        self._bank = 0.0
        self._batch = 0  # requests that `calm` was set to
        self._looked_ns = 0
        self._switched: deque[int] = deque(maxlen=options.switches_per_minute)

    # -- what the caller asks -----------------------------------------------------------------

    def at_load(self) -> str | None:
        """Return the route to open at once: earlier launches say that it pays."""
        route = self._cheapest(lambda c: c.is_measured)
        if not self.expected or route is None or not self.cpu_ns:
            return None
        share = route.startup_ns / (self.expected * self.cpu_ns)
        cpu, gpu = losses(route.belief, self._k - share, self._o.lasting)
        return route.device if gpu < cpu else None

    def first(self) -> str | None:
        """Return the route to compare before the first request, if any may pay."""
        route = self._cheapest()
        if route is None:
            return None
        loss = losses(route.belief, self._k, self._o.lasting)[0]
        return route.device if loss >= self._o.eps * MICRO else None

    def turn(self, now_ns: int) -> Turn:
        """Return who runs the next request."""
        if self._trial is not None:
            if self._trial.next == "other":
                return Turn(self._on_trial, "trial")
            return Turn(self._base, "serve")
        if self._burst is not None and self._burst.is_looking:
            return Turn(self._burst.side, "burst")
        return Turn(self.pick, "serve")

    def note(self, ns: int) -> None:
        """Take the time of a request that `pick` answered while `calm` lasted."""
        if self.calm > 0:
            self.calm -= 1
        else:  # a route failed meanwhile: this request is counted here
            self.requests += 1
        self._runs[self.pick].append(ns)

    def served(self, side: str, ns: int, now_ns: int) -> None:
        """Take how long the side of `turn` took for a request."""
        expected = self.turn(now_ns).side
        self._count()
        self.requests += 1
        ns = max(int(ns), 1)
        self._runs[side].append(ns)
        if side != expected:  # it was dropped while it ran
            return
        if self._trial is not None:
            self._trial.add(ns)
            if self._trial.stop:
                self._end_trial(now_ns)
        elif self._burst is not None:
            self._burst.add(ns)
            if self._burst.is_over:
                self._end_burst(now_ns)
        else:
            self._bank += self._loss_ns()
        if self._trial is None and self._burst is None:
            self._look(now_ns)

    def wants_open(self, now_ns: int) -> str | None:
        """Return a route that is to be opened in the background now; one at a time."""
        if self._trial is not None or not self.cpu_ns or self._in("opening"):
            return None
        for c in self._in("late"):
            if now_ns >= self._stalls[c.device][1]:
                return c.device
        return self._first_to_pay() if self.pick == CPU else self._better_route()

    def wants_close(self) -> str | None:
        """Return a route that lost and would not be looked at again for long."""
        return next((c.device for c in self._in("ready") if self._is_put_away(c)), None)

    def at_ns(self, side: str) -> int:
        """Return the latest latency of a side at the percentile; 0 where it did not run."""
        runs = sorted(self._runs[side])
        place = len(runs) * self._policy.percentile // 100
        return runs[min(place, len(runs) - 1)] if runs else 0

    def held_ns(self, now_ns: int) -> int:
        """Return for how long `pick` cannot change to another side that is open."""
        is_full = len(self._switched) == self._switched.maxlen
        return max(self._switched[0] + 60 * 10**9 - now_ns, 0) if is_full else 0

    def record(self, now_ns: int) -> DecisionRecord:
        """Return all that `pick` is chosen from, as it is now.

        What became better since the last request takes over after the next one.
        """
        cpu = DeviceCandidate(CPU, is_software=False, latency_ns=self.cpu_ns, at_ns=self.at_ns(CPU))
        is_due = self._best() != self.pick
        return DecisionRecord(
            AUTO,
            self._policy,
            (*(self._copied(c, now_ns) for c in self._all), cpu),
            __version__,
            requests=self.answered,
            in_use=self.pick,
            has_switched=self.switches > 0,
            waits_ns=self.held_ns(now_ns) or (0 if is_due else None),
        )

    def _copied(self, candidate: DeviceCandidate, now_ns: int) -> DeviceCandidate:
        if not candidate.phase:
            return replace(candidate)
        device, runs = candidate.device, self._runs[candidate.device]
        is_late = candidate.phase == "late"
        return replace(
            candidate,
            latency_ns=median_low(runs) if runs else 0,
            at_ns=self.at_ns(device),
            retry_ns=max(self._stalls[device][1] - now_ns, 0) if is_late else 0,
        )

    @property
    def answered(self) -> int:
        """Requests served so far."""
        return self.requests + self._batch - self.calm

    def learnt(self) -> dict[str, DeviceHistory]:
        """Return what is to be known in the next launch; a trial counts with what it has."""
        learnt: dict[str, DeviceHistory] = {}
        for device, c in self.candidates.items():
            belief = c.belief
            if self._trial is not None and device == self._on_trial:
                belief = self._belief_after(self._trial)
            if belief.windows and c.phase != "failed":
                gpu_ns = max(round(self.cpu_ns * math.exp(belief.theta)), 1)
                learnt[device] = DeviceHistory(belief, c.startup_ns, gpu_ns, c.predicted_ns)
        return learnt

    def warms(self, device: str) -> bool:
        """Say whether a route that is opened is to be warmed up beside the CPU.

        One that earlier launches compared serves at once: its cold runs are useful ones then.
        """
        return not self.candidates[device].is_measured

    # -- what the caller tells ----------------------------------------------------------------

    def opening(self, device: str) -> None:
        """Take that a route is being opened; it does not serve meanwhile."""
        self._drop(device, "opening")

    def opened(
        self, device: str, startup_ns: int, now_ns: int, warm_ns: Sequence[int] = ()
    ) -> None:
        """Take that a route is open, compiled, right and warm, and what its runs took since then.

        It is compared with what serves now, unless an earlier launch did so.
        """
        route = self.candidates[device]
        self._drop(device, "ready" if route.is_measured else "trial")
        route.startup_ns = max(startup_ns, 0)
        self._stalls.pop(device, None)
        before = route.belief
        if warm_ns and self._runs[CPU]:
            after = updated(before, *seen(warm_ns, self._runs[CPU], self._o.warm))
            route.belief = bounded(after.theta, after.var / MICRO, before.windows)
        self._begin_trial()

    def late(self, device: str, now_ns: int) -> None:
        """Take that opening a route stalled: it is tried again, some times."""
        earlier, _ = self._stalls.get(device, (0, 0))
        self._stalls[device] = earlier + 1, now_ns + self._o.retry_ns(earlier)
        self._drop(device, "late" if earlier < self._o.retries else "failed")

    def failed(self, device: str, now_ns: int) -> None:
        """Take that a route is not to be used any more in this launch."""
        self._drop(device, "failed")

    def closed(self, device: str) -> None:
        """Take that a route was closed; it may be opened again when that pays."""
        route = self.candidates[device]
        self._drop(device, "lost" if route.is_measured else "closed")
        route.since = self.requests

    # -- what follows -------------------------------------------------------------------------

    def _count(self) -> None:
        """Count the requests that were served since `calm` was set."""
        served = self._batch - self.calm
        self._batch = self.calm = 0
        self.requests += served
        self._bank += served * self._loss_ns() if served else 0.0

    def _look(self, now_ns: int) -> None:
        """Choose anew, begin a burst that is paid for, and set `calm`."""
        if self._runs[CPU]:
            self.cpu_ns = max(median_low(self._runs[CPU]), 1)
        self._predict_anew()
        self._forget(now_ns)
        self._notice_changed_latency()
        is_held = self._choose(now_ns)
        if not self._wants_burst(now_ns):
            self._batch = self.calm = 0 if is_held else self._next_calm()

    def _next_calm(self) -> int:
        """Return how many requests may pass before anything can be due."""
        if self._in("late"):
            return 0
        most = self.requests // 4
        if self._in("opening"):  # no other one begins meanwhile, and its end is told
            return most
        if self._in("trial", "ready"):
            return min(most, max(self._until_burst(most), RECENT))
        cheapest = self._cheapest()
        if cheapest is None:
            return most
        price, rent = self._price_and_rent(cheapest)
        due = price - (self.requests - cheapest.since) * rent
        return min(most, max(math.ceil(due / rent) - 1, 0)) if due < most * rent else most

    def _until_burst(self, most: int) -> int:
        """Return how many requests, up to some, until their loss has paid for a burst."""
        other, loss = self._other_side(), self._loss_ns()
        if other is None or self._bursts >= self._o.bursts:
            return most
        due = self._burst_price(other) - self._bank
        return math.ceil(due / loss) if due < most * loss else most

    def _predict_anew(self) -> None:
        """Hold the predictions of routes that nothing was seen of against the CPU's latency.

        They share in the surprise about the one that is known best.
        """
        measured = (c for c in self._routes if c.is_measured and c.predicted_ns)
        surest = min(measured, key=lambda c: c.belief.var, default=None)
        for c in self._in("closed", "opening"):
            if not c.is_measured:
                c.belief = self._prior(c)
                if surest is not None and c.predicted_ns:
                    before, rho = self._prior(surest), self._o.correlation
                    c.belief = share_surprise(c.belief, before, surest.belief, rho)

    def _prior(self, c: DeviceCandidate) -> Belief:
        """Return what is believed of a route before it was seen.

        One of which nothing is predicted is taken to be as fast as the CPU.
        """
        cpu_ns = self.cpu_ns or 1
        return prior(c.predicted_ns or cpu_ns, cpu_ns, self._o.prior_factor)

    def _forget(self, now_ns: int) -> None:
        """Widen what was measured by the time that passed."""
        seconds = (now_ns - self._looked_ns) / 1e9 if self._looked_ns else 0.0
        self._looked_ns = now_ns
        for c in self._routes:
            if c.is_measured:
                c.belief = forget(c.belief, seconds, self._o)

    def _notice_changed_latency(self) -> None:
        """Doubt what is believed where the latency in use is not what it was."""
        runs = self._runs[self.pick]
        if len(runs) < RECENT // 2:
            return
        latest = max(median_low(runs), 1)
        self._level = self._level or latest
        if abs(math.log(latest / self._level)) > self._o.surprise:
            self._is_doubted, self._level = True, latest

    def _best(self) -> str:
        return best_side(
            self._routes, self._policy, self.pick, self.at_ns,
            has_switched=self.switches > 0, options=self._o,
        )  # fmt: skip

    def _choose(self, now_ns: int) -> bool:
        """Take the best side; True where that has to wait."""
        pick = self._best()
        if pick == self.pick or self.held_ns(now_ns):
            return pick != self.pick
        self._switched.append(now_ns)
        self.switches += 1
        self._move(pick)
        return False

    def _move(self, pick: str) -> None:
        self.pick = pick
        self._bank = self._level = 0.0

    def _loss_ns(self) -> float:
        """Return what a request is expected to lose by the pick against knowing everything."""
        lasting = 0.0  # what no look can take away pays for none
        if self.pick != CPU:
            loss = losses(self.candidates[self.pick].belief, self._k, lasting)[1]
        else:
            missed = (losses(c.belief, self._k, lasting)[0] for c in self._in("ready"))
            loss = max(missed, default=0)
        return loss / MICRO * self.cpu_ns

    # -- opening ------------------------------------------------------------------------------

    def _in(self, *phases: Phase) -> list[DeviceCandidate]:
        """Return the routes in some phases."""
        return [c for c in self._routes if c.phase in phases]

    def _cheapest(
        self, is_wanted: Callable[[DeviceCandidate], bool] = lambda _: True
    ) -> DeviceCandidate | None:
        """Return the closed route that is expected to cost least, start-up included."""
        served = max(self.expected, self.requests, 1) * max(self.cpu_ns, 1)
        return min(
            filter(is_wanted, self._in("closed", "lost")),
            key=lambda c: (c.is_demoted, c.startup_ns / served + math.exp(c.belief.theta)),
            default=None,
        )

    def _price_and_rent(self, route: DeviceCandidate) -> tuple[float, float]:
        return price_and_rent(route, self.cpu_ns, self._policy, self._o)

    def _first_to_pay(self) -> str | None:
        """Return the cheapest route once not having it has cost as much as opening it would.

        Where earlier launches promise requests, those count.
        """
        route = self._cheapest()
        if route is None or self._in("trial", "ready"):
            return None
        if self._misses_deadline():
            return route.device
        price, rent = self._price_and_rent(route)
        paying = self.requests - route.since
        if not route.since and self.requests < self.expected:
            paying = self.expected - self.requests  # earlier launches promise them
        return route.device if paying * rent >= price > 0 else None

    def _better_route(self) -> str | None:
        """Return another route once the one in use may have cost as much more as opening takes."""
        mine = self.candidates[self.pick]
        if not self._policy.monitor or len(self._in("trial", "ready")) > 1:
            return None
        base_ns = math.exp(mine.belief.theta) * self.cpu_ns
        best: tuple[float, str] | None = None
        for c in self._in("closed"):
            if c.is_measured:
                continue
            against = _relative(mine.belief, c.belief)
            rent, excess = (x / MICRO * base_ns for x in losses(against, 1.0, 0.0))
            price = c.startup_ns + self._o.exploration * excess
            gain = (self.requests - c.since) * rent - price
            if gain >= 0 and (best is None or gain > best[0]):
                best = gain, c.device
        return None if best is None else best[1]

    def _misses_deadline(self) -> bool:
        limit = self._policy.deadline_ns
        return limit is not None and len(self._runs[CPU]) >= 8 and self.at_ns(CPU) > limit

    # -- trial --------------------------------------------------------------------------------

    def _begin_trial(self) -> None:
        """Compare a route that is open and was not compared yet with what serves now."""
        waiting = self._in("trial")
        if not waiting or self._trial is not None:
            return
        route = waiting[0]
        self._count()
        self._burst = None
        self._base, self._on_trial = self.pick, route.device
        if self._base == CPU:
            noise, belief, even = self._o.trial, route.belief, self._k
        else:
            belief = _relative(self.candidates[self._base].belief, route.belief)
            noise, even = self._o.routes, 1.0
        self._trial = Trial(
            belief, even, noise, self._o, ahead=self._past + self.requests,
            beside=list(self._runs[self.pick])[-self._o.beside :],
        )  # fmt: skip

    def _end_trial(self, now_ns: int) -> None:
        """Take what a trial came to, and compare the next route if one waits for that."""
        trial, route = self._trial, self.candidates[self._on_trial]
        assert trial is not None
        self._trial = None
        route.belief = self._belief_after(trial)
        route.phase, route.since = "ready", self.requests
        self._last_burst_ns = now_ns
        self._bank = self._odd = self._level = 0.0
        self._begin_trial()

    def _belief_after(self, trial: Trial) -> Belief:
        """Return what is believed of the route on trial against the CPU, with the trial so far."""
        shown = trial.concluded()
        if self._base == CPU:
            return shown
        if not shown.windows:
            return self.candidates[self._on_trial].belief
        base = self.candidates[self._base].belief
        return bounded(base.theta + shown.theta, (base.var + shown.var) / MICRO, shown.windows)

    # -- bursts -------------------------------------------------------------------------------

    def _wants_burst(self, now_ns: int) -> bool:
        """Begin a look at the other side if the accumulated loss pays for it."""
        other = self._other_side()
        if not self._policy.monitor or other is None or self._bursts >= self._o.bursts:
            return False
        last = self._last_burst_ns
        if last is not None and now_ns - last < self._o.burst_gap_s * 1e9:
            return False
        if self._bank < self._burst_price(other) and not self._is_doubted:
            return False
        self._burst = Burst(other, self._runs[self.pick], self._o)
        self._bursts += 1
        return True

    def _other_side(self) -> str | None:
        if self.pick != CPU:
            return CPU
        ready = self._in("ready")
        return min(ready, key=lambda c: c.belief.mean).device if ready else None

    def _burst_price(self, other: str) -> float:
        """Return what a burst is expected to cost more than serving, in nanoseconds."""
        device = self.pick if other == CPU else other
        belief = self.candidates[device].belief
        cpu, gpu = losses(belief, 1.0, self._o.lasting)
        return self._o.burst_runs * (cpu if other == CPU else gpu) / MICRO * self.cpu_ns

    def _end_burst(self, now_ns: int) -> None:
        """Take what a burst shows.

        One that contradicts what was believed is taken for noise, two in a row that do so the same
        way for a change.
        """
        burst = self._burst
        assert burst is not None
        self._burst = None
        self._last_burst_ns, self._bank = now_ns, 0.0
        side = burst.side
        route = self.candidates[self.pick if side == CPU else side]
        gpu, cpu = (burst.beside, burst.runs) if side == CPU else (burst.runs, burst.beside)
        y, v = seen(gpu, cpu, self._o.burst)
        belief, odd = route.belief, surprise(route.belief, y, v)
        gap = y - belief.theta
        self._is_doubted = False
        if abs(odd) > self._o.contradiction:
            if odd * self._odd > 0 and abs(self._odd) > self._o.contradiction:
                belief = bounded(belief.theta, max(gap * gap - v, 1e-6), belief.windows)
            else:
                v, self._is_doubted = gap * gap, True
        self._odd, self._level = odd, 0.0
        route.belief = updated(belief, y, v)
        if side == CPU:
            self.cpu_ns = max(median_low(burst.runs), 1)

    def _is_put_away(self, route: DeviceCandidate) -> bool:
        if route.device == self.pick or self._trial is not None or self._burst is not None:
            return False
        if self.pick != CPU:  # a slower route to the same GPU
            return True
        _, rent = self._price_and_rent(route)
        price = route.startup_ns + self._burst_price(route.device)
        return rent * self._o.put_away * max(self.requests, 1) < price

    def _drop(self, device: str, phase: Phase) -> None:
        """Take that a route cannot serve now; whatever it was doing ends."""
        self._count()
        self.candidates[device].phase = phase
        if device in (self._on_trial, self._base):
            self._trial = None
        if self._burst is not None and device in (self._burst.side, self.pick):
            self._burst = None
        if self.pick == device:
            self._move(CPU)
        self._begin_trial()


def _relative(mine: Belief, other: Belief) -> Belief:
    """Return the belief of ln(other / mine): what both share does not count."""
    return bounded(other.theta - mine.theta, other.var / MICRO, 0)
