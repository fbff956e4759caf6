"""Sampled cross-check: a few inferences of a GPU are repeated on the CPU and compared.

A driver that computed rightly when it was probed may stop doing so: heat, memory that fails, an
update while it runs. What this looks for is a driver that lies, not the last bit, so results are
compared by size: with y of the CPU and d the difference, both ``max|d| / max|y|`` and
``||d|| / ||y||`` must stay below a tolerance.

The tolerance follows from the depth of the model. Each operation adds an error of its own
(`gpuedge.runtime.op_bounds`); along the longest way from the inputs to an output these are added up
(the first-order bound of N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.,
ch. 3: a product of n factors (1 + e) differs from 1 by n e, to first order), and the tolerance is
`FACTOR` times the sum. That supposes that no operation makes errors larger than its result.

Where a difference exceeds it, the same sum is made anew with the sizes that all values have on
these very inputs. An operation whose result is much smaller than what it sums up (a mean taken off,
say) enlarges relative errors by that ratio; so do exponentials by the size of their operand. Only
ratios beyond `ORDINARY` count: those of ordinary layers are averaged out, and multiplied over many
layers they would excuse everything.

Integers, and floats that were only moved or compared, must be equal.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.plan.storages import Range, range_of
from gpuedge.runtime.op_bounds import HALF_ULP, JUMPS, SHAPES, SUMS, own_error, terms
from gpuedge.runtime.ranges import float_values

FACTOR = 16.0
"""A tolerance is this many times the error that the operations add up to."""

ORDINARY = 32.0
"""Up to this ratio of operands to result an operation passes errors on as they are."""

TINY = 2.0**-126
"""What is smaller may be taken for zero, and become zero (``docs/numerics.md``)."""

HUGE = 1e37
"""Sums of values beyond this may overflow on the way."""

SMALL = 1e-30
"""What a tensor of such numbers is multiplied with may be lost."""

FAR = 1000.0
"""Beyond this nothing is promised about sine and cosine."""

log = logging.getLogger("gpuedge")


class NotComparable(Exception):  # noqa: N818  (a message between two functions, no failure)
    """No statement can be made about these inputs; the text says why."""


class CrossCheck:
    """Compares a share of the inferences of one compiled graph with the CPU's.

    Not for several threads at once.

    Parameters
    ----------
    graph : Graph
        The whole graph, however it is placed.
    share : float
        Share of inferences to compare, 0 to 1.
    cpu : Executor
        What computes them again.
    storage : str
        How the device keeps tensors, as `Policy.storage` names it; ``float32`` where the device
        does not offer what the policy asks for.

    Attributes
    ----------
    why_off : str or None
        Why nothing is compared; None while something is.
    skipped : int
        Inferences that were due and could not be compared.
    why_skipped : str or None
        Why the last of them could not.
    """

    def __init__(
        self, graph: Graph, share: float, cpu: Executor, *, storage: str = "float32"
    ) -> None:
        self.graph = graph
        self.skipped = 0
        self.why_skipped: str | None = None
        self.why_off: str | None = None if share > 0 else "cross-checks are switched off"
        if storage == "fixed16" and share > 0:
            self.why_off = "fixed-point tensors clip to ranges that no error bound knows"
        self._every = round(1 / share) if share > 0 else 0
        self._half = HALF_ULP if storage == "float16" else 0.0
        self._cpu = cpu
        self._until = 1 if self.why_off is None else 0
        self._again: Executable | None = None
        self._depth: DepthErrors | None = None

    def is_due(self) -> bool:
        """Count an inference, and tell whether it is to be compared: the first, then each n-th."""
        self._until -= 1
        if self._until != 0:
            return False
        self._until = self._every
        return True

    def copies(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return copies of the inputs of an inference that is to be compared.

        Both sides compute from the copies: the caller's arrays may change meanwhile. None where
        nothing is compared, or where there is no memory for that.
        """
        if self.why_off is not None:
            return None
        try:
            return {name: array.copy() for name, array in inputs.items()}
        except MemoryError:
            self._skip("there is no memory for a copy of the inputs")
            return None

    def compare(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        """Compare the outputs of an inference with the CPU's.

        Returns
        -------
        str or None
            A sentence if they differ by more than right results can; None if they agree, or if
            these inputs cannot be judged (counted in `skipped`).
        """
        if self.why_off is not None:
            return None
        try:
            return self._compare(inputs, outputs)
        except NotComparable as why:
            self._skip(str(why))
        except GpuEdgeError as error:
            self._skip(f"the CPU cannot repeat it: {error.what}")
        except MemoryError:  # the answer is there; only the comparison has no room
            self._skip("the CPU cannot repeat it: out of memory")
        return None

    def close(self) -> None:
        """Release what the CPU holds; may be called twice."""
        again, self._again = self._again, None
        if again is not None:
            again.close()

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self.why_skipped = why
        log.debug("an inference is not compared: %s", why)

    def _compare(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        for name in self.graph.inputs:
            if inputs[name].dtype.kind == "f" and not np.isfinite(inputs[name]).all():
                raise NotComparable(f"the input '{name}' is not finite")
        if self._depth is None:
            self._depth = DepthErrors(self.graph, self._half)
        errors, unknown = self._depth.errors, self._depth.unknown
        names = [n for n in self.graph.outputs if n not in unknown]
        if not names:
            self.why_off = next(iter(unknown.values()), "the model has no outputs")
            self._until = 0
            raise NotComparable(self.why_off)
        if self._again is None:
            self._again = self._cpu.compile(self.graph)
        wanted = self._again.run(inputs)
        said = {n: _said(n, outputs[n], wanted[n], errors.get(n, 0.0)) for n in names}
        wrong = [n for n in names if said[n] is not None]
        if wrong and any(outputs[n].dtype.kind == "f" for n in wrong):
            errors = self._measured(inputs)
            said = {n: _said(n, outputs[n], wanted[n], errors.get(n, 0.0)) for n in wrong}
        return next(filter(None, said.values()), None)

    def _measured(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Return the errors of all values for these very inputs."""
        values = float_values(self.graph, inputs, self._cpu)
        values |= {n: a for n, a in self.graph.constants.items() if a.dtype.kind == "f"}
        sizes = {name: range_of(array) for name, array in values.items()}
        for node in self.graph.nodes:
            for name in (n for n in node.inputs if n in sizes):
                _require_promised(node, name, values[name], max(map(abs, sizes[name])))
        return DepthErrors(self.graph, self._half, sizes).errors


def _require_promised(node: Node, name: str, operand: Array, size: float) -> None:
    """Raise NotComparable for operands whose results ``docs/numerics.md`` says nothing about."""
    if size > HUGE:
        raise NotComparable(f"'{name}' is not finite, or nearly so")
    if 0 < size < SMALL:
        raise NotComparable(f"'{name}' is so small that products of it may become zero")
    if node.op in ("Sin", "Cos") and size > FAR:
        raise NotComparable(f"nothing is promised about {node.op} beyond {FAR:g}")
    is_denormal = (np.abs(operand) < TINY) & (operand != 0)
    if (node.op in _AT_ZERO or node.op in JUMPS) and is_denormal.any():
        raise NotComparable(f"'{name}' holds denormal numbers, which may become zero")


_AT_ZERO = frozenset(("Div", "Log", "Pow", "Reciprocal"))
"""Operators whose result for zero is far from that for a denormal number."""

_SPREADING = frozenset((
    "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
    "MeanVarianceNormalization",
))  # fmt: skip

_EXPONENTIAL = frozenset(("Cosh", "Exp", "LogSoftmax", "Pow", "ReduceLogSumExp", "Sinh", "Softmax"))

_JOINING = frozenset(("Add", "Concat", "Max", "Mean", "Min", "Sub", "Sum", "Where"))

_RANDOM = ("Random", "Multinomial", "Bernoulli")


class DepthErrors:
    """The relative errors of the values of a graph, added up along its depth.

    Parameters
    ----------
    graph : Graph
    kept : float
        What keeping a value on the device may change it by.
    sizes : mapping, optional
        Lowest and highest number of each value. Without it every operation is taken for one whose
        result is as large as its operands.

    Attributes
    ----------
    errors : dict of str to float
        By value; none for those that are exact.
    unknown : dict of str to str
        Values that nothing can be said about, with the reason.
    """

    def __init__(
        self, graph: Graph, kept: float = 0.0, sizes: Mapping[str, Range] | None = None
    ) -> None:
        self._graph = graph
        self._kept = kept
        self._sizes = sizes
        self._floats = {n for n, t in graph.types.items() if t.dtype.startswith("float")}
        given = (*graph.inputs, *graph.constants) if kept else ()
        self.errors: dict[str, float] = {n: kept for n in given if n in self._floats}
        self.unknown: dict[str, str] = {}
        for node in graph.nodes:
            self._follow(node)

    def _follow(self, node: Node) -> None:
        is_inexact = any(self.errors.get(n) for n in node.inputs)
        outputs = [name for name in node.outputs if name]
        why = next((self.unknown[n] for n in node.inputs if n in self.unknown), None)
        if why is None:
            why = self._why_unknown(node, outputs, is_inexact=is_inexact)
        for name in outputs:
            if why is not None:
                self.unknown[name] = why
            elif name in self._floats:
                self.errors[name] = self._error(node, name)

    def _why_unknown(self, node: Node, outputs: list[str], *, is_inexact: bool) -> str | None:
        has_graphs = any(hasattr(value, "ByteSize") for value in node.attrs.values())
        if node.domain or has_graphs or node.op.startswith(_RANDOM):
            return f"no error bound for {node.op}"
        becomes_whole = node.op not in SHAPES and not self._floats.issuperset(outputs)
        if is_inexact and (node.op in JUMPS or becomes_whole):
            return f"no error bound for {node.op}, whose operands are inexact"
        return None

    def _error(self, node: Node, name: str) -> float:
        """Return the error of a result from that of the operands and the operation's own."""
        own, kept = own_error(node, self._graph), self._kept
        before = max((self.errors.get(n, 0.0) for n in node.inputs), default=0.0)
        added = own.relative + own.absolute
        if self._sizes is not None:
            size = _size(self._sizes.get(name))
            gain = self._gain(node, size, self._sizes)
            added = own.relative + own.absolute / size
            if node.op in SUMS or node.op in _SPREADING:
                added *= gain  # the roundings of what cancels are as large as its operands' are
            before = (
                self._passed_on(node, size, self._sizes) if node.op in _JOINING else before * gain
            )
        if self._graph.types[name].dtype == "float16":
            kept = max(kept, HALF_ULP)
        return before + added + (kept if before > 0 or added > 0 else 0.0)

    def _passed_on(self, node: Node, size: float, sizes: Mapping[str, Range]) -> float:
        """Return the error that operands bring which are joined element by element."""
        found = 0.0
        for name in node.inputs:
            ratio = _size(sizes.get(name)) / size
            ratio = 1.0 if 1.0 <= ratio <= ORDINARY else ratio
            found = max(found, self.errors.get(name, 0.0) * ratio)
        return found

    def _gain(self, node: Node, size: float, sizes: Mapping[str, Range]) -> float:
        """Return by how much an operation enlarges the relative error of its operands."""
        given = [_size(sizes.get(n)) for n in node.inputs if n]
        gain = 1.0
        if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            whole = given[0] * given[1] * math.sqrt(terms(node, self._graph))
            gain = (whole + sum(given[2:])) / size
        elif node.op in SUMS:
            gain = max(given, default=0.0) / size
        elif node.op in _SPREADING:
            low, high = sizes.get(node.inputs[0], (0.0, 0.0))
            gain = given[0] / max(high - low, TINY)
        elif node.op in _EXPONENTIAL:
            return max(1.0, *given)
        elif node.op == "Log":
            return max(1.0, 1 / size)
        elif node.op in ("Div", "Reciprocal"):
            low, high = sizes.get(node.inputs[-1], (1.0, 1.0))
            if low <= 0 <= high:
                raise NotComparable(f"{node.op} divides by numbers around zero")
            gain = max(abs(low), abs(high)) / min(abs(low), abs(high))
        return gain if gain > ORDINARY else 1.0


def _size(found: Range | None) -> float:
    return max(TINY, 1.0 if found is None else max(map(abs, found)))


def _said(name: str, found: Array, wanted: Array, error: float) -> str | None:
    """Return what is wrong with an output; None if nothing is."""
    if found.shape != wanted.shape:
        return f"'{name}' has shape {list(found.shape)} instead of {list(wanted.shape)}"
    if found.dtype.kind == "f":
        finite = np.isfinite(wanted)  # nothing is promised about the others
        y = np.where(finite, wanted, 0.0).astype(np.float64)
        with np.errstate(all="ignore"):
            apart = np.where(finite, np.abs(found.astype(np.float64) - y), 0.0)
            is_lost = np.isinf(wanted) & (np.abs(found) < HUGE)
        apart = np.where(is_lost | np.isnan(apart), np.inf, apart)
        size, tiny = max(TINY, float(np.abs(y).max(initial=0.0))), 4 * TINY
        if size > HUGE:
            return None
        allowed = FACTOR * error * size + tiny
        whole = FACTOR * error * max(TINY, float(np.linalg.norm(y))) + tiny * math.sqrt(y.size)
        is_far = bool(y.size) and float(np.linalg.norm(apart)) > whole
    else:
        apart, allowed, is_far = np.asarray(found != wanted, np.float64), 0.0, False
    count = int(np.count_nonzero(apart > allowed))
    if not count and not is_far:
        return None
    at = np.unravel_index(int(np.argmax(apart)), apart.shape)
    place = ", ".join(str(int(i)) for i in at)
    what = f"{count} of {apart.size} elements" if count else f"All {apart.size} elements together"
    return (
        f"{what} of '{name}' differ from the CPU's, such as [{place}]: {found[at]:.9g} instead of "
        f"{wanted[at]:.9g} (allowed: {allowed:.2g})"
    )
