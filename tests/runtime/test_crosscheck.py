"""Cross-checks on real drivers: right ones are never suspected, whatever the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import FARM, environment_of, require

pytestmark = [pytest.mark.driver, pytest.mark.timeout(300), daily.day(3, of=4)]

CHILD = """
import json, sys
import numpy as np
import gpuedge
from gpuedge.conformance.networks import NETWORKS

found = {}
for name, make in list(NETWORKS.items())[:int(sys.argv[3])]:
    for data in ("random", "integers"):
        model, feeds, _ = make.make(np.random.default_rng(11), data)
        rules = gpuedge.Policy(crosscheck=1.0, storage=sys.argv[2])
        options = {"device": sys.argv[1], "policy": rules}
        with gpuedge.Session(model, fallback="error", **options) as session:
            for _ in range(3):
                session.run(feeds)
            found[f"{name} {data}"] = session.health.to_dict()
print(json.dumps(found))
"""

CASES = [
    ("vulkan-lavapipe", "float32"),
    pytest.param("vulkan-swiftshader", "float32", marks=pytest.mark.long),
    pytest.param("gles20-llvmpipe", "float32", marks=pytest.mark.long),
    ("gles20-llvmpipe", "float16"),
    ("gles20-llvmpipe", "fixed16"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches by driver, so that each is probed once."""
    return tmp_path_factory.mktemp("crosscheck")


def healths(
    name: str, storage: str, folder: Path, networks: int, code: str = CHILD
) -> dict[str, dict[str, Any]]:
    """Run networks (of the conformance suite) three times, each run compared."""
    require(name)
    environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(folder / name)}
    if not (folder / name).exists():
        probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
        subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [sys.executable, "-c", code, FARM[name].device, storage, str(networks)],
        env=environ, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("name", "storage"), CASES)
def test_a_right_driver_passes_every_network(name: str, storage: str, folder: Path) -> None:
    networks = 2 if storage == "fixed16" else 100  # of which nothing is compared
    found = healths(name, storage, folder, networks)
    assert len(found) == 4 if storage == "fixed16" else len(found) >= 16
    for network, health in found.items():
        assert health["state"] == "ok", network
        assert (health["on_device"], health["on_cpu"]) == (3, 0), network
        assert health["crosschecks_failed"] == 0, network
        if storage == "fixed16":
            assert health["crosschecks"] == 0, network
            assert "fixed-point" in health["crosscheck_note"], network
        else:
            assert (health["crosschecks"], health["crosscheck_note"]) == (3, ""), network


DRIVERS = [
    "vulkan-lavapipe", "gles20-llvmpipe",
    pytest.param("vulkan-swiftshader", marks=pytest.mark.long),
    pytest.param("gles31-llvmpipe", marks=pytest.mark.long),
]  # fmt: skip

ODD = """
import json, sys
import numpy as np
import gpuedge
from onnx import TensorProto, helper

found = {}
for op, odd in [("Log", 2e-39), ("Reciprocal", 9e-39), ("Sin", 3e38), ("Sqrt", 1e-40)]:
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [4])] for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", *ends)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = {"device": sys.argv[1], "policy": gpuedge.Policy(crosscheck=1.0)}
    with gpuedge.Session(model, **options) as session:
        for value in (2, odd, odd):
            session.run({"x": np.array([1, 2, 3, value], np.float32)})
        found[op] = session.health.to_dict()
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", DRIVERS)
def test_operands_that_nothing_is_promised_about_are_no_drift(name: str, folder: Path) -> None:
    """Denormal numbers, which these drivers take for zero or worse, and the sine of 3e38."""
    found = healths(name, "float32", folder, 0, ODD)
    assert len(found) == 4
    for op, health in found.items():
        assert health["state"] == "ok", (op, health)
        assert (health["on_device"], health["crosschecks"]) == (3, 3), op
        assert health["crosschecks_failed"] == 0, op


QUANTISED = """
import json, sys
import numpy as np
import gpuedge
from gpuedge.conformance.networks import NETWORKS

found = {}
for name, make in NETWORKS.items():
    model, feeds, _ = make.make(np.random.default_rng(11), "random")
    made = gpuedge.quantize(model, [feeds])
    options = {"device": sys.argv[1], "policy": gpuedge.Policy(crosscheck=1.0)}
    with gpuedge.Session(made, **options) as session:
        for shift in (0, 0.25, -0.5):
            session.run({n: a + np.float32(shift) for n, a in feeds.items()})
        found[name] = session.health.to_dict()
print(json.dumps(found))
"""


@pytest.mark.parametrize("name", DRIVERS)
def test_a_right_driver_passes_quantised_networks(name: str, folder: Path) -> None:
    found = healths(name, "float32", folder, 0, QUANTISED)
    assert len(found) >= 8
    for network, health in found.items():
        assert health["state"] == "ok", (network, health)
        assert (health["on_device"], health["crosschecks"]) == (3, 3), network
        assert health["crosschecks_failed"] == 0, network
        assert (health["crosschecks_not_compared"], health["crosscheck_note"]) == (0, ""), network
