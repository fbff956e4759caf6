"""Fake drivers for the tests of `probe()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from looks import wait_for_looks
from probing_fakes import WORKER

from gpuedge import backends
from gpuedge.probing import api, run


@pytest.fixture(autouse=True)
def no_look_is_under_way() -> Iterator[None]:
    """Let no test meet what another one left to the background."""
    yield
    wait_for_looks()


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Only one good fake driver, a fresh cache folder, and a count of the children started."""
    monkeypatch.setitem(backends.BUILTIN, "fake", "probing_fakes:FakeBackend")
    monkeypatch.setattr(backends, "PROBED", ("fake",))
    monkeypatch.setattr(run, "COMMAND", WORKER)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    monkeypatch.setenv("PROBE_FAKES", "ok")
    # Nobody waits for it: a busy machine needs longer to start four children than 4 s.
    monkeypatch.setitem(api.probe.__kwdefaults__, "deadline_s", 60.0)
    for name in ("GPUEDGE_BACKENDS", "GPUEDGE_DB", "GPUEDGE_CONFIG", "GPUEDGE_PIN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
