"""What single facts of a record tell: layers, drivers, ids, APIs, systems, and this machine's own.

Records are made here, each about one question; `test_capdb_subject` has those of the wild.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuedge.capdb.identity import families, host
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.place import MAX_TABLE
from gpuedge.core.errors import DatabaseError
from gpuedge.core.identity import Identity

DATABASE = Path(__file__).resolve().parents[2] / "capability_db"


def vulkan(name: str, **more: Any) -> Subject:
    return subject({"api": "vulkan", "deviceName": name, **more})


def gles(renderer: str, **more: Any) -> Subject:
    return subject({"api": "gles", "GL_RENDERER": renderer, **more})


@pytest.mark.parametrize(
    ("name", "layers", "beneath"),
    [
        ("zink Vulkan 1.3(llvmpipe (LLVM 15.0.6, 256 bits) (MESA_LLVMPIPE))", ("zink",),
         "llvmpipe (LLVM 15.0.6, 256 bits)"),
        ("zink (Microsoft Direct3D12 (NVIDIA GeForce RTX 3060))", ("zink", "dozen"),
         "NVIDIA GeForce RTX 3060"),
        ("D3D12 (NVIDIA GeForce RTX 3060)", ("d3d12-gl",), "NVIDIA GeForce RTX 3060"),
        ("virgl (zink (Intel(R) HD Graphics 620))", ("virgl", "zink"), "Intel(R) HD Graphics 620"),
        ("Android Emulator OpenGL ES Translator (ANGLE (ARM, Mali-G78, OpenGL ES 3.2))",
         ("emulator", "angle"), "Mali-G78"),
        ("ANGLE (Apple, ANGLE Metal Renderer: Apple M1, Version 13.0 (Build 22A380))", ("angle",),
         "Apple M1"),
        ("ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 (0x00002504) Direct3D11 vs_5_0 ps_5_0, D3D11)",
         ("angle",), "NVIDIA GeForce RTX 3060"),
        ("virgl", ("virgl",), "virgl"),
        ("Mali-G78", (), "Mali-G78"),
    ],
)  # fmt: skip
def test_layers_in_layers(name: str, layers: tuple[str, ...], beneath: str) -> None:
    found = gles(name)
    assert (found.layers, found.name) == (layers, beneath)


@pytest.mark.parametrize(
    ("driver", "layers"),
    [(14, ("moltenvk",)), ("KosmicKrisp", ("kosmickrisp",)), (22, ("venus",)),
     ("VK_DRIVER_ID_MESA_DOZEN", ("dozen",)), ("MESA_HONEYKRISP", ())],
)  # fmt: skip
def test_driver_that_is_a_layer(driver: int | str, layers: tuple[str, ...]) -> None:
    key = "driverName" if driver == "KosmicKrisp" else "driverID"
    assert vulkan("Apple M1", **{key: driver}).layers == layers


def test_what_angle_tells_of_the_driver_beneath() -> None:
    found = gles(
        "ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 (0x00002504) Direct3D11 vs_5_0 ps_5_0,"
        " D3D11-31.0.15.1659)",
        os="windows",
    )
    assert found.versions == {"win-wddm": (31, 0, 15, 1659)}
    assert found.device_id == 0x2504
    metal = gles("ANGLE (Apple, ANGLE Metal Renderer: Apple M1, Version 13.0 (Build 22A380))")
    assert (metal.versions["macos"], metal.builds) == ((13, 0), {"22A380"})


@pytest.mark.parametrize(
    ("record", "scheme", "version"),
    [
        ({"vendorID": "0x8086", "os": "windows", "driverVersion": 0x194843},
         "vk-intel-win", (101, 2115)),
        ({"vendorID": 0x8086, "os": "linux", "driverVersion": 104865800}, None, None),
        ({"vendorID": 0x8086, "driverID": 6, "driverVersion": 104865800}, "vk-mesa", (25, 2, 8)),
        ({"vendorID": 0x1002, "os": "windows", "driverVersion": 0x800106}, "vk-amd", (2, 0, 262)),
        ({"vendorID": 0x1002, "os": "linux", "driverVersion": 0x800106}, None, None),
        ({"vendorID": 0x10DE, "os": "windows", "driverVersion": 535 << 22},
         "vk-nvidia", (535, 0, 0, 0)),
        ({"vendorID": 0x13B5, "os": "android", "driverVersion": 192937984}, "vk-arm", (46, 0, 0)),
        ({"vendorID": 0x13B5, "os": "linux", "driverVersion": 192937984}, None, None),
        ({"vendorID": 0x1010, "os": "android", "driverVersion": 6794074},
         "vk-img-build", (6794074,)),
        ({"vendorID": 0x144D, "os": "android", "driverVersion": 100667599},
         "vk-samsung", (24, 1, 207)),
        ({"vendorID": 0x5143, "driverVersion": 0x801EA000}, "vk-adreno", (512, 490, 0)),
        ({"vendorID": 0x5143, "driverID": 18, "driverVersion": 104865800}, "vk-mesa", (25, 2, 8)),
        ({"vendorID": 0x106B, "os": "macos", "driverVersion": 10400}, None, None),
        ({"vendorID": 0x106B, "driverName": "MoltenVK", "driverVersion": 10400},
         "vk-moltenvk", (1, 4, 0)),
        ({"vendorID": 0x10005, "driverID": 13, "driverVersion": 1,
          "driverInfo": "Mesa 22.3.6 (LLVM 15.0.6)"}, "vk-mesa", (22, 3, 6)),
        ({"vendorID": 0x13B5, "driverID": 22, "driverVersion": 104865800}, None, None),
        ({"vendorID": 0x8086, "os": "windows", "driverVersionString": "31.0.101.2115"},
         "win-wddm", (31, 0, 101, 2115)),
    ],
)  # fmt: skip
def test_scheme_of_vulkan_drivers(
    record: dict[str, Any], scheme: str | None, version: tuple[int, ...] | None
) -> None:
    found = vulkan("GPU of a name that tells nothing", **record)
    known = {s: v for s, v in found.versions.items() if s not in {"vk-raw", "vk-api"}}
    assert known.get(scheme or "") == version
    assert scheme is not None or known == {}
    assert found.versions.get("vk-raw") == (
        (record["driverVersion"],) if "driverVersion" in record else None
    )


def test_mesa() -> None:
    assert vulkan("AMD Radeon RX 6800 XT (RADV NAVI21)").is_mesa is True
    assert vulkan("AMD Radeon RX 6800 XT").is_mesa is None
    assert vulkan("Mali-G78", driverID=9).is_mesa is False
    assert vulkan("Mali-G78", driverID="MESA_PANVK").is_mesa is True


@pytest.mark.parametrize(
    "record",
    [
        {"api": "vulkan", "deviceName": "Virtio-GPU Venus (Mali-G72)"},
        {"api": "vulkan", "deviceName": "Microsoft Direct3D12 (Mali-G72)"},
        {"api": "gles", "GL_RENDERER": "Mali-G72"},
        {"deviceName": "Mali-G72"},
    ],
)
def test_driver_version_is_the_platforms_only_on_native_vulkan(record: dict[str, Any]) -> None:
    number = {"vendorID": 0x13B5, "os": "android", "driverVersion": 192937984}
    assert {*subject({**record, **number}).versions} == {"vk-raw"}
    assert vulkan("Mali-G72", **number).versions["vk-arm"] == (46, 0, 0)


def test_webgpu_over_opengl_tells_the_version_of_gl() -> None:
    name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    info = "4.5 (Core Profile) Mesa 22.3.6"
    here = {"api": "wgpu", "backend": "OpenGL", "name": name, "driverInfo": info}
    found = subject({**here, "os": "linux"})
    assert (found.apis, found.versions) == ({"wgpu", "gles"}, {"gl-mesa": (22, 3, 6)})
    assert (found.vendor, found.is_mesa, found.driver_id) == ("mesa-software", True, None)


def test_ids_tell_where_the_name_does_not() -> None:
    found = vulkan("GPU", vendorID="0x5143", deviceID="0x6030001")
    assert (found.vendor, found.family, found.model) == ("qualcomm", "adreno", 630)
    assert vulkan("GPU", vendorID="0x5143", deviceID="0x36334330").family is None
    assert vulkan("GPU", vendorID="0x13b5", deviceID="0xc8700000").model == 720
    assert vulkan("GPU", vendorID="0x8086", deviceID="0x3e9b").family == "intel-gen9"
    assert vulkan("GPU", vendorID="0x1002", deviceID="0x73bf").family == "rdna2"
    assert vulkan("GPU", vendorID="0x9999").vendor is None


def test_ids_outweigh_a_name_of_another_maker() -> None:
    found = vulkan("Mali-G72", vendorID="0x5143", os="android")
    assert (found.vendor, found.family, found.model) == ("qualcomm", None, None)
    assert found.notes == ("the record speaks of qualcomm, and of arm too",)


def test_vague_name_names_no_model() -> None:
    record = {"api": "webgl", "GL_VENDOR": "Mozilla", "GL_RENDERER": "GeForce GTX 980, or similar"}
    found = subject(record)
    assert (found.vendor, found.family, found.model, found.layers) == (
        "nvidia",
        "geforce",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("api", "backend", "apis", "level"),
    [
        ("vulkan", None, {"vulkan"}, "vulkan"), ("gles31", None, {"gles"}, "gles31"),
        ("gles", None, {"gles"}, None), ("webgl", None, {"gles"}, None),
        ("wgpu", "Vulkan", {"wgpu", "vulkan"}, "wgpu"),
        ("webgpu", "D3D12", {"wgpu", "d3d12"}, "wgpu"),
        ("wgpu", "Direct3D 12", {"wgpu", "d3d12"}, "wgpu"),
        ("wgpu", "Metal", {"wgpu", "metal"}, "wgpu"),
        ("wgpu", "OpenGL ES", {"wgpu", "gles"}, "wgpu"), ("wgpu", None, {"wgpu"}, "wgpu"),
        ("opencl", None, set(), None), ("null", None, set(), None), ("glide", None, None, None),
    ],
)  # fmt: skip
def test_apis(api: str, backend: str | None, apis: set[str] | None, level: str | None) -> None:
    found = subject({"api": api, "backend": backend})
    assert (found.apis, found.level) == (apis, level)


@pytest.mark.parametrize(
    ("word", "system"),
    [("linux", "linux"), ("win32", "windows"), ("windows-arm64", "windows"), ("darwin", "macos"),
     ("android-emulator", "android"), ("ios", "ios"), ("chromeos", "chromeos"), ("any", None)],
)  # fmt: skip
def test_systems(word: str, system: str | None) -> None:
    assert subject({"api": "vulkan", "os": word}).os == system


def test_identity_of_this_machine_gets_its_facts() -> None:
    here = Identity("vulkan", "Mali-G78", sys.platform, vendorID=0x13B5, driverID=9)
    facts = {"os": "android", "android_sdk": "34", "soc": "MT6985", "security_patch": "2024-05-01",
             "brand": "acme", "device": "phone", "kernel_version": "6.1.25-android14"}  # fmt: skip
    found = subject(here, host=facts)
    assert (found.os, found.android_sdk, found.soc, found.brand) == (
        "android",
        34,
        "MT6985",
        "acme",
    )
    assert (found.device, found.security_patch) == ("phone", "2024-05-01")
    assert found.versions["linux-kernel"] == (6, 1, 25)
    assert subject(here).os == host_system()
    elsewhere = Identity("vulkan", "Mali-G78", "another", vendorID=0x13B5, driverID=9)
    assert "linux-kernel" not in subject(elsewhere).versions
    assert subject(elsewhere).device_id is None


def host_system() -> str | None:
    return subject({"os": host.host_facts()["os"]}).os


def test_host_facts_name_this_kernel() -> None:
    facts = host.host_facts()
    assert facts["os"] == sys.platform
    if sys.platform == "linux":
        assert facts["kernel_version"] in Path("/proc/version").read_text()
    facts["os"] = "changed"
    assert host.host_facts()["os"] == sys.platform


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.pop("names"), "'names'"),
        (lambda d: d.update(schema="other/1"), "schema"),
        (lambda d: d["vendors"][0].update(ids=["moon"]), "moon"),
        (lambda d: d["vendors"][0].update(ids=[4318]), "cannot be used"),
        (lambda d: d["names"][0].update(name={"like": ["x"]}), "like"),
        (lambda d: d["names"][2].update(modle=3), "modle"),
        (lambda d: d["names"][6].update(models={"from": 3}), "below"),
        (lambda d: d["drivers"][1].update(moon=1), "moon"),
        (lambda d: d.update(socs=[3]), "cannot be used"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, change: Any, why: str) -> None:
    document = json.loads((DATABASE / "families.json").read_bytes())
    change(document)
    (tmp_path / "families.json").write_text(json.dumps(document))
    with pytest.raises(DatabaseError) as caught:
        families.load_families(tmp_path)
    assert caught.value.code == "GE-600"
    assert str(tmp_path / "families.json") in str(caught.value) and why in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b" " * (MAX_TABLE + 1)])
def test_file_that_is_no_table(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "families.json").write_bytes(data)
    with pytest.raises(DatabaseError):
        families.load_families(tmp_path)


def test_database_without_tables_has_the_packaged_ones(tmp_path: Path) -> None:
    assert families.load_families(tmp_path) is families.load_families(DATABASE)
