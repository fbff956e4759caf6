"""A GPU behind the seam that negates, and fails exactly when it is told to; the pool it is in.

Sessions of a test take it with the fixture `take`: everything above the seam is the real thing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import gpuedge
from gpuedge import __version__
from gpuedge.backends.base import Dispatch, Recording, Ticket
from gpuedge.backends.null import Failure, NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.executors.base import Executable, Executor
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.shaped import ShapedModel
from gpuedge.plan.plan import Plan
from gpuedge.plan.planner import plan_or_refusals
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime import shapes
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import Pool, RetryLimits

if TYPE_CHECKING:
    import pytest

    from gpuedge.executors.driver_calls import Marker

BROKEN = ProbeRow("vulkan:1", "vulkan", "wrong", "wrong-numbers", "the numbers are wrong", "Liar")
ABSENT = ProbeRow("vulkan", "vulkan", "absent", "no-device", "the driver offers no device", "none")

LOST = DeviceLostError("The device was lost.")
HUNG = DeviceTimeoutError("Work did not finish.")
EXHAUSTED = OutOfMemoryError("No memory.")
REFUSED = DriverError("The driver refused.")
DIED = DeviceLostError("The worker ended with SIGSEGV.", reason="worker-died")

SOON = RetryLimits(pauses_s=(0.01, 0.02, 0.04))
"""A device that failed is opened anew at once."""

NEVER = RetryLimits(pauses_s=(60.0,))
"""So patient that nothing comes back within a test."""

TRACE = np.float32(1 + 2**-20)
"""What the device multiplies its results by, so that they can be told from the CPU's."""

GPU = "vulkan:0"
X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 12)
PLAIN = gpuedge.Policy(crosscheck=0.0)

Script = Sequence[BaseException | None]
"""What each submission to a device raises, in order (None: it works); afterwards all work."""

Hook = Callable[[], object] | None


def row(caps: Caps = VULKAN_MINIMUM, *, is_software: bool = False) -> ProbeRow:
    """Return a usable row of a device called ``vulkan:0``."""
    return ProbeRow(
        "vulkan:0", "vulkan", "ok", "ok", "answered with the right numbers", "Fake GPU",
        identity={"api": "vulkan", "name": "Fake GPU", "os": "linux", "vendorID": 1},
        is_software=is_software, caps=caps.to_dict(), key="fake", fingerprint="f", index=0,
    )  # fmt: skip


class Gate:
    """Holds calls back until it is opened; tells when one has come."""

    def __init__(self) -> None:
        self.came, self.open, self.left = (threading.Event() for _ in range(3))
        self.names: list[str] = []

    def __call__(self) -> None:
        self.names.append(threading.current_thread().name)
        self.came.set()
        self.open.wait(40)
        self.left.set()


