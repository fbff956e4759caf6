"""Compile GLSL that users bring, with `pyshaderc` if installed, else with a compiler on the PATH.

gpuedge's own kernels never come this way: they are printed directly.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from gpuedge.core.errors import CompilerUnavailableError, KernelSyntaxError
from gpuedge.safety import temporary
from gpuedge.safety.deadline import call_within
from gpuedge.safety.packages import command, needed

TIMEOUT_S = 60.0
COMPILERS = ("glslangValidator", "glslang", "glslc")


def available() -> str | None:
    """Return the name of the compiler that would be used, None if there is none."""
    if find_spec("pyshaderc") is not None:
        return "pyshaderc"
    return next((name for name in COMPILERS if shutil.which(name)), None)


def compile_glsl(text: str, filename: str) -> bytes:
    """Compile a compute shader to SPIR-V for Vulkan 1.0.

    Raises
    ------
    KernelSyntaxError (GE-301)
        The compiler's first error, with file and line.
    CompilerUnavailableError (GE-302)
        No GLSL compiler is installed.
    """
    compiler = available()
    if compiler is None:
        raise CompilerUnavailableError(
            f"{filename} is GLSL, and no GLSL compiler is installed.",
            known=f"looked for the package pyshaderc and for {', '.join(COMPILERS)} on the PATH",
            hint=f"apt-get install glslang-tools, or {command('pyshaderc')}",
        )
    if compiler == "pyshaderc":
        return _with_pyshaderc(text, filename)
    with temporary.folder("gpuedge-glsl-") as folder:
        return _with_tool(compiler, text, filename, folder)


def _with_pyshaderc(text: str, filename: str) -> bytes:
    with needed("pyshaderc", filename, CompilerUnavailableError):
        import pyshaderc

    with temporary.folder("gpuedge-glsl-") as folder:
        path = folder / "kernel.comp"
        path.write_text(text, encoding="utf-8")
        try:
            return call_within(
                TIMEOUT_S, lambda: bytes(pyshaderc.compile_file_into_spirv(str(path), "comp"))
            )
        except TimeoutError:
            raise _endless("pyshaderc", filename) from None
        except Exception as error:  # pyshaderc raises its own type without a common base
            raise _error(str(error), text, filename) from None


def _with_tool(compiler: str, text: str, filename: str, folder: Path) -> bytes:
    source, target = folder / "kernel.comp", folder / "kernel.spv"
    source.write_text(text, encoding="utf-8")
    command = [compiler, str(source), "-o", str(target)]
    command[1:1] = ["-fshader-stage=comp"] if compiler == "glslc" else ["-V", "-S", "comp"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
            check=False, cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _endless(compiler, filename) from None
    except OSError as error:
        raise CompilerUnavailableError(f"{compiler} cannot be run: {error}") from None
    if done.returncode != 0 or not target.is_file():
        raise _error(done.stdout + done.stderr, text, filename)
    return target.read_bytes()


def _endless(compiler: str, filename: str) -> KernelSyntaxError:
    return KernelSyntaxError(
        f"{filename} was not compiled within {TIMEOUT_S:g} s.",
        known=f"{compiler} was given up",
        hint="look for macros that grow with each use, and for long loops that are unrolled",
    )


def _error(report: str, text: str, filename: str) -> KernelSyntaxError:
    """Turn a compiler's report into ours: file, line, message, and the line itself."""
    place = re.search(r"(?:ERROR: )?[^\s:]*:(\d+):\s*(?:error: )?(.+)", report)
    if place is None:
        return KernelSyntaxError(f"{filename}: {report.strip()[:500] or 'does not compile'}")
    line, message = int(place.group(1)), place.group(2).strip()
    lines = text.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    return KernelSyntaxError(f"{filename}:{line}: {message}\n    {shown}")
