"""Activation functions, element by element; `x` is array_like, float32 or float16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuedge.graph.build import GraphBuilder
from gpuedge.ops._arguments import flag, number
from gpuedge.ops._run import Array, call, simple
from gpuedge.ops._warm import warm
from gpuedge.ops.arithmetic import clip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuedge.device import Device


@warm
def relu(x: Any, *, device: str | Device | None = None) -> Array:
    """Max(x, 0); int8 as well. Error bound: exact."""
    return simple("relu", "Relu", [("x", x)], device, also=("int8",))


@warm
def selu(x: Any, *, device: str | Device | None = None) -> Array:
    """Scaled exponential unit. Error bound: 1e-6 absolute plus 1e-6 relative."""
    return simple("selu", "Selu", [("x", x)], device)


@warm
def sigmoid(x: Any, *, device: str | Device | None = None) -> Array:
    """1 / (1 + exp(-x)). Error bound: 1e-6 absolute."""
    return simple("sigmoid", "Sigmoid", [("x", x)], device)


@warm
def tanh(x: Any, *, device: str | Device | None = None) -> Array:
    """Hyperbolic tangent. Error bound: 1e-5 absolute (Vulkan specification: sinh / cosh)."""
    return simple("tanh", "Tanh", [("x", x)], device)


@warm
def softplus(x: Any, *, device: str | Device | None = None) -> Array:
    """Log(1 + exp(x)). Error bound: 2e-6 absolute plus 1e-6 relative."""
    return simple("softplus", "Softplus", [("x", x)], device)


@warm
def softsign(x: Any, *, device: str | Device | None = None) -> Array:
    """X / (1 + abs(x)). Error bound: 4 ULP."""
    return simple("softsign", "Softsign", [("x", x)], device)


@warm
def mish(x: Any, *, device: str | Device | None = None) -> Array:
    """X * tanh(softplus(x)). Error bound: 1.5e-5 * max(1, abs(x))."""
    return simple("mish", "Mish", [("x", x)], device)


@warm
def hard_swish(x: Any, *, device: str | Device | None = None) -> Array:
    """X * clip(x / 6 + 0.5, 0, 1). Error bound: 2e-7 * max(1, abs(x))."""
    return simple("hard_swish", "HardSwish", [("x", x)], device)


@warm
def leaky_relu(x: Any, alpha: float = 0.01, *, device: str | Device | None = None) -> Array:
    """X where positive, else alpha * x. Error bound: 1.25 ULP."""
    return simple("leaky_relu", "LeakyRelu", [("x", x)], device, alpha=number("alpha", alpha))


@warm
def elu(x: Any, alpha: float = 1.0, *, device: str | Device | None = None) -> Array:
    """X where positive, else alpha * (exp(x) - 1).

    Error bound: 1e-6 * max(1, alpha) absolute plus 1 ULP.
    """
    return simple("elu", "Elu", [("x", x)], device, alpha=number("alpha", alpha))


@warm
def celu(x: Any, alpha: float = 1.0, *, device: str | Device | None = None) -> Array:
    """X where positive, else alpha * (exp(x / alpha) - 1).

    Error bound: 1e-6 * max(1, alpha) absolute plus 1 ULP.
    """
    return simple("celu", "Celu", [("x", x)], device, alpha=number("alpha", alpha))


@warm
def hard_sigmoid(
    x: Any, alpha: float = 0.2, beta: float = 0.5, *, device: str | Device | None = None
) -> Array:
    """Clip(alpha * x + beta, 0, 1). Error bound: 2 ULP of max(1, alpha * x)."""
    return simple(
        "hard_sigmoid",
        "HardSigmoid",
        [("x", x)],
        device,
        alpha=number("alpha", alpha),
        beta=number("beta", beta),
    )


@warm
def relu6(x: Any, *, device: str | Device | None = None) -> Array:
    """Limit x to [0, 6]. Exact."""
    return clip(x, 0.0, 6.0, device=device)


@warm
def silu(x: Any, *, device: str | Device | None = None) -> Array:
    """X * sigmoid(x), also called swish. Error bound: 2e-6 * max(1, abs(x))."""

    def write(b: GraphBuilder, names: Sequence[str]) -> str:
        return b.add("Mul", [names[0], b.add("Sigmoid", names)])

    return call("silu", [("x", x)], write, device=device)


@warm
def gelu(x: Any, *, approximate: bool = False, device: str | Device | None = None) -> Array:
    """X * Phi(x), exactly by erf or by the tanh formula.

    Error bound: 1e-6 * max(1, abs(x)); by the tanh formula 1e-5 * max(1, abs(x)).
    """
    return simple(
        "gelu",
        "Gelu",
        [("x", x)],
        device,
        approximate="tanh" if flag("approximate", approximate) else "none",
    )


@warm
def prelu(x: Any, slope: Any, *, device: str | Device | None = None) -> Array:
    """X where positive, else slope * x; `slope` broadcasts to `x`.

    Error bound: 1 ULP.
    """
    return simple("prelu", "PRelu", [("x", x), ("slope", slope)], device)
