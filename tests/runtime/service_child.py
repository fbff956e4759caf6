"""Scenarios of a device that fails while it serves; see `test_service`.

    service_child.py SCENARIO DEVICE ISOLATION

Prints one JSON document. Every answer was compared with that of the CPU before.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from loss_campaign import ROWS, WIDTH, Model, judge

import gpuedge
from gpuedge.executors import gpu
from gpuedge.runtime.devices import POOL, RetryLimits
from gpuedge.safety import watchdog

MODEL = Model(1)
RNG = np.random.default_rng(1)


class Served:
    """A session whose answers are checked."""

    def __init__(self, device: str, isolation: str, **policy: Any) -> None:
        rules = gpuedge.Policy(**policy)
        text = MODEL.onnx()
        self.cpu = gpuedge.Session(text, device="cpu")
        start = time.perf_counter()
        self.session = gpuedge.Session(text, device=device, isolation=isolation, policy=rules)
        self.opened_s = time.perf_counter() - start
        self.answers: dict[str, int] = {"as_cpu": 0, "as_device": 0, "wrong": 0}
        self.slowest_s = 0.0

    def run(self, times: int = 1) -> str:
        """Ask for answers of inputs of their own; return what the last one was."""
        kind = ""
        for _ in range(times):
            x = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
            start = time.perf_counter()
            answer = self.session.run({"x": x})["y"]
            self.slowest_s = max(self.slowest_s, time.perf_counter() - start)
            kind = judge(answer, self.cpu.run({"x": x})["y"], *MODEL.reference(x))
            self.answers[kind] += 1
        return kind

    @property
    def impl(self) -> Any:
        """The device behind the session."""
        health = self.session.health
        executor: Any = POOL.executor(health.device, health.isolation)
        return executor.impl

    def await_state(self, state: str, seconds: float = 60) -> None:
        """Serve until the session says so."""
        end = time.monotonic() + seconds
        while self.session.health.state != state:
            self.run()
            time.sleep(0.02)
            if time.monotonic() > end:
                raise SystemExit(f"not {state}: {self.session.health}")

    def report(self) -> dict[str, Any]:
        """Return everything that a test looks at."""
        times = {"slowest_s": self.slowest_s, "opened_s": self.opened_s}
        return {**self.session.health.to_dict(), **self.answers, **times}


def kill(device: str, isolation: str) -> dict[str, Any]:
    """Kill the worker between requests and during them, until the device is given up."""
    served = Served(device, isolation)
    served.run(20)
    os.kill(served.impl.pid, signal.SIGKILL)
    first = served.run()
    served.await_state("ok")
    served.run(20)
    pid = served.impl.pid
    threading.Timer(0.01, os.kill, (pid, signal.SIGKILL)).start()
    while served.session.health.failed < 2:
        served.run()
    served.await_state("ok")
    os.kill(served.impl.pid, signal.SIGKILL)
    served.run()
    served.await_state("demoted")
    served.run(20)
    return {"first": first, **served.report()}


def stop(device: str, isolation: str) -> dict[str, Any]:
    """Stop the worker: the device hangs."""
    served = Served(device, isolation, watchdog_s=0.5)
    served.run(20)
    os.kill(served.impl.pid, signal.SIGSTOP)
    first = served.run()
    slowest_s = served.slowest_s
    served.await_state("ok")
    served.run(20)
    return {"first": first, **served.report(), "slowest_s": slowest_s}


def faulty(device: str, isolation: str) -> dict[str, Any]:
    """Serve with the fault that the environment names, and until the device is back after it."""
    fault = os.environ.pop("GPUFAULT")
    POOL.report()  # what is probed first is not what is tested
    os.environ["GPUFAULT"] = fault
    POOL.limits = RetryLimits(1000, pauses_s=(0.05,) * 8, probe_s=20.0)
    served = Served(device, isolation, watchdog_s=1.0)
    del os.environ["GPUFAULT"]  # it stays in effect where the driver lives by now
    while not served.session.health.failed:
        served.run()
    slowest_s = served.slowest_s
    if "+" not in fault:
        served.await_state("ok")
        served.run(20)
    return {**served.report(), "slowest_s": slowest_s}


def faulty_pieces(device: str, isolation: str) -> dict[str, Any]:
    """Serve with a fault where every pass is a piece of its own from the third request on."""
    gpu.PIECE_S = 1e-9
    return faulty(device, isolation)


def squares(times: int) -> bytes:
    """Return a model that multiplies a matrix so often by a constant one."""
    from onnx import TensorProto, helper, numpy_helper

    kept = numpy_helper.from_array(np.full((1024, 1024), 2.0**-10, np.float32), "w")
    names = [f"x{i}" for i in range(times)] + ["y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(names)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1024, 1024)) for n in ("x0", "y")]
    graph = helper.make_graph(nodes, "squares", ends[:1], ends[1:], [kept])
    opset = [helper.make_opsetid("", 17)]
    made: bytes = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    return made


def slow(device: str, isolation: str, *, is_cut: bool = False) -> dict[str, Any]:
    """Ask for more than fits into the limit, of which no prediction and no earlier run tells.

    As one piece, whose driver shows signs of life; or cut in pieces where no such sign counts.
    """
    ones = {"x0": np.ones((1024, 1024), np.float32)}
    with gpuedge.Session(squares(1), device=device, isolation=isolation) as session:
        took = []
        for _ in range(6):  # the first one compiles; a busy machine slows some
            start = time.perf_counter()
            session.run(ones)
            took.append(time.perf_counter() - start)
        took_s = min(took)
    # twelve of the slowest, so that other processes do not make a piece as long as the limit
    limit_s = watchdog.RUN_LIMIT_S = watchdog.FLOOR_S = min(6.0, max(1.2, 12 * max(took[1:])))
    watchdog.FACTOR, watchdog.STRETCH = 1e-9, 1.0 if is_cut else 100.0
    gpu.PIECE_S = limit_s / 12 if is_cut else math.inf
    # without what one product pays for its inputs and result, each takes half as long or less
    text = squares(min(400, round(6 * limit_s / took_s) + 1))
    with gpuedge.Session(text, device=device, isolation=isolation, fallback="error") as session:
        start = time.perf_counter()
        is_right = np.allclose(session.run(ones)["y"], 1.0, rtol=1e-4)
        times = {"slowest_s": time.perf_counter() - start, "limit_s": limit_s}
        answers = {"wrong": int(not is_right), "as_device": 1, "as_cpu": 0}
        return {**session.health.to_dict(), **answers, **times}


def main() -> None:
    """Run a scenario."""
    scenarios: dict[str, Callable[[str, str], dict[str, Any]]]
    scenarios = {
        "kill": kill, "stop": stop, "faulty": faulty, "slow": slow,
        "pieces": partial(slow, is_cut=True), "faulty-pieces": faulty_pieces,
    }  # fmt: skip
    print(json.dumps(scenarios[sys.argv[1]](*sys.argv[2:])))


if __name__ == "__main__":
    main()
