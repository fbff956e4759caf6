"""Known-answer tests: graphs at awkward shapes, and answers computed independently in float64.

`standard` cases are run on every device. Two of them compute (elementwise arithmetic, a
convolution); three look at what a device may get wrong while only passing numbers on: every
exponent of a float32, every byte where the device keeps bytes, and the divisions that turn the
number of a texel into coordinates, over the range of numbers that real tensors have. The others are
run where entries of the capability database ask for them: every kernel, every storage.
`infinities` tell whether a device that keeps float32 in bytes keeps infinities and NaN there.

The answers are those of `gpuedge.oracle`, which shares no code with the kernels, the planner or the
CPU executor. Whole numbers must come back in every bit; random ones within the answer for absolute
values, times the number of roundings. Runs nothing; `trials` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpuedge.core.caps import Caps
from gpuedge.core.storage import KINDS
from gpuedge.graph.build import chain
from gpuedge.graph.ir import Graph
from gpuedge.opset import winograd
from gpuedge.opset.bounds import Num, U
from gpuedge.opset.tensor import Window
from gpuedge.oracle.nodes import evaluate
from gpuedge.plan.storages import (
    BYTES,
    EXACT,
    FLOAT_TEXEL,
    StoragePrecision,
    input_storage,
    offers,
)

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]

POISON = 0xAB
"""Every output byte before a run. As a float32 it is -1.2e-12, which no test here can produce."""

ELEMENTWISE = (2, 7, 97, 3)
"""Shape of the elementwise tests: no extent is a multiple of the four that texels hold."""

CONVOLVED = (1, 7, 11, 13)
"""Shape that the convolutions take."""

LARGEST = 1 << 27
"""Bytes of the largest tensor that a test may need."""

LARGE: Final = 1 << 25
"""Bytes of the largest tensor of the test ``large``: all its places are exact float32."""

LARGE_WIDTH: Final = 1021

SLACK: Final = 4
"""Room in bounds for multiplications that APIs allow to be a little less than exactly rounded."""

HALF_UNIT: Final = 2.0**-11
HALF_LEAST: Final = 2.0**-14
"""Smallest normal float16: below it a device may give zero."""


@dataclass(frozen=True)
class KnownAnswer:
    """One kernel with one set of inputs.

    Attributes
    ----------
    name : str
    graph : Graph
        One output; its inputs are the keys of `inputs`. Cases may have the very same graph: they
        are to run on one compiled kernel.
    inputs : dict of str to array
    expected : float64 array
        The exact answer.
    bound : float64 array
        Largest allowed absolute error of each element; zero for integer-valued data, where
        float32 is exact in any order of summation.
    precision : StoragePrecision
        How tensors are to be kept.
    storage : str
        The storage kind that is to be the exact one; empty for the one that would be used.
    """

    name: str
    graph: Graph
    inputs: Arrays
    expected: F64
    bound: F64
    precision: StoragePrecision = EXACT
    storage: str = ""

    @property
    def output(self) -> str:
        """Name of the graph's output."""
        return self.graph.outputs[0]

    @property
    def dtype(self) -> str:
        """Type of the output."""
        return self.graph.types[self.output].dtype


def cases(caps: Caps | None = None, test: str = "standard") -> list[KnownAnswer]:
    """Return the cases of a test in the order they run; same data on every call.

    Parameters
    ----------
    caps : Caps, optional
        The device they are for. No tensor is larger than it takes, and what it does not offer is
        not tested, so that the list may be empty.
    test : str
        Of `gpuedge.capdb.entries.TESTS`.
    """
    if caps is None:
        return [*_fixed_cases(), _places_case(LARGEST, is_slow=False), _bytes(), _bytes_read()]
    return _TESTS[test](caps)


