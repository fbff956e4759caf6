"""Blocks and pins: how long a device is left alone, and what `probe()` shows of it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from probing_fakes import started

import gpuedge
from gpuedge.cli.main import main
from gpuedge.core.errors import ConfigError, UnknownDeviceError
from gpuedge.probing import pins
from gpuedge.probing.api import probe
from gpuedge.safety import blocklist
from gpuedge.safety.blocklist import Blocklist, Marker, blocked

DAY = 86400.0
NOW = 1.8e9


class Device:
    """What is remembered of one device, on a clock that the test winds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.memory = Blocklist(folder)
        self.now = NOW
        self._count = 0

    def crashed(self, began: float | None = None, *, process: str = "") -> None:
        self._count += 1
        began = self.now - 5 if began is None else began
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocklist, "PROCESS", process or f"m{self._count}")
            patch.setattr(time, "time", lambda: began)
            mark = Marker(self.memory, "k", "fake:0", is_hosted=True)
            patch.undo()
            patch.setattr(blocklist, "PROCESS", process or f"m{self._count}")
            before = set(Path(self.memory.folder).glob("*"))
            mark.crashed("", "run")
        (new,) = set(Path(self.memory.folder).glob("*")) - before
        os.utime(new, (self.now, self.now))

    def clean(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: self.now)
            self.memory.note_good_start("k")

    def steps(self) -> list[str]:
        """The crashes that count."""
        crashes = self.memory.entries(self.now).get("k", [])
        return [c.step for c in crashes]

    def days(self) -> float:
        """Days until it is tried again; 0 where it may be tried now."""
        block = self.memory.block("k", self.now)
        return 0.0 if block is None else (block.until - self.now) / DAY


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device of which nothing is remembered."""
    return Device(tmp_path)


def test_days_without_a_good_start_are_1_7_30_30(device: Device) -> None:
    device.crashed()
    assert device.days() == 0
    seen = []
    for _ in range(6):
        device.now += 60
        device.crashed()
        seen.append(device.days())
        device.now += device.days() * DAY - 1
        assert device.days() > 0
        device.now += 2
        assert device.days() == 0, "one more start is let through"
    assert seen == [1, 7, 30, 30, 30, 30]


def test_crashes_a_month_apart_are_two_accidents(device: Device) -> None:
    for _ in range(5):
        device.crashed()
        device.now += 30.01 * DAY
    assert device.days() == 0
    device.crashed()
    device.now += 29 * DAY
    device.crashed()
    assert device.days() == 1


def test_good_start_on_probation_clears_crashes(device: Device) -> None:
    device.crashed()
    for _ in range(4):
        device.clean()
    device.crashed()
    assert device.days() == 1, "it may crash at every fifth start"
    device.clean()
    assert device.days() == 1, "what closes during the block began before it"
    device.now += 1.5 * DAY
    device.clean()
    assert device.steps() == []
    device.crashed()
    assert device.days() == 0, "two are needed again"
    device.crashed()
    assert device.days() == 1


def test_processes_that_fail_together_on_probation_fail_once(device: Device) -> None:
    device.crashed()
    device.crashed()
    device.now += 2 * DAY
    began = device.now - 10
    for _ in range(5):
        device.crashed(began)
        device.now += 1
    assert round(device.days(), 2) == 7
    device.now += 8 * DAY
    device.crashed()
    assert device.days() == 30


def test_five_good_starts_in_a_row_make_up_for_a_crash(device: Device) -> None:
    device.crashed()
    for _ in range(5):
        device.clean()
    assert device.steps() == []
    device.crashed()
    assert device.days() == 0


def test_process_counts_once_a_day(device: Device) -> None:
    for _ in range(3):
        device.crashed(process="one")
        device.now += 20
    assert device.days() == 0
    device.now += DAY
    device.crashed(process="one")
    assert device.days() == 1


def test_crashes_while_a_block_is_in_force_raise_no_level(device: Device) -> None:
    for name in ("one", "two", "three", "four"):
        device.now += 10
        device.crashed(process=name)
    assert 0.99 < device.days() <= 1
    held_open = device.now
    device.now += 2 * DAY
    device.crashed(held_open, process="five")
    assert device.days() == 0, "that start was no try after the block"
    device.crashed(process="six")
    assert device.days() == 7


@pytest.mark.parametrize("years", [-50, -10, -1, 1, 10, 50])
def test_wrong_clock_makes_no_block_permanent(device: Device, years: float) -> None:
    device.crashed()
    device.crashed()
    assert device.days() == 1
    device.now += years * 365 * DAY
    assert device.days() == 0
    device.crashed()
    device.crashed()
    assert 0 < device.days() <= 7
    device.now -= years * 365 * DAY
    assert device.days() == 0 or device.days() <= 7


def test_no_clock_and_no_order_of_events_blocks_longer_than_30_days(tmp_path: Path) -> None:
    events = random.Random(4)
    for i in range(60):
        device = Device(tmp_path / str(i))
        device.now = events.choice([0.0, NOW, 4e9])
        for _ in range(20):
            device.now = max(0.0, device.now + events.uniform(-3, 5) * 10 ** events.uniform(0, 9))
            if events.random() < 0.7:
                device.crashed(device.now + events.uniform(-1e6, 10))
            else:
                device.clean()
            assert device.days() <= 31
            assert (
                blocked(device.memory.entries(device.now).get("k", ()), device.now + 31 * DAY)
                is None
            )


def test_only_the_newest_crashes_are_kept(device: Device) -> None:
    for _ in range(blocklist.MAX_FILES + 5):
        device.now += 1
        device.crashed()
    assert len(device.steps()) == blocklist.MAX_FILES
    assert len(list(Path(device.memory.folder).glob("*"))) == blocklist.MAX_FILES
    assert device.days() > 0.9


# --- what probe() shows ---------------------------------------------------------------------------


@pytest.fixture
def three(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two good fake drivers and one without a device."""
    monkeypatch.setenv("PROBE_FAKES", "discrete ok absent")
    return fakes


