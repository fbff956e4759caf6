"""Sampled cross-check: a few inferences of a GPU are repeated on the CPU and compared.

A driver that computed rightly when it was probed may stop doing so: heat, memory that fails, an
update while it runs. What this looks for is a driver that lies, not the last bit. First results are
compared by size: what differs by no more than `SCREEN` roundings, times the square root of the
number of nodes, is right. Where that is not enough, running errors are computed for these very
inputs from the descriptions of the operators (`gpuedge.opset.errors`). Floats may differ by
`FACTOR` times that. Integers must be equal, but for steps where a number was rounded next to a tie.

The CPU is held to the same: where its result and the description's are further apart than that, a
device is not right because it is close to one of them.

An operator without a description runs on the CPU on either side. It passes on the relative error of
its operands, `PASSED_ON` times as large. Of integers that it makes of inexact operands, and of
random numbers, nothing is known. What differs where nothing is known is not compared, and `note`
says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executor
from gpuedge.graph.expand import expand, operator_of
from gpuedge.graph.ir import Array, Graph, Node, type_of
from gpuedge.opset import facts_of
from gpuedge.opset.bounds import TINY, Num, U
from gpuedge.opset.errors import FACTOR, HUGE, allowed, exact, tensor_errors
from gpuedge.opset.tensor import Length
from gpuedge.runtime.ranges import all_values

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
        if self.left > 1:
            self.left -= 1
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
        halves = 4 * HALF_ULP * (self._is_half or self._in_half)
        share = (SCREEN * U + halves) * math.sqrt(len(self.graph.nodes))
        apart = [n for n, y in wanted.items() if not _is_close(outputs[n], y, share)]
        if not apart:
            return None
        bounds = RunningErrors(
            self.graph, inputs, self._cpu, is_half=self._is_half, in_half=self._in_half
        )
        differences = [
            _Difference(n, outputs[n], wanted[n], bounds.values[n], bounds.cpu[n]) for n in apart
        ]
        if all(np.isinf(bounds.values[n].e).all() for n in wanted) and bounds.is_lasting:
            self.is_off, self.note = True, bounds.unknown
        else:
            why = bounds.unknown or "rounding could change it by any amount"
            self.note = next((f"{d.left_out} ({why})" for d in differences if d.left_out), "")
        return next((d.said for d in differences if d.said), None)


def _is_close(result: Array, wanted: Array, share: float) -> bool:
    if result.shape != wanted.shape:
        return False
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(result, wanted))
    most = _size(wanted)
    return most < HUGE and bool(np.allclose(result, wanted, 0, share * most, equal_nan=True))


def _size(array: Array) -> float:
    """Return the largest finite absolute value."""
    size = np.abs(array, where=np.isfinite(array), out=np.zeros_like(array))
    return float(size.max(initial=0.0))


class _Difference:
    """What is wrong with an output that differs from the CPU's, and what nothing can be said of.

    Attributes
    ----------
    said, left_out : str
        Sentences; empty if nothing is.

    `apart` is what the CPU computes node by node: of quantised functions ONNX Runtime has whole
    ones (QLinearSoftmax), which differ from that by a step.
    """

    def __init__(self, name: str, result: Array, wanted: Array, right: Num, apart: Array) -> None:
        self.said = self.left_out = ""
        if result.shape != wanted.shape:
            if np.isfinite(right.e).any() or not wanted.size:
                self.said = f"'{name}' has shape {[*result.shape]} instead of {[*wanted.shape]}"
            else:
                self.left_out = f"'{name}' is not compared"
            return
        is_float = wanted.dtype.kind == "f"
        with np.errstate(all="ignore"):
            y, most = right.v, allowed(right, is_whole=not is_float)
            value, cpu = result.astype(np.float64), wanted.astype(np.float64)
            single = apart.astype(np.float64)
            is_unknown = np.isinf(most) | np.isnan(y) | ((wanted.dtype.kind == "b") & (most > 0))
            is_right = (np.abs(value - y) <= most) & ~(np.abs(value - single) > 2 * most)
            is_same = (value == cpu) if is_float else (result == wanted)  # float64 holds 53 bits
            is_exact = is_float | (most > 0) | (result == apart)
            is_right = is_unknown | is_same | (is_right & is_exact)
            if is_float:
                is_unknown |= (np.abs(y) + most > HUGE) & (np.abs(y) - most <= HUGE)
                is_right |= is_unknown | ((np.abs(y) - most > HUGE) & (value * np.sign(y) > HUGE))
            is_unknown &= (value != cpu) & ~(np.isnan(value) & np.isnan(cpu))
        if is_unknown.any():
            count = np.count_nonzero(is_unknown)
            is_all = count == result.size
            some = (
                f"'{name}' is" if is_all else f"{count} of {result.size} elements of '{name}' are"
            )
            self.left_out = f"{some} not compared"
        if is_right.all():
            return
        at = np.unravel_index(int(np.argmin(is_right)), is_right.shape)
        place = ", ".join(str(int(i)) for i in at)
        self.said = (
            f"{np.count_nonzero(~is_right)} of {result.size} elements of '{name}' differ from the "
            f"CPU's, such as [{place}]: {result[at]:.9g} instead of {wanted[at]:.9g} "
            f"(allowed: {np.broadcast_to(most, result.shape)[at]:.2g})"
        )


class RunningErrors:
    """How far a GPU may be from the values of a graph, for these very inputs.

    Attributes
    ----------
    values : dict of str to Num
        Every value, with its running error; infinite where nothing is known.
    cpu : dict of str to ndarray
        The same as the CPU computes it, node by node.
    unknown : str
        Why nothing is known of some value; empty if something is of each.
    is_lasting : bool
        Whether that is so whatever the inputs.

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
        self.unknown, self.is_lasting = "", False
        self._is_half, self._in_half = is_half, in_half
        self.cpu = {**graph.constants, **all_values(graph, inputs, cpu)}
        # what only values tell is told by now
        told = {n: type_of(a) for n, a in self.cpu.items() if n not in graph.types}
        graph = replace(graph, types={**graph.types, **told})
        given = {name: self.cpu[name] for name in (*graph.constants, *graph.inputs)}
        with np.errstate(all="ignore"):
            self.values = {n: self._kept(exact(a), a.dtype) for n, a in given.items()}
            for node in graph.nodes:
                self._follow(node, graph)

    def _follow(self, node: Node, graph: Graph) -> None:
        try:
            tensors = expand(node, graph, is_half=self._in_half)
            is_coarse = self._is_half or self._in_half
            counts = [t.length.count for t in tensors if t.length is not None]
            errors = tensor_errors(
                [*tensors, *counts], self.values, HALF_ULP if is_coarse else BIAS
            )
            sizes = iter(errors[len(tensors) :])
            errors = [x if t.length is None else self._cut(node, x, t.length, next(sizes))
                    for t, x in zip(tensors, errors, strict=False)]  # fmt: skip
        except GpuEdgeError:
            errors = self._passed_on(node)
        for name, x in zip(node.outputs, errors, strict=False):
            if not name:
                continue
            if name not in self.cpu:
                self.values[name] = self._nothing_known(node, "type is unknown")
                continue
            self.values[name] = self._open_beyond(node, self._beside(x, self.cpu[name]), name)

    def _open_beyond(self, node: Node, x: Num, name: str) -> Num:
        """Return integers of which nothing is known where floats did not fit into their type."""
        known, dtype = operator_of(node), self.cpu[name].dtype
        if known is None or not known.is_open_beyond or dtype.kind not in "iu":
            return x
        source, about = self.values[node.inputs[0]], np.iinfo(dtype)
        v, e = np.trunc(source.v), np.broadcast_to(source.e, source.v.shape)
        is_open = ~((v - e >= about.min) & (v + e <= about.max)).reshape(x.v.shape)
        if is_open.any():
            self.unknown = self.unknown or f"ONNX leaves open what {node.op} makes beyond {dtype}"
        return Num(x.v, np.where(is_open, np.inf, x.e))

    def _beside(self, x: Num, cpu: Array) -> Num:
        """Return a value with errors beside the CPU's, which has some of its own.

        No more than are allowed, or than functions of ONNX Runtime are approximated to: its
        Sigmoid is 4e-8 off wherever it is. What is further away is another number.
        """
        e = np.where(np.isnan(x.e), np.inf, x.e)
        if cpu.dtype.kind != "f":
            is_near = np.abs(x.v - cpu) <= e
            return Num(np.where(is_near, cpu, x.v), e)
        kept = self._kept(Num(x.v, e), cpu.dtype)
        own = np.where(np.isfinite(cpu), np.abs(x.v - cpu), 0.0)
        most = max(1.0, _size(cpu))
        own = np.where(np.isnan(own), 0.0, np.minimum(own, FACTOR * kept.e + SCREEN * U * most))
        return Num(x.v, kept.e + own)

    def _cut(self, node: Node, x: Num, length: Length, count: Num) -> Num:
        """Return what there is of a result whose size values tell."""
        if count.e.any():
            return self._nothing_known(node, "size inexact values tell", is_lasting=False)
        kept = (slice(None),) * length.axis + (slice(int(count.v.reshape(-1)[0])),)
        return Num(x.v[kept], x.e[kept])

    def _nothing_known(self, node: Node, why: str, *, is_lasting: bool = True) -> Num:
        """Note an operator, and return what allows any result of it."""
        self.is_lasting |= is_lasting
        self.unknown = self.unknown or f"no error bound for {node.op}, whose {why}"
        return Num(np.zeros(()), np.full((), np.inf))

    def _kept(self, value: Num, dtype: np.dtype[np.generic]) -> Num:
        """Return a value as the device keeps it."""
        if dtype.kind != "f":
            return value
        v, e = value
        if self._is_half or dtype == np.float16:
            is_lost = np.abs(v) + e > HALF_MOST
            is_held = (e == 0) & (v.astype(np.float16) == v) & (np.abs(v) >= HALF_TINY)
            own = np.where(is_held, 0.0, HALF_ULP * np.abs(v) + HALF_TINY * (v != 0))
            e = np.where(is_lost, np.inf, e + own)
        # Denormal numbers may become zero.
        return Num(v, np.where(np.abs(v) < TINY, np.maximum(e, np.abs(v)), e))

    def _passed_on(self, node: Node) -> list[Num]:
        """Return what an operator without a description makes of errors."""
        given = [self.values[n] for n in node.inputs if n in self.values]
        worst = max((_relative(x) for x in given), default=0.0) * PASSED_ON
        is_random = facts_of(node.op).is_random
        has_graphs = any(hasattr(value, "ByteSize") for value in node.attrs.values())
        errors = []
        for name in node.outputs:
            v = np.asarray(self.cpu.get(name, 0.0))
            is_unknown = is_random or has_graphs or (v.dtype.kind != "f" and worst > 0)
            if is_unknown and name:
                self.is_lasting = True
                why = "" if is_random or has_graphs else ", whose operands are inexact"
                self.unknown = self.unknown or f"no error bound for {node.op}{why}"
            share = math.inf if is_unknown else worst
            size = np.abs(v.astype(np.float64)).max(initial=0.0) if share < math.inf else 1.0
            errors.append(
                Num(v.astype(np.float64), np.full(v.shape, share * size if share else 0.0))
            )
        return errors


def _relative(x: Num) -> float:
    """Return the error of a tensor relative to its size."""
    size, error = float(np.linalg.norm(x.v)), float(np.linalg.norm(x.e))
    return 0.0 if error == 0 else error / size if size > 0 else math.inf