@cache
def infinities() -> tuple[KnownAnswer, ...]:
    """Return cases of infinities and NaN: arithmetic, and what softmax and masks do with them.

    No specification of shaders promises them. The first has the kernel of the elementwise cases.
    Answers are numpy's.
    """
    most = np.finfo(np.float32).max
    special = np.array([np.inf, -np.inf, np.nan, 0, 1, -2, most], np.float32)
    a, b, c = map(np.ravel, np.meshgrid(special, special, special))
    p = np.resize(special[:4], c.size)
    with np.errstate(all="ignore"):
        fused = (a.astype(np.float64) * b + c).astype(np.float32)
        sure = (fused == a * b + c) | (np.isnan(fused) & np.isnan(a * b + c))
        powers = np.exp(p.astype(np.float64) - np.maximum(a, b))
        chosen = np.where(a < b, powers, np.where(np.isnan(p), a, np.maximum(a, b)))
    triples = {k: np.resize(v[sure], ELEMENTWISE) for k, v in zip("abc", (a, b, c), strict=True)}
    choice = {"a": a, "b": b, "p": p}
    choices = chain(
        choice, ("Max", "ab", {}), ("Sub", "p1", {}), ("Exp", "2", {}), ("Less", "ab", {}),
        ("IsNaN", "p", {}), ("Where", "5a1", {}), ("Where", "436", {}),
    )  # fmt: skip
    masks = _case("masks of infinities and NaN", choices, choice, chosen)
    # Only powers of -1 and 2 are inexact, by a few units.
    is_power = (a < b) & np.isin(powers, np.exp([-1.0, 2.0]))
    sums = np.resize(fused[sure], ELEMENTWISE)
    return (
        _case("infinities and NaN", _fixed_cases()[0].graph, triples, sums),
        replace(masks, bound=np.where(is_power, 16 * U * chosen, 0.0)),
    )


def runtime_cases() -> list[KnownAnswer]:
    """Return the cases for another runtime, which takes whole graphs.

    OpenVINO rounds operands of products by packed weights to 8 bits, in groups of 32 or more.
    """
    rng = _rng()
    product = {"a": _whole(rng, 49, 67), "b": _whole(rng, 67, 53)}
    return [*cases(), _one("product", "MatMul", product), _packed(*PACKED[0], block=32)]


def _case(
    name: str,
    graph: Graph,
    inputs: Arrays,
    expected: npt.NDArray[Any] | None = None,
    roundings: float = 0,
    **more: Any,
) -> KnownAnswer:
    """Return a case, by default with the oracle's answer; constants of the graph are no inputs.

    Any order of summation, fused or not, errs by about `roundings` times the unit roundoff times
    the sum of absolute values (Higham, Accuracy and Stability of Numerical Algorithms, section
    3.1). Whole numbers that are small enough have none.
    """
    exact = (_answer(graph, inputs) if expected is None else expected).astype(np.float64)
    bound: F64 = np.zeros_like(exact)
    if roundings:
        sizes = {name: abs(array) for name, array in inputs.items()}
        bound = SLACK * roundings * U * _answer(graph, sizes)
    given = {key: array for key, array in inputs.items() if key not in graph.constants}
    return KnownAnswer(name, graph, given, exact, bound, **more)


def _answer(graph: Graph, inputs: Arrays) -> F64:
    values = evaluate(graph, inputs, whole=True)
    return Num.of(values[graph.outputs[0]]).v


def _one(name: str, op: str, inputs: Arrays, *, constants: str = "", **attrs: Any) -> KnownAnswer:
    """Return a case of one node."""
    graph = chain(inputs, (op, "".join(inputs), attrs), constants=constants)
    return _case(name, graph, inputs)


def _rng() -> np.random.Generator:
    return np.random.default_rng(20)


def _whole(rng: np.random.Generator, *shape: int) -> F32:
    return rng.integers(-4, 5, shape).astype(np.float32)


def _random(rng: np.random.Generator, *shape: int) -> F32:
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


# --- standard cases ------------------------------------------------------------------------------


def elementwise_graph(shape: tuple[int, ...]) -> Graph:
    """Return a * b + c."""
    zeros = np.zeros(shape, np.float32)
    return chain({"a": zeros, "b": zeros, "c": zeros}, ("Mul", "ab", {}), ("Add", "1c", {}))


def _conv(x: F32, w: F32, b: F32, pads: Sequence[int]) -> Graph:
    """Return relu(conv(x, w, b)) with stride 1."""
    attrs = {"kernel_shape": list(w.shape[2:]), "pads": list(pads)}
    inputs = {"x": x, "w": w, "b": b}
    return chain(inputs, ("Conv", "xwb", attrs), ("Relu", "1", {}), constants="wb")


