"""Sessions whose callbacks, signal handlers and devices misbehave: nothing waits forever."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from flaky import LOST, FlakyPool, made, result, until
from onnx import helper
from onnx_models import model as onnx_model
from onnx_models import value, weight
from runtime_fakes import FakePool
from session_fakes import Gate, hang, held, taken_by_sessions
from test_session import X, model, session

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    DeviceLostError,
    InputError,
    NoUsableDeviceError,
    RequestTimeoutError,
    ShapeError,
    UsageError,
)
from gpuedge.runtime import serving

pytestmark = pytest.mark.timeout(120)

GPU = "vulkan:0"
QUIET = gpuedge.Policy(crosscheck=0.0, watchdog_s=0.3)
PATIENT = gpuedge.Policy(crosscheck=0.0, watchdog_s=60)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    return taken_by_sessions(monkeypatch)


def runs() -> int:
    return sum(t.name == "gpuedge-run" for t in threading.enumerate())


# -- nothing waits forever -----------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_wants_to_end_the_program_ends_no_worker(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Any) -> None:
        raise error(3)

    with session() as s:
        s.run_async({"x": X}).add_done_callback(leave)
        late = s.run_async({"x": X})
        np.testing.assert_array_equal(late.result(10)["y"], [[2, 0, 6]])
        np.testing.assert_array_equal(s.run_async({"x": X * 2}).result(10)["y"], [[4, 0, 12]])
    assert "callback" in caplog.text and error.__name__ in caplog.text


def test_such_a_callback_of_an_expired_request_keeps_the_clock_alive(gate: Gate) -> None:
    def leave(_: Any) -> None:
        raise SystemExit(3)

    with session() as s:
        held(s, gate)
        s.run_async({"x": X})
        assert gate.came.wait(10)
        s.run_async({"x": X}, timeout_s=0.02).add_done_callback(leave)
        with pytest.raises(RequestTimeoutError):
            s.run_async({"x": X}, timeout_s=0.1).result(10)
        gate.open.set()


def test_what_a_signal_handler_raises_gives_the_request_up(
    pool: FakePool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit(7)

    def send() -> None:
        gate.came.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serving, "LEAVE_S", 0.1)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with (
            pytest.raises(SystemExit) as caught,
            gpuedge.Session(model(), device=GPU, policy=PATIENT) as s,
        ):
            hang(s, pool, gate)
            threading.Thread(target=send).start()
            s.run({"x": X}, timeout_s=25)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 7
    assert not gate.left.is_set()


def test_closing_leaves_a_run_without_a_limit_that_hangs(
    pool: FakePool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LEAVE_S", 0.1)
    s = gpuedge.Session(model(), device=GPU, policy=PATIENT)
    hang(s, pool, gate)
    answers: list[Any] = []
    asked = threading.Thread(target=lambda: answers.append(s.run({"x": X})))
    asked.start()
    assert gate.came.wait(10)
    s.close()
    assert not gate.left.is_set()
    gate.open.set()
    asked.join(10)
    assert len(answers) == 1  # it was asked before
    assert not s._server.models.items()  # and what it held is closed now


def test_closing_leaves_a_queued_run_that_hangs_beyond_the_watchdog(
    pool: FakePool, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LEAVE_S", 0.1)
    s = gpuedge.Session(model(), device=GPU, policy=QUIET)
    hang(s, pool, gate)
    s.run_async({"x": X})
    behind = s.run_async({"x": X})
    assert gate.came.wait(10)
    s.close()
    with pytest.raises(ClosedError):
        behind.result(0)
    assert not gate.left.is_set()


def test_requests_that_were_given_up_leave_no_thread(gate: Gate) -> None:
    before = runs()
    with session() as s:
        held(s, gate)
        first = threading.Thread(target=lambda: s.run({"x": X}))
        first.start()
        assert gate.came.wait(10)
        for _ in range(5):
            with pytest.raises(RequestTimeoutError, match=r"after 0\.02 s"):
                s.run({"x": X}, timeout_s=0.02)
        until(lambda: runs() == before)
        gate.open.set()
        first.join(10)


def test_behind_a_run_without_a_limit_that_hangs_the_cpu_answers(
    pool: FakePool, gate: Gate
) -> None:
    with gpuedge.Session(model(), device=GPU, policy=QUIET) as s:
        hang(s, pool, gate)
        first = threading.Thread(target=lambda: s.run({"x": X}))
        first.start()
        assert gate.came.wait(10)
        others = [threading.Thread(target=lambda: s.run({"x": X})) for _ in range(3)]
        for one in others:
            one.start()
        np.testing.assert_array_equal(s.run({"x": X * 3})["y"], [[6, 0, 18]])
        for one in others:
            one.join(10)
        assert not gate.left.is_set()
        health = s.health
        assert (health.state, health.failed) == ("demoted", 1)
        assert health.failures[0].code == "device-hung"
        gate.open.set()
        first.join(10)


def test_a_child_that_tries_a_driver_is_gone_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from runtime_fakes import row
from gpuedge.core.reasons import Reason
from gpuedge.probing import run
from gpuedge.runtime.devices import POOL

wait = '''import os, time
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
time.sleep(600)'''
run.COMMAND = (sys.executable, "-c", wait)
POOL.row = lambda name: row()
POOL.barred = POOL._dispose = lambda what: None

class Failed:
    closed = False
    def retire(self): self.closed = True

POOL.device("vulkan:0").fail(Reason("device-lost"), Failed())
pid, ends = Path({str(tmp_path / "pid")!r}), time.monotonic() + 60
while not (pid.exists() and pid.read_text()) and time.monotonic() < ends:
    time.sleep(0.01)
print(len(list(Path({str(tmp_path / "tmp")!r}).iterdir())))
"""
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    call = [sys.executable, "-c", program]
    done = subprocess.run(
        call, check=False, env=environ, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
    pid = Path("/proc") / (tmp_path / "pid").read_text() / "cwd"
    ends = monotonic() + 60
    while (pid.exists() or list((tmp_path / "tmp").iterdir())) and monotonic() < ends:
        sleep(0.02)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not pid.exists()


# -- time limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout_s",
    [10**400, 10**5000, np.complex64(1), 1j],
    ids=["huge", "unprintable", "numpy", "complex"],
)
def test_numbers_that_are_no_time_limit(timeout_s: Any) -> None:
    with session() as s, pytest.raises(UsageError, match="timeout_s cannot be") as caught:
        s.run({"x": X}, timeout_s=timeout_s)
    assert len(str(caught.value)) < 300


