"""How often sequences of integers occur: TfIdfVectorizer."""

from __future__ import annotations

import numpy as np

from gpuedge.core.dtypes import EXACT
from gpuedge.core.errors import ShapeError
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.elementwise import above, pick
from gpuedge.opset.expr import Expr, lift, where
from gpuedge.opset.index import Index, axes, axis, choose
from gpuedge.opset.logic import equal
from gpuedge.opset.operator import INDICES, Operator
from gpuedge.opset.tensor import Array, Reduce, Tensor, at, constant, mapped, product, reshape


def _grams(call: OperatorCall) -> dict[tuple[int, ...], int]:
    """Return the sequences that are counted, each with its number."""
    pool, begins = call.ints("pool_int64s", ()), call.ints("ngram_counts", ())
    columns = call.ints("ngram_indexes", ())
    least, most = call.integer("min_gram_length", 1), call.integer("max_gram_length", 1)
    found: dict[tuple[int, ...], int] = {}
    number = 0
    for size, begin in enumerate(begins, 1):
        end = begins[size] if size < len(begins) else len(pool)
        for at_ in range(begin, end - size + 1, size):
            if number >= len(columns):
                raise call.bad_shape("has more sequences than columns")
            if least <= size <= most:
                found[pool[at_ : at_ + size]] = number  # the last of equal ones counts
            number += 1
    return found


def _lacks_columns(call: OperatorCall) -> bool:
    """Tell of sequences without a column: ONNX Runtime ends the process there."""
    try:
        _grams(call)
    except ShapeError:
        return True
    return False


def _counted(rows: Tensor, grams: list[tuple[int, ...]], distances: int) -> Tensor:
    """Return how often each sequence occurs in rows (N, length), as (N, sequences) of float32.

    Elements may be further apart, up to `distances`; those of one element are counted once.
    """
    count, length = rows.shape
    longest = max(map(len, grams))
    padded = np.array([g + (0,) * (longest - len(g)) for g in grams], np.int64)
    codes, sizes = constant(padded), constant(np.array([len(g) for g in grams], np.float32))
    shape = (count, len(grams))
    row, gram = axes(shape)
    apart, start = axis(2, distances), axis(3, length)
    size = at(sizes, (gram,))
    met: Expr = pick(above(size, 1.5), 1.0, where([-apart], 1.0, 0.0))
    for step in range(longest):
        place = start + (apart + 1) * step
        inside = [length - 1 - place]
        value = at(rows, (row, choose(inside, place, Index())))
        is_same = where(inside, equal(value, at(codes, (gram, Index(step)))), 0.0)
        met = met * (pick(above(size, float(step)), is_same, 1.0) if step else is_same)
    return Tensor(shape, "float32", Reduce("sum", (distances, length), lift(met)))


def _tf_idf(call: OperatorCall) -> Tensor:
    x = call.input(0)
    if x.dtype not in INDICES or x.rank not in (1, 2) or not x.size:
        raise call.unsupported(f"counts in {x.dtype} of rank {x.rank}")
    found = _grams(call)
    grams, order = list(found), call.ints("ngram_indexes", (-1,))
    columns, width = [order[number] for number in found.values()], max(order) + 1
    if not grams or width < 1 or max(abs(v) for g in grams for v in g) > EXACT:
        raise call.unsupported(f"counts nothing, or integers beyond {EXACT}")
    rows = x if x.rank == 2 else reshape(x, (1, x.size))
    times = _counted(rows, grams, call.integer("max_skip_count", 0) + 1)
    mode = call.text("mode", "TF")
    if mode == "IDF":
        if len(set(columns)) < len(columns):
            raise call.unsupported("counts several sequences in one column once")
        times = mapped(lambda v: above(v, 0.5), times)
    where_to: Array = np.zeros((len(grams), width), np.float32)
    where_to[np.arange(len(grams)), columns] = 1.0
    if given := call.attrs.get("weights") if mode != "TF" else None:
        if len(given) != len(order):
            raise call.bad_shape(f"has {len(given)} weights for {len(order)} sequences")
        # of each sequence, which ONNX's reference takes for columns'
        where_to[np.arange(len(grams)), columns] = np.asarray(given)[list(found.values())]
    total = product(times, constant(where_to))
    return total if x.rank == 2 else reshape(total, (width,))


OPERATORS: tuple[Operator, ...] = (
    Operator("TfIdfVectorizer", _tf_idf, dtypes=INDICES, differs=_lacks_columns),
)
