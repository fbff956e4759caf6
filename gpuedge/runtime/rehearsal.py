"""How much a graph's results may differ between two right devices, on given inputs.

Worst-case bounds grow with every layer until they say nothing. Here errors of the size that each
operation may make (`gpuedge.runtime.own_error`) are added to its result on the CPU, at random, and
the graph goes on from there: Monte Carlo arithmetic (Parker, "Monte Carlo arithmetic: exploiting
randomness in floating-point arithmetic", UCLA CSD-970002, 1997). What comes out shows how the
errors grow, cancel or are lost in this graph, on these inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuedge.core.errors import ShapeError, UnsupportedOpError
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.canon import canonical, operands
from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.params import Canon, ElementwiseParams
from gpuedge.runtime.own_error import (
    JUMPS,
    RANDOM,
    SMOOTH,
    flushed,
    half_error,
    is_exact,
    is_linear,
    kept,
    other_error,
    outside,
    own_error,
    spread,
    terms,
)

FACTOR = 8.0
"""A tolerance is this many times the deviation that the added errors cause."""

SAMPLES = 4
"""Runs with errors added: all upwards, all downwards, the rest at random."""

MOST_JUMPS = 4
"""Nodes whose result jumps that are followed; what comes after more of them is not compared."""

HALF_MOST = 60000.0
"""Beyond this a device that keeps binary16 may make infinity."""

FLOATS = ("float16", "float32", "float64")


class Untracked(Exception):  # noqa: N818  (a message between two functions, no failure)
    """No statement can be made about these inputs; the text says why."""


class Rehearsal:
    """A graph that can be run on the CPU with errors added to its values.

    Parameters
    ----------
    graph : Graph
    cpu : Executor
        The CPU executor.
    is_half : bool
        Whether the device keeps values as binary16.
    """

    def __init__(self, graph: Graph, cpu: Executor, *, is_half: bool = False) -> None:
        self.graph = graph
        self.is_half = is_half
        self.untracked: dict[str, str] = {}
        """Values that nothing can be said about, with the reason."""
        self._cpu = cpu
        self._nodes = [step for node in graph.nodes for step in (node.body or (node,))]
        self._params: dict[str, Canon | None] = {}
        self._noisy: list[str] = []
        self._jumps: list[Node] = []
        self._inexact: set[str] = set()
        self._constants: dict[str, Array] | None = None
        for name in (*graph.inputs, *graph.constants):
            if is_half and self._is_kept(name):
                self._add_noise(name)
        for node in self._nodes:
            self._classify(node)

    def _is_kept(self, name: str) -> bool:
        """Tell whether an input or constant is kept as binary16; biases and scales are not."""
        kind = self.graph.types.get(name)
        is_matrix = name in self.graph.inputs or (kind is not None and len(kind.shape) > 1)
        return kind is not None and kind.dtype == "float32" and is_matrix

    def _add_noise(self, name: str) -> None:
        self._noisy.append(name)
        self._inexact.add(name)

    def _classify(self, node: Node) -> None:
        """Note what errors a node makes, or that nothing is known about its results."""
        lost = next((self.untracked[n] for n in node.inputs if n in self.untracked), None)
        is_inexact = any(n in self._inexact for n in node.inputs)
        params = self._meaning(node)
        outputs = [name for name in node.outputs if name]
        self._params.update(dict.fromkeys(outputs, params))
        if lost is None and params is None:
            lost = self._why_unknown(node, is_inexact=is_inexact)
        if lost is None and is_inexact and node.op in JUMPS:
            self._jumps.append(node)
            if len(self._jumps) > MOST_JUMPS:
                lost = f"more than {MOST_JUMPS} operators whose results jump, such as {node.op}"
        if lost is None and any(name not in self.graph.types for name in outputs):
            lost = f"a result of {node.op} has no known type"
        for name in outputs:
            kind = self.graph.types.get(name)
            if lost is not None:
                self.untracked[name] = lost
            elif kind is not None and kind.dtype in FLOATS:
                moves = params is not None and is_exact(params) and node.op not in JUMPS
                if not moves or (self.is_half and is_inexact):
                    self._add_noise(name)
                elif is_inexact:
                    self._inexact.add(name)

    def _meaning(self, node: Node) -> Canon | None:
        try:
            return canonical(node, self.graph)
        except (UnsupportedOpError, ShapeError):
            return None

    def _why_unknown(self, node: Node, *, is_inexact: bool) -> str | None:
        """Return why nothing can be said about an operator without a canonical form."""
        if (
            node.domain
            or node.op in RANDOM
            or any(hasattr(v, "ByteSize") for v in node.attrs.values())
        ):
            return f"no error bound for {node.op}"
        if is_inexact and node.op not in SMOOTH:
            return f"no error bound for {node.op}, whose operands are inexact"
        return None

    # -- graphs -------------------------------------------------------------------------------

    @property
    def values(self) -> list[str]:
        """Values that are looked at: everything computed that can be followed."""
        made = (name for node in self._nodes for name in node.outputs if name)
        kinds = self.graph.types
        return [n for n in made if n not in self.untracked and kinds[n].dtype in FLOATS]

    def _disturbed(self, op: str = "Add") -> Graph:
        """Return the graph with an input ``NAME//own`` added to each value that has an error.

        `op` is what joins the two.
        """
        types, noisy = dict(self.graph.types), set(self._noisy)
        nodes: list[Node] = []
        for name in (n for n in self._noisy if n in self.graph.inputs or n in self.graph.constants):
            types[f"{name}//sum"] = types[f"{name}//own"] = types[name]
            nodes.append(Node(op, (name, f"{name}//own"), (f"{name}//sum",)))
        given = {
            n: f"{n}//sum"
            for n in self._noisy
            if n in self.graph.inputs or n in self.graph.constants
        }
        for node in self._nodes:
            if any(n in self.untracked for n in node.outputs):
                continue
            outputs = tuple(f"{n}//made" if n in noisy else n for n in node.outputs)
            inputs = tuple(given.get(n, n) for n in node.inputs)
            nodes.append(replace(node, inputs=inputs, outputs=outputs))
            for name in (n for n in node.outputs if n in noisy):
                types[f"{name}//made"] = types[f"{name}//own"] = types[name]
                nodes.append(Node(op, (f"{name}//made", f"{name}//own"), (name,)))
        inputs = (*self.graph.inputs, *(f"{n}//own" for n in self._noisy))
        return replace(
            self.graph, nodes=tuple(nodes), inputs=inputs, outputs=tuple(self.values), types=types
        )

    def _sizes(self) -> Graph:
        """Return a graph of the linear nodes alone, each over magnitudes: ``NAME//size``."""
        types = dict(self.graph.types)
        nodes, constants, inputs = [], dict(self.graph.constants), []
        for node in self._linear():
            for name in filter(None, node.inputs):
                label = f"{name}//abs"
                types[label] = self.graph.types[name]
                if name in self.graph.constants:
                    constants[label] = np.abs(self.graph.constants[name])
                elif label not in inputs:
                    inputs.append(label)
            out = node.outputs[0]
            types[f"{out}//size"] = self.graph.types[out]
            attrs = {k: abs(v) if k in ("alpha", "beta") else v for k, v in node.attrs.items()}
            names = tuple(n and f"{n}//abs" for n in node.inputs)
            nodes.append(Node(node.op, names, (f"{out}//size",), attrs, name=node.name))
        outputs = tuple(n.outputs[0] for n in nodes)
        return replace(
            self.graph, nodes=tuple(nodes), inputs=tuple(inputs), outputs=outputs, types=types,
            constants=constants, folded=(),
        )  # fmt: skip

    def _linear(self) -> Iterator[Node]:
        for node in self._nodes:
            params = self._params.get(node.outputs[0])
            if params is not None and is_linear(params) and node.outputs[0] not in self.untracked:
                yield node

    # -- running ------------------------------------------------------------------------------

    def deviations(self, inputs: Mapping[str, Array], more: int = 0) -> dict[str, Array]:
        """Return how far each output moves, at most, when every operation errs as it may.

        NaN stands for elements that nothing is promised about.

        Parameters
        ----------
        inputs : mapping of str to ndarray
        more : int
            Runs besides the usual `SAMPLES`.

        Raises
        ------
        Untracked
            These inputs lead to values that the analysis does not hold for.
        GpuEdgeError
            The CPU cannot run it.
        """
        disturbed = self._cpu.compile(self._disturbed())
        try:
            return self._deviations(disturbed, inputs, more)
        finally:
            disturbed.close()

    def _deviations(
        self, disturbed: Executable, inputs: Mapping[str, Array], more: int
    ) -> dict[str, Array]:
        kinds = self.graph.types
        silent = {f"{n}//own": np.zeros(kinds[n].shape, kinds[n].dtype) for n in self._noisy}
        base = disturbed.run({**inputs, **silent})
        self._check(base)
        own, unknown = self._own({**self.graph.constants, **inputs, **base})
        without = self._flush(inputs, base)
        for name, value in without.items():  # what kernels make of such infinities is undefined
            if (lost := np.isfinite(base[name]) != np.isfinite(value)).any():
                unknown[name] = unknown.get(name, False) | lost
        spread(unknown, self._nodes, self._params, base)
        rng = np.random.default_rng(len(own))

        def samples(count: int) -> dict[str, Array]:
            """Return the largest deviation of each value in so many runs."""
            largest = {n: _apart(value, base[n]) for n, value in without.items()}
            for signs in _signs(rng, count):
                noise = {f"{n}//own": signs(e) for n, e in own.items()}
                found = disturbed.run({**inputs, **noise})
                for name, value in found.items():
                    moved = _apart(value, base[name])
                    if name in largest:
                        moved = np.maximum(moved, largest[name])
                    largest[name] = moved
            return largest

        for node in self._jumps[:MOST_JUMPS]:
            self._widen(node, base, inputs, samples(SAMPLES), own)
        wanted = [n for n in self.graph.outputs if n not in self.untracked]
        if wanted and all(n in unknown and unknown[n].all() for n in wanted):
            raise Untracked(f"nothing is promised about '{wanted[0]}' for these inputs")
        found = {n: d for n, d in samples(SAMPLES + more).items() if n in wanted}
        return {n: np.where(unknown[n], np.nan, d) if n in unknown else d for n, d in found.items()}

    def _flush(self, inputs: Mapping[str, Array], base: Mapping[str, Array]) -> dict[str, Array]:
        """Return the values where denormal numbers are zero; nothing if that changes nothing."""
        k = {n.outputs[0]: self._terms(n) for n in self._linear()}
        given = {n: flushed(a) if a.dtype.kind == "f" else a for n, a in inputs.items()}
        keep = {f"{n}//own": kept(base[n], k.get(n, 0)) for n in self._noisy if n in base}
        if self._constants is None:
            known = self.graph.constants.items()
            self._constants = {n: flushed(a) if a.dtype.kind == "f" else a for n, a in known}
        same = all(self._constants[n] is a for n, a in self.graph.constants.items())
        same = same and all(given[n] is a for n, a in inputs.items())
        if same and all((one == 1).all() for one in keep.values()):
            return {}
        ones = {f"{n}//own": np.ones(t.shape, t.dtype) for n in self._noisy
                if (t := self.graph.types[n]) and n not in base}  # fmt: skip
        graph = replace(self._disturbed("Mul"), constants=self._constants)
        run = self._cpu.compile(graph)
        try:
            return run.run({**given, **ones, **keep})
        finally:
            run.close()

    def _terms(self, node: Node) -> int:
        params = self._params[node.outputs[0]]
        return terms(params, self.graph, node) if params is not None and is_linear(params) else 0

    def _widen(
        self, node: Node, base: Mapping[str, Array], inputs: Mapping[str, Array],
        moved: Mapping[str, Array], own: dict[str, Array],
    ) -> None:  # fmt: skip
        """Let the result of a node jump wherever its operand is close enough to a jump."""
        name, out = node.inputs[0], node.outputs[0]
        params = self._params[out]
        if not isinstance(params, ElementwiseParams) or out not in own:
            return
        x, f = {**inputs, **base}[name], JUMPS[node.op]
        reach = tolerance(moved[name]) if name in moved else own[name]
        attrs = dict(params.attrs)
        here = f(x, attrs)
        with np.errstate(all="ignore"):
            jump = np.maximum(abs(f(x + reach, attrs) - here), abs(f(x - reach, attrs) - here))
        own[out] = np.maximum(own[out], jump).astype(own[out].dtype)

    def _check(self, base: Mapping[str, Array]) -> None:
        """Raise `Untracked` for values beyond what the analysis holds for."""
        outputs = set(self.graph.outputs)
        used = {n for node in self._nodes for n in node.inputs}
        for name, value in base.items():
            if (name not in outputs or name in used) and not np.isfinite(value).all():
                raise Untracked(f"'{name}' is not finite")
            if self.is_half and value.size and float(np.abs(value).max()) > HALF_MOST:
                raise Untracked(f"'{name}' is too large for float16")

    def _own(self, values: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the error that each noisy value has of its own, and where there is no telling."""
        sizes = self._measure(values)
        found: dict[str, Array] = {}
        unknown: dict[str, Array] = {}
        for name in self._noisy:
            if name in self.graph.inputs or name in self.graph.constants:
                found[name] = half_error(values[name]).astype(values[name].dtype)
        for node in self._nodes:
            for name in (n for n in node.outputs if n in values and n in self._noisy):
                found[name], beyond = self._own_of(node, name, values, sizes)
                if beyond.any():
                    unknown[name] = beyond
        return found, unknown

    def _own_of(
        self, node: Node, name: str, values: Mapping[str, Array], sizes: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        params, y = self._params[name], values[name]
        beyond = np.zeros((), bool)
        if params is None:
            error = other_error(y)
        elif is_exact(params):
            error = np.zeros(y.shape, y.dtype)
        else:
            x = [np.asarray(values[n], np.float32) for n in operands(node)]
            k = self._terms(node)
            error = own_error(params, np.asarray(y, np.float32), x, sizes.get(name), k)
            beyond = outside(params, y, x, error, k)
        if y.dtype == np.float16:
            error = np.maximum(error, half_error(y) + 2.0**-10 * np.abs(y) + 2.0**-24)
        elif self.is_half:
            error = error + half_error(y)
        return np.asarray(np.nan_to_num(error, nan=0.0, posinf=0.0), y.dtype), beyond

    def _measure(self, values: Mapping[str, Array]) -> dict[str, Array]:
        graph = self._sizes()
        if not graph.nodes:
            return {}
        part = self._cpu.compile(graph)
        try:
            given = {n: np.abs(values[n.removesuffix("//abs")]) for n in graph.inputs}
            found = part.run(given)
        finally:
            part.close()
        return {n.removesuffix("//size"): np.asarray(v, np.float32) for n, v in found.items()}


def tolerance(moved: Array) -> Array:
    """Return what may lie between two results: never less than what is usual in the tensor.

    A single element may by chance not move in any of the few runs.
    """
    usual = np.where(np.isfinite(moved), moved, 0)
    level = np.sqrt(np.mean(np.square(usual, dtype=np.float64))) if moved.size else 0.0
    return np.asarray(FACTOR * np.maximum(moved, level) + 2.0**-126)


def _signs(rng: np.random.Generator, count: int) -> Iterable[Any]:
    """Yield functions from an error to what is added: all up, all down, then at random."""
    yield lambda e: e
    yield lambda e: -e
    for _ in range(count - 2):
        yield lambda e: np.where(rng.random(e.shape, np.float32) < 0.5, e, -e)


def _apart(value: Array, base: Array) -> Array:
    """Return the distance of two results; infinite where either is not a finite number."""
    with np.errstate(all="ignore"):
        apart = np.abs(value.astype(np.float64) - base)
    return np.where(np.isfinite(apart), apart, np.inf)
