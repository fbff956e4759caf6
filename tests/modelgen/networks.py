"""Random models from seeds: the usual networks in small, and graphs of any operators."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from modelgen import steps_float, steps_other
from modelgen.case import Builder, Case
from modelgen.meanings import CannotError

OPSETS = range(7, 22)
STEPS = (*steps_float.STEPS, *steps_other.STEPS)
SCALAR = (steps_float.unary, steps_float.binary, steps_other.unsqueeze)
"""Those that a scalar may take."""

TRIES = 60
"""Steps that may fail in one graph."""


def image(b: Builder, most: int = 24) -> str:
    """Return an input of images with 1 to 70 channels and odd sizes."""
    channels = b.pick(1, 2, 3, 4, 5, 7, 8, 13, 16, 24, 33, 48, 61, 64, 70, b.between(1, 70))
    high, wide = (b.between(5, most) for _ in range(2))
    while channels * high * wide > 6000:
        high, wide = max(high // 2, 5), max(wide // 2, 5)
        if high == wide == 5:
            break
    shape = (b.pick(1, 1, 1, 2, 3), channels, high, wide)
    return b.put(b.floats(shape), is_constant=False)


def activated(b: Builder, x: str) -> str:
    """Return an activation of a value."""
    op = b.pick("Relu", "Relu", "LeakyRelu", "Clip", "PRelu", "Sigmoid", "HardSwish", "Swish")
    if op == "Clip":
        return steps_float.clip(b, x)
    if op == "PRelu":
        return steps_float.prelu(b, x)
    if op == "HardSwish" and b.opset < 14:
        inner = b.node("HardSigmoid", [x], alpha=1 / 6)
        return b.node("Mul", [x, inner])
    if op == "Swish":
        return b.node("Mul", [x, b.node("Sigmoid", [x])])
    return b.node(op, [x])


def convolved(
    b: Builder, x: str, filters: int, kernel: int, *, stride: int = 1, group: int = 1,
    norm: bool | None = None,
) -> str:  # fmt: skip
    """Return a convolution that keeps the size, with a norm in half of the cases."""
    channels = b.shape(x)[1]
    rank = len(b.shape(x)) - 2
    fan = channels // group * kernel**rank
    w = b.put(b.floats((filters, channels // group, *(kernel,) * rank), fan**-0.5))
    bias = [b.put(b.floats((filters,)))] if b.chance(0.5) else []
    y = b.node("Conv", [x, w, *bias], kernel_shape=[kernel] * rank, strides=[stride] * rank,
               pads=[kernel // 2] * 2 * rank, group=group)  # fmt: skip
    if b.chance(0.5) if norm is None else norm:
        parameters = [b.held(b.rng.uniform(0.5, 1.5, filters).astype(np.float32)) for _ in "sv"]
        middle = [b.held(b.floats((filters,), 0.2)) for _ in "bm"]
        return b.node("BatchNormalization", [y, parameters[0], *middle, parameters[1]])
    return y


def classified(b: Builder, x: str) -> str:
    """Return the head of a classifier."""
    if b.chance(0.5):
        pooled = b.node("GlobalAveragePool", [x])
    else:
        pooled = b.axes("ReduceMean", x, list(range(2, len(b.shape(x)))), 18, keepdims=1)
    flat = b.node("Flatten", [pooled], axis=1)
    classes = steps_float.gemm(b, flat)
    return b.node("Softmax", [classes], axis=1) if b.chance(0.5) else classes


def residual(b: Builder) -> str:
    x = image(b)
    for _ in range(b.between(1, 3)):
        filters = b.shape(x)[1] if b.chance(0.6) else b.between(1, 70)
        stride = 1 if filters == b.shape(x)[1] and b.chance(0.7) else b.pick(1, 2)
        y = activated(b, convolved(b, x, filters, b.pick(1, 3), stride=stride))
        y = convolved(b, y, filters, 3)
        same = b.shape(x) == b.shape(y)
        shortcut = x if same else convolved(b, x, filters, 1, stride=stride, norm=False)
        x = activated(b, b.node("Add", [y, shortcut] if b.chance(0.5) else [shortcut, y]))
    return classified(b, x)


def inverted(b: Builder) -> str:
    """Inverted residuals with squeeze and excitation."""
    x = image(b, 17)
    for _ in range(b.between(1, 3)):
        channels, factor = b.shape(x)[1], b.pick(1, 2, 3)
        wide = activated(b, convolved(b, x, channels * factor, 1))
        deep = activated(b, convolved(b, wide, channels * factor, b.pick(3, 5), group=channels
                                      * factor, stride=b.pick(1, 1, 2)))  # fmt: skip
        if b.chance(0.4):
            squeezed = convolved(b, b.node("GlobalAveragePool", [deep]), 4, 1, norm=False)
            gate = convolved(b, b.node("Relu", [squeezed]), channels * factor, 1, norm=False)
            deep = b.node("Mul", [deep, b.node("HardSigmoid", [gate])])
        y = convolved(b, deep, channels, 1)
        x = b.node("Add", [x, y]) if b.shape(x) == b.shape(y) else y
    return classified(b, x)


def shuffled(b: Builder, x: str, groups: int) -> str:
    """Return the channels of a value in another order, as a channel shuffle has it."""
    n, c, *size = b.shape(x)
    apart = b.node("Reshape", [x, b.ints(n, groups, c // groups, *size)])
    turned = b.node("Transpose", [apart], perm=[0, 2, 1, *range(3, 3 + len(size))])
    return b.node("Reshape", [turned, b.ints(*((0 if b.chance(0.3) else n), -1, *size))])


def shuffle(b: Builder) -> str:
    groups = b.pick(2, 3, 4)
    filters = groups * b.between(1, 12)
    x = activated(b, convolved(b, image(b, 17), filters * 2, 1))
    for _ in range(b.between(1, 2)):
        if b.opset >= 13:
            left, right = b.many("Split", [x, b.ints(filters, filters)], 2, axis=1)
        else:
            left, right = b.many("Split", [x], 2, axis=1, split=[filters, filters])
        right = activated(b, convolved(b, right, filters, 1, group=groups))
        right = convolved(b, shuffled(b, right, groups), filters, 3, group=filters)
        x = shuffled(b, b.node("Concat", [left, right], axis=1), 2)
    return classified(b, x)


def doubled(b: Builder, x: str) -> str:
    """Return an image of twice the size."""
    channels = b.shape(x)[1]
    if b.chance(0.5):
        w = b.put(b.floats((channels, channels, 2, 2), channels**-0.5))
        return b.node("ConvTranspose", [x, w], strides=[2, 2], kernel_shape=[2, 2])
    scales = np.array([1, 1, 2, 2], np.float32)
    if b.opset < 9:
        return b.node("Upsample", [x], mode="nearest", scales=scales.tolist())
    if b.opset == 9:
        return b.node("Upsample", [x, b.held(scales)], mode="nearest")
    if b.opset == 10:
        return b.node("Resize", [x, b.held(scales)], mode="nearest")
    empty = b.held(np.zeros(0, np.float32)) if b.opset < 13 else ""
    how = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    mode = b.pick("nearest", "linear")
    attrs = how if mode == "nearest" else {"coordinate_transformation_mode": "half_pixel"}
    return b.node("Resize", [x, empty, b.held(scales)], mode=mode, **attrs)


def u_net(b: Builder) -> str:
    depth = b.between(1, 2)
    side = [2**depth * b.between(2, 5) for _ in range(2)]
    x = b.put(b.floats((b.pick(1, 2), b.between(1, 9), *side)), is_constant=False)
    kept = []
    for level in range(depth):
        x = activated(b, convolved(b, x, b.between(2, 8) * 2**level, 3))
        kept.append(x)
        x = b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = activated(b, convolved(b, x, b.between(3, 24), 3))
    for skip in reversed(kept):
        joined = b.node("Concat", [doubled(b, x), skip], axis=1)
        x = activated(b, convolved(b, joined, b.shape(skip)[1], 3))
    x = convolved(b, x, b.between(1, 4), 1, norm=False)
    return b.node(b.pick("Sigmoid", "Identity"), [x])


def temporal(b: Builder) -> str:
    """A temporal convolution network: dilated, causal, residual."""
    x = b.put(b.floats((b.pick(1, 2), b.between(1, 24), b.between(9, 60))), is_constant=False)
    for level in range(b.between(1, 3)):
        channels, filters, dilation = b.shape(x)[1], b.between(1, 32), 2**level
        kernel = b.pick(2, 3)
        w = b.put(b.floats((filters, channels, kernel), (channels * kernel) ** -0.5))
        bias = b.put(b.floats((filters,)))
        y = b.node("Conv", [x, w, bias], dilations=[dilation], kernel_shape=[kernel],
                   pads=[(kernel - 1) * dilation, 0])  # fmt: skip
        y = activated(b, y)
        side = x if channels == filters else convolved(b, x, filters, 1, norm=False)
        x = b.node("Relu", [b.node("Add", [y, side])])
    if b.chance(0.5):
        return classified(b, x)
    last = b.held(np.array(-1 if b.opset >= 11 else b.shape(x)[2] - 1, np.int64))
    return b.node("Gather", [x, last], axis=2)


def projected(b: Builder, x: str, columns: int) -> str:
    """Return a linear layer."""
    inner = b.shape(x)[-1]
    y = b.node("MatMul", [x, b.put(b.floats((inner, columns), inner**-0.5))])
    return b.node("Add", [y, b.put(b.floats((columns,)))]) if b.chance(0.8) else y


def normed(b: Builder, x: str) -> str:
    """Return a norm of the last axis; before operator set 17 as exporters wrote it."""
    width = b.shape(x)[-1]
    scale, shift = b.put(b.floats((width,))), b.put(b.floats((width,)))
    if b.opset >= 17:
        return b.node("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-3)
    axis = len(b.shape(x)) - 1
    middle = b.axes("ReduceMean", x, [axis], 18)
    apart = b.node("Sub", [x, middle])
    square = b.node("Pow", [apart, b.held(np.float32(2))])
    spread = b.axes("ReduceMean", square, [axis], 18)
    below = b.node("Sqrt", [b.node("Add", [spread, b.held(np.float32(1e-3))])])
    return b.node("Add", [b.node("Mul", [b.node("Div", [apart, below]), scale]), shift])


def attended(b: Builder, x: str, heads: int) -> str:
    """Return self-attention."""
    n, length, width = b.shape(x)
    each = width // heads

    def part(perm: list[int]) -> str:
        apart = b.node("Reshape", [projected(b, x, width), b.ints(n, length, heads, each)])
        return b.node("Transpose", [apart], perm=perm)

    q, k, v = part([0, 2, 1, 3]), part([0, 2, 3, 1]), part([0, 2, 1, 3])
    scores = b.node("Div", [b.node("MatMul", [q, k]), b.held(np.float32(each**0.5))])
    if b.chance(0.4):
        mask = np.triu(np.full((length, length), -64, np.float32), 1)
        scores = b.node("Add", [scores, b.held(mask)])
    axis = 3 if b.opset < 13 else -1
    mixed = b.node("MatMul", [b.node("Softmax", [scores], axis=axis), v])
    back = b.node("Transpose", [mixed], perm=[0, 2, 1, 3])
    return projected(b, b.node("Reshape", [back, b.ints(0, -1, width)]), width)


def transformer(b: Builder) -> str:
    heads = b.between(1, 3)
    width, length, rows = heads * b.between(2, 13), b.between(3, 14), b.between(5, 30)
    tokens = b.rng.integers(0, rows, (b.pick(1, 2), length))
    x = b.node("Gather", [b.put(b.floats((rows, width))), b.put(tokens, is_constant=False)])
    x = b.node("Add", [x, b.held(b.floats((length, width)))])
    for _ in range(b.between(1, 2)):
        x = b.node("Add", [x, attended(b, normed(b, x), heads)])
        inner = projected(b, normed(b, x), width * 2)
        if b.opset >= 20 and b.chance(0.5):
            inner = b.node("Gelu", [inner], approximate=b.pick("none", "tanh"))
        elif b.opset >= 9:
            erf = b.node("Erf", [b.node("Mul", [inner, b.held(np.float32(0.5**0.5))])])
            raised = b.node("Add", [erf, b.held(np.float32(1))])
            inner = b.node("Mul", [b.node("Mul", [inner, raised]), b.held(np.float32(0.5))])
        x = b.node("Add", [x, projected(b, inner, width)])
    return normed(b, x)


def start(b: Builder) -> str:
    """Return an input of any rank."""
    if b.chance(0.5):
        return image(b, 15)
    shape = [b.pick(1, 2, 3, 5, 7, 11, 17, 30) for _ in range(b.between(1, 5))]
    while prod(shape) > 3000:
        shape[shape.index(max(shape))] //= 2
    return b.put(b.floats(shape), is_constant=False)


def anything(b: Builder) -> str:
    """A graph of any operators: steps that go on with late values mostly."""
    values, tries = [start(b)], 0
    wanted = b.between(1, 12)
    while len(values) <= wanted and tries < TRIES:
        tries += 1
        x = values[-1] if b.chance(0.75) else b.pick(*values)
        count = len(b.case.nodes)
        try:
            step = b.pick(*(STEPS if b.shape(x) else SCALAR))
            values.append(steps_float.tamed(b, step(b, x)))
        except CannotError:
            del b.case.nodes[count:]
    for value in values[1:-1]:
        if b.chance(0.15):
            b.case.outputs.append(value)
    return values[-1] if len(values) > 1 else b.node("Identity", values)


NETWORKS: dict[str, Callable[[Builder], str]] = {
    "residual": residual, "inverted": inverted, "shuffle": shuffle, "u-net": u_net,
    "temporal": temporal, "transformer": transformer,
}  # fmt: skip


def random_case(seed: int) -> tuple[str, Case]:
    """Return the kind and the case of a seed: every fourth is a network, the others are graphs.

    The same seed gives the same model on every machine.
    """
    for attempt in range(20):
        rng = np.random.default_rng([seed, attempt])
        kind = list(NETWORKS)[int(rng.integers(len(NETWORKS)))] if seed % 4 == 0 else "graph"
        is_whole = kind == "graph" and bool(rng.random() < 0.5)
        b = Builder(rng, int(rng.choice(OPSETS)), is_whole=is_whole)
        try:
            last = NETWORKS.get(kind, anything)(b)
        except CannotError:
            continue
        known = {o for n in b.case.nodes for o in n.output}
        b.case.outputs = [*dict.fromkeys(o for o in (*b.case.outputs, last) if o in known)]
        if b.case.outputs:
            return kind, b.case.pruned()
    raise ValueError(f"seed {seed} gives no model")
