"""What importing gpuedge, a cached `probe()`, and a model's first answer cost.

``--json FILE`` keeps the last table; ``models`` measures the first answers only,
``opening`` what opening a GPU does to the requests meanwhile.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import report
from overhead import relu_model
from truth.models import MODELS, Net

import gpuedge
from gpuedge.decide import speeds
from gpuedge.executors.cpu import spinning

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


def resnet_50() -> bytes:
    """Return a model of the size and kind of ResNet-50."""
    net, cin = Net(1, 3, 224, 224).conv(3, 64, 7, stride=2).relu().pool(), 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            before, step = net.at, stride if i == 0 else 1
            net.conv(cin, middle, 1).relu().conv(middle, middle, stride=step).relu()
            branch = net.conv(middle, 4 * middle, 1).at
            if i == 0:
                net.at = before
                before = net.conv(cin, 4 * middle, 1, stride=step).at
            net.op("Add", before, branch)
            net.relu()
            cin = 4 * middle
    net.op("GlobalAveragePool")
    net.op("Flatten")
    return net.dense(2048, 1000).done()


def exported(text: bytes) -> bytes:
    """Return a model with the shape of its output, as exporters write it."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load_from_string(text))
    made = onnx.load_from_string(text)
    made.graph.output[0].CopyFrom(inferred.graph.output[0])
    return bytes(made.SerializeToString())


MADE: dict[str, Callable[[], bytes]] = {
    "16 floats": lambda: relu_model(16),
    "lenet 28": MODELS["lenet 28"],
    "mobilenet 96": MODELS["mobilenet 96"],
    "resnet-50": resnet_50,
}
"""Models whose first answer is compared with ONNX Runtime's."""

FIRST = """
import sys, time; t = [time.perf_counter()]
import numpy, onnxruntime
IMPORT
t.append(time.perf_counter())
feed = {NAME: numpy.zeros(SHAPE, numpy.float32)}
MAKE
t.append(time.perf_counter())
RUN
t.append(time.perf_counter())
print(*(b - a for a, b in zip(t, t[1:])))
"""
OURS = {
    "IMPORT": "import onnx, gpuedge; gpuedge.Session",
    "MAKE": "s = gpuedge.Session(FILE)",
    "RUN": "s.run(feed)",
}
THEIRS = {
    "IMPORT": "",
    "MAKE": (
        "o = onnxruntime.SessionOptions()\n"
        f"o.add_session_config_entry{spinning(onnxruntime.__version__)!r}\n"
        "s = onnxruntime.InferenceSession(FILE, o, providers=['CPUExecutionProvider'])"
    ),
    "RUN": "s.run(None, feed)",
}


def first_ms(make: Callable[[], Any], run: Callable[[Any], object]) -> tuple[float, float]:
    """Return what opening a session and its first request take, in milliseconds."""
    time.sleep(0.02)  # a busy machine gives those that waited their turn at once
    start = time.perf_counter()
    session = make()
    opened = time.perf_counter()
    run(session)
    return (opened - start) * 1e3, (time.perf_counter() - opened) * 1e3


def of_a_process(parts: dict[str, str], path: Path, feed: dict[str, Any]) -> list[float]:
    """Return what imports, opening and the first request of a new process take, in ms."""
    ((name, array),) = feed.items()
    code = FIRST
    for key, text in {**parts, "FILE": repr(str(path)), "NAME": repr(name)}.items():
        code = code.replace(key, text)
    code = code.replace("SHAPE", repr(array.shape))
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    return [float(word) * 1e3 for word in done.stdout.split()]


