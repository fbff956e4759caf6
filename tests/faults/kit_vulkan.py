"""The fault kit's part for Vulkan, and for what runs above it (wgpu-native)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kit import FAULTS, POINTS, Cell, Fault, Kit

NONE = "/nonexistent"
DRIVER, LAYER = "vulkan_driver", "vulkan_layer"
LAYER_NAME = "VK_LAYER_GPUEDGE_fault"
DRIVER_POINTS = ("load", "instance", "enumerate")
"""Points in the fake driver; those after them are in the layer."""

FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
MANIFESTS = ("missing-library", "missing-symbol", "bad-manifest", "wrong-format")
"""Faults of what names a driver: no code of it runs."""


def good_manifest(base: Mapping[str, str] | None) -> Path:
    """Return the manifest of the good driver underneath: the one `base` names, or lavapipe's.

    Raises
    ------
    ValueError
        The one that `base` names is not there. Lavapipe's may not be, either.
    """
    named = (base or {}).get("VK_DRIVER_FILES")
    if named:
        manifest = Path(named.split(os.pathsep)[0])
        if not manifest.is_file():
            raise ValueError(f"VK_DRIVER_FILES names {manifest}, and there is no such file")
        return manifest
    found = [p for folder in FOLDERS for p in sorted(Path(folder).glob("lvp_icd*.json"))]
    return found[0] if found else Path(FOLDERS[0]) / "lvp_icd.json"


def environment(
    kit: Kit, api: str, fault: Fault, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables that put a fault in the way of a good Vulkan driver."""
    good = good_manifest(base)
    made = {
        "VK_DRIVER_FILES": str(good),
        "__EGL_VENDOR_LIBRARY_FILENAMES": NONE,
        "GPUEDGE_EGL": "",
        "GPUEDGE_BACKENDS": api,
        **(base or {}),
        "GPUFAULT": str(fault),
    }
    if fault.point in DRIVER_POINTS:
        made["VK_DRIVER_FILES"] = str(_manifest(kit, fault, good))
        made["GPUFAULT_DRIVER"] = _library(good)
    else:
        made["VK_LAYER_PATH"] = str(_layer(kit))
        made["VK_INSTANCE_LAYERS"] = LAYER_NAME
    return made


def _library(manifest: Path) -> str:
    """Return the library of a manifest as the dynamic linker is to be told."""
    try:
        path = str(json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} is no manifest of a Vulkan driver: {error}") from None
    return path if os.sep not in path else str((manifest.parent / path).resolve())