@cache
def _fixed_cases() -> tuple[KnownAnswer, ...]:
    """Return what is the same for every device; computed once for all children.

    Three cases of one kernel: a driver's compiler is what most of a probe's time goes to.
    """
    rng = _rng()
    whole = {key: _whole(rng, *ELEMENTWISE) for key in "abc"}
    random = {key: _random(rng, *ELEMENTWISE) for key in "abc"}
    graph = elementwise_graph(ELEMENTWISE)
    # 7 channels in and 9 out: neither is a multiple of the four that texels hold. The weights need
    # 12 bits, more than float16 has: a device that computes with less gets the integers wrong.
    # 7 * 9 products of at most 4 * 4095 are far below the 2^24 up to which float32 is exact.
    x, w = _whole(rng, *CONVOLVED), rng.integers(-4095, 4096, (9, 7, 3, 3)).astype(np.float32)
    weights = {"w": w, "b": _whole(rng, 9)}
    conv = _conv(x, w, weights["b"], (1, 0, 2, 1))
    fine = {"x": _random(rng, *x.shape), **weights}
    return (
        _case("elementwise integers", graph, whole),
        _case("elementwise random", graph, random, roundings=1),
        _case("every exponent", graph, _exponents(rng)),
        _case("convolution integers", conv, {"x": x, **weights}),
        _case("convolution random", conv, fine, roundings=7 * 3 * 3 + 1),
    )


def _exponents(rng: np.random.Generator) -> Arrays:
    """Every exponent of a normal float32, both signs, round and odd mantissas, times -1: exact.

    Denormals, infinities and NaN are left out: no API promises them.
    """
    fixed = [0, 1, 0x400000, 0x7FFFFF, 0x2AAAAA]
    mantissas = np.concatenate([fixed, rng.integers(0, 1 << 23, 3)]).astype(np.uint32)
    exponents = np.arange(1, 255, dtype=np.uint32)
    words = (exponents[:, None] << np.uint32(23)) | mantissas
    x = np.concatenate([words, words | np.uint32(1 << 31)]).view(np.float32)
    x = np.resize(x, ELEMENTWISE)  # there are ten places more than numbers
    return {"a": x, "b": np.full_like(x, -1.0), "c": np.zeros_like(x)}


def _gather(name: str, x: npt.NDArray[Any], right: int = 1, **more: Any) -> KnownAnswer:
    """Return the largest of windows of one pixel: every `right`-th pixel of a row, as it is."""
    attrs = {"kernel_shape": [1, 1], "strides": [1, right]}
    graph = chain({"x": x}, ("MaxPool", "x", attrs))
    return _case(name, graph, {"x": x}, x[..., ::right], **more)


def _bytes(dtype: str = "uint8", name: str = "every byte", storage: str = "") -> KnownAnswer:
    """Every value of a byte in each of the four places of a texel."""
    low = int(np.iinfo(dtype).min)
    values = np.arange(low, low + 256)
    planes = [values, values[::-1], np.roll(values, 85), np.roll(values[::-1], 171)]
    return _gather(name, np.stack(planes).astype(dtype).reshape(1, 4, 16, 16), storage=storage)


@cache
def _bytes_read(dtype: str = "uint8", name: str = "bytes from the host") -> KnownAnswer:
    """256 times every byte, as floats, and the byte in the same place of the turned matrix.

    So every value is read as part of a whole texel and alone, in each of the four places.
    """
    x = (np.resize(np.arange(257) % 256, (36, 36)) + np.iinfo(dtype).min).astype(dtype)
    whole = np.full(1, 256, np.float32)
    graph = chain(
        {"x": x, "h": whole}, ("Cast", "x", {"to": 1}), ("Transpose", "1", {}), ("Mul", "1h", {}),
        ("Add", "23", {}), constants="h",
    )  # fmt: skip
    wide = x.astype(np.int64)
    return _case(name, graph, {"x": x}, 256 * wide + wide.T)


