"""Finding what WebGPU may run on, without loading any of it.

A candidate's key is a Vulkan manifest (or the loader's default), or the name of the API: ``gl``,
``metal``, ``dx12``. Its fingerprint changes with the driver's files and with wgpu-native.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256

from gpuedge.backends import manifests
from gpuedge.core.driver import Candidate
from gpuedge.core.errors import BackendUnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METAL, DX12, GL = "metal", "dx12", "gl"

_EGL_FOLDERS = ("/etc/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d")
_EGL_VARIABLES = ("__EGL_VENDOR_LIBRARY_FILENAMES", "__EGL_VENDOR_LIBRARY_DIRS")


def candidates(
    environ: Mapping[str, str], backend: str, platform: str = sys.platform
) -> list[Candidate]:
    """List the candidates of a backend: ``wgpu`` has all, ``metal`` and ``dx12`` only theirs.

    Raises BackendUnavailableError (``no-loader``) where the package is not installed.
    """
    files = native_files()
    if not files:
        from importlib.util import find_spec

        if not find_spec("wgpu"):
            what = "The Python package 'wgpu' cannot be imported."
            raise BackendUnavailableError(what, known="No module named 'wgpu'", reason="no-loader")
    native = "\0".join(map(_facts, files))
    listed = []
    if backend in ("wgpu", METAL) and platform == "darwin":
        listed.append(Candidate(backend, METAL, _hash(native), {}))
    if backend in ("wgpu", DX12) and platform == "win32":
        listed.append(Candidate(backend, DX12, _hash(native), {}))
    if backend == "wgpu" and platform != "darwin":
        for known in manifests.candidates(environ, backend, platform):
            print_ = _hash(native, known.fingerprint)
            listed.append(Candidate("wgpu", known.key, print_, known.env))
        listed.append(Candidate("wgpu", GL, _hash(native, *_egl_facts(environ)), {}))
    return listed


def api_of(candidate: Candidate) -> str:
    """Return the API underneath: ``vulkan``, ``gl``, ``metal`` or ``dx12``."""
    return candidate.key if candidate.key in (METAL, DX12, GL) else "vulkan"


def _hash(*facts: str) -> str:
    return sha256("\0".join(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _facts(path: str) -> str:
    return f"{path} {manifests.file_facts(path)!r}"


def native_files() -> list[str]:
    """Return where the library of the `wgpu` package lies, which is not imported."""
    override = os.environ.get("WGPU_LIB_PATH", "").strip()
    if override:
        return [override]
    for folder in sys.path:
        place = os.path.join(folder, "wgpu", "resources")  # noqa: PTH118
        try:
            names = sorted(os.listdir(place))  # noqa: PTH208
        except (OSError, ValueError):
            continue
        libraries = [
            n for n in names if "wgpu_native" in n and n.endswith((".so", ".dll", ".dylib"))
        ]
        return [os.path.join(place, n) for n in libraries]  # noqa: PTH118
    return []


def _egl_facts(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what decides which OpenGL driver EGL loads (libglvnd's documented search)."""
    for name in _EGL_VARIABLES:
        yield f"{name}={environ.get(name, '')}"
    for folder in _EGL_FOLDERS:
        for path in manifests.in_folder(folder):
            yield _facts(path)
