"""Sampled cross-check: a few inferences of a GPU are repeated on the CPU and compared.

A driver that computed rightly when it was probed may stop doing so: heat, memory that fails, an
update while it runs. What this looks for is a driver that lies, not the last bit. First results are
compared by size: what differs by no more than `SCREEN` roundings, times the square root of the
number of nodes, is right. Where that is not enough, running errors are computed for these very
inputs from the descriptions of the operators (`gpuedge.opset.errors`). An output may differ by
`FACTOR` times that.

An operator without a description runs on the CPU on either side. It passes on the relative error of
its operands, `PASSED_ON` times as large. Of integers that it makes of inexact operands, and of
random numbers, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executor
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.opset.bounds import TINY, Num, U
from gpuedge.opset.errors import HUGE, exact, tensor_errors
from gpuedge.runtime.ranges import all_values

FACTOR = 8.0
"""An output may differ by so many times its running error."""

SCREEN = 128.0
"""Roundings, relative to the largest element, up to which nothing more is asked."""

PASSED_ON = 4.0
"""By how much an operator without a description may enlarge relative errors."""

HALF_ULP, HALF_TINY, HALF_MOST = 2.0**-10, 2.0**-14, 65504.0
"""What keeping a value as binary16 may change it by; what may become zero, and infinity."""

BIAS = 8 * U
"""Relative errors that all terms of a sum may have in common; of binary16 it is `HALF_ULP`."""

NEVER = 2**62
"""More inferences than there will be."""


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
    arithmetic : str
        The same of `Policy.arithmetic`.

    Attributes
    ----------
    note : str
        What is not compared, and why: all of it, or the last inference that was due and could not
        be; empty while everything is compared.
    is_off : bool
        Whether nothing is compared any more.
    left : int
        Inferences up to the next one that is due, which counts.
    """

    def __init__(
        self,
        graph: Graph,
        share: float,
        cpu: Executor,
        *,
        storage: str = "float32",
        arithmetic: str = "float32",
    ) -> None:
        self.graph = graph
        self.note = "" if share > 0 else "cross-checks are switched off"
        if storage == "fixed16" and share > 0:
            self.note = "fixed-point tensors clip to ranges that no error bound knows"
        self.is_off = bool(self.note)
        self._every = round(min(1 / share, NEVER)) if share > 0 else 0
        self._is_half, self._in_half = storage == "float16", arithmetic == "float16"
        self._cpu = cpu
        self.left = NEVER if self.is_off else 1

    def is_due(self) -> bool:
        """Count an inference, and tell whether it is to be compared: the first, then each n-th."""
        self.left -= 1
        if self.left != 0:
            return False
        self.left = self._every
        return True

    def copies(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return copies of inputs that are to be compared, which the caller cannot change.

        None where nothing is compared, or where there is no memory for that.
        """
        if self.is_off:
            return None
        try:
            return {name: array.copy() for name, array in inputs.items()}
        except MemoryError:
            self.note = "there is no memory for a copy of the inputs"
            return None

    def compare(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        on_cpu: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    ) -> str | None:
        """Return a sentence if outputs differ from the CPU's by more than right results can.

        `on_cpu` computes these on the CPU. None if they agree, or if these inputs cannot be judged
        (`note` says why).
        """
        if self.is_off:
            return None
        for name in self.graph.inputs:
            if inputs[name].dtype.kind == "f" and not np.isfinite(inputs[name]).all():
                self.note = f"the input '{name}' is not finite"
                return None
        try:
            return self._compare(inputs, outputs, on_cpu(inputs))
        except GpuEdgeError as error:
            self.note = f"the CPU cannot repeat it: {error.what}"
        except MemoryError:  # the answer is there; only the comparison has no room
            self.note = "the CPU cannot repeat it: out of memory"
        return None

    def _compare(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        wanted: Mapping[str, Array],
    ) -> str | None:
        self.note = ""
        for name, y in wanted.items():
            if outputs[name].shape != y.shape and name in self.graph.types:
                found = list(outputs[name].shape)
                return f"'{name}' has shape {found} instead of {list(y.shape)}"
        halves = 4 * HALF_ULP * (self._is_half or self._in_half)
        share = (SCREEN * U + halves) * math.sqrt(len(self.graph.nodes))
        apart = [n for n, y in wanted.items() if not _is_close(outputs[n], y, share)]
        if not apart:
            return None
        bounds = RunningErrors(
            self.graph, inputs, self._cpu, is_half=self._is_half, in_half=self._in_half
        )
        said = [_difference(n, outputs[n], wanted[n], bounds.values[n]) for n in apart]
        if all(np.isinf(bounds.values[n].e).all() for n in wanted) and bounds.unknown:
            self.is_off, self.note = True, bounds.unknown
        return next(filter(None, said), None)


def _is_close(found: Array, wanted: Array, share: float) -> bool:
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(found, wanted))
    size = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted))
    most = float(size.max(initial=0.0))
    return most < HUGE and bool(np.allclose(found, wanted, 0, share * most, equal_nan=True))


def _difference(name: str, found: Array, wanted: Array, right: Num) -> str | None:
    """Return what is wrong with an output; None if nothing is."""
    with np.errstate(all="ignore"):
        y, allowed = right.v, FACTOR * np.where(np.isnan(right.e), np.inf, right.e)
        value = found.astype(np.float64)
        is_right = np.abs(value - y) <= allowed
        is_right |= ~np.isfinite(allowed) | np.isnan(y)
        is_right |= (np.abs(y) + allowed > HUGE) & (np.abs(y) - allowed <= HUGE)
        is_right |= (np.abs(y) - allowed > HUGE) & (value * np.sign(y) > HUGE)
    count = int(np.count_nonzero(~is_right))
    if not count:
        return None
    at = np.unravel_index(int(np.argmin(is_right)), is_right.shape)
    place = ", ".join(str(int(i)) for i in at)
    return (
        f"{count} of {found.size} elements of '{name}' differ from the CPU's, such as [{place}]: "
        f"{found[at]:.9g} instead of {wanted[at]:.9g} (allowed: {allowed[at]:.2g})"
    )


class RunningErrors:
    """How far a GPU may be from the values of a graph, for these very inputs.

    Attributes
    ----------
    values : dict of str to Num
        Every value, with its running error; infinite where nothing is known.
    unknown : str
        Why nothing is known of some value; empty if something is of each.

    `is_half`: the device keeps them in float16; `in_half`: it computes in it.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        cpu: Executor,
        *,
        is_half: bool = False,
        in_half: bool = False,
    ) -> None:
        self.unknown = ""
        self._is_half, self._in_half = is_half, in_half
        self._cpu = {**graph.constants, **all_values(graph, inputs, cpu)}
        given = {name: self._cpu[name] for name in (*graph.constants, *graph.inputs)}
        self.values = {n: self._kept(exact(a), a.dtype) for n, a in given.items()}
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                self._follow(node, graph)

    def _follow(self, node: Node, graph: Graph) -> None:
        try:
            tensors = expand(node, graph, is_half=self._in_half)
            if any(t.length is not None for t in tensors):
                made = [self._nothing_known(node, "size only values tell")] * len(tensors)
            else:
                is_coarse = self._is_half or self._in_half
                made = tensor_errors(tensors, self.values, HALF_ULP if is_coarse else BIAS)
        except GpuEdgeError:
            made = self._passed_on(node)
        for name, x in zip(node.outputs, made, strict=False):
            if not name:
                continue
            if name not in self._cpu:
                self.values[name] = self._nothing_known(node, "type is unknown")
                continue
            cpu = self._cpu[name]
            is_float = cpu.dtype.kind == "f"  # of which the CPU has errors of its own
            own = np.where(np.isfinite(cpu), np.abs(x.v - cpu), 0.0)
            e = x.e + own if is_float else np.where(x.e > 0, np.inf, 0.0)
            found = Num(x.v, np.where(np.isnan(e), np.inf, e))
            self.values[name] = self._kept(found, cpu.dtype)

    def _nothing_known(self, node: Node, why: str) -> Num:
        """Note an operator, and return what allows any result of it."""
        self.unknown = self.unknown or f"no error bound for {node.op}, whose {why}"
        return Num(np.zeros(()), np.full((), np.inf))

    def _kept(self, value: Num, dtype: np.dtype[np.generic]) -> Num:
        """Return a value as the device keeps it."""
        if dtype.kind != "f":
            return value
        v, e = value
        if self._is_half or dtype == np.float16:
            is_lost = np.abs(v) + e > HALF_MOST
            e = np.where(is_lost, np.inf, e + HALF_ULP * np.abs(v) + HALF_TINY * (v != 0))
        # Denormal numbers may become zero.
        return Num(v, np.where(np.abs(v) < TINY, np.maximum(e, np.abs(v)), e))

    def _passed_on(self, node: Node) -> list[Num]:
        """Return what an operator without a description makes of errors."""
        given = [self.values[n] for n in node.inputs if n in self.values]
        worst = max((_relative(x) for x in given), default=0.0) * PASSED_ON
        is_random = node.op.startswith(("Random", "Multinomial", "Bernoulli"))
        has_graphs = any(hasattr(value, "ByteSize") for value in node.attrs.values())
        made = []
        for name in node.outputs:
            v = np.asarray(self._cpu.get(name, 0.0))
            is_unknown = is_random or has_graphs or (v.dtype.kind != "f" and worst > 0)
            if is_unknown and name:
                why = "" if is_random or has_graphs else ", whose operands are inexact"
                self.unknown = self.unknown or f"no error bound for {node.op}{why}"
            share = math.inf if is_unknown else worst
            size = np.abs(v.astype(np.float64)).max(initial=0.0) if share < math.inf else 1.0
            made.append(Num(v.astype(np.float64), np.full(v.shape, share * size if share else 0.0)))
        return made


def _relative(x: Num) -> float:
    """Return the error of a tensor relative to its size."""
    size, error = float(np.linalg.norm(x.v)), float(np.linalg.norm(x.e))
    return 0.0 if error == 0 else error / size if size > 0 else math.inf
