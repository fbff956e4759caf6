"""A peer's process as its parent sees it: asked with a deadline, stopped while others are timed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A peer in a process and a process group of its own.

    It is stopped (SIGSTOP) unless it is being asked, for some peers' idle threads poll and would
    take the processors from the others.

    Parameters
    ----------
    command : sequence of str
        What to run, in the repository: it answers a line of JSON with a line of JSON.
    environ : mapping
        Its whole environment.
    log : Path
        Where what it prints is added.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process, and its process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def ask(self, deadline_s: float, **asked: Any) -> dict[str, Any]:
        """Return its answer; ``{"failed": reason}`` if it died, or was killed at the deadline."""
        assert self._process.stdin is not None
        try:
            self._signal(signal.SIGCONT)
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(deadline_s)
        except BrokenPipeError:
            answer = None
        if answer is None:
            return {"failed": self._end(deadline_s)}
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self, deadline_s: float) -> dict[str, Any] | None:
        """Return the next line; None once the pipe is closed or the deadline has passed."""
        assert self._process.stdout is not None
        end, file = time.monotonic() + deadline_s, self._process.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(file, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not ready.select(max(0.0, end - time.monotonic())):
                    return None
                more = os.read(file, 1 << 16)
                if not more:
                    return None
                self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self, deadline_s: float) -> str:
        """Kill what is left of it and say why."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        self.close()
        if status is None:
            return f"no answer within {deadline_s:g} s"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"its process ended: {how}"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Kill its process group and wait for it; may be called twice."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
