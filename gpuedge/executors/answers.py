"""Known answers of ONNX Runtime's 8-bit products: what it gets wrong on this processor.

On x86 processors with AVX2 and no VNNI its products of uint8 by int8 add up pairs in 16 bits, which
saturate; on arm64 without instructions for 8-bit products, so do pairs of -128 by -128 (both seen
with 1.32.0, arm64 emulated). So every operator and pair of types is asked with extreme values, once
per version and processor; the results are kept on disk (``answers.json``). What is right is
computed in int64, or by the oracle. What to do about a wrong one says
`gpuedge.executors.products`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuedge.core.dtypes import BYTES
from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.core.record import Record, plain, read_each
from gpuedge.executors.products import FOREIGN, ByteProduct
from gpuedge.graph.contrib import MICROSOFT
from gpuedge.graph.ir import OPSET, Array, Graph, Node, type_of
from gpuedge.graph.writer import to_bytes
from gpuedge.oracle.layers import convolve
from gpuedge.safety import machine, paths
from gpuedge.safety.store import load_sealed, update_sealed

FILE = "answers.json"
SCHEMA = "gpuedge.answers/1"
MAX_ENTRIES = 16

Load = Callable[[bytes], Any]
"""Opens a session. Raises GpuEdgeError."""


class Answers(NamedTuple):
    """Which products come out wrong, and how many answers were asked for."""

    wrong: frozenset[ByteProduct]
    asked: int


class KeptAnswers(Record):
    """What the file holds of one kernel: rows of `ByteProduct`, when the answers were asked for."""

    wrong: tuple[tuple[str, str, str, bool], ...]
    asked: float
    kernel: str
    when: float


# --- the cases -----------------------------------------------------------------------------------

BYTES_OUT = "bytes"
"""Results in the type of the first operand; else the type itself is named."""

_FORMS = (
    ("MatMulInteger", "MatMulInteger", "int32"),
    ("MatMulIntegerToFloat", "MatMulInteger", "float32"),
    ("DynamicQuantizeMatMul", "MatMulInteger", "float32"),
    ("QGemm", "MatMulInteger", BYTES_OUT),
    ("QLinearMatMul", "QLinearMatMul", BYTES_OUT),
    ("ConvInteger", "ConvInteger", "int32"),
    ("QLinearConv", "QLinearConv", BYTES_OUT),
)
"""Operators, what a wrong answer of each says something of, and what they give.

What ONNX Runtime fuses MatMulInteger into counts as that.
"""

ROWS, DEPTH, COLUMNS = (1, 6), 70, 21
"""A single row has kernels of its own; the others are no multiples of a vector's width."""

IMAGE = (1, 24, 6, 6)
FILTERS = {"dense": (5, 24, 3, 3), "point": (6, 24, 1, 1), "depthwise": (24, 1, 3, 3),
           "grouped": (6, 8, 3, 3)}  # fmt: skip


TELLING = ByteProduct("MatMulInteger", "uint8", "int8", is_constant=True)
"""What saturates wherever something does."""


class CpuCase(NamedTuple):
    """A graph of one operator in several shapes, its inputs, and what it gives."""

    product: ByteProduct
    graph: Graph
    feeds: Mapping[str, Array]
    wanted: Mapping[str, Array]


def cases() -> Iterator[CpuCase]:
    """Yield a case for each operator, pair of types, and constant and computed second operand."""
    for op, counts, gives in _FORMS:
        for first in BYTES:
            for second in BYTES:
                for is_constant in (True, False):
                    if op == "DynamicQuantizeMatMul" and first != "uint8":
                        continue
                    builder = _Builder(op, ByteProduct(counts, first, second, is_constant), gives)
                    (builder.images if "Conv" in op else builder.matrices)()
                    yield builder.case()


