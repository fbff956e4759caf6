"""Doing without the rights of root, whom nothing is forbidden: for what may not be read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def as_somebody() -> Iterator[None]:
    """Run a block without the rights of root; whoever has none runs it as who he is."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that others can reach, which the folders of tests are not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    for top, _, _ in os.walk(place):
        Path(top).chmod(0o755)
    shutil.rmtree(place)
