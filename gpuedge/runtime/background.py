"""What a process does beside its requests: opening devices for ``auto``, and keeping history.

One daemon thread does one job after another and rests between their steps, so that requests hardly
notice it. A job that stops getting on is left to a thread of its own: drivers cannot be
interrupted.

The thread's priority is not lowered: threads that a driver starts would inherit that for good.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import thread_time

from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.times import FORK_S, STALL_S, STEP_END_S
from gpuedge.runtime import clock
from gpuedge.safety.deadline import DeadlineCall, NoThreadError, started
from gpuedge.safety.interrupts import held
from gpuedge.safety.monitor import Monitor
from gpuedge.safety.watchdog import LOOK_S, Watch

REST = 12.0
"""A job rests so many times as long as it worked: fewer than one request in ten meets it."""

BUSY_CORES = 2
"""On as many cores a job that does not rest slows each request that it meets, by half or more."""

MOST_REST_S = 5.0
"""The longest rest: opening goes on at some time, however long a step was."""

IDLE_S = 5.0
"""How long the thread waits for another job before it ends."""

log = logging.getLogger("gpuedge")


class StoppedError(Exception):
    """The interpreter ends, or whose job it is was closed."""


class Pace:
    """Lets a job rest between its steps, and adds up what the steps took.

    Parameters
    ----------
    share : float
        How many times as long as a step the rest after it is.
    stop : threading.Event
        Ends every rest.
    step : lock, optional
        Held by the job but while it rests.

    Attributes
    ----------
    worked_ns : int
        What the steps so far took.
    steps : int
    """

    def __init__(
        self,
        share: float = 0.0,
        stop: threading.Event | None = None,
        step: threading.Lock | None = None,
    ) -> None:
        self.worked_ns = self.steps = 0
        self._share = share
        self._step = step
        self._stop = stop or threading.Event()
        self._begin()

    def _begin(self) -> None:
        self._since_ns, self._since_s = clock.now_ns(), thread_time()

    def rest(self, *_: object) -> None:
        """End a step, whichever it was; raises StoppedError once the job is not wanted."""
        self.worked_ns += max(clock.now_ns() - self._since_ns, 0)
        self.steps += 1
        spent_s = thread_time() - self._since_s  # not what it waited for
        if self._step is not None:
            self._step.release()
        try:
            is_stopped = self._stop.wait(min(spent_s * self._share, MOST_REST_S))
        finally:
            if self._step is not None:
                self._step.acquire()
        if is_stopped:
            raise StoppedError
        self.steps += 1
        self._begin()


def hurry(faster: float, cores: int) -> float:
    """Return the part of the usual rests that the opening of a device takes, at most 1.

    Rests keep requests from meeting the work, but meanwhile each is answered by the slower side:
    the more a device is expected to win, the shorter they are. On more cores a request that meets
    the work, most of it in the driver, loses less. An H100, 6 times as fast as 16 cores, was not
    open after 20 s with full rests: its driver computes for seconds to compile a network.

    Parameters
    ----------
    faster : float
        How many times as fast as the CPU the device is expected to be.
    cores : int
        Those that this process may use.
    """
    return min(1.0, BUSY_CORES / cores) / max(faster, 1.0)


@dataclass(eq=False)
class BackgroundJob:
    """Work for the background.

    Parameters
    ----------
    work : callable
        Does it, and rests between steps.
    late : callable, optional
        Told that a step stalled, and the job is not waited for.
    back : callable, optional
        Told if it ended after all.
    """

    work: Callable[[Pace], object]
    late: Callable[[], None] = lambda: None
    back: Callable[[], None] = lambda: None
    owner: object = None
    """Whose job it is, for `Background.withdraw`."""
    hurry: float = 1.0
    """The part of the usual rests that it takes."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends it with the step under way."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class Background:
    """Does jobs one after another in a daemon thread.

    Parameters
    ----------
    share : float
        See `Pace`.
    stall_s : float
        How long one step may take.
    """

    def __init__(self, share: float = REST, stall_s: float = STALL_S) -> None:
        self.share, self.stall_s = share, stall_s
        self._start()

    def _start(self) -> None:
        self._monitor = Monitor()
        self._lock = self._monitor.lock
        self._jobs: deque[BackgroundJob] = deque()
        self._stop = threading.Event()
        self._step = threading.Lock()
        self._is_held = False  # by the thread that forks
        self._thread: threading.Thread | None = None
        self._job: BackgroundJob | None = None  # under way

    def before_fork(self) -> None:
        """Wait for the step under way, so that no module is half imported in the child."""
        self._is_held = self._step.acquire(timeout=FORK_S)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._is_held:
            self._step.release()

    def after_fork(self) -> None:
        """Start anew in a forked child, where the thread is not."""
        self._start()

    def submit(self, job: BackgroundJob) -> bool:
        """Have a job done; False where no thread can be started for it."""
        with held, self._lock:
            if self._stop.is_set():
                return False
            self._jobs.append(job)
            if self._thread is None:
                try:
                    self._thread = started(self._work, "gpuedge-background")
                except NoThreadError:
                    self._jobs.remove(job)
                    return False
            self._monitor.notify()
            return True

    def withdraw(self, owner: object) -> None:
        """Forget the jobs of an owner; one that was begun ends with its step."""
        with self._lock:
            self._jobs = deque(job for job in self._jobs if job.owner is not owner)
            if self._job is not None and self._job.owner is owner:
                self._job.stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait until there is nothing to do; False if there still is."""
        is_idle = self._monitor.wait_for(lambda: not (self._jobs or self._job) or None, seconds)
        return is_idle or False

    def end(self) -> None:
        """Start nothing more, and wait for the step under way: the interpreter ends."""
        self._stop.set()
        with self._lock:
            self._jobs.clear()
            if self._job is not None:
                self._job.stop.set()
            self._monitor.notify()
        self.wait(STEP_END_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._job = None
                self._monitor.notify()
            self._monitor.wait_for(lambda: self._jobs or self._stop.is_set() or None, IDLE_S)
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                self._job = job = self._jobs.popleft()
            try:
                self._do(job)
            except Exception:  # a mistake of ours must not end all that follows
                log.exception("in the background")
            del job

    def _do(self, job: BackgroundJob) -> None:
        step = self._step
        pace = Pace(self.share * job.hurry, job.stop, step)

        def work() -> None:
            with step:
                job.context.run(job.work, pace)

        try:
            call = DeadlineCall(work, "gpuedge-job")
        except NoThreadError:
            job.late()
            return
        watch, steps = Watch(self.stall_s), 0
        while not call.wait(min(LOOK_S, self.stall_s)):
            if pace.steps != steps or pace.steps % 2:  # it got on, or it rests
                steps = pace.steps
                watch.restart()
            elif watch.look() and call.give_up(job.back):
                self._step = threading.Lock()  # the job keeps the other one
                job.late()
                return
        try:
            call.result()
        except StoppedError:
            pass
        except GpuEdgeError as error:  # a mistake of the user's, such as a damaged database
            log.warning("In the background: %s", error)
        except Exception:
            log.exception("in the background")


BACKGROUND = Background()
atexit.register(BACKGROUND.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=BACKGROUND.before_fork,
        after_in_parent=BACKGROUND.after_fork_in_parent,
        after_in_child=BACKGROUND.after_fork,
    )
