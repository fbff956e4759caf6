"""What the setting ``pin`` and the crash blocklist make of the rows of a report.

On the path of a cached `probe()`: the blocklist itself is imported only where it matters.
"""

from __future__ import annotations

import os

from gpuedge.core import config
from gpuedge.core.reasons import Reason
from gpuedge.probing.report import driver_row
from gpuedge.safety import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuedge.core.driver import Candidate
    from gpuedge.probing.report import ProbeRow
    from gpuedge.safety.blocklist import Crash

FOLDER = "crashes"
"""As in `gpuedge.safety.blocklist`, which is not imported where that folder is empty."""


def pins() -> dict[str, str]:
    """Return the setting ``pin``: device or backend name to ``never`` or ``always``.

    Raises
    ------
    ConfigError (GE-101)
        The setting cannot be parsed.
    """
    words: tuple[str, ...] = config.get("pin").value
    return {device: rule for device, _, rule in (word.partition("=") for word in words)}


def check_pins() -> None:
    """Refuse a pin on a backend that does not exist: it would silently do nothing.

    Raises
    ------
    UnknownDeviceError (GE-102)
        No backend has that name. Nothing was loaded.
    """
    from gpuedge import backends

    for name in pins():
        backend = name.partition(":")[0]
        if backend in backends.BUILTIN or backend in backends.names():
            continue
        from gpuedge.core.errors import UnknownDeviceError

        raise UnknownDeviceError(
            f"The setting 'pin' names no backend: {name!r}.",
            asked_by=source(),
            known=f"backends: {', '.join(backends.names())}; `cpu` and `auto` cannot be pinned",
            hint=f'pins look like this: "{config.SETTINGS["pin"].example}"',
        )


def source() -> str:
    """Return where the setting ``pin`` comes from, for people."""
    found = config.get("pin").source
    return f"pin in {os.environ['GPUEDGE_CONFIG']}" if found == "config file" else found


def said_by(device: str) -> str:
    """Return the pin that rules a device or backend, and where it stands; empty if none does.

    >>> said_by("vulkan:0")  # doctest: +SKIP
    'GPUEDGE_PIN=vulkan=never'
    """
    rules, name = pins(), _ruled(device)
    if not name:
        return ""
    word, where = f"{name}={rules[name]}", source()
    if where == config.SETTINGS["pin"].variable:
        return f"{where}={word}"
    return f'gpuedge.config(pin="{word}")' if where.startswith("gpuedge.") else f"{word} ({where})"


def _ruled(device: str) -> str:
    """Return what the pin names that rules a device: it, its backend, or nothing."""
    rules = pins()
    return next((n for n in (device, device.partition(":")[0]) if n in rules), "")


def unpin(device: str) -> str:
    """Return what to do where a pin rules out a device or backend that is wanted after all."""
    words = said_by(device)
    if not words:
        return "the pin is gone by now: try again"
    return f"{words} says so; unset it to use {'it' if ':' in _ruled(device) else 'them'}"


def is_barred(backend: str) -> bool:
    """Return whether the setting ``pin`` rules out a whole backend, so that no driver is tried."""
    rules = pins()
    wanted = any(n.startswith(f"{backend}:") and rule == "always" for n, rule in rules.items())
    return rules.get(backend) == "never" and not wanted


def pinned_row(candidate: Candidate) -> ProbeRow:
    """Return the row of a driver that is not tried, because its backend is ruled out."""
    return driver_row(candidate, "blocked", "pinned", Reason("pinned").sentence)


def apply(rows: Sequence[ProbeRow], now: float | None = None) -> Sequence[ProbeRow]:
    """Return the rows with what pins and the blocklist say; `rows` itself where that is nothing.

    Only devices that would be used are shown as ``blocked``: what a probe found wrong says more.
    """
    rules = pins()
    folder = paths.cache_folder()
    crashes: dict[str, list[Crash]] = {}
    if _is_remembered(folder):
        from gpuedge.safety.blocklist import Blocklist

        crashes = Blocklist(folder).entries(now)
    if not rules and not crashes:
        return rows
    new = [_applied(row, rules, crashes, now) for row in rows]
    return rows if new == list(rows) else new


def _applied(
    row: ProbeRow, rules: dict[str, str], crashes: dict[str, list[Crash]], now: float | None
) -> ProbeRow:
    rule = rules.get(row.device, rules.get(row.backend))
    if rule == "never" and row.is_usable:
        return row.replace(status="blocked", code="pinned", reason=Reason("pinned").sentence)
    if rule == "always" or not crashes or not row.is_usable:
        return row
    from gpuedge.safety.blocklist import blocked, key_of

    block = blocked(crashes.get(key_of(row.info().candidate, row.index or 0), ()), now)
    if block is None:
        return row
    how = f"to try now: gpuedge cache clear --crashes, or GPUEDGE_PIN={row.device}=always"
    reason = f"{block.reason.sentence}; {how}"
    return row.replace(status="blocked", code="crash-blocklist", reason=reason)


def _is_remembered(folder: str) -> bool:
    """Say whether there are crashes, or markers that may become some."""
    try:
        return bool(os.listdir(os.path.join(folder, FOLDER)))
    except (OSError, ValueError):
        return False
