"""The interpreter against plain numpy, and what its strict mode refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from kernel_interpreter import interpret

from gpuedge import lang
from gpuedge.core.errors import InputError, KernelError
from gpuedge.oracle.layers import convolve

SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"
Array = npt.NDArray[np.float32]


def sample(name: str, **options: Any) -> lang.Kernel:
    return lang.load((SAMPLES / f"{name}.kern").read_text(), filename=name, **options)


def integers(*shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-9, 10, shape).astype(np.float32)


def pack(x: Array) -> Array:
    """(N, C, H, W) to (N, S, H, W, 4), channels padded with zeros."""
    n, c, h, w = x.shape
    s = -(-c // 4)
    padded = np.zeros((n, s * 4, h, w), np.float32)
    padded[:, :c] = x
    return padded.reshape(n, s, 4, h, w).transpose(0, 1, 3, 4, 2)


@pytest.mark.parametrize("clamp", [False, True])
def test_elementwise(clamp: bool) -> None:
    a, bias = integers(2, 3, 4, 5, 4), integers(1, 1, 1, 3, 4)
    got = interpret(
        sample("affine"), {"A": a, "B": bias}, (5, 4, 3, 2),
        specs={"CLAMP": clamp, "FLOOR": -2.0}, params={"K": 3.0}, strict=True,
    )  # fmt: skip
    want = a * 3 + bias.reshape(1, 3, 1, 1, 4)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.maximum(want, -2) if clamp else want)


def test_every_operation_rounds_to_float32() -> None:
    rng = np.random.default_rng(3)
    a = rng.normal(size=(1, 1, 1, 50, 4)).astype(np.float32)
    k, bias = np.float32(1.1), np.float32(-1.0)
    got = interpret(
        sample("affine"),
        {"A": a, "B": np.full((1, 1, 1, 1, 4), bias, np.float32)},
        (50, 1, 1, 1),
        params={"K": 1.1},
    )
    np.testing.assert_array_equal(got, a * k + bias)
    fused = (a.astype(np.float64) * k + bias).astype(np.float32)
    assert (got != fused).any()


@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 0), (2, 2)])
def test_convolution(stride: int, pad: int) -> None:
    x, w, bias = integers(2, 8, 9, 7), integers(8, 8, 3, 3), integers(8)
    taps = w.reshape(2, 4, 2, 4, 3, 3).transpose(0, 2, 4, 5, 3, 1)  # oS, iS, ky, kx, i4, o4
    want = convolve(x, w, stride=(stride, stride), pads=(pad,) * 4) + bias.reshape(1, 8, 1, 1)
    got = interpret(
        sample("conv"),
        {"X": pack(x), "W": taps.reshape(1, 1, 1, -1, 4), "B": bias.reshape(1, 2, 1, 1, 4)},
        (want.shape[3], want.shape[2], 2, 2),
        specs={"SX": stride, "SY": stride, "PX": pad, "PY": pad}, params={"CS": 2}, strict=True,
    )  # fmt: skip
    np.testing.assert_array_equal(got, pack(want))


def test_softmax() -> None:
    x = np.random.default_rng(5).normal(size=(2, 10, 3, 4)).astype(np.float32) * 20
    got = interpret(sample("softmax"), {"X": pack(x)}, (4, 3, 3, 2), params={"C": 10}, strict=True)
    spread = float((x.max(1) - x.min(1)).max())
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    flat = got.transpose(0, 1, 4, 2, 3).reshape(2, 12, 3, 4)[:, :10]
    # x - top is rounded to float32, which exp() turns into a relative error; then exp, sum, divide.
    bound = 2.0**-24 * (spread + 16)
    np.testing.assert_allclose(flat, e / e.sum(1, keepdims=True), rtol=bound, atol=1e-30)


@pytest.mark.parametrize(
    ("consts", "specs", "groups"),
    [({}, {}, (2, 2, 2)), ({"RM": 4, "TK": 2}, {"LX": 8, "LY": 2}, (1, 2, 2))],
)
def test_tiled_gemm(
    consts: dict[str, int], specs: dict[str, int], groups: tuple[int, int, int]
) -> None:
    a, b = integers(2, 11, 36), integers(2, 36, 20)
    got = interpret(
        sample("gemm", consts=consts),
        {"A": a.reshape(2, 1, 11, 9, 4), "B": b.reshape(2, 1, 36, 5, 4)},
        (5, 11, 1, 2), specs=specs, params={"K4": 9}, groups=groups, strict=True,
    )  # fmt: skip
    np.testing.assert_array_equal(got.reshape(2, 11, 20), a @ b)


def test_every_word_of_the_language() -> None:
    a = integers(1, 1, 6, 5, 4)
    got = interpret(
        sample("words"), {"A": a}, (5, 6, 1, 1), params={"G": 0.5, "SHIFT": 3}, strict=False
    )
    want = np.array([[words(a[0, 0], x, y) for x in range(5)] for y in range(6)], np.float32)
    np.testing.assert_array_equal(got[0, 0], want)


def words(image: Array, x: int, y: int) -> Array:
    """words.kern with FLIP, written for one texel in plain Python."""
    h, w, _ = image.shape
    flat, a = image.reshape(-1), image[y, x]
    acc = [flat[(x * 3 + i * 5) % (w * 4)] + i for i in range(3)]
    r = a[::-1].copy()
    r[0] += acc[2]
    if (a[0] > 0 and not a[1] < 1) or x == 2:
        r += [acc[0], a[0] - 1, acc[1], a[1] - 1]
    elif a[2] >= 3:
        r -= 1
    r += a * 2 - [x, y, 0, 0]
    total = 3
    for i in range(h):
        for j in range(1, 6, 2):
            total += i * j // 2
            r[1] += image.reshape(-1, 4)[i * w + j % w][2]
    # Far outside: a negative index counts as huge, so slice 50 of one slice is the last texel.
    inside = x + 1 < w and y >= 1
    far = image[-1, -1] + (image[y - 1, x + 1] if inside else 0)
    r = r + (far if y > 1 else total)
    r = r + flat[-1] + flat[-1] + image[-1, -1]
    r = np.minimum(r, np.clip(a * 100, -50, 50))
    r = r + np.array([np.floor(a[0] / 2), np.ceil(a[1] / 2), np.sign(a[2]), abs(a[3])])
    r = r + np.round(a / 2) + np.abs(a) + abs(x - 3) + min(x, 2) + max(-y, -1)
    products = [a[0] * r[0], a[0] * a[0], -a[0] * a[1], -a[1]]
    return np.asarray(r + np.array(products), np.float32)


GROUP = "kernel group g;\nin tensor A;\nout tensor O;\nlocal_size(4, 1, 1);\nshared float M[4];\n"
MAP = "kernel map m;\nin tensor A;\nout tensor O;\n"


def run_group(body: str, **options: Any) -> Array:
    text = (
        GROUP
        + "void main() { int l = local_id().x; int q = group_id().x * 4 + l; int w = dims(A).x;\n"
        + body
    )
    data = integers(1, 1, 1, 8, 4)
    kernel = lang.load(text + "}", filename="g")
    return interpret(kernel, {"A": data}, (8, 1, 1, 1), groups=(2, 1, 1), **options)


def test_branches_loops_and_shared_memory_per_lane() -> None:
    got = run_group(
        "M[l] = float(q); barrier(); float s = 0.0;\n"
        "for (int i = l; i < 4; i++) { if (i == 2) s += 100.0; else s += M[i]; }\n"
        "storet(O, q, vec4(s, load1(A, q), 0.0, 0.0));",
        strict=True,
    )[0, 0, 0]
    want = [
        sum(100 if i == 2 else g * 4 + i for i in range(k, 4)) for g in (0, 1) for k in range(4)
    ]
    np.testing.assert_array_equal(got[:, 0], want)
    np.testing.assert_array_equal(got[:, 1], integers(1, 1, 1, 8, 4).reshape(-1)[:8])


def test_lanes_are_those_of_the_own_workgroup() -> None:
    got = run_group(
        "vec4 t = texel(A, q); vec2 u = lane_value(t.zw, 1); float c = lane_value(3.0, 0);\n"
        "for (int i = 0; i < w; i++) c += lane_value(float(q), 3);\n"
        "storet(O, q, vec4(lane_value(t.x, 2), u.y, float(lane_value(lane_id() * 10 + l, 3)), c));",
        strict=True,
    )[0, 0, 0]
    a = integers(1, 1, 1, 8, 4)[0, 0, 0]
    for k in range(8):
        first = k // 4 * 4
        want = [a[first + 2, 0], a[first + 1, 3], 33, 3 + 8 * (first + 3)]
        np.testing.assert_array_equal(got[k], want)


def test_lane_that_the_workgroup_does_not_have_is_refused() -> None:
    run_group("storet(O, q, vec4(lane_value(1.0, 3)));")
    with pytest.raises(KernelError, match="lane 4 of a workgroup of 4"):
        run_group("storet(O, q, vec4(lane_value(1.0, 4)));")


def test_unwritten_texels_are_nan_and_stores_outside_do_nothing() -> None:
    got = run_group(
        "if (q < 5) storet(O, q, texel(A, q));"
        "storet(O, q + 8, vec4(7.0)); storet(O, -1, vec4(7.0));"
        "store4(O, ivec4(q, 1, 0, 0), vec4(7.0)); store4(O, ivec4(-1, 0, 0, 0), vec4(7.0));"
    )[0, 0, 0]
    np.testing.assert_array_equal(got[:5], integers(1, 1, 1, 8, 4)[0, 0, 0, :5])
    assert np.isnan(got[5:]).all()


def test_arrays_start_undefined() -> None:
    assert np.isnan(run_group("float x[2]; storet(O, q, vec4(x[l % 2]));")).all()
    assert np.isnan(run_group("storet(O, q, vec4(M[l]));")).all()


def test_value_of_an_element_stays_when_the_element_changes() -> None:
    text = """kernel map swap;
        in tensor A;
        out tensor O;
        vec4 main(ivec4 p) {
            vec4 v[2];
            v[0] = load4(A, p);
            v[1] = vec4(7.0);
            vec4 t = v[0];
            vec4 u = vec4(0.0);
            u = v[1];
            v[0] = v[1];
            v[1] = t;
            return v[1] * 10.0 + u + v[0];
        }"""
    a = integers(1, 1, 1, 3, 4)
    got = interpret(lang.load(text, filename="swap"), {"A": a}, (3, 1, 1, 1))
    np.testing.assert_array_equal(got, a * 10 + 14)


def test_local_arrays_by_lane() -> None:
    got = run_group(
        "ivec2 x[4]; for (int i = 0; i < 4; i++) x[(i + l) % 4] = ivec2(i, l); x[l].y += 10;\n"
        "storet(O, q, vec4(float(x[l].x), float(x[l].y), float(x[3].x), 0.0));"
    )[0, 0, 0]
    want = [[0, lane + 10, (3 - lane) % 4, 0] for lane in range(4)]
    np.testing.assert_array_equal(got, want + want)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("M[l] = 1.0; storet(O, q, vec4(M[3 - l]));", "reads what another one wrote"),
        ("float x = M[3 - l]; M[l] = x; storet(O, q, vec4(x));", "writes what another one read"),
        ("float x = M[0]; if (l == 0) M[0] = x; storet(O, q, vec4(x));", "another one read"),
        ("float x = M[0]; if (l == 3) M[0] = x; storet(O, q, vec4(x));", "another one read"),
        ("M[l] = 1.0; M[3 - l] = 2.0; storet(O, q, vec4(1.0));", "writes what another one wrote"),
        ("M[0] = 1.0; storet(O, q, vec4(1.0));", "two invocations write one element"),
        ("storet(O, q / 2, vec4(1.0));", "written twice"),
        ("storet(O, q, vec4(1.0)); storet(O, q, vec4(1.0));", "written twice"),
        ("storet(O, q, texel(A, q + 1));", "texel(A, ...) reads outside"),
        ("storet(O, q, vec4(load1(A, q - 1)));", "load1(A, ...) reads outside"),
        ("storet(O, q, load4z(A, ivec4(q, 0, 1, 0)));", "load4z(A, ...) reads outside"),
    ],
)
def test_strict_mode_refuses(body: str, message: str) -> None:
    run_group(body)
    with pytest.raises(KernelError) as caught:
        run_group(body, strict=True)
    assert message in str(caught.value)


def test_strict_mode_accepts_what_masked_lanes_do() -> None:
    run_group("if (q < 7) storet(O, q, texel(A, q + 1)); if (l < 1) M[0] = 1.0;", strict=True)
    run_group("M[l] = 1.0; barrier(); storet(O, q, vec4(M[3 - l]));", strict=True)


@pytest.mark.parametrize("body", ["M[l + 1] = 1.0;", "float x = M[l - 1];"])
def test_array_index_out_of_range_is_always_refused(body: str) -> None:
    with pytest.raises(KernelError, match=r"an index of M\[4\] is out of range"):
        run_group(body + "storet(O, q, vec4(1.0));")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {}}, "tensors missing or unknown: A"),
        ({"tensors": {"A": np.zeros((1, 4), np.float32)}}, "Tensor A is float32 of shape"),
        ({"tensors": {"A": np.zeros((1, 1, 1, 1, 4))}}, "Tensor A is float64"),
        ({"params": {"X": 1}}, "params missing or unknown: X"),
        ({"specs": {"X": 1}}, "specs missing or unknown: X"),
        ({"groups": (1, 1, 1)}, "groups cannot be given"),
    ],
)
def test_arguments_are_checked(change: dict[str, Any], message: str) -> None:
    kernel = lang.load(MAP + "vec4 main(ivec4 p) { return load4(A, p); }", filename="m")
    given: dict[str, Any] = {"tensors": {"A": integers(1, 1, 1, 1, 4)}, "out_extents": (1, 1, 1, 1)}
    with pytest.raises(InputError, match=message):
        interpret(kernel, **{**given, **change})


def test_group_kernels_need_groups() -> None:
    kernel = lang.load(GROUP + "void main() { storet(O, 0, texel(A, 0)); }", filename="g")
    with pytest.raises(InputError, match="groups must be given"):
        interpret(kernel, {"A": integers(1, 1, 1, 1, 4)}, (1, 1, 1, 1))
