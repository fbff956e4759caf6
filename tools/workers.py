"""A process of a driver configuration that answers lines with lines of JSON."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "drivers")]

from farm import FARM, environment_of  # noqa: E402

from gpuedge.safety.watchdog import LOOK_S, STRETCH, Watch  # noqa: E402

CPU = "cpu"


def device_of(configuration: str) -> str:
    """Return the device string of a configuration of the farm; others are the CPU."""
    return FARM[configuration].device if configuration in FARM else CPU


class Worker:
    """A Python script in the environment of a configuration.

    It has a cache folder of its own: workers that share one wait for its lock at every model, and
    read what the others wrote.

    Parameters
    ----------
    configuration : str
        One of the driver farm, or else the CPU.
    script : str
        It is given ``--child DEVICE``, and prints a line for each line that it reads.
    more : mapping of str to str, optional
        Further environment variables.
    """

    def __init__(
        self, configuration: str, script: str, more: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        named = configuration in FARM
        self._cache = tempfile.TemporaryDirectory(prefix="gpuedge-worker-")
        environment = {**(environment_of(configuration) if named else os.environ),
                       "PYTHONPATH": str(ROOT), "GPUEDGE_CACHE_DIR": self._cache.name,
                       **(more or {})}  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", script, "--child", device_of(configuration),
             *arguments],
            cwd=ROOT, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, line: str, patience_s: float) -> dict[str, Any]:
        """Return what it answers to a line; after a failure only ``why``, and it is dead.

        A process that computes, or wants to on a busy machine, has `STRETCH` times the patience.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ValueError("a process without pipes")
        why = "took too long"
        watch = Watch(patience_s, self._process.pid, most_s=STRETCH * patience_s)
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            try:
                print(line, file=stdin, flush=True)
                while not (is_ready := bool(ready.select(min(LOOK_S, patience_s)))):
                    if watch.look():
                        break
                if is_ready:
                    answer = stdout.readline()
                    if answer:
                        row: dict[str, Any] = json.loads(answer)
                        return row
                    why = f"the process died ({self._process.wait()})"
            except BrokenPipeError:
                why = f"the process died ({self._process.wait()})"
        self.close()
        return {"why": why}

    @property
    def is_alive(self) -> bool:
        """Whether it can take another line."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._cache.cleanup()
