"""Finding Vulkan drivers without loading any: the loader's manifests, as files.

Follows the Vulkan loader's documented search (LoaderDriverInterface.md of Vulkan-Loader): the
override variables first, else the platform's folders. Does not import the Vulkan package.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from hashlib import sha256

from gpuedge.core.driver import Candidate
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.core.reasons import Reason
from gpuedge.core.record import Record
from gpuedge.core.system import is_android, userland
from gpuedge.safety.paths import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

LOADER_DEFAULT = "loader-default"
"""Key of the candidate that leaves the choice of drivers to the loader."""

MAX_BYTES = 1 << 20
"""Of a manifest, which has a few hundred bytes, no more than this is read."""

MAX_PATH = 4096
"""Bytes of a path, with its final zero, that Linux accepts (PATH_MAX of limits.h); a library that
lies deeper is not loaded from anywhere."""

_OVERRIDES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_POINTER_BITS = str(struct.calcsize("P") * 8)


def candidates(
    environ: Mapping[str, str], backend: str = "vulkan", platform: str = sys.platform
) -> list[Candidate]:
    """List one candidate per driver manifest, in the loader's order, without loading any.

    `backend` is the one that will reach the driver: Vulkan itself, or one that runs on Vulkan.
    """
    listed: list[Candidate] = []
    seen: set[str] = set()
    for path in _manifests(environ, platform):
        real = _real(path)
        if real in seen:
            continue
        manifest = read_manifest(path)
        if not manifest.is_ours:
            continue
        seen.add(real)
        env = dict.fromkeys(_OVERRIDES, path)
        listed.append(Candidate(backend, path, manifest.fingerprint, env))
    named = any(environ.get(name) for name in _OVERRIDES)
    if not listed and not named and (platform == "win32" or is_android(platform)):
        # Drivers may be known to the loader by ways that are not files: Android has no manifests,
        # but for those of Termux.
        mark = read_manifest(LOADER_DEFAULT).fingerprint
        listed.append(Candidate(backend, LOADER_DEFAULT, mark, {}))
    return listed


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a name that no file can have
        return path


def _manifests(environ: Mapping[str, str], platform: str) -> Iterator[str]:
    for name in _OVERRIDES:
        if environ.get(name):
            yield from _listed(environ[name])
            return
    yield from _listed(environ.get("VK_ADD_DRIVER_FILES", ""))
    if platform == "win32":
        yield from _registry()
    for folder in _folders(environ, platform):
        yield from in_folder(os.path.join(folder, "vulkan", "icd.d"))


def _listed(text: str) -> Iterator[str]:
    for entry in text.split(os.pathsep):
        if entry and os.path.isdir(entry):
            yield from in_folder(entry)
        elif entry and is_meant(entry):
            yield entry


def is_meant(path: str) -> bool:
    """Say whether a named path means a manifest; ``/nonexistent`` is how drivers are hidden."""
    return path.endswith(".json") or os.path.isfile(path)


def in_folder(folder: str) -> list[str]:
    """Return the paths of the manifests in a folder, sorted; none if it cannot be read."""
    try:
        return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".json"))
    except (OSError, ValueError):
        return []


def _folders(environ: Mapping[str, str], platform: str) -> list[str]:
    root, shares = "", ["/usr/local/share", "/usr/share"]
    if is_android(platform):
        root = userland(environ)
        shares = [f"{root}/share"]
    if platform == "win32" or (is_android(platform) and not root):
        return []
    home = environ.get("HOME") or "~"

    def listed(name: str, default: str) -> list[str]:
        return [p for p in (environ.get(name) or default).split(os.pathsep) if p]

    folders = [
        environ.get("XDG_CONFIG_HOME") or f"{home}/.config",
        *listed("XDG_CONFIG_DIRS", f"{root}/etc/xdg"),
        f"{root}/etc",
        environ.get("XDG_DATA_HOME") or f"{home}/.local/share",
        *listed("XDG_DATA_DIRS", os.pathsep.join(shares)),
    ]
    if platform == "darwin":
        folders += [
            f"{base}/{n}" for base in ("/opt/homebrew", "/usr/local") for n in ("share", "etc")
        ]
    return list(dict.fromkeys(folders))


def _registry() -> Iterator[str]:
    """Yield manifests named in the Windows registry (drivers' own key, display-adapter keys)."""
    if sys.platform != "win32":
        return
    import winreg

    root = winreg.HKEY_LOCAL_MACHINE
    drivers = r"SOFTWARE\Khronos\Vulkan\Drivers"
    try:
        with winreg.OpenKey(root, drivers) as key:
            for i in range(winreg.QueryInfoKey(key)[1]):
                name, value, _ = winreg.EnumValue(key, i)
                if value == 0:  # the loader's rule: any other value disables the driver
                    yield name
    except OSError:
        pass
    display = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
    try:
        with winreg.OpenKey(root, display) as adapters:
            for i in range(winreg.QueryInfoKey(adapters)[0]):
                yield from _adapter(winreg, adapters, winreg.EnumKey(adapters, i))
    except OSError:
        pass


def _adapter(winreg: Any, adapters: Any, name: str) -> list[str]:
    wow = "" if _POINTER_BITS == "64" else "Wow"
    try:
        with winreg.OpenKey(adapters, name) as key:
            named, _ = winreg.QueryValueEx(key, f"VulkanDriverName{wow}")
    except OSError:
        return []
    return [n for n in (named if isinstance(named, list) else [named]) if isinstance(n, str)]


class Manifest(Record):
    """What a driver manifest says, without loading what it names.

    `library` is an absolute path if it was found, else the name as written; `problem` has the
    reason ``bad-manifest`` or ``missing-library``, or is None.
    """

    raw: bytes = b""
    library: str | None = None
    is_ours: bool = True
    problem: Reason | None = None

    @property
    def fingerprint(self) -> str:
        """A hash that changes with the manifest and with the file it names.

        A driver can have 100 MB, so facts about its file stand in for its content.
        """
        digest = sha256(self.raw)
        for text in (self.problem.detail if self.problem else "", self.library or ""):
            digest.update(text.encode("utf-8", "surrogatepass"))
        if self.library is not None:
            digest.update(file_facts(self.library))
        return digest.hexdigest()


def read_manifest(path: str) -> Manifest:
    """Read a driver manifest and look for its library."""
    if path == LOADER_DEFAULT:
        return Manifest()
    raw = b""
    try:
        raw = read_start(path, MAX_BYTES)
        table = _icd_table(raw)
    except OSError as error:
        return _bad(path, raw, error.strerror or str(error))
    except ValueError as error:
        return _bad(path, raw, str(error))
    # Other pointer widths are left out only if the manifest itself says so.
    arch = table.get("library_arch")
    is_ours = arch not in ("32", "64") or arch == _POINTER_BITS
    name = table["library_path"]
    library, is_there = _resolved(path, name)
    problem = None if is_there or not _is_path(name) else Reason("missing-library", library)
    return Manifest(raw, library, is_ours, problem)


def _bad(path: str, raw: bytes, wrong: str) -> Manifest:
    return Manifest(raw, problem=Reason("bad-manifest", f"{path}: {wrong}"))


def _icd_table(raw: bytes) -> dict[str, Any]:
    """Return the table ``ICD`` of a manifest. Raises ValueError with what is wrong."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    table = document.get("ICD") if isinstance(document, dict) else None
    name = table.get("library_path") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(name, str):
        raise ValueError("it names no ICD library_path")
    try:
        is_name = bool(name) and "\0" not in name and len(os.fsencode(name)) < MAX_PATH
    except UnicodeEncodeError:  # half of a surrogate pair
        is_name = False
    if not is_name:
        raise ValueError("its library_path is not a valid file name")
    return table


def require(candidate: Candidate, api: str = "Vulkan") -> None:
    """Raise BackendUnavailableError where a candidate's manifest is not right."""
    refuse(candidate, api, read_manifest(candidate.key).problem)


def refuse(candidate: Candidate, api: str, problem: Reason | None) -> None:
    """Raise BackendUnavailableError for a problem of a candidate's files, if there is one."""
    if problem is not None:
        raise BackendUnavailableError(
            f"There is no {api} driver here: {problem.sentence}.",
            asked_by=candidate.key,
            known=problem.detail,
            reason=problem.code,
        )


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name


def _resolved(manifest: str, name: str) -> tuple[str, bool]:
    """Return where the library `name` of a manifest lies, and whether it is there.

    A relative path starts at the manifest. A bare name is looked for in the usual library folders;
    the system's loader may know more places, so a bare name not found is returned as it is.
    """
    if _is_path(name):
        base = os.path.dirname(os.path.abspath(manifest))
        place = os.path.normpath(os.path.join(base, name))
        return place, os.path.isfile(place)
    for folder in _library_folders():
        place = os.path.join(folder, name)
        if os.path.isfile(place):
            return place, True
    return name, False


def _library_folders() -> Sequence[str]:
    multiarch = getattr(sys.implementation, "_multiarch", "")
    folders = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    if is_android():
        system = "/system/lib64" if _POINTER_BITS == "64" else "/system/lib"
        return [*folders, f"{userland(os.environ)}/lib", system]
    if multiarch:
        folders += [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", f"/usr/local/lib/{multiarch}"]
    return [*folders, "/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


LIBRARIES = (
    "libvulkan.so.1", "libvulkan.so", "libEGL.so.1", "libEGL.so", "libGLESv2.so.2", "libGLESv2.so",
)  # fmt: skip
"""Loaders of Vulkan and OpenGL ES, by their names on Linux and on Android."""


def libraries() -> list[str]:
    """Return the names of the loaders that lie in the usual library folders; loads none."""
    folders = _library_folders()
    return [n for n in LIBRARIES if any(os.path.exists(os.path.join(f, n)) for f in folders)]


def file_facts(path: str) -> bytes:
    """Return what tells a file from one that replaces it or is written over it.

    Time and size are not enough: systems installed from an image give all files the same time.
    What is replaced gets another inode; what is written in place gets another time of change,
    which cannot be set.
    """
    try:
        s = os.stat(path)
    except (OSError, ValueError):
        return b"absent"
    return repr((s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev)).encode()
