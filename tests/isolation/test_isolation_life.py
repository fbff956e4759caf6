"""Workers and the life of the application: threads, forks, interrupts, exits, and being killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import isolation_fakes as fakes
import pytest

from gpuedge.backends.base import Usage
from gpuedge.core.errors import ClosedError, DeviceLostError
from gpuedge.isolation import open_isolated
from gpuedge.isolation.device import Handle, IsolatedDevice
from gpuedge.isolation.messages import pack

HERE = Path(fakes.__file__).parent


def held() -> Counter[str]:
    """What this process holds: descriptors by what they are, maps of shared memory, threads."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue
        found[name.split(":")[0]] += 1
    maps = Path("/proc/self/maps").read_text()
    found["maps"] = maps.count("memfd:gpuedge")
    found["threads"] = threading.active_count()
    found["children"] = len(children())
    return found


def children() -> list[int]:
    """Processes that this one started and that were not collected, dead ones too."""
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == own:
                found.append(int(entry.name))
    return found


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_eighty_devices_leave_nothing_behind() -> None:
    answer = pack(2, {"counters": {"allocations": 1}})

    def one(ending: int) -> None:
        device = IsolatedDevice(fakes.info(), 30.0, fakes.opened(answer))
        device.alloc(4 << 20, Usage.OUTPUT)
        if ending == 0:
            device.close()
        elif ending == 1:
            os.kill(device.pid, signal.SIGKILL)
            device.close()
        elif ending == 2:
            os.kill(device.pid, signal.SIGKILL)
            with pytest.raises(DeviceLostError):
                device.alloc(16, Usage.OUTPUT)
        else:
            del device

    for ending in range(4):
        one(ending)
    gc.collect()
    before = held()
    for turn in range(80):
        one(turn % 4)
    gc.collect()
    assert held() == before


def test_a_device_that_is_dropped_takes_its_worker_along() -> None:
    device = open_isolated(fakes.info())
    pid = device.pid
    del device
    gc.collect()
    assert fakes.gone_within(pid, 20.0)


def test_devices_and_threads_do_not_mix_up_answers() -> None:
    devices = [open_isolated(fakes.info()) for _ in range(3)]
    wrong: list[str] = []

    def work(number: int) -> None:
        device = devices[number % 3]
        for turn in range(40):
            data = f"thread {number} turn {turn} ".encode() * (1 + turn * 50)
            buffer = device.alloc(len(data), Usage.OUTPUT)
            device.write(buffer, memoryview(data))
            into = bytearray(len(data))
            device.read(buffer, memoryview(into))
            device.free(buffer)
            if into != data:
                wrong.append(f"{number} {turn}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert sum(d.counters.allocations for d in devices) == 9 * 40
    pids = [d.pid for d in devices]
    assert len(set(pids)) == 3
    for device in devices:
        device.close()
    assert all(fakes.gone_within(pid, 20.0) for pid in pids)


def test_closing_does_not_wait_for_a_thread_in_a_hanging_driver() -> None:
    device = fakes.isolated("wait=hold:60")
    pid, failed, began = device.pid, [], threading.Event()

    def work() -> None:
        began.set()
        try:
            fakes.run_once(device, b"abc", timeout_s=50.0)
        except DeviceLostError as error:
            failed.append(str(error.known))

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(20)
    time.sleep(0.3)  # until it is in its call
    start = time.monotonic()
    device.close()
    thread.join(30.0)
    assert time.monotonic() - start < 30.0
    assert failed == ["the device was closed"]
    assert fakes.gone_within(pid, 20.0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it: what started the tests may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_in_a_call_ends_the_worker_so_that_no_answer_goes_astray() -> None:
    device = fakes.isolated("wait=sleep:60")
    pid = device.pid
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        fakes.run_once(device, b"abc", timeout_s=50.0)
    timer.join()
    assert fakes.gone_within(pid, 20.0)
    with pytest.raises(DeviceLostError) as lost:
        device.alloc(16, Usage.OUTPUT)
    assert lost.value.known == "the call was interrupted"
    assert lost.value.is_outside  # it is held against nobody
    device.close()


def in_child(check: str) -> int:
    """Fork, run a check there, and return the exit status."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = CHECKS[check]()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


INHERITED: list[IsolatedDevice] = []


def refuses() -> int:
    """Every call of an inherited device is refused; closing it does nothing."""
    device = INHERITED[0]
    for call in (
        lambda: device.alloc(16, Usage.OUTPUT),
        lambda: device.record([]),
        lambda: fakes.run_once(device, b"abc"),
    ):
        try:
            call()
        except ClosedError as error:
            if "a worker of its own" not in str(error.hint):
                return 2
        else:
            return 1
    device.free(Handle(1, 16))
    device.release(Handle(2))
    device.close()
    return 0


def opens_its_own() -> int:
    """A device of the child's own works."""
    own = open_isolated(fakes.info())
    good = own.pid != INHERITED[0].pid and fakes.run_once(own, b"in the child") == b"in the child"
    own.close()
    return 0 if good else 1


def holds_nothing() -> int:
    """No pipe to the parent's worker is left open, or the worker would not see the parent end."""
    return held()["pipe"]


CHECKS = {"refuses": refuses, "opens its own": opens_its_own, "holds nothing": holds_nothing}


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "in a call"])
def test_a_forked_child_refuses_the_device_and_may_open_its_own(is_busy: bool) -> None:
    device = fakes.isolated("wait=sleep:1.5")
    INHERITED[:] = [device]
    pipes = held()["pipe"] - 4  # those of this one device
    thread = threading.Thread(target=fakes.run_once, args=(device, b"abc"))
    if is_busy:  # its lock is held in the child forever
        thread.start()
        time.sleep(0.3)
    try:
        assert in_child("refuses") == 0
        assert in_child("opens its own") == 0
        assert in_child("holds nothing") == pipes
    finally:
        if is_busy:
            thread.join()
    assert fakes.run_once(device, b"still the parent's") == b"still the parent's"
    INHERITED.clear()
    device.close()


