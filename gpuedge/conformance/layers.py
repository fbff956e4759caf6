"""Convolutions and matrix products: shapes picked by hand because they hurt, and drawn ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import gpuedge
from gpuedge.conformance.case import Case, case
from gpuedge.conformance.data import Shape, dims, fill, padding, pick, short, weights
from gpuedge.conformance.nodes import run_model
from gpuedge.graph.build import chain
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num
from gpuedge.opset.tensor import Window
from gpuedge.oracle import layers as oracle
from gpuedge.oracle.functions import activated
from gpuedge.plan.conv import Slices
from gpuedge.plan.conv import facts as plan_facts
from gpuedge.plan.matmul import facts as product_facts

Pair = tuple[int, int]
Arguments = dict[str, Any]
"""What a family draws: arguments of its function, so that a caller may change some."""

ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "sigmoid", "tanh", "hard_swish", "silu", "gelu",
)  # fmt: skip
"""Activations that layers fuse."""

COMPARING = ("relu", "relu6")
"""Those that keep whole numbers whole."""


def conv(
    c: int,
    size: Pair,
    m: int,
    k: Pair = (3, 3),
    stride: Pair = (1, 1),
    *,
    pads: Shape = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
    n: int = 1,
    bias: bool = False,
    act: str | None = None,
    mode: str = "",
    extra: Pair | None = None,
    fixed: bool = False,
    joined: bool = False,
) -> Case:
    """Return a convolution, or with `extra` output padding a transposed one.

    `c` and `m` are channels in and out, `pads` top, left, bottom, right unless `mode` says it.
    `fixed`: of a model with constant weights, stride 1, one group and at most a ReLU. `joined`: of
    one that adds a tensor of the result's shape, no two of whose numbers are alike.
    """
    is_back = extra is not None
    text = (
        f"n{n}c{c}h{size[0]}w{size[1]}-m{m}k{short(k)}s{short(stride)}p{mode or short(pads, '.')}"
        f"{f'o{short(extra)}' if extra is not None else ''}d{short(dilation)}"
        f"g{groups}{'b' if bias else ''}{'-fixed' if fixed else ''}"
        f"{'-joined' if joined else ''}{f'-{act}' if act else ''}"
    )
    reach = [(k[axis] - 1) * dilation[axis] + 1 for axis in range(2)]
    edges = oracle.same_pads(size, k, stride, dilation, upper=True) if mode == "same" else pads
    how: Arguments = {"stride": stride, "dilation": dilation, "groups": groups}
    public = {**how, "padding": mode or padding(edges), "activation": act}
    if extra is not None:
        how["output_padding"] = public["output_padding"] = extra

    shape = (c, m // groups, *k) if is_back else (m, c // groups, *k)
    sides = _sides(size, reach, stride, edges, extra)

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        x, w = fill(rng, (n, c, *size), data), weights(rng, shape, data)
        more = [_counted((n, m, *sides))] if joined else []
        return [x, w, weights(rng, (m,), data) if bias else None, *more]

    edge = (edges[0], edges[1], edges[2], edges[3])
    window = Window(k, stride, edge, dilation, sides)
    facts = plan_facts(window, Slices(c, m, groups))
    facts["tiles"] *= fixed
    product = partial(oracle.conv_transpose2d if is_back else oracle.conv2d, pads=edges, **how)
    if facts["tiles"]:
        product = partial(product, tiled=window)

    def wanted(*operands: Num | None, whole: bool) -> Num:
        result = product(*operands[:3], whole=whole)
        for other in operands[3:]:
            result = added(result, other, whole=whole)
        return activated(act, result)

    op = "conv_transpose2d" if is_back else "conv2d"
    call = partial(_of_model, edges) if fixed else None
    if joined:
        call = partial(_of_joined, "ConvTranspose" if is_back else "Conv", _attributes(how, edges))
    how_called = {} if joined else {"activation": act} if fixed else public
    return case(op, text, draw, wanted, how_called, call=call, is_sum=True, facts=facts)


def _sides(
    size: Pair, reach: Sequence[int], stride: Pair, edges: Shape, extra: Pair | None
) -> Pair:
    """Return height and width of the result."""
    pads = (edges[0] + edges[2], edges[1] + edges[3])
    if extra is not None:
        back = [stride[i] * (size[i] - 1) + extra[i] + reach[i] - pads[i] for i in range(2)]
        return back[0], back[1]
    sides = [(size[i] + pads[i] - reach[i]) // stride[i] + 1 for i in range(2)]
    return sides[0], sides[1]


def _attributes(how: Arguments, pads: Shape) -> Arguments:
    """Return the attributes of ONNX's node for the arguments of the function."""
    names = {"stride": "strides", "dilation": "dilations", "groups": "group"}
    return {"pads": pads, **{names.get(name, name): value for name, value in how.items()}}


