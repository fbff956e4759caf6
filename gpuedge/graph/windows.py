"""Sliding windows: convolution, transposed convolution and pooling, with all padding resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.nodes import bad_shape, ints, text, type_in, unsupported
from gpuedge.graph.params import ConvParams, ConvTransposeParams, Pads, Pair, PoolParams

T = TypeVar("T")

MAX_EXTENT = 2**31 - 1
"""Largest extent of a padded image, a window's attribute or a result: shaders count in int32."""


def require_extents(node: Node, graph: Graph) -> None:
    """Check that nothing a window slides over, or consists of, is empty or too long.

    Only the batch may be empty. ONNX Runtime is not to be asked: given a padded image without
    channels it computes for ever (seen with 1.31.1), and other sizes it reads beyond.

    Raises
    ------
    ShapeError (GE-201)
        An extent is 0 or at least 2**31.
    """
    x = type_in(node, graph, 0).shape
    if len(x) > 1 and x[1] == 0:
        raise bad_shape(node, graph, "has no input channels")
    if 0 in x[2:]:
        raise bad_shape(node, graph, "slides over an empty image")
    weights = type_in(node, graph, 1).shape if node.op.startswith("Conv") else ()
    if 0 in weights:
        raise bad_shape(node, graph, "has empty weights")
    _require_short(node, graph, "an extent", (*x, *weights))


def _require_short(node: Node, graph: Graph, what: str, values: Sequence[int]) -> None:
    if any(v > MAX_EXTENT for v in values):
        raise bad_shape(node, graph, f"has {what} of {max(values)}; the most is {MAX_EXTENT}")


def _spatial(node: Node, graph: Graph) -> tuple[int, ...]:
    """Return the spatial extents of input 0, one or two of them."""
    shape = type_in(node, graph, 0).shape
    if len(shape) not in (3, 4):
        raise unsupported(
            node, f"has an input of rank {len(shape)}; only 1-D and 2-D windows are known"
        )
    return shape[2:]


def _pair(values: Sequence[int], fill: int) -> Pair:
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def _box(begin: Sequence[int], end: Sequence[int]) -> Pads:
    top, left = _pair(begin, 0)
    bottom, right = _pair(end, 0)
    return (top, left, bottom, right)


def _counts(
    node: Node, graph: Graph, name: str, default: Sequence[int], *, least: int = 1
) -> tuple[int, ...]:
    """Return a per-dimension attribute, checked for length and lower bound."""
    values = ints(node, name, default)
    if len(values) != len(default):
        raise bad_shape(node, graph, f"has {len(values)} {name} instead of {len(default)}")
    if any(v < least for v in values):
        raise bad_shape(node, graph, f"has {name}={list(values)}; each must be at least {least}")
    _require_short(node, graph, f"{name} with a value", values)
    return values


def _auto_pad(node: Node) -> str:
    mode = text(node, "auto_pad", "NOTSET") or "NOTSET"
    if mode not in {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}:
        raise unsupported(node, f"has auto_pad={mode!r}, which does not exist")
    return mode


