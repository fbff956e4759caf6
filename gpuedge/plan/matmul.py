"""Lower matrix products with numpy broadcasting of the batch."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gpuedge.core.kernel import Number
from gpuedge.opset.expr import Expr
from gpuedge.opset.ranges import byte_offset
from gpuedge.opset.tensor import Carry, Product, Tensor, broadcast
from gpuedge.plan import packed
from gpuedge.plan.context import MAX_TRIPS, Context, most_rows
from gpuedge.plan.emit import epilogue
from gpuedge.plan.layout import Layout, channels, rows, to_texels
from gpuedge.plan.lower import in_chunks, materialise
from gpuedge.plan.packed import filled_by
from gpuedge.plan.plan import HostTensor, Texels

STEP = MAX_TRIPS // 64 * 64
"""Texels of a row summed by one pass: a multiple of every kernel's own step."""

TURN = 4
"""A multiple of the texels of a row that any kernel sums in one turn of its loop."""

UNIT = 8
"""A multiple of every kernel's own step, texels of a row."""


def parts(depth: int, most: int) -> tuple[range, ...]:
    """Cut a sum over `depth` texels of a row into parts of at most `most`."""
    return tuple(range(start, min(start + most, depth)) for start in range(0, depth, most))


def facts(
    rows: int, depth: int, columns: int, *, turns: bool = True, is_bytes: bool = False
) -> dict[str, int]:
    """Return what ``when`` in ``variants.toml`` may ask of a product.

    `is_bytes`: 1 if its factors are whole numbers that fit signed bytes. `filled_32s`,
    `filled_128s`: how many percent the columns are of the next multiple of that. `turned_rows`:
    its rows; 0 unless `turns`, where sums that are turned later would not fit.
    """
    filled = filled_by(columns)
    known = {"rows": rows, "depth": depth, "columns": columns, "is_bytes": int(is_bytes)}
    return known | filled | {"turned_rows": rows if turns else 0}


def lower(ctx: Context, anchor: Tensor, tensor: Tensor, body: Expr | None) -> None:
    """Lower a product, and the map that follows it."""
    source = anchor.source
    if not isinstance(source, Product):
        raise TypeError(type(source).__name__)
    batch = anchor.shape[:-2]
    left = _operand(ctx, source.a, batch)
    if packed.lower(ctx, anchor, left, tensor, body):
        return
    known = ctx.host(source.b) if _serves(source.b, batch) and source.carry is None else None
    if known is not None and rows(known.shape).nbytes > ctx.caps.max_storage_buffer_bytes:
        _ProductJob(ctx, anchor, left, known).run(tensor, body)
    else:
        job = _ProductJob(ctx, anchor, left, _operand(ctx, source.b, batch))
        job.run(tensor, body, source.carry)


def _serves(tensor: Tensor, batch: tuple[int, ...]) -> bool:
    """Tell whether an operand has one matrix, or as many as the batch has."""
    own = tensor.shape[:-2]
    return prod(own) == 1 or (1,) * (len(batch) - len(own)) + own == batch


def _operand(ctx: Context, tensor: Tensor, batch: tuple[int, ...]) -> str:
    """Return an operand in rows layout, repeated for the batch where it has to be."""
    if not _serves(tensor, batch):
        tensor = broadcast(tensor, (*batch, *tensor.shape[-2:]))
        materialise(ctx, tensor)
    return ctx.need(tensor, "rows")


def _offset(source: Product) -> int | None:
    """Return what the left factors lose to be signed bytes; None if either are no bytes."""
    is_whole = source.is_whole or source.carry is not None
    return byte_offset(source.a) if is_whole and byte_offset(source.b) == 0 else None


