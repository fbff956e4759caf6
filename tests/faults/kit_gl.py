"""The fault kit's part for EGL and OpenGL ES.

A fault is put in the way of a good driver by one of two carriers: a vendor library of the
vendor-neutral EGL loader, for what happens before there is a context, and a pair of libEGL and
libGLESv2 that passes everything on to the system's, for the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from kit import FAULTS as KNOWN
from kit import POINTS, Cell, Fault, Kind

LEVELS = ("gles31", "gles30", "gles20")
NONE = "/nonexistent"
VENDOR, INTERPOSER = "egl_vendor", "gl_interposer"

VENDOR_FOLDERS = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")

VENDOR_POINTS = ("load", "instance", "enumerate")
"""Points at which the vendor library can show what needs no API."""

UNLOADED = ("missing-library", "bad-manifest", "wrong-format")
"""Faults of what names the driver, in which nothing of the kit is loaded that could report."""

VENDOR_FAULTS = frozenset(
    {
        "refused", "init-failed", "version-odd", "devices-none", "devices-bad", "devices-many",
        "configs-none", "configs-huge", "configs-negative", "configs-bad",
        "strings-escape", "strings-huge", "strings-null", "missing-symbol", *UNLOADED,
    }
)  # fmt: skip
"""Faults that only the vendor library shows."""

LIES = ("name-", "limits-", "extensions-")
"""Beginnings of the names of faults at the point ``enumerate`` that the interposer shows."""

DATA = frozenset(
    {
        "wrong", "zero-output", "untouched-output", "torn-output", "nan", "unstable",
        "unstable-zero", "stale",
    }
)  # fmt: skip
"""Faults in numbers."""

TEXELS = {"gles31": 0, "gles30": 16, "gles20": 100}
"""Pixels below which faults in numbers leave work alone: the small drawings by which gpuedge finds
out which formats work. `environment` sets the variable GPUFAULT_TEXELS to it."""


def environment(built: Path, api: str, fault: Fault, carrier: str | None = None) -> dict[str, str]:
    """Return the variables that put a fault in the way of Mesa's software rasteriser.

    Parameters
    ----------
    built : Path
        The folder of the built kit.
    api : str
        One of `LEVELS`; the driver has exactly that version.
    fault : Fault
    carrier : str, optional
        `VENDOR` or `INTERPOSER`; by default the one that can show the fault, the vendor library
        where both can.
    """
    made = {
        "__EGL_VENDOR_LIBRARY_FILENAMES": str(good_manifest()),
        "GPUEDGE_EGL": "",
        "GPUEDGE_BACKENDS": api,
        "MESA_GLES_VERSION_OVERRIDE": f"{api[4]}.{api[5]}",
        "GPUFAULT": str(fault),
        "GPUFAULT_TEXELS": str(TEXELS[api] if fault.name in DATA else 0),
    }
    if (carrier or carrier_of(fault)) == VENDOR:
        made["__EGL_VENDOR_LIBRARY_FILENAMES"] = str(_manifest(built, fault))
        made["GPUFAULT_VENDOR"] = _library(good_manifest())
    else:
        # The loader below is to find the good driver, and a probe nothing but the pair.
        made["GPUFAULT_MANIFEST"] = made["__EGL_VENDOR_LIBRARY_FILENAMES"]
        made["__EGL_VENDOR_LIBRARY_FILENAMES"] = NONE
        made["GPUEDGE_EGL"] = str(_pair(built, fault))
    return made


def carrier_of(fault: Fault) -> str:
    """Return the carrier of a fault if none is asked for."""
    if fault.name in VENDOR_FAULTS:
        return VENDOR
    is_lie = fault.name.startswith(LIES)
    return VENDOR if fault.point in VENDOR_POINTS and not is_lie else INTERPOSER


def good_manifest() -> Path:
    """Return the vendor manifest of the good driver underneath; it may not exist."""
    found = [p for folder in VENDOR_FOLDERS for p in sorted(Path(folder).glob("*mesa*.json"))]
    return found[0] if found else Path(VENDOR_FOLDERS[0]) / "50_mesa.json"


def _library(manifest: Path) -> str:
    return str(json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"])


def _write(path: Path, text: str) -> Path:
    """Write a file that others may write at the same time, and alike."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    return path


