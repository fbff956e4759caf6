"""Bounds of values: measured, widened, and what a session makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from faulty import FaultyPool
from onnx import helper
from onnx_models import model, value, weight
from planrun import TEXTURES, PlanExecutor, plan_device

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    ConfigError,
    DriverError,
    InputError,
    NotFiniteError,
    ShapeError,
)
from gpuedge.core.record import plain, read
from gpuedge.decide import speeds
from gpuedge.decide.policy import Policy
from gpuedge.executors.base import Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.plan.storages import UNBOUNDED
from gpuedge.runtime.background import Background
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.ranges import Ranges, measure, union
from gpuedge.runtime.request import Request

RNG = np.random.default_rng(3)
W = RNG.standard_normal((4, 3)).astype(np.float32)
C = np.float32([10, -20, 30])
FIXED = Policy(storage="fixed16")


def gemm(dtype: str = "float32", rows: int = 2) -> Graph:
    b = GraphBuilder()
    x = b.input("x", TensorType(dtype, (rows, 4)))
    w, c = b.constant("w", W.astype(dtype)), b.constant("c", C.astype(dtype))
    b.output(b.add("Relu", [b.add("Gemm", [x, w, c])], output="y"))
    return b.build()


def feed(scale: float = 1.0, rows: int = 2, seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng(seed).uniform(-scale, scale, (rows, 4)).astype(np.float32)
    x.ravel()[:2] = -scale, scale
    return {"x": x}


def by_numpy(x: Array) -> Array:
    return np.maximum(x.astype(np.float64) @ W + C, 0)


# -- measuring ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
def test_every_value_is_measured(engine: Any) -> None:
    x = feed()["x"]
    found = measure([(gemm(), {"x": x})], CpuExecutor(engine=engine))
    assert found["x"] == (-1.0, 1.0)
    whole, y = x.astype(np.float64) @ W + C, by_numpy(x)
    (name,) = found.keys() - {"x", "y"}
    np.testing.assert_allclose(found[name], (whole.min(), whole.max()), rtol=1e-5)
    np.testing.assert_allclose(found["y"], (y.min(), y.max()), rtol=1e-5)


def test_runs_are_taken_together_whatever_their_shapes() -> None:
    cases = [(gemm(rows=r), feed(s, r, seed=r)) for r, s in ((1, 1.0), (3, 2.0))]
    found = measure(cases, CpuExecutor())
    assert found["x"] == (-2.0, 2.0)
    alone = [measure([case], CpuExecutor()) for case in cases]
    assert found["y"] == (min(a["y"][0] for a in alone), max(a["y"][1] for a in alone))


def test_float16_graphs_are_measured() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float16", (2, 2)))
    b.output(b.add("Mean", [x, x, x], output="y"))  # divides by a float32 once taken apart
    found = measure([(b.build(), {"x": np.float16([[1, 2], [3, -4]])})], CpuExecutor())
    assert (found["x"], found["y"]) == ((-4.0, 3.0), (-4.0, 3.0))


def test_values_that_are_not_finite_have_no_bounds() -> None:
    b = GraphBuilder()
    b.output(b.add("Log", [b.input("x", TensorType("float32", (3,)))], output="y"))
    found = measure([(b.build(), {"x": np.float32([0, 1, 2])})], CpuExecutor())
    assert found == {"x": (0.0, 2.0), "y": UNBOUNDED}


def test_union() -> None:
    assert union({"a": (0, 1), "b": (2, 3)}, {"a": (-1, 0.5), "c": (4, 4)}) == {
        "a": (-1, 1), "b": (2, 3), "c": (4, 4),
    }  # fmt: skip


def test_bounds_widen_and_return_to_what_calibration_gave() -> None:
    ranges = Ranges(gemm(), CpuExecutor(), {"x": (-1.0, 1.0), "y": (0.0, 40.0)})
    assert ranges.covers(feed()) and ranges.covers(feed(0.5))
    assert not ranges.covers(feed(1.5))
    assert ranges.covers({"x": np.full((2, 4), np.nan, np.float32)})  # refused elsewhere
    ranges.widen(feed(1.5))
    assert ranges.values["x"] == (-1.5, 1.5) and ranges.covers(feed(1.5))
    ranges.widen(feed(0.1))
    assert ranges.values["x"] == (-1.5, 1.5)
    ranges.reset()
    assert not ranges.covers(feed(1.5)) and ranges.values["y"] == (0.0, 40.0)


def test_what_the_cpu_cannot_measure_is_kept_exactly(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(CpuExecutor):
        def compile(self, segment: Graph) -> Any:
            raise InputError("The CPU is on fire.")

    ranges = Ranges(gemm(), Broken(), {})
    ranges.widen(feed())
    assert ranges.values == {"x": UNBOUNDED} and ranges.covers(feed(9))
    assert "The CPU is on fire" in caplog.text


# -- compiled -------------------------------------------------------------------------------------


def compiled_on(executor: PlanExecutor, policy: Policy = FIXED, **more: Any) -> CompiledModel:
    return CompiledModel(gemm(), Request("plan", policy, executor=executor), FaultyPool(), **more)


def test_first_inputs_calibrate_and_later_ones_may_widen() -> None:
    executor = PlanExecutor(TEXTURES)
    compiled = compiled_on(executor)
    plans = [1]
    for scale, seed in ((1.0, 0), (1.0, 1), (0.3, 2), (4.0, 3), (4.0, 4)):
        inputs = feed(scale, seed=seed)
        got = compiled.run(inputs)["y"]
        # 6 products of steps of the ranges of x, w and y
        assert np.abs(got - by_numpy(inputs["x"])).max() < 4e-3
        plans.append(len(executor.compiled))
    assert plans == [1, 2, 2, 2, 3, 3]
    assert {"rgba8_fixed16", "rgba8_float"} == executor.seen.storages
    assert executor.compiled[-1].ranges["x"] == (-4.0, 4.0)


def test_calibration_is_used_from_the_start() -> None:
    executor = PlanExecutor(TEXTURES)
    measured = measure([(gemm(), feed())], CpuExecutor())
    compiled = compiled_on(executor, calibrate=lambda: measured)
    compiled.run(feed(0.9))
    assert [k.ranges for k in executor.compiled] == [measured]
    compiled.run(feed(1.1))
    assert executor.compiled[-1].ranges["x"] == (float(np.float32(-1.1)), float(np.float32(1.1)))
    assert len(executor.compiled) == 2


@pytest.mark.parametrize("policy", [Policy(), Policy(storage="float16")])
def test_nothing_is_measured_where_nothing_needs_it(policy: Policy) -> None:
    executor = PlanExecutor(TEXTURES)
    compiled = compiled_on(executor, policy, calibrate=lambda: pytest.fail("measured"))
    compiled.run(feed(1))
    compiled.run(feed(5))
    assert len(executor.compiled) == 1
    assert executor.seen.storages == {"rgba8_float"}


@pytest.mark.parametrize("fallback", ["cpu", "error"])
def test_driver_that_refuses_wider_bounds_is_left_to_the_cpu_or_an_error(
    monkeypatch: pytest.MonkeyPatch, fallback: str
) -> None:
    executor = PlanExecutor(TEXTURES)
    request = Request("plan", FIXED, fallback, executor)
    compiled = CompiledModel(gemm(), request, FaultyPool())
    compiled.run(feed())
    monkeypatch.setattr(executor, "compile", Mock(side_effect=DriverError("Refused.")))
    wide = feed(4.0)
    if fallback == "error":
        for _ in range(2):  # nor does the CPU answer the next one
            with pytest.raises(DriverError, match="Refused"):
                compiled.run(wide)
        return
    wanted = CpuExecutor().compile(gemm()).run(wide)["y"]
    np.testing.assert_array_equal(compiled.run(wide)["y"], wanted)
    assert compiled.health().state == "demoted" and "Refused" in compiled.health().reason


def test_device_that_another_session_closes_while_bounds_widen_loses_nothing(
    auto: PlanPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = taken(Policy(min_speedup=1.0, storage="fixed16", monitor=False), auto)
    monkeypatch.setattr(auto.planned, "compile", Mock(side_effect=ClosedError("Closed.")))
    wide = feed(4.0)
    wanted = CpuExecutor().compile(gemm()).run(wide)["y"]
    np.testing.assert_array_equal(compiled.run(wide)["y"], wanted)
    compiled.close()


class PlanPool(FaultyPool):
    """A pool whose GPU is run by the interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.planned = PlanExecutor(TEXTURES)
        self.planned.device = "vulkan:0"

    def gpu(self, device: str, isolation: str = "inline") -> Executor:
        return self.planned


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlanPool:
    """A pool whose GPU ``auto`` takes and keeps: the CPU is slow on its clock."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(speeds, "predict", lambda *_: 100_000)
    monkeypatch.setattr(speeds, "startup_ns", lambda *_: 1_000_000)
    time_ns, whole = [0], CompiledModel.run_on_cpu

    def now_ns() -> int:
        time_ns[0] += 1_000
        return time_ns[0]

    def slow(self: CompiledModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
        time_ns[0] += 10_000_000
        return whole(self, inputs)

    monkeypatch.setattr("gpuedge.runtime.clock.now_ns", now_ns)
    monkeypatch.setattr(CompiledModel, "run_on_cpu", slow)
    return PlanPool()


def taken(policy: Policy, pool: PlanPool) -> CompiledModel:
    """Return a model that the GPU of the pool answers by now."""
    background = Background(share=0.0)
    compiled = CompiledModel(gemm(), Request("auto", policy), pool, background=background)
    for _ in range(200):
        compiled.run(feed())
        assert background.wait(30)
        if compiled.executor is pool.planned:
            return compiled
    raise AssertionError(str(compiled.decision))


BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("storage", ["float32", "fixed16"])
def test_auto_answers_what_the_device_cannot_keep_and_keeps_the_device(
    auto: PlanPool, storage: str, bad: float
) -> None:
    policy = Policy(min_speedup=1.0, storage=storage, monitor=False)
    compiled = taken(policy, auto)
    x = feed()["x"]
    x[0, 0] = bad
    wanted = CpuExecutor().compile(gemm()).run({"x": x})["y"]
    for _ in range(2):
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], wanted)
    assert compiled.decision.device == "vulkan:0" == compiled.executor.device
    before = auto.planned.seen.passes
    compiled.run(feed())
    assert auto.planned.seen.passes > before  # it still runs there
    compiled.close()
    compiled.close()


def test_named_device_refuses_what_it_cannot_keep() -> None:
    compiled = compiled_on(PlanExecutor(TEXTURES), Policy())
    with pytest.raises(NotFiniteError) as caught:
        compiled.run({"x": np.full((2, 4), np.inf, np.float32)})
    assert caught.value.code == "GE-205" and isinstance(caught.value, InputError)


def test_ranges_of_the_samples_that_auto_times_are_forgotten(auto: PlanPool) -> None:
    taken(Policy(min_speedup=1.0, storage="fixed16"), auto)
    seen = [kept.ranges.get("x") for kept in auto.planned.compiled]
    low = float(feed()["x"].min())
    assert seen[:2] == [None, (-1.0, 1.0)]  # of the samples
    assert seen[2] is not None and seen[2][0] == pytest.approx(low)


# -- sessions -------------------------------------------------------------------------------------


def open_model() -> Any:
    node = helper.make_node("Gemm", ["x", "w", "c"], ["p"])
    last = helper.make_node("Relu", ["p"], ["y"])
    return model(
        [node, last], [value("x", ["N", 4])], [value("y", ["N", 3])],
        [weight("w", W), weight("c", C)],
    )  # fmt: skip


def test_session_calibrates_with_inputs_of_other_shapes() -> None:
    device = plan_device(TEXTURES)
    feeds = [feed(1.0, 5, seed=8), feed(2.0, 1, seed=9)]
    policy = Policy(storage="fixed16", calibration=feeds)
    with gpuedge.Session(open_model(), device=device, policy=policy) as session:
        x = feeds[0]["x"][1:4]
        got = session.run({"x": x})["y"]
        assert np.abs(got - by_numpy(x)).max() < 4e-3
        executor = device.executor
        assert isinstance(executor, PlanExecutor)
        assert [k.ranges["x"] for k in executor.compiled] == [(-2.0, 2.0)]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ([{"y": 1}], InputError, "'x' is missing"),
        ([{"x": np.zeros((2, 5), np.float32)}], ShapeError, r"\[2, 5\]"),
    ],
)
def test_calibration_that_does_not_fit_the_model(bad: Any, error: type, words: str) -> None:
    policy = Policy(storage="fixed16", calibration=bad)
    with pytest.raises(error, match=words) as caught:
        gpuedge.Session(open_model(), device="cpu", policy=policy)
    assert "calibration" in str(caught.value)


# -- policy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["float64", None, 16, "FLOAT16"])
def test_storage_is_one_of_three(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"Policy\.storage cannot be") as caught:
        Policy(storage=bad)
    assert "float32, float16, fixed16" in str(caught.value.known)


@pytest.mark.parametrize("bad", [{}, [], "x", [1], {"x": np.zeros(3)}, np.zeros(3), 5])
def test_calibration_is_a_list_of_mappings(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"Policy\.calibration cannot be"):
        Policy(calibration=bad)


def test_calibration_is_neither_compared_nor_recorded() -> None:
    one, two = Policy(calibration=[feed()]), Policy()
    assert one == two and hash(one) == hash(two)
    assert plain(one) == plain(two)
    assert plain(two)["storage"] == "float32" and "calibration" not in plain(two)
    assert read(Policy, plain(FIXED)) == FIXED != two
