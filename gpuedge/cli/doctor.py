"""``gpuedge doctor``: every check PASS, INFO, WARN or FAIL, with a remedy for WARN and FAIL.

FAIL means that gpuedge cannot do its work or what a setting asks for; a missing or bad GPU driver
is WARN, because the CPU takes over; a driver without a device is INFO.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge import backends
from gpuedge.capdb.database import load
from gpuedge.cli import facts, matrix
from gpuedge.cli.info import database_in_use, database_line
from gpuedge.cli.output import Output, blaming
from gpuedge.cli.remedies import FAIL, INFO, PASS, WARN, Check, failed, report_checks
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.probing import api
from gpuedge.probing.pins import check_pins
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime.strings import AUTO, CPU, parse
from gpuedge.safety import paths

SCHEMA = "gpuedge.doctor/1"

GPU_PACKAGES = {
    "moderngl": (INFO, "not installed: only sharing results with an application needs it"),
    "vulkan": (WARN, "not installed: its devices are out of reach"),
    "wgpu": (WARN, "not installed: its devices are out of reach"),
}
"""Packages that a GPU needs but the CPU does not: what it means that one is missing."""

CLOSE = 0.75
"""How alike two names must be (difflib's ratio) for one to be suggested for the other."""

CONFIG_FILE = "GPUEDGE_CONFIG"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--refresh", action="store_true", help="test drivers again")
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        default=4.0,
        help="seconds for all drivers together (4)",
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
    matrix.show(report, output)
    output.text(", ".join(f"{n} {word}" for word, n in counts.items()))
    return 1 if counts[FAIL] else 0


def _probe_checks(options: argparse.Namespace) -> tuple[ProbeReport, list[Check]]:
    try:
        with blaming():
            report = api.probe(refresh=options.refresh, deadline_s=options.deadline)
    except GpuEdgeError as error:
        if error.asked_by == "--deadline":
            raise
        detail = "no driver was tested, because a setting cannot be used"
        nothing = ProbeReport((), gpuedge.__version__)
        return nothing, [Check("probe", FAIL, detail, "mend what FAILs above")]
    return report, list(report_checks(report))


def environment_checks() -> Iterator[Check]:
    """Check packages, settings, folders and tools. Touches no driver."""
    here = facts.python()
    yield Check("python", PASS, f"{here['version']} on {here['os']} {here['machine']}")
    yield from _packages()
    yield from _settings()
    yield from _unknown_variables()
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


def _packages() -> Iterator[Check]:
    versions = facts.package_versions()
    for name, is_required in facts.requirements().items():
        found = versions[name]
        label = f"package {name}"
        if found:
            yield Check(label, PASS, found)
        elif is_required or name in GPU_PACKAGES:
            result, detail = GPU_PACKAGES.get(name, (FAIL, "not installed"))
            yield Check(label, result, detail, f"pip install {name}")


def _settings() -> Iterator[Check]:
    """Check the config file and every setting that is set, resolved as a session would do it."""
    is_file_bad = False
    for name, setting in config.SETTINGS.items():
        try:
            value = config.get(name)
            shown = _resolved(name, value.value)
        except GpuEdgeError as error:
            if error.asked_by != CONFIG_FILE:
                yield failed(setting.variable, error)
            elif not is_file_bad:  # it spoils every setting, but is said once
                is_file_bad = True
                yield failed(CONFIG_FILE, error)
            continue
        if value.source != "default" and shown:
            origin = "" if value.source == setting.variable else f" (from the {value.source})"
            yield Check(setting.variable, PASS, f"{shown}{origin}")
    if os.environ.get(CONFIG_FILE) and not is_file_bad:
        yield Check(CONFIG_FILE, PASS, os.environ[CONFIG_FILE])


def _resolved(name: str, value: Any) -> str:
    """Return what a setting's value comes to, as text; raises what a session would raise.

    Empty for a GPU's name: whether it can be used is known after the drivers were tested.
    """
    if name == "device":
        asked = parse(value)
        return asked if asked in (AUTO, CPU) else ""
    checks: dict[str, Callable[[], object]] = {
        "backends": lambda: [backends.load(backend) for backend in value],
        "db": load,
        "pin": check_pins,
    }
    if name in checks:
        checks[name]()
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _unknown_variables() -> Iterator[Check]:
    known = [s.variable for s in config.SETTINGS.values()]
    for name in config.unknown_variables():
        own = name.removeprefix(config.PREFIX).lower()  # the prefix alone makes all names alike
        near = get_close_matches(own, config.SETTINGS, n=1, cutoff=CLOSE)
        meant = f"did you mean {config.SETTINGS[near[0]].variable}?" if near else ""
        fix = meant or f"known: {', '.join(known)}"
        yield Check("settings", WARN, f"{name} is set, but gpuedge does not know it", fix)


def _folders() -> Iterator[Check]:
    try:
        yield Check("shaders", PASS, paths.data_folder("shaders"))
    except GpuEdgeError as error:
        yield failed("shaders", error)
    try:
        yield from _database()
        folder = paths.cache_dir()
    except GpuEdgeError:
        return  # reported with the settings
    if is_writable(folder):
        yield Check("cache", PASS, str(folder))
    else:
        fix = "set GPUEDGE_CACHE_DIR to a folder that can be written"
        yield Check("cache", WARN, f"{folder} cannot be written: every start is a first one", fix)


def _database() -> Iterator[Check]:
    is_set = bool(config.get("db").value)
    found = database_in_use()
    if "error" not in found:
        yield Check("capability_db", PASS, f"{found['folder']} ({database_line(found)})")
    elif not is_set:
        fix = "reinstall gpuedge, or: gpuedge cache clear"
        yield Check("capability_db", FAIL, database_line(found), fix)


def is_writable(folder: Path) -> bool:
    """Return whether a cache file can be written there, by writing one and removing it."""
    trial = folder / f".doctor.{os.getpid()}"
    if not paths.write_atomic(trial, b"gpuedge"):
        return False
    trial.unlink(missing_ok=True)
    return True
