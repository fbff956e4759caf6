"""Names that a device has besides its GPU's: variants of a chip, and boards that run Linux."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import capdb_folders as made
import pytest
from capdb.corpus import of_entries

from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity import host
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import lookup
from gpuedge.core.identity import Identity
from gpuedge.safety import machine


@pytest.mark.parametrize(
    ("asked", "found", "result"),
    [
        ("SM8650", "SM8650", "true"),
        ("SM8650", "sm8650-ac", "true"),
        ("SM8550", "SM8550P", "true"),
        ("MT6769", "MT6769V/CB", "true"),
        ("MT6769V/CB", "MT6769V/CB", "true"),
        ("MT6769V/CB", "MT6769V/CZ", "false"),
        ("MT6769V/CB", "MT6769", "false"),
        ("SM865", "SM8650", "false"),
        ("SM8650", "SM86501", "false"),
        ("TENSOR", "Tensor G4", "false"),
        ("TENSOR G4", " Tensor G4 ", "true"),
        ("SM8650", None, "unknown"),
    ],
)
def test_a_chip_means_its_variants_and_no_other(asked: str, found: str, result: str) -> None:
    base = of_entries([parse(made.entry({"soc": [asked]}))])
    judged = lookup({**made.IDENTITIES[0], "soc": found}, database=base, ignore=())
    (finding,) = judged.findings
    assert finding.result == result
    assert len(judged.relevant) == (result != "false")  # and the index does not lose it


@pytest.fixture
def fresh() -> Iterator[None]:
    host._read.cache_clear()
    yield
    host._read.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_a_board_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"Khadas VIM3\0")
    monkeypatch.setitem(machine.FILES, "model", str(path))
    assert host.host_facts()["device"] == "Khadas VIM3"
    here = Identity("vulkan", "Mali-G52", "linux", vendorID=0x13B5)
    (finding,) = [f for f in lookup(here, ignore=()).relevant if f.id == "mali-0023"]
    assert finding.result == "true"


@pytest.mark.usefixtures("fresh")
def test_a_machine_that_is_no_board_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machine.FILES, "model", str(tmp_path / "nothing"))
    assert "device" not in host.host_facts()
    assert subject(Identity("vulkan", "Mali-G52", "linux", vendorID=0x13B5)).device is None


MESA = (25 << 22) | (1 << 12) | 7
VIDEOCORE = {"api": "vulkan", "vendorID": 0x14E4, "driverVersion": MESA, "driverName": "V3DV Mesa"}
MALI = {"api": "vulkan", "vendorID": 0x13B5, "apiVersion": "1.2.305", "driverVersion": MESA,
        "driverID": 20}  # fmt: skip
PAGE = {
    "Raspberry Pi 5": [{**VIDEOCORE, "deviceName": "V3D 7.1.7", "kernel_version": "6.18.30"}],
    "Raspberry Pi 4, 400": [
        {**VIDEOCORE, "deviceName": "V3D 4.2.14.0", "kernel_version": "6.18.30"},
    ],
    "Raspberry Pi 3, Zero 2 W, late Pi 2": [{"api": "gles20", "GL_RENDERER": "VideoCore IV HW"}],
    "Jetson Orin, Thor": [
        {"api": "vulkan", "deviceName": "NVIDIA Tegra Orin (nvgpu)", "vendorID": 0x10DE,
         "driverID": 4, "driverVersion": (540 << 22) | (4 << 14)},
        {"api": "gles31", "GL_VENDOR": "NVIDIA Corporation",
         "GL_RENDERER": "NVIDIA Tegra Orin (nvgpu)/integrated",
         "GL_VERSION": "OpenGL ES 3.2 NVIDIA 540.4.0"},
    ],
    "RK3588": [{**MALI, "deviceName": "Mali-G610 MC4", "deviceID": 0xA8670000}],
    "RK3566, RK3568": [{**MALI, "deviceName": "Mali-G52 r1 MC1", "deviceID": 0x74021000}],
    "RK3399": [{**MALI, "deviceName": "Mali-T860", "deviceID": 0x8602000}],
    "these three rows, with the vendor's kernel": [
        {"api": "gles31", "GL_VENDOR": "ARM", "GL_RENDERER": "Mali-G610",
         "GL_VERSION": "OpenGL ES 3.2 v1.g13p0-01eac0"},
    ],
    "Steam Deck": [
        {"api": "vulkan", "deviceName": "AMD Custom GPU 0405 (RADV VANGOGH)", "vendorID": 0x1002,
         "deviceID": 0x163F, "driverVersion": MESA, "driverName": "radv"},
    ],
}  # fmt: skip
"""What drivers of the machines on docs/boards.md say, as far as the page goes by it."""


def test_page_of_boards_names_the_entries_that_are_there() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "boards.md").read_text("utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    told = {row[1].strip(): set(re.findall(r"`([a-z]+-\d+)`", row[5])) for row in rows[1:]}
    found = {}
    for board, identities in PAGE.items():
        judged = [lookup({"os": "linux", **said}, ignore=()) for said in identities]
        found[board] = {f.id for j in judged for f in j.relevant} - {"any-0003"}
    assert found == told


@pytest.mark.parametrize("board", ["Raspberry Pi 5", "Raspberry Pi 4, 400"])
def test_vulkan_is_demoted_on_a_raspberry_pi(board: str) -> None:
    said = {**PAGE[board][0], "kernel_version": "6.12.47", "os": "linux"}
    restrictions = lookup(said, ignore=()).restrictions
    assert restrictions.is_demoted and not restrictions.is_backend_off
    gles = {"api": "gles31", "GL_VENDOR": "Broadcom", "GL_RENDERER": "V3D 4.2.14.0",
            "GL_VERSION": "OpenGL ES 3.1 Mesa 25.1.7", "os": "linux"}  # fmt: skip
    assert not lookup(gles, ignore=()).restrictions
