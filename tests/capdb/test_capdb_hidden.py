"""What a record does not tell stays unknown: the API under WebGPU, the API at all, the layers."""

from __future__ import annotations

from typing import Any

import pytest
from capdb.corpus import of_entries
from capdb_rows import TODAY, adreno, entry

from gpuedge.capdb.entries import Entry
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.judgement import lookup
from gpuedge.capdb.matching import result
from gpuedge.core.config import config
from gpuedge.core.errors import ConfigError

NAMES = {"vulkan", "gles", "metal", "d3d12"}


def about(api: str) -> Entry:
    return entry(match=[{"layer": ["native", "angle", "moltenvk"]}], api=api)


def found(record: dict[str, Any], *entries: Entry) -> set[str]:
    """Return the results of the entries on a device, asked with and without the index."""
    base, who = of_entries(entries), subject(record)
    judgement = lookup(who, database=base, today=TODAY)
    by_all = {result(one, who)[0].value for one in entries}
    assert {finding.result for finding in judgement.findings} == by_all
    return by_all


@pytest.mark.parametrize(
    ("record", "unknown"),
    [
        ({}, NAMES),
        ({"backend": "something"}, NAMES),
        ({"os": "linux"}, {"vulkan", "gles"}),
        ({"os": "android"}, {"vulkan", "gles"}),
        ({"os": "windows"}, {"vulkan", "gles", "d3d12"}),
        ({"os": "macos"}, {"vulkan", "gles", "metal"}),
        ({"backend": "null"}, set()),
        ({"backend": "Vulkan"}, set()),
    ],
)
def test_what_webgpu_may_run_on_is_not_known(record: dict[str, Any], unknown: set[str]) -> None:
    who = {"api": "wgpu", "deviceName": "Adreno (TM) 620", **record}
    true = {"wgpu", record.get("backend", "").lower()}
    if record.get("os") == "macos":  # where MoltenVK may be between
        true, unknown = set(), {*unknown, "wgpu"}
    for api in (*NAMES, "wgpu"):
        expected = "true" if api in true else "unknown" if api in unknown else "false"
        assert found(who, about(api)) == {expected}, api


def test_webgpu_of_an_unknown_api_says_so() -> None:
    note = "nothing tells which API WebGPU runs on"
    assert note in subject({"api": "wgpu"}).notes
    assert note not in subject({"api": "wgpu", "backend": "vulkan"}).notes


@pytest.mark.parametrize(
    ("record", "layers"),
    [
        ({"deviceName": "Mali-G76", "os": "android"}, None),
        ({"deviceName": "Apple M1"}, None),
        ({"api": "vulkan", "deviceName": "Mali-G76", "os": "android"}, ()),
        ({"deviceName": "Mali-G76", "driverID": 9}, ()),
        ({"deviceName": "Apple M1", "driverID": 14}, ("moltenvk",)),
        ({"GL_RENDERER": "Adreno (TM) 620", "GL_VERSION": "OpenGL ES 3.2 V@415.0"}, ()),
        ({"name": "ANGLE (Qualcomm, Adreno (TM) 620, OpenGL ES 3.2)"}, ("angle",)),
    ],
)
def test_layers_of_a_record_without_api(
    record: dict[str, Any], layers: tuple[str, ...] | None
) -> None:
    assert subject(record).layers == layers
    expected = {"unknown"} if layers is None else {"true" if layers == ("angle",) else "false"}
    assert found(record, entry(match=[{"layer": ["angle"]}])) == expected


@pytest.mark.parametrize(
    "ignore",
    [
        "adreno-0001,adreno-0002", "adreno-0001 , adreno-0002", "ADRENO-0001 Adreno-0002", "all",
        "ALL", ["Adreno-0001", "ADRENO-0002"], {"adreno-0001", "adreno-0002"}, iter(["All"]),
    ],
)  # fmt: skip
def test_ignored_ids_as_a_text_and_in_any_case(ignore: Any) -> None:
    base = of_entries([entry(1), entry(2)])
    judgement = lookup(adreno(), database=base, ignore=ignore, today=TODAY)
    assert {f.becomes for f in judgement.relevant} == {"ignored"}
    assert not judgement.notes
    if isinstance(ignore, str):
        with config(ignore=ignore):
            assert lookup(adreno(), database=base, today=TODAY).ignored == judgement.ignored


@pytest.mark.parametrize("ignore", [5, [5], ["adreno-0001", None], b"adreno-0001", [b"x"]])
def test_what_is_no_id_is_refused(ignore: Any) -> None:
    with pytest.raises(ConfigError, match="cannot ignore") as caught:
        lookup(adreno(), database=of_entries([entry(1)]), ignore=ignore)
    assert caught.value.code == "GE-101"
