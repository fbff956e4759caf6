"""Small runs of the two campaigns on cache files, and proof that they would see a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cache_formats  # noqa: E402
import cache_fuzz  # noqa: E402

from gpuedge.safety import store  # noqa: E402


def test_damaged_files_are_never_believed() -> None:
    summary = cache_fuzz.fuzz(2_000, 7)
    assert summary["is_good"], summary["faults"]
    assert summary["blobs"] == 2_000
    assert len(summary["formats"]) == 5
    for name, counts in summary["formats"].items():
        assert counts["refused"] > 150, name
        assert "wrongly believed" not in counts
        assert {d.__name__ for d in cache_fuzz.DAMAGES} <= set(counts)


def test_reader_that_does_not_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Anything(bytes):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = bytes.__hash__

    monkeypatch.setattr(store, "_head", lambda *_: Anything(b"head\n"))
    summary = cache_fuzz.fuzz(1_200, 7)
    assert set(summary["faults"]) == {"verdicts", "launches", "kernels"}
    assert not summary["is_good"]


def campaign(program: str, folder: Path) -> dict[str, Any]:
    """Run a campaign in a process of one thread: it forks."""
    text = f"import json, sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import kill_campaign\n"
    text += f"from pathlib import Path; folder = Path({str(folder)!r})\n" + program
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_killed_writers_leave_caches_that_work(tmp_path: Path) -> None:
    summary = campaign("print(json.dumps(kill_campaign.campaign(12, 7, folder)))", tmp_path)
    assert summary["is_good"], summary["faults"]
    assert summary["counts"]["kills"] == 24
    assert summary["counts"]["files read"] > 0


TORN = """
def torn(path, data, *_):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) // 2])
    return True

kill_campaign.paths.write_atomic = torn
print(json.dumps(kill_campaign.campaign(3, 7, folder)))
"""


def test_writer_that_tears_files_is_found(tmp_path: Path) -> None:
    summary = campaign(TORN, tmp_path)
    assert any("damaged" in fault for fault in summary["faults"])


def test_every_format_has_two_good_files_that_differ() -> None:
    for kind in cache_formats.formats():
        first, second = (kind.read(good) for good in kind.good)
        assert first is not None
        assert first != second
        assert kind.read(kind.reseal(kind.good[0])) == first
