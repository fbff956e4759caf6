"""Runs single nodes on a device; prints by how much each result is beyond its bound, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gpuedge
from gpuedge.core.errors import UnsupportedOpError

RNG = np.random.default_rng(7)
U = 2.0**-24


def node(op: str, *inputs: Any, outputs: int = 1, opset: int = 24, **attrs: Any) -> dict[str, Any]:
    return {"op": op, "inputs": inputs, "outputs": outputs, "opset": opset, "attrs": attrs}


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape: int, most: int = 3, dtype: str = "float32") -> Any:
    return RNG.integers(-most, most + 1, shape).astype(dtype)


def spectrum(x: Any, count: int, axis: int, **how: Any) -> Any:
    """What DFT must give, and its bound: sums of 2 n products, each of a rounded constant."""
    wide = x.astype(np.float64)
    z = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if how.get("inverse") and how.get("onesided"):
        value = np.fft.irfft(z, count, axis)[..., None]
    else:
        turned = np.fft.ifft(z, count, axis) if how.get("inverse") else np.fft.fft(z, count, axis)
        value = np.stack([turned.real, turned.imag], -1)
        if how.get("onesided"):
            value = np.take(value, range(count // 2 + 1), axis)
    size = np.abs(wide).sum((axis, -1), keepdims=True) * (2 / count if how.get("inverse") else 1)
    # Taken apart it is two transforms of the factors and a turn: the same n covers them.
    return value, (8 * count + 16) * U * size


def dfts() -> Iterator[tuple[str, Any, Any, Any]]:
    rows: tuple[tuple[Any, int, int, dict[str, int]], ...] = (
        ((2, 12, 1), 12, 1, {}), ((2, 12, 2), 16, 1, {}), ((3, 20, 2), 7, -2, {"inverse": 1}),
        ((2, 3, 9, 1), 9, 2, {"onesided": 1}), ((2, 6, 2), 10, 1, {"inverse": 1, "onesided": 1}),
        ((2, 5, 2), 9, 1, {"inverse": 1, "onesided": 1}), ((1, 600, 2), 600, 1, {}),
        ((2, 1024, 1), 1024, 1, {"onesided": 1}),
    )  # fmt: skip
    for shape, count, axis, how in rows:
        x = normal(*shape)
        value, bound = spectrum(x, count, axis % len(shape), **how)
        given = node("DFT", x, np.int64(count), np.int64(axis), **how)
        yield f"DFT {shape} {count} {how}", given, [value], [bound]


def stfts() -> Iterator[tuple[str, Any, Any, Any]]:
    x, window, step = normal(2, 50, 1), normal(16), 5
    starts = range(0, 50 - 16 + 1, step)
    frames = np.stack([x[:, s : s + 16, 0] * window.astype(np.float64) for s in starts], 1)
    value = np.fft.rfft(frames)
    bound = (8 * 16 + 16) * U * np.abs(frames).sum(-1)[..., None, None]
    given = node("STFT", x, np.int64(step), window, np.int64(16))
    yield "STFT", given, [np.stack([value.real, value.imag], -1)], [bound]


EQUATIONS = (
    ("ij->ji", (3, 4)), ("ii", (5, 5)), ("...ij,...jk->...ik", (2, 3, 4), (1, 4, 5)),
    ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)), ("i,i->", (7,), (7,)),
    ("ij,kl->il", (3, 4), (5, 6)),
    ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 6)), ("i,ij,j", (3,), (3, 4), (4,)),
    ("...,...->...", (2, 3), (3,)), (" i j , j k ", (3, 4), (4, 5)), ("iji->j", (3, 4, 3)),
)  # fmt: skip


def sums() -> Iterator[tuple[str, Any, Any, Any]]:
    for equation, *shapes in EQUATIONS:
        given = [whole(*s) for s in shapes]
        value = np.einsum(equation, *(x.astype(np.float64) for x in given))
        yield f"Einsum {equation}", node("Einsum", *given, equation=equation), [value], [0.0]
    for size in (1, 2, 3, 4, 6, 9):
        x = normal(2, 3, size, size) + 3 * np.eye(size, dtype=np.float32)
        # of elimination with pivots, by how much the matrix is as if it were another one
        # (Higham 2002, theorem 9.5: n^2 growth U, growth below 8 here), times its minors
        wide = x.astype(np.float64)
        value = np.linalg.det(wide)
        minors = np.abs(value[..., None, None] * np.linalg.inv(wide)).sum((-1, -2))
        moved = 64 * size**2 * U * np.abs(wide).max((-1, -2)) * minors
        bound = moved + 8 * size * U * np.abs(value)
        yield f"Det {size}", node("Det", x, opset=22), [value], [bound]
    singular = np.array([[0, 2, 1, 0], [0, 0, 3, 1], [0, 4, 5, 1], [0, 1, 1, 1]], np.float32)
    yield "Det 0", node("Det", singular, opset=22), [np.float64(0)], [0.0]
    swaps = np.eye(5, dtype=np.float32)[[1, 2, 3, 0, 4]] * 2
    yield "Det swaps", node("Det", swaps, opset=22), [np.float64(-32)], [0.0]


def trained() -> Iterator[tuple[str, Any, Any, Any]]:
    x, (s, b, m), v = normal(4, 3, 5), normal(3, 3), np.abs(normal(3)) + 1
    wide = x.astype(np.float64)
    mean, variance = wide.mean((0, 2)), wide.var((0, 2))
    even = (wide - mean[:, None]) / np.sqrt(variance + 1e-3)[:, None]
    y = even * s[:, None] + b[:, None]
    running = [0.75 * a.astype(np.float64) + 0.25 * b for a, b in ((m, mean), (v, variance))]
    given = node("BatchNormalization", x, s, b, m, v, outputs=3, training_mode=1, epsilon=1e-3,
                 momentum=0.75)  # fmt: skip
    # some twenty roundings and a division each, of terms no larger than these
    parts = np.abs(even * s[:, None]) + np.abs(y) + np.abs(s)[:, None] + np.abs(b)[:, None]
    bounds = [100 * U * parts, 100 * U * (np.abs(m) + 1), 100 * U * (v + variance)]
    yield "BatchNormalization", given, [y, *running], bounds


def loss() -> Iterator[tuple[str, Any, Any, Any]]:
    x, target = normal(4, 5, 3), RNG.integers(0, 5, (4, 3))
    wide = x.astype(np.float64)
    log = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    picked = -np.take_along_axis(log, target[:, None], 1)[:, 0]
    given = node("SoftmaxCrossEntropyLoss", x, target, outputs=2, reduction="none")
    yield "SoftmaxCrossEntropyLoss", given, [picked, log], [64 * U * (np.abs(wide).max() + 2)] * 2


def moved() -> Iterator[tuple[str, Any, Any, Any]]:
    x = whole(3, 7, most=4)
    for attrs in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
        for dtype in ("float32", "int32"):
            given = whole(2, 6, most=2, dtype=dtype)
            turned = given[:, ::-1] if "reverse" in attrs else given
            value = np.cumprod(turned, 1)
            if "exclusive" in attrs:
                value = np.concatenate([np.ones((2, 1), dtype), value[:, :-1]], 1)
            value = value[:, ::-1] if "reverse" in attrs else value
            again = node("CumProd", given, np.int64(1), opset=26, **attrs)
            yield f"CumProd {attrs} {dtype}", again, [value], [0.0]
    for axis in (None, 0, 1):
        for sorts in (0, 1):
            given = whole(9, most=3) if axis is None else whole(6, 4, most=1).repeat(2, axis)
            y, first, inverse, count = np.unique(given, True, True, True, axis=axis)
            if not sorts:
                order = np.argsort(first)
                back = np.argsort(order)
                y = np.take(y, order, axis or 0)
                first, count, inverse = first[order], count[order], back[inverse]
            attrs = {"sorted": sorts} | ({} if axis is None else {"axis": axis})
            yield f"Unique {attrs}", node("Unique", given, outputs=4, **attrs), [
                y, first, inverse.reshape(-1), count], [0.0] * 4  # fmt: skip
    kept = np.array([1, 0, 0, 1, 1, 0], bool)
    yield "Compress axis", node("Compress", x, kept, axis=1), [x[:, :6][:, kept]], [0.0]
    yield "Compress flat", node("Compress", x, kept), [x.reshape(-1)[:6][kept]], [0.0]
    yield "Compress nothing", node("Compress", x, np.zeros(3, bool), axis=0), [x[:0]], [0.0]
    for a, b in (("int8", "uint8"), ("uint16", "int16"), ("int32", "uint32"), ("uint32", "int32")):
        about = np.iinfo(a)
        given = RNG.integers(about.min, about.max, (3, 5), endpoint=True).astype(a)
        to = helper.np_dtype_to_tensor_dtype(np.dtype(b))
        yield f"BitCast {a} {b}", node("BitCast", given, opset=26, to=to), [given.view(b)], [0.0]
    for dtype in ("int16", "uint16"):
        about = np.iinfo(dtype)
        pair = RNG.integers(about.min, about.max, (2, 9, 11), endpoint=True).astype(dtype)
        a, b = pair
        a[0, 0] = b[0, 0] = about.max
        a[0, 1] = b[0, 1] = about.min
        yield f"Mul {dtype}", node("Mul", a, b), [a * b], [0.0]
    blocks = whole(2, 3 * 4, 9)
    image = np.zeros((2, 3, 4, 5))
    columns = blocks.reshape(2, 3, 2, 2, 3, 3)
    for i, j, r, c in np.ndindex(2, 2, 3, 3):
        if 0 <= 2 * c + j - 1 < 5:
            image[:, :, r + i, 2 * c + j - 1] += columns[:, :, i, j, r, c]
    yield "Col2Im", node("Col2Im", blocks, np.array([4, 5]), np.array([2, 2]), strides=[1, 2],
                         pads=[0, 1, 0, 0]), [image], [0.0]  # fmt: skip


def counted() -> Iterator[tuple[str, Any, Any, Any]]:
    """Sequences in rows; ONNX's reference counts them, but takes weights of other columns."""
    grams: dict[str, Any] = {
        "pool_int64s": [2, 3, 1, 0, 1, 2, 2, 3, 1, 1, 2, 1], "ngram_counts": [0, 3, 9],
        "ngram_indexes": [0, 1, 2, 3, 5, 4, 6], "max_gram_length": 3,
    }  # fmt: skip
    weights = np.array([0.5, 2.0, 1.5, 0.25, 4.0, 8.0, 3.0])
    rows = RNG.integers(0, 4, (3, 17))
    for mode, least, skips in (("TF", 1, 0), ("TF", 2, 3), ("IDF", 1, 2), ("TFIDF", 1, 1)):
        for given in (rows, rows[0].astype(np.int32)):
            attrs: dict[str, Any] = {"min_gram_length": least, "max_skip_count": skips, **grams}
            model, feeds = model_of(node("TfIdfVectorizer", given, mode="TF", **attrs))
            times: Any = ReferenceEvaluator(model).run(None, feeds)
            times = times[0]
            value = np.minimum(times, 1) if mode == "IDF" else times
            if mode != "TF":
                value = value * weights[np.argsort(grams["ngram_indexes"])]
            made = node("TfIdfVectorizer", given, mode=mode, weights=list(weights), **attrs)
            yield f"TfIdfVectorizer {mode} {least} {skips}", made, [value], [0.0]


