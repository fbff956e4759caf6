"""Kernels on every driver, level and storage kind, against numpy."""

from __future__ import annotations

import pytest
from gles_child import GLES, Check, need, run

pytestmark = pytest.mark.driver


def checks(level: str) -> list[str | Check]:
    """The checks that a level must pass."""
    found: list[str | Check] = ["storages", "chain", "reuse", "parts", "special", "refusals"]
    found += ["mixed"] if level != "gles31" else ["groups"]
    return found


@pytest.mark.parametrize("configuration", GLES)
def test_numbers(configuration: str) -> None:
    need(configuration)
    run(configuration, *checks(configuration[:6]))
