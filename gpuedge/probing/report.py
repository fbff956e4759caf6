"""What `gpuedge.probe()` answers: one row per driver or device, and the report that holds them.

Plain data: nothing here starts a process, loads a driver or imports numpy.
"""

from __future__ import annotations

from gpuedge.backends import is_aside
from gpuedge.core import config
from gpuedge.core.errors import ConfigError, InputError
from gpuedge.core.identity import Identity
from gpuedge.core.reasons import STATUSES
from gpuedge.core.record import Record, UnfitError, checked, read
from gpuedge.core.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Annotated, Any, Literal

    from gpuedge.core.driver import Candidate, DeviceInfo
    from gpuedge.core.words import ProbeStatus
else:
    ProbeStatus = str  # as records are read

SCHEMA = "gpuedge.probe/1"
KINDS = ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU", "OTHER", "CPU")
"""Device types, best first. A type that is not listed (or not known) counts as ``OTHER``."""

MOST_NAME = 200
"""Characters that are kept of a driver's name."""

HOW_TO_REFRESH = "cached; gpuedge.probe(refresh=True) tries it again"


class RestrictionFields(Record):
    """The fields of `gpuedge.capdb.Restrictions.to_dict`."""

    IS_OPEN = True

    levels: tuple[str, ...] = ()
    is_backend_off: bool = False
    features: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    limits: Mapping[str, int] = {}
    is_demoted: bool = False
    entries: tuple[str, ...] = ()


def in_use() -> Sequence[str]:
    """Return what the setting ``backends`` names; nothing where the settings cannot be read."""
    try:
        named: Sequence[str] = config.get("backends").value
    except ConfigError:
        return ()
    return named


