"""Fake drivers for the tests of `probe()`."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing_fakes import WORKER

from gpuedge import backends
from gpuedge.probing import run


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only one good fake driver, a fresh cache folder, and a count of the children started."""
    monkeypatch.setitem(backends.BUILTIN, "fake", "probing_fakes:FakeBackend")
    monkeypatch.setattr(backends, "PROBED", ("fake",))
    monkeypatch.setattr(run, "COMMAND", WORKER)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("PROBE_FAKES", "ok")
    for name in ("GPUEDGE_BACKENDS", "GPUEDGE_DB", "GPUEDGE_CONFIG", "GPUEDGE_PIN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
