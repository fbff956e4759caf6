"""Look-up tables larger than a device binds at once: constants that are read in several parts.

What picks an element of such a table (Gather, and maps that unpack weights of few bits) picks among
its parts instead. Each part is a constant of its own; an element is the one that the whole table
has, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuedge.opset.expr import Expr, LoadExpr, loads, rewrite, where
from gpuedge.opset.index import Index, choose, everything
from gpuedge.opset.tensor import Constant, Map, Reduce, Source, Tensor, constant

ALIGNED = 4
"""Parts begin at multiples of so many elements, so that kernels may read whole texels of them."""


@dataclass(frozen=True, slots=True)
class TablePart:
    """Some elements of a table of `count` in C order, from number `start` on."""

    start: int
    count: int
    tensor: Tensor

    def load(self, at: Index) -> LoadExpr:
        """Return element `at` of the table, which is one, or any of the part if it is elsewhere."""
        stop = self.start + self.tensor.size
        after = [at - self.start] if self.start else []
        before = [stop - 1 - at] if stop < self.count else []
        return LoadExpr(self.tensor, choose([*after, *before], at - self.start, Index()))


class Tables:
    """Divides tables.

    Parameters
    ----------
    most_elements : callable
        Returns how many elements of a constant one binding holds.
    operands : int
        How many tensors a kernel may read.
    """

    def __init__(self, most_elements: Callable[[Tensor], int], operands: int) -> None:
        self._most = most_elements
        self._operands = operands
        self._parts: dict[int, tuple[TablePart, ...]] = {}

    def are_in(self, tensor: Tensor) -> bool:
        """Tell whether a tensor picks from a table that must be divided."""
        source = tensor.source
        return isinstance(source, (Map, Reduce)) and any(
            self._picks(tensor, load) for load in loads(source.body)
        )

    def divided(self, tensor: Tensor) -> Tensor:
        """Return a tensor that reads parts of tables instead of them.

        What only picks from a table of more parts than a kernel may read does so in several steps,
        each of which takes what the one before it found.
        """
        source = tensor.source
        if not isinstance(source, (Map, Reduce)) or not self.are_in(tensor):
            return tensor
        if isinstance(source, Map) and isinstance(source.body, LoadExpr):
            return self._in_steps(tensor, source.body)

        def load(old: LoadExpr) -> Expr:
            return _among(self._parts_of(old.tensor), old.at) if self._picks(tensor, old) else old

        body = rewrite(source.body, {}, load)
        return like(tensor, Map(body) if isinstance(source, Map) else
                    Reduce(source.combine, source.over, body))  # fmt: skip

    def _in_steps(self, tensor: Tensor, old: LoadExpr) -> Tensor:
        parts = self._parts_of(old.tensor)
        places = len({load.tensor.serial for load in loads(old)} - {old.tensor.serial})
        most = max(1, self._operands - places - 1)  # and what was found before
        found: Expr | None = None
        for first in range(0, len(parts), most):
            body = _among(parts[first : first + most], old.at)
            if found is not None:
                body = where([old.at - parts[first].start], body, found)
            made = like(tensor, Map(body))
            found = LoadExpr(made, everything(tensor.shape))
        return made

    def _picks(self, tensor: Tensor, load: LoadExpr) -> bool:
        """Tell whether a load is of a table: a constant that is not read in order."""
        is_table = isinstance(load.tensor.source, Constant)
        is_picked = tensor.is_unpacked or bool(load.at.loaded)
        return is_table and is_picked and load.tensor.size > self._most(load.tensor)

    def _parts_of(self, table: Tensor) -> tuple[TablePart, ...]:
        """Return parts of about the same size; they share the memory of the table."""
        if table.serial not in self._parts:
            array = table.array
            if array is None:
                raise TypeError("a table that is not constant")
            flat, most = array.reshape(-1), self._most(table)
            size = -(-table.size // -(-table.size // most))
            size += -size % ALIGNED
            self._parts[table.serial] = tuple(
                TablePart(start, table.size, constant(flat[start : start + size]))
                for start in range(0, table.size, size)
            )
        return self._parts[table.serial]


def _among(parts: Sequence[TablePart], at: Index) -> Expr:
    """Return element `at` of a table, if it is in one of these parts."""
    first, *rest = parts
    if not rest:
        return first.load(at)
    return where([rest[0].start - 1 - at], first.load(at), _among(rest, at))


def like(tensor: Tensor, source: Source) -> Tensor:
    """Return a tensor that is computed otherwise."""
    copy = Tensor(tensor.shape, tensor.dtype, source, tensor.label)
    copy.span, copy.packed, copy.is_unpacked = tensor.span, tensor.packed, tensor.is_unpacked
    return copy
