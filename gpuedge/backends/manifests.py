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
    environ: Mapping[str, str], platform: str = sys.platform, backend: str = "vulkan"
) -> list[Candidate]:
    """List one candidate per driver manifest, in the loader's order, without loading any.

    `backend` is the one that will reach the driver: Vulkan itself, or one that runs on Vulkan.
    """
    found: list[Candidate] = []
    seen: set[str] = set()
    for path in _manifests(environ, platform):
        real = _real(path)
        if real in seen:
            continue
        table, raw, wrong = read_icd(path)
        if not _for_this_process(table):
            continue
        seen.add(real)
        env = dict.fromkeys(_OVERRIDES, path)
        found.append(Candidate(backend, path, fingerprint(path, table, raw, wrong), env))
    named = any(environ.get(name) for name in _OVERRIDES)
    if not found and not named and (platform == "win32" or _is_android(platform)):
        # Drivers may be known to the loader by ways that are not files (Android has no manifests).
        found.append(Candidate(backend, LOADER_DEFAULT, sha256(b"").hexdigest(), {}))
    return found


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a name that no file can have
        return path


def _is_android(platform: str) -> bool:
    return platform == "android" or hasattr(sys, "getandroidapilevel")


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
    if platform == "win32":
        return []
    home = environ.get("HOME") or "~"

    def listed(name: str, default: str) -> list[str]:
        return [p for p in (environ.get(name) or default).split(os.pathsep) if p]

    folders = [
        environ.get("XDG_CONFIG_HOME") or f"{home}/.config",
        *listed("XDG_CONFIG_DIRS", "/etc/xdg"),
        "/etc",
        environ.get("XDG_DATA_HOME") or f"{home}/.local/share",
        *listed("XDG_DATA_DIRS", os.pathsep.join(("/usr/local/share", "/usr/share"))),
    ]
    if platform == "darwin":
        folders += [
            "/opt/homebrew/share",
            "/opt/homebrew/etc",
            "/usr/local/share",
            "/usr/local/etc",
        ]
    prefix = environ.get("PREFIX", "")
    if "com.termux" in prefix:
        folders.append(f"{prefix}/share")
    return list(dict.fromkeys(folders))


def _registry() -> Iterator[str]:
    """Yield manifests named in the Windows registry (drivers' own key, display-adapter keys)."""
    if sys.platform != "win32":
        return
    import winreg

    wow = "" if _POINTER_BITS == "64" else "Wow"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Khronos\Vulkan\Drivers") as key:
            for i in range(winreg.QueryInfoKey(key)[1]):
                name, value, _ = winreg.EnumValue(key, i)
                if value == 0:  # the loader's rule: any other value disables the driver
                    yield name
    except OSError:
        pass
    display = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, display) as adapters:
            for i in range(winreg.QueryInfoKey(adapters)[0]):
                yield from _adapter(winreg, adapters, winreg.EnumKey(adapters, i), wow)
    except OSError:
        pass


def _adapter(winreg: Any, adapters: Any, name: str, wow: str) -> list[str]:
    try:
        with winreg.OpenKey(adapters, name) as key:
            value, _ = winreg.QueryValueEx(key, f"VulkanDriverName{wow}")
    except OSError:
        return []
    named = value if isinstance(value, list) else [value]
    return [name for name in named if isinstance(name, str)]


def read_icd(path: str) -> tuple[dict[str, Any] | None, bytes, str]:
    """Return (the ICD table or None, the file's bytes, what is wrong)."""
    try:
        raw = read_start(path, MAX_BYTES)
    except OSError as error:
        return None, b"", error.strerror or str(error)
    except ValueError as error:
        return None, b"", str(error)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None, raw, "it is not JSON"
    table = document.get("ICD") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not isinstance(table.get("library_path"), str):
        return None, raw, "it names no ICD library_path"
    if not _can_name_a_file(table["library_path"]):
        return None, raw, "its library_path is not a valid file name"
    return table, raw, ""


def _can_name_a_file(name: str) -> bool:
    try:
        return bool(name) and "\0" not in name and len(os.fsencode(name)) < MAX_PATH
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def inspect_manifest(path: str) -> tuple[str | None, str | None, Reason | None]:
    """Look at a driver manifest without loading what it names.

    Returns its library (an absolute path if it was found, else the name as written), the Vulkan
    version that it claims, and the reason ``bad-manifest`` or ``missing-library``, each or None.
    """
    if path == LOADER_DEFAULT:
        return None, None, None
    table, _, wrong = read_icd(path)
    if table is None:
        return None, None, Reason("bad-manifest", f"{path}: {wrong}")
    claimed = table.get("api_version")
    api = claimed if isinstance(claimed, str) else None
    library, found = resolve_library(path, table["library_path"])
    if found or not _is_path(table["library_path"]):
        return library, api, None
    return library, api, Reason("missing-library", library)


def require(candidate: Candidate) -> None:
    """Raise BackendUnavailableError where a candidate's Vulkan manifest is not right."""
    problem = inspect_manifest(candidate.key)[2]
    if problem is not None:
        raise BackendUnavailableError(
            f"There is no Vulkan driver here: {problem.sentence}.",
            asked_by=candidate.key,
            known=problem.detail,
            reason=problem.code,
        )


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name


def resolve_library(manifest: str, name: str) -> tuple[str, bool]:
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
    if multiarch:
        folders += [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", f"/usr/local/lib/{multiarch}"]
    return [*folders, "/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def _for_this_process(table: Mapping[str, Any] | None) -> bool:
    """Return False only if the manifest itself says that it is for another pointer width."""
    arch = table.get("library_arch") if table else None
    return arch not in ("32", "64") or arch == _POINTER_BITS


def fingerprint(path: str, table: Mapping[str, Any] | None, raw: bytes, wrong: str) -> str:
    """Return a hash that changes with the manifest and with the file it names.

    A driver can have 100 MB, so facts about its file stand in for its content. Time and size are
    not enough: systems installed from an image give all files the same time. What is replaced gets
    another inode; what is written in place gets another time of change, which cannot be set.
    """
    digest = sha256(raw)
    digest.update(wrong.encode("utf-8", "surrogatepass"))
    if table is not None:
        library, _ = resolve_library(path, table["library_path"])
        digest.update(library.encode("utf-8", "surrogatepass"))
        digest.update(file_facts(library))
    return digest.hexdigest()


def file_facts(path: str) -> bytes:
    """Return what tells a file from one that replaces it or is written over it."""
    try:
        s = os.stat(path)
    except (OSError, ValueError):
        return b"absent"
    return repr((s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev)).encode()
