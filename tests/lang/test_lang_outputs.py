"""Map kernels with several out tensors: what is allowed, and what the interpreter makes of it."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from gpuedge import lang
from gpuedge.core.errors import KernelSyntaxError

TEXT = """kernel map stats;
in tensor X;
out tensor M;
out tensor S;
vec4 main(ivec4 p) {
    vec4 x = load4(X, p);
    emit(S, x * 2.0);
    return x + 1.0;
}
"""


def test_each_out_tensor_gets_its_value() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (2, 1, 2, 3, 4)).astype(np.float32)
    kernel = lang.load(TEXT, filename="stats.kern")
    outs = lang.interpret_all(kernel, {"X": x}, (3, 2, 1, 2), strict=True)
    assert sorted(outs) == ["M", "S"]
    np.testing.assert_array_equal(outs["M"], x + 1)
    np.testing.assert_array_equal(outs["S"], x * 2)


def test_every_out_tensor_is_an_argument_of_the_printed_kernel() -> None:
    blob = lang.print_kernel(lang.load(TEXT, filename="stats.kern"))
    assert [(a.name, a.access) for a in blob.tensors] == [
        ("X", "read"), ("M", "write"), ("S", "write"),
    ]  # fmt: skip
    done = subprocess.run(
        ["spirv-val", "--target-env", "vulkan1.0", "-"], input=blob.code, check=False,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        ("", "out tensor 'S' is never written"),
        ("emit(S, x); emit(S, x);", "'S' is emitted twice"),
        ("emit(M, x);", "emit() is for the out tensors after the first"),
        ("emit(X, x);", "emit() is for the out tensors after the first"),
        ("emit(S, x.x);", "a value of type float for vec4"),
        ("if (x.x > 0.0) { emit(S, x); }", "emit() stands under no if and in no loop"),
        ("for (int i = 0; i < 2; i++) { emit(S, x); }", "emit() stands under no if"),
        ("{ emit(S, x); }", "emit() stands under no if and in no loop"),
        ("emit(S x);", "expected ','"),
    ],
)
def test_what_is_refused(instead: str, message: str) -> None:
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(TEXT.replace("emit(S, x * 2.0);", instead), filename="stats.kern")
    assert message in str(caught.value)


def test_helpers_and_group_kernels_have_no_emit() -> None:
    helper = "float f(float a) { emit(S, vec4(a)); return a; }\nvec4 main("
    with pytest.raises(KernelSyntaxError, match="emit\\(\\) is for the main of map kernels"):
        lang.load(TEXT.replace("vec4 main(", helper), filename="stats.kern")
    group = "kernel group g;\nout tensor A;\nout tensor B;\nlocal_size(1, 1, 1);\nvoid main() {}\n"
    with pytest.raises(KernelSyntaxError, match="a group kernel has one out tensor"):
        lang.load(group, filename="g.kern")
