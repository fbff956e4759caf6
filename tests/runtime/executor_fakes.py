"""Executors of another package: right ones, and ones that do harm at one of their steps.

``kill_run`` does what its name says wherever it runs; ``later_kill_run`` only in the application,
whose process id is in the environment as ``APPLICATION``. They compute by ONNX Runtime.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from gpuedge.core.driver import Candidate, DeviceInfo
from gpuedge.core.identity import Identity
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.writer import to_bytes

STEPS = ("load", "open", "supports", "compile", "run", "close")
HARMS = ("kill", "exit", "hang", "raise", "missing", "leave", "mute")
LIES = (
    "shape", "dtype", "nan", "wrong", "unstable", "nothing", "none", "list", "mapping",
    "speechless",
)  # fmt: skip
NAMES = (
    "right", "quick", "slow", "part", "refuses", "kept", "owned", "writes",
    "lists_many", "lists_odd", "lists_mute",
    *(f"{harm}_{step}" for harm in HARMS for step in STEPS), *(f"lies_{lie}" for lie in LIES),
)  # fmt: skip


class FakeError(Exception):
    """What some package calls its own error."""


class SpeechlessError(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError


class NoMapping(dict[str, Any]):
    """A dictionary in which nothing is found."""

    def get(self, *args: Any) -> Any:
        """Fail."""
        raise FakeError("no look-ups today")


def is_here(name: str) -> bool:
    """Tell whether a fake does harm in this process."""
    if not name.startswith("later_"):
        return True
    return os.getpid() == int(os.environ["APPLICATION"])


class Fake:
    """A plug-in called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.does = name.removeprefix("later_") if is_here(name) else "right"

    def at(self, step: str) -> None:
        """Come to a step, and do what there is to do."""
        harm, _, where = self.does.partition("_")
        if where != step:
            return
        if harm == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif harm == "exit":
            os._exit(3)
        elif harm == "hang":
            time.sleep(600)
        elif harm == "raise":
            raise FakeError(f"no {step} today")
        elif harm == "leave":
            raise SystemExit(f"no {step} today")
        elif harm == "mute":
            raise SpeechlessError
        elif harm == "missing":
            __import__("a_package_that_is_not_there")

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List the one there is, or what no plug-in should."""
        if self.does == "lists_many":
            return [Candidate(self.name, str(number), "1") for number in range(100_000)]
        if self.does == "lists_odd":
            return [Candidate(self.name, 5, None)]  # type: ignore[arg-type]
        if self.does == "lists_mute":
            raise SpeechlessError
        return [Candidate(self.name, self.name, "1")]

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """List its device."""
        self.at("load")
        identity = Identity(self.name, f"fake {self.name}", sys.platform, driverName="Fake")
        return [DeviceInfo(candidate, 0, identity, is_software=False)]

    def open(self, info: DeviceInfo, **options: Any) -> Runtime:
        """Open it."""
        self.at("open")
        return Runtime(self)


class Runtime:
    """An open fake."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Take everything, unless it is one that does not."""
        self.fake.at("supports")
        if self.fake.does == "refuses" or (self.fake.does == "part" and node.op == "Sigmoid"):
            return f"it has no {node.op}"
        return None

    def compile(self, segment: Graph) -> Executable:
        """Compile a segment."""
        self.fake.at("compile")
        return Executable(self.fake, segment)

    def close(self) -> None:
        """Close it."""
        self.fake.at("close")


class Executable:
    """A compiled segment."""

    def __init__(self, fake: Fake, graph: Graph) -> None:
        self.fake, self.graph, self.runs = fake, graph, 0
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            to_bytes(graph), options, providers=["CPUExecutionProvider"]
        )
        self.known: dict[bytes, list[Array]] = {}
        self.memory: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> Any:
        """Compute, or lie."""
        self.fake.at("run")
        self.runs += 1
        if self.fake.does == "slow":
            time.sleep(0.05)
        if self.fake.does == "writes":
            for array in inputs.values():
                array[...] = 0
        key = b"".join(array.reshape(-1)[:64].tobytes() for array in inputs.values())
        if self.fake.does != "quick" or key not in self.known:
            self.known = {key: self.session.run(None, dict(inputs))}
        outputs = dict(zip(self.graph.outputs, self.known[key], strict=True))
        if self.fake.does == "quick":
            return {name: array.copy() for name, array in outputs.items()}
        if self.fake.does == "owned":
            for name, array in outputs.items():
                self.memory.setdefault(name, np.empty_like(array))[...] = array
            return self.memory
        if self.fake.does == "kept":
            return self.views(outputs)
        return self.lie(outputs) if self.fake.does.startswith("lies_") else outputs

    def views(self, outputs: dict[str, Array]) -> dict[str, Array]:
        """Return views of memory that the next run writes over."""
        for name, array in outputs.items():
            self.memory.setdefault(name, np.empty((*array.shape, 2), array.dtype))[..., 0] = array
        return {name: self.memory[name][..., 0] for name in outputs}

    def lie(self, outputs: dict[str, Array]) -> Any:
        """Return something else than the right outputs."""
        told = self.fake.does.removeprefix("lies_")
        if told == "none":
            return None
        if told == "list":
            return list(outputs.values())
        if told == "nothing":
            return {}
        if told == "mapping":
            return NoMapping(outputs)
        if told == "speechless":
            raise SpeechlessError
        return {name: wrong(told, array, self.runs) for name, array in outputs.items()}

    def close(self) -> None:
        """Let go of it."""


def wrong(told: str, array: Array, runs: int) -> Array:
    """Return an array that is wrong in some way."""
    if told == "shape":
        return array.reshape(-1, 1)
    if told == "dtype":
        return array.astype(np.float64)
    if told == "nan":
        return np.full_like(array, np.nan) if array.dtype.kind == "f" else array
    if told == "unstable" and runs % 2:
        return array
    return array + array.dtype.type(1)


def install(folder: Path, *only: str) -> None:
    """Install them, all or some, as a package manager does: the names of their entry points."""
    info = folder / "executor_fakes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: executor-fakes\nVersion: 1.0\n")
    names = only or [*NAMES, *(f"later_{name}" for name in NAMES)]
    lines = [f"{name} = executor_fakes:{name}" for name in names]
    lines += ["no_module = module_that_is_not_there:Plugin", "no_class = executor_fakes:Nothing"]
    (info / "entry_points.txt").write_text("\n".join(["[gpuedge.executors]", *lines, ""]))


def __getattr__(name: str) -> Any:
    """Return the class of a fake, as its entry point names it."""
    if name.removeprefix("later_") in NAMES:
        return lambda: Fake(name)
    raise AttributeError(name)
