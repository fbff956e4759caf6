"""Devices that the caller opens: what forking, closing and impossible operands do to them."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
import pytest
from runtime_fakes import row

import gpuedge
from gpuedge import backends, device
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import FORK_HINT, InputError, NoUsableDeviceError, UnsupportedOpError
from gpuedge.ops import call as ops_call
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime import opening
from gpuedge.runtime.devices import Pool

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
    monkeypatch.setattr(ops_call, "_compiled", OrderedDict())  # other tests may have filled it
    before = set(ops_call._compiled)
    other = gpuedge.open("vulkan")
    gpuedge.exp(X, device=other)
    kept = set(ops_call._compiled) - before
    for _ in range(3):
        with gpuedge.open("vulkan") as mine:
            gpuedge.relu(X, device=mine)
            gpuedge.relu(X[:2], device=mine)
            assert len(set(ops_call._compiled) - before) == 3
    assert set(ops_call._compiled) - before == kept and len(kept) == 1
    other.close()
    assert set(ops_call._compiled) == before


@pytest.mark.parametrize("op", ["relu", "transpose", "add"])
def test_impossible_shape_is_refused_before_the_data_is_read(pool: Pool, op: str) -> None:
    x = np.broadcast_to(np.float32(1), (10**9,))
    operands = (x, X[:1]) if op == "add" else (x,)
    with gpuedge.open("vulkan") as mine:
        tracemalloc.start()
        start = time.perf_counter()
        try:
            with pytest.raises(UnsupportedOpError, match="cannot run"):
                getattr(gpuedge, op)(*operands, device=mine)
            assert time.perf_counter() - start < 5
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