def _of_model(pads: Shape, *operands: Array | None, activation: str | None, device: Any) -> Array:
    """Run a model of one convolution of x, with constant weights and perhaps bias."""
    named = zip("xwb", operands, strict=True)
    given = {name: array for name, array in named if array is not None}
    after: list[tuple[str, str, Any]] = [("Relu", "1", {})] if activation else []
    graph = chain(given, ("Conv", "".join(given), {"pads": list(pads)}), *after, constants="wb")
    return run_model(to_bytes(graph), {"x": given["x"]}, device)["y"]


def _counted(shape: Sequence[int]) -> Array:
    """Return numbers of which no two are alike, and whose sums with whole ones are exact."""
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape) * np.float32(0.25)


def added(a: Num, b: Any, *, whole: bool) -> Num:
    """Return a sum, which is exact of whole numbers."""
    other = Num.of(b)
    return Num(a.v + other.v, a.e + other.e) if whole and not a.e.any() else a + other


def _of_joined(op: str, attrs: Arguments, *operands: Array | None, device: Any) -> Array:
    """Run a model of a product and a sum with the last operand; weights and bias are constant."""
    names = "xwb"[: len(operands) - 1] + "c"
    named = zip(names, operands, strict=True)
    given = {name: array for name, array in named if array is not None}
    read = "".join(name for name in given if name != "c")
    graph = chain(given, (op, read, attrs), ("Add", "1c", {}), constants="wb")
    return run_model(to_bytes(graph), {"x": given["x"], "c": given["c"]}, device)["y"]


def beside_infinity(c: int, size: Pair, m: int) -> Case:
    """Return the first image of a convolution by 1x1 of two, of which the second is infinite.

    Packed channels end in zeros, not in what the second image begins with.
    """

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        x, w = fill(rng, (2, c, *size), "integers"), fill(rng, (m, c, 1, 1), "integers")
        x[1] = x[1] if data == "finite" else np.inf
        return [x, w]

    def call(x: Array, w: Array, *, device: Any) -> Array:
        return gpuedge.conv2d(x, w, device=device)[:1]

    def wanted(x: Num, w: Num) -> Num:
        return oracle.conv2d(x.v[:1], w, whole=True)

    facts = {"is_whole": int(size[0] * size[1] % 4 == 0)}
    return case("pack", f"{dims((2, c, *size))}-{m}-beside-infinity", draw, wanted, call=call,
                data="every", facts=facts)  # fmt: skip


def flattened(c: int, size: Pair, m: int) -> Case:
    """Return a convolution by 1x1 whose images are rows of a matrix product: they are unpacked."""
    x, w, b = (2, c, *size), (m, c, 1, 1), (m * size[0] * size[1], 4)

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        return [fill(rng, x, data), weights(rng, w, data), weights(rng, b, data)]

    def wanted(image: Num, filters: Num, right: Num, *, whole: bool) -> Num:
        rows = oracle.conv2d(image, filters, whole=whole)
        return oracle.matmul(oracle.moved(lambda a: a.reshape(2, -1), rows), right, whole=whole)

    facts = {"is_whole": int(size[0] * size[1] % 4 == 0), "channels_over": m % 4}
    return case("unpack", f"{dims(x)}-{dims(w)}-{dims(b)}", draw, wanted, call=_of_flattened,
                is_sum=True, facts=facts)  # fmt: skip


def _of_flattened(*operands: Array, device: Any) -> Array:
    """Run a model of a convolution and a matrix product of its flattened images."""
    given = dict(zip("xwb", operands, strict=True))
    nodes: list[tuple[str, str, Any]] = [("Conv", "xw", {}), ("Flatten", "1", {})]
    graph = chain(given, *nodes, ("MatMul", "2b", {}), constants="wb")
    return run_model(to_bytes(graph), {"x": given["x"]}, device)["y"]


