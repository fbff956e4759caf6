"""Running compiled parts one after another, and knowing which device is at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from gpuedge.core import debug
from gpuedge.core.errors import DeviceError
from gpuedge.graph.ir import Array, Graph
from gpuedge.runtime.segments import Builder, Part, outputs_of
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.core.reasons import Reason


class Running:
    """Answers requests from parts; one call at a time.

    Parameters
    ----------
    graph : Graph
    builder : Builder
        Has what the CPU runs instead.

    Attributes
    ----------
    at : str
        The device at work; the CPU between requests.
    is_left : bool
        Whether a run that is under way was left to itself.
    ailing : Reason or None
        What failed during the request under way.
    """

    def __init__(self, graph: Graph, builder: Builder) -> None:
        self.at = CPU
        self.is_left = False
        self.ailing: Reason | None = None
        self._graph = graph
        self._builder = builder
        self._since = 0.0
        self._is_timed = debug.level() >= 2

    def parts(
        self,
        parts: Sequence[Part],
        inputs: Mapping[str, Array],
        note: Callable[[DeviceError], None],
    ) -> dict[str, Array]:
        """Run segment by segment; after a failure on the CPU, from inputs that are still there.

        Where no result of the device was used yet, the CPU computes the whole graph, as it does
        where it was chosen: the answer is the same to the last bit. `note` is told of a failure,
        and sets `ailing` or raises.
        """
        values: dict[str, Array] = dict(inputs)
        is_mixed = False  # whether the device gave something to it
        for part in parts:
            start = perf_counter() if self._is_timed else 0.0
            feed = {name: values[name] for name in part.graph.inputs}
            self.at, self._since = part.device if self.ailing is None else CPU, perf_counter()
            if self.at == CPU:
                values |= self._builder.stand_in(part).run(feed)
            else:
                try:
                    values |= part.executable.run(feed)
                    is_mixed = True
                except DeviceError as error:
                    self.at = CPU
                    note(error)
                    if not is_mixed:
                        return self.whole(inputs)
                    values |= self._builder.stand_in(part).run(feed)
            if self._is_timed:
                debug.say(2, f"{self.at}: {(perf_counter() - start) * 1e6:.0f} us")
        return outputs_of(self._graph, values)

    def whole(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute one request without the device."""
        self.at = CPU
        values: dict[str, Array] = dict(inputs)
        for part in self._builder.on_cpu():
            values |= part.executable.run({name: values[name] for name in part.graph.inputs})
        return outputs_of(self._graph, values)

    def inside_s(self) -> float:
        """Return how long a run is inside a device by now; 0 where none is, or it was left."""
        since = self._since
        return 0.0 if self.at == CPU or self.is_left else perf_counter() - since


class Rival:
    """Runs parts once for each call, and raises what their device raises."""

    def __init__(self, parts: Sequence[Part], inputs: Mapping[str, Array]) -> None:
        self._parts = parts
        self._inputs = inputs

    def __call__(self) -> None:
        """Run all of them."""
        values: dict[str, Array] = dict(self._inputs)
        for part in self._parts:
            values |= part.executable.run({name: values[name] for name in part.graph.inputs})
