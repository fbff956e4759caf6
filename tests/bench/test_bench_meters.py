"""Meters of energy, on files as kernels write them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuedge.bench import meters


def rapl(sys_: Path, name: str, counter: int, most: int = 1_000_000) -> Path:
    folder = sys_ / "powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{counter}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder


def battery(sys_: Path, **files: object) -> Path:
    folder = sys_ / "power_supply" / "BAT0"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_a_machine_without_meters_has_none(tmp_path: Path) -> None:
    assert meters.meters(tmp_path) == []


def test_packages_are_added_and_what_lies_in_them_is_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        rapl(tmp_path, name, 100)
    (meter,) = meters.meters(tmp_path)
    meter.start()
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        rapl(tmp_path, name, 2_100)
    assert meter.name == "RAPL" and meter.joules(1.0) == pytest.approx(4_000e-6)


def test_a_counter_that_wrapped_goes_on(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", 999_000)
    (meter,) = meters.meters(tmp_path)
    meter.start()
    rapl(tmp_path, "intel-rapl:0", 4_000)
    assert meter.joules(1.0) == pytest.approx(5_000e-6)


def test_a_counter_that_only_root_reads_is_no_meter(tmp_path: Path) -> None:
    (rapl(tmp_path, "intel-rapl:0", 1) / "energy_uj").unlink()
    assert meters.meters(tmp_path) == []


@pytest.mark.parametrize(
    "files", [{"power_now": 4_000_000}, {"current_now": -1_000_000, "voltage_now": 4_000_000}]
)
def test_a_battery_counts_while_it_discharges(tmp_path: Path, files: dict[str, int]) -> None:
    battery(tmp_path, status="Discharging", **files)
    (meter,) = meters.meters(tmp_path)
    meter.start()
    assert meter.name == "battery" and meter.joules(2.5) == pytest.approx(10.0)
    battery(tmp_path, status="Charging")
    assert meter.joules(2.5) is None and meters.meters(tmp_path) == []


def test_nvml_counts_all_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    spent = {0: 1000, 1: 5000}
    library = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetTotalEnergyConsumption=lambda i: spent[i],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)
    (meter,) = meters.meters(tmp_path)
    meter.start()
    spent.update({0: 1500, 1: 6000})
    assert meter.name == "NVML" and meter.joules(1.0) == pytest.approx(1.5)

    def fail() -> None:
        raise NVMLError

    library.nvmlInit = fail
    assert meters.meters(tmp_path) == []
