"""The verbs that need no device: cache, info, kernels, and how probe and doctor report."""

from __future__ import annotations

import json
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from gpuedge.backends.base import Candidate
from gpuedge.cli import doctor, facts, info
from gpuedge.cli.main import main
from gpuedge.core import config
from gpuedge.core.reasons import SENTENCES
from gpuedge.core.store import save_sealed
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.probing.verdicts import Store

GOOD = ProbeRow(
    device="vulkan:0",
    backend="vulkan",
    status="ok",
    code="ok",
    reason="answered with the right numbers",
    name="Test GPU",
    identity={"api": "vulkan", "name": "Test GPU", "os": "linux", "device_type": "discrete"},
    is_software=False,
    key="/drivers/good.json",
    index=0,
    seconds=0.25,
)
BAD = ProbeRow("vulkan", "vulkan", "crashed", "crashed", "the driver killed the probe process: 11")
LOADERLESS = ProbeRow("vulkan", "vulkan", "absent", "no-loader", "no loader here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    return folder


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Makes probe() answer with one good and one crashed driver; records its arguments."""
    calls: list[dict[str, Any]] = []

    def probe(**arguments: Any) -> ProbeReport:
        calls.append(arguments)
        return ProbeReport((GOOD, BAD), "0.1.0", 0.5)

    monkeypatch.setattr("gpuedge.probing.api.probe", probe)
    return calls


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# --- cache


def test_cache_of_a_new_machine_is_empty(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert main(["cache", "--json"]) == 0
    body = answer(capsys)
    assert (body["files"], body["path"], body["source"]) == ([], str(cache), "GPUEDGE_CACHE_DIR")


def test_cache_clear_removes_our_files_and_no_others(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    cache.mkdir()
    (cache / "verdicts.json").write_text("12345")
    (cache / "thesis.txt").write_text("mine")
    (cache / ".verdicts.json.77.abcd").write_text("")
    (cache / "pipelines").mkdir()
    (cache / "pipelines" / "0f.bin").write_text("")
    (cache / "pipelines" / "readme").write_text("mine too")
    assert main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert "verdicts.json" in shown
    assert "thesis" not in shown
    assert main(["cache", "clear"]) == 0
    assert "removed 3 files (5 bytes)" in capsys.readouterr().out
    left = {p.relative_to(cache).as_posix() for p in cache.rglob("*") if p.is_file()}
    assert left == {"thesis.txt", "pipelines/readme"}


def test_cache_that_is_a_file_is_a_clear_error(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    cache.write_text("not a folder")
    assert main(["cache"]) == 2
    assert "[GE-101]" in capsys.readouterr().err


# --- info


def test_info_shows_settings_with_their_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("GPUEDGE_FALLBACK", "error")
    assert main(["info", "--json"]) == 0
    body = answer(capsys)
    assert set(body["settings"]) == set(config.SETTINGS)
    assert body["settings"]["fallback"]["value"] == "error"
    assert body["settings"]["fallback"]["source"] == "GPUEDGE_FALLBACK"
    assert body["settings"]["debug"]["source"] == "default"
    assert body["paths"]["cache"] == str(cache)
    assert body["devices"] == []


def test_info_knows_devices_from_the_store_alone(
    capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    candidate = Candidate("vulkan", GOOD.key, "print")
    Store(cache).save({"key": (candidate, [GOOD])}, 4.0, 1.0)
    assert main(["info", "--json"]) == 0
    assert [d["name"] for d in answer(capsys)["devices"]] == ["Test GPU"]


def test_info_takes_the_newest_verdict_on_a_driver(cache: Path) -> None:
    candidate = Candidate("vulkan", GOOD.key, "print")
    store = Store(cache)
    store.save({"new": (candidate, [GOOD])}, 4.0, 2.0)
    store.save({"old": (candidate, [BAD])}, 4.0, 1.0)
    assert [row.status for row in info.known_devices(cache)] == ["ok"]


def test_info_survives_a_foreign_store(cache: Path) -> None:
    save_sealed(cache / "verdicts.json", "another/1", {"entries": {}})
    assert info.known_devices(cache) == ()


def test_info_refuses_a_setting_that_does_not_parse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_DEBUG", "lots")
    assert main(["info"]) == 2
    assert "GPUEDGE_DEBUG" in capsys.readouterr().err


def test_required_packages_are_those_the_metadata_declares() -> None:
    declared = {
        re.split(r"[\s<>=!;\[]", line, maxsplit=1)[0]
        for line in requires("gpuedge") or []
        if "extra ==" not in line and "python_version" not in line
    }
    assert declared == set(facts.REQUIRED)


# --- kernels


def test_kernels_list_names_every_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--json"]) == 0
    body = answer(capsys)
    folder = facts.paths.data_dir("shaders")
    texts = {f"{p.parent.name}/{p.stem}" for p in folder.glob("*/*.kern")}
    assert {k["name"] for k in body["kernels"]} == texts
    rows = (folder / "variants.toml").read_text(encoding="utf-8").count("[[variant]]")
    assert len(body["variants"]) == rows > 0


def test_kernels_show_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "map/pool"]) == 0
    file = facts.paths.data_dir("shaders") / "map" / "pool.kern"
    assert capsys.readouterr().out == file.read_text(encoding="utf-8").rstrip("\n") + "\n"


def test_kernels_show_spirv_is_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "map/pool", "--dialect", "spirv", "--json"]) == 0
    body = answer(capsys)
    assert body["nbytes"] % 4 == 0
    assert "OpEntryPoint GLCompute" in body["disassembly"]
    assert [t["access"] for t in body["tensors"]].count("write") == 1


def test_kernels_check_passes_for_what_we_ship(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "check", "--json"]) == 0
    assert {row["result"] for row in answer(capsys)["checks"]} == {"PASS"}


def test_kernels_check_fails_for_a_broken_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuedge.kernels.library.texts", lambda: {"map/bad": "kernel map bad\n?"})
    assert main(["kernels", "check"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "GE-301" in out


def test_unknown_kernel_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "map/pol"]) == 2
    assert "gpuedge kernels show map/pool" in capsys.readouterr().err


# --- probe


def test_probe_prints_the_report_as_json(
    capsys: pytest.CaptureFixture[str], probed: list[dict[str, Any]]
) -> None:
    arguments = ["probe", "--json", "--refresh", "--deadline", "7", "--backend", "vulkan"]
    assert main(arguments) == 0
    assert answer(capsys) == ProbeReport((GOOD, BAD), "0.1.0", 0.5).to_dict()
    assert probed == [{"refresh": True, "deadline_s": 7.0, "backends": ["vulkan"]}]


def test_probe_table_has_a_reason_for_every_row(
    capsys: pytest.CaptureFixture[str], probed: list[dict[str, Any]]
) -> None:
    assert main(["probe", "-v"]) == 0
    out = capsys.readouterr().out
    for text in ("Test GPU", "ok", "crashed", BAD.reason, GOOD.key):
        assert text in out


def test_probe_without_usable_device_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text(ProbeReport((BAD,), "0.1.0").to_json(), encoding="utf-8")
    assert main(["probe", "--input", str(file)]) == 3
    assert "No usable GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": "gpuedge.run/1"}', '{"schema": "gpuedge.probe/1"}', "\xff"]
)
def test_probe_of_a_bad_report_is_a_clear_error(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text(text, encoding="latin-1")
    assert main(["probe", "--input", str(file)]) == 2
    assert "[GE-203]" in capsys.readouterr().err


# --- doctor


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


def test_doctor_suggests_the_name_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_FALBACK", "cpu")
    found = [c for c in doctor.environment_checks() if "GPUEDGE_FALBACK" in c.detail]
    assert [(c.result, c.fix) for c in found] == [("WARN", "did you mean GPUEDGE_FALLBACK?")]


def test_doctor_fails_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**facts.package_versions(), "onnxruntime": None, "vulkan": None}
    monkeypatch.setattr(facts, "package_versions", lambda: versions)
    results = {c.name: c.result for c in doctor.environment_checks()}
    assert (results["onnxruntime"], results["vulkan"]) == ("FAIL", "WARN")


def test_doctor_warns_of_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file in the way")
    assert {c.name: c.result for c in doctor.environment_checks()}["cache"] == "WARN"


def test_doctor_leaves_nothing_in_the_cache(cache: Path) -> None:
    assert {c.name: c.result for c in doctor.environment_checks()}["cache"] == "PASS"
    assert list(cache.iterdir()) == []


def test_doctor_says_how_to_get_a_loader() -> None:
    checks = list(doctor.report_checks(ProbeReport((LOADERLESS,), "0.1.0")))
    assert [c.result for c in checks] == ["WARN", "WARN"]
    assert "libvulkan1" in checks[0].fix


def test_remedies_are_for_codes_that_exist() -> None:
    assert set(doctor.REMEDIES) <= set(SENTENCES)
