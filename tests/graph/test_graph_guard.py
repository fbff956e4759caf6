"""Integer divisions that would end the process, in a process of their own: against Python's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnx_models import model, value, weight

from gpuedge.graph import guard

CHILD = Path(__file__).with_name("division_child.py")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_least_integer_by_minus_one(dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, CHILD, dtype], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]  # -8 (SIGFPE) without the guard
    assert done.stdout.split() == ["32"]


def divided(dtype: int, divisor: object) -> onnx.ModelProto:
    nodes = [helper.make_node("Sqrt" if dtype == 1 else "Abs", ["b"], ["c"])]
    nodes += [helper.make_node("Div", ["a", "c" if divisor is None else "w"], ["y"])]
    held = [] if divisor is None else [weight("w", divisor)]
    ends = [value("a", [2], dtype), value("b", [2], dtype)]
    return model(nodes, ends, [value("y", None, dtype)], held)


def test_nothing_else_is_touched() -> None:
    import numpy as np

    for proto in (divided(1, None), divided(7, np.array([2])), divided(7, np.array([0]))):
        before = proto.SerializeToString()
        assert not guard.guard(proto)
        assert proto.SerializeToString() == before
    assert guard.guard(divided(7, None))
    assert guard.guard(divided(7, np.array([2, -1])))