@cache
def _product_of_bytes() -> KnownAnswer:
    """A product that is computed four bytes at a time; no extent is a multiple of its tiles.

    With 100 for a zero point none of the left numbers are the bytes that they are packed as.
    """
    rng = _rng()
    inputs = {
        "a": rng.integers(0, 256, (35, 333)).astype(np.uint8),
        "b": rng.integers(-128, 128, (333, 37)).astype(np.int8),
        "z": np.array(100, np.uint8),
    }
    return _one("product of bytes", "MatMulInteger", inputs, constants="z")


def _spends_texels(caps: Caps) -> bool:
    """Tell whether each float32 takes a texel of its own, so that kernels compute four times."""
    return caps.storages[0] == FLOAT_TEXEL


@cache
def _convolution_of_bytes() -> KnownAnswer:
    """The same of a convolution: planes, channels and filters fill no tile."""
    rng = _rng()
    inputs = {
        "x": rng.integers(0, 256, (2, 45, 6, 9)).astype(np.uint8),
        "w": rng.integers(-128, 128, (18, 45, 2, 3)).astype(np.int8),
        "z": np.array(100, np.uint8),
    }
    return _one("convolution of bytes", "ConvInteger", inputs, constants="wz")


@cache
def _places_case(limit: int, *, is_slow: bool) -> KnownAnswer:
    """Every value is its own place: coordinates from large numbers, odd widths, a stride.

    Where a texel is four fragments of which each computes all of it (`is_slow`) the tensor is
    smaller: softpipe needed nine seconds for the large one, twice.
    """
    height, width = (131, 127) if is_slow else (311, 307)
    while 2 * height * width * 16 > limit and height > 1:
        height //= 2
    return places("every place", height, width)


def places(name: str, height: int, width: int) -> KnownAnswer:
    """Return every second pixel of eight channels of numbers that are their own places."""
    x = np.arange(8 * height * width, dtype=np.float32).reshape(1, 8, height, width)
    return _gather(name, x, 2)


def _standard(caps: Caps) -> list[KnownAnswer]:
    has_bytes = caps.storages[0] == FLOAT_TEXEL and BYTES["uint8"] in caps.storages
    reads_bytes = [_bytes_read()] if input_storage("uint8", caps) else []
    products = [_product_of_bytes(), _convolution_of_bytes()] if caps.dot_products > 1 else []
    return _floats(caps) + ([_bytes()] if has_bytes else reads_bytes) + products


def _floats(caps: Caps) -> list[KnownAnswer]:
    limit = min(caps.max_storage_buffer_bytes, LARGEST)
    return [*_fixed_cases(), _places_case(limit, is_slow=_spends_texels(caps))]


# --- what entries ask for ------------------------------------------------------------------------


PRODUCTS = {
    "one row": (1, 48, 8), "few rows": (3, 48, 8), "rows": (9, 36, 16), "tiles": (49, 52, 68),
}  # fmt: skip
"""Rows, terms and columns: whole texels, which need no packing."""

WIDE_PRODUCTS = {
    "fewer wide rows": (7, 36, 104), "few wide rows": (9, 36, 104), "wide tiles": (49, 52, 104),
}  # fmt: skip
"""What kernels that read lanes of subgroups are for."""

PACKED = ((3, 40), (9, 40))
WIDE_PACKED = ((9, 32), (17, 32))
"""Rows and columns of products by packed weights, which are no whole tiles; and those by lanes."""

