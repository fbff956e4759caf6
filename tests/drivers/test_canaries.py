"""Canaries on real drivers: right ones are never suspected, whatever the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from farm import FARM, environment_of

pytestmark = [pytest.mark.driver, pytest.mark.timeout(300)]

CHILD = """
import json, sys
import numpy as np
import gpuedge
from gpuedge.conformance.networks import NETWORKS

found = {}
for name, make in NETWORKS.items():
    for data in ("random", "integers"):
        model, feeds, _ = make(np.random.default_rng(11), data)
        rules = gpuedge.Policy(canary=1.0, storage=sys.argv[2])
        options = {"device": sys.argv[1], "policy": rules}
        with gpuedge.Session(model, fallback="error", **options) as session:
            for _ in range(3):
                session.run(feeds)
            found[f"{name} {data}"] = session.health.to_dict()
print(json.dumps(found))
"""

CASES = [
    ("vulkan-lavapipe", "float32"),
    ("vulkan-swiftshader", "float32"),
    ("gles20-llvmpipe", "float32"),
    ("gles20-llvmpipe", "float16"),
    ("gles20-llvmpipe", "fixed16"),
]


def healths(name: str, storage: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Run every network of the conformance suite three times, each run compared."""
    hint = FARM[name].missing()
    if hint:
        words = f"no driver for {name}: {hint}"
        if os.environ.get("GPUEDGE_REQUIRE_DRIVERS") == "1":
            pytest.fail(words)
        pytest.skip(words)
    environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(folder)}
    probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
    subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, FARM[name].device, storage],
        env=environ, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_right_driver_passes_every_network(name: str, storage: str, tmp_path: Path) -> None:
    found = healths(name, storage, tmp_path)
    assert len(found) >= 16
    for network, health in found.items():
        assert health["state"] == "ok", network
        assert (health["on_device"], health["on_cpu"]) == (3, 0), network
        assert health["canaries_failed"] == 0, network
        if storage == "fixed16":
            assert health["canaries"] == 0, network
            assert "fixed-point" in health["canary_note"], network
        else:
            assert (health["canaries"], health["canary_note"]) == (3, ""), network
