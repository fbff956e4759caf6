"""A device and the CPU on the same models: one line of JSON with what is not as it must be.

Usage: python agreement_child.py DEVICE COUNT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gpuedge
from gpuedge.core.errors import InputError, UnsupportedOpError

WAYS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
Arrays = dict[str, Any]


def one_node(op: str, arrays: Arrays, held: Arrays, opset: int = 19, **attrs: Any) -> Any:
    """Return a model of one node: what it reads is an input, or held as a weight, or absent."""
    names = list(arrays | held)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
    ]
    node = helper.make_node(op, [n if n[0] != "-" else "" for n in names], ["y"], **attrs)
    weights = [numpy_helper.from_array(a, n) for n, a in held.items() if n[0] != "-"]
    graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name="y")], weights)
    imports = [helper.make_opsetid("", opset)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=9)
    )


def resized(count: int) -> Iterator[tuple[Any, Arrays]]:
    """Yield Resize nodes of random attributes, sizes and dtypes, with inputs."""
    draw = np.random.default_rng(count)
    for _ in range(count):
        mode, way = draw.choice(["nearest", "linear", "cubic"]), draw.choice(WAYS)
        attrs = {"mode": mode, "coordinate_transformation_mode": way}
        if mode == "nearest":
            attrs["nearest_mode"] = draw.choice(NEAREST)
        shape = (*draw.integers(1, 3, 2), *draw.integers(1, 9, 2))
        dtype = draw.choice(["float32", "float32", "uint8", "int8"])
        x = draw.integers(0, 120, shape).astype(dtype)
        roi = np.float32([0, 0, 0.1, -0.2, 1, 1, 0.9, 1.3])
        held: Arrays = {"roi" if way == "tf_crop_and_resize" else "-": roi}
        if draw.random() < 0.5:
            scales = np.float32([1, 1, *draw.choice([0.5, 0.8, 1, 1.5, 2.5, 3, 1.7], 2)])
            if (np.floor(shape * scales) < 1).any():
                continue
            held["scales"] = scales
        else:
            held |= {"--": roi, "sizes": np.array([*shape[:2], *draw.integers(1, 13, 2)])}
        yield one_node("Resize", {"x": x}, held, **{k: str(v) for k, v in attrs.items()}), {"x": x}


def resize_wrong(device: str, count: int) -> list[str]:
    """Return what a device or the CPU does not resample as ONNX's reference does."""
    wrong = []
    for model, feed in resized(count):
        want = ReferenceEvaluator(model).run(None, feed)[0]
        for where in (device, "cpu"):
            with gpuedge.Session(model, device=where, fallback="error") as session:
                found = session.run(feed)["y"]
            apart = np.abs(found.astype(np.float64) - want).max() if want.size else 0.0
            # A tie of the exact value may go either way; eight products of weights up to 1.6, in
            # float32, of numbers up to 120.
            bound = 1.0 if want.dtype.kind in "iu" else 8 * 1.6**2 * 120 * 2.0**-20
            if found.shape != want.shape or not apart <= bound:
                wrong.append(f"{where} {apart} {onnx.printer.to_text(model.graph)}")
    return wrong


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def whole(values: Any, dtype: str = "int64") -> Any:
    return np.array(values, dtype)


REFUSED: dict[str, tuple[list[Any], int, Any, dict[str, int]]] = {
    "Gather": ([X, whole([2, -3])], 1, whole([2, 3]), {}),
    "GatherElements": ([X, whole([[2, 0, -3, 0]])], 1, whole([[2, 0, -4, 0]]), {}),
    "GatherND": ([X, whole([[2, 3]])], 1, whole([[2, 4]]), {}),
    "ScatterElements": ([X, whole([[2, 0, 0, 0]]), X[:1]], 1, whole([[3, 0, 0, 0]]), {}),
    "ScatterND": ([X, whole([[-3]]), X[:1]], 1, whole([[-4]]), {}),
    "ReverseSequence": ([X, whole([1, 2, 0, 3])], 1, whole([1, 2, 4, 3]), {}),
    "RoiAlign": (
        [X.reshape(1, 1, 3, 4), np.float32([[0, 0, 2, 2]]), whole([0])], 2, whole([1]),
        {"sampling_ratio": 1},
    ),
    "Div": ([whole([7, -7], "int32"), whole([2, -2], "int32")], 1, whole([2, 0], "int32"), {}),
    "Mod": ([whole([7, -7], "int32"), whole([2, -2], "int32")], 1, whole([2, 0], "int32"), {}),
}  # fmt: skip
"""Inputs that a node takes, and what it cannot do with at the place given."""


