"""The OpenCL plug-in on PoCL: probed, chosen, right and left as our own backends are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import daily
import farm
import pytest
from required import absent

from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.conformance.results import only

pytestmark = pytest.mark.driver

PLUGIN = farm.ROOT / "examples" / "plugins" / "gpuedge-opencl"
ICD = Path("/etc/OpenCL/vendors/pocl.icd")
CHILD = Path(__file__).with_name("opencl_child.py")
SHARES = 199
"""So many shares do the cases of a daily run have."""


def install(folder: Path) -> str:
    """Install the plug-in for processes with this PYTHONPATH, by what its pyproject.toml says."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    groups = project["entry-points"].items()
    points = [f"[{g}]\n" + "".join(f"{n} = {v}\n" for n, v in p.items()) for g, p in groups]
    (info / "entry_points.txt").write_text("\n".join(points))
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(folder), str(PLUGIN / "src"), *([before] if before else [])])


@pytest.fixture(scope="module")
def pocl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that have the plug-in, PoCL, and no other driver."""
    if not ICD.is_file():
        absent("no OpenCL driver: apt-get install -y pocl-opencl-icd")
    if find_spec("pyopencl") is None:
        absent("no pyopencl: pip install pyopencl")
    folder = tmp_path_factory.mktemp("opencl")
    (folder / "kernels").mkdir()
    return {
        **os.environ, **farm.HIDDEN, "OCL_ICD_VENDORS": str(ICD), "GPUEDGE_BACKENDS": "",
        "POCL_CACHE_DIR": str(folder / "kernels"), "GPUEDGE_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": install(folder),
    }  # fmt: skip


def run(
    environment: Mapping[str, str], *command: object, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True,
        timeout=timeout, check=False, cwd=farm.ROOT,
    )  # fmt: skip


def told(environment: Mapping[str, str], *command: object) -> dict[str, Any]:
    """Return what a child of these tests prints."""
    done = run(environment, CHILD, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# --- as a device ----------------------------------------------------------------------------------
@pytest.mark.long
def test_keeps_the_contract_of_devices(pocl: dict[str, str]) -> None:
    done = run(pocl, CHILD, "contract")
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: failure for name, failure, _ in map(json.loads, done.stdout.splitlines())}
    assert len(found) >= 26
    assert {name: why for name, why in found.items() if why is not None} == {}


def smoke(environment: Mapping[str, str], shard: int, shards: int, folder: Path) -> None:
    """Run a share of the cases of the profile; all that apply are right."""
    rows = folder / "rows.jsonl"
    done = run(
        environment, "-m", "gpuedge", "conformance", "run", "--device", "opencl", "--shard",
        f"{shard}/{shards}", "--jobs", 1, "--jsonl", rows, "-q", timeout=1700,
    )  # fmt: skip
    assert rows.exists(), done.stderr[-3000:]
    found = only(str(rows)).rows
    wanted = {s.id for s in everything("smoke") if shard_of(s.id, shards) == shard}
    assert set(found) == wanted
    statuses = [row["status"] for row in found.values()]
    wrong = [row for row in found.values() if row["status"] not in ("passed", "skipped")]
    assert wrong == []
    assert shards > 1 or statuses.count("passed") > 0.7 * len(statuses)


@daily.day(2, of=4)
def test_share_of_the_smoke_profile_is_right(pocl: dict[str, str], tmp_path: Path) -> None:
    smoke(pocl, 1 + daily.turn(SHARES), SHARES, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_whole_smoke_profile_is_right(pocl: dict[str, str], tmp_path: Path) -> None:
    smoke(pocl, 1, 1, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["squeezenet", "u-net"])
def test_network_is_as_onnxruntime_computes_it(pocl: dict[str, str], name: str) -> None:
    row = told(pocl, "network", name)
    assert (row["status"], row["on"]) == ("passed", ["opencl:0"]), row


def test_own_tests_of_the_plug_in_pass(pocl: dict[str, str]) -> None:
    done = run(pocl, "-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN / "tests")
    assert done.returncode == 0, done.stdout[-3000:]


# --- chosen ---------------------------------------------------------------------------------------
def test_auto_leaves_it_aside_as_a_software_rasteriser(pocl: dict[str, str]) -> None:
    found = told(pocl, "chosen")
    assert found["leaves"]["opencl:0"] == "software" and found["answered"] == "cpu"
    assert found["class"] == "cpu-llvm"
    assert found["best"] == "opencl:0" and found["takes"]["opencl:0"] != "software"


FORKED = """
import os, numpy as np, gpuedge
gpuedge.open("opencl").close()
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    gpuedge.relu(np.float32([-1, 2]), device="opencl")
except gpuedge.NoUsableDeviceError as error:
    print(error, flush=True)
    os._exit(7 if gpuedge.relu(np.float32([-1, 2]), device="cpu").tolist() == [0, 2] else 8)
