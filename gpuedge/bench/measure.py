"""Times the graphs on a device and on the CPU path, in turn, as a trial does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

import gpuedge
from gpuedge.bench.graphs import GRAPHS, inputs_of
from gpuedge.bench.trace import COLD, CPU, GPU, Series, TimedWindow, Trace
from gpuedge.core.errors import KernelError, ModelError, NoUsableDeviceError
from gpuedge.decide.speeds import class_of
from gpuedge.executors.base import Executable, Executor, Work
from gpuedge.executors.gpu import GpuExecutable, GpuExecutor
from gpuedge.plan.costs import planned

if TYPE_CHECKING:
    from gpuedge.graph.ir import Array, Graph

ROUNDS = 6
"""Windows of each graph. They lie a round apart, so that slow noise differs between them."""

BLOCK_NS, BLOCK = 8_000_000, 8
"""A block is as many runs of one alternative as fit in this time, at most this many."""

WARM_UP, WARM_UP_NS = 8, 150_000_000
"""First runs on the device that count as cold, as in a trial: so many, or until they took so long
together."""

Clock = Callable[[], int]
Say = Callable[[str], None]


class _Pair:
    """A graph compiled on the device and on the CPU path."""

    def __init__(self, name: str, executors: Mapping[str, Executor], clock: Clock) -> None:
        self.name = name
        graph: Graph = GRAPHS[name]()
        self.inputs: dict[str, Array] = inputs_of(graph)
        self.compile_ns: dict[str, int] = {}
        self.made: dict[str, Executable] = {}
        self.windows: list[TimedWindow] = []
        self._warming: list[int] = []
        for side, executor in executors.items():
            begin = clock()
            self.made[side] = executor.compile(graph)
            self.compile_ns[side] = max(1, clock() - begin)

    def window(self, clock: Clock, origin: int) -> None:
        """Add a window: blocks of CPU, GPU, GPU, CPU."""
        window = TimedWindow("", (), ())
        for side, blocks in ((CPU, 1), (GPU, 2), (CPU, 1)):
            window = self._block(window, side, blocks, clock, origin)
        self.windows.append(window)

    def _block(
        self, window: TimedWindow, side: str, blocks: int, clock: Clock, origin: int
    ) -> TimedWindow:
        """Add runs of one alternative; the first is cold, because the other one ran before."""
        sides, starts, took, left = "", list[int](), list[int](), 1
        while left > 0:
            start = clock()
            self.made[side].run(self.inputs)
            took.append(max(1, clock() - start))
            starts.append(start - origin)
            is_cold = self._is_warming(side, took[-1]) or len(took) == 1
            sides += COLD[side] if is_cold else side
            if is_cold:
                left = blocks * min(BLOCK, max(1, BLOCK_NS // took[-1]))
            else:
                left -= 1
        return TimedWindow(
            window.sides + sides, (*window.start_ns, *starts), (*window.took_ns, *took)
        )

    def _is_warming(self, side: str, took: int) -> bool:
        """Say whether a run is one of the first on the device."""
        if side == CPU or len(self._warming) >= WARM_UP or sum(self._warming) > WARM_UP_NS:
            return False
        self._warming.append(took)
        return True

    def series(self) -> Series:
        """Return what was timed."""
        executable = cast("GpuExecutable", self.made[GPU])
        work, spent = Work(**planned(executable.graph, executable.plan)), self.compile_ns
        return Series(self.name, work, spent[CPU], spent[GPU], tuple(self.windows))

    def close(self) -> None:
        """Release both."""
        for executable in self.made.values():
            executable.close()


def measure(
    device: str,
    *,
    rounds: int = ROUNDS,
    say: Say = lambda _: None,
    clock: Clock = time.perf_counter_ns,
) -> Trace:
    """Time every graph on a device and on the CPU path.

    Parameters
    ----------
    device : str
        A GPU by name; never the CPU in its place.
    rounds : int
        Windows of each graph.
    say : callable
        Told what is being done.
    clock : callable
        A monotonic clock in integer nanoseconds.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        There is no such GPU.
    DeviceError (GE-4xx)
        The device failed meanwhile.
    """
    say("opening the device")
    begin = clock()
    with gpuedge.open(device) as opened:
        opening_ns = max(1, clock() - begin)
        executor = opened.executor
        if not isinstance(executor, GpuExecutor):
            raise NoUsableDeviceError(f"{device!r} is not a GPU, which is what bench is about.")
        cpu = gpuedge.open("cpu").executor
        origin = clock()
        with _compiled({CPU: cpu, GPU: executor}, clock, say) as pairs:
            for number in range(rounds):
                for pair in pairs:
                    say(f"round {number + 1} of {rounds}: {pair.name}")
                    pair.window(clock, origin)
            series = tuple(pair.series() for pair in pairs)
        return Trace(
            version=gpuedge.__version__,
            device_class=class_of(executor.impl.info.identity),
            level=executor.caps.level,
            is_software=executor.caps.is_software,
            cores=os.cpu_count() or 1,
            engine=str(getattr(cpu, "kernel", "numpy")).partition(" ")[0],
            opening_ns=opening_ns,
            series=series,
        )


@contextmanager
def _compiled(executors: Mapping[str, Executor], clock: Clock, say: Say) -> Iterator[list[_Pair]]:
    """Compile every graph; one that the device cannot run is left out."""
    with ExitStack() as stack:
        pairs: list[_Pair] = []
        for name in GRAPHS:
            say(f"compiling {name}")
            try:
                pair = _Pair(name, executors, clock)
            except (KernelError, ModelError):
                continue
            stack.callback(pair.close)
            pairs.append(pair)
        yield pairs
