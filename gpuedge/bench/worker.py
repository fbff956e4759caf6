"""The process that is timed: one runtime and one case, asked by lines of JSON.

It is started as a file of its own (``python -P worker.py LOG``) under the Python and the build that
are to be timed, which may hold another version of gpuedge. What a runtime prints goes to LOG.

``{"do": "find", ...}`` imports a Python function. ``{"do": "load", ...}`` loads a model, or such a
function, and runs it once: everything that is cold. ``{"do": "time", "runs": N}`` runs it once to
warm the caches after the other side's turn, then N times, and answers with every time in
nanoseconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""Of `prctl` (linux/prctl.h): the signal that a process gets when its parent has died."""

MOST_SAID = 300
"""Characters of an exception that are passed on."""


def _peers() -> Any:
    """Return the module beside this one: the package that has them may be another version."""
    spec = importlib.util.spec_from_file_location("bench_peers", Path(__file__).parent / "peers.py")
    if spec is None or spec.loader is None:
        raise ImportError("peers.py is missing beside worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peak_bytes() -> int | None:
    """Return the largest resident set of this process; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


class TimedWork:
    """What is timed."""

    def __init__(self) -> None:
        self._run: Callable[[], Any] = lambda: None

    def find(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Import a function, and do not call it; say where it is."""
        module, _, name = asked["call"].partition(":")
        # after the build that is timed; not on PYTHONPATH, where it would hide Python's own modules
        sys.path.insert(1, asked.get("folder", ""))
        found = importlib.import_module(module)
        file = getattr(found, "__file__", None) or ""
        run = getattr(found, name, None)
        if not callable(run):
            raise AttributeError(f"{file or module} has no function {name}")
        self._run = run
        return {"device": "Python", "version": "", "file": file}

    def load(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Load and run once; say what each step took."""
        begin = time.perf_counter_ns()
        if asked.get("call"):
            about = self.find(asked)
            opened = loaded = time.perf_counter_ns()
        else:
            import numpy as np  # not for a function, which may do without

            with np.load(
                asked["inputs"], allow_pickle=False
            ) as file:  # in order: names are whatever a model has
                feeds = {n: file[f"arr_{i}"] for i, n in enumerate(asked["names"])}
            begin = time.perf_counter_ns()
            load = _peers().begin(asked["peer"], asked["model"], feeds, asked["device"])
            opened = time.perf_counter_ns()
            ready = load()
            loaded = time.perf_counter_ns()
            self._run = ready.run
            about = {"device": ready.device, "version": ready.version, "file": ready.file}
        outputs = self._run()
        first = time.perf_counter_ns()
        names = [] if asked.get("call") else list(outputs)
        if names:
            import numpy as np

            arrays = (np.asarray(outputs[name]) for name in names)
            # texts as numpy's own, which need no pickle
            np.savez(asked["outputs"], *(a.astype(str) if a.dtype == object else a for a in arrays))
        took = {
            "open_ns": opened - begin,
            "compile_ns": loaded - opened,
            "first_ns": first - loaded,
        }
        return {**about, **took, "python": sys.version.split()[0], "names": names}

    def time(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run it once to warm up, then as often as was asked for."""
        took, clock, run = [], time.perf_counter_ns, self._run
        for _ in range(asked["runs"] + 1):
            begin = clock()
            run()
            took.append(max(1, clock() - begin))
        return {"lead_ns": took[0], "took_ns": took[1:], "peak_bytes": peak_bytes()}


def main(log: str) -> None:
    """Answer until the pipe closes."""
    if sys.platform == "linux":  # a process that is stopped does not see its pipe close
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            pass  # no ctypes: it ends when it is asked for something
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers, open(log, "ab") as said:
        os.dup2(said.fileno(), 1)  # what a runtime prints is no answer
        os.dup2(said.fileno(), 2)
        subject = TimedWork()
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer = getattr(subject, asked["do"])(asked)
            except Exception as error:  # whatever it raises is what it is reported for
                text = " ".join(str(error).split())[:MOST_SAID]
                missing = isinstance(error, ImportError) and asked.get("peer") == error.name
                answer = {"failed": f"{type(error).__name__}: {text}", "missing": missing}
            print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # some runtimes crash or hang while they are taken down


if __name__ == "__main__":
    main(sys.argv[1])
