"""Child processes: how they end, that nothing of them is left, and what they do meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuedge.safety import child
from gpuedge.safety.child import Child, Ending
from gpuedge.safety.watchdog import MOST_GAP_S, Activity

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and process groups of POSIX")


def started(folder: Path, code: str, request: bytes = b"") -> Child:
    argv = (sys.executable, "-c", f"import os, signal, sys, time\n{code}")
    return Child(argv, child.environment(), folder, request=request, output=folder / "output")


def is_there(pid: int) -> bool:
    """Say whether a process is alive, and no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def until(is_so: object, seconds: float = 10.0) -> bool:
    ends = time.monotonic() + seconds
    while not is_so() and time.monotonic() < ends:  # type: ignore[operator]
        time.sleep(0.01)
    return bool(is_so())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("pass", Ending("exit", 0)),
        ("sys.exit(3)", Ending("exit", 3)),
        ("os.kill(os.getpid(), signal.SIGSEGV)", Ending("signal", 11, "SIGSEGV")),
        ("os.kill(os.getpid(), signal.SIGKILL)", Ending("signal", 9, "SIGKILL")),
    ],
)
def test_end_tells_how_it_ended_by_itself(tmp_path: Path, code: str, ending: Ending) -> None:
    assert started(tmp_path, code).end(10.0) == ending


def test_request_arrives_and_output_is_kept(tmp_path: Path) -> None:
    one = started(
        tmp_path, "print(sys.stdin.readline())\nprint('err', file=sys.stderr)", b"hello\n"
    )
    assert one.end(10.0) == child.CLEAN
    assert one.tail().split() == ["hello", "err"]


def test_deadline_ends_all_that_was_started(tmp_path: Path) -> None:
    code = """import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(inner.pid, flush=True)
time.sleep(60)"""
    one = started(tmp_path, code)
    assert until(lambda: one.tail().endswith("\n"))
    begin = time.monotonic()
    assert one.end() == Ending("deadline")
    assert time.monotonic() - begin < 30.0
    assert until(lambda: not is_there(one.pid) and not is_there(int(one.tail())))


def test_no_descriptor_and_no_zombie_is_left(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for code in ("pass", "time.sleep(60)"):
        one = started(tmp_path, code)
        one.end(0.0 if "sleep" in code else 10.0)
        assert until(lambda one=one: not Path(f"/proc/{one.pid}").exists())  # type: ignore[misc]
    assert descriptors() == before


def test_flood_of_output_is_bounded_on_disk_and_in_memory(tmp_path: Path) -> None:
    one = started(tmp_path, "while True: sys.stdout.write('x' * 65536 + 'the end')")
    one.wait(time.monotonic() + 0.5)
    one.end()
    one.trim()
    assert (tmp_path / "output").stat().st_size <= child.MAX_OUTPUT_BYTES
    assert len(one.tail()) <= child.TAIL_BYTES


def test_wait_stops_when_told(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    one = started(tmp_path, "time.sleep(60)")
    assert not one.wait(time.monotonic() + 60, stop.is_set)
    assert one.end() == Ending("deadline")


TAKEN = """
import signal, sys, threading, os
from pathlib import Path
from gpuedge.safety import child
{}
one = child.Child((sys.executable, "-c", "pass"), child.environment(), Path.cwd())
one.wait(1e9 if child.time.monotonic() > 1e9 else child.time.monotonic() + 10)
print(one.end(10.0).how)
"""


@pytest.mark.parametrize(
    "who", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
            "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, 0))"],
)  # fmt: skip
def test_ending_is_unknown_where_the_application_takes_it(tmp_path: Path, who: str) -> None:
    argv = [sys.executable, "-c", TAKEN.format(who)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "unknown"


COLD = """
file = os.open("cold", os.O_RDONLY)
os.fsync(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
for place in range(0, 1 << 22, 1 << 16):
    os.pread(file, 64, place)
    time.sleep(0.05)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process does is known on Linux")
def test_activity_tells_sleeping_from_computing_and_from_waiting_for_a_processor(
    tmp_path: Path,
) -> None:
    def watched(code: str, seconds: float, gap: float = 0.0) -> float:
        one = started(tmp_path, code)
        activity, ends = Activity(one.pid), time.monotonic() + seconds
        idle = 0.0
        while time.monotonic() < ends:
            idle = activity.idle_s()
            time.sleep(0.02)
        time.sleep(gap)
        idle = activity.idle_s() if gap else idle
        one.end()
        return idle

    assert watched("time.sleep(60)", 1.5) > 0.7
    # Nobody looked for a while: that counts as nothing, and what was seen before still counts.
    assert 0.7 < watched("time.sleep(60)", 1.5, gap=MOST_GAP_S + 1.0) < 1.5 + MOST_GAP_S
    assert watched("while True: pass", 1.5) < 0.5
    # Starved: what it reads is not in memory.
    (tmp_path / "cold").write_bytes(os.urandom(1 << 22))
    assert watched(COLD, 1.5) < 0.5
    # Starved: all processors are taken by processes of higher priority.
    busy = [started(tmp_path, "while True: pass") for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert watched("os.nice(19)\nwhile True: pass", 2.0) < 0.5
    finally:
        for one in busy:
            one.end()


FORK = """
from pathlib import Path
from gpuedge.safety.child import Child
one = Child.fork(Path("forked"))
if one is None:
    print(sorted(os.listdir("/proc/self/fd"), key=int)[:3], flush=True)
    %s
"""


NOT_FORKED = """
from pathlib import Path
from gpuedge.safety.child import Child
try:
    one = Child.fork(Path("nowhere", "output"))
except OSError:
    print("a second parent", flush=True)
else:
    print(one.end(30.0), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux only")
def test_a_fork_that_cannot_begin_ends(tmp_path: Path) -> None:
    """It must not go on as a second parent, which would fork in its turn."""
    done = subprocess.run(
        [sys.executable, "-c", NOT_FORKED], cwd=tmp_path, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.stdout == f"{Ending('exit', 1)}\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux only")
def test_forked_process_is_a_child_too(tmp_path: Path) -> None:
    ends = "os.kill(os.getpid(), signal.SIGABRT)"
    one = started(tmp_path, f"{FORK % ends}\nprint(one.end(10.0).what)")
    assert one.end(10.0) == child.CLEAN
    assert one.tail().strip() == signal.Signals.SIGABRT.name
    assert "['0', '1', '2']" in (tmp_path / "forked").read_text()


IN_A_DRIVER = """
from gpuedge.safety.contain import contain
contain(60.0)
assert sys.stdin.buffer.read() == b""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"there.{os.getpid()}", "w")
time.sleep(60)
"""
PARENT = f"""
from pathlib import Path
from gpuedge.safety import child
argv = (sys.executable, "-c", "import os, signal, sys, time" + {IN_A_DRIVER!r})
kept = [child.Child(argv, child.environment(), ".", output=Path("started")) for _ in range(2)]
for number in range(2):
    kept.append(child.Child.fork(Path("forked")))
    if kept[-1] is None:
        exec({IN_A_DRIVER!r})
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it on Linux only")
def test_what_loads_a_driver_ends_with_its_parent_whatever_it_does(tmp_path: Path) -> None:
    """However many there are, and although the parent has no time to end them."""
    one = started(tmp_path, PARENT)
    assert until(lambda: len([*tmp_path.glob("there.*")]) == 4, 30.0), one.tail()
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("there.*")]
    assert all(map(is_there, pids))
    os.kill(one.pid, signal.SIGKILL)
    assert until(lambda: not any(map(is_there, pids)))
    one.end()
