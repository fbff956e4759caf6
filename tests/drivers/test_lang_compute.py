"""Ints, generated kernels and constants in formulas, on Vulkan and on every WebGPU adapter."""

from __future__ import annotations

from collections.abc import Iterator

import lang_kernels as kernels
import numpy as np
import pytest
from conftest import CANDIDATES
from wgpu_kernels import ADAPTERS, Floats, open_on, run_kernel

from gpuedge import lang
from gpuedge.backends import load
from gpuedge.backends.base import DeviceImpl

pytestmark = pytest.mark.driver
DEVICES = [f"vulkan-{name}" for name in CANDIDATES] + [f"wgpu-{name}" for name in sorted(ADAPTERS)]
HEAD = "kernel map t;\nin tensor A;\nout tensor O;\nspec float S = 2.0; spec int I = 3;\n"
POW = (
    "float pow1(float a, float b) { float whole = floor(b); float odd = whole - 2.0 * "
    "floor(whole * 0.5); bool n = b != b; float r = pow(abs(a), b);\n"
    "return n ? b : a < 0.0 && odd == 1.0 ? -r : r; }\n"
)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[DeviceImpl]:
    api, _, name = request.param.partition("-")
    made: DeviceImpl
    if api == "wgpu":
        made = open_on(name)
    else:
        backend = load("vulkan")
        made = backend.open(backend.enumerate(CANDIDATES[name]())[0])
    yield made
    made.close()


def run(device: DeviceImpl, text: str, tensors: dict[str, Floats], texels: int, n: int) -> Floats:
    kernel = lang.load(text, filename="t")
    params = {p.name: n for p in kernel.params}
    out = (texels, 1, 1, 1)
    return run_kernel(device, kernel, tensors, out, specs={"LX": 8}, params=params)["O"]


@pytest.mark.parametrize("expression", kernels.INT_OPERATIONS)
def test_ints_are_exact(expression: str, device: DeviceImpl) -> None:
    given = {"A": kernels.int_texels()}
    got = run(device, kernels.int_kernel(expression), given, kernels.PATTERNS, 0)
    np.testing.assert_array_equal(got, kernels.int_wanted(expression))


def test_gathering_by_index_arithmetic(device: DeviceImpl) -> None:
    rng = np.random.default_rng(8)
    caps = device.caps
    pushed = (caps.max_push_bytes - 4) // 16  # extents of each tensor, and N
    tensors = min(8, pushed - 1, caps.max_storage_buffers - 1)
    assert tensors >= 6
    given = [rng.integers(-9, 9, (1, 1, 1, 16 + i, 4)).astype(np.float32) for i in range(tensors)]
    named = {f"T{i}": tensor for i, tensor in enumerate(given)}
    got = run(device, kernels.gather_kernel(tensors), named, 25, 60)
    np.testing.assert_array_equal(got.reshape(-1), kernels.gather_wanted(given, 25, 60))


def test_tables_and_accumulators(device: DeviceImpl) -> None:
    a = np.random.default_rng(0).integers(-9, 9, (1, 1, 1, 30, 4)).astype(np.float32)
    got = run(device, kernels.TABLE, {"A": a}, 30, 5)
    np.testing.assert_array_equal(got.reshape(-1, 4), kernels.table_wanted(a, 5))


# Compilers of WGSL evaluate what they can and refuse overflow, NaN and division by zero; naga 29
# also fails, or ends the process, where a constant from a `let` meets a position or a call.
CONSTANTS = {
    "vec4 k = vec4(2.0); v = vec4(pow1(v.x, k.x), pow1(v.y, k.y), k.z, k.w);": [9, -16, 2, 2],
    "vec4 k = vec4(1.0e38); v = v + k * k;": [np.inf] * 4,
    "vec4 k = vec4(1000.0); v = v + exp(k);": [np.inf] * 4,
    "float k = 1.0e38; v = v + k * (k * 10.0);": [np.inf] * 4,
    "float z = 0.0; v = v + vec4(1.0 / z, -1.0 / z, 2.0, 3.0);": [np.inf, -np.inf, 3, 4],
    "int i = 1; v = load4(A, ivec4(i - 1, 0, 0, 0)) + texel(A, i + I - 4);": [6, -8, 2, 2],
    "ivec4 i = ivec4(2147483647); i = i + ivec4(1); v = vec4(i / 65536);": [-32768] * 4,
    "int i = 5; int j = i * 1000000000; v = vec4(float(j / 65536));": [10757] * 4,
    "float s = S * 1.0e38; v = v + s * (s * S);": [np.inf] * 4,
    "int s = I; int c = s * 1000 >> 2 & 511; v = vec4(float(c));": [238] * 4,
    "float m = 0.0; for (int i = I - 2; i < I + 1; i++) { m += S; } v = vec4(m);": [6] * 4,
    "bool b = S > 1.0 && true; v = b ? vec4(S) : v;": [2] * 4,
}


@pytest.mark.parametrize("body", CONSTANTS)
def test_constants_in_formulas(body: str, device: DeviceImpl) -> None:
    wanted = CONSTANTS[body]
    if "pow1(" in body:
        wanted = [9, 16, 2, 2]
    text = f"{HEAD}{POW}vec4 main(ivec4 p) {{ vec4 v = load4(A, p); {body} return v; }}"
    if "pow1(" not in body:
        text = text.replace(POW, "")
    a = np.array([3, -4, 1, 1], np.float32).reshape(1, 1, 1, 1, 4)
    got = run(device, text, {"A": a}, 1, 0)
    np.testing.assert_allclose(got.reshape(-1), np.float32(wanted), rtol=1e-5)
