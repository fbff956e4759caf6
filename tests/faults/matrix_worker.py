"""The supervisor's side of an application that meets faulty drivers (matrix_trials.py)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).resolve().parent
ROOT = FAULTS.parents[1]

MARGIN_S = 240.0
"""Seconds above a trial's deadline after which the application counts as hung: on a machine with
much else to do, starting alone may take a minute."""

ENDING_S = 1.0
"""Seconds to end for an application that has failed already."""


class Worker:
    """An application process, started when it is first needed and again when it is used up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.margin_s = MARGIN_S
        self._has_run = False
        self._answers = -1
        self._rest = b""

    @property
    def program(self) -> list[str]:
        """What Python runs."""
        return [str(FAULTS / "matrix_trials.py")]

    def run(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Carry out a trial; an application that ended or hung is its result.

        Trials in service get an application of their own: it remembers the devices it has seen.
        """
        before = self.stop() if self._has_run and trial.get("part") == "service" else []
        if self._process is None:
            self._start()
            ready = self._answer(MARGIN_S)
            if "ready" not in ready:
                self.stop()
                return {"wrong": [f"the application did not start: {ready}"], "found": ["none"]}
        process = self._process
        if process is None or process.stdin is None:
            raise RuntimeError("the application has no input")
        process.stdin.write(json.dumps(trial) + "\n")
        process.stdin.flush()
        self._has_run = True
        result = self._answer(float(trial["deadline_s"]) + self.margin_s)
        if "died" in result or "hung" in result:
            self.stop(wait_s=ENDING_S)
            return {"wrong": list(result.values()), "found": list(result)}
        if result.get("is_used_up"):
            result["wrong"] += self.stop()
        result["wrong"] += before
        return result

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = os.pipe()
        env = {**os.environ, "MATRIX_FOLDER": str(self.folder)}
        env["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, FAULTS, FAULTS.parent)))
        with open(self.folder / "output.txt", "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, str(theirs)],
                stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(theirs,), env=env,
                text=True, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        self._answers, self._rest, self._has_run = ours, b"", False

    def _answer(self, limit_s: float) -> dict[str, Any]:
        """Return the next line of the application, or how it failed to give one."""
        until = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0:
                return {"hung": f"the application gave no answer for {limit_s:.0f} s"}
            if select.select([self._answers], [], [], left)[0]:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    code = self._process.wait(10) if self._process else None
                    path = self.folder / "crash.txt"
                    trace = path.read_text(errors="replace")[-1500:] if path.is_file() else ""
                    return {"died": f"the application ended with {code}: {trace}"}
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self, wait_s: float = 60.0) -> list[str]:
        """End the application as one ends; return what was wrong about that."""
        process, self._process = self._process, None
        if process is None:
            return []
        wrong: list[str] = []
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            code = process.wait(wait_s)
            if code:
                wrong.append(f"the application left with {code}")
        except subprocess.TimeoutExpired:
            wrong.append("the application did not end")
            process.kill()
            process.wait()
        os.close(self._answers)
        return wrong
