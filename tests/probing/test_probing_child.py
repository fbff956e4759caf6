"""The child, run here on scripted devices: steps, reasons, and what it asks of a device."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuedge import backends
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.null import NullBackend
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    KernelLimitError,
    OutOfMemoryError,
)
from gpuedge.core.reasons import SENTENCES, STATUSES, Reason
from gpuedge.probing import child, kat, protocol
from gpuedge.probing.judge import Ending, Transcript, judge
from gpuedge.probing.protocol import EVENTS, STEPS
from gpuedge.safety.channel import ROBBED, EventChannel, EventReader

CANDIDATE = Candidate("scripted", "null", "f")
TOKEN = "t" * 32


class Answering:
    """An executor that knows the answers; `spoil` may change them before they are given."""

    asked: list[str]

    def __init__(self, spoil: Callable[[int, Any], None] = lambda run, array: None) -> None:
        self.spoil = spoil
        self.asked = []
        self.answers: dict[bytes, kat.KnownAnswer] = {}
        self.runs: dict[bytes, int] = {}

    def __call__(self, device: Any, name: str) -> Answering:
        self.device = device
        return self

    def compile(self, graph: Any, precision: Any) -> Answering:
        same = [
            c for c in kat.cases() if [n.op for n in c.graph.nodes] == [n.op for n in graph.nodes]
        ]
        self.answers |= {c.inputs[next(iter(c.inputs))].tobytes(): c for c in same}
        self.asked.append("compile")
        return self

    def poison(self) -> None:
        self.asked.append("poison")

    def run(self, inputs: Any) -> dict[str, Any]:
        self.asked.append("run")
        key = inputs[next(iter(inputs))].tobytes()
        case = self.answers[key]
        array = case.expected.astype(case.dtype)
        self.spoil(self.runs.get(key, 0), array)
        self.runs[key] = self.runs.get(key, 0) + 1
        return {case.output: array}

    def close(self) -> None:
        self.asked.append("close")


def probe(
    monkeypatch: pytest.MonkeyPatch, folder: Path, backend: Any, skip: frozenset[int] = frozenset()
) -> list[Any]:
    """Run the child's work here and return the events it wrote."""
    monkeypatch.setattr(backends, "load", lambda name: backend)
    path = folder / "result"
    channel = EventChannel(str(path), TOKEN)
    child.LevelProbe(channel, time.monotonic() + 60.0, skip=skip).run(CANDIDATE)
    return written(path)


def written(path: Path) -> list[Any]:
    reader = EventReader(path, TOKEN, EVENTS)
    events = reader.take(is_over=True)
    assert reader.junk == 0
    return events


def device_event(events: list[Any]) -> Any:
    (event,) = (e for e in events if e["event"] == "device")
    return event


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("logging.lastResort", logging.NullHandler())


def test_right_numbers_are_ok(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executor = Answering()
    monkeypatch.setattr("gpuedge.probing.trials.GpuExecutor", executor)
    event = device_event(probe(monkeypatch, tmp_path, NullBackend()))
    assert (event["status"], event["code"]) == ("ok", "ok")
    names = [c["name"] for c in event["evidence"]["checks"]]
    assert names == [c.name for c in kat.cases(VULKAN_MINIMUM)]
    assert event["caps"]["device_class"] == "generic"
    ran = ["poison", "run"]
    each = ["compile", *ran * 6, "compile", *ran * 4, *["compile", *ran * 2] * 2]
    assert executor.asked == [*each, *["close"] * 4]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda run, x: x.fill(0), "wrong-numbers"),
        (lambda run, x: x.view(np.uint8).fill(0xAB), "untouched-output"),
        (lambda run, x: run == 1 and x.fill(np.nan), "wrong-numbers"),
    ],
)
def test_wrong_numbers_are_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoil: Any, code: str
) -> None:
    monkeypatch.setattr("gpuedge.probing.trials.GpuExecutor", Answering(spoil))
    event = device_event(probe(monkeypatch, tmp_path, NullBackend()))
    assert (event["status"], event["code"]) == ("wrong", code)
    assert "elementwise integers" in event["detail"]


