"""Finding EGL drivers without loading any: vendor manifests, named libraries, the system's own.

Follows the search of the vendor-neutral loader (``src/EGL/icd_enumeration.md`` of libglvnd). A
library that is not behind that loader (ANGLE, SwiftShader, a vendor's own) is named by the variable
``GPUEDGE_EGL``.
"""

# ruff: noqa: PTH113, PTH118  (importing pathlib costs more than a cached probe may)

from __future__ import annotations

import os
import sys
from hashlib import sha256

from gpuedge.backends import manifests
from gpuedge.backends.manifests import LOADER_DEFAULT
from gpuedge.core.driver import Candidate
from gpuedge.core.reasons import Reason
from gpuedge.core.system import is_android, userland

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIBRARIES = "GPUEDGE_EGL"
"""Variable that lists libEGL files, separated as paths are; their libGLESv2 lies beside them."""

VENDOR_FILES = "__EGL_VENDOR_LIBRARY_FILENAMES"
VENDOR_FOLDERS = "__EGL_VENDOR_LIBRARY_DIRS"
FOLDERS = ("/etc/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d")
"""Where the loader looks for manifests unless a variable says otherwise."""

LOADER = "libEGL.so.1"
"""The vendor-neutral loader, in Termux too; Android's own library has no number."""


def candidates(
    environ: Mapping[str, str], backend: str, platform: str = sys.platform
) -> list[Candidate]:
    """List one candidate per driver, those named by ``GPUEDGE_EGL`` first, without loading any."""
    by_path: dict[str, Candidate] = {}
    for path in _split(environ.get(LIBRARIES, "")):
        by_path.setdefault(os.path.realpath(path), Candidate(backend, path, _library_print(path)))
    for path in _manifests(environ, platform):
        mark = manifests.read_manifest(path).fingerprint
        candidate = Candidate(backend, path, mark, {VENDOR_FILES: path})
        by_path.setdefault(os.path.realpath(path), candidate)
    named = any(environ.get(name) for name in (VENDOR_FILES, VENDOR_FOLDERS))
    if not by_path and not named:
        library = _system_library(platform)
        if library is not None:
            by_path[library] = Candidate(backend, LOADER_DEFAULT, sha256(b"").hexdigest())
    return list(by_path.values())


def _split(text: str) -> list[str]:
    return [p for p in text.split(os.pathsep) if p and "\0" not in p]


def _manifests(environ: Mapping[str, str], platform: str) -> Iterator[str]:
    if platform in ("win32", "darwin"):
        return
    if environ.get(VENDOR_FILES):
        listed = _split(environ[VENDOR_FILES])
        yield from (path for path in listed if manifests.is_meant(path))
        return
    folders: Sequence[str] = FOLDERS
    if is_android(platform):
        root = userland(environ)
        folders = [f"{root}/{n}/glvnd/egl_vendor.d" for n in ("etc", "share")] if root else ()
    for folder in _split(environ.get(VENDOR_FOLDERS, "")) or folders:
        yield from manifests.in_folder(folder)


def _library_print(path: str) -> str:
    """Return a hash that changes with a libEGL and the libGLESv2 beside it."""
    folder, name = os.path.split(path)
    digest = sha256()
    for other in (path, os.path.join(folder, name.replace("libEGL", "libGLESv2"))):
        digest.update(manifests.file_facts(other))
    return digest.hexdigest()


def _system_library(platform: str) -> str | None:
    """Return the name of the system's libEGL, None on a system that has none of its own."""
    if platform == "win32":
        return "libEGL.dll"
    if platform == "darwin":
        return None
    return "libEGL.so" if is_android(platform) else LOADER


def is_manifest(candidate: Candidate) -> bool:
    """Say whether a candidate's key is the path of a vendor manifest, not of a library."""
    return VENDOR_FILES in candidate.env


def library_of(candidate: Candidate) -> str:
    """Return the libEGL to load for a candidate: itself, or the system's loader.

    A named library that cannot be found is tried by its name all the same.
    """
    if is_manifest(candidate):
        return LOADER
    if candidate.key == LOADER_DEFAULT:
        return _system_library(sys.platform) or "libEGL.so"
    return candidate.key


def require(candidate: Candidate) -> None:
    """Raise BackendUnavailableError where a candidate's files are not right; loads none."""
    key = candidate.key
    if is_manifest(candidate):
        manifests.require(candidate, "OpenGL ES")
    elif key != LOADER_DEFAULT and not os.path.isfile(key):
        manifests.refuse(candidate, "OpenGL ES", Reason("missing-library", key))
