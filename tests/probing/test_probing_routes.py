"""Routes: which rows of a report are one physical device, in which order, and how it is told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpuedge.core.identity import Identity
from gpuedge.probing import show
from gpuedge.probing.report import ProbeReport, ProbeRow, number


def row(
    backend: str, name: str, model: str, *, key: str = "k", status: str = "ok", **identity: Any
) -> ProbeRow:
    facts = {"api": backend, "name": name, "os": "linux"}
    facts |= {k.rstrip("_"): v for k, v in identity.items()}
    code = {"ok": "ok", "wrong": "wrong-numbers"}[status]
    return ProbeRow(
        backend, backend, status, code, "because", name, facts, False, {}, key, "f",
        index=0, model=model,
    )  # fmt: skip


def routes(*rows: ProbeRow) -> list[tuple[str, str, int | None]]:
    return [(r.device, r.physical, r.route) for r in number(rows)]


def test_one_gpu_by_three_apis_is_one_device() -> None:
    assert routes(
        row("vulkan", "GPU A (RADV)", "gpu a", vendorID=7, deviceID=9),
        row("gles31", "GPU A (polaris, LLVM)", "gpu a"),
        row("wgpu", "AMD GPU A", "gpu a over there", vendorID=7, deviceID=9),
        row("gles30", "GPU B", "gpu b"),
    ) == [
        ("vulkan:0", "gpu a", 1),
        ("gles31:0", "gpu a", 2),
        ("wgpu:0", "gpu a", 3),
        ("gles30:0", "gpu b", 1),
    ]


def test_name_of_a_numbered_row_speaks_for_rows_without_numbers() -> None:
    found = routes(
        row("gles31", "B", "b"),
        row("vulkan", "A", "a", vendorID=7, deviceID=9),
        row("wgpu", "B", "b", vendorID=7, deviceID=9),
    )
    assert {physical for _, physical, _ in found} == {"a"}


def test_device_number_of_zero_means_nothing() -> None:
    found = routes(
        row("vulkan", "A", "a", vendorID=7, deviceID=0),
        row("vulkan", "B", "b", key="l", vendorID=7, deviceID=0),
    )
    assert [physical for _, physical, _ in found] == ["a", "b"]


def test_two_equal_gpus_of_one_driver_are_two_devices() -> None:
    a = row("vulkan", "A", "a", vendorID=7, deviceID=9)
    found = routes(a, a.replace(index=1), row("wgpu", "A", "a"), a.replace(key="other driver"))
    assert [physical for _, physical, _ in found] == ["a", "a #2", "a", "a"]


def test_uuid_decides_where_it_is_known() -> None:
    one, two = {"deviceUUID": "11" * 16}, {"deviceUUID": "22" * 16}
    found = routes(
        row("vulkan", "A", "a", **one),
        row("vulkan", "A", "a", **two),
        row("gles31", "A", "a", **two),
        row("wgpu", "other name", "other", **one),
        row("gles30", "A", "a", deviceUUID="00" * 16),
    )
    assert [physical for _, physical, _ in found] == ["a", "a #2", "a #2", "a", "a"]


def test_uuid_of_a_rasteriser_is_that_of_a_version() -> None:
    uuid = {"deviceUUID": "6d657361" * 4}
    one, two = row("vulkan", "A", "a", **uuid), row("gles31", "B", "b", **uuid)
    found = routes(one.replace(is_software=True), two.replace(is_software=True))
    assert [physical for _, physical, _ in found] == ["a", "b"]


def test_route_that_does_not_work_has_no_rank() -> None:
    assert routes(row("vulkan", "A", "a", status="wrong"), row("gles31", "A", "a")) == [
        ("vulkan:0", "a", None),
        ("gles31:0", "a", 1),
    ]


def test_order_of_the_backends_is_that_of_the_rows() -> None:
    found = routes(
        row("gles20", "A", "a"), row("vulkan", "A", "a"), row("gles20", "A", "a", key="l")
    )
    assert [(device, route) for device, _, route in found] == [
        ("gles20:0", 1),
        ("vulkan:0", 3),
        ("gles20:1", 2),
    ]


def test_row_without_a_device_is_no_route() -> None:
    bare = ProbeRow("vulkan", "vulkan", "absent", "no-device", "none", "a.json")
    assert routes(bare) == [("vulkan", "", None)]


def test_devices_stand_together_best_route_first() -> None:
    rows = number(
        [
            row("vulkan", "Small", "small", device_type="INTEGRATED_GPU"),
            row("vulkan", "Big", "big", key="l", device_type="DISCRETE_GPU"),
            row("gles31", "Small", "small"),
            row("gles31", "Big", "big", key="l"),
        ]
    )
    report = ProbeReport(rows, "1")
    assert [r.device for r in report.devices] == ["vulkan:1", "gles31:1", "vulkan:0", "gles31:0"]
    assert report.best is not None
    assert report.best.route == 1


def test_order_of_devices_needs_no_routes() -> None:
    """Reports of before there were any, and rows in any order."""
    rows = [row("vulkan", f"GPU {i}", "").replace(device=f"vulkan:{i}") for i in range(4)]
    assert [r.device for r in ProbeReport(tuple(rows), "1").devices] == [r.device for r in rows]
    random.Random(1).shuffle(rows)
    assert len(ProbeReport(tuple(rows), "1").devices) == 4


def test_what_is_alike_is_told_once() -> None:
    absent = ProbeRow("vulkan", "vulkan", "absent", "no-device", "none", "a.json", key="/a.json")
    empty = ProbeRow("gles31", "gles31", "absent", "no-candidates", "no driver", "gles31")
    report = ProbeReport(
        number(
            [
                absent,
                row("vulkan", "A", "a"),
                empty,
                absent.replace(device="wgpu", backend="wgpu"),
                row("wgpu", "A", "a", backend_="OpenGL"),
                empty.replace(device="gles20", backend="gles20", name="gles20"),
            ]
        ),
        "1",
    )
    assert [(device, r.name) for device, r in show.lines(report)] == [
        ("vulkan:0", "A"),
        ("wgpu:0", "A on OpenGL"),
        ("vulkan, wgpu", "a.json"),
        ("gles31, gles20", ""),
    ]
    assert show.headline(report).startswith(
        "2 of 4 usable (routes to 1 device); the best is vulkan:0 (A)"
    )
    assert str(report).count("a.json") == 1


@pytest.mark.parametrize("api", ["vulkan", "gles30", "wgpu"])
def test_child_gives_each_device_its_model(api: str) -> None:
    from gpuedge.capdb import model

    assert model(Identity(api, "zink (llvmpipe (LLVM 15))", "linux")) == "llvmpipe"
