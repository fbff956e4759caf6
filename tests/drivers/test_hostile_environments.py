"""Everything works in a bad place, or says what is missing there; nothing is left behind.

Each place is a true one: another mount table, limits of the kernel, a filter of system calls. What
the program there does is `environments_child.py`; what it may say instead of right numbers is here.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import EGL, HIDDEN, VULKAN, file_of, require
from processes_child import model

pytestmark = [pytest.mark.driver, pytest.mark.timeout(600), daily.day(1, of=4)]

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("environments_child.py")
NO_PROCESSES = Path(__file__).with_name("no_processes.py")
DEVICES = ("cpu", "auto", "vulkan", "gles31", "wgpu")
MARK = "HOSTILE_PLACE"
YEARS = 365 * 86400

CLOCK = """
import os, time
true = time.time
time.time = lambda: true() + float(os.environ.get("CLOCK_OFFSET_S") or 0)
"""
"""What Python runs at its start: a clock that a variable sets."""


@dataclass(frozen=True)
class Place:
    """Where the program runs, and what it may say there.

    Attributes
    ----------
    mounts : str
        Shell commands before the program, in mounts of its own; ``$1`` is the place's folder.
    before : sequence of str
        What the program's command is given to.
    limits : mapping
        Limits of the process, by name.
    megabytes : int
        Memory of all its processes together; 0 is no limit.
    variables : mapping
        Variables of the process; None takes one away.
    options : sequence of str
        Options of the interpreter.
    name : str
        Of the folder in which all lies.
    devices : sequence of str
        What is computed on.
    is_later : bool
        Whether an ordinary run with the same home comes first.
    says : mapping
        Patterns of steps, and of what they begin with instead of ``right``.
    warns : str
        What standard error holds, a pattern.
    """

    mounts: str = ""
    before: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    megabytes: int = 0
    variables: Mapping[str, str | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    name: str = "place"
    devices: tuple[str, ...] = DEVICES
    is_later: bool = False
    says: Mapping[str, str] = field(default_factory=dict)
    warns: str = ""


def read_only(*folders: str) -> str:
    return " && ".join(f"mount --bind {f} {f} && mount -o remount,bind,ro {f}" for f in folders)


GPU = "(vulkan|gles31|wgpu) .*"
TUNE = "verb tune"
UNCACHED = r"((WARNING gpuedge.probing: )?the cache folder \S+ cannot be written, so [^\n]*\n)+"
UNKEPT = "The cache folder cannot be written: no session will use these results.\n"
NO_CACHE: dict[str, Any] = {
    "says": {TUNE: r"exit status 1: .*gpuedge\.tune/1"},
    "warns": UNCACHED + UNKEPT,
}
"""Tuning is good for nothing there."""

NO_FOLDER = ".*set TMPDIR to a folder"
REFUSED = r".*\[Errno 1\] Operation not permitted"
EXHAUSTED = r".*\[Errno 11\] Resource temporarily unavailable"
"""What they must say: what is missing, and where it can what to try."""


def without_gpu(why: str) -> dict[str, Any]:
    """Return what is said where no driver can be tried."""
    says = {
        "probe": "no device", GPU: rf"\[GE-103\]{why}", TUNE: f'exit status 3: .*"GE-103".*{why}',
        "verb probe": f"exit status 3: .*no-child.*{why}",
    }  # fmt: skip
    return {"says": says, "warns": rf"\[GE-103\]{why}.*\n"}


PLACES = {
    "plain": Place(),
    "read-only home": Place(mounts=read_only('"$1/home"'), **NO_CACHE),
    "no home": Place(
        before=("unshare", "--user", "--map-user=4242"), variables={"HOME": None}, **NO_CACHE
    ),
    "no folder to write": Place(
        mounts=read_only("/tmp", "/var/tmp", '"$1/home"') + ' && cd "$1/work"',
        variables={"TMPDIR": None}, **without_gpu(NO_FOLDER),
    ),
    "no shared memory": Place(mounts="mount -t tmpfs -o ro none /dev/shm"),
    "no /proc": Place(
        mounts="mount -t tmpfs -o ro none /proc", warns=".*(cpuinfo|CPU vendor).*|"
    ),
    "no processes": Place(
        before=(sys.executable, str(NO_PROCESSES)), **without_gpu(REFUSED)
    ),
    "no processes later": Place(
        before=(sys.executable, str(NO_PROCESSES)), is_later=True,
        says={".* worker": rf"\[GE-404\]{REFUSED}"},
    ),
    "no threads": Place(
        before=(sys.executable, str(NO_PROCESSES), "--no-threads"),
        variables={"OPENBLAS_NUM_THREADS": "1"}, devices=("cpu", "auto"),
        says={"(verb )?probe": rf"no device|exit status 3: .*no-child.*{EXHAUSTED}"},
    ),
    "64 files": Place(limits={"RLIMIT_NOFILE": 64}),
    "512 MB": Place(megabytes=512),
    "512 MB of addresses": Place(
        limits={"RLIMIT_AS": 512 << 20}, devices=("cpu", "auto"),
        # addresses end in whatever asks next, at some times in the middle of an import
        # (docs/troubleshooting.md)
        says={
            ".*probe": "right|no device|exit status 3", "verb doctor": "right|FAULT.*MemoryError"
        },
        warns="([a-z0-9]+ driver [^\n]*\n)*",
    ),
    "clock": Place(variables={"JUMPS": f"0,{5 * YEARS},{-5 * YEARS},{-70 * YEARS}"}),
    "clock later": Place(variables={"JUMPS": f"{-20 * YEARS},{20 * YEARS}"}, is_later=True),
    "no UTF-8": Place(
        name="Zoë 漢字",
        variables={"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    "letters": Place(
        name="a b é 漢字 'q' \"d\" $x", mounts=f'mount --bind "{ROOT}" "$1/checkout"'
    ),
    "thread": Place(variables={"IN_THREAD": "1"}),
    "fewer options": Place(options=("-OO", "-s")),
}  # fmt: skip


@cache
def has_namespaces() -> bool:
    """Say whether this user may have mounts of their own."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-rm", "true"], capture_output=True, check=False
        ).returncode
    )


