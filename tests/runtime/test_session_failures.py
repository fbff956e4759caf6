"""A device that fails while it compiles for a session or serves one: who answers, what is told.

How it comes back is in `test_session_recovery`; what hangs, in `test_session_hangs`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
from faulty import (
    DIED,
    EXHAUSTED,
    GPU,
    HUNG,
    LOST,
    NEVER,
    PLAIN,
    REFUSED,
    TRACE,
    FaultyDevice,
    FaultyPool,
    X,
    answer,
    refuse_operators,
    row_of,
    session,
    until,
)
from onnx import helper
from onnx_models import I64, model, value

import gpuedge
from gpuedge.core.errors import (
    DeviceError,
    DeviceLostError,
    DriverError,
    GpuEdgeError,
    InputError,
    KernelLimitError,
    NoUsableDeviceError,
    UnsupportedOpError,
)
from gpuedge.decide.policy import Policy
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.runtime.health import Health

Take = Callable[[FaultyPool], FaultyPool]

CHAIN = ("Neg", "Abs", "Neg", "Abs", "Neg")
"""With Abs refused: three segments on the device and two on the CPU between them."""


@pytest.fixture
def no_abs(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_operators(monkeypatch, "Abs")


# -- in a request ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_abs")
@pytest.mark.parametrize("fails_at", [0, 1, 2])
@pytest.mark.parametrize("error", [LOST, HUNG, EXHAUSTED, REFUSED, DIED], ids=lambda e: e.code)
def test_request_is_finished_on_the_cpu_segment_by_segment(
    take: Take, fails_at: int, error: DeviceError
) -> None:
    pool = take(FaultyPool([*[None] * fails_at, error], limits=NEVER))
    with session(*CHAIN) as s:
        devices = [r.device for r in s.placement]
        assert devices == [GPU, "cpu", GPU, "cpu", GPU]
        found, wanted = answer(s), X
        for i, device in enumerate(devices):  # what the device gave before carries its trace
            wanted = -wanted if device == GPU else np.abs(wanted)
            if device == GPU and i // 2 < fails_at:
                wanted = wanted * TRACE
        np.testing.assert_array_equal(found, wanted)
        assert pool.devices[0].runs == fails_at + 1  # nothing was tried again, nothing after it
        health = s.health
        assert (health.on_device, health.on_cpu, health.failed) == (0, 1, 1)


@pytest.mark.usefixtures("no_abs")
def test_while_the_device_is_away_the_cpu_answers_and_the_session_says_so(take: Take) -> None:
    pool = take(FaultyPool([LOST], limits=NEVER))
    with session(*CHAIN) as s:
        for seed in range(5):
            x = np.random.default_rng(seed).normal(size=X.shape).astype(np.float32)
            before = x.copy()
            np.testing.assert_array_equal(answer(s, x), -np.abs(x))
            np.testing.assert_array_equal(x, before)
        assert pool.devices[0].runs == 1
        health = s.health
        assert (health.state, health.device) == ("recovering", GPU)
        assert "device was lost" in health.reason and "recovering" in str(health)
        assert (row_of(s).status, row_of(s).code) == ("rejected", "recovering")
        assert s.explain().device == "cpu"
        assert {r.device for r in s.placement} == {"cpu"}


@pytest.mark.parametrize("method", ["submit", "wait", "read", "write"])
@pytest.mark.parametrize(
    ("error", "code"),
    [(LOST, "recovering"), (EXHAUSTED, "out-of-memory"), (HUNG, "recovering"),
     (REFUSED, "recovering")],
    ids=["lost", "oom", "timeout", "refused"],
)  # fmt: skip
def test_failure_of_any_call_is_answered_by_the_cpu_and_told(
    take: Take, method: str, error: GpuEdgeError, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = take(FaultyPool(fail={method: error}, limits=NEVER))
    said = error.what.rstrip(".")
    with session() as s:
        with caplog.at_level(logging.WARNING, "gpuedge"):
            for _ in range(3):
                np.testing.assert_array_equal(answer(s), -X)
        assert s.explain().device == s.placement[0].device == "cpu"
        assert len(caplog.records) == (3 if error is EXHAUSTED else 1) and said in caplog.text
        assert (row_of(s).status, row_of(s).code) == ("rejected", code)
        assert said in row_of(s).reason
        if error in (HUNG, EXHAUSTED):  # closing what hangs would hang; others may have memory
            assert not pool.devices[0].is_closed
        else:
            until(lambda: pool.devices[0].is_closed)
        pool.close()


def test_exhausted_device_is_kept_twice_and_left_at_the_third_in_a_row(take: Take) -> None:
    pool = take(FaultyPool([EXHAUSTED, EXHAUSTED, None, EXHAUSTED, EXHAUSTED, EXHAUSTED]))
    with session() as s:
        for factor in (1, 1, TRACE, 1, 1):
            np.testing.assert_array_equal(answer(s), -X * np.float32(factor))
            assert s.health.state == "ok"
        np.testing.assert_array_equal(answer(s), -X)
        assert (s.health.state, s.health.failed) == ("demoted", 5)
        assert row_of(s).code == "out-of-memory"
        assert len(pool.devices) == 1 and not pool.devices[0].is_closed


def test_device_of_the_caller_is_left_for_good_and_not_closed(take: Take) -> None:
    take(FaultyPool())
    mine = FaultyDevice([LOST])
    with session(device=gpuedge.Device(GpuExecutor(mine, GPU), "mine")) as s:
        for _ in range(2):
            np.testing.assert_array_equal(answer(s), -X)
        assert not mine.is_closed and mine.runs == 1
        assert s.health.state == "demoted"


def test_each_isolation_has_its_own_device_and_standing(take: Take) -> None:
    pool = take(FaultyPool([LOST], limits=NEVER))
    with session() as inline, session(isolation="process") as hosted:
        assert len(pool.devices) == 2
        answer(inline)
        np.testing.assert_array_equal(answer(hosted), -X * TRACE)
        assert inline.health.state == "recovering"
        assert (hosted.health.state, hosted.health.isolation) == ("ok", "process")


def test_error_of_a_cpu_segment_is_not_blamed_on_the_gpu(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_operators(monkeypatch, "Gather")
    pool = take(FaultyPool())
    nodes = [helper.make_node("Gather", ["x", "i"], ["g"], name="pick"),
             helper.make_node("Neg", ["g"], ["y"])]  # fmt: skip
    proto = model(nodes, [value("x", [4]), value("i", [2], I64)], [value("y", [2])])
    x = np.arange(4, dtype=np.float32)
    with gpuedge.Session(proto, device=GPU, policy=PLAIN) as s:
        with pytest.raises(InputError, match=r"pick|out of"):
            s.run({"x": x, "i": np.array([0, 9])})
        found = s.run({"x": x, "i": np.array([0, 3])})["y"]
        np.testing.assert_array_equal(found, [0, -3 * TRACE])
        assert s.explain().device == GPU and len(pool.devices) == 1
        assert [r.device for r in s.placement] == ["cpu", GPU]


# -- while compiling and opening ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "error", "code", "words"),
    [
        ("alloc", REFUSED, "compile-failed", "The driver refused"),
        ("record", REFUSED, "compile-failed", "The driver refused"),
        ("build", REFUSED, "compile-failed", "device failed while compiling: The driver refused"),
        ("build", EXHAUSTED, "out-of-memory", "there was not enough memory: No memory"),
        ("build", LOST, "device-lost", "the driver lost the device"),
        ("build", DeviceLostError("Gone.", known="SIGSEGV while compiling", reason="worker-died"),
         "worker-died", "process that the driver lives in ended: SIGSEGV while compiling"),
    ],
)  # fmt: skip
def test_failure_while_compiling_is_counted_and_the_cpu_answers(
    take: Take, method: str, error: GpuEdgeError, code: str, words: str
) -> None:
    pool = take(FaultyPool(fail={method: error}, limits=NEVER))
    with session() as s:
        health = s.health
        assert (health.failed, [f.code for f in health.failures]) == (1, [code])
        assert words in health.reason
        assert (health.on_device, health.on_cpu, health.p50_s) == (0, 0, None)
        np.testing.assert_array_equal(answer(s), -X)
        is_gone = isinstance(error, DeviceLostError)
        assert row_of(s).code == ("recovering" if is_gone else "compile-failed")
    assert pool.devices[0].count("alloc") == pool.devices[0].count("free") or method == "alloc"
    pool.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [(KernelLimitError("It needs 99 tensors."), "needs more than the device"),
     (UnsupportedOpError("Neg has no kernel."), "offers: Neg has no kernel")],
)  # fmt: skip
def test_what_a_device_cannot_hold_is_no_failure_of_it(
    take: Take, error: GpuEdgeError, words: str
) -> None:
    pool = take(FaultyPool(fail={"build": error}))
    with session() as s:
        np.testing.assert_array_equal(answer(s), -X)
        health = s.health
        assert (health.state, health.failed, health.failures) == ("cpu", 0, ())
        assert words in health.reason and "failed" not in health.reason
        assert row_of(s).code == "does-not-fit" and "failed" not in s.explain().reason
        assert pool.device(GPU).state.is_ok
    pool.close()


@pytest.mark.parametrize(
    ("fail", "op", "counts"),
    [({"record": REFUSED}, "Neg", (1, 1)), ({"build": [None, REFUSED]}, "Softmax", (2, 1))],
    ids=["recording", "second kernel"],
)
def test_failure_while_compiling_releases_what_was_made(
    take: Take, fail: dict[str, object], op: str, counts: tuple[int, int]
) -> None:
    pool = take(FaultyPool(fail=fail))  # type: ignore[arg-type]
    with session(op) as s:
        assert s.explain().device == "cpu"
        (device,) = pool.devices
        assert device.count("alloc") == device.count("free")
        assert (device.count("build"), device.count("release")) == counts


def test_refused_variant_is_planned_again_without_it(take: Take) -> None:
    take(FaultyPool(fail={"build": [DriverError("This kernel does not compile.")]}))
    ends = [value("a", [8, 8]), value("b", [8, 8])], [value("y", [8, 8])]
    proto = model([helper.make_node("MatMul", ["a", "b"], ["y"])], *ends)
    with gpuedge.Session(proto, device=GPU) as s:
        assert s.placement[0].kernel == "matmul_map"
        assert s.explain().device == GPU


@pytest.mark.parametrize(
    ("device", "words"),
    [("vulkan:1", "Liar: the numbers are wrong"), ("vulkan:7", "vulkan:0 (Fake GPU)")],
)
def test_named_device_that_does_not_work_is_an_error(take: Take, device: str, words: str) -> None:
    pool = take(FaultyPool())
    for shape in (X.shape, ("N", 3)):
        with pytest.raises(NoUsableDeviceError) as caught:
            session(shape=shape, device=device)
        assert words in str(caught.value)
    assert pool.devices == []


def test_auto_without_a_gpu_to_use_is_the_cpu_and_opens_nothing(take: Take) -> None:
    pool = take(FaultyPool(usable=False))
    with session(device="auto") as s:
        assert s.explain().device == "cpu" and "wrong" in str(s.explain())
    software = take(FaultyPool(is_software=True))
    with session(device="auto") as s:
        assert s.explain().device == "cpu" and row_of(s).code == "software"
    assert pool.devices == software.devices == []


@pytest.mark.parametrize("how", ["died", "hung"])
def test_a_worker_that_fails_while_it_opens_leaves_the_session_to_the_cpu(
    take: Take, how: str
) -> None:
    hung = gpuedge.DeviceTimeoutError("The worker did not answer: SIGSEGV.")
    pool = take(FaultyPool(opening=[DIED if how == "died" else hung] * 4))
    with session(isolation="process") as s:
        np.testing.assert_array_equal(answer(s), -X)
        assert s.placement[0].device == "cpu"
        assert "SIGSEGV" in str(s.explain())
    with pytest.raises(DeviceError):
        session(isolation="process", fallback="error")
    assert pool.devices == []


def test_explain_says_what_failed_last(take: Take) -> None:
    pool = take(FaultyPool(opening=[DeviceLostError("The driver is out of sorts.")]))
    with session(shape=["N"]) as s:
        with pytest.raises(DeviceLostError):
            answer(s, X[0])
        with pytest.raises(InputError) as caught:
            s.explain()
        assert "out of sorts" in str(caught.value) and "open" not in str(caught.value)
        assert "out of sorts" in s.health.reason
    assert pool.devices == []


# -- drift ----------------------------------------------------------------------------------------


def seldom(count: int) -> Policy:
    """Return a policy that compares the first request and one in so many."""
    return Policy(crosscheck=1 / count)


EACH = seldom(1)
OFF = np.float32(1.01)


def exact(pool: FaultyPool) -> FaultyDevice:
    """Let the device that was opened last compute rightly, without a trace."""
    pool.devices[-1].factor = np.float32(1)
    return pool.devices[-1]


def test_drift_is_noticed_and_answered_by_the_cpu(
    take: Take, caplog: pytest.LogCaptureFixture
) -> None:
    pool = take(FaultyPool())
    with session(policy=EACH) as s, session(shape=(5,)) as other:
        device = exact(pool)
        np.testing.assert_array_equal(answer(s), -X)
        device.factor = OFF
        with caplog.at_level(logging.WARNING, "gpuedge"):
            np.testing.assert_array_equal(answer(s), -X)
        health = s.health
        assert (health.state, health.crosschecks, health.crosschecks_failed) == ("demoted", 2, 1)
        assert (health.on_device, health.on_cpu) == (1, 1)
        assert health.failures[-1].code == "drifted" and "drifted" in caplog.text
        x = np.arange(5, dtype=np.float32)
        np.testing.assert_array_equal(answer(other, x), -x)  # it is the device that drifted
        until(lambda: device.is_closed)
        assert len(pool.devices) == 1


def test_drift_with_fallback_error_is_an_error(take: Take) -> None:
    pool = take(FaultyPool())
    with session(policy=EACH, fallback="error") as s:
        pool.devices[0].factor = OFF
        with pytest.raises(DriverError, match="drifted") as caught:
            answer(s)
        assert caught.value.reason is not None and caught.value.reason.code == "drifted"


def test_inputs_that_change_meanwhile_are_no_drift(take: Take) -> None:
    """The caller's array is another one before the CPU has repeated the inference."""
    pool, x = take(FaultyPool()), X.copy()
    with session(policy=EACH) as s:
        exact(pool)
        pool.on_cpu = lambda: x.fill(3)
        np.testing.assert_array_equal(answer(s, x), -X)
        health = s.health
        assert (health.state, health.crosschecks, health.crosschecks_failed) == ("ok", 1, 0)


