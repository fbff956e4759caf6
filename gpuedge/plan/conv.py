"""Lower convolutions: dense, grouped, depthwise and transposed, with split sums where K is long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuedge.core.caps import Caps
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Extents, Number
from gpuedge.core.storage import Storage
from gpuedge.opset import winograd
from gpuedge.opset.expr import Expr
from gpuedge.opset.ranges import byte_offset
from gpuedge.opset.tensor import Array, Carry, Convolution, Tensor, Window
from gpuedge.plan.context import MAX_TRIPS, Context, most_rows
from gpuedge.plan.emit import Epilogue, epilogue
from gpuedge.plan.layout import TEXEL, Layout, channels
from gpuedge.plan.library import Variant
from gpuedge.plan.lower import in_chunks
from gpuedge.plan.plan import HostTensor, Texels

_Prepare = Callable[[Array], Array]
_Build = Callable[..., Texels]
_Arrange = Callable[[Array, "Array | None", "Slices", int, int], Texels]


MAX_CHANNELS = 1 << 22
"""More output channels than any convolution has, exact as a float32."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Which slices of four input channels one slice of output channels reads."""

    channels_in: int
    channels_out: int
    group: int

    @property
    def per_group_in(self) -> int:
        """Input channels of a group."""
        return self.channels_in // self.group

    @property
    def per_group_out(self) -> int:
        """Output channels of a group."""
        return self.channels_out // self.group

    @property
    def parts(self) -> int:
        """Runs of whole output slices, each of which reads the same inputs; 0 if there are none."""
        return self.group if self.group == 1 or self.per_group_out % 4 == 0 else 0

    def specs(self) -> dict[str, Number]:
        """Say to a kernel which slices to read; all that have one group are told the same."""
        if self.group == 1:
            return {"ICG": 0, "OCG": MAX_CHANNELS}
        return {"ICG": self.per_group_in, "OCG": self.per_group_out}

    def first(self, out_slice: int) -> int:
        """First input slice read by `out_slice`; the kernels compute the same."""
        return (out_slice * 4) // self.per_group_out * self.per_group_in // 4

    @property
    def span(self) -> int:
        """Largest number of input slices read by any output slice."""
        if self.group == 1:  # asked of every layer, so not counted slice by slice
            return max(1, -(-self.per_group_in // 4))
        most = 1
        for s in range(-(-self.channels_out // 4)):
            last_channel = min(s * 4 + 3, self.channels_out - 1)
            end = (last_channel // self.per_group_out + 1) * self.per_group_in
            most = max(most, -(-end // 4) - self.first(s))
        return most


def facts(window: Window, slices: Slices, *, is_bytes: bool = False) -> dict[str, int]:
    """Return what ``when`` in ``variants.toml`` may ask of a convolution of either direction.

    `stride`: that of both axes, 0 if they differ; `dilation`: the larger one. `channels`: those of
    the input; `in_slices`: slices of them that a sum takes. `group_slices`: whole slices of output
    channels that read the same inputs; 0 if groups share a slice. `filled_16s`, `filled_32s`: how
    many percent these are of the next multiple of 4 or 8. `taps_in`: texels that a sum takes.
    `columns_over`, `pixels_over`: those beyond a multiple of four; 0 where longer rows do not fit.
    `tiles`: those of Winograd's filtering; 0 where it does not serve. `is_unit`: 1 if an output
    pixel is computed from the one input pixel at its place; `is_bytes`: 1 if whole numbers that fit
    signed bytes are multiplied, of one group. `is_in_threes`: 1 if three taps after
    the other reach neighbouring columns, all along a row of the kernel.
    """
    height, width = window.out
    (kernel_y, kernel_x), (stride_y, stride_x) = window.kernel, window.strides
    is_unit = window.kernel == window.strides == (1, 1) and not any(window.pads)
    in_threes = kernel_x % 3 == 0 and stride_x == 1 == window.dilations[1]
    whole = -(-slices.per_group_out // 4) if slices.parts else 0
    return {
        "height": height, "width": width, "pixels": height * width,
        "kernel_y": kernel_y, "kernel_x": kernel_x, "is_in_threes": int(in_threes),
        "stride": stride_y if stride_y == stride_x else 0, "dilation": max(window.dilations),
        "is_unit": int(is_unit), "is_bytes": int(is_bytes),
        "channels": slices.channels_in, "in_slices": slices.span,
        "taps_in": kernel_y * kernel_x * slices.span,
        "columns_over": width % 4, "pixels_over": height * width % 4,
        "tiles": winograd.tiles(window, slices.channels_in, slices.channels_out, slices.group),
        "group_slices": whole, "filled_16s": _filled(whole, 4), "filled_32s": _filled(whole, 8),
    }  # fmt: skip


def _filled(slices: int, lot: int) -> int:
    """Return how many percent slices are of the next multiple of `lot`; 0 if there are none."""
    return 100 * slices // (-(-slices // lot) * lot) if slices else 0


def dense_weights(w: Array, b: Array | None, slices: Slices, start: int, count: int) -> Texels:
    """Arrange weights (M, C/group, kh, kw) as the kernel ``conv2d`` reads them.

    Texel (4 * s + lane, tap, output slice) holds the weights of four output channels for input
    channel `lane` of the s-th slice from `start` on; row `taps` holds the bias.
    """
    m, per_in, kh, kw = w.shape
    out_slices = -(-m // 4)
    taps = kh * kw
    packed = np.zeros((out_slices, taps + 1, count * 4, 4), np.float32)
    flat = np.asarray(w, np.float32).reshape(m, per_in, taps)
    for channel in range(m):
        out_slice, lane = divmod(channel, 4)
        origin = channel // slices.per_group_out * per_in - 4 * (slices.first(out_slice) + start)
        low, high = max(0, -origin), min(per_in, count * 4 - origin)
        if low < high:
            packed[out_slice, :taps, origin + low : origin + high, lane] = flat[channel, low:high].T
    if b is not None:
        bias = np.zeros(out_slices * 4, np.float32)
        bias[:m] = b
        packed[:, taps, 0, :] = bias.reshape(-1, 4)
    return packed.ravel()


DIGITS, FEW_DIGITS = 4, 3
"""Digits of a bias to the base 256, and of one below 2^23."""


def integer_weights(
    w: Array, b: Array | None, slices: Slices, start: int, count: int
) -> Texels:  # fmt: skip
    """Arrange integers as `dense_weights` does, a bias in digits of -128 to 127 to the base 256.

    Those are bytes, as the weights may be; the last digit of a bias near 2^31 is 128.
    """
    packed = dense_weights(w, None, slices, start, count)
    if b is not None:
        rows = packed.reshape(-1, w[0, 0].size + 1, count * 4, 4)
        whole = np.zeros(rows.shape[0] * 4, np.int64)
        whole[: b.size] = b
        for digit in range(DIGITS):
            low = (whole + 128) % 256 - 128 if digit < DIGITS - 1 else whole
            rows[:, -1, digit] = low.reshape(-1, 4)
            whole = (whole - low) // 256
    return packed


def depthwise_weights(w: Array, b: Array | None) -> Texels:
    """Arrange weights (C, 1, kh, kw): texel (slice, tap); row `taps` holds the bias."""
    c, _, kh, kw = w.shape
    packed = np.zeros((kh * kw + 1, -(-c // 4) * 4), np.float32)
    packed[:-1, :c] = np.asarray(w, np.float32).reshape(c, -1).T
    if b is not None:
        packed[-1, :c] = b
    return packed.ravel()


def transposed_as_dense(w: Array, group: int) -> Array:
    """See weights (C, M/group, kh, kw) of a transposed convolution as (M, C/group, kh, kw)."""
    c, per_out, kh, kw = w.shape
    split = w.reshape(group, c // group, per_out, kh, kw)
    dense: Array = split.transpose(0, 2, 1, 3, 4).reshape(group * per_out, c // group, kh, kw)
    return dense


def lower(ctx: Context, anchor: Tensor, tensor: Tensor, body: Expr | None) -> None:
    """Lower a convolution of either direction, and the map that follows it."""
    source = anchor.source
    if not isinstance(source, Convolution):
        raise TypeError(type(source).__name__)
    job = _Job(ctx, anchor, source, tensor, body)
    if source.is_transposed:
        job.dense("conv_transpose2d", lambda w: transposed_as_dense(_square(w), source.group))
    elif source.carry is not None:
        job.carried(source.carry)
    elif job.in_bytes():
        pass
    elif source.group == job.slices.channels_in == job.slices.channels_out:
        job.depthwise()
    elif not job.winograd():
        job.dense("conv2d", _square)


def _offset(source: Convolution, caps: Caps) -> int | None:
    """Return what the images lose to be signed bytes; None where products of bytes do not serve."""
    is_whole = source.is_whole or source.carry is not None
    if not is_whole or source.group > 1 or not caps.dot_products or byte_offset(source.w) != 0:
        return None
    return byte_offset(source.x)


def _square(w: Array) -> Array:
    """See one-dimensional weights (M, C, k) as (M, C, 1, k)."""
    square: Array = w.reshape(*w.shape[:2], 1, w.shape[2]) if w.ndim == 3 else w
    return square


def _transforms(variant: Variant) -> tuple[Variant, Variant]:
    """Return the passes before and after the products of a variant in transformed tiles."""
    sides = ((1, winograd.POINTS, 1), (winograd.SIDE, winograd.SIDE, 1))
    if variant.form == "map":
        sides = variant.outputs, variant.outputs
    before, after = (
        replace(variant, kernel=name, consts={}, outputs=outputs, run="", has_lanes=False)
        for name, outputs in zip(variant.transforms, sides, strict=True)
    )
    return before, after


class _Job:
    """One convolution being lowered."""

    def __init__(
        self,
        ctx: Context,
        anchor: Tensor,
        source: Convolution,
        tensor: Tensor,
        body: Expr | None,
    ) -> None:
        self.ctx = ctx
        self.anchor = anchor
        self.window = source.window
        self.apart = source.window.strides[1] if source.is_transposed else 1
        self.is_half = source.is_half
        self.tensor = tensor
        self.body = body
        self.layout = channels(anchor.shape)
        given = (source.w,) if source.bias is None else (source.w, source.bias)
        self.operands = tuple(filter(None, map(ctx.host, given)))
        self.slices = Slices(source.x.shape[1], anchor.shape[1], source.group)
        self._check(len(given))
        self.source = ctx.need(source.x, "channels")
        self.is_whole, self.offset = source.is_whole, _offset(source, ctx.caps)
        self.facts = facts(self.window, self.slices, is_bytes=self.offset is not None)
        if not (winograd.may_serve(source) and self._has_room(self.facts["tiles"])):
            self.facts["tiles"] = 0
        if self._longer.nbytes > ctx.caps.max_storage_buffer_bytes:
            self.facts["columns_over"] = self.facts["pixels_over"] = 0

    @property
    def taps(self) -> int:
        """Positions under the kernel."""
        return self.window.kernel[0] * self.window.kernel[1]

    def _check(self, count: int) -> None:
        if self.taps > MAX_TRIPS:
            raise UnsupportedOpError(
                f"{'+'.join(self.ctx.ops)} has a kernel of {self.taps} taps.",
                known=f"kernels of up to {MAX_TRIPS} taps run on a GPU",
            )
        if len(self.operands) < count:
            raise UnsupportedOpError(
                f"The weights of {'+'.join(self.ctx.ops)} are computed by the model.",
                known="on a GPU, weights are constants or inputs",
            )

    def specs(self) -> dict[str, Number]:
        """Specs that every window kernel has."""
        slide = self.window
        names = ("KH", "KW", "SY", "SX", "DY", "DX", "PT", "PL")
        numbers = (*slide.kernel, *slide.strides, *slide.dilations, *slide.pads[:2])
        return dict(zip(names, numbers, strict=True), BIAS=len(self.operands) == 2)

    def depthwise(self) -> None:
        """One output channel per input channel: a lane-wise product."""
        extents = (self.layout.extents[2], self.taps + 1, 1, 1)

        def build(w: Array, b: Array | None = None) -> Texels:
            return depthwise_weights(_square(w), b)

        weights = self._upload(extents, self.operands, build)
        self.ctx.define(self.tensor, self._pass("dwconv2d", weights, self.specs(), True, None))

    def dense(self, op: str, prepare: _Prepare) -> None:
        """Sum over slices of input channels, in several passes if there are very many."""
        slices = self.slices
        out_slices = self.layout.extents[2]
        step = max(1, MAX_TRIPS // self.taps - 2)
        step = min(step, most_rows(4 * TEXEL * (self.taps + 1) * out_slices, self.ctx.caps))
        partial: str | None = None
        for start in range(0, slices.span, step):
            count = min(step, slices.span - start)

            extents = (count * 4, self.taps + 1, out_slices, 1)
            operands = self.operands if start == 0 else self.operands[:1]
            digits = FEW_DIGITS if self.is_whole else 0
            is_bytes = self._as_bytes(operands, digits) is not None

            def build(
                w: Array, b: Array | None = None, start: int = start, count: int = count,
                arrange: _Arrange = integer_weights if is_bytes else dense_weights,
            ) -> Texels:  # fmt: skip
                return arrange(prepare(w), b, slices, start, count)

            weights = self._upload(extents, operands, build, digits=digits)
            specs = self.specs() | {
                "SPAN": count,
                "S0": start,
                **slices.specs(),
                "BIAS": len(operands) == 2,
                "DIGITS": is_bytes,
                "PADS": any(self.window.pads),
                "UNIT": bool(self.facts["is_unit"]),
            }
            partial = self._pass(op, weights, specs, start + count == slices.span, partial)
        if partial is not None:
            self.ctx.define(self.tensor, partial)

    def _whole(self, columns: int) -> int:
        """Return how many columns whole invocations of a map kernel compute."""
        return -(-columns // self.ctx.caps.map_texels) * self.ctx.caps.map_texels

    @property
    def _longer(self) -> Layout:
        """How a variant in longer rows lays out its sums."""
        shape = self.layout.shape
        return channels((*shape[:-1], self._whole(shape[-1])))

    def _points(self, tiles: int) -> tuple[Layout, Layout, Layout]:
        """Return how inputs, weights and products at the points of tiles lie: a point to a row."""
        batch, filters = self.layout.shape[:2]
        tiles = self._whole(tiles)
        inputs, products = (
            channels((batch, count, winograd.POINTS, tiles))
            for count in (self.slices.channels_in, filters)
        )
        extents = (4 * self.slices.span, winograd.POINTS + 1, self.layout.extents[2], 1)
        return inputs, Layout("rows", (), extents), products

    def _has_room(self, tiles: int) -> bool:
        """Tell whether tensors are kept exactly, and fit at the points of so many tiles."""
        ctx, caps = self.ctx, self.ctx.caps
        names = [ctx.value_of(t) for t in self.operands]
        kept = {ctx.tensors[self.source].storage, ctx.storages.of_all(names)}
        most = caps.max_storage_buffer_bytes
        if caps.max_texel_elements:
            most = min(most, max(caps.max_texel_elements, caps.max_copied_elements) * TEXEL)
        return (
            kept == {ctx.storages.exact}
            and self.slices.span < MAX_TRIPS
            and all(layout.nbytes <= most for layout in self._points(tiles))
        )

    def winograd(self) -> bool:
        """Compute F(4x4, 3x3) in three passes, if that is what serves best; False if not."""
        ctx, tiles = self.ctx, self.facts["tiles"]
        if not tiles:
            return False
        inputs, weights, products = self._points(tiles)
        variant = ctx.best("conv2d", self.facts, 3, is_half=self.is_half, out=products.extents)
        if variant.is_exact or not self._allows_transforms(variant, inputs):
            self.facts["tiles"] = 0  # with more tensors to bind it might be chosen after all
            return False

        def build(w: Array, b: Array | None = None) -> Texels:
            taps = dense_weights(w, b, self.slices, 0, self.slices.span)
            rows = taps.reshape(weights.extents[2], w[0, 0].size + 1, -1)
            points = np.empty((len(rows), winograd.POINTS + 1, rows.shape[2]), np.float32)
            winograd.send_to_points(rows[:, :-1], points[:, :-1])
            points[:, -1] = rows[:, -1]  # the bias
            return points.ravel()

        k = self._upload(weights.extents, self.operands, build)
        v, m = (ctx.add(layout, storage=ctx.storages.exact) for layout in (inputs, products))
        before, after = _transforms(variant)
        top, left = self.window.pads[:2]
        across = -(-self.window.out[1] // winograd.SIDE)
        ctx.launch(before, {"X": self.source, "O": v},
                   {"ACROSS": across, "PT": top, "PL": left})  # fmt: skip
        specs = {"PT": 0, "PL": 0, "S0": 0, "SPAN": self.slices.span, **self.slices.specs()}
        ctx.launch(variant, {"X": v, "K": k, "O": m}, specs)
        self.source = m
        result = self._pass(after, k, {"BIAS": len(self.operands) == 2}, True, None)
        ctx.define(self.tensor, result)
        return True

    def _allows_transforms(self, variant: Variant, inputs: Layout) -> bool:
        before, after = _transforms(variant)
        allows = self.ctx.allows
        return allows(before, inputs.extents) and allows(after, self.layout.extents)

    def carried(self, carry: Carry) -> None:
        """Sum integers in two digits, in one pass."""
        self._integers(in_chunks(self.ctx, carry, self.slices.span, self.taps))

    def in_bytes(self) -> bool:
        """Sum products of bytes, four at a time, if that is what serves best; False if not."""
        if self.offset is None:
            return False
        best = self.ctx.best("conv2d_int", self.facts, 3, out=self.layout.extents)
        if "dot_products" not in best.needs:
            return False
        self._integers({"CHUNK": self.slices.span, "CHUNKS": 1, "PART": 0})
        return True

    def _integers(self, chunks: dict[str, Number]) -> None:
        """Launch the pass of a kernel that sums integers."""
        slices = self.slices
        count = int(chunks["CHUNK"]) * int(chunks["CHUNKS"])

        def build(w: Array, b: Array | None = None) -> Texels:
            return integer_weights(_square(w), b, slices, 0, count)

        extents = (count * 4, self.taps + 1, self.layout.extents[2], 1)
        weights = self._upload(extents, self.operands, build, digits=DIGITS)
        specs = self.specs() | chunks | slices.specs()
        specs |= {"SPAN": slices.span, "OFFSET": self.offset or 0}
        self.ctx.define(self.tensor, self._pass("conv2d_int", weights, specs, True, None))

    def _as_bytes(self, operands: tuple[Tensor, ...], digits: int) -> Storage | None:
        """Return how weights and a bias in so many digits are kept as bytes; None if they are not.

        With no digits, they never are.
        """
        biases = [b.array for b in operands[1:] if b.array is not None]
        most = 127 * sum(256**i for i in range(digits))
        if not digits or any(np.abs(b.astype(np.int64)).max(initial=0) > most for b in biases):
            return None
        return self.ctx.storages.of_weights(*operands)

    def _upload(
        self,
        extents: Extents,
        operands: tuple[Tensor, ...],
        build: _Build,
        *,
        digits: int = 0,
    ) -> str:
        """Add weights; sums of integers have the bias in so many digits, where these are bytes."""
        names = tuple(self.ctx.value_of(t) for t in operands)
        storage = self._as_bytes(operands, digits)
        host = HostTensor(names, build, storage is not None or digits == DIGITS)
        return self.ctx.add(Layout("rows", (), extents), names[0], host, storage)

    def _pass(
        self,
        op: str | Variant,
        weights: str,
        specs: dict[str, Number],
        last: bool,
        partial: str | None,
    ) -> str:
        """Launch one pass; the last one carries the epilogue."""
        ctx, source = self.ctx, self.source
        value = ctx.value_of(self.tensor)
        out = ctx.add(self.layout, value, storage=None if last else ctx.storages.exact)
        tensors = {"X": source, "K": weights, "O": out}
        follows = self._epilogue(source, partial, last)
        is_half = self.is_half or (follows is not None and follows.is_half)
        parts = self.apart, max(1, self.slices.parts)
        if isinstance(op, str):
            count = len(tensors) + (len(follows.tensors) if follows else 0)
            op = ctx.best(op, self.facts, count, is_half=is_half,
                          out=self.layout.extents, parts=parts)  # fmt: skip
            if op.transforms:  # the epilogue is that of a pass of its own, which binds their sums
                sums = ctx.add(self._longer, storage=ctx.storages.exact)
                ctx.launch(op, tensors | {"O": sums}, specs)
                op = replace(op, kernel=op.transforms[0], consts={})
                tensors, specs = {"X": sums, "O": out}, {}
                follows = self._epilogue(sums, partial, last)
        if follows is not None:
            tensors, specs = tensors | follows.tensors, specs | follows.specs
        ctx.launch(op, tensors, specs, epilogue=follows.text if follows else None,
                   parts=parts, is_half=is_half)  # fmt: skip
        return out

    def _epilogue(self, source: str, partial: str | None, last: bool) -> Epilogue | None:
        """Return what follows the sums of a kernel that binds `source`."""
        return epilogue(
            self.ctx, self.layout, self.anchor, self.body if last else None,
            partial=partial, bound={"X": source},
        )  # fmt: skip
