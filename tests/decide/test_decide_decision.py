"""The choice itself: every branch, its sentence, properties, and byte-identical replay."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from decide_states import (
    CASES,
    CPU,
    LATE_CPU,
    MS,
    OTHER_GPU,
    decided,
    measured,
    ppm,
    predicted,
    quadrature,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.core.errors import InputError
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision
from gpuedge.decide.options import DEFAULT

ALTERED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a GPU that was slower": ("faster", {"belief": [300_000, 20_000, 3]}, "cpu"),
    "less certain that it is faster": ("faster", {"belief": [-100_000, 500_000, 1]}, "cpu"),
    "a GPU that was faster": ("too little", {"belief": [-1_100_000, 20_000, 3]}, "vulkan:0"),
    "lost": ("faster", {"phase": "lost"}, "cpu"),
    "not open": ("faster", {"phase": "closed"}, "cpu"),
    "forbidden": ("faster", {"code": "quirk"}, "cpu"),
    "software": ("faster", {"is_software": True}, "cpu"),
    "demoted": ("two GPUs", {"is_demoted": True}, "vulkan:1"),
    "too late": ("deadline kept by a GPU", {"at_ns": 40 * MS}, "vulkan:1"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_replay_of_other_measurements_chooses_otherwise(name: str) -> None:
    case, change, device = ALTERED[name]
    before = CASES[case]
    saved = json.loads(before.to_json())
    saved["record"]["candidates"][0].update(change)
    changed = Decision.from_dict(saved)
    assert changed.device == before.device
    assert changed.replay().device == device != before.device


def test_replay_of_another_policy_chooses_otherwise() -> None:
    for change in ({"min_speedup": 4.0}, {"max_memory_bytes": 1}):
        saved = json.loads(decided(measured(1.2, memory_bytes=2), CPU).to_json())
        saved["record"]["policy"].update(change)
        assert Decision.from_dict(saved).device == "vulkan:0"
        assert Decision.from_dict(saved).replay().device == "cpu"


def loss(theta: float, var: float, k: float) -> tuple[float, float]:
    """E(k - X)+ and E(X - k)+ of a log-normal X that also varies by a tenth by itself."""
    return quadrature(theta, math.sqrt(var + 0.01), k, points=4000)


@settings(max_examples=60, deadline=None)
@given(st.floats(-2, 2), st.floats(0.001, 1.0), st.sampled_from([1.0, 1.1, 1.5, 3.0]))
def test_smaller_expected_loss_is_taken(theta: float, var: float, margin: float) -> None:
    gpu = predicted(phase="ready", belief=Belief(ppm(theta), ppm(var), 2))
    found = decided(gpu, CPU, min_speedup=margin)
    cpu_loss, gpu_loss = loss(theta, var, 1 / margin)
    row = found.rows[0]
    assert row.loss_cpu_ppm is not None and row.loss_gpu_ppm is not None
    assert row.loss_cpu_ppm / 1e6 == pytest.approx(cpu_loss, abs=2e-4)
    assert row.loss_gpu_ppm / 1e6 == pytest.approx(gpu_loss, abs=2e-4 + 1e-3 * gpu_loss)
    if abs(cpu_loss - gpu_loss) > 1e-3:
        assert (found.device == "vulkan:0") == (gpu_loss < cpu_loss)


def test_of_two_gpus_the_faster_one_is_weighed_against_the_cpu_wherever_it_stands() -> None:
    fast, faster = measured(1.5), measured(1.2, **OTHER_GPU)
    assert decided(fast, faster, CPU).device == "vulkan:1"
    assert decided(faster, fast, CPU).device == "vulkan:1"
    assert decided(fast, replace(fast, device="vulkan:1"), CPU).device == "vulkan:0"


@pytest.mark.parametrize("in_use", ["cpu", "vulkan:0"])
@pytest.mark.parametrize("theta", [-0.3, -0.14, -0.09, -0.05, 0.1])
def test_after_a_change_of_sides_only_a_third_of_the_loss_changes_them_again(
    in_use: str, theta: float
) -> None:
    """Compared with the integral of the loss: 1 at first, `Options.stay` after the first change."""
    gpu = predicted(theta, phase="ready", belief=Belief(ppm(theta), ppm(0.01), 3))
    cpu_loss, gpu_loss = loss(theta, 0.01, 1 / 1.1)
    for has_switched, stay in ((False, 1), (True, DEFAULT.stay)):
        found = decided(gpu, CPU, in_use=in_use, has_switched=has_switched)
        is_gpu = gpu_loss * stay < cpu_loss if in_use == "cpu" else gpu_loss < cpu_loss * stay
        assert found.device == ("vulkan:0" if is_gpu else "cpu")
        assert not {"takes-over"} & {row.code for row in found.rows}


def test_a_side_that_stays_although_the_other_one_is_a_little_better_says_so() -> None:
    even = measured(3.4, belief=Belief(ppm(-0.05), ppm(0.01), 3))
    on_gpu = decided(even, CPU, in_use="vulkan:0", has_switched=True)
    assert on_gpu.reason == (
        "Runs on vulkan:0 (Mali-G52): 1.08 times as fast as the CPU, 3.4 ms against 3.7 ms a "
        "request; changing back would gain too little."
    )
    assert on_gpu.rows[1].code == "too-little"
    assert on_gpu.rows[1].reason == "changing back to it would gain too little"
    better = measured(3.2, belief=Belief(ppm(-0.14), ppm(0.01), 3))
    on_cpu = decided(better, CPU, in_use="cpu", has_switched=True)
    assert on_cpu.rows[0].code == "too-little"
    assert "1.15 times as fast as the CPU, too little to change for" in on_cpu.reason


def test_opening_pays_once_the_losses_are_as_high_as_its_price() -> None:
    """Start-up and five runs of exp(theta + var / 2), against the loss of each request."""
    for theta, told in ((-1.1, 120), (0.7, 830), (-2.0, 81)):
        price = 200 + 5 * 3.7 * math.exp(theta + 0.6)
        after = price / (loss(theta, 1.2, 1 / 1.1)[0] * 3.7)
        assert after == pytest.approx(told, rel=0.02)
        assert f"pays after about {told} requests" in decided(predicted(theta), CPU).reason
        later = decided(predicted(theta, since=100_000), CPU, requests=100_050).reason
        assert "pays after about 100,000 requests; 100,050 were" in later


def test_of_gpus_that_keep_the_deadline_the_smaller_expected_loss_wins() -> None:
    even, fast = measured(3.6, at_ns=15 * MS), measured(1.2, at_ns=18 * MS, **OTHER_GPU)
    assert decided(even, fast, LATE_CPU, deadline_s=0.02).device == "vulkan:1"
    demoted = replace(fast, is_demoted=True)
    assert decided(even, demoted, LATE_CPU, deadline_s=0.02).device == "vulkan:0"


def test_a_gpu_that_only_the_deadline_speaks_for_says_so() -> None:
    """The faster GPU misses it; of those that ran, this one is the fastest at the percentile."""
    late, even = measured(1.2, at_ns=25 * MS), measured(3.6, at_ns=15 * MS, **OTHER_GPU)
    found = decided(late, even, replace(CPU, at_ns=18 * MS), deadline_s=0.02)
    assert found.reason == (
        "Runs on vulkan:1 (Adreno): keeps the deadline of 20 ms with 15 ms for 90 % of requests; "
        "the CPU needs 18 ms."
    )
    assert [row.code for row in found.rows] == ["misses-deadline", "selected", "not-best"]


@pytest.mark.parametrize("phase", ["", "closed", "opening", "late", "trial", "lost", "failed"])
def test_only_what_is_ready_is_taken(phase: str) -> None:
    assert decided(measured(1.2, phase=phase), CPU).device == "cpu"


def test_doubt_costs_a_choice_what_speed_alone_would_give() -> None:
    sure = measured(3.0, belief=Belief(ppm(-0.21), ppm(0.001), 9))
    assert decided(sure, CPU).device == "vulkan:0"
    assert decided(replace(sure, belief=Belief(ppm(-0.21), ppm(0.5), 1)), CPU).device == "cpu"


def test_start_up_of_a_ready_device_is_sunk() -> None:
    assert decided(measured(1.2, startup_ns=10**13), CPU).device == "vulkan:0"


@pytest.mark.parametrize("schema", ["gpuedge.decision/5", "gpuedge.decision/7"])
def test_other_versions_are_refused_by_name(schema: str) -> None:
    saved = {**decided(CPU).to_dict(), "schema": schema}
    with pytest.raises(InputError, match="of another version") as caught:
        Decision.from_dict(saved)
    assert schema in str(caught.value.known) and caught.value.code == "GE-203"
