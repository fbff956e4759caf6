"""`probe()`: cached, merged, rebuilt; with fake drivers whose misdeeds are played by a worker."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import daily
import pytest
from looks import wait_for_looks
from probing_fakes import started

from gpuedge import backends
from gpuedge.backends.wgpu import candidates as finding
from gpuedge.core.errors import ConfigError, UnknownDeviceError
from gpuedge.probing import api, run, verdicts
from gpuedge.probing.api import probe
from gpuedge.probing.background import WORDS
from gpuedge.probing.report import ProbeProgress, ProbeReport
from gpuedge.safety.store import load_sealed, save_sealed


@pytest.fixture(autouse=True)
def five(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five fake drivers."""
    monkeypatch.setenv("PROBE_FAKES", "ok absent segv discrete wrong")


STORES: list[Path] = []
"""Where the cache folder of the first probe of the fakes is kept for all tests of this session."""


@pytest.fixture
def probed(five: None, fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The five, all of them probed and remembered."""
    if STORES:
        shutil.copytree(STORES[0], fakes, dirs_exist_ok=True)
    else:
        assert summary(probe()) == EXPECTED
        STORES.append(tmp_path_factory.mktemp("probed") / "store")
        shutil.copytree(fakes, STORES[0])
    assert started(fakes) == ONCE
    return fakes


def summary(report: ProbeReport) -> list[tuple[str, str, str]]:
    return [(r.device, r.name, r.status) for r in report.tried]


ONCE = 5 + 2
"""Children of a probe of the fakes: two of the five fail, and are tried once more."""

EXPECTED = [
    ("fake:0", "soft ok", "ok"),
    ("fake", "absent", "absent"),
    ("fake", "segv", "crashed"),
    ("fake:1", "hard discrete", "ok"),
    ("fake:2", "hard wrong", "wrong"),
]


def test_every_candidate_has_a_row_and_a_reason() -> None:
    report = probe()
    assert summary(report) == EXPECTED
    assert all(r.reason for r in report.tried)
    assert [r.device for r in report.devices] == ["fake:1", "fake:0"]


def test_second_probe_starts_no_child(probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(*_: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(run, "probe_all", refuse)
    second = probe()
    assert summary(second) == EXPECTED
    assert started(probed) == ONCE
    assert all(r.is_cached for r in second.tried)
    crashed = second.tried[2]
    assert "cached" in crashed.reason
    assert "refresh=True" in crashed.reason


def test_refresh_probes_again(probed: Path) -> None:
    report = probe(refresh=True)
    assert started(probed) == ONCE * 2
    assert not any(r.is_cached for r in report.tried)


def test_only_what_is_new_is_probed(probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_FAKES", "ok ok@2 wrong")
    report = probe()
    assert started(probed) == ONCE + 1
    assert [r.is_cached for r in report.tried] == [True, False, True]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PROBE_STAMP", "2"), ("MESA_LOADER_DRIVER_OVERRIDE", "zink"), ("VK_INSTANCE_LAYERS", "x")],
)
def test_change_of_driver_or_its_variables_probes_again(
    probed: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    probe()
    assert started(probed) == ONCE * 2


def test_unrelated_variable_changes_nothing(probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "ed")
    monkeypatch.setenv("FAKE_DRIVER", "set by every candidate itself")
    probe()
    assert started(probed) == ONCE


def test_new_library_version_probes_again(probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuedge.__version__", "9.9.9")
    probe()
    assert started(probed) == ONCE * 2


def test_new_hardware_probes_again(probed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuedge.safety.machine.hardware", lambda: ["/dev/dri/card7"])
    probe()
    assert started(probed) == ONCE * 2


@daily.day(1, of=3)
def test_longer_deadline_asks_a_hung_driver_again(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "slow")
    monkeypatch.setenv("PROBE_SLOW", "6")
    for _ in range(4):
        row = probe(deadline_s=4).tried[0]
        assert row.status == "timeout"
        if not row.is_starved:  # as it is on a machine too busy to tell
            break
    before = started(fakes)
    assert probe(deadline_s=4).tried[0].status == "timeout"
    assert started(fakes) == before
    assert probe(deadline_s=20).tried[0].status == "ok"
    assert started(fakes) == before + 1


def test_crash_is_believed_for_a_week(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_FAKES", "segv ok")
    day, now = 86400.0, time.time()
    for at, children in [(0, 3), (6.9, 3), (7.1, 5), (14.0, 5), (14.2, 7)]:
        monkeypatch.setattr(time, "time", lambda at=at: now + at * day)
        probe()
        assert started(fakes) == children, at


def test_absent_driver_is_looked_for_again_the_next_day(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "absent")
    now = time.time()
    probe()
    monkeypatch.setattr(time, "time", lambda: now + 100000)
    probe()
    assert started(fakes) == 2


def test_child_that_never_began_is_not_remembered(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_DIE_EARLY", "1")
    assert {r.code for r in probe().tried} == {"no-token"}
    monkeypatch.delenv("PROBE_DIE_EARLY")
    assert summary(probe()) == EXPECTED


def store_file(folder: Path) -> Path:
    return folder / "cache" / "verdicts.json"


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "other verdict": lambda data: data.replace(b'"crashed"', b'"ok"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_store_is_rebuilt(probed: Path, damage: str) -> None:
    path = store_file(probed)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert summary(probe()) == EXPECTED
    assert started(probed) == ONCE * 2
    assert summary(probe()) == EXPECTED
    assert started(probed) == ONCE * 2


def test_sealed_nonsense_is_rebuilt(probed: Path) -> None:
    path = store_file(probed)
    body = load_sealed(path, verdicts.SCHEMA)
    assert body is not None
    nonsense = [None, 3, {}, {"rows": 1}, {"rows": [{}], "when": "x"}]
    for i, key in enumerate(body["entries"]):
        body["entries"][key] = nonsense[i % len(nonsense)]
    assert save_sealed(path, verdicts.SCHEMA, body)
    assert summary(probe()) == EXPECTED
    assert started(probed) == ONCE * 2


def test_verdicts_that_cannot_be_written_are_good_for_this_process(
    fakes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (fakes / "file").write_text("in the way")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(fakes / "file"))
    for _ in range(2):
        report = probe()
        assert summary(report) == EXPECTED
    assert started(fakes) == ONCE and all(row.is_cached for row in report.tried)
    probe(refresh=True)
    assert started(fakes) == ONCE * 2
    assert (fakes / "file").read_text() == "in the way"
    (told,) = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert str(fakes / "file") in told and "GPUEDGE_CACHE_DIR" in told, "once, with its path"


def test_full_disk_that_has_room_again_gets_what_was_found(
    probed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    store_file(probed).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(2):
            assert summary(probe()) == EXPECTED
        assert started(probed) == ONCE * 2
        left = {p.name for p in (probed / "cache").iterdir()}
        assert left <= {"lock", "capability_db"}
    monkeypatch.setenv("PROBE_FAKES", "ok@2")
    probe()
    body = load_sealed(store_file(probed), verdicts.SCHEMA)
    assert body is not None and len(body["entries"]) == len(EXPECTED) + 1


def test_no_driver_is_tried_of_a_backend_without_its_package(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "native_files", list)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    steps = list[ProbeProgress]()
    rows = probe(backends=["wgpu"], refresh=True, progress=steps.append).tried
    assert [(row.device, row.status, row.code) for row in rows] == [("wgpu", "absent", "no-loader")]
    assert rows[0].reason.endswith("not installed: No module named 'wgpu'")
    assert "started" not in {step.stage for step in steps}


def test_backend_that_cannot_list_its_drivers_is_broken(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backends.load

    class Failing:
        """A plug-in with a fault."""

        @staticmethod
        def candidates(environ: object) -> list[object]:
            raise RuntimeError("a bug\x1b")

    monkeypatch.setattr(backends, "load", lambda n: Failing() if n == "wgpu" else real(n))
    rows = probe(backends=["wgpu", "fake"]).tried
    assert (rows[0].device, rows[0].status, rows[0].code) == ("wgpu", "broken", "open-failed")
    assert "RuntimeError: a bug" in rows[0].reason
    assert rows[0].reason.isprintable()
    assert len(rows) > 1


def test_news_is_one_warning_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gpuedge.probing")
    probe()
    warned = [r.getMessage() for r in caplog.records]
    assert len(warned) == 2
    assert "SIGSEGV" in warned[0]
    assert "wrote nothing" in warned[1]
    caplog.clear()
    probe()
    assert caplog.records == []


def test_no_warning_of_a_driver_that_was_not_reached(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "ok")
    caplog.set_level(logging.WARNING, "gpuedge.probing")
    (row,) = probe(deadline_s=0.001).tried
    assert row.reason == f"the driver was not reached before the deadline of 0.001 s; {WORDS}"
    assert caplog.records == []


def test_what_the_deadline_cuts_off_is_looked_at_in_the_background(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "slow ok")
    monkeypatch.setenv("PROBE_SLOW", "2")
    assert all(row.is_starved for row in probe(deadline_s=0.001).tried)
    assert probe(deadline_s=0.01).tried[0].reason.endswith(WORDS)
    waited = probe(deadline_s=60)
    assert {row.status for row in waited.tried} == {"ok"}
    count = started(fakes)
    assert count == 2, "no second look was begun while one was under way"
    assert {row.status for row in probe().tried} == {"ok"}
    assert started(fakes) == count, "it was stored"


def test_look_in_the_background_makes_the_newest_report(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "slow segv")
    cut = probe(deadline_s=0.001)
    assert api.newest(("fake",)) is cut
    wait_for_looks()
    newest = api.newest(("fake",))
    assert newest is not None
    assert {row.name: row.status for row in newest.tried} == {"soft slow": "ok", "segv": "crashed"}
    assert [row.device for row in newest.tried] == ["fake:0", "fake"]


def test_fork_waits_for_no_look_of_its_parent(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_FAKES", "slow")
    monkeypatch.setenv("PROBE_SLOW", "2")
    probe(deadline_s=0.001)
    with monkeypatch.context() as patch:
        parent = os.getpid()
        patch.setattr(os, "getpid", lambda: parent + 1)
        assert probe(deadline_s=60).tried[0].status == "ok"
    assert started(fakes) == 2, "it looked itself"


def test_no_candidates_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_FAKES", "")
    (row,) = probe().tried
    assert (row.device, row.status, row.code) == ("fake", "absent", "no-candidates")


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    probe()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), "4", None, True])
def test_bad_deadline(fakes: Path, deadline: object) -> None:
    with pytest.raises(ConfigError, match="deadline"):
        probe(deadline_s=deadline)  # type: ignore[arg-type]
    assert started(fakes) == 0


def test_unknown_backend_is_refused_before_anything_starts(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownDeviceError, match="vulcan"):
        probe(backends=["fake", "vulcan"])
    monkeypatch.setenv("GPUEDGE_BACKENDS", "fake,vulcan")
    with pytest.raises(UnknownDeviceError, match="vulcan"):
        probe()
    assert started(fakes) == 0


@pytest.mark.parametrize("bad", [[1], [None], 5, True, 0.5])
def test_backends_must_be_names(bad: object) -> None:
    with pytest.raises(ConfigError, match="not a list of backends"):
        probe(backends=bad)  # type: ignore[arg-type]


def test_unparsable_setting_is_refused_before_anything_starts(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_DEBUG", "loud")
    with pytest.raises(ConfigError, match="GPUEDGE_DEBUG"):
        probe()
    assert started(fakes) == 0


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from gpuedge import backends
backends.BUILTIN["fake"] = "probing_fakes:FakeBackend"
backends.PROBED = ("fake",)
import gpuedge.probing.api as api
before = set(sys.modules)
if {live}:
    from gpuedge.probing import run
    from probing_fakes import WORKER
    run.COMMAND = WORKER
report = api.probe()
import json
heavy = ["numpy", "vulkan", "subprocess", "tempfile", "logging", "onnx", "gpuedge.probing.run"]
print(json.dumps([[[r.device, r.name, r.status] for r in report.tried],
                  [m for m in heavy if m in sys.modules]]))
"""


def start_program(*, live: bool) -> subprocess.Popen[str]:
    code = PROGRAM.format(folder=str(Path(__file__).parent), live=live)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def finish(program: subprocess.Popen[str]) -> tuple[list[tuple[str, ...]], list[str]]:
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    rows, heavy = json.loads(out)
    return [tuple(r) for r in rows], heavy


def test_cached_probe_imports_nothing_heavy(probed: Path) -> None:
    rows, heavy = finish(start_program(live=False))
    assert rows == EXPECTED
    assert heavy == []
    assert started(probed) == ONCE


def test_two_processes_at_once(fakes: Path) -> None:
    programs = [start_program(live=True) for _ in range(3)]
    for program in programs:
        assert finish(program)[0] == EXPECTED
    before = started(fakes)
    assert summary(probe()) == EXPECTED
    assert started(fakes) == before
    left = {p.name for p in (fakes / "cache").iterdir()}
    assert left - {"capability_db"} == {"lock", "verdicts.json"}


def test_ids_that_no_entry_has_are_warned_of_once(
    fakes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROBE_FAKES", "ok")
    monkeypatch.setenv("GPUEDGE_IGNORE", "PowerVR-0019 all")
    probe()
    assert [m for m in caplog.messages if "GPUEDGE_IGNORE" in m] == []
    monkeypatch.setenv("GPUEDGE_IGNORE", "powervr-19,PowerVR-0019")
    for _ in range(2):
        probe(refresh=True)
    (said,) = (m for m in caplog.messages if "GPUEDGE_IGNORE" in m)
    assert said == (
        "GPUEDGE_IGNORE names 'powervr-19', which is no entry of the capability database; "
        "did you mean 'powervr-0019'?"
    )