def _built(built: Path, name: str) -> Path:
    return built / f"libgpufault_{name}.so"


def _manifest(built: Path, fault: Fault) -> Path:
    """Return the manifest that names the faulty vendor library."""
    kind = fault.name if fault.point == "load" else ""
    library = _built(built, VENDOR)
    if kind == "missing-library":
        library = _built(built, "nothing")
    elif kind == "missing-symbol":
        library = _built(built, INTERPOSER)  # which has no __egl_Main
    elif kind == "wrong-format":
        library = _write(built / "text.so", "this is no library\n")
    text = json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(library)}})
    name = f"egl_{library.stem}.json"
    if kind == "bad-manifest":
        name, text = "egl_bad.json", text[:-9]
    return _write(built / name, text)


def _pair(built: Path, fault: Fault) -> Path:
    """Return the libEGL.so of a folder that has a libGLESv2.so, too."""
    library = {
        "missing-library": _built(built, "nothing"),
        "missing-symbol": _built(built, VENDOR),  # which has no eglGetProcAddress
    }.get(fault.name, _built(built, INTERPOSER))
    folder = built / f"pair_{library.stem}"
    folder.mkdir(exist_ok=True)
    for name in ("libEGL.so", "libGLESv2.so"):
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(library)
    return folder / "libEGL.so"


# --- what a probe says ------------------------------------------------------------------------

_FIRST, _LISTED, _NUMBERS = ("instance",), ("enumerate",), ("allocate", "compile", "submit", "read")

FAULTS: dict[str, Kind] = {
    "refused": Kind("its entry point says no", ("load",), LEVELS),
    "init-failed": Kind("eglInitialize fails", _FIRST, LEVELS, ":1+"),
    "version-odd": Kind("has the EGL version 2147483647.-1", _FIRST, LEVELS, ":1+"),
    "configs-none": Kind("has no configuration", _LISTED, LEVELS, ":1+"),
    "configs-huge": Kind("has 2,147,483,647 configurations", _LISTED, LEVELS, ":1+"),
    "configs-negative": Kind("has -1 configurations", _LISTED, LEVELS, ":1+"),
    "configs-bad": Kind("gives an invalid configuration", _LISTED, LEVELS, ":1+"),
    "strings-escape": Kind("has terminal escapes for EGL's strings", _LISTED, LEVELS, ":1+"),
    "strings-huge": Kind("has strings of 10 MiB for EGL's", _LISTED, LEVELS, ":1+"),
    "strings-null": Kind("has NULL for EGL's strings", _LISTED, LEVELS, ":1+"),
    "name-null": Kind("has NULL for a name", _LISTED, LEVELS, ":1+"),
    "name-huge": Kind("has a name of 10 MiB", _LISTED, LEVELS, ":1+"),
    "name-changing": Kind("has another name each time", _LISTED, LEVELS, ":1+"),
    "limits-negative": Kind("has limits of -1", _LISTED, LEVELS, ":1+"),
    "limits-lying": Kind("claims 16 times of what it has", _LISTED, LEVELS, ":1+"),
    "extensions-endless": Kind("has 2,147,483,647 extensions", _LISTED, LEVELS[:2], ":1+"),
    "extensions-negative": Kind("has -1 extensions", _LISTED, LEVELS[:2], ":1+"),
    "extensions-null": Kind("has NULL for each extension", _LISTED, LEVELS, ":1+"),
    "bad-handle": Kind("gives an invalid context", ("create",), LEVELS, ":1+"),
    "endless-errors": Kind("has an error each time it is asked", ("submit", "read"), LEVELS, ":1+"),
    "reset": Kind("tells of a reset, and of no error", ("submit",), LEVELS, ":1+"),
    "code4660": Kind("returns the number 0x1234", ("create", *_NUMBERS), LEVELS, ":1+"),
    "wait-failed": Kind("cannot wait", ("read",), LEVELS, ":1+"),
    "wait-timeout": Kind("says at once that the time is over", ("read",), LEVELS, ":1+"),
    "map-failed": Kind("maps no memory", ("read",), ("gles31",), ":1+"),
    "link-failed": Kind("refuses to link", ("compile",), LEVELS, ":1+"),
    "compile-failed-huge-log": Kind("gives 10 MiB of reasons", ("compile",), LEVELS, ":1+"),
    "compile-failed-empty-log": Kind("gives no reason", ("compile",), LEVELS, ":1+"),
    "compile-failed-escape-log": Kind("gives reasons without an end", ("compile",), LEVELS, ":1+"),
    "compile-failed-negative-log": Kind("gives -1 bytes of reasons", ("compile",), LEVELS, ":1+"),
    "compile-failed-lying-log": Kind("announces 2 GiB of reasons", ("compile",), LEVELS, ":1+"),
}
"""Faults that only OpenGL ES has, or that are another thing there; see `kit.FAULTS`."""

