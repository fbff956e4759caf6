"""Sealed files and the calibration store: what is not intact does not exist."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from decide_fakes import edge_gpu

from gpuedge.decide import store as store_module
from gpuedge.decide.store import MAX_CALIBRATIONS, PATIENCE, CalibrationStore, calibration_key
from gpuedge.safety.store import load_sealed, save_sealed

SCHEMA = "gpuedge.test/1"
BODY = {"list": [1, 2.5, None, True], "text": "grün \ud800", "nested": {"a": {}}}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"body": {}}',
     b'{"body": {}, "format": 1, "schema": "gpuedge.test/1", "sha256": null}'],
)  # fmt: skip
def test_foreign_file_reads_as_absent(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(data)
    assert load_sealed(path, SCHEMA) is None


def test_unwritable_place_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "x.json"
    assert not save_sealed(path, SCHEMA, BODY)
    assert load_sealed(path, SCHEMA) is None
    assert load_sealed(tmp_path, SCHEMA) is None


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
    monkeypatch.setattr("gpuedge.decide.store.__version__", "99.0")
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
    save_sealed(store.path, store_module.CALIBRATION_SCHEMA, {"entries": [entry]})
    assert store.get("k") is None
    assert store.put("k", edge_gpu())
    assert CalibrationStore(tmp_path).get("k") == edge_gpu()


def test_newest_entries_are_kept(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path)
    for i in range(MAX_CALIBRATIONS + 3):
        store.put(f"k{i}", edge_gpu(f"vulkan:{i}"))
    store = CalibrationStore(tmp_path)
    assert store.get("k2") is None
    assert store.get("k3") == edge_gpu("vulkan:3")
    assert store.get(f"k{MAX_CALIBRATIONS + 2}") is not None


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
    assert load_sealed(tmp_path / "calibration.json", store_module.CALIBRATION_SCHEMA) is not None
    store = CalibrationStore(tmp_path)
    assert all(store.get(f"{name}{i}") is not None for name in "ab" for i in range(20))
    assert {p.name for p in tmp_path.iterdir()} == {"calibration.json", "lock"}