def test_inputs_are_copied_only_where_they_are_compared(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, x, is_same = take(FaultyPool()), X.copy(), list[bool]()
    write = FaultyDevice.write

    def noting(self: FaultyDevice, buffer: object, data: memoryview, offset: int = 0) -> None:
        is_same.append(np.shares_memory(np.frombuffer(data, np.uint8), x))
        write(self, buffer, data, offset)  # type: ignore[arg-type]

    with session(policy=seldom(4)) as s:
        exact(pool)
        monkeypatch.setattr(FaultyDevice, "write", noting)
        for _ in range(8):
            answer(s, x)
    assert is_same == [False, True, True, True] * 2


def test_comparison_that_a_failure_prevented_is_made_up_for(take: Take) -> None:
    pool = take(FaultyPool([EXHAUSTED]))  # which the device survives
    with session(policy=seldom(1000)) as s:
        pool.devices[0].factor = OFF
        for _ in range(2):
            np.testing.assert_array_equal(answer(s), -X)
        assert (s.health.crosschecks, s.health.crosschecks_failed) == (1, 1)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "meanwhile"])
def test_first_result_after_recovery_is_compared(take: Take, is_late: bool) -> None:
    """Of a session from before the failure, and of one that was opened while it recovered."""
    pool = take(FaultyPool([LOST] if is_late else [None, LOST]))
    with session(policy=seldom(1000)) as first:
        exact(pool)
        pool.gate.clear()
        for _ in range(2):
            answer(first)
        with session(policy=seldom(1000)) as late:
            pool.gate.set()
            until(lambda: pool.device(GPU).state.is_ok)
            pool.devices[1].factor = OFF
            s = late if is_late else first
            np.testing.assert_array_equal(answer(s), -X)
            assert s.health.crosschecks_failed == 1