def _identity(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the identity of a device; empty where none was reached."""
    if fields:
        checked(Identity, fields)
    return fields


class ProbeRow(Record):
    """The verdict on one device, or on one driver where no device was reached.

    Attributes
    ----------
    device : str
        Device string such as ``vulkan:0``; the backend's name where no device was reached.
    backend : str
    status : str
        One of `gpuedge.core.reasons.STATUSES`.
    code : str
        A key of `gpuedge.core.reasons.SENTENCES`.
    reason : str
        One sentence with the specifics of this case.
    name : str
        The device's name as its driver reports it, else the file name of the driver.
    identity : dict
        `Identity.to_dict()`; empty where no device was reached.
    is_software : bool or None
        True for a software rasteriser; None where no device was reached.
    caps : dict
        `Caps.to_dict()` with the tuning class filled in; empty where the device did not open.
    key, fingerprint : str
        Which driver this is and which state its files were in (see `Candidate`).
    env : dict of str to str
        Environment variables that select this driver while it is loaded.
    index : int or None
        Position among this driver's devices; None where no device was reached.
    seconds : float or None
        Time from open to close of this device (of the whole process where none was reached).
    evidence : dict
        What the verdict rests on: checks with their largest error, the step reached, the signal,
        the last lines the driver printed.
    is_cached : bool
        True if the verdict was known before and nothing was started.
    model : str
        The device's name without what drivers and layers add to it, the same under every API
        (`gpuedge.capdb.model`); empty where no device was reached.
    physical : str
        Rows with the same text are routes to one physical device; empty where none was reached.
    route : int or None
        Rank of this route among those that work, from 1, the best; None where it does not work.
    restrictions : dict
        What entries of the capability database forbid on this device
        (`gpuedge.capdb.Restrictions.to_dict`); empty where none is in force.
    database : str
        Version and digest of the database that was asked; empty where no device was reached.
    """

    IS_OPEN = True

    device: str
    backend: str
    status: Annotated[ProbeStatus, STATUSES]
    code: str
    reason: str
    name: str = ""
    identity: Annotated[Mapping[str, Any], _identity] = {}
    is_software: bool | None = None
    caps: Mapping[str, Any] = {}
    key: str = ""
    fingerprint: str = ""
    env: Mapping[str, str] = {}
    index: int | None = None
    seconds: float | None = None
    evidence: Mapping[str, Any] = {}
    is_cached: bool = False
    model: str = ""
    physical: str = ""
    route: int | None = None
    restrictions: Annotated[Mapping[str, Any], RestrictionFields] = {}
    database: str = ""

    @property
    def is_demoted(self) -> bool:
        """True if an entry of the capability database puts it behind the others."""
        return self.restrictions.get("is_demoted") is True

    @property
    def is_usable(self) -> bool:
        """True if the device gave the right numbers."""
        return self.status == "ok"

    @property
    def is_starved(self) -> bool:
        """True if it tells only of this probe, which ran out of time before the driver did."""
        return self.status == "timeout" and self.is_unfinished

    @property
    def is_unfinished(self) -> bool:
        """True if time was too short for some of what a probe does."""
        return self.evidence.get("is_unfinished") is True

    @property
    def is_short_of_memory(self) -> bool:
        """True if there was no memory, or it was killed, as the system does where there is none."""
        return self.code == "out-of-memory" or self.evidence.get("signal") == "SIGKILL"

    @property
    def is_open(self) -> bool:
        """True if a newer verdict may be another one although the driver is the same."""
        return self.is_unfinished or self.status == "timeout"

    @property
    def brief(self) -> str:
        """The reason as tables show it: a driver without a device in four words."""
        if self.code != "no-device":
            return self.reason
        # An API's own name of an error says more than the sentence it came in.
        words = (word.strip(".,:;()") for word in self.reason.split())
        named = next((word for word in words if "_" in word and word.isupper()), "")
        return f"offers no device ({named})" if named else "offers no device"

    def info(self) -> DeviceInfo:
        """Return what a backend needs to open this device again.

        Raises
        ------
        InputError (GE-203)
            No device was reached, so there is nothing to open.
        """
        if self.index is None:
            raise InputError(f"{self.device} reached no device: {self.reason}.")
        from gpuedge.core.driver import Candidate, DeviceInfo

        return DeviceInfo(
            Candidate(self.backend, self.key, self.fingerprint, dict(self.env)),
            self.index,
            Identity.from_dict(dict(self.identity)),
            bool(self.is_software),
            frozenset(self.restrictions.get("features") or ()),
            dict(self.restrictions.get("limits") or {}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return self.as_dict()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ProbeRow:
        """Rebuild a row from `to_dict`; unknown keys are ignored. Raises InputError."""
        try:
            return read(cls, record)
        except UnfitError as error:
            raise InputError(
                f"A row of the probe report has no {error.field or 'device'} that can be used.",
                known=str(error),
            ) from None

    def __repr__(self) -> str:
        return f"<ProbeRow {self.device} {self.status} {self.name!r}>"


def driver_name(key: str) -> str:
    """Return the file name of a driver, as it can be shown."""
    return plain(key.replace("\\", "/").rstrip("/").rpartition("/")[2] or key, MOST_NAME)


class ProbeProgress(Record):
    """How far a probe is, as `gpuedge.probe(progress=...)` tells it.

    Attributes
    ----------
    stage : str
        ``started`` when a driver is begun with, ``verdict`` when it is known what came of it. What
        is in the cache is not started.
    backend : str
    name : str
        The driver's file name; the backend's name where no driver was found.
    rows : tuple of ProbeRow
        With a verdict, a row for each device of the driver; their device strings are numbered in
        the report only.
    done, total : int
        How many drivers have their verdict, and of how many.
    """

    stage: Literal["started", "verdict"]
    backend: str
    name: str
    rows: tuple[ProbeRow, ...]
    done: int
    total: int


def driver_row(
    candidate: Candidate, status: ProbeStatus, code: str, reason: str, **more: Any
) -> ProbeRow:
    """Return the row of a driver; `more` are fields that are known of a device of it."""
    key = candidate.key
    known = {
        "name": driver_name(key), "key": key, "fingerprint": candidate.fingerprint,
        "env": dict(candidate.env),
    }  # fmt: skip
    backend = candidate.backend
    return ProbeRow(backend, backend, status, code, reason, **{**known, **more})


def _kind(row: ProbeRow) -> int:
    kind = row.identity.get("device_type")
    return KINDS.index(kind if kind in KINDS else "OTHER")


class ProbeReport(Record):
    """Every driver that was tried and what came of it.

    Attributes
    ----------
    tried : tuple of ProbeRow
        One row per device reached and per driver that reached none, in the order of discovery.
    version : str
        The gpuedge version that made the report.
    seconds : float
        How long `probe()` took.
    """

    SCHEMA = SCHEMA
    IS_OPEN = True

    tried: tuple[ProbeRow, ...]
    version: str
    seconds: float = 0.0

    @property
    def devices(self) -> tuple[ProbeRow, ...]:
        """Usable devices, best first: hardware before software, discrete before integrated.

        What the capability database demotes comes after the others, and so does a demoted route to
        a device. Otherwise routes to the same device stand together, the best one first. Devices of
        plug-ins come last, unless the setting ``backends`` names these: as ``auto`` has it.
        """
        named = in_use()
        kinds: dict[str, int] = {}
        places: dict[str, int] = {}
        for row in self.tried:  # not every API knows the kind: what one says holds for all routes
            if row.is_usable:
                places.setdefault(row.physical or row.device, len(places))
                if "device_type" in row.identity:
                    kinds.setdefault(row.physical, _kind(row))

        def order(row: ProbeRow) -> tuple[bool, bool, bool, int, int, int]:
            name = row.physical or row.device
            kind = kinds.get(name, _kind(row))
            aside = is_aside(row.backend, named)
            return aside, bool(row.is_software), row.is_demoted, kind, places[name], row.route or 0

        return tuple(sorted((r for r in self.tried if r.is_usable), key=order))

    @property
    def best(self) -> ProbeRow | None:
        """The best route to the best usable device, None if there is none."""
        return next(iter(self.devices), None)

    def find(self, device: str) -> ProbeRow | None:
        """Return the row of a device string; a bare backend name means its best device.

        Where a backend has no usable device the first row of it is returned, which says why.
        """
        exact = [r for r in self.tried if r.device == device and r.index is not None]
        rows = [r for r in self.tried if r.backend == device]
        usable = [r for r in self.devices if r.backend == device]
        return next(iter(exact or usable or rows), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; ``best`` and ``devices`` hold device strings."""
        best = self.best
        return {
            "schema": SCHEMA,
            "version": self.version,
            "seconds": round(self.seconds, 6),
            "best": best.device if best else None,
            "devices": [r.device for r in self.devices],
            "tried": [r.to_dict() for r in self.tried],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        import json

        text = json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # a file name that is not UTF-8, as Python holds it
            text = json.dumps(self.to_dict(), indent=indent)
        return text

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ProbeReport:
        """Rebuild a report from `to_dict`.

        Raises
        ------
        InputError (GE-203)
            The record is not a probe report, or of a version this gpuedge does not read.
        """
        try:
            return read(cls, record)
        except UnfitError as error:
            raise InputError(
                "This is not a probe report.",
                known=f"{error}; this version reads {SCHEMA}",
                hint="make one with: gpuedge probe --json > report.json",
            ) from None

    def __str__(self) -> str:
        from gpuedge.probing import show

        return show.as_text(self)

    def __repr__(self) -> str:
        best = self.best
        text = f"best {best.device}" if best else "no usable device"
        return f"<ProbeReport {len(self.devices)} of {len(self.tried)} usable, {text}>"


def number(rows: Iterable[ProbeRow]) -> tuple[ProbeRow, ...]:
    """Give rows their device strings, counting the reached devices of each backend, and routes.

    Where a backend's loader is missing every driver of it fails alike: one row says so.
    """
    counts: dict[str, int] = {}
    numbered: list[ProbeRow] = []
    without_loader: set[str] = set()
    for row in rows:
        if row.index is not None:
            count = counts.get(row.backend, 0)
            counts[row.backend] = count + 1
            numbered.append(row.replace(device=f"{row.backend}:{count}"))
        elif row.code != "no-loader":
            numbered.append(row.replace(device=row.backend))
        elif row.backend not in without_loader:
            without_loader.add(row.backend)
            numbered.append(row.replace(device=row.backend, name=""))
    return _with_routes(numbered)


def _with_routes(rows: Sequence[ProbeRow]) -> tuple[ProbeRow, ...]:
    """Return the rows with `physical` and `route` filled in.

    The best route is the one whose backend comes first in the rows, of those that the capability
    database does not demote; routes that do not work have no rank.
    """
    names = _physical(rows)
    order = {name: i for i, name in enumerate(dict.fromkeys(r.backend for r in rows))}
    working = [i for i, row in enumerate(rows) if names[i] and row.is_usable]
    ranks: dict[int, int] = {}
    counts: dict[str, int] = {}
    for i in sorted(working, key=lambda i: (rows[i].is_demoted, order[rows[i].backend], i)):
        ranks[i] = counts[names[i]] = counts.get(names[i], 0) + 1
    return tuple(row.replace(physical=names[i], route=ranks.get(i)) for i, row in enumerate(rows))


def _physical(rows: Sequence[ProbeRow]) -> list[str]:
    """Return the name of each row's physical device, empty where no device was reached.

    Rows are one device if they report the same UUID, or else the same model. Models are compared by
    vendor and device number where both rows know them, else by name. Several equal devices of one
    driver are told apart by their order: APIs list devices of a machine in the same order more
    often than not, and where they do not, the two are equal anyway.
    """
    same: dict[object, str] = {}
    for row in rows:
        numbers, name = (row.identity.get("vendorID"), row.identity.get("deviceID")), _model(row)
        if row.index is not None and all(numbers):  # layers that know no number write zero
            same.setdefault(name, same.setdefault(numbers, name))
    counts: dict[object, int] = {}
    by_uuid: dict[str, str] = {}
    physical: list[str] = []
    for row in rows:
        model = same.get(_model(row), _model(row))
        name = by_uuid.get(_uuid(row), "")
        if row.index is None or not model:
            name = ""
        elif not name:
            driver = (row.backend, row.key, model)
            counts[driver] = count = counts.get(driver, 0) + 1
            name = model if count == 1 else f"{model} #{count}"
            if _uuid(row):
                by_uuid[_uuid(row)] = name
        physical.append(name)
    return physical


def _model(row: ProbeRow) -> str:
    return row.model or row.name


def _uuid(row: ProbeRow) -> str:
    """Return a device's UUID, empty where it is unknown, all zeros, or that of a rasteriser.

    Rasterisers have one per version or per project, not per device.
    """
    text = row.identity.get("deviceUUID") or ""
    return text if text.strip("0-") and not row.is_software else ""
