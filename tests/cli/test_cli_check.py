"""``gpuedge check``: every node with where it would run and why not, without opening a device."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_fakes import GOOD
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES, WIDE

import gpuedge
from gpuedge.cli.main import main
from gpuedge.core.caps import Caps
from gpuedge.core.errors import InputError, UnsupportedOpError
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.reader import OnnxModel
from gpuedge.plan import planner
from gpuedge.plan.arrange import arrange
from gpuedge.plan.planner import plan, why_not
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime import clock, forecast, yardstick
from gpuedge.runtime.devices import POOL

F64 = onnx.TensorProto.DOUBLE
OFFENDERS = {"cube": "float64", "tail": "float64", "foreign": "no kernel"}


def row(level: str, caps: Caps, **more: Any) -> ProbeRow:
    identity = {**GOOD.identity, "api": level}
    return GOOD.replace(
        device=f"{level}:0", backend=level, caps=caps.to_dict(), identity=identity, **more
    )


REPORT = ProbeReport((row("vulkan", WIDE), row("gles20", TEXTURES)), "0.1.0", 0.5)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices that probing found; opening one is an error."""
    monkeypatch.setattr(POOL, "current", lambda *_: REPORT)
    monkeypatch.setattr(gpuedge, "probe", lambda **_: REPORT, raising=False)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a device was opened")

    monkeypatch.setattr(GpuExecutor, "__init__", refuse)
    monkeypatch.setattr(yardstick, "slowness", lambda _: {})


