"""``gpuedge doctor``: every check PASS, WARN or FAIL, and a remedy for what is not PASS.

FAIL means that gpuedge cannot do its work; a missing or bad GPU driver is WARN, because the CPU
takes over.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

import gpuedge
from gpuedge.cli import facts
from gpuedge.cli.output import Output
from gpuedge.core import config, paths
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing.report import ProbeReport, ProbeRow

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"
SCHEMA = "gpuedge.doctor/1"

REMEDIES = {
    "no-loader": "install the API's loader, on Debian: apt-get install libvulkan1",
    "no-candidates": "install a driver, on Debian: apt-get install mesa-vulkan-drivers",
    "bad-manifest": "reinstall the package that owns the manifest, or remove the manifest",
    "missing-library": "reinstall the driver's package; `ldd` on its library shows what it lacks",
    "no-device": "nothing to do if this machine has no such GPU; else check /dev/dri and groups",
    "deadline": "try a longer deadline: gpuedge probe --refresh --deadline 20",
    "crashed": "update the driver; gpuedge avoids it until then",
    "quirk": "update the driver, or set GPUEDGE_IGNORE to the entry's id at your own risk",
    "disabled": "unset GPUEDGE_BACKENDS",
}
"""What to do about a probe's reason code."""

DEFAULT_REMEDY = "update the driver, then: gpuedge probe --refresh"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is empty where nothing needs to be done."""

    name: str
    result: str
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--refresh", action="store_true", help="test drivers again")
    parser.add_argument(
        "--deadline", type=float, metavar="S", default=4.0, help="seconds for all drivers"
    )


def run(options: argparse.Namespace, output: Output) -> int:
    """Run all checks and print them; 1 if one of them is FAIL."""
    with output.working("testing drivers"):
        checks = [*environment_checks(), *_probe_checks(options)]
    counts = {word: sum(c.result == word for c in checks) for word in (PASS, WARN, FAIL)}
    output.document(
        {
            "schema": SCHEMA,
            "version": gpuedge.__version__,
            "counts": counts,
            "checks": [asdict(c) for c in checks],
        }
    )
    rows = [(c.result, c.name, f"{c.detail}\n-> {c.fix}" if c.fix else c.detail) for c in checks]
    output.table("gpuedge doctor", ("result", "check", "finding"), rows)
    output.text(", ".join(f"{n} {word}" for word, n in counts.items()))
    return 1 if counts[FAIL] else 0


def environment_checks() -> Iterator[Check]:
    """Check packages, settings, folders and tools. Touches no driver."""
    here = facts.python()
    yield Check("python", PASS, f"{here['version']} on {here['os']} {here['machine']}")
    yield from _packages()
    yield from _settings()
    yield from _folders()
    compiler = facts.glsl_compiler()
    if compiler:
        yield Check("GLSL compiler", PASS, compiler)
    else:
        fix = "pip install gpuedge[shaderc], or on Debian: apt-get install glslang-tools"
        yield Check("GLSL compiler", WARN, "none; only needed for kernels in GLSL", fix)
    for node in facts.closed_nodes():
        fix = "sudo usermod -aG render,video $USER, then log in again"
        yield Check("device file", WARN, f"{node} may not be opened by this user", fix)


def _packages() -> Iterator[Check]:
    versions = facts.package_versions()
    for name in facts.REQUIRED:
        found = versions[name]
        if found:
            yield Check(name, PASS, found)
        elif name in facts.GPU_LIBRARIES:
            yield Check(
                name, WARN, "not installed: its devices are out of reach", f"pip install {name}"
            )
        else:
            yield Check(name, FAIL, "not installed", f"pip install {name}")


def _settings() -> Iterator[Check]:
    try:
        unknown = config.check_environment()
    except GpuEdgeError as error:
        yield Check("settings", FAIL, error.what, error.hint or "unset it")
        return
    known = [s.variable for s in config.SETTINGS.values()]
    for name in unknown:
        near = get_close_matches(name, known, n=1)
        fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        yield Check("settings", WARN, f"{name} is set, but gpuedge does not know it", fix)
    if not unknown:
        own = [s.variable for s in config.SETTINGS.values() if os.environ.get(s.variable)]
        yield Check("settings", PASS, f"set: {', '.join(own)}" if own else "all at their defaults")


def _folders() -> Iterator[Check]:
    for name in facts.DATA:
        try:
            yield Check(name, PASS, str(paths.data_dir(name)))
        except GpuEdgeError as error:
            yield Check(name, FAIL, error.what, error.hint or "reinstall gpuedge")
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


def _probe_checks(options: argparse.Namespace) -> Iterator[Check]:
    from gpuedge.probing.api import probe

    try:
        report = probe(refresh=options.refresh, deadline_s=options.deadline)
    except GpuEdgeError as error:
        yield Check("probe", FAIL, error.what, error.hint or "")
        return
    yield from report_checks(report)


def report_checks(report: ProbeReport) -> Iterator[Check]:
    """Turn a probe report into checks: one per candidate, and one on the whole."""
    for row in report.tried:
        yield _row_check(row)
    best = report.best
    if best is None:
        yield Check("devices", WARN, "no usable GPU here: everything runs on the CPU")
    elif best.is_software:
        detail = "only software rasterisers here: `auto` means the CPU"
        yield Check("devices", PASS, detail)
    else:
        yield Check("devices", PASS, f"the best is {best.device} ({best.name})")


def _row_check(row: ProbeRow) -> Check:
    detail = f"{row.name}: {row.reason}" if row.name else row.reason
    if row.is_usable or row.code == "no-device":
        return Check(row.device, PASS, detail)
    return Check(row.device, WARN, detail, REMEDIES.get(row.code, DEFAULT_REMEDY))
