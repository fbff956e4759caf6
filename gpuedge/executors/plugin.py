"""Segments run by another runtime, which a package brings: behind deadlines, and checked.

Nothing is known of that code. Each call of it runs in a thread of its own, and is waited for only
as long as there is time. What it raises is an error of the device; what it returns counts only if
it has the names, dtypes and shapes of the graph.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from gpuedge.core.driver import DeviceInfo
from gpuedge.core.errors import (
    ClosedError,
    DeviceError,
    DeviceTimeoutError,
    DriverError,
    GpuEdgeError,
    KernelError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from gpuedge.core.text import MOST_SAID, duration, named, plain
from gpuedge.core.times import CLOSE_FAILED_S
from gpuedge.executors.base import PlacementRow, Progress, Runtime, RuntimeExecutable, StepTime
from gpuedge.executors.driver_calls import cause_of
from gpuedge.executors.opened import OpenedDevice
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.plan.planner import label
from gpuedge.safety.blocklist import Marker
from gpuedge.safety.deadline import DeadlineCall, NoThreadError
from gpuedge.safety.interrupts import held
from gpuedge.safety.watchdog import LOOK_S, Watch, Watchdog

T = TypeVar("T")

log = logging.getLogger("gpuedge")

REFUSALS = (DeviceError, KernelError, UnsupportedOpError)
"""Errors of compiling that say something to whoever asked for it."""


class PluginExecutor(OpenedDevice):
    """Runs segments on one open device of another runtime.

    Parameters
    ----------
    runtime : Runtime
        What the plug-in opened; the executor closes it.
    info : DeviceInfo
        Which device it is.
    name : str
        Device string, such as ``openvino:0``.
    marker : Marker, optional
        What is told before and after the runtime is at work, for the crash blocklist.

    Attributes
    ----------
    kernel : str
        What its rows of a placement call the runtime.
    """

    def __init__(
        self, runtime: Runtime, info: DeviceInfo, name: str, *, marker: Marker | None = None
    ) -> None:
        super().__init__(runtime, name, marker=marker)
        self.info = info
        self.kernel = info.identity.driverName or info.candidate.backend
        self.runtime = runtime
        self._judged: tuple[Callable[[], Graph | None], dict[int, str]] = (lambda: None), {}

    @property
    def driver_pid(self) -> int | None:
        """Where the runtime computes in this process, this process; else None."""
        return os.getpid() if self.info.identity.device_type == "CPU" else None

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if the runtime can run `node`, else one sentence saying why not.

        Raises DeviceError (GE-4xx).
        """
        known, judged = self._judged
        if known() is not graph:
            with held, self.lock, self.compiling:
                self.check_open()
                judged = self.call("compile-failed", lambda: self._refusals(graph), Watchdog())
            self._judged = ref(graph), judged
        return judged.get(id(node))

    def _refusals(self, graph: Graph) -> dict[int, str]:
        told = ((id(node), self.runtime.supports(node, graph)) for node in graph.nodes)
        return {key: plain(str(why), MOST_SAID) for key, why in told if why is not None}

    def compile(self, segment: Graph, progress: Progress = lambda *_: None) -> PluginExecutable:
        """Compile a segment.

        Raises
        ------
        UnsupportedOpError (GE-501), KernelError (GE-3xx), DeviceError (GE-4xx)
            What the plug-in raises; of other errors a DriverError is made.
        """
        with held, self.lock, self.compiling:
            self.check_open()
            made = self.call("compile-failed", lambda: self.runtime.compile(segment), Watchdog())
        progress("compile", 1, 1)
        return PluginExecutable(self, segment, made)

    def call(self, code: str, work: Callable[[], T], watchdog: Watchdog) -> T:
        """Return what a call of the plug-in returns; to be made under `lock`, in a stage.

        Parameters
        ----------
        code : str
            The reason code of a failure that says nothing of itself.
        work : callable
        watchdog : Watchdog
            How long it may take.

        Raises
        ------
        UnsupportedOpError (GE-501), KernelError (GE-3xx), DeviceError (GE-4xx)
        """
        try:
            under_way = DeadlineCall(work, f"gpuedge-{self.device}")
        except NoThreadError as error:
            raise DeviceError(
                f"No thread can be started for the device {self.device}.",
                known=str(error),
                reason=code,
            ) from None
        if not under_way.wait(min(LOOK_S, watchdog.limit_s)):
            self._wait(under_way, watchdog)
        try:
            return under_way.result()
        except REFUSALS:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(f"The device {self.device} has no memory left.") from error
        except BaseException as error:  # whatever its own thread ended with: none is a signal's
            raise DriverError(
                f"The device {self.device} raised an error.",
                known=named(error),
                reason=code,
            ) from error

    def _wait(self, under_way: DeadlineCall[Any], watchdog: Watchdog) -> None:
        """Wait until a call returns. Raises DeviceTimeoutError (GE-403)."""
        watch = Watch(watchdog.patience_s, self.driver_pid, most_s=watchdog.most_s)
        watch.spent_s = min(LOOK_S, watchdog.limit_s)
        while not under_way.wait(min(LOOK_S, watchdog.limit_s)):
            if watch.look() and under_way.give_up():
                error = DeviceTimeoutError(
                    f"The device {self.device} did not answer within "
                    f"{duration(watch.spent_s * 1e9, 2)}.",
                    hint="Policy(watchdog_s=...) sets how long a run may take",
                    reason="device-hung",
                )
                error.ticket = under_way
                raise error

    def has_come_back(self) -> bool:
        """Tell whether the call that hung has ended since: it was slow."""
        return isinstance(self.late, DeadlineCall) and self.late.is_over

    def _shut(self) -> None:
        try:
            # the look-up may raise as well
            self.call("run-failed", lambda: self.runtime.close(), _closing())  # noqa: PLW0108
        except GpuEdgeError as error:  # nobody can do anything about it
            self.is_hung = isinstance(error, DeviceTimeoutError)
            self._leave()
            log.warning("%s: it did not close: %s", self.device, cause_of(error))


