"""Products by weights of 4 and 8 bits, which kernels unpack."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuedge.conformance.case import Case, case, generator
from gpuedge.conformance.data import dims, fill, pick
from gpuedge.conformance.layers import added
from gpuedge.conformance.nodes import run_model
from gpuedge.graph.ir import OPSET, Graph, Node, TensorType, type_of
from gpuedge.graph.writer import to_bytes
from gpuedge.opset.bounds import Array, Num
from gpuedge.opset.nbits import MICROSOFT
from gpuedge.oracle import layers as oracle
from gpuedge.plan.packed import facts


def product(
    rows: int, depth: int, columns: int, bits: int, block: int, *, batch: int = 0
) -> Case:  # fmt: skip
    """Return a MatMulNBits by random codes, with zero points where columns are an odd number.

    That of a `batch` adds a bias.
    """
    left = (batch, rows, depth) if batch else (rows, depth)
    text = f"{dims(left)}-{columns}-{bits}-bits-by-{block}{'-b' if batch else ''}"
    rng, count = generator(text), -(-depth // block)
    codes = rng.integers(0, 1 << bits, (columns, count * block)).astype(np.uint8)
    scale = rng.integers(1, 3, (columns, count)).astype(np.float32)  # keeps whole sums whole
    zero = np.full((columns, count), 1 << (bits - 1), np.float32)
    if columns % 2:
        zero = rng.integers(0, 1 << bits, zero.shape).astype(np.float32)
    held = codes[:, ::2] | codes[:, 1::2] << 4 if bits == 4 else codes
    given = {"w": held.reshape(columns, count, -1), "s": scale}
    if columns % 2:
        given["z"] = zero
    w = ((codes - np.repeat(zero, block, 1)) * np.repeat(scale, block, 1))[:, :depth].T
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    names = ["x", *given]
    if batch:
        given["b"] = rng.integers(-99, 100, columns).astype(np.float32)
        names += [""] * (5 - len(names)) + ["b"]  # neither zero points nor an order of groups
    node = Node("MatMulNBits", tuple(names), ("y",), attrs, "product", MICROSOFT)

    def draw(rng: np.random.Generator, data: str, _: str) -> list[Any]:
        return [fill(rng, left, data)]

    def call(x: Array, *, device: Any) -> Array:
        types = {n: type_of(a) for n, a in {"x": x, **given}.items()}
        types["y"] = TensorType("float32", (*left[:-1], columns))
        opset = {"": OPSET, MICROSOFT: 1}
        graph = Graph((node,), ("x",), ("y",), types, given, opset)
        return run_model(to_bytes(graph), {"x": x}, device)["y"]

    def wanted(x: Num, *, whole: bool) -> Num:
        total = oracle.matmul(x, w, whole=whole)
        return added(total, given["b"], whole=whole) if batch else total

    return case(f"matmul_packed{bits}", text, draw, wanted, call=call, is_sum=True,
                facts=facts(rows, columns))  # fmt: skip


def products(bits: int) -> tuple[Case, ...]:
    """Return whole blocks and parts of them, of which kernels meet the ends of rows and columns."""
    shapes = (
        ((1, 160, 7), 16), ((5, 40, 26), 16), ((33, 70, 60), 32), ((17, 33, 32), 32),
        ((9, 300, 13), 256), ((48, 64, 103), 64), ((10, 20, 96), 16),
    )  # fmt: skip
    return tuple(product(*shape, bits, block) for shape, block in shapes)


BATCH = product(4, 40, 30, 4, 16, batch=2)
"""A batch of products, and a bias that follows: the place of each result counts."""


def draw_product(rng: np.random.Generator, bits: int) -> Case:
    """Return a random product."""
    rows, columns = pick(rng, (1, 4, 9, 17, 33)), pick(rng, (7, 13, 32, 61))
    return product(rows, int(rng.integers(147, 200)), columns, bits, pick(rng, (16, 32)))
