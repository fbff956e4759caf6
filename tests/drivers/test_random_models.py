"""Random models on real drivers, each in a process of its own, against float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import random_models
from farm import require
from modelgen.case import Builder, Case
from modelgen.judge import judge
from modelgen.networks import NETWORKS, random_case
from modelgen.shrink import shrunk
from random_models import PASSED, UNSUPPORTED, WRONG, rows_of

pytestmark = pytest.mark.driver

DAILY = {"vulkan-lavapipe": range(1, 11), "gles20-llvmpipe": range(25, 27)}
"""Configurations and the models that they run every day."""

LONG = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
        "gles20-llvmpipe", "wgpu-lavapipe")  # fmt: skip


def check(configuration: str, seeds: range, least: float) -> None:
    require(configuration)
    rows = list(rows_of(configuration, seeds))
    assert [row for row in rows if row["status"] not in (PASSED, UNSUPPORTED)] == []
    passed = [row for row in rows if row["status"] == PASSED]
    assert len(passed) >= least * len(seeds)
    assert all("cpu" not in place for row in passed for place in row["on"])


@pytest.mark.parametrize("configuration", DAILY)
def test_random_models(configuration: str) -> None:
    check(configuration, DAILY[configuration], 0.7)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("configuration", LONG)
def test_many_random_models(configuration: str) -> None:
    check(configuration, range(1_000_000, 1_002_000), 0.7)


def test_a_seed_is_a_model() -> None:
    first, again = (random_case(12)[1] for _ in range(2))
    assert first.proto().SerializeToString() == again.proto().SerializeToString()
    assert all((first.feeds[n] == again.feeds[n]).all() for n in first.feeds)


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_are_valid_models(kind: str) -> None:
    for opset in (7, 10, 13, 19, 21):
        b = Builder(np.random.default_rng(opset), opset, is_whole=False)
        b.case.outputs = [NETWORKS[kind](b)]
        onnx.checker.check_model(b.case.pruned().proto(), full_check=True)


def sums() -> Case:
    """Ten functions one after the other, one of them of a sum."""
    b = Builder(np.random.default_rng(3), 13, is_whole=True)
    x = b.put(b.floats((4, 6)), is_constant=False)
    for op in ("Relu", "Neg", "Abs", "Tanh", "Sigmoid"):
        x = b.node(op, [x])
    x = b.node("Add", [x, b.put(np.float32(1), is_constant=True)])
    for op in ("Sqrt", "Exp", "Neg", "Softplus"):
        x = b.node(op, [x])
    b.case.outputs = [x]
    return b.case


def test_what_is_wrong_is_noticed() -> None:
    case = sums()
    (name,) = case.outputs
    right = case.values[name].astype(np.float32)
    assert not judge(case, {name: right}).why
    off = right.copy()
    off[2, 3] *= 1 + 1e-2
    assert "1 of 24 are wrong, such as [2, 3]" in judge(case, {name: off}).why
    assert judge(case, {name: right[:3]}).why and judge(case, {name: right.astype("f8")}).why
    assert judge(case, {name: np.full_like(right, np.nan)}).why


def test_exact_numbers_must_be_those() -> None:
    b = Builder(np.random.default_rng(3), 13, is_whole=True)
    x = b.put(b.floats((1, 3, 5, 5)), is_constant=False)
    y = b.node("Conv", [x, b.held(b.floats((4, 3, 3, 3)))], kernel_shape=[3, 3])
    b.case.outputs = [y]
    right = b.case.values[y].astype(np.float32)
    assert b.is_exact(y) and not judge(b.case, {y: right}).why
    assert judge(b.case, {y: np.nextafter(right, np.float32(9))}).why


def test_failures_are_shrunk() -> None:
    found = shrunk(sums(), lambda case: any(n.op_type == "Sqrt" for n in case.nodes))
    assert [n.op_type for n in found.nodes] == ["Sqrt"]
    assert len(found.feeds) == 1


def test_errors_of_python_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("b")

    monkeypatch.setattr(random_models, "answers", broken)
    row = random_models.one(5, "cpu", None)
    assert row["status"] == WRONG and row["why"] == "KeyError: 'b'"
