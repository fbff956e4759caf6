"""What opening a session does before the CPU can answer, and what waits until it is asked for."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx_models import I64, model, relu, simple, value, weight

import gpuedge
from gpuedge.core.errors import InputError, ModelError, ShapeError
from gpuedge.decide.policy import Policy
from gpuedge.executors import cpu
from gpuedge.graph.reader import OnnxModel

X = np.array([[1, -2, 3]], np.float32)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What ONNX Runtime is given."""
    found: list[bytes] = []
    real = cpu._session

    def session(data: bytes, *more: Any) -> Any:
        found.append(data)
        return real(data, *more)

    monkeypatch.setattr(cpu, "_session", session)
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
        monkeypatch.setattr(cpu._OrtExecutable, "_call", lambda *_: pytest.fail("it was run"))
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
    far = simple("Conv", [1, 1, 4, 4], {"w": np.ones((1, 1, 3, 3), "f")}, dilations=[2**40, 1])
    with (
        gpuedge.Session(far, device="cpu") as session,
        pytest.raises(ShapeError, match="dilations with a value"),
    ):
        session.run({"x": np.ones((1, 1, 4, 4), np.float32)})


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
