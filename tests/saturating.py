"""An onnxruntime.InferenceSession that computes like one on a processor with AVX2 and no VNNI.

Products of uint8 by int8 are added up in pairs in 16 bits, which saturate; also of operators
between DequantizeLinear and QuantizeLinear, which ONNX Runtime fuses. ConvInteger has its operands
the other way round. Everything else of such a model comes from ONNX's reference, other models from
the real session.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from gpuedge.graph.ir import Array

REAL = onnxruntime.InferenceSession
VERSION = f"{onnxruntime.__version__}+saturating"


def _pairs(u: Array, s: Array) -> Array:
    """Return u @ s of uint8 by int8 as vpmaddubsw adds up; of other types as it is."""
    a, b = u.astype(np.int64), s.astype(np.int64)
    if (u.dtype, s.dtype) != (np.uint8, np.int8):
        return a @ b
    if a.shape[-1] % 2:
        a = np.concatenate([a, np.zeros_like(a[..., :1])], -1)
        b = np.concatenate([b, np.zeros_like(b[..., :1, :])], -2)
    even = a[..., 0::2, None] * b[..., None, 0::2, :]
    odd = a[..., 1::2, None] * b[..., None, 1::2, :]
    return np.clip(even + odd, -(2**15), 2**15 - 1).sum(-2)


def _matrices(a: Array, b: Array, za: Any = None, zb: Any = None) -> Array:
    """Return the product of what is left without zero points, which are taken off the sums."""
    za = np.zeros((), np.int64) if za is None else np.asarray(za, np.int64)
    zb = np.zeros((), np.int64) if zb is None else np.asarray(zb, np.int64)
    za = za[..., None] if za.ndim else za
    rows, columns = a.astype(np.int64).sum(-1, keepdims=True), b.astype(np.int64).sum(-2)
    total = _pairs(a, b) - za * columns[..., None, :] - zb * rows + za * zb * a.shape[-1]
    return total.astype(np.int32)


def _images(x: Array, w: Array, zx: Any, zw: Any, attrs: dict[str, Any], turn: bool) -> Array:
    """Return a convolution as products of matrices; with `turn` the filters are the first one."""
    pads, group = attrs.get("pads") or [0, 0, 0, 0], attrs.get("group") or 1
    down, right = attrs.get("strides") or (1, 1)
    zx = np.zeros((), x.dtype) if zx is None else np.asarray(zx)
    zw = np.zeros((), w.dtype) if zw is None else np.asarray(zw)
    around = ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]))
    padded = np.pad(x, around, constant_values=zx.reshape(-1)[0])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    windows = windows[:, :, ::down, ::right]
    parts = []
    for own, filters in zip(np.split(windows, group, 1), np.split(w, group), strict=True):
        columns = np.moveaxis(own, 1, 3).reshape(*own.shape[:1], *own.shape[2:4], -1)
        flat = filters.reshape(len(filters), -1)
        if turn:
            total = _matrices(flat, np.moveaxis(columns, -1, 1).reshape(
                len(x), flat.shape[1], -1), zw, zx)  # fmt: skip
            parts.append(total.reshape(len(x), len(flat), *own.shape[2:4]))
        else:
            zeros = zw if zw.ndim == 0 or zw.size == 1 else np.split(zw, group)[len(parts)]
            total = _matrices(columns, flat.T, zx, zeros.reshape(-1))
            parts.append(np.moveaxis(total, -1, 1))
    return np.concatenate(parts, 1)


def _bytes(total: Array, scale: Any, zero: Array) -> Array:
    ends = np.iinfo(zero.dtype)
    found = np.rint(total.astype(np.float32) * np.asarray(scale, np.float32)) + zero
    return np.clip(found, ends.min, ends.max).astype(zero.dtype)


def _column(scale: Array, rank: int) -> Array:
    return scale.reshape(-1, *(1,) * (rank - 2)) if np.size(scale) > 1 else scale


class MatMulInteger(OpRun):
    def _run(self, a: Array, b: Array, za: Any = None, zb: Any = None) -> tuple[Array]:
        return (_matrices(a, b, za, zb),)


class ConvInteger(OpRun):
    def _run(self, x: Array, w: Array, zx: Any = None, zw: Any = None, **attrs: Any) -> Any:
        return (_images(x, w, zx, zw, attrs, turn=True),)


class QLinearMatMul(OpRun):
    def _run(self, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> Any:
        return (_bytes(_matrices(a, b, za, zb), sa * sb / sy, zy),)


class QLinearConv(OpRun):
    def _run(self, *inputs: Any, **attrs: Any) -> tuple[Array]:
        x, sx, zx, w, sw, zw, sy, zy, bias = (*inputs, None)[:9]
        total = _images(x, w, zx, zw, attrs, turn=False)
        total = total if bias is None else total + bias.reshape(-1, 1, 1)
        return (_bytes(total, _column(sx * sw / sy, total.ndim), zy),)


class MatMulIntegerToFloat(OpRun):
    op_domain = "com.microsoft"

    def _run(self, *inputs: Any) -> tuple[Array]:
        a, b, sa, sb, za, zb, bias = (*inputs, None, None, None)[:7]
        found = _matrices(a, b, za, zb).astype(np.float32) * (sa * sb)
        return (found if bias is None else found + bias,)


class DynamicQuantizeMatMul(OpRun):
    op_domain = "com.microsoft"

    def _run(self, *inputs: Any) -> tuple[Array]:
        x, b, sb, zb, bias = (*inputs, None, None)[:5]
        quantise = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
        a, sa, za = ReferenceEvaluator(quantise).run(None, {"x": x})
        found = _matrices(a, b, za, zb).astype(np.float32) * (sa * sb)
        return (found if bias is None else found + bias,)


class QGemm(OpRun):
    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **_: Any) -> tuple[Array]:
        a, sa, za, b, sb, zb, bias, sy, zy = (*inputs, None, None, None)[:9]
        total = _matrices(a, b, za, zb) + (0 if bias is None else bias)
        return (_bytes(total, sa * sb / sy, zy),)


class Fused(OpRun):
    """MatMul, Gemm or Conv of dequantised operands, in integers."""

    op_domain = "fused"

    def _run(self, *inputs: Any, op: str = "", **attrs: Any) -> tuple[Array]:
        a, sa, za, b, sb, zb, bias = (*inputs, None)[:7]
        if op == "Conv":
            total = _images(a, b, za, zb, attrs, turn=False)
        else:
            total = _matrices(a, b.T if attrs.get("transB") else b, za, zb)
        found = total.astype(np.float32) * _column(sa * sb, total.ndim)
        if bias is not None:
            found = found + _column(bias, found.ndim)
        return (found.astype(np.float32),)


OPS = (MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, MatMulIntegerToFloat,
       DynamicQuantizeMatMul, QGemm)  # fmt: skip


def _is_product(node: onnx.NodeProto) -> bool:
    """Tell whether a node computes products, or one in a graph of its own does."""
    inner = [one for a in node.attribute for one in a.g.node]
    return node.op_type in {one.__name__ for one in OPS} or any(map(_is_product, inner))


def _has(options: Any, name: str) -> bool:
    """Tell whether a session has a configuration entry."""
    try:
        return bool(options.get_session_config_entry(name) == "1")
    except (AttributeError, RuntimeError):
        return False


def _fused(proto: onnx.ModelProto, *, is_fusing: bool) -> bool:
    """Fuse operators with the DequantizeLinear before them; tell whether there are any products."""
    makers = {n.output[0]: n for n in proto.graph.node if n.op_type == "DequantizeLinear"}
    found = False
    for node in proto.graph.node:
        sources = [makers.get(name) for name in node.input[:2]]
        if is_fusing and node.op_type in ("MatMul", "Gemm", "Conv") and all(sources):
            given = [name for one in sources if one is not None for name in one.input]
            attribute = helper.make_attribute("op", node.op_type)
            node.attribute.append(attribute)
            node.input[:] = [*given, *node.input[2:]]
            node.op_type, node.domain = "Fused", "fused"
            found = True
        found = found or _is_product(node)
    proto.opset_import.append(helper.make_opsetid("fused", 1))
    return found


class Session:
    """Stands in for onnxruntime.InferenceSession."""

    def __init__(self, data: bytes | str, options: Any = None, **kwargs: Any) -> None:
        self._real = REAL(data, options, **kwargs)
        proto = onnx.load(data) if isinstance(data, str) else onnx.load_from_string(data)
        self._reference = None
        if _fused(proto, is_fusing=not _has(options, "session.disable_quant_qdq")):
            for imported in proto.opset_import:  # the reference has no older DequantizeLinear
                if not imported.domain:
                    imported.version = max(imported.version, 21)
            self._reference = ReferenceEvaluator(proto, new_ops=[*OPS, Fused])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def run(self, names: Any, feeds: Any, options: Any = None) -> list[Array]:
        """Compute outputs."""
        if self._reference is None:
            return list(self._real.run(names, feeds, options))
        return [np.asarray(one) for one in self._reference.run(names, feeds)]


def install() -> None:
    """Put this in the place of the real session, for good; the version says so."""
    onnxruntime.InferenceSession = Session
    onnxruntime.__version__ = VERSION
