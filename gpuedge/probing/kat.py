"""Known-answer tests: kernels at awkward shapes, and answers computed independently in float64.

Two of them compute (elementwise arithmetic, a convolution); three look at what a device may get
wrong while only passing numbers on: every exponent of a float32, every byte where the device keeps
bytes, and the divisions that turn the number of a texel into coordinates, over the range of numbers
that real tensors have. Three or four kernels are compiled for all of them.
The reference here shares no code with the kernels, the planner or the CPU executor: it is written
from the definition of the operator, in float64. Does not run anything; `child` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.caps import Caps
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.plan.storages import BYTES, EXACT, FLOAT_TEXEL, Keeping

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

POISON = 0xAB
"""Every output byte before a run. As a float32 it is -1.2e-12, which no test here can produce."""

ELEMENTWISE = (2, 7, 97, 3)
"""Shape of the elementwise tests: no extent is a multiple of the four that texels hold."""

LARGEST = 1 << 27
"""Bytes of the largest tensor that a test may need."""

UNIT = 2.0**-24
"""Unit roundoff of float32."""


@dataclass(frozen=True)
class Case:
    """One kernel with one set of inputs.

    Attributes
    ----------
    name : str
    graph : Graph
        One output; its inputs are the keys of `inputs`. Cases that follow one another may have the
        very same graph: they are to run on one compiled kernel.
    inputs : dict of str to array
    expected : float64 array
        The exact answer.
    bound : float64 array
        Largest allowed absolute error of each element; zero for integer-valued data, where
        float32 is exact in any order of summation.
    keeping : Keeping
        How tensors are to be kept.
    storage : str
        The storage kind that is to be the exact one; empty for the one that would be used.
    """

    name: str
    graph: Graph
    inputs: Mapping[str, npt.NDArray[Any]]
    expected: F64
    bound: F64
    keeping: Keeping = EXACT
    storage: str = ""

    @property
    def output(self) -> str:
        """Name of the graph's output."""
        return self.graph.outputs[0]

    @property
    def dtype(self) -> str:
        """Type of the output."""
        return self.graph.types[self.output].dtype


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with an output: a reason code and the specifics."""

    code: str
    detail: str


def conv_graph(kind: TensorType, w: F32, b: F32, pads: tuple[int, int, int, int]) -> Graph:
    """Return relu(conv(x, w, b)) with stride 1; `pads` are top, left, bottom, right."""
    builder = GraphBuilder()
    builder.input("x", kind)
    builder.constant("w", w)
    builder.constant("b", b)
    attrs = {
        "kernel_shape": list(w.shape[2:]),
        "pads": list(pads),
        "strides": [1, 1],
        "dilations": [1, 1],
        "group": 1,
    }
    builder.output(builder.add("Relu", [builder.add("Conv", ["x", "w", "b"], attrs)], output="y"))
    return builder.build()


def conv_reference(x: F32, w: F32, b: F32, pads: tuple[int, int, int, int]) -> tuple[F64, F64]:
    """Return conv(x, w, b) with stride 1 in float64, and the same sum over absolute values.

    Parameters
    ----------
    x : float32 array of shape (N, C, H, W)
    w : float32 array of shape (M, C, kH, kW)
    b : float32 array of shape (M,)
    pads : top, left, bottom, right, unit: pixels
    """
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    kernel_h, kernel_w = w.shape[2:]
    out_h = padded.shape[2] - kernel_h + 1
    out_w = padded.shape[3] - kernel_w + 1
    total: F64 = np.zeros((x.shape[0], w.shape[0], out_h, out_w))
    magnitude: F64 = np.zeros_like(total)
    for i in range(kernel_h):
        for j in range(kernel_w):
            window = padded[:, :, i : i + out_h, j : j + out_w]
            tap = w[:, :, i, j].astype(np.float64)
            total += np.einsum("nchw,mc->nmhw", window, tap)
            magnitude += np.einsum("nchw,mc->nmhw", abs(window), abs(tap))
    bias = b.astype(np.float64)[None, :, None, None]
    return total + bias, magnitude + abs(bias)


def _conv_cases(rng: np.random.Generator) -> list[Case]:
    # 7 channels in and 9 out: neither is a multiple of the four that texels hold. The weights need
    # 12 bits, more than float16 has: a device that computes with less gets the integers wrong.
    # 7 * 9 products of at most 4 * 4095 are far below the 2^24 up to which float32 is exact.
    pads, shape = (1, 0, 2, 1), (1, 7, 11, 13)
    w = rng.integers(-4095, 4096, (9, 7, 3, 3)).astype(np.float32)
    b = _draw(rng, (9,), integers=True)
    graph = conv_graph(TensorType("float32", shape), w, b, pads)
    made = []
    for name, integers in (("convolution integers", True), ("convolution random", False)):
        x = _draw(rng, shape, integers=integers)
        exact, magnitude = conv_reference(x, w, b, pads)
        terms = 7 * 3 * 3 + 1
        # Any order of summation, fused or not, errs by at most about terms * UNIT * magnitude
        # (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The factor 4
        # leaves room for multiplications that Vulkan allows to be a little less than exactly
        # rounded.
        bound: F64 = np.zeros_like(exact) if integers else 4 * terms * UNIT * magnitude
        made.append(Case(name, graph, {"x": x}, np.maximum(exact, 0.0), bound))
    return made


def elementwise_graph(shape: tuple[int, ...]) -> Graph:
    """Return a * b + c."""
    builder = GraphBuilder()
    for name in ("a", "b", "c"):
        builder.input(name, TensorType("float32", shape))
    product = builder.add("Mul", ["a", "b"])
    builder.output(builder.add("Add", [product, "c"], output="y"))
    return builder.build()


def _elementwise_cases(rng: np.random.Generator) -> list[Case]:
    """Three cases of one kernel: a driver's compiler is what most of a probe's time goes to."""
    graph = elementwise_graph(ELEMENTWISE)
    made = []
    for name, integers in (("elementwise integers", True), ("elementwise random", False)):
        inputs = {key: _draw(rng, ELEMENTWISE, integers=integers) for key in ("a", "b", "c")}
        a, b, c = (inputs[key].astype(np.float64) for key in ("a", "b", "c"))
        exact = a * b + c
        # Two roundings, or one if the driver fuses them; twice that, as above.
        bound: F64 = np.zeros_like(exact) if integers else 4 * UNIT * (abs(a * b) + abs(c))
        made.append(Case(name, graph, inputs, exact, bound))
    return [*made, _exponents_case(rng, graph)]


def _draw(rng: np.random.Generator, shape: tuple[int, ...], *, integers: bool) -> F32:
    if integers:
        return rng.integers(-4, 5, shape).astype(np.float32)
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def _exponents_case(rng: np.random.Generator, graph: Graph) -> Case:
    """Every exponent of a normal float32, both signs, round and odd mantissas, times -1: exact.

    Denormals, infinities and NaN are left out: no API promises them.
    """
    fixed = [0, 1, 0x400000, 0x7FFFFF, 0x2AAAAA]
    mantissas = np.concatenate([fixed, rng.integers(0, 1 << 23, 3)]).astype(np.uint32)
    exponents = np.arange(1, 255, dtype=np.uint32)
    words = (exponents[:, None] << np.uint32(23)) | mantissas
    x = np.concatenate([words, words | np.uint32(1 << 31)]).view(np.float32)
    x = np.resize(x, ELEMENTWISE)  # there are ten places more than numbers
    inputs = {"a": x, "b": np.full_like(x, -1.0), "c": np.zeros_like(x)}
    exact = -x.astype(np.float64)
    return Case("every exponent", graph, inputs, exact, np.zeros_like(exact))


def gather_graph(kind: TensorType, strides: tuple[int, int]) -> Graph:
    """Return the largest of windows of one pixel: pixels `strides` apart, as they are."""
    builder = GraphBuilder()
    builder.input("x", kind)
    attrs = {"kernel_shape": [1, 1], "strides": list(strides)}
    builder.output(builder.add("MaxPool", ["x"], attrs, output="y"))
    return builder.build()


def _bytes_case() -> Case:
    """Every value of a byte in each of the four places of a texel."""
    values = np.arange(256)
    planes = [values, values[::-1], np.roll(values, 85), np.roll(values[::-1], 171)]
    x = np.stack(planes).astype(np.uint8).reshape(1, 4, 16, 16)
    graph = gather_graph(TensorType("uint8", x.shape), (1, 1))
    exact = x.astype(np.float64)
    return Case("every byte", graph, {"x": x}, exact, np.zeros_like(exact))


@cache
def _places_case(limit: int, *, is_slow: bool) -> Case:
    """Every value is its own place: coordinates from large numbers, odd widths, a stride.

    Where a texel is four fragments of which each computes all of it (`is_slow`) the tensor is
    smaller: softpipe needed nine seconds for the large one, twice.
    """
    height, width = (131, 127) if is_slow else (311, 307)
    while 2 * height * width * 16 > limit and height > 1:
        height //= 2
    return places("every place", height, width)


def places(name: str, height: int, width: int) -> Case:
    """Return every second pixel of eight channels of numbers that are their own places."""
    x = np.arange(8 * height * width, dtype=np.float32).reshape(1, 8, height, width)
    graph = gather_graph(TensorType("float32", x.shape), (1, 2))
    exact = x[:, :, :, ::2].astype(np.float64)
    return Case(name, graph, {"x": x}, exact, np.zeros_like(exact))


def cases(caps: Caps | None = None) -> list[Case]:
    """Return the tests in the order they run; same data on every call.

    Parameters
    ----------
    caps : Caps, optional
        The device they are for: no tensor is larger than it takes.
    """
    limit = LARGEST if caps is None else min(caps.max_storage_buffer_bytes, LARGEST)
    places = _places_case(limit, is_slow=caps is not None and caps.is_finite_only)
    has_bytes = caps is None or offers_bytes(caps)
    return [*_fixed_cases(), places, *([_bytes_case()] if has_bytes else [])]


def offers_bytes(caps: Caps) -> bool:
    """Say whether the product keeps bytes on this device otherwise than as float32."""
    return caps.storages[0] == FLOAT_TEXEL and BYTES["uint8"] in caps.storages


@cache
def _fixed_cases() -> tuple[Case, ...]:
    """Return what is the same forevery device; computed once for all children."""
    rng = np.random.default_rng(20)
    return (*_elementwise_cases(rng), *_conv_cases(rng))


def judge_runs(case: Case, runs: list[npt.NDArray[Any]]) -> tuple[Finding | None, dict[str, Any]]:
    """Compare the outputs of repeated runs with the exact answer and with each other.

    Returns
    -------
    tuple of (Finding or None, dict)
        What is wrong, None if nothing is; and the evidence (name, largest error, its bound).
    """
    evidence: dict[str, Any] = {"name": case.name, "runs": len(runs)}
    for run in runs:
        finding = _judge_one(case, run, evidence)
        if finding is not None:
            return finding, evidence
    first = runs[0].tobytes()
    if any(run.tobytes() != first for run in runs[1:]):
        return Finding("unstable-numbers", case.name), evidence
    return None, evidence


def _judge_one(case: Case, run: npt.NDArray[Any], evidence: dict[str, Any]) -> Finding | None:
    if run.shape != case.expected.shape or run.dtype != case.dtype:
        return Finding("wrong-numbers", f"{case.name}: {run.dtype} {run.shape}")
    if run.dtype == np.float32:  # bytes have no value to spare that could be the poison
        finding = _judge_poison(case, run, evidence)
        if finding is not None:
            return finding
    with np.errstate(invalid="ignore"):
        error = abs(run.astype(np.float64) - case.expected)
    bad = ~(error <= case.bound)  # catches NaN too
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    largest = float(error.flat[worst])
    evidence["max_error"] = largest if np.isfinite(largest) else str(largest)
    evidence["bound"] = float(case.bound.max())
    if not bad.any():
        return None
    count = int(np.count_nonzero(bad))
    return Finding("wrong-numbers", f"{case.name}: {count} of {run.size} elements")


def _judge_poison(case: Case, run: npt.NDArray[Any], evidence: dict[str, Any]) -> Finding | None:
    words = np.ascontiguousarray(run).view(np.uint32)
    untouched = int(np.count_nonzero(words == POISON * 0x01010101))
    evidence["untouched"] = untouched
    if untouched == run.size:
        return Finding("untouched-output", case.name)
    if untouched:  # not left to the bound: next to it the poison is as good as zero
        detail = f"{case.name}: {untouched} of {run.size} elements were not written"
        return Finding("wrong-numbers", detail)
    return None