CONSTANT = {"DFT": (1, 2), "STFT": (1, 3), "CumProd": (1,), "Col2Im": (1, 2)}


def model_of(given: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    arrays = {f"x{i}": np.asarray(a) for i, a in enumerate(given["inputs"])}
    held = {f"x{i}" for i in CONSTANT.get(given["op"], ())}
    outputs = [f"y{i}" for i in range(given["outputs"])]
    proto = helper.make_graph(
        [helper.make_node(given["op"], list(arrays), outputs, **given["attrs"])], "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
         for n, a in arrays.items() if n not in held],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in held],
    )  # fmt: skip
    imports = [helper.make_opsetid("", given["opset"])]
    proto = helper.make_model(proto, opset_imports=imports, ir_version=11)
    typed = onnx.shape_inference.infer_shapes(proto)
    for output in typed.graph.output:
        if not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    return typed, {n: a for n, a in arrays.items() if n not in held}


def main(device: str) -> None:
    rows: list[dict[str, Any]] = []
    for make in (dfts, stfts, sums, trained, loss, moved, counted):
        for name, given, values, bounds in make():
            model, feeds = model_of(given)
            try:
                with gpuedge.Session(model, device=device, fallback="error") as session:
                    got = session.run(feeds)
                    on = sorted({row.device for row in session.placement})
            except UnsupportedOpError as error:
                rows.append({"case": name, "unsupported": str(error)})
                continue
            worst = [
                "shape" if got[f"y{i}"].shape != np.shape(v)
                else float(np.max(np.abs(got[f"y{i}"].astype(np.float64) - v) - b, initial=-1.0))
                for i, (v, b) in enumerate(zip(values, bounds, strict=True))
            ]  # fmt: skip
            rows.append({"case": name, "over": worst, "on": on})
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1])
