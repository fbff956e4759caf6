"""Recorded operations on device arrays: as a graph, and as results.

What is recorded is a graph of nodes, each with the graph of one operation. When somebody looks at a
result, the nodes that it needs and that are not computed yet become one graph, which is compiled
and kept like any other operation, by its structure: the planner fuses it as it fuses models.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuedge.core.errors import ClosedError, DeviceError, GpuEdgeError, NoUsableDeviceError
from gpuedge.executors.resident import Resident, Residents, resident
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType, type_of
from gpuedge.ops.call import Array, Operation, compiled
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.runtime.compiled import CompiledModel
    from gpuedge.runtime.request import Request

OPERATIONS = 1024
"""Operations on operands of certain types whose graphs are kept."""

STRUCTURES = 1024
"""Chains whose numbers are remembered, to see whether they change."""

ATTEMPTS = 4
"""How often a chain is begun again from further back because a device was lost with what it had."""


class RecordedOp:
    """The graph of one operation on operands of certain types; one object for all calls alike.

    `kinds` are the types of its results; None where only the values say how large they are.
    """

    __slots__ = ("graph", "kinds")

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        known = all(name in graph.types for name in graph.outputs)
        self.kinds = [graph.types[name] for name in graph.outputs] if known else None


class RecordedNode:
    """An operation that was asked for: what computes it, and from what.

    Attributes
    ----------
    op : RecordedOp
    operands : tuple of LazyArray or ndarray
        Arrays of numpy are numbers: they have no axes.
    results : list of weakref to LazyArray
    """

    __slots__ = ("op", "operands", "results")

    def __init__(self, op: RecordedOp, operands: tuple[LazyArray | Array, ...]) -> None:
        self.op, self.operands = op, operands
        self.results: list[weakref.ref[LazyArray]] = []


class ChainStep(NamedTuple):
    """A node of a chain; operands are results (step, number), or leaves (-1, number)."""

    node: RecordedNode
    operands: tuple[tuple[int, int], ...]


class LazyArray:
    """An array that is computed, or recorded as an operation on others; it never changes.

    Attributes
    ----------
    request : Request
        Where it is.
    dtype : numpy.dtype
    shape : tuple of int
    node : RecordedNode or None
        What computes it; None once the host has it.
    length : int
        How many recorded operations it depends on, at most.
    uses : int
        Operations that it is an operand of.
    """

    __slots__ = (
        "__weakref__", "_resident", "dtype", "length", "node", "request", "shape", "uses",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        dtype: Any,
        shape: tuple[int, ...],
        *,
        value: Resident | None = None,
        node: RecordedNode | None = None,
        length: int = 0,
    ) -> None:
        self.request, self.dtype, self.shape = request, np.dtype(dtype), shape
        self.node, self.length, self.uses = node, length, 0
        self._resident = value

    @property
    def kind(self) -> TensorType:
        """Its type in graphs, which compute float16 in float32."""
        name = self.dtype.name
        return TensorType("float32" if name == "float16" else name, self.shape)

    @property
    def resident(self) -> Resident:
        """What there is of it. Raises ClosedError (GE-204)."""
        value = self._resident
        if value is None or (value.is_lost and self.node is None):
            raise ClosedError(
                f"An array was on {self.request.device}, which was closed or lost.",
                hint="array.numpy() brings to the host what is still needed",
            )
        return value

    @property
    def there(self) -> Resident | None:
        """What there is of it; None where it is not computed, or was lost."""
        value = self._resident
        return None if value is None or value.is_lost else value

    @property
    def is_there(self) -> bool:
        """Whether it is computed, and what was is still there."""
        return self.there is not None

    @property
    def is_readable(self) -> bool:
        """Whether the host has it, or can have it."""
        try:
            self.resident.array()
        except (DeviceError, ClosedError):
            return False
        return True

    def host(self) -> Array:
        """Return it on the host, computed if it is not yet. Raises GpuEdgeError."""
        for attempt in range(ATTEMPTS):
            if not self.is_there:
                evaluate(self)
            try:
                array = self.resident.array()
            except (DeviceError, ClosedError):
                if self.node is None or attempt == ATTEMPTS - 1:
                    raise
                self.forget()
            else:
                self.node, self.length = None, 0
                return array
        raise ClosedError("The array is gone.")  # never: the last attempt raises or returns

    def settle(self, value: Resident) -> None:
        """Note what was computed."""
        self._resident = value
        if value.is_on_host:
            self.node, self.length = None, 0

    def forget(self) -> None:
        """Forget what was computed: it was lost."""
        self._resident = None


_operations: dict[Hashable, RecordedOp] = {}
_numbers: dict[Hashable, bytes | None] = {}  # of a structure; None where they change


def operation_of(operation: Operation) -> RecordedOp:
    """Return the graph of an operation, made once for all calls alike. Raises GpuEdgeError."""
    known = _operations.pop(operation.signature, None)
    if known is None:
        known = RecordedOp(operation.graph())
        if len(_operations) >= OPERATIONS:
            _operations.pop(next(iter(_operations)), None)
    _operations[operation.signature] = known  # the one used last goes last
    return known


def count(arrays: Sequence[LazyArray | Array]) -> int:
    """Return how many recorded nodes arrays depend on."""
    seen: set[int] = set()
    left = list(arrays)
    while left:
        node = getattr(left.pop(), "node", None)
        if node is not None and id(node) not in seen:
            seen.add(id(node))
            left += node.operands
    return len(seen)


class Chain:
    """What has to be computed for an array, from what is there.

    Attributes
    ----------
    leaves : list of LazyArray or ndarray
    steps : list of ChainStep
        In an order in which they can be computed.
    outputs : list of (int, int)
        Results to keep: the one asked for, its siblings, and those that others need as well.
    """

    def __init__(self, array: LazyArray) -> None:
        self.leaves: list[LazyArray | Array] = []
        self.steps: list[ChainStep] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._uses: dict[int, int] = {}
        self._collect(array)
        last = len(self.steps) - 1
        self.outputs = [
            (number, i)
            for number, step in enumerate(self.steps)
            for i, result in enumerate(map(_alive, step.node.results))
            if result is not None and (number == last or result.uses > self._uses[id(result)])
        ]

    def _collect(self, array: LazyArray) -> None:
        """Put the nodes that an array needs in order, without recursion."""
        done: set[int] = set()
        stack = [(array, False)]
        while stack:
            operand, is_ready = stack.pop()
            node = operand.node
            if id(operand) in self._places or (node is not None and id(node) in done):
                continue
            if node is None or operand.is_there:
                self._leaf(operand)
            elif is_ready:
                done.add(id(node))
                self._step(node)
            else:
                stack.append((operand, True))
                operands = [o for o in node.operands if not isinstance(o, np.ndarray)]
                stack += [(operand, False) for operand in reversed(operands)]

    def _leaf(self, value: LazyArray | Array) -> tuple[int, int]:
        place = self._places[id(value)] = -1, len(self.leaves)
        self.leaves.append(value)
        return place

    def _step(self, node: RecordedNode) -> None:
        operands = []
        for operand in node.operands:
            operands.append(self._places.get(id(operand)) or self._leaf(operand))
        for key in {id(operand) for operand in node.operands}:
            self._uses[key] = self._uses.get(key, 0) + 1
        for i, result in enumerate(map(_alive, node.results)):
            if result is not None:
                self._places[id(result)] = len(self.steps), i
                self._uses.setdefault(id(result), 0)
        self.steps.append(ChainStep(node, tuple(operands)))

    def compiled(self, request: Request) -> tuple[CompiledModel, dict[str, Any]]:
        """Return what computes it, and the inputs. Raises GpuEdgeError.

        That is the CPU in a forked child, which no GPU follows, if it may answer.
        """
        try:
            return self._compiled(request)
        except NoUsableDeviceError:
            if request.fallback == "error":
                raise
            return self._compiled(replace(request, device=CPU))

    def _compiled(self, request: Request) -> tuple[CompiledModel, dict[str, Any]]:
        structure: Hashable = (
            tuple((step.node.op, step.operands) for step in self.steps), tuple(self.outputs)
        )  # fmt: skip
        numbers = b"".join(x.tobytes() for x in self.leaves if isinstance(x, np.ndarray))
        if structure not in _numbers and len(_numbers) >= STRUCTURES:
            _numbers.clear()
        if _numbers.setdefault(structure, numbers) != numbers:
            _numbers[structure] = None  # they change: they become inputs
        fixed = _numbers[structure]
        signature = "chain", structure, fixed, request
        model = compiled(signature, lambda: self._graph(is_fixed=fixed is not None), request)
        values = {
            _name(i): leaf if isinstance(leaf, np.ndarray) else leaf.resident
            for i, leaf in enumerate(self.leaves)
            if fixed is None or not isinstance(leaf, np.ndarray)
        }
        return model, values

    def _graph(self, *, is_fixed: bool) -> Graph:
        builder = GraphBuilder()
        leaves = [self._value(builder, i, is_fixed=is_fixed) for i in range(len(self.leaves))]
        results: list[tuple[str, ...]] = []
        for step in self.steps:
            inputs = [leaves[i] if at < 0 else results[at][i] for at, i in step.operands]
            results.append(builder.include(step.node.op.graph, inputs))
        builder.output(*(results[number][i] for number, i in self.outputs))
        return builder.build()

    def _value(self, builder: GraphBuilder, number: int, *, is_fixed: bool) -> str:
        leaf = self.leaves[number]
        if not isinstance(leaf, np.ndarray):
            return builder.input(_name(number), leaf.kind)
        if is_fixed:
            return builder.constant(_name(number), leaf)
        return builder.input(_name(number), type_of(leaf))

    def results(self) -> list[LazyArray | None]:
        """Return the arrays of `outputs`; None for one that nothing refers to any more."""
        return [_alive(self.steps[number].node.results[i]) for number, i in self.outputs]

    def lose(self) -> bool:
        """Forget what was lost with a device; tell whether anything was."""
        lost = False
        for leaf in self.leaves:
            if not isinstance(leaf, np.ndarray) and leaf.node is not None and not leaf.is_readable:
                leaf.forget()
                lost = True
        return lost


def _name(number: int) -> str:
    return f"x{number}"


def _alive(reference: weakref.ref[LazyArray]) -> LazyArray | None:
    return reference()


def evaluate(array: LazyArray) -> CompiledModel:
    """Compute an array and what belongs to it; they stay where they are computed.

    Raises GpuEdgeError.
    """
    if array.node is None:
        _ = array.resident  # it was lost, and says so
    for attempt in range(ATTEMPTS):
        chain = Chain(array)
        results = chain.results()
        model, values = chain.compiled(array.request)
        try:
            outputs = model.run(Residents(values))
        except (DeviceError, ClosedError) as error:
            # a closed model may have made room for those of other threads
            is_lost = chain.lose() or isinstance(error, ClosedError)
            if attempt == ATTEMPTS - 1 or not is_lost:
                raise
            continue
        for result, output in zip(results, outputs.values(), strict=True):
            if result is not None:
                result.settle(resident(output))
        return model
    raise GpuEdgeError("A chain was begun again too often.")  # never: the last attempt raises
