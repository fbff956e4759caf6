"""``gpuedge tune`` where no driver is touched: what is wrong with its arguments, and imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BAD, GOOD
from onnx_models import relu

import gpuedge
from gpuedge import backends
from gpuedge.cli.main import main
from gpuedge.core.identity import Identity
from gpuedge.plan.tuned import TunedKernel
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime import tunings

FOUND = {"conv2d 8x8x4x1 a=1": TunedKernel("conv2d_map", "conv2d_px4", 10, 15, "full")}
OTHER = Identity("vulkan", "Other GPU", "linux", driverVersion=7)


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a driver is touched."""

    def load(name: str) -> Any:
        raise AssertionError(f"the backend {name} was loaded")

    monkeypatch.setattr(backends, "load", load)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have probing find one device."""
    monkeypatch.setattr(gpuedge, "probe", lambda **_: ProbeReport((GOOD, BAD), "0.1.0"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "m.onnx").write_bytes(relu().SerializeToString())
    return str(tmp_path / "m.onnx")


@pytest.fixture
def fleet(tmp_path: Path, cache: Path) -> str:
    """A file of another machine; nothing is kept here."""
    tunings.keep(OTHER, FOUND)
    tunings.export(OTHER, FOUND, tmp_path / "fleet", "--out")
    (cache / tunings.FILE).unlink()
    return str(tmp_path / "fleet")


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "tune takes a model, or --import FILE"),
    (["MODEL", "--import", "FLEET"], "tune takes a model, or --import FILE"),
    (["--import", "FLEET", "--full"], "--import takes no option but --device"),
    (["--import", "FLEET", "--out", "x"], "--import takes no option but --device"),
    (["--import", "nothing"], "There is no file at nothing"),
    (["--import", "MODEL"], "holds no results of tuning"),
    (["MODEL", "--shape", "x=2x3", "--device", "vulkan", "--out", "MODEL"], "names the model"),
    (["nothing.onnx", "--device", "vulkan"], "There is no model at nothing.onnx"),
    (["FLEET", "--device", "vulkan"], "is truncated or not an ONNX"),
    (["MODEL", "--shape", "x=2x3", "--device", "cpu"], "needs a GPU that is named, not 'cpu'"),
    (["MODEL", "--shape", "x=2x3", "--device", "auto"], "needs a GPU that is named, not 'auto'"),
    (["MODEL", "--shape", "x=2x3", "--device", "quantum"], "quantum"),
    (["MODEL", "--device", "vulkan"], "--shape x="),
    (["MODEL", "--shape", "x=2x4", "--device", "vulkan"], "x"),
    (["MODEL", "--shape", "x=2x3", "--device", "vulkan", "--out", "/dev"], "/dev cannot be"),
])  # fmt: skip
def test_wrong_arguments_are_told_before_any_driver_is_touched(
    arguments: list[str], words: str, model: str, fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [{"MODEL": model, "FLEET": fleet}.get(word, word) for word in arguments]
    assert main(["tune", *given, "--json"]) == 2
    told = capsys.readouterr()
    assert words in told.err and json.loads(told.out)["code"].startswith("GE-")


@pytest.mark.parametrize("given", [["MODEL", "--shape", "x=2x3"], ["--import", "FLEET"]])
def test_the_command_that_is_suggested_names_what_was_given(
    given: list[str], model: str, fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [{"MODEL": model, "FLEET": fleet}.get(word, word) for word in given]
    assert main(["tune", *words, "--device", "cpu", "--json"]) == 2
    named = f"{model} --device" if "MODEL" in given else f"--import {fleet} --device"
    assert f"gpuedge tune {named} vulkan" in json.loads(capsys.readouterr().out)["hint"]


def test_a_device_that_is_not_there_is_told(
    model: str, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", model, "--shape", "x=2x3", "--device", "vulkan:5"]) == 3
    assert "--device" in capsys.readouterr().err


def test_a_file_is_imported_and_its_result_shown(
    fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--import", fleet]) == 0
    shown = capsys.readouterr().out
    assert "Other GPU" in shown and "kept" in shown
    assert tunings.kept(OTHER) == FOUND


def test_a_file_for_another_device_is_not_used_and_the_reason_shown(
    fleet: str, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--import", fleet, "--device", GOOD.device, "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert (row["name"], row["kernels"]) == ("Other GPU", 1)
    assert row["why_not"].startswith("made on another device or driver (name: expected 'Other GPU'")
    assert tunings.kept(OTHER) == {}
