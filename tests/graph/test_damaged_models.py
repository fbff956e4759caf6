"""Damaged and odd files: whatever is in them, only a GpuEdgeError comes out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from damaged_models import DIGITS, damage, flippable
from onnx import TensorProto, helper
from onnx_models import model, relu, value, weight

import gpuedge
from gpuedge.core.errors import ModelError

CASES = 150
"""Per model; each takes milliseconds."""


def windows() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", auto_pad="SAME_UPPER"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "to"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1, alpha=0.5),
    ]
    weights = [
        weight("w", rng.standard_normal((2, 1, 3, 3)).astype(np.float32)),
        weight("b", np.ones(2, np.float32)),
        weight("to", np.array([1, -1])),
        weight("v", np.ones((3, 8), np.float32)),
    ]
    return model(nodes, [value("x", [1, 1, 4, 4])], [value("y", [1, 3])], weights)


def arithmetic() -> onnx.ModelProto:
    """Shape arithmetic with open shapes: what folding and ONNX's inference see."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["e"], value=weight("", np.ones(1, "f"))),
        helper.make_node("Range", ["zero", "three", "one"], ["q"]),
        helper.make_node("Add", ["x", "e"], ["a"]),
        helper.make_node("Mul", ["a", "q"], ["m"]),
        helper.make_node("Clip", ["m", "", "three"], ["c"]),
        helper.make_node("Gelu", ["c"], ["y"], approximate="tanh"),
    ]
    weights = [weight(n, np.float32(i)) for n, i in (("zero", 0), ("one", 1), ("three", 3))]
    return model(nodes, [value("x", ["N", 3])], [value("y", ["N", 3])], weights, opset=20)


@pytest.mark.parametrize("name", ["windows", "arithmetic", "digits"])
def test_only_our_errors_come_out_of_damaged_models(name: str, tmp_path: Path) -> None:
    path = DIGITS
    if name != "digits":
        path = tmp_path / "m.onnx"
        onnx.save({"windows": windows, "arithmetic": arithmetic}[name](), path)
    # A child, so that a crash or a hang inside ONNX Runtime fails one case and not the suite.
    script = Path(__file__).with_name("damaged_models.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(path), "0", str(CASES)],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"case {lines[-1] if lines else None}: {done.stderr[-2000:]}"
    assert [int(line[0]) for line in lines] == list(range(CASES))
    found = Counter(line[1] for line in lines)
    assert found["ModelError"] > CASES // 3, found  # it is damage that is being tested
    assert found["ran"] > 0, found


def test_the_damage_is_real_and_repeatable() -> None:
    data = DIGITS.read_bytes()
    places = flippable(data)
    assert 100 < len(places) < len(data)
    for seed in range(12):
        damaged = damage(data, places, seed)
        assert damaged != data
        assert damaged == damage(data, places, seed)


def spoil(message: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new) and message.count(old)
    return message.replace(old, new)


@pytest.mark.parametrize(
    ("old", "field"),
    [(b"Relu", "op_type"), (b"the node", "name"), (b"the_x", "input"), (b"test", "name"),
     (b"maker", "producer_name")],
)  # fmt: skip
def test_names_that_are_no_text(old: bytes, field: str) -> None:
    node = helper.make_node("Relu", ["the_x"], ["y"], "the node")
    proto = model([node], [value("the_x", [2])], [value("y", [2])], producer_name="maker")
    data = spoil(proto.SerializeToString(), old, b"\xff" + old[1:])
    with pytest.raises(ModelError, match=r"damaged: an? \w+ in it is not text") as caught:
        gpuedge.Session(data, device="cpu")
    assert "\\xff" in str(caught.value)
    assert f".{field} = " in str(caught.value)


def test_an_attribute_that_is_no_text_is_a_model_error() -> None:
    node = helper.make_node("Gelu", ["x"], ["y"], approximate=b"\xff\xfe")
    proto = model([node], [value("x", [2])], [value("y", [2])], opset=20)
    with (
        pytest.raises(ModelError),
        gpuedge.Session(proto, device="cpu") as session,
    ):
        session.run({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("where", ["input", "weight"])
def test_element_types_that_do_not_exist(where: str) -> None:
    proto = relu()
    if where == "input":
        proto.graph.input[0].type.tensor_type.elem_type = 77
    else:
        proto.graph.initializer.append(TensorProto(name="w", dims=[1], data_type=77))
        proto.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(ModelError):
        gpuedge.Session(proto, device="cpu")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000], ids=["nul", "long"])
def test_paths_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        gpuedge.Session(name, device="cpu")


@pytest.mark.parametrize(
    "entries",
    [{"location": "a\0b"}, {"location": "w.bin", "length": str(2**62)},
     {"location": "w.bin", "length": str(2**80)}, {"location": "w.bin", "offset": "-8"},
     {"location": "w.bin", "offset": str(2**80)}, {"location": "w.bin", "length": "many"}],
    ids=["nul", "long", "longer", "before", "far", "word"],
)  # fmt: skip
def test_external_weights_with_odd_places(entries: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    proto = model([node], [value("x", [4])], [value("y", [4])], [tensor])
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"[Tt]he weight 'w'"):
        gpuedge.Session(path, device="cpu")
