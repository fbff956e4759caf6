"""``gpuedge kernels explain``: the picture of a graph before and after rewriting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_fakes import GOOD
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES

import gpuedge
from gpuedge.cli import picture
from gpuedge.cli.main import main
from gpuedge.graph.reader import OnnxModel
from gpuedge.probing.report import ProbeReport

BOX = re.compile(r'(n\d+_\d+) \[label=("(?:[^"\\]|\\.)*") tooltip=("(?:[^"\\]|\\.)*") (.*)\];')
"""One box as it is written: its number, its text, its tip, its style."""


def blocks(count: int) -> onnx.ModelProto:
    """Residual blocks, one node that no kernel has, one folded, one view at the end."""
    node = helper.make_node
    nodes = [node("Add", ["w", "w"], ["ww"], name="double")]
    last = "x"
    for i in range(count):
        nodes += [
            node("Conv", [last, "ww"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]),
            node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"),
            node("Add", [f"r{i}", last], [f"a{i}"], name=f"add{i}"),
        ]
        last = f"a{i}"
    nodes += [
        node("Cast", [last], ["d"], name="cast", to=onnx.TensorProto.DOUBLE),
        node("Cast", ["d"], ["f"], name="back", to=onnx.TensorProto.FLOAT),
        node("Flatten", ["f"], ["y"], name="flat"),
    ]
    held = [weight("w", np.ones((3, 3, 3, 3), np.float32))]
    return model(nodes, [value("x", [1, 3, 4, 4])], [value("y", None)], held)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "blocks.onnx"
    onnx.save(blocks(3), path)
    return str(path)


def boxes_of(text: str) -> list[tuple[str, str]]:
    """Return kind and text of every box; each line of the text is one that Graphviz takes."""
    kinds = {style: kind for kind, style in picture.STYLES.items()}
    found = []
    for line in text.splitlines():
        box = BOX.fullmatch(line.strip())
        if box is not None:
            found.append((kinds[box[4]], json.loads(box[2])))
        else:
            assert re.fullmatch(r'\s*(n\d+_\d+ -> n\d+_\d+;|[\w "={]*|.*[\[{};]|})', line), line
    return found


def test_a_small_graph_is_drawn_whole(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "explain", file]) == 0
    boxes = boxes_of(capsys.readouterr().out)
    kinds = [kind for kind, _ in boxes]
    end = kinds.index("value", kinds.index("value") + 1) + 1  # after the output of the left side
    before, after = boxes[:end], boxes[end:]
    assert [k for k, _ in before].count("operator") == 3 * 3 + 3
    assert ("folded", "Add\nfloat32 3x3x3x3") in before
    assert ("cpu", "Cast\non the CPU") in after
    assert any(kind == "kernel" and "Conv + Relu" in text for kind, text in after)
    assert not any(kind == "folded" for kind, _ in after)
    assert len(after) < len(before)


def test_the_document_lists_boxes_and_edges(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "graph.dot"
    assert main(["kernels", "explain", file, "--output", str(target), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["dot"]) == ("gpuedge.kernels.explain/2", None)
    assert len(boxes_of(target.read_text())) == sum(
        len(body[side]["boxes"]) for side in ("before", "after")
    )
    for side in ("before", "after"):
        count = len(body[side]["boxes"])
        assert all(0 <= a < b < count for a, b in body[side]["edges"])
    names = "\n".join(box["tip"] for box in body["after"]["boxes"]).split("\n")
    wanted = {f"{op}{i}" for op in ("conv", "relu", "add") for i in range(3)}
    assert wanted | {"cast", "back", "flat", "x", "y"} == set(names)


def test_graphviz_draws_svg(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    target, program = tmp_path / "graph.svg", tmp_path / "dot"
    explain = ["kernels", "explain", file, "--output", str(target)]
    assert main(explain) == 2
    assert "install graphviz" in capsys.readouterr().err
    program.write_text('#!/bin/sh\n[ "$1" = -Tsvg ] && { echo "<svg/>"; /bin/cat; }\n')
    program.chmod(0o755)
    assert main(explain) == 0
    start, _, rest = target.read_text().partition("\n")
    assert start == "<svg/>" and boxes_of(rest)
    target.unlink()
    program.write_text("#!/bin/sh\necho syntax error >&2; exit 1\n")
    assert main(explain) == 2
    assert "syntax error" in capsys.readouterr().err
    assert not target.exists()


def test_it_is_planned_for_a_device_that_is_named(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = GOOD.replace(device="gles20:0", backend="gles20", caps=TEXTURES.to_dict())
    report = ProbeReport((row,), "0.1.0", 0.5)
    monkeypatch.setattr(gpuedge, "probe", lambda **_: report, raising=False)
    assert main(["kernels", "explain", file, "--device", "gles20", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["device"] == "gles20:0"
    assert "conv2d_map" in str(body["after"])


def test_foreign_names_cannot_leave_their_places(tmp_path: Path) -> None:
    evil = '"]; } evil [label="\\" \\n \x1b[2J\n}'
    node = helper.make_node("Relu", [evil], ["y"], name=evil)
    proto = model([node], [value(evil, [1, 2])], [value("y", [1, 2])])
    graph = OnnxModel.load(proto).specialise()
    text = picture.dot([(evil, picture.before(graph))])
    assert "\x1b" not in text
    assert [kind for kind, _ in boxes_of(text)] == ["value", "operator", "value"]
    assert sum("evil [" in line for line in text.splitlines()) == 3  # inside of quotes
