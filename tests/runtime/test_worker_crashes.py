"""The crash blocklist and devices in worker processes: which deaths count, and what they mean."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import isolation_fakes as fakes
import pytest
from faulty import PLAIN, SOON, X, graph, until

import gpuedge
from gpuedge.backends.base import Usage
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import DeviceError, DeviceLostError, NoUsableDeviceError
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import Pool
from gpuedge.runtime.opening import open_row
from gpuedge.runtime.request import Request
from gpuedge.safety import blocklist, interpreter, machine, paths
from gpuedge.safety.blocklist import Blocklist, key_of

INFO = fakes.info()
ROW = ProbeRow(
    "null:0", "null", "ok", "ok", "answered with the right numbers", "Null",
    identity=INFO.identity.to_dict(), is_software=False, caps=VULKAN_MINIMUM.to_dict(),
    key=INFO.candidate.key, fingerprint=INFO.candidate.fingerprint, index=INFO.index,
)  # fmt: skip


class NullPool(Pool):
    """A pool whose GPU is the null device, in a worker of its own."""

    tried = 0

    def report(self, backends: tuple[str, ...] = (), device: str = "") -> ProbeReport:
        return ProbeReport((ROW,), gpuedge.__version__)

    def _try_in_child(self, name: str, stop: Any) -> str | None:
        self.tried += 1
        return None

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        executor: Any = self.gpu("null:0", "process")
        return int(executor.impl.pid)


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NullPool]:
    """Make a pool and a fresh cache folder; an edit of gpuedge meanwhile is no other driver."""
    monkeypatch.setattr(machine, "library_state", lambda: "")
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    made = NullPool(SOON)
    yield made
    made.close()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have workers do something from now on."""

    def do(what: str) -> None:
        monkeypatch.setattr(interpreter, "command", lambda _: fakes.fake(what))

    return do


def made(pool: Pool, device: str = "null:0") -> CompiledModel:
    return CompiledModel(graph(), Request(device, PLAIN, isolation="process"), pool)


def key() -> str:
    return key_of(INFO.candidate, INFO.index)


def steps() -> list[str]:
    """Return the step of each crash remembered."""
    return [c.step for c in Blocklist(paths.cache_folder()).entries().get(key(), [])]


def crash_of_another(monkeypatch: pytest.MonkeyPatch, name: str = "another") -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blocklist, "PROCESS", name)
        watch = Blocklist(paths.cache_folder()).begin(key(), "null:0", is_hosted=True)
        watch.crashed("SIGSEGV", "run")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_end_of_an_idle_host_is_no_crash(pool: NullPool, name: str) -> None:
    compiled = made(pool)
    health = pool.device("null:0", "process")
    for count in (1, 2):
        compiled.run({"x": X})
        pid = pool.pid
        os.kill(pid, getattr(signal, name))
        assert fakes.gone_within(pid, 20)
        compiled.run({"x": X})
        assert compiled.health().failed == count
        assert name in compiled.health().failures[-1].detail
        until(lambda: health.state.is_ok)
    assert steps() == []


@pytest.mark.parametrize(
    ("does", "crashes"),
    [
        ("submit=signal:SIGSEGV", ["first"]),
        ("read=exit:0", ["first"]),
        ("submit=signal:SIGKILL", []),
        ("wait=signal:SIGTERM", []),
        ("build=signal:SIGABRT", ["compile"]),
        ("build=signal:SIGKILL", []),
    ],
)
def test_end_of_a_host_in_a_call_is_a_crash_unless_it_came_from_outside(
    pool: NullPool, workers: Callable[[str], None], does: str, crashes: list[str]
) -> None:
    workers(does)
    compiled = made(pool)
    compiled.run({"x": X})
    assert compiled.health().failures[0].code == "worker-died"
    assert steps() == crashes


@pytest.mark.parametrize(
    ("does", "crashes"),
    [
        ("open=signal:SIGSEGV", ["open"]),
        ("open=exit:0", ["open"]),
        ("open=signal:SIGKILL", []),
    ],
)
def test_end_of_a_host_while_it_opens(
    pool: NullPool, workers: Callable[[str], None], does: str, crashes: list[str]
) -> None:
    workers(does)
    with pytest.raises(DeviceLostError):
        open_row(ROW, "process")
    assert steps() == crashes


def test_crash_while_giving_memory_back_is_not_from_outside() -> None:
    device = fakes.isolated("free=signal:SIGSEGV")
    buffer = device.alloc(16, Usage.SCRATCH)
    device.free(buffer)
    assert fakes.gone_within(device.pid, 20)
    with pytest.raises(DeviceLostError) as lost:
        device.alloc(16, Usage.SCRATCH)
    assert not lost.value.is_outside
    device.close()


def test_process_whose_host_dies_three_times_is_one_bad_start(
    pool: NullPool, workers: Callable[[str], None]
) -> None:
    workers("submit=signal:SIGSEGV")
    compiled = made(pool)
    health = pool.device("null:0", "process")
    for _ in range(3):
        until(lambda: health.state.is_ok)
        compiled.run({"x": X})
    assert compiled.health().failed == 3
    assert health.state.reason is not None and health.state.reason.code == "failed-often"
    assert steps() == ["first"]
    assert Blocklist(paths.cache_folder()).block(key()) is None


def test_second_bad_start_ends_recovery_and_keeps_later_sessions_away(
    pool: NullPool, workers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_of_another(monkeypatch)
    workers("submit=signal:SIGSEGV")
    compiled = made(pool)
    compiled.run({"x": X})
    health = pool.device("null:0", "process")
    until(lambda: health.state.health == "demoted")
    assert health.state.reason is not None and health.state.reason.code == "crash-blocklist"
    assert "SIGSEGV" in health.state.sentence and "tried again after" in health.state.sentence
    assert pool.tried == 0, "not even its driver"
    compiled.run({"x": X})
    assert compiled.health().state == "demoted"
    assert "2 unfinished starts" in compiled.health().reason
    with pytest.raises(NoUsableDeviceError, match="ended earlier processes"):
        made(pool)
    auto = made(pool, "auto")
    assert auto.decision.device == "cpu"
    assert {r.device: r.code for r in auto.decision.rows}["null:0"] == "crash-blocklist"


def test_what_is_open_goes_on_and_what_is_opened_later_does_not(
    pool: NullPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = made(pool)
    compiled.run({"x": X})
    for name in ("one", "two"):
        crash_of_another(monkeypatch, name)
    compiled.run({"x": X})
    assert compiled.health().on_device == 2
    assert compiled.health().state == "ok"
    with pytest.raises(NoUsableDeviceError, match="ended earlier processes"):
        made(pool)
    pool.drop(pool.gpu("null:0", "process"))
    with pytest.raises(DeviceError) as caught:
        pool.gpu("null:0", "process")
    assert caught.value.reason is not None and caught.value.reason.code == "crash-blocklist"
    compiled.run({"x": X})
    assert compiled.health().on_cpu == 1
    with gpuedge.config(pin="null:0=always"):
        assert made(pool).health().state == "ok"
