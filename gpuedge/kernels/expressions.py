"""Elementwise operators as text of the kernel language, one vec4 expression each.

Accuracy follows the built-ins they are made of (Vulkan specification, "Precision and Operation of
SPIR-V Instructions"); `docs/numerics.md` lists the bound of each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.graph.canon import canonical, elementwise_attrs
from gpuedge.graph.ir import Graph, Node
from gpuedge.graph.params import ClipParams

EXP_LIMIT = 87.0
"""exp() of more than 88.7 overflows float32; sigmoid is flat long before."""

HELPERS: dict[str, str] = {
    # max() and min() may return either operand where one is NaN (SPIR-V, GLSL.std.450 FMax), and
    # compilers turn comparisons round as if there were none (Mesa 22.3 under OpenGL): NaN has to
    # be asked for, which printers do by the bits where the dialect has them; the sum is NaN then
    "max4": """
float larger(float a, float b) {
    bool none = a != a || b != b;
    float r = a > b ? a : b;
    return none ? a + b : r;
}
vec4 max4(vec4 a, vec4 b) {
    return vec4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
""",
    "min4": """
float smaller(float a, float b) {
    bool none = a != a || b != b;
    float r = a < b ? a : b;
    return none ? a + b : r;
}
vec4 min4(vec4 a, vec4 b) {
    return vec4(smaller(a.x, b.x), smaller(a.y, b.y), smaller(a.z, b.z), smaller(a.w, b.w));
}
""",
    # gives the argument back where it is NaN, for formulas that clamp it
    "keep_nan": """
float ordered(float r, float a) {
    bool number = a == a;
    return number ? r : a;
}
vec4 keep_nan(vec4 r, vec4 a) {
    return vec4(ordered(r.x, a.x), ordered(r.y, a.y), ordered(r.z, a.z), ordered(r.w, a.w));
}
""",
    # Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26: |error| < 1.5e-7
    "erf4": """
vec4 erf4(vec4 x) {
    vec4 a = abs(x);
    vec4 t = vec4(1.0) / (vec4(1.0) + 0.3275911 * a);
    vec4 s = t * (t * (t * (t * (1.061405429 * t - vec4(1.453152027)) + vec4(1.421413741))
        - vec4(0.284496736)) + vec4(0.254829592));
    return sign(x) * (vec4(1.0) - s * exp(vec4(0.0) - min(a * a, vec4(80.0))));
}
""",
    # Vulkan allows sin() and cos() an absolute error of 2^-11 and SwiftShader uses much of it, so
    # reduce by multiples of pi in three parts (Cody and Waite, Software Manual for the Elementary
    # Functions, 1980, chapter 8) and use the Taylor polynomial, whose next term is below 2^-24.
    "reduced4": """
vec4 reduced4(vec4 x, vec4 k) {
    vec4 r = x - k * 3.140625;
    r = r - k * 0.0009670257568359375;
    r = r - k * 0.00000062783295730;
    vec4 s = r * r;
    vec4 even = vec4(1.0) - 2.0 * (k - 2.0 * floor(k * 0.5));
    vec4 tail = s * (s * (s * (s * -0.000000025052108 + vec4(0.0000027557319))
        - vec4(0.00019841270)) + vec4(0.0083333333)) - vec4(0.16666667);
    return even * (r + r * s * tail);
}
""",
    "sin4": """
vec4 sin4(vec4 x) {
    return reduced4(x, roundeven(x * 0.3183098862));
}
""",
    "cos4": """
vec4 cos4(vec4 x) {
    vec4 k = floor(x * 0.3183098862) + vec4(0.5);
    vec4 r = x - k * 3.140625;
    r = r - k * 0.0009670257568359375;
    r = r - k * 0.00000062783295730;
    vec4 odd = floor(k) - 2.0 * floor(k * 0.5);
    return reduced4(vec4(0.0) - r, vec4(0.0)) * (vec4(1.0) - 2.0 * odd);
}
""",
    # log() of zero or less is undefined in every dialect: SwiftShader gives -88 and log(abs(x))
    "log4": """
float log1(float a) {
    float zero = abs(a);
    float below = a == 0.0 ? -1.0 / zero : (a - a) / (zero - zero);
    float inside = a > 0.0 ? log(a) : below;
    bool number = a == a;
    return number ? inside : a;
}
vec4 log4(vec4 a) {
    return vec4(log1(a.x), log1(a.y), log1(a.z), log1(a.w));
}
""",
    # pow() of zero or less is undefined in every dialect; C and ONNX define it for integers
    "pow1": """
float pow1(float a, float b) {
    float whole = floor(b);
    float odd = whole - 2.0 * floor(whole * 0.5);
    float size = abs(a);
    float power = pow(size, b);
    power = a == 0.0 ? (b > 0.0 ? 0.0 : 1.0 / size) : power;
    power = b == 0.0 || a == 1.0 ? 1.0 : power;
    float signed = odd == 1.0 ? 0.0 - power : power;
    float negative = whole == b ? signed : (size - size) / (size - size);
    bool numbers = a == a && b == b;
    float all = a < 0.0 ? negative : power;
    return numbers || b == 0.0 || a == 1.0 ? all : a + b;
}
""",
}


def literal(value: float) -> str:
    """Print a float32 value so that parsing it gives the same float32 back."""
    if not np.isfinite(np.float32(value)):
        raise UnsupportedOpError(f"The parameter {value!r} is no finite float32.")
    number = float(np.float32(value))
    text = (
        np.format_float_positional(abs(number), unique=True, trim="0")
        if 1e-4 <= abs(number) < 1e9 or number == 0
        else f"{abs(number):.9e}"
    )
    return text if number >= 0 else f"(0.0 - {text})"


def _splat(value: float) -> str:
    return f"vec4({literal(value)})"


def _sigmoid(a: str) -> str:
    inner = f"clamp({a}, {_splat(-EXP_LIMIT)}, {_splat(EXP_LIMIT)})"
    return f"keep_nan(vec4(1.0) / (vec4(1.0) + exp(vec4(0.0) - {inner})), {a})"


def _inverse(value: float) -> float:
    if value == 0:
        raise UnsupportedOpError("Celu divides by its alpha, which is 0.")
    return 1.0 / value


def _times(a: str, factor: float) -> str:
    return f"({a} * {literal(factor)})"


def _softplus(a: str) -> str:
    return f"max4({a}, vec4(0.0)) + log(vec4(1.0) + exp(vec4(0.0) - abs({a})))"


def _exponential_tail(a: str, alpha: float, scale: float) -> str:
    inner = f"exp(min4({a}, vec4(0.0)) * {literal(scale)})"
    return f"max4({a}, vec4(0.0)) + {literal(alpha)} * ({inner} - vec4(1.0))"


def _gelu(a: str, p: Mapping[str, float]) -> str:
    if p["tanh"]:
        inner = f"0.7978845608 * ({a} + 0.044715 * {a} * {a} * {a})"  # sqrt(2 / pi)
        return f"0.5 * {a} * (vec4(1.0) + tanh({inner}))"
    return f"0.5 * {a} * (vec4(1.0) + erf4({a} * 0.7071067812))"  # sqrt(1 / 2)


Parameters = Mapping[str, float]
UNARY: dict[str, Callable[[str, Parameters], str]] = {
    "Abs": lambda a, p: f"abs({a})",
    "Neg": lambda a, p: f"-{a}",
    "Exp": lambda a, p: f"keep_nan(exp({a}), {a})",
    "Log": lambda a, p: f"log4({a})",
    "Sqrt": lambda a, p: f"sqrt({a})",
    "Reciprocal": lambda a, p: f"vec4(1.0) / {a}",
    "Floor": lambda a, p: f"floor({a})",
    "Ceil": lambda a, p: f"ceil({a})",
    "Round": lambda a, p: f"roundeven({a})",
    "Sign": lambda a, p: f"keep_nan(sign({a}), {a})",
    "Sin": lambda a, p: f"sin4({a})",
    "Cos": lambda a, p: f"cos4({a})",
    "Relu": lambda a, p: f"max4({a}, vec4(0.0))",
    "LeakyRelu": lambda a, p: (
        f"max4({a}, vec4(0.0)) + {literal(p['alpha'])} * min4({a}, vec4(0.0))"
    ),
    "Elu": lambda a, p: _exponential_tail(a, p["alpha"], 1.0),
    "Celu": lambda a, p: _exponential_tail(a, p["alpha"], _inverse(p["alpha"])),
    "Selu": lambda a, p: f"{literal(p['gamma'])} * ({_exponential_tail(a, p['alpha'], 1.0)})",
    "Sigmoid": lambda a, p: _sigmoid(a),
    "Swish": lambda a, p: f"{a} * ({_sigmoid(_times(a, p['alpha']))})",
    "HardSigmoid": lambda a, p: (
        f"min4(max4({a} * {literal(p['alpha'])} + {_splat(p['beta'])}, vec4(0.0)), vec4(1.0))"
    ),
    "HardSwish": lambda a, p: (
        f"{a} * clamp({a} * {literal(1 / 6)} + vec4(0.5), vec4(0.0), vec4(1.0))"
    ),
    "Tanh": lambda a, p: f"keep_nan(tanh({a}), {a})",
    "Softplus": lambda a, p: _softplus(a),
    "Softsign": lambda a, p: f"{a} / (vec4(1.0) + abs({a}))",
    "Mish": lambda a, p: f"{a} * tanh({_softplus(a)})",
    "Erf": lambda a, p: f"keep_nan(erf4({a}), {a})",
    "Gelu": _gelu,
}
BINARY: dict[str, Callable[[str, str], str]] = {
    "Add": lambda a, b: f"{a} + {b}",
    "Sub": lambda a, b: f"{a} - {b}",
    "Mul": lambda a, b: f"{a} * {b}",
    "Div": lambda a, b: f"{a} / {b}",
    "Max": lambda a, b: f"max4({a}, {b})",
    "Min": lambda a, b: f"min4({a}, {b})",
    "PRelu": lambda a, b: f"max4({a}, vec4(0.0)) + {b} * min4({a}, vec4(0.0))",
    "Pow": lambda a, b: "vec4(" + ", ".join(f"pow1({a}.{c}, {b}.{c})" for c in "xyzw") + ")",
}
SUPPORTED = frozenset(UNARY) | frozenset(BINARY) | {"Clip"}
"""Elementwise operators the GPU can run, after variadic ones became chains of binary ones."""


def expression(node: Node, graph: Graph, operands: Sequence[str]) -> str:
    """Return the kernel text of one elementwise node; `operands` are names of vec4 locals."""
    if node.op == "Clip":
        return _clip(node, graph, operands[0])
    if node.op in UNARY:
        return UNARY[node.op](operands[0], elementwise_attrs(node, graph))
    return BINARY[node.op](operands[0], operands[1])


def _clip(node: Node, graph: Graph, a: str) -> str:
    bounds = canonical(node, graph)
    if not isinstance(bounds, ClipParams):
        raise TypeError(node.op)
    limit = float(np.finfo(np.float32).max)
    if bounds.lo > -limit:
        a = f"max4({a}, {_splat(bounds.lo)})"
    if bounds.hi < limit:
        a = f"min4({a}, {_splat(bounds.hi)})"
    return a


def helpers_for(text: str) -> str:
    """Return the helper functions that `text` calls."""
    needed: list[str] = []
    for name, body in reversed(HELPERS.items()):
        if f"{name}(" in text or any(f"{name}(" in other for other in needed):
            needed.insert(0, body)
    return "".join(needed)
