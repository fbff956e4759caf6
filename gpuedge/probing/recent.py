"""What earlier probes found on the drivers of this machine, even where a new probe would ask again.

For telling people about their devices: a verdict under another database, other ignored entries or
another version of a driver is not a verdict, but the device that it is about is still there.
"""

from __future__ import annotations

import os

from gpuedge import backends
from gpuedge.core import config
from gpuedge.probing.report import ProbeRow, number
from gpuedge.probing.verdicts import Store
from gpuedge.safety import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def latest(environ: Mapping[str, str] | None = None) -> tuple[ProbeRow, ...]:
    """Return the newest rows of every driver that this environment offers, numbered as in a report.

    Nothing is started and no driver is loaded. Statuses, reasons and restrictions are those of the
    time; identities are what may be relied on.

    Parameters
    ----------
    environ : mapping of str to str, optional
        By default the variables of this process.
    """
    environ = os.environ if environ is None else environ
    store = Store(paths.cache_folder())
    names = config.get("backends").value or backends.PROBED
    candidates = [c for name in names for c in backends.load(name).candidates(environ)]
    return number(row for candidate in candidates for row in store.latest(candidate))
