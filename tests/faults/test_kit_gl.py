"""The fault kit fires where it says, and a probe calls each fault by its right name: OpenGL ES."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import daily
import kit
import kit_gl
import pytest
from kit import Cell, Fault, Kit
from required import absent

import gpuedge
from gpuedge.core.reasons import SENTENCES, STATUSES
from gpuedge.probing.report import ProbeRow

pytestmark = daily.day(0, of=4)

PATIENT_S, SHORT_S = 40.0, 6.0
"""Deadlines: one that only a hang reaches, and one for hangs."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The kit, compiled."""
    if not kit_gl.good_manifest().is_file():
        absent("Mesa's EGL is not installed: apt-get install -y libegl-mesa0 libegl1 libgles2")
    try:
        return kit.build(tmp_path_factory.mktemp("kit"))
    except kit.BuildError as error:
        if "no C compiler" not in str(error):
            raise
        absent(str(error))
        raise


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no verdict on a faulty driver to others."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))


CHOSEN = (
    # ends of the process, at every point
    ("segv@load", "gles30"),
    ("exit0@create", "gles31"),
    ("segv@submit", "gles31"),
    ("abort@read", "gles30"),
    ("exit0@teardown", "gles20"),
    # time
    ("hang@create", "gles30"),
    ("leak-lock@create", "gles30"),
    # what names the driver
    ("wrong-format@load", "gles31"),
    # before there is a context
    ("refused@load", "gles31"),
    ("configs-none@enumerate:1+", "gles31"),
    # numbers returned
    ("lost@create:1+", "gles30"),
    ("oom-host@create:1+", "gles31"),
    ("reset@submit:1+", "gles20"),
    ("endless-errors@read:1+", "gles31"),
    ("compile-failed-huge-log@compile:1+", "gles30"),
    # numbers computed
    ("wrong@compile:1+", "gles20"),
    ("nan@read:1+", "gles31"),
    ("stale@read:2+", "gles31"),
    # lists and strings
    ("name-huge@enumerate:1+", "gles31"),
    ("limits-huge@enumerate:1+", "gles31"),
    ("extensions-endless@enumerate:1+", "gles31"),
    ("exit0@instance", "gles20"),
    ("abort@enumerate", "gles20"),
    ("segv@allocate", "gles20"),
    ("exit0@compile", "gles30"),
    ("segv@finish", "gles30"),
    ("missing-symbol@load", "gles20"),
    ("devices-bad@enumerate:1+", "gles20"),
    ("strings-huge@enumerate:1+", "gles30"),
    ("bad-handle@create:1+", "gles20"),
    ("oom-device@allocate:1+", "gles30"),
    ("lost@compile:1+", "gles31"),
    ("code4660@read:1+", "gles31"),
    ("lost@read:1+", "gles20"),
    ("untouched-output@submit:1+", "gles20"),
    ("zero-output@submit:1+", "gles30"),
    ("unstable@read:1+", "gles20"),
    ("name-changing@enumerate:1+", "gles30"),
    ("limits-zero@enumerate:1+", "gles20"),
    ("extensions-null@enumerate:1+", "gles30"),
)
"""Cells of each family of faults; `tools/fault_matrix.py` runs all there are."""

DAYS = 4
"""So many days it takes until each of them was one of the day."""

CELLS = {(str(cell.fault), cell.api): cell for cell in kit_gl.cells()}


def probed(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], late: bool) -> ProbeRow:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    report = gpuedge.probe(refresh=True, deadline_s=SHORT_S if late else PATIENT_S)
    assert all(c.isprintable() or c == "\n" for c in str(report))
    first = report.tried[0]
    assert {(row.status, row.code) for row in report.tried} == {(first.status, first.code)}
    return first


@pytest.mark.driver
@pytest.mark.parametrize(
    ("text", "api"),
    daily.some(CHOSEN, DAYS),
    ids=lambda value: value,
)
def test_probe_names_the_fault(
    text: str, api: str, built: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = CELLS[text, api]
    log = tmp_path / "fired"
    monkeypatch.setenv("GPUFAULT_LOG", str(log))
    late = cell.status == "timeout"
    row = probed(monkeypatch, built.environment(api, cell.fault), late)
    assert cell.accepts(row.status, row.code), row.reason
    assert late or row.evidence.get("is_unfinished") is not True
    if cell.fault.name in kit_gl.UNLOADED:
        return
    fired = [line.split() for line in log.read_text().splitlines()]
    assert {at for at, _, _ in fired} == {f"{cell.fault.name}@{cell.fault.point}"}
    assert str(os.getpid()) not in {pid for _, _, pid in fired}


@pytest.mark.driver
@pytest.mark.parametrize("carrier", [kit_gl.VENDOR, kit_gl.INTERPOSER])
@pytest.mark.parametrize("api", kit_gl.LEVELS)
def test_without_a_fault_a_carrier_passes_everything_on(
    api: str, carrier: str, built: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "fired"
    monkeypatch.setenv("GPUFAULT_LOG", str(log))
    nothing = Fault("nothing", "enumerate", ":1+")
    row = probed(monkeypatch, kit_gl.environment(built.folder, api, nothing, carrier), False)
    assert (row.status, row.code) == ("ok", "ok"), row.reason
    assert row.name.startswith("llvmpipe")
    assert log.read_text().startswith("nothing@enumerate 1 ")


@pytest.mark.driver
@pytest.mark.parametrize("name", ["missing-library", "missing-symbol"])
def test_pair_of_libraries_that_is_none(
    name: str, built: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(name, "load")
    variables = kit_gl.environment(built.folder, "gles20", fault, kit_gl.INTERPOSER)
    row = probed(monkeypatch, variables, False)
    assert (row.status, row.code) == ("broken", "missing-library"), row.reason


# --- the tables ---------------------------------------------------------------------------------


def test_cells_are_of_faults_that_are_described() -> None:
    kinds = {**kit.FAULTS, **kit_gl.FAULTS}
    for cell in kit_gl.cells():
        kind = kinds[cell.fault.name]
        assert cell.fault.point in {*kind.points, *own_points(cell)}, str(cell)
        assert cell.fault.name not in kit_gl.FAULTS or cell.api in kind.apis, str(cell)
        assert cell.status in STATUSES
        assert set(cell.codes) <= set(SENTENCES)


def own_points(cell: Cell) -> tuple[str, ...]:
    """Points at which a fault of all APIs is counted in OpenGL alone: draws can be swallowed."""
    return ("submit",) if cell.fault.name in ("zero-output", "stale") else ()


def test_every_fault_of_opengl_has_a_cell_at_each_of_its_points() -> None:
    have = {(cell.fault.name, cell.fault.point, cell.api) for cell in kit_gl.cells()}
    for name, kind in kit_gl.FAULTS.items():
        for point in kind.points:
            for api in kind.apis:
                assert (name, point, api) in have


def test_each_level_has_its_hundred_cells() -> None:
    counts = {api: sum(cell.api == api for cell in kit_gl.cells()) for api in kit_gl.LEVELS}
    assert min(counts.values()) >= 100
    assert len({str(cell) for cell in kit_gl.cells()}) == len(kit_gl.cells())
