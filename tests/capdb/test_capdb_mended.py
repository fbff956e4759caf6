"""Faults of identification and of entries that a review of 40 entries and 141 devices found.

Each test names a string or a device of that review; the expected values are those of the makers'
own notation, worked out by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from capdb import corpus
from capdb.corpus import read_unsealed

from gpuedge.capdb.entries import Entry
from gpuedge.capdb.identities import identities
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import Judgement, lookup
from gpuedge.capdb.matching import result

FOLDER = Path(__file__).resolve().parents[2] / "capability_db"
TODAY = "2026-11-23"


def told(record: dict[str, Any]) -> Judgement:
    return lookup(record, database=read_unsealed(FOLDER), ignore=(), today=TODAY)


def asked(record: dict[str, Any]) -> set[str]:
    """Return the entries that ask for a test."""
    return {demand.entry for demand in told(record).demands}


def entry(name: str) -> Entry:
    return read_unsealed(FOLDER).entry(name)


@pytest.mark.parametrize(
    "name",
    [
        "ANGLE (AMD, ANGLE Metal Renderer: AMD Radeon Pro 560X, Version 12.6.1 (Build 21G217))",
        "ANGLE (AMD, ANGLE Metal Renderer: AMD Radeon Pro 560X)",
        "ANGLE (ANGLE Metal Renderer: AMD Radeon Pro 560X, Unspecified Version)",
        "ANGLE (ANGLE Metal Renderer: AMD Radeon Pro 560X)",
        "ANGLE Metal Renderer: AMD Radeon Pro 560X",
    ],
)
def test_angle_on_metal_names_the_gpu_without_its_maker_too(name: str) -> None:
    found = subject({"api": "gles", "os": "macos", "GL_RENDERER": name})
    assert (found.name, found.layers) == ("AMD Radeon Pro 560X", ("angle",))
    assert (found.vendor, found.family, found.model) == ("amd", "gcn", 560)


def test_angle_on_direct3d_tells_windows_number_behind_the_name_of_a_library() -> None:
    name = (
        "ANGLE (NVIDIA, NVIDIA GeForce GTX 1060 Direct3D11 vs_5_0 ps_5_0, "
        "nvldumdx.dll-23.21.13.9077)"
    )
    found = subject({"api": "gles", "os": "windows", "GL_RENDERER": name})
    assert found.versions["win-wddm"] == (23, 21, 13, 9077)


@pytest.mark.parametrize("where", [{"backend": "OpenGL"}, {"backend": "gl"}, {}])
def test_webgpu_over_opengl_tells_nvidias_version(where: dict[str, str]) -> None:
    info = {"name": "NVIDIA GeForce RTX 3060", "driver_info": "4.6.0 NVIDIA 565.90"}
    found = subject({"api": "wgpu", "os": "linux", **info, **where})
    assert found.versions["gl-nvidia"] == (565, 90)
    assert (found.vendor, found.is_mesa) == ("nvidia", False)


@pytest.mark.parametrize("number", [83894278, "83894278", "0x5002006"])
def test_radvs_number_is_a_version_of_mesa(number: int | str) -> None:
    found = subject({"api": "vulkan", "deviceName": "AMD RADV NAVI10", "driverVersion": number})
    assert found.versions["vk-mesa"] == (20, 2, 6)  # 20 << 22 | 2 << 12 | 6
    name = "ANGLE (AMD, Vulkan 1.2.131 (AMD RADV NAVI10 (0x0000731F)), radv-83894278)"
    assert subject({"api": "gles", "GL_RENDERER": name}).versions["vk-mesa"] == (20, 2, 6)


@pytest.mark.parametrize("api", ["vulkan", "wgpu", "gles"])
@pytest.mark.parametrize("name", ["AMD RADV NAVI10 (ACO)", "AMD Radeon RX 6600 (RADV NAVI23)"])
def test_radvs_names_are_mesas(api: str, name: str) -> None:
    found = subject({"api": api, "name": name})
    assert (found.vendor, found.is_mesa) == ("amd", True)


@pytest.mark.parametrize("date", ["08/25/22", "08/25/2022"])
def test_dates_of_builds_have_years_of_two_or_four_digits(date: str) -> None:
    version = f"OpenGL ES 3.2 V@0502.0 (GIT@193b2ee, I593c16c433, 1607689690) (Date:{date})"
    assert subject({"api": "gles", "GL_VERSION": version}).built == "2022-08-25"


def test_qualcomms_compiler_is_proof_of_qualcomms_driver() -> None:
    info = {"driverInfo": "Compiler Version: EV031.35.01.12"}
    found = subject({"api": "vulkan", "deviceName": "Adreno (TM) 640", **info})
    assert (found.is_mesa, found.versions["adreno-compiler"]) == (False, (31, 35, 1, 12))


def test_no_entry_or_note_compares_what_its_api_never_tells() -> None:
    """As amd-0005 did: native Vulkan on Windows tells no number of Windows' own."""
    rows = [e.source for e in read_unsealed(FOLDER)] + [n for n, _ in corpus.notes(FOLDER)]
    for row in rows:
        for match in row["match"]:
            if match.get("driver", {}).get("scheme") == "win-wddm":
                assert match["layer"] == ["angle"] or match["api"] == ["d3d12"], row["id"]