def test_device_that_writes_nothing_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through the real executor: the null device builds, records and runs, and computes nothing."""
    events = probe(monkeypatch, tmp_path, NullBackend())
    event = device_event(events)
    assert (event["status"], event["code"]) == ("wrong", "untouched-output")
    steps = [e["step"] for e in events if e["event"] == "step"]
    order = [s for i, s in enumerate(steps) if s not in steps[:i]]
    assert order == ["load", "enumerate", "prepare", "open", "build", "run", "read", "close"]
    assert set(order) <= set(STEPS)


@pytest.mark.parametrize(
    ("method", "error", "status", "code", "step"),
    [
        ("build", DriverError("no"), "broken", "kernel-failed", "build"),
        ("build", KernelLimitError("no"), "broken", "kernel-failed", "build"),
        ("record", DriverError("no"), "broken", "kernel-failed", "build"),
        ("alloc", OutOfMemoryError("no"), "broken", "out-of-memory", "build"),
        ("submit", DeviceLostError("no"), "broken", "device-lost", "run"),
        ("wait", DeviceTimeoutError("no"), "timeout", "deadline", "run"),
        ("read", DriverError("no"), "broken", "kernel-failed", "read"),
        ("read", ValueError("a bug"), "broken", "kernel-failed", "read"),
    ],
)
def test_refusal_is_attributed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    method: str,
    error: Exception,
    status: str,
    code: str,
    step: str,
) -> None:
    event = device_event(probe(monkeypatch, tmp_path, NullBackend(fail={method: error})))
    assert (event["status"], event["code"]) == (status, code)
    assert event["evidence"]["step"] == step
    assert str(error).rpartition("] ")[2] in event["detail"]


def test_failure_to_plan_is_no_failure_to_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: Any, graph: Any, precision: Any) -> Any:
        raise KernelLimitError("too large for this device")

    monkeypatch.setattr("gpuedge.executors.gpu.GpuExecutor.compile", refuse)
    event = device_event(probe(monkeypatch, tmp_path, NullBackend()))
    assert (event["code"], event["evidence"]["step"]) == ("kernel-failed", "build")


class Failing(NullBackend):
    """Fails as a whole backend does: while listing or opening."""

    def __init__(self, at: str, error: Exception) -> None:
        super().__init__()
        self.at, self.error = at, error

    def enumerate(self, candidate: Candidate) -> Any:
        if self.at == "enumerate":
            raise self.error
        return super().enumerate(candidate)

    def open(self, info: DeviceInfo, **options: Any) -> Any:
        if self.at == "open":
            raise self.error
        return super().open(info, **options)


def with_reason(code: str) -> Exception:
    error = BackendUnavailableError("What happened.", known="the facts")
    error.reason = Reason(code)  # type: ignore[attr-defined]  # what backends may add
    return error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (with_reason("no-loader"), "absent", "no-loader"),
        (with_reason("bad-manifest"), "broken", "bad-manifest"),
        (BackendUnavailableError("none"), "absent", "no-device"),
        (DriverError("refused"), "broken", "open-failed"),
        (RuntimeError("a bug"), "broken", "open-failed"),
    ],
)
def test_driver_that_does_not_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, status: str, code: str
) -> None:
    events = probe(monkeypatch, tmp_path, Failing("enumerate", error))
    assert [e["event"] for e in events] == ["step", "step", "failed"]
    assert (events[-1]["status"], events[-1]["code"]) == (status, code)


def test_reason_of_a_backend_is_not_said_twice() -> None:
    assert protocol.reason_of(with_reason("no-device"), "open-failed").detail == "the facts"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (with_reason("no-compute"), "absent", "no-compute"),
        (DriverError("refused"), "broken", "open-failed"),
        (OutOfMemoryError("full"), "broken", "out-of-memory"),
        (MemoryError("Unable to allocate 2.92 MiB"), "broken", "out-of-memory"),
    ],
)
def test_device_that_does_not_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, status: str, code: str
) -> None:
    event = device_event(probe(monkeypatch, tmp_path, Failing("open", error)))
    assert (event["status"], event["code"], event["caps"]) == (status, code, {})


def test_skipped_device_is_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = Failing("open", AssertionError("it was opened"))
    events = probe(monkeypatch, tmp_path, backend, frozenset({0}))
    assert [e["event"] for e in events if e["event"] != "step"] == ["devices"]


def test_every_code_has_a_status() -> None:
    assert set(protocol.STATUS_OF) <= set(SENTENCES)
    assert set(protocol.STATUS_OF.values()) <= set(STATUSES)


def test_lines_of_the_result_stand_alone(tmp_path: Path) -> None:
    path = tmp_path / "result"
    channel = EventChannel(str(path), TOKEN)
    channel.step("open", 0)
    channel.step("open", 0)
    channel.step("open", 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(e["step"], e["index"], e["token"]) for e in lines] == [
        ("open", 0, TOKEN),
        ("open", 1, TOKEN),
    ]


@pytest.mark.parametrize("takes_its_number", [False, True])
def test_a_driver_that_closes_the_files_of_others_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, takes_its_number: bool
) -> None:
    """What it opens under the same number afterwards is not written to."""
    path, theirs = tmp_path / "result", tmp_path / "theirs"

    class Robbing(NullBackend):
        def open(self, info: DeviceInfo, **options: Any) -> Any:
            os.close(number)
            if takes_its_number:
                other = os.open(theirs, os.O_CREAT | os.O_WRONLY)
                if other != number:
                    os.dup2(other, number)
                    os.close(other)
            return super().open(info, **options)

    def leave(status: int) -> None:
        assert status == ROBBED
        raise SystemExit(status)

    monkeypatch.setattr(backends, "load", lambda name: Robbing())
    monkeypatch.setattr(os, "_exit", leave)
    channel = EventChannel(str(path), TOKEN)
    number = channel._fd
    with pytest.raises(SystemExit):
        child.LevelProbe(channel, time.monotonic() + 60.0).run(CANDIDATE)
    events = written(path)
    (row,) = judge(CANDIDATE, Transcript(events, 0, Ending("exit", ROBBED), "", 1.0))[0]
    assert (row.status, row.code) == ("crashed", "exited")
    assert "closed files that are not its own while opening the device" in row.reason
    if takes_its_number:
        assert theirs.read_bytes() == b""
        os.close(number)
