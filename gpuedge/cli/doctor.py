"""``gpuedge doctor``: every check PASS, INFO, WARN or FAIL, with a remedy for WARN and FAIL.

FAIL means that gpuedge cannot do its work or what a setting asks for; a missing or bad GPU driver
is WARN, because the CPU takes over; a driver without a device is INFO.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuedge import backends
from gpuedge.capdb.database import load
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.identity.versions import show as show_version
from gpuedge.capdb.judgement import unknown_ids
from gpuedge.cli import matrix
from gpuedge.cli.arguments import add_probing
from gpuedge.cli.machine import Machine
from gpuedge.cli.output import Output
from gpuedge.cli.probe import testing
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.identity import Identity
from gpuedge.core.system import is_android
from gpuedge.core.text import Table, plain
from gpuedge.core.times import ADVISED_S
from gpuedge.probing import api, pins, show
from gpuedge.probing.report import ProbeReport, ProbeRow, driver_name
from gpuedge.runtime.strings import AUTO, CPU, find, parse
from gpuedge.safety import paths
from gpuedge.safety.packages import command, unread

SCHEMA = "gpuedge.doctor/1"
PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"

GPU_PACKAGES = ("vulkan",)
"""Packages without which only the devices of one API are out of reach."""

MODELS = ("onnx", "onnxruntime")
"""Packages of the extra that most applications need."""

CONFIG_FILE = "GPUEDGE_CONFIG"

SEND = "To send with a report about this machine (no serial number, no user name)"

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
    "deadline": f"try a longer deadline: gpuedge probe --refresh --deadline {ADVISED_S}",
    "crashed": "update the driver; gpuedge avoids it until then",
    "out-of-memory": "free memory, or raise its limit; it is tried again after ten minutes",
    "no-token": "mend what the reason names; then: gpuedge probe --refresh",
    "disabled": "unset GPUEDGE_BACKENDS",
}
"""What to do about a probe's reason code."""

DEFAULT_REMEDY = "update the driver, then: gpuedge probe --refresh"
MORE_TIME = f"give its probe more time: gpuedge probe --refresh --deadline {ADVISED_S}"
"""What helps where tests that entries ask for were cut off."""

_VULKAN = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
NAMING = {
    "vulkan": _VULKAN,
    "wgpu": _VULKAN,
    "gles": ("__EGL_VENDOR_LIBRARY_FILENAMES", "GPUEDGE_EGL"),
}
"""Variables that name the files of an API's drivers; most of them hide all others."""

PACKAGES = {
    "vulkan": "on Debian: apt-get install libvulkan1 mesa-vulkan-drivers",
    "gles": "on Debian: apt-get install libegl1 libgles2 libegl-mesa0 libgl1-mesa-dri",
    "wgpu": command("wgpu"),
}
ON_ANDROID = {"wgpu": "none: the package wgpu has nothing for Android"}
"""What installs an API's loader and a driver; Android has its own."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is empty where nothing needs to be done."""

    name: str
    result: str
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add_probing(parser)


def run(options: argparse.Namespace, output: Output) -> int:
    """Run all checks and print them; 1 if one of them is FAIL."""
    body, _ = examine(options, output)
    output.show(body, parts(body))
    return 1 if body["counts"][FAIL] else 0


def examine(options: argparse.Namespace, output: Output) -> tuple[dict[str, Any], ProbeReport]:
    """Run all checks; return the document of what was found, and what the probe found."""
    with testing(output) as progress:
        here = Machine()
        checks = [*environment_checks(here), *processor_checks(here.processor)]
        try:
            report = api.probe(
                refresh=options.refresh, deadline_s=options.deadline, progress=progress,
                backends=api.everything(),
            )  # fmt: skip
            checks += report_checks(report)
        except GpuEdgeError:
            report = ProbeReport((), here.version)
            detail = "no driver was tested, because a setting cannot be used"
            checks.append(Check("probe", FAIL, detail, "mend what FAILs above"))
    counts = {word: sum(c.result == word for c in checks) for word in (PASS, INFO, WARN, FAIL)}
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "version": here.version,
        "counts": counts,
        "checks": [asdict(c) for c in checks],
        "matrix": matrix.to_dict(report),
        "processor": here.processor,
        "machine": machine_told(here, report),
    }
    return body, report


def parts(body: Mapping[str, Any]) -> list[str | Table]:
    """Return the document as tables and text."""
    rows = [
        (c["result"], c["name"], f"{c['detail']}\n-> {c['fix']}" if c["fix"] else c["detail"])
        for c in body["checks"]
    ]
    findings = Table("gpuedge doctor", ("result", "check", "finding"), rows)
    summary = ", ".join(f"{n} {word}" for word, n in body["counts"].items())
    sent = Table(SEND, ("what", "it says"), [*body["machine"].items()])
    return [findings, *matrix.tables(body["matrix"]), summary, sent]


