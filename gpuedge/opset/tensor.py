"""Tensors and the few primitives that compute them: what operators are composed of.

A `Tensor` is a shape, a dtype and a source: given from outside, constant, or one of the primitives
`Map` (an expression of each position, so views cost nothing and chains fuse), `Reduce`, `Product`,
`Convolution` and `Pooling`. The functions of this module build them; shapes follow from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from gpuedge.opset.expr import Expr, LoadExpr, lift, loads, rewrite, where
from gpuedge.opset.index import Index, axes, axis, choose, everything, flatten

if TYPE_CHECKING:
    from gpuedge.opset.packed import PackedWeights

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
Combine = Literal["sum", "max", "min", "prod"]
Part = Literal["whole", "high", "low"]

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Given:
    """A value from outside: a graph's input, or what another part of it computed.

    `part` names one of the two digits of a 32-bit integer (`Digits`).
    """

    name: str
    part: Part = "whole"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value known while planning; `name` is that of the graph's constant, if it is one."""

    array: Array
    name: str = ""


@dataclass(frozen=True, slots=True)
class Map:
    """Every element on its own: `body` over the axes of the output."""

    body: Expr


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum, maximum, minimum or product of `body` over further axes of extents `over`.

    Axis numbers of `body` below the output's rank are those of the output, the others those of
    `over`, in order.
    """

    combine: Combine
    over: Shape
    body: Expr


@dataclass(frozen=True, slots=True)
class Carry:
    """How sums of integers beyond 2^24 are kept: in two digits, with a carry between.

    Attributes
    ----------
    chunk : int
        How many products may be added up between two carries.
    part : str
        What the result is: the ``whole`` sum, rounded once to float32, or its ``high`` or ``low``
        digit (`Digits`).
    """

    chunk: int
    part: Part = "whole"


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix product of (..., m, k) and (..., k, n), of rank 2 or more; batches broadcast.

    With `is_half`, operands and products, four of which may be added, are rounded to float16;
    `is_whole`: of integers, whose sums are exact.
    """

    a: Tensor
    b: Tensor
    carry: Carry | None = None
    is_half: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """How windows slide; pairs are (y, x), pads (top, left, bottom, right) and never negative.

    `out` is the spatial size of the result. One-dimensional windows have a height of 1.
    """

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair
    out: Pair


@dataclass(frozen=True, slots=True)
class Convolution:
    """Convolution of x (N, C, H, W) with w (M, C / group, kh, kw) and an optional bias (M).

    Transposed, w is (C, M / group, kh, kw), and input pixel (i, j) adds to output pixel
    (i * stride + kernel_index * dilation - pad); positions outside `window.out` are dropped. With
    one spatial dimension x is (N, C, W) and w has three axes. `is_half` is as in `Product`;
    `is_whole`: of integers, whose sums are exact.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    window: Window
    group: int
    is_transposed: bool = False
    carry: Carry | None = None
    is_half: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Pooling:
    """Maximum or average over windows of x (N, C, H, W) or (N, C, W).

    An average divides by the number of input pixels under the window, or, with
    `count_include_pad`, by the number of window positions inside the input and its pads. A window
    that meets no pixel at all (dilated, on a small input) gives 0 as average and the lowest finite
    number as maximum.
    """

    kind: Literal["max", "avg"]
    x: Tensor
    window: Window
    count_include_pad: bool = False


Source = Given | Constant | Map | Reduce | Product | Convolution | Pooling


@dataclass(frozen=True, slots=True)
class Digits:
    """An integer of 32 bits as high * 2^16 + low, with low from 0 to 65535.

    Floats hold both digits, and what is made of them bit by bit, on every level.

    Attributes
    ----------
    high, low : Tensor
    rounded : Tensor
        The integer, rounded once to float32.
    """

    high: Tensor
    low: Tensor
    rounded: Tensor


@dataclass(frozen=True, slots=True)
class Centred:
    """Integers less their zero point: what is computed and kept of quantised numbers."""

    tensor: Tensor
    zero: float


@dataclass(frozen=True, slots=True)
class Length:
    """How long an axis of a result really is, which values tell: the first element of a tensor.

    Everything from there on is without meaning, and the host leaves it out.
    """

    axis: int
    count: Tensor


@dataclass(eq=False, slots=True)
class Tensor:
    """A value that a program computes or is given.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        Name of its numpy dtype. Kernels compute in float32 whatever it is.
    source : Source
    label : str
        The node that it is a part of, for messages and placements.
    serial : int
        Tensors are numbered in the order they are built, so operands have lower numbers.
    reads : tuple of Tensor
        What it is computed from directly, each once.
    span : (float, float) or None
        Between what integers lie, where their formula alone does not tell
        (`gpuedge.opset.ranges`).
    digits : Digits or None
        The same in two digits, of integers that may be larger than float32 holds exactly.
    centred : Centred or None
        The same without their zero point, of quantised numbers.
    length : Length or None
        Of a result that may be shorter than `shape`; only a graph's output can be one.
    is_unpacked : bool
        Whether it is weights of few bits as floats: never computed before it is read.
    packed : PackedWeights or None
        What a matrix of such weights is made of, for kernels that unpack it.
    """

    shape: Shape
    dtype: str
    source: Source
    label: str = ""
    serial: int = field(default_factory=lambda: next(_serial))
    reads: tuple[Tensor, ...] = field(init=False)
    span: tuple[float, float] | None = field(init=False, default=None)
    digits: Digits | None = field(init=False, default=None)
    centred: Centred | None = field(init=False, default=None)
    length: Length | None = field(init=False, default=None)
    is_unpacked: bool = field(init=False, default=False)
    packed: PackedWeights | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.reads = _read_by(self.source)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def array(self) -> Array | None:
        """Its value if it is constant."""
        return self.source.array if isinstance(self.source, Constant) else None


def _read_by(source: Source) -> tuple[Tensor, ...]:
    if isinstance(source, (Map, Reduce)):
        operands = [load.tensor for load in loads(source.body)]
    elif isinstance(source, Product):
        operands = [source.a, source.b]
    elif isinstance(source, Convolution):
        operands = [t for t in (source.x, source.w, source.bias) if t is not None]
    elif isinstance(source, Pooling):
        operands = [source.x]
    else:
        operands = []
    return tuple(dict.fromkeys(operands))


def reachable(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return the roots and every tensor that they depend on, in the order they were built."""
    seen: dict[int, Tensor] = {}
    stack = list(roots)
    while stack:
        tensor = stack.pop()
        if tensor.serial not in seen:
            seen[tensor.serial] = tensor
            stack.extend(tensor.reads)
    return [seen[serial] for serial in sorted(seen)]


