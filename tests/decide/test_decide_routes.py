"""Several routes to one device: the best is taken, others only where it cannot be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from decide_fakes import FakeRow, edge_gpu
from test_decide_choose import Bench

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.decide.store import CalibrationStore


def route(device: str, physical: str = "gpu", **more: object) -> FakeRow:
    return FakeRow(device, name=physical, physical=physical, **more)  # type: ignore[arg-type]


def bench(*devices: str) -> Bench:
    return Bench(speeds={device: edge_gpu() for device in devices})


def codes(decision: Decision) -> dict[str, str]:
    return {r.device: r.code for r in decision.rows}


def test_only_the_best_route_is_opened_and_measured() -> None:
    made = bench("vulkan:0", "gles31:0", "wgpu:0")
    decision = made.choose(route("vulkan:0"), route("gles31:0"), route("wgpu:0"))
    assert made.opened == ["vulkan:0"]
    assert codes(decision) == {
        "vulkan:0": "selected", "gles31:0": "other-route", "wgpu:0": "other-route",
        "cpu": "not-best",
    }  # fmt: skip
    assert "the best route to this device, before gles31:0 and wgpu:0" in decision.reason
    assert decision.reason.count("\n") == 0
    (other,) = (r for r in decision.rows if r.device == "wgpu:0")
    assert other.reason == "the same device is reached by a better API route, vulkan:0"


def test_next_route_is_taken_where_the_best_cannot_run_the_model() -> None:
    made = bench("vulkan:0", "gles31:0")
    made.refuse["vulkan:0"] = UnsupportedOpError("Resize has no kernel there.")
    decision = made.choose(route("vulkan:0"), route("gles31:0"))
    assert (decision.device, made.opened) == ("gles31:0", ["gles31:0"])
    assert "vulkan:0, the better API route to this device, was left out: Resize" in decision.reason


def test_next_route_is_taken_where_the_best_does_not_work() -> None:
    broken = route("vulkan", status="crashed", code="crashed", reason="it crashed")
    made = bench("gles31:0")
    decision = made.choose(broken, route("gles31:0"))
    assert decision.device == "gles31:0"


def test_next_route_is_taken_where_the_best_fails_to_calibrate() -> None:
    made = bench("vulkan:0", "gles31:0")
    made.speeds.pop("vulkan:0")
    real = made.open

    def open_one(device: str) -> object:
        if device == "vulkan:0":
            from gpuedge.core.errors import DriverError

            made.opened.append(device)
            raise DriverError("It refused.")
        return real(device)

    made.open = open_one  # type: ignore[method-assign, assignment]
    decision = made.choose(route("vulkan:0"), route("gles31:0"))
    assert made.opened == ["vulkan:0", "gles31:0"]
    assert decision.device == "gles31:0"
    assert codes(decision)["vulkan:0"] in ("open-failed", "not-calibrated")


def test_best_route_of_each_device_is_considered() -> None:
    made = bench("vulkan:0", "vulkan:1")
    rows = (route("vulkan:0"), route("gles31:0"), route("vulkan:1", "b"), route("gles31:1", "b"))
    decision = made.choose(*rows)
    assert made.opened == ["vulkan:0", "vulkan:1"]
    assert codes(decision)["gles31:1"] == "other-route"


def test_calibration_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A route that was measured before, such as while the better one was broken, may win."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    fast = edge_gpu()
    slow = fast.scaled(0.125)
    store = CalibrationStore()
    made = Bench(speeds={"vulkan:0": slow, "gles31:0": fast})
    alone = made.choose(route("gles31:0"), store=store)
    assert alone.device == "gles31:0"
    decision = made.choose(route("vulkan:0"), route("gles31:0"), store=store)
    assert decision.device == "gles31:0"
    assert "vulkan:0, the better API route to this device, was left out" in decision.reason
    assert made.opened == ["gles31:0", "vulkan:0"]


def test_decision_with_routes_replays_to_the_same_bytes() -> None:
    made = bench("vulkan:0", "gles31:0")
    text = made.choose(route("vulkan:0"), route("gles31:0")).to_json()
    assert Decision.from_dict(json.loads(text)).replay().to_json() == text
    assert '"physical":"gpu"' in text


def test_software_is_told_once_for_all_its_routes() -> None:
    def soft(device: str, physical: str) -> Evidence:
        return Evidence(device, name=physical, is_software=True, physical=physical)

    record = Record(
        "auto", Policy(),
        (soft("vulkan:0", "a"), soft("gles31:0", "a"), soft("vulkan:1", "b"), soft("gles31:1", "b"),
         replace(soft("wgpu:0", "a"), code="deadline", detail="it hung"),
         Evidence("wgpu", "no-device"), Evidence("gles20", "no-candidates"),
         Evidence("cpu", is_software=False)),
        "1",
    )  # fmt: skip
    decision = decide(record)
    assert decision.reason == (
        "Runs on cpu: vulkan:0 (a) is a software rasteriser, excluded unless "
        "Policy(allow_software=True); 1 other candidate was rejected too."
    )
    assert "1 driver without a device, 1 API without a driver" in str(decision)


def test_other_routes_are_no_other_candidates() -> None:
    candidates = tuple(
        Evidence(d, name="a", is_software=True, physical="a") for d in ("vulkan:0", "gles31:0")
    )
    decision = decide(Record("auto", Policy(), (*candidates, Evidence("cpu")), "1"))
    assert decision.reason.endswith("excluded unless Policy(allow_software=True).")