class _Builder:
    """Collects what a case consists of."""

    def __init__(self, op: str, product: ByteProduct, gives: str) -> None:
        self.op, self.product, self.gives = op, product, gives
        self.nodes: list[Node] = []
        self.feeds: dict[str, Array] = {}
        self.wanted: dict[str, Array] = {}
        self.constants: dict[str, Array] = {
            "one": np.array(1, np.float32), "zx": np.array(0, product.first),
            "zw": np.array(0, product.second),
        }  # fmt: skip
        self.held = self.constants if product.is_constant else self.feeds

    def matrices(self) -> None:
        """Add products of matrices, which share their second operand."""
        many = _extremes(self.product.first, (ROWS[-1], DEPTH))
        many[0] = np.iinfo(self.product.first).max
        b = self.held["b"] = _filters(self.product.second, (COLUMNS, DEPTH)).T.copy()
        for rows in ROWS:
            a = many[:rows]
            is_float = self.op == "DynamicQuantizeMatMul"
            self.feeds[f"x{rows}"] = a.astype(np.float32) if is_float else a
            self._add(f"x{rows}", "b", {}, a.astype(np.int64) @ b.astype(np.int64))

    def images(self) -> None:
        """Add convolutions of one image."""
        x = self.feeds["x"] = _extremes(self.product.first, IMAGE)
        x[:, :, :3] = np.iinfo(self.product.first).max
        for name, shape in FILTERS.items():
            self.held[name] = _filters(self.product.second, shape)
            group, pads = IMAGE[1] // shape[1], (shape[2] // 2,) * 4
            attrs = {"group": group, "pads": pads, "kernel_shape": shape[2:]}
            total = convolve(x, self.held[name], pads=pads, groups=group)
            self._add("x", name, attrs, total)

    def case(self) -> CpuCase:
        """Return the case."""
        types = {name: type_of(array) for name, array in self.feeds.items()}
        graph = Graph(tuple(self.nodes), tuple(self.feeds), tuple(self.wanted), types,
                      self.constants, {"": OPSET, MICROSOFT: 1})  # fmt: skip
        return CpuCase(self.product, graph, self.feeds, self.wanted)

    def _add(self, x: str, w: str, attrs: Mapping[str, Any], total: Array) -> None:
        """Add the operator on two operands, and what it gives."""
        y, scale, zero = (f"{what}/{x}{w}" for what in ("y", "scale", "zero"))
        self.wanted[y] = total.astype(self.gives if self.gives != BYTES_OUT else np.int32)
        if self.gives == BYTES_OUT:
            ends = np.iinfo(self.product.first)
            middle = 0 if ends.min else 128
            step = 2.0 ** np.ceil(np.log2(np.abs(total).max() / 120))
            self.constants[scale] = np.array(step, np.float32)
            self.constants[zero] = np.array(middle, ends.dtype)
            whole = np.rint(total / step) + middle
            self.wanted[y] = np.clip(whole, ends.min, ends.max).astype(ends.dtype)
        linear = (x, "one", "zx", w, "one", "zw")
        inputs = {
            "MatMulIntegerToFloat": (x, w, "one", "one"),
            "DynamicQuantizeMatMul": (x, w, "one"),
            "QGemm": (*linear, "", scale, zero),
            "QLinearMatMul": (*linear, scale, zero),
            "QLinearConv": (*linear, scale, zero),
        }.get(self.op, (x, w))
        domain = MICROSOFT if self.op in FOREIGN else ""
        self.nodes.append(Node(self.op, inputs, (y,), attrs, domain=domain))


def _extremes(dtype: str, shape: tuple[int, ...]) -> Array:
    ends = np.iinfo(dtype)
    return np.random.default_rng(26).choice(np.array([ends.min, ends.max], dtype), shape)


def _filters(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return extremes of which the first two filters have one sign each."""
    filters = _extremes(dtype, shape)
    filters[0], filters[1] = np.iinfo(dtype).max, np.iinfo(dtype).min
    return filters


# --- asking and keeping --------------------------------------------------------------------------


def ask(load: Load) -> Answers:
    """Ask for every answer."""
    wrong: set[ByteProduct] = set()
    asked = 0
    for case in cases():
        is_right = _is_right(case, load)
        asked += 0 if is_right is None else len(case.wanted)
        if is_right is False:
            wrong.add(case.product)
    return Answers(frozenset(wrong), asked)


def _is_right(case: CpuCase, load: Load) -> bool | None:
    """Tell whether a case comes out right, to the bit; None where nothing computes it."""
    try:
        session = load(to_bytes(case.graph))
        results = session.run(list(case.wanted), dict(case.feeds))
    except UnsupportedOpError:
        return None
    except Exception:  # ONNX Runtime's classes have no common base: what it refuses is not right
        return False
    pairs = zip(results, case.wanted.values(), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


@cache
def answers(kernel: str, load: Load) -> Answers:
    """Return what ONNX Runtime answers here: as kept on disk, else asked for now.

    `kernel` is its name with its version. Where nothing can be written it is asked once per
    process.
    """
    key = _key(kernel, load)
    try:
        path = paths.cache_dir() / FILE
    except GpuEdgeError:  # of a setting, which whoever needs the folder says
        return ask(load)
    known = _kept(load_sealed(path, SCHEMA)).get(key)
    if known is not None:
        return Answers(frozenset(ByteProduct(*row) for row in known.wrong), int(known.asked))
    answers_ = ask(load)
    told = KeptAnswers(tuple(sorted(answers_.wrong)), answers_.asked, kernel, time.time())

    def merged(body: dict[str, Any]) -> dict[str, Any]:
        newest = sorted(_kept(body).items(), key=lambda e: e[1].when, reverse=True)
        return {"entries": plain({key: told, **dict(newest[: MAX_ENTRIES - 1])})}

    update_sealed(path, SCHEMA, merged)
    return answers_


def _key(kernel: str, load: Load) -> str:
    """Return the SHA-256 (hex) of everything that could change an answer.

    What the system says of the processor need not be what the process sees (an emulator, a virtual
    machine that moves), so one answer is asked for every time.
    """
    own = Path(__file__).stat()
    here = machine.processor()
    telling = next(case for case in cases() if case.product == TELLING)
    parts = [kernel, here.model, *(here.flags or ()), str(own.st_size), str(own.st_mtime_ns)]
    parts.append(str(_is_right(telling, load)))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _kept(body: Mapping[str, Any] | None) -> dict[str, KeptAnswers]:
    """Return the entries of a file that can be used; a seal proves no author."""
    return read_each(KeptAnswers, (body or {}).get("entries"))
