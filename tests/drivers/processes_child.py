"""What a program does with a session, one scenario per process.

Usage: python processes_child.py SCENARIO DEVICE ISOLATION

Prints ``ok`` once the answers were right; how the process ends is what the test looks at. The
environment chooses the driver, as for the tests.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuedge
from gpuedge.core.errors import ClosedError, GpuEdgeError, RequestTimeoutError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.writer import to_bytes

ROWS, SIZE = 3, 16
X = np.arange(ROWS * SIZE, dtype=np.float32).reshape(ROWS, SIZE) - 20


def model() -> bytes:
    """Return relu(2 x + 1), whose results are exact."""
    builder = GraphBuilder()
    builder.input("x", TensorType("float32", X.shape))
    builder.constant("w", np.eye(SIZE, dtype=np.float32) * 2)
    builder.constant("b", np.ones(SIZE, np.float32))
    sums = builder.add("Add", [builder.add("MatMul", ["x", "w"]), "b"])
    builder.output(builder.add("Relu", [sums]))
    return to_bytes(builder.build())


def is_right(found: dict[str, Any], x: Any = X) -> bool:
    (y,) = found.values()
    return np.array_equal(y, np.maximum(2 * x + 1, 0))


def opened(device: str, isolation: str, **options: Any) -> gpuedge.Session:
    session = gpuedge.Session(model(), device=device, isolation=isolation, **options)
    assert is_right(session.run({"x": X}))
    return session


def ok() -> None:
    print("ok", flush=True)


# -- ends -----------------------------------------------------------------------------------------

KEPT: list[Any] = []


def left_open(device: str, isolation: str) -> None:
    KEPT.append(opened(device, isolation))
    ok()


def futures(device: str, isolation: str) -> None:
    session = opened(device, isolation)
    KEPT.extend(session.run_async({"x": X}) for _ in range(200))
    assert is_right(KEPT[0].result(30))
    ok()


def daemon(device: str, isolation: str) -> None:
    session = opened(device, isolation)

    def loop() -> None:
        while True:
            session.run({"x": X})

    for _ in range(3):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(0.1)
    ok()


def thread(device: str, isolation: str) -> None:
    session = opened(device, isolation)

    def some() -> None:
        for _ in range(50):
            assert is_right(session.run({"x": X}))
        ok()

    threading.Thread(target=some).start()


def exit_in_thread(device: str, isolation: str) -> None:
    session = opened(device, isolation)

    def leave() -> None:
        assert is_right(session.run({"x": X}))
        sys.exit(3)

    one = threading.Thread(target=leave)
    one.start()
    one.join()
    ok()


def exit_code(device: str, isolation: str) -> None:
    opened(device, isolation).run_async({"x": X})
    ok()
    sys.exit(5)


def exception(device: str, isolation: str) -> None:
    opened(device, isolation).run_async({"x": X})
    ok()
    raise RuntimeError("on purpose")


def interrupt(device: str, isolation: str) -> None:
    session = opened(device, isolation)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    until = time.monotonic() + 20
    try:
        while time.monotonic() < until:
            assert is_right(session.run({"x": X}))
    except KeyboardInterrupt:
        assert is_right(session.run({"x": X}))
        ok()
        raise


def interrupt_wait(device: str, isolation: str) -> None:
    session = opened(device, isolation)
    latest, goes_on, has_come = session._latest, threading.Event(), threading.Event()
    assert latest is not None
    at_once = latest.run

    def run(inputs: Any) -> Any:
        has_come.set()
        goes_on.wait(60)
        return at_once(inputs)

    latest.run = run  # type: ignore[method-assign]
    threading.Thread(target=lambda: session.run({"x": X})).start()
    has_come.wait(60)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        session.run({"x": X}, timeout_s=20)  # waits in another thread for the turn
    except KeyboardInterrupt:
        goes_on.set()
        assert is_right(session.run({"x": X}))
        ok()
        raise


def expired(device: str, isolation: str) -> None:
    session = opened(device, isolation)
    for _ in range(20):
        try:
            session.run({"x": X}, timeout_s=1e-6)
        except RequestTimeoutError:
            KEPT.append(1)
    assert KEPT
    ok()


def handler(device: str, isolation: str) -> None:
    session = opened("cpu", isolation)

    def last() -> None:  # registered after gpuedge: comes before it ends its own
        assert is_right(session.run({"x": X}))
        ok()

    atexit.register(last)


# -- processes ------------------------------------------------------------------------------------


def in_child(work: Any) -> int:
    """Fork, do the work there, and return the exit status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
        finally:
            os._exit(code)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


def fork(device: str, isolation: str) -> None:
    """A session that was used before a fork, in the child: a right answer or a clear error."""
    session = opened(device, isolation)
    future = session.run_async({"x": X})

    def work() -> int:
        results = []
        asking: list[Callable[[], dict[str, Any]]] = [
            lambda: session.run({"x": X}),
            lambda: session.run({"x": X}, timeout_s=20),
            lambda: session.run_async({"x": X}).result(20),
        ]
        for ask in asking:
            try:
                results.append(10 if is_right(ask()) else 1)
            except GpuEdgeError as error:
                results.append(20 if "fork" in str(error) else 2)
        session.close()
        return results[0] if len(set(results)) == 1 else 3

    wanted = 10 if isolation == "process" else 20
    assert in_child(work) == wanted
    assert is_right(future.result(20))
    assert is_right(session.run({"x": X}))
    session.close()
    ok()


def fork_auto(device: str, isolation: str) -> None:
    """Under ``auto`` the CPU answers in the child, and a queue of the parent is of no concern."""
    rules = gpuedge.Policy(allow_software=True, min_speedup=1.0)
    session = opened("auto", isolation, policy=rules)
    with gpuedge.open(device, isolation=isolation):
        waiting = [session.run_async({"x": X}) for _ in range(20)]
        code = in_child(lambda: 10 if is_right(session.run_async({"x": X}).result(20)) else 1)
        assert code == 10, code
        assert all(is_right(f.result(20)) for f in waiting)
    ok()


def one_session(arguments: tuple[str, str, int]) -> bool:
    device, isolation, number = arguments
    with opened(device, isolation) as session:
        return is_right(session.run({"x": X * number}), X * number)


def pools(device: str, isolation: str) -> None:
    """Pools of processes that do not fork, while this one has its own session."""
    session = opened(device, isolation)
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(one_session, [(device, isolation, i) for i in range(4)]) == [True] * 4
    assert is_right(session.run({"x": X}))
    ok()


def threads(device: str, isolation: str) -> None:
    """64 threads, 10 runs each, while another one closes the session when half are done."""
    session = opened(device, isolation)
    wrong: list[Any] = []
    right: list[int] = []
    halfway = threading.Event()

    def work(seed: int) -> None:
        for i in range(10):
            x = X + seed * 100 + i
            try:
                if not is_right(session.run({"x": x}), x):
                    wrong.append((seed, i))
            except ClosedError:
                return
            except BaseException as error:
                wrong.append(error)
                return
            right.append(seed)
            if len(right) > 320:
                halfway.set()

    many = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for one in many:
        one.start()
    assert halfway.wait(60)
    session.close()
    for one in many:
        one.join(60)
    assert wrong == [], wrong[:3]
    assert not any(one.is_alive() for one in many)
    ok()


if __name__ == "__main__":
    # Whatever started the tests may ignore Ctrl-C, as a shell does for what runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[1]](*sys.argv[2:])
