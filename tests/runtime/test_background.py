"""Jobs beside the requests: one after another, at rest most of the time, and never waited for."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time

import pytest

from gpuedge.core.errors import DatabaseError
from gpuedge.runtime.background import Background, BackgroundJob, Pace, StoppedError, hurry


def busy(seconds: float) -> None:
    """Use the processor for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_jobs_are_done_one_after_another_in_a_daemon_thread() -> None:
    background, done = Background(share=0.0), list[tuple[int, bool]]()

    def job(n: int) -> BackgroundJob:
        return BackgroundJob(lambda _: done.append((n, threading.current_thread().daemon)))

    assert all(background.submit(job(n)) for n in range(20))
    assert background.wait(20)
    assert done == [(n, True) for n in range(20)]


def test_a_job_rests_in_proportion_to_what_it_computed_and_not_to_what_it_waited_for() -> None:
    rests = list[float]()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return super().wait(timeout)

    start = time.perf_counter()
    pace = Pace(share=10.0, stop=Stop())
    busy(0.05)
    pace.rest()
    time.sleep(0.2)  # as a driver that waits for its device
    pace.rest()
    assert rests[0] >= 0.5 and rests[1] < 0.4
    took_s, worked_s = time.perf_counter() - start, pace.worked_ns / 1e9
    assert 0.25 <= worked_s <= took_s - sum(rests)  # there are no rests in it


def test_a_job_that_stalls_is_told_of_and_the_next_one_is_done() -> None:
    background = Background(share=0.0, stall_s=0.1)
    gate, said = threading.Event(), list[str]()

    def stuck(pace: Pace) -> None:
        pace.rest()
        gate.wait(30)
        said.append("done")

    background.submit(
        BackgroundJob(stuck, lambda: said.append("late"), lambda: said.append("back"))
    )
    background.submit(BackgroundJob(lambda _: said.append("next")))
    assert background.wait(20) and said == ["late", "next"]
    gate.set()
    end = time.monotonic() + 60
    while said[-1] != "back" and time.monotonic() < end:
        time.sleep(0.01)
    assert said == ["late", "next", "done", "back"]


def test_a_job_that_gets_on_or_rests_does_not_stall() -> None:
    background, said = Background(share=30.0, stall_s=1.0), list[str]()

    def slow(pace: Pace) -> None:
        busy(0.05)
        pace.rest()  # for longer than a step may take
        busy(0.01)

    background.submit(BackgroundJob(slow, lambda: said.append("late")))
    assert background.wait(60) and said == []


def test_mistakes_of_a_job_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    background, done = Background(share=0.0), list[int]()
    with caplog.at_level(logging.ERROR, "gpuedge"):
        background.submit(BackgroundJob(lambda _: 1 // 0))
        background.submit(BackgroundJob(lambda _: done.append(1)))
        assert background.wait(20)
    assert done == [1] and "ZeroDivisionError" in caplog.text


def test_an_error_of_the_user_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def work(_: Pace) -> None:
        raise DatabaseError("The database is damaged.")

    found = Background()
    found.submit(BackgroundJob(work))
    assert found.wait(30)
    (row,) = caplog.records
    assert "The database is damaged." in row.message
    assert row.exc_info is None


def test_the_end_stops_a_job_at_its_next_rest_and_begins_no_other() -> None:
    background, steps = Background(share=1_000.0), list[str]()
    came = threading.Event()

    def endless(pace: Pace) -> None:
        while True:
            steps.append("step")
            busy(0.05)
            came.set()
            try:
                pace.rest()
            except StoppedError:
                steps.append("stopped")
                raise

    background.submit(BackgroundJob(endless))
    assert came.wait(10)
    background.end()
    assert background.wait(0) and steps == ["step", "stopped"]
    assert not background.submit(BackgroundJob(lambda _: None))


EXIT = """
import threading, time
from gpuedge.runtime.background import BACKGROUND, BackgroundJob
came = threading.Event()
def stuck(pace):
    came.set()
    time.sleep(60)  # as inside a driver
BACKGROUND.submit(BackgroundJob(stuck))
came.wait(10)
print("end", flush=True)
"""


def test_a_driver_that_hangs_while_it_opens_does_not_hold_up_the_end_of_the_interpreter() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert time.monotonic() - start < 45


def test_jobs_of_an_owner_are_withdrawn() -> None:
    background, gate, done = Background(share=0.0), threading.Event(), list[str]()
    mine, others = object(), object()
    background.submit(BackgroundJob(lambda _: gate.wait(30) and None))
    for owner, name in ((mine, "mine"), (others, "other"), (mine, "mine")):
        background.submit(BackgroundJob(lambda _, n=name: done.append(n), owner=owner))
    background.withdraw(mine)
    gate.set()
    assert background.wait(20) and done == ["other"]


def test_a_fork_waits_for_the_step_under_way_but_not_for_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuedge.runtime.background.FORK_S", 60.0)
    background, inside, gate = Background(share=20.0), threading.Event(), threading.Event()
    ended = threading.Event()

    def work(pace: Pace) -> None:
        inside.set()
        gate.wait(60)
        busy(0.05)
        pace.rest()
        ended.set()

    background.submit(BackgroundJob(work))
    assert inside.wait(20)
    threading.Timer(0.1, gate.set).start()
    background.before_fork()
    assert gate.is_set() and not ended.is_set()
    background.after_fork_in_parent()
    assert background.wait(20)


def test_a_job_of_one_that_closed_ends_with_its_step() -> None:
    background, came, steps = Background(share=1_000.0), threading.Event(), list[str]()
    owner, done = object(), list[int]()

    def endless(pace: Pace) -> None:
        while True:
            steps.append("step")
            busy(0.05)
            came.set()
            pace.rest()

    background.submit(BackgroundJob(endless, owner=owner))
    background.submit(BackgroundJob(lambda _: done.append(1), owner=object()))
    assert came.wait(10)
    background.withdraw(owner)
    assert background.wait(10) and steps == ["step"] and done == [1]


def test_what_is_expected_to_win_much_opens_with_short_rests() -> None:
    assert hurry(1.0, 2) == hurry(0.5, 1) == 1.0
    assert hurry(6.0, 2) == 1 / 6
    assert hurry(6.0, 16) == 1 / 48


def test_a_job_in_a_hurry_rests_less() -> None:
    def took(part: float) -> float:
        background = Background(share=60.0)

        def work(pace: Pace) -> None:
            busy(0.03)
            pace.rest()

        start = time.monotonic()
        background.submit(BackgroundJob(work, hurry=part))
        assert background.wait(30)
        return time.monotonic() - start

    rest_s = 60 * 0.03
    assert took(0.0) < rest_s < took(1.0)