def use_in_child(send: object) -> None:
    with open_isolated(fakes.info()).entered():
        device = open_isolated(fakes.info())
        send.send(fakes.run_once(device, b"spawned"))  # type: ignore[attr-defined]
        device.close()


def test_a_spawned_process_opens_workers_as_any_other() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=use_in_child, args=(there,))
    child.start()
    assert here.recv() == b"spawned"
    child.join(20)
    assert child.exitcode == 0
    for end in (here, there):
        end.close()
    child.close()


APPLICATION = """
import os, sys, threading, time
import isolation_fakes as fakes
device = fakes.isolated({does!r})
print(device.pid, flush=True)
def work():
    try:
        fakes.run_once(device, b"abc", timeout_s=50.0)
    except Exception:
        pass
if {does!r}:
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
{then}
"""


def application(does: str, then: str) -> subprocess.Popen[str]:
    """Start an application with a worker that may be busy, and which goes on with `then`."""
    return subprocess.Popen(
        [sys.executable, "-c", APPLICATION.format(does=does, then=then)],
        cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("does", "then"),
    [
        ("", "pass"),
        ("", "sys.exit(3)"),
        ("", "del device"),
        ("", "device.close()"),
        ("", "keep = [device]; keep.append(keep); del device"),
        ("wait=hold:60", "pass"),
        ("wait=sleep:60", "sys.exit(3)"),
    ],
)
def test_an_application_that_ends_without_closing_is_silent_and_leaves_no_worker(
    does: str, then: str
) -> None:
    app = application(does, then)
    said, complaints = app.communicate(timeout=60)
    assert complaints == ""
    assert app.returncode == (3 if "exit" in then else 0)
    assert fakes.gone_within(int(said), 20.0)


ODD = """
import os, signal, sys
import isolation_fakes as fakes
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for fd in {closed}:
    os.close(fd)
device = fakes.isolated()
assert fakes.run_once(device, b"good") == b"good"
device.close()
device = fakes.isolated("submit=signal:SIGSEGV")
try:
    fakes.run_once(device, b"good")
except Exception as error:
    assert error.known.startswith("an end that was not seen while running a kernel"), error
else:
    sys.exit(4)
device.close()
sys.exit(3)
"""


@pytest.mark.parametrize("closed", [(), (0, 1)], ids=["", "without standard streams"])
def test_an_application_that_ignores_children_and_has_no_streams(closed: tuple[int, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ODD.format(closed=closed)],
        cwd=HERE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 3


BUSY = {
    "idle": "",
    "computing": "wait=sleep:60",
    "holding Python": "wait=hold:60",
    "idle, by a thread": "wait=none:,plain",
    "computing, by a thread": "wait=sleep:60,plain",
}


@pytest.mark.parametrize(
    ("does", "forked"),
    [*((does, False) for does in BUSY), ("idle", True), ("idle, by a thread", True)],
)
def test_a_killed_application_leaves_no_worker(does: str, forked: bool) -> None:
    then = "pid = os.fork() if {} else 1\nif pid: print(pid, flush=True)\ntime.sleep(60)"
    app = application(BUSY[does], then.format(forked))
    assert app.stdout is not None
    pid = int(app.stdout.readline())
    child = int(app.stdout.readline())
    try:
        time.sleep(0.1)
        assert fakes.is_alive(pid)
        app.kill()
        app.wait(10)
        assert fakes.gone_within(pid, 20.0)
    finally:
        if forked:
            os.kill(child, signal.SIGKILL)
        app.communicate()


def test_ctrl_c_in_the_terminal_does_not_reach_a_worker() -> None:
    device = open_isolated(fakes.info())
    assert os.getpgid(device.pid) == device.pid != os.getpgid(0)
    assert os.getsid(device.pid) != os.getsid(0)
    device.close()


def test_a_worker_holds_what_it_needs_and_nothing_of_the_application(tmp_path: Path) -> None:
    first = open_isolated(fakes.info())
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        device = open_isolated(fakes.info())
        folder = Path(f"/proc/{device.pid}/fd")
        kinds = Counter(os.readlink(p).split(":")[0] for p in folder.iterdir())  # noqa: PTH115
    assert kinds == {"/dev/null": 1, "pipe": 5, "/memfd": 2}
    assert Path(f"/proc/{device.pid}/cwd").resolve() == Path("/")
    limits = Path(f"/proc/{device.pid}/limits").read_text()
    core = next(line for line in limits.splitlines() if line.startswith("Max core"))
    assert core.split()[4] == "0"
    for one in (device, first):
        one.close()
