"""Energy of an inference, from counters laid out as Linux lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from flaky import graph
from scripted_fakes import ScriptedPool, World

from gpuedge.decide.policy import Policy
from gpuedge.runtime.compiled import CompiledModel, Request
from gpuedge.runtime.conditions import Sources
from gpuedge.runtime.meters import Meter, find

ZONE = "sys/class/powercap/intel-rapl:"
BATTERY = "sys/class/power_supply/BAT0/"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    return World(monkeypatch)


def write(root: Path, path: str, text: object) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def zone(root: Path, number: str, name: str, energy: int = 0) -> None:
    write(root, f"{ZONE}{number}/name", name)
    write(root, f"{ZONE}{number}/energy_uj", energy)
    write(root, f"{ZONE}{number}/max_energy_range_uj", 10_000_000)


def test_no_meter_no_energy(tmp_path: Path) -> None:
    assert find(Sources(tmp_path)) is None
    zone(tmp_path, "0:0", "core")  # a part of a package
    assert find(Sources(tmp_path)) is None
    write(tmp_path, ZONE + "0/name", "package-0")
    write(tmp_path, ZONE + "0/energy_uj", "")  # not ours to read
    assert find(Sources(tmp_path)) is None


def test_package_sees_only_what_is_in_it(tmp_path: Path) -> None:
    zone(tmp_path, "0", "package-0")
    meter = find(Sources(tmp_path))
    assert meter is not None and not meter.sees_all
    assert meter.sees("INTEGRATED_GPU") and meter.sees("cpu")
    assert not meter.sees("DISCRETE_GPU") and not meter.sees(None)
    zone(tmp_path, "1", "psys")
    meter = find(Sources(tmp_path))
    assert meter is not None and meter.sees("DISCRETE_GPU") and meter.sees(None)


def test_energy_of_a_run_is_that_of_a_window(world: World, tmp_path: Path) -> None:
    zone(tmp_path, "0", "package-0", 5_000_000)
    meter = find(Sources(tmp_path))
    assert meter is not None
    energy = [5_000_000]

    def run() -> None:  # 10 ms at 2 W
        world.clock.spend(0.01)
        energy[0] = (energy[0] + 20_000) % 10_000_000
        zone(tmp_path, "0", "package-0", energy[0])

    assert meter.per_run(run) == 20_000
    energy[0] = 9_900_000  # the counter begins again within the window
    assert meter.per_run(run) == 20_000


def test_energy_that_a_meter_does_not_see_is_unknown(world: World) -> None:
    assert Meter(lambda: 7).per_run(lambda: world.clock.spend(0.01)) is None
    assert Meter(lambda: None).per_run(lambda: world.clock.spend(0.01)) is None


def test_battery_that_drains_is_a_meter_of_everything(world: World, tmp_path: Path) -> None:
    write(tmp_path, BATTERY + "type", "Battery")
    write(tmp_path, BATTERY + "power_now", 6_000_000)
    write(tmp_path, BATTERY + "status", "Charging")
    assert find(Sources(tmp_path)) is None
    write(tmp_path, BATTERY + "status", "Discharging")
    meter = find(Sources(tmp_path))
    assert meter is not None and meter.sees("DISCRETE_GPU")
    found = meter.per_run(lambda: world.clock.spend(0.01))
    assert found == pytest.approx(60_000, rel=0.01)  # 6 W for 10 ms


# -- deciding by it -------------------------------------------------------------------------------


def metered(world: World, monkeypatch: pytest.MonkeyPatch, watts: dict[str, float]) -> ScriptedPool:
    """Return a pool whose alternatives take so many watts, on a meter that sees everything."""
    pool = world.pool(10.0, 12.0)
    world.predict(10.0, 12.0)

    def read() -> int:
        return round(
            sum(pool.spent[alternative] * watts[alternative] for alternative in watts) * 1e6
        )

    monkeypatch.setattr("gpuedge.runtime.meters.find", lambda: Meter(read, sees_all=True))
    return pool


def test_gpu_that_takes_less_energy_is_taken_though_it_is_slower(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = metered(world, monkeypatch, {"cpu": 10.0, "gpu": 2.0})
    policy = Policy(prefer="energy")
    compiled = CompiledModel(graph("Abs"), Request("auto", policy), pool)
    gpu, cpu = compiled.decision.record.candidates
    assert (gpu.energy_uj, cpu.energy_uj) == (24_000, 100_000)
    assert compiled.decision.device == compiled.executor.device == "vulkan:0"
    assert "energy: decides, as metered on vulkan:0, cpu" in str(compiled.decision)
    assert compiled.decision.replay().to_json() == compiled.decision.to_json()
    late = CompiledModel(
        graph("Abs"), Request("auto", Policy(prefer="energy", deadline_s=0.011)), pool
    )
    assert late.decision.device == "cpu"  # the GPU misses the deadline, which the CPU meets


def test_gpu_that_takes_more_energy_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = metered(world, monkeypatch, {"cpu": 1.0, "gpu": 20.0})
    pool.seconds["gpu"] = 0.001  # faster
    compiled = CompiledModel(graph("Abs"), Request("auto", Policy(prefer="energy")), pool)
    rows = {r.device: r.code for r in compiled.decision.rows}
    assert (compiled.decision.device, rows["vulkan:0"]) == ("cpu", "more-energy")


def test_latency_decides_where_nothing_is_metered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = metered(world, monkeypatch, {"cpu": 1.0, "gpu": 20.0})
    pool.seconds["gpu"] = 0.001
    monkeypatch.setattr("gpuedge.runtime.meters.find", lambda: None)
    compiled = CompiledModel(graph("Abs"), Request("auto", Policy(prefer="energy")), pool)
    assert compiled.decision.device == "vulkan:0"
    assert "not metered on both the CPU and a GPU, so latency decides" in str(compiled.decision)
