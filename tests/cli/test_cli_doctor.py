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
from gpuedge.cli import doctor
from gpuedge.cli.main import main
from gpuedge.core.reasons import SENTENCES
from gpuedge.executors import cpu
from gpuedge.executors.answers import Answers
from gpuedge.executors.products import ByteProduct
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.safety import machine, paths

EGL = "__EGL_VENDOR_LIBRARY_FILENAMES"
BARE = ProbeRow("vulkan", "vulkan", "absent", "no-device", "it loads: ERR_NO", "a.json")
BROKEN = ProbeRow("vulkan", "vulkan", "broken", "bad-manifest", "no such file", key="/no/x.json")
GLES = BROKEN.replace(device="gles30", backend="gles30")
NONE = ProbeRow("vulkan", "vulkan", "absent", "no-candidates", "no driver is installed")
HELD = ProbeRow("gles31:1", "gles31", "blocked", "crash-blocklist", "left alone", "GPU", index=1)
DATABASE = paths.data_dir("capability_db")


def told(**identity: Any) -> ProbeRow:
    return GOOD.replace(identity={**GOOD.identity, **identity})


Findings = dict[str, dict[str, str]]


def diagnose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *rows: ProbeRow
) -> Findings:
    """Return the findings about this machine with such drivers, by name; the exit code fits."""
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: ProbeReport(rows, "0.1.0"))
    code = main(["doctor", "--json"])
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "gpuedge.doctor/1"
    assert body["counts"]["FAIL"] == sum(c["result"] == "FAIL" for c in body["checks"])
    assert code == (body["counts"]["FAIL"] > 0)
    return {c["name"]: c for c in body["checks"]}


