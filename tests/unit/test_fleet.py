"""The fleet simulator: its marginals, its noise, its accounts and its gates, and a small run."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fleet import cases, faults, run
from benchmarks.fleet.launch import COLUMNS, Launch, Memory, residual, simulate
from benchmarks.fleet.noise import CPU, GPU, Clock, cold_s, draw_field
from benchmarks.fleet.population import Knobs, draw, facts
from gpuedge.decide.belief import Belief
from gpuedge.decide.chooser import Chooser
from gpuedge.decide.options import DEFAULT


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
        clock = Clock(strengths, (7, i))
        times = []
        for _ in range(150):
            clock.pass_time(300.0, CPU)
            times.append(clock.run("cpu", 1.0) / 1e9)
        means.append(np.mean(times))
        squares.append(np.mean(np.square(times)))
    assert np.mean(means) == pytest.approx(1.0, abs=0.04)
    found = math.sqrt(np.mean(squares) / np.mean(means) ** 2 - 1)
    assert found == pytest.approx(cv, rel=0.2)


def test_the_first_runs_of_a_gpu_are_slow_and_clocks_tick() -> None:
    p = draw(7, 20)
    quiet = replace(
        draw_field(7, p, 0.95).pair(0), load=0.0, scatter=0.0, heat=(0.0, 0.0), own=(0.0, 0.0),
        spike=0.0, mean=(1.0, 1.0), tick=1e-3,
    )  # fmt: skip
    clock = Clock(quiet, (1,))
    clock.now = 1e-5  # not on the edge of a tick
    assert [clock.run("cpu", 0.010) for _ in range(2)] == [10_000_000, 10_000_000]
    shown = [clock.run("vulkan", 0.010) for _ in range(12)]
    assert shown[0] == 35_000_000  # its own 10 ms, 5 for the switch, 20 for being cold
    assert shown[:8] == sorted(shown[:8], reverse=True)
    assert set(shown[8:]) == {10_000_000}
    assert all(ns % 1_000_000 == 0 for ns in shown)
    assert clock.run("cpu", 0.010) == 12_000_000
    extra = 20 * sum(0.65**k for k in range(8)) / 1e3
    assert cold_s(0.010) == pytest.approx(extra)


@pytest.mark.parametrize("side", ["cpu", "vulkan"])
def test_runs_that_are_drawn_at_once_have_the_noise_of_single_ones(side: str) -> None:
    """The same mean, spread and correlation over a second of runs 0.2 s apart."""
    field = draw_field(7, draw(7, 20), 0.95)
    kind = CPU if side == "cpu" else GPU
    found = {}
    for name in ("single", "at once"):
        windows = []
        for i in range(700):
            clock = Clock(field.pair(3), (i, len(name)))
            clock.pass_time(500.0, kind)
            clock.last, clock.runs = side, {side: 99}
            if name == "single":
                ns = []
                for _ in range(12):
                    clock.pass_time(0.2 * clock.wait(), kind)
                    ns.append(clock.run(side, 0.02))
            else:
                ns = clock.runs_of(side, 0.02, 12, 0.2)
            windows.append(np.log(ns))
        logs = np.array(windows)
        found[name] = logs.mean(), logs.std(), logs.mean(axis=1).std()
    assert found["single"] == pytest.approx(found["at once"], rel=0.08, abs=0.04)
    assert found["single"][2] > 0.5 * found["single"][1]  # what a window shares


def launched(ratio: float = 0.25, requests: int = 400, **changes: object) -> tuple[Launch, dict]:
    """One launch of a model whose GPU is that much of the CPU's latency."""
    fleet = cases.fleet("cv .5", 7, 20)
    p = fleet.population
    shape = p.gpu.shape
    gpu = np.full(shape, 0.02 * ratio)
    has = np.zeros(shape, bool)
    has[:, 0] = True
    population = replace(
        p, cpu=np.full(len(p), 0.02), gpu=gpu, predicted_cpu=np.full(len(p), 0.02),
        predicted_gpu=gpu, startup=np.full(shape, 0.1), predicted_startup=np.full(shape, 0.1),
        has=has,
    )  # fmt: skip
    launch = Launch(replace(fleet, population=population, **changes), 3, 0, Memory())
    row = launch.serve(requests)
    return launch, dict(zip(COLUMNS, row, strict=True))


def test_everything_is_paid() -> None:
    launch, row = launched()
    assert row["requests"] == 400
    assert row["cpu"] == pytest.approx(400 * 0.02)
    assert row["oracle"] == pytest.approx(0.1 + 400 * 0.005)
    assert row["cold oracle"] == pytest.approx(0.1 + 400 * 0.005 + cold_s(0.005))
    assert row["priced oracle"] == pytest.approx(1.1 * (0.1 + 400 * 0.005))
    assert row["is_gpu"] == 1.0
    assert row["cost"] > row["cold oracle"] + 0.005 * DEFAULT.rough
    assert row["priced"] == pytest.approx(launch.cpu_s + 1.1 * launch.gpu_s)
    assert row["opening"] > 0.1
    assert launch.memory.requests == [400]
    assert "gles20" in launch.memory.beliefs