# --- making tensors -----------------------------------------------------------------------------


def given(name: str, shape: Shape, dtype: str) -> Tensor:
    """Return a tensor that comes from outside."""
    return Tensor(tuple(shape), dtype, Given(name))


def constant(array: Array, name: str = "") -> Tensor:
    """Return a tensor whose value is known."""
    return Tensor(tuple(array.shape), array.dtype.name, Constant(array, name))


def at(tensor: Tensor, position: Sequence[Index]) -> LoadExpr:
    """Return the element at a position."""
    return LoadExpr(tensor, flatten(position, tensor.shape))


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that all of them broadcast to; numpy's own gives up on large ones."""
    rank = max(map(len, shapes))
    result = []
    for extents in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        others = {extent for extent in extents if extent != 1}
        if len(others) > 1:
            return None
        result.append(others.pop() if others else 1)
    return tuple(result)


def spread(tensor: Tensor, position: Sequence[Index]) -> LoadExpr:
    """Return the element that broadcasting puts at a position of a larger shape."""
    own = position[len(position) - tensor.rank :]
    fixed = [Index() if n == 1 else i for i, n in zip(own, tensor.shape, strict=True)]
    return at(tensor, fixed)


def computed(shape: Shape, dtype: str, body: Callable[[tuple[Index, ...]], Expr | float]) -> Tensor:
    """Return a tensor whose element at a position is what `body` makes of the position."""
    return Tensor(tuple(shape), dtype, Map(lift(body(axes(shape)))))


def mapped(
    formula: Callable[..., Expr | float], *tensors: Tensor, dtype: str | None = None
) -> Tensor:
    """Return a formula of tensors that broadcast, element by element."""
    shape = broadcast_shape([t.shape for t in tensors])
    if shape is None:
        raise ValueError("shapes that do not broadcast")
    position = axes(shape)
    body = lift(formula(*(spread(t, position) for t in tensors)))
    return Tensor(shape, dtype or tensors[0].dtype, Map(body))


def retyped(tensor: Tensor, dtype: str) -> Tensor:
    """Return the same numbers as another dtype, which can hold them."""
    return mapped(lambda x: x, tensor, dtype=dtype)


