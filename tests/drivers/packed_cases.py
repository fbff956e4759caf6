"""Models whose weights are of 4 or 8 bits, with inputs and results that float32 holds exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpuedge.oracle.layers import convolve

Array = Any
Made = tuple[onnx.ModelProto, dict[str, Array], Array]
"""A model, its inputs, and what it gives, in float64."""

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
KINDS: dict[str, tuple[int, int, int]] = {
    "int4": (TensorProto.INT4, -8, 8), "uint4": (TensorProto.UINT4, 0, 16),
    "int8": (TensorProto.INT8, -128, 128), "uint8": (TensorProto.UINT8, 0, 256),
}  # fmt: skip
"""Element types with their lowest value and the one after the highest."""
SETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def _model(nodes: list[Any], held: list[Any], feeds: dict[str, Array], wanted: Array) -> Made:
    taken = [helper.make_tensor_value_info(n, FLOAT if v.dtype == np.float32 else INT64, v.shape)
             for n, v in feeds.items()]  # fmt: skip
    given = [helper.make_tensor_value_info("y", FLOAT, wanted.shape)]
    graph = helper.make_graph(nodes, "packed", taken, given, held)
    return helper.make_model(graph, opset_imports=SETS, ir_version=10), feeds, wanted


def _stored(name: str, kind: int, codes: Array) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, codes.shape, codes.reshape(-1).tolist())


def _scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.choice(np.float32([0.25, 0.5, 1]), shape)  # powers of two: products stay exact


def _few(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float32)


def _in_pairs(codes: Array) -> Array:
    even = np.concatenate([codes, np.zeros((len(codes), codes.shape[1] % 2), codes.dtype)], 1)
    return (even[:, ::2] | even[:, 1::2] << 4).astype(np.uint8)


def linear(dtype: str, depth: int, columns: int, rows: int, block: int, *,
           zeros: bool = False, turned: bool = False, across: bool = False) -> Made:  # fmt: skip
    """Return a MatMul, or `turned` a Gemm with transB, by what DequantizeLinear makes.

    Blocks lie along the depth, or `across` it; without, each column has a scale.
    """
    rng = np.random.default_rng([depth, columns, rows])
    kind, low, high = KINDS[dtype]
    shape = (columns, depth) if turned else (depth, columns)
    along = int(turned) ^ int(across)
    codes = rng.integers(low, high, shape)
    if block:
        blocks = tuple(-(-n // block) if i == along else n for i, n in enumerate(shape))
        wide = [lambda a: np.repeat(a, block, along).take(range(shape[along]), along)][0]
    else:
        along = 1 - int(turned)
        blocks = (columns,)
        wide = [lambda a: a.reshape((-1, 1) if turned else (1, -1))][0]
    scale, zero = _scales(rng, blocks), rng.integers(low, high, blocks) * int(zeros)
    held = [_stored("q", kind, codes), numpy_helper.from_array(scale, "s")]
    held += [_stored("z", kind, zero)] if zeros else []
    how = {"block_size": block} if block else {}
    inputs = ["q", "s", *(["z"] if zeros else [])]
    nodes = [helper.make_node("DequantizeLinear", inputs, ["w"], axis=along, **how),
             helper.make_node("Gemm", ["x", "w"], ["y"], transB=1) if turned else
             helper.make_node("MatMul", ["x", "w"], ["y"])]  # fmt: skip
    w = (codes - wide(zero)) * wide(scale).astype(np.float64)
    x = _few(rng, rows, depth)
    return _model(nodes, held, {"x": x}, x @ (w.T if turned else w))


def nbits(bits: int, block: int, zeros: str, rows: int = 3, depth: int = 300) -> Made:
    """Return a MatMulNBits by 40 columns; `zeros` are packed, float or none, and then has a bias.

    `accuracy_level` is 4, by which ONNX Runtime may round the other operand to 8 bits.
    """
    rng = np.random.default_rng([bits, block])
    columns, count = 40, -(-depth // block)
    codes = rng.integers(0, 1 << bits, (columns, count * block)).astype(np.uint8)
    scale = _scales(rng, (columns, count))
    packed = (_in_pairs(codes) if bits == 4 else codes).reshape(columns, count, -1)
    held = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scale, "s")]
    inputs, zero = ["x", "w", "s"], np.full((columns, count), 1 << (bits - 1), np.float32)
    bias = np.zeros(columns, np.float32)
    if zeros == "none":
        bias = _few(rng, columns)
        held.append(numpy_helper.from_array(bias, "b"))
        inputs += ["", "", "b"]
    else:
        own = rng.integers(0, 1 << bits, zero.shape).astype(np.uint8)
        zero = own + np.float32(0.5 if zeros == "float" else 0)
        stored = zero if zeros == "float" else _in_pairs(own) if bits == 4 else own
        held.append(numpy_helper.from_array(stored, "z"))
        inputs.append("z")
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", K=depth,
                            N=columns, bits=bits, block_size=block, accuracy_level=4)  # fmt: skip
    w = (codes - np.repeat(zero, block, 1)) * np.repeat(scale, block, 1)
    x = _few(rng, rows, depth)
    return _model([node], held, {"x": x}, x.astype(np.float64) @ w[:, :depth].T + bias)


def rows_of(dtype: str, bits: int, *, zeros: bool) -> Made:
    """Return a GatherBlockQuantized; of uint8 with 4 bits two codes lie in a byte."""
    rng = np.random.default_rng([bits, int(zeros)])
    kind, low, high = KINDS[dtype]
    high = min(high, low + (1 << bits))
    codes, blocks = rng.integers(low, high, (60, 48)), (60, 3)
    zero = rng.integers(low, high, blocks)
    is_paired = dtype == "uint8" and bits == 4

    def stored(name: str, array: Array) -> onnx.TensorProto:
        return _stored(name, kind, _in_pairs(array) if is_paired else array)

    scale = _scales(rng, blocks)
    held = [stored("q", codes), numpy_helper.from_array(scale, "s")]
    held += [stored("z", zero)] if zeros else []
    if not zeros:
        zero = np.full(blocks, 1 << (bits - 1) if dtype == "uint8" else 0)
    node = helper.make_node("GatherBlockQuantized", ["q", "i", "s", *(["z"] if zeros else [])],
                            ["y"], domain="com.microsoft", bits=bits, block_size=16,
                            gather_axis=0, quantize_axis=1)  # fmt: skip
    w = (codes - np.repeat(zero, 16, 1)) * np.repeat(scale, 16, 1)
    i = rng.integers(-60, 60, (2, 5))
    return _model([node], held, {"i": i}, w[i])


def reader(op: str, kind: int = TensorProto.INT4) -> Made:
    """Return a Gather, a MatMul behind a Transpose, or a Conv that reads weights of few bits."""
    rng = np.random.default_rng(5)
    is_float = kind not in (TensorProto.INT4, TensorProto.INT8)
    shape = (16, 8, 3, 3) if op == "Conv" else (40, 65)
    codes = (rng.choice([-3.0, -1.5, 0.5, 0.0, 2.0, 4.0, -(2.0**-6)], shape) if is_float
             else rng.integers(-8, 8, shape))  # fmt: skip
    scale = _scales(rng, shape[:1])
    held = [_stored("q", kind, codes), numpy_helper.from_array(scale, "s")]
    first = helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0)
    w = codes * scale.reshape(-1, *(1,) * (len(shape) - 1)).astype(np.float64)
    if op == "Gather":
        x = rng.integers(-40, 40, (7,))
        return _model([first, helper.make_node(op, ["w", "x"], ["y"])], held, {"x": x}, w[x])
    if op == "Conv":
        x = _few(rng, 1, 8, 9, 10)
        node = helper.make_node(op, ["x", "w"], ["y"], pads=[1] * 4)
        wanted = convolve(x, w, stride=(1, 1), pads=(1,) * 4, groups=1)
        return _model([first, node], held, {"x": x}, wanted)
    x = _few(rng, 6, 65)
    nodes = [helper.make_node("Transpose", ["w"], ["t"]),
             helper.make_node("MatMul", ["x", "t"], ["y"])]  # fmt: skip
    return _model([first, *nodes], held, {"x": x}, x @ w.T)


CASES: dict[str, Callable[[], Made]] = {
    f"{dtype} {depth}x{columns} {rows} rows block {block} {how}": partial(
        linear, dtype, depth, columns, rows, block, **how)
    for dtype in KINDS
    for depth, columns, rows, block, how in (
        (64, 48, 1, 16, {"zeros": True}), (64, 37, 5, 32, {"turned": True}),
        (72, 48, 17, 32, {"zeros": True, "turned": True}), (72, 48, 33, 16, {}),
        (65, 33, 3, 0, {"zeros": True}), (66, 40, 2, 0, {"turned": True}),
        (96, 64, 20, 6, {"zeros": True}), (64, 64, 3, 16, {"across": True, "turned": True}),
    )
}  # fmt: skip
for _bits in (4, 8):
    for _block in (16, 32, 256):
        for _zeros in ("none", "packed", "float"):
            CASES[f"nbits {_bits} {_block} {_zeros}"] = partial(nbits, _bits, _block, _zeros)
for _dtype, _bits in (("int4", 4), ("uint4", 4), ("uint8", 4), ("uint8", 8)):
    for _given in (False, True):
        CASES[f"rows {_dtype} {_bits} {_given}"] = partial(rows_of, _dtype, _bits, zeros=_given)
for _op in ("Gather", "Transpose", "Conv"):
    for _name in ("INT4", "INT8", "FLOAT8E4M3FN", "FLOAT8E5M2"):
        CASES[f"{_op} {_name}"] = partial(reader, _op, getattr(TensorProto, _name))
