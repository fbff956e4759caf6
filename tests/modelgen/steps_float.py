"""Steps that compute floats: functions of elements, sums, norms, windows and products."""

from __future__ import annotations

import numpy as np

from modelgen.case import Builder
from modelgen.meanings import CannotError

SMOOTH: dict[str, int] = {
    "Abs": 7, "Neg": 7, "Relu": 7, "LeakyRelu": 7, "Elu": 7, "Celu": 12, "Selu": 7, "Sigmoid": 7,
    "HardSigmoid": 7, "HardSwish": 14, "Tanh": 7, "Softplus": 7, "Softsign": 7, "Mish": 18,
    "Erf": 9, "Sin": 7, "Cos": 7, "Asinh": 9, "Atan": 7, "Gelu": 20, "Identity": 7,
}  # fmt: skip
"""Functions that are nowhere steep, by the operator set that they came with."""

STEPPED = {"Floor": 7, "Ceil": 7, "Round": 11, "Sign": 9, "ThresholdedRelu": 10}
"""Functions that leap, for exact numbers."""

NARROW = {"Sinh": 9, "Cosh": 9, "Exp": 7, "Acos": 7, "Asin": 7, "Atanh": 9, "Tan": 7}
"""Functions of what lies between -1 and 1."""

POSITIVE = {"Sqrt": 7, "Log": 7, "Reciprocal": 7, "Acosh": 9}
"""Functions of what lies above 1."""


