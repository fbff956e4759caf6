"""Rules beside the expected loss: deadline, memory, energy, demotion, and what is kept."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from decide_fakes import MS, ms

from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.attempts import in_service, next_attempt, outcome, with_trial
from gpuedge.decide.belief import SHARE_PPM, Belief
from gpuedge.decide.conditions import Conditions
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import BY_NAME, Evidence, Record
from gpuedge.decide.store import MAX_WINDOWS
from gpuedge.decide.trial import Trial


def gpu(at: float = 2.0, device: str = "vulkan:0", startup: float = 0.0, **more: Any) -> Evidence:
    return Evidence(device, is_software=False, prediction=ms(at, startup), **more)


def cpu(at: float = 6.0, **more: Any) -> Evidence:
    return Evidence("cpu", is_software=False, prediction=ms(at), **more)


def made(*candidates: Evidence, previous: str = "", **policy: Any) -> Decision:
    decision = decide(
        Record("auto", Policy(**policy), candidates, "0.1.0", "cached", previous=previous)
    )
    text = decision.to_json()
    loaded = Decision.from_dict(json.loads(text))
    assert loaded == decision
    assert loaded.replay().to_json() == text
    assert all(r.code in SENTENCES and r.reason for r in decision.rows)
    assert str(decision).startswith(decision.reason)
    return decision


def codes(decision: Decision) -> dict[str, str]:
    return {r.device: r.code for r in decision.rows}


# -- deadline ---------------------------------------------------------------------------------


def test_device_that_misses_the_deadline_is_out() -> None:
    decision = made(gpu(3.0), gpu(2.0, "vulkan:1"), cpu(2.4), deadline_s=0.0025, min_speedup=1.0)
    assert decision.device == "cpu"
    assert codes(decision)["vulkan:0"] == "misses-deadline"
    assert decision.rows[0].reason == "needs 3 ms, and the deadline is 2.5 ms"


def test_gpu_that_meets_a_deadline_the_cpu_misses_is_taken_although_little_faster() -> None:
    assert made(gpu(5.5), cpu(6.0)).device == "cpu"
    decision = made(gpu(5.5), cpu(6.0), deadline_s=0.0058)
    assert decision.device == "vulkan:0"
    assert "the CPU path misses the deadline of 5.8 ms" in decision.reason
    assert "every inference within 5.8 ms" in str(decision)


def test_where_all_miss_the_deadline_the_fastest_is_taken() -> None:
    decision = made(gpu(5.5), gpu(5.0, "vulkan:1"), cpu(6.0), deadline_s=0.001)
    assert decision.device == "vulkan:1"
    assert codes(decision)["vulkan:0"] == "misses-deadline"
    assert made(gpu(7.0), cpu(6.0), deadline_s=0.001).device == "cpu"


def test_deadline_that_all_meet_changes_nothing() -> None:
    for at in (2.0, 5.5, 7.0):
        assert made(gpu(at), cpu(), deadline_s=1.0).device == made(gpu(at), cpu()).device


# -- memory -----------------------------------------------------------------------------------


def test_plan_that_takes_more_memory_than_allowed_is_out() -> None:
    big = gpu(memory_bytes=3 << 29)
    decision = made(big, cpu(), max_memory_bytes=1 << 30)
    assert decision.device == "cpu"
    assert codes(decision)["vulkan:0"] == "too-much-memory"
    assert "the model takes 1.5 GiB of device memory; at most 1 GiB is allowed" in str(decision)
    assert made(big, cpu(), max_memory_bytes=3 << 29).device == "vulkan:0"
    assert made(gpu(), cpu(), max_memory_bytes=1).device == "vulkan:0"  # not known: not refused


# -- energy -----------------------------------------------------------------------------------


def test_energy_decides_where_it_is_metered() -> None:
    slow_but_frugal = gpu(8.0, energy_uj=3_000)
    decision = made(slow_but_frugal, cpu(energy_uj=9_000), prefer="energy")
    assert decision.device == "vulkan:0"
    assert "it uses less energy, 3 mJ for an inference, against 9 mJ on the CPU" in decision.reason
    assert "energy: decides, as metered on vulkan:0, cpu" in str(decision)
    thirsty = made(gpu(2.0, energy_uj=9_001), cpu(energy_uj=9_000), prefer="energy")
    assert thirsty.device == "cpu"
    assert codes(thirsty)["vulkan:0"] == "more-energy"
    assert made(gpu(2.0, energy_uj=9_001), cpu(energy_uj=9_000)).device == "vulkan:0"
    assert made(gpu(2.0, energy_uj=9), cpu(energy_uj=9), prefer="energy").device == "cpu"


def test_of_several_the_most_frugal_is_taken() -> None:
    decision = made(
        gpu(2.0, energy_uj=5_000), gpu(9.0, "vulkan:1", energy_uj=4_000), cpu(energy_uj=9_000),
        prefer="energy",
    )  # fmt: skip
    assert decision.device == "vulkan:1"


def test_frugal_device_must_keep_the_deadline() -> None:
    decision = made(
        gpu(8.0, energy_uj=3_000), cpu(energy_uj=9_000), prefer="energy", deadline_s=0.007
    )
    assert decision.device == "cpu"
    assert codes(decision)["vulkan:0"] == "misses-deadline"


@pytest.mark.parametrize(("mine", "host"), [(None, None), (5, None), (None, 5)])
def test_without_a_meter_latency_decides_and_it_is_said(mine: int | None, host: int | None) -> None:
    decision = made(gpu(2.0, energy_uj=mine), cpu(energy_uj=host), prefer="energy")
    assert decision.device == "vulkan:0"
    assert "energy: wanted, but not metered on both the CPU and a GPU" in str(decision)


# -- the capability database ------------------------------------------------------------------


def test_demoted_device_is_taken_only_where_no_other_is_worth_it() -> None:
    slow = {"is_demoted": True, "entries": ["mesa-slow"]}
    behind = gpu(1.0, restrictions=slow, entries=("mesa-slow",))
    decision = made(behind, gpu(2.0, "vulkan:1"), cpu())
    assert decision.device == "vulkan:1"
    assert codes(decision)["vulkan:0"] == "demoted"
    alone = made(behind, cpu())
    assert alone.device == "vulkan:0"
    assert "demoted by the capability database" in alone.reason
    assert "vulkan:0: entries in force: mesa-slow" in str(alone)
    assert alone.rows[0].entries == ("mesa-slow",)


def test_blocked_device_is_told_with_its_entries() -> None:
    blocked = Evidence("vulkan:0", "quirk", "adreno-crash forbids it", entries=("adreno-crash",))
    decision = made(blocked, cpu())
    assert (decision.device, codes(decision)["vulkan:0"]) == ("cpu", "quirk")
    assert "adreno-crash forbids it" in decision.reason
    assert "vulkan:0: entries in force: adreno-crash" in str(decision)


# -- caution ----------------------------------------------------------------------------------


def test_gpu_that_may_do_harm_is_left_with_the_figures() -> None:
    wide = Belief(-600_000, 800_000, 0)
    open_minded = made(gpu(belief=wide), cpu(), min_speedup=1.0)
    assert open_minded.device == "vulkan:0"
    careful = made(gpu(belief=wide), cpu(), min_speedup=1.0, caution=0.1)
    assert (careful.device, codes(careful)["vulkan:0"]) == ("cpu", "unsure")
    assert "more than a tenth slower than the CPU path with a probability of 23 %" in careful.reason
    assert "at most 10 % is allowed" in careful.reason


# -- hysteresis -------------------------------------------------------------------------------


def test_choice_of_an_earlier_launch_is_kept_where_nothing_clearly_beats_it() -> None:
    # Break-even at 1.2x and V = .24 ** 2 + .01: E(X) = 1 / 1.2 at theta = -0.2161
    for theta, kept, fresh in (
        (-0.206, "vulkan:0", "cpu"),
        (-0.180, "cpu", "cpu"),
        (-0.226, "vulkan:0", "vulkan:0"),
    ):
        known = gpu(belief=Belief(round(theta * 1e6), 10_000, 3))
        assert made(known, cpu()).device == fresh
        assert made(known, cpu(), previous="vulkan:0").device == kept
    known = gpu(belief=Belief(-226_000, 10_000, 3))
    decision = made(known, cpu(), previous="cpu")
    assert decision.device == "cpu"
    assert codes(decision) == {"vulkan:0": "kept", "cpu": "kept"}
    assert "an earlier launch chose cpu, and changing is expected to save only" in decision.reason
    clear = gpu(belief=Belief(-400_000, 10_000, 3))
    assert made(clear, cpu(), previous="cpu").device == "vulkan:0"


def test_kept_gpu_says_so() -> None:
    known = gpu(belief=Belief(-206_000, 10_000, 3))
    decision = made(known, cpu(), previous="vulkan:0")
    assert codes(decision) == {"vulkan:0": "kept", "cpu": "not-best"}
    assert "an earlier launch chose vulkan:0" in decision.reason


def test_of_two_gpus_the_earlier_one_is_kept_unless_clearly_beaten() -> None:
    one = gpu(belief=Belief(-700_000, 10_000, 3))
    near = gpu(device="vulkan:1", belief=Belief(-720_000, 10_000, 3))
    far = gpu(device="vulkan:1", belief=Belief(-900_000, 10_000, 3))
    assert made(one, near, cpu()).device == "vulkan:1"
    assert made(one, near, cpu(), previous="vulkan:0").device == "vulkan:0"
    assert made(one, far, cpu(), previous="vulkan:0").device == "vulkan:1"


@pytest.mark.parametrize(
    "changes",
    [{"code": "device-lost", "prediction": None}, {"code": "quirk"}, {"is_software": True},
     {"belief": Belief(-206_000, 10_000, 0)}, {"restrictions": {"is_demoted": True}}],
)  # fmt: skip
def test_nothing_is_kept_that_is_ruled_out_or_was_never_measured(changes: dict[str, Any]) -> None:
    known = replace(gpu(belief=Belief(-206_000, 10_000, 3)), **changes)
    assert made(known, cpu(), previous="vulkan:0").device == "cpu"


def test_device_that_is_gone_is_not_kept() -> None:
    assert made(gpu(), cpu(), previous="vulkan:7").device == "vulkan:0"


# -- attempts ---------------------------------------------------------------------------------


def drive(trial: Trial, cpu_ms: float, gpu_ms: float, seed: int = 0, noise: float = 0.1) -> None:
    rng, now = random.Random(seed), 0
    while (alternative := trial.next(now)) is not None:
        ns = round((cpu_ms if alternative == "cpu" else gpu_ms) * MS * rng.lognormvariate(0, noise))
        now += ns
        trial.add(alternative, ns)


def test_wrong_prediction_is_found_out_by_a_trial() -> None:
    slow = made(gpu(5.0), cpu())
    assert slow.device == "cpu"
    attempt = next_attempt(slow)
    assert attempt is not None
    assert (attempt.device, attempt.why) == ("vulkan:0", "unsettled")
    attempt.trial.started(30 * MS)
    drive(attempt.trial, 6.0, 1.5)
    decision = made(*with_trial(slow, "vulkan:0", attempt.trial).record.candidates)
    assert decision.device == "vulkan:0"
    row = decision.rows[0]
    assert (row.confidence, row.code) == ("1 window", "selected")
    assert row.belief == attempt.trial.belief
    assert row.verdict == attempt.trial.verdict
    assert "measured" in decision.reason
    assert "with 30 ms of start-up spread over 1000 inferences" in decision.reason
    text = str(decision)
    assert "calibration predicted 1.2x, " in text and "standard deviations away" in text
    assert "until the choice was sure enough" in text or "until more runs would" in text
    assert next_attempt(decision) is None  # one trial in a launch
    assert outcome(decision, "vulkan:0") == (row.belief, attempt.trial.stakes.cpu_ns)
    assert outcome(slow, "vulkan:0") is None


def test_gpu_that_measures_slower_is_left_with_the_figures() -> None:
    fast = made(gpu(1.0), cpu())
    assert fast.device == "vulkan:0"
    attempt = next_attempt(fast)
    assert attempt is not None
    drive(attempt.trial, 6.0, 12.0)
    decision = made(*with_trial(fast, "vulkan:0", attempt.trial).record.candidates)
    assert (decision.device, codes(decision)["vulkan:0"]) == ("cpu", "measured-slower")
    assert decision.reason.startswith("Runs on cpu: vulkan:0 was measured ")
    assert "1.2x as fast is asked for" in decision.reason


def test_gpu_is_not_taken_on_prediction_alone_where_a_trial_is_to_be_had() -> None:
    sure = made(gpu(0.01), cpu(6.0))
    assert sure.rows[0].verdict is not None
    assert sure.rows[0].verdict.is_settled
    attempt = next_attempt(sure)
    assert attempt is not None
    assert attempt.why == "unmeasured"


def test_screened_out_devices_are_drawn_at_random() -> None:
    for number, why in (
        (None, None),
        (SHARE_PPM, None),
        (SHARE_PPM - 1, "exploration"),
        (0, "exploration"),
    ):
        screened = made(gpu(600.0, draw=number), cpu())
        assert screened.rows[0].confidence == "screened"
        attempt = next_attempt(screened)
        assert (attempt.why if attempt else None) == why


def test_exploration_finds_a_prediction_that_is_off_by_a_factor_of_a_thousand() -> None:
    screened = made(gpu(600.0, draw=1), cpu(6.0))
    attempt = next_attempt(screened)
    assert attempt is not None
    drive(attempt.trial, 6.0, 0.6)
    again = with_trial(screened, "vulkan:0", attempt.trial)
    assert again.rows[0].belief is not None
    assert again.rows[0].belief.theta < 0  # from +4.6: a window of .2 outweighs a claim of .7


def test_best_of_several_is_tried() -> None:
    decision = made(gpu(3.0), gpu(2.0, "vulkan:1"), gpu(9.0, "vulkan:2"), cpu())
    attempt = next_attempt(decision)
    assert attempt is not None
    assert attempt.device == "vulkan:1"
    skipped = next_attempt(decision, skip={"vulkan:1"})
    assert skipped is not None
    assert skipped.device == "vulkan:0"
    assert next_attempt(decision, skip={"vulkan:0", "vulkan:1", "vulkan:2"}) is None


def test_windows_end_when_all_is_settled_or_enough_were_had() -> None:
    def attempt(belief: Belief, **more: Any) -> bool:
        return next_attempt(made(gpu(belief=belief, **more), cpu())) is not None

    assert attempt(Belief(-150_000, 40_000, MAX_WINDOWS - 1))
    assert not attempt(Belief(-150_000, 40_000, MAX_WINDOWS))
    assert not attempt(Belief(-3_000_000, 10_000, 1))
    assert not attempt(Belief(-150_000, 40_000, 2), served=5)


def test_nothing_is_tried_where_a_device_was_named() -> None:
    named = decide(Record("vulkan:0", Policy(), (gpu(), cpu()), "0.1.0", BY_NAME))
    assert next_attempt(named) is None


def test_earlier_windows_are_told_and_go_on() -> None:
    known = gpu(belief=Belief(-250_000, 20_000, 2), base_ns=7 * MS, startup_ns=10 * MS)
    first = made(known, cpu())
    assert first.rows[0].confidence == "2 windows"
    attempt = next_attempt(first)
    assert attempt is not None
    assert attempt.trial.stakes.startup_ns == 10 * MS
    drive(attempt.trial, 7.0, 4.0)
    decision = made(*with_trial(first, "vulkan:0", attempt.trial).record.candidates)
    assert decision.rows[0].confidence == "3 windows"
    assert decision.rows[0].verdict is not None
    assert not decision.rows[0].verdict.is_settled
    assert next_attempt(decision) is None  # but not before another launch
    assert "1.8x as fast as the CPU path by these runs alone" in str(decision)
    assert "earlier launches measured 1.3x, 1.2 standard deviations away" in str(decision)


def test_figures_of_service_take_the_place_of_trials() -> None:
    first = made(gpu(2.0), cpu())
    decision = in_service(first, "vulkan:0", Belief(400_000, 5_000, 30), 6 * MS, 5000)
    assert decision.device == "cpu"
    assert decision.rows[0].confidence == "in service"
    assert "in service, 5000 requests" in str(decision)
    assert next_attempt(decision) is None
    made(*decision.record.candidates)


# -- what the lines say -----------------------------------------------------------------------


def test_break_even_and_turning_point_are_where_the_choice_turns() -> None:
    decision = made(gpu(2.0, startup=100.0), cpu())
    line = next(x for x in str(decision).splitlines() if "pays from" in x)
    assert line.startswith("vulkan:0: start-up pays from 42 inferences on; ")
    assert made(gpu(2.0, startup=100.0), cpu(), inferences=42).device == "vulkan:0"
    assert made(gpu(2.0, startup=100.0), cpu(), inferences=41).device == "cpu"
    assert line.endswith("the CPU path would be taken if this device needed over 3.74 ms at p90")
    for at, device in ((3.73, "vulkan:0"), (3.75, "cpu")):
        assert made(gpu(at, startup=100.0), cpu()).device == device


def test_hopeless_start_up_is_said_and_never_paying_promises_nothing() -> None:
    never = str(made(gpu(8.0), cpu()))
    assert "pays from" not in never
    assert "it would be taken if it needed less than" in never
    hopeless = str(made(gpu(2.0, startup=10_000.0), cpu(), inferences=10))
    assert "start-up alone, 10 s, outweighs 10 inferences on the CPU path; start-up" in hopeless


def test_conditions_and_database_are_recorded_and_told() -> None:
    now = Conditions(load_milli=310, battery_percent=80, is_on_battery=True, thermal="warm")
    record = Record("auto", Policy(), (gpu(), cpu()), "1", "", "7 ae70a3920baf", now)
    text = str(decide(record))
    assert "capability database: version 7 (ae70a3920baf)" in text
    assert "machine: load 31 %, on battery, battery at 80 %, thermal state warm" in text
    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record
