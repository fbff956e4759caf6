"""Devices that the caller opens: what forking, closing and impossible operands do to them."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from faulty import row

import gpuedge
from gpuedge import backends, device
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import FORK_HINT, InputError, NoUsableDeviceError, UnsupportedOpError
from gpuedge.ops import call as ops_call
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime import opening
from gpuedge.runtime.devices import Pool
from gpuedge.runtime.models import ModelCache

X = np.array([-1, 2, -3], np.float32)


class Here(NullBackend):
    """A null backend whose one device stands for that of any row."""

    def open(self, *_: object, **__: object) -> NullDevice:
        return super().open(self.enumerate(self.candidates({})[0])[0])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Make a pool of its own, where `gpuedge.open` finds null devices of two levels."""
    made = Pool()
    es = row().replace(device="gles20:0", backend="gles20")
    report = ProbeReport((row(), es), gpuedge.__version__)
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: report)
    monkeypatch.setattr(backends, "load", lambda _: Here(caps=VULKAN_MINIMUM))
    monkeypatch.setattr(opening, "_inline", set())
    monkeypatch.setattr(opening, "is_stale", lambda _: False)
    monkeypatch.setattr(device, "POOL", made)
    yield made
    made.close()


STARVED = row().replace(
    device="vulkan", status="timeout", code="deadline", reason="not reached", index=None,
    evidence={"is_unfinished": True},
)  # fmt: skip
"""A driver that missed the deadline of the probe on a busy machine."""


class Probing:
    """Stands in for `gpuedge.probe`: answers one report after another, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[ProbeRow, ...]) -> None:
        self.reports = [ProbeReport(rows, gpuedge.__version__) for rows in answers]
        self.calls = 0
        self.now_s = 0.0
        self._patch = monkeypatch
        monkeypatch.setattr("gpuedge.probing.api.probe", self)
        monkeypatch.setattr("gpuedge.runtime.clock.now_ns", lambda: round(self.now_s * 1e9))

    def __call__(self, **_: object) -> ProbeReport:
        newest = self.reports[min(self.calls, len(self.reports) - 1)]
        self._patch.setattr("gpuedge.probing.api.newest", lambda _: newest)
        self.calls += 1
        return newest


def test_drivers_that_missed_the_deadline_are_asked_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Probing(monkeypatch, (STARVED,))
    calls = []
    for now_s in (0, 29, 31, 60, 92, 150, 213, 10_000):
        asked.now_s = now_s
        with pytest.raises(NoUsableDeviceError, match="not reached"):
            gpuedge.open("vulkan")
        calls.append(asked.calls)
    # After 30, 60 and 120 s, then no more; each time once more for the device that was named.
    assert calls == [2, 2, 4, 4, 6, 6, 8, 8]


def test_a_driver_that_answers_later_is_used(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Probing(monkeypatch, (STARVED,), (row(),))
    assert pool.report().devices == ()
    asked.now_s = 31
    assert [r.device for r in pool.report().devices] == ["vulkan:0"]
    asked.now_s = 10_000
    pool.report()
    assert asked.calls == 2


def test_a_device_that_is_named_is_waited_for(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Probing(monkeypatch, (STARVED,), (row(),))
    assert gpuedge.open("vulkan").name == "vulkan:0"
    assert asked.calls == 2
    (told,) = caplog.messages
    assert "vulkan" in told and "60 s" in told


def test_what_the_caller_probed_counts_at_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Probing(monkeypatch, (STARVED,), (row(),))
    assert pool.report().devices == ()
    asked()
    assert gpuedge.open("vulkan").name == "vulkan:0"
    assert asked.calls == 2


def test_a_verdict_that_lasts_is_not_asked_for_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Probing(monkeypatch, (STARVED.replace(reason="it hung", evidence={}),))
    for asked.now_s in (0, 31, 1_000):
        with pytest.raises(NoUsableDeviceError, match="it hung"):
            gpuedge.open("vulkan")
    assert asked.calls == 2, "once, and once more with time enough"


def test_no_device_in_use_gets_another_name(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The late driver comes first in the list: it would be vulkan:0, and the other vulkan:1."""
    late = row().replace(key="late", name="Late")
    both = (late, row().replace(device="vulkan:1"))
    asked = Probing(monkeypatch, (STARVED.replace(key="late"), row()), both)
    pool.gpu("vulkan")
    asked.now_s = 31
    assert [r.name for r in pool.report().devices] == ["Fake GPU"] and asked.calls == 2
    pool.close()
    assert [r.name for r in pool.report().devices] == ["Late", "Fake GPU"]