class PluginExecutable:
    """A segment compiled by another runtime.

    Parameters
    ----------
    executor : PluginExecutor
    graph : Graph
    made : RuntimeExecutable
        What the plug-in made of it.

    Attributes
    ----------
    rows : tuple of PlacementRow
        One: all of the segment. Its kernel is the runtime's name.
    watchdog : Watchdog
        How long a run may take.
    """

    def __init__(self, executor: PluginExecutor, graph: Graph, made: RuntimeExecutable) -> None:
        self.executor, self.graph, self._made = executor, graph, made
        nodes, ops = tuple(map(label, graph.nodes)), tuple(node.op for node in graph.nodes)
        self.rows = (PlacementRow(nodes, ops, executor.device, executor.kernel),)
        self.watchdog = Watchdog(executor.slowness)
        self._running = executor.running_first
        self._is_closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs. Raises DeviceError (GE-4xx)."""
        executor, watchdog = self.executor, self.watchdog
        given = {name: _for_reading(inputs[name]) for name in self.graph.inputs}
        with held, executor.lock, self._running:
            executor.check_open()
            if self._is_closed:
                raise ClosedError("The executable was closed before this call.")
            executor.at_work = watchdog
            start = perf_counter_ns()
            outputs = executor.call(
                "run-failed", lambda: self._checked(self._made.run(given)), watchdog
            )
            watchdog.pieces_done += 1
            spent_s = (perf_counter_ns() - start) / 1e9
            if spent_s > watchdog.quick_s:
                watchdog.note(spent_s)
            self._running = executor.running
            return outputs

    def _checked(self, outputs: Any) -> dict[str, Array]:
        """Return copies of outputs that are what the graph says. Raises DriverError (GE-405).

        Of what the plug-in keeps, by mistake or not, the next run may write over the values.
        """
        if not isinstance(outputs, Mapping):
            raise self._wrong(f"outputs by name are a mapping, not {type(outputs).__name__}")
        checked = dict[str, Array]()
        for name in self.graph.outputs:
            array = outputs.get(name)
            if not isinstance(array, np.ndarray):
                raise self._wrong(f"the output '{name}' is {type(array).__name__}, no array")
            kind = self.graph.types.get(name)
            if kind is not None and (array.dtype.name, array.shape) != (kind.dtype, kind.shape):
                found = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
                raise self._wrong(f"the output '{name}' is {found}, not {kind}")
            checked[name] = np.array(array)
        return checked

    def _wrong(self, what: str) -> DriverError:
        name = self.executor.device
        return DriverError(
            f"The device {name} gave no right result.", known=what, reason="wrong-numbers"
        )

    def timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[StepTime]]:
        """Compute the outputs; return what that took as well, as one step.

        Raises DeviceError (GE-4xx).
        """
        self.run(inputs)  # the first time may take longer
        start = perf_counter_ns()
        outputs = self.run(inputs)
        spent = perf_counter_ns() - start
        arrays = (*(inputs[name] for name in self.graph.inputs), *outputs.values())
        nbytes = sum(array.nbytes for array in arrays)
        return outputs, [StepTime(self.rows[0], start, spent, nbytes)]

    def close(self) -> None:
        """Release what it holds. Raises DeviceError (GE-4xx)."""
        executor = self.executor
        if self._is_closed or executor.closed or executor.is_inherited:
            return
        with held, executor.lock:
            self._is_closed = True
            with executor.running:
                executor.call("run-failed", lambda: self._made.close(), _closing())  # noqa: PLW0108


def _closing() -> Watchdog:
    watchdog = Watchdog()
    watchdog.fix(CLOSE_FAILED_S)
    return watchdog


def _for_reading(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
