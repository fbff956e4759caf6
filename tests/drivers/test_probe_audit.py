"""Nothing of a probe stays behind, and the audit that says so sees what does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import daily
import farm
import pytest

pytestmark = [pytest.mark.driver, pytest.mark.timeout(240)]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "probe_audit.py"


@daily.day(0, of=4)
def test_some_probes_leave_nothing_behind(tmp_path: Path) -> None:
    farm.require("vulkan-lavapipe")
    report = tmp_path / "audit.json"
    done = subprocess.run(
        [sys.executable, str(TOOL), "--probes", "2", "--seed", "3", "--json", str(report)],
        capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    record = json.loads(report.read_text())
    assert record["faults"] == []
    assert sum(record["counts"].values()) == 2 + len(record["longest_s"])


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = spec_from_file_location("probe_audit", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "probe_audit", module)
    spec.loader.exec_module(module)
    first = threading.Thread(target=int)  # the C library takes a signal for itself with it
    first.start()
    first.join()
    time.sleep(0.1)  # the kernel counts it a moment longer
    one = module.Audit(tmp_path, 1)
    name, _, value = one.mark.partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    one.state = lambda: module.state(one.temporary, one.cache)
    yield one


def leak_descriptor(audit: Any) -> Callable[[], object]:
    fd = os.open(os.devnull, os.O_RDONLY)
    return lambda: os.close(fd)


def leak_thread(audit: Any) -> Callable[[], object]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    return lambda: (stop.set(), thread.join())


def leak_child(audit: Any) -> Callable[[], object]:
    child = subprocess.Popen(["sleep", "60"])
    return lambda: (child.kill(), child.wait())


def leak_zombie(audit: Any) -> Callable[[], object]:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.wait


def leak_orphan(audit: Any) -> Callable[[], object]:
    """A process of another session whose parent is gone."""
    quiet = "stdin=-3, stdout=-3, stderr=-3, start_new_session=True"
    start = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], {quiet})"
    code = f"import subprocess, sys; print({start}.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    time.sleep(0.1)
    return lambda: os.kill(int(done.stdout), signal.SIGKILL)


def leak_file(audit: Any) -> Callable[[], object]:
    path = audit.temporary / "left"
    path.touch()
    return path.unlink


def leak_variable(audit: Any) -> Callable[[], object]:
    os.environ["LEFT_BEHIND"] = "1"
    return lambda: os.environ.pop("LEFT_BEHIND")


def leak_folder(audit: Any) -> Callable[[], object]:
    before = Path.cwd()
    os.chdir(audit.temporary)
    return lambda: os.chdir(before)


def leak_handler(audit: Any) -> Callable[[], object]:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    return lambda: signal.signal(signal.SIGUSR2, before)


def leak_mask(audit: Any) -> Callable[[], object]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    return lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leak_umask(audit: Any) -> Callable[[], object]:
    before = os.umask(0o031)
    return lambda: os.umask(before)


def leak_lock(audit: Any) -> Callable[[], object]:
    import fcntl

    file = (audit.cache / "known").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file.close


LEAKS = [v for k, v in sorted(globals().items()) if k.startswith("leak_")]


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_the_audit_sees_what_is_left(
    audit: Any, leak: Callable[[Any], Callable[[], object]]
) -> None:
    (audit.cache / "known").touch()
    before = audit.state()
    audit.compare("nothing", before)
    assert audit.faults == []
    mend = leak(audit)
    try:
        audit.compare("a leak", before)
    finally:
        mend()
    assert audit.faults != []
    if leak is leak_lock:
        assert any("locks" in fault for fault in audit.faults)
    audit.faults.clear()
    audit.compare("mended", before)
    assert audit.faults == []
