"""A transformer that generates with its cache on a device: right, and nothing moves or is planned.

The tokens are those of ONNX's reference evaluator. The scores of the best two are 7e-3 apart or
more, and results may be 1e-4 off.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import daily
import numpy as np
import pytest
from farm import FARM, answer
from onnx.reference import ReferenceEvaluator

pytestmark = daily.day(3, of=4)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
CHILD = Path(__file__).with_name("decoder_child.py")
SETTLED = 12
"""Steps until every buffer that is given back has been used again, and recorded over."""


@cache
def wanted(places: int) -> tuple[list[int], float]:
    """Return the tokens of ONNX's reference, and the least lead of a best score."""
    example: Any = import_module("build_decoder")
    model = example.decoder(places)
    evaluator = ReferenceEvaluator(model)
    caches = {f"{what}{i}": np.zeros((1, places, 16), np.float32)
              for what in ("keys", "values") for i in range(example.LAYERS)}  # fmt: skip
    token, tokens, lead = example.LETTERS.index("t"), list[int](), np.inf
    for step in range(40):
        feeds = {"token": np.int64([[token]]), "place": np.int64([step]), **caches}
        results = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        caches = {name: results[f"new_{name}"] for name in caches}
        scores = results["scores"].reshape(-1)
        token = int(scores.argmax())
        lead = min(lead, float(np.diff(np.sort(scores)[-2:])[0]))
        tokens.append(token)
    return tokens, lead


DRIVERS = [name for name, one in FARM.items() if not one.is_slow]


@pytest.mark.driver
@pytest.mark.parametrize(
    "name", daily.others_long(DRIVERS, daily.of_today(FARM)[daily.turn(2) :: 2])
)
def test_a_decoder_keeps_its_cache_on_the_device(name: str, tmp_path: Path) -> None:
    moved = []
    for places in (64, 256):
        tokens, lead = wanted(places)
        assert lead > 7e-3
        said = json.loads(answer(CHILD, name, places, GPUEDGE_CACHE_DIR=tmp_path))
        assert said["tokens"] == tokens
        assert all(d.startswith((FARM[name].device, "host")) for d in said["devices"])
        first, later = said["steps"][0], said["steps"][1:]
        assert first["bytes"] > 0
        assert {step["plans"] for step in later} == {0}
        assert {step["kernels"] for step in later[1:]} == {0}
        assert {step["recordings"] for step in later[SETTLED:]} == {0}
        moved.append({step["bytes"] for step in later})
    assert moved[0] == moved[1]
    assert len(moved[0]) == 1
    assert moved[0].pop() < 64 * 16 * 4  # less than one of the four caches