class _ProductJob:
    """One product being lowered.

    `left` is an operand in rows layout, `right` another, or a tensor of the host that is larger
    than a binding: of that each part of the sum gets its own rows.
    """

    def __init__(self, ctx: Context, anchor: Tensor, left: str, right: str | Tensor) -> None:
        self.ctx = ctx
        self.anchor = anchor
        self.left = left
        self.right = right
        self.layout = rows(anchor.shape)
        source = anchor.source if isinstance(anchor.source, Product) else None
        self.is_half = source is not None and source.is_half
        self.offset = None if source is None else _offset(source)
        self.depth = ctx.tensors[left].layout.extents[0]

    def run(self, tensor: Tensor, body: Expr | None, carry: Carry | None = None) -> None:
        """Launch the passes and define `tensor`."""
        chunks = self._chunks(carry)
        if chunks is not None:
            self.ctx.define(tensor, self._in_integers(chunks, body, self.ctx.value_of(tensor)))
            return
        partial: str | None = None
        sums = parts(self.depth, self._most())
        for part in sums:
            last = part is sums[-1]
            value = self.ctx.value_of(tensor) if last else ""
            partial = self._pass(part, body if last else None, partial, value)
        if partial is not None:
            self.ctx.define(tensor, partial)

    def _most(self) -> int:
        """Return how many texels of a row one pass may sum."""
        if isinstance(self.right, str):
            return STEP
        each = rows((*self.right.shape[:-2], 4, self.right.shape[-1])).nbytes
        return min(STEP, most_rows(each, self.ctx.caps, UNIT))

    def _rows(self, part: range) -> str:
        """Return the rows of the right operand that a part of the sum needs."""
        if isinstance(self.right, str):
            return self.right
        shape = self.right.shape
        chosen = slice(4 * part.start, min(4 * part.stop, shape[-2]))
        layout = rows((*shape[:-2], chosen.stop - chosen.start, shape[-1]))

        def build(array: Texels) -> Texels:
            return to_texels(array.reshape(shape)[..., chosen, :], layout)

        name = self.ctx.value_of(self.right)
        return self.ctx.add(layout, name, HostTensor((name,), build))

    def _pass(self, part: range, body: Expr | None, partial: str | None, value: str) -> str:
        """Launch one pass; its result is graph value `value`, or only a part of the sum."""
        right = self._rows(part)
        specs: dict[str, Number] = {
            "K0": part.start, "KT": len(part),
            "B0": 0 if isinstance(self.right, str) else part.start,
            "REST": len(part) % TURN > 0,
            "WHOLE": self.ctx.tensors[right].layout.extents[1] % 4 == 0,
        }  # fmt: skip
        return self._launch("matmul", right, specs, body, partial=partial, value=value)

    def _chunks(self, carry: Carry | None) -> dict[str, Number] | None:
        """Return how kernels of integers add up; None where those of floats serve."""
        if carry is not None:
            return dict(in_chunks(self.ctx, carry, self.depth, 1))
        if self.offset is None or self.depth > self._most():
            return None
        best = self.ctx.best("matmul_int", self._facts(), 3, out=self.layout.extents)
        is_faster = "dot_products" in best.needs
        return {"CHUNK": self.depth, "CHUNKS": 1, "PART": 0} if is_faster else None

    def _in_integers(self, chunks: dict[str, Number], body: Expr | None, value: str) -> str:
        """Launch the pass whose sums may leave 2^24."""
        right = self._rows(range(self.depth))
        specs = chunks | {"OFFSET": self.offset or 0}
        return self._launch("matmul_int", right, specs, body, partial=None, value=value)

    def _launch(
        self,
        op: str,
        right: str,
        specs: dict[str, Number],
        body: Expr | None,
        *,
        partial: str | None,
        value: str,
    ) -> str:
        ctx, left = self.ctx, self.left
        out = ctx.add(self.layout, value)
        bound = {"A": left, "B": right}
        tensors = bound | {"O": out}
        for name, tensor in (("A_ONE", left), ("B_ONE", right)):
            specs[name] = ctx.tensors[tensor].layout.extents[3] == 1
        follows = epilogue(ctx, self.layout, self.anchor, body, partial=partial, bound=bound)
        is_half = self.is_half or (follows is not None and follows.is_half)
        count = len(tensors) + (len(follows.tensors) if follows else 0)
        variant = ctx.best(op, self._facts(), count, is_half=is_half, out=self.layout.extents)
        if variant.transforms:  # the epilogue is that of a pass of its own, which binds their sums
            sums = ctx.add(self._sums, storage=ctx.storages.exact)
            ctx.launch(variant, bound | {"O": sums}, specs)
            variant = replace(variant, kernel=variant.transforms[0])
            tensors, specs = {"X": sums, "O": out}, {}
            follows = epilogue(
                ctx, self.layout, self.anchor, body, partial=partial, bound={"X": sums}
            )
        if follows is not None:
            tensors, specs = tensors | follows.tensors, specs | follows.specs
        ctx.launch(
            variant, tensors, specs, epilogue=follows.text if follows else None, is_half=is_half
        )
        return out

    def _facts(self) -> dict[str, int]:
        height, width = self.layout.shape[-2:]
        fits = self._sums.nbytes <= self.ctx.caps.max_storage_buffer_bytes
        is_bytes = self.offset is not None
        return facts(height, self.depth * 4, width, turns=fits, is_bytes=is_bytes)

    @property
    def _sums(self) -> Layout:
        """How the kernel ``matmul_turned`` lays out its sums, with rows for whole invocations."""
        height, width = self.layout.shape[-2:]
        side = self.ctx.caps.map_texels
        return channels((self.layout.extents[3], width, 1, -(-height // side) * side))