def draw_conv(rng: np.random.Generator, *, most: int = 24, whole: bool = False) -> Arguments:
    """Return a random convolution with up to about `most` channels a group."""
    channels = [v for v in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 17, 31, 64) if v <= most]
    groups = pick(rng, (1, 1, 1, 1, 2, 3, 5))
    per_in, per_out = (max(1, pick(rng, channels) // groups) for _ in range(2))
    if rng.random() < 0.25:
        groups, per_in, per_out = pick(rng, channels), 1, 1
    k, stride, dilation = (
        (pick(rng, choices), pick(rng, choices))
        for choices in ((1, 2, 3, 3, 4), (1, 1, 2, 3), (1, 1, 1, 2, 3))
    )
    size = (pick(rng, (1, 2, 3, 4, 5, 7, 8, 11)), pick(rng, (1, 2, 3, 4, 5, 7, 9, 13)))
    pads = [int(rng.integers(0, 4)) for _ in range(4)]
    for axis in range(2):
        reach = (k[axis] - 1) * dilation[axis] + 1
        pads[axis + 2] += max(0, reach - size[axis] - pads[axis] - pads[axis + 2])
    return {
        "c": groups * per_in, "size": size, "m": groups * per_out, "k": k, "stride": stride,
        "pads": tuple(pads), "dilation": dilation, "groups": groups,
        "n": pick(rng, (1, 1, 1, 2, 3)), "bias": bool(rng.random() < 0.5),
        "act": pick(rng, (None, None, *(COMPARING if whole else ACTIVATIONS))),
    }  # fmt: skip


back = partial(conv, stride=(2, 2), extra=(0, 0))
"""A transposed convolution."""


def draw_back(rng: np.random.Generator) -> Arguments:
    """Return a random transposed convolution."""
    groups = pick(rng, (1, 1, 2, 3, 7))
    stride = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
    dilation = (pick(rng, (1, 1, 2)), pick(rng, (1, 1, 2)))
    k = (int(rng.integers(1, 5)), int(rng.integers(1, 5)))
    size = (pick(rng, (1, 2, 3, 5)), pick(rng, (1, 2, 3, 5)))
    extra, pads = [0, 0], [0, 0, 0, 0]
    for i in range(2):
        extra[i] = int(rng.integers(0, stride[i]))
        full = stride[i] * (size[i] - 1) + extra[i] + (k[i] - 1) * dilation[i] + 1
        pads[i] = int(rng.integers(0, min(4, full - 1) + 1))
        pads[i + 2] = int(rng.integers(0, min(4, full - 1 - pads[i]) + 1))
    return {
        "c": groups * pick(rng, (1, 2, 3, 4, 5, 9)), "size": size,
        "m": groups * pick(rng, (1, 2, 3, 4, 5)), "k": k, "stride": stride, "pads": tuple(pads),
        "extra": tuple(extra), "dilation": dilation, "groups": groups,
        "n": pick(rng, (1, 1, 2)), "bias": bool(rng.random() < 0.5),
        "act": pick(rng, (None, "relu")),
    }  # fmt: skip


BATCHES: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((), ()), ((2,), ()), ((), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)),
    ((2, 1, 3), (2, 2, 1)), ((1,), (5,)), ((1, 1), (1,)),
)  # fmt: skip
"""Leading axes of both operands that broadcast together."""

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 13, 31, 33)


def matmul(a: Shape, b: Shape, *, joined: bool = False) -> Case:
    """Return a matrix product by numpy's rules; `joined` as of `conv`, of matrices."""

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        more = [_counted((*a[:-1], b[-1]))] if joined else []
        return [fill(rng, a, data), weights(rng, b, data), *more]

    rows, columns = (s[where] if len(s) > 1 else 1 for s, where in ((a, -2), (b, -1)))
    facts = product_facts(rows, a[-1], columns)
    text = f"{dims(a)}-{dims(b)}{'-joined' if joined else ''}"

    def wanted(left: Num, right: Num, *more: Num, whole: bool) -> Num:
        result = oracle.matmul(left, right, whole=whole)
        return added(result, more[0], whole=whole) if more else result

    call = partial(_of_joined, "MatMul", {}) if joined else None
    return case("matmul", text, draw, wanted, call=call, is_sum=True, facts=facts)


def draw_matmul(rng: np.random.Generator, lengths: Sequence[int] = LENGTHS) -> Case:
    """Return a random product of matrices, batches of them or vectors."""
    batch_a, batch_b = pick(rng, BATCHES)
    m, k, n = (pick(rng, lengths) for _ in range(3))
    vectors = pick(rng, ("", "", "", "", "a", "b", "ab"))
    return matmul(
        (k,) if "a" in vectors else (*batch_a, m, k), (k,) if "b" in vectors else (*batch_b, k, n)
    )


