"""Times of the steps of a run: on a device one by one, on the CPU as ONNX Runtime has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any

from gpuedge.backends.base import DeviceImpl, Recording
from gpuedge.executors.base import PlacementRow, StepTime
from gpuedge.executors.waiting import submit_and_wait
from gpuedge.safety import temporary
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.safety.watchdog import Watchdog

SUFFIX = "_kernel_time"
"""What ONNX Runtime adds to a node's name where it tells what the kernel took."""

SIZES = ("activation_size", "parameter_size", "output_size")
"""Bytes that a node reads, of its weights, and writes."""


def times_of(
    make: Callable[[str], Any], run: Callable[[Any], Any], kernel: str
) -> tuple[Any, list[StepTime]]:
    """Run a session twice, and say what the nodes took the second time.

    Parameters
    ----------
    make : callable
        Makes a session that writes its profile to a file of this beginning.
    run : callable
        Runs it.
    kernel : str
        What computes, for the rows.

    Returns
    -------
    results, list of StepTime
        What `run` returned, and a row for each node that ONNX Runtime made of the model's, by the
        names that it gives them.
    """
    with temporary.folder("gpuedge-profile-") as folder:
        session = make(str(folder / "run"))
        run(session)
        start = perf_counter_ns()
        results = run(session)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    begin = max((e["ts"] for e in events if e["name"] == "model_run"), default=0)
    times = []
    for event in sorted(events, key=lambda e: e["ts"]):
        name, about = event["name"], event.get("args", {})
        if event["cat"] != "Node" or not name.endswith(SUFFIX) or event["ts"] < begin:
            continue
        row = PlacementRow((name.removesuffix(SUFFIX),), (about["op_name"],), "cpu", kernel)
        nbytes = sum(int(about.get(size, 0)) for size in SIZES)
        at = start + (event["ts"] - begin) * 1000
        times.append(StepTime(row, at, event["dur"] * 1000, nbytes))
    return results, times


def _nothing() -> None:
    """Go on at once."""


class Stepper:
    """Submits recordings one by one with `submit`, which waits, and notes what each took."""

    def __init__(
        self, impl: DeviceImpl, device: str, submit: Callable[[Recording], object]
    ) -> None:
        self.times: list[StepTime] = []
        self._impl, self._device, self._submit = impl, device, submit

    def __call__(
        self,
        what: str | PlacementRow,
        nbytes: int,
        recording: Recording,
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> None:
        """Submit `recording`, with `before` and `after` in its time, and release it."""
        row = PlacementRow((), (what,), self._device, "-") if isinstance(what, str) else what
        start = perf_counter_ns()
        before()
        self._submit(recording)
        after()
        self.times.append(StepTime(row, start, perf_counter_ns() - start, nbytes))
        self._impl.release(recording)  # not after a failure: it may be in flight


@contextmanager
def alone(
    executor: GpuExecutor, record: Callable[[], Recording], watchdog: Watchdog
) -> Iterator[Callable[[], int]]:
    """Yield what runs a recording that `record` makes, and returns the nanoseconds that it took.

    Of a software rasteriser in this process it is processor time, which the machine's other work
    hardly changes. Raises DeviceError (GE-4xx).
    """
    is_here = executor.caps.is_software and executor.isolation == "inline"
    now_ns = process_time_ns if is_here else perf_counter_ns
    with executor.building():
        recording = record()

    def spent() -> int:
        executor.check_open()
        with held, executor.lock, executor.running_first, executor.impl.entered():
            executor.at_work = watchdog
            start = now_ns()
            submit_and_wait(executor.impl, [recording], watchdog)
            return now_ns() - start

    yield spent
    with executor.building():  # not after a failure: it may be in flight
        executor.impl.release(recording)