def shown() -> dict[str, tuple[str, str]]:
    return {r.name: (r.status, r.code) for r in probe().tried}


def fail_twice(device: str) -> None:
    from gpuedge.safety import paths

    row = probe().find(device)
    assert row is not None
    key = blocklist.key_of(row.info().candidate, 0)
    for name in ("one", "two"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocklist, "PROCESS", name)
            marker = Blocklist(paths.cache_folder()).begin(key, device, is_hosted=True)
            marker.crashed("SIGSEGV", "run")


GOOD = {
    "hard discrete": ("ok", "ok"),
    "soft ok": ("ok", "ok"),
    "absent": ("absent", "no-device"),
}
BLOCKED = {**GOOD, "hard discrete": ("blocked", "crash-blocklist")}
PINNED = {**GOOD, "hard discrete": ("blocked", "pinned")}


def test_own_files_are_looked_at_once_for_all_rows(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = probe()
    fail_twice("fake:0")
    looks, look = list[str](), blocklist.machine.library_state
    monkeypatch.setattr(blocklist.machine, "library_state", lambda: looks.append("") or look())
    rows = pins.apply(report.tried)
    assert [row.code for row in rows].count("crash-blocklist") == 1
    assert len(looks) == 1


def test_probe_shows_the_block_in_cached_rows(three: Path) -> None:
    assert shown() == GOOD
    fail_twice("fake:0")
    assert shown() == BLOCKED
    assert started(three) == 3, "that is answered from disk"
    report = probe()
    assert [r.device for r in report.devices] == ["fake:1"]
    row = report.tried[0]
    assert row.device == "fake:0", "its name stays"
    assert row.route is None
    for word in (
        "2 unfinished starts",
        "SIGSEGV",
        "tried again after 20",
        "cache clear --crashes",
        "GPUEDGE_PIN=fake:0",
    ):
        assert word in row.reason
    assert gpuedge.probe(refresh=True).tried[0].status == "blocked", "a probe is no real work"
    assert main(["cache", "clear", "--crashes"]) == 0
    assert shown() == GOOD


def test_block_ends_with_time_and_with_a_new_driver(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_twice("fake:0")
    assert shown() == BLOCKED
    later = time.time() + 1.1 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert shown() == GOOD
    assert shown() == BLOCKED, "the clock is back, and the block with it"
    monkeypatch.setenv("PROBE_STAMP", "2")
    assert shown() == GOOD


def test_pins(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_twice("fake:0")
    monkeypatch.setenv("GPUEDGE_PIN", "fake:0=always")
    assert shown() == GOOD
    monkeypatch.setenv("GPUEDGE_PIN", "fake=always, fake:0=never")
    assert shown() == PINNED
    before = started(three)
    monkeypatch.setenv("GPUEDGE_PIN", "fake=never")
    report = probe(refresh=True)
    assert {(r.name, r.status, r.code) for r in report.tried} == {
        (name, "blocked", "pinned") for name in ("discrete", "ok", "absent")
    }
    assert started(three) == before, "a driver that is ruled out is not even tried"
    monkeypatch.setenv("GPUEDGE_PIN", "fake=never fake:1=always")
    assert shown() == {**PINNED, "soft ok": ("ok", "ok")}
    with gpuedge.config(pin="fake:1=never"):
        assert shown() == {**BLOCKED, "soft ok": ("blocked", "pinned")}


@pytest.mark.parametrize(
    "text",
    [
        "fake",
        "fake=",
        "fake=maybe",
        "=never",
        "fake:=never",
        "fake:x=never",
        "fake:-1=never",
        "fake=never fake=always",
    ],
)
def test_bad_pin_is_refused_before_any_driver(
    three: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", text)
    with pytest.raises(ConfigError, match="GPUEDGE_PIN") as caught:
        probe()
    assert caught.value.code == "GE-101"
    assert started(three) == 0


def test_pin_on_a_backend_that_does_not_exist_is_refused(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", "vulcan=never")
    with pytest.raises(UnknownDeviceError, match="vulcan"):
        probe()
    assert started(three) == 0