def gemm(
    m: int,
    k: int,
    n: int,
    c: Shape | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Case:
    """Return alpha * a @ b + beta * c, each of the matrices transposed or not."""
    flags = f"{'-ta' if trans_a else ''}{'-tb' if trans_b else ''}"
    addend = "" if c is None else f"-c{dims(c)}"
    how: Arguments = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        a = fill(rng, (k, m) if trans_a else (m, k), data)
        b = weights(rng, (n, k) if trans_b else (k, n), data)
        return [a, b, None if c is None else weights(rng, c, data)]

    text = f"{m}x{k}x{n}{flags}{addend}-a{alpha:g}-b{beta:g}"
    return case("gemm", text, draw, partial(oracle.gemm, **how), how, is_sum=True)


def draw_gemm(rng: np.random.Generator) -> Case:
    """Return a random one."""
    m, k, n = (pick(rng, LENGTHS) for _ in range(3))
    shapes: tuple[Shape | None, ...] = (None, (), (n,), (1, n), (m, 1), (m, n), (1, 1))
    return gemm(
        m, k, n, pick(rng, shapes), alpha=pick(rng, (1.0, 1.0, 2.0, -0.5)),
        beta=pick(rng, (1.0, 1.0, 2.0, -0.5, 0.0)),
        trans_a=bool(rng.random() < 0.5), trans_b=bool(rng.random() < 0.5),
    )  # fmt: skip


CONVOLUTIONS: tuple[Case, ...] = (
    conv(3, (6, 7), 5, pads=(1, 1, 1, 1), bias=True),
    conv(7, (11, 13), 9, stride=(2, 2), pads=(1, 1, 1, 1), act="relu"),
    conv(8, (5, 9), 12, (1, 1), bias=True),
    conv(5, (6, 8), 6, pads=(2, 0, 1, 3), dilation=(2, 1)),
    conv(6, (7, 8), 4, (3, 3), pads=(1, 1, 1, 1), groups=2),
    conv(9, (5, 6), 12, (2, 3), (1, 2), pads=(0, 1, 1, 0), groups=3, bias=True),
    conv(13, (7, 9), 13, pads=(1, 1, 1, 1), groups=13, bias=True, act="relu6"),  # depthwise
    conv(8, (9, 7), 8, (5, 5), (2, 1), pads=(2, 2, 2, 2), groups=8),
    conv(4, (8, 8), 8, (3, 3), groups=4),  # two filters for each channel
    conv(1, (1, 1), 1, (1, 1)),
    conv(1, (1, 17), 3, (1, 5), pads=(0, 2, 0, 2)),
    conv(1, (17, 1), 3, (5, 1), pads=(2, 0, 2, 0)),
    conv(2, (3, 3), 3, (3, 3), pads=(4, 4, 4, 4)),  # windows that see padding only
    conv(5, (9, 9), 3, (3, 3), stride=(5, 3), dilation=(3, 3), pads=(0, 0, 0, 0)),
    conv(10, (4, 5), 2, (4, 5)),  # the window is the image
    conv(31, (3, 4), 17, (1, 1), n=2, act="sigmoid"),
    conv(4, (5, 6), 7, (2, 2), stride=(2, 2), mode="same", bias=True),
    conv(4, (6, 5), 4, (3, 2), stride=(2, 1), mode="same"),
    conv(3, (5, 5), 4, (3, 3), mode="valid", n=3),
    conv(64, (2, 3), 3, (3, 3), pads=(1, 1, 1, 1)),  # a long sum
    conv(3, (4, 21), 8, (3, 3), pads=(1, 1, 1, 1), act="hard_swish", bias=True),
    conv(4, (5, 5), 4, (3, 3), pads=(1, 1, 1, 1), act="gelu"),
    conv(4, (5, 5), 7, (1, 1), act="silu", bias=True),
    conv(4, (5, 5), 6, (1, 1), act="leaky_relu"),
    conv(4, (5, 5), 7, (2, 2), act="tanh"),
    conv(4, (5, 5), 6, (2, 2), act="elu"),
    conv(1, (65, 67), 4, (1, 1)),  # more texels than a row of a linear tensor has
)

TILES: tuple[Case, ...] = (
    conv(9, (6, 11), 21, (3, 3), pads=(1, 1, 1, 1), bias=True, act="relu"),
    conv(5, (9, 14), 13, (2, 4), (2, 1), pads=(1, 2, 0, 1), dilation=(1, 2), n=2),
    conv(12, (5, 9), 18, (1, 1), bias=True, n=2),
    conv(3, (13, 17), 10, (5, 5), (2, 2), pads=(2, 2, 2, 2), bias=True, act="relu6"),
    conv(8, (7, 8), 5, (3, 9), pads=(1, 4, 1, 4), bias=True),
    conv(18, (5, 6), 60, (1, 1), groups=3, n=2),  # five slices a group: tiles of four end early
    conv(10, (6, 9), 40, (3, 3), pads=(0, 1, 2, 1), groups=2, bias=True),
    conv(6, (1, 33), 16, (1, 3), pads=(0, 4, 0, 0), dilation=(1, 2)),
    conv(7, (6, 4), 9, (3, 3), pads=(1, 1, 1, 1)),
    conv(32, (5, 7), 29, (1, 1), bias=True, act="relu", n=2),  # runs of pixels and a rest of them
    conv(29, (7, 10), 25, (2, 3), (2, 1), pads=(1, 2, 1, 0), dilation=(1, 2), bias=True),
    conv(64, (6, 5), 64, (1, 1), groups=2, n=2),
    conv(60, (3, 10), 48, (1, 3), pads=(0, 1, 0, 1), groups=2, bias=True),
    conv(3, (11, 15), 27, (5, 3), (2, 2), pads=(2, 1, 1, 2), bias=True, act="relu", n=2),  # images
    conv(2, (6, 13), 26, (2, 3), pads=(0, 1, 1, 1), dilation=(1, 2), groups=2),
)
"""What register tiles have edges of: columns, slices, groups, pads and the end of a plane."""

IN_TILES: tuple[Case, ...] = (
    conv(16, (12, 12), 13, pads=(1, 1, 1, 1), bias=True, act="relu", fixed=True),
    conv(17, (14, 14), 16, n=2, fixed=True),
    conv(16, (11, 14), 18, pads=(2, 1, 0, 2), bias=True, fixed=True),
    conv(16, (5, 73), 13, pads=(2, 0, 0, 2), fixed=True),  # more tiles than each has points
    conv(16, (9, 21), 25, pads=(1, 1, 1, 1), bias=True, fixed=True),  # runs of tiles and a rest
)
"""What Winograd's tiles have edges of: the ends of rows and columns, pads, slices, the batch."""

JOINED: tuple[Case, ...] = (
    conv(9, (6, 11), 21, (3, 3), pads=(1, 1, 1, 1), bias=True, joined=True),
    conv(12, (5, 9), 18, (1, 1), bias=True, n=2, joined=True),
    conv(3, (13, 17), 10, (5, 5), (2, 2), pads=(2, 2, 2, 2), joined=True),
    conv(10, (6, 9), 40, (3, 3), pads=(0, 1, 2, 1), groups=2, bias=True, joined=True),
    conv(6, (1, 33), 16, (1, 3), pads=(0, 4, 0, 0), dilation=(1, 2), joined=True),
    conv(32, (5, 7), 29, (1, 1), n=2, joined=True),
    conv(2, (6, 13), 26, (2, 3), pads=(0, 1, 1, 1), dilation=(1, 2), groups=2, joined=True),
)
"""What a tensor is added to, so that the place of each result counts."""

DEPTHWISE: tuple[Case, ...] = (
    conv(9, (7, 10), 9, pads=(1, 1, 1, 1), groups=9, bias=True, act="relu6"),
    conv(5, (8, 9), 5, stride=(2, 2), pads=(0, 1, 1, 1), groups=5, n=2),
    conv(8, (9, 11), 8, (5, 5), pads=(2, 2, 2, 2), groups=8, bias=True),
    conv(6, (5, 3), 6, pads=(2, 1, 0, 1), groups=6),
    conv(7, (6, 7), 7, (3, 3), dilation=(2, 2), groups=7),
    conv(5, (8, 13), 5, (7, 7), pads=(3, 3, 2, 3), groups=5, bias=True, act="relu"),
    conv(6, (4, 19), 6, (2, 3), pads=(1, 1, 0, 1), dilation=(2, 1), groups=6, n=2),
    conv(9, (5, 12), 9, (1, 4), (2, 1), pads=(0, 2, 0, 1), dilation=(1, 3), groups=9, bias=True),
)

JOINED_DEPTHWISE: tuple[Case, ...] = (
    conv(9, (7, 10), 9, pads=(1, 1, 1, 1), groups=9, bias=True, joined=True),
    conv(5, (8, 9), 5, stride=(2, 2), pads=(0, 1, 1, 1), groups=5, n=2, joined=True),
    conv(8, (9, 11), 8, (5, 5), pads=(2, 2, 2, 2), groups=8, bias=True, joined=True),
)

TRANSPOSED: tuple[Case, ...] = (
    back(3, (3, 4), 5, bias=True),
    back(5, (4, 3), 3, (4, 4), pads=(1, 1, 1, 1), act="relu"),
    back(4, (3, 3), 6, (2, 2), groups=2),
    back(6, (2, 5), 6, stride=(3, 2), pads=(1, 0, 2, 1), extra=(1, 1), groups=6),
    back(2, (3, 3), 2, (2, 3), stride=(1, 1), dilation=(2, 2), n=2),
    back(9, (1, 1), 7, (3, 5)),
    back(2, (2, 2), 3, (1, 1), stride=(3, 3)),  # most outputs meet no input
)

BACK: tuple[Case, ...] = (
    back(6, (4, 7), 14, (2, 2), bias=True, act="relu"),
    back(9, (3, 5), 21, (4, 4), pads=(1, 1, 1, 1), n=2),
    back(5, (3, 6), 12, (3, 3), pads=(1, 1, 0, 1), extra=(1, 1), bias=True),
    back(12, (5, 6), 36, (3, 2), stride=(1, 3), groups=3),
    back(7, (4, 5), 3, (5, 3), stride=(3, 2), pads=(1, 0, 1, 1)),
    back(8, (3, 4), 10, (2, 5), stride=(3, 4), pads=(0, 2, 1, 0), extra=(0, 1)),  # not all reached
)
"""The same of transposed convolutions, and of columns that lie a stride apart."""

JOINED_BACK: tuple[Case, ...] = (
    back(6, (4, 7), 26, (2, 2), bias=True, joined=True),  # seven slices: tiles of four end early
    back(12, (5, 6), 72, (3, 2), stride=(1, 3), groups=3, joined=True),
    back(7, (4, 5), 3, (5, 3), stride=(3, 2), pads=(1, 0, 1, 1), joined=True),
)

MATMULS: tuple[Case, ...] = (
    matmul((5, 7), (7, 9)),
    matmul((33, 31), (31, 13)),
    matmul((2, 3, 5, 4), (3, 4, 6)),
    matmul((1, 1), (1, 1)),
    matmul((1, 67), (67, 1)),
    matmul((64, 1), (1, 5)),
    matmul((17,), (17,)),
    matmul((17,), (17, 6)),
    matmul((6, 17), (17,)),
    matmul((2, 1, 3, 4), (5, 4, 2)),
    matmul((4,), (3, 4, 5)),
    matmul((3, 2, 4), (4,)),
    matmul((40, 40), (40, 40)),
)

DEEP: tuple[Case, ...] = (
    matmul((33, 32), (32, 33)),
    matmul((40, 41), (41, 35)),
    matmul((2, 32, 33), (33, 36)),
    matmul((3, 35, 32), (3, 32, 32)),
    matmul((49, 51), (51, 54)),
    matmul((49, 48), (48, 103)),
    matmul((48, 49), (49, 104)),
    matmul((2, 9, 6), (2, 6, 235)),
    matmul((3, 13, 9), (9, 122)),
    matmul((4, 5), (5, 4)),
    matmul((1, 9), (9, 7)),
)
"""Products with rows, depth and columns enough for every kernel, and too few for most."""

JOINED_MATMULS: tuple[Case, ...] = (
    matmul((33, 32), (32, 37), joined=True),
    matmul((40, 41), (41, 35), joined=True),
    matmul((49, 48), (48, 103), joined=True),
    matmul((2, 9, 6), (2, 6, 235), joined=True),
    matmul((4, 5), (5, 7), joined=True),
)

GEMMS: tuple[Case, ...] = (
    gemm(5, 7, 9, (9,)),
    gemm(4, 6, 5, (4, 1), alpha=2.0, beta=-0.5, trans_a=True, trans_b=True),
    gemm(3, 8, 4, alpha=-0.5, trans_b=True),
    gemm(1, 13, 6, (), beta=2.0, trans_a=True),
    gemm(7, 5, 3, (7, 3), beta=0.0),
)