_Shape = tuple[int, ...]
TILES: Final[Mapping[str, tuple[str, _Shape, _Shape, Mapping[str, Any]]]] = {
    "groups in one slice": ("Conv", (1, 4, 6, 7), (6, 2, 2, 2), {"group": 2}),
    "few filters": ("Conv", (1, 8, 7, 8), (4, 8, 2, 2), {}),
    "few filters, three taps": ("Conv", (1, 8, 7, 8), (4, 8, 3, 3), {}),
    "many filters": ("Conv", (1, 8, 7, 8), (12, 8, 2, 2), {}),
    "many filters, three taps": ("Conv", (1, 8, 7, 8), (12, 8, 3, 3), {}),
    "one slice": ("Conv", (1, 3, 7, 8), (8, 3, 2, 2), {}),
    "image, many filters": ("Conv", (1, 3, 7, 8), (14, 3, 2, 2), {}),
    "single pixels": ("Conv", (1, 8, 7, 8), (12, 8, 1, 1), {}),
    "depthwise by 3": ("Conv", (1, 6, 7, 8), (6, 1, 3, 3), {"group": 6}),
    "depthwise by 3, stride 2": (
        "Conv",
        (1, 6, 9, 9),
        (6, 1, 3, 3),
        {"group": 6, "strides": [2, 2]},
    ),
    "depthwise by 5": ("Conv", (1, 6, 9, 8), (6, 1, 5, 5), {"group": 6}),
    "depthwise by 7": ("Conv", (1, 6, 8, 10), (6, 1, 7, 7), {"group": 6}),
    "depthwise, three taps": ("Conv", (1, 6, 7, 8), (6, 1, 2, 3), {"group": 6}),
    "depthwise": ("Conv", (1, 6, 7, 8), (6, 1, 2, 2), {"group": 6}),
    "depthwise, narrow": ("Conv", (1, 6, 7, 3), (6, 1, 2, 2), {"group": 6}),
    "transposed, few filters": ("ConvTranspose", (1, 5, 4, 5), (5, 4, 3, 3), {"strides": [2, 2]}),
    "transposed, many filters": ("ConvTranspose", (1, 5, 4, 5), (5, 12, 3, 3), {"strides": [2, 2]}),
    "transposed, narrow": ("ConvTranspose", (1, 31, 5, 1), (31, 4, 2, 2), {"strides": [2, 2]}),
    "runs of pixels": ("Conv", (1, 29, 6, 7), (24, 29, 2, 2), {}),
}
"""Operator, shapes of image and weights, and attributes: what kernels in register tiles are for."""

RUNS = "runs of pixels"
"""The one of `TILES` that is for kernels that read lanes of subgroups."""


def _kernels(caps: Caps) -> list[KnownAnswer]:
    """Return cases for the ways that selection can go which the standard ones do not.

    Compiling is what a probe pays for. Kernels that keep channels in texels are in one graph, which
    takes and gives shapes of the standard convolution: what packs and unpacks is there already.
    """
    rng = _rng()

    def whole(**shapes: tuple[int, ...]) -> dict[str, F32]:
        return {name: _whole(rng, *shape) for name, shape in shapes.items()}

    # depthwise, then a convolution of narrow rows, then transposed: at most 4 * 4 * 4148, exactly
    shapes = {"d": (7, 1, 3, 3), "b": (7,), "w": (4, 7, 1, 1), "c": (4,), "t": (4, 9, 1, 1)}
    narrow: list[tuple[str, str, Any]] = [("Conv", "1wc", {})]
    if "group" not in caps.forms:  # then the standard convolution has the kernel of narrow rows
        shapes, narrow = {"d": (7, 1, 3, 3), "b": (7,), "t": (7, 9, 1, 1)}, []
    operands = whole(x=CONVOLVED, **shapes)
    nodes = [
        ("Conv", "xdb", {"pads": [1, 0, 1, 0], "strides": [2, 4], "group": 7}),
        *narrow,
        ("ConvTranspose", f"{1 + len(narrow)}t", {"output_padding": [1, 3], "strides": [2, 4]}),
    ]

    return [
        _case("convolutions", chain(operands, *nodes, constants="dbwct"), operands),
        _one("sum", "ReduceSum", whole(x=(4, 64))),
        *(
            _one(f"product of {name}", "MatMul", whole(a=(m, k), b=(k, n)))
            for name, (m, k, n) in _products(caps)
        ),
        *(
            _one(f"convolution: {name}", op, whole(x=x, w=w), constants="w", **attrs)
            for name, (op, x, w, attrs) in _tiles(caps)
        ),
        *(_tiled(filters) for filters in ((14, 24) if caps.subgroup_lanes else (14,))),
        *(_packed(*shape) for shape in _packed_shapes(caps)),
        *_digits(),
        *(_arithmetic(caps) if caps.has_fp16_arithmetic else ()),
    ]