def test_a_gpu_that_is_predicted_to_be_slow_costs_nothing() -> None:
    _, row = launched(40.0)
    assert row["cost"] == pytest.approx(row["cpu"]) == row["oracle"]
    assert (row["opened"], row["measured"], row["is_gpu"]) == (0, 0, 0)


def test_the_second_launch_begins_where_the_first_ended() -> None:
    launch, first = launched()
    again = Launch(launch.fleet, 3, 1, launch.memory)
    row = dict(zip(COLUMNS, again.serve(400), strict=True))
    assert row["cost"] < first["cost"]
    assert row["measured"] < first["measured"]
    assert launch.memory.requests == [400, 400]


def test_a_residual_is_that_of_the_other_models() -> None:
    fleet = cases.fleet("paper .95", 7, 10)
    p = fleet.population
    said = round(1e6 * math.log(p.predicted_gpu[1, 0] / p.predicted_cpu[1]))
    memories = {0: Memory(), 1: Memory(beliefs={"gles20": Belief(said + 300_000, 10_000, 1)})}
    assert residual(fleet, memories, 0) == pytest.approx(0.3, abs=1e-5)
    assert residual(fleet, memories, 1) == 0.0


@pytest.mark.parametrize("fault", ["crash", "hang", "wrong"])
def test_a_broken_driver_is_paid_for_and_left(fault: str) -> None:
    fleet = cases.fleet("cv .5", 7, 20)
    launch = Launch(fleet, 3, 0, Memory())
    device = next(iter(launch.startup))
    route = launch.chooser.candidates[device]
    launch.chooser = Chooser([replace(route, predicted_ns=1000, startup_ns=1000)])
    launch.faults = {device: fault}
    row = dict(zip(COLUMNS, launch.serve(3000), strict=True))
    assert row["is_gpu"] == 0.0
    assert row["cost"] > row["cpu"]
    assert row["wrong"] == 0.0
    assert launch.chooser.candidates[device].phase in ("failed", "late")


def test_a_small_fleet_keeps_within_bounds() -> None:
    """With room: figures of a few pairs vary."""
    rows, hours = simulate(cases.fleet("paper .95", 7, 150), 5, 5)
    assert rows.shape == (5, 150, len(COLUMNS))
    first, fifth = (cases.figures(rows[k]) for k in (0, 4))
    assert first["median"] < 3
    assert first["mean"] < 30
    assert fifth["mean"] < 15
    assert fifth["total"] < 8
    assert fifth["harm"] < 10
    assert first["opened"] < 60
    assert len(hours) == 5
    assert (rows[:, :, COLUMNS.index("cost")] >= rows[:, :, COLUMNS.index("oracle")] - 1e-9).all()
    assert rows[:, :, COLUMNS.index("most")].max() <= DEFAULT.switches_per_minute


def test_a_simulated_fleet_is_the_same_twice() -> None:
    one, two = (simulate(cases.fleet("broken and lying drivers", 7, 15), 2, 0)[0] for _ in range(2))
    assert one.tolist() == two.tolist()


def test_figures_by_hand() -> None:
    rows = np.zeros((4, len(COLUMNS)))
    at = {name: k for k, name in enumerate(COLUMNS)}
    rows[:, at["cost"]] = [1.0, 1.5, 2.0, 4.0]
    rows[:, at["cpu"]] = [1.0, 1.0, 4.0, 4.0]
    rows[:, at["oracle"]] = [1, 1, 2, 1]
    rows[:, at["cold oracle"]] = [1, 1, 2, 2]
    rows[:, at["priced oracle"]] = [1, 1, 2.2, 1.1]
    rows[:, at["priced"]] = [1, 1.65, 2.2, 4.0]
    rows[3, at["is_missed"]] = 1
    found = cases.figures(rows)
    assert found["mean"] == pytest.approx(100 * (0 + 0.5 + 0 + 3) / 4)
    assert found["median"] == pytest.approx(25.0)
    assert found["total"] == pytest.approx(100 * (8.5 / 5 - 1))
    assert found["cold mean"] == pytest.approx(100 * (0.5 + 1) / 4)
    assert found["harm"] == 25.0
    assert found["missed"] == 50.0


def test_faults_are_as_frequent_as_said_and_gates_stop_them() -> None:
    pairs = 200_000
    none, ours_ = (
        faults.simulate(7, pairs, *faults.CASES[name]) for name in ("no gates", faults.OURS)
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
        faults.simulate(7, 100_000, *faults.CASES[name])
        for name in ("tests + entries as evidence", "tests + entries as veto")
    )
    assert kept["denied"] < 0.001 * kept["good"] < 0.008 * veto["good"] < veto["denied"]


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys) -> None:
    asked = ["--seeds", "3", "--gates", "2000", "--jobs", "1", "--kinds", "gates"]
    run.main([*asked, "--out", str(tmp_path)])
    assert "## Gates" in capsys.readouterr().out
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) == len(faults.CASES)
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
        changed = b"\n" * (module == "chooser")
        (tmp_path / path).write_bytes((run.ROOT / path).read_bytes() + changed)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    after = {kind: run.digest(kind) for kind in run.CODE}
    assert {kind for kind in before if before[kind] != after[kind]} == {"serve"}
