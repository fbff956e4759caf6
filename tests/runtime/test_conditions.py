"""What the machine is like, read from files as Linux lays them out."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpuedge.decide.conditions import UNKNOWN
from gpuedge.runtime.conditions import FRESH_S, Sources, Watcher, current


class Machine:
    """A folder that looks like the root of a machine, and processor times that a test sets."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.now = 100.0
        self.user = self.idle = self.mine = 0.0
        times = SimpleNamespace
        monkeypatch.setattr(psutil, "cpu_times", lambda: _Times(self.user, self.idle))
        process = SimpleNamespace(cpu_times=lambda: times(user=self.mine, system=0.0))
        monkeypatch.setattr(psutil, "Process", lambda: process)
        monkeypatch.setattr("os.cpu_count", lambda: 4)
        self.watcher = Watcher(Sources(root), lambda: self.now)

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def later(self, *, user: float = 0.0, idle: float = 0.0, mine: float = 0.0) -> Any:
        """Let processor time pass and ask again."""
        self.now += 2 * FRESH_S
        self.user, self.idle, self.mine = self.user + user, self.idle + idle, self.mine + mine
        return self.watcher.current()


class _Times(SimpleNamespace):
    def __init__(self, user: float, idle: float) -> None:
        super().__init__(user=user, idle=idle, guest=user)

    def _asdict(self) -> dict[str, float]:
        return dict(vars(self))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_nothing_is_known_where_the_system_says_nothing(machine: Machine) -> None:
    assert machine.watcher.current() == UNKNOWN  # one look tells no load either


def test_load_is_what_others_use(machine: Machine) -> None:
    machine.later()
    assert machine.later(user=3.0, idle=1.0, mine=1.0).load_milli == 500
    assert machine.later(user=2.0, idle=2.0, mine=2.0).load_milli == 0
    assert machine.later(user=4.0).load_milli == 1000


@pytest.mark.parametrize(
    "files",
    [
        {"sys/fs/cgroup/cpu.max": "200000 100000"},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": 200000,
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000},
    ],
    ids=["unified", "older"],
)  # fmt: skip
def test_load_is_of_the_cores_that_a_control_group_leaves(
    machine: Machine, files: dict[str, object]
) -> None:
    for path, text in files.items():
        machine.write(path, text)
    machine.later()
    assert machine.later(user=1.0, idle=3.0).load_milli == 500  # one of two cores
    machine.write("sys/fs/cgroup/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", -1)
    assert machine.later(user=1.0, idle=3.0).load_milli == 250


@pytest.mark.parametrize(
    ("status", "drains"), [("Discharging", True), ("Charging", False), ("Full", False), ("?", None)]
)
def test_battery(machine: Machine, status: str, drains: bool | None) -> None:
    mouse, own = "sys/class/power_supply/A/", "sys/class/power_supply/BAT0/"
    for folder, percent, scope in ((mouse, 5, "Device"), (own, 61, "System")):
        machine.write(folder + "type", "Battery")
        machine.write(folder + "scope", scope)
        machine.write(folder + "capacity", percent)
    machine.write(own + "status", status)
    machine.write(own + "voltage_now", 12_000_000)
    machine.write(own + "current_now", 1_500_000)
    found = machine.later()
    assert (found.battery_percent, found.is_on_battery) == (61, drains)
    assert found.power_mw == (18_000 if drains else None)
    machine.write(own + "power_now", 9_000_000)
    assert machine.later().power_mw == (9_000 if drains else None)


@pytest.mark.parametrize(
    ("degrees", "trip", "state"),
    [(40, None, "nominal"), (80, None, "warm"), (95, None, "throttling"), (60, 65, "warm"),
     (66, 65, "throttling"), (50, 95, "nominal"), (-274, None, None), (0, None, None)],
)  # fmt: skip
def test_heat(machine: Machine, degrees: int, trip: int | None, state: str | None) -> None:
    zone = "sys/class/thermal/thermal_zone0/"
    machine.write(zone + "temp", degrees * 1000)
    if trip is not None:
        machine.write(zone + "trip_point_0_type", "active")
        machine.write(zone + "trip_point_0_temp", 35_000)  # a fan's: no limit
        machine.write(zone + "trip_point_1_type", "passive")
        machine.write(zone + "trip_point_1_temp", trip * 1000)
    assert machine.later().thermal == state


def test_processor_that_is_slowed_down_throttles(machine: Machine) -> None:
    device = "sys/class/thermal/cooling_device3/"
    machine.write(device + "type", "cpufreq-cpu0")
    machine.write(device + "cur_state", 0)
    machine.write(device + "max_state", 9)
    assert machine.later().thermal is None
    machine.write(device + "cur_state", 2)
    assert machine.later().thermal == "throttling"
    machine.write("sys/class/thermal/thermal_zone1/temp", 40_000)
    assert machine.later().thermal == "throttling"


@pytest.mark.parametrize("text", ["", "warm", "9" * 400, "\x00\xff"])
def test_nonsense_is_unknown(machine: Machine, text: str) -> None:
    machine.write("sys/class/power_supply/BAT0/type", "Battery")
    for name in ("capacity", "status", "power_now", "current_now", "voltage_now"):
        machine.write(f"sys/class/power_supply/BAT0/{name}", text)
    machine.write("sys/class/power_supply/BAT0/status", "Discharging")
    machine.write("sys/class/thermal/thermal_zone0/temp", text)
    machine.write("sys/fs/cgroup/cpu.max", text)
    found = machine.later()
    assert found.is_on_battery and found.power_mw is None and found.thermal is None


def test_failure_of_psutil_is_unknown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise psutil.AccessDenied

    machine.later()
    monkeypatch.setattr(psutil, "cpu_times", fail)
    assert machine.later(user=1.0).load_milli is None


def test_asked_again_at_once_it_does_not_look(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.later()
    monkeypatch.setattr(machine.watcher, "_read", lambda: pytest.fail("looked"))
    assert machine.watcher.current() == UNKNOWN


def test_here_it_is_cheap() -> None:
    current()
    start = time.process_time()
    for _ in range(1000):
        current()
    assert time.process_time() - start < 0.1
