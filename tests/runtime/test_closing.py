"""Drivers that crash while they are closed are remembered; programs that are killed are not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuedge.safety.blocklist import Blocklist

CODE = """
import atexit, signal, sys, threading, time
sys.path.insert(0, {tests!r})
from faulty import LOST, NEVER, PLAIN, X, FaultyDevice, FaultyPool, graph
from gpuedge.safety.blocklist import Blocklist
from gpuedge.runtime import devices
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.request import Request

devices.DEVICE_END_S = 0.3

def marked(name):
    marker = Blocklist(sys.argv[1]).begin("k", name, code="<string>")
    marker.step("open")
    marker.quiet()
    return marker

def die():
    signal.raise_signal(signal.SIGSEGV)  # of this thread, now

def kill():
    signal.raise_signal(signal.SIGKILL)

def hang():
    closing.set()
    time.sleep(60)

def end():
    pass

closing = threading.Event()
pool = FaultyPool([LOST] if sys.argv[2] == "lost" else [], limits=NEVER)
pool.marked_by = marked
compiled = CompiledModel(graph(), Request("vulkan", PLAIN), pool)
FaultyDevice.close = lambda self: globals()[sys.argv[3]]()
if sys.argv[2] != "close":
    atexit.register(pool.end)
compiled.run({{"x": X}})
if sys.argv[2] == "close":
    pool.close()
if sys.argv[2] == "lost":
    closing.wait(20)  # a thread of recovery is in the driver as the program ends
"""


@pytest.mark.parametrize(
    ("when", "does", "steps", "status"),
    [
        ("close", "die", ["run"], -signal.SIGSEGV),
        ("exit", "die", ["run"], -signal.SIGSEGV),
        ("lost", "die", ["run"], -signal.SIGSEGV),
        ("close", "kill", [], -signal.SIGKILL),
        ("exit", "hang", [], 0),
        ("lost", "hang", [], 0),
        ("close", "end", [], 0),
    ],
)
def test_crash_while_closing_is_an_unfinished_start(
    when: str, does: str, steps: list[str], status: int, tmp_path: Path
) -> None:
    code = CODE.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, str(tmp_path), when, does]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert ended.returncode == status, ended.stderr
    assert [c.step for c in Blocklist(tmp_path).entries().get("k", [])] == steps
