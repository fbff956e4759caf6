"""Inferences on a device that is lost at random: every answer is counted and checked.

    python tools/loss_campaign.py --device vulkan --isolation inline --n 100000 --out out/loss.json

A fault of the kit in `tests/faults` lies between the application and a good driver and, by
default, loses the device at one submit in a thousand. Work is cut into chunks, a process each; a
chunk that is done is a line of ``OUT.chunks`` and is not run again, so that a campaign that was
stopped goes on.

Every request has inputs of its own. Its answer must be that of a session on the CPU to the last
bit, or lie within the error bound of float32 around what float64 gives; an answer of another
request does neither. Afterwards the answers are counted against the requests, and against
`Session.health`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# What a chunk needs is imported there: the process that runs them loads no driver and no model.
# ruff: noqa: PLC0415

ROOT = Path(__file__).resolve().parents[1]
Array = npt.NDArray[Any]

SCHEMA = "gpuedge.loss-campaign/1"
CHUNK = 5000
ROWS, WIDTH, OUT = 4, 48, 12
U = 2.0**-24

MEANWHILE = 20
"""Requests that the CPU answers after each failure before the campaign waits for the device."""

RETURN_S = 60.0


class Model:
    """Two linear layers with a gather between them: segments on the device, the CPU, the device."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.w1 = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        self.b1 = rng.normal(size=WIDTH).astype(np.float32)
        self.w2 = rng.normal(size=(WIDTH, OUT)).astype(np.float32)
        self.b2 = rng.normal(size=OUT).astype(np.float32)
        self.order = rng.permutation(WIDTH)

    def onnx(self) -> bytes:
        """Return it as an ONNX model."""
        from onnx import TensorProto, helper, numpy_helper

        named: dict[str, Array] = {
            "w1": self.w1,
            "b1": self.b1,
            "w2": self.w2,
            "b2": self.b2,
            "order": self.order,
        }
        nodes = [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["s"]),
            helper.make_node("Relu", ["s"], ["h"]),
            helper.make_node("Gather", ["h", "order"], ["g"], axis=1),
            helper.make_node("Gemm", ["g", "w2", "b2"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "loss",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, OUT])],
            [numpy_helper.from_array(value, name) for name, value in named.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(made.SerializeToString())

    def reference(self, x: Array) -> tuple[Array, Array]:
        """Return the answer in float64, and how far one in float32 may lie from it.

        A sum of n products has an error of at most n u / (1 - n u) times the sum of magnitudes, in
        whatever order it is summed; errors of the first layer pass through the second.
        """
        gamma = (WIDTH + 2) * U / (1 - (WIDTH + 2) * U)
        w1, w2 = self.w1.astype(np.float64), self.w2.astype(np.float64)
        wide = x.astype(np.float64)
        h = np.maximum(wide @ w1 + self.b1, 0)[:, self.order]
        e = (gamma * (np.abs(wide) @ np.abs(w1) + np.abs(self.b1)))[:, self.order]
        y = h @ w2 + self.b2
        bound = gamma * ((h + e) @ np.abs(w2) + np.abs(self.b2)) + e @ np.abs(w2)
        return y, bound


def run_chunk(options: argparse.Namespace) -> dict[str, Any]:
    """Run the requests of one chunk in this process and return what was counted."""
    import gpuedge
    from gpuedge.runtime.devices import POOL, RetryLimits

    # A device that is lost on purpose is never given up, and tried again soon.
    POOL.limits = RetryLimits(10**9, 600.0, (0.02, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0), 20.0)
    fault = os.environ.pop("GPUFAULT")
    POOL.report()  # the first probe is to find the device
    os.environ["GPUFAULT"] = fault
    seed = options.seed * 1000 + options.chunk
    model = Model(seed)
    rng = np.random.default_rng(seed)
    text = model.onnx()
    counts: Counter[str] = Counter()
    times: dict[str, list[float]] = {"cpu": [], "loss": []}
    begin = time.perf_counter()
    cpu = gpuedge.Session(text, device="cpu")
    with gpuedge.Session(text, device=options.device, isolation=options.isolation) as session:
        if options.isolation == "inline":
            del os.environ["GPUFAULT"]  # it is in effect here; probes are not what is tested
        for _ in range(options.n):
            x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
            start = time.perf_counter()
            answer = session.run({"x": x})["y"]
            middle = time.perf_counter()
            wanted = cpu.run({"x": x})["y"]
            times["cpu"].append(time.perf_counter() - middle)
            counts[judge(answer, wanted, *model.reference(x))] += 1
            counts["requests"] += 1
            health = session.health
            if health.failed > counts["failed"]:
                times["loss"].append(middle - start)
                counts["failed"] = health.failed
            if health.state == "recovering":
                counts["waited"] += await_device(session, options, counts, rng)
        health = session.health
    cpu.close()
    return {
        "chunk": options.chunk,
        "seconds": round(time.perf_counter() - begin, 3),
        **{name: counts[name] for name in ("requests", "as_cpu", "as_device", "wrong", "waited")},
        "on_device": health.on_device,
        "on_cpu": health.on_cpu,
        "failed": health.failed,
        "codes": dict(Counter(f.code for f in health.failures)),
        "crosschecks": health.crosschecks,
        "crosschecks_failed": health.crosschecks_failed,
        "state": health.state,
        "loss_us": [round(t * 1e6) for t in times["loss"]],
        "cpu_p50_us": round(float(np.median(times["cpu"])) * 1e6, 1),
    }


def judge(answer: Array, of_cpu: Array, exact: Array, bound: Array) -> str:
    """Return ``as_cpu`` for the CPU's very answer, ``as_device`` for another right one."""
    if answer.shape == of_cpu.shape and answer.tobytes() == of_cpu.tobytes():
        return "as_cpu"
    if answer.shape == exact.shape and bool((np.abs(answer - exact) <= bound).all()):
        return "as_device"
    return "wrong"


def await_device(
    session: Any, options: argparse.Namespace, counts: Counter[str], rng: np.random.Generator
) -> int:
    """Wait until the device is in use again, if enough requests were answered without it.

    Meanwhile every process that is started, probes and hosts, gets other dice.
    """
    from gpuedge.runtime.devices import POOL

    os.environ["GPUFAULT_SEED"] = str(rng.integers(2**62))
    if counts["requests"] - counts["last_wait"] < MEANWHILE:
        return 0
    end = time.monotonic() + RETURN_S
    found = POOL.device(session.health.device, options.isolation)
    while found.state.is_recovering and time.monotonic() < end:
        os.environ["GPUFAULT_SEED"] = str(rng.integers(2**62))
        time.sleep(0.005)
    counts["last_wait"] = counts["requests"]
    return 1


def environment(options: argparse.Namespace, chunk: int, cache: str) -> dict[str, str]:
    """Return the environment of a chunk: the fault in the way of the driver, a cache of its own."""
    sys.path.insert(0, str(ROOT / "tests" / "faults"))
    import kit  # type: ignore[import-not-found]  # found by the path just added

    made = kit.build().environment(options.api, options.fault)
    seed = str((options.seed * 1000 + chunk) * 100_000)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ, **made, "GPUFAULT_SEED": seed, "GPUEDGE_CACHE_DIR": cache,
        "PYTHONPATH": path,
    }  # fmt: skip