def _write(path: Path, text: str) -> Path:
    """Write a file that others may write at the same time, and alike."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    return path


def _manifest(kit: Kit, fault: Fault, good: Path) -> Path:
    kind = fault.name if fault.name in MANIFESTS else "driver"
    library = {
        "missing-library": kit.folder / "libgpufault_nothing.so",
        "missing-symbol": kit.library("vulkan_no_symbol"),
        "wrong-format": kit.folder / "text.so",
    }.get(kind, kit.library(DRIVER))
    if kind == "wrong-format":
        _write(library, "this is no library\n")
    table = {"file_format_version": "1.0.0", "ICD": _icd(good, library)}
    text = json.dumps(table) if kind != "bad-manifest" else json.dumps(table)[:-9]
    return _write(kit.folder / f"gpufault_{kind}.json", text)


def _icd(good: Path, library: Path) -> dict[str, str]:
    version = "1.3.0"
    with contextlib.suppress(OSError, ValueError, KeyError):
        version = json.loads(good.read_text(encoding="utf-8"))["ICD"]["api_version"]
    return {"library_path": str(library), "api_version": version}


def _layer(kit: Kit) -> Path:
    folder = kit.folder / "layers"
    folder.mkdir(exist_ok=True)
    layer = {
        "name": LAYER_NAME,
        "type": "GLOBAL",
        "library_path": str(kit.library(LAYER)),
        "api_version": "1.3.0",
        "implementation_version": "1",
        "description": "fails where it is told to",
    }
    _write(folder / "gpufault.json", json.dumps({"file_format_version": "1.1.2", "layer": layer}))
    return folder


# --- what a probe says ------------------------------------------------------------------------

SOME = ("load", "create", "compile", "submit", "read")
HARMLESS = ("flood", "daemon", "setenv", "signal-mask", "chdir", "denormals")
OK, LOST, MEMORY = ("ok", "ok"), ("broken", "device-lost"), ("broken", "out-of-memory")
OPEN, KERNEL, NOTHING = (
    ("broken", "open-failed"),
    ("broken", "kernel-failed"),
    ("absent", "no-device"),
)
LIBRARY, MANIFEST = ("broken", "missing-library"), ("broken", "bad-manifest")
CRASHED, EXITED, LATE = ("crashed", "crashed"), ("crashed", "exited"), ("timeout", "deadline")
WRONG, UNTOUCHED = ("wrong", "wrong-numbers"), ("wrong", "untouched-output")
UNSTABLE = ("wrong", "unstable-numbers")
Verdict = tuple[str, str]

GENERAL: Sequence[tuple[Sequence[str], Sequence[str], Verdict]] = (
    (("segv", "abort"), POINTS, CRASHED),
    (("bus", "ill", "fpe", "stackoverflow"), SOME, CRASHED),
    (("exit0",), POINTS, EXITED),
    (("exit3", "quit0"), SOME, EXITED),
    (("close-fds",), SOME, EXITED),  # it would close the application's files: judged as an end
    (("hang",), POINTS, LATE),
    (("spin", "slow"), ("load", "create", "compile", "read"), LATE),
    (("leak-lock",), SOME, LATE),
    (("leak-loader-lock",), ("create", "compile"), LATE),
    (HARMLESS, ("load", "create", "submit"), OK),
    (("missing-library", "missing-symbol", "wrong-format"), ("load",), LIBRARY),
    (("bad-manifest",), ("load",), MANIFEST),
    (("wrong", "wrong-mul"), ("compile",), WRONG),
    (("wrong", "zero-output", "torn-output", "nan", "unstable", "stale"), ("read",), WRONG),
    (("unstable-zero",), ("read",), UNSTABLE),
    (("untouched-output",), ("compile",), UNTOUCHED),
    (("devices-none",), ("enumerate",), NOTHING),
    (("devices-many", "devices-bad", "extensions-huge"), ("enumerate",), CRASHED),
    (("name-no-nul", "name-bad-utf8", "name-escape", "name-json"), ("enumerate",), OK),
    (("name-empty",), ("enumerate",), OK),
)
"""What is the same for Vulkan itself and for wgpu-native above it."""

REFUSALS = ("init-failed", "incomplete", "code17", "code-999")
OOM = ("oom-host", "oom-device")

VULKAN: Sequence[tuple[Sequence[str], Sequence[str], Verdict]] = (
    (("untouched-output",), ("submit",), UNTOUCHED),
    (("oom-host",), ("instance",), OPEN),
    (("oom-device", "lost", *REFUSALS), ("instance",), NOTHING),  # so the loader says
    (OOM, ("enumerate", "create", "allocate", "compile", "submit", "read"), MEMORY),
    (("map-failed",), ("allocate",), MEMORY),
    (("lost",), ("enumerate", "create", "allocate", "compile", "submit", "read"), LOST),
    (("init-failed",), ("enumerate",), NOTHING),
    (("incomplete", "code17", "code-999"), ("enumerate", "create"), OPEN),
    (("init-failed",), ("create",), OPEN),
    (REFUSALS, ("allocate", "compile", "submit", "read"), KERNEL),
    (("compile-failed",), ("compile",), KERNEL),
    (("devices-incomplete", "extensions-incomplete", "queues-huge"), ("enumerate",), OPEN),
    (("memory-huge", "memory-none", "memory-index"), ("enumerate",), OPEN),
    (("queues-none", "queues-no-compute"), ("enumerate",), ("absent", "no-compute")),
    (("limits-zero",), ("enumerate",), KERNEL),
    (("limits-huge",), ("enumerate",), MEMORY),
)

WGPU: Sequence[tuple[Sequence[str], Sequence[str], Verdict]] = (
    # The poison is an upload of the same submission here, so what is left are its zeros.
    (("untouched-output",), ("submit",), WRONG),
    (("lost", *OOM, *REFUSALS), ("instance", "enumerate"), NOTHING),
    (("lost", *REFUSALS), ("create", "allocate"), OPEN),
    (OOM, ("create",), MEMORY),
    (("oom-device",), ("allocate",), MEMORY),
    (("oom-host",), ("allocate",), OPEN),  # wgpu-native says that the device is lost
    (("map-failed",), ("allocate",), OPEN),
    (OOM, ("compile",), MEMORY),
    (("lost", "compile-failed", *REFUSALS), ("compile",), LOST),
    # wgpu-native ends the process where a submission or a look at its progress fails.
    (("lost", *OOM, *REFUSALS), ("submit", "read"), CRASHED),
    (("devices-incomplete", "queues-none"), ("enumerate",), NOTHING),
    (("extensions-incomplete", "queues-huge", "memory-huge", "memory-index"), ("enumerate",),
     CRASHED),
    (("memory-none", "limits-huge"), ("enumerate",), OPEN),
    (("limits-zero",), ("enumerate",), CRASHED),
    (("queues-no-compute",), ("enumerate",), OK),  # it takes graphics queues without asking
)  # fmt: skip

LATER: Sequence[tuple[str, Verdict, Verdict]] = (
    ("segv@submit:3", CRASHED, CRASHED),
    ("exit0@read:4", EXITED, EXITED),
    ("hang@submit:5", LATE, LATE),
    ("lost@submit:3", LOST, CRASHED),
    ("lost@submit:2+", LOST, CRASHED),
    ("lost@read:3", LOST, CRASHED),
    ("oom-device@submit:4", MEMORY, CRASHED),
    ("nan@read:3", WRONG, WRONG),
    ("wrong@compile:2+", WRONG, WRONG),
)
"""Faults that wait for a later call, and what a probe says of them by Vulkan and by wgpu."""


def _persistent(name: str, point: str) -> str:
    """Return the calls at which a fault is due: codes at once are tried again by some callers."""
    asks_again = point in ("instance", "enumerate", "allocate")
    code = name in ("lost", *OOM, *REFUSALS)
    return ":1+" if code and asks_again else "" if code else FAULTS[name].when


def _table(api: str) -> Iterator[tuple[Fault, Verdict]]:
    for names, points, verdict in (*GENERAL, *(VULKAN if api == "vulkan" else WGPU)):
        for name in names:
            for point in points:
                yield Fault(name, point, _persistent(name, point)), verdict
    for text, vulkan, wgpu in LATER:
        yield Fault.parse(text), vulkan if api == "vulkan" else wgpu


def cells() -> list[Cell]:
    """Return every fault at every point of both APIs, with the verdict of a probe."""
    made = []
    for api in ("vulkan", "wgpu"):
        for fault, (status, code) in _table(api):
            # A lost device shows in one of two threads first: one reports it, the other panics.
            racy = api == "wgpu" and fault.point == "read" and (status, code) == CRASHED
            racy = racy and fault.name in ("lost", *OOM, *REFUSALS)
            made.append(Cell(fault, api, status, (code,), (LOST,) if racy else ()))
    return made
