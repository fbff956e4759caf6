"""`probe()` on real drivers: good ones, one that pretends, ones that kill or hang their process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from required import absent

from gpuedge.backends.base import Candidate
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.probing import kat
from gpuedge.probing.api import probe
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.safety import paths

pytestmark = pytest.mark.driver

DEADLINE = 60.0
"""Far above what a good driver needs: these tests are about verdicts, not about a busy machine."""

NAMES = [case.name for case in kat.cases(VULKAN_MINIMUM)]

FAULTS = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*function)(void);

static void misbehave(void) {
    if (strcmp(FAULT, "segv") == 0) *(volatile int *)8 = 1;
    if (strcmp(FAULT, "abort") == 0) abort();
    if (strcmp(FAULT, "exit") == 0) {
        printf("no device, giving up");
        exit(0);
    }
    if (strcmp(FAULT, "hang") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    if (strcmp(FAULT, "flood") == 0) {
        static char noise[4096];
        memset(noise, '#', sizeof noise);
        for (int i = 0; i < 4096; i++)
            if (write(1, noise, sizeof noise) < 0 || write(2, noise, sizeof noise) < 0) break;
        _exit(7);
    }
}

__attribute__((constructor)) static void loaded(void) {
    if (AT_LOAD) misbehave();
}

function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    (void)instance;
    (void)name;
    misbehave();
    return 0;
}
"""


