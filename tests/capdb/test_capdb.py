"""Tuning classes: identities seen in the wild class right, and a bad database is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuedge import capdb
from gpuedge.capdb.check import first_error
from gpuedge.core.errors import DatabaseError
from gpuedge.core.identity import Identity
from gpuedge.safety import paths

FOLDER = paths.data_dir("capability_db")
WILD = json.loads((FOLDER / "fixtures" / "devices.json").read_text())


def identity(record: dict[str, Any]) -> Identity:
    fields = {**record, "name": record["deviceName"], "os": record.get("os", "")}
    for key in ("vendorID", "deviceID"):
        if key in record:
            fields[key] = int(record[key], 16)
    return Identity.from_dict(fields)


@pytest.mark.parametrize("case", WILD, ids=lambda c: c["device"]["id"])
def test_identity_from_the_wild(case: dict[str, Any]) -> None:
    assert capdb.classify(identity(case["device"])) == case["device_class"]


def test_wild_sample_covers_every_class() -> None:
    assert {c["device_class"] for c in WILD} == set(capdb.DEVICE_CLASSES)


def test_vendor_alone_decides_where_the_name_is_unknown() -> None:
    new = Identity("vulkan", "Some GPU of next year", "linux", vendorID=0x13B5)
    assert capdb.classify(new) == "mali"
    assert capdb.classify(Identity("vulkan", "Some GPU of next year", "linux")) == "generic"


def test_unknown_never_matches() -> None:
    row = capdb.ClassRow("x", "amd", ("vulkan",), driverID=3)
    assert not row.matches(Identity("vulkan", "n", "linux"))
    assert row.matches(Identity("vulkan", "n", "linux", driverID=3))
    assert not row.matches(Identity("gles", "n", "linux", driverID=3))


def test_first_row_wins() -> None:
    rows = (
        capdb.ClassRow("a", "intel", ("vulkan",), name_prefix="GPU A"),
        capdb.ClassRow("b", "amd", ("vulkan",), device_type="CPU"),
    )
    both = Identity("vulkan", "GPU A1", "linux", device_type="CPU")
    assert capdb.classify(both, rows) == "intel"
    assert capdb.classify(both, rows[::-1]) == "amd"


def good() -> dict[str, Any]:
    match = {"api": ["vulkan"], "vendorID": "0x1"}
    return {
        "schema": "gpuedge.classes/1",
        "rows": [{"id": "a", "match": match, "device_class": "amd"}],
    }


def changed(**change: Any) -> dict[str, Any]:
    document = good()
    row = document["rows"][0]
    row["match"].update(change.pop("match", {}))
    row.update(change)
    return document


def test_other_database_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes.json").write_text(json.dumps(good()))
    monkeypatch.setenv("GPUEDGE_DB", str(tmp_path))
    assert capdb.classify(Identity("vulkan", "x", "linux", vendorID=1)) == "amd"
    assert capdb.classify(Identity("vulkan", "x", "linux", vendorID=0x13B5)) == "generic"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schema": "gpuedge.classes/2", "rows": []}, "schema"),
        ({"schema": "gpuedge.classes/1"}, "rows"),
        ({"schema": "gpuedge.classes/1", "rows": [7]}, "cannot be used"),
        ([], "not a JSON object"),
        (changed(match={"vendor": "0x1"}), "vendor"),
        (changed(match={"vendorID": "0xZZ"}), "0xZZ"),
        (changed(match={"vendorID": 7}), "cannot be used"),
    ],
)
def test_bad_database_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Any, words: str
) -> None:
    (tmp_path / "classes.json").write_text(json.dumps(document))
    monkeypatch.setenv("GPUEDGE_DB", str(tmp_path))
    with pytest.raises(DatabaseError) as caught:
        capdb.load()
    assert caught.value.code == "GE-600"
    assert words in str(caught.value)
    assert "GPUEDGE_DB" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100000])
def test_unreadable_database_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "classes.json").write_bytes(data)
    with pytest.raises(DatabaseError, match="cannot be used"):
        capdb.load(tmp_path)


def test_missing_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="cannot be used"):
        capdb.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "document",
    [
        changed(device_class="voodoo"),
        changed(match={"name_prefix": 7}),
        {**good(), "rows": [{**good()["rows"][0], "match": {"api": ["vulkan"]}}]},
    ],
)
def test_what_would_be_misread_is_against_the_schema(document: Any) -> None:
    assert first_error("classes.json", good()) == ""
    assert first_error("classes.json", document) != ""


def test_schema_file_describes_what_the_loader_accepts() -> None:
    schema = json.loads((FOLDER / "classes.schema.json").read_text())
    row = schema["$defs"]["row"]
    assert set(row["required"]) == {"id", "match", "device_class"}
    assert row["properties"]["device_class"]["enum"] == list(capdb.DEVICE_CLASSES)
    match = row["properties"]["match"]
    known = set(capdb.ClassRow.__dataclass_fields__) - {"id", "device_class"}
    assert set(match["properties"]) == known
    assert match["additionalProperties"] is False


def test_no_code_among_the_data() -> None:
    assert not list(FOLDER.rglob("*.py"))
