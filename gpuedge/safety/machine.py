"""What a verdict on a driver rests on besides the driver: gpuedge's own files, and the hardware."""

from __future__ import annotations

import os

from gpuedge.core.record import Record
from gpuedge.core.system import is_android
from gpuedge.core.text import plain
from gpuedge.safety import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DRIVER_VARIABLES = (
    "AMD_", "AMDVLK_", "ANGLE_", "ANV_", "CUDA_VISIBLE_DEVICES", "D3D", "DISABLE_LAYER_", "DISPLAY",
    "DRI_", "DYLD_", "DZN_", "EGL_", "ENABLE_", "ETNA_", "FD_", "GALLIUM_", "GBM_", "GPUEDGE_EGL",
    "INTEL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBEGL_", "LIBGL_", "LIMA_", "LP_", "MALI_",
    "MESA_", "METAL_", "MTL_", "MVK_", "NIR_", "NOUVEAU_", "NVIDIA_", "NVK_", "PAN_", "PVR_",
    "RADV_", "RUSTICL_", "SOFTPIPE_", "ST_", "TU_", "V3D", "VC4_", "VK_", "VULKAN_",
    "WAYLAND_DISPLAY", "WGPU", "ZINK_", "__EGL_", "__GL", "__NV", "__VK",
)  # fmt: skip
"""Prefixes of the variables that choose or change a driver, its layers or its compiler."""

BUILDS = ("ro.build.fingerprint", "ro.vendor.build.fingerprint")
"""Properties that change with Android and with the partition its drivers lie on."""

MAX_PROPERTY = 92
"""Bytes of a property with its final zero (PROP_VALUE_MAX of Android's sys/system_properties.h)."""

GPU_NODES = ("nvidia", "mali", "kgsl", "kfd", "dxg", "pvr", "galcore")


def driver_environment(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that can change a verdict, sorted."""
    return sorted((k, v) for k, v in environ.items() if k.startswith(DRIVER_VARIABLES))


def hardware() -> list[str]:
    """Return what the kernel shows of the graphics hardware; empty where it shows nothing."""
    marks = [os.uname().release] if hasattr(os, "uname") else []
    if is_android():  # which has no files to tell one state of its drivers from another
        marks += map(android_property, BUILDS)
    for folder in ("/dev/dri", "/dev"):
        marks += [
            f"{folder}/{n}" for n in _names(folder) if folder != "/dev" or n.startswith(GPU_NODES)
        ]
    for card in _names("/sys/class/drm"):
        if card.startswith("card") and card[4:].isdigit():
            for part in ("vendor", "device"):
                marks.append(_read(f"/sys/class/drm/{card}/device/{part}"))
    return marks


def android_property(name: str) -> str:
    """Return a property that Android's C library knows; empty where it has none of that name."""
    import ctypes  # not for a cached probe elsewhere

    get = getattr(ctypes.CDLL(None), "__system_property_get", None)
    text = ctypes.create_string_buffer(MAX_PROPERTY)
    if get is not None:
        get(name.encode(), text)
    return text.value.decode("utf-8", "replace")


FILES = {
    "model": "/proc/device-tree/model",
    "soc": "/proc/device-tree/compatible",
    "maker": "/sys/class/dmi/id/sys_vendor",
    "product": "/sys/class/dmi/id/product_name",
    "jetson": "/etc/nv_tegra_release",
    "release": "/etc/os-release",
}
"""Files in which Linux tells what a machine is: boards by the device tree, PCs by DMI."""

PROPERTIES = {
    "maker": "ro.product.manufacturer",
    "brand": "ro.product.brand",
    "model": "ro.product.model",
    "device": "ro.product.device",
    "soc": "ro.soc.model",
    "platform": "ro.board.platform",
    "release": "ro.build.version.release",
    "android_sdk": "ro.build.version.sdk",
    "security_patch": "ro.build.version.security_patch",
    "egl": "ro.hardware.egl",
    "vulkan": "ro.hardware.vulkan",
}
"""Properties in which Android tells the same, by the keys that records about devices have."""


def description() -> dict[str, str]:
    """Return what this machine and its system are called, without what cannot be read.

    Nothing that tells one machine from another of its kind: no serial number, no name of a host.
    """
    if is_android():
        told = {key: android_property(name) for key, name in PROPERTIES.items()}
    else:
        told = {key: _read(path, 1024) for key, path in FILES.items()}
        lines = dict(line.partition("=")[::2] for line in told["release"].splitlines())
        told["release"] = lines.get("PRETTY_NAME", "").strip("\"'")
        told["soc"] = ", ".join(told["soc"].strip("\0").split("\0"))
    return {key: shown for key, text in told.items() if (shown := plain(text.strip("\0 \n"), 200))}


SERIALS = ("/proc/device-tree/serial-number", "/sys/class/dmi/id/product_serial")
"""Files in which Linux tells which machine of its kind this is; the second is for root only."""


def serial() -> str | None:
    """Return the serial number of this machine; None where the system does not tell it."""
    if is_android():
        told = [android_property("ro.serialno"), android_property("ro.boot.serialno")]
    else:
        told = [_read(path) for path in SERIALS]
    known = (plain(text.strip("\0 \n"), 100) for text in told)
    return next((text for text in known if text and text != "unknown"), None)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str, most: int = 64) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return ""


