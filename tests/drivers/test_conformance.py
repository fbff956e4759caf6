"""The conformance cases on every configuration of the driver farm, as a device farm runs them.

One run of the command for each configuration, in processes with that configuration's environment,
whichever test asks for it first; then every case is a test of its own that looks at its row.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from farm import EXTRA, FARM, environment_of, require

from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.conformance.results import Results, read
from gpuedge.conformance.storing import KEEPERS

pytestmark = [pytest.mark.driver, pytest.mark.timeout(900)]

CONFIGURATIONS = FARM | EXTRA
SHARE = 5
"""A slow configuration takes one part of so many; `make conformance` takes all."""

LEAST, LEAST_SLOW = 500, 100
SMOKE = [spec.id for spec in everything("smoke")]
NAMES = {
    name: [i for i in SMOKE if not one.is_slow or shard_of(i, SHARE) == 1]
    for name, one in CONFIGURATIONS.items()
}


def run(name: str, folder: Path) -> None:
    """Run a configuration's cases; leave their rows in ``NAME.jsonl``."""
    one = CONFIGURATIONS[name]
    environ = {
        **environment_of(name),
        "GPUEDGE_CACHE_DIR": str(folder / f"{name}-cache"),
        "XDG_RUNTIME_DIR": str(folder),
    }
    part = f"1/{SHARE}" if one.is_slow else "1/1"
    command = [sys.executable, "-m", "gpuedge", "conformance", "run", "--device", one.device,
               "--shard", part, "--jsonl", str(folder / f"{name}.jsonl"), "-q"]  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        subprocess.run(command, env=environ, stdout=log, stderr=log, check=False, timeout=840)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Give the results of a configuration, run once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "conformance"
    shared.mkdir(exist_ok=True)

    @cache
    def of(name: str) -> Results:
        require(name)
        log = shared / f"{name}.log"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not log.exists():
                run(name, shared)
        if not (shared / f"{name}.jsonl").exists():
            pytest.fail(f"{name} did not run:\n{log.read_text(errors='replace')[-3000:]}")
        return read(str(shared / f"{name}.jsonl"))[0]

    return of


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in NAMES.items() for c in cases])
def test_case(name: str, case: str, results: Callable[[str], Results]) -> None:
    row = results(name).rows.get(case)
    assert row is not None, "the case was not run"
    assert row["status"] in ("passed", "skipped"), f"{row['status']}: {row.get('reason')}"


@pytest.mark.parametrize("name", NAMES)
def test_only_what_does_not_apply_is_left_out(name: str, results: Callable[[str], Results]) -> None:
    found = results(name)
    caps: dict[str, Any] = found.header["caps"]
    for row in found.rows.values():
        if row["status"] == "skipped":
            kind = KEEPERS[row["storage"]].kind
            lacks_storage = bool(kind) and kind not in caps["storages"]
            lacks_groups = bool(row["variant"]) and "group" not in caps["forms"]
            assert lacks_storage or lacks_groups, row
    counts = Counter(row["status"] for row in found.rows.values())
    assert counts["passed"] >= (LEAST_SLOW if CONFIGURATIONS[name].is_slow else LEAST)


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_is_what_it_says(name: str, results: Callable[[str], Results]) -> None:
    header = results(name).header
    assert header["caps"]["level"] == CONFIGURATIONS[name].device
    assert header["caps"]["is_software"] is True
    said = {"softpipe": "softpipe", "zink": "zink (llvmpipe", "angle": "ANGLE (Google, Vulkan",
            "legacy": "Google SwiftShader", "swiftshader": "SwiftShader Device"}  # fmt: skip
    driver = name.rpartition("-")[2]
    assert said.get(driver, "llvmpipe") in header["identity"]["name"]
    assert driver != "angle" or "SwiftShader" in header["identity"]["name"]
    storages = {"gles20-bare": "rgba8_float", "gles30-bare": "rgba32ui"}
    assert header["caps"]["storages"][0] == storages.get(name, header["caps"]["storages"][0])
