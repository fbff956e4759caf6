"""A backend of drivers that misbehave by name, and the worker that plays their probe process.

Run as a program this file is the worker: it reads the request a real child would read and does what
the candidate's key says. Imported, it offers `FakeBackend`, which lists the keys in PROBE_FAKES.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WORKER = (sys.executable, __file__)


def started(folder: Path) -> int:
    """Return how many children were started so far, where PROBE_COUNT names ``count`` there."""
    log = folder / "count"
    return len(log.read_text()) if log.exists() else 0


class FakeBackend:
    """Lists candidates; opening anything in this process is an error."""

    name = "fake"

    def candidates(self, environ: dict[str, str]) -> list[Any]:
        from gpuedge.backends.base import Candidate

        stamp = environ.get("PROBE_STAMP", "1")
        keys = environ.get("PROBE_FAKES", "").split()
        return [Candidate("fake", k, f"print-{stamp}", {"FAKE_DRIVER": k}) for k in keys]

    def enumerate(self, candidate: Any) -> Any:
        raise AssertionError("a driver was loaded in the parent process")

    def open(self, info: Any) -> Any:
        raise AssertionError("a driver was opened in the parent process")


class Worker:
    """The far end of one request."""

    def __init__(self, request: dict[str, Any], at: int = 0) -> None:
        self.request = request
        self.at = at
        self.candidate = request["candidates"][at]
        self.key = self.candidate["key"]
        if "+" in self.key:  # a driver of several levels: what it does at each of them
            self.key = self.key.split("+")[int(self.candidate["backend"].removeprefix("level"))]
        self.skip = set(self.candidate["skip"])
        self.token = request["token"]

    def send(self, event: str, **fields: Any) -> None:
        own = {"token": self.token, "event": event, "at": self.at, "when": 0.0, "cpu": 0.0}
        line = json.dumps({**own, **fields}) + "\n"
        with open(self.request["result"], "a") as file:
            file.write(line)

    def step(self, name: str, index: int | None = None) -> None:
        self.send("step", step=name, index=index)

    def devices(self, *names: str) -> None:
        self.send(
            "devices",
            devices=[
                {"index": i, "identity": identity(n), "is_software": n.startswith("soft")}
                for i, n in enumerate(names)
            ],
        )

    def good(self, index: int, code: str = "ok", status: str = "ok") -> None:
        evidence = {"checks": [{"name": "convolution integers", "max_error": 0.0}]}
        caps = {"device_class": "generic"}
        self.send(
            "device",
            index=index,
            status=status,
            code=code,
            caps=caps,
            evidence=evidence,
            seconds=0.1,
        )

    def play(self) -> None:
        if self.at == 0:
            self.step("start")
        self.step("load")
        self.step("enumerate")
        getattr(self, "play_" + self.key.partition("@")[0].replace("-", "_"))()

    def play_ok(self) -> None:
        self.devices("soft " + self.key)
        self.step("open", 0)
        self.good(0)
        self.send("done")

    def play_discrete(self) -> None:
        self.devices("hard " + self.key)
        self.good(0)
        self.send("done")

    def play_absent(self) -> None:
        self.send("failed", status="absent", code="no-device", detail="none here")
        self.send("done")

    def play_no_loader(self) -> None:
        self.send("failed", status="absent", code="no-loader", detail="")
        self.send("done")

    def play_wrong(self) -> None:
        self.devices("hard wrong")
        self.good(0, "untouched-output", "wrong")
        self.send("done")

    def play_segv(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def play_abort(self) -> None:
        self.devices("hard abort")
        self.step("open", 0)
        os.abort()

    def play_exit0(self) -> None:
        os._exit(0)

    def play_exit3(self) -> None:
        self.devices("hard exit")
        self.step("build", 0)
        os._exit(3)

    def play_shy(self) -> None:
        """Work alone, and fail where another level ran before in the same process."""
        if self.at > 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.play_ok()

    def play_busy(self) -> None:
        """Compute without a sign of life."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass

    def play_hang(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(60)

    def play_slow(self) -> None:
        time.sleep(float(os.environ.get("PROBE_SLOW", "0.5")))
        self.play_ok()

    def play_flood(self) -> None:
        for _ in range(2000):
            os.write(1, b"o" * 10000)
            os.write(2, b"e" * 10000)
        self.play_ok()

    def play_flood_die(self) -> None:
        os.write(1, b"o" * 1000000)
        os.write(2, b"the last words")
        os._exit(1)

    def play_garbage(self) -> None:
        Path(self.request["result"]).write_bytes(b"\0\xff{]" * 5000 + b"\n{}\n[1]\nnull\n")

    def play_pipe(self) -> None:
        Path(self.request["result"]).unlink()
        os.mkfifo(self.request["result"])

    def play_forged(self) -> None:
        Path(self.request["result"]).write_bytes(b"")
        self.token = "0" * 32
        self.play_ok()

    def play_torn(self) -> None:
        self.devices("hard torn")
        self.step("open", 0)
        with open(self.request["result"], "a") as file:
            file.write('{"token": "' + self.token + '", "event": "dev')
        os.kill(os.getpid(), signal.SIGKILL)

    def play_crash_at_exit(self) -> None:
        self.play_ok()
        os.abort()

    def play_hang_at_exit(self) -> None:
        self.play_ok()
        time.sleep(60)

    def play_second_dies(self) -> None:
        self.devices("hard a", "hard b", "hard c")
        for index in range(3):
            if index in self.skip:
                continue
            self.step("run", index)
            if index == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            self.good(index)
        self.send("done")

    def play_dies_then_vanishes(self) -> None:
        if self.skip:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.devices("hard a", "hard b")
        self.step("run", 0)
        os.kill(os.getpid(), signal.SIGSEGV)

    def play_second_hangs(self) -> None:
        self.devices("hard a", "hard b", "hard c")
        self.step("run", 0)
        self.good(0)
        self.step("run", 1)
        time.sleep(60)

    def play_forgets_one(self) -> None:
        self.devices("hard a", "hard b")
        self.good(0)
        self.send("done")

    def play_grandchild(self) -> None:
        # Stays in the process group and holds our standard output open.
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
        time.sleep(0.3)  # by now it ignores the gentle signal
        Path(os.environ["PROBE_PIDFILE"]).write_text(str(pid))
        self.play_ok()

    def play_stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def play_silent(self) -> None:
        """Close standard output and error, which looks like the end, and hang."""
        for fd in (1, 2):
            os.close(fd)
        self.play_hang()

    def play_family(self) -> None:
        """Hang together with children of its own that hold its output open."""
        for _ in range(3):
            if os.fork() == 0:
                break
        self.play_hang()

    def play_orphan(self) -> None:
        """Leave a process of another session behind that holds standard output, and go on well."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            Path(os.environ["PROBE_PIDFILE"]).write_text(str(os.getpid()))
            os.write(writing, b".")
            time.sleep(60)
            os._exit(0)
        os.read(reading, 1)
        self.play_ok()

    def play_environment(self) -> None:
        text = json.dumps({"cwd": str(Path.cwd()), "fake": os.environ.get("FAKE_DRIVER")})
        self.send("failed", status="absent", code="no-device", detail=text)
        self.send("done")


def identity(name: str) -> dict[str, Any]:
    kind = "CPU" if name.startswith("soft") else "DISCRETE_GPU"
    return {"api": "fake", "name": name, "os": "linux", "device_type": kind}


def play_without_reading() -> None:
    """Die before the request is read (``PROBE_DIE_EARLY``)."""
    sys.stderr.write("Traceback ...\nModuleNotFoundError: No module named 'gpuedge'\n")
    sys.exit(1)


if __name__ == "__main__":
    if os.environ.get("PROBE_DIE_EARLY"):
        play_without_reading()
    if os.environ.get("PROBE_COUNT"):
        with open(os.environ["PROBE_COUNT"], "a") as log:
            log.write("x")
    request = json.loads(sys.stdin.readline())
    for at in range(len(request["candidates"])):
        Worker(request, at).play()
