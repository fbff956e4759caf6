"""What launches leave for later ones: merged, bounded, and absent where it is damaged."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.core.record import plain
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision_record import DeviceHistory
from gpuedge.decide.history import (
    FILE,
    MAX_DEVICES,
    MAX_LAUNCHES,
    MAX_MODELS,
    SCHEMA,
    History,
    ModelHistory,
    device_key,
)
from gpuedge.safety.store import load_sealed, save_sealed

GPU = DeviceHistory(Belief(-200_000, 90_000, 1), 2 * 10**8, 10**6, 2 * 10**6)


def launch(folder: Path, model: str, requests: int, **more: Any) -> bool:
    """Have one launch keep what it learnt."""
    return History(folder).keep(model, requests, **more)


def kept(folder: Path, model: str) -> tuple[object, ...]:
    """What a new launch finds of a model."""
    found = History(folder).of(model)
    return found.requests, found.cpu_ns, found.devices


def test_later_launch_finds_what_earlier_ones_kept(tmp_path: Path) -> None:
    assert History(tmp_path).of("m") == ModelHistory()
    assert launch(tmp_path, "m", 100, cpu_ns=10**7, devices={"gpu": GPU})
    assert launch(tmp_path, "m", 7)
    assert kept(tmp_path, "m") == ((100, 7), 10**7, {"gpu": GPU})
    newer = replace(GPU, belief=Belief(-250_000, 50_000, 2), gpu_ns=0)
    assert launch(tmp_path, "m", 8, devices={"gpu": newer, "other": GPU})
    assert kept(tmp_path, "m") == ((100, 7, 8), 10**7, {"gpu": newer, "other": GPU})
    assert History(tmp_path).of("n") == ModelHistory()


def test_counts_of_one_launch_replace_each_other(tmp_path: Path) -> None:
    first, second = History(tmp_path), History(tmp_path)
    for count in (1, 2, 4, 8, 13):
        assert first.keep("m", count)
        assert second.keep("m", count * 10)
    assert sorted(History(tmp_path).of("m").requests) == [13, 130]
    assert first.of("m").requests == (130,)  # its own is no past launch


def test_requests_of_the_last_launches_only(tmp_path: Path) -> None:
    for count in range(1, 2 * MAX_LAUNCHES):
        launch(tmp_path, "m", count)
    assert History(tmp_path).of("m").requests == tuple(range(MAX_LAUNCHES, 2 * MAX_LAUNCHES))


def test_update_that_measured_nothing_takes_nothing_away(tmp_path: Path) -> None:
    launch(tmp_path, "m", 5, cpu_ns=10**7, devices={"gpu": GPU})
    assert launch(tmp_path, "m", 6)
    assert kept(tmp_path, "m") == ((5, 6), 10**7, {"gpu": GPU})


CHILD = """
import sys
from pathlib import Path
from gpuedge.decide.history import History
history = History(Path(sys.argv[1]))
for count in range(1, 10**9):
    if count & (count - 1) == 0:
        history.keep("m", count)
    print(count, flush=True)