def mixed() -> onnx.ModelProto:
    """Three nodes for a GPU, two of a type that no kernel has, a foreign one, a folded one."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Add", ["half", "half"], ["one"], name="folded"),
        node("Mul", ["r", "one"], ["m"], name="scale"),
        node("Cast", ["m"], ["d"], name="cube", to=F64),
        node("Exp", ["d"], ["tail"], name="tail"),
        node("Gelu", ["m"], ["y"], name="foreign", domain="com.microsoft"),
    ]
    held = [weight("w", np.ones((4, 3, 3, 3), np.float32)), weight("half", np.float32(0.5))]
    outputs = [value("y", ["N", 4, 6, 6]), value("tail", None, F64)]
    imports = [helper.make_opsetid("com.microsoft", 1)]
    return model(nodes, [value("x", ["N", 3, 8, 8])], outputs, held, imports=imports)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mixed.onnx"
    onnx.save(mixed(), path)
    return str(path)


SHAPE = ("--shape", "x=2x3x8x8")


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_every_node_has_a_place_on_every_level(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", file, *SHAPE, "--json"]) == 0
    body = answer(capsys)
    assert (body["schema"], body["is_ok"], body["fallback"]) == ("gpuedge.check/1", True, "cpu")
    assert [d["device"] for d in body["devices"]] == ["vulkan:0", "gles20:0"]
    places = {n["name"]: n["places"] for n in body["nodes"]}
    assert {p["device"] for p in places["folded"].values()} == {"host"}
    for device in ("vulkan:0", "gles20:0"):
        for name in ("conv", "relu", "scale"):
            assert places[name][device]["device"] == device
            assert places[name][device]["kernel"].startswith(("conv2d", "pack"))
        for name, why in OFFENDERS.items():
            assert places[name][device]["device"] == "cpu"
            assert why in places[name][device]["why"]
    assert all(p["cpu"]["device"] in ("cpu", "host") for p in places.values())
    nodes = {n["name"]: n for n in body["nodes"]}
    assert (nodes["cube"]["op"], nodes["cube"]["opset"]) == ("Cast", 17)
    assert (nodes["cube"]["reads"], nodes["cube"]["gives"]) == (
        ["float32[2,4,6,6]"], ["float64[2,4,6,6]"],
    )  # fmt: skip
    assert (nodes["foreign"]["domain"], nodes["foreign"]["opset"]) == ("com.microsoft", 1)
    assert body["cpu"]["ns"] > 0 and not body["cpu"]["error"]


def test_segments_memory_and_time_are_those_of_the_plan(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(0, 10**9)  # the CPU seems to take one for each run
    monkeypatch.setattr(clock, "now_ns", lambda: next(seconds))
    found = gpuedge.check(file, shapes={"x": (2, 3, 8, 8)})
    graph = OnnxModel.load(file).specialise({"x": (2, 3, 8, 8)})
    for one, caps in zip(found.devices, (WIDE, TEXTURES), strict=True):
        mine, rest = one.segments
        refused = [n.name for n in graph.nodes if why_not(n, graph, caps)]
        assert mine.nodes == ("conv", "relu", "scale")
        assert (mine.device, rest.device) == (one.device, "cpu")
        assert [*rest.nodes] == refused
        alone = replace(graph, nodes=graph.nodes[:3], outputs=("m",))
        made = plan(alone, caps)
        where = arrange(made, caps.offset_alignment, has_suballocation=caps.has_suballocation)
        assert one.nbytes == sum(b.nbytes for b in where.buffers.values())
        assert mine.launches == len(made.passes)
        assert one.predicted_ns == mine.predicted_ns + rest.predicted_ns
        assert mine.predicted_ns > 0 and 10**8 < rest.predicted_ns < found.cpu["ns"] == 10**9
        assert (one.startup_ns or 0) > 0
        assert 0 < mine.most_alive <= mine.nbytes["scratch"]
        assert f"memory on {one.device}: " in str(found)
    assert found.to_dict()["devices"][0]["nbytes"] == found.devices[0].nbytes


@pytest.mark.parametrize("slowness", [{}, {"conv": 8.0, "matmul": 8.0, "map": 8.0}])
def test_a_software_rasteriser_is_measured_on_this_machine(
    slowness: dict[str, float], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft = [row(level, caps, is_software=is_software) for level, caps, is_software in (
        ("vulkan", WIDE, False), ("gles20", TEXTURES, True))]  # fmt: skip
    monkeypatch.setattr(POOL, "current", lambda *_: ProbeReport(tuple(soft), "0.1.0", 0.5))
    asked: list[str] = []

    def measured(one: ProbeRow) -> dict[str, float]:
        asked.append(one.device)
        return slowness

    before = {d.device: d for d in gpuedge.check(file, shapes={"x": (2, 3, 8, 8)}).devices}
    monkeypatch.setattr(yardstick, "slowness", measured)
    found = gpuedge.check(file, shapes={"x": (2, 3, 8, 8)})
    hard, now = found.devices
    assert asked == ["gles20:0"] and not hard.slowness
    assert hard.segments[0].predicted_ns == before["vulkan:0"].segments[0].predicted_ns
    by = 8 if slowness else 1
    was = before["gles20:0"].segments[0].predicted_ns
    assert now.segments[0].predicted_ns == pytest.approx(by * was, rel=1e-6)
    assert found.to_dict()["devices"][1]["slowness"] == slowness
    said = "gles20:0 could not be measured, and may be off by a factor of 10"
    assert (said in str(found)) == (not slowness)


@pytest.mark.parametrize(("options", "code", "words", "absent"), [
    ("", 0, ("Every node", "Segments, in order", "If a device is asked for", "onnxruntime"), ()),
    ("--device gles20", 0, ("conv2d_map", "on the CPU"), ("vulkan:0",)),
    ("--device cpu", 0, ("runs on", "onnxruntime"), ("vulkan:0", "Segments")),
    ("--device wgpu", 3, (), ()),
    ("--fallback error", 1, ("Cannot run there", "a session raises an error"), ()),
    ("--fallback error --device cpu", 0, ("measured",), ()),
    ("--fallback error --device vulkan", 1, ("vulkan:0",), ("gles20:0",)),
    ("GPUEDGE_FALLBACK=error --device vulkan", 1, ("vulkan:0",), ()),
])  # fmt: skip
def test_transcript(
    options: str, code: int, words: tuple[str, ...], absent: tuple[str, ...], file: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "160")
    setting, equals, value = options.partition(" ")[0].partition("=")
    if equals:
        monkeypatch.setenv(setting, value)
        options = options.partition(" ")[2]
    assert main(["check", file, *SHAPE, *options.split()]) == code
    said = capsys.readouterr().out
    assert [word for word in words if word not in said] == []
    assert [word for word in absent if word in said] == []


def test_the_page_names_all_offenders_with_levels_and_reasons(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["check", file, *SHAPE]) == 0
    said = capsys.readouterr().out
    page = str(gpuedge.check(file, shapes={"x": (2, 3, 8, 8)}))
    for text, heads in ((said, 3), (page, 2)):
        offenders = text.partition("Cannot run there")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in offenders[heads:]] == list(OFFENDERS)
        for line, why in zip(offenders[heads:], OFFENDERS.values(), strict=True):
            assert "every device" in line and why in line


def test_shapes_that_are_missing_are_named_as_they_are_to_be_given(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", file]) == 2
    told = capsys.readouterr().err
    line = next(line for line in told.splitlines() if line.startswith("  try:"))
    assert main(["check", file, *line.removeprefix("  try:").split(), "--device", "cpu"]) == 0
    with pytest.raises(InputError, match="missing") as caught:
        gpuedge.check(file)
    name, equals, given = str(caught.value.hint).partition("=")
    assert (name, equals) == ("shapes", "=")
    assert gpuedge.check(file, device="cpu", shapes=ast.literal_eval(given)).is_ok


def test_a_node_that_runs_nowhere_fails_the_check(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = POOL.cpu()

    def supports(self: object, node: Node, graph: Graph) -> str | None:
        return "no such thing" if node.op == "Exp" else None

    monkeypatch.setattr(type(cpu), "supports", supports)
    assert main(["check", file, *SHAPE, "--json"]) == 1
    body = answer(capsys)
    place = next(n["places"] for n in body["nodes"] if n["name"] == "tail")
    assert {p["device"] for p in place.values()} == {""}
    assert all("no such thing" in p["why"] for p in place.values())
    assert not body["is_ok"]
    assert main(["check", file, *SHAPE]) == 1
    assert "nowhere" in capsys.readouterr().out


def test_a_cpu_that_cannot_run_it_fails_the_check(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedOpError("Too much of everything.")

    monkeypatch.setattr(type(POOL.cpu()), "compile", refuse)
    assert main(["check", file, *SHAPE, "--device", "cpu"]) == 1
    assert "the CPU cannot run it alone: [GE-501] Too much" in capsys.readouterr().out
    assert main(["check", file, *SHAPE, "--device", "vulkan"]) == 0


def test_without_a_gpu_the_cpu_runs_all(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POOL, "current", lambda *_: ProbeReport((), "0.1.0", 0.5))
    found = gpuedge.check(file, shapes={"x": (2, 3, 8, 8)})
    assert found.is_ok and found.devices == ()
    assert {n.places["cpu"].device for n in found.nodes} == {"host", "cpu"}


def test_a_device_that_can_run_the_nodes_but_not_their_plan_says_why(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuedge.runtime import forecast

    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedOpError("Too much of everything.")

    monkeypatch.setattr(forecast, "plan", refuse)
    found = gpuedge.check(file, shapes={"x": (2, 3, 8, 8)}, device="vulkan")
    assert "Too much of everything" in found.devices[0].error
    assert found.is_ok and {n.places["vulkan:0"].device for n in found.nodes} == {"host", "cpu"}
    assert not gpuedge.check(
        file, shapes={"x": (2, 3, 8, 8)}, device="vulkan", fallback="error"
    ).is_ok
    assert "Too much of everything" in str(found)


@pytest.mark.parametrize(("policy", "times"), [(None, 1), (gpuedge.Policy(rewrites=False), 2)])
def test_each_device_is_planned_once(
    policy: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tells whether a device runs the model is the plan of the page, if rules are usual."""
    planned: list[str] = []

    def counted(graph: Graph, caps: Caps, *args: Any, **more: Any) -> Any:
        planned.append(caps.level)
        return plan(graph, caps, *args, **more)

    for module in (planner, forecast):
        monkeypatch.setattr(module, "plan", counted)
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["y"], ["z"])]
    found = gpuedge.check(model(nodes, [value("x", [2, 3])], [value("z", [2, 3])]), policy=policy)
    assert planned == ["vulkan"] * times + ["gles20"] * times
    assert [d.segments[0].launches for d in found.devices] == [times] * 2