def refusals_wrong(device: str) -> list[str]:
    """Return nodes that a device or the CPU does not answer, or refuse, as they must."""
    wrong = []
    for op, (arrays, at, bad, attrs) in REFUSED.items():
        feed = {f"x{i}": a for i, a in enumerate(arrays)}
        model = one_node(op, feed, {}, opset=18, **attrs)
        want = ReferenceEvaluator(model).run(None, feed)[0]
        said = set()
        for where in (device, "cpu", "auto"):
            with gpuedge.Session(model, device=where) as session:
                if not np.allclose(session.run(feed)["y"], want, atol=1e-5):
                    wrong.append(f"{op} on {where}: {session.run(feed)['y']} for {want}")
                try:
                    wrong.append(f"{op} on {where}: {session.run({**feed, f'x{at}': bad})}")
                except InputError as error:
                    said.add(str(error))
        if len(said) != 1:
            wrong.append(f"{op}: {said}")
    return wrong


def handed_over(device: str) -> list[str]:
    """Return what is wrong with indices that the CPU computes for a node on the device."""
    nodes = [
        helper.make_node("Cast", ["i"], ["s"], to=helper.TensorProto.STRING),
        helper.make_node("Cast", ["s"], ["u"], to=helper.TensorProto.INT64),
        helper.make_node("Gather", ["x", "u"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, [2]), ("x", 1, [3, 4]))]
    graph = helper.make_graph(nodes, "two", ends, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wrong = []
    for where in (device, "cpu"):
        with gpuedge.Session(model, device=where) as session:
            found = session.run({"x": X, "i": whole([2, 0])})["y"]
            if not np.array_equal(found, X[[2, 0]]):
                wrong.append(f"{where}: {found}")
            with suppress(InputError):
                wrong.append(f"{where}: {session.run({'x': X, 'i': whole([3, 0])})}")
    return wrong


def sums_wrong(device: str) -> list[str]:
    """Return biases near the ends of int32 that a device neither sums as the CPU nor refuses."""
    wrong = []
    x = np.full((1, 1, 3, 3), 255, np.uint8)
    scale, zero = {"xs": np.float32(1), "xz": np.uint8(0)}, {"wz": np.int8(0)}
    result = {"ys": np.float32(2**24), "yz": np.uint8(128)}
    for low in (False, True):
        w = np.full((1, 1, 3, 3), -128 if low else 127, np.int8)
        total = int((x.astype(np.int64) * w).sum())
        fits = -(2**31) + 1 - total if low else 2**31 - 1 - total
        for bias in (fits, fits - 1 if low else fits + 1):
            held = {**scale, "w": w, "ws": np.float32(1), **zero, **result}
            model = one_node("QLinearConv", {"x": x}, {**held, "b": whole([bias], "int32")}, 13)
            said = {}
            for where in (device, "cpu"):
                try:
                    with gpuedge.Session(model, device=where, fallback="error") as session:
                        said[where] = int(session.run({"x": x})["y"].item())
                except UnsupportedOpError:
                    said[where] = -1
            wrapped = (total + bias + 2**31) % 2**32 - 2**31
            want = min(max(round(wrapped / 2**24) + 128, 0), 255)
            there = want if bias == fits else -1
            if said != {device: there, "cpu": want}:
                wrong.append(f"{bias}: {said} for {want}")
    return wrong


if __name__ == "__main__":
    gpuedge.probe(deadline_s=60)
    print(json.dumps({
        "refusals": refusals_wrong(sys.argv[1]), "handed over": handed_over(sys.argv[1]),
        "sums": sums_wrong(sys.argv[1]),
        "resize": resize_wrong(sys.argv[1], int(sys.argv[2])),
    }))  # fmt: skip
