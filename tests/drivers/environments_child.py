"""A program that uses most of gpuedge once; a test looks at what that comes to where it is started.

Usage: python environments_child.py MODEL ANSWER DEVICE...

Writes a JSON object into the open file ANSWER: for each step ``right``, or the error, or ``FAULT``
and the traceback of what is no error of gpuedge's. Two variables change the program: JUMPS sets
the clock before each step (that many seconds away from the true time, each of the list in turn),
IN_THREAD runs everything in a thread.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Any

import numpy as np

import gpuedge
from gpuedge.cli.main import main as command_line

X = (np.arange(2 * 4 * 9 * 9) % 11 - 5).reshape(2, 4, 9, 9).astype(np.float32)
W = (np.arange(8 * 4 * 3 * 3) % 7 - 3).reshape(8, 4, 3, 3).astype(np.float32)
ROWS = np.arange(48, dtype=np.float32).reshape(3, 16) - 20
JUMPS = [part for part in os.environ.get("JUMPS", "").split(",") if part]


def convolved() -> Any:
    """Return what `conv2d` of these small integers is, to the last bit."""
    windows = np.lib.stride_tricks.sliding_window_view(X.astype(np.float64), (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, W.astype(np.float64)).astype(np.float32)


def judged(found: Any, expected: Any) -> str:
    return "right" if np.array_equal(np.asarray(found), expected) else "wrong numbers"


def layer(device: str) -> str:
    return judged(gpuedge.conv2d(X, W, device=device), convolved())


def session(device: str, model: str, isolation: str = "inline") -> str:
    with gpuedge.Session(model, device=device, isolation=isolation) as opened:
        (found,) = opened.run({"x": ROWS}).values()
    return judged(found, np.maximum(2 * ROWS + 1, 0))


def arrays(device: str) -> str:
    x = gpuedge.array(X, device=device)
    return judged((x * 2 + x).numpy(), 3 * X)


def probe() -> str:
    return "right" if gpuedge.probe(deadline_s=60).devices else "no device"


def command(*words: str) -> str:
    """Run a verb with ``--json``; return ``right``, or the code and what it says."""
    out = TextIOWrapper(BytesIO(), encoding=sys.stdout.encoding, errors=sys.stdout.errors)
    with redirect_stdout(out):
        code = command_line([*words, "--json"])
    out.flush()
    said = json.loads(out.buffer.getvalue())  # type: ignore[attr-defined]  # it is a BytesIO
    assert isinstance(said, dict)
    return "right" if code == 0 else f"exit status {code}: {json.dumps(said)}"


class Steps:
    """Does one step after the other, and writes what came of each at once."""

    def __init__(self, answer: str) -> None:
        self._told: dict[str, str] = {}
        self._file = int(answer)
        self._clock = itertools.cycle(JUMPS)

    def __call__(self, name: str, work: Callable[..., str], *arguments: str) -> None:
        if JUMPS:
            os.environ["CLOCK_OFFSET_S"] = next(self._clock)
        try:
            said = work(*arguments)
        except gpuedge.GpuEdgeError as error:
            said = str(error)
        except BaseException as error:
            said = "FAULT " + "".join(traceback.format_exception(error))
        self._told[name] = said
        os.pwrite(self._file, json.dumps(self._told).encode(), 0)


def main(model: str, answer: str, *devices: str) -> None:
    step = Steps(answer)
    step("probe", probe)
    for device in devices:
        step(f"{device} layer", layer, device)
        step(f"{device} session", session, device, model)
        step(f"{device} arrays", arrays, device)
        if device not in ("cpu", "auto"):
            step(f"{device} worker", session, device, model, "process")
    step("verb probe", command, "probe")
    step("verb doctor", command, "doctor")
    if "vulkan" in devices:
        step("verb tune", command, "tune", model, "--device", "vulkan")


if __name__ == "__main__":
    if os.environ.get("IN_THREAD"):
        thread = threading.Thread(target=main, args=sys.argv[1:])
        thread.start()
        thread.join()
    else:
        main(*sys.argv[1:])