OPENING = {
    "gles31": {"compile": 2, "submit": 0, "read": 0, "allocate": 0},
    "gles30": {"compile": 15, "submit": 4, "read": 4, "allocate": 10},
    "gles20": {"compile": 12, "submit": 3, "read": 3, "allocate": 11},
}
"""Calls that gpuedge makes at each point while it opens a device: it finds out what works there. In
service the next call is the first one of the work; a probe opens it three times by two routes."""

Verdict = tuple[str, str]
OK, LOST, MEMORY = ("ok", "ok"), ("broken", "device-lost"), ("broken", "out-of-memory")
OPEN, KERNEL, SHADERS = (
    ("broken", "open-failed"),
    ("broken", "kernel-failed"),
    ("broken", "no-shaders"),
)
NOTHING, CONTEXT, FORMAT = (
    ("absent", "no-device"),
    ("absent", "no-context"),
    ("absent", "no-format"),
)
LIBRARY, MANIFEST = ("broken", "missing-library"), ("broken", "bad-manifest")
CRASHED, EXITED, LATE = ("crashed", "crashed"), ("crashed", "exited"), ("timeout", "deadline")
WRONG, UNTOUCHED = ("wrong", "wrong-numbers"), ("wrong", "untouched-output")
UNSTABLE = ("wrong", "unstable-numbers")

BEFORE_END = POINTS[:-1]
_DRAWN = {"gles31": KERNEL, "gles30": FORMAT, "gles20": FORMAT}
"""A driver that fails in the small drawings of an opening has no format that works."""

Row = tuple[Sequence[str], Sequence[str], Verdict]


def _needing_no_api(api: str) -> list[Row]:
    """Return faults by their points; those that are alike take turns between levels."""
    turn = LEVELS.index(api)
    some = POINTS[turn::3]
    return [
        (("segv",), POINTS, CRASHED),
        (("abort", "bus"), some, CRASHED),
        (("ill", "fpe", "stackoverflow"), BEFORE_END[2 - turn :: 4], CRASHED),
        (("exit0",), BEFORE_END, EXITED),
        (("exit3",), POINTS[2 - turn :: 3], EXITED),
        (("quit0", "close-fds"), BEFORE_END[turn::4], EXITED),
        (("hang",), BEFORE_END[turn::2], LATE),
        (("hang",), ("finish",), LATE),
        (("spin", "slow", "leak-lock"), (BEFORE_END[2 + turn],), LATE),
        (("leak-loader-lock",), ("create", "compile"), LATE),
        (("flood", "daemon", "setenv", "signal-mask", "chdir", "denormals"), (some[turn],), OK),
    ]


_EGL: Sequence[Row] = (
    (("missing-library", "missing-symbol", "wrong-format"), ("load",), LIBRARY),
    (("bad-manifest",), ("load",), MANIFEST),
    (("refused",), ("load",), NOTHING),
    (("init-failed",), ("instance",), NOTHING),
    (("version-odd",), ("instance",), OK),
    (("devices-none", "devices-bad", "strings-null"), ("enumerate",), NOTHING),
    (("configs-none", "configs-bad"), ("enumerate",), CONTEXT),
    (("devices-many", "configs-huge", "configs-negative"), ("enumerate",), OK),
    (("strings-escape", "strings-huge"), ("enumerate",), OK),
    (("lost",), ("create",), LOST),
    (("oom-host",), ("create",), MEMORY),
    (("code4660",), ("create",), CONTEXT),
    (("bad-handle",), ("create",), OPEN),
)
_GL: Sequence[Row] = (
    (("lost",), _NUMBERS, LOST),
    (("oom-device",), _NUMBERS, MEMORY),
    (("reset",), ("submit",), LOST),
    (("wait-failed",), ("read",), KERNEL),
    (("wait-timeout",), ("read",), LATE),
    (("code4660", "compile-failed", "link-failed"), ("compile",), SHADERS),
    (("compile-failed-huge-log", "compile-failed-empty-log"), ("compile",), SHADERS),
    (("compile-failed-escape-log", "compile-failed-negative-log"), ("compile",), SHADERS),
    (("compile-failed-lying-log",), ("compile",), SHADERS),
    (("wrong",), ("compile", "read"), WRONG),
    (("zero-output", "torn-output", "nan", "stale"), ("read",), WRONG),
    (("unstable",), ("read",), UNSTABLE),
    (("untouched-output", "stale"), ("submit",), UNTOUCHED),
    (("name-null", "name-empty", "name-huge", "name-escape", "name-json"), ("enumerate",), OK),
    (("name-changing",), ("enumerate",), OPEN),
    (("limits-zero", "limits-negative"), ("enumerate",), OPEN),
    (("extensions-huge", "extensions-null"), ("enumerate",), OK),
)