class FaultyDevice(NullDevice):
    """The null device, made to negate a tensor, with a script of its submissions.

    Attributes
    ----------
    script : list
        What its next submissions raise, or None.
    runs : int
        Submissions so far.
    factor : float32
        What its results are multiplied by.
    on_submit : callable, optional
        Called at each submission; may take long.
    closing : threading.Event
        While it is clear, closing takes long.
    """

    def __init__(self, script: Script = (), fail: Mapping[str, Failure] | None = None) -> None:
        backend = NullBackend()
        info = backend.enumerate(backend.candidates({})[0])[0]
        super().__init__(info, VULKAN_MINIMUM, fail or {}, self._negate)
        self.script = list(script)
        self.runs = 0
        self.factor = TRACE
        self.on_submit: Hook = None
        self.closing = threading.Event()
        self.closing.set()

    def submit(self, recording: Recording) -> Ticket:
        """Begin a run, or fail."""
        self.runs += 1
        if self.on_submit is not None:
            self.on_submit()
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        return super().submit(recording)

    def _negate(self, dispatch: Dispatch) -> None:
        """Do what the kernel of Neg does; what any other does comes to nothing but zeros."""
        roles = [tensor.access for tensor in dispatch.program.blob.tensors]
        made, given = (dispatch.bindings[roles.index(role)] for role in ("write", "read"))
        x = np.zeros(made.nbytes // 4, np.float32)
        if given.nbytes == made.nbytes:
            x = -np.frombuffer(given.buffer.data, np.float32, x.size, given.offset)  # type: ignore[attr-defined]
        target = made.buffer.data  # type: ignore[attr-defined]
        target[made.offset : made.offset + made.nbytes] = (x * self.factor).tobytes()

    def count(self, method: str) -> int:
        """Return how often a method was called."""
        return [call.method for call in self.calls].count(method)

    def close(self) -> None:
        """Close, as soon as `closing` is set."""
        self.closing.wait(10)
        super().close()


class HookedRun:
    """What the CPU runs; a hook is called before."""

    def __init__(self, inner: Executable, pool: FaultyPool) -> None:
        self._inner, self._pool = inner, pool

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute."""
        if self._pool.on_cpu is not None:
            self._pool.on_cpu()
        return self._inner.run(inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HookedCpu(CpuExecutor):
    """The CPU of a faulty pool."""

    def __init__(self, pool: FaultyPool) -> None:
        super().__init__()
        self._pool = pool

    def load(self, model: ShapedModel) -> Executable:
        """Load a whole model."""
        return HookedRun(super().load(model), self._pool)

    def compile(self, segment: Graph) -> Executable:
        """Compile a part of one."""
        return HookedRun(super().compile(segment), self._pool)


class FaultyPool(Pool):
    """A pool with one GPU, which follows one script per opening, and is opened anew when it fails.

    Parameters
    ----------
    *scripts : Script
    fail : mapping of str to Failure
        How calls of each device that is opened fail, by method.
    opening : Script
        What each opening raises, or None.

    Attributes
    ----------
    known : ProbeReport
        What probing says.
    devices : list of FaultyDevice
        Every device that was opened, in order.
    verdicts : list
        What trying the driver in a child says, one at a time; afterwards that it is good.
    gate : threading.Event
        While it is clear no such child ends.
    on_open, on_cpu : callable, optional
        Called at each opening, and at each run on the CPU; may take long.
    marked_by : callable, optional
        Returns what is told of the driver's work, by device string.
    """

    def __init__(
        self, *scripts: Script, fail: Mapping[str, Failure] | None = None, opening: Script = (),
        usable: bool = True, is_software: bool = False, limits: RetryLimits = SOON,
    ) -> None:  # fmt: skip
        super().__init__(limits)
        first = row(is_software=is_software)
        rows = (first if usable else first.replace(status="broken", code="open-failed"),)
        self.known = ProbeReport((*rows, BROKEN, ABSENT), __version__)
        self.scripts, self.opening = list(scripts), list(opening)
        self.fail = fail or {}
        self.devices: list[FaultyDevice] = []
        self.verdicts: list[str | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.on_open: Hook = None
        self.on_cpu: Hook = None
        self.marked_by: Callable[[str], Marker] | None = None
        self._on_the_cpu = HookedCpu(self)

    def report(self, backends: tuple[str, ...] = (), device: str = "") -> ProbeReport:
        return self.known

    def cpu(self) -> CpuExecutor:
        return self._on_the_cpu

    def _try_in_child(self, name: str, stop: threading.Event) -> str | None:
        self.gate.wait(30)
        return self.verdicts.pop(0) if self.verdicts else None

    def _open_gpu(self, name: str, isolation: str) -> Executor:
        if self.on_open is not None:
            self.on_open()
        error = self.opening.pop(0) if self.opening else None
        if error is not None:
            raise error
        self.devices.append(FaultyDevice(self.scripts.pop(0) if self.scripts else (), self.fail))
        marker = self.marked_by(name) if self.marked_by is not None else None
        return GpuExecutor(self.devices[-1], name, isolation=isolation, marker=marker)

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have sessions take their devices from here."""
        monkeypatch.setattr(shapes, "CompiledModel", partial(CompiledModel, pool=self))
        monkeypatch.setattr("gpuedge.session.POOL", self)


def refuse_operators(monkeypatch: pytest.MonkeyPatch, *ops: str) -> None:
    """Let no GPU have a kernel for these operators, whatever ours can do."""

    def judged(graph: Graph, caps: Caps) -> Plan | dict[int, str]:
        made = plan_or_refusals(graph, caps)
        whys = {id(n): f"no kernel for {n.op}" for n in graph.nodes if n.op in ops}
        return whys | (made if isinstance(made, dict) else {}) if whys else made

    monkeypatch.setattr("gpuedge.runtime.forecast.plan_or_refusals", judged)
    monkeypatch.setattr("gpuedge.executors.gpu.plan_or_refusals", judged)


def graph(*ops: str, shape: tuple[int, ...] = X.shape) -> Graph:
    """Return a chain of operators, of Neg alone if none are named."""
    builder = GraphBuilder()
    value = builder.input("x", TensorType("float32", shape))
    for op in ops or ("Neg",):
        value = builder.add(op, [value])
    builder.output(value)
    return builder.build()


def session(*ops: str, shape: Sequence[int | str] = X.shape, **options: Any) -> gpuedge.Session:
    """Return a session of such a chain, on the faulty GPU and without cross-checks."""
    from onnx import helper
    from onnx_models import model, value

    names = ["x", *(f"v{i}" for i in range(1, len(ops))), "y"]
    nodes = [
        helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops or ("Neg",))
    ]
    proto = model(nodes, [value("x", shape)], [value("y", shape)])
    return gpuedge.Session(proto, **{"device": GPU, "policy": PLAIN, **options})


def answer(s: gpuedge.Session, x: np.ndarray = X, **options: Any) -> np.ndarray:
    """Return the one result of a session."""
    (found,) = s.run({"x": x}, **options).values()
    return found


def row_of(s: gpuedge.Session, device: str = GPU) -> Any:
    """Return what a session's decision says of a device."""
    return next(r for r in s.explain().rows if r.device == device)


def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread brings about."""
    end = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


@contextmanager
def asking(*calls: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Make calls in threads of their own; they are over at the end."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
