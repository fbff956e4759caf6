"""Random graphs of all families through planner and interpreter, against ONNX Runtime.

Chains of views (reshape, transpose, gather, concatenation), elementwise operators, reductions,
windows and products, with extents of zero and one, scalars and values that are used twice. Values
are small integers, so that results are exact until an inexact operator takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planrun import FLOAT_TEXTURES, TEXTURES, WIDE, run_graph

from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import GpuEdgeError, UnsupportedOpError
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.writer import to_bytes
from gpuedge.plan.planner import plan, why_not

DEVICES = {
    "minimum": VULKAN_MINIMUM,
    "wide": WIDE,
    "gles20": TEXTURES,
    "gles30": FLOAT_TEXTURES,
}
INEXACT = frozenset(("Softmax", "LogSoftmax", "LayerNormalization", "AveragePool",
                     "GlobalAveragePool", "Sigmoid", "Mean"))  # fmt: skip
BOUND = 2e-3
"""Most difference after an inexact operator; values stay below 9, and LayerNormalization enlarges
the errors of what it reads at most 316 times. A value from a wrong place differs by far more."""
MOST = 3000
"""Elements of a tensor."""

onnxruntime.set_default_logger_severity(4)


@dataclass
class Made:
    """A graph that grows node by node, each one that the planner accepts alone."""

    rng: np.random.Generator
    b: GraphBuilder = field(default_factory=GraphBuilder)
    feeds: dict[str, Array] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    _count: int = 0

    def pick(self, *choices: int) -> int:
        """Return one of some numbers."""
        return int(self.rng.choice(choices))

    def shape(self, value: str) -> tuple[int, ...]:
        return self.b.type(value).shape

    def value(self) -> str:
        """Return a value made so far, mostly a late one."""
        late = int(self.rng.integers(max(0, len(self.values) - 3), len(self.values)))
        return self.values[late if self.rng.random() < 0.8 else self.pick(*range(late + 1))]

    def number(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def integers(self, shape: tuple[int, ...]) -> Array:
        return self.rng.integers(-4, 5, shape).astype(np.float32)

    def input(self, array: Array) -> str:
        name = self.b.input(self.number(), TensorType(array.dtype.name, array.shape))
        self.feeds[name] = array
        return name

    def constant(self, array: Array) -> str:
        return self.b.constant(self.number(), array)

    def operand(self, shape: tuple[int, ...]) -> str:
        """Return a new input or constant."""
        array = self.integers(shape)
        return self.constant(array) if self.rng.random() < 0.5 else self.input(array)

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def add(self, op: str, inputs: list[str], **attrs: object) -> str:
        """Add a node and what keeps its values small."""
        self.ops.append(op)
        made = self.b.add(op, inputs, attrs)
        if op in ("Mul", "MatMul", "Conv", "CumSum", "Sum", "Gemm", "Add", "Sub", "LogSoftmax"):
            bounds = [self.constant(np.float32(limit)) for limit in (-8, 8)]
            made = self.b.add("Clip", [made, *bounds])
        self.values.append(made)
        return made


Step = Callable[[Made, str], None]


def reshape(made: Made, x: str) -> None:
    shape = made.shape(x)
    left, target = prod(shape), []
    while left > 1 and len(target) < 4:
        divisors = [d for d in range(1, min(left, 40) + 1) if left % d == 0]
        target.append(made.pick(*divisors))
        left //= target[-1]
    if left != 1 or not target:
        target.insert(made.pick(0, len(target)), left)
    if 0 in target:
        made.add("Flatten", [x], axis=made.pick(*range(len(shape) + 1)))
        return
    if made.rng.random() < 0.3:
        target[made.pick(*range(len(target)))] = -1
    made.add("Reshape", [x, made.ints(*target)])


def transpose(made: Made, x: str) -> None:
    made.add("Transpose", [x], perm=[int(i) for i in made.rng.permutation(len(made.shape(x)))])


def unsqueeze(made: Made, x: str) -> None:
    if len(made.shape(x)) < 6:
        made.add("Unsqueeze", [x, made.ints(made.pick(*range(len(made.shape(x)) + 1)))])


def squeeze(made: Made, x: str) -> None:
    made.add("Squeeze", [x])


def gather(made: Made, x: str) -> None:
    """Pick along an axis: a slice, a permutation, a scalar, or indices that are an input."""
    shape = made.shape(x)
    axis = made.pick(*range(len(shape)))
    n = shape[axis]
    kind = made.pick(0, 1, 2, 3)
    if not n:
        return
    if kind == 0:
        start, step = made.pick(*range(n)), made.pick(-2, -1, 1, 2)
        picked = np.arange(start, n if step > 0 else -1, step)
    elif kind == 1:
        picked = np.array(made.pick(*range(-n, n)))
    else:
        picked = made.rng.integers(-n, n, (made.pick(0, 1, 2, 3), 2)[: made.pick(1, 2)])
    dtype = np.int64 if made.rng.random() < 0.5 else np.int32
    indices = picked.astype(dtype)
    name = made.constant(indices) if made.rng.random() < 0.6 else made.input(indices)
    made.add("Gather", [x, name], axis=axis - len(shape) * made.pick(0, 1))


def concat(made: Made, x: str) -> None:
    shape = made.shape(x)
    axis = made.pick(*range(len(shape)))
    parts = [x]
    for _ in range(made.pick(1, 1, 2, 4)):
        other = (*shape[:axis], made.pick(0, 1, 2, 5), *shape[axis + 1 :])
        parts.append(x if made.rng.random() < 0.4 else made.operand(other))
    made.rng.shuffle(parts)
    made.add("Concat", parts, axis=axis - len(shape) * made.pick(0, 1))


def unary(made: Made, x: str) -> None:
    made.add(str(made.rng.choice(["Relu", "Neg", "Abs", "Identity", "Sigmoid"])), [x])


def binary(made: Made, x: str) -> None:
    """Combine with something that broadcasts, in either order."""
    shape = made.shape(x)
    known = [v for v in made.values if made.shape(v) == shape]
    if made.rng.random() < 0.4:
        other = str(made.rng.choice(known))
    else:
        tail = shape[made.pick(*range(len(shape) + 1)) :]
        other = made.operand(tuple(1 if made.rng.random() < 0.4 else n for n in tail))
    pair = [x, other] if made.rng.random() < 0.5 else [other, x]
    made.add(str(made.rng.choice(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])), pair)


def along(made: Made, x: str) -> None:
    """Reduce along an axis, or sum as it goes."""
    rank = len(made.shape(x))
    axis = made.pick(*range(-rank, rank))
    op = str(made.rng.choice(["Softmax", "LogSoftmax", "CumSum", "LayerNormalization"]))
    if op == "CumSum":
        attrs = {"exclusive": made.pick(0, 1), "reverse": made.pick(0, 1)}
        made.add(op, [x, made.constant(np.array(axis, np.int64))], **attrs)
    elif op == "LayerNormalization":
        tail = made.shape(x)[axis % rank :]
        if 0 in tail:
            return  # ONNX Runtime refuses it
        made.add(op, [x, *(made.operand(tail) for _ in range(made.pick(1, 2)))], axis=axis)
    else:
        made.add(op, [x], axis=axis)


def product(made: Made, x: str) -> None:
    shape = made.shape(x)
    columns = made.pick(1, 2, 3, 5)
    right = (shape[-1], columns) if made.pick(0, 1) else (*shape[:-2], shape[-1], columns)
    made.add("MatMul", [x, made.operand(right if len(shape) > 1 else (shape[-1],))])


def window(made: Made, x: str) -> None:
    """Convolve or pool; needs an image."""
    shape = made.shape(x)
    if len(shape) not in (3, 4) or 0 in shape:
        return
    op = str(made.rng.choice(["Conv", "Conv", "MaxPool", "AveragePool", "GlobalAveragePool"]))
    if op == "GlobalAveragePool":
        made.add(op, [x])
        return
    kernel = [min(made.pick(1, 2, 3), n) for n in shape[2:]]
    attrs = {"strides": [made.pick(1, 2) for _ in kernel]}
    if op == "Conv":
        attrs["pads"] = [made.pick(0, 1) for _ in kernel * 2]
        group = shape[1] if made.pick(0, 0, 1) else 1
        count = shape[1] if group > 1 else made.pick(1, 2, 5)
        weights = made.constant(made.integers((count, shape[1] // group, *kernel)))
        bias = [made.operand((count,))] if made.pick(0, 1) else []
        made.add(op, [x, weights, *bias], group=group, **attrs)
    else:
        made.add(op, [x], kernel_shape=kernel, **attrs)


STEPS: tuple[Step, ...] = (
    reshape, reshape, transpose, transpose, unsqueeze, squeeze, gather, gather, concat, unary,
    binary, binary, binary, along, along, product, window, window,
)  # fmt: skip
FIRST = ((2, 3, 4), (1, 5, 6), (2, 3, 4, 5), (7,), (3, 1), (6, 6), (1, 8, 3, 3), (4, 0), (1,))


def random_graph(seed: int) -> Made:
    """Return a graph of up to a dozen steps."""
    made = Made(np.random.default_rng(seed))
    shape = FIRST[int(made.rng.integers(len(FIRST)))]
    made.values.append(made.input(made.integers(shape)))
    for _ in range(int(made.rng.integers(2, 13))):
        x, step = made.value(), STEPS[int(made.rng.integers(len(STEPS)))]
        if not made.shape(x):
            step = binary if step in (binary, unary) else unsqueeze
        if made.b.type(x).size <= MOST:
            step(made, x)
    if len(made.values) == 1:
        made.add("Relu", [made.values[0]])
    extra = [v for v in made.values[1:-1] if made.rng.random() < 0.2]
    made.b.output(*dict.fromkeys([*extra, made.values[-1]]))
    return made


def supported(graph: Graph, device: str) -> bool:
    """Tell whether every node is one that the device takes by itself."""
    return all(why_not(node, graph, DEVICES[device]) is None for node in graph.nodes)


def check(seed: int, device: str, *, rewrites: bool = True) -> None:
    """Compare one graph on one device with ONNX Runtime; refused nodes must be refused alone."""
    made = random_graph(seed)
    graph = made.b.build()
    if not supported(graph, device):
        return
    session = onnxruntime.InferenceSession(to_bytes(graph), providers=["CPUExecutionProvider"])
    feeds = {name: made.feeds[name] for name in graph.inputs}
    used = {i.name for i in session.get_inputs()}
    want = session.run(list(graph.outputs), {n: v for n, v in feeds.items() if n in used})
    try:
        got = run_graph(graph, feeds, DEVICES[device], rewrites=rewrites)
    except GpuEdgeError as error:
        raise AssertionError(f"seed {seed}: nodes are taken one by one, but: {error}") from error
    exact = not INEXACT & set(made.ops)
    for name, value in zip(graph.outputs, want, strict=True):
        assert got[name].shape == value.shape, (seed, name)
        np.testing.assert_allclose(
            got[name], value, rtol=0, atol=0 if exact else BOUND, err_msg=f"seed {seed}, {name}"
        )


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_random_graphs(device: str, seed: int) -> None:
    check(seed, device)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_random_graphs_without_rewrites(device: str, seed: int) -> None:
    check(seed, device, rewrites=False)


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_many_random_graphs(device: str) -> None:
    for seed in range(2000):
        check(seed, device)
        check(seed, device, rewrites=False)


LARGE = 2**24
"""From here on float32 does not hold every integer."""


@pytest.mark.parametrize(
    ("caps", "op", "shape", "other", "known"),
    [
        (TEXTURES, "Transpose", (2, LARGE // 2 + 8), None, "exactly to 16777216"),
        (TEXTURES, "Concat", (3, LARGE // 4), (5, LARGE // 4), "exactly to 16777216"),
        (WIDE, "Gather", (LARGE + 8,), (2,), "exactly to 16777216"),
        (WIDE, "Transpose", (2, 2**30 + 8), None, "exactly to 2147483648"),
        (WIDE, "Transpose", (2, LARGE // 2 + 8), None, None),
        (WIDE, "Gather", (3, LARGE), (2,), None),
        (TEXTURES, "Gather", (LARGE // 2 - 8,), (2,), None),
    ],
)
def test_integers_that_are_not_exact_are_refused(
    caps: Caps, op: str, shape: tuple[int, ...], other: tuple[int, ...] | None, known: str | None
) -> None:
    b = GraphBuilder()
    names = [b.input("x", TensorType("float32", shape))]
    if other is not None:
        names.append(b.input("y", TensorType("int64" if op == "Gather" else "float32", other)))
    b.output(b.add(op, names, {"axis": 0} if op == "Concat" else {}))
    caps = replace(caps, max_storage_buffer_bytes=2**40, max_groups=(2**31,) * 3)
    if known is None:
        plan(b.build(), caps)
        return
    with pytest.raises(UnsupportedOpError) as caught:
        plan(b.build(), caps)
    assert op in caught.value.what
    assert known in str(caught.value.known)


def test_wrong_indices_stay_inside_the_tensor() -> None:
    b = GraphBuilder()
    x = b.input("x", TensorType("float32", (5,)))
    i = b.input("i", TensorType("float32", (4,)))
    whole = b.input("n", TensorType("int64", (4,)))
    b.output(b.add("Add", [b.add("Gather", [x, whole]), i]))
    far = np.array([2**62, -(2**62), 7, -9], np.int64)
    feeds = {"x": np.arange(5, dtype=np.float32), "i": np.zeros(4, np.float32), "n": far}
    (got,) = run_graph(b.build(), feeds, WIDE).values()
    np.testing.assert_array_equal(got, [4, 0, 4, 0])
