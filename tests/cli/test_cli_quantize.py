"""``gpuedge quantize``: what is written, and what it says of the error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, value, weight

from gpuedge.cli.main import main

W = np.random.default_rng(4).normal(0, 1, (64, 8)).astype(np.float32)
SAMPLES = np.random.default_rng(5).normal(0, 1, (3, 2, 64)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x", ["N", 64])], [value("y", ["N", 8])], [weight("w", W)])
    onnx.save(proto, tmp_path / "net.onnx")
    (tmp_path / "samples").mkdir()
    for number, sample in enumerate(SAMPLES):
        np.savez(tmp_path / "samples" / f"{number}.npz", x=sample)
    return tmp_path


def call(folder: Path, *more: str) -> int:
    return main(["quantize", str(folder / "net.onnx"), "-o", str(folder / "small.onnx"), *more])


@pytest.mark.parametrize("more", [[], ["--weights", "int4"], ["--weights", "int8"]])
def test_what_is_written_is_off_by_what_is_told(
    folder: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    assert call(folder, *more, "--calibration", str(folder / "samples"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "gpuedge.quantize/1"
    assert told["nbytes"] == (folder / "small.onnx").stat().st_size
    theirs = onnxruntime.InferenceSession(folder / "small.onnx")
    got = np.concatenate([theirs.run(None, {"x": s})[0] for s in SAMPLES])
    right = np.concatenate(SAMPLES).astype(np.float64) @ W
    rms = np.sqrt(((got - right) ** 2).mean() / (right**2).mean())
    assert told["error"]["samples"] == 3
    assert told["error"]["outputs"]["y"]["rms"] == pytest.approx(rms, rel=0.05)
    assert call(folder, *more, "--calibration", str(folder / "samples")) == 0
    said = capsys.readouterr().out
    assert "over 3 samples" in said
    assert "RMS, of the floats' RMS" in said
    assert "largest, of the largest float" in said
    assert f"{told['error']['outputs']['y']['rms']:.3%}" in said


def test_weights_need_no_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--weights", "int4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["error"] is None
    assert call(folder, "--json") == 2
    assert json.loads(capsys.readouterr().out)["asked_by"] == "--calibration"


@pytest.mark.parametrize("bad", ["none.npz", "net.onnx", "."])
def test_bad_samples_are_blamed_on_their_option(
    folder: Path, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "--calibration", str(folder / bad), "--json") == 2
    assert json.loads(capsys.readouterr().out)["asked_by"] == "--calibration"
    assert not (folder / "small.onnx").exists()


def test_blocks_are_of_weights_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--calibration", str(folder / "samples"), "--block-size", "64", "--json")
    assert call(folder, *given) == 2
    assert json.loads(capsys.readouterr().out)["asked_by"] == "--block-size"


def test_no_file_that_is_read_is_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "samples" / "0.npz").read_bytes()
    for target in (folder / "net.onnx", folder / "samples" / "0.npz"):
        given = ["quantize", str(folder / "net.onnx"), "-o", str(target)]
        assert main([*given, "--calibration", str(folder / "samples"), "--json"]) == 2
        assert "name the same file" in json.loads(capsys.readouterr().out)["what"]
    assert (folder / "samples" / "0.npz").read_bytes() == before