def address_space() -> str:
    """Return the limit of this process's address space as Linux says it; drivers crash at it."""
    lines = _read("/proc/self/limits", 4096).splitlines()
    return next((line for line in lines if line.startswith("Max address space")), "")


def memory_bytes() -> int | None:
    """Return the memory that this process may have in all: the machine's, or its container's.

    None where the system does not say.
    """
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        limits = []  # not on Windows
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(path)
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits, default=None)


class Processor(Record):
    """The processor: its name, and what the system says that it can do; None where it does not."""

    model: str
    flags: tuple[str, ...] | None

    def offers(self, *parts: str) -> list[str]:
        """Return the flags whose names have one of these parts."""
        return [flag for flag in self.flags or () if any(part in flag for part in parts)]


CPUINFO = "/proc/cpuinfo"


def processor() -> Processor:
    """Return what the system says of the processor this runs on."""
    import platform  # not for a cached probe

    facts: dict[str, str] = {}
    for line in _read(CPUINFO, 16384).partition("\n\n")[0].splitlines():  # of the first core
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    flags = facts.get("flags", facts.get("Features"))
    model = next(filter(None, map(facts.get, ("model name", "Model", "CPU part"))), "")
    named = model or os.environ.get("PROCESSOR_IDENTIFIER", "") or platform.machine()
    return Processor(named, None if flags is None else tuple(flags.split()))


def package_versions(names: Iterable[str]) -> dict[str, str | None]:
    """Return the version of each package, None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # not for a cached probe

    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


ABOVE = frozenset({"cli", "conformance", "decide", "ops", "runtime"})
"""Rooms that no probe imports: what they say changes no verdict, and every file costs time."""


def library_state() -> str:
    """Return the state of gpuedge's own files: version, and path, size and time of each file.

    Sizes and times stand in for contents: reading a hundred files would cost more than the rest
    of a cached probe. An edited kernel or planner makes every verdict stale, as it should.
    """
    from gpuedge import __version__

    marks = [__version__]
    walk(os.path.dirname(os.path.dirname(__file__)), "", marks, ABOVE)
    walk(paths.data_folder("shaders"), "", marks)
    return "\n".join(marks)


def walk(root: str, inner: str, marks: list[str], skipped: frozenset[str] = frozenset()) -> None:
    """Append path, size and time of each file below a folder to `marks`."""
    try:
        with os.scandir(os.path.join(root, inner)) as scanned:
            entries = sorted(scanned, key=lambda e: e.name)
    except OSError:
        marks.append(f"{inner} unreadable")
        return
    start = inner and f"{inner}/"
    for entry in entries:
        name = start + entry.name
        if entry.is_dir(follow_symlinks=False):
            if name not in skipped and not entry.name.startswith(("_", ".")):
                walk(root, name, marks, skipped)
        elif name not in skipped:
            try:
                stat = entry.stat()
            except OSError:  # a link to nowhere, such as an editor's lock
                marks.append(f"{name} absent")
            else:
                marks.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
