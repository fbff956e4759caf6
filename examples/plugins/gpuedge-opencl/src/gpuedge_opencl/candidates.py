"""Finding OpenCL drivers as files: what the loader reads (cl_khr_icd), without loading any."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from gpuedge.backends.base import Candidate
from gpuedge.backends.common import no_loader
from gpuedge.backends.manifests import file_facts

VENDORS = "OCL_ICD_VENDORS"
"""Variable of ocl-icd, which the wheels of pyopencl hold: a folder of ``.icd`` files, or one."""

FOLDER = "/etc/OpenCL/vendors"
"""Where drivers are registered on Unix (cl_khr_icd)."""

MAX_BYTES = 4096
"""An ``.icd`` file is one line with the name of a library."""

_OPTIONS = {"PYOPENCL_NO_CACHE": "1"}
"""gpuedge says what is kept on disk; drivers have caches of their own."""


def candidates(
    environ: Mapping[str, str], backend: str, platform: str = sys.platform
) -> list[Candidate]:
    """List one candidate per ``.icd`` file; on Windows and macOS one for what the system has.

    Raises BackendUnavailableError (``no-loader``) where pyopencl is not installed.
    """
    package = find_spec("pyopencl")
    if package is None or package.origin is None:
        raise no_loader(
            "The Python package 'pyopencl' cannot be imported.",
            "No module named 'pyopencl'",
            "pip install pyopencl",
        )
    library = next(Path(package.origin).parent.glob("_cl*"), Path(package.origin))
    if platform in ("win32", "darwin"):
        return [Candidate(backend, "system", _hash([str(library)]), _OPTIONS)]
    return [
        Candidate(backend, str(path), _fingerprint(path, library), {VENDORS: str(path), **_OPTIONS})
        for path in _files(environ.get(VENDORS) or FOLDER)
    ]


def library_of(icd: Path) -> str:
    """Return the library that an ``.icd`` file names: its path where it is found, else its name."""
    try:
        with icd.open("rb") as file:
            name = file.read(MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    places = (Path(folder, name) for folder in _folders())
    return next((str(place) for place in places if place.is_file()), name)


def _files(place: str) -> list[Path]:
    path = Path(place)
    try:
        return sorted(path.glob("*.icd")) if path.is_dir() else [path] * path.is_file()
    except (OSError, ValueError):
        return []


def _folders() -> Iterator[str]:
    """Yield where the dynamic linker looks for a library, the usual places of it."""
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    kind = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in ("/usr/local/lib", "/usr/lib", "/lib"):
        yield from (str(Path(folder, kind)), folder, folder + "64")


def _fingerprint(icd: Path, library: Path) -> str:
    return _hash([str(icd), library_of(icd), str(library)])


def _hash(paths: list[str]) -> str:
    facts = b"\0".join(os.fsencode(path) + file_facts(path) for path in paths)
    return sha256(facts).hexdigest()