def test_nothing_waits_for_a_probe_that_is_under_way(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def probe(**_: object) -> ProbeReport:
        begun.set()
        assert gate.wait(30)
        return ProbeReport((row(),), gpuedge.__version__)

    monkeypatch.setattr("gpuedge.probing.api.probe", probe)
    thread = threading.Thread(target=pool.report)
    thread.start()
    assert begun.wait(30)
    other = threading.Thread(target=pool.cpu)
    other.start()
    other.join(30)
    is_done = not other.is_alive()
    gate.set()
    thread.join(30)
    assert is_done


def refused_in_child(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether a child forked off now is refused by name, and told what to do."""
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)  # a real fork would hang where we err
    pool.after_fork()
    try:
        with pytest.raises(NoUsableDeviceError, match="forked off") as caught:
            gpuedge.open("vulkan")
    except pytest.fail.Exception:
        return False
    assert caught.value.hint == FORK_HINT
    with pytest.raises(NoUsableDeviceError):
        pool.gpu("vulkan")
    return True


def test_open_device_rules_out_the_child(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    held = gpuedge.open("vulkan")
    assert refused_in_child(pool, monkeypatch)
    assert held.name == "vulkan:0"


def test_device_dropped_but_not_closed_counts(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpuedge.open("vulkan")
    assert refused_in_child(pool, monkeypatch)


def test_closed_device_does_not_count(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpuedge.open("vulkan"):
        pool.gpu("vulkan")
    pool.close()
    assert not refused_in_child(pool, monkeypatch)


def test_level_whose_driver_stays_counts_for_ever(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpuedge.open("gles20").close()
    assert refused_in_child(pool, monkeypatch)


def test_device_that_did_not_open_does_not_count(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_open_inline", fail)
        with pytest.raises(MemoryError):
            gpuedge.open("vulkan")
    assert not refused_in_child(pool, monkeypatch)


def test_closing_forgets_what_was_compiled(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_call, "models", ModelCache(8))  # other tests may have filled it
    other = gpuedge.open("vulkan")
    gpuedge.exp(X, device=other)
    kept = ops_call.models.items()
    for _ in range(3):
        with gpuedge.open("vulkan") as mine:
            gpuedge.relu(X, device=mine)
            gpuedge.relu(X[:2], device=mine)
            assert len(ops_call.models.items()) == 3
    assert ops_call.models.items() == kept and len(kept) == 1
    other.close()
    assert ops_call.models.items() == []


@pytest.mark.parametrize("op", ["relu", "transpose", "add"])
def test_impossible_shape_is_refused_before_the_data_is_read(pool: Pool, op: str) -> None:
    x = np.broadcast_to(np.float32(1), (10**9,))
    operands = (x, X[:1]) if op == "add" else (x,)
    with gpuedge.open("vulkan") as mine:
        tracemalloc.start()
        try:
            with pytest.raises(UnsupportedOpError, match="cannot run"):
                getattr(gpuedge, op)(*operands, device=mine)
            assert tracemalloc.get_traced_memory()[1] < 50e6
        finally:
            tracemalloc.stop()


def test_large_operands_are_computed_as_small_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops_call, "LARGE", 2)
    half = np.array([1, -2, 3], np.float16)
    got = gpuedge.add(half[::-1], 1.5, device="cpu")
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, half[::-1] + np.float16(1.5))
    small = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    np.testing.assert_array_equal(gpuedge.transpose(small, device="cpu"), small.T)
    weights = np.full((1, 1, 2, 2), np.nan, np.float32)
    with pytest.raises(InputError, match="hold NaN"):
        gpuedge.conv2d(np.ones((1, 1, 3, 3), np.float32), weights, device="cpu")


def test_a_backend_that_cannot_list_its_drivers_keeps_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def candidates(self, environ: object) -> None:
            raise OSError("no such registry")

    monkeypatch.setattr("gpuedge.backends.load", lambda name: Broken())
    assert not opening.is_stale(row())