@contextmanager
def limited(megabytes: int) -> Iterator[Path | None]:
    """Make a group of processes (cgroup) with so much memory, and yield its folder."""
    if not megabytes:
        yield None
        return
    for top, name in (("memory", "memory.limit_in_bytes"), (".", "memory.max")):
        group = Path("/sys/fs/cgroup", top, f"gpuedge-tests-{os.getpid()}")
        try:
            group.mkdir()
            (group / name).write_text(str(megabytes << 20))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        yield group
        group.rmdir()  # which fails while a process is left
        return
    pytest.skip("this user may limit no memory")


def command(place: Place, folder: Path, answer: int) -> list[str]:
    """Return what runs the program in a place."""
    root = folder / "checkout" if "$1/checkout" in place.mounts else ROOT
    python = Path(sys.executable)
    python = root / python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
    child = str(root / CHILD.relative_to(ROOT))
    words = [str(python), *place.options, child, str(folder / "model.onnx"), str(answer)]
    words = [*place.before, *words, *place.devices]
    if place.mounts:
        words = ["unshare", "-rm", "sh", "-c", f'{place.mounts} && shift && exec "$@"', "sh",
                 str(folder), *words]  # fmt: skip
    return words


def environment(place: Place, folder: Path) -> dict[str, str]:
    """Return the variables of the program: two drivers, and nothing of gpuedge's from outside."""
    outside = ("GPUEDGE_", "PYTHON", "XDG_")
    environ: dict[str, str | None] = {
        **{k: v for k, v in os.environ.items() if not k.startswith(outside)}, **HIDDEN,
        VULKAN: str(folder / "vulkan.json"), EGL: str(folder / "egl.json"),
        "GPUEDGE_BACKENDS": "vulkan,gles31,wgpu", MARK: str(folder), "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"), "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
        **place.variables,
    }  # fmt: skip
    return {k: v for k, v in environ.items() if v is not None}


