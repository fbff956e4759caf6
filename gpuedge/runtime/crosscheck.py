"""Sampled cross-check: a few inferences of a GPU are repeated on the CPU and compared.

A driver that computed rightly when it was probed may stop doing so: heat, memory that fails, an
update while it runs. What this looks for is a driver that lies, not the last bit. First results are
compared by size: what differs by no more than `SCREEN` roundings, times the square root of the
number of nodes, is right. Where that is not enough, running errors are computed for these very
inputs from the descriptions of the operators (`gpuedge.opset`): every function, sum and rounding
adds the error that it is allowed, and passes on that of its operands. Errors of different origin
are added as independent ones: by their squares (Higham and Mary, "A new approach to probabilistic
rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019), because worst cases of a deep model
exceed every value. An output may differ by `FACTOR` times that.

An operator without a description runs on the CPU on either side. It passes on the relative error of
its operands, `PASSED_ON` times as large. Of integers that it makes of inexact operands, and of
random numbers, nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.expand import expand
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.opset import conv, pool
from gpuedge.opset.bounds import TINY, ULP, Num, U
from gpuedge.opset.evaluate import Elements
from gpuedge.opset.expr import Apply, Expr, Load, Number, Where, loads, walk
from gpuedge.opset.functions import FUNCTIONS
from gpuedge.opset.tensor import (
    Constant,
    Convolution,
    Given,
    Map,
    Pooling,
    Product,
    Reduce,
    Tensor,
    reachable,
)
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

HUGE = 1e37
"""Sums of values beyond this may overflow on the way."""

FAR = 1000.0
"""Beyond this nothing is promised about sine and cosine (``docs/numerics.md``)."""


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
    note : str
        What is not compared, and why: all of it, or the last inference that was due and could not
        be; empty while everything is compared.
    is_off : bool
        Whether nothing is compared any more.
    left : int
        Inferences up to the next one that is due, which counts.
    """

    def __init__(
        self, graph: Graph, share: float, cpu: Executor, *, storage: str = "float32"
    ) -> None:
        self.graph = graph
        self.note = "" if share > 0 else "cross-checks are switched off"
        if storage == "fixed16" and share > 0:
            self.note = "fixed-point tensors clip to ranges that no error bound knows"
        self.is_off = bool(self.note)
        self._every = round(1 / share) if share > 0 else 0
        self._is_half = storage == "float16"
        self._cpu = cpu
        self.left = NEVER if self.is_off else 1
        self._again: Executable | None = None

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

    def compare(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        """Return a sentence if outputs differ from the CPU's by more than right results can.

        None if they agree, or if these inputs cannot be judged (`note` says why).
        """
        if self.is_off:
            return None
        for name in self.graph.inputs:
            if inputs[name].dtype.kind == "f" and not np.isfinite(inputs[name]).all():
                self.note = f"the input '{name}' is not finite"
                return None
        try:
            return self._compare(inputs, outputs)
        except GpuEdgeError as error:
            self.note = f"the CPU cannot repeat it: {error.what}"
        except MemoryError:  # the answer is there; only the comparison has no room
            self.note = "the CPU cannot repeat it: out of memory"
        return None

    def close(self) -> None:
        """Release what the CPU holds; may be called twice."""
        again, self._again = self._again, None
        if again is not None:
            again.close()

    def _compare(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        if self._again is None:
            self._again = self._cpu.compile(self.graph)
        wanted = self._again.run(inputs)
        self.note = ""
        for name, y in wanted.items():
            if outputs[name].shape != y.shape:
                found = list(outputs[name].shape)
                return f"'{name}' has shape {found} instead of {list(y.shape)}"
        share = (SCREEN * U + 4 * HALF_ULP * self._is_half) * math.sqrt(len(self.graph.nodes))
        apart = [n for n, y in wanted.items() if not _is_close(outputs[n], y, share)]
        if not apart:
            return None
        bounds = RunningErrors(self.graph, inputs, self._cpu, is_half=self._is_half)
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
    """

    def __init__(
        self, graph: Graph, inputs: Mapping[str, Array], cpu: Executor, *, is_half: bool = False
    ) -> None:
        self.unknown = ""
        self._is_half = is_half
        self._cpu = {**graph.constants, **all_values(graph, inputs, cpu)}
        given = {name: self._cpu[name] for name in (*graph.constants, *graph.inputs)}
        self.values = {n: self._kept(_exact(a), a.dtype) for n, a in given.items()}
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                self._follow(node, graph)

    def _follow(self, node: Node, graph: Graph) -> None:
        try:
            made = _bounded(expand(node, graph), self.values, HALF_ULP if self._is_half else BIAS)
        except GpuEdgeError:
            made = self._passed_on(node)
        for name, x in zip(node.outputs, made, strict=False):
            if not name:
                continue
            cpu = self._cpu[name]
            is_float = cpu.dtype.kind == "f"  # of which the CPU has errors of its own
            own = np.where(np.isfinite(cpu), np.abs(x.v - cpu), 0.0)
            e = x.e + own if is_float else np.where(x.e > 0, np.inf, 0.0)
            found = Num(x.v, np.where(np.isnan(e), np.inf, e))
            self.values[name] = self._kept(found, cpu.dtype)

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


def _exact(array: Array) -> Num:
    v = array.astype(np.float64)
    return Num(v, np.zeros_like(v))


def _relative(x: Num) -> float:
    """Return the error of a tensor relative to its size."""
    size, error = float(np.linalg.norm(x.v)), float(np.linalg.norm(x.e))
    return 0.0 if error == 0 else error / size if size > 0 else math.inf


def _bounded(outputs: Iterable[Tensor], given: Mapping[str, Num], bias: float) -> list[Num]:
    """Return tensors with their running errors."""
    wanted, done = list(outputs), dict[int, Num]()
    for one in reachable(wanted):
        source = one.source
        if isinstance(source, Given):
            x = given[source.name]  # of infinity nothing follows
            found = Num(x.v, np.where(np.abs(x.v) > HUGE, np.inf, x.e))
        elif isinstance(source, Constant):
            found = given[source.name] if source.name in given else _exact(source.array)
        elif isinstance(source, Map):
            found = _elements(one.shape, source.body, done)
        elif isinstance(source, Reduce):
            found = _reduced(one, source, done, bias)
        elif isinstance(source, Product):
            a, b = done[source.a.serial], done[source.b.serial]
            found = _products(np.matmul, a, b, a.v.shape[-1], bias)
        elif isinstance(source, Convolution):
            found = _convolved(source, done, bias)
        elif isinstance(source, Pooling):
            found = _pooled(source, done[source.x.serial])
        done[one.serial] = Num(found.v.reshape(one.shape), found.e.reshape(one.shape))
    return [done[one.serial] for one in wanted]


def _elements(shape: tuple[int, ...], body: Expr, done: Mapping[int, Num]) -> Num:
    """Return an expression at all positions of a shape; errors of different tensors by squares."""
    inexact = {t.serial for t in (load.tensor for load in loads(body)) if done[t.serial].e.any()}
    v, own = _once(shape, body, done, frozenset())
    if len(inexact) == 1:
        return _once(shape, body, done, inexact)
    squares: Array = np.zeros(())
    for one in inexact:
        squares = squares + np.maximum(_once(shape, body, done, {one}).e - own, 0.0) ** 2
    return Num(v, own + np.sqrt(squares))


def _once(
    shape: tuple[int, ...], body: Expr, done: Mapping[int, Num], inexact: Iterable[int]
) -> Num:
    """Return an expression at all positions, as if only some tensors had errors."""
    at = Elements(shape, {serial: value.v for serial, value in done.items()})
    errors = Elements(shape, {serial: done[serial].e for serial in inexact})
    errors.values = at.values
    found: dict[int, Num] = {}
    for one in walk(body):
        if isinstance(one, Number):
            made = Num.of(one.value)
        elif isinstance(one, Load):
            v = at.load(one)
            is_known = one.tensor.serial in inexact
            made = Num(v, errors.load(one) if is_known else np.zeros_like(v))
        elif isinstance(one, Apply):
            made = _applied(one.function, [found[id(a)] for a in one.args])
        elif isinstance(one, Where):
            yes, no, test = found[id(one.yes)], found[id(one.no)], at.test(one.test)
            made = Num(np.where(test, yes.v, no.v), np.where(test, yes.e, no.e))
        else:
            made = Num.of(at.compute(one).astype(np.float64))
        found[id(one)] = made
        at.values[id(one)] = made.v
    v, e = found[id(body)]
    return Num(np.broadcast_to(v, shape), np.broadcast_to(e, shape))


def _applied(function: str, args: list[Num]) -> Num:
    """Return a function of numbers with errors; nothing is known where it is not promised."""
    made = FUNCTIONS[function].error(*args)
    x = args[-1] if function == "div" else args[0]
    if function in ("sin", "cos"):
        return Num(made.v, np.where(np.abs(x.v) > FAR, np.inf, made.e))
    if function in ("log", "div", "pow"):  # zero is possible
        return Num(made.v, np.where((np.abs(x.v) <= x.e) & (x.e > 0), np.inf, made.e))
    return made


def _reduced(one: Tensor, source: Reduce, done: Mapping[int, Num], bias: float) -> Num:
    x = _elements((*one.shape, *source.over), source.body, done)
    along = tuple(range(one.rank, one.rank + len(source.over)))
    if source.combine != "sum":
        best = np.max if source.combine == "max" else np.min
        return Num(np.asarray(best(x.v, axis=along)), np.asarray(x.e.max(axis=along, initial=0.0)))
    v, size = x.v.sum(axis=along), np.abs(x.v).sum(axis=along)
    before = np.sqrt((x.e**2).sum(axis=along)) + bias * np.abs(v)
    return Num(np.asarray(v), np.asarray(before + _rounding(math.prod(source.over)) * size))


def _rounding(terms: int) -> float:
    """Return what adding up so many terms adds to the error, relative to their sizes."""
    return U * (math.sqrt(terms) + 2)


def _products(
    multiply: Callable[[Array, Array], Array], a: Num, b: Num, terms: int, bias: float
) -> Num:
    """Return sums of products: a matrix product, or a convolution."""
    v = multiply(a.v, b.v)
    e = _rounding(terms) * multiply(np.abs(a.v), np.abs(b.v))
    if a.e.any() or b.e.any():
        squares = multiply(a.v**2, b.e**2) + multiply(a.e**2, b.v**2)
        e = e + np.sqrt(np.abs(squares)) + bias * np.abs(v)
    return Num(v, e + TINY)


def _convolved(source: Convolution, done: Mapping[int, Num], bias: float) -> Num:
    x, w = done[source.x.serial], done[source.w.serial]
    terms = math.prod(w.v.shape[1:])
    if source.is_transposed:
        terms = math.prod(w.v.shape) // (w.v.shape[1] * source.group)
    made = _products(lambda a, b: conv.compute(source, a, b, None), x, w, terms, bias)
    if source.bias is None:
        return made
    more, column = done[source.bias.serial], (-1,) + (1,) * (made.v.ndim - 2)
    return made + Num(more.v.reshape(column), more.e.reshape(column))


def _pooled(source: Pooling, x: Num) -> Num:
    v, e = pool.compute(source, x.v), np.abs(pool.compute(source, x.e))
    if source.kind == "avg":
        size = pool.compute(source, np.abs(x.v))
        return Num(v, e + (_rounding(math.prod(source.window.kernel)) + 3 * ULP) * size)
    return Num(v, np.minimum(e, x.e.max(initial=0.0)))
