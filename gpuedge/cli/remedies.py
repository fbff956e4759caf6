"""What `gpuedge doctor` says of drivers and devices: a finding for each row of a probe report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing import pins, show
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.strings import AUTO, CPU, find, parse

PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"

NOT_INSTALLED = ("no-loader", "no-candidates")
"""Codes of an API that is not installed: no worry where a device is reached by another."""

REMEDIES = {
    "no-loader": "install the API's loader",
    "no-candidates": "install a driver",
    "no-context": "another level of the same driver may work; a newer driver may offer this one",
    "no-format": "another level of the same driver may work",
    "no-shaders": "another level of the same driver may work; a newer driver may offer this one",
    "no-child": "the reason names what no process can be started for; see docs/probing.md",
    "no-highp": "none: this GPU computes with 16 bits in fragment shaders",
    "bad-manifest": "reinstall the package that owns the manifest, or remove the manifest",
    "missing-library": "reinstall the driver's package; `ldd` on its library shows what it lacks",
    "deadline": "try a longer deadline: gpuedge probe --refresh --deadline 20",
    "crashed": "update the driver; gpuedge avoids it until then",
    "disabled": "unset GPUEDGE_BACKENDS",
}
"""What to do about a probe's reason code."""

DEFAULT_REMEDY = "update the driver, then: gpuedge probe --refresh"
MORE_TIME = "give its probe more time: gpuedge probe --refresh --deadline 60"
"""What helps where tests that entries ask for were cut off."""


@dataclass(frozen=True)
class Api:
    """What Debian's packages and which variables have to do with the drivers of an API.

    `only` are variables that name drivers and hide all others, `more` those that name others too.
    """

    packages: dict[str, str]
    only: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


_ICDS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")

APIS = {
    "vulkan": Api(
        {
            "no-loader": "apt-get install libvulkan1",
            "no-candidates": "apt-get install mesa-vulkan-drivers",
        },
        _ICDS,
        ("VK_ADD_DRIVER_FILES",),
    ),
    "gles": Api(
        {
            "no-loader": "apt-get install libegl1 libgles2",
            "no-candidates": "apt-get install libegl1 libgles2 libegl-mesa0 libgl1-mesa-dri",
        },
        ("__EGL_VENDOR_LIBRARY_FILENAMES",),
        ("GPUEDGE_EGL",),
    ),
    "wgpu": Api({"no-loader": "pip install wgpu"}, (), (*_ICDS, "VK_ADD_DRIVER_FILES")),
}
"""By what the names of its backends begin with."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is empty where nothing needs to be done."""

    name: str
    result: str
    detail: str
    fix: str = ""


def failed(label: str, error: GpuEdgeError) -> Check:
    """Return the finding that an error is, about the variable or folder `label`."""
    known = f"; {error.known}" if error.known else ""
    fix = error.hint or f"correct {label}, or unset it"
    return Check(label, FAIL, error.what.rstrip(".") + known, fix)


def report_checks(report: ProbeReport) -> Iterator[Check]:
    """Turn a probe report into checks: one per device and per driver, and two on the whole."""
    for device, row in show.lines(report):
        yield _row_check(device, row, has_other=bool(report.devices))
    best = report.best
    if best is None:
        yield Check("devices", WARN, "no usable GPU here: everything runs on the CPU")
    elif best.is_software:
        yield Check("devices", PASS, "only software rasterisers here: `auto` means the CPU")
    else:
        yield Check("devices", PASS, f"the best is {best.device} ({best.name})")
    yield from _named_device(report)


def _named_device(report: ProbeReport) -> Iterator[Check]:
    """Check that the GPU a setting names can be used, now that drivers were tested."""
    try:
        asked = parse(config.get("device").value)
    except GpuEdgeError:
        return  # reported with the settings
    if asked in (AUTO, CPU):
        return
    variable = config.SETTINGS["device"].variable
    try:
        row = find(asked, report)
    except GpuEdgeError as error:
        yield failed(variable, error)
    else:
        yield Check(variable, PASS, f"{asked} means {row.device} ({row.name})")


def _row_check(device: str, row: ProbeRow, *, has_other: bool) -> Check:
    name = device if row.index is not None else f"{device} driver"
    detail = f"{row.name}: {row.brief}" if row.name else row.brief
    if row.is_usable:
        return _usable(name, detail, row)
    if row.code == "pinned":
        return Check(name, INFO, detail, pins.unpin(row.device))
    if row.status == "absent" and row.code not in NOT_INSTALLED:
        return Check(name, INFO, detail)
    # `show.lines` puts together what several APIs say alike: each has its own remedy.
    backends = [row.backend] if row.index is not None else device.split(", ")
    remedies = "; ".join(dict.fromkeys(remedy(row.replace(backend=b)) for b in backends))
    is_covered = has_other and row.code in NOT_INSTALLED
    return Check(name, INFO if is_covered else WARN, detail, remedies)


def _usable(name: str, detail: str, row: ProbeRow) -> Check:
    """Return the check of a device that works, and what entries make it do without."""
    left_out = show.forbidden(row)
    if not left_out:
        return Check(name, PASS, detail)
    ids = ", ".join(row.restrictions["entries"])
    fix = MORE_TIME if row.evidence.get("is_unfinished") is True else ""
    return Check(name, INFO, f"{detail}; {ids}: without {left_out}", fix)


def remedy(row: ProbeRow) -> str:
    """Return what to do about a driver or device that cannot be used."""
    api = next((a for start, a in APIS.items() if row.backend.startswith(start)), Api({}))
    if row.code in ("bad-manifest", "missing-library"):
        for variable in (*api.only, *api.more):
            if row.key in os.environ.get(variable, "").split(os.pathsep):
                return f"{variable} names this file: correct it, or unset {variable}"
    if row.code == "no-candidates":
        for variable in api.only:
            value = os.environ.get(variable, "")
            if value:
                return f"{variable}={value} hides every driver: correct it, or unset {variable}"
    if row.code == "crash-blocklist":
        return f"gpuedge cache clear --crashes, or GPUEDGE_PIN={row.device}=always"
    if row.evidence.get("is_untested") is True:
        return MORE_TIME
    if row.code == "quirk":
        ids = ",".join(e["id"] for e in row.evidence.get("entries", ()) if "id" in e) or "all"
        return f"update the driver, or at your own risk: GPUEDGE_IGNORE={ids} (gpuedge db why)"
    known = REMEDIES.get(row.code, DEFAULT_REMEDY)
    package = api.packages.get(row.code)
    return f"{known}, on Debian: {package}" if package else known
