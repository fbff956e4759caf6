"""Device strings: what they may be, and which probed device one means here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuedge import backends
from gpuedge.capdb import Restrictions, classify
from gpuedge.capdb.restrict import apply
from gpuedge.core import config
from gpuedge.core.caps import Caps
from gpuedge.core.errors import FORK_HINT, NoUsableDeviceError, UnknownDeviceError
from gpuedge.core.identity import Identity
from gpuedge.core.text import nearest, shown
from gpuedge.core.times import ADVISED_S
from gpuedge.probing import pins

if TYPE_CHECKING:
    from gpuedge.probing.report import ProbeReport, ProbeRow

AUTO = "auto"
CPU = "cpu"
_PATTERN = re.compile(r"([a-z][a-z0-9_]*)(?::(?:0|[1-9][0-9]{0,3}))?")
HELD_BACK = ("crash-blocklist", "pinned", "no-child", "forked")
"""Codes of devices that nothing is known to be wrong with: what is told first."""

REMEDY = "; to try now: "
"""What begins the remedy in the reason of a device that the crash blocklist holds back."""


def parse(device: str) -> str:
    """Return the normal form of a device string.

    Raises
    ------
    UnknownDeviceError (GE-102)
        It is not a device string, or names a backend that does not exist.
    """
    if not isinstance(device, str):
        raise UnknownDeviceError(
            f"A device is named by a string, not by {type(device).__name__}.",
            known=f"such as {_known()}",
        )
    text = device.strip().lower()
    match = _PATTERN.fullmatch(text) if device.isascii() else None  # a Kelvin sign's small is k
    name = match.group(1) if match else ""
    if text in (AUTO, CPU):
        return text
    # Those of plug-ins are looked up in all installed packages, which takes 15 ms.
    if not name or (name not in backends.PROBED and name not in backends.names()):
        raise UnknownDeviceError(
            f"{shown(device)} names no device.", known=_known(), hint=_meant(text)
        )
    return text


def _meant(text: str) -> str:
    """Return what to write instead of a text that names no device."""
    name = text.partition(":")[0].removesuffix(backends.PROVIDER)
    if name == CPU:
        return f"'{CPU}', which has no number" if ":" in text else f"write '{CPU}'"
    spelt = nearest(text, [AUTO, *backends.names()]) or (
        "gpuedge probe lists what is here; a plug-in's name counts once its package is installed "
        "(docs/plugins.md)"
    )
    called = backends.instead(name)
    return f"{called}; 'auto' takes a GPU only where it is faster" if called else spelt


def _known() -> str:
    return ", ".join([AUTO, CPU, *(f"{name}[:N]" for name in backends.names())])


def wanted(device: str | None) -> str:
    """Return the device string after settings, in normal form."""
    value = config.get("device", call=device)
    try:
        return parse(value.value)
    except UnknownDeviceError as error:
        if error.asked_by is None:
            error.asked_by = value.source
        raise


def check_in_use(device: str, backends_: Sequence[str] = ()) -> None:
    """Refuse a device whose backend the setting ``backends`` leaves out.

    Parameters
    ----------
    device : str
    backends_ : sequence of str, optional
        What the setting was; by default what it is.

    Raises
    ------
    NoUsableDeviceError (GE-103)
    """
    setting = config.get("backends")
    in_use = backends_ or setting.value or backends.PROBED
    if device.partition(":")[0] in in_use or tuple(in_use) == backends.PROBED:
        return
    raise NoUsableDeviceError(
        f"The device '{device}' cannot be used here.",
        asked_by=f"device={device!r}",
        known=f"the setting 'backends' leaves these in use: {', '.join(in_use)}",
        hint="name one of them, or add its backend to GPUEDGE_BACKENDS or config(backends=...)",
    )


def find(device: str, report: ProbeReport) -> ProbeRow:
    """Return the usable row a device string means.

    Raises
    ------
    NoUsableDeviceError (GE-103)
        There is none; the message gives the reason of every candidate.
    """
    name, _, index = device.partition(":")
    rows = [r for r in report.tried if r.backend == name]
    if index:
        for row in rows:
            if row.device == device and row.is_usable:
                return row
        # Where a whole backend is ruled out, its devices were not even counted.
        meant = [r for r in rows if r.device == device or (r.index is None and r.code == "pinned")]
        there = ", ".join(f"{r.device} ({r.name})" for r in report.devices)
        if not meant:
            raise NoUsableDeviceError(
                f"There is no device '{device}' here.",
                asked_by=f"device={device!r}",
                known=f"usable here: {there}" if there else "no usable GPU was found",
                hint=_way_out(rows) or "gpuedge probe shows every driver",
            )
    else:
        for row in report.devices:
            if row.backend == name:
                return row
        meant = rows
    raise NoUsableDeviceError(
        f"The device '{device}' cannot be used here.",
        asked_by=f"device={device!r}",
        known=_reasons(meant) or f"no driver of {name} was found",
        hint=_way_out(meant)
        or backends.instead(name)
        or "gpuedge doctor shows what is missing; models run anywhere on 'auto' or 'cpu'",
    )


def _reasons(rows: Sequence[ProbeRow]) -> str:
    """Return why none of these rows can be used; what was never in the running only if all were."""
    telling = [row for row in rows if row.code != "no-device"] or rows
    told = sorted(telling, key=lambda row: row.code not in HELD_BACK)
    return "; ".join(dict.fromkeys(map(_reason, told)))


def _reason(row: ProbeRow) -> str:
    """Return one row's name and reason, without the remedy: that is the hint's part."""
    name = row.name or row.device
    if row.code == "pinned":
        name = row.device if row.index is None else name  # not each driver of a backend
        return f"{name}: ruled out by {pins.said_by(row.device) or 'a pin'}"
    reason = row.reason.partition(REMEDY)[0] if row.code == "crash-blocklist" else row.reason
    return f"{name}: {reason}"


def _way_out(rows: Sequence[ProbeRow]) -> str | None:
    """Return what the user can do where the reasons of refused rows tell it."""
    refused = {row.code: row for row in reversed(rows) if not row.is_usable}
    if "forked" in refused:
        return FORK_HINT
    if "crash-blocklist" in refused:
        device = refused["crash-blocklist"].device
        return f"gpuedge cache clear --crashes, or GPUEDGE_PIN={device}=always"
    if "pinned" in refused:
        return pins.unpin(refused["pinned"].device)
    if "quirk" in refused:
        return _past_entries(refused["quirk"])
    if "deadline" in refused:
        return f"gpuedge probe --refresh --deadline {ADVISED_S} gives slow drivers more time"
    return None


def _past_entries(row: ProbeRow) -> str:
    """Return what helps where entries block a device: more time, if their tests had too little."""
    if row.is_unfinished:
        more = f"gpuedge probe --refresh --deadline {ADVISED_S}"
        return f"{more} gives the tests that entries ask for more time, once for all"
    return (
        f"gpuedge db why shows what entries say; GPUEDGE_IGNORE={blockers(row)} "
        "uses the device at your own risk"
    )


def blockers(row: ProbeRow) -> str:
    """Return the ids of the entries that block a device, as the setting ``ignore`` takes them."""
    named = row.restrictions.get("entries") or [
        entry["id"] for entry in row.evidence.get("entries") or () if "id" in entry
    ]
    return ",".join(map(str, named)) or "all"


def caps_of(row: ProbeRow) -> Caps:
    """Return the caps a row recorded, with the tuning class its identity has today.

    Raises
    ------
    DriverError (GE-405)
        With the reason ``quirk``: the row's restrictions leave nothing to run on.
    NoUsableDeviceError (GE-103)
        The device takes whole graphs.
    """
    if not row.caps:
        raise NoUsableDeviceError(
            f"The device {row.device} takes whole graphs: no kernels can be planned for it.",
            hint="gpuedge run --profile shows what runs there, and how fast",
        )
    identity = Identity.from_dict(dict(row.identity))
    caps = replace(Caps.from_dict(row.caps), device_class=classify(identity))
    return apply(caps, Restrictions.from_dict(row.restrictions))
