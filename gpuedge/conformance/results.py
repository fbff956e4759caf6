"""Results of devices on disk: a file of JSON lines that a later run can resume from.

Each device has a header, a line with ``"schema"``, and every other line is the row of one case.
Files are replaced in one step, so a run that is killed leaves the last complete state.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from gpuedge.conformance import SCHEMA
from gpuedge.conformance.bench import (
    CRASHED,
    MOST_SECONDS,
    PASSED,
    SKIPPED,
    STATUSES,
    TIMEOUT,
    Row,
    RowFields,
)
from gpuedge.core.errors import InputError
from gpuedge.core.record import Record, UnfitError, checked
from gpuedge.safety.paths import is_stream, read_start, save_named

FLUSH_S = 5.0
"""How often a results file is brought up to date during a run."""

MAX_BYTES = 256 << 20
LOST = ("GE-401", "GE-403")
"""Codes of a device that was lost or timed out."""

BAD, UNSUPPORTED = "bad", "unsupported"
XFAILED, XPASSED, QUARANTINED = "xfailed", "xpassed", "quarantined"
OUTCOMES = (PASSED, BAD, XPASSED, XFAILED, QUARANTINED, UNSUPPORTED)
"""What a row counts as. The second and third make a run fail; the last was not run."""


SHARDS = re.compile(r"[1-9]\d{0,4}/[1-9]\d{0,4}( [1-9]\d{0,4}/[1-9]\d{0,4})*")
"""What parts of the cases results are of: one, or several that were put together."""


class EntryTold(Record):
    """What a header says of an entry of the capability database."""

    IS_OPEN = True

    id: str
    becomes: str
    summary: str


class DatabaseTold(Record):
    """What a header says of the capability database."""

    IS_OPEN = True

    entries: tuple[Annotated[Mapping[str, Any], EntryTold], ...] = ()


class HeaderFields(Record):
    """What a header has, and of what types the rest of it is where it is there."""

    IS_OPEN = True

    schema: Annotated[str, (SCHEMA,)]
    device: Annotated[str, range(1, 1000)]
    identity: Mapping[str, Any] = {}
    caps: Mapping[str, Any] = {}
    versions: Mapping[str, Any] = {}
    labels: Mapping[str, str] = {}
    database: Annotated[Mapping[str, Any], DatabaseTold] = {}
    profile: str = ""
    only: tuple[str, ...] = ()
    shard: Annotated[str, SHARDS] = "1/1"
    host: str | None = None
    serial: str | None = None
    seconds: Annotated[float | None, range(MOST_SECONDS)] = None
    error: Mapping[str, Any] = {}


def outcome(row: Row) -> str:
    """Return what a row counts as, given what was expected of it: one of `OUTCOMES`."""
    kind = (row.get("expectation") or {}).get("kind")
    if row["status"] == SKIPPED:
        return UNSUPPORTED
    if kind == "quarantine":
        return QUARANTINED
    is_right = row["status"] == PASSED
    if kind == "xfail":
        return XPASSED if is_right else XFAILED
    return PASSED if is_right else BAD


def is_wrong(row: Row) -> bool:
    """Tell whether a row makes a run fail."""
    return outcome(row) in (BAD, XPASSED)


@dataclass
class Results:
    """The rows of one device by the ids of the cases, with what they were made on.

    The header has ``schema``, device, profile, shard, identity, caps, versions and times.
    """

    header: Row
    rows: dict[str, Row] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The device string."""
        return str(self.header.get("device", ""))

    def counts(self) -> dict[str, int]:
        """Return how many cases came to what.

        By status those of which nothing was expected or that were not run, the others by outcome.
        ``unsupported`` are those ``skipped``; ``executed`` were run and are not in quarantine,
        whatever was expected of them.
        """
        rows = self.rows.values()
        came_to = Counter(map(outcome, rows))
        by_status = Counter(r["status"] for r in rows if outcome(r) in (PASSED, BAD, UNSUPPORTED))
        counted = (UNSUPPORTED, QUARANTINED, XFAILED, XPASSED)
        return {
            "cases": len(rows),
            **{status: by_status[status] for status in STATUSES},
            "executed": len(rows) - came_to[UNSUPPORTED] - came_to[QUARANTINED],
            **{name: came_to[name] for name in counted},
        }

    @property
    def is_good(self) -> bool:
        """Whether every case passed, does not apply or was expected to come out as it did."""
        return not any(map(is_wrong, self.rows.values()))

    @property
    def is_lost(self) -> bool:
        """Whether a case unexpectedly lost the device, hung or killed its process."""
        return any(
            row["status"] in (CRASHED, TIMEOUT) or row.get("code") in LOST
            for row in self.rows.values()
            if outcome(row) == BAD
        )

    def add(self, row: Row) -> None:
        """Take a row of this device, in place of an earlier one of the same case."""
        self.rows[row["id"]] = {**row, "device": self.device}

    def lines(self) -> bytes:
        """Return these lines of a results file."""
        ordered = [self.header, *(self.rows[name] for name in sorted(self.rows))]
        return "".join(json.dumps(row, sort_keys=True) + "\n" for row in ordered).encode()


