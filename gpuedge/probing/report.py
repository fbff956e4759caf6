"""What `gpuedge.probe()` answers: one row per driver or device, and the report that holds them.

Plain data: nothing here starts a process, loads a driver or imports numpy.
"""

from __future__ import annotations

from gpuedge.core.errors import InputError
from gpuedge.core.reasons import STATUSES
from gpuedge.core.record import Record
from gpuedge.safety.store import is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from gpuedge.core.driver import DeviceInfo

SCHEMA = "gpuedge.probe/1"
KINDS = ("DISCRETE_GPU", "INTEGRATED_GPU", "VIRTUAL_GPU", "OTHER", "CPU")
"""Device types, best first. A type that is not listed (or not known) counts as ``OTHER``."""

HOW_TO_REFRESH = "cached; gpuedge.probe(refresh=True) tries it again"


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
        True if the verdict was read from disk and nothing was started.
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
    valid_until : str
        ISO date after which the verdict is found anew, because an entry it rests on is to be
        reviewed by then; empty for no such date.
    """

    device: str
    backend: str
    status: str
    code: str
    reason: str
    name: str = ""
    identity: Mapping[str, Any] = {}
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
    restrictions: Mapping[str, Any] = {}
    database: str = ""
    valid_until: str = ""

    @property
    def is_demoted(self) -> bool:
        """True if an entry of the capability database puts it behind the others."""
        return self.restrictions.get("is_demoted") is True

    @property
    def is_usable(self) -> bool:
        """True if the device gave the right numbers."""
        return self.status == "ok"

    @property
    def brief(self) -> str:
        """The reason as tables show it: a driver without a device in four words."""
        if self.code != "no-device":
            return self.reason
        import re

        # An API's own name of an error says more than the sentence it came in.
        named = re.search(r"\b[A-Z][A-Z0-9]*(_[A-Z0-9]+)+\b", self.reason)
        return f"offers no device ({named.group()})" if named else "offers no device"

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
        from gpuedge.core.identity import Identity

        candidate = Candidate(self.backend, self.key, self.fingerprint, dict(self.env))
        identity = Identity.from_dict(dict(self.identity))
        return DeviceInfo(
            candidate,
            self.index,
            identity,
            bool(self.is_software),
            frozenset(self.restrictions.get("features", ())),
            dict(self.restrictions.get("limits", {})),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return self.as_dict()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ProbeRow:
        """Rebuild a row from `to_dict`; unknown keys are ignored. Raises InputError."""
        if not isinstance(record, dict):
            raise InputError(
                "A row of the probe report is not a JSON object.", known=_shown(record)
            )
        names = cls._fields
        try:
            row = cls(**{k: v for k, v in record.items() if k in names})
        except TypeError:
            raise InputError(
                "A row of the probe report lacks a field.",
                known=f"every row has: {', '.join(list(names)[:5])}",
            ) from None
        fault = _fault(row)
        if fault is not None:
            raise InputError(
                f"A row of the probe report has a {fault} that cannot be used.",
                known=f"{fault} is {_shown(getattr(row, fault))}",
            )
        return row

    def __repr__(self) -> str:
        return f"<ProbeRow {self.device} {self.status} {self.name!r}>"


_TEXTS = (
    "device", "backend", "status", "code", "reason", "name", "key", "fingerprint", "model",
    "physical", "database", "valid_until",
)  # fmt: skip
_IDENTITY_TEXTS = ("api", "name", "os")
_GL_TEXTS = ("GL_VENDOR", "GL_RENDERER", "GL_VERSION")
_IDENTITY_TYPES = {
    **dict.fromkeys(("vendorID", "deviceID", "driverVersion", "driverID"), int),
    **dict.fromkeys(("apiVersion", "driverName", "driverInfo", "device_type", "deviceUUID"), str),
    **dict.fromkeys((*_GL_TEXTS, "backend"), str),
}
_MAX_INDEX = 1 << 16
"""Devices of one driver; no API lists more than a handful."""

_MAX_DEPTH = 16
"""Nesting of a table in a row; ours have four levels."""


LIMITS = frozenset(
    {
        "max_invocations", "max_shared_bytes", "max_storage_buffers", "max_storage_buffer_bytes",
        "max_allocation_bytes", "max_push_bytes", "max_texture_size", "max_outputs",
    }
)  # fmt: skip
"""Fields of `Caps` that an entry can bound."""

_MOST_WORDS, _MOST_LETTERS, _MOST_LIMIT = 1024, 200, 1 << 64

_LISTS = ("levels", "features", "kernels", "storages", "entries")
_FLAGS = ("is_backend_off", "is_demoted")


def _fault(row: ProbeRow) -> str | None:
    """Return the first field whose value is not what the field may hold, None if all are good."""
    for name in _TEXTS:
        if not isinstance(getattr(row, name), str):
            return name
    for name in ("identity", "caps", "env", "evidence", "restrictions"):
        if not _is_table(getattr(row, name)):
            return name
    index = row.index
    good = {
        "status": row.status in STATUSES,
        "index": index is None or (type(index) is int and 0 <= index < _MAX_INDEX),
        "identity": index is None or _is_identity(row.identity),
        "env": all(map(_is_variable, row.env.items())),
        "is_software": row.is_software is None or isinstance(row.is_software, bool),
        "seconds": row.seconds is None or (is_number(row.seconds) and row.seconds >= 0),
        "is_cached": isinstance(row.is_cached, bool),
        "route": row.route is None or (type(row.route) is int and 0 < row.route < _MAX_INDEX),
    }
    if row.restrictions or row.valid_until:
        good["restrictions"] = are_restrictions(row.restrictions)
        good["valid_until"] = is_day(row.valid_until)
    return next((name for name, is_good in good.items() if not is_good), None)


def _is_table(value: object) -> bool:
    """Say whether a value is an object that can be written as JSON again (which has no NaN)."""
    return isinstance(value, dict) and _is_plain(value, _MAX_DEPTH)


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        names = all(isinstance(name, str) for name in value)
        return depth > 0 and names and all(_is_plain(v, depth - 1) for v in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(v, depth - 1) for v in value)
    return value is None or isinstance(value, (str, bool)) or is_number(value)


def _is_identity(record: Mapping[str, Any]) -> bool:
    texts = all(isinstance(record.get(name), str) for name in _IDENTITY_TEXTS)
    known = ((record.get(name), kind) for name, kind in _IDENTITY_TYPES.items())
    return texts and all(value is None or type(value) is kind for value, kind in known)


def _is_variable(item: tuple[object, object]) -> bool:
    name, value = item
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return bool(name) and "=" not in name and "\0" not in name + value


def are_restrictions(record: Mapping[str, Any]) -> bool:
    """Say whether a record has the fields of `Restrictions.to_dict`, each of its kind.

    >>> are_restrictions({}), are_restrictions({"limits": {"max_push_bytes": -1}})
    (True, False)
    """
    if not record:
        return True
    if set(record) != {*_LISTS, *_FLAGS, "limits"}:
        return False
    lists = all(are_words(record[name]) for name in _LISTS)
    flags = all(isinstance(record[name], bool) for name in _FLAGS)
    return lists and flags and bool(record["entries"]) and _are_limits(record["limits"])


def are_words(value: object) -> bool:
    """Say whether a value is a list of words of bounded length, such as ids of entries."""
    if not isinstance(value, list) or len(value) > _MOST_WORDS:
        return False
    return all(isinstance(word, str) and 0 < len(word) <= _MOST_LETTERS for word in value)


def _are_limits(value: object) -> bool:
    if not isinstance(value, dict) or not value.keys() <= LIMITS:
        return False
    return all(type(most) is int and 0 < most <= _MOST_LIMIT for most in value.values())


def is_day(text: object) -> bool:
    """Say whether a text is an ISO date, or empty.

    >>> is_day(""), is_day("2027-11-21"), is_day("soon")
    (True, True, False)
    """
    if not isinstance(text, str) or not text:
        return text == ""
    parts = text.split("-")
    digits = all(part.isascii() and part.isdigit() for part in parts)
    return digits and [len(part) for part in parts] == [4, 2, 2]


def _shown(value: object) -> str:
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # a whole number or a nesting too long to print
        return type(value).__name__
    line = "".join(c if c.isprintable() else " " for c in said)
    return line if len(line) <= 80 else line[:77] + "..."


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

    tried: tuple[ProbeRow, ...]
    version: str
    seconds: float = 0.0

    @property
    def devices(self) -> tuple[ProbeRow, ...]:
        """Usable devices, best first: hardware before software, discrete before integrated.

        What the capability database demotes comes after the others, and so does a demoted route to
        a device. Otherwise routes to the same device stand together, the best one first.
        """
        kinds: dict[str, int] = {}
        places: dict[str, int] = {}
        for row in self.tried:  # not every API knows the kind: what one says holds for all routes
            if row.is_usable:
                places.setdefault(row.physical or row.device, len(places))
                if "device_type" in row.identity:
                    kinds.setdefault(row.physical, _kind(row))

        def order(row: ProbeRow) -> tuple[bool, bool, int, int, int]:
            name = row.physical or row.device
            kind = kinds.get(name, _kind(row))
            return bool(row.is_software), row.is_demoted, kind, places[name], row.route or 0

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
        record = record if isinstance(record, dict) else {}
        rows, schema = record.get("tried"), record.get("schema")
        version, seconds = record.get("version", ""), record.get("seconds", 0.0)
        if schema != SCHEMA or not isinstance(rows, list):
            raise _no_report(f"its schema is {_shown(schema)}; this version reads {SCHEMA!r}")
        if not isinstance(version, str) or not is_number(seconds):
            raise _no_report(f"its version is {_shown(version)}, its seconds {_shown(seconds)}")
        return cls(tuple(map(ProbeRow.from_dict, rows)), version, float(seconds))

    def __str__(self) -> str:
        from gpuedge.probing import show

        return show.as_text(self)

    def __repr__(self) -> str:
        best = self.best
        text = f"best {best.device}" if best else "no usable device"
        return f"<ProbeReport {len(self.devices)} of {len(self.tried)} usable, {text}>"

    def _repr_html_(self) -> str:
        from gpuedge.probing import show

        return show.as_html(self)


def _no_report(known: str) -> InputError:
    hint = "make one with: gpuedge probe --json > report.json"
    return InputError("This is not a probe report.", known=known, hint=hint)


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

    Rows are one device if they report the same UUID, or else the same model. Models are compared by
    vendor and device number where both rows know them, else by name.
    The best route is the one whose backend comes first in the rows, of those that the capability
    database does not demote; routes that do not work have no rank. Several equal devices of one
    driver are told apart by their order: APIs list devices of a machine in the same order more
    often than not, and where they do not, the two are equal anyway.
    """
    names = _physical(rows)
    order = {name: i for i, name in enumerate(dict.fromkeys(r.backend for r in rows))}
    ranks: dict[int, int] = {}
    counts: dict[str, int] = {}
    for i in sorted(
        range(len(rows)), key=lambda i: (rows[i].is_demoted, order[rows[i].backend], i)
    ):
        if names[i] and rows[i].is_usable:
            counts[names[i]] = counts.get(names[i], 0) + 1
            ranks[i] = counts[names[i]]
    return tuple(row.replace(physical=names[i], route=ranks.get(i)) for i, row in enumerate(rows))


