"""Sessions on a device that hangs: no request, no closing and no program waits for it forever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import daily
import numpy as np
import pytest
from faulty import GPU, TRACE, FaultyPool, Gate, X, answer, asking, row_of, session, until
from onnx import helper
from onnx_models import model, value, weight

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    DeviceTimeoutError,
    InputError,
    RequestTimeoutError,
    ShapeError,
)
from gpuedge.runtime import serving

pytestmark = [pytest.mark.timeout(120), daily.day(0, of=4)]

QUIET = gpuedge.Policy(crosscheck=0.0, watchdog_s=0.2)
PATIENT = gpuedge.Policy(crosscheck=0.0, watchdog_s=60)


@pytest.fixture
def pool(take: Callable[[FaultyPool], FaultyPool]) -> FaultyPool:
    return take(FaultyPool())


def hanging(pool: FaultyPool, gate: Gate, policy: gpuedge.Policy, **more: str) -> gpuedge.Session:
    """Return a session that was served by its device, which hangs from now on."""
    s = session(policy=policy, **more)
    np.testing.assert_array_equal(answer(s), -X * TRACE)
    pool.devices[0].on_submit = gate
    return s


def expired(s: gpuedge.Session) -> None:
    """Give a request up that its device does not return from."""
    with pytest.raises(RequestTimeoutError):
        answer(s, timeout_s=0.05)


def test_a_device_that_hangs_is_left_and_the_cpu_answers(pool: FaultyPool, gate: Gate) -> None:
    with hanging(pool, gate, QUIET) as s:
        expired(s)
        np.testing.assert_array_equal(answer(s), -X)
        until(lambda: s.health.state != "recovering")  # the watchdog's time
        np.testing.assert_array_equal(answer(s), -X)
        assert s.health.state == "demoted"
        assert "stuck" in s.health.reason or "hung" in s.health.reason
        assert s.explain().device == "cpu"
        with pytest.raises(DeviceTimeoutError, match="left alone"):
            pool.executor(GPU)
        with session(policy=QUIET) as other:
            np.testing.assert_array_equal(answer(other), -X)
            assert other.health.state == "demoted" and row_of(other).code == "device-hung"
        assert len(pool.devices) == 1
        gate.open.set()


def test_a_device_that_returns_late_is_used_again(pool: FaultyPool, gate: Gate) -> None:
    with hanging(pool, gate, PATIENT) as s:
        expired(s)
        for _ in range(3):
            np.testing.assert_array_equal(answer(s), -X)
        health = s.health
        assert (health.state, health.on_cpu, health.on_device) == ("recovering", 3, 1)
        assert "given up still runs" in health.reason
        pool.devices[0].on_submit = None
        gate.open.set()
        until(lambda: s.health.state == "ok")
        assert s.health.on_cpu == 3
        np.testing.assert_array_equal(answer(s), -X * TRACE)
        assert s.health.state == "ok"


def test_a_request_beside_a_late_one_may_be_given_up_as_well(pool: FaultyPool, gate: Gate) -> None:
    with hanging(pool, gate, PATIENT) as s:
        expired(s)
        answer(s)  # compiles for the CPU
        pool.on_cpu = gate
        expired(s)
        pool.on_cpu = None
        np.testing.assert_array_equal(answer(s, timeout_s=20), -X)
        gate.open.set()


def test_without_the_cpu_a_device_that_hangs_is_an_error(pool: FaultyPool, gate: Gate) -> None:
    with hanging(pool, gate, QUIET, fallback="error") as s:
        expired(s)
        with pytest.raises(DeviceTimeoutError) as caught:
            answer(s)
        assert caught.value.reason is not None
        assert caught.value.reason.code == "device-hung"
        gate.open.set()


@pytest.mark.parametrize("timeout_s", [0.3, None], ids=["with a limit", "without one"])
def test_threads_that_wait_behind_a_stuck_request_are_answered(
    pool: FaultyPool, gate: Gate, timeout_s: float | None
) -> None:
    def stuck() -> None:
        if timeout_s is None:
            answer(s)
        else:
            with pytest.raises(RequestTimeoutError):
                answer(s, timeout_s=timeout_s)

    found: list[float] = []

    def behind(factor: int) -> None:
        found.append(float(answer(s, X * factor)[0, 0]))

    with hanging(pool, gate, QUIET) as s, asking(stuck):
        assert gate.came.wait(20)
        with asking(*(partial(behind, i) for i in range(4))):
            pass
        assert sorted(found) == [0, 3, 6, 9]
        assert not gate.left.is_set()  # the device still hangs
        until(lambda: len(s.health.failures) > 0)
        health = s.health
        assert (health.state, health.failed) == ("demoted", 1)
        assert health.failures[0].code == "device-hung"
        gate.open.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing wait for requests under way for no more than a moment."""
    monkeypatch.setattr(serving, "LEAVE_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_closing_does_not_wait_for_a_request_that_was_given_up(
    pool: FaultyPool, gate: Gate
) -> None:
    s = hanging(pool, gate, gpuedge.Policy(crosscheck=0.0))
    expired(s)
    s.close()
    assert not gate.left.is_set()
    with pytest.raises(ClosedError):
        answer(s)


