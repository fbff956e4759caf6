"""A model with the shapes of its inputs: as ONNX Runtime reads it, and as a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from gpuedge.graph.checks import ValueCheck, checks_of
from gpuedge.graph.ir import Graph


@dataclass(frozen=True, eq=False)
class Serialised:
    """A checked ONNX model in bytes, one for all shapes of its inputs.

    Attributes
    ----------
    read : callable
        Returns the bytes, which need not be there before. Every weight is in them, and none is an
        input.
    inputs, outputs : tuple of str
    """

    read: Callable[[], bytes] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class ShapedModel:
    """A graph that is made once something asks for it: a device, a record, an explanation.

    ONNX Runtime does without: reading, inferring and folding here take longer than all it does.

    Parameters
    ----------
    make : callable
        Returns the graph. Raises GpuEdgeError.
    serialised : Serialised, optional
        The same for ONNX Runtime; None where it would not compute that right.
    limited : callable, optional
        Returns what is known without the graph of the nodes that limit the values of inputs, or
        None where that is not enough.
    kernels : mapping of str to bytes, optional
        Kernels that were printed before (`gpuedge.lang.cache`).
    """

    def __init__(
        self,
        make: Callable[[], Graph],
        serialised: Serialised | None = None,
        limited: Callable[[], Graph | None] = lambda: None,
        kernels: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self.serialised = serialised
        self.kernels = kernels
        self._make = make
        self._limited = limited
        self._made: list[Graph] = []

    @property
    def graph(self) -> Graph:
        """The graph, the same one every time. Raises GpuEdgeError."""
        if not self._made:  # without a lock, which a fork could leave held for good
            self._made.append(self._make())
        return self._made[0]

    @cached_property
    def checks(self) -> tuple[ValueCheck, ...]:
        """What has to be looked at in the inputs before anything runs. Raises GpuEdgeError."""
        return checks_of(self._limited() or self.graph)
