"""Names of devices under layers: strings seen in the wild, and rules that cannot be used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuedge import capdb
from gpuedge.capdb.identity.texts import NameMatch, folded
from gpuedge.core.errors import DatabaseError
from gpuedge.core.identity import Identity

SAME: dict[str, list[str]] = {
    "llvmpipe": [
        "llvmpipe (LLVM 15.0.6, 256 bits)",
        "zink (llvmpipe (LLVM 15.0.6, 256 bits))",
        "zink Vulkan 1.3(llvmpipe (LLVM 15.0.6, 256 bits) (MESA_LLVMPIPE))",
        "virgl (LLVMPIPE (LLVM 15.0.7, 256 bits))",
    ],
    "swiftshader": [
        "SwiftShader Device (Subzero)",
        "SwiftShader Device (LLVM 10.0.0)",
        "Google SwiftShader",
        "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), SwiftShader)",
        "Android Emulator OpenGL ES Translator (Google SwiftShader)",
    ],
    "geforce rtx 3060": [
        "NVIDIA GeForce RTX 3060",
        "GeForce RTX 3060/PCIe/SSE2",
        "ANGLE (NVIDIA, NVIDIA GeForce RTX 3060 (0x00002504) Direct3D11 vs_5_0 ps_5_0, D3D11)",
        "D3D12 (NVIDIA GeForce RTX 3060)",
        "Android Emulator OpenGL ES Translator (NVIDIA GeForce RTX 3060/PCIe/SSE2)",
        "GeForce RTX 3060, or similar",
    ],
    "uhd graphics 630": [
        "Intel(R) UHD Graphics 630 (CML GT2)",
        "Mesa Intel(R) UHD Graphics 630 (CML GT2)",
        "Mesa DRI Intel(R) UHD Graphics 630",
        "ANGLE (Intel Inc., Intel(R) UHD Graphics 630, OpenGL 4.1 INTEL-14.7.11)",
        "ANGLE (Intel, Vulkan 1.2.131 (Intel(R) UHD Graphics 630 (CML GT2) (0x00009BC5)), Mesa-20)",
        "ANGLE (Intel(R) UHD Graphics 630 Direct3D11 vs_5_0 ps_5_0)",
        "Microsoft Direct3D12 (Intel(R) UHD Graphics 630)",
    ],
    "mali-g72": [
        "Mali-G72",
        "ANGLE (ARM, Vulkan 1.1.255 (VirtIO GPU Venus (Mali-G72) (0x62210030)), Venus 40.0.0)",
        "Mali-G72 (Panfrost)",
    ],
    "adreno 640": [
        "Adreno (TM) 640",
        "ANGLE (Qualcomm, Vulkan 1.1.128 (Adreno (TM) 640 (0x06040001)), Qualcomm Vulkan Driver)",
        "ANGLE (Qualcomm, Adreno (TM) 640, OpenGL ES 3.2)",
    ],
    "xclipse 920": ["Samsung Xclipse 920", "ANGLE (Samsung Xclipse 920) on Vulkan 1.1.179"],
    "xclipse 960": ["ANGLE ((Samsung Xclipse 960) on Vulkan 1.4.304)"],
    "radeon pro 560x": [
        "AMD Radeon Pro 560X",
        "ANGLE (ATI Technologies Inc., AMD Radeon Pro 560X OpenGL Engine, OpenGL 4.1 ATI-3.10.19)",
    ],
    "m1": [
        "Apple M1",
        "ANGLE (Apple, ANGLE Metal Renderer: Apple M1, Version 13.0 (Build 22A380))",
    ],
    "radeon rx 580 series": [
        "AMD Radeon RX 580 Series (RADV POLARIS10)",
        "AMD Radeon RX 580 Series (polaris10, LLVM 15.0.6, DRM 3.49, 6.1.0)",
    ],
}  # fmt: skip


def identity(name: str, api: str = "gles31", **more: Any) -> Identity:
    return Identity(api, name, "linux", **more)


@pytest.mark.parametrize(("model", "name"), [(m, n) for m, names in SAME.items() for n in names])
def test_names_from_the_wild(model: str, name: str) -> None:
    assert capdb.model(identity(name)) == model


@pytest.mark.parametrize("name", ["", "GPU", "(", "((((", "ANGLE (", "zink ()", "(R)", "x" * 5000])
def test_any_name_has_a_model_in_short_time(name: str) -> None:
    assert capdb.model(identity(name)) == capdb.model(identity(name))
    assert bool(capdb.model(identity(name))) is bool(name.strip())


def test_layers_end() -> None:
    name = "zink (" * 50 + "GPU" + ")" * 50
    assert capdb.load_names().beneath(name).startswith("zink (")


@pytest.mark.parametrize(
    ("name", "device_class"),
    [
        ("zink (llvmpipe (LLVM 15.0.6, 256 bits))", "cpu-llvm"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "cpu-llvm"),
        (SAME["swiftshader"][3], "cpu-subzero"),
        ("Google SwiftShader", "cpu-subzero"),
        ("softpipe", "generic"),
        ("Mali-G52 MC2", "mali"),
        ("Adreno (TM) 610", "adreno"),
        ("PowerVR Rogue GE8320", "powervr"),
        ("NVIDIA Tegra", "nvidia"),
        ("Mesa Intel(R) HD Graphics 505 (APL 3)", "intel"),
        ("Mesa DRI Intel(R) Haswell Mobile", "intel"),
        ("AMD Radeon RX 580 Series (polaris10, LLVM 15.0.6)", "amd"),
        ("ANGLE (Apple, Apple M1 Pro, OpenGL 4.1)", "apple"),
        ("ANGLE (ARM, Mali-G715, OpenGL ES 3.2)", "mali"),
        ("ANGLE (Samsung Xclipse 920) on Vulkan 1.1.179", "amd"),
        ("D3D12 (NVIDIA GeForce RTX 3060)", "generic"),
        ("V3D 4.2", "generic"),
    ],
)
@pytest.mark.parametrize("api", ["gles31", "gles20", "wgpu", "webgpu"])
def test_names_under_every_api_have_their_class(api: str, name: str, device_class: str) -> None:
    assert capdb.classify(identity(name, api)) == device_class


@pytest.mark.parametrize(
    ("vendor", "device_class"),
    [("Qualcomm", "adreno"), ("ARM", "mali"), ("Imagination Technologies", "powervr"),
     ("lima", "mali"), ("nouveau", "nvidia"), ("Broadcom", "generic")],
)  # fmt: skip
def test_maker_decides_where_the_name_is_unknown(vendor: str, device_class: str) -> None:
    assert capdb.classify(identity("some renderer", driverName=vendor)) == device_class
    assert capdb.classify(identity("some renderer", GL_VENDOR=vendor)) == device_class
    assert capdb.classify(identity("some renderer", "vulkan", driverName=vendor)) == "generic"


def good() -> dict[str, Any]:
    return {
        "schema": "gpuedge.names/2",
        "layers": [{"layer": "angle", "form": "over ({device})"}],
        "cut": [],
        "tails": [" x"],
        "heads": [],
        "same": {},
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "gpuedge.names/1"}, "schema"),
        ({"layers": None}, "cannot be used"),
        ({"layers": [{"layer": "angle"}]}, "form"),
        ({"layers": [{"layer": "angle", "form": "over"}]}, "must have '{device}'"),
        ({"layers": [{"layer": "angle", "form": "{device} {device}"}]}, "must have '{device}'"),
        ({"layers": [{"layer": "angle", "form": "{device} {moon}"}]}, "moon"),
        ({"layers": [{"layer": "angle", "form": 5}]}, "cannot be used"),
        ({"tails": None}, "cannot be used"),
        ({"same": 7}, "cannot be used"),
    ],
)
def test_bad_rules_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / "names.json").write_text(json.dumps({**good(), **change}))
    with pytest.raises(DatabaseError) as caught:
        capdb.load_names(tmp_path)
    assert words in str(caught.value)


def test_edited_rules_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps(good()))
    assert capdb.load_names(tmp_path).model("Over (GPU x)") == "gpu"
    file.write_text(json.dumps({**good(), "tails": []}))
    os.utime(file, ns=(1, 1))
    assert capdb.load_names(tmp_path).model("Over (GPU x)") == "gpu x"


def test_worst_form_and_name_take_little_time(tmp_path: Path) -> None:
    """Forms are data: no name may make one search for long."""
    form = "{maker} {device} {number} {vulkan} {driver} {driver_name} {driver_opengl}"
    document = {**good(), "layers": [{"layer": "angle", "form": form}]}
    (tmp_path / "names.json").write_text(json.dumps(document))
    rules = capdb.load_names(tmp_path)
    start = time.process_time()
    for name in (" " * 300, "0x" * 150, "a 0x1 1.1 " * 30, "OpenGL " * 43, "1 " * 150):
        assert rules.peel(name) == []
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({"exact": ["mali g52"]}, ["Mali-G52", "mali_g52", "MALI G52"]),
        ({"prefix": ["adreno 7"]}, ["Adreno (TM) 730", "adreno_(tm)_750"]),
        ({"contains": ["dg1", "dg2"]}, ["Intel(R) Graphics (DG2)"]),
        ({"contains_all": ["iris", "655"]}, ["Intel(R) Iris(R) Plus Graphics 655"]),
        ({"words": ["raphael mendocino"]}, ["AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)"]),
        ({"prefix": ["intel "], "words": ["tgl"]}, ["Intel(R) Xe Graphics (TGL GT2)"]),
    ],
)
def test_conditions_on_names(conditions: dict[str, Any], names: list[str]) -> None:
    wanted = NameMatch.of(conditions)
    assert all(wanted.holds(folded(name)) for name in names)
    assert not wanted.holds(folded("Mali-G520 dgx"))
    assert not wanted.holds("")
