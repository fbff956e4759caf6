"""Functions that are one elementwise operator. Made by tools/generate.py: do not edit.

Their rows are in `gpuedge.opset.elementwise`. Operands are array_like, float32 or float16, and
broadcast by numpy's rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuedge.ops.call import Array, one_operator, warm

if TYPE_CHECKING:
    from gpuedge.device import Device

__all__ = [
    "abs", "add", "ceil", "celu", "cos", "div", "elu", "equal", "erf", "exp", "floor", "greater",
    "greater_equal", "hard_sigmoid", "hard_swish", "leaky_relu", "less", "less_equal", "log",
    "maximum", "minimum", "mish", "mul", "neg", "pow", "prelu", "reciprocal", "relu", "round",
    "selu", "sigmoid", "sign", "sin", "sinh", "softplus", "softsign", "sqrt", "sub", "tanh",
    "thresholded_relu",
]  # fmt: skip


@warm
def abs(x: Any, *, device: str | Device | None = None) -> Array:
    """Absolute value, element by element.

    Error bound: exact.
    """
    return one_operator("abs", (x,), {}, device)


@warm
def add(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """`a + b`, with broadcasting.

    Error bound: exactly rounded.
    """
    return one_operator("add", (a, b), {}, device)


@warm
def ceil(x: Any, *, device: str | Device | None = None) -> Array:
    """Least integer not below, element by element.

    Error bound: exact.
    """
    return one_operator("ceil", (x,), {}, device)


@warm
def celu(x: Any, alpha: float = 1.0, *, device: str | Device | None = None) -> Array:
    """`x` where positive, else `alpha * (exp(x / alpha) - 1)`.

    Error bound: 1e-6 * max(1, alpha) absolute plus 1 ULP.
    """
    return one_operator("celu", (x,), {"alpha": alpha}, device)


@warm
def cos(x: Any, *, device: str | Device | None = None) -> Array:
    """Cosine, angles in radians, element by element.

    Error bound: 2e-6 absolute for abs(x) <= 1000.
    """
    return one_operator("cos", (x,), {}, device)


@warm
def div(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """`a / b`, with broadcasting.

    Error bound: 2.5 ULP (Vulkan specification, division).
    """
    return one_operator("div", (a, b), {}, device)


@warm
def elu(x: Any, alpha: float = 1.0, *, device: str | Device | None = None) -> Array:
    """`x` where positive, else `alpha * (exp(x) - 1)`.

    Error bound: 1e-6 * max(1, alpha) absolute plus 1 ULP.
    """
    return one_operator("elu", (x,), {"alpha": alpha}, device)


@warm
def equal(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Whether a is b, with broadcasting; a bool array. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("equal", (a, b), {}, device)


@warm
def erf(x: Any, *, device: str | Device | None = None) -> Array:
    """Gauss error function, element by element.

    Error bound: 3e-6 absolute.
    """
    return one_operator("erf", (x,), {}, device)


@warm
def exp(x: Any, *, device: str | Device | None = None) -> Array:
    """Exponential, element by element.

    Error bound: (3 + 2 abs(x)) ULP (Vulkan specification, precision of exp).
    """
    return one_operator("exp", (x,), {}, device)


@warm
def floor(x: Any, *, device: str | Device | None = None) -> Array:
    """Greatest integer not above, element by element.

    Error bound: exact.
    """
    return one_operator("floor", (x,), {}, device)


@warm
def greater(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Whether a is above b, with broadcasting; a bool array. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("greater", (a, b), {}, device)


@warm
def greater_equal(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Whether a is b or above, with broadcasting; a bool array. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("greater_equal", (a, b), {}, device)


@warm
def hard_sigmoid(
    x: Any, alpha: float = 0.2, beta: float = 0.5, *, device: str | Device | None = None
) -> Array:
    """`clip(alpha * x + beta, 0, 1)`.

    Error bound: 2 ULP of max(1, alpha * x).
    """
    return one_operator("hard_sigmoid", (x,), {"alpha": alpha, "beta": beta}, device)


@warm
def hard_swish(x: Any, *, device: str | Device | None = None) -> Array:
    """`x * clip(x / 6 + 0.5, 0, 1)`.

    Error bound: 2e-7 * max(1, abs(x)).
    """
    return one_operator("hard_swish", (x,), {}, device)


@warm
def leaky_relu(x: Any, alpha: float = 0.01, *, device: str | Device | None = None) -> Array:
    """`x` where positive, else `alpha * x`.

    Error bound: 1.25 ULP.
    """
    return one_operator("leaky_relu", (x,), {"alpha": alpha}, device)


@warm
def less(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Whether a is below b, with broadcasting; a bool array. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("less", (a, b), {}, device)


@warm
def less_equal(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """Whether a is b or below, with broadcasting; a bool array. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("less_equal", (a, b), {}, device)


@warm
def log(x: Any, *, device: str | Device | None = None) -> Array:
    """Natural logarithm, element by element.

    Error bound: 3 ULP outside [0.5, 2], 2^-21 absolute inside (Vulkan specification).
    """
    return one_operator("log", (x,), {}, device)


