"""Work in pieces on real drivers: the same bits as in one, and progress while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from farm import answer

pytestmark = daily.day(1, of=4)

CHILD = Path(__file__).with_name("pieces_child.py")
LEVELS = (
    "vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
    "gles20-llvmpipe", "wgpu-lavapipe",
)  # fmt: skip


def check(name: str, graphs: int, first: int) -> None:
    body = json.loads(answer(CHILD, name, graphs, first, timeout=1700).splitlines()[-1])
    assert body["different"] == []
    assert body["graphs"] == graphs and body["passes"] >= 2 * graphs
    assert body["right"]
    assert body["pieces"] == body["told"] >= 6


@pytest.mark.driver
@pytest.mark.parametrize("name", daily.of_today(LEVELS))
def test_pieces_give_the_same_bits_and_tell_of_progress(name: str) -> None:
    check(name, 4, 0)


@pytest.mark.driver
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LEVELS)
def test_many_graphs_in_pieces_give_the_same_bits(name: str) -> None:
    check(name, 500, 0)
