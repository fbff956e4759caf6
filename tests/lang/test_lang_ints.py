"""Ints and generated kernels in the interpreter, against plain numpy."""

from __future__ import annotations

import lang_kernels as kernels
import numpy as np
import pytest
from kernel_interpreter import interpret

from gpuedge import lang
from gpuedge.core.errors import KernelError, KernelSyntaxError

WITH_BITS = [e for e in kernels.INT_OPERATIONS if "&" in e or ">>" in e]


@pytest.mark.parametrize("expression", kernels.INT_OPERATIONS)
def test_ints_are_exact(expression: str) -> None:
    kernel = lang.load(kernels.int_kernel(expression), filename="ints")
    got = interpret(kernel, {"A": kernels.int_texels()}, (kernels.PATTERNS, 1, 1, 1))
    np.testing.assert_array_equal(got, kernels.int_wanted(expression))


def test_products_of_packed_bytes_are_exact() -> None:
    edges = np.array([-128, -1, 0, 127], np.float32)
    a = np.stack(np.meshgrid(*[edges] * 4), axis=-1).reshape(1, 1, 1, -1, 4)
    b = np.random.default_rng(3).permutation(a, axis=3)
    kernel = lang.load(kernels.DOTS, filename="dots")
    got = interpret(kernel, {"A": a, "B": b}, (256, 1, 1, 1))
    np.testing.assert_array_equal(got, kernels.dot_wanted(a, b))


@pytest.mark.parametrize("text", ["dot4(1.0, 2.0)", "dot4(ivec2(1), ivec3(2))", "dot4(1)"])
def test_products_of_packed_bytes_are_of_two_ints(text: str) -> None:
    head = "kernel map t;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { vec4 v = load4(A, p);"
    with pytest.raises(KernelSyntaxError, match=r"dot4\(\) takes|dot4\(\) does not take"):
        lang.load(f"{head} ivec2 r = {text}; return v; }}", filename="t")


@pytest.mark.parametrize("tensors", [1, 8])
def test_gathering_by_index_arithmetic(tensors: int) -> None:
    rng = np.random.default_rng(tensors)
    given = [rng.integers(-9, 9, (1, 1, 1, 16 + i, 4)).astype(np.float32) for i in range(tensors)]
    kernel = lang.load(kernels.gather_kernel(tensors), filename="gathered")
    named = {f"T{i}": tensor for i, tensor in enumerate(given)}
    got = interpret(kernel, named, (25, 1, 1, 1), params={"N": 60})
    np.testing.assert_array_equal(got.reshape(-1), kernels.gather_wanted(given, 25, 60))


def test_tables_and_accumulators() -> None:
    a = np.random.default_rng(0).integers(-9, 9, (1, 1, 1, 30, 4)).astype(np.float32)
    kernel = lang.load(kernels.TABLE, filename="table")
    got = interpret(kernel, {"A": a}, (30, 1, 1, 1), params={"N": 5}, strict=True)
    np.testing.assert_array_equal(got.reshape(-1, 4), kernels.table_wanted(a, 5))


@pytest.mark.parametrize("dialect", list(lang.PRINTERS))
@pytest.mark.parametrize("text", [kernels.gather_kernel(8), kernels.TABLE])
def test_generated_kernels_print_in_every_dialect(text: str, dialect: str) -> None:
    assert lang.print_kernel(lang.load(text, filename="t"), dialect).code


@pytest.mark.parametrize("expression", WITH_BITS)
def test_opengl_es_2_refuses_bits_by_name(expression: str) -> None:
    head = "kernel map t;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { vec4 v = load4(A, p);"
    text = f"{head} int a = p.x; int b = p.y; int r = {expression}; return v * float(r); }}"
    with pytest.raises(KernelError, match="has no bits of ints") as caught:
        lang.print_kernel(lang.load(text, filename="t"), "essl100")
    assert caught.value.code == "GE-300"
    assert "OpenGL ES 2.0" in str(caught.value)
