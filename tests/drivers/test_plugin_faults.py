"""Plug-ins that fail in every way cost the row of the probe report that is theirs, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import daily
import farm
import pytest

pytestmark = [pytest.mark.driver, daily.day(2, of=4)]

MODULE = '''
import os, signal
from dataclasses import replace

from gpuedge.backends import FolderBackend


class Device:
    """Lavapipe's device under another name, with other capabilities."""

    def __init__(self, device, **claims):
        self.device, self.caps = device, replace(device.caps, **claims)

    def __getattr__(self, name):
        if name in getattr(type(self), "LACKS", ()):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.device, name)


class Mine(FolderBackend):
    CLAIMS = {}
    DEVICE = Device

    def __init__(self):
        super().__init__(type(self).__name__.lower(), "vulkan")

    def candidates(self, environ):
        return [one.replace(backend=self.name) for one in super().candidates(environ)]

    def open(self, info, **options):
        return self.DEVICE(super().open(info), **self.CLAIMS)


class Good(Mine):
    pass


class NoList:
    name = "nolist"


class NoEnum:
    def __init__(self):
        self._real = Good()

    def candidates(self, environ):
        return [one.replace(backend="noenum") for one in self._real.candidates(environ)]


class NoOpen(NoEnum):
    def candidates(self, environ):
        return [one.replace(backend="noopen") for one in self._real.candidates(environ)]

    def enumerate(self, candidate):
        return self._real.enumerate(candidate)


class RaiseEnum(Mine):
    def enumerate(self, candidate):
        raise OSError("no list of devices")


class CrashEnum(Mine):
    def enumerate(self, candidate):
        os.kill(os.getpid(), signal.SIGSEGV)


class Nothings(Mine):
    def enumerate(self, candidate):
        return [None]


class WithoutWait(Device):
    LACKS = ("wait",)


class NoWait(Mine):
    DEVICE = WithoutWait


class WithoutRelease(Device):
    LACKS = ("release",)


class NoRelease(Mine):
    DEVICE = WithoutRelease


class Flipping(Device):
    def read(self, buffer, into, offset=0):
        self.device.read(buffer, into, offset)
        whole = into.cast("B")
        whole[len(whole) // 2] ^= 0x40


class Liar(Mine):
    DEVICE = Flipping


class Idle(Device):
    def submit(self, recording):
        return self.device.submit(self.device.record([]))


class Silent(Mine):
    DEVICE = Idle


class Zero(Mine):
    CLAIMS = {"offset_alignment": 0}


class Negative(Mine):
    CLAIMS = {"max_shared_bytes": -1}


class Unheard(Mine):
    CLAIMS = {"storages": ("papyrus",)}


class Tongue(Mine):
    CLAIMS = {"dialect": "klingon"}


class Mute(Mine):
    CLAIMS = {"dialect": "mute"}
'''
CLASSES = [
    "Good", "NoList", "NoEnum", "NoOpen", "RaiseEnum", "CrashEnum", "Nothings", "NoWait",
    "NoRelease", "Liar", "Silent", "Zero", "Negative", "Unheard", "Tongue", "Mute",
]  # fmt: skip
POINTS = "\n".join([
    "[gpuedge.backends]",
    *(f"{name.lower()} = faulty_plugins:{name}" for name in CLASSES),
    "missing = missing_module:Backend",
    "exits = plugin_that_exits:Backend",
    "hangs = plugin_that_hangs:Backend",
    "[gpuedge.printers]",
    "mute = missing_module:print_kernel",
])  # fmt: skip

NO_DEVICE = "It claims what no device can have; "
RIGHT = {
    "good": ("ok", "ok", "right numbers"),
    "missing": ("broken", "open-failed", "ModuleNotFoundError: No module named 'missing_module'"),
    "exits": ("broken", "open-failed", "SystemExit: no GPU today"),
    "hangs": ("timeout", "deadline", "listing its drivers, no answer within 2 s"),
    "nolist": ("broken", "open-failed", "'NoList' object has no attribute 'candidates'"),
    "noenum": ("broken", "open-failed", "'NoEnum' object has no attribute 'enumerate'"),
    "noopen": ("broken", "open-failed", "'NoOpen' object has no attribute 'open'"),
    "raiseenum": ("broken", "open-failed", "OSError: no list of devices"),
    "crashenum": ("crashed", "crashed", "SIGSEGV while loading the driver"),
    "nothings": ("broken", "open-failed", "lists None, which is no device"),
    "nowait": ("broken", "kernel-failed", "WithoutWait has no attribute 'wait'"),
    "norelease": ("broken", "kernel-failed", "WithoutRelease has no attribute 'release'"),
    "liar": ("wrong", "wrong-numbers", ""),
    "silent": ("wrong", "untouched-output", ""),
    "zero": ("broken", "open-failed", NO_DEVICE + "offset_alignment: 0 is not from 1 to"),
    "negative": ("broken", "open-failed", NO_DEVICE + "max_shared_bytes: -1 is not from 0 to"),
    "unheard": ("broken", "open-failed", NO_DEVICE + "storages: ['papyrus'] is no storage kind"),
    "tongue": ("broken", "kernel-failed", "Kernels cannot be printed as 'klingon'"),
    "mute": ("broken", "kernel-failed", "The plug-in that prints 'mute' cannot be imported"),
}
"""Status, code and a part of the reason of each plug-in's row."""

PROGRAM = """
import json, sys, gpuedge, numpy as np
from gpuedge import backends
names = json.loads(sys.argv[1])
assert set(names) <= set(backends.names())
report = gpuedge.probe(backends=[*names, "vulkan"], deadline_s=120)
print(json.dumps([[r.backend, r.status, r.code, r.reason] for r in report.tried]))
x = np.float32([-1, 2])
for device in ("good", "vulkan", "cpu"):
    with gpuedge.config(fallback="error"):
        assert gpuedge.relu(x, device=device).tolist() == [0, 2], device
assert gpuedge.relu(x).tolist() == [0, 2]
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes in which all of them are installed, over lavapipe."""
    farm.require("vulkan-lavapipe")
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "faulty_plugins.py").write_text(MODULE)
    (folder / "plugin_that_exits.py").write_text("raise SystemExit('no GPU today')")
    (folder / "plugin_that_hangs.py").write_text("import time\ntime.sleep(600)")
    info = folder / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return {
        **farm.environment_of("vulkan-lavapipe"),
        "GPUEDGE_BACKENDS": "", "GPUEDGE_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=280, check=False,
        env=environment, cwd=farm.ROOT,
    )  # fmt: skip


def test_each_costs_its_own_row(faulty: dict[str, str]) -> None:
    done = run(faulty, "-c", PROGRAM, json.dumps(list(RIGHT)))
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {backend: tuple(told) for backend, *told in json.loads(done.stdout)}
    for name, (status, code, text) in RIGHT.items():
        assert rows[name][:2] == (status, code) and text in rows[name][2], (name, rows[name])
    assert rows["vulkan"][0] == "ok"


@pytest.mark.long
def test_command_line_works_beside_them(faulty: dict[str, str]) -> None:
    """Plug-ins are listed without being named, one that hangs when it is imported too."""
    done = run(faulty, "-m", "gpuedge", "probe", "--json", "--deadline", "120")
    assert done.returncode == 0, done.stderr[-2000:]
    tried = {row["backend"]: row["status"] for row in json.loads(done.stdout)["tried"]}
    assert {name: tried[name] for name in RIGHT} == {name: r[0] for name, r in RIGHT.items()}
    assert tried["vulkan"] == "ok"
    assert run(faulty, "-m", "gpuedge", "doctor").returncode in (0, 1)
