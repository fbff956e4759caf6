"""How long a worker is waited for: what is idle is ended early, what computes is not."""

from __future__ import annotations

import time

import isolation_fakes as fakes
import pytest
import test_isolation_device as other

from gpuedge.core.errors import DeviceTimeoutError
from gpuedge.isolation import client
from gpuedge.isolation import device as isolated

FLOOR_S = 0.5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker that is idle count as hung sooner than on a busy machine with real drivers."""
    monkeypatch.setattr(client, "FLOOR_S", FLOOR_S)


@pytest.mark.parametrize("does", ["build=hold:60"])
def test_driver_that_hangs_while_it_compiles_is_given_up_by_the_watchdog(does: str) -> None:
    device = fakes.isolated(does)
    device.limit_idle(0.1)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError, match="did not answer") as hung:
        device.build(other.BLOB, {})
    assert FLOOR_S <= time.monotonic() - start < 50
    assert hung.value.reason is not None and hung.value.reason.code == "device-hung"
    device.close()


def test_driver_that_computes_has_its_time() -> None:
    device = fakes.isolated("build=compute:1.2")
    device.limit_idle(0.1)
    assert device.build(other.BLOB, {}).blob is other.BLOB
    device.close()


@pytest.mark.parametrize("watchdog_s", [None, 30.0])
def test_compiler_that_computes_has_more_time_unless_the_policy_says(
    monkeypatch: pytest.MonkeyPatch, watchdog_s: float | None
) -> None:
    monkeypatch.setattr(isolated, "WORKER_BUILD_S", 0.4)
    monkeypatch.setattr(client, "STRETCH", 100.0)
    device = fakes.isolated("build=compute:0.8")
    device.limit_idle(watchdog_s)
    if watchdog_s is None:
        assert device.build(other.BLOB, {}).blob is other.BLOB
    else:
        with pytest.raises(DeviceTimeoutError):
            device.build(other.BLOB, {})
    device.close()


@pytest.mark.parametrize("does", ["write=hold:60"])
def test_what_goes_with_a_wait_is_bounded_by_it(monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    monkeypatch.setattr(isolated, "WORKER_CALL_S", 1e3)
    device = fakes.isolated(does)
    start = time.monotonic()
    with pytest.raises(DeviceTimeoutError):
        fakes.run_once(device, b"abc", timeout_s=0.3)
    assert time.monotonic() - start < client.WORKER_IDLE_S  # after which it would be given up, too
    device.close()


def test_worker_may_be_idle_where_it_waits_for_a_run() -> None:
    device = fakes.isolated("wait=sleep:2.5")
    device.limit_idle(0.1)
    assert fakes.run_once(device, b"abc", timeout_s=10.0) == b"abc"
    device.close()
