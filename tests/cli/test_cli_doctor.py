"""``gpuedge doctor``: which findings are made of packages, settings, folders and drivers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BAD, GOOD, LOADERLESS

import gpuedge
from gpuedge.cli import doctor, info
from gpuedge.cli.main import main
from gpuedge.core.reasons import SENTENCES
from gpuedge.executors.answers import Answers
from gpuedge.executors.products import ByteProduct
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.safety import machine


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_doctor_is_good_where_only_a_driver_is_bad(
    capsys: pytest.CaptureFixture[str], probed: list[dict[str, Any]]
) -> None:
    assert main(["doctor", "--json"]) == 0
    body = answer(capsys)
    assert body["schema"] == "gpuedge.doctor/1"
    assert body["counts"]["FAIL"] == 0
    crashed = [c for c in body["checks"] if c["detail"] == BAD.reason]
    assert [c["result"] for c in crashed] == ["WARN"]
    assert all(c["fix"] for c in body["checks"] if c["result"] == "WARN" and c["name"] != "devices")


def test_doctor_fails_for_a_setting_that_does_not_parse(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    probed: list[dict[str, Any]],
) -> None:
    monkeypatch.setenv("GPUEDGE_ISOLATION", "cage")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "GPUEDGE_ISOLATION" in out


def test_doctor_fails_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**machine.package_versions(info.requirements()), "onnxruntime": None, "vulkan": None}
    monkeypatch.setattr(machine, "package_versions", lambda _: versions)
    results = {c.name: c.result for c in doctor.environment_checks()}
    assert (results["package onnxruntime"], results["package vulkan"]) == ("FAIL", "WARN")


def test_doctor_warns_of_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file in the way")
    assert {c.name: c.result for c in doctor.environment_checks()}["cache"] == "WARN"


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        ({"driverInfo": "Mesa 22.3.6 (LLVM 15.0.6)", "driverVersion": 1},
         "Test GPU, driver Mesa 22.3.6 (LLVM 15.0.6)"),
        ({"vendorID": 0x13B5, "driverID": 9, "driverVersion": 37 << 22}, "Test GPU, driver 37.0.0"),
        ({}, "Test GPU"),
    ],
)  # fmt: skip
def test_doctor_tells_versions_of_itself_and_of_drivers(
    identity: dict[str, Any], told: str
) -> None:
    row = GOOD.replace(identity={**GOOD.identity, **identity})
    first = next(iter(doctor.environment_checks()))
    assert (first.name, first.detail) == ("gpuedge", gpuedge.__version__)
    checks = {c.name: c.detail for c in doctor.report_checks(ProbeReport((row,), "0.1.0"))}
    assert checks["vulkan:0"] == f"{told}: answered with the right numbers"


def test_doctor_leaves_nothing_in_the_cache(cache: Path) -> None:
    assert {c.name: c.result for c in doctor.environment_checks()}["cache"] == "PASS"
    assert list(cache.iterdir()) == []


def test_doctor_says_how_to_get_a_loader() -> None:
    checks = list(doctor.report_checks(ProbeReport((LOADERLESS,), "0.1.0")))
    assert [c.result for c in checks] == ["WARN", "WARN"]
    assert "libvulkan1" in checks[0].fix


def test_doctor_does_not_worry_about_drivers_without_a_device() -> None:
    bare = ProbeRow("vulkan", "vulkan", "absent", "no-device", "it loads: ERR_NO", "a.json")
    check = next(iter(doctor.report_checks(ProbeReport((bare,), "0.1.0"))))
    assert (check.result, check.name, check.fix) == ("INFO", "vulkan driver", "")
    assert check.detail == "a.json: offers no device (ERR_NO)"


def test_doctor_names_the_variable_that_names_a_missing_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ProbeRow("vulkan", "vulkan", "broken", "bad-manifest", "no such file", key="/no/x.json")
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", f"/other.json{os.pathsep}/no/x.json")
    assert "VK_ADD_DRIVER_FILES names this file" in doctor.remedy(row)
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")
    empty = row.replace(code="no-candidates", key="")
    assert "VK_DRIVER_FILES=/nonexistent names no driver" in doctor.remedy(empty)


def test_doctor_names_the_variable_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/no/x.json")
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/no/x.json")
    row = ProbeRow("gles30", "gles30", "broken", "bad-manifest", "no such file", key="/no/x.json")
    assert doctor.remedy(row).startswith("__EGL_VENDOR_LIBRARY_FILENAMES names this file")
    library = row.replace(code="missing-library", key="/no/libEGL.so")
    monkeypatch.setenv("GPUEDGE_EGL", "/no/libEGL.so")
    assert doctor.remedy(library).startswith("GPUEDGE_EGL names this file")


def test_doctor_has_a_remedy_for_every_api_without_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/nonexistent")
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    bare = ProbeRow("vulkan", "vulkan", "absent", "no-candidates", "no driver is installed")
    rows = (bare, *(bare.replace(backend=b, device=b) for b in ("gles31", "gles20")))
    check = next(iter(doctor.report_checks(ProbeReport(rows, "0.1.0"))))
    assert (check.result, check.name) == ("WARN", "vulkan, gles31, gles20 driver")
    for variable in ("VK_DRIVER_FILES", "__EGL_VENDOR_LIBRARY_FILENAMES"):
        assert check.fix.count(f"{variable}=/nonexistent names no driver") == 1


@pytest.mark.parametrize(
    ("variable", "value", "result"),
    [
        ("GPUEDGE_DEVICE", "vulcan", "FAIL"),
        ("GPUEDGE_DEVICE", "wgpu", "FAIL"),
        ("GPUEDGE_DEVICE", "vulkan:7", "FAIL"),
        ("GPUEDGE_DEVICE", "vulkan", "PASS"),
        ("GPUEDGE_DEVICE", "cpu", "PASS"),
        ("GPUEDGE_ISOLATION", "cage", "FAIL"),
        ("GPUEDGE_ISOLATION", "process", "PASS"),
        ("GPUEDGE_ISOLATION", "inline", "PASS"),
        ("GPUEDGE_DB", "/nonexistent", "FAIL"),
        ("GPUEDGE_DB", str(info.paths.data_dir("capability_db")), "PASS"),
        ("GPUEDGE_FALLBACK", "gpu", "FAIL"),
        ("GPUEDGE_FALLBACK", "error", "PASS"),
        ("GPUEDGE_BACKENDS", "opencl", "FAIL"),
        ("GPUEDGE_CONFIG", "/nonexistent.toml", "FAIL"),
    ],
)
def test_doctor_resolves_every_setting(
    variable: str,
    value: str,
    result: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    probed: list[dict[str, Any]],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["doctor", "--json"]) == (1 if result == "FAIL" else 0)
    found = [c for c in answer(capsys)["checks"] if c["name"] == variable]
    assert [c["result"] for c in found] == [result]
    assert found[0]["fix"] or result == "PASS"


def test_doctor_counts_the_entries_of_the_database() -> None:
    files = info.paths.data_dir("capability_db").glob("entries/*/*.json")
    number = sum(len(json.loads(f.read_text(encoding="utf-8"))["entries"]) for f in files)
    (line,) = [c for c in doctor.environment_checks() if c.name == "capability_db"]
    assert f"{number} entries)" in line.detail


def test_doctor_shows_the_database_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(info.paths.data_dir("capability_db"), tmp_path / "db")
    monkeypatch.setenv("GPUEDGE_DB", str(tmp_path / "db"))
    (line,) = [c for c in doctor.environment_checks() if c.name == "capability_db"]
    assert line.detail.startswith(str(tmp_path / "db"))


def test_doctor_reads_the_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpuedge.toml"
    file.write_text('device = "vulcan"\nfallback = "error"\n')
    monkeypatch.setenv("GPUEDGE_CONFIG", str(file))
    found = {c.name: c for c in doctor.environment_checks()}
    assert found["GPUEDGE_CONFIG"].result == "PASS"
    assert found["GPUEDGE_DEVICE"].result == "FAIL"
    assert found["GPUEDGE_FALLBACK"].detail == "error (from the config file)"
    file.write_text("device =")
    failed = [c.name for c in doctor.environment_checks() if c.result == "FAIL"]
    assert failed == ["GPUEDGE_CONFIG"]  # said once, not for every setting


def test_doctor_lists_the_settings_for_one_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUEDGE_FALBACK", "cpu")
    (line,) = [c for c in doctor.environment_checks() if "GPUEDGE_FALBACK" in c.detail]
    assert line.result == "WARN" and "GPUEDGE_FALLBACK" in line.fix


def test_remedies_are_for_codes_that_exist() -> None:
    assert set(doctor.REMEDIES) <= set(SENTENCES)


def test_doctor_says_which_pin_rules_a_driver_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", "vulkan=never")
    row = ProbeRow("vulkan", "vulkan", "blocked", "pinned", "ruled out", "lvp_icd.json")
    checks = [c for c in doctor.report_checks(ProbeReport((row,), "1")) if c.detail != "devices"]
    (pinned,) = (c for c in checks if "lvp_icd" in c.detail)
    assert pinned.result == "INFO"
    assert pinned.fix == "unset the pin vulkan=never (GPUEDGE_PIN)"


def test_doctor_says_how_to_use_a_device_that_is_left_alone() -> None:
    row = ProbeRow("gles31:1", "gles31", "blocked", "crash-blocklist", "left alone", "GPU", index=1)
    (held,) = (c for c in doctor.report_checks(ProbeReport((row,), "1")) if "GPU:" in c.detail)
    assert held.result == "WARN"
    assert held.fix == "gpuedge cache clear --crashes, or GPUEDGE_PIN=gles31:1=always"


@pytest.mark.parametrize("name", ["foo", "cpu", "auto", "null2:0"])
def test_pin_on_no_backend_is_refused_by_every_verb(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", f"{name}=never")
    for verb in ("info", "probe"):
        assert main([verb]) == 2
        said = capsys.readouterr().err
        assert "GE-102" in said
        assert "requested by: GPUEDGE_PIN" in said
        assert f"'{name}'" in said
    assert main(["doctor", "--json"]) == 1
    (found,) = (c for c in answer(capsys)["checks"] if c["name"] == "GPUEDGE_PIN")
    assert found["result"] == "FAIL"


def test_doctor_says_what_the_processor_makes_of_8_bit_products(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    probed: list[dict[str, Any]],
) -> None:
    flags = ("sse", "avx2", "avx512_vnni")
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor("Some CPU", flags))
    wrong = frozenset({ByteProduct("MatMulInteger", "uint8", "int8", is_constant=False)})
    for known, result in ((Answers(frozenset(), 212), "PASS"), (Answers(wrong, 212), "INFO")):
        monkeypatch.setattr(doctor, "known_answers", lambda known=known: known)
        assert main(["doctor", "--json"]) == 0
        body = answer(capsys)
        found = {c["name"]: c for c in body["checks"]}
        assert found["processor"]["detail"] == "Some CPU: avx2 avx512_vnni"
        assert found["8-bit products"]["result"] == result
        here = body["processor"]
        assert (here["asked"], here["flags"]) == (212, ["avx2", "avx512_vnni"])
        assert here["engine"].startswith("onnxruntime ")
    assert here["wrong"] == ["MatMulInteger of uint8 by computed int8"]
    assert here["wrong"][0] in found["8-bit products"]["detail"]
    assert main(["doctor"]) == 0
    assert "avx512_vnni" in capsys.readouterr().out