"""


@pytest.mark.parametrize("least", [1, 40, 1000])
def test_kill_loses_at_most_half_of_the_requests(tmp_path: Path, least: int) -> None:
    launch(tmp_path, "m", 77)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    served = 0
    for line in child.stdout:
        served = int(line)
        if served >= least:
            break
    os.kill(child.pid, signal.SIGKILL)
    served = max([served, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    before, kept = History(tmp_path).of("m").requests
    assert before == 77
    assert served / 2 < kept <= 2 * served
    assert launch(tmp_path, "m", 5)  # the lock died with its holder


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpuedge.decide.history import DeviceHistory, History\n"
        "me = sys.argv[2]\n"
        "history = History(Path(sys.argv[1]))\n"
        "for i in range(20):\n"
        "    device = {f'{me}-{i % 3}': DeviceHistory(gpu_ns=i + 1)}\n"
        "    assert history.keep('shared', i + 1, devices=device)\n"
        "    assert history.keep(f'{me} {i}', i + 1)\n"
        "    time.sleep(0.03)\n"  # so that the lock is free now and then: waiting has an end
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)]) for n in range(4)
    ]
    assert [child.wait(timeout=280) for child in children] == [0] * 4
    history = History(tmp_path)
    shared = history.of("shared")
    assert shared.requests == (20,) * 4
    assert {k: d.gpu_ns for k, d in shared.devices.items()} == {
        f"{n}-{i}": (19, 20, 18)[i] for n in range(4) for i in range(3)
    }
    assert [history.of(f"{n} {i}").requests for n in range(4) for i in range(20)] == [
        (i + 1,) for _ in range(4) for i in range(20)
    ]


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: launch(tmp_path, f"m{i % 4}", i + 1), range(24)))
    counts = [n for i in range(4) for n in History(tmp_path).of(f"m{i}").requests]
    assert sorted(counts) == list(range(1, 25))


def test_oldest_models_and_devices_are_forgotten(tmp_path: Path) -> None:
    history = History(tmp_path)
    models = {
        f"m{i}": {"counts": {"a": 1}, "cpu_ns": None, "devices": {}} for i in range(MAX_MODELS)
    }
    save_sealed(tmp_path / FILE, SCHEMA, {"models": models})
    launch(tmp_path, "m0", 5)  # the newest now
    launch(tmp_path, "new", 6)
    assert history.of("m1") == ModelHistory()
    assert [history.of(m).requests for m in ("m0", "m2", "new")] == [(1, 5), (1,), (6,)]
    for i in range(MAX_DEVICES + 3):
        launch(tmp_path, "new", 6, devices={f"d{i}": GPU})
    assert list(history.of("new").devices) == [f"d{i}" for i in range(3, MAX_DEVICES + 3)]


def test_device_that_is_measured_again_is_not_the_oldest(tmp_path: Path) -> None:
    for i in [*range(MAX_DEVICES), 0, MAX_DEVICES]:
        launch(tmp_path, "m", 1, devices={f"d{i}": GPU})
    assert set(History(tmp_path).of("m").devices) == {
        f"d{i}" for i in range(MAX_DEVICES + 1) if i != 1
    }


def test_residual_is_the_mean_error_of_the_other_models(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.residual("gpu") == 0.0
    for model, gpu, predicted in (("a", 200, 100), ("b", 100, 400), ("c", 10**9, 1)):
        device = DeviceHistory(gpu_ns=gpu, predicted_ns=predicted)
        launch(tmp_path, model, 1, devices={"gpu": device, "half": DeviceHistory(gpu_ns=gpu)})
    history = History(tmp_path)
    assert history.residual("gpu", "c") == pytest.approx((math.log(2) - math.log(4)) / 2)
    assert history.residual("gpu") == pytest.approx(
        (math.log(2) - math.log(4) + math.log(10**9)) / 3
    )
    assert history.residual("half") == history.residual("unknown") == 0.0


def test_key_of_a_device_covers_what_measurements_depend_on() -> None:
    keys = {
        device_key(device, facts, kernel)
        for device in ("vulkan:0", "gles31:0")
        for facts in ({}, {"fingerprint": "a"}, {"fingerprint": "b", "x": "\udc80"})
        for kernel in ("", "onnxruntime 1.20.1")
    }
    assert len(keys) == 12 and {len(key) for key in keys} == {64}
    assert device_key("cpu", {"a": 1, "b": 2}) == device_key("cpu", {"b": 2, "a": 1})


GOOD = {"counts": {"a": 5, "b": 6}, "cpu_ns": 7, "devices": {"gpu": plain(GPU)}}


@pytest.mark.parametrize(
    "change",
    [
        {"counts": None}, {"counts": [5]}, {"counts": {"a": -1}}, {"counts": {"a": "5"}},
        {"cpu_ns": True}, {"cpu_ns": 1.5}, {"cpu_ns": 10**30}, {"more": 1}, {"devices": []},
        {"devices": {"gpu": 1}}, {"devices": {"gpu": {"at_s": 1}}},
        *({"devices": {"gpu": {"belief": b}}} for b in ([1, 2], [0, 0, 1], ["0", 1, 1], 3)),
    ],
)  # fmt: skip
def test_model_that_is_damaged_is_dropped_and_the_rest_stays(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    models = {"m": GOOD, "bad": {**GOOD, **change}, "none": None, "list": [GOOD]}
    save_sealed(tmp_path / FILE, SCHEMA, {"models": models, "more": 1})
    assert kept(tmp_path, "m") == ((5, 6), 7, {"gpu": GPU})
    assert all(History(tmp_path).of(m) == ModelHistory() for m in ("bad", "none", "list"))
    assert launch(tmp_path, "bad", 8)
    assert kept(tmp_path, "bad") == ((8,), None, {})
    assert History(tmp_path).of("m").requests == (5, 6)


@settings(max_examples=40, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["m", "models", "gpu"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.just("models"), inner),
    max_leaves=20,
))  # fmt: skip
def test_any_body_reads_as_something(tmp_path_factory: Any, body: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    save_sealed(folder / FILE, SCHEMA, {"models": body})
    found = History(folder).of("m")
    assert isinstance(found, ModelHistory)
    assert History(folder).residual("gpu") == 0.0
    assert launch(folder, "m", 3)
    assert History(folder).of("m").requests[-1] == 3


def test_damaged_file_and_earlier_schema_read_as_absent(tmp_path: Path) -> None:
    launch(tmp_path, "m", 3)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-9])
    assert History(tmp_path).of("m") == ModelHistory()
    assert launch(tmp_path, "m", 4)
    assert History(tmp_path).of("m").requests == (4,)
    save_sealed(tmp_path / FILE, "gpuedge.launches/2", {"models": [["m", [[["a", 3]], 1, []]]]})
    assert History(tmp_path).of("m") == ModelHistory()
    assert launch(tmp_path, "m", 5)
    assert load_sealed(tmp_path / FILE, SCHEMA) is not None


def test_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file")
    assert not history.keep("m", 1)
    assert (history.of("m"), history.residual("gpu")) == (ModelHistory(), 0.0)
