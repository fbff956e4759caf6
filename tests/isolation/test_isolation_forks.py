"""Forks by other threads while a worker is being started: no child keeps an end of its pipes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import Any

import isolation_fakes as fakes
import pytest

from gpuedge.isolation import open_isolated


def pipes() -> set[str]:
    """Return the pipes and shared memory that this process has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue
        if name.startswith(("pipe:", "/memfd:gpuedge")):
            found.add(name)
    return found


def forked() -> set[str]:
    """Fork a child, and return the pipes it has once the hooks of forks have run."""
    far, near = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(near, " ".join(pipes()).encode())
        os._exit(0)
    os.close(near)
    own = {os.readlink(f"/proc/self/fd/{far}")}  # noqa: PTH115
    text = b""
    while chunk := os.read(far, 65536):
        text += chunk
    os.close(far)
    os.waitpid(pid, 0)
    return set(text.decode().split()) - own


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_a_worker_starts_keeps_none_of_its_pipes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = pipes()
    inside = threading.Event()
    popen = subprocess.Popen

    def slow(*args: Any, **kwargs: Any) -> Any:
        child = popen(*args, **kwargs)
        inside.set()
        time.sleep(0.5)  # its pipes are there, and nobody knows of them yet
        return child

    monkeypatch.setattr("gpuedge.safety.child.subprocess.Popen", slow)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(open_isolated(fakes.info())))
    thread.start()
    assert inside.wait(20)
    kept = forked() - before
    thread.join(60)
    (device,) = made
    assert len(pipes() - before) >= 5  # life, three pipes of its own, and the memory
    assert kept == set()
    assert fakes.run_once(device, b"abc") == b"abc"  # the parent's own are open
    assert forked() - before == set()
    device.close()