@warm
def maximum(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """The larger of a and b, with broadcasting. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("maximum", (a, b), {}, device)


@warm
def minimum(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """The smaller of a and b, with broadcasting. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("minimum", (a, b), {}, device)


@warm
def mish(x: Any, *, device: str | Device | None = None) -> Array:
    """`x * tanh(softplus(x))`.

    Error bound: 1e-6 * max(1, abs(x)).
    """
    return one_operator("mish", (x,), {}, device)


@warm
def mul(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """`a * b`, with broadcasting.

    Error bound: exactly rounded.
    """
    return one_operator("mul", (a, b), {}, device)


@warm
def neg(x: Any, *, device: str | Device | None = None) -> Array:
    """Negation, element by element.

    Error bound: exact.
    """
    return one_operator("neg", (x,), {}, device)


@warm
def pow(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """`a ** b`, with broadcasting; NaN for a negative base with a fractional exponent.

    Error bound: that of exp2(b * log2(abs(a))) (Vulkan specification, pow).
    """
    return one_operator("pow", (a, b), {}, device)


@warm
def prelu(x: Any, slope: Any, *, device: str | Device | None = None) -> Array:
    """`x` where positive, else `slope * x`; `slope` broadcasts to `x`.

    Error bound: 1 ULP.
    """
    return one_operator("prelu", (x, slope), {}, device)


@warm
def reciprocal(x: Any, *, device: str | Device | None = None) -> Array:
    """`1 / x`, element by element.

    Error bound: 2.5 ULP (Vulkan specification, division).
    """
    return one_operator("reciprocal", (x,), {}, device)


@warm
def relu(x: Any, *, device: str | Device | None = None) -> Array:
    """`max(x, 0)`. Takes int8 as well.

    Error bound: exact.
    """
    return one_operator("relu", (x,), {}, device)


@warm
def round(x: Any, *, device: str | Device | None = None) -> Array:
    """Nearest integer, ties to even, element by element.

    Error bound: exact.
    """
    return one_operator("round", (x,), {}, device)


@warm
def selu(x: Any, *, device: str | Device | None = None) -> Array:
    """Scaled exponential unit: `gamma * elu(x, alpha)` with the constants of ONNX.

    Error bound: 1e-6 absolute plus 1e-6 relative.
    """
    return one_operator("selu", (x,), {}, device)


@warm
def sigmoid(x: Any, *, device: str | Device | None = None) -> Array:
    """`1 / (1 + exp(-x))`.

    Error bound: 1e-6 absolute.
    """
    return one_operator("sigmoid", (x,), {}, device)


@warm
def sign(x: Any, *, device: str | Device | None = None) -> Array:
    """-1, 0 or 1, element by element. Takes int8 and uint8 as well.

    Error bound: exact.
    """
    return one_operator("sign", (x,), {}, device)


@warm
def sin(x: Any, *, device: str | Device | None = None) -> Array:
    """Sine, angles in radians, element by element.

    Error bound: 2e-6 absolute for abs(x) <= 1000.
    """
    return one_operator("sin", (x,), {}, device)


@warm
def sinh(x: Any, *, device: str | Device | None = None) -> Array:
    """Hyperbolic sine, element by element.

    Error bound: (8 + 2 abs(x)) ULP, from the precision of exp (Vulkan specification).
    """
    return one_operator("sinh", (x,), {}, device)


@warm
def softplus(x: Any, *, device: str | Device | None = None) -> Array:
    """`log(1 + exp(x))`.

    Error bound: 2e-6 absolute plus 1e-6 relative.
    """
    return one_operator("softplus", (x,), {}, device)


@warm
def softsign(x: Any, *, device: str | Device | None = None) -> Array:
    """`x / (1 + abs(x))`.

    Error bound: 4 ULP.
    """
    return one_operator("softsign", (x,), {}, device)


@warm
def sqrt(x: Any, *, device: str | Device | None = None) -> Array:
    """Square root, element by element.

    Error bound: 4.5 ULP (Vulkan specification: inherited from 1 / inversesqrt).
    """
    return one_operator("sqrt", (x,), {}, device)


@warm
def sub(a: Any, b: Any, *, device: str | Device | None = None) -> Array:
    """`a - b`, with broadcasting.

    Error bound: exactly rounded.
    """
    return one_operator("sub", (a, b), {}, device)


@warm
def tanh(x: Any, *, device: str | Device | None = None) -> Array:
    """Hyperbolic tangent.

    Error bound: 1e-5 absolute (Vulkan specification: sinh / cosh).
    """
    return one_operator("tanh", (x,), {}, device)


@warm
def thresholded_relu(x: Any, alpha: float = 1.0, *, device: str | Device | None = None) -> Array:
    """`x` where above alpha, else 0.

    Error bound: exact.
    """
    return one_operator("thresholded_relu", (x,), {"alpha": alpha}, device)
