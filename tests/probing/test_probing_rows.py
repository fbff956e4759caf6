"""Probe rows and reports from JSON that others wrote: what does not fit is refused in our words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuedge.backends.base import Candidate
from gpuedge.core.errors import InputError
from gpuedge.probing import verdicts
from gpuedge.probing.report import ProbeReport, ProbeRow, number
from gpuedge.safety.store import load_sealed, save_sealed

NAN, INF = float("nan"), float("inf")
DEEP: Any = json.loads("[" * 900 + "]" * 900)


def restrictions(**more: Any) -> dict[str, Any]:
    lists = ("levels", "features", "kernels", "storages")
    limits = {"max_invocations": 64}
    table = {**{k: [] for k in lists}, "is_backend_off": False, "is_demoted": True}
    return {**table, "limits": limits, "entries": ["a-0001"], **more}


def record() -> dict[str, Any]:
    """A row as JSON, with every field set."""
    row = ProbeRow(
        "vulkan:0", "vulkan", "ok", "ok", "because", "GPU",
        {"api": "vulkan", "name": "GPU", "os": "linux", "vendorID": 7, "device_type": "CPU"},
        True, {"level": "vulkan"}, "/a.json", "f", {"VK_DRIVER_FILES": "/a.json"}, 0, 0.5,
        {"checks": [{"max_error": 0.0}]}, False, "gpu", "gpu", 1, restrictions(), "7 abc",
    )  # fmt: skip
    made: dict[str, Any] = json.loads(json.dumps(row.to_dict()))
    return made


def report(*rows: Any, **more: Any) -> dict[str, Any]:
    whole = {"schema": "gpuedge.probe/1", "version": "1", "seconds": 0.5, "tried": list(rows)}
    return {**whole, **more}


def test_a_whole_row_and_a_row_of_the_least_are_accepted() -> None:
    assert ProbeRow.from_dict(record()).to_dict() == record()
    least = dict.fromkeys(("device", "backend", "status", "code", "reason"), "ok")
    assert ProbeRow.from_dict({**least, "unknown": DEEP}).index is None


def test_what_does_not_fit_is_refused_and_named() -> None:
    """What each field may be, `tests/unit/test_records.py` tries."""
    bad = {**record(), "restrictions": restrictions(features=[5])}
    with pytest.raises(InputError, match="no restrictions that can be used"):
        ProbeRow.from_dict(bad)
    with pytest.raises(InputError, match="tried: restrictions: features: 5 is not a text"):
        ProbeReport.from_dict(report(record(), bad))


def test_what_is_accepted_can_be_used() -> None:
    made = ProbeReport.from_dict(report(record()))
    assert made.best is not None
    assert made.best.info().identity.vendorID == 7
    assert "vulkan:0" in str(made)
    assert json.loads(made.to_json())["tried"] == [record()]


@pytest.mark.parametrize(
    "document",
    [None, report(schema=[DEEP]), report(tried=None), report(seconds=10**5000), report(5)],
    ids=lambda d: str(d)[:60] if not isinstance(d, dict) else None,
)  # fmt: skip
def test_documents_that_are_no_reports(document: Any) -> None:
    with pytest.raises(InputError, match="not a probe report"):
        ProbeReport.from_dict(document)


def test_json_of_a_driver_whose_file_name_is_not_utf8(tmp_path: Path) -> None:
    row = ProbeRow.from_dict({**record(), "key": "/icd.d/\udcff.json", "name": "é"})
    text = ProbeReport(number([row]), "1").to_json()
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    assert json.loads(text)["tried"][0]["key"] == row.key
    assert "é" in ProbeReport(number([row.replace(key="/a")]), "1").to_json()


CANDIDATE = Candidate("vulkan", "/a.json", "f")


def stored(folder: Path, change: Callable[[dict[str, Any]], Any]) -> verdicts.Store:
    """A store whose one entry was changed and sealed again."""
    row = ProbeRow.from_dict({**record(), "status": "crashed"})
    assert verdicts.Store(folder).save({"k": (CANDIDATE, [row])}, 4, time.time())
    body = load_sealed(folder / verdicts.FILE, verdicts.SCHEMA)
    assert body is not None
    entry = body["entries"]["k"]
    changed = change(entry)
    body["entries"]["k"] = entry if changed is None else changed
    assert save_sealed(folder / verdicts.FILE, verdicts.SCHEMA, body)
    return verdicts.Store(folder)


def use(store: verdicts.Store) -> list[ProbeRow] | None:
    """Do all that `probe` does with a store, which must not raise; return what was found."""
    now = time.time()
    found = store.find("k", 4, now)
    row = ProbeRow.from_dict({**record(), "status": "crashed"})
    assert store.save({"new": (CANDIDATE, [row])}, 4, now)
    assert verdicts.Store(store.path.removesuffix(verdicts.FILE)).find("new", 4, now)
    return found


def test_an_entry_as_it_was_is_found(tmp_path: Path) -> None:
    assert use(stored(tmp_path, lambda entry: None)) is not None


@pytest.mark.parametrize("entry", [5, {}, {"rows": []}, {"rows": [], "when": 1.0}])
def test_sealed_entry_that_is_something_else_is_absent(tmp_path: Path, entry: Any) -> None:
    assert use(stored(tmp_path, lambda _: entry)) is None


@pytest.mark.parametrize(
    ("field", "value"), [("index", "0"), ("identity", 5), ("code", "no-such-code"), ("caps", None)]
)
def test_sealed_row_with_a_field_of_another_type_is_absent(
    tmp_path: Path, field: str, value: Any
) -> None:
    assert use(stored(tmp_path, lambda entry: entry["rows"][0].update({field: value}))) is None
