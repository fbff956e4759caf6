"""Policy: every field checked, and the message names it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gpuedge.core.errors import ConfigError
from gpuedge.core.record import plain, read
from gpuedge.decide.decision_record import DecisionRecord, DeviceCandidate
from gpuedge.decide.policy import Policy


def test_defaults_are_the_contract() -> None:
    policy = Policy()
    assert (policy.min_speedup, policy.percentile, policy.allow_software) == (1.1, 90, False)
    assert (policy.decide, policy.monitor, policy.storage) == ("service", True, "float32")
    assert (policy.crosscheck, policy.watchdog_s) == (1 / 256, None)
    assert (policy.deadline_s, policy.max_memory_bytes) == (None, None)
    assert (policy.speedup_milli, policy.deadline_ns) == (1100, None)
    assert Policy(deadline_s=1 / 60).deadline_ns == 16_666_667


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_speedup", 0.99), ("min_speedup", float("nan")), ("min_speedup", float("inf")),
        ("min_speedup", "1.2"), ("min_speedup", True), ("min_speedup", None),
        ("percentile", 0), ("percentile", 100), ("percentile", 90.0), ("percentile", True),
        ("allow_software", 1), ("allow_software", "yes"), ("allow_software", None),
        ("decide", "later"), ("decide", None), ("decide", ["load"]), ("decide", "Service"),
        ("crosscheck", -0.1), ("crosscheck", 1.01), ("crosscheck", float("nan")),
        ("crosscheck", True),
        ("crosscheck", None), ("crosscheck", "1/256"),
        ("watchdog_s", 0), ("watchdog_s", -1.0), ("watchdog_s", 1e6), ("watchdog_s", True),
        ("watchdog_s", float("nan")), ("watchdog_s", float("inf")), ("watchdog_s", "2"),
        ("deadline_s", 0), ("deadline_s", -1.0), ("deadline_s", 1e4), ("deadline_s", True),
        ("deadline_s", float("nan")), ("deadline_s", "1"), ("max_memory_bytes", 0),
        ("max_memory_bytes", 1.5), ("max_memory_bytes", True), ("max_memory_bytes", 2**63),
        ("monitor", 1), ("monitor", None), ("min_speedup", 10**400), ("deadline_s", 10**400),
    ],
)  # fmt: skip
def test_bad_value_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Policy\.{name} cannot be") as caught:
        Policy(**{name: value})
    assert caught.value.code == "GE-101"
    assert name in str(caught.value.asked_by)
    assert name in str(caught.value.known)


def test_round_trip_through_json() -> None:
    policy = Policy(1.5, 50, True, "load", "float16")
    assert read(Policy, json.loads(json.dumps(plain(policy)))) == policy


def test_what_watches_a_device_is_recorded_exactly() -> None:
    policy = Policy(crosscheck=1 / 3, watchdog_s=0.25)
    assert plain(policy)["crosscheck"] == 1 / 3
    assert plain(policy)["watchdog_s"] == 0.25
    assert read(Policy, json.loads(json.dumps(plain(policy)))) == policy
    assert Policy(crosscheck=0).crosscheck == 0.0
    assert Policy(crosscheck=1).crosscheck == 1.0


def test_record_holds_every_field_of_the_policy() -> None:
    policy = Policy(deadline_s=0.02, max_memory_bytes=1 << 20, decide="load", monitor=False)
    record = DecisionRecord("cpu", policy, (DeviceCandidate("cpu", is_software=False),), "0.1.0")
    saved = json.loads(json.dumps(plain(record)))
    assert set(saved["policy"]) == set(Policy.__dataclass_fields__) - {"calibration", "max_shapes"}
    assert read(DecisionRecord, saved) == record
    assert read(DecisionRecord, saved).policy.decide == "load"


@pytest.mark.parametrize("name", ["inferences", "calibration_s", "prefer", "caution"])
def test_fields_of_earlier_versions_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        Policy(**{name: 1})


def test_speedup_is_compared_in_thousandths() -> None:
    assert Policy(min_speedup=1.1).speedup_milli == 1100
    assert Policy(min_speedup=1.23456).min_speedup == 1.235
    assert plain(Policy(min_speedup=2))["min_speedup"] == 2.0


def test_importing_policy_and_decision_loads_no_numpy() -> None:
    code = (
        "import sys, gpuedge.decide.policy, gpuedge.decide.decision, gpuedge.decide.history\n"
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'vulkan') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["min_speedup", "percentile", "deadline_s", "storage"])
def test_a_number_too_long_to_be_written_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Policy.{name} cannot be this int"):
        Policy(**{name: 10**10_000})