def view(
    tensor: Tensor, shape: Shape, to: Callable[[tuple[Index, ...]], Sequence[Index]]
) -> Tensor:
    """Return the tensor read at other positions: `to` gives the one for each of `shape`."""
    moved = computed(shape, tensor.dtype, lambda position: at(tensor, to(position)))
    return _as_kept(moved, tensor, lambda part: view(part, shape, to))


def _as_kept(moved: Tensor, tensor: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what was made by moving elements, whose digits move in the same way."""
    digits = tensor.digits
    if digits is not None:
        moved.digits = Digits(*map(move, (digits.high, digits.low, digits.rounded)))
    return moved


def reshape(tensor: Tensor, shape: Shape) -> Tensor:
    """Return the same elements in the same order with another shape."""
    moved = computed(shape, tensor.dtype, lambda _: LoadExpr(tensor, everything(shape)))
    return _as_kept(moved, tensor, lambda part: reshape(part, shape))


def transpose(tensor: Tensor, perm: Sequence[int]) -> Tensor:
    """Return a tensor whose axis i is axis ``perm[i]`` of the operand."""
    shape = tuple(tensor.shape[p] for p in perm)
    back = [perm.index(i) for i in range(len(perm))]
    if tensor.is_unpacked and isinstance(tensor.source, Map):
        position = axes(shape)
        body = rewrite(tensor.source.body, {p: position[i] for i, p in enumerate(perm)})
        moved = Tensor(shape, tensor.dtype, Map(body))
        moved.is_unpacked = True
        if tensor.packed is not None:
            moved.packed = tensor.packed.turned() if back == [1, 0] else tensor.packed
        return moved
    return view(tensor, shape, lambda position: [position[b] for b in back])


def broadcast(tensor: Tensor, shape: Shape) -> Tensor:
    """Return the tensor repeated to a shape that it broadcasts to."""
    return computed(shape, tensor.dtype, lambda position: spread(tensor, position))


def joined(a: Tensor, b: Tensor, along: int) -> Tensor:
    """Return two tensors one after the other along an axis."""
    shape = (*a.shape[:along], a.shape[along] + b.shape[along], *a.shape[along + 1 :])
    cut = a.shape[along]

    def body(position: tuple[Index, ...]) -> Expr:
        before, after = list(position), list(position)
        first = [cut - 1 - position[along]]
        after[along] = position[along] - cut
        left = choose(first, flatten(before, a.shape), Index())
        right = choose([position[along] - cut], flatten(after, b.shape), Index())
        return where(first, LoadExpr(a, left), LoadExpr(b, right))

    return computed(shape, a.dtype, body)


def reduced(
    combine: Combine,
    tensor: Tensor,
    along: Sequence[int],
    *,
    keepdims: bool = True,
    before: Callable[[Expr], Expr] = lambda x: x,
) -> Tensor:
    """Return the sum, maximum, minimum or product of ``before(x)`` along axes."""
    kept = [i for i in range(tensor.rank) if i not in along]
    over = tuple(tensor.shape[i] for i in along)
    shape = tuple(1 if i in along else n for i, n in enumerate(tensor.shape))
    if not keepdims:
        shape = tuple(tensor.shape[i] for i in kept)
    position: list[Index] = [Index()] * tensor.rank
    for number, i in enumerate(along):
        position[i] = axis(len(shape) + number, tensor.shape[i])
    for number, i in enumerate(kept):
        position[i] = axis(i if keepdims else number, tensor.shape[i])
    return Tensor(shape, tensor.dtype, Reduce(combine, over, before(at(tensor, position))))


def mean(tensor: Tensor, along: Sequence[int], *, keepdims: bool = True) -> Tensor:
    """Return the mean along axes."""
    count = prod(tensor.shape[i] for i in along)
    total = reduced("sum", tensor, along, keepdims=keepdims)
    return mapped(lambda s: s / float(count), total)


def product(a: Tensor, b: Tensor, carry: Carry | None = None) -> Tensor:
    """Return a matrix product by numpy's rules; batches must broadcast and inner extents fit."""
    left = a if a.rank > 1 else reshape(a, (1, *a.shape))
    right = b if b.rank > 1 else reshape(b, (*b.shape, 1))
    batch = broadcast_shape([left.shape[:-2], right.shape[:-2]])
    if batch is None or left.shape[-1] != right.shape[-2]:
        raise ValueError("matrices that do not fit")
    m, n = left.shape[-2], right.shape[-1]
    whole = Tensor((*batch, m, n), a.dtype, Product(left, right, carry))
    shape = (*batch, *((m,) if a.rank > 1 else ()), *((n,) if b.rank > 1 else ()))
    return whole if shape == whole.shape else reshape(whole, shape)
