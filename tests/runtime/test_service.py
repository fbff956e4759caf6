"""Real drivers that fail while they serve: no answer is lost or wrong; the device comes back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import FARM, environment_of, require

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "faults"))

import kit  # noqa: E402

pytestmark = [pytest.mark.driver, pytest.mark.timeout(300)]

CHILD = Path(__file__).with_name("service_child.py")
CAMPAIGN = ROOT / "tools" / "loss_campaign.py"
ENDS_S = 120.0
VULKAN, GLES = "vulkan-lavapipe", "gles31-llvmpipe"


def long(*values: str) -> Any:
    """Return a case that only the long tests try."""
    return pytest.param(*values, marks=pytest.mark.long)


BOTH = [VULKAN, long(GLES)]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a scenario; drivers are probed once."""
    base = tmp_path_factory.mktemp("service")
    numbers = count()

    @cache
    def environment(name: str) -> dict[str, str]:
        require(name)
        environ = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(base / name)}
        probing = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "60"]
        subprocess.run(probing, env=environ, check=True, capture_output=True, timeout=120)
        return environ

    def scenario(name: str, what: str, isolation: str, fault: str = "") -> dict[str, Any]:
        environ = dict(environment(name))
        cache = base / f"{next(numbers)}"  # what crash memory learns is for one scenario
        if fault:
            backend = FARM[name].device
            environ |= kit.build().environment(backend, fault, FARM[name].environment())
        else:
            shutil.copytree(environ["GPUEDGE_CACHE_DIR"], cache)
        environ["GPUEDGE_CACHE_DIR"] = str(cache)
        command = [sys.executable, str(CHILD), what, FARM[name].device, isolation]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=ENDS_S
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert found["wrong"] == 0
        assert found["on_device"] + found["on_cpu"] == found["as_cpu"] + found["as_device"]
        assert found["crosschecks"] >= 1 and found["crosschecks_failed"] == 0
        if not fault:
            found["probed"] = probed(environ)
        return found

    return scenario


def probed(environ: dict[str, str]) -> set[str]:
    """Return the codes that the next process sees."""
    asking = [sys.executable, "-m", "gpuedge", "probe", "--json"]
    done = subprocess.run(asking, env=environ, capture_output=True, check=False, timeout=60)
    return {row["code"] for row in json.loads(done.stdout)["tried"]}


def codes(found: dict[str, Any]) -> list[str]:
    return [failure["code"] for failure in found["failures"]]


@pytest.mark.parametrize("name", BOTH)
def test_worker_that_is_killed_is_started_anew_twice(run: Run, name: str) -> None:
    found = run(name, "kill", "process")
    assert found["first"] == "as_cpu"
    assert codes(found) == ["worker-died"] * 3
    assert found["state"] == "demoted" and "3 times in 10 minutes" in found["reason"]
    assert "crash-blocklist" not in found["probed"]  # they were killed from outside


@pytest.mark.parametrize("name", BOTH)
def test_worker_that_stands_still_is_given_up_by_the_watchdog(run: Run, name: str) -> None:
    found = run(name, "stop", "process")
    assert found["first"] == "as_cpu"
    assert codes(found) == ["device-hung"] and found["state"] == "ok"
    assert "crash-blocklist" not in found["probed"]
    assert 0.5 <= found["slowest_s"] < 60  # two seconds are for the call before the wait


@pytest.mark.parametrize(
    ("mode", "isolation", "fault", "code"),
    [
        long("faulty", "inline", "lost@submit:40", "device-lost"),
        long("faulty", "process", "lost@submit:40", "device-lost"),
        long("faulty", "inline", "oom-device@submit:40", "out-of-memory"),
        ("faulty", "inline", "code-999@submit:40", "run-failed"),
        ("faulty", "process", "segv@submit:40", "worker-died"),
        ("faulty-pieces", "process", "hang@submit:40", "device-hung"),
        ("faulty-pieces", "inline", "lost@submit:41", "device-lost"),
        long("faulty-pieces", "process", "segv@submit:41", "worker-died"),
    ],
)
def test_fault_of_a_driver_is_answered_by_the_cpu(
    run: Run, mode: str, isolation: str, fault: str, code: str
) -> None:
    found = run(VULKAN, mode, isolation, fault)
    assert codes(found) == [code] and found["state"] == "ok"
    assert found["slowest_s"] < 60


@pytest.mark.parametrize("fault", [long("hang@submit:40"), "hang@compile:1"])
def test_driver_that_hangs_in_its_worker_is_answered_by_the_cpu(run: Run, fault: str) -> None:
    found = run(VULKAN, "faulty", "process", fault)
    assert codes(found) == ["device-hung"] and found["state"] == "ok"
    assert found["slowest_s"] < 60  # two seconds, for submitting
    assert found["opened_s"] < 60  # three, for compiling


@daily.day(0, of=3)
@pytest.mark.parametrize("what", [long("slow"), "pieces"])
@pytest.mark.parametrize("isolation", ["inline", long("process")])
def test_run_that_takes_long_is_not_given_up_while_there_is_progress(
    run: Run, isolation: str, what: str
) -> None:
    found = run(VULKAN, what, isolation)
    assert found["slowest_s"] > 2 * found["limit_s"]
    assert (found["state"], found["failed"], found["on_device"]) == ("ok", 0, 1)


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_campaign_of_losses(tmp_path: Path, isolation: str) -> None:
    out = tmp_path / "loss.json"
    command = [
        sys.executable, str(CAMPAIGN), "--isolation", isolation, "--n", "160",
        "--chunk-size", "80", "--fault", "lost@submit~0.03", "--out", str(out),
    ]  # fmt: skip
    environ = environment_of(VULKAN)
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    found = json.loads(out.read_text(encoding="utf-8"))
    assert done.returncode == 0 and found["is_good"], (found, done.stderr[-2000:])
    assert found["requests"] == found["on_device"] + found["on_cpu"] == 160
    assert found["failed"] >= 2 and found["on_device"] > 0 and found["lost"] == 0
    again = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert again.returncode == 0 and again.stderr == ""  # nothing was left to do
