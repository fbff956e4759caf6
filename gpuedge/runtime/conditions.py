"""What the machine is like right now: load, battery, heat and power, where the system says so.

Asked at most once a second, and cheap then. Nothing here raises: what cannot be read is None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from gpuedge.decide.conditions import UNKNOWN, Conditions

FRESH_S = 1.0
"""For how long an answer is good enough."""

WARM_C, HOT_C = 75.0, 90.0
"""Degrees from which a zone that names no limits of its own is warm, and throttles."""

MOST_UW = 10**9
"""Power in microwatts from which a battery is not believed: a kilowatt."""

NEAR = 0.9
"""Share of a zone's own limit from which it counts as warm."""

T = TypeVar("T")


@dataclass(frozen=True)
class Sources:
    """Where the system keeps what is read here; another root in tests.

    Parameters
    ----------
    root : Path
    """

    root: Path = Path("/")

    def folders(self, pattern: str) -> list[Path]:
        """Return the folders that match, in order."""
        try:
            return sorted(self.root.glob(pattern))
        except OSError:
            return []


def text(path: Path) -> str | None:
    """Return what a small file says, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(256).decode("ascii", "replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the whole number in a small file, None where there is none."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


class Watcher:
    """Reads the conditions of one machine.

    Parameters
    ----------
    sources : Sources
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self, sources: Sources | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._sources = sources or Sources()
        self._clock = clock
        self._lock = threading.Lock()
        self._last = UNKNOWN
        self._asked: float | None = None
        self._times: tuple[float, float, float] | None = None  # of all, idle; of this process

    def current(self) -> Conditions:
        """Return the conditions, at most `FRESH_S` old. Never raises."""
        with self._lock:
            now = self._clock()
            if self._asked is None or not 0 <= now - self._asked < FRESH_S:
                self._asked = now
                self._last = _guarded(self._read, UNKNOWN)
            return self._last

    def _read(self) -> Conditions:
        none: tuple[int | None, bool | None, int | None] = (None, None, None)
        percent, is_on_battery, power_mw = _guarded(self._battery, none)
        return Conditions(
            load_milli=_guarded(self._load, None),
            battery_percent=percent,
            is_on_battery=is_on_battery,
            thermal=_guarded(self._thermal, None),
            power_mw=power_mw,
        )

    # -- load ---------------------------------------------------------------------------------

    def _load(self) -> int | None:
        """Return the share of the processors that others used since the last look.

        What this process used is not counted: it would be its own neighbour.
        """
        import psutil

        whole = psutil.cpu_times()
        idle = whole.idle + getattr(whole, "iowait", 0.0)
        mine = psutil.Process().cpu_times()
        now = (sum(_plain(whole)), idle, mine.user + mine.system)
        before, self._times = self._times, now
        if before is None:
            return None
        passed = now[0] - before[0]
        if passed <= 0:
            return self._last.load_milli
        others = passed - (now[1] - before[1]) - (now[2] - before[2])
        # A quota leaves fewer processors than the times are of: they are busy sooner.
        share: float = others / (passed * min(self._quota(), 1.0))
        return round(1000 * min(max(share, 0.0), 1.0))

    def _quota(self) -> float:
        """Return which part of the processors a control group leaves to this process."""
        import os

        cores = os.cpu_count() or 1
        for path, other in (
            ("sys/fs/cgroup/cpu.max", None),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
        ):
            quota, _, period = (text(self._sources.root / path) or "").partition(" ")
            period = period if other is None else text(self._sources.root / other) or ""
            if quota.isdigit() and period.isdigit() and int(period):
                return int(quota) / int(period) / cores
        return 1.0

    # -- battery ------------------------------------------------------------------------------

    def _battery(self) -> tuple[int | None, bool | None, int | None]:
        """Return the charge in percent, whether it drains, and what the machine draws from it."""
        for folder in self._sources.folders("sys/class/power_supply/*"):
            is_own = text(folder / "scope") != "Device"  # not that of a mouse
            if text(folder / "type") == "Battery" and is_own:
                return self._of_battery(folder)
        return self._of_psutil() if self._sources.root == Path("/") else (None, None, None)

    def _of_battery(self, folder: Path) -> tuple[int | None, bool | None, int | None]:
        percent = number(folder / "capacity")
        status = (text(folder / "status") or "").lower()
        drains = {"discharging": True, "charging": False, "full": False, "not charging": False}
        power = number(folder / "power_now")
        if power is None:
            volts, amperes = number(folder / "voltage_now"), number(folder / "current_now")
            power = None if volts is None or amperes is None else volts * amperes // 10**6
        is_draining = drains.get(status)
        return (
            None if percent is None else min(max(percent, 0), 100),
            is_draining,
            abs(power) // 1000 if power and is_draining and abs(power) < MOST_UW else None,
        )

    def _of_psutil(self) -> tuple[int | None, bool | None, int | None]:
        """Ask the system's own interface where there is no such folder: Windows, macOS."""
        import psutil

        found = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if found is None:
            return None, None, None
        plugged = found.power_plugged
        percent = min(max(round(found.percent), 0), 100)
        return percent, None if plugged is None else not plugged, None

    # -- heat ---------------------------------------------------------------------------------

    def _thermal(self) -> str | None:
        """Return how hot the hottest zone is, against its own limits where it names them."""
        worst: str | None = None
        order = (None, "nominal", "warm", "throttling")
        for zone in self._sources.folders("sys/class/thermal/thermal_zone*"):
            found = _of_zone(zone)
            if order.index(found) > order.index(worst):
                worst = found
        cooled = self._cooled()
        return cooled if worst is None or (cooled and worst == "nominal") else worst

    def _cooled(self) -> str | None:
        """Return ``throttling`` where the processor is being slowed down to cool it."""
        for device in self._sources.folders("sys/class/thermal/cooling_device*"):
            kind = (text(device / "type") or "").lower()
            state, most = number(device / "cur_state"), number(device / "max_state")
            is_own = "cpufreq" in kind or kind in ("processor", "devfreq")
            if is_own and state and most:
                return "throttling"
        return None


def _of_zone(zone: Path) -> str | None:
    degrees = number(zone / "temp")
    if degrees is None or not 0 < degrees < 200_000:  # in thousandths; others are broken sensors
        return None
    limits = []
    for i in range(12):
        kind = text(zone / f"trip_point_{i}_type")
        limit = number(zone / f"trip_point_{i}_temp")
        if kind is None:
            break
        if kind in ("passive", "hot", "critical") and limit is not None and limit > 30_000:
            limits.append(limit)
    hot = min(limits, default=round(HOT_C * 1000))
    warm = NEAR * hot if limits else WARM_C * 1000
    return "throttling" if degrees >= hot else "warm" if degrees >= warm else "nominal"


def _plain(times: Any) -> list[float]:
    """Return processor times without those that others include: guests are users too."""
    return [v for k, v in times._asdict().items() if k not in ("guest", "guest_nice")]


def _guarded(read: Callable[[], T], instead: T) -> T:
    """Return what `read` returns; `instead` where the system, or psutil, does not play along."""
    try:
        return read()
    except Exception:
        return instead


_WATCHER = Watcher()


def current() -> Conditions:
    """Return what this machine is like, at most a second old. Never raises."""
    return _WATCHER.current()
