"""Operators: one file per family, one description per operator.

Everything there is to know about an operator follows from its description: the reader, planner,
numpy executor, public functions, documentation, conformance cases and error bounds read it here.
"""

from __future__ import annotations

from gpuedge.opset import (
    angles,
    bits,
    conv,
    elementwise,
    gather,
    logic,
    matmul,
    norm,
    picking,
    pool,
    quantized,
    reduce,
    resize,
    sampling,
    scan,
    shape,
    views,
)
from gpuedge.opset.operator import Function, Operator

FAMILIES = (
    elementwise,
    angles,
    logic,
    bits,
    conv,
    pool,
    matmul,
    reduce,
    norm,
    shape,
    views,
    resize,
    sampling,
    quantized,
    gather,
    scan,
    picking,
)

OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in FAMILIES for operator in family.OPERATORS
}
"""Known operators of the domain ``ai.onnx``, by name."""

FUNCTIONS: dict[str, Function] = {
    one.name: one for one in (*elementwise.FUNCTIONS, *logic.FUNCTIONS)
}
"""Public functions that are one elementwise operator, by name."""
