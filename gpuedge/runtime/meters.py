"""What an inference takes of energy, where the machine has a meter for it.

Two kinds are known, both of Linux: counters of the processor's own (RAPL, files below
``powercap``), and the power that a battery gives while it drains. A counter of the whole platform
(``psys``) and a battery see everything; that of a processor package sees the processor and the
graphics in it, and nothing of a card of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuedge.runtime import clock
from gpuedge.runtime.conditions import Sources, number, text

WINDOW_S = 0.25
"""Time for which an alternative is run to meter it; counters are read anew every millisecond or
so."""

LEAST_UJ = 1000
"""A window that takes less than this was not seen by its meter."""

INSIDE = ("INTEGRATED_GPU", "CPU")
"""Types of devices that are part of the processor's package."""


class Meter:
    """One way to see energy.

    Parameters
    ----------
    read : callable
        Returns a value that grows, in microjoules; None where that fails.
    wraps_at : int
        Where it begins again from 0; 0 for never.
    sees_all : bool
        Whether it sees the whole machine and not the processor's package alone.
    """

    def __init__(
        self, read: Callable[[], int | None], *, wraps_at: int = 0, sees_all: bool = False
    ) -> None:
        self._read = read
        self._wraps_at = wraps_at
        self.sees_all = sees_all

    def sees(self, device_type: str | None) -> bool:
        """Say whether it sees a device of this type (of its identity)."""
        return self.sees_all or (device_type or "").upper() in INSIDE

    def per_run(self, run: Callable[[], object], seconds: float = WINDOW_S) -> int | None:
        """Run again and again for about so long; return the microjoules of a run, None if unseen.

        Raises whatever `run` raises.
        """
        run()  # warm, and the meter is at the start of a period of its own
        before, runs = self._read(), 0
        until = clock.now_ns() + round(seconds * 1e9)
        while runs == 0 or clock.now_ns() < until:
            run()
            runs += 1
        after = self._read()
        if before is None or after is None:
            return None
        spent = after - before
        if spent < 0 and self._wraps_at:
            spent += self._wraps_at
        return spent // runs if spent >= LEAST_UJ else None


class _Draining:
    """Adds up the power that a battery gives, as a counter of energy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: int | None = None
        self._sum = 0.0

    def __call__(self) -> int | None:
        power_uw = number(self._folder / "power_now")
        if power_uw is None or (text(self._folder / "status") or "").lower() != "discharging":
            return None
        now = clock.now_ns()
        if self._at is not None:
            self._sum += abs(power_uw) * (now - self._at) / 1e9
        self._at = now
        return round(self._sum)


def find(sources: Sources | None = None) -> Meter | None:
    """Return the meter of this machine that sees most; None where there is none to read."""
    where = sources or Sources()
    packages = []
    for zone in where.folders("sys/class/powercap/*-rapl:*"):
        name = text(zone / "name") or ""
        if number(zone / "energy_uj") is None or zone.name.count(":") != 1:
            continue  # not ours to read, or a part of a package
        if name == "psys":
            return _of_zones([zone], sees_all=True)
        if name.startswith("package"):
            packages.append(zone)
    for folder in where.folders("sys/class/power_supply/*"):
        if text(folder / "type") == "Battery" and text(folder / "scope") != "Device":
            draining = _Draining(folder)
            if draining() is not None:
                return Meter(draining, sees_all=True)
    return _of_zones(packages, sees_all=False) if packages else None


def _of_zones(zones: list[Path], *, sees_all: bool) -> Meter:
    def read() -> int | None:
        found = [number(zone / "energy_uj") for zone in zones]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(zones) else None

    # Several packages wrap one by one; a window in which one does is lost, not misread.
    wraps_at = (number(zones[0] / "max_energy_range_uj") or 0) if len(zones) == 1 else 0
    return Meter(read, wraps_at=wraps_at, sees_all=sees_all)
