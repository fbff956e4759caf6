"""The verdict store: what makes a verdict stale, how long one is believed, how it is kept small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuedge.backends.base import Candidate
from gpuedge.core.errors import ConfigError
from gpuedge.probing import verdicts
from gpuedge.probing.report import ProbeRow
from gpuedge.safety import machine
from gpuedge.safety.store import load_sealed

CANDIDATE = Candidate("vulkan", "/a.json", "f1", {"VK_DRIVER_FILES": "/a.json"})


def row(status: str = "ok", fingerprint: str = "f1") -> ProbeRow:
    return ProbeRow("vulkan", "vulkan", status, "ok", "because", fingerprint=fingerprint)


def key(environ: dict[str, str], candidate: Candidate = CANDIDATE) -> str:
    return verdicts.Keys(environ)(candidate)


def test_key_covers_the_candidate() -> None:
    others = [
        Candidate("vulkan", "/b.json", "f1", CANDIDATE.env),
        Candidate("vulkan", "/a.json", "f2", CANDIDATE.env),
        Candidate("wgpu", "/a.json", "f1", CANDIDATE.env),
        Candidate("vulkan", "/a.json", "f1", {"VK_DRIVER_FILES": "/c.json"}),
    ]
    assert len({key({}), *(key({}, c) for c in others)}) == 5


@pytest.mark.parametrize(
    "variable",
    [
        "VK_INSTANCE_LAYERS",
        "VK_LAYER_PATH",
        "VK_LOADER_DRIVERS_SELECT",
        "MESA_GLSL_CACHE_DISABLE",
        "LP_NUM_THREADS",
        "GALLIUM_DRIVER",
        "LIBGL_ALWAYS_SOFTWARE",
        "LD_LIBRARY_PATH",
        "__GLX_VENDOR_LIBRARY_NAME",
    ],
)
def test_variables_that_change_drivers_change_the_key(variable: str) -> None:
    assert key({variable: "1"}) != key({})
    assert key({variable: "1"}) != key({variable: "2"})


def test_other_variables_do_not() -> None:
    assert key({"HOME": "/x", "EDITOR": "ed", "GPUEDGE_DEBUG": "3"}) == key({})


def test_what_the_candidate_sets_itself_does_not() -> None:
    assert key({"VK_DRIVER_FILES": "/many.json"}) == key({})


def test_library_state_sees_an_edited_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "map").mkdir()
    kernel = tmp_path / "map" / "a.kern"
    kernel.write_text("one")
    (tmp_path / "__pycache__").mkdir()
    monkeypatch.setattr("gpuedge.safety.paths.data_folder", lambda name: str(tmp_path))
    first = machine.library_state()
    assert first == machine.library_state()
    os.utime(kernel, ns=(1, 1))
    second = machine.library_state()
    assert second != first
    (tmp_path / "map" / "b.kern").write_text("two")
    third = machine.library_state()
    assert third != second
    (tmp_path / "__pycache__" / "x.pyc").write_text("never mind")
    assert machine.library_state() == third
    assert "probing/verdicts.py" in third


def test_missing_data_folder_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuedge.safety.paths._PACKAGE", "/nowhere/gpuedge")
    with pytest.raises(ConfigError, match="shaders"):
        machine.library_state()


def test_lifetimes() -> None:
    day = 86400
    for statuses, seconds in (
        (["ok"], 90 * day), (["ok", "wrong"], 90 * day), (["absent"], day),
        (["ok", "broken"], day), (["crashed"], 7 * day), (["ok", "timeout", "absent"], 7 * day),
    ):  # fmt: skip
        assert verdicts.lifetime([row(status) for status in statuses]) == seconds


@pytest.mark.parametrize(
    ("status", "code", "signal"),
    [("broken", "out-of-memory", None), ("crashed", "crashed", "SIGKILL")],
)
def test_lack_of_memory_is_soon_looked_at_again(status: str, code: str, signal: str | None) -> None:
    evidence = {} if signal is None else {"signal": signal}
    short = row(status).replace(code=code, evidence=evidence)
    assert verdicts.lifetime([row(), short]) == 600


def test_a_limit_of_the_address_space_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key({})
    monkeypatch.setattr(machine, "address_space", lambda: "Max address space 536870912")
    assert key({}) != before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says it in /proc")
@pytest.mark.parametrize(("limit", "word"), [("unlimited", "unlimited"), (1 << 30, str(1 << 40))])
def test_the_limit_of_the_address_space_is_known(limit: str | int, word: str) -> None:
    code = "from gpuedge.safety import machine; print(machine.address_space())"
    limited = f'ulimit -v {limit}; exec "$@"'  # KiB
    command = ["sh", "-c", limited, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[:4] == ["Max", "address", "space", word]


def stored(folder: Path, *rows: ProbeRow, deadline_s: float = 4, now: float = 1e9) -> None:
    verdicts.Store(folder).save({"k": (CANDIDATE, list(rows))}, deadline_s, now)


def found(folder: Path, now: float, deadline_s: float = 4) -> bool:
    return verdicts.Store(folder).find("k", deadline_s, now) is not None


def test_found_rows_are_marked_cached(tmp_path: Path) -> None:
    stored(tmp_path, row())
    rows = verdicts.Store(tmp_path).find("k", 4, 1e9 + 5)
    assert rows is not None
    assert [r.is_cached for r in rows] == [True]
    assert verdicts.Store(tmp_path).find("other", 4, 1e9 + 5) is None


def test_hang_is_asked_again_with_more_patience_only(tmp_path: Path) -> None:
    stored(tmp_path, row("timeout"))
    assert found(tmp_path, 1e9 + 5, deadline_s=4)
    assert found(tmp_path, 1e9 + 5, deadline_s=2)
    assert not found(tmp_path, 1e9 + 5, deadline_s=8)


def test_clock_set_back_makes_a_crash_stale_after_a_day(tmp_path: Path) -> None:
    stored(tmp_path, row("crashed"))
    assert found(tmp_path, 1e9 - 3600)
    assert not found(tmp_path, 1e9 - 2 * 86400)
    assert not found(tmp_path, 1e9 + 8 * 86400)


def test_writers_merge(tmp_path: Path) -> None:
    first, second = verdicts.Store(tmp_path), verdicts.Store(tmp_path)
    first.save({"a": (CANDIDATE, [row()])}, 4, 1.0)
    second.save({"b": (CANDIDATE, [row()])}, 4, 2.0)
    store = verdicts.Store(tmp_path)
    assert store.find("a", 4, 3.0)
    assert store.find("b", 4, 3.0)


def test_file_stays_small(tmp_path: Path) -> None:
    drivers = [CANDIDATE.replace(key=str(i)) for i in range(verdicts.MAX_ENTRIES)]
    verdicts.Store(tmp_path).save({c.key: (c, [row()]) for c in drivers}, 4, 1.0)
    verdicts.Store(tmp_path).save({"new": (CANDIDATE, [row()])}, 4, 2.0)
    body = load_sealed(tmp_path / "verdicts.json", verdicts.SCHEMA)
    assert body is not None
    assert len(body["entries"]) == verdicts.MAX_ENTRIES
    assert "new" in body["entries"]


def test_unwritable_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = verdicts.Store(tmp_path / "file")
    assert store.save({"k": (CANDIDATE, [row()])}, 4, 1.0) is False