# -- what health shows ----------------------------------------------------------------------------


def test_health_counts_times_and_prints(take: Take) -> None:
    pool = take(FaultyPool())
    with session() as s:
        assert s.health.p50_s is None
        for _ in range(7):
            np.testing.assert_array_equal(answer(s), -X * TRACE)
        health = s.health
        assert (health.on_device, health.state, health.reason) == (7, "ok", "")
        assert health.p50_s is not None and health.p99_s is not None
        assert 0 < health.p50_s <= health.p99_s < 10
        record = health.to_dict()
        assert record["schema"] == "gpuedge.health/4" and record["on_device"] == 7
        assert "7 on the device" in str(health)
        assert pool.devices[0].counters.submits == 7
        assert [r.device for r in s.placement] == [s.explain().device] == [GPU]
        pool.close()
    s.close()  # once more, and after its device


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2.37, "2.37 s"), (0.0015, "1.5 ms"), (0.99999, "1 s"), (1234.0, "1230 s"), (3e-5, "30 us")],
)
def test_health_shows_times_as_plain_numbers(seconds: float, shown: str) -> None:
    text = str(Health("ok", "cpu", p50_s=seconds, watchdog_s=seconds))
    assert f"p50 / p90 / p99  {shown} / - / -" in text
    assert f"watchdog         {shown}" in text


def test_health_before_and_after_the_first_run_on_the_cpu(take: Take) -> None:
    take(FaultyPool())
    with session(device="cpu") as s:
        assert (s.health.state, s.health.device, s.health.p50_s) == ("cpu", "cpu", None)
        answer(s)
        assert (s.health.state, s.health.on_device, s.health.on_cpu) == ("cpu", 0, 1)
        assert s.health.p50_s is not None


def test_health_before_anything_was_decided(take: Take) -> None:
    take(FaultyPool())
    for device in (GPU, "auto"):
        with session(shape=["N"], device=device) as s:
            assert (s.health.state, s.health.device) == ("pending", device)
