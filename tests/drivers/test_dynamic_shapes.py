"""One session and many shapes: right results, a bound on what is kept, and what is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import daily
import pytest
from farm import FARM, answer
from shapes_child import MODELS, MOST, ORDER

pytestmark = daily.day(0, of=4)

CHILD = Path(__file__).with_name("shapes_child.py")
BOUND = 1e-5
"""Of the largest value: 80 products are added up with 80 x 2^-24 at most, and where an image is
resized the places between pixels, up to 33, are known within 3 x 33 x 2^-24 of a pixel."""


def kept_after() -> list[tuple[list[int], dict[str, int]]]:
    """Return which shapes are kept after each request, and what was counted until then."""
    kept: list[int] = []
    compiled, found = 0, []
    for at, number in enumerate(ORDER):
        compiled += number not in kept
        kept = [*(one for one in kept if one != number), number][-MOST:]
        again = compiled - len(set(ORDER[: at + 1]))
        counts = {"compiled": compiled, "dropped": compiled - len(kept), "compiled_again": again}
        found.append((kept, {"most": MOST, **counts}))
    return found


def nbytes(shapes: dict[str, Any]) -> int:
    rows = (one["memory"] for one in shapes["kept"])
    return sum(n for row in rows for role, n in row.items() if role != "most_alive")


@pytest.mark.driver
@pytest.mark.parametrize("name", ["vulkan-lavapipe", "gles20-llvmpipe"])
def test_shapes_come_and_go(name: str) -> None:
    for model, (*rows, end) in json.loads(answer(CHILD, name)).items():
        most = 0
        for row, (kept, counts) in zip(rows, kept_after(), strict=True):
            said = row["shapes"]
            assert row["error"] < BOUND, model
            assert {name: said[name] for name in counts} == counts
            wanted = [list(MODELS[model][1][number]) for number in kept]
            assert [one["inputs"]["x"] for one in said["kept"]] == wanted
            assert (said["seconds_again"] > 0) == (counts["compiled_again"] > 0)
            assert said["seconds"] > said["seconds_again"]
            assert all(one["device"].startswith(FARM[name].device) for one in said["kept"])
            most = max(most, nbytes(said))
            assert row["held"] <= nbytes(said), "no more is on the device than it says"
            assert row["most"] <= most, "not even while one more was compiled"
        assert end["held"] == 0
