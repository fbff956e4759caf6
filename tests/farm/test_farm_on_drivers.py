"""A farm of processes on real drivers: workers are killed, hang and lie, and nothing is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import farm as drivers
import pytest
from daily import some
from farm_processes import Farm

from gpuedge.conformance.catalogue import everything

ONLY = ("add/*", "matmul/*", "softmax/*")
WORKERS = {
    "lavapipe-1": "vulkan-lavapipe",
    "lavapipe-2": "vulkan-lavapipe",
    "swiftshader-1": "vulkan-swiftshader",
    "swiftshader-2": "vulkan-swiftshader",
    "llvmpipe31-1": "gles31-llvmpipe",
    "llvmpipe31-2": "gles31-llvmpipe",
    "llvmpipe20-1": "gles20-llvmpipe",
}


def wanted() -> set[str]:
    ops = {glob.partition("/")[0] for glob in ONLY}
    return {c.id for c in everything("smoke") if c.op in ops}


def shards_of(store: Path) -> list[tuple[dict[str, Any], list[str]]]:
    """Return the header and the names of the cases of each shard."""
    found = []
    for file in sorted((store / "shards").glob("*.jsonl")):
        header, *rows = map(json.loads, file.read_text().splitlines())
        found.append((header, [row["id"] for row in rows]))
    return found


def until(store: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many shards are in the store."""
    ends = time.monotonic() + 200
    while len(list(store.glob("shards/*.jsonl"))) < count:
        assert process.poll() is None and time.monotonic() < ends, process.communicate()
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.timeout(900)
def test_workers_that_die_hang_and_lie(tmp_path: Path) -> None:
    store = tmp_path / "store"
    only = [word for glob in ONLY for word in ("--only", glob)]
    with Farm(tmp_path) as farm:
        fates = {"swiftshader-2": "lie"}
        keys = {
            serial: farm.worker(serial, name, fates.get(serial, ""))["devices"][0]["key"]
            for serial, name in WORKERS.items()
        }
        farm.worker("old", "vulkan-lavapipe", "old")
        farm.worker("claims", "vulkan-lavapipe", "claim")
        asked = ["--store", str(store), *only, "--shards", "8", "--stall-timeout", "30",
                 "--case-timeout", "20", "--verify", "0.25", "--seed", "3", "--wait", "8",
                 "--grace", "10"]  # fmt: skip
        running = farm.run(*asked)
        until(store, 4, running)
        farm.processes["lavapipe-2"].kill()
        farm.processes["llvmpipe31-2"].send_signal(signal.SIGSTOP)
        until(store, 10, running)
        running.kill()  # the client dies, too; the scheduler and the workers live
        running.communicate()
        before = {f: f.stat().st_mtime_ns for f in store.glob("shards/*.jsonl")}
        again = farm.run("--store", str(store), "--resume", "--stall-timeout", "30",
                         "--case-timeout", "20", "--grace", "10")  # fmt: skip
        out, log = again.communicate(timeout=600)
    body = json.loads(out)
    print(log, json.dumps({n: v for n, v in body.items() if n != "not_run"}, indent=1))
    devices = {one["key"]: one for one in body["devices"]}
    names = wanted()
    claimed = set(devices) - set(keys.values())
    assert len(claimed) == 1 and len(set(keys.values())) == 4
    by_key: dict[str, Counter[str]] = {}
    for header, ids in shards_of(store):
        by_key.setdefault(header["farm"]["task"].split("/")[1].split(".")[0], Counter()).update(ids)
    for key in set(keys.values()):
        assert by_key[key] == dict.fromkeys(names, 1), "lost or doubled"
        assert devices[key]["counts"]["not_run"] == 0
    assert claimed.isdisjoint(by_key), "rows of a device that nobody has"
    assert devices[claimed.pop()]["counts"] == {"not_run": len(names)}
    assert all(n.startswith(f"shards/{k}") for n in body["not_run"] for k in devices if k in n)
    kept = [f for f, when in before.items() if f.exists() and f.stat().st_mtime_ns == when]
    lost = [f for f in before if f not in kept]
    assert len(kept) >= len(before) - 2, lost  # but for what the liar gave before it was found
    everyone = " ".join(row["serial"] for row in body["excluded"])
    assert "old" in everyone and "claims" in everyone
    refused = [json.loads(f.read_text())["why"] for f in store.glob("refused/*.json")]
    assert any("swiftshader-2" in why and "twice" in why for why in refused)
    assert any("claims" in why and "Adreno" in why for why in refused)
    assert {row["worker"] for row in body["moved"]} <= {
        "claims", "lavapipe-2", "llvmpipe31-2", "swiftshader-2"
    }, "a good worker lost its shard"  # fmt: skip
    assert again.returncode == 1 and body["disagreements"] == []
    # of devices whose second one was killed, stopped or lied, nothing can be verified any more
    assert body["verified"] + len(body["unverified"]) > 0


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.timeout(600)
def test_a_scheduler_that_dies_costs_no_finished_shard(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Farm(tmp_path) as farm:
        farm.worker("one", "vulkan-lavapipe")
        running = farm.run("--store", str(store), "--only", "matmul/*", "--shards", "8")
        until(store, 2, running)
        farm.processes["scheduler"].kill()
        out, log = running.communicate(timeout=120)
        assert farm.processes["one"].wait(120) == 4, "a supervisor starts it again"
    assert running.returncode == 4 and json.loads(out)["code"] == "GE-407", log
    assert "distributed" not in log
    before = {f: f.stat().st_mtime_ns for f in store.glob("shards/*.jsonl")}
    assert 2 <= len(before) < 8
    (tmp_path / "second").mkdir()
    with Farm(tmp_path / "second") as farm:
        farm.worker("one", "vulkan-lavapipe")
        again = farm.run("--store", str(store), "--resume")
        out, log = again.communicate(timeout=400)
    assert again.returncode == 0, log
    assert all(f.stat().st_mtime_ns == when for f, when in before.items())
    names = sorted(name for _, ids in shards_of(store) for name in ids)
    assert names == sorted(c.id for c in everything("smoke") if c.op == "matmul")


CONFIGURATIONS = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles20-llvmpipe")


@pytest.mark.driver
@pytest.mark.parametrize("name", some(CONFIGURATIONS, len(CONFIGURATIONS)))
def test_the_devices_of_this_machine(name: str, tmp_path: Path) -> None:
    drivers.require(name)
    environ = drivers.environment_of(name) | {"GPUEDGE_CACHE_DIR": str(drivers.cache(name))}
    command = [sys.executable, "-m", "gpuedge", "farm", "run", "--store", str(tmp_path / "s"),
               "--only", "add/float32/*", "--device", drivers.FARM[name].device]  # fmt: skip
    done = subprocess.run(
        [*command, "--json"], env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    wanted = [c.id for c in everything("smoke") if c.id.startswith("add/float32/")]
    assert sorted(n for _, ids in shards_of(tmp_path / "s") for n in ids) == sorted(wanted)
    assert device["counts"]["passed"] > 0 and device["counts"]["not_run"] == 0
