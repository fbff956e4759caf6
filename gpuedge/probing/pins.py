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
    from collections.abc import Callable, Sequence

    from gpuedge.core.driver import Candidate
    from gpuedge.probing.report import ProbeRow
    from gpuedge.safety.blocklist import Block

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
            asked_by=_source(),
            known=f"backends: {', '.join(backends.names())}; `cpu` and `auto` cannot be pinned",
            hint=f'pins look like this: "{config.SETTINGS["pin"].example}"',
        )


def _source() -> str:
    """Return where the setting ``pin`` comes from, for people."""
    source = config.get("pin").source
    return f"pin in {os.environ['GPUEDGE_CONFIG']}" if source == "config file" else source


def said_by(device: str) -> str:
    """Return the pin that rules a device or backend, and where it stands; empty if none does.

    >>> said_by("vulkan:0")  # doctest: +SKIP
    'vulkan=never (GPUEDGE_PIN)'
    """
    rules = pins()
    names = (name for name in (device, device.partition(":")[0]) if name in rules)
    return next((f"{name}={rules[name]} ({_source()})" for name in names), "")


def unpin(device: str) -> str:
    """Return what to do where a pin rules out a device or backend that is wanted after all."""
    words = said_by(device)
    return f"unset the pin {words}" if words else "the pin is gone by now: try again"


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
    rules, block_of = pins(), _blocks(now)
    if not rules and block_of is None:
        return rows
    new = [_applied(row, rules, block_of) if row.is_usable else row for row in rows]
    return rows if new == list(rows) else new


def _blocks(now: float | None) -> Callable[[ProbeRow], Block | None] | None:
    """Return what tells why a device is blocked; None where the blocklist remembers nothing.

    It is not imported where its folder is empty.
    """
    folder = paths.cache_folder()
    try:
        if not os.listdir(os.path.join(folder, FOLDER)):
            return None
    except (OSError, ValueError) as error:
        paths.pass_on(error)
        return None
    from gpuedge.safety.blocklist import Blocklist, blocked, key_of, surroundings

    crashes = Blocklist(folder).entries(now)
    where = surroundings() if crashes else ""

    def block_of(row: ProbeRow) -> Block | None:
        return blocked(crashes.get(key_of(row.info().candidate, row.index or 0, where), ()), now)

    return block_of if crashes else None


def _applied(
    row: ProbeRow, rules: dict[str, str], block_of: Callable[[ProbeRow], Block | None] | None
) -> ProbeRow:
    rule = rules.get(row.device, rules.get(row.backend))
    if rule == "never":
        return row.replace(status="blocked", code="pinned", reason=Reason("pinned").sentence)
    block = None if rule == "always" or block_of is None else block_of(row)
    if block is None:
        return row
    how = f"to try now: gpuedge cache clear --crashes, or GPUEDGE_PIN={row.device}=always"
    reason = f"{block.reason.sentence}; {how}"
    return row.replace(status="blocked", code="crash-blocklist", reason=reason)