@pytest.mark.usefixtures("impatient")
def test_closing_leaves_a_run_without_a_limit_that_hangs(pool: FaultyPool, gate: Gate) -> None:
    s = hanging(pool, gate, PATIENT)
    answers: list[np.ndarray] = []
    with asking(lambda: answers.append(answer(s))):
        assert gate.came.wait(10)
        s.close()
        with pytest.raises(ClosedError):
            answer(s)
        assert not gate.left.is_set()
        gate.open.set()
    assert len(answers) == 1  # it was asked before
    device = pool.devices[0]
    assert device.count("free") == device.count("alloc")  # what it held is released now


@pytest.mark.usefixtures("impatient")
def test_closing_leaves_a_queued_run_that_hangs_beyond_the_watchdog(
    pool: FaultyPool, gate: Gate
) -> None:
    s = hanging(pool, gate, QUIET)
    _, behind = (s.run_async({"x": X}) for _ in range(2))
    assert gate.came.wait(10)
    s.close()
    with pytest.raises(ClosedError):
        behind.result(0)
    assert not gate.left.is_set()


@pytest.mark.usefixtures("impatient")
def test_what_a_signal_handler_raises_gives_the_request_up(pool: FaultyPool, gate: Gate) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(7)

    def send() -> None:
        gate.came.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with asking(send), pytest.raises(SystemExit) as caught, hanging(pool, gate, PATIENT) as s:
            answer(s, timeout_s=25)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 7
    assert not gate.left.is_set()


def test_a_child_that_tries_a_driver_is_gone_with_the_program(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    program = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from faulty import row
from gpuedge.core.reasons import Reason
from gpuedge.probing import run
from gpuedge.runtime.devices import POOL

wait = '''import os, time
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
time.sleep(600)'''
run.COMMAND = (sys.executable, "-c", wait)
POOL.row = lambda name: row()
POOL.blocked = lambda name: None
POOL.drop = lambda executor: None

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


@pytest.mark.usefixtures("pool")
def test_what_was_dropped_for_shapes_that_fail_says_nothing_any_more() -> None:
    target = helper.make_node("Reshape", ["x", "s"], ["y"])
    pairs = model([target], [value("x", ["N"])], [value("y", None)], [weight("s", [-1, 2])])
    policy = gpuedge.Policy(max_shapes=1, crosscheck=0.0)
    with gpuedge.Session(pairs, device=GPU, policy=policy) as s:
        s.run({"x": np.ones(4, np.float32)})
        assert s.explain().device == GPU
        with pytest.raises(ShapeError):
            s.run({"x": np.ones(3, np.float32)})
        said = s.profile()
        assert (said["shapes"]["kept"], said["device"], s.placement) == ([], None, ())
        with pytest.raises(InputError, match="cannot be reshaped"):
            s.explain()
        assert s.run({"x": np.ones(2, np.float32)})["y"].shape == (1, 2)
        assert s.explain().device == GPU