def machine_told(here: Machine, report: ProbeReport) -> dict[str, str]:
    """Return what a report about this machine needs: what it is, and each driver in a line."""
    told = dict(here.description)
    for device, row in show.lines(report):
        key, said = driver_name(row.key), row.identity
        facts: list[Any] = []
        if row.index is not None:
            version = said.get("GL_VERSION") or said.get("apiVersion")
            facts = [row.name, version, said.get("driverName"), said.get("driverInfo"), key]
        words = dict.fromkeys([*filter(None, facts), row.status, row.code])
        name = device if row.index is not None else " ".join([device, "driver", key]).rstrip()
        told[name] = plain(", ".join(words), 300)
    return told


def environment_checks(here: Machine) -> Iterator[Check]:
    """Check packages, settings, folders and tools. Touches no driver."""
    yield Check("gpuedge", PASS, here.version)
    yield Check("python", PASS, "{version} on {os} {machine}".format(**here.python))
    for name, is_required in here.requirements.items():
        if installed := here.packages[name]:
            yield Check(f"package {name}", PASS, installed)
        elif is_required or name in MODELS:
            result = FAIL if is_required else INFO
            result = WARN if name in GPU_PACKAGES else result
            yield Check(f"package {name}", result, "not installed", command(name))
    yield from _settings()
    for name, hint in config.unknown_variables().items():
        yield Check("settings", WARN, f"{name} is set, but gpuedge does not know it", hint)
    with suppress(GpuEdgeError):  # of the setting or the database: told of above
        for name, hint in unknown_ids().items():
            yield Check("settings", WARN, f"GPUEDGE_IGNORE names {name!r}, which is no entry", hint)
    for why in unread():
        fix = "reinstall or remove that package; none of its plug-ins is found"
        yield Check("plug-ins", WARN, f"entry points cannot be read: {why}", fix)
    yield from _folders(here)
    none = "none; only needed for kernels in GLSL"
    fix = "on Debian: apt-get install glslang-tools; or see docs/install.md for pyshaderc"
    compiler = here.glsl_compiler
    yield Check("GLSL compiler", *((PASS, compiler) if compiler else (WARN, none, fix)))
    fix = "sudo usermod -aG render,video $USER, then log in again"
    for node in sorted(Path("/dev/dri").glob("renderD*")):
        if not os.access(node, os.R_OK | os.W_OK):
            yield Check("device file", WARN, f"{node} may not be opened by this user", fix)


def processor_checks(facts: dict[str, Any]) -> Iterator[Check]:
    """Check 8-bit products on the CPU, which depend on what the processor can do."""
    flags, wrong = facts["flags"], facts["wrong"]
    said = "flags not known" if flags is None else " ".join(flags) or "no flags of 8-bit products"
    yield Check("processor", PASS, f"{facts['model']}: {said}")
    if wrong:
        detail = f"{facts['engine']} gets these wrong here, so gpuedge computes them otherwise: "
        yield Check("8-bit products", INFO, detail + "; ".join(wrong))
    else:
        known = f", {facts['asked']} known answers right" if facts["asked"] else ""
        yield Check("8-bit products", PASS, facts["engine"] + known)


def _settings() -> Iterator[Check]:
    """Check the config file and every setting that is set, resolved as a session would do it."""
    file = os.environ.get(CONFIG_FILE)
    checks = {CONFIG_FILE: Check(CONFIG_FILE, PASS, file)} if file else {}
    for name, setting in config.SETTINGS.items():
        check = _checked(setting.variable, partial(_resolved, name))
        if check.detail:
            checks[check.name] = check
    yield from checks.values()


def _resolved(name: str) -> str:
    """Return what a setting that is set comes to, as text; raises what a session would raise.

    Empty for a default, and for a GPU's name: whether it can be used is known after the drivers
    were tested.
    """
    setting, variable = config.get(name), config.SETTINGS[name].variable
    value = setting.value
    if name == "device":
        value = parse(value)
        value = value if value in (AUTO, CPU) else ""
    elif name == "backends":
        for backend in value:
            backends.target(backend)
    elif name == "db":
        load()
    elif name == "pin":
        pins.check_pins()
    shown = " ".join(value) if isinstance(value, tuple) else str(value)
    if setting.source == "default" or not shown:
        return ""
    return shown if setting.source == variable else f"{shown} (from the {setting.source})"


def _folders(here: Machine) -> Iterator[Check]:
    try:
        is_named, folder = bool(config.get("db").value), paths.cache_dir()
    except GpuEdgeError:
        return  # reported with the settings
    if "error" not in here.database:
        yield Check("capability_db", PASS, "{folder} ({line})".format(**here.database))
    elif not is_named:  # else reported with the settings
        fix = "reinstall gpuedge, or: gpuedge cache clear"
        yield Check("capability_db", FAIL, here.database["line"], fix)
    trial = folder / f".doctor.{os.getpid()}"
    if paths.write_atomic(trial, b"gpuedge"):
        trial.unlink(missing_ok=True)
        yield Check("cache", PASS, str(folder))
    else:
        fix = "set GPUEDGE_CACHE_DIR to a folder that can be written"
        yield Check("cache", WARN, f"{folder} cannot be written: every start is a first one", fix)


