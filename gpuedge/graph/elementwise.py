"""The elementwise operators: arity, parameters and their defaults."""

from __future__ import annotations

from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.nodes import text, unsupported

VARIADIC = 0

_UNARY = (
    "Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Sin",
    "Cos", "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh",
    "Softplus", "Softsign", "Mish", "Gelu", "Erf", "Clip", "ThresholdedRelu", "Celu", "Swish",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")

ELEMENTWISE: dict[str, int] = {
    **dict.fromkeys(_UNARY, 1),
    **dict.fromkeys(_BINARY, 2),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), VARIADIC),
}
"""Operator -> number of tensor operands; `VARIADIC` (0) means one or more. All broadcast."""

_DEFAULTS: dict[str, dict[str, float]] = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "ThresholdedRelu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "Swish": {"alpha": 1.0},
}
"""Parameter defaults, from the operator schemas of ONNX (ai.onnx, current versions)."""

_SELU_1 = {"alpha": 1.6732, "gamma": 1.0507}
"""Defaults of Selu before operator set 6 (its schema, version 1)."""


def elementwise_attrs(node: Node, graph: Graph | None = None) -> dict[str, float]:
    """Return the numeric parameters of an elementwise node with ONNX defaults filled in.

    Gelu's approximation is given as ``tanh``: 1.0 for the tanh formula, 0.0 for the exact one.
    Clip's bounds are read by `canonical`, since newer models give them as inputs. Without `graph`
    the current operator set is assumed.

    Raises
    ------
    UnsupportedOpError (GE-501)
        Gelu with an approximation that does not exist.
    """
    if node.op == "Gelu":
        mode = text(node, "approximate", "none")
        if mode not in {"none", "tanh"}:
            raise unsupported(node, f"has approximate={mode!r}; only 'none' and 'tanh' exist")
        return {"tanh": float(mode == "tanh")}
    defaults = _DEFAULTS.get(node.op, {})
    if node.op == "Selu" and graph is not None and graph.opset.get("", 6) < 6:
        defaults = _SELU_1
    return {name: float(node.attrs.get(name, value)) for name, value in defaults.items()}
