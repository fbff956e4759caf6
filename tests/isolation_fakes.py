"""Workers that misbehave, and what the tests of isolation share.

As a program it is a worker whose null device does something at one of its calls:
``isolation_fakes.py submit=signal:SIGSEGV``. `canned` is a worker that says what it is told to,
with nothing of gpuedge in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuedge.backends.null as null
from gpuedge.backends.base import Counters, DeviceInfo, Usage
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.record import plain
from gpuedge.isolation.device import IsolatedDevice
from gpuedge.isolation.messages import Reply, pack

OPENED = plain(Reply(Counters().snapshot(), caps=VULKAN_MINIMUM))
"""The right answer to the first frame."""

_CANNED = """
import os, struct, sys, time
answers = [bytes.fromhex(a) for a in sys.argv[1].split(",")]
while True:
    head = b""
    while len(head) < 16:
        more = os.read(0, 16 - len(head))
        if not more:
            sys.exit(0)
        head += more
    left = sum(struct.unpack("<4sIII", head)[2:])
    text = b""
    while left:
        more = os.read(0, left)
        left -= len(more)
        text += more
    if b'"close"' in text:
        sys.exit(0)
    if answers:
        os.write(1, answers.pop(0))
"""


def info() -> DeviceInfo:
    """Return the null device."""
    backend = null.NullBackend()
    return backend.enumerate(backend.candidates({})[0])[0]


def fake(does: str) -> tuple[str, ...]:
    """Return the command of a worker that does something, such as ``submit=exit:3``."""
    return (sys.executable, "-X", "faulthandler", __file__, does)


def canned(*answers: bytes) -> tuple[str, ...]:
    """Return the command of a worker that gives these answers, one to each frame."""
    return (sys.executable, "-I", "-S", "-c", _CANNED, ",".join(a.hex() for a in answers))


def opened(*answers: bytes) -> tuple[str, ...]:
    """Return the command of a worker that opens, and then gives these answers."""
    return canned(pack(1, OPENED), *answers)


def isolated(does: str = "", deadline_s: float = 30.0) -> IsolatedDevice:
    """Open the null device in a worker that does something, or nothing unusual."""
    return IsolatedDevice(info(), deadline_s, fake(does) if does else None)


def run_once(device: IsolatedDevice, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Write, submit, wait and read, as an inference does."""
    buffer = device.alloc(len(data), Usage.OUTPUT)
    recording = device.record([], [], [buffer])
    device.write(buffer, memoryview(data))
    device.wait(device.submit(recording), timeout_s)
    into = bytearray(len(data))
    device.read(buffer, memoryview(into))
    device.release(recording)
    device.free(buffer)
    return bytes(into)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that ended and was not collected does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def gone_within(pid: int, seconds: float) -> bool:
    """Wait until a process is gone; False if it is not by then."""
    end = time.monotonic() + seconds
    while is_alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def hold_python(seconds: float) -> None:
    """Hang in C without letting Python go on, as a driver called by an extension module does."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def act(what: str) -> None:
    """Do what the argument says."""
    name, _, value = what.partition(":")
    if name == "signal":
        print("the driver's last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), getattr(signal, value))
    elif name == "exit":
        sys.stdout.flush()
        ctypes.CDLL(None).exit(int(value))
    elif name == "hold":
        hold_python(float(value))
    elif name == "sleep":
        time.sleep(float(value))
    elif name == "compute":
        end = time.process_time() + float(value)
        while time.process_time() < end:
            pass
    elif name == "flood":
        for fd in (1, 2):
            os.write(fd, b"the driver talks a lot\n" * (int(value) // 23))
    elif name == "raise":
        raise {"TypeError": TypeError, "MemoryError": MemoryError}[value]("out of order")
    elif name == "close-pipes":
        os.closerange(3, 64)
    elif name == "none":
        pass
    elif name == "grab":  # what a driver that reads its standard input would take away
        os.set_blocking(0, False)
        with contextlib.suppress(OSError):
            os.read(0, 65536)


def main() -> int:
    """Be a worker with a fault; with ``,plain`` after it, one of a system without life signals."""
    does, _, system = sys.argv[1].partition(",")
    if system == "plain":
        del fcntl.F_SETSIG
    point, _, what = does.partition("=")
    owner: Any = null.NullBackend if point == "open" else null.NullDevice
    good: Callable[..., Any] = getattr(owner, point)

    def bad(*args: Any, **kwargs: Any) -> Any:
        act(what)
        return good(*args, **kwargs)

    setattr(owner, point, bad)
    from gpuedge.isolation import worker as real

    return real.main()


if __name__ == "__main__":
    sys.exit(main())
