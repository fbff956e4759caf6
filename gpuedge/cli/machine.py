"""The record of a machine, which ``gpuedge info`` prints and ``gpuedge doctor`` judges.

Drivers are not part of it: what probing finds of them is a `gpuedge.probing.report.ProbeReport`.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from contextlib import suppress
from functools import cached_property
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.backends import manifests
from gpuedge.capdb.database import load
from gpuedge.cli.db import about, in_words
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.safety import machine, paths

COMPILERS = ("glslangValidator", "glslang", "glslc")

FLAGS = ("avx2", "avx512f", "avx512bw", "vnni", "int8", "asimddp", "i8mm", "sve")
"""What processors say of 8-bit products, or parts of it."""


class Machine:
    """What is known of this machine; each part is looked at when it is first asked for."""

    version = gpuedge.__version__

    @cached_property
    def requirements(self) -> dict[str, bool]:
        """The packages that gpuedge's metadata name, True for those that it cannot do without.

        Empty where gpuedge was not installed but is run from its sources.
        """
        try:
            lines = [line.partition(";") for line in requires("gpuedge") or []]
        except PackageNotFoundError:
            return {}
        found: dict[str, bool] = {}
        for line, _, marker in lines:
            name = re.split(r"[\s<>=!~\[]", line, maxsplit=1)[0]
            found[name] = found.get(name, False) or not re.search("extra|sys_platform", marker)
        return found

    @cached_property
    def packages(self) -> dict[str, str | None]:
        """The version of each package, None where it is not installed."""
        return machine.package_versions(self.requirements)

    @cached_property
    def python(self) -> dict[str, str]:
        """Which Python this is and on what."""
        return {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "os": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
        }

    @cached_property
    def description(self) -> dict[str, str]:
        """What the machine and its system are, as they say; nothing about its owner."""
        python = "{implementation} {version}, {os}, {machine}".format(**self.python)
        libraries = ", ".join(manifests.libraries()) or "none in the usual folders"
        bits = sys.maxsize.bit_length() + 1
        return {
            "gpuedge": self.version, "python": f"{python}, {bits} bits", **machine.description(),
            "processor": machine.processor().model, "libraries": libraries,
        }  # fmt: skip

    @cached_property
    def glsl_compiler(self) -> str | None:
        """Which GLSL compiler users' own kernels would use: ``pyshaderc`` or a path."""
        if find_spec("pyshaderc") is not None:
            return "pyshaderc"
        return next((path for name in COMPILERS if (path := shutil.which(name))), None)

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Each setting with its value and source. Raises ConfigError for one not parsable."""
        values = {name: config.get(name) for name in config.SETTINGS}
        return {
            name: {
                "value": now.value, "source": now.source, "variable": config.SETTINGS[name].variable
            }
            for name, now in values.items()
        }  # fmt: skip

    @cached_property
    def database(self) -> dict[str, Any]:
        """Which capability database is in use, with ``line`` in words.

        ``error`` says why none can be used.
        """
        try:
            database = about(load())
        except GpuEdgeError as error:
            why = error.known or error.what
            return {"error": why, "line": f"none can be used: {why}"}
        return {**database, "line": in_words(database)}

    @cached_property
    def paths(self) -> dict[str, str | None]:
        """Where gpuedge and its data lie, None where a data folder is missing."""
        folders: dict[str, str | None] = {"package": str(Path(gpuedge.__file__).parent)}
        for name in ("shaders", "capability_db"):
            with suppress(GpuEdgeError):
                folders[name] = None
                folders[name] = paths.data_folder(name)
        return {**folders, "cache": paths.cache_folder()}

    @cached_property
    def processor(self) -> dict[str, Any]:
        """The processor, and what ONNX Runtime answers on it; ``flags`` is None if not known."""
        from gpuedge.executors import cpu  # loads numpy, which no other part needs

        here = machine.processor()
        facts: dict[str, Any] = {
            "model": here.model, "flags": None if here.flags is None else here.offers(*FLAGS),
            "engine": cpu.CpuExecutor().engine, "asked": 0, "wrong": [],
        }  # fmt: skip
        with suppress(ImportError):  # a package that is damaged, or absent: told with the packages
            facts["engine"] = cpu.CpuExecutor().kernel
            if facts["engine"] != "numpy":
                known = cpu.known_answers()
                facts |= {"asked": known.asked, "wrong": sorted(map(str, known.wrong))}
        return facts
