"""Entries of a test's own database on real drivers: what they forbid is not used, the rest works.

Each driver's numbers under restrictions are compared with numpy's in float64; where kernels are
ruled out, so that other ones compute, with the placement as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import daily
import numpy as np
import pytest
import quirk_db
from farm import FARM, require
from quirk_db import demand, entry

import gpuedge
from gpuedge import backends
from gpuedge.backends.base import DeviceInfo
from gpuedge.core.caps import Caps
from gpuedge.core.storage import LAYERS
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.plan.library import variants
from gpuedge.probing import kat
from gpuedge.probing.api import probe
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.opening import close, open_row
from gpuedge.runtime.strings import caps_of, find

pytestmark = [pytest.mark.driver, daily.day(1, of=4)]

ANY = [{"api": ["vulkan", "gles", "wgpu"], "layer": ["native", "angle", "zink", "venus"]}]
"""What is true of every driver here."""

DEADLINE_S = 60.0
CONFIGURATIONS = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe")
SOME = ("vulkan-lavapipe", "gles30-llvmpipe")
"""One with buffers and one with textures."""

QUICK = [name for name in FARM if not FARM[name].is_slow]


class Bench:
    """One driver of the farm, and a database of the test's own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch
        self.level = ""
        patch.setenv("GPUEDGE_CACHE_DIR", str(folder / "cache"))

    def choose(self, name: str) -> Bench:
        """Let only one driver of the farm be found."""
        require(name)
        for variable, value in FARM[name].environment().items():
            self.patch.setenv(variable, value)
        self.level = FARM[name].device
        return self

    def probe(self, *entries: dict[str, Any], **options: Any) -> ProbeRow:
        """Return the device's row under a database of these entries."""
        rows = [{**one, "match": ANY} for one in entries]
        self.patch.setenv("GPUEDGE_DB", str(quirk_db.folder(self.folder / "db", *rows)))
        options = {"deadline_s": DEADLINE_S, **options}
        (row,) = (r for r in probe(backends=[self.level], **options).tried if r.index is not None)
        return row


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench in a folder of its own."""
    return Bench(tmp_path, monkeypatch)


def numbers(executor: GpuExecutor) -> set[str]:
    """Run the known answers on an open device; return the kernel variants that computed them."""
    used = set()
    for case in kat.cases(executor.caps):
        if case.name in ("every place", "every byte"):
            continue
        executable = executor.compile(case.graph)
        found = executable.run(case.inputs)[case.output]
        used |= {one.variant for one in executable.plan.passes}
        executable.close()
        assert (abs(found.astype(np.float64) - case.expected) <= case.bound).all(), case.name
    return used


def opened(row: ProbeRow, isolation: str = "inline") -> tuple[Caps, set[str], DeviceInfo]:
    """Open a row, check its numbers, close it; return its caps, its kernels, and what it is."""
    executor = open_row(row, isolation)
    try:
        return executor.caps, numbers(executor), executor.impl.info
    finally:
        close(executor)


GROUPS = sorted(v.id for v in variants() if v.op == "conv2d" and v.form == "group")


@pytest.mark.parametrize(
    ("name", "isolation"), [*((name, "inline") for name in SOME), ("vulkan-lavapipe", "process")]
)
def test_restrictions_change_placement_and_numbers_stay_right(
    bench: Bench, name: str, isolation: str
) -> None:
    action = {
        "disable_kernels": GROUPS, "disable_features": ["pipeline-cache", "robust-access"],
        "limits": {"max_storage_buffer_bytes": 1 << 22, "max_invocations": 64},
    }  # fmt: skip
    before = bench.choose(name).probe()
    free = Caps.from_dict(before.caps)
    _, kernels, _ = opened(before, isolation)
    assert bool(kernels & set(GROUPS)) is ("group" in free.forms)
    row = bench.probe(entry(1, "feature_broken", action))
    assert row.status == "ok"
    assert row.restrictions["entries"] == ["mesa-0001"]
    caps, kernels, info = opened(row, isolation)
    assert caps == caps_of(row) == Caps.from_dict(row.caps)
    assert caps.ruled_out == set(GROUPS)
    assert caps.max_invocations == min(64, free.max_invocations)
    assert caps.max_storage_buffer_bytes == min(1 << 22, free.max_storage_buffer_bytes)
    assert not kernels & set(GROUPS)
    assert kernels & {"conv2d_map", "conv2d_taps3"}
    assert info.disabled == {"pipeline-cache", "robust-access"}


def test_tensor_above_a_bound_is_refused_and_one_below_it_is_right(bench: Bench) -> None:
    limits = {"limits": {"max_storage_buffer_bytes": 1 << 16}}
    row = bench.choose("vulkan-lavapipe").probe(entry(1, "feature_broken", limits))
    executor = open_row(row)
    try:
        for side in (32, 256):
            graph = kat.elementwise_graph((1, 1, side, side))
            refused = [executor.supports(node, graph) for node in graph.nodes]
            assert all(refused) is (side == 256)
            if not any(refused):
                x = np.arange(side * side, dtype=np.float32).reshape(1, 1, side, side)
                inputs = {"a": x, "b": x, "c": -x}
                executable = executor.compile(graph)
                np.testing.assert_array_equal(executable.run(inputs)["y"], x * x - x)
                executable.close()
    finally:
        close(executor)


def test_other_storage_is_used_where_one_is_ruled_out(bench: Bench) -> None:
    gone = ["rgba32f", "rgba32ui"]
    free = Caps.from_dict(bench.choose("gles30-llvmpipe").probe().caps)
    row = bench.probe(entry(1, "wrong_result", {"disable_storages": gone}))
    assert row.status == "ok"
    caps, _, _ = opened(row)
    assert caps == caps_of(row)
    assert (caps.storages[0], caps.is_finite_only) == ("rgba8_float", False)
    assert not set(gone) & set(caps.storages)
    # four physical texels hold what one did
    assert caps.max_storage_buffer_bytes <= free.max_storage_buffer_bytes // 4


def test_smaller_textures_are_made_where_large_ones_are_ruled_out(bench: Bench) -> None:
    limits = {"limits": {"max_texture_size": 512}}
    row = bench.choose("gles30-llvmpipe").probe(entry(1, "wrong_result", limits))
    caps, _, _ = opened(row)
    assert (row.status, caps.max_texture_size) == ("ok", 512)
    assert caps.max_storage_buffer_bytes <= 512 * 512 * 16 * LAYERS["essl300"]
    impl = backends.load(row.backend).open(row.info())
    try:
        assert impl.memory.row == 512  # type: ignore[attr-defined]
    finally:
        impl.close()


def test_no_pipeline_cache_is_made_where_it_is_ruled_out(bench: Bench) -> None:
    bench.choose("vulkan-lavapipe")
    action = {"disable_features": ["pipeline-cache", "mapped-device-memory", "fp16", "int8"]}
    row = bench.probe(entry(1, "corrupt_pipeline_cache", action))
    impl = backends.load("vulkan").open(row.info())
    try:
        assert impl.programs.cache.handle == impl.queue.api.ffi.NULL  # type: ignore[attr-defined]
        executor = GpuExecutor(impl, "vulkan:0")
        numbers(executor)
    finally:
        impl.close()
    impl = backends.load("vulkan").open(bench.probe().info())
    try:
        assert impl.programs.cache.handle != impl.queue.api.ffi.NULL  # type: ignore[attr-defined]
    finally:
        impl.close()


def test_crash_entry_blocks_until_it_is_ignored(bench: Bench) -> None:
    bench.choose("vulkan-lavapipe")
    crash = entry(7, "crash", {"disable_backend": True})
    row = bench.probe(crash)
    assert (row.status, row.code, row.caps) == ("blocked", "quirk", {})
    assert "mesa-0007: Entry 7 of a test" in row.reason
    assert row.evidence["entries"][0] == {
        "id": "mesa-0007", "outcome": "applies", "summary": crash["summary"],
    }  # fmt: skip
    assert bench.probe(crash).is_cached
    with pytest.raises(gpuedge.NoUsableDeviceError, match="GPUEDGE_IGNORE=mesa-0007"):
        find("vulkan:0", ProbeReport((row,), "1"))
    for words in ("mesa-0007", "all"):
        bench.patch.setenv("GPUEDGE_IGNORE", words)
        row = bench.probe(crash)
        assert (row.status, row.is_cached, row.restrictions) == ("ok", False, {})
        assert bench.probe(crash).is_cached
    bench.patch.setenv("GPUEDGE_IGNORE", "mesa-0001")
    assert bench.probe(crash).status == "blocked"
    bench.patch.delenv("GPUEDGE_IGNORE")
    row = bench.probe(crash)
    assert (row.status, row.is_cached) == ("blocked", True)
    row = bench.probe(entry(7, "slow", {"demote": True}))
    assert (row.status, row.is_cached, row.is_demoted) == ("ok", False, True)


@pytest.mark.parametrize("name", daily.in_turn(CONFIGURATIONS))
def test_good_driver_is_cleared_of_what_is_said_of_it(bench: Bench, name: str) -> None:
    tests = ("standard", "kernels", "storages", "large", "repeat")
    asks = entry(1, "wrong_result", {"disable_backend": True}, probe=demand(*tests))
    row = bench.choose(name).probe(asks)
    assert (row.status, row.restrictions) == ("ok", {})
    assert [e["outcome"] for e in row.evidence["entries"]] == ["cleared"]
    checks = row.evidence["required"]
    storages = {kind for check in checks for kind in check["storage"].split(", ")}
    assert storages == set(Caps.from_dict(row.caps).storages)
    assert min(check["runs"] for check in checks) >= 2
    free = bench.probe()
    assert row.caps == free.caps


def test_demand_does_not_make_a_good_driver_miss_the_deadline(bench: Bench) -> None:
    asks = entry(
        1, "wrong_result", {"disable_kernels": ["conv2d_px4"]}, probe=demand("standard", runs=1024)
    )
    row = bench.choose("vulkan-lavapipe").probe(asks, deadline_s=5.0)
    assert row.status == "ok"
    (about,) = row.evidence["entries"]
    # All cases had a few runs each in this time, or the machine is very busy.
    assert about["outcome"] in {"cut", "cleared"}
    assert bool(row.restrictions) is (about["outcome"] == "cut")
    if about["outcome"] == "cut":
        assert "time was over" in about["detail"]
    elif row.evidence.get("is_partial"):
        assert about["detail"].endswith(" of 1024 runs")


@pytest.mark.parametrize("name", daily.in_turn(QUICK))
def test_embedded_database_takes_nothing_from_software_drivers(bench: Bench, name: str) -> None:
    """They lose nothing but single buffers of 2 GiB, and nothing more is asked of them."""
    bench.choose(name)
    bench.patch.setenv("GPUEDGE_DB", "embedded")
    rows = []
    for words in ("", "all"):
        bench.patch.setenv("GPUEDGE_IGNORE", words)
        found = probe(backends=[bench.level], deadline_s=DEADLINE_S).tried
        rows.append(next(r for r in found if r.index is not None))
    assert [row.status for row in rows] == ["ok", "ok"]
    caps, free = ({**row.caps} for row in rows)
    for size in ("max_storage_buffer_bytes", "max_allocation_bytes"):
        sizes = caps.pop(size), free.pop(size)
        assert sizes[0] == sizes[1] or sizes[0] == 2**31 - 1
    assert caps == free
    assert set(rows[0].restrictions.get("entries", ())) <= {"any-0003"}
    assert "required" not in rows[0].evidence
