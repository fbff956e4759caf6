"""Probing while an application starts: `probe_async`, what it tells meanwhile, who waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx_models import relu
from probing_fakes import started

import gpuedge
from gpuedge.core.errors import ConfigError, UnknownDeviceError
from gpuedge.runtime.devices import POOL

KEYS = "ok absent segv"
FOUND = [("soft ok", "ok"), ("absent", "absent"), ("segv", "crashed")]
CHILDREN = 3 + 1
"""Of one probe of these drivers: what fails is tried once more."""


@pytest.fixture(autouse=True)
def three(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fake drivers."""
    monkeypatch.setenv("PROBE_FAKES", KEYS)


def found(report: gpuedge.ProbeReport) -> list[tuple[str, str]]:
    return [(row.name, row.status) for row in report.tried]


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float = 2.0) -> None:
    monkeypatch.setenv("PROBE_FAKES", "slow")
    monkeypatch.setenv("PROBE_SLOW", str(seconds))


def test_future_is_waited_for_and_calls_back(fakes: Path) -> None:
    called = threading.Event()
    future = gpuedge.probe_async(deadline_s=60)
    future.add_done_callback(lambda done: called.set() if done.result() else None)
    report = future.result(timeout=60)
    assert found(report) == FOUND
    assert called.wait(10) and future.done() and not future.cancelled()
    assert found(gpuedge.probe()) == FOUND and started(fakes) == CHILDREN, "it was stored"


def test_future_is_awaited_while_the_application_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)

    async def application() -> tuple[gpuedge.ProbeReport, int]:
        future, frames = gpuedge.probe_async(deadline_s=60), 0
        while not future.done():
            await asyncio.sleep(0.01)
            frames += 1
        return await future, frames

    report, frames = asyncio.run(application())
    assert found(report) == [("soft slow", "ok")] and frames > 20


def test_time_limit_of_a_future_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    future = gpuedge.probe_async(deadline_s=60)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)
    assert found(future.result(timeout=60)) == [("soft slow", "ok")]


def test_bad_arguments_are_refused_at_once(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="deadline"):
        gpuedge.probe_async(deadline_s=0)
    with pytest.raises(ConfigError, match="progress must be callable"):
        gpuedge.probe_async(progress=3)  # type: ignore[arg-type]
    with pytest.raises(UnknownDeviceError, match="vulcan"):
        gpuedge.probe_async(backends=["vulcan"])
    assert started(fakes) == 0


def test_settings_of_the_caller_hold(fakes: Path, tmp_path: Path) -> None:
    with gpuedge.config(cache_dir=tmp_path / "other"):
        future = gpuedge.probe_async(deadline_s=60)
    future.result(60)
    assert (tmp_path / "other" / "verdicts.json").exists()
    assert not (fakes / "cache" / "verdicts.json").exists()


def test_without_another_thread_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    future = gpuedge.probe_async(deadline_s=60)
    assert future.done() and found(future.result(0)) == FOUND


# -- progress -------------------------------------------------------------------------------------


def test_progress_tells_each_driver_s_start_and_verdict() -> None:
    told: list[gpuedge.ProbeProgress] = []
    report = gpuedge.probe(progress=told.append)
    begun = [step.name for step in told if step.stage == "started"]
    judged = {s.name: [r.status for r in s.rows] for s in told if s.stage == "verdict"}
    assert sorted(begun) == ["absent", "ok", "segv"]
    assert judged == {"ok": ["ok"], "absent": ["absent"], "segv": ["crashed"]}
    assert [step.done for step in told if step.stage == "verdict"] == [1, 2, 3]
    assert {(step.backend, step.total) for step in told} == {("fake", 3)}
    assert len(told) == 6 and len(report.tried) == 3
    again: list[gpuedge.ProbeProgress] = []
    gpuedge.probe(progress=again.append)
    assert [(step.stage, step.name) for step in again] == [
        ("verdict", "ok"), ("verdict", "absent"), ("verdict", "segv"),
    ]  # fmt: skip


def test_progress_comes_while_others_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    monkeypatch.setenv("PROBE_FAKES", "ok slow")
    when: dict[tuple[str, str], float] = {}
    gpuedge.probe(progress=lambda s: when.setdefault((s.stage, s.name), time.monotonic()))
    assert when["verdict", "ok"] < when["verdict", "slow"] - 0.5
    assert when["started", "slow"] < when["verdict", "slow"] - 1.5


def test_what_progress_raises_ends_the_probe(fakes: Path) -> None:
    def tired(_: object) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        gpuedge.probe(progress=tired)
    failed = gpuedge.probe_async(deadline_s=60, progress=tired)
    assert isinstance(failed.exception(60), ValueError)
    assert found(gpuedge.probe()) == FOUND, "nothing is left behind by it"


def test_progress_may_probe_itself(fakes: Path) -> None:
    inner: list[gpuedge.ProbeReport] = []

    def ask(step: gpuedge.ProbeProgress) -> None:
        if not inner:
            inner.append(gpuedge.probe())

    assert found(gpuedge.probe(progress=ask)) == found(inner[0]) == FOUND


# -- who waits for it -----------------------------------------------------------------------------


def test_no_driver_is_tried_twice_at_once(fakes: Path) -> None:
    futures = [gpuedge.probe_async(deadline_s=60) for _ in range(3)]
    reports = [gpuedge.probe(), *(future.result(60) for future in futures)]
    assert all(found(report) == FOUND for report in reports)
    assert started(fakes) == CHILDREN


def test_one_that_cannot_wait_says_so(fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    future = gpuedge.probe_async(deadline_s=60)
    while not started(fakes):
        time.sleep(0.01)
    (row,) = gpuedge.probe(deadline_s=0.1).tried
    assert row.is_starved and "0.1 s" in row.reason
    assert found(future.result(60)) == [("soft slow", "ok")]
    assert started(fakes) == 1


def test_auto_runs_on_the_cpu_until_the_verdict_is_in(
    fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 5.0)
    POOL.close()
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    future = gpuedge.probe_async(deadline_s=60)
    with gpuedge.Session(relu(), device="auto") as session:
        for _ in range(20):
            np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
        assert not future.done()
        health = session.health
        assert (health.device, health.on_cpu) == ("cpu", 20)
        assert found(future.result(60)) == [("soft slow", "ok")]
    assert started(fakes) == 1
