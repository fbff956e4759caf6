"""Devices that serve well: what the packaged database may not take from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from capdb.corpus import read_unsealed

from gpuedge.capdb import lookup
from gpuedge.capdb.judgement import Judgement

FOLDER = Path(__file__).resolve().parents[2] / "capability_db"
TODAY = "2026-11-21"
LATER = "2027-12-01"


def told(record: dict[str, Any], today: str = TODAY) -> Judgement:
    return lookup(record, database=read_unsealed(FOLDER), ignore=(), today=today)


def adreno(patch: int, brand: str, soc: str | None, **more: Any) -> dict[str, Any]:
    chip = {} if soc is None else {"soc": soc}
    return {
        "api": "vulkan", "os": "android", "vendorID": 0x5143, "driverID": 8,
        "deviceName": "Adreno (TM) 710", "driverVersion": 512 << 22 | 615 << 12 | patch,
        "apiVersion": "1.3.128", "brand": brand, "android_sdk": 34, **chip, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "brand", "soc", "blocked"),
    [
        (84, "Redmi", "SM6225", None),
        (82, "POCO", "SM7435-AB", None),
        (71, "Redmi", "SM6225", "adreno-0012"),  # before the first driver that is allowed
        (85, "Redmi", "SM6225", "adreno-0012"),  # after the last one
        (82, "Xiaomi", "SM6375", "adreno-0012"),  # a chip that the list does not name
        (82, "Xiaomi", None, None),  # on a chip that nobody named it is tested
        (82, "vivo", "SM6375", None),
    ],
)
def test_driver_512_615_of_xiaomi_is_tested_where_another_project_advises_it(
    patch: int, brand: str, soc: str | None, blocked: str | None
) -> None:
    found = told(adreno(patch, brand, soc))
    assert found.blocks("vulkan") == blocked
    assert "adreno-0035" in {demand.entry for demand in found.demands}
    passed = found.after({demand.entry: True for demand in found.demands})
    assert passed.blocks("vulkan") == blocked


def test_samsung_with_sm6375_is_tested_once_the_review_is_due() -> None:
    record = adreno(47, "samsung", "SM6375")
    record["driverVersion"] = 512 << 22 | 530 << 12 | 47
    assert told(record).blocks("vulkan") == "adreno-0033"
    found = told(record, LATER)
    assert found.blocks("vulkan") is None
    assert "adreno-0033" in {demand.entry for demand in found.demands}


@pytest.mark.parametrize("model", [530, 630, 740])
def test_entries_about_qualcomms_driver_leave_turnip_alone(model: int) -> None:
    turnip = {
        "api": "vulkan", "os": "android", "vendorID": 0x5143, "driverID": 18, "brand": "samsung",
        "deviceName": f"Turnip Adreno (TM) {model}", "driverName": "turnip Mesa driver",
        "driverVersion": 25 << 22 | 1 << 12, "driverInfo": "Mesa 25.1.0", "apiVersion": "1.3.300",
    }  # fmt: skip
    found = told(turnip)
    assert found.demands == ()
    assert found.blocks("vulkan") is None
    theirs = {**turnip, "driverID": 8, "deviceName": f"Adreno (TM) {model}"}
    theirs.update(driverName="Qualcomm Technologies Inc. Adreno Vulkan Driver", driverInfo="")
    assert "adreno-0011" in {demand.entry for demand in told(theirs).demands}


AMD: dict[str, Any] = {
    "api": "vulkan", "os": "windows", "vendorID": 0x1002, "driverID": 1,
    "driverName": "AMD proprietary driver", "driverVersion": 2 << 22 | 331, "apiVersion": "1.4.308",
}  # fmt: skip
INTEL: dict[str, Any] = {
    "api": "vulkan", "os": "linux", "vendorID": 0x8086, "driverID": 6, "apiVersion": "1.4.318",
    "driverName": "Intel open-source Mesa driver", "driverVersion": 25 << 22 | 2 << 12,
}  # fmt: skip
NVIDIA: dict[str, Any] = {
    "api": "vulkan", "os": "linux", "vendorID": 0x10DE, "driverID": 4, "apiVersion": "1.4.312",
    "driverName": "NVIDIA", "driverVersion": 580 << 22 | 65 << 14,
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "name", "number"),
    [
        (AMD, "AMD Radeon RX 9070 XT", 0x7550),
        (AMD, "AMD Radeon(TM) 8060S Graphics", 0x1586),
        (INTEL, "Intel(R) Graphics (PTL)", 0xB080),
        (NVIDIA, "NVIDIA A100-SXM4-80GB", None),
        (NVIDIA, "NVIDIA H200", None),
        (NVIDIA, "NVIDIA GB10", None),
        (NVIDIA, "NVIDIA GeForce GTX 1660", None),
    ],
)
def test_devices_of_this_year_lose_nothing_but_huge_buffers(
    base: dict[str, Any], name: str, number: int | None
) -> None:
    numbered = {} if number is None else {"deviceID": number}
    found = told({**base, "deviceName": name, **numbered}).restrictions
    assert set(found.entries) <= {"any-0003"}
    assert set(found.limits) <= {"max_storage_buffer_bytes", "max_allocation_bytes"}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("AMD Radeon 8060S (RADV GFX1151)", "rdna3"),
        ("AMD Radeon Graphics (RADV GFX1103_R1)", "rdna3"),
        ("AMD Radeon Graphics (RADV PHOENIX2)", "rdna3"),
        ("AMD Radeon Graphics (RADV GFX1201)", "rdna4"),
        ("AMD Radeon(TM) 890M Graphics", "rdna3"),
        ("AMD Radeon 680M", "rdna2"),
        ("AMD Radeon RX 6800M", "rdna2"),
        ("AMD Radeon HD 8650M", None),
        ("AMD Radeon R7 M460", "gcn"),
    ],
)
def test_families_of_amd_by_name(name: str, family: str | None) -> None:
    assert told({**AMD, "deviceName": name}).subject.family == family


@pytest.mark.parametrize(
    ("name", "blocked"),
    [
        ("PowerVR B-Series BXM-8-256", None),
        ("PowerVR BXM-8-256", None),
        ("IMG BXM-4-64", None),
        ("PowerVR D-Series DXT-48-1536", None),
        ("PowerVR E-Series EXT-48-1536", None),
        (None, None),
        ("PowerVR Rogue GE8320", None),
        ("PowerVR A-Series AXE-1-16", None),
    ],
)
def test_powervr_is_tested_not_refused(name: str | None, blocked: str | None) -> None:
    named = {} if name is None else {"deviceName": name}
    record = {"api": "vulkan", "os": "android", "vendorID": 0x1010, "driverID": 7, **named}
    assert told(record).blocks("vulkan") == blocked


@pytest.mark.parametrize(
    ("record", "level", "entry"),
    [
        ({"api": "wgpu", "backend": "vulkan", "os": "linux", "vendorID": 0x1002, "driverID": 3,
          "deviceName": "AMD Radeon RX 7900 XTX (RADV NAVI31)", "driverInfo": "Mesa 24.0.9",
          "driverVersion": 24 << 22 | 9}, "wgpu", "any-0004"),
        ({"api": "vulkan", "os": "linux", "vendorID": 0x13B5, "driverID": 9,
          "deviceName": "Mali-G52", "device": "Khadas VIM3"}, "vulkan", "mali-0023"),
        ({"api": "gles30", "os": "android", "GL_RENDERER": "Adreno (TM) 330",
          "GL_VERSION": "OpenGL ES 3.0 V@66.0 AU@  (CL@)"}, "gles30", "adreno-0040"),
        ({"api": "gles31", "os": "linux", "GL_VENDOR": "Broadcom",
          "GL_VERSION": "OpenGL ES 3.1 Mesa 25.0"}, "gles31", "broadcom-0005"),
    ],
)  # fmt: skip
def test_weak_evidence_of_a_crash_asks_for_a_probe(
    record: dict[str, Any], level: str, entry: str
) -> None:
    found = told(record)
    assert found.blocks(level) is None
    assert entry in {demand.entry for demand in found.demands}
    others = {demand.entry: demand.entry != entry for demand in found.demands}
    assert found.after(others).blocks(level) == entry
    assert found.after(dict.fromkeys(others, True)).blocks(level) is None


def test_mesas_drivers_are_not_asked_about_compilers_of_arm_and_nvidia() -> None:
    panfrost = {
        "api": "gles31", "os": "linux", "GL_VENDOR": "Mesa",
        "GL_RENDERER": "Mali-G610 (Panfrost)", "GL_VERSION": "OpenGL ES 3.1 Mesa 25.2.1",
    }  # fmt: skip
    assert "any-0006" not in {demand.entry for demand in told(panfrost).demands}
    arms = {**panfrost, "os": "android", "GL_VENDOR": "ARM", "GL_RENDERER": "Mali-G610"}
    arms["GL_VERSION"] = "OpenGL ES 3.2 v1.r44p0-01eac0.1f05338ba59e9e7d040ba6bef774b2ac"
    assert "any-0006" in {demand.entry for demand in told(arms).demands}