def test_a_limit_that_has_passed_is_an_error_and_names_what_was_given() -> None:
    with session() as s:
        s.run({"x": X})
        with pytest.raises(RequestTimeoutError, match="no result after 1e-06 s"):
            s.run({"x": X}, timeout_s=1e-6)
        with pytest.raises(RequestTimeoutError, match="1e-06 s"):
            s.run_async({"x": X}, timeout_s=1e-6).result(10)


# -- what health and explain say ------------------------------------------------------------------


def test_a_device_without_a_substitute_is_not_called_ok(caplog: pytest.LogCaptureFixture) -> None:
    pool = FlakyPool([LOST])
    pool.verdicts = ["it crashed"] * 3
    compiled = made(pool, fallback="error")
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            result(compiled)
    health = compiled.health()
    assert health.state == "demoted"
    assert "failed too often" in health.reason and "it crashed" in health.reason
    said = str(compiled.decision)
    assert "Does not run now" in said and "it crashed" in said
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("not used any more" in text and "it crashed" in text for text in warned)


def test_a_device_without_a_substitute_that_recovers_says_so() -> None:
    pool = FlakyPool([LOST])
    pool.gate.clear()
    compiled = made(pool, fallback="error")
    with pytest.raises(DeviceLostError):
        result(compiled)
    assert compiled.health().state == "recovering"
    assert "lost" in compiled.health().reason
    pool.gate.set()
    until(lambda: compiled.health().state == "ok")
    result(compiled)
    assert "Does not run" not in str(compiled.decision)


def test_health_tells_of_a_request_that_was_given_up(pool: FakePool, gate: Gate) -> None:
    with gpuedge.Session(model(), device=GPU, policy=PATIENT) as s:
        hang(s, pool, gate)
        with pytest.raises(RequestTimeoutError):
            s.run({"x": X}, timeout_s=0.05)
        for _ in range(3):
            s.run({"x": X})
        health = s.health
        assert (health.state, health.on_cpu, health.on_device) == ("recovering", 3, 1)
        assert "given up still runs" in health.reason
        gate.open.set()
        until(lambda: s.health.state == "ok")
        assert s.health.on_cpu == 3


def test_health_before_anything_was_decided(pool: FakePool) -> None:
    with gpuedge.Session(model(), device=GPU) as s:
        assert (s.health.state, s.health.device) == ("pending", GPU)
    with gpuedge.Session(model(), device="auto") as s:
        assert (s.health.state, s.health.device) == ("pending", "auto")


def test_explain_says_what_failed_last(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, isolation: str) -> Any:
        raise DeviceLostError("The driver is out of sorts.")

    with gpuedge.Session(model(), device=GPU) as s:
        monkeypatch.setattr(pool, "_open_gpu", refuse)
        with pytest.raises(DeviceLostError):
            s.run({"x": X})
        with pytest.raises(InputError) as caught:
            s.explain()
        assert "out of sorts" in str(caught.value) and "open" not in str(caught.value)
        assert "out of sorts" in s.health.reason
        monkeypatch.undo()


def test_a_device_that_is_not_there_is_an_error_at_once(pool: FakePool) -> None:
    with pytest.raises(NoUsableDeviceError):
        gpuedge.Session(model(), device="vulkan:7")
    gpuedge.Session(model(), device=GPU).close()
    assert pool.devices == []


@pytest.mark.usefixtures("pool")
def test_what_was_dropped_for_shapes_that_fail_says_nothing_any_more() -> None:
    target = helper.make_node("Reshape", ["x", "s"], ["y"])
    pairs = onnx_model([target], [value("x", ["N"])], [value("y", None)], [weight("s", [-1, 2])])
    policy = gpuedge.Policy(max_shapes=1, crosscheck=0.0)
    with gpuedge.Session(pairs, device="vulkan:0", policy=policy) as s:
        s.run({"x": np.ones(4, np.float32)})
        assert s.explain().device == "vulkan:0"
        with pytest.raises(ShapeError):
            s.run({"x": np.ones(3, np.float32)})
        said = s.profile()
        assert (said["shapes"]["kept"], said["device"], s.placement) == ([], None, ())
        with pytest.raises(InputError, match="cannot be reshaped"):
            s.explain()
        assert s.run({"x": np.ones(2, np.float32)})["y"].shape == (1, 2)
        assert s.explain().device == "vulkan:0"
