"""Lower maps, reductions and pooling: stages whose kernels are generated, or nearly so."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Number as Spec
from gpuedge.core.storage import Storage
from gpuedge.opset.expr import Expr, LoadExpr, loads, rewrite
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.index import ZERO, Index, axes, axis, flatten, unflatten
from gpuedge.opset.tensor import Carry, Combine, Map, Pooling, Reduce, Tensor, given
from gpuedge.plan import alike
from gpuedge.plan.context import CHUNK, MAX_TRIPS, Context
from gpuedge.plan.emit import (
    ELEMENT,
    STEP,
    Code,
    Epilogue,
    Fours,
    Scalars,
    Writer,
    epilogue,
    in_fours,
    pace,
)
from gpuedge.plan.fuse import follows, is_identity
from gpuedge.plan.layout import Kind, Layout, linear, make, same_bytes
from gpuedge.plan.places import guarded, part_of, sections

PARTS = ("whole", "high", "low")
"""What the spec PART of kernels that carry counts."""


def lower_map(ctx: Context, tensor: Tensor, body: Expr, *, is_image: bool = False) -> None:
    """Lower a map: one generated pass, or none where channels are parts of tensors as they lie.

    `is_image`: only convolutions and pooling read it.
    """
    kind = _kind(ctx, tensor, body)
    if is_image and kind == "linear" and _packed_at_once(ctx, tensor, body):
        return
    if kind == "channels" and tensor.shape[0] == 1 and (
        _taken(ctx, tensor, body) or _joined(ctx, tensor, body)
    ):  # fmt: skip
        return
    storage = _kept_storage(ctx, tensor, body)
    layout = make(kind, tensor.shape)
    written = _written(ctx, layout, body)
    if len(written.tensors) >= ctx.bindings:  # some are read in two layouts, as indices and values
        layout = linear(tensor.shape)
        written = alike.written(ctx, layout, body, ())
    out = ctx.add(layout, ctx.value_of(tensor), storage=storage)
    _launch_written(ctx, out, written)
    ctx.define(tensor, out)


def _written(ctx: Context, layout: Layout, body: Expr) -> Epilogue:
    """Return the kernel that computes a body into a layout."""
    return alike.written(ctx, layout, body, _packed(ctx, body, layout))


def _launch_map(ctx: Context, out: str, body: Expr) -> None:
    """Append the pass that computes a body into a tensor of its shape."""
    _launch_written(ctx, out, _written(ctx, ctx.tensors[out].layout, body))


def _launch_written(ctx: Context, out: str, written: Epilogue) -> None:
    ctx.launch("elementwise", {"O": out, **written.tensors}, written.specs, epilogue=written.text,
               is_half=written.is_half)  # fmt: skip


def _packed_at_once(ctx: Context, tensor: Tensor, body: Expr) -> bool:
    """Compute a map of one tensor in C order while that is packed, if its texels allow it."""
    layout = make("channels", tensor.shape)
    own = {load.tensor for load in loads(body) if load.tensor.size > 1}
    own = {t for t in own if t.shape == tensor.shape}
    if len(own) != 1 or same_bytes(layout) or not follows(body, tensor.shape, layout.axis):
        return False
    (source,) = own
    flat = ctx.need(source, "linear")
    written = epilogue(ctx, layout, source, body, partial=None, bound={})
    if written is None or written.is_half:
        return False
    out = ctx.add(layout, ctx.value_of(tensor))
    ctx.repack("pack", flat, out, layout, epilogue=written.text,
               tensors=written.tensors, specs=written.specs)  # fmt: skip
    ctx.define(tensor, out)
    return True


def _taken(ctx: Context, tensor: Tensor, body: Expr) -> bool:
    """See neighbouring channels of a tensor as a tensor, if that is what `body` is."""
    first = part_of(body, tensor.shape)
    count = tensor.shape[1]
    if first is None or first % 4 or not isinstance(body, LoadExpr):
        return False
    whole, layout = body.tensor, make("channels", tensor.shape)
    is_whole = count % 4 == 0 or first + count == whole.shape[1]  # unused lanes are zero
    name = ctx.have[whole.serial]["channels"] if _is_packed(ctx, whole) else ""
    start = first // 4 * layout.inner
    if not (name and is_whole and ctx.may_begin(name, start)):
        return False
    ctx.define(tensor, ctx.view(name, layout, start))
    return True


def _joined(ctx: Context, tensor: Tensor, body: Expr) -> bool:
    """Join tensors along the axis of channels where they lie, if any of them may be moved there."""
    shape, layout = tensor.shape, make("channels", tensor.shape)
    parts = sections(body, shape)
    if len(parts) < 2 or any(part.start % 4 for part, _ in parts):
        return False
    if not any(_own(ctx, inner, part, shape) for part, inner in parts):
        return False
    whole = ctx.add(layout, ctx.value_of(tensor))
    starts = [part.start // 4 * layout.inner for part, _ in parts]
    if not all(ctx.may_begin(whole, start) for start in starts):
        return False
    for start, (part, inner) in zip(starts, parts, strict=True):
        name = _own(ctx, inner, part, shape)
        if not (name and ctx.move(name, whole, start)):
            place = make("channels", (1, len(part), *shape[2:]))
            _launch_map(ctx, ctx.view(whole, place, start), inner)
    ctx.define(tensor, whole)
    return True


def _own(ctx: Context, inner: Expr, part: range, shape: tuple[int, ...]) -> str:
    """Return the plan tensor in the layout of channels that a part of a tensor is; else nothing."""
    shape = (1, len(part), *shape[2:])
    if not isinstance(inner, LoadExpr) or inner.tensor.shape != shape:
        return ""
    ready = ctx.have.get(inner.tensor.serial, {})
    return ready.get("channels", "") if is_identity(inner, shape) else ""


def _is_packed(ctx: Context, tensor: Tensor) -> bool:
    """Tell whether a tensor is there in the layout of channels only."""
    ready = ctx.have.get(tensor.serial, {})
    return "channels" in ready and "linear" not in ready


def _packed(ctx: Context, body: Expr, out: Layout) -> set[int]:
    """Return the tensors that a kernel reads in the layout of channels, by their numbers.

    A kernel in C order does so if it can take whole texels of all its operands.
    """
    packed = {load.tensor.serial for load in loads(body) if _is_packed(ctx, load.tensor)}
    if not packed or out.kind == "channels":
        return packed
    is_whole = out.kind == "linear" and in_fours(
        Writer(ctx, out, packed=packed).flat(body), ELEMENT
    )
    return packed if is_whole else set()


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
        ready = ctx.have.get(body.tensor.serial)
        name = next(iter(ready.values())) if ready else ctx.need(body.tensor, "linear")
        return ctx.storages.written(ctx.tensors[name].storage)
    return None


def _kind(ctx: Context, tensor: Tensor, body: Expr) -> Kind:
    """Stay in the layout of an operand that is packed already, if every operand can follow.

    In that of channels any elements can be read; that is done where the largest operand has it.
    """
    for load in loads(body):
        ready = ctx.have.get(load.tensor.serial, {})
        same = load.tensor.shape == tensor.shape and is_identity(load, tensor.shape)
        if not same or not ready or "linear" in ready:
            continue
        kind = next(iter(ready))
        if follows(body, tensor.shape, make(kind, tensor.shape).axis):
            return kind
    operands = sorted((load.tensor for load in loads(body)), key=lambda t: t.size)
    is_image = bool(operands) and tensor.rank in (3, 4) and _is_packed(ctx, operands[-1])
    return "channels" if is_image else "linear"


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
        part = given(ctx.fresh("part"), (chunks, *anchor.shape), "float32")
        name = ctx.add(linear(part.shape))
        inner = _along_steps(item, anchor.rank, over)
        _launch(ctx, name, _Sum(part, source.combine, inner, length), None)
        ctx.define(part, name)
        step = axis(anchor.rank, chunks)
        item = LoadExpr(part, flatten((step, *axes(anchor.shape)), part.shape))
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

    With more steps than `CHUNK` the first axis of `tensor` counts chunks of them.
    """

    tensor: Tensor
    combine: Combine
    item: Expr
    length: int


_COMBINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def _launch(ctx: Context, out: str, work: _Sum, body: Expr | None) -> None:
    """Append one pass that reduces up to `CHUNK` elements for each of its own."""
    writer = Writer(ctx, ctx.tensors[out].layout)
    packed = {load.tensor.serial for load in loads(work.item) if _is_packed(ctx, load.tensor)}
    if packed:
        seen = Writer(ctx, writer.out, packed=packed)
        writer = seen if _fours(work, *_placed(seen, work)) is not None else writer
    result = writer.assign(_reduced(writer, work))
    if body is not None:
        writer.first[work.tensor.serial] = result
        result = writer.texel(body)
    written = writer.epilogue(result)
    ctx.launch("reduce", {"O": out, **written.tensors}, written.specs, epilogue=written.text,
               is_half=written.is_half)  # fmt: skip


def _reduced(writer: Writer, work: _Sum) -> str:
    """Add the function that reduces, and return the text of a texel of its results.

    It reads whole texels where the elements of one are reduced alike, each for a result of its own
    (`ELEMENT`) or all for one (`STEP`); else it reads element by element.
    """
    is_split, (item, start) = work.length > CHUNK, _placed(writer, work)
    fours = _fours(work, item, start)
    loop = Code([], outer=(outer := Code([])))
    write = Scalars(writer, loop) if fours is None else Fours(writer, loop, fours)
    value, kind, number = write.value(item), write.kind, writer.number
    function = FUNCTIONS[_COMBINED[work.combine]]
    text = (function.scalar if fours is None else function.text)("r", value)
    if work.combine != "sum":
        text = f"s == 0 ? {value} : {text}"
    step, each = ("4 * s", 4) if fours == STEP else ("s", 1)
    if is_split:
        outer.lines.append(f"int start = {Scalars(writer, outer).integer(start)};")
        text = f"start + {step} < {number(work.length)} ? ({text}) : r"
        step = f"min(start + {step}, {number(work.length - 1)})"
    lines = [*outer.lines, f"{kind} r = {kind}(0.0);",
             f"for (int s = 0; s < {number(min(work.length, CHUNK) // each)}; s++) {{",
             *(f"    {line}" for line in (f"int k = {step};", *loop.lines, f"r = {text};")),
             "}"]  # fmt: skip
    if fours == STEP:
        pairs = (function.scalar(f"r.{a}", f"r.{b}") for a, b in ("xy", "zw"))
        return writer.function(Code(lines), function.scalar(*pairs))
    return writer.function(Code(lines), "r", kind)


def _placed(writer: Writer, work: _Sum) -> tuple[Expr, Index]:
    """Return the item over an element's number and a step, and the first step of its chunk."""
    position = unflatten(axis(ELEMENT, work.tensor.size), work.tensor.shape)
    start = ZERO
    if work.length > CHUNK:
        start, position = position[0] * CHUNK, position[1:]
    return writer.seen(rewrite(guarded(work.item), dict(enumerate(position)))), start


def _fours(work: _Sum, item: Expr, start: Index) -> int | None:
    """Return the axis along which a reduction takes four at a time, if there is one."""
    if in_fours(item, ELEMENT) and pace(start, ELEMENT) == 0:
        return ELEMENT
    is_whole = work.length % 4 == 0 and (work.length <= CHUNK or CHUNK % 4 == 0)
    return STEP if is_whole and in_fours(item, STEP) else None


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
