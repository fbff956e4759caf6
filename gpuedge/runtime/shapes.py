"""Compiling one model for shapes of its inputs, and what is counted of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuedge.core.errors import UsageError
from gpuedge.graph.reader import Fixed, Model, Shapes
from gpuedge.plan.storages import Range
from gpuedge.runtime import clock
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.health import Times
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.models import ModelCache
from gpuedge.runtime.ranges import measure
from gpuedge.runtime.strings import AUTO, CPU

if TYPE_CHECKING:
    from gpuedge.runtime.request import Request

REMEMBERED = 4096
"""Sets of shapes of which it is known that they were compiled before."""


@dataclass(frozen=True)
class BesideLate:
    """The signature of what the CPU answers with while a request that was given up lasts."""

    shapes: Shapes


class Compiler:
    """Compiles one model for shapes of its inputs, and counts; knows what calibrates it.

    Attributes
    ----------
    times : Times
        What compiling took.
    parameters : frozenset of str
        Inputs whose values, and not only their shapes, a graph is specialised to.

    Raises UsageError (GE-2xx) for inputs of calibration that do not fit the model.
    """

    def __init__(self, model: Model, request: Request) -> None:
        self.times = Times()
        self.model = model
        is_strict = request.device not in (AUTO, CPU) and request.fallback == "error"
        self.parameters = model.parameters if is_strict else model.contested
        self._compiled = self._again = self._spent_ns = self._again_ns = 0
        self._before: dict[Shapes, None] = {}
        self._ranges: dict[str, Range] | None = None
        self._specialise = partial(model.specialise, rewrites=request.policy.rewrites)
        try:
            self._feeds = [check_inputs(f, model) for f in request.policy.calibration or ()]
        except UsageError as error:
            error.asked_by = "Policy(calibration=...)"
            raise

    def compile(self, shapes: Shapes, request: Request) -> CompiledModel:
        """Compile the model for these input shapes. Raises GpuEdgeError."""
        bound = self.model.with_shapes(shapes, rewrites=request.policy.rewrites)
        start = clock.now_ns()
        request.tell("plan", 0, 1)
        calibrate = self._calibrate if self._feeds else None
        compiled = CompiledModel(bound, request, calibrate=calibrate)
        self._count(shapes, clock.now_ns() - start)
        if compiled.executor.device == CPU:  # a GPU's executor tells of more stages
            request.tell("plan", 1, 1)
        return compiled

    def _count(self, shapes: Shapes, spent_ns: int) -> None:
        self.times.note(spent_ns)
        self._compiled += 1
        self._spent_ns += spent_ns
        if shapes in self._before:
            self._again += 1
            self._again_ns += spent_ns
        elif len(self._before) == REMEMBERED:
            del self._before[next(iter(self._before))]
        self._before[shapes] = None

    def summary(self, models: ModelCache) -> dict[str, Any]:
        """Return what `gpuedge.Session.profile` says of shapes."""
        kept = [(shapes, model) for shapes, model in models.items() if isinstance(shapes, tuple)]
        return {
            "most": models.most,
            "kept": [
                {
                    "inputs": dict(zip(self.model.inputs, map(_shown, shapes), strict=True)),
                    "device": model.executor.device,
                    "memory": model.memory,
                }
                for shapes, model in kept
            ],
            "compiled": self._compiled,
            "dropped": models.dropped,
            "compiled_again": self._again,
            "seconds": self._spent_ns / 1e9,
            "seconds_again": self._again_ns / 1e9,
        }

    def _calibrate(self) -> Mapping[str, Range]:
        """Return the bounds that the calibration inputs give, whatever their shapes."""
        if self._ranges is None:
            graphs = (self._specialise({n: a.shape for n, a in f.items()}) for f in self._feeds)
            self._ranges = measure(zip(graphs, self._feeds, strict=True), POOL.cpu())
        return self._ranges


def _shown(known: tuple[int, ...] | Fixed) -> list[int] | dict[str, Any]:
    """Return the shape of an input, or its value where the model is compiled for that."""
    return {"value": known.array.tolist()} if isinstance(known, Fixed) else list(known)
