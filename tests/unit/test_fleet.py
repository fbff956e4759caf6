"""The fleet simulator: its marginals, its noise, its scores and its gates, and a small run."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fleet import cases, faults, ours, policies, run, service
from benchmarks.fleet.noise import CPU, GPU, Clock, draw_field, long_run
from benchmarks.fleet.population import Knobs, Population, draw, facts


def by_hand(cpu, gpu, startup, inferences, has=None):
    """A population of single pairs with one or more alternatives, its predictions all true."""
    cpu, gpu, startup = np.array(cpu), np.array(gpu), np.array(startup)
    n = np.array(inferences)
    there = np.ones(gpu.shape, bool) if has is None else np.array(has)
    zeros = np.zeros(len(cpu), np.int64)
    return Population(zeros, cpu * 0 + 1, there, zeros, cpu, gpu, startup, n, cpu, gpu, startup)


def test_marginals_are_those_of_the_paper() -> None:
    found = facts(draw(7, 20_000))
    for name, wanted, slack in (
        ("ratio >= 1", 0.50, 0.03), ("ratio >= 2", 0.23, 0.02), ("ratio >= 3", 0.11, 0.02),
        ("gles20", 1.0, 0.0), ("gles30", 0.83, 0.01), ("gles31", 0.52, 0.01),
        ("vulkan", 0.36, 0.01),
    ):  # fmt: skip
        assert abs(found[name] - wanted) <= slack, name


def test_apis_are_nested_and_stronger_devices_have_more() -> None:
    p = draw(7, 20_000)
    assert all((p.has[:, i] >= p.has[:, i + 1]).all() for i in range(3))
    strong = np.median(p.peak_ratio[p.has[:, 3]])
    assert strong > 1.2 * np.median(p.peak_ratio[~p.has[:, 1]])


@pytest.mark.parametrize("error", [1.2, 2.0, 4.0])
def test_the_cost_model_is_wrong_by_what_the_knob_says(error: float) -> None:
    p = draw(7, 10_000, Knobs(error=error))
    off = np.log(p.predicted_gpu / p.predicted_cpu[:, None]) - np.log(p.gpu / p.cpu[:, None])
    assert abs(off.std() - math.log(error)) < 0.04 * math.log(error)
    assert abs(off.mean()) < 0.05 * math.log(error)
    assert np.corrcoef(off[0::5, 0], off[1::5, 0])[0, 1] == pytest.approx(0.7, abs=0.05)
    assert np.corrcoef(off[:, 0], off[:, 3])[0, 1] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("cv", [0.3, 0.95])
def test_runs_vary_as_much_as_the_field(cv: float) -> None:
    p = draw(7, 400)
    field = draw_field(7, p, cv)
    assert field.cv == pytest.approx(cv, abs=1e-6)
    means, squares = [], []
    for i in range(0, 400, 4):  # one run each time, minutes apart: no cold costs, no ticks
        strengths = replace(field.pair(i), tick=1e-9)
        clock = Clock(strengths, (1.0, 1.0), random.Random(i), CPU)
        times = []
        for _ in range(150):
            clock.pass_time(300.0, CPU)
            times.append(clock.scaled[CPU] * clock.factor(CPU))
        means.append(np.mean(times))
        squares.append(np.mean(np.square(times)))
    assert np.mean(means) == pytest.approx(1.0, abs=0.04)
    found = math.sqrt(np.mean(squares) / np.mean(means) ** 2 - 1)
    assert found == pytest.approx(cv, rel=0.2)


def test_percentiles_of_the_long_run_are_those_of_runs() -> None:
    p = draw(7, 20)
    field = draw_field(7, p, 0.95)
    part = long_run(field, 90, seed=1)
    for i in (0, 9):
        clock = Clock(field.pair(i), (1.0, 1.0), random.Random(3), GPU)
        times = []
        for _ in range(4000):
            clock.pass_time(300.0, GPU)
            times.append(clock.scaled[GPU] * clock.factor(GPU))
        assert np.percentile(times, 90) == pytest.approx(part[i, GPU], rel=0.12)


def test_the_first_runs_of_a_gpu_are_slow_and_clocks_tick() -> None:
    p = draw(7, 20)
    quiet = replace(
        draw_field(7, p, 0.95).pair(0), load=0.0, scatter=0.0, heat=(0.0, 0.0), other=0.0,
        screen=0.0, spike=0.0, mean=(1.0, 1.0), tick=1e-3,
    )  # fmt: skip
    clock = Clock(quiet, (0.010, 0.010), random.Random(1))
    assert [clock.run(CPU) for _ in range(3)] == [12_000_000, 10_000_000, 10_000_000]
    shown = [clock.run(GPU) for _ in range(12)]
    assert shown[0] == 35_000_000  # its own 10 ms, 5 for the switch, 20 for being cold
    assert shown[:8] == sorted(shown[:8], reverse=True)
    assert set(shown[8:]) == {10_000_000}
    assert all(ns % 1_000_000 == 0 for ns in shown)


def test_scores_by_hand() -> None:
    # Twice as fast; 1.5x as slow; a win that start-up eats; the same with a second alternative.
    p = by_hand(
        [1.0, 1.0, 1.0, 1.0],
        [[0.5, 9.0], [1.5, 9.0], [0.5, 9.0], [0.5, 0.4]],
        [[0.0, 0.0], [0.0, 0.0], [10.0, 0.0], [0.0, 0.0]],
        [10, 10, 10, 10],
    )
    assert policies.oracle(p).tolist() == [0, -1, -1, 1]
    found = policies.score(p, np.array([-1, 0, 0, 0]))
    assert found["mean"] == pytest.approx((100 + 50 + 50 + 25) / 4)
    assert found["harm"] == 50.0
    assert found["harm of picks"] == pytest.approx(200 / 3)
    assert found["missed"] == 50.0
    assert found["missed of pairs"] == 25.0
    assert policies.score(p, policies.oracle(p))["p99"] == 0.0


def test_an_alternative_that_is_not_there_is_never_picked() -> None:
    p = by_hand([1.0], [[0.9, 0.1]], [[0.0, 0.0]], [10], has=[[True, False]])
    prior = np.array([[0.0, 1.0], [0.0, 1.0]])
    for pick in (policies.cost_model(p), policies.cost_model_shrunk(p, prior)):
        assert pick.tolist() == [0]


def test_ours_beats_what_needs_no_measuring_and_keeps_within_two_seconds() -> None:
    found = cases.decide("base", 7, 600)
    first, last = found["launches"][0], found["launches"][-1]
    p = draw(7, 600)
    shrunk = policies.score(p, policies.cost_model_shrunk(p, cases.prior()))
    assert first["mean"] < 0.75 * shrunk["mean"]
    assert last["mean"] < first["mean"]
    assert first["missed"] < 20 < policies.score(p, policies.always_cpu(p))["missed"] == 100
    assert found["run_s"][0] < 1.0
    assert found["over"] < 4.0  # launches that took longer: a run that was not foreseen
    assert found["opened"] < 60


def test_a_simulated_launch_is_the_same_twice() -> None:
    fleet = cases.drawn(7, 60)
    a, b = (ours.run(fleet, ours.Options(launches=3, has_comparison=True)) for _ in range(2))
    assert a.picks.tolist() == b.picks.tolist()
    assert a.run_s.tolist() == b.run_s.tolist()
    assert (a.picks >= -1).all()
    there = fleet.population.has[np.arange(60), np.maximum(a.picks, 0)]
    assert (there | (a.picks < 0)).all()


def test_faults_are_as_frequent_as_said_and_gates_stop_them() -> None:
    pairs = 200_000
    none, ours_ = (
        faults.simulate(7, pairs, cases.prior(), *faults.CASES[name])
        for name in ("no gates", "gpuedge (+ crosscheck)")
    )
    # wrong in its kernel class, at its shape
    expected = faults.WRONG * faults.SHAPES * none["gpu"]
    assert none["wrong"] == pytest.approx(expected, abs=4 * math.sqrt(expected))
    assert none["denied"] == 0 < none["stopped"]
    assert ours_["wrong"] <= 2
    assert ours_["wrong at gates"] < expected / 25
    assert ours_["stopped"] == 0
    assert ours_["denied"] < 0.001 * ours_["good"]


def test_unstable_alternatives_get_past_as_often_as_their_rate_says() -> None:
    rng = np.random.default_rng(5)
    shape = (200_000, 1)
    no = np.zeros(shape, bool)
    alternatives = faults.Alternatives(
        no, no, np.zeros((*shape, faults.CLASSES), bool), np.full(shape, 0.02), no, no
    )
    world = faults.World(transient=0.0, lasting=0.0)
    once = faults.denied(rng, alternatives, faults.Gates(has_retry=False), world).mean()
    assert once == pytest.approx(1 - 0.98**16, abs=0.005)
    asked = replace(alternatives, hit=~no)
    more = faults.denied(rng, asked, faults.Gates(has_retry=False), world).mean()
    assert more == pytest.approx(1 - 0.98**64, abs=0.005)
    twice = faults.denied(rng, alternatives, faults.Gates(), world).mean()
    assert twice == pytest.approx((1 - 0.98**16) ** 2, abs=0.005)


def test_entries_are_evidence_and_a_veto_denies_good_devices() -> None:
    kept, veto = (
        faults.simulate(7, 100_000, cases.prior(), *faults.CASES[name])
        for name in ("tests + entries as evidence", "tests + entries as veto")
    )
    assert kept["denied"] < 0.001 * kept["good"] < 0.008 * veto["good"] < veto["denied"]


def test_the_monitor_leaves_a_clearly_worse_alternative() -> None:
    fleet = cases.drawn(7, 200)
    begun = list(service.starts(fleet, ours.Options(launches=1), 12))
    assert len(begun) == 12
    gap = [
        math.log(fleet.population.gpu[s.index, s.alternative] / fleet.population.cpu[s.index])
        for s in begun
    ]
    at = int(np.argmax(np.abs(gap)))
    wrong = replace(begun[at], is_gpu=gap[at] > 0)  # in service on the slower one
    assert abs(gap[at]) > 0.3
    static = service.Service(fleet, wrong, "static", ours.Options().noise).hour()
    watched = service.Service(fleet, wrong, "monitor", ours.Options().noise).hour()
    assert static.is_harmed and static.switches == 0
    assert not watched.is_harmed and watched.switches >= 1
    assert watched.regret < 0.5 * static.regret


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys) -> None:
    asked = ["--seeds", "3", "--pairs", "40", "--jobs", "1", "--kinds", "compare"]
    run.main([*asked, "--out", str(tmp_path)])
    assert "## The population" in capsys.readouterr().out
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) == len(cases.names("compare"))
    changed = json.loads(files[0].read_text())
    files[1].unlink()
    files[0].write_text(json.dumps(changed | {"mark": 1}))
    run.main([*asked, "--out", str(tmp_path)])
    assert json.loads(files[0].read_text())["mark"] == 1  # was not run again
    assert files[1].exists()


def test_results_of_other_code_are_not_mixed_in(tmp_path, monkeypatch) -> None:
    before = {kind: run.digest(kind) for kind in run.CODE}
    for name in run.CODE["serve"] + run.CODE["gates"]:
        folder, _, module = name.partition("/")
        path = f"{run.FOLDERS[folder]}/{module}.py"
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        changed = b"\n" * (module in ("monitor", "faults"))
        (tmp_path / path).write_bytes((run.ROOT / path).read_bytes() + changed)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    after = {kind: run.digest(kind) for kind in run.CODE}
    assert {kind for kind in before if before[kind] != after[kind]} == {"serve", "gates"}