def models() -> None:
    """Compare the first answer of a model with ONNX Runtime's own, in this process and in new ones.

    Both import ONNX Runtime; imports are a row of their own.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*spinning(onnxruntime.__version__))
    rows, fresh = [], []
    for name, make in MADE.items():
        text, runs = exported(make()), RUNS if name != "resnet-50" else RUNS // 3
        with gpuedge.Session(text, device="cpu") as known:
            ((key, (_, shape)),) = known.inputs.items()
        feed = {key: np.zeros(shape, np.float32)}

        def their(t: bytes = text) -> Any:
            return onnxruntime.InferenceSession(t, options, providers=["CPUExecutionProvider"])

        theirs, ours = [], []
        for _ in range(runs):
            theirs.append(first_ms(their, lambda s, f=feed: s.run(None, f)))
            ours.append(first_ms(lambda t=text: gpuedge.Session(t), lambda s, f=feed: s.run(f)))
        rows += compared(name, ("open", "first request"), ours, theirs)
        with TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(text)
            pairs = [
                (of_a_process(OURS, path, feed), of_a_process(THEIRS, path, feed))
                for _ in range(runs // 2)
            ]
        ours, theirs = ([one[i] for one in pairs] for i in (0, 1))
        fresh += compared(name, ("imports", "open", "first request"), ours, theirs)
    header = ("model", "what", "gpuedge", "onnxruntime", "ratio", "fastest", "fastest", "ratio")
    report("a model, milliseconds, medians", header, rows)
    report("a model in a new process, milliseconds, medians", header, fresh)


def compared(name: str, steps: Sequence[str], ours: Any, theirs: Any) -> list[tuple[str, ...]]:
    """Return a row per step: medians, and the fastest, which other programs disturb least."""
    rows = []
    for i, what in enumerate(steps):
        row = [name, what]
        for of in (statistics.median, min):
            a, b = (of(found[i] for found in side) for side in (ours, theirs))
            row += [f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}"]
        rows.append(tuple(row))
    return rows


def served(model: bytes, seconds: float, *, allow_software: bool) -> list[float]:
    """Return what requests took while a GPU was opened; without software ones, what all took."""
    policy = gpuedge.Policy(allow_software=allow_software)
    times = []
    with gpuedge.Session(model, policy=policy) as session:
        ((key, (_, shape)),) = session.inputs.items()
        feed = {key: np.zeros(shape, np.float32)}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end and not session.health.switches:
            phases = {c.phase for c in session._latest.choice.chooser.candidates.values()}
            start = time.perf_counter()
            session.run(feed)
            if "opening" in phases or not allow_software:
                times.append(time.perf_counter() - start)
    return times


def opening(seconds: float = 10.0, rounds: int = 3) -> None:
    """Say how much slower requests are while a GPU is opened, compiled for and warmed up."""
    # so that it is opened soon
    speeds.predict = speeds.startup_ns = lambda *_: 1_000  # type: ignore[assignment]
    rows = []
    for name in ("lenet 28", "mobilenet 96"):
        alone, beside = list[float](), list[float]()
        for _ in range(rounds):
            with TemporaryDirectory() as folder:  # without what was measured before
                os.environ["GPUEDGE_CACHE_DIR"] = folder
                gpuedge.probe(deadline_s=60.0)
                alone += served(MODELS[name](), seconds / 2, allow_software=False)[10:]
                beside += served(MODELS[name](), seconds, allow_software=True)
                alone += served(MODELS[name](), seconds / 2, allow_software=False)[10:]
        at = [float(np.percentile(t, 90)) * 1e3 for t in (beside, alone)]
        rows.append(
            (name, str(len(beside)), f"{at[0]:.3f}", f"{at[1]:.3f}", f"{at[0] / at[1]:.2f}")
        )
    del os.environ["GPUEDGE_CACHE_DIR"]
    report(
        "requests while a GPU is opened, p90 in ms",
        ("model", "requests", "meanwhile", "otherwise", "ratio"), rows,
    )  # fmt: skip


def main() -> None:
    """Measure and print."""
    if "opening" not in sys.argv:
        models()
    if "models" in sys.argv:
        return
    opening()
    if "opening" in sys.argv:
        return
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
