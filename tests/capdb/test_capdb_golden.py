"""What the packaged database decides for every stored identity, reviewed line by line.

`python tools/capdb golden` writes the table anew after a change that was meant; its differences
are the review.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from capdb import golden as tool
from capdb.corpus import of_entries, read_unsealed
from capdb.diff import decisions

from gpuedge.capdb.identities import identities
from gpuedge.capdb.judgement import lookup

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "capability_db"
GOLDEN = ROOT / "tests" / "golden" / "capdb" / "decisions.json"


DENIED = {
    "D399": "mali-0027", "D400": "powervr-0010", "D401": "mali-0028", "D402": "mali-0029",
    "D403": "adreno-0036", "D404": "mali-0030", "D405": "mali-0027",
}  # fmt: skip
"""Identities that the source of the facts lists as denied, and the entry that denies each."""

HERE = {
    "ARM": {"deviceName": "Mali-G78", "driverID": 9},
    "Qualcomm": {"deviceName": "Adreno (TM) 710", "driverID": 8},
    "Imagination Technologies": {
        "deviceName": "PowerVR Rogue GE8320", "driverID": 7, "driverVersion": 5776728,
    },
}  # fmt: skip
"""Vulkan on these phones, by the maker."""


@cache
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def rows() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (name, level, row)
        for name, levels in golden()["decisions"].items()
        for level, row in levels.items()
        if level != "name"
    ]


def test_decisions_are_the_reviewed_ones() -> None:
    made = tool.made()
    assert len(made["decisions"]) == 264
    assert made == golden(), "python tools/capdb diff OLD NEW shows what changed; then golden"
    assert tool.text(made) == GOLDEN.read_text(encoding="utf-8")


def test_order_of_entries_changes_nothing() -> None:
    entries = list(read_unsealed(FOLDER))
    random.Random(5).shuffle(entries)
    every = identities(FOLDER)
    some = {name: every[name] for name in list(every)[::7]}
    found = decisions(of_entries(entries), some, golden()["today"])
    for name, levels in found.items():
        assert {"name": golden()["decisions"][name]["name"], **levels} == golden()["decisions"][
            name
        ]


def test_only_what_is_certain_refuses_a_device() -> None:
    """What is not known may ask for tests; to refuse takes an entry that is true and refuses."""
    blocking = {entry.id for entry in read_unsealed(FOLDER) if entry.action.forbids_a_level}
    refused = {name: row["true"] for name, _, row in rows() if row["use"] == "no"}
    for name, true in refused.items():
        assert blocking & set(true), name
    assert set(refused) == {"D003", *DENIED}  # D003: a G6430 whose driver crashes


@pytest.mark.parametrize(("name", "entry"), DENIED.items())
def test_what_a_public_list_denies_is_denied(name: str, entry: str) -> None:
    """The list knows each driver of Vulkan by its whole ``GL_VERSION`` and the chip."""
    record = identities(FOLDER)[name]
    assert record["listed_as"] == "deny"
    found = lookup(record, database=read_unsealed(FOLDER), ignore=(), today=golden()["today"])
    assert found.blocking("vulkan") == [entry]
    assert found.blocks("gles31") is None
    # So it is on the same phone under Vulkan, whose driver tells the same build.
    build = record["GL_VERSION"].removeprefix("OpenGL ES 3.2 ")
    here = {**HERE[record["GL_VENDOR"]], "api": "vulkan", "os": "android", "soc": record["soc"]}
    assert lookup({**here, "driverInfo": build}, ignore=()).blocks("vulkan") == entry


def test_all_that_a_public_list_denies_is_named_here() -> None:
    every = identities(FOLDER).items()
    assert {name for name, record in every if record.get("listed_as") == "deny"} == set(DENIED)


def test_no_entry_refuses_what_it_may_be_about() -> None:
    for entry in read_unsealed(FOLDER):
        if entry.action.forbids_a_level:
            assert entry.if_unknown in {"probe", "skipped"}, entry.id


@pytest.mark.parametrize(
    "record",
    [
        {"api": "vulkan", "deviceName": "llvmpipe (LLVM 15.0.6, 256 bits)", "driverID": 13,
         "vendorID": "0x10005", "deviceID": "0x0", "driverName": "llvmpipe", "os": "linux",
         "driverInfo": "Mesa 22.3.6 (LLVM 15.0.6)", "driverVersion": 92286982,
         "apiVersion": "1.3.230", "device_type": "CPU"},
        {"api": "vulkan", "deviceName": "SwiftShader Device (Subzero)", "vendorID": "0x1ae0",
         "deviceID": "0xc0de", "driverName": "SwiftShader driver", "driverID": 10, "os": "linux",
         "driverVersion": 20971520, "apiVersion": "1.3.0", "device_type": "CPU"},
        {"api": "gles", "GL_VENDOR": "Mesa", "os": "linux",
         "GL_RENDERER": "llvmpipe (LLVM 15.0.6, 256 bits)",
         "GL_VERSION": "OpenGL ES 3.2 Mesa 22.3.6"},
        {"api": "gles", "GL_VENDOR": "Mesa", "GL_RENDERER": "softpipe", "os": "linux",
         "GL_VERSION": "OpenGL ES 3.1 Mesa 22.3.6"},
        {"api": "gles", "GL_VENDOR": "Google Inc.", "GL_RENDERER": "Google SwiftShader",
         "GL_VERSION": "OpenGL ES 3.0 SwiftShader 4.1.0.7", "os": "linux"},
        {"api": "gles", "GL_VENDOR": "Google Inc. (Google)", "os": "linux",
         "GL_RENDERER": "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), "
         "SwiftShader driver-5.0.0)",
         "GL_VERSION": "OpenGL ES 3.1.0 (ANGLE 2.1.1 git hash: unknown)"},
    ],
    ids=["lavapipe", "swiftshader-vulkan", "llvmpipe", "softpipe", "swiftshader-gles", "angle"],
)  # fmt: skip
def test_software_rasterisers_of_the_tests_keep_what_they_serve_well(
    record: dict[str, Any],
) -> None:
    found = decisions(read_unsealed(FOLDER), {"x": record}, golden()["today"])["x"]
    assert found
    for level, row in found.items():
        assert row["use"] == "yes", (level, row)
        assert row["tests"] == [], (level, row)
        assert not set(row["restrictions"].get("features", ())) & {"fp16-storage", "group-kernels"}
