"""8-bit products on the CPU: known answers, where they are kept, and what mends wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import saturating
from onnx import helper
from onnx_models import by_reference, model, relu, value, weight
from planrun import TEXTURES, plan_device
from products_cases import Case, cases
from quantised_model import network
from single_node import single

import gpuedge
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.executors import answers
from gpuedge.executors.cpu import CpuExecutor, known_answers
from gpuedge.executors.products import ByteProduct
from gpuedge.graph.ir import TensorType
from gpuedge.graph.reader import OnnxModel
from gpuedge.graph.writer import to_onnx
from gpuedge.safety import machine

WRONG = {
    ByteProduct(op, *types, is_constant)
    for op, *types in (
        ("MatMulInteger", "uint8", "int8"), ("QLinearMatMul", "uint8", "int8"),
        ("QLinearConv", "uint8", "int8"), ("ConvInteger", "int8", "uint8"),
    )
    for is_constant in (True, False)
}  # fmt: skip
"""What ONNX Runtime 1.32.0 gets wrong on processors with AVX2 and no VNNI."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    answers.answers.cache_clear()
    yield tmp_path
    answers.answers.cache_clear()


@pytest.fixture
def saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "InferenceSession", saturating.Session)
    monkeypatch.setattr(onnxruntime, "__version__", saturating.VERSION)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[answers.Answers]:
    """Every time that the answers are asked for, what comes out."""
    found: list[answers.Answers] = []
    real = answers.ask

    def ask(load: answers.Load) -> answers.Answers:
        found.append(real(load))
        return found[-1]

    monkeypatch.setattr(answers, "ask", ask)
    return found


def run(proto: onnx.ModelProto, feeds: Any, **options: Any) -> tuple[Any, set[str]]:
    with gpuedge.Session(proto, **{"device": "cpu", **options}) as session:
        got = session.run(feeds)["y"]
        return got, {row.kernel for row in session.placement}


# --- the answers ---------------------------------------------------------------------------------


def test_what_is_right_is_what_the_reference_says() -> None:
    count = 0
    for case in answers.cases():
        if any(node.domain for node in case.graph.nodes):
            continue  # ONNX Runtime's own: the reference has none of these
        for name, got in by_reference(to_onnx(case.graph), case.feeds).items():
            np.testing.assert_array_equal(got, case.wanted[name])
            count += 1
    assert count == 96


@pytest.mark.usefixtures("saturates")
def test_a_saturating_processor_is_found_out() -> None:
    assert known_answers().wrong == WRONG
    assert known_answers().asked > 100


def test_answers_are_asked_for_once_for_all_processes(
    asked: list[answers.Answers], folder: Path, saturates: None
) -> None:
    first = known_answers()
    assert known_answers() is first and len(asked) == 1
    answers.answers.cache_clear()  # another process
    assert known_answers() == first and len(asked) == 1
    assert (folder / "answers.json").stat().st_size < 4096


