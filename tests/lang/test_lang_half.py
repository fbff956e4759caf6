"""Halves in the kernel language: what they take, how they round, how they are printed."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from kernel_interpreter import interpret

from gpuedge import lang
from gpuedge.core.errors import KernelError, KernelSyntaxError

RNG = np.random.default_rng(5)
A, B = RNG.normal(0, 4, (2, 1, 2, 4, 5, 4)).astype(np.float32)

TEXT = """kernel map k;
in tensor A;
in tensor B;
out tensor O;
half larger(half a, half b) { bool none = a != a || b != b; return none ? a + b : max(a, b); }
vec4 main(ivec4 p) {
    hvec4 a = hvec4(load4(A, p));
    hvec4 b = hvec4(load4(B, p));
    hvec4 c[2];
    c[0] = a * b - half(0.1) * a;
    c[1] = -abs(a.wzyx);
    float total = 0.0;
    for (int i = 0; i < 2; i++) { hvec4 s = c[i]; total += float(s.x * s.y + larger(s.z, s.w)); }
    return vec4(vec4(clamp(a + b, hvec4(half(-7.0)), b)).xyz, total);
}
"""


def loaded(*, is_half: bool) -> lang.Kernel:
    return lang.load(TEXT, filename="t", is_half=is_half)


def meant(kind: type[np.floating]) -> np.ndarray:
    """The text in numpy, of which each step of halves rounds to one."""
    a, b = (np.moveaxis(x, -1, 0).astype(kind) for x in (A, B))
    first, second = a * b - kind(0.1) * a, -np.abs(a[::-1])
    total = np.zeros(a.shape[1:], np.float32)
    for s in (first, second):
        total = total + (s[0] * s[1] + np.maximum(s[2], s[3])).astype(np.float32)
    clamped = np.minimum(np.maximum(a + b, kind(-7)), b).astype(np.float32)
    return np.moveaxis(np.concatenate([clamped[:3], total[None]]), 0, -1)


@pytest.mark.parametrize("is_half", [False, True])
def test_each_step_rounds(is_half: bool) -> None:
    kernel = loaded(is_half=is_half)
    assert kernel.is_half is is_half
    found = interpret(kernel, {"A": A, "B": B}, (5, 4, 2, 1), strict=True)
    np.testing.assert_array_equal(found, meant(np.float16 if is_half else np.float32))


def test_arrays_of_halves_start_undefined() -> None:
    text = "kernel map k;\nout tensor O;\nvec4 main(ivec4 p) { hvec4 a[2]; return vec4(a[1]); }"
    kernel = lang.load(text, filename="t", is_half=True)
    assert np.isnan(interpret(kernel, {}, (1, 1, 1, 1))).all()


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("half(1.0) / half(2.0)", "'/' does not take half and half"),
        ("exp(half(1.0))", "exp() does not take half"),
        ("half(2)", "half() does not take int"),
        ("half(1.0) + 1.0", "'+' does not take half and float"),
        ("half(70000.0)", "70000.0 does not fit in a 16-bit float"),
        ("int(half(1.0))", "int() does not take half"),
        ("half(1.0) < 2.0 ? half(0.0) : half(1.0)", "'<' does not take half and float"),
    ],
)
def test_what_halves_do_not_take(value: str, what: str) -> None:
    body = f"vec4 main(ivec4 p) {{ half a = {value}; return vec4(0.0); }}"
    text = f"kernel map k;\nout tensor O;\n{body}"
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(text, filename="t", is_half=True)
    assert what in str(caught.value)


def test_params_and_specs_are_no_halves() -> None:
    for word in ("param half K;", "spec half K = 1.0;"):
        with pytest.raises(KernelSyntaxError):
            lang.load(f"kernel map k;\n{word}\n", filename="t", is_half=True)


@pytest.mark.parametrize("is_half", [False, True])
def test_spirv_is_valid_and_asks_for_float16(is_half: bool) -> None:
    code = lang.print_kernel(loaded(is_half=is_half), "spirv").code
    words = np.frombuffer(code, "<u4").tolist()
    assert (words[5:9] == [2 << 16 | 17, 1, 2 << 16 | 17, 9]) is is_half  # Shader, Float16
    if shutil.which("spirv-val") is None:
        pytest.skip("no spirv-val")
    done = subprocess.run(["spirv-val", "--target-env", "vulkan1.1", "-"], input=code,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_wgsl_and_essl() -> None:
    text = lang.print_kernel(loaded(is_half=True), "wgsl").code.decode()
    assert text.splitlines()[1] == "enable f16;" and "vec4<f16>(0.0999755859375h)" in text
    assert "f16" not in lang.print_kernel(loaded(is_half=False), "wgsl").code.decode()
    for dialect in ("essl310", "essl300", "essl100"):
        with pytest.raises(KernelError, match=f"float16, which {dialect} cannot say"):
            lang.print_kernel(loaded(is_half=True), dialect)
    assert lang.print_kernel(loaded(is_half=False), "essl310").code


def test_keys_of_printed_kernels_differ() -> None:
    keys = {lang.blob_key(TEXT, None, None, "spirv", is_half=is_half) for is_half in (0, 1)}
    assert len(keys) == 2