def chunks(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Return the number and the size of each chunk."""
    for at, first in enumerate(range(0, options.n, options.chunk_size)):
        yield at, min(options.chunk_size, options.n - first)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run what is not done yet and return the summary."""
    log = options.out.with_suffix(options.out.suffix + ".chunks")
    log.parent.mkdir(parents=True, exist_ok=True)
    asked = {name: getattr(options, name) for name in
             ("device", "isolation", "n", "seed", "fault", "api", "chunk_size")}  # fmt: skip
    done = read(log, asked)
    with tempfile.TemporaryDirectory() as cache:
        for at, size in chunks(options):
            if at in done:
                continue
            done[at] = child(options, at, size, cache)
            with log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"asked": asked, **done[at]}) + "\n")
            show(done.values(), options)
    return summary(list(done.values()), asked)


def read(log: Path, asked: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the chunks that this very campaign has done before."""
    if not log.is_file():
        return {}
    found: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # cut off when the campaign was stopped
            continue
        if record.pop("asked", None) == asked:
            found[record["chunk"]] = record
    return found


def child(options: argparse.Namespace, at: int, size: int, cache: str) -> dict[str, Any]:
    """Run one chunk in a process of its own; a process that dies is a chunk that was lost."""
    command = [
        sys.executable, __file__, "--device", options.device, "--isolation", options.isolation,
        "--n", str(size), "--seed", str(options.seed), "--chunk", str(at),
    ]  # fmt: skip
    limit_s = 600 + size * 0.2
    try:
        ended = subprocess.run(
            command, env=environment(options, at, cache), capture_output=True, text=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"chunk": at, "ended": f"not within {limit_s:g} s", "asked_for": size}
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        tail = ended.stderr[-2000:]
        return {"chunk": at, "ended": f"status {ended.returncode}: {tail}", "asked_for": size}
    record: dict[str, Any] = json.loads(lines[-1])
    return {**record, "asked_for": size}


COUNTED = ("requests", "as_cpu", "as_device", "wrong", "on_device", "on_cpu", "failed",
           "crosschecks", "crosschecks_failed", "waited")  # fmt: skip


def summary(found: list[dict[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the chunks and say whether all is well."""
    total = {name: sum(int(one.get(name, 0)) for one in found) for name in COUNTED}
    codes: Counter[str] = Counter()
    for one in found:
        codes.update(one.get("codes", {}))
    times = [t for one in found for t in one.get("loss_us", [])]
    ended = [f"chunk {one['chunk']}: {one['ended']}" for one in found if "ended" in one]
    lost = sum(one["asked_for"] for one in found) - total["requests"]
    doubled = total["on_device"] + total["on_cpu"] - total["requests"]
    is_good = not (ended or lost or doubled or total["wrong"] or total["crosschecks_failed"])
    return {
        "schema": SCHEMA, **asked, **total, "lost": lost, "doubled": doubled,
        "latest_codes": dict(codes), "ended": ended,
        "loss_p50_us": percentile(times, 50), "loss_p99_us": percentile(times, 99),
        "loss_max_us": max(times, default=None),
        "cpu_p50_us": percentile([one["cpu_p50_us"] for one in found if "cpu_p50_us" in one], 50),
        "seconds": round(sum(one.get("seconds", 0.0) for one in found), 1),
        "given_up": [one["chunk"] for one in found if one.get("state") == "demoted"],
        "is_good": is_good and total["failed"] > 0,
    }  # fmt: skip


def percentile(times: list[float], share: int) -> float | None:
    """Return a percentile, None of nothing."""
    return float(np.percentile(times, share)) if times else None


def show(found: Any, options: argparse.Namespace) -> None:
    """Print one line of progress to stderr."""
    records = list(found)
    total = {name: sum(int(one.get(name, 0)) for one in records) for name in COUNTED}
    print(
        f"{total['requests']}/{options.n} requests, {total['failed']} losses, "
        f"{total['on_device']} on the device, {total['wrong']} wrong",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; 0 if every answer was right and the device was lost at least once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--api", help="API of the fault kit (default: the device's)")
    parser.add_argument("--isolation", default="inline", choices=["inline", "process"])
    parser.add_argument("--n", type=int, default=100_000, help="requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="lost@submit~0.001", help="name@point~probability")
    parser.add_argument("--chunk-size", type=int, default=CHUNK, help="requests per process")
    parser.add_argument("--out", type=Path, default=Path("out/loss.json"))
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.api = options.api or options.device.partition(":")[0]
    if options.chunk is not None:
        print(json.dumps(run_chunk(options)))
        return 0
    found = run(options)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0 if found["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
