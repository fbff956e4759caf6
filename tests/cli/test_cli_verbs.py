"""The verbs that need no device: cache, info, kernels, and how probe and doctor report."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BAD, GOOD

from gpuedge import backends
from gpuedge.backends.base import Candidate
from gpuedge.cli.main import main
from gpuedge.core import config
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.probing.verdicts import Keys, Store
from gpuedge.safety import paths
from gpuedge.safety.store import save_sealed


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


def test_info_warns_of_what_means_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(config, "_told", set())
    monkeypatch.setenv("GPUEDGE_DEVCE", "cpu")
    monkeypatch.setenv("GPUEDGE_IGNORE", "foo-1")
    assert main(["info", "--json"]) == 0
    assert "did you mean 'GPUEDGE_DEVICE'?" in caplog.text
    assert "GPUEDGE_IGNORE names 'foo-1'" in caplog.text


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Two driver manifests, the only ones this environment shows; nothing is behind them."""
    manifests = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in manifests:
        file.write_text('{"ICD": {"library_path": "./none.so"}}')
    monkeypatch.setenv("VK_DRIVER_FILES", os.pathsep.join(map(str, manifests)))
    monkeypatch.setenv("GPUEDGE_BACKENDS", "vulkan")
    return list(backends.load("vulkan").candidates(os.environ))


def remember(cache: Path, *verdicts: tuple[Candidate, ProbeRow], when: float | None = None) -> None:
    key = Keys(os.environ)
    found = {key(c): (c, [row]) for c, row in verdicts}
    Store(cache).save(found, 4.0, time.time() if when is None else when)


def test_info_knows_devices_from_the_store_alone(
    capsys: pytest.CaptureFixture[str], cache: Path, drivers: list[Candidate]
) -> None:
    remember(cache, (drivers[0], BAD.replace(status="absent", code="no-device")))
    remember(cache, (drivers[1], GOOD))
    assert main(["info", "--json"]) == 0
    body = answer(capsys)
    assert [(d["device"], d["name"]) for d in body["devices"]] == [
        ("vulkan", ""),
        ("vulkan:0", "Test GPU"),
    ]


def test_info_survives_a_backend_that_cannot_list_its_drivers(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def candidates(self, environ: object) -> list[Candidate]:
            raise ZeroDivisionError("in the enumeration")

    monkeypatch.setattr(backends, "load", lambda name: Broken())
    assert main(["info", "--json"]) == 0
    assert answer(capsys)["devices"] == []


def test_info_survives_a_foreign_store(
    capsys: pytest.CaptureFixture[str], cache: Path, drivers: list[Candidate]
) -> None:
    save_sealed(cache / "verdicts.json", "another/1", {"entries": {}})
    assert main(["info"]) == 0
    assert "No driver was probed yet" in capsys.readouterr().out


# --- kernels


def test_kernels_list_names_every_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--json"]) == 0
    body = answer(capsys)
    folder = paths.data_dir("shaders")
    texts = {f"{p.parent.name}/{p.stem}" for p in folder.glob("*/*.kern")}
    assert {k["name"] for k in body["kernels"]} == texts
    rows = (folder / "variants.toml").read_text(encoding="utf-8").count("[[variant]]")
    assert len(body["variants"]) == rows > 0


def test_kernels_show_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "map/pool"]) == 0
    file = paths.data_dir("shaders") / "map" / "pool.kern"
    assert capsys.readouterr().out == file.read_text(encoding="utf-8").rstrip("\n") + "\n"


def test_kernels_show_spirv_is_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "show", "map/pool", "--dialect", "spirv", "--json"]) == 0
    body = answer(capsys)
    assert body["nbytes"] % 4 == 0
    assert bytes.fromhex(body["code"])[:4] == b"\x03\x02\x23\x07"
    assert [t["access"] for t in body["tensors"]].count("write") == 1


# --- probe


def test_probe_prints_the_report_as_json(
    capsys: pytest.CaptureFixture[str], probed: list[dict[str, Any]]
) -> None:
    arguments = ["probe", "--json", "--refresh", "--deadline", "7", "--backend", "vulkan"]
    assert main(arguments) == 0
    assert answer(capsys) == ProbeReport((GOOD, BAD), "0.1.0", 0.5).to_dict()
    assert callable(probed[0].pop("progress"))
    assert probed == [{"refresh": True, "deadline_s": 7.0, "backends": ["vulkan"]}]
