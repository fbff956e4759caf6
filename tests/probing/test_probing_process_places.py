"""A probe works wherever its application runs, and leaves the place as it was.

Each case is a program of its own that does something to itself first, probes two candidates of the
null backend (so that real children do real work: success reported, nothing written), and tells
through a file what came out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import daily
import pytest

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="these places are POSIX ones"),
]

ROOT = Path(__file__).resolve().parents[2]
GOOD = [["wrong", "untouched-output"]] * 2

WORK = """
import json, os, sys, threading
def look():
    from gpuedge.backends.base import Candidate
    from gpuedge.probing.run import probe_all
    before = state()
    rows = probe_all([Candidate("null", k, "f", {{}}) for k in "ab"], 40.0)
    found = [[r.status, r.code] for (r,) in rows]
    told = [found, [r.reason for (r,) in rows], before == state()]
    with open({answer!r}, "w") as file:
        json.dump(told, file)
def state():
    proc = "/proc/self/fd"
    fds = list(map(int, os.listdir(proc))) if os.path.isdir(proc) else []
    return len(fds), [fd in fds for fd in range(3)], threading.active_count(), dict(os.environ)
"""


def told(folder: Path) -> tuple[list[list[str]], list[str], bool]:
    answer: Any = json.loads((folder / "answer").read_text())
    return answer[0], answer[1], answer[2]


def work(folder: Path) -> str:
    return WORK.format(answer=str(folder / "answer"))


def environment(folder: Path, **more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**clean, "GPUEDGE_CACHE_DIR": str(folder / "cache"), **more}


def python(folder: Path, *options: str, **how: Any) -> None:
    env = environment(folder, **how.pop("env", {}))
    command = [sys.executable, *options]
    done = subprocess.run(
        command, env=env, capture_output=True, timeout=100, check=False, text=True, **how
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout + done.stderr == ""


PLACES = {
    "plain": "look()",
    "no main": "del sys.modules['__main__']; look()",
    "thread": "t = threading.Thread(target=look); t.start(); t.join()",
    "closed": "import gpuedge.probing.run\nfor fd in range(3): os.close(fd)\nlook()",
    "closed streams": "sys.stdin = sys.stdout = sys.stderr = None; look()",
    "few descriptors": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
look()""",
    "no folder": """
import tempfile, shutil
here = tempfile.mkdtemp()
os.chdir(here)
shutil.rmtree(here)
sys.path.insert(0, 'relative')
look()""",
    "ignored": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); look()",
    "collector": """
import time
def collect():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.0005)
threading.Thread(target=collect, daemon=True).start()
look()""",
    "blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); look()",
    "fork": """
lock = threading.Lock()
def busy():
    while True:
        with lock: json.dumps(list(range(100)))
threading.Thread(target=busy, daemon=True).start()
pid = os.fork()
if pid == 0:
    try:
        look()
    finally:
        os._exit(0)
os.waitpid(pid, 0)""",
    # What registers locks with fork is imported before: Python has no protection against a fork
    # that is under way while a module registers, and then says "cannot release un-acquired lock".
    "forking": """
import concurrent.futures.thread, logging, random, time
stop = threading.Event()
def forks():
    while not stop.is_set():
        pid = os.fork()
        if pid == 0:
            time.sleep(0.5)
            os._exit(0)
        time.sleep(0.05)
        pids.append(pid)
pids = []
thread = threading.Thread(target=forks); thread.start()
before = state
state = lambda: None
look()
stop.set(); thread.join()
for pid in pids: os.waitpid(pid, 0)""",
    "changing environment": """
stop = threading.Event()
def change():
    n = 0
    while not stop.is_set():
        n += 1
        os.environ[f'CHANGING_{n % 50}'] = 'x'
        os.environ.pop(f'CHANGING_{(n + 25) % 50}', None)
thread = threading.Thread(target=change); thread.start()
state = lambda: None
look()
stop.set(); thread.join()""",
    "no interpreter named": "sys.executable = ''; look()",
    "another program named": "sys.executable = '/bin/false'; sys._base_executable = None; look()",
}