def _split(total: int, upper: bool) -> Pair:
    """Divide padding between the two ends; the odd one goes to the end if `upper`."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _window(
    node: Node, graph: Graph, size: Sequence[int], kernel: Sequence[int], ceil_mode: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...], Pads, Pair]:
    """Resolve strides, dilations, pads and output size of a window sliding over `size`."""
    rank = len(size)
    strides = _counts(node, graph, "strides", (1,) * rank)
    dilations = _counts(node, graph, "dilations", (1,) * rank)
    given = _counts(node, graph, "pads", (0,) * (2 * rank), least=0)
    mode = _auto_pad(node)
    begin: list[int] = []
    end: list[int] = []
    out: list[int] = []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        step = strides[axis]
        low, high = (given[axis], given[axis + rank]) if mode == "NOTSET" else (0, 0)
        if mode.startswith("SAME"):
            count = -(-size[axis] // step)
            low, high = _split(
                max((count - 1) * step + reach - size[axis], 0), mode == "SAME_UPPER"
            )
        else:
            room = size[axis] + low + high - reach
            if room < 0:
                raise bad_shape(
                    node, graph, f"has a window of {reach} over {size[axis] + low + high} positions"
                )
            count = (-(-room // step) if ceil_mode else room // step) + 1
            # A window that would start beyond the input and its leading pad does not exist.
            if ceil_mode and (count - 1) * step >= size[axis] + low:
                count -= 1
        _require_short(node, graph, "a padded extent", (size[axis] + low + high, reach))
        begin.append(low)
        end.append(high)
        out.append(count)
    return strides, dilations, _box(begin, end), _pair(out, 1)


def conv(node: Node, graph: Graph) -> ConvParams:
    """Read a Conv node. Raises UnsupportedOpError or ShapeError."""
    size = _spatial(node, graph)
    rank = len(size)
    x, w = type_in(node, graph, 0).shape, type_in(node, graph, 1).shape
    group = int(node.attrs.get("group", 1))
    _check_weights(node, graph, x, w, group)
    if group * w[1] != x[1] or w[0] % group:
        raise bad_shape(
            node,
            graph,
            f"has {x[1]} input channels, but its weights take {w[1]} in each of {group} groups"
            if group * w[1] != x[1]
            else f"has {w[0]} filters, which {group} groups cannot share evenly",
        )
    _check_bias(node, graph, w[0])
    kernel = w[2:]
    strides, dilations, pads, out = _window(node, graph, size, kernel)
    return ConvParams(
        _pair(kernel, 1), _pair(strides, 1), pads, _pair(dilations, 1), group, out, rank
    )


def _check_weights(
    node: Node, graph: Graph, x: tuple[int, ...], w: tuple[int, ...], group: int
) -> None:
    if len(w) != len(x):
        raise bad_shape(node, graph, f"has weights of rank {len(w)} for an input of rank {len(x)}")
    if group < 1:
        raise bad_shape(node, graph, f"has group={group}")
    if "kernel_shape" in node.attrs and ints(node, "kernel_shape", w[2:]) != w[2:]:
        raise bad_shape(
            node, graph, f"has kernel_shape={list(node.attrs['kernel_shape'])}, unlike its weights"
        )


def _check_bias(node: Node, graph: Graph, filters: int) -> None:
    if len(node.inputs) > 2 and node.inputs[2] and graph.shape(node.inputs[2]) != (filters,):
        raise bad_shape(node, graph, f"needs a bias of shape [{filters}]")


def conv_transpose(node: Node, graph: Graph) -> ConvTransposeParams:
    """Read a ConvTranspose node. Raises UnsupportedOpError or ShapeError."""
    size = _spatial(node, graph)
    rank = len(size)
    x, w = type_in(node, graph, 0).shape, type_in(node, graph, 1).shape
    group = int(node.attrs.get("group", 1))
    _check_weights(node, graph, x, w, group)
    if w[0] != x[1] or x[1] % group:
        raise bad_shape(
            node, graph, f"has {x[1]} input channels, weights {list(w)}, {group} groups"
        )
    _check_bias(node, graph, w[1] * group)
    strides = _counts(node, graph, "strides", (1,) * rank)
    dilations = _counts(node, graph, "dilations", (1,) * rank)
    extra = _counts(node, graph, "output_padding", (0,) * rank, least=0)
    pads = _counts(node, graph, "pads", (0,) * (2 * rank), least=0)
    mode = _auto_pad(node)
    wanted = ints(node, "output_shape", ())[-rank:]
    if not wanted and mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(size, strides, strict=True))
    full = [
        s * (n - 1) + e + (k - 1) * d + 1
        for s, n, e, k, d in zip(strides, size, extra, w[2:], dilations, strict=True)
    ]
    if any(e >= s for e, s in zip(extra, strides, strict=True)):
        raise bad_shape(
            node,
            graph,
            f"has output_padding={list(extra)}; each must be less than its stride, {list(strides)}",
        )
    _require_short(node, graph, "an output extent", full)
    if any(w > f for w, f in zip(wanted, full, strict=False)):
        # ONNX's reference, its shape inference and ONNX Runtime disagree about what this means.
        raise unsupported(node, f"is to give {list(wanted)}, more than its windows reach, {full}")
    begin, end = _transposed_pads(mode, full, wanted, pads)
    out = wanted or tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    if min(out) < 1:
        raise bad_shape(node, graph, f"has pads {begin + end} that leave an output of {list(out)}")
    return ConvTransposeParams(
        _pair(w[2:], 1), _pair(strides, 1), _box(begin, end), _pair(dilations, 1),
        group, _pair(extra, 0), _pair(out, 1), rank,
    )  # fmt: skip


def _transposed_pads(
    mode: str, full: Sequence[int], wanted: Sequence[int], pads: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return what is cut off before and after, given the uncut size and the wanted one."""
    rank = len(full)
    if not wanted:
        if mode == "VALID":
            return [0] * rank, [0] * rank
        return list(pads[:rank]), list(pads[rank:])
    cuts = [_split(f - w, mode == "SAME_UPPER") for f, w in zip(full, wanted, strict=True)]
    return [c[0] for c in cuts], [c[1] for c in cuts]


def pool(node: Node, graph: Graph) -> PoolParams:
    """Read a pooling node. Raises UnsupportedOpError or ShapeError."""
    size = _spatial(node, graph)
    rank = len(size)
    kind: Literal["max", "avg"] = "max" if node.op.endswith("MaxPool") else "avg"
    if node.op.startswith("Global"):
        return PoolParams(
            kind, _pair(size, 1), (1, 1), (0, 0, 0, 0), (1, 1), False, False, True, (1, 1), rank
        )
    if len(node.outputs) > 1 and node.outputs[1]:
        raise unsupported(node, "is asked for the indices of its maxima")
    if "kernel_shape" not in node.attrs:
        raise unsupported(node, "lacks the attribute kernel_shape")
    kernel = _counts(node, graph, "kernel_shape", (1,) * rank)
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    strides, dilations, pads, out = _window(node, graph, size, kernel, ceil_mode)
    include = bool(node.attrs.get("count_include_pad", 0)) and kind == "avg"
    return PoolParams(
        kind, _pair(kernel, 1), _pair(strides, 1), pads, _pair(dilations, 1),
        ceil_mode, include, False, out, rank,
    )  # fmt: skip
