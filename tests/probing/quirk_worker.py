"""A probe's child that fails, crashes or has no time in a required test, as its key says.

It notes each start, and what it was told, in the file that the variable STARTS names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

WORKER = (sys.executable, __file__)


class Worker:
    """The far end of one request."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.candidate = request["candidates"][0]
        self.answers = self.candidate["answers"].get("0", {})
        told = {name: self.candidate[name] for name in ("runs", "skip")}
        starts = Path(self.candidate["env"]["STARTS"])
        with starts.open("a") as file:
            file.write(json.dumps({"answers": self.answers, **told}) + "\n")
        self.attempt = len(starts.read_text().splitlines())

    def send(self, event: str, **fields: Any) -> None:
        """Write an event."""
        line = {
            "token": self.request["token"],
            "event": event,
            "at": 0,
            "when": 0.0,
            "cpu": 0.0,
            **fields,
        }
        with open(self.request["result"], "a") as file:
            file.write(json.dumps(line) + "\n")

    def play(self) -> None:
        """Be a device that an entry asks something of."""
        who = {"api": "vulkan", "name": "GPU", "os": "linux"}
        device = {"index": 0, "identity": who, "is_software": False}
        self.send("step", step="enumerate", index=None)
        self.send("devices", database="3 abc", devices=[device])
        self.send("step", step="open", index=0)
        getattr(self, "play_" + self.candidate["key"].replace("-", "_"))()
        self.send("done")

    def ask(self) -> None:
        """Come to the required test."""
        self.send("demand", index=0, entries=["mesa-0001"])
        self.send("step", step="run", index=0)

    def result(self, outcome: str, *, is_blocked: bool = False) -> None:
        """Send the device's verdict."""
        lists = dict.fromkeys(("levels", "features", "kernels", "storages"), ())
        restrictions = {
            **lists, "kernels": ["conv2d_px4"], "limits": {}, "is_backend_off": is_blocked,
            "is_demoted": False, "entries": ["mesa-0001"],
        }  # fmt: skip
        unfinished = {"is_unfinished": True} if outcome == "cut" else {}
        self.send(
            "device", index=0, seconds=0.1, caps={}, detail="",
            status="blocked" if is_blocked else "ok", code="quirk" if is_blocked else "ok",
            restrictions={} if outcome == "cleared" else restrictions,
            evidence={"entries": [{"id": "mesa-0001", "outcome": outcome}], **unfinished},
        )  # fmt: skip

    def verdict(self, status: str = "ok", code: str = "ok", index: int = 0) -> None:
        """Send a verdict that no entry has to do with."""
        self.send(
            "device", index=index, seconds=0.1, caps={}, detail="", status=status, code=code,
            evidence={},
        )  # fmt: skip

    def play_wrong(self) -> None:
        """Be wrong each time."""
        self.verdict("wrong", "wrong-numbers")

    def play_wrong_once(self) -> None:
        """Be wrong the first time only."""
        self.verdict(*(("wrong", "wrong-numbers") if self.attempt == 1 else ()))

    def play_wrong_slowly(self) -> None:
        """Be wrong when most of the time is over."""
        time.sleep(1.2)
        self.verdict("wrong", "wrong-numbers")

    def play_full_once(self) -> None:
        """Have no memory the first time."""
        self.verdict(*(("broken", "out-of-memory") if self.attempt == 1 else ()))

    def play_lacking(self) -> None:
        """Lack what nothing will bring."""
        self.verdict("broken", "no-shaders")

    def play_crashes_once(self) -> None:
        """Crash while it is opened, the first time only."""
        if self.attempt == 1:
            os.abort()
        self.verdict()

    def play_exits(self) -> None:
        """Leave each time."""
        os._exit(0)

    def play_exits_then_crashes(self) -> None:
        """Fail in two ways."""
        if self.attempt == 1:
            os._exit(0)
        os.abort()

    def play_hangs(self) -> None:
        """Sleep."""
        time.sleep(60)

    def play_fails(self) -> None:
        """Fail the probe whenever it is run."""
        self.ask()
        self.result("failed")

    def play_fails_and_blocks(self) -> None:
        """Fail the probe of an entry that takes the device away."""
        self.ask()
        self.result("failed", is_blocked=True)

    def play_is_cut(self) -> None:
        """Have no time for it."""
        self.ask()
        self.result("cut")

    def play_dies(self) -> None:
        """Crash in the probe, unless it need not be run."""
        if self.answers == {"mesa-0001": False}:
            self.result("failed")
            return
        self.ask()
        os.abort()

    def play_dies_after(self) -> None:
        """Crash when the probe is over."""
        self.ask()
        self.send("demand", index=0, entries=[])
        os.abort()


if __name__ == "__main__":
    Worker(json.loads(sys.stdin.readline())).play()
