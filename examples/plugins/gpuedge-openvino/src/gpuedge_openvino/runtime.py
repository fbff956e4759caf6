"""Segments of a graph on a device of OpenVINO: written as ONNX, which OpenVINO reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino

from gpuedge.graph.ir import Array, Graph, Node
from gpuedge.graph.partition import part
from gpuedge.graph.writer import to_bytes

SETTINGS = {
    # By default recent processors compute in bfloat16, which no error bound of float32 allows.
    "INFERENCE_PRECISION_HINT": "f32",
    # By default products by packed weights round what they multiply them with to 8 bits.
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "PERFORMANCE_HINT": "LATENCY",
}

NARROWED = {"int64": "int32", "uint64": "int32", "uint32": "int32", "float64": "float32"}
"""What the CPU device computes some types in; it says so of no single operator.

docs.openvino.ai, "CPU Device", supported data types.
"""

WORDS = 200
"""Characters of OpenVINO's errors that are passed on."""


class OpenVinoRuntime:
    """A device of OpenVINO; see `gpuedge.executors.base.Runtime`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._core = openvino.Core()
        self._whole: tuple[Graph, bool] | None = None  # the last graph, and if all of it runs

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Return None if OpenVINO runs a node, else what it says: of the whole graph if it can."""
        if (why := _narrowed(node, graph)) is not None:
            return why
        if self._whole is None or self._whole[0] is not graph:
            self._whole = graph, self._refusal(graph) is None
        return None if self._whole[1] else self._refusal(part(graph, [node]))

    def _refusal(self, graph: Graph) -> str | None:
        """Ask OpenVINO about a graph; return why it does not run it."""
        try:
            model = self._core.read_model(to_bytes(graph))
            known = self._core.query_model(model, self._device)
        except Exception as error:  # its errors are RuntimeError and children of its own
            return _brief(error)
        for operation in model.get_ordered_ops():
            if operation.get_friendly_name() not in known:
                return f"the {self._device} device does not run {operation.get_type_name()}"
        return None

    def compile(self, segment: Graph) -> OpenVinoExecutable:
        """Compile a segment, to compute in float32."""
        model = self._core.read_model(to_bytes(segment))
        compiled = self._core.compile_model(model, self._device, SETTINGS)
        return OpenVinoExecutable(compiled, segment)

    def close(self) -> None:
        """Let go of OpenVINO's device."""
        self._whole = None
        del self._core


class OpenVinoExecutable:
    """A compiled segment."""

    def __init__(self, compiled: openvino.CompiledModel, graph: Graph) -> None:
        self._request: Any = compiled.create_infer_request()
        # By place: OpenVINO takes the name of an input away where an operator only passes it on.
        self._inputs = dict(zip(graph.inputs, compiled.inputs, strict=True))
        self._outputs = dict(zip(graph.outputs, compiled.outputs, strict=True))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs, in memory of their own."""
        given = {port: inputs[name] for name, port in self._inputs.items()}
        results = self._request.infer(given, share_inputs=False, share_outputs=False)
        return {name: results[port] for name, port in self._outputs.items()}

    def close(self) -> None:
        """Let go of what was compiled."""
        self._request = None


def _narrowed(node: Node, graph: Graph) -> str | None:
    """Return which type of a node OpenVINO would narrow; sizes and axes, being constants, fit."""
    for name in (*node.inputs, *node.outputs):
        kind = graph.types.get(name)
        if kind is not None and kind.dtype in NARROWED and name not in graph.constants:
            return f"it computes {kind.dtype} in {NARROWED[kind.dtype]}"
    return None


def _brief(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return " ".join(said or lines or [type(error).__name__])[:WORDS]
