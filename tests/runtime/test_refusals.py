"""What a device cannot run is told once and listed whole; what a model takes is shown."""

from __future__ import annotations

import logging
import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_models import model, value, weight
from planrun import plan_device

import gpuedge
from gpuedge.core.errors import DTypeError, GpuEdgeError, InputError, ShapeError, UnsupportedOpError
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel

F64 = onnx.TensorProto.DOUBLE
OTHER, DOMAIN = "Binarizer", "ai.onnx.ml"
OFFENDERS = {
    "where": f"{OTHER} 'where' (opset {DOMAIN} 1, reads float32[2,4,6,6]): {OTHER} has no kernel",
    "double": "Cast 'double' (opset 17, reads float32[2,4,6,6]): 'd' is float64; ",
    "exp64": "Exp 'exp64' (opset 17, reads float64[2,4,6,6]): 'd' is float64; ",
    "gelu": "Gelu 'gelu' (opset com.microsoft 1, reads float32[2,4,6,6]): Gelu has no kernel",
    "drop": "Dropout 'drop' (opset 17, reads ?): the shape of 'g' is not known before running",
}


def mixed() -> onnx.ModelProto:
    """Nodes for a kernel, and ones of every kind of offence; one result has no known type."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Relu", ["c"], ["r"], name="relu"),
        node(OTHER, ["r"], ["nz"], name="where", domain=DOMAIN),
        node("Cast", ["r"], ["d"], name="double", to=F64),
        node("Exp", ["d"], ["e"], name="exp64"),
        node("Gelu", ["r"], ["g"], name="gelu", domain="com.microsoft"),
        node("Dropout", ["g"], ["y"], name="drop"),
    ]
    outputs = [value("y", None), value("e", None, F64), value("nz", None)]
    held = [weight("w", np.linspace(-1, 1, 108).reshape(4, 3, 3, 3).astype(np.float32))]
    imports = [helper.make_opsetid(name, 1) for name in ("com.microsoft", DOMAIN)]
    return model(nodes, [value("x", ["N", 3, 8, 8])], outputs, held, imports=imports)


def x(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)


def test_what_moves_to_the_cpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuedge")
    with gpuedge.Session(mixed(), device=plan_device()) as session:
        for batch in (2, 2, 3):
            session.run({"x": x(batch)})
        assert set(session.refusals) == set(OFFENDERS)
    lines = [r.getMessage() for r in caplog.records if "runs on the CPU" in r.getMessage()]
    assert all(r.levelno == logging.INFO for r in caplog.records if r.getMessage() in lines)
    assert [line.split("'")[1] for line in lines] == list(OFFENDERS)
    assert lines[0] == f"{OTHER} node 'where' runs on the CPU, not on plan: {OTHER} has no kernel"


def test_one_error_lists_all_offenders() -> None:
    many = [
        helper.make_node(OTHER, ["x"], [f"y{i}"], name=f"n{i}", domain=DOMAIN) for i in range(40)
    ]
    wide = model(many, [value("x", [2, 2])], [value(f"y{i}", None) for i in range(40)],
                 imports=[helper.make_opsetid(DOMAIN, 1)])  # fmt: skip
    with gpuedge.Session(mixed(), device=plan_device(), fallback="error") as session:
        with pytest.raises(UnsupportedOpError) as caught:
            session.run({"x": x(2)})
        message = str(caught.value)
        for line in OFFENDERS.values():
            assert line in message
        assert "cannot run on plan" in message and "conv" not in caught.value.what
    with pytest.raises(UnsupportedOpError) as caught:
        gpuedge.Session(wide, device=plan_device(), fallback="error")
    assert "and 32 nodes more" in caught.value.what
    assert all(f"'n{i}' (" in str(caught.value) for i in range(40))


def test_numpy_alone_lists_all_that_it_does_not_know() -> None:
    graph = OnnxModel.load(mixed()).specialise({"x": (2, 3, 8, 8)})
    with pytest.raises(UnsupportedOpError, match="computed by numpy") as caught:
        CpuExecutor(engine="numpy").compile(graph)
    assert "'where'" in str(caught.value) and "'gelu'" in str(caught.value)


def test_all_operators_that_do_not_exist_are_listed() -> None:
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"]), node("Mish", ["a"], ["b"], name="late"),
        node("Nothing", ["b"], ["c"], name="never"), node("Odd", ["c"], ["y"], "odd", domain="me"),
    ]  # fmt: skip
    proto = model(nodes, [value("x", [1])], [value("y", [1])])
    with pytest.raises(UnsupportedOpError) as caught:
        gpuedge.Session(proto)
    message = str(caught.value)
    assert all(name in message for name in ("'late'", "'never'", "'odd'"))
    assert "operator set 17" in message and "'Relu" not in message


@pytest.mark.parametrize(
    ("inputs", "kind", "what"),
    [
        ({"y": x(1), "z": x(1)}, InputError, "'x' is missing; the model has no input 'y'; the"),
        ({"x": x(1).astype(np.float64)}, DTypeError, "float64"),
        ({"x": x(1)[:, :2]}, ShapeError, "[1, 2, 8, 8]"),
        ({"x": x(1)[0]}, ShapeError, "[3, 8, 8]"),
        (x(1), InputError, "by name"),
    ],
)
def test_the_signature_is_shown_where_inputs_differ(
    inputs: object, kind: type[GpuEdgeError], what: str
) -> None:
    with (
        gpuedge.Session(mixed(), device="cpu") as session,
        pytest.raises(kind) as caught,
    ):
        session.run(inputs)  # type: ignore[arg-type]
    assert what in caught.value.what
    assert caught.value.known == "the model takes x: float32 [N, 3, 8, 8]"


def test_results_of_unknown_type_are_compared_as_well() -> None:
    policy = gpuedge.Policy(crosscheck=1.0)
    proto, feed = mixed(), {"x": x(2)}
    oracle = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with gpuedge.Session(proto, device=plan_device(), policy=policy) as session:
        found = session.run(feed)
        assert session.health.on_cpu == 0
    for name, array in zip(("y", "e", "nz"), oracle.run(["y", "e", "nz"], feed), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_product_after_an_operator_that_only_onnxruntime_knows() -> None:
    """No type is known of what the product reads, so nothing is known of its size either."""
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Gemm", ["g", "w"], ["y"]),
    ]
    imports = [helper.make_opsetid("com.microsoft", 1)]
    proto = model(nodes, [value("x", [2, 4])], [value("y", [2, 4])],
                  [weight("w", np.ones((4, 4), np.float32))], imports=imports)  # fmt: skip
    ones = np.ones((2, 4), np.float32)
    with gpuedge.Session(proto, device=plan_device()) as session:
        wanted = 4 * 0.5 * (1 + math.erf(math.sqrt(0.5)))
        np.testing.assert_allclose(session.run({"x": ones})["y"], wanted, rtol=1e-6)
