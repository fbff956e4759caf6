"""Reading models: errors with clear words, symbols, folding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpuedge.core.errors import InputError, ModelError, ShapeError, UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.graph.reader import OnnxModel

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Any, element: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def weight(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: list[onnx.TensorProto] | None = None,
    opset: int = 17,
    **extra: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights or [])
    imports = [helper.make_opsetid("", opset), *extra.pop("imports", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **extra)


def relu() -> onnx.ModelProto:
    return model(
        [helper.make_node("Relu", ["x"], ["y"])], [value("x", ["N", 3])], [value("y", ["N", 3])]
    )


def simple(op: str, shape: Any, weights: dict[str, Any] | None = None, **attrs: Any) -> Any:
    names = list(weights or {})
    node = helper.make_node(op, ["x", *names], ["y"], **attrs)
    held = [weight(n, v) for n, v in (weights or {}).items()]
    return model([node], [value("x", shape)], [value("y", None)], held)


# --- what cannot be read -------------------------------------------------------------------------


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"There is no model at .*nowhere\.onnx"):
        OnnxModel.load(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelError, match="is a folder, not a file"):
        OnnxModel.load(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty: 0 bytes"),
        (b"PK\x03\x04" + b"x" * 99, "103 bytes; it looks like a zip archive"),
        (b"\x1c\0\0\0TFL3" + b"\0" * 40, "TensorFlow Lite"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html>", "starting with '<'"),
        (b"hello world", "starting with b'hello wo'"),
        (b"\x08\x08", "it has no graph"),
    ],
)
def test_files_of_another_kind(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "some.onnx"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(ModelError) as caught:
            OnnxModel.load(source)
        assert words in str(caught.value)
        assert caught.value.code == "GE-500"
    with pytest.raises(ModelError, match=r"some\.onnx"):
        OnnxModel.load(path)


def test_every_truncation_is_an_error_not_a_crash(tmp_path: Path) -> None:
    whole = simple("MatMul", ["N", 4], {"w": np.ones((4, 5), np.float32)}).SerializeToString()
    path = tmp_path / "cut.onnx"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError, match=r"cut\.onnx"):
            OnnxModel.load(path)
    path.write_bytes(whole)
    assert list(OnnxModel.load(path).inputs) == ["x"]


def test_wrong_type() -> None:
    with pytest.raises(ModelError, match="cannot be read from a int"):
        OnnxModel.load(3)


def test_unreadable_file(tmp_path: Path) -> None:
    loop = tmp_path / "loop.onnx"
    loop.symlink_to(loop)
    with pytest.raises(ModelError, match=r"loop\.onnx cannot be read"):
        OnnxModel.load(loop)


def test_operator_set_too_new() -> None:
    proto = relu()
    proto.opset_import[0].version = 999
    with pytest.raises(ModelError, match="operator set 999") as caught:
        OnnxModel.load(proto)
    assert f"1 to {onnx.defs.onnx_opset_version()}" in str(caught.value)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (helper.make_node("Relux", ["x"], ["y"], name="mine"),
         ["Relux node 'mine'", "domain ai.onnx", "operator set 17"]),
        (helper.make_node("Gelu", ["x"], ["y"]), ["Gelu node 'y'", "operator set 17"]),
        (helper.make_node("Foo", ["x"], ["y"], domain="my.own"),
         ["Foo node 'y'", "domain my.own", "not imported"]),
        (helper.make_node("Foo", ["x"], ["y"], domain="other"),
         ["Foo node 'y'", "domain other", "operator set 3"]),
    ],
)  # fmt: skip
def test_unknown_operator(node: onnx.NodeProto, words: list[str]) -> None:
    imports = [helper.make_opsetid("other", 3)]
    proto = model([node], [value("x", [1])], [value("y", [1])], imports=imports)
    with pytest.raises(UnsupportedOpError) as caught:
        OnnxModel.load(proto)
    for word in words:
        assert word in str(caught.value)


def test_cycle_and_duplicate_names() -> None:
    nodes = [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(ModelError, match=r"not valid ONNX: .*topologically sorted"):
        OnnxModel.load(model(nodes, [value("x", [1])], [value("b", [1])]))
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["y"])]
    with pytest.raises(ModelError, match="not valid ONNX"):
        OnnxModel.load(model(nodes, [value("x", [1])], [value("y", [1])]))


def test_sequences_are_refused_by_name() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [1]))
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    proto = model(
        [node], [helper.make_value_info("s", kind), value("i", [], I64)], [value("y", [1])]
    )
    with pytest.raises(UnsupportedOpError, match="'s' is a sequence"):
        OnnxModel.load(proto)


def test_nan_in_weights() -> None:
    bad = np.ones((4, 5), np.float32)
    bad[1, 2:4] = np.nan
    with pytest.raises(InputError, match="weight 'fc' holds NaN") as caught:
        OnnxModel.load(simple("MatMul", [1, 4], {"fc": bad}))
    assert "2 of 20 values" in str(caught.value)


# --- external weights ----------------------------------------------------------------------------


def external(tmp_path: Path, location: str, length: int = 80) -> Path:
    """A model whose weight claims to lie at `location`; weights.bin is really there."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"\0" * 16 + np.arange(20, dtype=np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(b"\0" * 200)
    proto = simple("MatMul", [1, 4], {"w": np.zeros((4, 5), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "16"), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_weights(tmp_path: Path) -> None:
    path = external(tmp_path, "weights.bin")
    graph = OnnxModel.load(path).specialise()
    np.testing.assert_array_equal(graph.constants["w"], np.arange(20).reshape(4, 5))
    with pytest.raises(ModelError, match="not given as a path"):
        OnnxModel.load(path.read_bytes())


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "sub/../../secret.bin", ""])
def test_external_weights_outside_the_folder(location: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="outside the model's folder"):
        OnnxModel.load(external(tmp_path, location))


