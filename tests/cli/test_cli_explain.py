"""``gpuedge kernels explain``: the picture of a graph before and after rewriting."""

from __future__ import annotations

import itertools
import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_fakes import GOOD
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES

import gpuedge
from gpuedge.cli import picture
from gpuedge.cli.layers import GAP, Edge, lay_out
from gpuedge.cli.main import main
from gpuedge.graph.reader import OnnxModel
from gpuedge.probing.report import ProbeReport

SVG = "{http://www.w3.org/2000/svg}"


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


def shown(text: str) -> list[tuple[str, str, str]]:
    """Return kind, title and second line of every box."""
    groups = ET.fromstring(text).iter(f"{SVG}g")
    found = []
    for group in groups:
        box, texts = group.find(f"{SVG}rect"), [t.text or "" for t in group.iter(f"{SVG}text")]
        assert box is not None
        found.append((box.get("class", ""), texts[0], texts[1]))
    return found


def test_a_small_graph_is_drawn_whole(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "explain", file]) == 0
    boxes = shown(capsys.readouterr().out)
    kinds = [kind for kind, _, _ in boxes]
    end = kinds.index("value", kinds.index("value") + 1) + 1  # after the output of the left side
    before, after = boxes[:end], boxes[end:]
    assert [k for k, _, _ in before].count("operator") == 3 * 3 + 3
    assert ("folded", "Add", "float32 3x3x3x3") in before
    titles = {(kind, title) for kind, title, _ in after}
    assert ("cpu", "Cast") in titles
    assert any(kind == "kernel" and "Conv + Relu" in title for kind, title in titles)
    assert not any(kind == "folded" for kind, _ in titles)
    assert len(after) < len(before)


def test_the_document_lists_boxes_and_edges(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "graph.svg"
    assert main(["kernels", "explain", file, "--output", str(target), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["svg"]) == ("gpuedge.kernels.explain/1", None)
    assert len(shown(target.read_text())) == sum(
        len(body[side]["boxes"]) for side in ("before", "after")
    )
    for side in ("before", "after"):
        count = len(body[side]["boxes"])
        assert all(0 <= a < b < count for a, b in body[side]["edges"])
    names = "\n".join(box["tip"] for box in body["after"]["boxes"]).split("\n")
    wanted = {f"{op}{i}" for op in ("conv", "relu", "add") for i in range(3)}
    assert wanted | {"cast", "back", "flat", "x", "y"} == set(names)


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


def test_wrong_use_is_told(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "explain"]) == 2
    assert main(["kernels", "explain", str(tmp_path / "none.onnx")]) == 2
    assert main(["kernels", "explain", file, "--output", f"{file}/x.svg"]) == 2
    assert main(["kernels", "explain", file, "--device", "cpu"]) == 2
    assert capsys.readouterr().out == ""


def test_foreign_names_cannot_leave_their_places(tmp_path: Path) -> None:
    evil = '</text><script>alert("1")</script>&\x1b[2J'
    node = helper.make_node("Relu", [evil], ["y"], name=evil)
    proto = model([node], [value(evil, [1, 2])], [value("y", [1, 2])])
    graph = OnnxModel.load(proto).specialise()
    text = picture.svg([(evil, picture.before(graph))])
    assert "<script" not in text and "\x1b" not in text
    assert [kind for kind, _, _ in shown(text)] == ["value", "operator", "value"]


@pytest.mark.parametrize("count", [60, 400])
def test_large_graphs_are_bounded(count: int) -> None:
    boxes = [picture.Box(f"Op{i}", "float32 1x4", "operator", str(i)) for i in range(5 * count)]
    chains = [(i, i + 1) for i in range(5 * count - 1) if i % 5 != 4]  # five in a row each
    rungs = [(5 * i + 4, 5 * j) for i in range(count) for j in (i + 1, i + 2) if j < count]
    whole = picture.Drawing(tuple(boxes), tuple(sorted([*chains, *rungs])))
    start = time.perf_counter()
    found = picture.bounded(whole)
    text = picture.svg([("large", whole)])
    assert time.perf_counter() - start < 60
    assert len(found.boxes) <= picture.MOST + 1
    assert found.boxes[0].title == "5 in a row"
    assert found.boxes[0].tip.split("\n") == [f"Op{i}" for i in range(5)]
    assert all(a < b for a, b in found.edges)
    assert ("not drawn" in text) is (count > picture.MOST)
    assert len(text) < 300_000


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[Edge]]:
    count = draw(st.integers(0, 40))
    widths = [draw(st.floats(20, 200)) for _ in range(count)]
    edges = {
        (draw(st.integers(max(0, b - 9), b - 1)), b)
        for b in range(1, count) for _ in range(draw(st.integers(0, 3)))
    }  # fmt: skip
    return widths, sorted(edges)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(graphs())
def test_no_two_boxes_overlap_and_edges_go_down(case: tuple[list[float], list[Edge]]) -> None:
    widths, edges = case
    laid = lay_out(widths, edges)
    rows: dict[int, list[int]] = {}
    for i, at in enumerate(laid.layer):
        rows.setdefault(at, []).append(i)
    for row in rows.values():
        ordered = sorted(row, key=lambda i: laid.x[i])
        for a, b in itertools.pairwise(ordered):
            assert laid.x[b] - laid.x[a] >= (widths[a] + widths[b]) / 2 + GAP - 1e-6
    for i, wide in enumerate(widths):
        assert laid.x[i] - wide / 2 >= -1e-6 and laid.x[i] + wide / 2 <= laid.width + 1e-6
    for a, b in edges:
        assert laid.layer[a] < laid.layer[b]
        assert [at for _, at in laid.ways[a, b]] == list(range(laid.layer[a] + 1, laid.layer[b]))