INTEL = {"api": "gles", "os": "linux", "GL_VENDOR": "Intel Open Source Technology Center"}


@pytest.mark.parametrize(
    ("ids", "sound", "faulty"),
    [
        (("0x0102", "0x0166"), "8.0", "7.11.2"),
        (("0xa001", "0x2e92"), "8.0.3", "8.0.2"),
        (("0x0042", "0x0046"), "8.0.5", "8.0.4"),
        (("0x2a02",), "9.1", "9.0.3"),
        (("0x0a16", "0x0a26"), "10.0.1", "10.0.0"),
        (("0x0412",), "10.1", "10.0.9"),  # of no group
    ],
)
def test_five_groups_of_intel_are_sound_from_earlier_versions_on(
    ids: tuple[str, ...], sound: str, faulty: str
) -> None:
    for number in ids:
        for version, value in ((sound, "false"), (faulty, "true")):
            record = {**INTEL, "deviceID": number, "GL_VERSION": f"OpenGL ES 2.0 Mesa {version}"}
            assert result(entry("intel-0023"), subject(record))[0].value == value, (number, version)


def test_intel_that_may_be_of_a_sound_group_is_tested_and_not_denied() -> None:
    record = {**INTEL, "GL_VERSION": "OpenGL ES 2.0 Mesa 9.1.7", "level": "gles20"}
    assert "intel-0023" in asked(record)
    assert told(record).blocks("gles20") is None


@pytest.mark.parametrize(("model", "value"), [(530, "true"), (630, "true"), (640, "false")])
def test_older_adreno_is_not_every_adreno(model: int, value: str) -> None:
    name, version = f"Adreno (TM) {model}", "OpenGL ES 3.2 V@415.0"
    record = {"api": "gles31", "os": "android", "GL_RENDERER": name, "GL_VERSION": version}
    assert result(entry("adreno-0037"), subject(record))[0].value == value


@pytest.mark.parametrize(("system", "value"), [("android", "true"), ("windows", "false")])
def test_reports_from_android_are_about_android(system: str, value: str) -> None:
    record = {"api": "vulkan", "os": system, "deviceName": "Adreno (TM) 690", "driverID": 8}
    assert result(entry("adreno-0023"), subject(record))[0].value == value


@pytest.mark.parametrize(
    ("board", "value"),
    [("OrangePi Zero3", "true"), ("Hardkernel ODROID-C4", "false"), (None, "false")],
)
def test_one_board_is_not_its_family(board: str | None, value: str) -> None:
    record = {"api": "vulkan", "os": "linux", "deviceName": "Mali-G31", "driverID": 20}
    record |= {} if board is None else {"device": board}
    assert result(entry("mali-0024"), subject(record))[0].value == value


