"""Operators: one file per family, one description per operator.

Everything there is to know about an operator follows from its description: the reader, planner,
numpy executor, public functions, documentation, conformance cases and error bounds read it here.
"""

from __future__ import annotations

from gpuedge.opset import (
    angles,
    attention,
    bits,
    conv,
    elementwise,
    gather,
    grams,
    linalg,
    logic,
    matmul,
    nbits,
    norm,
    picking,
    pool,
    quantized,
    recurrent,
    reduce,
    resize,
    sampling,
    scan,
    scatter,
    shape,
    signal,
    views,
)
from gpuedge.opset.operator import GROWS, RANDOM, Facts, Function, Operator

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
    nbits,
    scan,
    scatter,
    picking,
    attention,
    recurrent,
    signal,
    linalg,
    grams,
)

OPERATORS: dict[str, Operator] = {
    operator.name: operator for family in FAMILIES for operator in family.OPERATORS
}
"""Known operators by name, which no two domains share."""

UNDESCRIBED: dict[str, Facts] = {
    "AffineGrid": GROWS,
    "Bernoulli": Facts(grows=True, is_random=True),
    "Multinomial": Facts(grows=True, is_random=True),
    "RandomNormal": Facts(grows=True, is_random=True),
    "RandomNormalLike": RANDOM,
    "RandomUniform": Facts(grows=True, is_random=True),
    "RandomUniformLike": RANDOM,
}
"""Facts of operators that only ONNX Runtime computes, where there are any."""


def facts_of(op: str) -> Facts:
    """Return what is known of an operator of the domain ``ai.onnx``, described or not."""
    known = OPERATORS.get(op)
    return known.facts if known is not None else UNDESCRIBED.get(op, Facts())


FUNCTIONS: dict[str, Function] = {
    one.name: one for one in (*elementwise.FUNCTIONS, *logic.FUNCTIONS)
}
"""Public functions that are one elementwise operator, by name."""