def _checked(label: str, resolve: Callable[[], str]) -> Check:
    """Return the finding about a variable or folder: what it comes to, or the error it raises."""
    try:
        return Check(label, PASS, resolve())
    except GpuEdgeError as error:
        # A config file that does not parse spoils every setting, but is said once.
        label = CONFIG_FILE if error.asked_by == CONFIG_FILE else label
        known = f"; {error.known}" if error.known else ""
        fix = error.hint or f"correct {label}, or unset it"
        fix = fix.replace("gpuedge doctor shows what is missing", "mend what is missing, see above")
        return Check(label, FAIL, error.what.rstrip(".") + known, fix)


def report_checks(report: ProbeReport) -> Iterator[Check]:
    """Turn a probe report into checks: one per device and per driver, and two on the whole."""
    for device, row in show.lines(report):
        yield _row_check(device, row, is_alone=not report.devices)
    best = report.best
    if best is None:
        yield Check("devices", WARN, "no usable GPU here: everything runs on the CPU")
    elif best.is_software:
        yield Check("devices", PASS, "only software rasterisers here: `auto` means the CPU")
    else:
        yield Check("devices", PASS, f"the best is {best.device} ({best.name})")
    variable = config.SETTINGS["device"].variable
    with suppress(GpuEdgeError):  # reported with the settings
        asked = parse(config.get("device").value)
        if asked not in (AUTO, CPU):
            yield _checked(variable, lambda: _meant(asked, report))


def _meant(asked: str, report: ProbeReport) -> str:
    row = find(asked, report)
    return f"{asked} means {row.device} ({row.name})"


def _row_check(device: str, row: ProbeRow, *, is_alone: bool) -> Check:
    name = device if row.index is not None else f"{device} driver"
    who = f"{row.name}, {driver}" if (driver := _driver(row)) else row.name
    detail = f"{who}: {row.brief}" if who else row.brief
    if row.is_usable:
        limited = show.forbidden(row.restrictions)
        if not limited:
            return Check(name, PASS, detail)
        ids = ", ".join(row.restrictions["entries"])
        fix = MORE_TIME if row.is_unfinished else ""
        return Check(name, INFO, f"{detail}; {limited} ({ids})", fix)
    if row.code == "pinned":
        return Check(name, INFO, detail, pins.unpin(row.device))
    if row.status == "absent" and row.code not in NOT_INSTALLED:
        return Check(name, INFO, detail)
    # `show.lines` puts together what several APIs say alike: each has its own remedy.
    backends = [row.backend] if row.index is not None else device.split(", ")
    remedies = "; ".join(dict.fromkeys(remedy(row.replace(backend=b)) for b in backends))
    is_worse = is_alone or row.code not in NOT_INSTALLED
    return Check(name, WARN if is_worse else INFO, detail, remedies)


def _driver(row: ProbeRow) -> str:
    """Return the version of a device's driver: as it says, else as its number is read."""
    told = row.identity.get("driverInfo")
    if row.identity and not told:
        versions = subject(Identity.from_dict(dict(row.identity)), host={}).versions
        best = max(versions.items(), key=lambda pair: len(pair[1]), default=None)
        told = show_version(*best) if best else ""
    return f"driver {told}" if told else ""


def remedy(row: ProbeRow) -> str:
    """Return what to do about a driver or device that cannot be used."""
    kind = "gles" if row.backend.startswith("gles") else row.backend
    for variable in NAMING.get(kind, ()):
        value = os.environ.get(variable, "")
        if row.code in ("bad-manifest", "missing-library") and row.key in value.split(os.pathsep):
            return f"{variable} names this file: correct it, or unset {variable}"
        if row.code == "no-candidates" and value:
            return f"{variable}={value} names no driver: correct it, or unset {variable}"
    if row.code == "crash-blocklist":
        return f"gpuedge cache clear --crashes, or GPUEDGE_PIN={row.device}=always"
    if row.code == "quirk":
        if row.is_unfinished:
            return MORE_TIME
        ids = ",".join(e["id"] for e in row.evidence.get("entries", ()) if "id" in e) or "all"
        return f"update the driver, or at your own risk: GPUEDGE_IGNORE={ids} (gpuedge db why)"
    packages = ON_ANDROID if is_android() else PACKAGES
    package = packages.get(kind) if row.code in NOT_INSTALLED else None
    code = "out-of-memory" if row.is_short_of_memory else row.code
    known = REMEDIES.get(code, DEFAULT_REMEDY)
    return f"{known}, {package}" if package else known
