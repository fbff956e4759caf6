"""What `gpuedge doctor` says of settings: each one that is set, resolved as a session would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from gpuedge import backends, capdb
from gpuedge.capdb.place import folder
from gpuedge.core import config
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.text import counted
from gpuedge.probing.pins import check_pins
from gpuedge.probing.report import ProbeReport
from gpuedge.runtime.strings import AUTO, CPU, find, parse

PASS, INFO, WARN, FAIL = "PASS", "INFO", "WARN", "FAIL"

CLOSE = 0.75
"""How alike two names must be (difflib's ratio) for one to be suggested for the other."""

CONFIG_FILE = "GPUEDGE_CONFIG"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is empty where nothing needs to be done."""

    name: str
    result: str
    detail: str
    fix: str = ""


def settings_checks() -> Iterator[Check]:
    """Check the config file, every setting and unknown variables. Touches no driver."""
    found: list[Check] = []
    is_default = True
    for name in config.SETTINGS:
        variable = config.SETTINGS[name].variable
        try:
            value = config.get(name)
            is_default &= value.source == "default"
            shown = _resolved(name, value.value)
        except GpuEdgeError as error:
            is_default = False
            at_fault = CONFIG_FILE if error.asked_by == CONFIG_FILE else variable
            found.append(_failed(at_fault, error))
            continue
        if value.source != "default" and shown:
            origin = "" if value.source == variable else f" (from the {value.source})"
            found.append(Check(variable, PASS, f"{shown}{origin}"))
    yield from _config_file(found)
    yield from (c for c in found if c.name != CONFIG_FILE)
    if is_default:
        yield Check("settings", PASS, "all at their defaults")
    yield from _database()
    yield from _unknown()


def _config_file(found: list[Check]) -> Iterator[Check]:
    """Return the line on the config file: a bad one spoils every setting, but is said once."""
    bad = [c for c in found if c.name == CONFIG_FILE]
    if bad:
        yield bad[0]
    elif os.environ.get(CONFIG_FILE):
        yield Check(CONFIG_FILE, PASS, os.environ[CONFIG_FILE])


def _failed(label: str, error: GpuEdgeError) -> Check:
    known = f"; {error.known}" if error.known else ""
    fix = f"correct {label}, or unset it"
    if error.hint:
        fix = error.hint
    return Check(label, FAIL, error.what.rstrip(".") + known, fix)


def _resolved(name: str, value: Any) -> str:
    """Return what a setting's value comes to, as text; raises what a session would raise.

    Empty for a GPU's name: whether it can be used is known after the drivers were tested.
    """
    if name == "device":
        asked = parse(value)
        return asked if asked in (AUTO, CPU) else ""
    checks: dict[str, Callable[[Any], object]] = {
        "backends": _backends,
        "db": lambda _: capdb.load(),
        "pin": lambda _: check_pins(),
    }
    if name in checks:
        checks[name](value)
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _backends(value: tuple[str, ...]) -> None:
    for name in value:
        backends.load(name)


def _database() -> Iterator[Check]:
    variable = config.SETTINGS["db"].variable
    try:
        is_set = bool(config.get("db").value)
    except GpuEdgeError:
        return  # reported with the settings
    try:
        place = folder()
        rows = capdb.load(place)
    except GpuEdgeError as error:
        if not is_set:
            yield _failed("capability_db", error)
        return
    by = f", from {variable}" if is_set else ""
    yield Check("capability_db", PASS, f"{place} ({counted(len(rows), 'row')}{by})")


def _unknown() -> Iterator[Check]:
    known = [s.variable for s in config.SETTINGS.values()]
    for name in sorted(os.environ):
        if not name.startswith(config.PREFIX) or name in known or name in config.OTHERS:
            continue
        own = name.removeprefix(config.PREFIX).lower()  # the prefix alone makes all names alike
        near = get_close_matches(own, config.SETTINGS, n=1, cutoff=CLOSE)
        fix = (
            f"did you mean {config.SETTINGS[near[0]].variable}?"
            if near
            else f"known: {', '.join(known)}"
        )
        yield Check("settings", WARN, f"{name} is set, but gpuedge does not know it", fix)


def device_checks(report: ProbeReport) -> Iterator[Check]:
    """Check that the GPU a setting names can be used, now that drivers were tested."""
    try:
        value = config.get("device")
        asked = parse(value.value)
    except GpuEdgeError:
        return  # reported with the settings
    if asked in (AUTO, CPU):
        return
    name = config.SETTINGS["device"].variable
    try:
        row = find(asked, report)
    except GpuEdgeError as error:
        yield _failed(name, error)
    else:
        yield Check(name, PASS, f"{asked} means {row.device} ({row.name})")
