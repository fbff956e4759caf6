"""Sessions whose runs can be held back, and a GPU that leaves zeros."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from runtime_fakes import FakePool
from test_session import X

import gpuedge
from gpuedge.runtime import shapes
from gpuedge.runtime.compiled import CompiledModel


class Gate:
    """Holds calls back until it is opened; tells when one has come."""

    def __init__(self) -> None:
        self.came, self.open, self.left = (threading.Event() for _ in range(3))
        self.names: list[str] = []

    def __call__(self, *_: Any) -> None:
        self.names.append(threading.current_thread().name)
        self.came.set()
        self.open.wait(40)
        self.left.set()


def taken_by_sessions(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    """Return a pool whose GPU leaves zeros; sessions of the test take it."""
    made = FakePool()

    def write(dispatch: Any) -> None:
        for binding in dispatch.bindings[-1:]:
            binding.buffer.data[:] = bytes(len(binding.buffer.data))

    made.on_dispatch = write
    monkeypatch.setattr(shapes, "CompiledModel", partial(CompiledModel, pool=made))
    monkeypatch.setattr("gpuedge.session.POOL", made)
    return made


def held(s: gpuedge.Session, gate: Gate, x: np.ndarray = X) -> None:
    """Let the next run of a session wait at the gate."""
    s.run({"x": x})
    latest = s._latest
    assert latest is not None
    run = latest.run

    def slow(inputs: Any) -> Any:
        gate()
        return run(inputs)

    latest.run = slow  # type: ignore[method-assign]


def running(s: gpuedge.Session, gate: Gate, x: np.ndarray = X) -> threading.Thread:
    """Return a thread whose run of a session has come to the gate."""
    held(s, gate, x)
    thread = threading.Thread(target=lambda: s.run({"x": x}))
    thread.start()
    assert gate.came.wait(20)
    return thread


def hang(s: gpuedge.Session, pool: FakePool, gate: Gate) -> None:
    """Let the GPU of a session that works hang from now on."""
    s.run({"x": X})
    pool.devices[0]._on_dispatch = gate
