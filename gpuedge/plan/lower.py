"""Lower maps, reductions and pooling: stages whose kernels are generated, or nearly so."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Number as Spec
from gpuedge.core.storage import Storage
from gpuedge.opset.expr import Expr, LoadExpr, loads, rewrite
from gpuedge.opset.index import axes, axis, flatten, unflatten
from gpuedge.opset.tensor import Carry, Combine, Map, Pooling, Reduce, Tensor, given
from gpuedge.plan.context import CHUNK, MAX_TRIPS, Context
from gpuedge.plan.emit import ELEMENT, STEP, Code, Scalars, Writer
from gpuedge.plan.fuse import follows, is_identity
from gpuedge.plan.layout import Kind, linear, make

PARTS = ("whole", "high", "low")
"""What the spec PART of kernels that carry counts."""


def lower_map(ctx: Context, tensor: Tensor, body: Expr) -> None:
    """Lower a map: one generated pass."""
    kind = _kind(ctx, tensor, body)
    writer = Writer(ctx, make(kind, tensor.shape))
    made = writer.epilogue(writer.texel(body))
    out = ctx.add(writer.out, ctx.value_of(tensor), storage=_kept_storage(ctx, tensor, body))
    ctx.launch("elementwise", {"O": out, **made.tensors}, made.specs, epilogue=made.text,
               is_half=made.is_half)  # fmt: skip
    ctx.define(tensor, out)


def materialise(ctx: Context, tensor: Tensor) -> None:
    """Lower a map by itself, as it was built."""
    is_there = tensor.serial in ctx.known or ctx.have.get(tensor.serial)
    if isinstance(tensor.source, Map) and not is_there:
        lower_map(ctx, tensor, tensor.source.body)


def in_chunks(ctx: Context, carry: Carry, texels: int, repeats: int) -> dict[str, Spec]:
    """Return the specs of sums in two digits, of `texels` of four products `repeats` times.

    Raises UnsupportedOpError (GE-501) where one invocation would take too many steps.
    """
    chunks = -(-texels // (carry.chunk // 4))
    chunk = -(-texels // chunks)
    if repeats * chunks * (chunk + 1) > MAX_TRIPS:
        raise UnsupportedOpError(
            f"{'+'.join(ctx.ops)} adds up {texels * repeats * 4} products beyond 2^24.",
            known=f"kernels add up to about {4 * MAX_TRIPS} in two digits",
        )
    return {"CHUNK": chunk, "CHUNKS": chunks, "PART": PARTS.index(carry.part)}


def _kept_storage(ctx: Context, tensor: Tensor, body: Expr) -> Storage | None:
    """Return the storage of what only moves elements of one tensor: that tensor's own."""
    if isinstance(body, LoadExpr) and not ctx.value_of(tensor):
        return ctx.tensors[ctx.need(body.tensor, "linear")].storage
    return None


def _kind(ctx: Context, tensor: Tensor, body: Expr) -> Kind:
    """Stay in the layout of an operand that is packed already, if every operand can follow."""
    for load in loads(body):
        ready = ctx.have.get(load.tensor.serial, {})
        same = load.tensor.shape == tensor.shape and is_identity(load, tensor.shape)
        if not same or not ready or "linear" in ready:
            continue
        kind = next(iter(ready))
        if follows(body, tensor.shape, make(kind, tensor.shape).axis):
            return kind
    return "linear"