@pytest.mark.parametrize(("variables", "row", "name", "result", "detail", "fix"), [
    ({}, BAD, "vulkan driver", "WARN", BAD.reason, "update the driver"),
    ({}, BAD, "devices", "WARN", "everything runs on the CPU", ""),
    ({}, LOADERLESS, "vulkan driver", "WARN", "no loader here", "libvulkan1"),
    ({}, BARE, "vulkan driver", "INFO", "a.json: offers no device (ERR_NO)", ""),
    ({}, HELD, "gles31:1", "WARN", "GPU: left alone",
     "gpuedge cache clear --crashes, or GPUEDGE_PIN=gles31:1=always"),
    ({"GPUEDGE_PIN": "vulkan=never"}, BARE.replace(status="blocked", code="pinned"),
     "vulkan driver", "INFO", "a.json: it loads", "unset the pin vulkan=never (GPUEDGE_PIN)"),
    ({"VK_ADD_DRIVER_FILES": f"/other.json{os.pathsep}/no/x.json"}, BROKEN, "vulkan driver",
     "WARN", "no such file", "VK_ADD_DRIVER_FILES names this file"),
    ({"VK_DRIVER_FILES": "/none"}, NONE, "vulkan driver", "WARN", "no driver is installed",
     "VK_DRIVER_FILES=/none names no driver"),
    ({"VK_DRIVER_FILES": "/no/x.json", EGL: "/no/x.json"}, GLES, "gles30 driver", "WARN", "",
     f"{EGL} names this file"),
    ({"GPUEDGE_EGL": "/no/libEGL.so"}, GLES.replace(code="missing-library", key="/no/libEGL.so"),
     "gles30 driver", "WARN", "", "GPUEDGE_EGL names this file"),
    ({}, told(driverInfo="Mesa 22.3.6 (LLVM 15.0.6)", driverVersion=1), "vulkan:0", "PASS",
     "Test GPU, driver Mesa 22.3.6 (LLVM 15.0.6): answered with the right numbers", ""),
    ({}, told(vendorID=0x13B5, driverID=9, driverVersion=37 << 22), "vulkan:0", "PASS",
     "Test GPU, driver 37.0.0: answered", ""),
    ({}, GOOD, "vulkan:0", "PASS", "Test GPU: answered with the right numbers", ""),
    ({}, GOOD, "gpuedge", "PASS", gpuedge.__version__, ""),
    ({}, GOOD, "cache", "PASS", "", ""),
    ({"GPUEDGE_CACHE_DIR": __file__}, GOOD, "cache", "WARN", "cannot be written", "a folder"),
    ({"GPUEDGE_FALBACK": "cpu"}, GOOD, "settings", "WARN", "GPUEDGE_FALBACK", "GPUEDGE_FALLBACK"),
    ({"GPUEDGE_IGNORE": "mali-12"}, GOOD, "settings", "WARN", "names 'mali-12'", "'mali-0012'?"),
    ({"GPUEDGE_DEVICE": "vulcan"}, GOOD, "GPUEDGE_DEVICE", "FAIL", "vulcan", "vulkan"),
    ({"GPUEDGE_DEVICE": "gpu"}, GOOD, "GPUEDGE_DEVICE", "FAIL", "gpu", "'auto'"),
    ({"GPUEDGE_DEVICE": "wgpu"}, GOOD, "GPUEDGE_DEVICE", "FAIL", "wgpu", "mend what is"),
    ({"GPUEDGE_DEVICE": "vulkan:7"}, GOOD, "GPUEDGE_DEVICE", "FAIL", "vulkan:7", "probe"),
    ({"GPUEDGE_DEVICE": "vulkan"}, GOOD, "GPUEDGE_DEVICE", "PASS", "means vulkan:0", ""),
    ({"GPUEDGE_DEVICE": "cpu"}, GOOD, "GPUEDGE_DEVICE", "PASS", "cpu", ""),
    ({"GPUEDGE_ISOLATION": "cage"}, GOOD, "GPUEDGE_ISOLATION", "FAIL", "cage", "inline"),
    ({"GPUEDGE_ISOLATION": "process"}, GOOD, "GPUEDGE_ISOLATION", "PASS", "process", ""),
    ({"GPUEDGE_DB": "/none"}, GOOD, "GPUEDGE_DB", "FAIL", "/none", "GPUEDGE_DB"),
    ({"GPUEDGE_DB": str(DATABASE)}, GOOD, "GPUEDGE_DB", "PASS", str(DATABASE), ""),
    ({"GPUEDGE_FALLBACK": "gpu"}, GOOD, "GPUEDGE_FALLBACK", "FAIL", "gpu", "cpu"),
    ({"GPUEDGE_FALLBACK": "error"}, GOOD, "GPUEDGE_FALLBACK", "PASS", "error", ""),
    ({"GPUEDGE_BACKENDS": "opencl"}, GOOD, "GPUEDGE_BACKENDS", "FAIL", "opencl", "'vulkan'"),
    ({"GPUEDGE_BACKENDS": "odd"}, GOOD, "GPUEDGE_BACKENDS", "FAIL", "odd", "_BACKENDS"),
    ({"GPUEDGE_CONFIG": "/none.toml"}, GOOD, "GPUEDGE_CONFIG", "FAIL", "/none.toml", "GPUEDGE"),
])  # fmt: skip
def test_every_finding_has_a_remedy(
    variables: dict[str, str], row: ProbeRow, name: str, result: str, detail: str, fix: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    findings = diagnose(capsys, monkeypatch, row)
    found = findings[name]
    assert found["result"] == result
    assert detail in found["detail"]
    assert fix in found["fix"] and bool(fix) == bool(found["fix"])
    others = [c for c in findings.values() if c["result"] == "FAIL" and c["name"] != name]
    assert {c["name"] for c in others} <= {"probe"}
    assert all(c["fix"] for c in findings.values() if c["result"] == "WARN" != c["name"] != name
               and c["name"] != "devices")  # fmt: skip


def test_apis_that_say_the_same_have_a_remedy_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("VK_DRIVER_FILES", EGL):
        monkeypatch.setenv(variable, "/none")
    rows = (NONE, *(NONE.replace(backend=b, device=b) for b in ("gles31", "gles20")))
    found = diagnose(capsys, monkeypatch, *rows)["vulkan, gles31, gles20 driver"]
    assert [found["fix"].count(f"{v}=/none names no driver") for v in ("VK_DRIVER_FILES", EGL)] == [
        1, 1
    ]  # fmt: skip


def test_packages_that_are_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = machine.package_versions
    absent = {"numpy": None, "vulkan": None, "onnxruntime": None, "rich": None}
    monkeypatch.setattr(machine, "package_versions", lambda names: versions(names) | absent)
    findings = diagnose(capsys, monkeypatch, GOOD)
    found = {name: findings.get(f"package {name}") for name in absent}
    assert found.pop("rich") is None  # nothing is wrong without it
    assert [(f["result"], f["fix"]) for f in found.values() if f] == [
        ("FAIL", "pip install numpy"),
        ("WARN", "pip install 'gpuedge[vulkan]'"),
        ("INFO", "pip install 'gpuedge[models]'"),
    ]


def test_nothing_is_left_in_the_cache(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnose(capsys, monkeypatch, GOOD)
    assert list(cache.iterdir()) == []


def test_the_database_in_use_is_told_with_its_entries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DATABASE, tmp_path / "db")
    monkeypatch.setenv("GPUEDGE_DB", str(tmp_path / "db"))
    files = DATABASE.glob("entries/*/*.json")
    number = sum(len(json.loads(f.read_text(encoding="utf-8"))["entries"]) for f in files)
    detail = diagnose(capsys, monkeypatch, GOOD)["capability_db"]["detail"]
    assert detail.startswith(str(tmp_path / "db")) and f"{number} entries)" in detail


def test_the_config_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpuedge.toml"
    file.write_text('device = "vulcan"\nfallback = "error"\n')
    monkeypatch.setenv("GPUEDGE_CONFIG", str(file))
    findings = diagnose(capsys, monkeypatch, GOOD)
    assert findings["GPUEDGE_CONFIG"]["result"] == "PASS"
    assert findings["GPUEDGE_DEVICE"]["result"] == "FAIL"
    assert findings["GPUEDGE_FALLBACK"]["detail"] == "error (from the config file)"
    file.write_text("device =")
    findings = diagnose(capsys, monkeypatch, GOOD)
    failed = {name for name, c in findings.items() if c["result"] == "FAIL"}
    assert failed - {"probe"} == {"GPUEDGE_CONFIG"}  # said once, not for every setting


def test_remedies_are_for_codes_that_exist() -> None:
    assert set(doctor.REMEDIES) <= set(SENTENCES)


@pytest.mark.parametrize("name", ["foo", "cpu", "auto", "null2:0"])
def test_pin_on_no_backend_is_refused_by_every_verb(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", f"{name}=never")
    for verb in ("info", "probe"):
        assert main([verb]) == 2
        said = capsys.readouterr().err
        for text in ("GE-102", "requested by: GPUEDGE_PIN", f"'{name}'"):
            assert text in said
    assert diagnose(capsys, monkeypatch, GOOD)["GPUEDGE_PIN"]["result"] == "FAIL"


def test_the_processor_is_told_with_its_8_bit_products(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("sse", "avx2", "avx512_vnni")
    monkeypatch.setattr(machine, "processor", lambda: machine.Processor("Some CPU", flags))
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: ProbeReport((GOOD,), "0.1.0"))
    wrong = frozenset({ByteProduct("MatMulInteger", "uint8", "int8", is_constant=False)})
    for known, result in ((Answers(frozenset(), 212), "PASS"), (Answers(wrong, 212), "INFO")):
        monkeypatch.setattr(cpu, "known_answers", lambda known=known: known)
        assert main(["doctor", "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
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


BOARDS = {
    "model": b"Raspberry Pi 4 Model B Rev 1.4\0",
    "soc": b"raspberrypi,4-model-b\0brcm,bcm2711\0",
    "release": b'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nHOME_URL=x\n',
}


def test_a_board_is_told_by_its_device_tree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, data in BOARDS.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(machine, "FILES", {n: str(tmp_path / n) for n in machine.FILES})
    monkeypatch.setattr(
        "gpuedge.probing.api.probe", lambda **_: ProbeReport((told(GL_VERSION="9.9"), NONE), "0")
    )
    main(["doctor", "--json"])
    body = json.loads(capsys.readouterr().out)["machine"]
    assert body["model"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert body["soc"] == "raspberrypi,4-model-b, brcm,bcm2711"
    assert body["release"] == "Debian GNU/Linux 13 (trixie)"
    assert "maker" not in body and "jetson" not in body
    assert body["vulkan:0"].startswith("Test GPU, 9.9") and body["vulkan:0"].endswith(", ok")
    assert body["vulkan driver"] == "absent, no-candidates"
    main(["doctor"])
    assert "To send with a report" in capsys.readouterr().out


def test_what_a_machine_says_of_itself_never_fails_and_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "maker").write_bytes(b"\xff\x1b[2J" + b"x" * 5000)
    (tmp_path / "release").write_bytes(b"no equals\n\0=\n")
    (tmp_path / "model").mkdir()
    monkeypatch.setattr(machine, "FILES", {n: str(tmp_path / n) for n in machine.FILES})
    found = machine.description()
    assert list(found) == ["maker"]
    assert len(found["maker"]) < 250 and found["maker"].isprintable()
