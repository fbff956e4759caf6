"""Applications that are killed in steady service keep their device; a driver that crashes does not.

On real drivers: one of each kind of marker is written by the product's own way of opening and
running, so this shows that nothing on that way takes a kill for a crash, and no crash for a kill.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import daily
import kill_worker
import kit
import pytest
from farm import environment_of, require
from required import absent

from gpuedge.safety.blocklist import Blocklist

CONFIGURATIONS = ("vulkan-lavapipe", "gles20-llvmpipe")
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
LONGEST_S = 0.02
"""After that a worker in service has met every state that it can be in, many times."""

BESIDE = 2
"""Workers that run at a time."""

SUBMIT = {"vulkan": "segv@submit:40", "gles20": "segv@submit:400"}
"""A crash in service, well behind the first runs."""


def probe(environment: Mapping[str, str]) -> None:
    """Learn the verdict that every worker then finds on disk."""
    code = "import gpuedge; r = gpuedge.probe(deadline_s=60); print(r); assert r.best"
    command = [sys.executable, "-c", code]
    told = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=90, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


@contextmanager
def worker(device: str, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, kill_worker.__file__, device]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=dict(environment), text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def killed(device: str, environment: Mapping[str, str], count: int, dice: random.Random) -> None:
    """Start a worker so many times, and kill it at a random moment in service."""
    with worker(device, environment) as one, worker(device, environment) as other:
        for number, process in enumerate((one, other)):
            assert said(process) == "ready\n"
            time.sleep(dice.uniform(0, LONGEST_S))
            process.send_signal(how := SIGNALS[(count + number) % 2])
            assert process.wait(60) == -how


@pytest.mark.driver
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", daily.some(CONFIGURATIONS))
def test_device_stays_in_use_however_often_its_applications_are_killed(
    name: str, rounds: int, tmp_path: Path
) -> None:
    require(name)
    device = name.partition("-")[0]
    environment = {**environment_of(name), "GPUEDGE_CACHE_DIR": str(tmp_path)}
    probe(environment)
    dice = random.Random(7)
    for at in range(rounds):
        killed(device, environment, at // 2, dice)
    assert Blocklist(tmp_path).entries() == {}
    with worker(device, environment) as last:
        assert said(last) == "ready\n", "and it is in use"


@pytest.mark.driver
@pytest.mark.parametrize("api", daily.some(["gles20", "vulkan"]))
def test_driver_that_crashes_in_service_is_left(api: str, tmp_path: Path) -> None:
    try:
        made = kit.build()
    except kit.BuildError as error:
        absent(str(error))
    variables = made.environment(api, SUBMIT[api])
    environment = {**os.environ, **variables, "GPUEDGE_CACHE_DIR": str(tmp_path)}
    environment["GPUEDGE_BACKENDS"] = api
    fault = environment.pop("GPUFAULT")
    probe(environment)
    environment["GPUFAULT"] = fault
    for count in (1, 2):
        with worker(api, environment) as process:
            assert said(process) == "ready\n"
            assert process.wait(60) == -signal.SIGSEGV
        (crashes,) = Blocklist(tmp_path).entries().values()
        assert [(c.step, c.why) for c in crashes] == [("run", "SIGSEGV")] * count
    with worker(api, environment) as third:
        assert "ended earlier processes" in said(third)
        assert third.wait(60) == 3
