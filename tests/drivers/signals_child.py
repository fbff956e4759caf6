"""Signals at every bytecode boundary of a warm call, and whether the next calls are right.

Run with how the signals come, what is called, a device string, and numbers. Prints JSON.

``alarm`` and ``ctrl-c``: at the n-th boundary below the call the handler that is in force for the
signal is run, as the interpreter would do it there; n goes from the second number to the end of the
call in steps of the first. ``real``: the system sends so many, at random times. ``storm``: it sends
three in short order.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
from way_child import model

import gpuedge
from gpuedge.executors.cpu import _OrtExecutable

STUCK_S = 30.0
"""A call that takes longer is stuck: it takes milliseconds."""

OPEN_S = 240.0
"""What a GPU may take to be opened in the background of a busy machine."""


class TimeLimitError(TimeoutError):
    """The application's own, and an OSError as those of time limits are."""


raised: list[BaseException] = []


rest_of_storm = 0


def _raise_in_storm(number: int, frame: FrameType | None) -> None:
    """Raise a few times, and only below calls of the package."""
    global rest_of_storm  # noqa: PLW0603
    while frame is not None and frame.f_code is _raise_in_storm.__code__:
        frame = frame.f_back  # a signal that came while this handled another one
    if frame is not None and frame.f_globals.get("__name__") == "_weakrefset":
        return  # a callback of a weak reference: Python prints what is raised there, and goes on
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("gpuedge."):
        frame = frame.f_back
    if frame is not None and rest_of_storm:
        rest_of_storm -= 1
        raise TimeLimitError(number)


def _raise(number: int, frame: FrameType | None) -> None:
    raised[:] = [TimeLimitError(number) if number == signal.SIGALRM else KeyboardInterrupt()]
    raise raised[0]


Trace = Callable[[FrameType, str, Any], Any]


class Injector:
    """Delivers a signal at one boundary; `came` says whether there was such a boundary."""

    def __init__(self, at: int, number: int) -> None:
        self.left = at
        self.number = number
        self.came = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Trace | None:
        if self.came:
            return None
        if frame.f_globals.get("__name__") == __name__:
            return self
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                self.came = True
                handler = signal.getsignal(self.number)
                assert callable(handler)
                handler(self.number, frame)
        return self


@contextmanager
def deadline(seconds: float = STUCK_S) -> Iterator[None]:
    """End this process where it is stuck."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def in_thread(call: Callable[[], object]) -> object:
    """Make a call in another thread: it needs every lock that the main thread may have kept."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0] if found else None


class Case:
    """A warm call, how to say that its answer is right, and how to end."""

    def __init__(self, what: str, device: str) -> None:
        self.x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
        self.session: gpuedge.Session | None = None
        self.call: Callable[[], Any]
        self.is_on_gpu = what == "serve" or device not in ("cpu", "auto")
        isolation = "process" if what == "process" else "inline"
        if what == "add":
            self.call = lambda: gpuedge.add(self.x, self.x, device=device)
            self.wanted = self.x + self.x
            return
        policy = gpuedge.Policy(crosscheck=0.1, allow_software=what == "serve", min_speedup=1.0)
        made = self.session = gpuedge.Session(
            model(), device=device, isolation=isolation, policy=policy
        )
        self.wanted = np.maximum(self.x, 0)
        ways: dict[str, Callable[[], Any]] = {
            "run": lambda: made.run({"x": self.x}),
            "process": lambda: made.run({"x": self.x}),
            "timeout": lambda: made.run({"x": self.x}, timeout_s=60.0),
            "async": lambda: made.run_async({"x": self.x}).result(60.0),
            "shared": lambda: made.run({"x": self.x}),
            "serve": lambda: made.run({"x": self.x}),
        }
        if what == "serve":
            self._move(made)
        if what == "shared":  # with another thread, so that most calls wait for their turn
            threading.Thread(target=self._run_on, args=(made,), daemon=True).start()
        self.call = ways[what]

    def _move(self, session: gpuedge.Session) -> None:
        """Call until a GPU answers under ``auto``, which a slow CPU makes worth it."""
        at_once = _OrtExecutable.run

        def run(executable: _OrtExecutable, inputs: Any) -> Any:
            time.sleep(0.005)
            return at_once(executable, inputs)

        setattr(_OrtExecutable, "run", run)  # noqa: B010
        with deadline(OPEN_S):
            while session.health.device == "cpu":
                session.run({"x": self.x})

    def _run_on(self, session: gpuedge.Session) -> None:
        with suppress(gpuedge.GpuEdgeError):  # that it was closed
            while True:
                session.run({"x": self.x})

    def check(self, *, also_in_thread: bool) -> None:
        """Call again, in another thread first: this one may have what it left held."""
        with deadline():
            answers = [in_thread(self.call)] if also_in_thread else []
            answers.append(self.call())
        for found in answers:
            y = next(iter(found.values())) if isinstance(found, dict) else found
            np.testing.assert_array_equal(y, self.wanted)
        if self.session is not None:
            health = self.session.health
            assert health.failed == 0, health
            assert health.state in ("ok", "cpu"), health
            assert health.device != "cpu" or not self.is_on_gpu, health


