"""The monitor in service: bursts, the cost of exploring, switches, and what it must not do."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpuedge.decide.belief import NOISE, Belief
from gpuedge.decide.conditions import UNKNOWN, Conditions
from gpuedge.decide.monitor import (
    BURST,
    BURST_WINDOW,
    CALM_S,
    DROP,
    DWELL_S,
    EXPLORED,
    LONGEST_S,
    RATE,
    RECENT,
    Monitor,
)  # fmt: skip
from gpuedge.decide.trial import Alternative

S = 10**9
MS = 10**6


@dataclass
class Service:
    """A machine that serves a request every 0.2 s; its GPU may change at a moment."""

    cpu_ns: float = 20 * MS
    theta: float = -0.7
    noise: float = 0.4
    shift: float = 0.0
    shift_at_s: float = math.inf
    cold: float = 2.0
    seed: int = 0
    now: int = 0
    switches: list[int] = field(default_factory=list)
    burst_times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def latency(self, alternative: Alternative) -> int:
        moved = self.shift if self.now >= self.shift_at_s * S else 0.0
        level = self.theta + moved if alternative == "gpu" else 0.0
        return round(self.cpu_ns * math.exp(level + self.rng.gauss(0, self.noise)))

    def serve(
        self, monitor: Monitor, seconds: float, load: Conditions = UNKNOWN, step: int = S // 5
    ) -> None:
        end = self.now + round(seconds * S)
        while self.now < end:
            if monitor.wants_burst(self.now):
                self.burst_times.append(self.now)
                alternative = monitor.other
                runs = [round(self.latency(alternative) * (self.cold if i < DROP else 1))
                        for i in range(BURST)]  # fmt: skip
                self.now += BURST * step
                gpu, cpu = (runs, []) if alternative == "gpu" else ([], runs)
                monitor.burst(gpu, cpu, self.now)
            before = monitor.alternative
            if monitor.choose(self.now, load) != before:
                self.switches.append(self.now)
            monitor.served(monitor.alternative, self.latency(monitor.alternative), self.now)
            self.now += step


def monitor(alternative: Alternative = "gpu", theta: float = -0.7, **more: int) -> Monitor:
    known = Belief(round(theta * 1e6), 60_000, 1)
    return Monitor(known, alternative, cpu_ns=20 * MS, noise=NOISE(None), now=0, **more)


def test_right_choice_stays_for_an_hour() -> None:
    switches = 0
    for seed in range(6):
        for alternative, theta in (("gpu", -0.7), ("cpu", 0.7), ("cpu", 0.1), ("gpu", -0.1)):
            service = Service(theta=theta, seed=seed)
            service.serve(monitor(alternative, theta), 3600)  # type: ignore[arg-type]
            switches += len(service.switches)
    assert switches <= 2  # of 24 hours; the aim is 0.2 an hour


@pytest.mark.parametrize("alternative", ["gpu", "cpu"])
def test_device_that_becomes_slower_is_left(alternative: Alternative) -> None:
    """Whichever alternative is in use, the other one becomes three times as good beside it."""
    sign = -1 if alternative == "gpu" else 1
    service = Service(theta=sign * 0.4, shift=-sign * 1.5, shift_at_s=900)
    watched = monitor(alternative, sign * 0.4)
    service.serve(watched, 900)
    assert watched.alternative == alternative
    service.serve(watched, 1200)
    assert watched.alternative == ("cpu" if alternative == "gpu" else "gpu")
    assert len(service.switches) == 1


def test_slow_down_of_the_device_in_use_brings_the_next_burst_forward() -> None:
    service = Service(theta=-0.7, shift=1.6, shift_at_s=2000, noise=0.1)
    watched = monitor()
    service.serve(watched, 2000)
    *_, before, last = service.burst_times
    assert last - before > 200 * S
    service.serve(watched, 60)
    (first, *_) = [t for t in service.burst_times if t > last]
    assert 0 <= first - 2000 * S < 15 * S
    assert last + 300 * S > first + 15 * S  # it would not have come by itself
    service.serve(watched, 60)
    assert watched.alternative == "cpu"


def test_wrong_choice_is_corrected() -> None:
    service = Service(theta=-0.9)
    watched = monitor("cpu", theta=0.1)
    service.serve(watched, 900)
    assert watched.alternative == "gpu"
    assert watched.belief.theta == pytest.approx(-0.9, abs=0.35)


def test_exploring_costs_at_most_one_part_in_a_hundred() -> None:
    for theta in (0.7, 1.5, 3.0):
        service = Service(theta=theta, noise=0.2)
        watched = monitor("cpu", theta)
        service.serve(watched, 3600)
        one = BURST * 2 * 20 * MS * math.exp(theta)  # what the last burst may have been over by
        assert watched.explored_ns <= EXPLORED * watched.served_ns + one
        assert watched.explored_ns < 0.013 * watched.served_ns
        assert watched.bursts > 0


def test_bursts_become_rare_while_nothing_changes() -> None:
    service = Service(theta=-0.7, noise=0.1)
    watched = monitor()
    service.serve(watched, 3600)
    gaps = [(b - a) / S for a, b in pairwise(service.burst_times)]
    assert service.burst_times[0] >= CALM_S * S
    assert gaps[-1] == pytest.approx(LONGEST_S, abs=2 * BURST)
    assert gaps == sorted(gaps) or max(gaps) <= LONGEST_S + 2 * BURST


def test_cold_runs_of_a_burst_do_not_count() -> None:
    watched = monitor("cpu", 0.0)
    for i in range(40):
        watched.served("cpu", 20 * MS, i)
    watched.burst([10**12, 10**12, *[10 * MS] * 4], [], 20 * S)
    assert watched.belief.theta < 0
    assert watched.percentiles("gpu") == (10 * MS,) * 3


def test_no_burst_without_something_to_compare_with() -> None:
    watched = monitor()
    assert not watched.wants_burst(3600 * S)
    for i in range(3):
        watched.served("gpu", 10 * MS, i)
    assert not watched.wants_burst(3600 * S)
    for i in range(1000):  # ten seconds: a hundredth of it pays for six runs at 20 ms
        watched.served("gpu", 10 * MS, i)
    assert watched.wants_burst(3600 * S)


def test_given_up_burst_teaches_nothing_and_waits() -> None:
    watched = monitor()
    for i in range(500):
        watched.served("gpu", 10 * MS, i)
    known = watched.belief
    watched.burst([], [], 3600 * S)
    assert watched.belief == known
    for i in range(500):
        watched.served("gpu", 10 * MS, i)
    assert not watched.wants_burst(3601 * S)


def test_burst_is_too_dear_beyond_what_is_left_and_six_requests() -> None:
    watched = monitor()
    for i in range(500):  # five seconds: 50 ms are left
        watched.served("gpu", 10 * MS, i)
    assert not watched.is_too_dear([50 * MS])
    assert not watched.is_too_dear([35 * MS] * 2)
    assert not watched.is_too_dear([70 * MS])  # a cold one; 60 ms is what six take
    assert watched.is_too_dear([75 * MS])
    for i in range(1000):
        watched.served("gpu", 10 * MS, i)
    assert not watched.is_too_dear([75 * MS])


def test_burst_that_ended_early_is_repeated_when_there_is_enough_to_get_further() -> None:
    watched = monitor()
    for i in range(500):
        watched.served("gpu", 10 * MS, i)
    for runs, needed_s in (([1010 * MS], 300), ([1010 * MS] * 3, 1000)):
        watched.burst([], runs, 3600 * S)
        while not watched.wants_burst(7200 * S):
            watched.served("gpu", 10 * MS, 3600 * S)
        assert watched.served_ns >= needed_s * S
    assert watched.explored_ns == 4 * S


def test_alternative_that_failed_teaches_nothing_and_waits_longest() -> None:
    watched = monitor()
    for i in range(5000):
        watched.served("gpu", 10 * MS, i)
    known = watched.belief
    watched.failed([5 * MS] * 4 + [80 * MS], 100 * S)
    assert (watched.belief, watched.bursts) == (known, 0)
    assert watched.explored_ns == (4 * 5 + 80 - 5 * 10) * MS
    for i in range(5000):
        watched.served("gpu", 10 * MS, i)
    assert not watched.wants_burst((100 + round(LONGEST_S)) * S - 1)
    assert watched.wants_burst((100 + round(LONGEST_S)) * S)


def test_switch_that_is_refused_does_not_count_but_is_waited_after() -> None:
    watched = monitor("cpu", 0.0)
    for at in (60, 61, 62):
        for i in range(40):
            watched.served("cpu", 20 * MS, i)
        watched.burst([2 * MS] * BURST, [], at * S)
    due = watched._due
    assert watched.choose(70 * S) == "gpu"
    watched.refuse()
    assert (watched.alternative, watched._due) == ("cpu", due)
    assert watched._sureness(70 * S) == pytest.approx(0.97)
    assert watched.choose(70 * S + round(DWELL_S * S) - 1) == "cpu"
    assert watched.choose(70 * S + round(DWELL_S * S)) == "gpu"


def flapping(now_s: int, watched: Monitor, seconds: int) -> list[int]:
    """Show the other alternative ten times as fast, again and again; return when it switched."""
    times = []
    for second in range(now_s, now_s + seconds):
        for _ in range(10):
            watched.served(watched.alternative, 100 * MS, second * S)
        fast = [10 * MS] * BURST
        gpu, cpu = (fast, []) if watched.other == "gpu" else ([], fast)
        watched.burst(gpu, cpu, second * S)
        before = watched.alternative
        if watched.choose(second * S) != before:
            times.append(second)
    return times


def test_at_most_two_switches_a_minute_and_none_within_the_dwell() -> None:
    times = flapping(0, monitor(theta=0.0), 600)
    assert len(times) > 3
    for a, b in pairwise(times):
        assert b - a >= DWELL_S
    for start in range(540):
        assert sum(start <= t < start + 60 for t in times) <= RATE


def test_cap_of_switches_holds_without_the_dwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuedge.decide.monitor.DWELL_S", 0.0)
    times = flapping(0, monitor(theta=0.0), 300)
    assert len(times) > 6
    for start in range(240):
        assert sum(start <= t < start + 60 for t in times) <= RATE


def burst_of(watched: Monitor, theta: float) -> None:
    """Show the GPU once, with so many nats between it and the CPU."""
    for i in range(40):
        watched.served("cpu", 20 * MS, i)
    watched.burst([round(20 * MS * math.exp(theta))] * BURST, [], 60 * S)


def test_gain_that_is_not_sure_is_left_alone() -> None:
    """A gain of 11 % is expected, but it is one with a probability of .7 only."""
    for theta, alternative in ((-0.21, "cpu"), (-0.7, "cpu"), (-1.2, "gpu")):
        watched = Monitor(Belief(0, 250_000), "cpu", cpu_ns=20 * MS, noise=NOISE(None), now=0)
        burst_of(watched, theta)
        expected = math.exp(watched.belief.theta + (watched.belief.var / 1e6 + 0.01) / 2)
        assert expected < 0.93
        assert watched.choose(120 * S) == alternative


def test_surprise_counts_little_until_the_next_one_confirms_it() -> None:
    v = 1.57 * 0.35**2 * (1 / (BURST - DROP) + 1 / RECENT) + BURST_WINDOW**2
    watched = Monitor(Belief(0, 20_000), "cpu", cpu_ns=20 * MS, noise=NOISE(None), now=60 * S)
    burst_of(watched, -1.5)
    first = -1.5 * math.sqrt(0.02 + v) * 0.02 / (0.02 + v)
    assert watched.belief.theta == pytest.approx(first, abs=0.001)
    burst_of(watched, -1.5)
    wide = 0.02 * v / (0.02 + v) + 0.35**2
    second = (first * v - 1.51 * wide) / (wide + v)
    assert watched.belief.theta == pytest.approx(second, abs=0.01)
    assert second < 3 * first


def test_two_surprises_on_different_sides_are_spikes() -> None:
    watched = Monitor(Belief(0, 20_000), "cpu", cpu_ns=20 * MS, noise=NOISE(None), now=60 * S)
    burst_of(watched, -1.5)
    known = watched.belief.var
    burst_of(watched, 1.5)
    assert watched.belief.var < known
    assert abs(watched.belief.theta) < 0.1


def test_observation_that_is_no_surprise_counts_in_full() -> None:
    v = 1.57 * 0.35**2 * (1 / (BURST - DROP) + 1 / RECENT) + BURST_WINDOW**2
    calm = Monitor(Belief(0, 20_000), "cpu", cpu_ns=20 * MS, noise=NOISE(None), now=60 * S)
    burst_of(calm, -0.5)
    assert calm.belief.theta == pytest.approx(-0.51 * 0.02 / (0.02 + v), abs=0.01)


def test_each_switch_makes_the_next_one_harder_for_an_hour() -> None:
    """The same evidence for the other alternative is enough once, and not again at once."""
    watched = monitor("cpu", 0.0)
    needed = []
    for at in (60, 200, 340):
        needed.append(watched._sureness(at * S))
        watched._switched.append(at * S)
    assert needed == pytest.approx([0.97, 1 - 0.03 / 4, 1 - 0.03 / 16])
    assert watched._sureness((340 + 3600) * S) == pytest.approx(0.97)


def test_nothing_switches_without_a_burst() -> None:
    watched = Monitor(Belief(2_000_000, 100), "gpu", cpu_ns=20 * MS, noise=NOISE(None), now=0)
    assert watched.choose(3600 * S) == "gpu"


def test_small_gains_are_left_alone() -> None:
    service = Service(theta=0.05, noise=0.1)
    watched = monitor("gpu", 0.05)
    service.serve(watched, 3600)
    assert service.switches == []


def test_gpu_must_be_as_much_faster_as_the_policy_asks_to_be_switched_to() -> None:
    for speedup, alternative in ((1000, "gpu"), (3000, "cpu")):
        service = Service(theta=-0.7, noise=0.1)
        watched = monitor("cpu", -0.6, speedup_milli=speedup)
        service.serve(watched, 1800)
        assert watched.alternative == alternative


def test_change_of_conditions_asks_for_a_burst_and_switches_nothing() -> None:
    service = Service(theta=-0.7, noise=0.05)
    watched = monitor()
    cool, hot = Conditions(thermal="nominal"), Conditions(thermal="throttling")
    service.serve(watched, 3000, cool)
    known, alternative = watched.belief.var, watched.alternative
    begin = service.now
    assert watched.choose(begin, hot) == alternative
    assert watched.belief.var == known + 40_000
    assert watched.choose(begin, hot) == alternative
    assert watched.belief.var == known + 40_000  # once for one change
    service.serve(watched, 30, hot)
    assert begin <= service.burst_times[-1] <= begin + (CALM_S + 5) * S
    assert not Conditions(load_milli=100).differ(Conditions(load_milli=200))
    assert Conditions(load_milli=100).differ(Conditions(load_milli=900))
    assert not Conditions().differ(hot)


def test_percentiles_are_of_recent_requests() -> None:
    watched = monitor()
    assert watched.percentiles("gpu") is None
    for ns in range(1, 101):
        watched.served("gpu", ns * MS, 0)
    assert watched.percentiles("gpu") == (50 * MS, 90 * MS, 99 * MS)
    assert watched.percentiles("cpu") is None
    for _ in range(600):
        watched.served("gpu", 7 * MS, 0)
    assert watched.percentiles("gpu") == (7 * MS, 7 * MS, 7 * MS)


def test_same_calls_give_the_same_state() -> None:
    states = []
    for _ in range(2):
        service = Service(theta=0.2, shift=-1.2, shift_at_s=600, seed=7)
        watched = monitor("cpu", 0.2)
        service.serve(watched, 1500)
        states.append((watched.state(), service.switches, service.burst_times))
    assert states[0] == states[1]


@pytest.mark.parametrize(
    "fields",
    [{"load_milli": -1}, {"load_milli": 0.5}, {"battery_percent": 101}, {"thermal": "cold"},
     {"is_on_battery": 2}, {"power_mw": True}],
)  # fmt: skip
def test_conditions_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Conditions"):
        Conditions(**fields)  # type: ignore[arg-type]
    assert Conditions.from_dict(Conditions(500, 80, True, "warm", 3000).to_dict()) == Conditions(
        500, 80, True, "warm", 3000
    )
