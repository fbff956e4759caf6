"""Placing and falling back, on a null device that fails where it is told to."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
from runtime_fakes import FakePool, refuse_operators

from gpuedge.backends.null import Failure
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    GpuEdgeError,
    InputError,
    KernelLimitError,
    NoUsableDeviceError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.decide.policy import Policy
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import RetryLimits
from gpuedge.runtime.request import Request

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
LOST = DeviceLostError("The device was lost.")


def graph(*ops: str) -> Graph:
    builder = GraphBuilder()
    value = builder.input("x", TensorType("float32", (2, 3)))
    for op in ops:
        value = builder.add(op, [value])
    builder.output(value)
    return builder.build()


def result(compiled: CompiledModel) -> np.ndarray:
    return next(iter(compiled.run({"x": X}).values()))


def test_named_device_runs_everything_there() -> None:
    pool = FakePool()
    compiled = CompiledModel(graph("Relu", "Exp"), Request("vulkan"), pool)
    assert [r.device for r in compiled.rows] == ["vulkan:0"]
    assert compiled.decision.device == "vulkan:0"
    result(compiled)
    assert pool.devices[0].counters.submits == 1


def test_named_cpu_probes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool()
    monkeypatch.setattr(pool, "report", lambda: pytest.fail("probed"))
    compiled = CompiledModel(graph("Relu"), Request("cpu"), pool)
    np.testing.assert_array_equal(result(compiled), np.maximum(X, 0))
    assert pool.devices == []


@pytest.mark.parametrize("method", ["submit", "wait", "read", "write"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LOST, "recovering"),
        (OutOfMemoryError("No memory."), "out-of-memory"),
        (DeviceTimeoutError("Too slow."), "recovering"),
        (DriverError("No."), "recovering"),
    ],
    ids=["lost", "oom", "timeout", "refused"],
)
def test_failure_while_running_is_answered_by_the_cpu(
    method: str, error: GpuEdgeError, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = FakePool({method: error}, limits=RetryLimits(pauses_s=(60.0,)))
    compiled = CompiledModel(graph("Relu"), Request("vulkan"), pool)
    with caplog.at_level(logging.WARNING, "gpuedge"):
        for _ in range(3):
            np.testing.assert_array_equal(result(compiled), np.maximum(X, 0))
    assert compiled.decision.device == "cpu"
    assert compiled.rows[0].device == "cpu"
    times = 3 if code == "out-of-memory" else 1
    assert len(caplog.records) == times and error.what.rstrip(".") in caplog.text
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert (row.status, row.code) == ("rejected", code)
    assert error.what.rstrip(".") in row.reason
    hung_or_kept = isinstance(error, (DeviceTimeoutError, OutOfMemoryError))
    end = time.monotonic() + 60
    while not pool.devices[0].is_closed and not hung_or_kept and time.monotonic() < end:
        time.sleep(0.002)
    assert pool.devices[0].is_closed is not hung_or_kept
    pool.close()


def test_failure_with_fallback_error_is_raised_and_nothing_else_happens() -> None:
    pool = FakePool({"submit": LOST})
    compiled = CompiledModel(graph("Relu"), Request("vulkan", fallback="error"), pool)
    with pytest.raises(DeviceLostError):
        result(compiled)
    assert compiled.decision.device == "vulkan:0"


def test_a_lost_device_that_was_named_is_opened_anew_by_the_next_call() -> None:
    pool = FakePool({"submit": [LOST]})
    request = Request("vulkan", Policy(crosscheck=0.0), "error")  # a null device computes nothing
    compiled = CompiledModel(graph("Relu"), request, pool)
    pool.fail = {}
    with pytest.raises(DeviceLostError):
        result(compiled)
    result(compiled)
    assert pool.devices[0].is_closed
    assert len(pool.devices) == 2
    assert pool.devices[1].counters.submits == 1


@pytest.mark.parametrize("method", ["alloc", "build", "record"])
def test_failure_while_compiling_falls_back(method: str) -> None:
    pool = FakePool({method: DriverError("The driver refused.")})
    compiled = CompiledModel(graph("Relu"), Request("vulkan"), pool)
    np.testing.assert_array_equal(result(compiled), np.maximum(X, 0))
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "compile-failed"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DriverError("Refused."), "compile-failed", "device failed while compiling: Refused"),
        (OutOfMemoryError("Full."), "out-of-memory", "the driver ran out of memory: Full"),
        (LOST, "device-lost", "the driver lost the device"),
        (
            DeviceLostError("Gone.", known="SIGSEGV while compiling", reason="worker-died"),
            "worker-died",
            "process that the driver lives in ended: SIGSEGV while compiling",
        ),
    ],
    ids=["refused", "oom", "lost", "died"],
)
def test_failure_while_compiling_is_counted(error: GpuEdgeError, code: str, words: str) -> None:
    pool = FakePool({"build": error}, limits=RetryLimits(pauses_s=(60.0,)))
    health = CompiledModel(graph("Relu"), Request("vulkan"), pool).health()
    assert (health.failed, [f.code for f in health.failures]) == (1, [code])
    assert words in health.reason
    assert (health.on_device, health.on_cpu, health.p50_s) == (0, 0, None)
    pool.close()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KernelLimitError("It needs 99 tensors."), "does-not-fit", "needs more than the device"),
        (UnsupportedOpError("Relu has no kernel."), "does-not-fit", "offers: Relu has no kernel"),
    ],
)
def test_what_a_device_cannot_hold_is_no_failure_of_it(
    error: GpuEdgeError, code: str, words: str
) -> None:
    pool = FakePool({"build": error})
    compiled = CompiledModel(graph("Relu"), Request("vulkan"), pool)
    np.testing.assert_array_equal(result(compiled), np.maximum(X, 0))
    health = compiled.health()
    assert (health.state, health.failed, health.failures) == ("cpu", 0, ())
    assert words in health.reason and "failed" not in health.reason
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == code and "failed" not in compiled.decision.reason
    assert pool.device("vulkan:0").state.is_ok
    pool.close()


def test_failure_while_compiling_frees_what_was_made() -> None:
    pool = FakePool({"record": DriverError("The driver refused.")})
    CompiledModel(graph("Relu"), Request("vulkan"), pool)
    calls = [c.method for c in pool.devices[0].calls]
    assert calls.count("alloc") == calls.count("free") > 0
    assert calls.count("build") == calls.count("release")


def test_failure_of_a_later_kernel_releases_the_earlier_ones() -> None:
    pool = FakePool({"build": [None, DriverError("The driver refused.")]})
    compiled = CompiledModel(graph("Softmax"), Request("vulkan"), pool)
    assert compiled.decision.device == "cpu"
    calls = [c.method for c in pool.devices[0].calls]
    assert (calls.count("build"), calls.count("release")) == (2, 1)


def test_refused_variant_is_planned_again_without_it() -> None:
    builder = GraphBuilder()
    a = builder.input("a", TensorType("float32", (8, 8)))
    b = builder.input("b", TensorType("float32", (8, 8)))
    builder.output(builder.add("MatMul", [a, b]))
    first: list[Failure | None] = [DriverError("This kernel does not compile.")]
    pool = FakePool({"build": first})
    compiled = CompiledModel(builder.build(), Request("vulkan"), pool)
    assert compiled.rows[0].kernel == "matmul_map"
    assert compiled.decision.device == "vulkan:0"


def test_operator_without_kernel_runs_on_the_cpu_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_operators(monkeypatch, "ThresholdedRelu")
    pool = FakePool()
    compiled = CompiledModel(graph("Relu", "ThresholdedRelu", "Exp"), Request("vulkan"), pool)
    assert [r.device for r in compiled.rows] == ["vulkan:0", "cpu", "vulkan:0"]
    (why,) = compiled.refusals.values()
    assert "ThresholdedRelu" in why


def test_operator_without_kernel_with_fallback_error_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_operators(monkeypatch, "ThresholdedRelu")
    with pytest.raises(UnsupportedOpError, match="ThresholdedRelu"):
        CompiledModel(graph("ThresholdedRelu"), Request("vulkan", fallback="error"), FakePool())


@pytest.mark.parametrize(
    ("device", "words"),
    [("vulkan:1", "Liar: the numbers are wrong"), ("vulkan:7", "vulkan:0 (Fake GPU)")],
)
def test_named_device_that_does_not_work_is_an_error(device: str, words: str) -> None:
    with pytest.raises(NoUsableDeviceError) as caught:
        CompiledModel(graph("Relu"), Request(device), FakePool())
    assert words in str(caught.value)


def test_auto_without_usable_gpu_is_the_cpu() -> None:
    compiled = CompiledModel(graph("Relu"), Request("auto"), FakePool(usable=False))
    assert compiled.decision.device == "cpu"
    assert "wrong" in str(compiled.decision)


def test_auto_leaves_software_rasterisers_aside_without_opening_them() -> None:
    pool = FakePool(is_software=True)
    compiled = CompiledModel(graph("Relu"), Request("auto"), pool)
    assert compiled.decision.device == "cpu" and pool.devices == []
    row = next(r for r in compiled.decision.rows if r.device == "vulkan:0")
    assert row.code == "software"


def test_device_closed_by_another_session_is_opened_again() -> None:
    pool = FakePool()
    first = CompiledModel(graph("Relu"), Request("vulkan"), pool)
    second = CompiledModel(graph("Exp"), Request("vulkan"), pool)
    pool.drop(first.executor)
    result(second)
    assert len(pool.devices) == 2
    assert pool.devices[1].counters.submits == 1


def test_outputs_never_alias_inputs_or_constants() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType("float32", (2, 3)))
    builder.output(x)
    compiled = CompiledModel(builder.build(), Request("cpu"), FakePool())
    out = compiled.run({"x": X})["x"]
    assert not np.shares_memory(out, X)
    np.testing.assert_array_equal(out, X)


def test_close_twice_and_after_the_device() -> None:
    pool = FakePool()
    compiled = CompiledModel(graph("Relu"), Request("vulkan"), pool)
    pool.close()
    compiled.close()
    compiled.close()


def test_error_of_a_cpu_segment_is_not_blamed_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_operators(monkeypatch, "Gather")
    types = {
        "x": TensorType("float32", (4,)),
        "i": TensorType("int64", (2,)),
        "g": TensorType("float32", (2,)),
        "y": TensorType("float32", (2,)),
    }
    nodes = (
        Node("Gather", ("x", "i"), ("g",), name="pick"),
        Node("Relu", ("g",), ("y",), name="relu"),
    )
    whole = Graph(nodes, ("x", "i"), ("y",), types, {}, {"": 17})
    pool = FakePool()
    request = Request("vulkan", Policy(crosscheck=0.0))  # a null device computes nothing
    compiled = CompiledModel(whole, request, pool)
    x = np.arange(4, dtype=np.float32)
    with pytest.raises(InputError, match=r"pick|out of"):
        compiled.run({"x": x, "i": np.array([0, 9])})
    compiled.run({"x": x, "i": np.array([0, 3])})
    assert compiled.decision.device == "vulkan:0" and len(pool.devices) == 1
    assert [r.device for r in compiled.rows] == ["cpu", "vulkan:0"]