def _own(api: str) -> list[Row]:
    """Return what differs from level to level."""
    rows: list[Row] = [
        (("code4660",), ("allocate", "submit", "read"), _DRAWN[api]),
        (("endless-errors",), ("submit", "read"), _DRAWN[api]),
    ]
    if api == "gles31":
        rows += [(("map-failed",), ("read",), KERNEL), (("limits-huge",), ("enumerate",), OPEN)]
        rows += [(("limits-lying",), ("enumerate",), OK)]
    else:
        rows += [(("zero-output",), ("submit",), WRONG)]
    if api != "gles31":
        rows += [(("limits-huge", "limits-lying"), ("enumerate",), OK)]
    if api != "gles20":
        rows += [(("extensions-endless", "extensions-negative"), ("enumerate",), OK)]
    return rows


LATER: dict[str, Sequence[tuple[str, Verdict]]] = {
    "gles31": (
        ("lost@submit:5", LOST),
        ("oom-device@read:9", MEMORY),
        ("code-999@submit:12", KERNEL),
        ("compile-failed@compile:4+", KERNEL),
        ("segv@read:11", CRASHED),
        ("exit0@submit:9", EXITED),
        ("nan@read:9+", WRONG),
        ("unstable@read:9+", UNSTABLE),
    ),
    "gles30": (
        ("lost@submit:20", LOST),
        ("lost@submit:10", OK),  # while it is opened: there is another route to the device
        ("oom-device@submit:25", MEMORY),
        ("compile-failed@compile:40+", KERNEL),
        ("segv@submit:30", CRASHED),
        ("exit3@read:30", EXITED),
        ("stale@submit:9+", UNTOUCHED),
    ),
    "gles20": (
        ("lost@submit:20", LOST),
        ("code4660@submit:22", KERNEL),
        ("compile-failed-huge-log@compile:40+", KERNEL),
        ("abort@read:20", CRASHED),
        ("quit0@submit:30", EXITED),
        ("wrong@read:12+", WRONG),
    ),
}
"""Faults that wait for a later call, when a device was found good and opened."""


def _when(name: str) -> str:
    """Return the calls at which a fault is due: a number is given until it is believed."""
    own = FAULTS.get(name) or KNOWN[name]
    return own.when or (
        ":1+" if name in ("lost", "oom-host", "oom-device", "compile-failed") else ""
    )


def _faults(api: str) -> Iterator[tuple[Fault, Verdict]]:
    for names, points, verdict in (*_needing_no_api(api), *_EGL, *_GL, *_own(api)):
        for name in names:
            for point in points:
                yield Fault(name, point, _when(name)), verdict
    for text, verdict in LATER[api]:
        yield Fault.parse(text), verdict


def points(api: str, name: str) -> tuple[str, ...]:
    """Return the points at which a level shows a fault that OpenGL ES or EGL takes part in."""
    own = FAULTS.get("code4660" if re.fullmatch(r"code-?\d+", name) else name)
    if own is not None:
        return own.points if api in own.apis else ()
    return tuple({fault.point for fault, _ in _faults(api) if fault.name == name})


def cells() -> list[Cell]:
    """Return every fault at its points of each level, with the verdict of a probe."""
    return [
        Cell(fault, api, status, (code,))
        for api in LEVELS
        for fault, (status, code) in dict(_faults(api)).items()
    ]