def broadcast(b: Builder, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that broadcasts to another."""
    tail = shape[b.between(0, len(shape)) :]
    return tuple(1 if b.chance(0.3) else n for n in tail)


def tamed(b: Builder, x: str) -> str:
    """Return a value whose numbers are of moderate size."""
    largest = float(np.abs(b.array(x)).max())
    if largest <= 64:
        return x
    if b.is_exact(x):
        low, high = -8.0, 8.0
        if b.opset < 11:
            return b.node("Clip", [x], min=low, max=high)
        return b.node("Clip", [x, b.held(np.float32(low)), b.held(np.float32(high))])
    factor = np.float32(2.0 ** np.floor(np.log2(4 / largest)))
    return b.node("Mul", [x, b.held(factor)])


def unary(b: Builder, x: str) -> str:
    op = b.pick(*SMOOTH)
    b.need(SMOOTH[op])
    attrs = {}
    if op in ("LeakyRelu", "Elu", "Celu") and b.chance(0.5):
        attrs = {"alpha": b.pick(0.125, 0.3, 1.5)}
    if op == "Gelu" and b.chance(0.5):
        attrs = {"approximate": "tanh"}
    if op == "HardSigmoid" and b.chance(0.5):
        attrs = {"alpha": 0.25, "beta": 0.375}
    return b.node(op, [x], **attrs)


def stepped(b: Builder, x: str) -> str:
    op = b.pick(*STEPPED)
    b.need(STEPPED[op])
    if not b.is_exact(x):
        raise CannotError("it would leap at numbers that are not exact")
    return b.node(op, [b.node("Mul", [x, b.held(np.float32(b.pick(0.25, 0.5, -0.125)))])])


def narrow(b: Builder, x: str) -> str:
    op = b.pick(*NARROW)
    b.need(NARROW[op])
    inside = b.node("Mul", [b.node("Tanh", [x]), b.held(np.float32(0.875))])
    return b.node(op, [inside])


def positive(b: Builder, x: str) -> str:
    op = b.pick(*POSITIVE)
    b.need(POSITIVE[op])
    return b.node(op, [b.node("Add", [b.node("Abs", [x]), b.held(np.float32(1.25))])])


def binary(b: Builder, x: str) -> str:
    op = b.pick("Add", "Sub", "Mul", "Max", "Min", "Add", "Mul")
    if op in ("Max", "Min"):
        b.need(8)
    same = [v for v in b.case.values if b.shape(v) == b.shape(x) and b.array(v).dtype.kind == "f"]
    other = b.pick(*same) if b.chance(0.5) else b.put(b.floats(broadcast(b, b.shape(x))))
    return b.node(op, [x, other] if b.chance(0.5) else [other, x])


def several(b: Builder, x: str) -> str:
    b.need(8)
    others = [b.put(b.floats(broadcast(b, b.shape(x)))) for _ in range(b.between(1, 4))]
    return b.node(b.pick("Sum", "Mean", "Max", "Min"), [x, *others])


def division(b: Builder, x: str) -> str:
    low = b.floats(broadcast(b, b.shape(x)))
    other = b.put(np.where(low < 0, low - 0.75, low + 0.75).astype(np.float32))
    return b.node("Div", [x, other])


def power(b: Builder, x: str) -> str:
    base = b.node("Add", [b.node("Abs", [tamed(b, x)]), b.held(np.float32(0.5))])
    exponent = np.float32(b.pick(2, 3, 0.5, -1, 1.5))
    whole = b.opset >= 12 and exponent in (2, 3) and b.chance(0.4)
    return b.node("Pow", [base, b.held(exponent.astype(np.int64) if whole else exponent)])


def clip(b: Builder, x: str) -> str:
    low, high = np.float32(b.pick(-2, -1.5, 0)), np.float32(b.pick(1, 2.25, 6))
    if b.opset < 11:
        return b.node("Clip", [x], min=float(low), max=float(high))
    bounds = [b.put(low) if b.chance(0.7) else "", b.put(high)]
    return b.node("Clip", [x, *bounds])


def prelu(b: Builder, x: str) -> str:
    shape = b.shape(x)
    slope = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else (1,)
    return b.node("PRelu", [x, b.put(b.floats(slope, 0.3))])


def softmax(b: Builder, x: str) -> str:
    axis = b.between(-len(b.shape(x)), len(b.shape(x)) - 1)
    if b.opset < 11:
        axis %= len(b.shape(x))
    return b.node(b.pick("Softmax", "LogSoftmax"), [tamed(b, x)], axis=axis)


def reduce(b: Builder, x: str) -> str:
    op = b.pick("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    x, rank = tamed(b, x), len(b.shape(x))
    axes = sorted({b.between(0, rank - 1) for _ in range(b.between(1, 3))})
    if op == "Prod":
        x = b.node("Softsign", [x]) if not b.is_exact(x) else clip(b, x)
    if b.opset >= 11 and b.chance(0.3):
        axes = [a - rank for a in axes]
    since = 13 if op == "Sum" else 18
    return b.axes(f"Reduce{op}", x, axes, since, keepdims=b.between(0, 1))


def cumsum(b: Builder, x: str) -> str:
    b.need(11)
    axis = b.held(np.array(b.between(-len(b.shape(x)), len(b.shape(x)) - 1), np.int64))
    return b.node("CumSum", [x, axis], exclusive=b.between(0, 1), reverse=b.between(0, 1))


def layer_norm(b: Builder, x: str) -> str:
    b.need(17)
    axis = b.between(-min(2, len(b.shape(x))), -1)
    tail = b.shape(x)[axis:]
    parameters = [b.put(b.floats(tail)) for _ in range(b.between(1, 2))]
    return b.node("LayerNormalization", [x, *parameters], axis=axis, epsilon=1e-3)


def channel_norm(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if len(shape) < 3:
        raise CannotError("it has no channels")
    op = b.pick("BatchNormalization", "BatchNormalization", "InstanceNormalization",
                "GroupNormalization")  # fmt: skip
    channels = shape[1]
    scale, shift = (b.put(b.floats((channels,))) for _ in range(2))
    if op == "GroupNormalization":
        b.need(21)
        groups = b.pick(*(g for g in range(1, channels + 1) if channels % g == 0))
        return b.node(op, [x, scale, shift], num_groups=groups, epsilon=1e-3)
    if op == "InstanceNormalization":
        return b.node(op, [x, scale, shift], epsilon=1e-3)
    middle = b.put(b.floats((channels,)))
    variance = b.put(b.rng.uniform(0.25, 4, channels).astype(np.float32))
    return b.node(op, [x, scale, shift, middle, variance], epsilon=1e-3)


def other_norm(b: Builder, x: str) -> str:
    shape = b.shape(x)
    op = b.pick("LpNormalization", "LRN", "MeanVarianceNormalization")
    if op == "LpNormalization":
        apart = b.node("Add", [x, b.held(np.float32(0.375))])
        axis = b.between(0, len(shape) - 1)
        if not (np.abs(b.array(apart)).max(axis) > 0.25).all():
            raise CannotError("it would divide by almost nothing")
        return b.node(op, [apart], axis=axis, p=b.between(1, 2))
    if len(shape) != 4:
        raise CannotError("it has no channels")
    if op == "LRN":
        return b.node(op, [x], size=b.pick(1, 3, 5), alpha=0.01, beta=0.75, bias=1.5)
    b.need(9)
    if not (b.array(x).std((0, 2, 3)) > 0.1).all():
        raise CannotError("it would divide by almost nothing")
    return b.node(op, [x])


def window(b: Builder, spatial: tuple[int, ...], most: int = 5) -> dict[str, list[int]]:
    """Return the attributes of a window over an extent, at random."""
    kernel = [min(b.pick(1, 2, 3, 3, most), n) for n in spatial]
    attrs = {"kernel_shape": kernel, "strides": [b.pick(1, 1, 2, 3) for _ in kernel]}
    pads = [b.between(0, k // 2) for k in kernel]
    attrs["pads"] = [*pads, *(b.between(0, k // 2) for k in kernel)]
    return attrs


def conv(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if not 3 <= len(shape) <= 4:
        raise CannotError("it is no image")
    channels = shape[1]
    attrs: dict[str, object] = dict(window(b, shape[2:]))
    kernel = attrs["kernel_shape"]
    if b.chance(0.3):
        dilations = [b.pick(1, 2) if (k - 1) * 2 < n else 1
                     for k, n in zip(kernel, shape[2:], strict=True)]  # type: ignore[call-overload]  # fmt: skip
        attrs["dilations"] = dilations
    if b.chance(0.2):
        attrs.pop("pads")
        attrs.pop("dilations", None)
        attrs["auto_pad"] = b.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    group = b.pick(1, 1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0))
    filters = group * b.between(1, max(1, 40 // group)) if group > 1 else b.between(1, 70)
    fan = channels // group * int(np.prod(kernel))  # type: ignore[call-overload]
    weights = b.put(b.floats((filters, channels // group, *kernel), fan**-0.5))  # type: ignore[misc]
    bias = [b.put(b.floats((filters,)))] if b.chance(0.6) else []
    return b.node("Conv", [x, weights, *bias], group=group, **attrs)


def conv_transpose(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if not 3 <= len(shape) <= 4 or int(np.prod(shape)) > 4000:
        raise CannotError("it is no small image")
    attrs = window(b, shape[2:], 4)
    attrs["pads"] = [min(p, k - 1) for p, k in zip(attrs["pads"], attrs["kernel_shape"] * 2,
                                                   strict=True)]  # fmt: skip
    group = b.pick(1, 1, shape[1])
    filters = b.between(1, 3) if group > 1 else b.between(1, 16)
    fan = shape[1] // group * 4
    weights = b.floats((shape[1], filters, *attrs["kernel_shape"]), fan**-0.5)
    bias = [b.put(b.floats((filters * group,)))] if b.chance(0.5) else []
    return b.node("ConvTranspose", [x, b.put(weights), *bias], group=group, **attrs)


def pool(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if not 3 <= len(shape) <= 4:
        raise CannotError("it is no image")
    op = b.pick("MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool",
                "GlobalAveragePool", "GlobalLpPool")  # fmt: skip
    if op.startswith("Global"):
        return b.node(op, [x])
    attrs: dict[str, object] = dict(window(b, shape[2:]))
    if b.opset >= 10 and op != "LpPool" and b.chance(0.3):
        attrs["ceil_mode"] = 1
        attrs.pop("pads")  # whose meaning together the evaluators do not agree on
    elif op == "AveragePool" and b.chance(0.5):
        attrs["count_include_pad"] = 1
    elif op == "LpPool":
        attrs["p"] = b.between(1, 3)
    return b.node(op, [x], **attrs)


def matmul(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if not shape:
        raise CannotError("it is a scalar")
    inner, columns = shape[-1], b.between(1, 40)
    batch = b.pick((), (), tuple(1 if b.chance(0.4) else n for n in shape[:-2]))
    weights = b.floats((*batch, inner, columns), inner**-0.5)
    if b.chance(0.2) and len(shape) > 1:
        left = b.floats((b.between(1, 9), shape[-2]), shape[-2] ** -0.5)
        return b.node("MatMul", [b.put(left), x])
    return b.node("MatMul", [x, b.put(weights)])


def gemm(b: Builder, x: str) -> str:
    flat = x if len(b.shape(x)) == 2 else b.node("Flatten", [x], axis=min(1, len(b.shape(x))))
    rows, inner = b.shape(flat)
    columns, turned = b.between(1, 70), b.between(0, 1)
    shape = (columns, inner) if turned else (inner, columns)
    bias = (1, columns) if b.chance(0.3) else (columns,) if b.chance(0.6) else (rows, columns)
    operands = [flat, b.put(b.floats(shape, inner**-0.5)), b.put(b.floats(bias))]
    if b.opset >= 11 and b.chance(0.2):
        operands.pop()
    return b.node("Gemm", operands, transB=turned, alpha=b.pick(1.0, 0.5), beta=b.pick(1.0, 2.0))


def resize(b: Builder, x: str) -> str:
    shape = b.shape(x)
    if len(shape) != 4:
        raise CannotError("it is no image")
    scales = np.array([1, 1, b.pick(1.0, 2.0, 3.0), b.pick(2.0, 1.0)], np.float32)
    if b.opset < 10:
        if b.opset < 9:
            return b.node("Upsample", [x], mode="nearest", scales=scales.tolist())
        return b.node("Upsample", [x, b.held(scales)], mode="nearest")
    b.need(11)
    mode = b.pick("nearest", "linear", "linear", "cubic")
    how = b.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    empty = b.held(np.zeros(0, np.float32)) if b.opset < 13 else ""
    if b.chance(0.5):
        return b.node("Resize", [x, empty, b.held(scales)], **attrs)
    sizes = [*shape[:2], *(b.between(1, 2 * n) if mode != "nearest" else n * 2 for n in shape[2:])]
    more = [empty] if b.opset < 13 else [""]
    return b.node("Resize", [x, empty, *more, b.ints(*sizes)], **attrs)


def grid_sample(b: Builder, x: str) -> str:
    b.need(16)
    shape = b.shape(x)
    if len(shape) != 4:
        raise CannotError("it is no image")
    places = b.rng.uniform(-1.2, 1.2, (shape[0], b.between(1, 6), b.between(1, 7), 2))
    mode = "linear" if b.opset >= 20 else "bilinear"
    padding = b.pick("zeros", "border")
    return b.node("GridSample", [x, b.put(places.astype(np.float32))], mode=mode,
                  padding_mode=padding, align_corners=b.between(0, 1))  # fmt: skip


def roi_align(b: Builder, x: str) -> str:
    b.need(16)
    shape = b.shape(x)
    if len(shape) != 4:
        raise CannotError("it is no image")
    count = b.between(1, 3)
    corner = b.rng.uniform(0, 0.5, (count, 2)) * np.array(shape[:1:-1])
    size = b.rng.uniform(0.2, 0.5, (count, 2)) * np.array(shape[:1:-1])
    boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
    which = b.rng.integers(0, shape[0], count)
    return b.node("RoiAlign", [x, b.put(boxes), b.held(which)], output_height=b.between(1, 3),
                  output_width=b.between(1, 3), sampling_ratio=2)  # fmt: skip


STEPS = (
    unary, unary, unary, stepped, narrow, positive, binary, binary, binary, several, division,
    power, clip, prelu, softmax, reduce, reduce, cumsum, layer_norm, channel_norm, channel_norm,
    other_norm, conv, conv, conv, conv_transpose, pool, pool, matmul, gemm, resize, grid_sample,
    roi_align,
)  # fmt: skip