os._exit(9)
"""


def test_a_fork_has_no_device(pocl: dict[str, str]) -> None:
    """PoCL's threads stay when its last device is closed, and a forked child has none of them."""
    done = run(pocl, "-W", "ignore", "-c", FORKED)
    assert done.returncode == 7 and "forked off after a driver was loaded" in done.stdout


# --- faults ---------------------------------------------------------------------------------------
def faulty(environment: Mapping[str, str], fault: str, cache: Path | None = None) -> dict[str, str]:
    """Return the environment with a fault of the fault kit between loader and driver."""
    sys.path[:0] = [str(farm.ROOT / "tests" / "faults")]
    import kit

    layer = {"OPENCL_LAYERS": str(kit.build().library("opencl_layer")), "GPUFAULT": fault}
    return {**environment, **layer, **({"GPUEDGE_CACHE_DIR": str(cache)} if cache else {})}


PROBED = """
import json, gpuedge
report = gpuedge.probe(backends=["opencl", "null"], deadline_s=60)
print(json.dumps([[row.backend, row.status, row.code] for row in report.tried]))
"""


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("segv@create", "crashed", "crashed"),
        ("lost@submit", "broken", "device-lost"),
        ("oom-device@allocate", "broken", "out-of-memory"),
        pytest.param("exit3@compile", "crashed", "exited", marks=pytest.mark.long),
        pytest.param("hang@submit", "timeout", "deadline", marks=pytest.mark.long),
    ],
)
def test_faulty_driver_costs_its_row(
    pocl: dict[str, str], tmp_path: Path, fault: str, status: str, code: str
) -> None:
    done = run(faulty(pocl, f"{fault}:1+", tmp_path / "cache"), "-c", PROBED)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {backend: row for backend, *row in json.loads(done.stdout)}
    assert rows["opencl"] == [status, code] and set(rows) == {"opencl", "null"}


@pytest.mark.parametrize(
    ("fault", "isolation", "code"),
    [
        ("lost@submit:3", "inline", "device-lost"),
        pytest.param("stuck@submit:3", "inline", "device-hung", marks=pytest.mark.long),
        pytest.param("segv@submit:3", "process", "worker-died", marks=pytest.mark.long),
    ],
)
def test_fault_in_service_is_answered_by_the_cpu(
    pocl: dict[str, str], tmp_path: Path, fault: str, isolation: str, code: str
) -> None:
    """The verdict is that of the good driver; the fault comes in a request."""
    good = {**pocl, "GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}
    assert told(faulty(good, "nothing@submit:9999"), "serve", "opencl", isolation)["on"] == [6, 0]
    found = told(faulty(good, fault), "serve", "opencl", isolation)
    assert found["equal"] == [True] * 6
    assert found["codes"] == [code] and found["on"][1] > 0, found


@pytest.mark.long
def test_crashes_in_service_are_remembered(pocl: dict[str, str], tmp_path: Path) -> None:
    good = {**pocl, "GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}
    assert told(good, "serve", "opencl", "inline")["on"] == [6, 0]
    for _ in range(2):  # one alone may be anything
        crashed = run(faulty(good, "segv@submit:3"), CHILD, "serve", "opencl", "inline")
        assert crashed.returncode < 0
    done = run(good, "-m", "gpuedge", "probe", "--backend", "opencl", "--json")
    (row,) = json.loads(done.stdout)["tried"]
    assert (row["status"], row["code"]) == ("blocked", "crash-blocklist")
