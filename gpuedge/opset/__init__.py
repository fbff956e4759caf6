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
    fused,
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
    fused,
)


def _by_name() -> dict[str, Operator]:
    known: dict[str, Operator] = {}
    for operator in (one for family in FAMILIES for one in family.OPERATORS):
        name = operator.name
        known[f"{operator.domain}:{name}" if name in known else name] = operator
    return known


OPERATORS: dict[str, Operator] = _by_name()
"""Known operators by name; of ONNX Runtime's own that have the name of one of ONNX's, the domain
goes before it."""


def described(op: str, domain: str) -> Operator | None:
    """Return the description of an operator, None if there is none."""
    for known in (OPERATORS.get(op), OPERATORS.get(f"{domain}:{op}")):
        if known is not None and known.domain == domain:
            return known
    return None


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