@pytest.mark.parametrize("name", ["PowerVR Rogue GE8320", "PowerVR A-Series AXE-1-16"])
def test_older_powervr_is_tested_and_not_denied_for_two_halves_of_a_reason(name: str) -> None:
    record = {"api": "vulkan", "os": "android", "vendorID": 0x1010, "driverID": 7,
              "deviceName": name}  # fmt: skip
    assert told(record).blocks("vulkan") is None
    assert "powervr-0005" in asked(record)
    assert told(record).after({"powervr-0005": False}).blocks("vulkan") == "powervr-0005"


@pytest.mark.parametrize(
    ("record", "most"),
    [
        ({"deviceName": "llvmpipe (LLVM 15.0.6, 256 bits)", "driverID": 13}, 2147483647),
        ({"deviceName": "SwiftShader Device (Subzero)", "vendorID": 0x1AE0}, 2147483647),
        ({"deviceName": "AMD RADV NAVI10", "vendorID": 0x1002}, 2147483647),
        ({"deviceName": "NVIDIA L4", "vendorID": 0x10DE, "driverID": 4}, None),
        ({"deviceName": "NVIDIA L4 (NVK AD104)", "vendorID": 0x10DE, "driverID": 24}, None),
    ],
)
def test_large_buffers_are_left_to_nvidia_alone(record: dict[str, Any], most: int | None) -> None:
    found = told({"api": "vulkan", "os": "linux", **record}).restrictions
    assert found.limits.get("max_allocation_bytes") == most


@pytest.mark.parametrize(("bits", "entries"), [(32, {"any-0013"}), (64, set()), (None, set())])
def test_direct3d_12_in_a_process_of_32_bits_is_tested(bits: int | None, entries: set[str]) -> None:
    record = {"api": "wgpu", "backend": "dx12", "os": "windows", "name": "NVIDIA GeForce RTX 3060"}
    record |= {} if bits is None else {"process_bits": bits}  # type: ignore[dict-item]
    assert asked(record) == entries


@pytest.mark.parametrize(("version", "value"), [("1.7@1", "true"), ("1.8@1", "false")])
def test_rogue_drivers_before_1_8_are_tested(version: str, value: str) -> None:
    record = {"api": "gles30", "os": "android", "GL_VENDOR": "Imagination Technologies",
              "GL_RENDERER": "PowerVR Rogue G6430",
              "GL_VERSION": f"OpenGL ES 3.1 build {version}234567"}  # fmt: skip
    assert result(entry("powervr-0037"), subject(record))[0].value == value
    assert ("powervr-0037" in asked(record)) == (value == "true")


def test_every_entry_has_a_device_that_it_matches_and_one_close_by_that_it_does_not() -> None:
    """The lint tells which is missing or wrong; here it is counted, without it."""
    pairs = json.loads((FOLDER / "fixtures/pairs.json").read_text(encoding="utf-8"))["pairs"]
    entries, stored = {e.id: e for e in read_unsealed(FOLDER)}, identities(FOLDER)
    assert pairs.keys() == entries.keys()
    for name, pair in pairs.items():
        record = pair["match"] if isinstance(pair["match"], dict) else stored[pair["match"]]
        near = {**record, **pair["near"]}
        found = [result(entries[name], subject(r))[0].value for r in (record, near)]
        assert found == ["true", "false"], name


def test_every_entry_changes_something_that_code_reads() -> None:
    """A fixture of each, with what comes of it: a denial, a test, a limit, a preference."""
    read = {"fp16", "fp16-storage", "pipeline-cache"}  # `restrict.apply`, the Vulkan backend
    for one in read_unsealed(FOLDER):
        action = one.action
        assert action.features <= read, one.id
        others = (action.forbids_a_level, action.kernels, action.storages, action.limits)
        assert action.features or action.is_demoted or any(others), one.id


def test_notes_are_about_what_is_never_done_and_are_not_loaded() -> None:
    notes = [note for note, _ in corpus.notes(FOLDER)]
    assert len(notes) == 139
    assert not {note["id"] for note in notes} & set(read_unsealed(FOLDER).ids)
    for note in notes:
        assert note["why"] and "action" not in note
