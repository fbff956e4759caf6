"""Caches that a driver left aside are tried in a child: once, later, and never at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from runtime_fakes import row

from gpuedge import backends, device
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime import opening, proving
from gpuedge.runtime.devices import Pool
from gpuedge.runtime.proving import Prover


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The devices that were tried in a child, which none is."""
    names: list[str] = []

    def pretend(one: ProbeRow, deadline_s: float, stop: threading.Event) -> str | None:
        names.append(one.device)
        return None

    monkeypatch.setattr(proving, "try_in_child", pretend)
    monkeypatch.setattr(proving, "WAIT_S", 0.05)
    return names


def until_idle(prover: Prover) -> None:
    end = time.monotonic() + 20
    while prover._is_running:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_each_device_is_tried_once(tried: list[str]) -> None:
    prover = Prover()
    other = row().replace(device="vulkan:1", index=1)
    for one in (row(), other, row()):
        prover.prove(one)
    until_idle(prover)
    prover.prove(row())
    until_idle(prover)
    assert tried == ["vulkan:0", "vulkan:1"]


def test_one_that_comes_later_is_tried_too(tried: list[str]) -> None:
    prover = Prover()
    prover.prove(row())
    until_idle(prover)
    prover.prove(row().replace(device="vulkan:1", index=1))
    until_idle(prover)
    assert tried == ["vulkan:0", "vulkan:1"]


def test_nothing_is_tried_after_the_end(tried: list[str]) -> None:
    prover = Prover()
    prover.prove(row())
    prover.stop()
    prover.prove(row().replace(index=1))
    time.sleep(0.3)
    assert tried == []


@pytest.mark.parametrize("unproven", [False, True])
def test_pool_asks_for_what_a_device_left_aside(
    tried: list[str], monkeypatch: pytest.MonkeyPatch, unproven: bool
) -> None:
    class Here(NullBackend):
        def open(self, *_: object, **__: object) -> NullDevice:
            made = super().open(self.enumerate(self.candidates({})[0])[0])
            made.unproven = unproven  # type: ignore[misc]
            return made

    report = ProbeReport((row(),), "1")
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: report)
    monkeypatch.setattr(backends, "load", lambda _: Here(caps=VULKAN_MINIMUM))
    monkeypatch.setattr(opening, "is_stale", lambda _: False)
    pool = Pool()
    monkeypatch.setattr(device, "POOL", pool)
    pool.gpu("vulkan")
    until_idle(pool._prover)
    assert tried == ["vulkan:0"] * unproven
    pool.close()
