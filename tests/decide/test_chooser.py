"""The chooser as a state machine: what holds after any sequence of events, and single rules."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide.belief import UNKNOWN, Belief
from gpuedge.decide.chooser import Chooser, Turn
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.decision_record import CPU, DeviceCandidate
from gpuedge.decide.options import DEFAULT
from gpuedge.decide.policy import Policy

MS, S = 10**6, 10**9
DEVICES = ("gles:0", "vulkan:0", "opencl:0")
STEPS = ("serve", "serve", "serve", "open", "opened", "cold", "late", "failed", "close", "closed",
         "wait")  # fmt: skip


def routes(*ratios: float, startup_ms: int = 50, **known: Belief) -> list[DeviceCandidate]:
    return [
        DeviceCandidate(
            device,
            phase="closed",
            predicted_ns=round(10 * MS * ratio),
            startup_ns=startup_ms * MS,
            belief=known.get(device[:4], UNKNOWN),
        )
        for device, ratio in zip(DEVICES, ratios, strict=False)
    ]


class World:
    """Serves one model; every device has a true latency."""

    def __init__(self, chooser: Chooser, seed: int = 0, noise: float = 0.2, **ms: float) -> None:
        self.chooser, self.rng, self.noise, self.now = chooser, random.Random(seed), noise, 0
        self.ms = {CPU: 10.0} | {d: ms.get(d[:4], 10.0) for d in DEVICES}
        self.served = 0
        self.turns: list[Turn] = []
        self.opened: list[str] = []
        self.switched: list[int] = []

    def time(self, side: str) -> int:
        ns = round(self.ms[side] * MS * self.rng.lognormvariate(0, self.noise))
        self.now += ns
        return ns

    def serve(self) -> None:
        chooser, pick = self.chooser, self.chooser.pick
        self.served += 1
        if chooser.calm:
            self.turns.append(Turn(pick, "serve"))
            chooser.note(self.time(pick))
        else:
            turn = chooser.turn(self.now)
            self.turns.append(turn)
            chooser.served(turn.side, self.time(turn.side), self.now)
        if chooser.pick != pick:
            self.switched.append(self.now)

    def manage(self) -> None:
        if device := self.chooser.wants_open(self.now):
            self.opened.append(device)
            self.chooser.opening(device)
            self.now += 50 * MS
            self.chooser.opened(device, 50 * MS, self.now, [self.time(device)])
        elif device := self.chooser.wants_close():
            self.chooser.closed(device)

    def run(self, requests: int) -> Chooser:
        for _ in range(requests):
            if not self.chooser.calm:
                self.manage()
            self.serve()
        return self.chooser


def check(world: World) -> None:
    """Assert what always holds; what is recorded is chosen again, in another process too."""
    chooser = world.chooser
    decision = decide(chooser.record(world.now))
    assert decision.device == chooser.pick
    assert Decision.from_dict(json.loads(decision.to_json())).replay() == decision
    phases = {d: c.phase for d, c in chooser.candidates.items()}
    assert chooser.pick == CPU or phases[chooser.pick] == "ready"
    assert chooser.calm >= 0
    assert chooser.answered == world.served
    turn = chooser.turn(world.now)
    if turn.kind == "trial":
        assert phases[turn.side] == "trial"
    else:
        assert turn.side == CPU or phases[turn.side] == "ready"
    wanted = chooser.wants_open(world.now)
    if wanted is not None:
        assert phases[wanted] in ("closed", "lost", "late")
        assert "opening" not in phases.values()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from(DEVICES)), max_size=60),
    st.integers(0, 9), st.booleans(), st.sampled_from([(), (3,), (500, 800)]),
    st.sampled_from([0.3, 0.9, 2.0]),
)  # fmt: skip
def test_any_sequence_of_events_leaves_it_consistent(
    steps: list[tuple[str, str]], seed: int, is_known: bool, past: tuple[int, ...], gpu: float
) -> None:
    known = {"gles": Belief(-500_000, 40_000, 2)} if is_known else {}
    chooser = Chooser(
        routes(0.3, 0.5, 1.2, startup_ms=20, **known), past_requests=past,
        cpu_ns=10 * MS if past else None,
    )  # fmt: skip
    world = World(chooser, seed, 0.6, gles=10 * gpu, vulk=8 * gpu, open=12.0)
    check(world)
    for step, device in steps:
        if step == "serve":
            world.serve()
        elif step == "wait":
            world.now += 20 * S
        elif step == "open" and (wanted := chooser.wants_open(world.now)):
            chooser.opening(wanted)
            assert chooser.wants_open(world.now) is None
        elif step in ("opened", "cold"):
            chooser.opened(device, 20 * MS, world.now, [world.time(device)] * (step == "opened"))
        elif step == "late":
            chooser.late(device, world.now)
        elif step == "failed":
            chooser.failed(device, world.now)
        elif step == "closed" or (step == "close" and chooser.wants_close() == device):
            chooser.closed(device)
        check(world)


def test_a_side_that_has_to_wait_takes_over_when_it_was_said_to() -> None:
    """Three changes within seconds: the third waits for the first to be a minute ago."""
    chooser = Chooser(routes(0.1, vulk=Belief(-2_000_000, 1_000, 9)))
    one = World(chooser, noise=0.0, gles=1.0)
    chooser.cpu_ns = 10 * MS

    def believe(mean: int) -> None:
        chooser.candidates["gles:0"].belief = Belief(mean, 1_000, 9)

    believe(-2_000_000)
    chooser.opening("gles:0")
    chooser.opened("gles:0", MS, one.now)
    one.serve()
    assert chooser.pick == "gles:0" and chooser.held_ns(one.now) == 0
    first = one.switched[0]
    believe(2_000_000)
    while chooser.pick != CPU:
        one.serve()
    believe(-2_000_000)
    waits = chooser.held_ns(one.now)
    assert waits == first + 60 * S - one.now > 50 * S
    due = one.now + waits
    while chooser.pick == CPU:
        assert one.now < due + 20 * MS  # the first request after that decides
        one.serve()
    assert one.now >= due


@settings(max_examples=10, deadline=None)
@given(st.floats(1, 40), st.floats(1, 40), st.floats(0.1, 8), st.integers(0, 99))
def test_a_launch_is_the_same_twice_and_switches_are_capped(
    gles: float, vulkan: float, predicted: float, seed: int
) -> None:
    def world() -> World:
        made = Chooser(routes(predicted, predicted), options=replace(DEFAULT, burst_gap_s=0.1))
        return World(made, seed, 0.8, gles=gles, vulk=vulkan)

    one, two = world(), world()
    one.run(800)
    two.run(800)
    assert one.turns == two.turns
    assert one.chooser.learnt() == two.chooser.learnt()
    for at in one.switched:
        assert sum(at <= t < at + 60 * S for t in one.switched) <= DEFAULT.switches_per_minute


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1, 40), st.floats(1, 40), st.floats(0.1, 8), st.integers(0, 99),
    st.sampled_from([None, 0.006, 0.02]),
)  # fmt: skip
def test_every_choice_follows_from_its_record(
    gles: float, vulkan: float, predicted: float, seed: int, deadline_s: float | None
) -> None:
    """The record alone says who answers, but while sides change too often or at a deadline."""
    policy, options = Policy(deadline_s=deadline_s), replace(DEFAULT, burst_gap_s=0.1)
    one = World(
        Chooser(routes(predicted, predicted), policy, options=options), seed, 0.8, gles=gles,
        vulk=vulkan,
    )  # fmt: skip
    free = 0
    for _ in range(300):
        one.run(1)
        record = one.chooser.record(one.now)
        assert decide(record).device == one.chooser.pick
        is_sure = deadline_s is None and one.chooser.turn(one.now).kind == "serve"
        if is_sure and "trial" not in {c.phase for c in record.candidates}:
            assert record.waits_ns == (one.chooser.held_ns(one.now) or None)
            free += record.waits_ns is None
    assert free > 10 or deadline_s is not None


def test_a_record_of_a_slower_gpu_is_chosen_otherwise() -> None:
    one = World(Chooser(routes(0.3)), gles=3.0)
    one.run(600)
    text = decide(one.chooser.record(one.now)).to_json()
    saved = json.loads(text)
    assert saved["device"] == "gles:0" == Decision.from_dict(saved).replay().device
    theta, *rest = saved["record"]["candidates"][0]["belief"]
    saved["record"]["candidates"][0]["belief"] = [theta + 2_000_000, *rest]
    assert Decision.from_dict(saved).replay().device == CPU


def test_what_was_opened_since_the_last_request_takes_over_after_the_next() -> None:
    known = Belief(-1_200_000, 20_000, 3)
    one = World(Chooser(routes(0.3, gles=known), cpu_ns=10 * MS), gles=3.0)
    one.chooser.opening("gles:0")
    one.chooser.opened("gles:0", 50 * MS, one.now)
    record = one.chooser.record(one.now)
    assert (record.in_use, record.waits_ns, decide(record).device) == (CPU, 0, CPU)
    assert [row.code for row in decide(record).rows] == ["takes-over", "selected"]
    one.serve()
    record = one.chooser.record(one.now)
    assert (record.in_use, record.waits_ns, decide(record).device) == ("gles:0", None, "gles:0")


def test_a_fast_gpu_is_taken_and_a_slow_one_is_closed() -> None:
    fast = World(Chooser(routes(0.3)), gles=3.0).run(600)
    assert fast.pick == "gles:0"
    believed = math.exp(fast.candidates["gles:0"].belief.theta)
    assert believed == pytest.approx(0.3, rel=0.3)
    slow = World(Chooser(routes(0.3)), gles=60.0)
    assert slow.run(2000).pick == CPU
    assert slow.opened == ["gles:0"]
    assert slow.chooser.candidates["gles:0"].phase == "lost"
    assert sum(t.side != CPU for t in slow.turns) <= 3


def test_nothing_is_opened_before_it_would_have_paid() -> None:
    """A start-up of 500 requests is not paid by the 100th, nor by the 400th."""
    world = World(Chooser(routes(0.3, startup_ms=5000)), gles=3.0)
    assert world.run(400).pick == CPU
    assert not world.opened
    world.run(2000)
    assert world.opened


def test_a_prediction_of_no_gain_opens_nothing() -> None:
    world = World(Chooser(routes(40.0)), gles=400.0)
    world.run(3000)
    assert not world.opened


def test_trials_are_answered_by_the_cpu_only_until_the_gpu_is_compared() -> None:
    world = World(Chooser(routes(0.3)), gles=3.0)
    world.run(300)
    kinds = [t.kind for t in world.turns if t.side != CPU]
    first = kinds.index("serve")
    assert set(kinds[:first]) == {"trial"}
    assert "trial" not in kinds[first:]


def test_history_opens_what_pays_at_load_and_nothing_else() -> None:
    known = Belief(-1_200_000, 20_000, 3)

    def at_load(
        *past: int, belief: Belief | None = known, cpu_ns: int | None = 10 * MS
    ) -> str | None:
        made = routes(0.3, **({"gles": belief} if belief else {}))
        return Chooser(made, past_requests=past, cpu_ns=cpu_ns).at_load()

    assert at_load(100, 200, 300) == "gles:0"
    assert at_load(1, 2, 3) is None
    assert at_load(100, belief=None) is None
    assert at_load() is None
    assert at_load(100, cpu_ns=None) is None
    assert at_load(100, belief=Belief(300_000, 20_000, 3)) is None


def test_a_trial_that_is_cut_off_is_learnt_with_what_it_has() -> None:
    one = World(Chooser(routes(0.3), past_requests=(10_000, 10_000)), noise=0.0, gles=9.0)
    while one.chooser.turn(one.now).kind != "trial":
        assert one.chooser.learnt() == {}
        one.run(1)
    one.run(4)
    chooser = one.chooser
    assert chooser.candidates["gles:0"].phase == "trial"
    learnt = chooser.learnt()["gles:0"]
    assert (learnt.belief.windows, learnt.predicted_ns, learnt.startup_ns) == (1, 3 * MS, 50 * MS)
    assert learnt.gpu_ns == round(chooser.cpu_ns * math.exp(learnt.belief.theta))
    chooser.failed("gles:0", one.now)
    assert chooser.learnt() == {}


def test_what_was_measured_before_serves_as_soon_as_it_is_open() -> None:
    chooser = Chooser(
        routes(0.3, gles=Belief(-1_200_000, 20_000, 3)), past_requests=(500,), cpu_ns=10 * MS
    )
    world = World(chooser, gles=3.0)
    chooser.opening(chooser.at_load() or "")
    chooser.opened("gles:0", 50 * MS, 0)
    world.run(3)
    assert chooser.pick == "gles:0"
    assert all(t.kind == "serve" for t in world.turns)


def test_a_route_that_stalls_comes_back_so_often_with_doubled_waiting() -> None:
    chooser = Chooser(routes(0.3))
    world = World(chooser)
    world.run(20)
    chooser.candidates["gles:0"].phase = "closed"
    now, waits = world.now, []
    for _ in range(DEFAULT.retries):
        chooser.opening("gles:0")
        chooser.late("gles:0", now)
        at = now + chooser.record(now).candidates[0].retry_ns
        assert chooser.wants_open(at - 1) is None
        assert chooser.wants_open(at) == "gles:0"
        waits.append((at - now) / S)
        now = at
    assert waits == [DEFAULT.retry_s * 2**k for k in range(DEFAULT.retries)]
    chooser.opening("gles:0")
    chooser.late("gles:0", now)
    assert chooser.candidates["gles:0"].phase == "failed"
    assert chooser.wants_open(now + 10**15) is None


def test_a_failed_route_never_serves_again() -> None:
    world = World(Chooser(routes(0.3, 0.4)), gles=3.0, vulk=4.0)
    world.run(400)
    dead = world.chooser.pick
    assert dead != CPU
    world.chooser.failed(dead, world.now)
    assert world.chooser.pick == CPU
    before = len(world.turns)
    world.run(2000)
    assert all(t.side != dead for t in world.turns[before:])
    assert world.chooser.pick not in (CPU, dead)  # the other one takes its place


def test_a_gpu_that_becomes_slow_is_left() -> None:
    world = World(Chooser(routes(0.3)), gles=3.0)
    assert world.run(600).pick == "gles:0"
    world.ms["gles:0"] = 40.0
    world.now += 60 * S
    for _ in range(30):
        world.run(40)
        world.now += 15 * S
    assert world.chooser.pick == CPU
    assert len(world.switched) <= 4


def test_a_side_in_use_is_left_only_for_one_that_is_clearly_better() -> None:
    """Noise moves the belief across break-even and back; switches cost as well."""
    world = World(Chooser(routes(0.3), Policy(monitor=False)), gles=3.0)
    found = world.run(600).candidates["gles:0"]
    assert world.chooser.switches == 1
    for theta, expected in ((-0.08, "gles:0"), (1.0, CPU), (-0.11, CPU), (-1.0, "gles:0")):
        world.now += 120 * S
        found.belief = Belief(round(theta * 1e6), 10_000, 9)
        world.chooser.calm = 0
        world.serve()
        assert world.chooser.pick == expected
        assert decide(world.chooser.record(world.now)).device == expected


def test_nothing_is_looked_at_again_where_the_caller_does_not_want_it() -> None:
    world = World(Chooser(routes(0.9), Policy(monitor=False)), gles=9.0)
    world.run(400)
    world.now += 600 * S
    world.run(4000)
    assert all(t.kind != "burst" for t in world.turns)


def test_a_side_that_keeps_the_deadline_is_taken_before_a_faster_one() -> None:
    chooser = Chooser(routes(0.9), Policy(deadline_s=0.009))
    world = World(chooser, noise=0.01, gles=8.5)
    world.run(200)
    assert chooser.pick == "gles:0"  # not 1.1 times as fast, but in time
