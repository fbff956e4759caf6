"""What is compared: a device, another runtime, another Python, checkout or commit; and its process.

Each subject is a process of its own (`worker`), stopped while others are timed, for idle threads
of some runtimes poll and would take the processors from the others.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuedge.bench.peers import PEERS
from gpuedge.core.errors import InputError, UnknownDeviceError, UsageError
from gpuedge.core.text import plain, shown
from gpuedge.runtime.strings import AUTO, parse
from gpuedge.safety import child, interpreter, temporary
from gpuedge.safety.child import Child
from gpuedge.safety.deadline import call_within

WORKER = Path(__file__).parent / "worker.py"
ROOT = Path(__file__).parents[2]

OWN = "gpuedge"
KEYS = ("python", "tree", "commit")

LOAD_S = 300.0
"""Deadline of starting a subject with its first run."""

MOST_SAID = 300
"""Characters of what a process printed last that a message shows."""


@dataclass(frozen=True, slots=True)
class SubjectName:
    """A subject as it was named.

    Attributes
    ----------
    text : str
        As it was written: what results are called by.
    peer : str
        The runtime: gpuedge, or one of `peers.PEERS`.
    device : str
        What gpuedge is to run on; never ``auto``, which may change sides while it is timed.
    python, tree, commit : str
        Another interpreter, the folder of a checkout (first on PYTHONPATH), a commit of the
        repository in the current folder, which is checked out for it; empty for our own.
    """

    text: str
    peer: str = OWN
    device: str = "cpu"
    python: str = ""
    tree: str = ""
    commit: str = ""


OURS = SubjectName(OWN)


def parse_subject(text: str, device: str = "cpu") -> SubjectName:
    """Return the subject that ``DEVICE``, ``RUNTIME`` or ``[DEVICE@]KEY=VALUE`` names.

    `device` is that of a build which is named without one.

    Raises
    ------
    UsageError (GE-200), UnknownDeviceError (GE-102)
    """
    first, _, rest = text.partition("@")
    key, is_build, value = (rest or first).partition("=")
    name = device if is_build and not rest else first
    if (rest and not is_build) or (is_build and (key not in KEYS or not value)):
        raise UsageError(
            f"{shown(text)} names nothing to compare.", asked_by="the command line",
            hint="vulkan, onnxruntime, python=PATH, tree=FOLDER, commit=REVISION, or "
            "vulkan@tree=FOLDER",
        )  # fmt: skip
    peer = name if name in PEERS else OWN
    try:
        where = "cpu" if peer != OWN else parse(name)
    except UnknownDeviceError as error:
        error.known = f"{error.known}; runtimes: {', '.join(PEERS)}"
        raise
    if where == AUTO:
        raise UsageError(
            "auto is not compared: it may change sides while it is timed.",
            asked_by="the command line", hint="cpu, vulkan; gpuedge probe lists what is here",
        )  # fmt: skip
    found = SubjectName(text, peer, where)
    return replace(found, **{key: value}) if is_build else found


class TimedProcess:
    """A subject's process: asked with a deadline, stopped in between.

    Parameters
    ----------
    subject : SubjectName
        With its commit checked out: `tree` is set.
    folder : Path
        For what it prints.
    cache : str
        Cache folder of gpuedge in it; by default this process's.

    Raises
    ------
    InputError (GE-203)
        It cannot be started.
    """

    def __init__(self, subject: SubjectName, folder: Path, cache: str = "") -> None:
        self.subject, self._log = subject, folder / "log"
        program = subject.python or interpreter.interpreter()
        if program is None:
            raise InputError("No process can be started here.", known=interpreter.why_none())
        environ = _environment(subject)
        if cache:
            environ["GPUEDGE_CACHE_DIR"] = cache
        try:
            self._child = Child([program, "-P", str(WORKER), str(self._log)], environ, folder)
        except OSError as error:
            raise InputError(f"{program} cannot be started: {error}.", asked_by=subject.text,
                             hint="python=/path/to/python") from None  # fmt: skip
        # found in construction: pipes are there, since no file takes what it prints
        stdout = self._child.stdout
        self._answers = io.BufferedReader(stdout) if isinstance(stdout, io.RawIOBase) else None
        self.failed = ""

    def ask(self, deadline_s: float, **asked: Any) -> dict[str, Any]:
        """Return its answer; ``{"failed": why}`` if it ended or was ended at the deadline."""
        if self.failed:
            return {"failed": self.failed}
        answers, stdin = self._answers, self._child.stdin
        line = b""
        if answers is not None and stdin is not None:
            self._signal("SIGCONT")
            try:
                stdin.write(json.dumps(asked).encode() + b"\n")
                line = call_within(deadline_s, answers.readline)
            except TimeoutError:
                self.failed = f"no answer within {deadline_s:g} s"
            except OSError:
                pass  # its pipe is closed: it has ended
        if not line.endswith(b"\n"):
            self._end()
            return {"failed": self.failed}
        self._signal("SIGSTOP")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:  # printed by what Python imports at its start, before the worker
            answer = {"failed": f"it printed {plain(line.decode(errors='replace').strip(), 80)}"}
        self.failed = str(answer.get("failed", ""))
        return answer

    def _end(self) -> None:
        """End it, and say why it gave no answer."""
        said = b"" if self._child.stderr is None or self.failed else self._last_words()
        ending = self._child.end(0.0 if self.failed else 1.0)
        if not self.failed:
            how = f"{ending.what or ending.how} {ending.code}".strip()
            self.failed = f"its process ended: {how}. {plain(said.decode(errors='replace'))}"

    def _last_words(self) -> bytes:
        """Return the end of what it printed, before it had its log or into that."""
        try:
            early = call_within(1.0, self._child.stderr.read) if self._child.stderr else b""
            log = self._log.read_bytes() if self._log.exists() else b""
        except (OSError, TimeoutError):
            return b""
        return b" ".join((log or early or b"").split())[-MOST_SAID:]

    def _signal(self, name: str) -> None:
        """Stop or continue its group; Windows has no such signals."""
        number = getattr(signal, name, None)
        if number is not None and sys.platform != "win32" and not self._child.has_ended():
            os.killpg(self._child.pid, number)

    def close(self) -> None:
        """End it; may be called twice."""
        if not self.failed:
            self.failed = "closed"
        self._child.kill()
        self._child.end()


def check_call(call: str) -> None:
    """Import ``module:function`` in a process of its own; nothing is called.

    Raises
    ------
    InputError (GE-203)
        There is none, or its module cannot be imported.
    """
    with temporary.folder("gpuedge-bench-") as at, closing(TimedProcess(OURS, at)) as process:
        answer = process.ask(LOAD_S, do="find", call=call, folder=str(Path.cwd()))
    if "failed" in answer:
        raise InputError(
            f"{call} cannot be imported: {answer['failed']}.", asked_by="the command line",
            known=f"looked in {Path.cwd()}, PYTHONPATH and the installed packages",
            hint="go to the folder that holds the module, or name it in PYTHONPATH",
        )  # fmt: skip


def _environment(subject: SubjectName) -> dict[str, str]:
    """Return the environment: the build that is to be timed comes first on PYTHONPATH."""
    environ = child.environment()
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        environ.pop("OPENBLAS_NUM_THREADS", None)  # that is for probes: here numpy is timed
    first = subject.tree or ("" if subject.python else str(ROOT))
    if Path(first).name in ("site-packages", "dist-packages"):
        first = ""
    entries = [first, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    environ["PYTHONPATH"] = os.pathsep.join(interpreter.absolute(entries))
    return environ


def check_build(subject: SubjectName, answer: Mapping[str, Any]) -> str:
    """Return what is wrong with the build that answered; empty if it is the one that was meant."""
    if subject.tree and subject.peer == OWN:
        file, tree = Path(answer["file"]).resolve(), Path(subject.tree).resolve()
        if tree not in file.parents:
            return f"what ran is {file}, which is not in {tree}"
    return ""
