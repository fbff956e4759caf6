"""RNN, GRU, LSTM and a tagger made of them on devices, against float64 row by row."""

from __future__ import annotations

import json
from pathlib import Path

import daily
import pytest
from daily import some
from farm import FARM, answer

pytestmark = daily.day(0, of=4)

CHILD = Path(__file__).with_name("recurrent_child.py")


@pytest.mark.driver
@pytest.mark.parametrize("name", some(["vulkan-lavapipe", "gles20-llvmpipe"]))
def test_recurrent_layers_stay_within_their_bounds_on_the_device(name: str) -> None:
    """All of every layer runs there; bounds are running errors of its own formulas."""
    rows = json.loads(answer(CHILD, name))
    assert len(rows) == 19
    for case, is_near, bound, where in rows:
        assert is_near, case
        assert bound < 2e-3, (case, bound)
        assert set(where) <= {f"{FARM[name].device}:0", "host"}, case
