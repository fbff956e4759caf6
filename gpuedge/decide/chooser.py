"""Who answers the requests of one model, decided while it serves.

The CPU answers from the first request. A GPU is opened once the requests served so far have lost as
much by not using it as opening it is expected to cost: the rule of ski rental (Karlin, Manasse,
Rudolph and Sleator 1988), with the expected loss in the place of rent. It is compared with the CPU
on real requests, taken where its expected loss is smaller, and looked at again in bursts that the
accumulated expected loss pays for.

A chooser neither runs nor opens anything and has no clock: `gpuedge.runtime` and the simulator of
`benchmarks/fleet` drive the same one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median_low

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
from gpuedge.decide.options import DEFAULT, MOST, Options
from gpuedge.decide.route import Route
from gpuedge.decide.sides import CPU, RECENT, Outcome, Phase, RouteState, Turn
from gpuedge.decide.trial import Burst, Trial


class Chooser:
    """Decides for one model in one launch.

    Parameters
    ----------
    routes : sequence of Route
        Every API route to a GPU that may run the model.
    margin : float
        How many times as fast a GPU must be to be worth it (`Policy.min_speedup`).
    past_requests : sequence of int
        Requests of earlier launches, oldest first.
    cpu_ns : int, optional
        Latency of the CPU path as earlier launches measured it.
    is_watching : bool
        Whether alternatives are compared again once one was chosen (`Policy.monitor`).
    deadline_ns : int, optional
        What every inference has, at `percentile`. A side that keeps it is taken before one that
        does not.
    percentile : int
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
    """

    def __init__(
        self,
        routes: Sequence[Route],
        *,
        margin: float = 1.1,
        past_requests: Sequence[int] = (),
        cpu_ns: int | None = None,
        is_watching: bool = True,
        deadline_ns: int | None = None,
        percentile: int = 90,
        options: Options = DEFAULT,
    ) -> None:
        self.pick = CPU
        self.calm = 0
        self.requests = self.switches = 0
        self._o = options
        self._k = 1 / margin
        self._is_watching = is_watching
        self._deadline_ns, self._percentile = deadline_ns, percentile
        past = sorted(past_requests[-options.launches :])
        self._past = sum(past)
        self.expected = past[len(past) // 2] if past else 0
        self._cpu: deque[int] = deque(maxlen=RECENT)
        self.cpu_ns = cpu_ns or 0
        known = self.cpu_ns or 1
        self.candidates = {r.device: RouteState(r, known, options) for r in routes}
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
        found = self._cheapest(lambda c: c.belief.windows > 0)
        if not self.expected or found is None or not self.cpu_ns:
            return None
        share = found.startup_ns / (self.expected * self.cpu_ns)
        cpu, gpu = losses(found.belief, self._k - share, self._o.lasting)
        return found.route.device if gpu < cpu else None

    def first(self) -> str | None:
        """Return the route to compare before the first request, if any may pay."""
        found = self._cheapest()
        if found is None:
            return None
        loss = losses(found.belief, self._k, self._o.lasting)[0]
        return found.route.device if loss >= self._o.eps * MICRO else None

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
        self._recent().append(ns)

    def served(self, side: str, ns: int, now_ns: int) -> None:
        """Take how long the side of `turn` took for a request."""
        expected = self.turn(now_ns).side
        self._count()
        self.requests += 1
        ns = max(int(ns), 1)
        (self._cpu if side == CPU else self.candidates[side].recent).append(ns)
        if side != expected:  # it was dropped while it ran
            return
        if self._trial is not None:
            self._trial.add(ns)
            if self._trial.stop:
                self._conclude(now_ns)
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
        if self._trial is not None or not self.cpu_ns or self._is_one("opening"):
            return None
        for candidate in self.candidates.values():
            if candidate.phase == "late" and now_ns >= candidate.retry_ns:
                return candidate.route.device
        return self._first_to_pay() if self.pick == CPU else self._better_route()

    def wants_close(self) -> str | None:
        """Return a route that lost and would not be looked at again for long."""
        for candidate in self.candidates.values():
            if candidate.phase == "ready" and self._is_put_away(candidate):
                return candidate.route.device
        return None

    def opens_after(self, device: str) -> int | None:
        """Return the requests after which a closed route is to be opened, None if never."""
        found = self.candidates[device]
        if found.phase not in ("closed", "lost") or self.pick != CPU or not self.cpu_ns:
            return None
        price, rent = self._price_and_rent(found)
        due = found.since + price / rent if rent > 0 else math.inf
        return max(math.ceil(due), 1) if due < MOST else None

    def ratio(self, device: str) -> float:
        """Return the latency of a route over the CPU's, as it is believed to be."""
        return math.exp(self.candidates[device].belief.theta)

    def at_ns(self, side: str) -> int | None:
        """Return the latest latency of a side at the percentile; None where it did not run."""
        runs = self._cpu if side == CPU else self.candidates[side].recent
        return _percentile(runs, self._percentile) if runs else None

    def held_ns(self, now_ns: int) -> int:
        """Return for how long `pick` cannot change to another side that is open."""
        is_full = len(self._switched) == self._switched.maxlen
        return max(self._switched[0] + 60 * 10**9 - now_ns, 0) if is_full else 0

    def outcome(self) -> Outcome:
        """Return what is known by now, for the next launch; a trial counts with what it has."""
        beliefs = {a: c.belief for a, c in self.candidates.items()}
        if self._trial is not None:
            beliefs[self._on_trial] = self._found_by(self._trial)
        known = {a: b for a, b in beliefs.items() if b.windows}
        startups = {a: self.candidates[a].startup_ns for a in known}
        served = self.requests + self._batch - self.calm
        return Outcome(known, startups, self.cpu_ns, served)

    def warms(self, device: str) -> bool:
        """Say whether a route that is opened is to be warmed up beside the CPU.

        One that earlier launches compared serves at once: its cold runs are useful ones then.
        """
        return not self.candidates[device].belief.windows

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
        found = self.candidates[device]
        self._drop(device, "ready" if found.belief.windows else "trial")
        found.startup_ns, found.retries = max(startup_ns, 0), 0
        before = found.belief
        if warm_ns and self._cpu:
            after = updated(before, *seen(warm_ns, self._cpu, self._o.warm))
            found.belief = bounded(after.theta, after.var / MICRO, before.windows)
        self._begin_trial()

    def late(self, device: str, now_ns: int) -> None:
        """Take that opening a route stalled: it is tried again, some times."""
        found, o = self.candidates[device], self._o
        found.retries += 1
        if found.retries > o.retries:
            self.failed(device, now_ns)
            return
        self._drop(device, "late")
        found.retry_ns = now_ns + o.retry_ns(found.retries - 1)

    def failed(self, device: str, now_ns: int) -> None:
        """Take that a route is not to be used any more in this launch."""
        self._drop(device, "failed")

    def closed(self, device: str) -> None:
        """Take that a route was closed; it may be opened again when that pays."""
        found = self.candidates[device]
        self._drop(device, "lost" if found.belief.windows else "closed")
        found.since = self.requests

    # -- what follows -------------------------------------------------------------------------

    def _count(self) -> None:
        """Count the requests that were served since `calm` was set."""
        served = self._batch - self.calm
        self._batch = self.calm = 0
        self.requests += served
        self._bank += served * self._loss_ns() if served else 0.0

    def _look(self, now_ns: int) -> None:
        """Choose anew, begin a burst that is paid for, and set `calm`."""
        if self._cpu:
            self.cpu_ns = max(median_low(self._cpu), 1)
        self._weigh_predictions()
        self._pass_time(now_ns)
        self._heed()
        is_held = self._choose(now_ns)
        if not self._wants_burst(now_ns):
            self._batch = self.calm = 0 if is_held else self._quiet()

    def _quiet(self) -> int:
        """Return how many requests may pass before anything can be due."""
        if self._is_one("late"):
            return 0
        found = self.requests // 4
        if self._is_one("opening"):  # no other one begins meanwhile, and its end is told
            return found
        if any(c.is_open for c in self.candidates.values()):
            return min(found, max(self._until_burst(found), RECENT))
        cheapest = self._cheapest()
        if cheapest is None:
            return found
        price, rent = self._price_and_rent(cheapest)
        due = price - (self.requests - cheapest.since) * rent
        return min(found, max(math.ceil(due / rent) - 1, 0)) if due < found * rent else found

    def _until_burst(self, most: int) -> int:
        """Return how many requests, up to some, until their loss has paid for a burst."""
        other, loss = self._other_side(), self._loss_ns()
        if other is None or self._bursts >= self._o.bursts:
            return most
        due = self._burst_price(other) - self._bank
        return math.ceil(due / loss) if due < most * loss else most

    def _weigh_predictions(self) -> None:
        """Hold the predictions of routes that nothing was seen of against the CPU's latency.

        They share in the surprise about the one that is known best.
        """
        factor = self._o.prior_factor
        known = [c for c in self.candidates.values() if c.belief.windows]
        surest = min(known, key=lambda c: c.belief.var, default=None)
        for c in self.candidates.values():
            if not c.belief.windows and c.phase in ("closed", "opening"):
                c.belief = prior(c.predicted_ns, self.cpu_ns, factor)
                if surest is not None:
                    said = prior(surest.predicted_ns, self.cpu_ns, factor)
                    c.belief = share_surprise(c.belief, said, surest.belief, self._o.correlation)

    def _pass_time(self, now_ns: int) -> None:
        """Widen what was measured by the time that passed."""
        seconds = (now_ns - self._looked_ns) / 1e9 if self._looked_ns else 0.0
        self._looked_ns = now_ns
        for c in self.candidates.values():
            if c.belief.windows:
                c.belief = forget(c.belief, seconds, self._o)

    def _heed(self) -> None:
        """Doubt what is believed where the latency in use is not what it was."""
        if len(self._recent()) < RECENT // 2:
            return
        latest = self._latest_ns()
        self._level = self._level or latest
        if abs(math.log(latest / self._level)) > self._o.surprise:
            self._is_doubted, self._level = True, latest

    def _choose(self, now_ns: int) -> bool:
        """Take the side that is expected to lose least; True where that has to wait.

        Start-up is paid by now.
        """
        ready = [c for c in self.candidates.values() if c.phase == "ready"]
        if not ready:
            return False
        found = min(ready, key=lambda c: (c.route.is_demoted, c.belief.mean))
        cpu, gpu = losses(found.belief, self._k, self._o.lasting)
        stay = self._o.stay if self.switches else 1.0
        is_gpu = gpu * stay < cpu if self.pick == CPU else gpu < cpu * stay
        pick = self._by_deadline(ready, found.route.device if is_gpu else CPU)
        if pick == self.pick or self.held_ns(now_ns):
            return pick != self.pick
        self._switched.append(now_ns)
        self.switches += 1
        self._move(pick)
        return False

    def _by_deadline(self, ready: Sequence[RouteState], pick: str) -> str:
        """Return `pick`, or the fastest side where it does not keep the deadline."""
        if self._deadline_ns is None or not ready:
            return pick
        sides = {CPU: self._cpu} | {c.route.device: c.recent for c in ready}
        times = {side: _percentile(runs, self._percentile) for side, runs in sides.items() if runs}
        if pick not in times or times[pick] <= self._deadline_ns:
            return pick
        return min(times, key=lambda side: times[side])

    def _move(self, pick: str) -> None:
        self.pick = pick
        self._bank = self._level = 0.0

    def _recent(self) -> deque[int]:
        return self._cpu if self.pick == CPU else self.candidates[self.pick].recent

    def _latest_ns(self) -> int:
        recent = self._recent()
        return max(median_low(recent), 1) if recent else max(self.cpu_ns, 1)

    def _loss_ns(self) -> float:
        """Return what a request is expected to lose by the pick against knowing everything."""
        lasting = 0.0  # what no look can take away pays for none
        if self.pick != CPU:
            found = losses(self.candidates[self.pick].belief, self._k, lasting)[1]
        else:
            ready = [c for c in self.candidates.values() if c.phase == "ready"]
            found = max((losses(c.belief, self._k, lasting)[0] for c in ready), default=0)
        return found / MICRO * self.cpu_ns

    # -- opening ------------------------------------------------------------------------------

    def _is_one(self, phase: Phase) -> bool:
        return any(c.phase == phase for c in self.candidates.values())

    def _ahead(self) -> int:
        """Return how many more requests to expect in all: as many as there were."""
        return self._past + self.requests

    def _cheapest(self, wanted: Callable[[RouteState], bool] = bool) -> RouteState | None:
        """Return the closed route that is expected to cost least, start-up included."""
        served = max(self.expected, self.requests, 1) * max(self.cpu_ns, 1)
        closed = [c for c in self.candidates.values() if c.phase in ("closed", "lost")]
        return min(
            (c for c in closed if wanted(c)),
            key=lambda c: (c.route.is_demoted, c.startup_ns / served + math.exp(c.belief.theta)),
            default=None,
        )

    def _price_and_rent(self, found: RouteState) -> tuple[float, float]:
        """Return what trying a route is expected to cost, and what a request loses without it."""
        rent = losses(found.belief, self._k, self._o.lasting)[0] / MICRO * self.cpu_ns
        if found.belief.windows:
            return found.startup_ns, rent
        run = math.exp(found.belief.theta + found.belief.var / MICRO / 2) * self.cpu_ns
        return found.startup_ns + self._o.exploration * run, rent

    def _first_to_pay(self) -> str | None:
        """Return the cheapest route once not having it has cost as much as opening it would.

        Where earlier launches promise requests, those count.
        """
        found = self._cheapest()
        if found is None or any(c.is_open for c in self.candidates.values()):
            return None
        if self._misses_deadline():
            return found.route.device
        price, rent = self._price_and_rent(found)
        paying = self.requests - found.since
        if not found.since and self.requests < self.expected:
            paying = self.expected - self.requests  # earlier launches promise them
        return found.route.device if paying * rent >= price > 0 else None

    def _better_route(self) -> str | None:
        """Return another route once the one in use may have cost as much more as opening takes."""
        mine = self.candidates[self.pick]
        if not self._is_watching or any(
            c.is_open and c is not mine for c in self.candidates.values()
        ):
            return None
        base_ns = self.ratio(self.pick) * self.cpu_ns
        best: tuple[float, str] | None = None
        for c in self.candidates.values():
            if c.phase != "closed" or c.belief.windows:
                continue
            rent, excess = (x / MICRO * base_ns for x in losses(self._between(mine, c), 1.0, 0.0))
            price = c.startup_ns + self._o.exploration * excess
            gain = (self.requests - c.since) * rent - price
            if gain >= 0 and (best is None or gain > best[0]):
                best = gain, c.route.device
        return None if best is None else best[1]

    def _misses_deadline(self) -> bool:
        runs = self._cpu
        enough = self._deadline_ns is not None and len(runs) >= 8
        return enough and _percentile(runs, self._percentile) > (self._deadline_ns or 0)

    def _between(self, mine: RouteState, other: RouteState) -> Belief:
        """Return the belief of ln(other / mine): what both share does not count."""
        var = other.belief.var / MICRO
        return bounded(other.belief.theta - mine.belief.theta, var, 0)

    # -- trial --------------------------------------------------------------------------------

    def _begin_trial(self) -> None:
        """Compare a route that is open and was not compared yet with what serves now."""
        found = next((c for c in self.candidates.values() if c.phase == "trial"), None)
        if found is None or self._trial is not None:
            return
        self._count()
        self._burst = None
        self._base, self._on_trial = self.pick, found.route.device
        if self._base == CPU:
            noise, belief, even = self._o.trial, found.belief, self._k
        else:
            belief = self._between(self.candidates[self._base], found)
            noise, even = self._o.routes, 1.0
        self._trial = Trial(
            belief, even, noise, self._o, ahead=self._ahead(),
            beside=list(self._recent())[-self._o.beside :],
        )  # fmt: skip

    def _conclude(self, now_ns: int) -> None:
        """Take what a trial came to, and tell the other routes."""
        trial, found = self._trial, self.candidates[self._on_trial]
        assert trial is not None
        self._trial = None
        found.belief = self._found_by(trial)
        found.phase, found.since = "ready", self.requests
        self._last_burst_ns = now_ns
        self._bank = self._odd = self._level = 0.0
        self._begin_trial()

    def _found_by(self, trial: Trial) -> Belief:
        """Return what a trial shows of the route on trial against the CPU."""
        shown = trial.concluded()
        if self._base == CPU or not shown.windows:
            return shown if self._base == CPU else self.candidates[self._on_trial].belief
        mine = self.candidates[self._base].belief
        var = (mine.var + shown.var) / MICRO
        return bounded(mine.theta + shown.theta, var, shown.windows)

    # -- bursts -------------------------------------------------------------------------------

    def _wants_burst(self, now_ns: int) -> bool:
        """Begin a look at the other side if the accumulated loss pays for it."""
        other = self._other_side()
        if not self._is_watching or other is None or self._bursts >= self._o.bursts:
            return False
        last = self._last_burst_ns
        if last is not None and now_ns - last < self._o.burst_gap_s * 1e9:
            return False
        if self._bank < self._burst_price(other) and not self._is_doubted:
            return False
        self._burst = Burst(other, self._recent(), self._o)
        self._bursts += 1
        return True

    def _other_side(self) -> str | None:
        if self.pick != CPU:
            return CPU
        ready = [c for c in self.candidates.values() if c.phase == "ready"]
        return min(ready, key=lambda c: c.belief.mean).route.device if ready else None

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
        found = self.candidates[self.pick if side == CPU else side]
        gpu, cpu = (burst.beside, burst.runs) if side == CPU else (burst.runs, burst.beside)
        y, v = seen(gpu, cpu, self._o.burst)
        belief, odd = found.belief, surprise(found.belief, y, v)
        gap = y - belief.theta
        self._is_doubted = False
        if abs(odd) > self._o.contradiction:
            if odd * self._odd > 0 and abs(self._odd) > self._o.contradiction:
                belief = bounded(belief.theta, max(gap * gap - v, 1e-6), belief.windows)
            else:
                v, self._is_doubted = gap * gap, True
        self._odd, self._level = odd, 0.0
        found.belief = updated(belief, y, v)
        if side == CPU:
            self.cpu_ns = max(median_low(burst.runs), 1)

    def _is_put_away(self, found: RouteState) -> bool:
        if found.route.device == self.pick or self._trial is not None or self._burst is not None:
            return False
        if self.pick != CPU:  # a slower route to the same GPU
            return True
        rent = losses(found.belief, self._k, self._o.lasting)[0] / MICRO * self.cpu_ns
        price = found.startup_ns + self._burst_price(found.route.device)
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


def _percentile(runs: Sequence[int], percent: int) -> int:
    ordered = sorted(runs)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]
