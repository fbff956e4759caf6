"""What opening a session does before the CPU can answer, and what waits until it is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from faulty import LOST, FaultyPool
from onnx import helper
from onnx_models import I64, model, relu, simple, value, weight

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    InputError,
    ModelError,
    ShapeError,
    UsageError,
)
from gpuedge.decide.policy import Policy
from gpuedge.graph.reader import OnnxModel

X = np.array([[1, -2, 3]], np.float32)
Take = Callable[[FaultyPool], FaultyPool]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What ONNX Runtime is given."""
    found: list[bytes] = []
    real = onnxruntime.InferenceSession

    def noted(data: bytes, *more: Any, **options: Any) -> Any:
        found.append(data)
        return real(data, *more, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", noted)
    return found


@pytest.fixture
def no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph may be made."""
    monkeypatch.setattr(OnnxModel, "specialise", lambda *_: pytest.fail("a graph was made"))


@pytest.mark.usefixtures("no_graph")
@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("shape", [[1, 3], ["N", 3], [None, 3]])
def test_onnxruntime_answers_from_the_bytes_that_were_given(
    device: str, shape: list[Any], given: list[bytes]
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    data = model([node], [value("x", shape)], [value("y", shape)]).SerializeToString()
    with gpuedge.Session(data, device=device) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], [[1, 0, 3]])
        assert session.inputs == {"x": ("float32", tuple(shape))}
        assert session.outputs == {"y": ("float32", tuple(shape))}
        assert session.health.state == "cpu"
    assert [one is data for one in given] == [True]


def test_placement_makes_the_graph() -> None:
    with gpuedge.Session(simple("Relu", [1, 3]), device="cpu") as session:
        session.run({"x": X})
        assert [row.ops for row in session.placement] == [("Relu",)]


@pytest.mark.usefixtures("no_graph")
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_all_shapes_share_one_session_of_onnxruntime(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []
    real = onnxruntime.InferenceSession

    def counted(*args: Any, **options: Any) -> Any:
        one = real(*args, **options)
        made.append(weakref.ref(one))
        return one

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    with gpuedge.Session(relu(), device=device) as session:
        for count in (*range(1, Policy().max_shapes + 3), 1):  # the first was dropped, and returns
            x = np.full((count, 3), -count, np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.zeros((count, 3)))
        (only,) = made
        assert only() is not None
    assert only() is None, "closing left it"


def test_outputs_are_bounded_for_each_set_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    proto = model([node], [value("x", ["N", 1]), value("z", ["M"])], [value("y", ["N", "M"])])
    with gpuedge.Session(proto, device="cpu") as session:
        for count in (2, 3):
            x, z = np.ones((count, 1), np.float32), np.ones(count, np.float32)
            np.testing.assert_array_equal(session.run({"x": x, "z": z})["y"], x + z)
        many = np.ones(2**20, np.float32)
        refused = lambda *_: pytest.fail("it was run")  # noqa: E731
        monkeypatch.setattr(onnxruntime.InferenceSession, "run", refused)
        with pytest.raises(ModelError, match="would compute 'y' of 1099511627776 elements"):
            session.run({"x": many[:, None], "z": many})


def listed(ir_version: int) -> onnx.ModelProto:
    """Return a model whose weight is an input as well, as old exporters wrote them."""
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", [1, 3]), value("w", [3])], [value("y", [1, 3])],
        [weight("w", np.ones(3, np.float32))],
    )  # fmt: skip
    proto.ir_version = ir_version
    return proto


@pytest.mark.usefixtures("no_graph")
@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_are_no_inputs(ir_version: int, given: list[bytes]) -> None:
    with gpuedge.Session(listed(ir_version), device="cpu") as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], X + 1)
    (data,) = given
    assert [one.name for one in onnx.load_from_string(data).graph.input] == ["x"]


@pytest.mark.parametrize(
    ("op", "shape", "weights", "attrs"),
    [
        ("Conv", [1, 1, 5, 5], {"w": np.ones((1, 1, 3, 3), "f")},
         {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}),
        ("Gemm", [2, 0], {"b": np.ones((0, 3), "f"), "c": np.ones((2, 3), "f")}, {"beta": 2.0}),
    ],
)  # fmt: skip
def test_what_onnxruntime_computes_wrong_is_written_otherwise(
    op: str, shape: list[int], weights: dict[str, Any], attrs: dict[str, Any], given: list[bytes]
) -> None:
    data = simple(op, shape, weights, **attrs).SerializeToString()
    x = np.ones(shape, np.float32)
    with gpuedge.Session(data, device="cpu") as session:
        found = session.run({"x": x})["y"]
    assert data not in given
    if op == "Gemm":
        np.testing.assert_array_equal(found, np.full((2, 3), 2.0))
    else:
        padded = np.pad(np.ones((5, 5)), 2)
        taps = [padded[i : i + 5, j : j + 5] for i in (0, 2, 4) for j in (0, 2, 4)]
        np.testing.assert_array_equal(found[0, 0], np.sum(taps, 0))


def test_outputs_that_no_node_computes_are_copies() -> None:
    proto = model(
        [helper.make_node("Relu", ["x"], ["y"])], [value("x", [1, 3])],
        [value("y", [1, 3]), value("x", [1, 3]), value("w", [1])], [weight("w", np.ones(1, "f"))],
    )  # fmt: skip
    with gpuedge.Session(proto, device="cpu") as session:
        found = session.run({"x": X})
    assert list(found) == ["y", "x", "w"]
    assert not np.shares_memory(found["x"], X)


def test_the_graph_says_why_a_run_failed() -> None:
    proto = simple("Reshape", [1, 1, 4, 4], {"to": np.array([3, 3])})
    with (
        gpuedge.Session(proto, device="cpu") as session,
        pytest.raises(ShapeError, match="Reshape node 'y'"),
    ):
        session.run({"x": np.ones((1, 1, 4, 4), np.float32)})


def test_a_window_that_reaches_too_far_is_refused_at_once() -> None:
    far = simple("Conv", [1, 1, 4, 4], {"w": np.ones((1, 1, 3, 3), "f")}, dilations=[2**40, 1])
    with pytest.raises(ShapeError, match="dilations with a value"):
        gpuedge.Session(far, device="cpu")


def test_a_failure_that_the_graph_knows_nothing_of_is_onnxruntimes() -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    proto = model([node], [value("x", [3]), value("i", [1], I64)], [value("y", [1])])
    with gpuedge.Session(proto, device="cpu") as session, pytest.raises(InputError, match="indic"):
        session.run({"x": np.ones(3, np.float32), "i": np.array([5])})


def test_sizes_beyond_reading_are_refused_at_once() -> None:
    with pytest.raises(ModelError, match="would compute 'y' of 1099511627776 elements"):
        gpuedge.Session(simple("Expand", [1], {"to": np.array([2**40])}), device="auto")


def test_what_onnxruntime_refuses_the_graph_may_do_without(given: list[bytes]) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    proto = model([node], [value("x", [1, 3])], [value("y", [1, 3])], opset=5)
    data = proto.SerializeToString()
    with gpuedge.Session(data, device="cpu") as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], [[1, 0, 3]])
    assert given[0] == data


def _sized(shape: list[int], *more: onnx.NodeProto, x: list[int]) -> onnx.ModelProto:
    """A model in which a node makes a tensor `w` of this shape, which others read."""
    made = [
        helper.make_node("Constant", [], ["s"], value_ints=shape),
        helper.make_node("ConstantOfShape", ["s"], ["w"]),
    ]
    return model([*made, *more], [value("x", x)], [value("y", None)])


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_sizes_that_follow_from_values_are_inferred_before_onnxruntime_tries(device: str) -> None:
    huge = _sized(
        [2**20, 2**20], helper.make_node("ReduceSum", ["w"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]), x=[2],
    )  # fmt: skip
    with pytest.raises(ModelError, match="1099511627776 elements"):
        gpuedge.Session(huge, device=device)
    empty = _sized([0, 1, 3, 3], helper.make_node("Conv", ["x", "w"], ["y"]), x=[1, 1, 4, 4])
    with pytest.raises(ShapeError, match="empty weights"):
        gpuedge.Session(empty, device=device)


def test_a_name_of_a_node_is_not_taken_for_a_lack_of_memory() -> None:
    node = helper.make_node("Reshape", ["w", "i"], ["y"], name="allocate_ids")
    made = model(
        [node], [value("i", [1], I64)], [value("y", [None])], [weight("w", np.ones(3, np.float32))]
    )
    with (
        gpuedge.Session(made, device="cpu") as session,
        pytest.raises(ModelError, match="on these inputs"),
    ):
        session.run({"i": np.array([9])})


def two_layers(*shape: Any) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("MatMul", ["h", "w"], ["y"])]  # fmt: skip
    return model(nodes, [value("x", shape)], [value("y", shape)],
                 [weight("w", np.eye(3, dtype=np.float32))])  # fmt: skip


def test_progress_is_told_while_a_session_opens(take: Take) -> None:
    take(FaultyPool())
    told: list[tuple[str, int, int]] = []
    with gpuedge.Session(two_layers(4, 3), device="vulkan", progress=lambda *a: told.append(a)):
        pass
    assert told[:4] == [("read", 0, 1), ("read", 1, 1), ("plan", 0, 1), ("plan", 1, 1)]
    assert list(dict.fromkeys(stage for stage, _, _ in told[4:])) == ["compile", "upload"]
    for stage in ("compile", "upload"):
        done = [d for s, d, _ in told if s == stage]
        assert done == list(range(1, len(done) + 1))
        assert {total for s, _, total in told if s == stage} == {len(done)}
    told.clear()
    with gpuedge.Session(two_layers(4, 3), device="cpu", progress=lambda *a: told.append(a)):
        assert told == [("read", 0, 1), ("read", 1, 1), ("plan", 0, 1), ("plan", 1, 1)]


def test_progress_may_end_the_opening_and_must_be_callable(take: Take) -> None:
    pool = take(FaultyPool())

    def enough(stage: str, *_: int) -> None:
        if stage == "upload":
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        gpuedge.Session(two_layers(4, 3), device="vulkan", progress=enough)
    assert pool.devices[0].count("alloc") == pool.devices[0].count("free") > 0
    with pytest.raises(UsageError, match="progress must be callable, not int"):
        gpuedge.Session(two_layers(4, 3), device="cpu", progress=3)  # type: ignore[arg-type]


def test_warm_up_compiles_for_shapes_and_counts_no_request(take: Take) -> None:
    pool = take(FaultyPool())
    told: list[tuple[str, int, int]] = []
    policy = Policy(max_shapes=2)
    with gpuedge.Session(two_layers("N", 3), device="vulkan", policy=policy,
                         progress=lambda *a: told.append(a)) as session:  # fmt: skip
        for rows in (4, 5):
            told.clear()
            session.warm_up({"x": (rows, np.int64(3))})
            assert told[-2:] == [("run", 0, 1), ("run", 1, 1)]
        assert session.placement and session.explain().device == "vulkan:0"
        assert session.health.on_device == session.health.on_cpu == 0
        assert pool.devices[0].counters.submits == 2  # synthetic inputs
        told.clear()
        for rows in (4, 5):
            session.run({"x": np.zeros((rows, 3), np.float32)})
        assert not told  # both were compiled
        assert session.profile()["shapes"]["compiled"] == 2
        assert session.health.on_device == 1  # of these shapes


def test_warm_up_leaves_a_failure_to_the_next_request(take: Take) -> None:
    take(FaultyPool([LOST]))
    with gpuedge.Session(two_layers(4, 3), device="vulkan") as session:
        session.warm_up()
        x = np.ones((4, 3), np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x)
        assert session.health.on_cpu == 1


def test_warm_up_on_the_cpu_and_what_it_refuses(given: list[bytes]) -> None:
    with gpuedge.Session(two_layers("N", 3)) as session:
        session.warm_up({"x": [4, 3]})
        assert len(given) == 1
        session.run({"x": np.zeros((4, 3), np.float32)})
        assert (len(given), session.profile()["shapes"]["compiled"]) == (1, 1)
        for shapes, kind, words in (
            (None, InputError, "'x'"), ({}, InputError, "'x'"),
            ({"x": [4]}, ShapeError, "rank 1"), ({"x": [4, 5]}, ShapeError, "5 at axis 1"),
            ({"z": [4]}, InputError, "no input 'z'"), ([(4, 3)], InputError, "dict by name"),
            ({"x": [4.0, 3]}, InputError, "whole numbers"), ({"x": 4}, InputError, "whole numbers"),
        ):  # fmt: skip
            with pytest.raises(kind, match=words):
                session.warm_up(shapes)  # type: ignore[arg-type]
    with pytest.raises(ClosedError):
        session.warm_up({"x": [4, 3]})


def test_warm_up_of_a_model_that_is_compiled_for_values(take: Take) -> None:
    take(FaultyPool())
    node = helper.make_node("Reshape", ["x", "to"], ["y"])
    proto = model([node], [value("x", [2, 3]), value("to", [1], I64)], [value("y", ["N"])])
    with (
        gpuedge.Session(proto, device="vulkan", fallback="error") as session,
        pytest.raises(InputError, match="for the values of 'to'"),
    ):
        session.warm_up()
