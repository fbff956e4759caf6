"""Sessions: what they take, what they refuse before any driver is touched, and their life."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuedge
from gpuedge.core.errors import (
    ConfigError,
    InputError,
    ModelError,
    UnknownDeviceError,
)

FLOAT = TensorProto.FLOAT


def model(weight: Any = None, shape: tuple[Any, ...] = ("N", 3)) -> onnx.ModelProto:
    w = np.eye(3, dtype=np.float32) * 2 if weight is None else weight
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node("Relu", ["m"], ["y"], name="relu"),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def session(**options: Any) -> gpuedge.Session:
    return gpuedge.Session(model(), device="cpu", **options)


X = np.array([[1, -2, 3]], np.float32)


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this file may get as far as a driver or a probe."""
    from gpuedge.runtime.devices import POOL

    monkeypatch.setattr(POOL, "report", lambda *_: pytest.fail("a driver would be touched"))


def test_model_as_path_bytes_and_proto_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    for given in (path, str(path), path.read_bytes(), model()):
        with gpuedge.Session(given, device="cpu") as s:
            np.testing.assert_array_equal(s.run({"x": X})["y"], [[2, 0, 6]])


def test_open_shapes_are_compiled_once_each_and_bounded() -> None:
    with session() as s:
        assert s.placement == ()
        for n in (1, 2, 1, 2, 3):
            s.run({"x": np.ones((n, 3), np.float32)})
        assert s.profile()["compile"]["count"] == 3
        for n in range(4, 20):
            s.run({"x": np.ones((n, 3), np.float32)})
        s.run({"x": np.ones((19, 3), np.float32)})
        assert s.profile()["compile"]["count"] == 19
        s.run({"x": np.ones((1, 3), np.float32)})  # dropped in the meantime
        assert s.profile()["compile"]["count"] == 20


def test_profile_says_which_shapes_are_kept_and_what_was_compiled_again() -> None:
    with session(policy=gpuedge.Policy(max_shapes=2)) as s:
        assert s.profile()["shapes"]["kept"] == []
        for n in (1, 2, 1, 3, 2, 2, 1):  # drops 2, then 1, then 3
            s.run({"x": np.ones((n, 3), np.float32)})
        said = s.profile()["shapes"]
        rows = [(row["inputs"], row["device"], row["memory"]) for row in said["kept"]]
        assert rows == [({"x": [2, 3]}, "cpu", None), ({"x": [1, 3]}, "cpu", None)]
        counts = [said[n] for n in ("most", "compiled", "dropped", "compiled_again")]
        assert counts == [2, 5, 3, 2]
        assert said["seconds"] > said["seconds_again"] > 0
        json.dumps(said)


def test_explain_before_the_first_run_says_what_to_do() -> None:
    with session() as s, pytest.raises(InputError, match="run the model once"):
        s.explain()


def test_fixed_shapes_are_decided_at_once() -> None:
    with gpuedge.Session(model(shape=(1, 3)), device="cpu") as s:
        assert s.explain().device == "cpu"
        assert [r.device for r in s.placement] == ["cpu", "cpu"]


def test_empty_batch() -> None:
    with session() as s:
        assert s.run({"x": np.ones((0, 3), np.float32)})["y"].shape == (0, 3)


@pytest.mark.parametrize(
    "x",
    [X[:, ::-1], np.asfortranarray(X), X.astype(">f4"), [[1, -2, 3]], np.broadcast_to(X, (4, 3))],
    ids=["reversed", "fortran", "big-endian", "list", "broadcast"],
)
def test_any_memory_order_is_right_and_left_alone(x: Any) -> None:
    before = np.array(x)
    if isinstance(x, np.ndarray):
        x.flags.writeable = False
    with session() as s:
        out = s.run({"x": x})["y"]
    np.testing.assert_array_equal(out, np.maximum(before.astype(np.float32) * 2, 0))
    np.testing.assert_array_equal(np.array(x), before)


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("vulcan", UnknownDeviceError),
        ("vulkan:x", UnknownDeviceError),
        ("vulkan:-1", UnknownDeviceError),
        ("", UnknownDeviceError),
        ("cpu:0", UnknownDeviceError),
        (3, UnknownDeviceError),
        ("gles40", UnknownDeviceError),
        ("null", UnknownDeviceError),
    ],
)
def test_bad_device_strings(device: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        gpuedge.Session(model(), device=device)
    assert "vulkan[:N]" in str(caught.value)


def test_bad_device_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_DEVICE", "vulcan")
    with pytest.raises(UnknownDeviceError, match="GPUEDGE_DEVICE"):
        gpuedge.Session(model())
    with gpuedge.Session(model(), device="cpu") as s:  # the argument wins
        s.run({"x": X})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUEDGE_FALLBACK", "gpu"),
        ("GPUEDGE_DEBUG", "9"),
        ("GPUEDGE_DEBUG", "yes"),
        ("GPUEDGE_ISOLATION", "thread"),
    ],
)
def test_unparsable_environment_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        session()


@pytest.mark.parametrize(
    "options",
    [{"fallback": "gpu"}, {"isolation": "thread"}, {"isolation": 1}, {"policy": 1.2}],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        session(**options)


def test_nan_in_weights_is_refused() -> None:
    weight = np.eye(3, dtype=np.float32)
    weight[1, 1] = np.nan
    with pytest.raises(InputError, match="'w' holds NaN"):
        gpuedge.Session(model(weight), device="cpu")


@pytest.mark.parametrize("data", [b"", b"not onnx", b"\x00" * 100], ids=["empty", "text", "zero"])
def test_not_a_model(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        gpuedge.Session(path, device="cpu")


def test_missing_model_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ModelError):
            gpuedge.Session(path, device="cpu")


def test_repr_names_device_and_signature() -> None:
    with session() as s:
        assert repr(s) == "<gpuedge.Session on 'cpu': x -> y>"
