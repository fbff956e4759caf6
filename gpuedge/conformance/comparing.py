"""Two runs set side by side: what fails now and did not before, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuedge.conformance.bench import PASSED, Row
from gpuedge.conformance.formats import why
from gpuedge.conformance.results import Results, ResultSet, at, flattened, is_wrong, outcome

SCHEMA = "gpuedge.conformance.compare/1"

LEAST = 0.01
"""Below this part of the bound an error is as good as none, and may change by any factor."""

HEADERS = ("profile", "expectations", "versions", "identity", "database.version", "host", "labels")
"""What of two headers is set side by side."""

NEW_FAILURES, FIXED, CHANGED, ERRORS = "new_failures", "fixed", "changed", "errors"
ONLY_OLD, ONLY_NEW = "only_in_baseline", "only_in_new"
LISTS = (NEW_FAILURES, FIXED, CHANGED, ERRORS, ONLY_OLD, ONLY_NEW)


def compare(before: ResultSet, now: ResultSet, factor: float) -> dict[str, Any]:
    """Set two runs side by side, device by device, and return the document.

    Devices are paired by name; where each run has one, these are paired. ``new_failures`` make a
    run fail and did not before, ``fixed`` are the others; ``changed`` are other changes of the
    status. ``errors`` are cases that pass in both, whose worst error has changed by more than
    `factor`; errors below a hundredth of the bound are taken for that.
    """
    lists: dict[str, list[Row]] = {name: [] for name in LISTS}
    devices = []
    for old, new in _pairs(before, now):
        if old.header and new.header:
            devices.append({
                "baseline": old.device, "new": new.device, "cases": len(old.rows.keys() & new.rows),
                "header": _differences(old.header, new.header),
            })  # fmt: skip
        for name in sorted(old.rows.keys() | new.rows):
            was, got = old.rows.get(name), new.rows.get(name)
            told = {
                "device": new.device or old.device, "id": name,
                "baseline": _told(was), "new": _told(got),
            }  # fmt: skip
            for kind in _kinds(was, got, factor):
                lists[kind].append(told)
    counts = {name: len(found) for name, found in lists.items()}
    return {"schema": SCHEMA, "factor": factor, "devices": devices, "counts": counts, **lists}


def _pairs(before: ResultSet, now: ResultSet) -> Iterator[tuple[Results, Results]]:
    """Yield the results of each device in both runs; empty ones where a run lacks it."""
    if len(before.parts) == len(now.parts) == 1:
        yield before.parts[0], now.parts[0]
        return
    for name in dict.fromkeys(part.device for part in (*before, *now)):
        yield before.of(name) or Results({}), now.of(name) or Results({})


def _kinds(was: Row | None, got: Row | None, factor: float) -> Iterator[str]:
    """Yield the lists that a case belongs to."""
    if got is None:
        yield ONLY_OLD
    elif was is None:
        yield ONLY_NEW
        if is_wrong(got):
            yield NEW_FAILURES
    elif is_wrong(was) != is_wrong(got):
        yield NEW_FAILURES if is_wrong(got) else FIXED
    elif was["status"] != got["status"]:
        yield CHANGED
    elif got["status"] == PASSED and was.get("worst") is not None and got.get("worst") is not None:
        small, large = sorted(max(row["worst"], LEAST) for row in (was, got))
        if large > factor * small:
            yield ERRORS


def _told(row: Row | None) -> Row | None:
    if row is None:
        return None
    worst = {} if row.get("worst") is None else {"worst": row["worst"]}
    return {"status": row["status"], "outcome": outcome(row), "why": why(row), **worst}


def _differences(old: Row, new: Row) -> dict[str, list[str | None]]:
    """Return what two headers say differently, by dotted names."""
    there, here = (dict(flattened({n: at(h, n) for n in HEADERS})) for h in (old, new))
    names = sorted(there.keys() | here)
    return {n: [there.get(n), here.get(n)] for n in names if there.get(n) != here.get(n)}
