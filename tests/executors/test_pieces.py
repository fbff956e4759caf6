"""Long recorded work: cut into pieces, each of which is progress, and none of which is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuedge.backends.base import Dispatch
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import DeviceTimeoutError
from gpuedge.executors import waiting
from gpuedge.executors.gpu import PIECE_S, GpuExecutable, GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.safety import watchdog
from gpuedge.safety.watchdog import FLOOR_S, Watch

X = {"x": np.ones((4, 4), np.float32)}
STEPS = 10
LATE = DeviceTimeoutError("Too slow.")


def chain() -> Graph:
    builder = GraphBuilder()
    x = builder.input("x", TensorType("float32", (4, 4)))
    for _ in range(STEPS):
        x = builder.add("MatMul", [x, x])
    builder.output(x)
    return builder.build()


class SlowDevice(NullDevice):
    """A device whose launches take `each_s` of an imagined clock, from when they are waited for."""

    now_s = 0.0
    each_s = 0.0

    def wait(self, ticket: Any, timeout_s: float) -> None:
        self.now_s += self.each_s * len(ticket.recording.dispatches)
        super().wait(ticket, timeout_s)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDevice]:
    backend = NullBackend(VULKAN_MINIMUM)
    info = backend.enumerate(backend.candidates({})[0])[0]
    made = SlowDevice(info, VULKAN_MINIMUM, {}, None)
    monkeypatch.setattr(waiting, "perf_counter", lambda: made.now_s)
    yield made


def compiled(device: NullDevice) -> GpuExecutable:
    return GpuExecutor(device, "vulkan:0").compile(chain())


def pieces(made: GpuExecutable) -> list[tuple[Dispatch, ...]]:
    return [one.dispatches for one in made.recordings]  # type: ignore[attr-defined]


def calls(device: NullDevice, *names: str) -> list[str]:
    return [c.method for c in device.calls if c.method in names]


def test_short_work_stays_whole(device: SlowDevice) -> None:
    device.each_s = PIECE_S / STEPS / 2
    made = compiled(device)
    for _ in range(4):
        made.run(X)
    assert len(made.recordings) == 1 and device.counters.recordings == 1


def test_work_is_cut_after_two_slow_runs_until_pieces_are_short(device: SlowDevice) -> None:
    device.each_s = PIECE_S / 3
    made = compiled(device)
    (whole,) = pieces(made)
    device.each_s *= 10  # as where the driver compiles
    made.run(X)
    device.each_s /= 10
    assert pieces(made) == [whole]
    made.run(X)
    some = pieces(made)
    assert [len(one) for one in some] == [2, 3, 2, 3]
    assert device.counters.recordings == 5
    assert [d.program for one in some for d in one] == [d.program for d in whole]
    assert [d.bindings for one in some for d in one] == [d.bindings for d in whole]
    inputs = [one.inputs for one in made.recordings]  # type: ignore[attr-defined]
    outputs = [one.outputs for one in made.recordings]  # type: ignore[attr-defined]
    assert [len(one) for one in inputs] == [1, 0, 0, 0]
    assert [len(one) for one in outputs] == [0, 0, 0, 1]
    for _ in range(3):
        made.run(X)
    assert pieces(made) == some
    assert calls(device, "submit", "wait")[-8:] == [
        "submit", "submit", "wait", "submit", "wait", "submit", "wait", "wait",
    ]  # fmt: skip


def test_a_piece_waits_for_the_pieces_before(device: SlowDevice) -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType("float32", (4, 4)))
    for i in range(3):  # of which none needs another
        w = builder.constant(f"w{i}", np.full((4, 4), i + 1, np.float32))
        builder.output(builder.add("MatMul", [x, w]))
    made = GpuExecutor(device, "vulkan:0").compile(builder.build())
    (whole,) = pieces(made)
    assert not all(one.depends for one in whole[1:])
    made.watchdog.expect(lambda: 1e6)
    made.run(X)
    assert len(pieces(made)) == len(whole) > 2
    assert all(one.depends for (one,) in pieces(made)[1:])


def test_one_pause_of_the_machine_cuts_nothing(device: SlowDevice) -> None:
    made = compiled(device)
    for each_s in (0.0, 1.0, 0.0, 1.0, 0.0):
        device.each_s = each_s
        made.run(X)
    assert len(made.recordings) == 1


def test_first_run_is_cut_by_what_is_predicted(device: SlowDevice) -> None:
    made = compiled(device)
    made.watchdog.expect(lambda: 4.5 * PIECE_S)
    made.run(X)
    assert [len(one) for one in pieces(made)] == [2] * 5
    assert made.watchdog.pieces_done == 5
    made.run(X)  # it takes no time at all: twice is enough to see that the prediction was wrong
    assert len(made.recordings) == 1


def test_no_piece_has_less_than_a_pass(device: SlowDevice) -> None:
    made = compiled(device)
    made.watchdog.expect(lambda: 1e6)
    device.each_s = 100 * PIECE_S
    for _ in range(3):
        made.run(X)
    assert [len(one) for one in pieces(made)] == [1] * STEPS


def test_limit_is_that_of_a_piece(device: SlowDevice) -> None:
    made = compiled(device)
    made.watchdog.expect(lambda: 1e6)
    device.each_s = 1.0
    made.run(X)
    assert made.watchdog.limit_s == 10.0  # not ten times the ten seconds of the run
    device.each_s = 0.01
    for _ in range(200):
        made.run(X)
    assert made.watchdog.limit_s == FLOOR_S


def test_limit_of_the_policy_is_that_of_the_run(device: SlowDevice) -> None:
    made = compiled(device)
    made.watchdog.expect(lambda: 1e6)
    made.watchdog.fix(5.5)
    device.each_s = 1.0
    made.run(X)
    waits = [c.args[1] for c in device.calls if c.method == "wait"]
    assert waits == [5.5, 4.5, 3.5, 2.5, 1.5, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_piece_that_hangs_is_given_up(device: SlowDevice) -> None:
    made = compiled(device)
    made.watchdog.expect(lambda: 1e6)
    made.run(X)
    done = made.watchdog.pieces_done
    device._fail["wait"] = iter([None, None, *[LATE] * 99])
    with pytest.raises(DeviceTimeoutError) as caught:
        made.run(X)
    assert made.watchdog.pieces_done == done + 2
    assert made.executor.is_hung
    # what is asked later, whether all has ended, is the last that was submitted
    last = [c for c in device.calls if c.method == "submit"][-1]
    ticket: Any = caught.value.ticket
    assert ticket.recording is last.args[0]
    assert calls(device, "submit", "wait")[-7:] == [
        "submit", "submit", "wait", "submit", "wait", "submit", "wait",
    ]  # fmt: skip


def test_every_piece_is_progress_for_who_waits(
    device: SlowDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(watchdog, "monotonic", lambda: now[0])
    made = compiled(device)
    watch = Watch(3.0, progress=made.executor.progress)
    made.run(X)
    for _ in range(20):
        now[0] += 1.0
        assert not watch.look()
        made.watchdog.pieces_done += 1
    assert [watch.look() for now[0] in range(21, 26)] == [False, False, False, True, True]
