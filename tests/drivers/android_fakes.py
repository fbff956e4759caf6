"""Processes that take themselves to be on Android: its names of libraries, and what it lacks.

Every Python that is started with the variables of `Phone.environment` calls its system ``android``,
children too. Drivers are the real ones of this machine, behind the names that Android has for their
loaders.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Any

from required import absent

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

START = """\
import os, sys
if os.environ.get("ANDROID_PYTHON") == "old":
    sys.getandroidapilevel = lambda: 24
else:
    sys.platform = "android"
if "ANDROID_NO_TMP" in os.environ:
    import tempfile
    tempfile._candidate_tempdir_list = lambda: ["/nonexistent"]
if "ANDROID_OLD_LIBC" in os.environ:
    del os.memfd_create
"""
"""What each Python does first: ``sitecustomize.py``."""

APP = """\
sys.executable = {program!r}
sys._base_executable = sys.prefix = sys.exec_prefix = sys.base_prefix = {place!r}
"""
"""What makes a process an app that brings no Python program."""


class Phone:
    """A folder with the libraries of an Android device, and how processes are started on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries = folder / "lib"
        self.libraries.mkdir()
        (folder / "python").mkdir()
        (folder / "python" / "sitecustomize.py").write_text(START)
        self.properties = folder / "properties"
        self.surfaces = folder / "surfaces"
        self.tell({"ro.build.version.sdk": "34"})
        self._build("android_libc.c", "libproperties.so")

    def tell(self, properties: Mapping[str, str]) -> None:
        """Set the properties of the system."""
        self.properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    def install_vulkan(self) -> None:
        """Give the loader Android's name, and hide the one that Linux has for it."""
        real = _library("vulkan", "libvulkan.so.1")
        (self.libraries / "libvulkan.so").symlink_to(real)
        (self.libraries / "libvulkan.so.1").write_text("no library")

    def install_egl(self) -> None:
        """Give EGL and OpenGL ES Android's names."""
        real = _library("EGL", "libEGL.so.1")
        self._build("android_egl.c", "libEGL.so", str(real))
        (self.libraries / "libGLESv2.so").symlink_to(_library("GLESv2", "libGLESv2.so.2"))

    def _build(self, source: str, name: str, *more: str) -> None:
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(self.libraries / name),
                   str(HERE / source), "-Wl,--no-as-needed", *more, "-ldl"]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        except FileNotFoundError:
            absent("no C compiler is installed: apt-get install gcc libc6-dev")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a process on this device: few, and none of this machine's."""
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder / "python", ROOT))),
            "LD_LIBRARY_PATH": str(self.libraries),
            "LD_PRELOAD": str(self.libraries / "libproperties.so"),
            "ANDROID_PROPERTIES": str(self.properties), "ANDROID_SURFACES": str(self.surfaces),
            "ANDROID_ROOT": "/system", "ANDROID_DATA": "/data", "EGL_PLATFORM": "surfaceless",
            "GPUEDGE_CACHE_DIR": str(self.folder / "cache"), **more,
        }  # fmt: skip

    def run(self, code: str, **more: str) -> Any:
        """Run Python in a process on this device; return the JSON that it prints."""
        done = subprocess.run(
            [sys.executable, "-c", f"import json, os, sys\n{code}"], cwd=self.folder,
            env=self.environment(**more), capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def app(self, program: str = "") -> str:
        """Return code that makes a process an app without a Python program, or with this one."""
        return APP.format(program=program, place=str(self.folder / "files"))


def _library(name: str, wanted: str) -> Path:
    """Return the path of a library of this machine."""
    found = find_library(name)
    code = f"import ctypes; ctypes.CDLL({found!r}); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    paths = [line.split()[-1] for line in done.stdout.splitlines() if wanted in line]
    if not paths:
        absent(f"{wanted} is not installed: apt-get install libvulkan1 libegl1 libgles2")
    return Path(paths[0])
