"""``gpuedge pack`` and what the other verbs make of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_fakes import BAD, GOOD

import gpuedge
from gpuedge.cli.main import main
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.graph.container import opened
from gpuedge.graph.ir import Graph
from gpuedge.graph.packed import KERNELS, PackedModel
from gpuedge.lang.cache import decoded
from gpuedge.probing.report import ProbeReport

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
SHAPES = ["--shapes", "image=1x1x8x8", "--shapes", "image=3x1x8x8"]
IMAGES = np.random.default_rng(5).random((3, 1, 8, 8), np.float32)


def packed(folder: Path, *more: str) -> Path:
    path = folder / "digits.gpuedge"
    assert main(["pack", str(DIGITS), "-o", str(path), *SHAPES, *more, "-q"]) == 0
    return path


def test_what_is_written_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = GOOD.replace(caps=VULKAN_MINIMUM.to_dict())
    report = tmp_path / "phone.json"
    report.write_text(ProbeReport((row, BAD), "0.1.0").to_json())
    path = packed(tmp_path, "--probed", str(report), "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "gpuedge.pack/1"
    assert told["nbytes"] == path.stat().st_size
    assert [list(s.values()) for s in told["shapes"]] == [[[1, 1, 8, 8]], [[3, 1, 8, 8]]]
    kernels = decoded(opened(path).parts[KERNELS].tobytes())
    ((name, count),) = told["kernels"].items()
    assert name.startswith(GOOD.device)  # and nothing of the device that cannot be used
    assert count == len(kernels) > 3
    read = PackedModel.load(path)
    assert [len(read.golden(read.specialise(s))) for s in read.shapes] == [2, 2]


def test_other_verbs_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packed(tmp_path)
    np.save(tmp_path / "x.npy", IMAGES)
    capsys.readouterr()
    run = ["run", str(path), "--input", f"image={tmp_path / 'x.npy'}", "--device", "cpu"]
    assert main([*run, "--output", str(tmp_path / "out")]) == 0
    with gpuedge.Session(DIGITS, device="cpu") as session:
        wanted = session.run({"image": IMAGES})["probabilities"]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "probabilities.npy"), wanted)
    capsys.readouterr()
    check = ["check", str(path), "--device", "cpu", "--shape", "image=3x1x8x8"]
    assert main([*check, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["pack"]
    assert told["golden"] == {"cpu": ""}
    assert told["model"] == "digits.onnx"
    assert main(check) == 0
    assert "golden values come out right on cpu" in capsys.readouterr().out


def test_check_names_the_shapes_that_are_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed(tmp_path)
    capsys.readouterr()
    assert main(["check", str(path), "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert "(1, 1, 8, 8)" in told and "(3, 1, 8, 8)" in told
    assert "try:          --shape image=1x1x8x8" in told


def test_golden_values_that_do_not_come_out_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path)
    right = PackedModel.golden

    def wrong(self: PackedModel, graph: Graph) -> dict[str, Any]:
        known = right(self, graph)
        return {**known, "probabilities": known["probabilities"] + np.float32(0.01)}

    monkeypatch.setattr(PackedModel, "golden", wrong)
    check = ["check", str(path), "--device", "cpu", "--shape", "image=1x1x8x8"]
    assert main(check) == 1
    assert "GOLDEN VALUES NOT CONFIRMED on cpu" in capsys.readouterr().out


def test_golden_inputs_and_calibration_from_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=IMAGES[:1])
    (tmp_path / "samples").mkdir()
    for number in range(3):
        np.savez(tmp_path / "samples" / f"{number}.npz", image=IMAGES[number : number + 1])
    more = ["--input", str(tmp_path / "x.npz"), "--quantise", str(tmp_path / "samples")]
    read = PackedModel.load(packed(tmp_path, *more))
    graph = read.specialise({"image": (1, 1, 8, 8)})
    np.testing.assert_array_equal(read.golden(graph)["image"], IMAGES[:1])
    assert any(array.dtype == np.int8 for array in graph.constants.values())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pack {digits} -o {digits} --shapes image=1x1x8x8", "name the same file"),
        ("pack {digits} -o {out}", "--shape"),
        ("pack {digits} -o {out} --shapes image=1by1", "--shapes"),
        ("pack {digits} -o {out} --for vulcan --shapes image=1x1x8x8", "GE-102"),
        ("pack {digits} -o {out} --probed {digits}", "--probed"),
        ("pack {digits} -o {out} --quantise {folder}", "no .npz files"),
        ("pack {bad} -o {out}", "GE-502"),
        ("run {bad}", "GE-502"),
        ("check {bad}", "GE-502"),
        ("pack {digits}", "--output"),
    ],
)
def test_wrong_calls(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.gpuedge").write_bytes(DIGITS.read_bytes())
    names = {
        "digits": DIGITS, "out": tmp_path / "out.gpuedge", "folder": tmp_path,
        "bad": tmp_path / "bad.gpuedge",
    }  # fmt: skip
    assert main(line.format(**names).split()) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert not (tmp_path / "out.gpuedge").exists()
    assert "Traceback" not in told.err
