"""``gpuedge db lookup`` and ``db why``: what the database says of a device, and entry by entry why.

A device is a record in a file, a stored identity, or one that an earlier probe of this machine
found; no driver is touched.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuedge.capdb.database import Database, load
from gpuedge.capdb.judgement import Judgement
from gpuedge.capdb.judgement import lookup as judge
from gpuedge.capdb.place import folder
from gpuedge.capdb.saved import decision, identities, on_levels, title
from gpuedge.cli.output import Output, read_json
from gpuedge.core.errors import UnknownDeviceError
from gpuedge.core.identity import Identity
from gpuedge.probing import api

NOTHING = "No device of this machine was reached by a probe, so there is nothing to look up."
USES = {"yes": "yes", "tests": "if tests pass", "no": "no"}
HOW = "gpuedge probe looks for devices; --device judges a saved one"


@dataclass(frozen=True, slots=True)
class Known:
    """A device that can be judged: where it is from, what it is called, and its record."""

    source: str
    name: str
    record: Mapping[str, Any] | Identity


def about(database: Database) -> dict[str, Any]:
    """Return which database this is, JSON-ready."""
    return {
        "version": database.version,
        "digest": database.digest,
        "folder": str(database.folder),
        "generated_at": database.generated_at,
        "valid_until": database.valid_until,
        "entries": len(database),
    }


def headline(database: Database) -> str:
    """Return which database this is, in a line."""
    number = f"version {database.version}" if database.version else "unsealed"
    entries = entries_counted(len(database))
    return f"Capability database, {number}, {entries}: {database.folder}"


def entries_counted(number: int) -> str:
    """Return a number of entries in words."""
    return f"{number} {'entry' if number == 1 else 'entries'}"


def describe(action: Mapping[str, Any]) -> str:
    """Return what an action does, in few words.

    >>> describe({"disable_features": ["fp16"], "limits": {"max_outputs": 1}})
    'no fp16; max_outputs <= 1'
    """
    found = ["not used at all"] if action.get("disable_backend") else []
    for name in ("levels", "features", "kernels", "storages"):
        listed = action.get(f"disable_{name}")
        if listed:
            found.append(f"no {', '.join(listed)}")
    found += [f"{name} <= {most}" for name, most in (action.get("limits") or {}).items()]
    if action.get("demote"):
        found.append("others first")
    return "; ".join(found) or "explains only"


def lookup(options: argparse.Namespace, output: Output) -> int:
    """Print in brief what devices may not do, level by level."""
    found = [
        (device, level, decision(judgement, level))
        for device in devices(options.device)
        for level, judgement in on_levels(None, device.record).items()
    ]
    output.document(
        {
            "schema": "gpuedge.db.lookup/1",
            "database": about(load()),
            "devices": [
                {"device": device.source, "name": device.name, "level": level, **made}
                for device, level, made in found
            ],
        }
    )
    rows = [
        (device.source, device.name, level, USES[made["use"]], _brief(made))
        for device, level, made in found
    ]
    if rows:
        titles = ("device", "name", "level", "used", "restrictions, and where they are from")
        output.table(headline(load()), titles, rows)
    else:
        _say_nothing(output)
    return 0


def why(options: argparse.Namespace, output: Output) -> int:
    """Print the trace of every entry; of one device its document is the whole answer."""
    found = [(device, judge(device.record)) for device in devices(options.device)]
    if options.device is not None:
        ((_, judgement),) = found
        output.document(judgement.to_dict(all=True))
    else:
        traces = [{"device": d.source, "name": d.name, **j.to_dict(all=True)} for d, j in found]
        output.document({"schema": "gpuedge.db.machine/1", "devices": traces})
    if not found:
        _say_nothing(output)
    for device, judgement in found:
        _trace(device, judgement, output)
    return 0


def devices(named: str | None) -> list[Known]:
    """Return the device that is named, or those that earlier probes of this machine reached.

    Raises
    ------
    InputError (GE-203)
        It is a file, which holds no record.
    UnknownDeviceError (GE-102)
        It names neither a file nor a device.
    """
    if named is None:
        return _here()
    if os.path.lexists(named) or named.endswith(".json") or os.sep in named:
        record = read_json(named)
        return [Known(named, title(record), record)]
    stored = identities(folder())
    if named in stored:
        return [Known(named, title(stored[named]), stored[named])]
    here = _here()
    found = [d for d in here if d.source == named] or [
        d for d in here if d.source.split(":")[0] == named
    ]
    if found:
        return found[:1]
    raise UnknownDeviceError(
        f"{named!r} is no file, no stored identity and no device of the last probe.",
        asked_by="--device",
        known=f"devices of the last probe: {', '.join(d.source for d in here) or 'none'}",
        hint=HOW,
    )


def _here() -> list[Known]:
    rows = api.latest()  # whatever database or settings they were probed under
    return [
        Known(row.device, row.name, Identity.from_dict(dict(row.identity)))
        for row in rows
        if row.identity
    ]


def _say_nothing(output: Output) -> None:
    output.text(NOTHING)
    output.log(HOW)


def _brief(made: Mapping[str, Any]) -> str:
    lines = [restrictions(made["restrictions"])]
    entries = [*made["true"], *(f"{name}?" for name in made["unknown"])]
    if entries:
        lines.append(f"entries: {', '.join(entries)}")
    if made["tests"]:
        lines.append(f"asking for tests: {', '.join(made['tests'])}")
    return "\n".join(lines)


def restrictions(record: Mapping[str, Any]) -> str:
    """Return restrictions in words; ``none`` where there are none."""
    if not record:
        return "none"
    named = {f"disable_{n}": record[n] for n in ("levels", "features", "kernels", "storages")}
    words = {
        **named,
        "disable_backend": record["is_backend_off"],
        "limits": record["limits"],
        "demote": record["is_demoted"],
    }
    return describe(words).replace("explains only", "none")


def _trace(device: Known, judgement: Judgement, output: Output) -> None:
    body = judgement.to_dict(all=True)
    _subject(device, body, output)
    groups: dict[str, list[Mapping[str, str]]] = {"true": [], "unknown": [], "false": []}
    for finding in body["findings"]:
        groups[finding["result"]].append(finding)
    for result, heading in (("true", "about this device"), ("unknown", "may be about it")):
        rows = [
            (f["id"], f["becomes"], f["decided_by"], f["effect"], f["summary"])
            for f in groups[result]
        ]
        if rows:
            titles = ("entry", "becomes", "decided by", "effect", "summary")
            output.table(f"{entries_counted(len(rows))} {heading}", titles, rows)
    false = [(f["id"], f["becomes"], f["decided_by"]) for f in groups["false"]]
    if false:
        heading = f"{entries_counted(len(false))} not about it"
        output.table(heading, ("entry", "becomes", "decided by"), false)


def _subject(device: Known, body: Mapping[str, Any], output: Output) -> None:
    who = body["subject"]
    shown = ("vendor", "family", "model", "os", "layers", "is_mesa", "name", "soc", "device")
    rows = [(name, _text(who[name])) for name in shown]
    rows += [
        (f"driver, {scheme}", f"{'.'.join(map(str, found['version']))} ({found['text']})")
        for scheme, found in body["driver_versions"].items()
    ]
    rows += [("build", _text(who["builds"])), ("built", _text(who["built"]))]
    rows += [("note", note) for note in body["notes"]]
    rows += [("restrictions", restrictions(body["restrictions"]))]
    rows += [("blocked by", body["blocked_by"] or "nothing")]
    rows += [
        ("asks for a test", f"{d['entry']}: {', '.join(d['tests'])}, {d['runs']} runs")
        for d in body["demands"]
    ]
    output.table(f"{device.name} ({device.source})", ("what", "is"), rows)


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
