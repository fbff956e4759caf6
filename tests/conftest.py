"""Options and isolation that the whole suite shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing with them",
    )


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's caches out of the tests, and the tests out of the user's caches."""
    folder = tmp_path_factory.mktemp("gpuedge-cache")
    before = os.environ.get("GPUEDGE_CACHE_DIR")
    os.environ["GPUEDGE_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["GPUEDGE_CACHE_DIR"]
    else:
        os.environ["GPUEDGE_CACHE_DIR"] = before
