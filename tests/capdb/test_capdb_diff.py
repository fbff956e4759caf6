"""Comparing two databases: exactly the decisions that change are listed, and what they rest on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import capdb_folders as made
import pytest
from capdb.corpus import of_entries, read_unsealed
from capdb.decisions import decision, levels, on_levels
from capdb.diff import compare, decisions, entries_changed

from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import lookup

PACKAGED = Path(__file__).resolve().parents[2] / "capability_db"
IDENTITIES = {record["id"]: record for record in made.IDENTITIES}
PROBE = {"tests": ["standard"], "runs": 8, "may": "confirm_and_clear"}
BLOCKS = {"action": {"disable_backend": True}}


def test_a_changed_action_is_listed_for_the_devices_it_is_about(tmp_path: Path) -> None:
    old = read_unsealed(made.folder(tmp_path / "old", [made.entry()]))
    new = read_unsealed(
        made.folder(tmp_path / "new", [made.entry(action={"disable_features": ["suballocation"]})])
    )
    (change,) = compare(old, new, IDENTITIES, made.TODAY)
    assert (change.device, change.level, change.name) == ("D001", "vulkan", "Adreno (TM) 620")
    assert list(change.before) == ["restrictions"]  # what stays the same is left out
    assert change.before["restrictions"]["features"] == ["fp16"]
    assert change.after["restrictions"]["features"] == ["suballocation"]
    assert compare(new, new, IDENTITIES, made.TODAY) == []
    assert entries_changed(old, new) == {"added": [], "removed": [], "changed": ["adreno-0001"]}


def test_words_change_no_decision(tmp_path: Path) -> None:
    other = [made.entry(summary="Adreno 620: other words about the same fault.")]
    old = read_unsealed(made.folder(tmp_path / "old", [made.entry()]))
    new = read_unsealed(made.folder(tmp_path / "new", other))
    assert compare(old, new, IDENTITIES, made.TODAY) == []
    assert entries_changed(old, new)["changed"] == ["adreno-0001"]


def test_a_change_of_the_families_counts_too(tmp_path: Path) -> None:
    """Who a device is depends on tables of the same folder."""
    folders = [made.folder(tmp_path / name, [made.entry()]) for name in ("old", "new")]
    for folder in folders:
        for name in ("families.json", "names.json", "classes.json"):
            shutil.copy(PACKAGED / name, folder)
    tables = json.loads((PACKAGED / "families.json").read_text(encoding="utf-8"))
    tables["names"] = [row for row in tables["names"] if row.get("vendor") != "qualcomm"]
    tables["codes"] = [{**row, "first": "0x1", "last": "0x2"} for row in tables["codes"]]
    (folders[1] / "families.json").write_text(json.dumps(tables), encoding="utf-8")
    (change,) = compare(*map(read_unsealed, folders), IDENTITIES, made.TODAY)
    assert (change.device, change.before["true"]) == ("D001", ["adreno-0001"])
    assert (change.after["true"], change.after["unknown"]) == ([], ["adreno-0001"])


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, "yes"),
        (BLOCKS | {"effect": "crash"}, "no"),
        (BLOCKS | {"probe": PROBE}, "tests"),
        (BLOCKS | {"effect": "crash", "state": "canary"}, "tests"),
    ],
)
def test_whether_a_level_is_used(fields: dict[str, object], use: str) -> None:
    judged = lookup(
        IDENTITIES["D001"], database=of_entries([parse(made.entry(**fields))]), ignore=(),
        today=made.TODAY,
    )  # fmt: skip
    assert decision(judged, "vulkan")["use"] == use


def test_an_entry_about_one_level_says_nothing_of_the_others() -> None:
    entry = made.entry(
        {"api": ["gles"], "vendor": ["intel"], "family": None, "model": None},
        action={"disable_levels": ["gles31"]}, probe=PROBE,
    )  # fmt: skip
    found = decisions(of_entries([parse(entry)]), IDENTITIES, made.TODAY)["D003"]
    assert {level: (row["use"], row["tests"]) for level, row in found.items()} == {
        "gles31": ("tests", ["adreno-0001"]),
        "gles30": ("yes", []),
        "gles20": ("yes", []),
    }


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"api": "vulkan"}, ("vulkan",)),
        (
            {"api": "gles", "GL_VERSION": "OpenGL ES 3.2 Mesa 21.2.6"},
            ("gles31", "gles30", "gles20"),
        ),
        ({"api": "gles", "GL_VERSION": "OpenGL ES 3.0 V@84.0"}, ("gles30", "gles20")),
        ({"api": "gles", "GL_VERSION": "OpenGL ES 2.0 V@14.0"}, ("gles20",)),
        ({"api": "gles30", "GL_VERSION": "OpenGL ES 3.2 Mesa 21.2.6"}, ("gles30",)),
        ({"api": "opencl"}, ()),
        ({}, ("vulkan", "gles31", "gles30", "gles20", "wgpu")),
    ],
)
def test_levels_of_a_device(record: dict[str, object], wanted: tuple[str, ...]) -> None:
    assert levels(subject(record)) == wanted


def test_ignored_entries_count_in_a_comparison_and_not_in_what_this_user_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = of_entries([parse(made.entry(effect="crash", **BLOCKS))])
    monkeypatch.setenv("GPUEDGE_IGNORE", "adreno-0001")
    assert decisions(base, IDENTITIES, made.TODAY)["D001"]["vulkan"]["use"] == "no"
    judged = on_levels(base, IDENTITIES["D001"])["vulkan"]
    assert decision(judged, "vulkan")["use"] == "yes"
