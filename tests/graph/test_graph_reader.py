"""Reading models: errors with clear words, symbols, folding."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import F32, I64, model, relu, simple, value

from gpuedge.core.errors import InputError, ModelError, ShapeError, UnsupportedOpError
from gpuedge.graph.ir import TensorType
from gpuedge.graph.reader import OnnxModel

# --- what cannot be read -------------------------------------------------------------------------


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"There is no model at .*nowhere\.onnx"):
        OnnxModel.load(tmp_path / "nowhere.onnx")
    for path in (tmp_path, "/dev/null", "a\0b", "x" * 5000):
        with pytest.raises(ModelError, match="cannot be read"):
            OnnxModel.load(path)


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


def test_weights_of_the_third_format_need_not_be_inputs() -> None:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    weights = [onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")]
    graph = helper.make_graph([node], "g", [value("x", [2])], [value("y", [2])], weights)
    opset = [helper.make_opsetid("", 9)]
    made = OnnxModel.load(helper.make_model(graph, opset_imports=opset, ir_version=3))
    assert list(made.inputs) == ["x"]


def test_sequences_are_refused_by_name() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [1]))
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    proto = model(
        [node], [helper.make_value_info("s", kind), value("i", [], I64)], [value("y", [1])]
    )
    with pytest.raises(UnsupportedOpError, match="'s' is a sequence"):
        OnnxModel.load(proto)
    proto.graph.input[0].type.CopyFrom(helper.make_optional_type_proto(kind))
    with pytest.raises(UnsupportedOpError, match="'s' is an optional;"):
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


def test_weight_of_an_element_type_that_does_not_exist() -> None:
    proto = simple("MatMul", [1, 4], {"w": np.zeros((4, 5), np.float32)})
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(ModelError, match="no element type 99") as caught:
        OnnxModel.load(proto)
    assert caught.value.asked_by == "the weight 'w'"
    assert caught.value.known and caught.value.hint


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


def test_a_shape_that_is_suggested_is_one_of_an_image() -> None:
    for dims, such in ((["n", 3, "h", "w"], (1, 3, 224, 224)), (["n", "k"], (1, 1))):
        with pytest.raises(InputError) as caught:
            OnnxModel.load(simple("Relu", dims)).specialise()
        assert caught.value.hint == f"shapes={ {'x': such} }"


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


def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelError, match="it is not a file"):
            OnnxModel.load(path)
