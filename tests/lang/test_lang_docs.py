"""The page shaders/README.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from kernel_interpreter import interpret

from gpuedge import lang
from gpuedge.core.errors import KernelSyntaxError
from gpuedge.lang import tokens
from gpuedge.lang.builtins import BUILTINS

PAGE = (Path(__file__).resolve().parents[2] / "shaders" / "README.md").read_text()
FENCED = r"```\w*\n(.*?)```"
BLOCKS = re.findall(FENCED, PAGE, re.DOTALL)
INLINE = re.findall(r"`([^`]+)`", re.sub(FENCED, "", PAGE, flags=re.DOTALL))
EXAMPLE, _, ERROR = BLOCKS


def test_example_runs() -> None:
    kernel = lang.load(EXAMPLE, filename="scale_add.kern", consts={"TAPS": 1})
    ones = np.ones((1, 1, 1, 3, 4), np.float32)
    got = interpret(kernel, {"A": ones, "B": ones}, (3, 1, 1, 1), params={"K": 2.0})
    np.testing.assert_array_equal(got[0, 0, 0, :, 0], [2, 3, 3])  # the tap at x - 1 only
    assert lang.print_kernel(kernel).name == "scale_add"


def test_error_looks_as_shown() -> None:
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(EXAMPLE.replace("* K", "* 2"), filename="scale_add.kern")
    assert str(caught.value) == ERROR.rstrip("\n")


def test_every_word_is_on_the_page() -> None:
    known = {*BUILTINS, *tokens.ACCESS, *tokens.STORES, *tokens.KEYWORDS} - {"void", "in", "out"}
    code = " ".join([*BLOCKS, *INLINE])
    assert {word for word in known if not re.search(rf"\b{word}\b", code)} <= {"true", "false"}
