"""Drivers that may exist, and their devices, as a backend names them."""

from __future__ import annotations

from gpuedge.core.identity import Identity
from gpuedge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Candidate(Record):
    """One driver that may exist here, known without loading it.

    `key` tells candidates of a backend apart (a manifest path, a vendor library). `fingerprint`
    changes whenever the driver's files change. `env` must be set while the driver is loaded.
    """

    backend: str
    key: str
    fingerprint: str
    env: Mapping[str, str] = {}


class DeviceInfo(Record):
    """One device of one candidate; `index` is its position among that candidate's devices.

    `disabled` are the features of its driver that a backend must do without, and `limits` bounds
    that it must keep to: what ``disable_features`` and ``limits`` of entries in the capability
    database are. Those that `Caps` knows are seen to above the seam; a backend honours what changes
    how it works itself, and passes over the others.
    """

    candidate: Candidate
    index: int
    identity: Identity
    is_software: bool
    disabled: frozenset[str] = frozenset()
    limits: Mapping[str, int] = {}