@pytest.mark.parametrize("place", daily.some(PLACES))
def test_place(tmp_path: Path, place: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{work(tmp_path)}\n{PLACES[place]}"
    python(tmp_path, "-c", code)
    found, reasons, is_same = told(tmp_path)
    assert found == GOOD, reasons
    assert is_same


@pytest.mark.parametrize(
    ("options", "env"),
    [(["-I"], {}), (["-E", "-s"], {}), ([], {"PYTHONSAFEPATH": "1"}), ([], {"PYTHONPATH": "bad"})],
)
def test_options_of_the_interpreter(
    tmp_path: Path, options: list[str], env: dict[str, str]
) -> None:
    """What lies in the current folder is never imported in place of the library's."""
    for name in ("json.py", "numpy.py", "select.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')")
    script = tmp_path / "elsewhere" / "program.py"
    script.parent.mkdir()
    start = f"import sys; sys.path[:] = [{str(ROOT)!r}] + [p for p in sys.path if p != 'bad']\n"
    script.write_text(start + work(tmp_path) + "\nlook()")
    python(tmp_path, *options, str(script), cwd=tmp_path, env=env)
    assert told(tmp_path)[0] == GOOD, told(tmp_path)[1]


def test_standard_input_as_the_program(tmp_path: Path) -> None:
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    python(tmp_path, "-", input=start + work(tmp_path) + "\nlook()\n")
    assert told(tmp_path)[0] == GOOD


def test_an_interactive_interpreter(tmp_path: Path) -> None:
    lines = ["import sys", f"sys.path.insert(0, {str(ROOT)!r})", f"exec({work(tmp_path)!r})"]
    code = (
        "import code\nconsole = code.InteractiveInterpreter()\n"
        f"for line in {[*lines, 'look()']!r}: console.runsource(line)"
    )
    python(tmp_path, "-c", code)
    assert told(tmp_path)[0] == GOOD


def test_a_zipped_application(tmp_path: Path) -> None:
    app = tmp_path / "app.pyz"
    with zipfile.ZipFile(app, "w") as file:
        start = f"import sys; sys.path.insert(1, {str(ROOT)!r})\n"
        file.writestr("__main__.py", start + work(tmp_path) + "\nlook()")
    python(tmp_path, str(app))
    assert told(tmp_path)[0] == GOOD


def test_no_temporary_folder_is_a_row(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{work(tmp_path)}\n"
    code += "import tempfile; tempfile.tempdir = '/proc/nowhere'; look()"
    python(tmp_path, "-c", code)
    found, reasons, _ = told(tmp_path)
    assert found == [["blocked", "no-child"]] * 2
    assert "/proc/nowhere" in reasons[0]


def test_no_descriptor_left_is_a_row(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = f"""import sys; sys.path.insert(0, {str(ROOT)!r})
{work(tmp_path)}
import gpuedge.probing.run, gpuedge.probing.child, resource, subprocess, tempfile, socket, shutil
tempfile.tempdir = {str(temporary)!r}
answer = os.open({str(tmp_path / "answer")!r}, os.O_CREAT | os.O_WRONLY)
from gpuedge.backends.base import Candidate
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
taken = []
try:
    while True: taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError: pass
rows = gpuedge.probing.run.probe_all([Candidate("null", k, "f", {{}}) for k in "ab"], 40.0)
os.write(answer, json.dumps([[[r.status, r.code] for (r,) in rows], rows[0][0].reason, 1]).encode())
"""
    python(tmp_path, "-c", code)
    found, reasons, _ = told(tmp_path)
    assert found == [["blocked", "no-child"]] * 2
    assert "Too many open files" in reasons
    assert list(temporary.iterdir()) == []
