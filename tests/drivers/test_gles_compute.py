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


SLOW = ("gles30-swiftshader-legacy", "gles30-softpipe")
"""Drivers that interpret each fragment; other drivers of the level take the same paths."""


@pytest.mark.parametrize(
    "configuration",
    [pytest.param(c, marks=[pytest.mark.long] if c in SLOW else []) for c in GLES],
)
def test_numbers(configuration: str) -> None:
    need(configuration)
    run(configuration, *checks(configuration[:6]))
