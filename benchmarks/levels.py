"""What gpuedge adds to one inference on each level, over the API's own dispatch and read.

One kernel over 16 values, recorded once and replayed. Each level runs in a process of its own, in
which the API alone (`bare/`: no gpuedge, no layer but the binding) does the same work in turn:

* bare: draw or dispatch, wait, read 16 values
* seam: the recorded work through the device seam: submit, wait, read
* executable: inputs written, submit, wait, outputs read into fresh arrays
* session: `Session.run`

Usage: python benchmarks/levels.py [LEVEL ...] [--save]

``--save`` writes the table to `benchmarks/results/`. Levels that are not here are left out.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bare import opened
from bare.gl import BareGl
from common import report
from overhead import relu_model

import gpuedge

LEVELS = ("vulkan", "gles31", "gles30", "gles20", "wgpu")
VALUES = 16
GOAL = 3.0
"""A replayed inference should cost at most that many times the API's own dispatch and read."""

ROUNDS, BATCH_S = 61, 0.012
TIMEOUT_S = 240.0
PROBE_S = 60.0
"""A busy machine may need more than the usual deadline."""

STEPS = ("bare", "seam", "executable", "session")
HEADER = (
    "level", "driver", "bare us", "seam us", "executable us", "session us",
    "executable / bare", "session / bare", "goal",
)  # fmt: skip


def batches(
    candidates: Mapping[str, Callable[[], Any]], around: Callable[[str], None]
) -> dict[str, float]:
    """Return the seconds per call of each candidate's quietest batch; `around` prepares a batch.

    Batches are short and taken in turn: other work on the machine only ever adds time, and at
    these times of some microseconds it adds several times as much as there is.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    counts: dict[str, int] = {}
    for turn in range(ROUNDS + 1):
        for name, run in candidates.items():
            around(name)
            run()
            count = counts.get(name, 20)
            start = time.perf_counter()
            for _ in range(count):
                run()
            each = (time.perf_counter() - start) / count
            if turn:
                samples[name].append(each)
            else:  # the first batch only says how long the others must be
                counts[name] = max(1, int(BATCH_S / each))
    return {name: min(values) for name, values in samples.items()}


def bare_work(level: str, info: Any) -> tuple[Callable[[], bytes], Callable[[str], None]]:
    """Return the API's own work, and what prepares a batch.

    A GL context belongs to a thread: it is current for the bare batches only, as an application
    that uses gpuedge would have none.
    """
    made = opened(level, "OpenGL" if "OpenGL" in str(info.identity) else "Vulkan")
    if isinstance(made, BareGl):
        return made.work(), lambda name: made.bind() if name == "bare" else made.unbind()
    return made.work(), lambda _: None


def one(level: str) -> dict[str, Any]:
    """Measure one level in this process."""
    gpuedge.probe(backends=[level], deadline_s=PROBE_S)
    x = np.linspace(-3, 3, VALUES, dtype=np.float32)
    with gpuedge.Session(relu_model(VALUES), device=level, fallback="error") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
        latest: Any = session._latest
        executable = latest.choice.placed.whole  # the recorded work itself
        impl, recording = executable.executor.impl, executable.recordings[0]
        os.environ.update(impl.info.candidate.env)  # the API's own work goes to the same driver
        bare, around = bare_work(level, impl.info)
        assert bare() == np.arange(VALUES, dtype=np.float32).tobytes()
        region = executable._where.regions[executable.plan.outputs["y"]]
        into = memoryview(bytearray(VALUES * 4))
        target = executable._buffers[region.buffer]

        def seam() -> None:
            with impl.entered():
                impl.wait(impl.submit(recording), 10.0)
                impl.read(target, into, region.offset)

        found = batches(
            {
                "bare": bare,
                "seam": seam,
                "executable": lambda: executable.run({"x": x}),
                "session": lambda: session.run({"x": x}),
            },
            around,
        )
        return {"driver": impl.info.identity.name, "seconds": found}


def measured(level: str) -> tuple[str, ...] | None:
    """Measure one level in a process of its own; return its line, or None if it is not here."""
    command = [sys.executable, __file__, "--one", level]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        why = (errors or done.stderr.splitlines() or ["no message"])[-1]
        print(f"{level}: not measured: {why}", file=sys.stderr)
        return None
    body = json.loads(done.stdout.splitlines()[-1])
    times = [body["seconds"][step] for step in STEPS]
    ratios = [t / times[0] for t in times[-2:]]
    return (
        level,
        body["driver"],
        *(f"{t * 1e6:.1f}" for t in times),
        *(f"{r:.2f}" for r in ratios),
        "met" if ratios[-1] <= GOAL else "missed",
    )


def save(rows: list[tuple[str, ...]]) -> None:
    """Write the table for the repository."""
    date = time.strftime("%Y-%m-%d")
    lines = [
        f"# Overhead of one replayed inference by level, {date}",
        "",
        f"Made by `benchmarks/levels.py` with gpuedge {gpuedge.__version__}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}. One kernel over "
        f"{VALUES} values;",
        f"the quietest of {ROUNDS} batches in turn, microseconds. The goal is that a session takes "
        f"at most {GOAL:g} times",
        "as long as the API's own dispatch and read.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    place = Path(__file__).resolve().parent / "results" / f"{date}-levels.md"
    place.write_text("\n".join(lines), encoding="utf-8")
    print(f"written: {place.name}")


def main(arguments: list[str]) -> None:
    """Measure the levels that were named, or all."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(one(arguments[1])))
        return
    levels = [a for a in arguments if a in LEVELS] or LEVELS
    rows = [row for row in map(measured, levels) if row is not None]
    report(f"one kernel over {VALUES} values, replayed", HEADER, rows)
    if "--save" in arguments:
        save(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
