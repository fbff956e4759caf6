"""Lower pooling, softmax, concatenation, transposition and everything that only reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Number
from gpuedge.core.storage import Storage
from gpuedge.graph.ir import Node
from gpuedge.graph.params import ConcatParams, PoolParams, SoftmaxParams, TransposeParams
from gpuedge.kernels.context import CHUNK, MAX_TRIPS, Context
from gpuedge.kernels.elementwise import inner_strides, lower_strided
from gpuedge.kernels.layout import linear


def lower_pool(ctx: Context, node: Node, params: PoolParams) -> None:
    """Lower a pooling node; global pooling over a large image is a reduction."""
    x, value = node.inputs[0], node.outputs[0]
    kh, kw = params.kernel
    if params.global_ and kh * kw > CHUNK:
        _global(ctx, node, params)
        return
    if kh * kw > MAX_TRIPS:
        raise UnsupportedOpError(f"{node.op} has a window of {kh} by {kw}.")
    names = ("KH", "KW", "SY", "SX", "DY", "DX", "PT", "PL", "PB", "PR")
    numbers = (*params.kernel, *params.strides, *params.dilations, *params.pads)
    specs: dict[str, Number] = dict(zip(names, numbers, strict=True))
    specs["C"] = ctx.graph.shape(x)[1]
    specs["AVERAGE"] = params.kind == "avg"
    specs["COUNT_PAD"] = params.count_include_pad
    source = ctx.need(x, "channels")
    out = ctx.scratch("channels", ctx.graph.shape(value), value)
    ctx.launch("pool", {"X": source, "O": out}, specs)
    ctx.define(value, out)


def _global(ctx: Context, node: Node, params: PoolParams) -> None:
    x, value = node.inputs[0], node.outputs[0]
    shape = ctx.graph.shape(x)
    outer, length = shape[0] * shape[1], prod(shape[2:])
    flat = ctx.need(x, "linear")
    total = _reduce(ctx, flat, outer, length, 1, maximum=params.kind == "max")
    if params.kind == "avg":
        mean = ctx.add(linear((outer,)), value)
        text = (
            "in tensor E0;\n"
            f"vec4 epilogue(vec4 v, ivec4 p) {{ return load4(E0, p) / {float(length)}; }}\n"
        )
        ctx.launch("elementwise", {"O": mean, "E0": total}, epilogue=text)
        total = mean
    ctx.define(value, ctx.view(total, linear(ctx.graph.shape(value))))


def _reduce(
    ctx: Context, source: str, outer: int, length: int, inner: int, *, maximum: bool
) -> str:
    """Reduce the middle of (outer, length, inner), in as many passes as `CHUNK` asks for."""
    while length > 1:
        chunks = -(-length // CHUNK)
        out = ctx.add(linear((outer, chunks, inner)))
        specs: dict[str, Number] = {
            "INNER": inner,
            "LENGTH": length,
            "CHUNK": min(length, CHUNK),
            "CHUNKS": chunks,
            "MAXIMUM": maximum,
        }
        ctx.launch("reduce", {"X": source, "O": out}, specs)
        source, length = out, chunks
    return source


def lower_softmax(ctx: Context, node: Node, params: SoftmaxParams) -> None:
    """Lower Softmax or LogSoftmax: maximum, sum of exponentials, quotient."""
    value = node.outputs[0]
    outer, length, inner = params.outer, params.length, params.inner
    flat = ctx.need(node.inputs[0], "linear")
    if length <= CHUNK and ctx.offers("softstats", {"length": length}):
        peak, total = _statistics(ctx, flat, params)
    else:
        peak = _reduce(ctx, flat, outer, length, inner, maximum=True)
        total = _sum_of_exponentials(ctx, flat, peak, params)
    out = ctx.add(linear(ctx.graph.shape(value)), value)
    quotient = "x - m - log(s)" if params.log else "exp(x - m) / s"
    text = _NORMALISE.replace("QUOTIENT", quotient)
    ctx.launch(
        "elementwise",
        {"O": out, "E0": flat, "E1": peak, "E2": total},
        {"LENGTH": length, "INNER": inner},
        epilogue=text,
    )
    ctx.define(value, out)


def _statistics(ctx: Context, flat: str, params: SoftmaxParams) -> tuple[str, str]:
    """Return maxima and sums of exponentials, computed by one pass with two outputs."""
    layout = linear((params.outer, params.inner))
    peak, total = ctx.add(layout), ctx.add(layout)
    specs: dict[str, Number] = {"INNER": params.inner, "LENGTH": params.length}
    tensors = {"X": flat, "O": peak, "S": total}
    ctx.launch("softstats", tensors, specs, facts={"length": params.length}, also=("S",))
    return peak, total


def _sum_of_exponentials(ctx: Context, flat: str, peak: str, params: SoftmaxParams) -> str:
    outer, length, inner = params.outer, params.length, params.inner
    chunks = -(-length // CHUNK)
    total = ctx.add(linear((outer, chunks, inner)))
    specs: dict[str, Number] = {
        "INNER": inner,
        "LENGTH": length,
        "CHUNK": min(length, CHUNK),
        "CHUNKS": chunks,
    }
    ctx.launch("sumexp", {"X": flat, "M": peak, "O": total}, specs)
    return _reduce(ctx, total, outer, chunks, inner, maximum=False)


_NORMALISE = """in tensor E0;
in tensor E1;
in tensor E2;
spec int LENGTH = 1;
spec int INNER = 1;
float normal(int e) {
    int row = e / (LENGTH * INNER) * INNER + e % INNER;
    float x = load1(E0, e);
    float m = load1(E1, row);
    float s = load1(E2, row);
    return QUOTIENT;
}
vec4 epilogue(vec4 v, ivec4 p) {
    int e = 4 * (p.y * dims(O).x + p.x);
    return vec4(normal(e), normal(e + 1), normal(e + 2), normal(e + 3));
}
"""


def lower_concat(ctx: Context, node: Node, params: ConcatParams) -> None:
    """Lower Concat as a balanced tree of pairs; empty operands are left out."""
    value = node.outputs[0]
    parts = []
    for name in node.inputs:
        shape = ctx.graph.shape(name)
        if prod(shape):
            parts.append((ctx.need(name, "linear"), prod(shape[params.axis :])))
    outer = prod(ctx.graph.shape(value)[: params.axis])
    storage = ctx.storages.of(value)  # its range holds those of its parts
    while len(parts) > 1:
        pairs = [_join(ctx, storage, outer, parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    ctx.define(value, ctx.view(parts[0][0], linear(ctx.graph.shape(value))))


def _join(
    ctx: Context, storage: Storage, outer: int, pair: Sequence[tuple[str, int]]
) -> tuple[str, int]:
    (a, ra), (b, rb) = pair
    out = ctx.add(linear((outer, ra + rb)), storage=storage)
    ctx.launch("concat", {"A": a, "B": b, "O": out}, {"RA": ra, "RB": rb})
    return out, ra + rb


def lower_transpose(ctx: Context, node: Node, params: TransposeParams) -> None:
    """Lower Transpose as a strided gather."""
    strides = inner_strides(ctx.graph.shape(node.inputs[0]))
    value = node.outputs[0]
    lower_strided(
        ctx, value, node.inputs[0], ctx.graph.shape(value), [strides[i] for i in params.perm]
    )


def lower_reshape(ctx: Context, node: Node) -> None:
    """Lower Reshape and its relatives: the same linear bytes under another shape."""
    value = node.outputs[0]
    flat = ctx.need(node.inputs[0], "linear")
    ctx.define(value, ctx.view(flat, linear(ctx.graph.shape(value))))