def lower_reduce(
    ctx: Context, anchor: Tensor, item: Expr, tensor: Tensor, body: Expr | None
) -> None:
    """Lower a reduction, in as many passes as `CHUNK` asks for, and the map that follows it.

    Parameters
    ----------
    ctx : Context
    anchor : Tensor
        The reduction.
    item : Expr
        What it reduces, with everything inlined.
    tensor : Tensor
        What the stage computes: `anchor`, or the map that follows it.
    body : Expr or None
        That map.
    """
    source = anchor.source
    if not isinstance(source, Reduce):
        raise TypeError(type(source).__name__)
    over, length = source.over, prod(source.over)
    while length > CHUNK:
        chunks = -(-length // CHUNK)
        part = given(ctx.fresh("part"), (*anchor.shape, chunks), "float32")
        name = ctx.add(linear(part.shape))
        inner = _along_steps(item, anchor.rank, over)
        _launch(ctx, name, _Sum(part, source.combine, inner, length), None)
        ctx.define(part, name)
        step = axis(anchor.rank, chunks)
        item = LoadExpr(part, flatten((*axes(anchor.shape), step), part.shape))
        length, over = chunks, (chunks,)
    out = ctx.add(linear(tensor.shape), ctx.value_of(tensor))
    inner = _along_steps(item, anchor.rank, over)
    _launch(ctx, out, _Sum(anchor, source.combine, inner, length), body)
    ctx.define(tensor, out)


def _along_steps(item: Expr, rank: int, over: tuple[int, ...]) -> Expr:
    """See the reduced axes as one, along which a loop steps."""
    whole = axis(STEP, prod(over))
    return rewrite(item, {rank + i: index for i, index in enumerate(unflatten(whole, over))})


@dataclass(frozen=True)
class _Sum:
    """One pass of a reduction: `item` over `length` steps, for each element of `tensor`.

    With more steps than `CHUNK` the last axis of `tensor` counts chunks of them.
    """

    tensor: Tensor
    combine: Combine
    item: Expr
    length: int


_COMBINED = {"sum": "r + {x}", "prod": "r * {x}", "max": "larger(r, {x})", "min": "smaller(r, {x})"}


def _launch(ctx: Context, out: str, work: _Sum, body: Expr | None) -> None:
    """Append one pass that reduces up to `CHUNK` elements for each of its own."""
    writer = Writer(ctx, ctx.tensors[out].layout)
    name = _loop(writer, work)
    writer.elements()
    result = writer.assign(f"vec4({', '.join(f'{name}(e{lane})' for lane in range(4))})")
    if body is not None:
        writer.first[work.tensor.serial] = result
        result = writer.texel(body)
    made = writer.epilogue(result)
    ctx.launch("reduce", {"O": out, **made.tensors}, made.specs, epilogue=made.text,
               is_half=made.is_half)  # fmt: skip


def _loop(writer: Writer, work: _Sum) -> str:
    """Add the function that reduces for one element, and return its name."""
    outer = Code([])
    inner = Scalars(writer, Code([], outer=outer))
    element = axis(ELEMENT, work.tensor.size)
    position = unflatten(element, work.tensor.shape)
    value = inner.value(rewrite(work.item, dict(enumerate(position))))
    text = _COMBINED[work.combine].format(x=value)
    if work.combine != "sum":
        text = f"s == 0 ? {value} : {text}"
    step = "int k = s;"
    if work.length > CHUNK:
        start = Scalars(writer, outer).integer(position[-1] * CHUNK)
        outer.lines.append(f"int start = {start};")
        step = f"int k = min(start + s, {writer.number(work.length - 1)});"
        text = f"start + s < {writer.number(work.length)} ? ({text}) : r"
    steps = writer.number(min(work.length, CHUNK))
    body = [step, *inner.code.lines, f"r = {text};"]
    lines = ["float r = 0.0;", f"for (int s = 0; s < {steps}; s++) {{",
             *(f"    {line}" for line in body), "}"]  # fmt: skip
    return writer.function(Code([*outer.lines, *lines]), "r")


def lower_pool(ctx: Context, tensor: Tensor) -> None:
    """Lower a pooling."""
    source = tensor.source
    if not isinstance(source, Pooling):
        raise TypeError(type(source).__name__)
    slide = source.window
    kh, kw = slide.kernel
    if kh * kw > MAX_TRIPS:
        raise UnsupportedOpError(f"{'+'.join(ctx.ops)} has a window of {kh} by {kw}.")
    names = ("KH", "KW", "SY", "SX", "DY", "DX", "PT", "PL", "PB", "PR")
    numbers = (*slide.kernel, *slide.strides, *slide.dilations, *slide.pads)
    specs: dict[str, Spec] = dict(zip(names, numbers, strict=True))
    specs["C"] = source.x.shape[1]
    specs["AVERAGE"] = source.kind == "avg"
    specs["COUNT_PAD"] = source.count_include_pad
    image = ctx.need(source.x, "channels")
    out = ctx.scratch("channels", tensor)
    ctx.launch("pool", {"X": image, "O": out}, specs)
    ctx.define(tensor, out)
