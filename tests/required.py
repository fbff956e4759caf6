"""What becomes of a test that misses a driver or a tool: see `absent`."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(words: str) -> NoReturn:
    """Skip the test, or fail where drivers are required: a driver missing there is a failure."""
    if os.environ.get("GPUEDGE_REQUIRE_DRIVERS") == "1":
        pytest.fail(words)
    pytest.skip(words)
