"""``gpuedge doctor``: every check PASS, INFO, WARN or FAIL, with a remedy for WARN and FAIL.

FAIL means that gpuedge cannot do its work or what a setting asks for; a missing or bad GPU driver
is WARN, because the CPU takes over; a driver without a device is INFO.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import gpuedge
from gpuedge.cli import facts, matrix
from gpuedge.cli.output import Output, blaming
from gpuedge.cli.settings import FAIL, INFO, PASS, WARN, Check, device_checks, settings_checks
from gpuedge.core import paths
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing import pins, show
from gpuedge.probing.report import ProbeReport, ProbeRow

SCHEMA = "gpuedge.doctor/1"
T = TypeVar("T")

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

PACKAGES = {
    "vulkan": {
        "no-loader": "apt-get install libvulkan1",
        "no-candidates": "apt-get install mesa-vulkan-drivers",
    },
    "gles": {
        "no-loader": "apt-get install libegl1 libgles2",
        "no-candidates": "apt-get install libegl1 libgles2 libegl-mesa0 libgl1-mesa-dri",
    },
    "wgpu": {"no-loader": "pip install wgpu"},
}
"""What installs what is missing, on Debian, by the start of the backend's name and the code."""

HIDING = {
    "vulkan": ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"),
    "gles": ("__EGL_VENDOR_LIBRARY_FILENAMES",),
}
"""Variables that hide every driver they do not name, by the start of the backend's name."""

MORE_TIME = "give its probe more time: gpuedge probe --refresh --deadline 60"
"""What helps where tests that entries ask for were cut off."""

DEFAULT_REMEDY = "update the driver, then: gpuedge probe --refresh"

CHOOSING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
"""Variables that name driver manifests; the first two hide all others."""

NAMING = {
    "vulkan": CHOOSING,
    "wgpu": CHOOSING,
    "gles": ("__EGL_VENDOR_LIBRARY_FILENAMES", "GPUEDGE_EGL"),
}
"""Variables that name a driver's files, by the start of the backend's name."""

WITHOUT = {"moderngl": "not installed: the gles levels work without it (by raw entry points)"}
"""What it means that a GPU library is missing, where it does not mean that devices are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--refresh", action="store_true", help="test drivers again")
    parser.add_argument(
        "--deadline", type=float, metavar="S", default=4.0, help="seconds for all drivers"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Run all checks and print them; 1 if one of them is FAIL."""
    with output.working("testing drivers"):
        checks = [*environment_checks()]
        report, found = _probe_checks(options)
        checks += found
    counts = {word: sum(c.result == word for c in checks) for word in (PASS, INFO, WARN, FAIL)}
    output.document(
        {
            "schema": SCHEMA,
            "version": gpuedge.__version__,
            "counts": counts,
            "checks": [asdict(c) for c in checks],
            "matrix": matrix.to_dict(report),
        }
    )
    rows = [(c.result, c.name, f"{c.detail}\n-> {c.fix}" if c.fix else c.detail) for c in checks]
    output.table("gpuedge doctor", ("result", "check", "finding"), rows)
    _show_matrix(report, output)
    output.text(", ".join(f"{n} {word}" for word, n in counts.items()))
    return 1 if counts[FAIL] else 0


def _show_matrix(report: ProbeReport, output: Output) -> None:
    titles, body = matrix.cells(report)
    if body:
        title = "Drivers and levels (ok :0 under gles30 is gles30:0, ok :0* has restrictions)"
        output.table(title, titles, body)
    if report.devices:
        title = "What works, and what it holds (the largest tensor, counted as float32)"
        output.table(title, matrix.LIMIT_TITLES, matrix.limits(report.devices))


def environment_checks() -> Iterator[Check]:
    """Check packages, settings, folders and tools. Touches no driver."""
    here = facts.python()
    yield Check("python", PASS, f"{here['version']} on {here['os']} {here['machine']}")
    yield from _packages()
    yield from settings_checks()
    yield from _folders()
    compiler = facts.glsl_compiler()
    if compiler:
        yield Check("GLSL compiler", PASS, compiler)
    else:
        fix = "on Debian: apt-get install glslang-tools; or see docs/install.md for pyshaderc"
        yield Check("GLSL compiler", WARN, "none; only needed for kernels in GLSL", fix)
    for node in facts.closed_nodes():
        fix = "sudo usermod -aG render,video $USER, then log in again"
        yield Check("device file", WARN, f"{node} may not be opened by this user", fix)
    yield from _hidden_drivers()


def _hidden_drivers() -> Iterator[Check]:
    """Mention drivers that are installed where no loader looks, unless the user chose drivers."""
    named = {path for name in CHOOSING for path in _listed(name)}
    if any(os.environ.get(name) for name in CHOOSING[:2]):
        return
    for name, path in facts.HIDDEN_MANIFESTS.items():
        if path not in named and Path(path).is_file():
            detail = f"{name}, a software rasteriser, is installed where no loader looks"
            value = os.pathsep.join([*_listed(CHOOSING[2]), path])
            yield Check("more drivers", INFO, detail, f"to try it: export {CHOOSING[2]}={value}")


def _listed(variable: str) -> list[str]:
    return [p for p in os.environ.get(variable, "").split(os.pathsep) if p]


