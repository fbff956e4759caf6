"""Sealed files and the calibration store: what is not intact does not exist."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import edge_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.decide import store as store_module
from gpuedge.decide.store import MAX_ENTRIES, PATIENCE, CalibrationStore, calibration_key
from gpuedge.safety.store import load_sealed, save_sealed

SCHEMA = "gpuedge.test/1"
BODY = {"list": [1, 2.5, None, True], "text": "grün \ud800", "nested": {"a": {}}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False,
                                                                      allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


def test_round_trip_makes_the_folder_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert save_sealed(path, SCHEMA, BODY)
    assert load_sealed(path, SCHEMA) == BODY
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


@settings(max_examples=50)
@given(body=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    assert save_sealed(path, SCHEMA, body)
    assert load_sealed(path, SCHEMA) == body


def test_every_cut_and_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    body = {"key": "value", "n": 12}
    save_sealed(path, SCHEMA, body)
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # the newline at the end carries nothing
        path.write_bytes(whole[:length])
        assert load_sealed(path, SCHEMA) is None, length
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        # None, or the whole truth: a flip can fall on white space that JSON does not mind
        assert load_sealed(path, SCHEMA) in (None, body), place


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"body": {}}',
     b'{"body": {}, "format": 1, "schema": "gpuedge.test/1", "sha256": null}'],
)  # fmt: skip
def test_foreign_file_reads_as_absent(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(data)
    assert load_sealed(path, SCHEMA) is None


def test_other_schema_format_or_edited_body_reads_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    save_sealed(path, SCHEMA, BODY)
    assert load_sealed(path, "gpuedge.test/2") is None
    for change in ({"format": 2}, {"body": {"edited": 1}}, {"schema": "gpuedge.other/1"}):
        save_sealed(path, SCHEMA, BODY)
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        assert load_sealed(path, SCHEMA) is None
        assert load_sealed(path, "gpuedge.other/1") is None


@pytest.mark.parametrize("body", [{"x": float("nan")}, {"x": {1, 2}}, {1: 2}, {"x": (1, 2)}])
def test_what_would_not_come_back_is_not_written(tmp_path: Path, body: Any) -> None:
    path = tmp_path / "n.json"
    save_sealed(path, SCHEMA, BODY)
    assert not save_sealed(path, SCHEMA, body)
    assert load_sealed(path, SCHEMA) == BODY


def test_unwritable_place_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "x.json"
    assert not save_sealed(path, SCHEMA, BODY)
    assert load_sealed(path, SCHEMA) is None
    assert load_sealed(tmp_path, SCHEMA) is None


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "h.json"
    with path.open("wb") as file:
        file.truncate(1 << 32)  # sparse: 4 GiB that take no room
    assert load_sealed(path, SCHEMA) is None


# ---- calibrations


def test_calibration_round_trip(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    key = calibration_key("vulkan:0", {"fingerprint": "a"})
    assert store.get(key) is None
    assert store.put(key, edge_gpu())
    assert CalibrationStore(tmp_path).get(key) == edge_gpu()
    assert store.get(calibration_key("vulkan:1", {"fingerprint": "a"})) is None


def test_default_folder_is_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path))
    assert CalibrationStore().path == tmp_path / "calibration.json"


def test_key_covers_everything_that_changes_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        return [
            calibration_key("vulkan:0", {"fingerprint": "a"}, "k 1", 4),
            calibration_key("vulkan:1", {"fingerprint": "a"}, "k 1", 4),
            calibration_key("vulkan:0", {"fingerprint": "b"}, "k 1", 4),
            calibration_key("vulkan:0", {"fingerprint": "a"}, "k 2", 4),
            calibration_key("vulkan:0", {"fingerprint": "a"}, "k 1", 8),
        ]

    before = keys()
    assert before == keys()
    monkeypatch.setattr("gpuedge.__version__", "99.0")
    assert len({*before, *keys()}) == 10


def test_partial_model_counts_after_three_attempts(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    for _ in range(PATIENCE):
        assert CalibrationStore(tmp_path).get("k") is None
        assert CalibrationStore(tmp_path).put("k", edge_gpu(complete=False))
    assert store.get("k") == edge_gpu(complete=False)


def test_complete_model_replaces_a_partial_one(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    store.put("k", edge_gpu(complete=False))
    assert store.get("k") == edge_gpu(complete=False)  # good enough for the process that made it
    store.put("k", edge_gpu())
    assert CalibrationStore(tmp_path).get("k") == edge_gpu()


def test_corrupt_file_is_rebuilt(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    store.put("k", edge_gpu())
    store.path.write_bytes(store.path.read_bytes()[:-20])
    assert CalibrationStore(tmp_path).get("k") is None
    assert CalibrationStore(tmp_path).put("k", edge_gpu("vulkan:7"))
    assert CalibrationStore(tmp_path).get("k") == edge_gpu("vulkan:7")


@pytest.mark.parametrize(
    "entry",
    [["k", {}, 1], ["k", None, 1], ["k", {"device": "x", "launch_s": -1, "overhead_s": 0}, 1],
     ["k"], 7, ["k", edge_gpu().to_dict(), "1"],
     ["k", {"device": "x", "launch_s": 1, "overhead_s": 0, "spread": 3}, 1],
     *(["k", {**edge_gpu().to_dict(), **absurd}, 1] for absurd in (
         {"launch_s": 10**400}, {"overhead_s": 1e308}, {"open_s": 1e10}, {"bandwidth_bps": 1e308},
         {"flops_per_s": {"conv": 1e300}}, {"spread": {"fixed": 1e300}}, {"device": [1]},
         {"complete": "yes"},
     ))],
)  # fmt: skip
def test_sealed_nonsense_is_no_model(tmp_path: Path, entry: Any) -> None:
    store = CalibrationStore(tmp_path)
    save_sealed(store.path, store_module.SCHEMA, {"entries": [entry]})
    assert store.get("k") is None
    assert store.put("k", edge_gpu())
    assert CalibrationStore(tmp_path).get("k") == edge_gpu()


def test_newest_entries_are_kept(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    for i in range(MAX_ENTRIES + 3):
        store.put(f"k{i}", edge_gpu(f"vulkan:{i}"))
    store = CalibrationStore(tmp_path)
    assert store.get("k2") is None
    assert store.get("k3") == edge_gpu("vulkan:3")
    assert store.get(f"k{MAX_ENTRIES + 2}") is not None


def _write_many(folder: str, name: str) -> None:
    store = CalibrationStore(Path(folder))
    for i in range(20):
        store.put(f"{name}{i}", edge_gpu(f"{name}:{i}"))


def test_two_processes_never_tear_the_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write_many, args=(str(tmp_path), n)) for n in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert load_sealed(tmp_path / "calibration.json", store_module.SCHEMA) is not None
    store = CalibrationStore(tmp_path)
    assert all(store.get(f"{name}{i}") is not None for name in "ab" for i in range(20))
    assert {p.name for p in tmp_path.iterdir()} == {"calibration.json", "lock"}