def _physical(rows: Sequence[ProbeRow]) -> list[str]:
    """Return the name of each row's physical device, empty where no device was reached."""
    models = _models(rows)
    seen: dict[tuple[str, str, str], int] = {}
    by_uuid: dict[str, str] = {}
    found: list[str] = []
    for row, model in zip(rows, models, strict=True):
        if row.index is None or not model:
            found.append("")
            continue
        uuid = _uuid(row)
        if uuid in by_uuid:
            found.append(by_uuid[uuid])
            continue
        driver = (row.backend, row.key, model)
        seen[driver] = count = seen.get(driver, 0) + 1
        name = model if count == 1 else f"{model} #{count}"
        if uuid:
            by_uuid[uuid] = name
        found.append(name)
    return found


def _models(rows: Sequence[ProbeRow]) -> list[str]:
    """Return one name per model: rows with equal numbers share the name that was seen first."""
    by_numbers: dict[tuple[object, object], str] = {}
    same: dict[str, str] = {}
    for row in rows:
        numbers = (row.identity.get("vendorID"), row.identity.get("deviceID"))
        name = row.model or row.name
        # A device number of zero is what layers write who know none.
        if row.index is not None and all(numbers):
            same.setdefault(name, by_numbers.setdefault(numbers, name))
    return [same.get(row.model or row.name, row.model or row.name) for row in rows]


def _uuid(row: ProbeRow) -> str:
    """Return a device's UUID as text, empty where it is unknown or all zeros.

    Rasterisers have one per version or per project, not per device.
    """
    if row.is_software:
        return ""
    text = row.identity.get("deviceUUID")
    return text if isinstance(text, str) and text.strip("0-") else ""