def _packages() -> Iterator[Check]:
    versions = facts.package_versions()
    for name in facts.REQUIRED:
        found = versions[name]
        label, fix = f"package {name}", f"pip install {name}"
        if found:
            yield Check(label, PASS, found)
        elif name in WITHOUT:
            yield Check(label, INFO, WITHOUT[name], fix)
        elif name in facts.GPU_LIBRARIES:
            yield Check(label, WARN, "not installed: its devices are out of reach", fix)
        else:
            yield Check(label, FAIL, "not installed", fix)


def _folders() -> Iterator[Check]:
    try:
        yield Check("shaders", PASS, str(paths.data_dir("shaders")))
    except GpuEdgeError as error:
        yield Check("shaders", FAIL, error.what, error.hint or "reinstall gpuedge")
    try:
        folder = paths.cache_dir()
    except GpuEdgeError:
        return  # reported with the settings
    if is_writable(folder):
        yield Check("cache", PASS, str(folder))
    else:
        fix = "set GPUEDGE_CACHE_DIR to a folder that can be written"
        yield Check("cache", WARN, f"{folder} cannot be written: every start is a first one", fix)


def is_writable(folder: Path) -> bool:
    """Return whether a cache file can be written there, by writing one and removing it."""
    trial = folder / f".doctor.{os.getpid()}"
    if not paths.write_atomic(trial, b"gpuedge"):
        return False
    trial.unlink(missing_ok=True)
    return True


def _probe_checks(options: argparse.Namespace) -> tuple[ProbeReport, list[Check]]:
    from gpuedge.probing.api import probe

    try:
        with blaming():
            report = probe(refresh=options.refresh, deadline_s=options.deadline)
    except GpuEdgeError as error:
        if error.asked_by == "--deadline":
            raise
        detail = "no driver was tested, because a setting cannot be used"
        nothing = ProbeReport((), gpuedge.__version__)
        return nothing, [Check("probe", FAIL, detail, "mend what FAILs above")]
    return report, list(report_checks(report))


def report_checks(report: ProbeReport) -> Iterator[Check]:
    """Turn a probe report into checks: one per device and per driver, and two on the whole."""
    for device, row in show.lines(report):
        yield _row_check(device, row, has_other=bool(report.devices))
    best = report.best
    if best is None:
        yield Check("devices", WARN, "no usable GPU here: everything runs on the CPU")
    elif best.is_software:
        detail = "only software rasterisers here: `auto` means the CPU"
        yield Check("devices", PASS, detail)
    else:
        yield Check("devices", PASS, f"the best is {best.device} ({best.name})")
    yield from device_checks(report)


NO_DRIVER = ("no-loader", "no-candidates")
"""Codes of an API that is not installed: no worry where a device is reached by another."""


def _row_check(device: str, row: ProbeRow, *, has_other: bool = False) -> Check:
    name = device if row.index is not None else f"{device} driver"
    detail = f"{row.name}: {row.brief}" if row.name else row.brief
    if row.is_usable:
        return _usable(name, detail, row)
    if row.code == "pinned":
        return Check(name, INFO, detail, pins.unpin(row.device))
    if row.status == "absent" and row.code not in NO_DRIVER:
        return Check(name, INFO, detail)
    if has_other and row.code in NO_DRIVER:
        return Check(name, INFO, detail, _remedies(device, row))
    return Check(name, WARN, detail, _remedies(device, row))


def _usable(name: str, detail: str, row: ProbeRow) -> Check:
    """Return the check of a device that works, and what entries make it do without."""
    left_out = show.forbidden(row)
    if not left_out:
        return Check(name, PASS, detail)
    ids = ", ".join(row.restrictions["entries"])
    unfinished = row.evidence.get("is_unfinished") is True
    fix = MORE_TIME if unfinished else ""
    return Check(name, INFO, f"{detail}; {ids}: without {left_out}", fix)


def _of_api(table: Mapping[str, T], row: ProbeRow) -> T | None:
    return next((entry for start, entry in table.items() if row.backend.startswith(start)), None)


def _remedies(device: str, row: ProbeRow) -> str:
    """Return the remedy of every API that says the same, as `show.lines` puts them together."""
    if row.index is not None:
        return _remedy(row)
    rows = [row.replace(backend=name) for name in device.split(", ")]
    return "; ".join(dict.fromkeys(_remedy(one) for one in rows))


def _remedy(row: ProbeRow) -> str:
    if row.code in ("bad-manifest", "missing-library"):
        for variable in _of_api(NAMING, row) or ():
            if row.key in _listed(variable):
                return f"{variable} names this file: correct it, or unset {variable}"
    if row.code == "no-candidates":
        for variable in _of_api(HIDING, row) or ():
            if _listed(variable):
                value = os.environ[variable]
                return f"{variable}={value} hides every driver: correct it, or unset {variable}"
    if row.code == "crash-memory":
        return f"gpuedge cache clear --crashes, or GPUEDGE_PIN={row.device}=always"
    if row.evidence.get("is_untested") is True:
        return MORE_TIME
    if row.code == "quirk":
        ids = ",".join(e["id"] for e in row.evidence.get("entries", ()) if "id" in e) or "all"
        return f"update the driver, or at your own risk: GPUEDGE_IGNORE={ids} (gpuedge db why)"
    remedy = REMEDIES.get(row.code, DEFAULT_REMEDY)
    package = (_of_api(PACKAGES, row) or {}).get(row.code)
    return f"{remedy}, on Debian: {package}" if package else remedy
