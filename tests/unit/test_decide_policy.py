"""Policy: every field checked, and the message names it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gpuedge.core.errors import ConfigError
from gpuedge.decide.policy import Policy


def test_defaults_are_the_contract() -> None:
    policy = Policy()
    assert (policy.min_speedup, policy.percentile, policy.allow_software) == (1.2, 90, False)
    assert (policy.inferences, policy.calibration_s) == (1000, 2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_speedup", 0.99), ("min_speedup", float("nan")), ("min_speedup", float("inf")),
        ("min_speedup", "1.2"), ("min_speedup", True), ("min_speedup", None),
        ("percentile", 0), ("percentile", 100), ("percentile", 90.0), ("percentile", True),
        ("allow_software", 1), ("allow_software", "yes"), ("allow_software", None),
        ("inferences", 0), ("inferences", -1), ("inferences", 1e3), ("inferences", False),
        ("calibration_s", -0.1), ("calibration_s", 61), ("calibration_s", float("nan")),
    ],
)  # fmt: skip
def test_bad_value_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Policy\.{name} cannot be") as caught:
        Policy(**{name: value})
    assert caught.value.code == "GE-101"
    assert name in str(caught.value.asked_by)
    assert name in str(caught.value.known)


def test_round_trip_through_json() -> None:
    policy = Policy(1.5, 50, True, 7, 0.25)
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert Policy.from_dict({}) == Policy()


def test_unknown_field_suggests_the_near_one() -> None:
    with pytest.raises(ConfigError) as caught:
        Policy.from_dict({"min_speed_up": 2})
    assert "min_speedup" in str(caught.value.hint)


def test_speedup_is_compared_in_thousandths() -> None:
    assert Policy(min_speedup=1.1).speedup_milli == 1100
    assert Policy(min_speedup=1.23456).min_speedup == 1.235
    assert Policy(min_speedup=2).to_dict()["min_speedup"] == 2.0


def test_importing_policy_and_decision_loads_no_numpy() -> None:
    code = (
        "import sys, gpuedge.decide.policy, gpuedge.decide.decision, gpuedge.decide.store\n"
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'vulkan') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