def test_external_weights_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    path = external(tmp_path, "link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="outside the model's folder"):
        OnnxModel.load(path)


def test_external_weights_missing_or_short(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        OnnxModel.load(external(tmp_path, "none.bin"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ModelError, match="too short for the weight 'w'") as caught:
        OnnxModel.load(external(tmp_path / "b", "weights.bin", length=81))
    assert "80 of 81 bytes" in str(caught.value)


# --- shapes --------------------------------------------------------------------------------------


def two_inputs() -> OnnxModel:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    return OnnxModel.load(
        model([node], [value("a", ["N", "K"]), value("b", ["K", None])], [value("y", ["N", None])])
    )


def test_signature_and_binding() -> None:
    read = two_inputs()
    assert read.inputs == {"a": ("float32", ("N", "K")), "b": ("float32", ("K", None))}
    assert read.outputs == {"y": ("float32", ("N", None))}
    assert read.bind({"a": (2, 3), "b": (3, 7)}) == {"N": 2, "K": 3}
    assert read.specialise({"a": (2, 3), "b": (3, 7)}).shape("y") == (2, 7)


@pytest.mark.parametrize(
    ("shapes", "error", "words"),
    [
        ({"a": (2, 3), "b": (4, 7)}, ShapeError, "sets 'K' to 4, but 'a' sets it to 3"),
        ({"a": (2, 3, 1), "b": (3, 7)}, ShapeError, "has rank 3, not 2"),
        ({"a": (2, 3)}, InputError, "input 'b' is missing"),
        ({"a": (2, 3), "b": (3, 7), "c": (1,)}, InputError, "no input 'c'"),
    ],
)
def test_binding_errors(shapes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        two_inputs().specialise(shapes)
    assert words in str(caught.value)


def test_fixed_extent_and_default_shape() -> None:
    read = OnnxModel.load(simple("Relu", [2, 3]))
    assert read.specialise().types["y"] == TensorType("float32", (2, 3))
    with pytest.raises(ShapeError, match="has 4 at axis 1, not 3"):
        read.specialise({"x": (2, 4)})


def test_shapes_that_do_not_fit_an_operator_are_found_while_planning() -> None:
    read = OnnxModel.load(simple("Reshape", ["N", 3], {"to": np.array([2, 6])}))
    assert read.specialise({"x": (4, 3)}).shape("y") == (2, 6)
    with pytest.raises(ShapeError, match="Reshape node 'y' cannot be reshaped"):
        read.specialise({"x": (5, 3)})


def test_specialise_is_pure() -> None:
    read = OnnxModel.load(flattening())
    first = read.specialise({"x": (2, 3, 4, 4)})
    read.specialise({"x": (5, 3, 4, 4)})
    again = read.specialise({"x": (2, 3, 4, 4)})
    assert (again.nodes, again.types, list(again.constants)) == (
        first.nodes, first.types, list(first.constants))  # fmt: skip


# --- folding -------------------------------------------------------------------------------------


def flattening() -> onnx.ModelProto:
    """What exporters write for ``x.view(x.size(0), -1)``."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value=weight("", np.array(0))),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["r", "to"], ["y"]),
        helper.make_node("Size", ["r"], ["unused"]),
    ]
    weights = [weight("axes", np.array([0])), weight("rest", np.array([-1])),
               weight("spare", np.ones(9, np.float32))]  # fmt: skip
    return model(nodes, [value("x", ["N", 3, 4, 4])], [value("y", ["N", None])], weights)


def run(graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    return CpuExecutor(threads=1).compile(graph).run(feeds)


def by_ort(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, feeds))


def test_shape_arithmetic_is_folded() -> None:
    proto = flattening()
    graph = OnnxModel.load(proto).specialise({"x": (2, 3, 4, 4)})
    assert [n.op for n in graph.nodes] == ["Relu", "Reshape"]
    assert [n.op for n in graph.folded] == ["Shape", "Constant", "Gather", "Unsqueeze", "Concat"]
    assert set(graph.constants) == {"to"}
    assert graph.shape("y") == (2, 48)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], by_ort(proto, {"x": x})[0])


def test_resizing_to_half_the_input() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], start=2),
        helper.make_node("Div", ["s", "two"], ["half"]),
        helper.make_node("Shape", ["x"], ["head"], end=2),
        helper.make_node("Concat", ["head", "half"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    proto = model(nodes, [value("x", [1, 2, "H", "W"])], [value("y", [1, 2, None, None])],
                  [weight("two", np.array([2]))])  # fmt: skip
    graph = OnnxModel.load(proto).specialise({"x": (1, 2, 6, 8)})
    assert [n.op for n in graph.nodes] == ["Resize"]
    assert graph.shape("y") == (1, 2, 3, 4)
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], by_ort(proto, {"x": x})[0])


def test_random_operators_are_not_folded() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[3]),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    graph = OnnxModel.load(model(nodes, [value("x", [3])], [value("y", [3])])).specialise()
    assert [n.op for n in graph.nodes] == ["RandomNormal", "Add"]
    compiled = CpuExecutor(threads=1).compile(graph)
    a, b = (compiled.run({"x": np.zeros(3, np.float32)})["y"] for _ in range(2))
    assert not np.array_equal(a, b)


def test_large_results_are_not_folded() -> None:
    nodes = [
        helper.make_node("Expand", ["one", "size"], ["big"]),
        helper.make_node("ReduceSum", ["big"], ["sum"]),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    size = np.array([(64 << 20) // 4 + 1])
    weights = [weight("one", np.ones(1, np.float32)), weight("size", size)]
    proto = model(nodes, [value("x", [1])], [value("y", None)], weights)
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Expand", "ReduceSum", "Add"]
    assert not graph.folded


def test_everything_constant() -> None:
    node = helper.make_node("Add", ["a", "a"], ["y"])
    proto = model([node], [value("x", [1])], [value("y", [2])], [weight("a", np.ones(2, "f"))])
    graph = OnnxModel.load(proto).specialise()
    assert not graph.nodes
    found = run(graph, {"x": np.zeros(1, np.float32)})["y"]
    np.testing.assert_array_equal(found, [2, 2])
    assert found.flags.writeable


def conditional() -> onnx.ModelProto:
    """If with a branch that reads a weight and a value from outside."""

    def branch(op: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["r", "w"], [f"{op}_out"])
        return helper.make_graph([node], op, [], [value(f"{op}_out", ["N"])])

    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Sub")),
    ]
    weights = [weight("w", np.full(1, 5, np.float32))]
    inputs = [value("x", ["N"]), value("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", ["N"])], weights)


def test_subgraphs_keep_what_they_read() -> None:
    proto = conditional()
    graph = OnnxModel.load(proto).specialise({"x": (3,), "c": ()})
    assert [n.op for n in graph.nodes] == ["Relu", "If"]
    assert set(graph.constants) == {"w"}
    assert graph.shape("y") == (3,)
    for c in (True, False):
        feeds = {"x": np.array([-1, 2, 3], np.float32), "c": np.array(c)}
        np.testing.assert_array_equal(run(graph, feeds)["y"], by_ort(proto, feeds)[0])


def test_unknown_shapes_stay_unknown_and_still_run() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Neg", ["at"], ["y"])]
    proto = model(nodes, [value("x", [4])], [value("y", None, I64)])
    graph = OnnxModel.load(proto).specialise()
    assert "at" not in graph.types
    found = run(graph, {"x": np.array([0, 1, 0, 2], np.float32)})["y"]
    np.testing.assert_array_equal(found, [[-1, -3]])


def test_declared_shapes_are_believed_where_inference_ends() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]),
             helper.make_node("Cast", ["at"], ["f"], to=F32),
             helper.make_node("Relu", ["f"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("x", ["N"])], [value("y", [1, "N"])])
    proto.graph.value_info.append(value("f", [1, "N"]))
    graph = OnnxModel.load(proto).specialise({"x": (4,)})
    assert graph.types["f"] == graph.types["y"] == TensorType("float32", (1, 4))


def test_model_local_functions_are_expanded() -> None:
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], imports
    )
    proto = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="mine")],
        [value("x", [2])], [value("y", [2])],
        imports=[helper.make_opsetid("mine", 1)], functions=[function],
    )  # fmt: skip
    graph = OnnxModel.load(proto).specialise()
    assert [n.op for n in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(run(graph, {"x": np.ones(2, np.float32)})["y"], [2, 2])


def test_the_given_model_is_not_modified() -> None:
    proto = flattening()
    before = proto.SerializeToString()
    OnnxModel.load(proto).specialise({"x": (1, 3, 4, 4)})
    assert proto.SerializeToString() == before
