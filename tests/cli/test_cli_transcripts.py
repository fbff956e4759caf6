"""The command line as transcripts: what is typed, the exit code, and what is printed.

`{name}` stands for a file that the fixture `folder` writes.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_fakes import BAD, GOOD

import gpuedge
from gpuedge.cli.main import main
from gpuedge.probing.report import ProbeReport

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
LATE = BAD.replace(status="timeout", code="deadline", evidence={"is_unfinished": True})
RUN = "run {digits.onnx} --input image={images.npy}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models, arrays and reports, good and bad; and a file that stands where a folder should."""
    arrays = {
        "images": np.random.default_rng(5).random((3, 1, 8, 8), np.float32),
        "wide": np.zeros((1, 1, 9, 8), np.float32),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for name, row in (("late", LATE), ("bad", BAD), ("good", GOOD)):
        (tmp_path / f"{name}.json").write_text(ProbeReport((row,), "0.1.0").to_json())
    texts = {
        "empty": "", "brace": "{", "list": "[]", "run": '{"schema": "gpuedge.run/1"}',
        "short": '{"schema": "gpuedge.probe/1"}', "latin": "\xff", "text": "not onnx",
        "cut": "\x08\x08\x12\x01",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    (tmp_path / "digits.onnx").write_bytes(DIGITS.read_bytes())
    return tmp_path


def play(
    line: str, code: int, words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Type a line; nothing is written but what it says, and that on one of the two streams."""
    before = {p.name for p in folder.iterdir()}
    typed = [re.sub(r"\{([^}]+)\}", rf"{folder}/\1", word) for word in shlex.split(line)]
    assert main(typed) == code
    said = capsys.readouterr()
    told = said.err if code in (2, 4) else said.out
    assert [word for word in words if word not in told] == []
    assert "Traceback" not in said.err
    if code in (2, 4):
        assert told.startswith("[GE-") and not said.out
        assert {p.name for p in folder.iterdir()} == before


@pytest.mark.parametrize(("line", "words"), [
    ("", ("[GE-200]",)),
    ("nosuch", ("[GE-200]",)),
    ("-vv nosuch", ("[GE-200]",)),
    ("-v", ("[GE-200]",)),
    ("--nosuch", ("[GE-200]",)),
    ("cache burn -v", ("[GE-200]", "burn")),
    ("info x", ("[GE-200]",)),
    ("probe --deadline soon", ("[GE-200]", "--deadline")),
    ("db update x --deadline=nan", ("[GE-200]", "above zero")),
    ("db update x --deadline=1e999", ("[GE-200]", "above zero")),
    ("kernels list map/pool", ("[GE-200]", "takes no name")),
    ("kernels show map/pol", ("[GE-200]", "gpuedge kernels show map/pool")),
    ("kernels show group/conv2d_run --dialect essl300", ("[GE-3", "group kernel")),
    ("kernels explain", ("[GE-200]", "takes a model")),
    ("kernels explain {none.onnx}", ("[GE-203] There is no model at", "none.onnx.")),
    ("kernels explain {digits.onnx} --output {digits.onnx}/x.svg", ("--output",)),
    ("kernels explain {digits.onnx} --shape image=1x1x8x8 --device cpu", ("[GE-200]",)),
    ("check {none.onnx}", ("[GE-203] There is no model at", "none.onnx.")),
    *((f"check {{digits.onnx}} --shape {bad}", ("[GE-200]", "NAME=1x3x224x224"))
      for bad in ("x", "x=", "=1x2", "x=1xa", "x=-1", "x=1,2")),
    *((f"probe --input {{{name}}}", ("[GE-203]",))
      for name in ("empty", "brace", "list", "run", "short", "latin")),
    ("run", ("[GE-200]",)),
    ("run {none.onnx}", ("[GE-203] There is no model at", "none.onnx.")),
    *((f"run {{{name}}} --input image={{images.npy}}", ("[GE-50",))
      for name in ("empty", "text", "cut")),
    *((f"{RUN} --timeout {bad}", ("--timeout",)) for bad in ("0", "-1", "nan", "inf", "soon")),
    (f"{RUN} --repeat 0", ("--repeat",)),
    (f"{RUN} --input image={{images.npy}}", ("twice",)),
    (f"{RUN} --output {{images.npy}}", ("[GE-203]", "--output")),
    (f"{RUN} --output /dev/null/x.npz", ("[GE-203]", "--output")),
    (f"{RUN} --trace /dev/null/trace.json", ("[GE-203]", "--trace")),
    (f"{RUN} --trace .", ("[GE-203]", "--trace")),
    (f"{RUN} --device cpu --allow-software", ("--device cpu is not auto",)),
    *((f"run {{digits.onnx}} --input '{bad}'", ("[GE-200]",))
      for bad in ("image", "image=", "=file.npy", "")),
    *((f"run {{digits.onnx}} --input {given}", ("[GE-203] There is no input file at",))
      for given in ("image={no.npy}", "image={no.png}", "{no.npz}")),
    ("run {digits.onnx} --input image=/", ("The input file / cannot be read: it is not a file.",)),
    ("run {digits.onnx} --input image={wide.npy}", ("[GE-201]", "[1, 1, 9, 8]", "by: --input")),
    ("run {digits.onnx} --input picture={images.npy} --output {a}/b", ("[GE-203]", "picture")),
    ("run {digits.onnx}", ("[GE-203]", "image")),
])  # fmt: skip
def test_what_is_wrong_is_told_before_anything_is_opened(
    line: str, words: tuple[str, ...], folder: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("Session", "probe"):
        monkeypatch.setattr(gpuedge, name, lambda *_, **__: pytest.fail("opened"), raising=False)
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: pytest.fail("probed"))
    play(line, 2, words, folder, capsys)


@pytest.mark.parametrize(("line", "code", "words"), [
    ("probe --input {good.json}", 0, ("Test GPU", "1 of 1 usable")),
    ("probe --input {bad.json}", 3, ("No usable GPU", BAD.reason)),
    ("probe --input {late.json}", 3, ("gpuedge probe --refresh --deadline 600",)),
    ("probe --verbose", 0, ("Test GPU", "crashed", BAD.reason, f"driver: {GOOD.key}")),
    ("kernels show map/conv2d --dialect wgsl", 0, ("@compute", "@id(0) override", "@group(0)")),
    ("kernels show map/conv2d --dialect essl310", 0, ("#version 310 es", "//SPECS", "std430")),
    ("kernels show map/conv2d --dialect essl300", 0, ("#version 300 es", "location = 0) out")),
    ("kernels show map/conv2d --dialect essl100", 0, ("#version 100", "gl_FragColor")),
    (f"{RUN} --device cpu --timeout 60", 0,
     ("Runs on cpu", "Where each part ran", "11 nodes: Conv Relu", "probabilities", "first inf")),
    (f"{RUN} --device cpu --timeout 1e-9 --output {{out}}", 4,
     ("[GE-406]", "requested by: --timeout", "try:          a larger --timeout")),
    (f"{RUN} --device vulcan", 2, ("[GE-102]", "requested by: --device")),
    (f"{RUN} --device cpu --isolation cage", 2, ("[GE-200]", "cage", "--isolation")),
    ("info", 0, ("GPUEDGE_FALLBACK", "No driver was probed yet")),
])  # fmt: skip
def test_transcript(
    line: str, code: int, words: tuple[str, ...], folder: Path,
    capsys: pytest.CaptureFixture[str], probed: list[dict[str, Any]],
) -> None:  # fmt: skip
    play(line, code, words, folder, capsys)


@pytest.mark.parametrize(("variable", "value", "line", "words"), [
    ("GPUEDGE_DEBUG", "lots", "info", ("[GE-101]", "GPUEDGE_DEBUG")),
    ("GPUEDGE_CACHE_DIR", __file__, "cache", ("[GE-101]", "GPUEDGE_CACHE_DIR")),
])  # fmt: skip
def test_settings_that_cannot_be_used(
    variable: str, value: str, line: str, words: tuple[str, ...], folder: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    play(line, 2, words, folder, capsys)
