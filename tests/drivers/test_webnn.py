"""WebNN's conformance cases on real drivers, by the tolerances of web-platform-tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import daily
import numpy as np
import pytest
from farm import FARM, answer
from onnx.reference import ReferenceEvaluator

from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from webnn_cases import share
from webnn_model import OPERATORS, PLAIN, every_case, group, model_of, tolerance, ulps_between

pytestmark = daily.day(2, of=4)

CHILD = Path(__file__).with_name("webnn_child.py")
SHARES = 8
"""Parts of the cases; today's runs on the drivers that have their turn."""
NOT_FINITE = ("clamp/minValue ", "clamp/maxValue ")
"""Cases with infinity among the inputs, which not every device keeps, or as a bound."""


def failures(configuration: str, number: int, count: int, timeout: float) -> list[object]:
    """Return what is wrong with a share of the cases, and what does not run and should."""
    rows = json.loads(answer(CHILD, configuration, number, count, timeout=timeout))["rows"]
    assert len(rows) == len(share(number, count)) > 0

    def is_refused(name: str) -> bool:
        return group(every_case()[name]) != PLAIN or name.startswith(NOT_FINITE)

    return [row for row in rows if row["status"] != "passed"
            and not (row["status"] == "unsupported" and is_refused(row["case"]))]  # fmt: skip


@pytest.mark.driver
@pytest.mark.parametrize("name", daily.others_long(FARM, daily.of_today(FARM)[daily.turn(2) :: 2]))
def test_a_share(name: str) -> None:
    assert failures(name, daily.turn(SHARES), SHARES, 280) == []


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.parametrize("name", [name for name, one in FARM.items() if not one.is_slow])
def test_every_case(name: str) -> None:
    assert failures(name, 0, 1, 3000) == []


def test_the_models_are_what_webnn_means() -> None:
    """By ONNX's own reference, so that a wrong result is no mistake of the model."""
    tried = set()
    for name in share(daily.turn(8), 8):
        case = every_case()[name]
        if group(case) != PLAIN:
            continue
        if (
            case["operator"] == "reduceLogSumExp"
            and not next(iter(case["inputs"].values()))["shape"]
        ):
            continue  # the reference has no such case
        model, feeds, wanted = model_of(case)
        got = dict(zip(wanted, ReferenceEvaluator(model).run(None, feeds), strict=True))
        why = [tolerance(case).excess(np.asarray(got[n]), wanted[n]) for n in wanted]
        assert not any(why), (name, why)
        tried.add(case["operator"])
    assert len(tried) > len(OPERATORS) // 2


def test_batch_normalisation_near_the_mean() -> None:
    """By the descriptions of operators, in numpy: the mean is subtracted first."""
    case = every_case()["batch_normalization/batchNormalization float32 2D tensor default options"]
    proto, feeds, wanted = model_of(case)
    graph = OnnxModel.load(proto).specialise({n: a.shape for n, a in feeds.items()}, {})
    got = CpuExecutor(engine="numpy").compile(graph).run(feeds)
    assert [tolerance(case).excess(got[name], right) for name, right in wanted.items()] == [""]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_one_unit_more_than_allowed_is_wrong(kind: str) -> None:
    for name, case in every_case().items():
        allowed = tolerance(case)
        wanted = list(model_of(case)[2].values()) if f" {kind} " in name else []
        for right in wanted if not allowed.absolute and "large" not in name else []:
            if right.dtype == kind and np.abs(right).max(initial=0) < 1e4:
                bits = right.view(f"i{right.itemsize}")
                assert allowed.excess((bits + allowed.ulps).view(kind), right) == ""
                assert allowed.excess((bits + allowed.ulps + 1).view(kind), right)


def test_units_in_the_last_place() -> None:
    a = np.array([1, -1, 0, 1e-45, -1e-45, np.inf, np.inf, 3.4028235e38], np.float32)
    b = np.array([np.nextafter(np.float32(1), np.float32(2)), 1, -0.0, -1e-45, 1e-45, np.inf,
                  -np.inf, np.inf], np.float32)  # fmt: skip
    np.testing.assert_array_equal(
        ulps_between(a, b), [1, 2 * 0x3F800000, 0, 2, 2, 0, np.inf, np.inf]
    )
    whole = np.array([-128, 127, 5], np.int8)
    np.testing.assert_array_equal(ulps_between(whole, whole[::-1].copy()), [133, 0, 133])