def _products(caps: Caps) -> Iterable[tuple[str, tuple[int, int, int]]]:
    return (PRODUCTS | (WIDE_PRODUCTS if caps.subgroup_lanes else {})).items()


def _tiles(caps: Caps) -> list[tuple[str, tuple[str, _Shape, _Shape, Mapping[str, Any]]]]:
    return [(name, tile) for name, tile in TILES.items() if name != RUNS or caps.subgroup_lanes]


def _packed_shapes(caps: Caps) -> tuple[tuple[int, int], ...]:
    if input_storage("uint8", caps) is None:  # their weights are floats there
        return ()
    return PACKED + (WIDE_PACKED if caps.subgroup_lanes else ())


def _packed(rows: int, columns: int, block: int = 16) -> KnownAnswer:
    """Return a product by weights of 4 bits, and of that one by weights of 8 bits: exactly.

    Those of 4 bits have one zero point, the others one for each block, of which the last may be
    part of one. Sums are at most 2 * 32 * 16 * 40 * 144 halves, below 2^24.
    """
    rng, depth = _rng(), 32
    a = rng.integers(-2, 3, (rows, depth)).astype(np.float32)
    given: dict[str, npt.NDArray[Any]] = {"a": a}
    nodes, exact = [], a.astype(np.float64)
    for bits, names, least in ((4, "aws", 1.0), (8, "1vtz", 0.5)):
        deep = exact.shape[1]
        count = -(-deep // block)
        codes = rng.integers(0, 1 << bits, (columns, count, block)).astype(np.uint8)
        scale = (least * rng.integers(1, 3, (columns, count))).astype(np.float32)
        zero = rng.integers(112, 145, (columns, count)) if bits == 8 else np.full_like(scale, 8)
        stored = codes[..., ::2] | codes[..., 1::2] << 4 if bits == 4 else codes
        given |= dict(zip(names[1:], (stored, scale, zero.astype(np.uint8)), strict=False))
        w = (codes - zero[..., None].astype(np.float64)) * scale[..., None]
        exact = exact @ w.reshape(columns, -1)[:, :deep].T
        attrs = {"K": deep, "N": columns, "bits": bits, "block_size": block}
        nodes.append(("MatMulNBits", names, attrs))
    graph = chain(given, *nodes, constants="wsvtz")
    return _case(f"packed weights: {rows} rows, {columns} columns", graph, given, exact)


def _tiled(filters: int) -> KnownAnswer:
    """Return a convolution that is computed in transformed tiles where that is faster: inexactly.

    Its bound is theirs (``docs/numerics.md``). Tiles end within the image on both axes.
    """
    rng, pads = _rng(), (1, 0, 1, 2)
    x, w = _whole(rng, 1, 16, 13, 14), _whole(rng, filters, 16, 3, 3)
    b = _whole(rng, filters)
    inputs = {"x": x, "w": w, "b": b}
    graph = chain(inputs, ("Conv", "xwb", {"pads": list(pads)}), constants="wb")
    case = _case(f"tiles of {filters} filters", graph, inputs)
    window = Window((3, 3), (1, 1), pads, (1, 1), case.expected.shape[2:])
    own = winograd.bound(Num.of(x), Num.of(w), window)
    return replace(case, bound=own + U * abs(case.expected))


def _arithmetic(caps: Caps) -> list[KnownAnswer]:
    """Return arithmetic in float16: whole numbers of 11 bits, which it holds, and sums beyond.

    A kernel that keeps fewer bits gets products wrong, one that adds up in float16 the sums.
    """
    rng, precision = np.random.default_rng(16), StoragePrecision(arithmetic="float16")

    def sums(name: str, *nodes: tuple[str, str, Any], constants: str = "",
             **given: tuple[int, ...]) -> KnownAnswer:  # fmt: skip
        # four products are at most 4 * 22 * 22 < 2048; nine, the shortest sum, are mostly more
        inputs = {k: rng.integers(8, 23, shape).astype(np.float32) for k, shape in given.items()}
        graph = chain(inputs, *nodes, constants=constants)
        return _case(name, graph, inputs, precision=precision)

    integers = {key: rng.integers(-most, most + 1, ELEMENTWISE).astype(np.float32)
             for key, most in {"a": 44, "b": 44, "c": 99}.items()}  # fmt: skip
    parts = {key: _random(rng, *ELEMENTWISE).astype(np.float16).astype(np.float32) for key in "abc"}
    graph = elementwise_graph(ELEMENTWISE)
    random = _case("float16 chain", graph, parts, roundings=1, precision=precision)
    product = abs(parts["a"].astype(np.float64) * parts["b"])
    # one rounding of the product, one of the sum; each may lose what is too small
    bound = 1.01 * HALF_UNIT * (product + abs(random.expected)) + 2 * HALF_LEAST + 4 * U
    return [
        _case("float16 chain of integers", graph, integers, precision=precision),
        replace(random, bound=bound),
        sums("float16 convolution", ("Conv", "xw", {}), constants="w", x=CONVOLVED, w=(9, 7, 3, 3)),
        sums("float16 narrow convolution", ("Conv", "xw", {}), constants="w", x=(1, 9, 11, 5),
             w=(9, 9, 3, 3)),
        sums("float16 depthwise convolution",
             ("Conv", "xw", {"group": 7, "pads": [1, 0, 1, 0], "strides": [2, 4]}),
             constants="w", x=CONVOLVED, w=(7, 1, 3, 3)),
        sums("float16 transposed convolution",
             ("ConvTranspose", "xw", {"output_padding": [1, 3], "strides": [2, 4]}),
             constants="w", x=(1, 31, 5, 5), w=(31, 9, 1, 1)),
        sums("float16 sum of products", ("Mul", "ab", {}), ("ReduceSum", "1", {}), a=(4, 64),
             b=(4, 64)),
        *(sums(f"float16 convolution: {name}", (op, "xw", attrs), constants="w", x=x, w=w)
          for name, (op, x, w, attrs) in _tiles(caps)),
        *(sums(f"float16 product of {name}", ("MatMul", "ab", {}), a=(m, k), b=(k, n))
          for name, (m, k, n) in _products(caps)),
    ]  # fmt: skip


def _digits() -> list[KnownAnswer]:
    """Return sums of integers beyond 2^24, which kernels keep in two digits."""
    rng = _rng()

    def large(**shapes: tuple[int, ...]) -> dict[str, Any]:
        return {n: rng.integers(200, 256, shape).astype(np.uint8) for n, shape in shapes.items()}

    products = {"large": ((2, 600), (600, 5)), "rows of large": ((6, 600), (600, 16))}
    images = {"large": (3, 4), "columns of large": (3, 5), "slices of large": (9, 5)}
    return [
        *(
            _one(f"product of {name} integers", "MatMulInteger", large(a=a, b=b), constants="b")
            for name, (a, b) in products.items()
        ),
        *(
            _one(f"convolution of {name} integers", "ConvInteger",
                 large(x=(1, 64, side, side), w=(filters, 64, 3, 3)), constants="w")
            for name, (filters, side) in images.items()
        ),
    ]  # fmt: skip


def _half(caps: Caps) -> list[KnownAnswer]:
    """Return arithmetic on tensors that are kept in float16."""
    if not offers(caps, "float16"):
        return []
    precision, rng, graph = StoragePrecision("float16"), _rng(), elementwise_graph(ELEMENTWISE)
    whole = {key: _whole(rng, *ELEMENTWISE) for key in "abc"}
    parts = {key: _random(rng, *ELEMENTWISE).astype(np.float16).astype(np.float32) for key in "abc"}
    random = _case("half random", graph, parts, roundings=1, precision=precision)
    # The inputs are kept as they are; the output is rounded, to nearest or towards zero.
    bound: F64 = 2 * HALF_UNIT * abs(random.expected) + HALF_LEAST + 4 * U
    inputs = {"x": _whole(rng, *CONVOLVED), "w": _whole(rng, 9, 7, 3, 3), "b": _whole(rng, 9)}
    # At most 63 * 16 + 4, which float16 holds.
    conv = _conv(inputs["x"], inputs["w"], inputs["b"], (1, 1, 1, 1))
    return [
        _case("half integers", graph, whole, precision=precision),
        replace(random, bound=bound),
        _case("half convolution", conv, inputs, precision=precision),
    ]


def _storages(caps: Caps) -> list[KnownAnswer]:
    """Return cases for each storage kind offered: exact ones as if each were the first."""
    exact = [kind for kind in caps.storages if KINDS[kind].is_exact and KINDS[kind].low is None]
    answers = [replace(case, storage=kind) for kind in exact for case in _floats(caps)]
    if FLOAT_TEXEL in caps.storages:
        kept = [dtype for dtype, kind in BYTES.items() if kind in caps.storages]
        answers += [_bytes(dtype, f"every {dtype}", FLOAT_TEXEL) for dtype in kept]
    taken = [dtype for dtype in BYTES if input_storage(dtype, caps)]
    answers += [_bytes_read(dtype, f"{dtype} from the host") for dtype in taken]
    if offers(caps, "fixed16"):
        answers.append(_fixed16())
    return answers + (_half(caps) if offers(caps, "float16") else [])


def _fixed16() -> KnownAnswer:
    """Return a thousand numbers of a range, moved twice: each is off by one step at most."""
    shape = (1, 4, 16, 16)
    x = np.linspace(-100.0, 155.0, prod(shape)).astype(np.float32).reshape(shape)
    precision = StoragePrecision("fixed16", {"x": (-100.0, 155.0), "y": (-100.0, 155.0)})
    case = _gather("16-bit fixed point", x, precision=precision)
    bound = np.full_like(case.expected, 2 * 255.0 / 65535 * (1 + 2.0**-7))
    return replace(case, bound=bound)


def _large(caps: Caps) -> list[KnownAnswer]:
    """Return the places of a tensor as large as the device takes, or as `LARGE`."""
    known = [caps.max_storage_buffer_bytes, caps.max_allocation_bytes]
    limit = min(LARGE, *(most for most in known if most is not None))
    if _spends_texels(caps):  # a texel is four fragments there, of which each computes all of it
        limit = min(limit, LARGE // 16)
    texels = max(2, limit // 16)
    width = min(LARGE_WIDTH, texels // 2)
    return [places("large", max(1, texels // 2 // width), width)]


_TESTS: Final[Mapping[str, Callable[[Caps], list[KnownAnswer]]]] = {
    "standard": _standard, "kernels": _kernels,
    "storages": _storages, "large": _large, "repeat": _standard,
}  # fmt: skip


# --- judging -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerFinding:
    """What is wrong with an output: a reason code and the specifics."""

    code: str
    detail: str


def compare(
    case: KnownAnswer, run: npt.NDArray[Any], evidence: dict[str, Any]
) -> AnswerFinding | None:
    """Compare an output with the exact answer; return what is wrong, None if nothing is.

    The largest error and its bound go into `evidence`.
    """
    if run.shape != case.expected.shape or run.dtype != case.dtype:
        return AnswerFinding("wrong-numbers", f"{case.name}: {run.dtype} {run.shape}")
    if run.dtype == np.float32:  # bytes have no value to spare that could be the poison
        words = np.ascontiguousarray(run).view(np.uint32)
        evidence["untouched"] = untouched = int(np.count_nonzero(words == POISON * 0x01010101))
        if untouched == run.size:
            return AnswerFinding("untouched-output", case.name)
        if untouched:  # not left to the bound: next to it the poison is as good as zero
            detail = f"{case.name}: {untouched} of {run.size} elements were not written"
            return AnswerFinding("wrong-numbers", detail)
    with np.errstate(invalid="ignore"):
        error = abs(run.astype(np.float64) - case.expected)
    is_same = (run == case.expected) | (np.isnan(run) & np.isnan(case.expected))
    error = np.where(is_same, 0.0, error)  # infinities less themselves are NaN
    bad = ~(error <= case.bound)  # catches NaN too
    largest = float(np.where(np.isnan(error), np.inf, error).max())
    evidence["max_error"] = largest if np.isfinite(largest) else str(largest)
    evidence["bound"] = float(case.bound.max())
    if not bad.any():
        return None
    count = int(np.count_nonzero(bad))
    return AnswerFinding("wrong-numbers", f"{case.name}: {count} of {run.size} elements")