def handlers() -> list[Any]:
    return [signal.getsignal(n) for n in (signal.SIGALRM, signal.SIGINT)]


def every_boundary(case: Case, number: int, step: int, begin: int) -> dict[str, int]:
    """Deliver a signal at every `step`-th boundary."""
    before, at, tried = handlers(), begin, 0
    while True:
        injector = Injector(at, number)
        error: BaseException | None = None
        with deadline():
            sys.settrace(injector)
            try:
                case.call()
            except BaseException as caught:
                error = caught
            finally:
                sys.settrace(None)
        if not injector.came:
            assert error is None
            return {"boundaries": at, "tried": tried}
        assert raised and error is raised.pop(), (at, error)
        tried += 1
        assert handlers() == before, at
        case.check(also_in_thread=True)
        at += step


def real_signals(case: Case, count: int) -> dict[str, int]:
    """Have SIGALRM come at random times of many calls."""
    source, came, left = random.Random(7), 0, count
    while left:
        left -= 1
        error: BaseException | None = None
        with deadline():
            try:
                signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, 2e-3))
                for _ in range(100):
                    case.call()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except TimeLimitError as caught:
                error = caught
            signal.setitimer(signal.ITIMER_REAL, 0)
        came += error is not None
        case.check(also_in_thread=left % 10 == 0)
    return {"signals": count, "came": came}


def storms(case: Case, count: int) -> dict[str, int]:
    """Have SIGALRM come again while what the one before raised is on its way."""
    global rest_of_storm  # noqa: PLW0603
    signal.signal(signal.SIGALRM, _raise_in_storm)
    source = random.Random(11)
    for left in range(count):
        rest_of_storm = 3
        signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-6, 1e-3), 5e-5)
        with deadline():
            while rest_of_storm:
                with suppress(TimeLimitError):
                    case.call()
        signal.setitimer(signal.ITIMER_REAL, 0)
        case.check(also_in_thread=left % 10 == 0)
    return {"signals": 3 * count, "came": 3 * count}


def main() -> None:
    how, what, device, *rest = sys.argv[1:]
    case = Case(what, device)
    signal.signal(signal.SIGALRM, _raise)
    signal.signal(signal.SIGINT, _raise)
    for _ in range(20):
        case.check(also_in_thread=False)
    if how in ("real", "storm"):
        found = (real_signals if how == "real" else storms)(case, int(rest[0]))
    else:
        number = signal.SIGINT if how == "ctrl-c" else signal.SIGALRM
        found = every_boundary(case, number, int(rest[0]), int(rest[1]))
    if case.session is not None:
        with deadline():
            case.session.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