@dataclass
class ResultSet:
    """Results of several devices, kept in one file where `path` names one.

    `damaged` are the numbers of the lines, from 1, that could not be read.
    """

    parts: list[Results] = field(default_factory=list)
    path: str | None = None
    damaged: Sequence[int] = ()
    _written: float = field(default_factory=time.monotonic, compare=False)

    def __iter__(self) -> Iterator[Results]:
        return iter(self.parts)

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of all devices."""
        return (row for part in self for row in part.rows.values())

    def of(self, device: str) -> Results | None:
        """Return the results of a device."""
        return next((part for part in self if part.device == device), None)

    def flush(self) -> None:
        """Bring the file up to date if the last time was a while ago.

        A file that is a stream takes everything once, by `write`.
        """
        is_due = time.monotonic() - self._written > FLUSH_S
        if is_due and self.path is not None and not is_stream(self.path):
            self.write()

    def write(self) -> None:
        """Bring the file up to date. Raises InputError (GE-203) where it cannot be written."""
        if self.path is not None:
            save_named(Path(self.path), b"".join(part.lines() for part in self), "--jsonl")
        self._written = time.monotonic()


def read(path: str, asked_by: str = "--resume") -> ResultSet:
    """Return what a results file holds.

    Rows of a device whose header is lost are not among them. Of a file that is empty or has lost
    all headers there is nothing to go on from: no results.

    Raises
    ------
    InputError (GE-203)
        There is no such file, it is larger than 256 MiB, or it holds something else.
    """
    try:
        data = read_start(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.", asked_by=asked_by) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES >> 20} MiB.", asked_by=asked_by)
    lines = data.splitlines()
    found, damaged, orphans = ResultSet(path=path), [], 0
    for number, line in enumerate(lines, 1):
        body = _parsed(line) or {}
        if _is(HeaderFields, body) and found.of(body["device"]) is None:
            found.parts.append(Results(body))
        elif _is(RowFields, body):
            last = found.parts[-1].device if found.parts else ""
            owner = found.of(body.get("device") or last)
            orphans += owner is None
            if owner is not None:
                owner.add(body)
                continue
            damaged.append(number)
        else:
            damaged.append(number)
    if lines and not found.parts and not orphans:
        raise InputError(
            f"{path} is not a file of conformance results.",
            asked_by=asked_by,
            known=f"a line must be an object with the schema {SCHEMA!r}",
            hint="run without --resume" if asked_by == "--resume" else None,
        )
    found.damaged = damaged
    return found


def only(path: str) -> Results:
    """Return the results of the one device that a file is about. Raises InputError (GE-203)."""
    found = read(path, "the file")
    if len(found.parts) != 1:
        raise InputError(
            f"{path} is not about one device.",
            known="devices: " + (", ".join(part.device for part in found) or "none"),
        )
    return found.parts[0]


def described(damaged: Sequence[int]) -> str:
    """Return which lines are damaged, in words."""
    some = ", ".join(map(str, damaged[:SHOWN])) + (", ..." if len(damaged) > SHOWN else "")
    many = "lines" if len(damaged) > 1 else "line"
    return f"{len(damaged)} damaged {many} left out ({many} {some})"


SHOWN = 20
"""Numbers of damaged lines that a message names."""


def _parsed(line: bytes) -> Row | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _is(kind: type, body: Row) -> bool:
    try:
        checked(kind, body)
    except UnfitError:
        return False
    return True


def check_same(old: Results, header: Mapping[str, Any], path: str) -> None:
    """Raise InputError (GE-203) unless results belong to the run that is to go on."""
    theirs, ours = (dict(flattened(each)) for each in (old.header, header))
    names = {"device": "device", "profile": "profile", "versions.gpuedge": "version of gpuedge"}
    names |= {name: "identity" for name in {**theirs, **ours} if name.startswith("identity.")}
    for name, said in names.items():
        before, now = theirs.get(name), ours.get(name)
        if before != now and (before is not None or said == "identity"):
            raise InputError(
                f"{path} holds results of another {said}.",
                asked_by="--resume",
                known=f"there {name} is {before!r}, here {now!r}",
                hint="run without --resume; gpuedge conformance compare sets two runs side by side",
            )


def flattened(record: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield the leaves of nested records as dotted names and texts; items of lists by place."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
            yield from flattened(dict(enumerate(value)), f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield name, " ".join(map(str, value))
        elif value is not None:
            yield name, str(value)


def at(header: Row, path: str) -> Any:
    """Return what a header has at a dotted name; None where it has nothing there."""
    value: Any = header
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def families(rows: Iterable[Row]) -> dict[str, Row]:
    """Return for each operation how many cases passed of how many, the worst error and the time.

    Cases in quarantine are counted apart. The worst error is in units of the bound; cases that are
    to be exact have none.
    """
    by_family: dict[str, Row] = {}
    none = {"passed": 0, "run": 0, "skipped": 0, "quarantined": 0, "worst": None, "seconds": 0.0}
    for row in rows:
        counts, came_to = by_family.setdefault(row["op"], dict(none)), outcome(row)
        counts["skipped"] += came_to == UNSUPPORTED
        counts["quarantined"] += came_to == QUARANTINED
        counts["run"] += came_to not in (UNSUPPORTED, QUARANTINED)
        counts["passed"] += came_to == PASSED
        counts["seconds"] = round(counts["seconds"] + float(row.get("seconds") or 0), 4)
        if isinstance(row.get("worst"), float):
            counts["worst"] = max(counts["worst"] or 0.0, row["worst"])
    return dict(sorted(by_family.items()))


def reasons(rows: Iterable[Row]) -> dict[str, int]:
    """Return why cases were not run, with how many, the most frequent first."""
    said = (str(row.get("reason")) for row in rows if row["status"] == SKIPPED)
    return dict(Counter(said).most_common())


def summary(
    found: ResultSet, not_run: Sequence[tuple[str, str]], notes: Sequence[str]
) -> dict[str, Any]:
    """Return the document of a run; `not_run` are devices and ids of cases without a row.

    Of one device it has everything that its header has; ``devices`` is there of any number.
    """
    totals: Counter[str] = Counter()
    for part in found:
        totals.update(part.counts())
    missing = Counter(device for device, _ in not_run)
    devices = [
        {**part.header, "counts": {**part.counts(), "not_run": missing[part.device]},
         "operations": families(part.rows.values())}
        for part in found
    ]  # fmt: skip
    shared = found.parts[0].header if len(found.parts) == 1 else {"schema": SCHEMA}
    return {
        **shared,
        "counts": {**totals, "not_run": len(not_run)},
        "operations": families(found.rows),
        "problems": sorted(filter(is_wrong, found.rows), key=lambda row: str(row["id"])),
        "skipped": reasons(found.rows),
        "notes": list(notes),
        "devices": devices,
    }
