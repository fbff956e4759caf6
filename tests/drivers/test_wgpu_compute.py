"""Kernels through WebGPU on every adapter there is, against numpy and against the interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kernel_interpreter import interpret
from wgpu_kernels import ADAPTERS, Floats, open_on, run_kernel
from wgsl_corpus import HEAD, Text, texts

from gpuedge import lang
from gpuedge.backends.device import OpenDevice
from gpuedge.opset.functions import HELPERS
from gpuedge.oracle.layers import convolve

RNG = np.random.default_rng(20)
pytestmark = pytest.mark.driver
CORPUS = {text.name: text for text in texts()}
WHOLE = [
    name for name in CORPUS
    if name in ("words", "group statements") or name.startswith("body")
]  # fmt: skip


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def device(request: pytest.FixtureRequest) -> Iterator[OpenDevice]:
    made = open_on(request.param)
    yield made
    made.close()


def map_kernel(body: str, before: str = "") -> lang.Kernel:
    return lang.load(f"{HEAD}{before}vec4 main(ivec4 p) {{ {body} }}", filename="t.kern")


def on_row(device: OpenDevice, kernel: lang.Kernel, values: list[float] | Floats) -> Floats:
    """Run a map kernel on a row of numbers and return as many."""
    x = np.zeros((1, 1, 1, -(-len(values) // 4), 4), np.float32)
    x.reshape(-1)[: len(values)] = values
    out = run_kernel(device, kernel, {"A": x}, (x.shape[3], 1, 1, 1), specs={"LX": 8})
    return out["O"].reshape(-1)[: len(values)]


@pytest.mark.parametrize("name", WHOLE)
def test_whole_language(name: str, device: OpenDevice) -> None:
    text: Text = CORPUS[name]
    inputs = {t.name: RNG.integers(-4, 8, (2, 3, 4, 5, 4)).astype(np.float32)
              for t in text.kernel.tensors if t.access == "read"}  # fmt: skip
    params = {p.name: 2 if p.type == "int" else 0.5 for p in text.kernel.params}
    groups = (1, 2, 1) if text.kernel.form == "group" else None
    out = (5, 4, 3, 2)
    with np.errstate(all="ignore"):
        want = interpret(text.kernel, inputs, out, text.specs, params, groups)
    got = run_kernel(
        device, text.kernel, inputs, out, specs=text.specs, params=params, groups=groups
    )
    np.testing.assert_allclose(got[text.kernel.out.name], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("local", [(1, 1, 1), (8, 8, 1), (64, 1, 1), (4, 4, 4)])
def test_map_kernel_covers_every_texel_once(
    local: tuple[int, int, int], device: OpenDevice
) -> None:
    kernel = map_kernel(
        "ivec4 d = dims(O); int q = ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;"
        "return load4(A, p) + vec4(ivec4(q, p.x, p.y, p.z + 10 * p.w));"
    )
    x = RNG.integers(0, 100, (3, 2, 5, 7, 4)).astype(np.float32)
    specs = dict(zip(("LX", "LY", "LZ"), local, strict=True))
    got = run_kernel(device, kernel, {"A": x}, (7, 5, 2, 3), specs=specs)["O"]
    n, s, y, xs = np.indices(x.shape[:4])
    index = np.arange(3 * 2 * 5 * 7).reshape(x.shape[:4])
    want = x + np.stack([index, xs, y, s + 10 * n], axis=-1)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", [(4, 4), (8, 2), (16, 4)])
def test_matrix_product_through_shared_memory(lanes: tuple[int, int], device: OpenDevice) -> None:
    kernel = CORPUS["gemm"].kernel
    a = RNG.integers(-8, 8, (2, 37, 20)).astype(np.float32)
    b = RNG.integers(-8, 8, (2, 20, 28)).astype(np.float32)
    tensors = {"A": a.reshape(2, 1, 37, 5, 4), "B": b.reshape(2, 1, 20, 7, 4)}
    lx, ly = lanes
    groups = (-(-7 // lx), -(-37 // (2 * ly)), 2)
    got = run_kernel(
        device, kernel, tensors, (7, 37, 1, 2), specs={"LX": lx, "LY": ly}, params={"K4": 5},
        groups=groups,
    )  # fmt: skip
    np.testing.assert_array_equal(got["C"].reshape(2, 37, 28), a @ b)


def test_convolution(device: OpenDevice) -> None:
    x = RNG.standard_normal((1, 2, 6, 7, 4)).astype(np.float32)  # 8 channels
    w = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
    bias = RNG.standard_normal(8).astype(np.float32)
    # texel of weights: output slice, input slice, tap, input lane; its lanes are output channels
    texels = w.reshape(2, 4, 2, 4, 9).transpose(0, 2, 4, 3, 1).reshape(1, 1, 1, -1, 4)
    tensors = {"X": x, "W": np.ascontiguousarray(texels), "B": bias.reshape(1, 2, 1, 1, 4)}
    got = run_kernel(
        device, CORPUS["conv"].kernel, tensors, (7, 6, 2, 1), specs={"LX": 4}, params={"CS": 2}
    )["Y"]
    plain = x[0].transpose(0, 3, 1, 2).reshape(1, 8, 6, 7)
    want = convolve(plain, w, pads=(1, 1, 1, 1))[0] + bias[:, None, None]
    found = got[0].transpose(0, 3, 1, 2).reshape(8, 6, 7)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_nothing_outside_a_tensor_is_read_or_written(device: OpenDevice) -> None:
    kernel = map_kernel(
        "return texel(A, p.x * 100000 - 500000) + load4(A, ivec4(-7, 9, 9, 9))"
        " + vec4(load1(A, p.x * 2000000000) + load1(A, -1))"
        " + load4z(A, ivec4(-1, 0, 0, 0)) + load4z(A, ivec4(0, 9, 0, 0));"
    )
    got = on_row(device, kernel, np.full(32, 3.0, np.float32))
    np.testing.assert_array_equal(got, 12.0)
    store = lang.load(
        "kernel group t;\nin tensor A;\nout tensor O;\nlocal_size(1, 1, 1);\n"
        "void main() { int i = group_id().x; vec4 v = load4(A, ivec4(0));\n"
        "storet(O, i - 3, v); storet(O, i * 100000000, v); store4(O, ivec4(i, -1, 0, 0), v); }",
        filename="t.kern",
    )
    a = np.full((1, 1, 1, 1, 4), 2.0, np.float32)
    got = run_kernel(device, store, {"A": a}, (4, 1, 1, 1), groups=(6, 1, 1))["O"]
    np.testing.assert_array_equal(got[0, 0, 0, :3], 2.0)
    assert np.isnan(got[0, 0, 0, 3]).all()


# Mesa's OpenGL turns "b >= a ? b : a + b" into "a > b ? a + b : b": what must see a NaN has to ask
# for it by x != x, which is printed as a look at the bits.
LARGER = """
float larger(float a, float b) {
    bool nan = a != a || b != b;
    float number = a > b ? a : b;
    return nan ? a + b : number;
}
"""
NAN, INF = np.nan, np.inf
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0, NAN], np.float32)


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("v.x != v.x ? 1.0 : 0.0", np.isnan(SPECIAL)),
        ("v.x == v.x ? 0.0 : 1.0", np.isnan(SPECIAL)),
        ("v.x >= 0.0 || v.x < 0.0 ? 0.0 : 1.0", np.isnan(SPECIAL)),
        ("v.x > 0.0 ? 1.0 : 0.0", SPECIAL > 0),
        ("!(v.x > 0.0) ? 1.0 : 0.0", ~(SPECIAL > 0)),
        ("larger(v.x, 0.0)", np.maximum(SPECIAL, np.float32(0))),
        ("larger(0.0, v.x)", np.maximum(np.float32(0), SPECIAL)),
        ("ordered(tanh(v.x), v.x)", np.tanh(SPECIAL)),
    ],
)
def test_nan_and_infinity(expression: str, want: Floats, device: OpenDevice) -> None:
    helpers = LARGER + HELPERS["ordered"]
    body = f"vec4 w = load4(A, p); vec4 v = w; vec4 r = vec4(0.0); r.x = {expression};"
    for lane in "yzw":
        body += f" v.x = w.{lane}; r.{lane} = {expression};"
    got = on_row(device, map_kernel(f"{body} return r;", helpers), SPECIAL)
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-5)


def test_rounding_is_to_even_and_tanh_does_not_overflow(device: OpenDevice) -> None:
    halves = np.arange(-8.5, 9, dtype=np.float32)
    got = on_row(device, map_kernel("return roundeven(load4(A, p));"), halves)
    np.testing.assert_array_equal(got, np.rint(halves))
    large = np.array([-1e30, -1000, -90, -20, -1, 0, 1, 20, 90, 1e30], np.float32)
    got = on_row(device, map_kernel("return tanh(load4(A, p));"), large)
    np.testing.assert_allclose(got, np.tanh(large), rtol=1e-5, atol=1e-6)