def build_faulty(folder: Path, fault: str, *, at_load: bool) -> Path:
    """Compile a driver with one fault and return its manifest."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        absent("a C compiler is needed to make faulty drivers: apt-get install -y gcc libc6-dev")
    source = folder / "faulty.c"
    source.write_text(FAULTS)
    library = folder / "libfaulty.so"
    defines = [f'-DFAULT="{fault}"', f"-DAT_LOAD={int(at_load)}"]
    command = [compiler, "-shared", "-fPIC", "-w", *defines, "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=280)
    return write_manifest(folder / f"{fault}.json", "./libfaulty.so")


def write_manifest(path: Path, library: str) -> Path:
    table = {"library_path": library, "api_version": "1.3.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": table}))
    return path


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)


def probe_files(
    monkeypatch: pytest.MonkeyPatch, *manifests: str | Path, deadline_s: float = DEADLINE
) -> ProbeReport:
    monkeypatch.setenv("VK_DRIVER_FILES", os.pathsep.join(map(str, manifests)))
    return probe(backends=["vulkan"], deadline_s=deadline_s)


def probe_one(
    monkeypatch: pytest.MonkeyPatch, manifest: str | Path, deadline_s: float = DEADLINE
) -> ProbeRow:
    (row,) = probe_files(monkeypatch, manifest, deadline_s=deadline_s).tried
    return row


def test_software_drivers_are_ok(
    monkeypatch: pytest.MonkeyPatch, lavapipe: Candidate, swiftshader: Candidate
) -> None:
    report = probe_files(monkeypatch, lavapipe.key, swiftshader.key)
    assert [(r.device, r.status) for r in report.tried] == [("vulkan:0", "ok"), ("vulkan:1", "ok")]
    first, second = report.tried
    assert first.name.startswith("llvmpipe")
    assert second.name.startswith("SwiftShader")
    assert [r.caps["device_class"] for r in report.tried] == ["cpu-llvm", "cpu-subzero"]
    for row in report.tried:
        assert row.is_software
        checks = row.evidence["checks"]
        assert [c["name"] for c in checks] == NAMES
        for check in checks:
            assert check["max_error"] <= check["bound"]
            assert check.get("untouched", 0) == 0
    assert json.loads(report.to_json())["best"] == "vulkan:0"


def test_second_probe_reads_the_verdict(
    monkeypatch: pytest.MonkeyPatch, lavapipe: Candidate
) -> None:
    first = probe_one(monkeypatch, lavapipe.key)
    again = probe_one(monkeypatch, lavapipe.key)
    assert (first.is_cached, again.is_cached) == (False, True)
    assert again.to_dict() == {**first.to_dict(), "is_cached": True}


def test_row_reopens_its_device(monkeypatch: pytest.MonkeyPatch, lavapipe: Candidate) -> None:
    from gpuedge import backends

    info = probe_one(monkeypatch, lavapipe.key).info()
    assert info.candidate == lavapipe
    device = backends.load("vulkan").open(info)
    assert device.info.identity.name.startswith("llvmpipe")
    device.close()


def test_driver_that_pretends_is_wrong(
    monkeypatch: pytest.MonkeyPatch, mock_icd: Candidate
) -> None:
    row = probe_one(monkeypatch, mock_icd.key)
    assert (row.status, row.code) == ("wrong", "untouched-output")
    assert row.device == "vulkan:0"
    assert not row.is_usable


@pytest.mark.parametrize(
    ("fault", "at_load", "code", "words"),
    [
        ("segv", True, "crashed", "SIGSEGV"),
        ("abort", False, "crashed", "SIGABRT"),
        ("exit", True, "exited", "exit status 0"),
        ("exit", False, "exited", "exit status 0"),
        ("flood", False, "exited", "exit status 7"),
    ],
)
def test_driver_that_kills_its_process(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
    at_load: bool,
    code: str,
    words: str,
) -> None:
    manifest = build_faulty(tmp_path, fault, at_load=at_load)
    row = probe_one(monkeypatch, manifest)
    assert (row.device, row.status, row.code) == ("vulkan", "crashed", code)
    assert words in row.reason
    assert row.evidence["step"] == "enumerate"
    if fault == "exit":
        assert row.evidence["output_tail"].endswith("no device, giving up")


def test_driver_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = build_faulty(tmp_path, "hang", at_load=True)
    start = time.monotonic()
    row = probe_one(monkeypatch, manifest, deadline_s=3.0)
    took = time.monotonic() - start
    assert (row.status, row.code) == ("timeout", "deadline")
    assert "while loading the driver" in row.reason
    assert took < 30.0  # it would hang for ever


def test_bad_driver_spares_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lavapipe: Candidate
) -> None:
    manifest = build_faulty(tmp_path, "segv", at_load=True)
    report = probe_files(monkeypatch, manifest, lavapipe.key)
    assert [(r.device, r.status) for r in report.tried] == [
        ("vulkan", "crashed"),
        ("vulkan:0", "ok"),
    ]


@pytest.mark.parametrize("content", [b"", b"\xff\0\xfe", b'{"ICD": {}}'])
def test_bad_manifest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    manifest = tmp_path / "bad.json"
    manifest.write_bytes(content)
    row = probe_one(monkeypatch, manifest)
    assert (row.status, row.code) == ("broken", "bad-manifest")
    assert row.name == "bad.json"


def test_hostile_manifests_spare_their_neighbours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lavapipe: Candidate
) -> None:
    contents = {
        "deep": b"[" * 100000,
        "long": json.dumps({"ICD": {"library_path": "/" + "x/" * 50000}}).encode(),
        "nul": json.dumps({"ICD": {"library_path": "./a\0b"}}).encode(),
        "half": json.dumps({"ICD": {"library_path": "./a\ud800"}}).encode(),
    }
    bad = [tmp_path / f"{name}.json" for name in contents]
    for path, content in zip(bad, contents.values(), strict=True):
        path.write_bytes(content)
    os.mkfifo(tmp_path / "pipe.json")
    odd_name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")
    shutil.copy(lavapipe.key, odd_name)
    named: list[str | Path] = [lavapipe.key, *bad, tmp_path / "pipe.json", odd_name]
    for is_cached in (False, True):
        report = probe_files(monkeypatch, *named)
        codes = ["ok", *["bad-manifest"] * 5, "ok"]
        assert [r.code for r in report.tried] == codes
        assert [r.status for r in report.tried if r.code != "ok"] == ["broken"] * 5
        assert {r.is_cached for r in report.tried} == {is_cached}
        (tmp_path / "report.json").write_text(report.to_json(), encoding="utf-8")


def test_relative_database_is_the_same_one_in_the_child(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lavapipe: Candidate
) -> None:
    shutil.copytree(paths.data_folder("capability_db"), tmp_path / "db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUEDGE_DB", "db")
    row = probe_one(monkeypatch, lavapipe.key)
    assert (row.status, row.caps["device_class"]) == ("ok", "cpu-llvm")


def test_missing_manifest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = probe_one(monkeypatch, tmp_path / "nowhere.json")
    assert (row.status, row.code) == ("broken", "bad-manifest")


def test_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = probe_one(monkeypatch, write_manifest(tmp_path / "m.json", "/nowhere/libdriver.so"))
    assert (row.status, row.code) == ("broken", "missing-library")


def test_library_that_is_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libtext.so").write_text("this is no library")
    row = probe_one(monkeypatch, write_manifest(tmp_path / "m.json", "./libtext.so"))
    assert row.status in {"absent", "broken"}
    assert not row.is_usable


def test_driver_whose_files_change_is_probed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = build_faulty(tmp_path, "exit", at_load=True)
    assert probe_one(monkeypatch, manifest).code == "exited"
    (tmp_path / "libfaulty.so").unlink()
    assert probe_one(monkeypatch, manifest).code == "missing-library"
