"""Golden values of packed models: inputs, and what the CPU of the machine that packed made of them.

A device that is given the inputs must come to the outputs, as closely as the operators' error
bounds say: kernels, drivers and weights are tested at once, whoever printed or changed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import GpuEdgeError, InputError
from gpuedge.graph.checks import check_values, checks_of
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.shaped import ShapedModel
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.crosscheck import CrossCheck
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.opening import PROCESS
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.graph.packed import PackedModel
    from gpuedge.graph.reader import Model
    from gpuedge.runtime.request import Request

SEED = 2026
"""Of the inputs that golden outputs are computed from."""


def golden(
    model: Model, shaped: ShapedModel, given: Mapping[str, Any] | None
) -> tuple[dict[str, Array], str]:
    """Return inputs and the outputs that the CPU gives, by name; or why there are none.

    Raises InputError (GE-203), or whatever is wrong with inputs that are `given`.
    """
    if given is not None:
        inputs = check_inputs(given, model)
        if any(inputs[n].shape != shaped.graph.shape(n) for n in inputs):
            raise InputError("The golden inputs do not have the shapes that are packed first.")
        return {**inputs, **_outputs(shaped, inputs)}, ""
    said = "no inputs were found that it takes"
    for inputs in _candidates(shaped.graph):
        try:
            outputs = _outputs(shaped, inputs)
        except GpuEdgeError as error:
            said = _sentence(error)
            continue
        if all(a.dtype.kind != "f" or np.isfinite(a).all() for a in outputs.values()):
            return {**inputs, **outputs}, ""
        said = "results of random inputs are not finite"
    return {}, said


def _outputs(shaped: ShapedModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    check_values(checks_of(shaped.graph), inputs)
    with closing(POOL.cpu().load(shaped)) as executable:
        return executable.run(inputs)


def _candidates(graph: Graph) -> Iterator[dict[str, Array]]:
    """Yield inputs: random ones first, then such as fit indices and divisors of any kind."""
    for most in (255, 2, 1, 0):
        random = np.random.default_rng(SEED)
        yield {name: _random(graph.types[name], most, random) for name in graph.inputs}


def _random(kind: TensorType, most: int, random: np.random.Generator) -> Array:
    """Return floats from -1 to 1, or whole numbers from 0 to `most`; ones where that is 0."""
    dtype = np.dtype(kind.dtype)
    if dtype.kind == "f":
        return random.uniform(-1, 1, kind.shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, kind.shape).astype(dtype)
    numbers = random.integers(0, min(most, np.iinfo(dtype).max) + 1, kind.shape)
    return (numbers if most else np.ones(kind.shape)).astype(dtype)


def verified(
    model: PackedModel, graph: Graph, request: Request, devices: Iterable[str]
) -> dict[str, str]:
    """Run the golden inputs on the CPU and on devices, each driver in a process of its own.

    Returns
    -------
    dict of str to str
        By device what is wrong, or could not be compared; empty where its outputs are right. There
        is none where the model holds no golden values.
    """
    known = model.golden(graph)
    if not known:
        return {}
    return {device: _judged(model, graph, known, request, device) for device in (CPU, *devices)}


def _judged(
    model: PackedModel, graph: Graph, known: Mapping[str, Array], request: Request, device: str
) -> str:
    shaped = model.with_shapes(tuple(graph.shape(name) for name in graph.inputs))
    own = replace(request, device=device, isolation=PROCESS, fallback="cpu")
    policy = own.policy
    check = CrossCheck(
        graph, 1.0, POOL.cpu(), storage=policy.storage, arithmetic=policy.arithmetic
    )  # fmt: skip
    inputs = {name: known[name] for name in graph.inputs}
    try:
        with closing(CompiledModel(shaped, own, is_session=False)) as compiled:
            outputs = compiled.run(inputs)
            health = compiled.health()
    except GpuEdgeError as error:
        return _sentence(error)
    if device != CPU and (health.failures or not health.on_device):
        return f"{device} did not compute it: {health.reason or 'the CPU did'}"
    wanted = {name: known[name] for name in graph.outputs}
    # Each is judged by what the graph gives here: neither is right because the other is like it.
    said = check.compare(inputs, outputs, lambda _: wanted)
    said = said or check.compare(inputs, wanted, lambda _: outputs)
    return said or check.note


def _sentence(error: GpuEdgeError) -> str:
    return f"[{error.code}] {' '.join(error.what.split())}"
