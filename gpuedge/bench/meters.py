"""Meters of energy that a machine may have. All are of the whole machine, not of one process.

* RAPL (Linux, Intel and AMD): ``/sys/class/powercap``; readable by root only on most systems
* battery (Linux, Android): ``/sys/class/power_supply``, while it discharges; sampled
* NVML (NVIDIA): the package ``pynvml``, where it is installed
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from gpuedge.core.errors import MissingPackageError
from gpuedge.safety.packages import needed

SYS = Path("/sys/class")
MICRO = 1e-6
MILLI = 1e-3


class Meter(Protocol):
    """Something that says how much energy was used."""

    name: str

    def start(self) -> None:
        """Begin to count."""

    def joules(self, seconds: float) -> float | None:
        """Return what was used since `start`, `seconds` ago; None where it cannot be read."""


class RaplMeter:
    """Energy counters of processor packages, which wrap around."""

    name = "RAPL"

    def __init__(self, folders: list[Path]) -> None:
        self._folders, self._before = folders, [0] * len(folders)

    def _read(self) -> list[int]:
        return [int((folder / "energy_uj").read_text()) for folder in self._folders]

    def start(self) -> None:
        """Begin to count."""
        self._before = self._read()

    def joules(self, seconds: float) -> float | None:
        """Return the sum over packages; a counter that is lower than before has wrapped once."""
        try:
            total = 0
            for folder, before, after in zip(
                self._folders, self._before, self._read(), strict=True
            ):
                wrapped = after < before
                most = int((folder / "max_energy_range_uj").read_text()) if wrapped else 0
                total += after - before + most
        except (OSError, ValueError):
            return None
        return total * MICRO


class BatteryMeter:
    """A battery's power now, at the end of what is measured, times its seconds."""

    name = "battery"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def watts(self) -> float | None:
        """Return the power; None while it does not discharge or does not tell."""
        try:
            if (self._folder / "status").read_text().strip() != "Discharging":
                return None
            if (self._folder / "power_now").exists():
                return abs(int((self._folder / "power_now").read_text())) * MICRO
            current, voltage = (
                int((self._folder / name).read_text()) * MICRO
                for name in ("current_now", "voltage_now")
            )
        except (OSError, ValueError):
            return None
        return abs(current) * voltage  # Android's sign differs between makers

    def start(self) -> None:
        """Do nothing: power is read at the end."""

    def joules(self, seconds: float) -> float | None:
        """Return power times time."""
        watts = self.watts()
        return None if watts is None else watts * seconds


class NvmlMeter:
    """The energy counters of all NVIDIA GPUs (Volta and later)."""

    name = "NVML"

    def __init__(self, library: Any) -> None:
        self._library, self._before = library, 0
        count = library.nvmlDeviceGetCount()
        self._devices = [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]

    def _read(self) -> int:
        read = self._library.nvmlDeviceGetTotalEnergyConsumption
        return sum(int(read(device)) for device in self._devices)

    def start(self) -> None:
        """Begin to count."""
        self._before = self._read()

    def joules(self, seconds: float) -> float | None:
        """Return the sum over GPUs."""
        try:
            return (self._read() - self._before) * MILLI
        except self._library.NVMLError:
            return None


def meters(sys: Path = SYS) -> list[Meter]:
    """Return the meters that answer here: there may be none."""
    return [*_rapl(sys), *_batteries(sys), *_nvml()]


def _rapl(sys: Path) -> Iterator[Meter]:
    # packages only (``intel-rapl:0``): what lies in them is a part of them
    packages = [p for p in sorted(sys.glob("powercap/intel-rapl:*")) if p.name.count(":") == 1]
    meter = RaplMeter(packages)
    try:
        meter.start()
    except (OSError, ValueError):
        return
    if packages:
        yield meter


def _batteries(sys: Path) -> Iterator[Meter]:
    for folder in sorted(sys.glob("power_supply/*")):
        meter = BatteryMeter(folder)
        if meter.watts() is not None:
            yield meter
            return


def _nvml() -> Iterator[Meter]:
    try:
        with needed("pynvml", "reading NVIDIA's energy counters"):
            library = import_module("pynvml")
    except MissingPackageError:
        return
    try:
        library.nvmlInit()
        meter = NvmlMeter(library)
        meter.start()
    except library.NVMLError:
        return
    yield meter