def run(place: Place, folder: Path) -> tuple[dict[str, str], str]:
    """Run the program in a place; return what it says of each step, and its standard error."""
    with limited(place.megabytes) as group, (folder / "answer").open("w+b") as answer:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            for name, limit in place.limits.items():
                resource.setrlimit(getattr(resource, name), (limit, limit))

        done = subprocess.run(
            command(place, folder, answer.fileno()), env=environment(place, folder),
            cwd=folder / "work", preexec_fn=enter, pass_fds=[answer.fileno()], timeout=280,
            capture_output=True, check=False,
        )  # fmt: skip
        said: dict[str, str] = json.loads(answer.read() or b"{}")
    errors = done.stderr.decode("utf-8", "surrogateescape")
    assert (done.returncode, done.stdout) == (0, b""), (said, errors)
    return said, errors


def running(folder: Path) -> list[str]:
    """Return the processes that were started in a place and are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(f"{MARK}={folder}\0") in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A place's folder: drivers, a home, a folder for temporary files, one to work in, a model."""
    require("vulkan-lavapipe")
    require("gles31-llvmpipe")
    made = tmp_path / PLACES[request.node.callspec.params["name"]].name
    for inner in ("home", "tmp", "work", "site", "checkout"):
        (made / inner).mkdir(parents=True)
    (made / "site" / "sitecustomize.py").write_text(CLOCK)
    (made / "model.onnx").write_bytes(model())
    shutil.copy(file_of("lavapipe"), made / "vulkan.json")
    shutil.copy(file_of("mesa"), made / "egl.json")
    return made


def steps(devices: Sequence[str]) -> Iterator[str]:
    """Yield the steps of a run that came to its end."""
    yield "probe"
    for device in devices:
        yield from (f"{device} layer", f"{device} session", f"{device} arrays")
        if device not in ("cpu", "auto"):
            yield f"{device} worker"
    yield from ("verb probe", "verb doctor")
    if "vulkan" in devices:
        yield TUNE


TODAY = {"no folder to write", "no processes", *list(PLACES)[daily.turn(4) :: 4]}
"""Places of every day, which take the least time, and those that have their turn."""


@pytest.mark.parametrize("name", daily.others_long(PLACES, TODAY))
def test_right_numbers_or_what_is_missing(name: str, folder: Path) -> None:
    place = PLACES[name]
    if (place.mounts or "unshare" in place.before) and not has_namespaces():
        pytest.skip("this user may have no mounts of their own")
    if place.is_later:
        run(Place(), folder)
    said, errors = run(place, folder)
    expected = {
        step: next((p for s, p in place.says.items() if re.fullmatch(s, step)), "right")
        for step in said
    }
    wrong = {
        s: text for s, text in said.items() if not re.match(f"({expected[s]})", text, re.DOTALL)
    }
    assert wrong == {}
    assert list(said) == list(steps(place.devices))
    assert re.fullmatch(place.warns, errors, re.DOTALL), errors
    assert running(folder) == []
    for inner in ("tmp", "work"):
        assert list((folder / inner).iterdir()) == []
    if "home" in place.mounts:
        assert list((folder / "home").iterdir()) == []


SECOND = """
import json, logging, os, sys, time
logging.disable(logging.CRITICAL)
import numpy as np
import gpuedge

assert gpuedge.probe(deadline_s=60).devices
started = []
STARTS = ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
sys.addaudithook(lambda event, arguments: started.append(event) if event in STARTS else None)
took = []
for _ in range(5):
    start = time.process_time()
    assert gpuedge.probe().devices
    took.append(time.process_time() - start)
x = np.arange(-4.0, 4.0, dtype=np.float32).reshape(1, 1, 2, 4)
assert np.array_equal(gpuedge.conv2d(x, x[:, :, :1, :1], device=sys.argv[1]), -4 * x)
time.sleep(0.5)  # what is done in the background has begun by then
print(json.dumps([took, started]))
"""


@pytest.mark.parametrize("device", daily.some(["vulkan", "auto"]))
def test_without_a_cache_only_the_first_probe_starts_anything(device: str, tmp_path: Path) -> None:
    require("vulkan-lavapipe")
    environ = {**environment(Place(), tmp_path), VULKAN: str(file_of("lavapipe"))}
    environ |= {"GPUEDGE_CACHE_DIR": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SECOND, device], env=environ, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    took, started = json.loads(done.stdout)
    assert started == []
    assert min(took) < 0.020, took
