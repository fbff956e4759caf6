"""Speeds of classes: which row a device has, the arithmetic, and residuals of measured figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speeds import FIGURES, residuals
from gpuedge.capdb import DEVICE_CLASSES
from gpuedge.core.errors import ConfigError
from gpuedge.core.identity import Identity
from gpuedge.decide import speeds
from gpuedge.decide.options import DEFAULT, MOST
from gpuedge.decide.speeds import (
    class_of,
    mixture,
    predict,
    scaled,
    speeds_of,
    startup_ns,
    table,
)
from gpuedge.executors.base import Work

LEVELS = ("vulkan", "wgpu", "gles31", "gles30", "gles20")
ROOT = Path(__file__).resolve().parents[2]


def vulkan(name: str, **more: Any) -> Identity:
    return Identity("vulkan", name, "linux", **more)


@pytest.mark.parametrize(
    ("identity", "row"),
    [
        (vulkan("llvmpipe (LLVM 15.0.6, 256 bits)", driverID=13), "cpu-llvm"),
        (vulkan("SwiftShader Device (Subzero)"), "cpu-subzero"),
        (Identity("gles31", "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) "
                            "(0x0000C0DE)), SwiftShader driver-5.0.0)", "linux"), "cpu-subzero"),
        (Identity("gles30", "Apple Software Renderer", "macos"), "cpu-other"),
        (vulkan("Mali-G610"), "mali-valhall"),
        (Identity("gles31", "Mali-G52 MC2", "android"), "mali-bifrost"),
        (Identity("gles20", "Mali-400 MP", "android"), "mali-utgard"),
        (Identity("gles30", "Adreno (TM) 430", "android"), "adreno-4xx"),
        (vulkan("Adreno (TM) 640"), "adreno-6xx"),
        (vulkan("Qualcomm(R) Adreno(TM) X1-85 GPU", vendorID=0x5143), "adreno-x"),
        (vulkan("PowerVR B-Series BXE-4-32"), "powervr"),
        (vulkan("PowerVR D-Series DXT-48-1536"), "powervr-volcanic"),
        (vulkan("Intel(R) UHD Graphics 770"), "intel-xe"),
        (vulkan("Intel(R) Arc(tm) A770 Graphics", vendorID=0x8086, device_type="DISCRETE_GPU"),
         "intel-discrete"),
        (vulkan("AMD Radeon RX 6900 XT"), "amd-rdna-discrete"),
        (vulkan("AMD Radeon Pro 555X"), "amd-gcn-discrete"),
        (vulkan("AMD Radeon(TM) Vega 8 Graphics", device_type="INTEGRATED_GPU"), "amd"),
        (vulkan("NVIDIA Tegra X1 (nvgpu)"), "tegra"),
        (vulkan("NVIDIA Tegra Orin (nvgpu)"), "tegra-orin"),
        (vulkan("GeForce GTX 1050 Ti"), "nvidia-small"),
        (vulkan("NVIDIA GeForce RTX 3090"), "nvidia-recent"),
        (vulkan("Apple M1 Pro"), "apple"),
        (vulkan("V3D 7.1.7"), "v3d"),
        (vulkan("Samsung Xclipse 940"), "xclipse"),
        (vulkan("Microsoft Direct3D12 (NVIDIA GeForce GTX 1050 Ti)"), "d3d12"),
        (vulkan("Some GPU", device_type="DISCRETE_GPU"), "discrete"),
        (vulkan("Some GPU", device_type="INTEGRATED_GPU"), "integrated"),
        (vulkan("Some GPU"), "generic"),
    ],
)  # fmt: skip
def test_a_device_has_the_row_of_its_kind(identity: Identity, row: str) -> None:
    assert class_of(identity) == row


def test_the_table_is_whole() -> None:
    rows = json.loads((ROOT / "shaders" / "speeds.json").read_bytes())["rows"]
    assert all(len(row["source"]) > 10 for row in rows), "every row says where it comes from"
    assert max(Counter(row["id"] for row in rows).values()) == 1
    last = {name: row.match for row in table() for name in row.match.get("class", ())}
    assert last == {name: {"class": [name]} for name in DEVICE_CLASSES}  # asks for nothing else
    for row in table():
        assert set(row.scales) >= set(LEVELS) and all(0 < s <= 1 for s in row.scales.values())


def test_prediction_is_overhead_transfers_and_the_roofline() -> None:
    row = speeds_of("mali-valhall")  # 1200 us, 30 us a launch; 9, 1.3, 14 GB/s; 76, 53.2, 15.2 G/s
    small = Work({}, 0.0, 9e3, 1.3e3, 2)
    assert predict(small, row, "vulkan") == 1_200_000 + 60_000 + 1000 + 1000
    memory = Work({"conv": 76e6}, 28e6, 0.0, 0.0, 0)  # 1 ms of arithmetic under 2 ms of traffic
    assert predict(memory, row, "vulkan") == 1_200_000 + 2_000_000
    work = Work({"conv": 76e6, "matmul": 53.2e6, "map": 15.2e6}, 14e6, 0.0, 0.0, 0)
    assert predict(work, row, "vulkan") == 1_200_000 + 3_000_000
    assert predict(work, row, "gles31") == 1_200_000 + round(3_000_000 / 0.9)
    assert predict(work, row, "gles30") == 1_200_000 + round(3_000_000 / 0.55)
    assert startup_ns(Work(launches=10), row) == 120_000_000 + 10 * 20_000_000


def test_what_was_measured_here_scales_each_class_of_kernels() -> None:
    row = speeds_of("cpu-llvm")
    assert scaled(row, {}) is row
    slow = scaled(row, {"conv": 8.0, "matmul": 2.0, "map": 4.0})  # 4 on average
    for kind, by in (("conv", 8), ("matmul", 2), ("map", 4)):
        work = Work({kind: 1e9}, 0.0, 5e6, 5e6, 3)
        other = predict(Work({}, 0.0, 5e6, 5e6, 3), row, "vulkan")
        compute = predict(work, row, "vulkan") - other
        assert predict(work, slow, "vulkan") == pytest.approx(4 * other + by * compute, rel=1e-6)
    moved = Work({}, 3.5e9)
    assert predict(moved, slow, "vulkan") == 4 * predict(moved, row, "vulkan")
    assert startup_ns(Work(launches=2), slow) == 4 * startup_ns(Work(launches=2), row)
    fast = scaled(row, {"conv": 0.25, "matmul": 0.25, "map": 0.25})
    assert (fast.launch_ns, fast.bytes_in, fast.compile_ns) == (
        row.launch_ns, row.bytes_in, row.compile_ns,
    )  # fmt: skip
    assert fast.flops == tuple(4 * rate for rate in row.flops)


def test_an_unknown_kernel_class_is_the_slowest_and_no_work_is_too_much() -> None:
    row = speeds_of("generic")
    odd, known = Work({"fft": 1e9}), Work({"map": 1e9})
    assert predict(odd, row, "vulkan") == predict(known, row, "vulkan")
    assert predict(Work({"conv": 1e300}), row, "gles20") == MOST
    assert predict(Work(), row, "vulkan") >= 1 and startup_ns(Work(), row) >= 1


def test_a_row_that_is_not_in_the_table_is_that_of_nothing_known() -> None:
    assert speeds_of("quantum") is speeds_of("generic")


times = st.integers(0, 60)


@given(st.lists(st.tuples(times, st.none() | times), max_size=7))
def test_mixture_against_every_assignment(chain: list[tuple[int, int | None]]) -> None:
    taken, total = mixture([cpu for cpu, _ in chain], [gpu for _, gpu in chain])
    costs = {}
    for on_gpu in product((False, True), repeat=len(chain)):
        spent = [pair[is_gpu] for pair, is_gpu in zip(chain, on_gpu, strict=True)]
        if None not in spent:
            costs[on_gpu] = sum(ns for ns in spent if ns is not None)
    sides = tuple(i in taken for i in range(len(chain)))
    assert total == costs[sides] == min(costs.values())
    assert all(costs[sides] < cost for has, cost in costs.items() if sum(has) < len(taken))


def test_segments_are_scaled_to_what_the_whole_was_timed_at() -> None:
    assert mixture([100, 300], [90, None]) == ([0], 390)
    assert mixture([100, 300], [90, None], 4000) == ([0], 3090)
    assert mixture([100, 300], [90, None], 40) == ([], 40)  # the CPU turned out to be quick
    assert mixture([100], [100]) == ([], 100)  # of equal ones the CPU is taken


def inside(found: list[float]) -> float:
    return sum(abs(v) <= 2 * math.log(DEFAULT.prior_factor) for v in found) / len(found)


def test_the_claimed_error_covers_what_was_measured() -> None:
    assert DEFAULT.prior_factor >= 3.0
    found = residuals(json.loads(FIGURES.read_bytes()))
    everything = [v for values in found.values() for v in values]
    assert len(found) == 7 and len(everything) == 140
    for name, values in found.items():
        assert inside(values) >= 0.9, name
    assert inside(everything) >= 0.95


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "gpuedge.speeds/2"}, {"rows": [{"id": "a"}]}, {"rows": 3}, {"levels": None},
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads((ROOT / "shaders" / "speeds.json").read_bytes())
    (tmp_path / "speeds.json").write_text(json.dumps({**document, **change}))
    monkeypatch.setattr(speeds, "data_dir", lambda _: tmp_path)
    speeds.table.cache_clear()
    try:
        with pytest.raises(ConfigError, match=r"speeds\.json cannot be used"):
            table()
    finally:
        speeds.table.cache_clear()
