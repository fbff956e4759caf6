"""Elementwise formulas of large arrays in numpy, as fast as memory: in blocks that stay in a cache.

ONNX Runtime, and numpy on whole arrays, take a formula operator by operator and move each result
through memory. Here a block passes through all of them before the next one, and threads share the
blocks (numpy lets others run while it computes). It does what `gpuedge.opset.evaluate` does, for
functions that IEEE 754 has rounded exactly: the numbers are those of ONNX Runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread

import numpy as np

from gpuedge.opset.expr import Apply, Expr, LoadExpr, Number, walk
from gpuedge.opset.functions import EXACT, FUNCTIONS
from gpuedge.opset.index import everything
from gpuedge.opset.tensor import Array, Constant, Given, Map, Tensor, reachable

LEAST = 1 << 20
"""Elements from which this is faster than ONNX Runtime by more than starting threads takes."""

BLOCK = 1 << 16
"""Elements of a block: 256 KiB, of which a second-level cache holds a few."""

KEPT = 2
"""Results whose memory is kept: of a loop, the one in use and the one that is being made."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A function of values by number, the number of its result, and the scratch block of that."""

    function: Callable[..., Array]
    operands: tuple[int, ...]
    result: int
    place: int


class _Formula:
    """The steps that compute a tensor; values are numbered.

    Attributes
    ----------
    given : dict of int to str
        Names of the inputs.
    known : dict of int to ndarray
        Constants.
    steps : list of _Step
        Empty where it is none of exact functions of single numbers and arrays of one size.
    """

    def __init__(self, output: Tensor) -> None:
        self.given: dict[int, str] = {}
        self.known: dict[int, Array] = {}
        self.steps: list[_Step] = []
        self._tensors: dict[int, int] = {}
        self._count = 0
        for tensor in reachable([output]):
            number = self._tensor(tensor) if tensor.size in (1, output.size) else None
            if number is None or tensor.dtype != "float32" or tensor.digits or tensor.length:
                self.steps = []
                return
            self._tensors[tensor.serial] = number
        self._place()

    def _new(self) -> int:
        self._count += 1
        return self._count

    def _tensor(self, tensor: Tensor) -> int | None:
        source = tensor.source
        if isinstance(source, Given):
            self.given[self._new()] = source.name
            return self._count
        if isinstance(source, Constant):
            self.known[self._new()] = source.array.reshape(-1)
            return self._count
        numbers: dict[int, int | None] = {}
        for expr in walk(source.body) if isinstance(source, Map) else ():
            numbers[id(expr)] = self._expr(expr, numbers, tensor)
        return numbers.get(id(source.body)) if isinstance(source, Map) else None

    def _expr(self, expr: Expr, numbers: Mapping[int, int | None], of: Tensor) -> int | None:
        if isinstance(expr, Number):
            self.known[self._new()] = np.full(1, expr.value, np.float32)
            return self._count
        if isinstance(expr, LoadExpr):
            is_same = expr.tensor.size == of.size and expr.at == everything(of.shape)
            return self._tensors[expr.tensor.serial] if is_same or expr.tensor.size == 1 else None
        if not isinstance(expr, Apply) or expr.function not in EXACT:
            return None
        operands = [numbers[id(a)] for a in expr.args]
        if None in operands:
            return None
        known = tuple(o for o in operands if o is not None)
        self.steps.append(_Step(FUNCTIONS[expr.function].numpy, known, self._new(), 0))
        return self._count

    def _place(self) -> None:
        """Give each result a scratch block: the first that nothing needs any more."""
        last = {o: at for at, step in enumerate(self.steps) for o in step.operands}
        used: dict[int, int] = {}
        for at, step in enumerate(self.steps):
            used = {number: place for number, place in used.items() if last[number] > at}
            place = next(p for p in range(len(used) + 1) if p not in used.values())
            used[step.result] = place
            self.steps[at] = replace(step, place=place)


class Blocks:
    """A formula computed in blocks. One call at a time.

    The memory of a result is used again once nobody refers to it: else the system clears it before
    it is written, which takes a third of the time of ``relu(a * b + c)``.

    Parameters
    ----------
    output : Tensor
        One that `blocks_of` accepts.
    threads : int
        How many may share the blocks, that of the caller included.
    """

    def __init__(self, output: Tensor, formula: _Formula, threads: int) -> None:
        self._shape, self._size = output.shape, output.size
        self._formula, self._threads = formula, threads
        self._scratch = 1 + max(step.place for step in formula.steps)
        self._kept: list[Array] = []

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Return the result, which belongs to the caller. Raises MemoryError."""
        values = dict(self._formula.known)
        for number, name in self._formula.given.items():
            values[number] = np.ascontiguousarray(inputs[name]).reshape(-1)
        result = self._memory()
        starts, errors = iter(range(0, self._size, BLOCK)), list[BaseException]()
        scratch = np.empty((self._threads, self._scratch, BLOCK), np.float32)

        def work(own: Array) -> None:
            try:
                self._compute(values, result, starts, own)
            except BaseException as error:  # it would be lost with its thread
                errors.append(error)

        threads = [Thread(target=work, args=(own,), daemon=True) for own in scratch[1:]]
        with suppress(RuntimeError):  # no thread can be started any more: the caller does it all
            for thread in threads:
                thread.start()
        self._compute(values, result, starts, scratch[0])
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if errors:
            raise errors[0]
        return result.reshape(self._shape)

    def _compute(
        self, values: Mapping[int, Array], result: Array, starts: Iterator[int], scratch: Array
    ) -> None:
        """Compute the blocks that no other thread has taken."""
        steps = self._formula.steps
        with np.errstate(all="ignore"):
            for start in starts:
                part = slice(start, min(start + BLOCK, self._size))
                here = {n: v if v.size == 1 else v[part] for n, v in values.items()}
                for step in steps:
                    is_last = step is steps[-1]
                    out = result[part] if is_last else scratch[step.place, : part.stop - start]
                    step.function(*[here[o] for o in step.operands], out=out)
                    here[step.result] = out

    def _memory(self) -> Array:
        """Return memory for a result: what nobody refers to any more, else new."""
        for at in range(len(self._kept)):
            if _references(self._kept, at) == UNUSED and self._is_usable(self._kept[at]):
                return self._kept[at][:]
        memory = np.empty(self._size, np.float32)
        self._kept = [*self._kept, memory][-KEPT:]
        return memory[:]

    def _is_usable(self, memory: Array) -> bool:
        """Return whether it is as it was made: whoever had a result may have changed its base."""
        is_same = memory.shape == (self._size,) and memory.dtype == np.float32
        return is_same and memory.flags.writeable


def _references(arrays: list[Array], at: int) -> int:
    return sys.getrefcount(arrays[at])


UNUSED = _references([np.empty(0)], 0)
"""References to an array that only a list knows, as this Python counts them."""


def blocks_of(output: Tensor, threads: int) -> Blocks | None:
    """Return what computes a tensor in blocks; None where that is impossible or would not pay."""
    if output.size < LEAST:
        return None
    formula = _Formula(output)
    return Blocks(output, formula, threads) if formula.steps else None
