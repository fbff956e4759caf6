"""A cache folder for every test of a verb, and a probe that starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BAD, GOOD

from gpuedge.probing.report import ProbeReport


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    return folder


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Makes probe() answer with one good and one crashed driver; records its arguments."""
    calls: list[dict[str, Any]] = []

    def probe(**arguments: Any) -> ProbeReport:
        calls.append(arguments)
        return ProbeReport((GOOD, BAD), "0.1.0", 0.5)

    monkeypatch.setattr("gpuedge.probing.api.probe", probe)
    return calls
