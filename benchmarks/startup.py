"""What importing gpuedge, a cached `probe()`, and a model's first answer cost."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from common import report
from truth.models import MODELS

import gpuedge
from gpuedge.decide import speeds

RUNS = 21
SNIPPETS = {
    "bare Python": "pass",
    "import gpuedge": "import gpuedge",
    "stdlib that any app imports": "import json, pathlib, hashlib, typing, dataclasses, logging",
    "... and a cached probe()": (
        "import json, pathlib, hashlib, typing, dataclasses, logging\n"
        "import gpuedge; gpuedge.probe()"
    ),
    "import numpy": "import numpy",
    "... and a cached probe() too": "import numpy, gpuedge; gpuedge.probe()",
}
CALLS = """
import time, gpuedge, {first}
for _ in range(2):
    start = time.perf_counter(); gpuedge.probe(); print(time.perf_counter() - start)
"""


def process_ms(code: str) -> list[float]:
    """Return the wall milliseconds of `RUNS` processes."""
    timed = (
        "import subprocess, sys, time; t = time.perf_counter(); "
        f"subprocess.run([sys.executable, '-c', {code!r}], check=True); "
        "print((time.perf_counter() - t) * 1e3)"
    )
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return [float(done.stdout)]


def call_ms(first: str) -> tuple[float, float]:
    """Return the medians of the first and the second cached probe() inside one process."""
    pairs = []
    for _ in range(RUNS):
        code = CALLS.format(first=first)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        pairs.append([float(line) * 1e3 for line in done.stdout.split()])
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def first_ms(make: Callable[[], Any], run: Callable[[Any], object]) -> tuple[float, float]:
    """Return what opening a session and its first request take, in milliseconds."""
    start = time.perf_counter()
    session = make()
    opened = time.perf_counter()
    run(session)
    return (opened - start) * 1e3, (time.perf_counter() - opened) * 1e3


def models() -> None:
    """Compare the first answer of a model with ONNX Runtime's own, in one process."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    rows = []
    for name in ("lenet 28", "mobilenet 96"):
        text = MODELS[name]()
        with gpuedge.Session(text, device="cpu") as known:
            ((key, (_, shape)),) = known.inputs.items()
        feed = {key: np.zeros(shape, np.float32)}
        theirs, ours = [], []
        for _ in range(RUNS):
            theirs.append(
                first_ms(
                    lambda t=text: onnxruntime.InferenceSession(
                        t, options, providers=["CPUExecutionProvider"]
                    ),
                    lambda s, f=feed: s.run(None, f),
                )
            )
            ours.append(first_ms(lambda t=text: gpuedge.Session(t), lambda s, f=feed: s.run(f)))
        for i, what in enumerate(("open", "first request")):
            a, b = (statistics.median(pair[i] for pair in found) for found in (ours, theirs))
            rows.append((name, what, f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}"))
    report("a model, milliseconds", ("model", "what", "gpuedge", "onnxruntime", "ratio"), rows)


def opening(seconds: float = 20.0) -> None:
    """Say how much slower requests are while a GPU is opened, compiled for and warmed up."""
    speeds.predict = lambda *_: 1_000  # type: ignore[assignment]  # so that it is opened at all
    rows = []
    for name in ("lenet 28", "mobilenet 96"):
        policy = gpuedge.Policy(allow_software=True, decide="service")
        with gpuedge.Session(MODELS[name](), policy=policy) as session:
            ((key, (_, shape)),) = session.inputs.items()
            feed = {key: np.zeros(shape, np.float32)}
            times: dict[bool, list[float]] = {False: [], True: []}
            end = time.perf_counter() + seconds
            while time.perf_counter() < end and not session.health.switches:
                phases = {c.phase for c in session._latest._chooser.candidates.values()}
                start = time.perf_counter()
                session.run(feed)
                times["opening" in phases].append(time.perf_counter() - start)
            alone, beside = (np.percentile(times[k][10:], 90) * 1e3 for k in (False, True))
            rows.append(
                (
                    name,
                    str(len(times[True])),
                    f"{beside:.3f}",
                    f"{alone:.3f}",
                    f"{beside / alone:.2f}",
                )
            )
    report(
        "requests while a GPU is opened, p90 in ms",
        ("model", "requests", "meanwhile", "otherwise", "ratio"), rows,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    models()
    opening()
    subprocess.run([sys.executable, "-c", "import gpuedge; gpuedge.probe()"], check=True)
    samples: dict[str, list[float]] = {name: [] for name in SNIPPETS}
    for _ in range(RUNS):
        for name, code in SNIPPETS.items():
            samples[name] += process_ms(code)
    middle = {name: statistics.median(values) for name, values in samples.items()}
    bare = middle["bare Python"]
    rows = [(n, f"{ms:.1f}", f"{ms - bare:+.1f}", f"{ms / bare:.2f}") for n, ms in middle.items()]
    report(
        f"whole processes, median of {RUNS}, interleaved",
        ("process", "ms", "over bare, ms", "ratio"),
        rows,
    )
    calls = []
    for first in ("sys", "numpy"):
        cold, warm = call_ms(first)
        calls.append((f"after import {first}", f"{cold:.1f}", f"{warm:.1f}"))
    report("cached gpuedge.probe() inside a process, ms", ("", "first call", "later calls"), calls)


if __name__ == "__main__":
    main()
