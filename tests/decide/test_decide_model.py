"""The cost model against the formula by hand, and fitting against models it must recover."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decide_fakes import edge_cpu, edge_gpu, exact_seconds
from hypothesis import given
from hypothesis import strategies as st

from gpuedge.decide.cases import ORDER, case
from gpuedge.decide.fit import Sample, fit, quantile
from gpuedge.decide.model import MIN_SPREAD, DeviceModel
from gpuedge.executors.base import Work
from gpuedge.graph.cost import count

WORK = Work({"conv": 80e6, "map": 8e6}, bytes_moved=30e6, bytes_in=2e6, bytes_out=1e6, launches=10)


def test_formula_by_hand() -> None:
    # overhead 0.2 ms + 10 launches 0.3 ms + in 1 ms + out 1 ms + max(3 ms, 2 ms + 1 ms) = 5.5 ms
    found = edge_gpu().predict(WORK, 50)
    assert found.p50_ns == 5_500_000
    assert found.at_ns == 5_500_000
    assert found.p90_ns == round(5_500_000 * MIN_SPREAD)
    assert found.startup_ns == 100_000_000
    assert (found.low_ns, found.high_ns) == (1_833_333, 16_500_000)


def test_arithmetic_rules_when_it_is_longer() -> None:
    slow = edge_gpu(flops_per_s={"conv": 4e9, "matmul": 30e9, "map": 8e9})
    # 2.5 ms fixed as above + max(3, 20 + 1)
    assert slow.predict(WORK).p50_ns == 23_500_000


def test_spread_of_each_class_counts_for_its_own_share() -> None:
    noisy = edge_gpu(
        flops_per_s={"conv": 4e9, "matmul": 30e9, "map": 8e9},
        spread={"fixed": 2.0, "conv": 3.0, "map": 1.5},
    )
    assert noisy.predict(WORK).p90_ns == 2_500_000 * 2 + 20_000_000 * 3 + 1_500_000


@pytest.mark.parametrize(("percentile", "z"), [(90, 1.2815515655), (99, 2.3263478740)])
def test_percentiles_are_log_normal(percentile: int, z: float) -> None:
    found = edge_gpu(spread={"fixed": 2.0, "map": 2.0}).predict(WORK, percentile)
    sigma = math.log(2.0) / 1.2815515655
    assert found.at_ns == pytest.approx(5_500_000 * math.exp(sigma * z), rel=1e-6)


def test_what_was_not_calibrated_is_said_and_widens_the_claim() -> None:
    partial = edge_gpu(flops_per_s={"conv": 40e9}, transfer_out_bps=None, complete=False)
    found = partial.predict(Work({"matmul": 400e6}, bytes_in=2e6, bytes_out=1e6, launches=1))
    # 0.23 ms fixed + 1 ms in + 0.5 ms out at the slowest known rate + 10 ms as a convolution
    assert found.p50_ns == 11_730_000
    assert found.high_ns == 4 * found.p50_ns
    assert "(not timed: device to host, matrix products; estimated" in found.confidence
    assert "factor of 4" in found.confidence
    assert "factor of 3" in edge_gpu().predict(WORK).confidence


def test_class_that_was_not_timed_gets_a_likely_rate() -> None:
    partial = edge_gpu(flops_per_s={"conv": 40e9}, complete=False)
    # Products are arithmetic like convolutions, whatever memory does.
    assert partial.predict(Work({"matmul": 400e6}), 50).p50_ns == 10_200_000
    # Gathering: between one operation per eight bytes, 1.25e9, and convolutions, 40e9.
    likely = math.sqrt(1.25e9 * 40e9)
    found = partial.predict(Work({"map": 400e6}), 50)
    assert found.p50_ns == pytest.approx(200_000 + 400e6 / likely * 1e9, abs=1)
    assert "(not timed: other operators; estimated from what was)" in found.confidence
    both = edge_gpu(flops_per_s={"conv": 40e9, "matmul": 10e9}, bandwidth_bps=None)
    assert both.predict(Work({"map": 100e6}), 50).p50_ns == 10_200_000


def test_cut_short_calibration_claims_less_whatever_is_asked() -> None:
    partial, whole = edge_gpu(complete=False), edge_gpu()
    assert partial.predict(WORK).high_ns == 4 * partial.predict(WORK).p50_ns
    assert partial.predict(WORK).sigma_micro > whole.predict(WORK).sigma_micro


def test_round_trip_and_refusal_of_nonsense() -> None:
    model = edge_gpu(spread={"conv": 1.4})
    assert DeviceModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model
    bad: tuple[dict[str, Any], ...] = (
        {"launch_s": -1.0}, {"launch_s": float("nan")}, {"bandwidth_bps": 0.0},
        {"open_s": float("inf")}, {"flops_per_s": {"conv": 0.0}}, {"spread": {"conv": 0.5}},
    )  # fmt: skip
    for change in bad:
        with pytest.raises(ValueError, match="DeviceModel"):
            edge_gpu(**change)
    with pytest.raises(TypeError):
        edge_gpu(launch_s="fast")


@given(st.floats(1.0, 100.0), st.integers(1, 99))
def test_a_faster_device_is_never_predicted_slower(factor: float, percentile: int) -> None:
    base = edge_gpu().predict(WORK, percentile)
    fast = edge_gpu().scaled(factor).predict(WORK, percentile)
    assert fast.at_ns <= base.at_ns
    assert fast.startup_ns <= base.startup_ns
    assert fast.at_ns == pytest.approx(base.at_ns / factor, abs=2)


def samples_of(truth: DeviceModel, names: tuple[str, ...] = ORDER) -> list[Sample]:
    """What a noiseless device of these speeds would show."""
    found = []
    for name in names:
        made = case(name)
        work = replace(made.work, bytes_moved=made.work.bytes_moved - made.unread_bytes)
        warm = round(exact_seconds(truth, work) * 1e9)
        late = round(2e6 * work.launches)
        found.append(Sample(name, work, 0, warm + late, (warm,) * 5))
    return found


@pytest.mark.parametrize("truth", [edge_gpu(), edge_cpu(), edge_gpu().scaled(0.1)])
def test_fit_recovers_a_known_device(truth: DeviceModel) -> None:
    found = fit(truth.device, samples_of(truth), 0.1, complete=True)
    assert found.launch_s == pytest.approx(truth.launch_s, rel=0.05)
    assert found.overhead_s == pytest.approx(truth.overhead_s, rel=0.1)
    assert found.transfer_in_bps == pytest.approx(truth.transfer_in_bps, rel=0.25)
    assert found.flops_per_s["conv"] == pytest.approx(truth.flops_per_s["conv"], rel=0.1)
    assert found.flops_per_s["matmul"] == pytest.approx(truth.flops_per_s["matmul"], rel=0.1)
    assert found.compile_s_per_pass == pytest.approx(2e-3)
    assert found.open_s == 0.1


@pytest.mark.parametrize("truth", [edge_gpu(), edge_cpu(), edge_gpu().scaled(0.1)])
def test_fitted_model_predicts_other_work_within_its_claim(truth: DeviceModel) -> None:
    found = fit(truth.device, samples_of(truth), 0.0, complete=True)
    for work in (
        WORK,
        Work({"conv": 2e9, "map": 20e6}, 120e6, 600e3, 4e3, 60),
        Work({"matmul": 300e6}, 5e6, 4e3, 4e3, 3),
        Work({"map": 1e6}, 8e6, 4e6, 4e6, 1),
    ):
        predicted = found.predict(work, 50)
        # Far inside the claim: the formula is the truth here, so only fitting can err.
        assert predicted.p50_ns == pytest.approx(exact_seconds(truth, work) * 1e9, rel=0.4)


def test_fit_without_the_chain_blames_the_launch() -> None:
    found = fit("x", samples_of(edge_gpu(), ("tiny", "conv-small")), 0.0, complete=False)
    tiny = exact_seconds(edge_gpu(), Work(**count(case("tiny").graph)))
    assert found.launch_s == pytest.approx(tiny, rel=1e-6)
    assert found.overhead_s == 0.0
    assert found.bandwidth_bps is None
    assert set(found.flops_per_s) == {"conv"}


def test_fit_without_the_chain_is_bounded_by_graphs_of_more_launches() -> None:
    truth = edge_gpu(launch_s=50e-6, overhead_s=1e-3)
    tiny, conv = samples_of(truth, ("tiny", "conv-small"))
    whole = tiny.seconds
    # The convolution is packed and unpacked: two launches more, which cost no more than it does.
    more = replace(conv, work=replace(conv.work, launches=3), runs_ns=(round(1.25e6),) * 3)
    found = fit("x", [tiny, more], 0.0, complete=False)
    assert found.launch_s == pytest.approx((1.25e-3 - whole) / 2, rel=1e-6)
    assert found.launch_s + found.overhead_s == pytest.approx(whole, rel=1e-6)


def test_fit_from_a_small_copy_alone_bounds_every_way_a_byte_goes() -> None:
    truth = edge_gpu()
    found = fit("x", samples_of(truth, ("tiny", "conv-small", "copy-small")), 0.0, complete=False)
    rates = {found.bandwidth_bps, found.transfer_in_bps, found.transfer_out_bps}
    assert len(rates) == 1
    assert truth.transfer_out_bps is not None
    assert truth.bandwidth_bps is not None
    assert truth.transfer_out_bps < (found.bandwidth_bps or 0) < truth.bandwidth_bps


def test_fit_gives_no_rate_of_a_class_that_only_memory_bounds() -> None:
    found = fit("x", samples_of(edge_gpu(), ("tiny", "conv-small", "resident")), 0.0, False)
    assert set(found.flops_per_s) == {"conv"}


def test_differences_below_zero_never_give_an_infinite_rate() -> None:
    works = {n: Work(**count(case(n).graph)) for n in ORDER}
    same = [Sample(n, works[n], 0, 1000, (1000,) * 3) for n in ORDER]
    found = fit("x", same, 0.0, complete=True)
    assert found.launch_s == 0.0
    assert found.transfer_in_bps is not None
    assert found.transfer_in_bps <= works["inward"].bytes_in / (0.05 * 1e-6) * 1.001


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers(0, 100))
def test_quantile_against_numpy(values: list[int], percent: int) -> None:
    assert quantile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_cases_are_the_same_every_time_and_small() -> None:
    for name in ORDER:
        one, two = case(name), case(name)
        for key, value in one.graph.constants.items():
            np.testing.assert_array_equal(value, two.graph.constants[key])
            assert value.nbytes <= 4 << 20
        for key, value in one.inputs().items():
            np.testing.assert_array_equal(value, two.inputs()[key])
            assert set(np.unique(value)) <= {-3, -2, -1, 0, 1, 2, 3}
            assert len(np.unique(value)) > 1