def test_another_processor_or_version_is_asked_anew(
    asked: list[answers.Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    known_answers()
    here = machine.processor()
    other = machine.Processor(here.model, (*(here.flags or ()), "avx_vnni_int16"))
    monkeypatch.setattr(machine, "processor", lambda: other)
    answers.answers.cache_clear()
    known_answers()
    assert len(asked) == 2
    monkeypatch.setattr(onnxruntime, "__version__", "99.0")
    known_answers()
    assert len(asked) == 3
    monkeypatch.undo()
    assert machine.processor() == here


def test_an_answer_of_now_counts_more_than_what_the_system_says(
    asked: list[answers.Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulator shows the flags of its host."""
    monkeypatch.setattr(onnxruntime, "__version__", saturating.VERSION)
    known_answers()
    answers.answers.cache_clear()
    monkeypatch.setattr(onnxruntime, "InferenceSession", saturating.Session)
    assert known_answers().wrong == WRONG


@pytest.mark.parametrize("damage", ["cut", "foreign", "folder"])
def test_where_nothing_can_be_kept_or_read_each_process_asks(
    damage: str, asked: list[answers.Answers], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "answers.json"
    if damage == "folder":  # root may write anywhere, but not below a file
        (folder / "file").write_bytes(b"")
        monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(folder / "file"))
    first = known_answers()
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "foreign":
        (key,) = answers.load_sealed(file, answers.SCHEMA)["entries"]  # type: ignore[index]
        for entry in (7, {}, {"wrong": [["MatMul", 1, 2, 3]], "asked": 1, "when": 1.0}):
            body = {"entries": {key: entry}}
            answers.update_sealed(file, answers.SCHEMA, lambda _, body=body: body)  # type: ignore[misc]
            answers.answers.cache_clear()
            assert known_answers() == first
    assert known_answers() == first
    answers.answers.cache_clear()
    assert known_answers() == first
    assert len(asked) == (4 if damage == "foreign" else 2)


def test_a_model_of_floats_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(answers, "ask", refuse)
    x = np.ones((2, 3), np.float32)
    for shape in (x, x[:0]):  # as it came, and as a graph
        run(relu(), {"x": shape})
    with pytest.raises(AssertionError, match="asked"):
        run(next(cases()).model, next(cases()).feeds)


# --- what is done about wrong ones ---------------------------------------------------------------


def by_integers(op: str, *, is_constant: bool) -> Case:
    return next(c for c in cases() if c.op == op and c.is_constant is is_constant
                and (c.first, c.second) == ("uint8", "int8"))  # fmt: skip


@pytest.mark.usefixtures("saturates")
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearConv", "Gemm between QDQ"])
@pytest.mark.parametrize("rewrites", [True, False])
def test_constants_move_into_uint8_and_the_rest_to_numpy(op: str, rewrites: bool) -> None:
    policy = gpuedge.Policy(rewrites=rewrites)
    for is_constant in (True, False):
        case = by_integers(op, is_constant=is_constant)
        got, kernels = run(case.model, case.feeds, policy=policy)
        np.testing.assert_array_equal(got, case.wanted)
        assert ("numpy" in kernels) is (not is_constant and "QDQ" not in op)
    case = by_integers(op, is_constant=True)
    (plain,) = saturating.Session(case.model.SerializeToString()).run(["y"], case.feeds)
    assert (plain != case.wanted).any()  # the fake gets it wrong, left to itself


@pytest.mark.usefixtures("saturates")
def test_nodes_may_share_an_operand_and_a_zero_point() -> None:
    """ONNX Runtime's own setting refuses such a model (seen with 1.32.0)."""
    a, b = np.full((2, 8), 255, np.uint8), np.full((8, 8), 127, np.int8)
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "zb", "t", "z"], ["m"]),
        helper.make_node("MatMulInteger", ["m", "b", "", "zb"], ["y"]),
    ]
    held = {"s": np.float32(1), "t": np.float32(1016), "z": np.uint8(0), "b": b, "zb": np.int8(0)}
    proto = model(nodes, [value("a", [2, 8], 2)], [value("y", [2, 8], 6)],
                  [weight(n, v) for n, v in held.items()])  # fmt: skip
    got, kernels = run(proto, {"a": a})
    np.testing.assert_array_equal(got, np.full((2, 8), 255 * 127 * 8))
    assert "numpy" not in kernels


def body(held: list[onnx.TensorProto], name: str) -> onnx.GraphProto:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", name, "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["f", "s"], ["out"]),
    ]
    return helper.make_graph(nodes, "body", [], [value("out", None)], held)


@pytest.mark.usefixtures("saturates")
def test_products_inside_the_branches_of_an_if() -> None:
    own, outer = (np.full((8, 3), v, np.int8) for v in (127, -128))
    branches = {"then_branch": body([weight("own", own)], "own"), "else_branch": body([], "outer")}
    proto = model(
        [helper.make_node("If", ["test"], ["y"], **branches)],
        [value("test", [], onnx.TensorProto.BOOL), value("x", [2, 8])], [value("y", None)],
        [weight("outer", outer)],
    )  # fmt: skip
    x = np.full((2, 8), 255, np.float32)
    for test, b in ((True, own), (False, outer)):
        got, _ = run(proto, {"test": np.array(test), "x": x})
        np.testing.assert_array_equal(got, x @ b.astype(np.float32))


