"""What a verdict on a driver rests on besides the driver: gpuedge's own files, and the hardware."""

from __future__ import annotations

import os

from gpuedge.core.record import Record
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

GPU_NODES = ("nvidia", "mali", "kgsl", "kfd", "dxg", "pvr", "galcore")


def driver_environment(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that can change a verdict, sorted."""
    return sorted((k, v) for k, v in environ.items() if k.startswith(DRIVER_VARIABLES))


def hardware() -> list[str]:
    """Return what the kernel shows of the graphics hardware; empty where it shows nothing."""
    marks = [os.uname().release] if hasattr(os, "uname") else []
    for folder in ("/dev/dri", "/dev"):
        marks += [
            f"{folder}/{n}" for n in _names(folder) if folder != "/dev" or n.startswith(GPU_NODES)
        ]
    for card in _names("/sys/class/drm"):
        if card.startswith("card") and card[4:].isdigit():
            for part in ("vendor", "device"):
                marks.append(_read(f"/sys/class/drm/{card}/device/{part}"))
    return marks


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