@pytest.mark.usefixtures("saturates")
def test_what_a_gpu_leaves_to_the_cpu_is_right_there() -> None:
    a, b = np.full((2, 8), 255, np.uint8), np.full((8, 3), 127, np.int8)
    names = ["a", "s", "z", "b", "s", "zb", "", "t", "z"]
    held = {"s": np.float32(1), "t": np.float32(2**15), "z": np.uint8(0), "b": b, "zb": np.int8(0)}
    proto = model(
        [helper.make_node("QGemm", names, ["y"], domain="com.microsoft")],
        [value("a", [2, 8], 2)], [value("y", [2, 3], 2)], [weight(n, v) for n, v in held.items()],
        imports=[helper.make_opsetid("com.microsoft", 1)],
    )  # fmt: skip
    got, _ = run(proto, {"a": a}, device=plan_device(TEXTURES))
    np.testing.assert_array_equal(got, np.full((2, 3), round(8 * 255 * 127 / 2**15)))


@pytest.mark.usefixtures("saturates")
def test_a_wrong_product_that_numpy_does_not_know_is_refused() -> None:
    short = {"a": TensorType("uint8", (1, 4)), "b": TensorType("int8", (4, 1))}
    long = {"a": TensorType("uint8", (1, 70_000)), "b": TensorType("int8", (70_000, 1))}
    graph = single("MatMulInteger", short)
    with pytest.raises(UnsupportedOpError, match="comes out wrong on this processor") as caught:
        CpuExecutor().compile(replace(graph, types={**graph.types, **long}))
    assert caught.value.code == "GE-501"


def test_the_page_has_every_operator_and_pair_of_types() -> None:
    page = Path(__file__).parents[2] / "docs" / "tables" / "quantised.md"
    lines = [line.strip("| ").split(" | ") for line in page.read_text().splitlines()]
    found = {tuple(line[:3]): line[3:] for line in lines if len(line) > 3}
    heads = found.pop(("operator", "first", "second"))
    assert set(heads) >= {"this processor", "saturating", "vulkan-lavapipe", "gles20-llvmpipe"}
    assert set(found) - {("---",) * 3} == {(c.op, c.first, c.second) for c in cases()}
    del found["---", "---", "---"]
    assert {c for row in found.values() for c in row} == {"same", "same (numpy)"}


@pytest.mark.parametrize("op", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_operators_of_onnx_runtime_with_a_bias_run_on_a_gpu(op: str) -> None:
    case = by_integers(op, is_constant=True)
    bias = np.arange(11, dtype=np.float32) * 512  # every sum is a whole number below 2^24
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    (node,) = proto.graph.node
    node.input.append("bias")
    proto.graph.initializer.append(weight("bias", bias))
    got, kernels = run(proto, case.feeds, device=plan_device(TEXTURES), fallback="error")
    np.testing.assert_array_equal(got, case.wanted + bias)
    assert kernels.isdisjoint({"numpy", CpuExecutor().kernel})


@pytest.mark.parametrize("is_saturating", [False, True])
def test_a_quantised_network_has_the_same_bits_on_every_processor(
    is_saturating: bool, request: pytest.FixtureRequest
) -> None:
    """Also where it adds up and averages, which ONNX Runtime would fuse and round otherwise."""
    if is_saturating:
        request.getfixturevalue("saturates")
    x = np.random.default_rng(1).uniform(-2, 2, (40, 3, 8, 10)).astype(np.float32)
    graph = OnnxModel.load(network()).specialise({"x": x.shape})
    wanted = CpuExecutor(engine="numpy").compile(graph).run({"x": x})["y"]
    got, kernels = run(network(), {"x": x})
    np.testing.assert_array_equal(got, wanted)
    assert "numpy" not in kernels
