"""The functions that expressions are made of: kernel text, numpy meaning, running error.

Everything elementwise is a formula over these. Accuracy follows the built-ins of the dialects
(Vulkan specification, "Precision and Operation of SPIR-V Instructions"; GLSL ES 3.10, section
4.5.1, and WGSL give the same figures); where drivers were seen to be worse, a helper function takes
the built-in's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import erf as exact_erf
from math import pi, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import UnsupportedOpError
from gpuedge.opset import bounds
from gpuedge.opset.bounds import Num

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Function:
    """One function of one to three numbers.

    Attributes
    ----------
    text : callable
        Kernel text from the texts of its arguments, which are all vec4.
    scalar : callable
        The same where they are all float.
    numpy : callable
        The same on float32 or float64 arrays.
    error : callable
        The same on `Num`: exact values with bounds.
    """

    text: Callable[..., str]
    scalar: Callable[..., str]
    numpy: Callable[..., Any]
    error: Callable[..., Num]


# round(a / b) where drivers divide with up to 2.5 ULP (Vulkan and OpenGL ES allow that; an H100 is
# 2 off). What is within 4 ULP of a tie is divided anew, digit by digit: 2 |a| = steps |b| + rest.
# Each difference is exact, for operands are within a factor of two (Sterbenz 1974). The rest tells
# on which side of the tie the quotient lies, or whether its rounding falls on it: `edge` is half a
# unit in its last place. Quotients of `most` and more are beyond the integers asked for.
_STEPS = """
float steps{places}_1(float a, float b) {{
    float q = a / b;
    float whole = roundeven(q);
    float size = abs(q);
    if (abs(size - floor(size) - 0.5) <= size * 4.76837158203125e-7 && size < {most}) {{
        float unit = abs(b);
        float rest = 2.0 * abs(a);
        float steps = 0.0;
        float lead = 0.5;
        float place = {most};
        for (int i = 0; i < {places}; i++) {{
            float part = unit * place;
            bool fits = rest >= part;
            lead = fits && steps == 0.0 ? place : lead;
            rest = fits ? rest - part : rest;
            steps = fits ? steps + place : steps;
            place = place * 0.5;
        }}
        float below = floor(steps * 0.5);
        bool odd = steps - 2.0 * below == 1.0;
        float edge = unit * lead * 5.9604644775390625e-8;
        bool tie = (odd ? rest : unit - rest) <= edge;
        bool up = tie ? below - 2.0 * floor(below * 0.5) == 1.0 : odd;
        whole = (q < 0.0 ? -1.0 : 1.0) * (up ? below + 1.0 : below);
    }}
    return whole;
}}
"""

_EACH = """
vec4 {name}_4(vec4 a, vec4 b) {{
    return vec4({name}_1(a.x, b.x), {name}_1(a.y, b.y), {name}_1(a.z, b.z), {name}_1(a.w, b.w));
}}
"""

HELPERS: dict[str, str] = {
    # max() and min() may return either operand where one is NaN (SPIR-V, GLSL.std.450 FMax), and
    # compilers turn comparisons round as if there were none (Mesa 22.3 under OpenGL): NaN has to
    # be asked for, which printers do by the bits where the dialect has them; the sum is NaN then
    "larger": """
float larger(float a, float b) {
    bool none = a != a || b != b;
    float r = a > b ? a : b;
    return none ? a + b : r;
}
""",
    "max4": """
vec4 max4(vec4 a, vec4 b) {
    return vec4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
""",
    "smaller": """
float smaller(float a, float b) {
    bool none = a != a || b != b;
    float r = a < b ? a : b;
    return none ? a + b : r;
}
""",
    "min4": """
vec4 min4(vec4 a, vec4 b) {
    return vec4(smaller(a.x, b.x), smaller(a.y, b.y), smaller(a.z, b.z), smaller(a.w, b.w));
}
""",
    # gives the argument back where it is NaN, for formulas that clamp it
    "ordered": """
float ordered(float r, float a) {
    bool number = a == a;
    return number ? r : a;
}
""",
    "keep_nan": """
vec4 keep_nan(vec4 r, vec4 a) {
    return vec4(ordered(r.x, a.x), ordered(r.y, a.y), ordered(r.z, a.z), ordered(r.w, a.w));
}
""",
    "above4": """
vec4 above4(vec4 a, vec4 b) {
    return vec4(a.x > b.x ? 1.0 : 0.0, a.y > b.y ? 1.0 : 0.0, a.z > b.z ? 1.0 : 0.0,
        a.w > b.w ? 1.0 : 0.0);
}
""",
    "equal1": """
float equal1(float a, float b) {
    return a <= b && a >= b ? 1.0 : 0.0;
}
""",
    "equal4": """
vec4 equal4(vec4 a, vec4 b) {
    return vec4(equal1(a.x, b.x), equal1(a.y, b.y), equal1(a.z, b.z), equal1(a.w, b.w));
}
""",
    "none1": """
float none1(float a) {
    bool number = a == a;
    return number ? 0.0 : 1.0;
}
""",
    "none4": """
vec4 none4(vec4 a) {
    return vec4(none1(a.x), none1(a.y), none1(a.z), none1(a.w));
}
""",
    # bits of whole numbers up to 2^24, lowest first; below zero the rest is -1 at last. It is taken
    # off at once: drivers add in another order, and the lowest bit would be lost beside 2^24
    "and1": """
float and1(float a, float b) {
    float x = a;
    float y = b;
    float result = 0.0;
    float power = 1.0;
    for (int i = 0; i < 24; i++) {
        float halfx = floor(x * 0.5);
        float halfy = floor(y * 0.5);
        result = result + (x - 2.0 * halfx) * (y - 2.0 * halfy) * power;
        x = halfx;
        y = halfy;
        power = power * 2.0;
        float over = x * y == 1.0 ? max(-x, 0.0) : 0.0;
        result = result - over * power;
        x = x + over;
        y = y + over;
    }
    float top = x * y == 0.0 ? 0.0 : max(x, y);
    return result + top * power;
}
""",
    "and4": """
vec4 and4(vec4 a, vec4 b) {
    return vec4(and1(a.x, b.x), and1(a.y, b.y), and1(a.z, b.z), and1(a.w, b.w));
}
""",
    "pick4": """
vec4 pick4(vec4 c, vec4 a, vec4 b) {
    return vec4(c.x > 0.5 ? a.x : b.x, c.y > 0.5 ? a.y : b.y, c.z > 0.5 ? a.z : b.z,
        c.w > 0.5 ? a.w : b.w);
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
    # log() of zero or less is undefined in every dialect: SwiftShader gives -88 and log(abs(x));
    # to SwiftShader 4.1 -0.0 == 0.0 is false, here as in `equal1` and `pow1`
    "log1": """
float log1(float a) {
    float zero = abs(a);
    float below = zero == 0.0 ? -1.0 / zero : (a - a) / (zero - zero);
    float inside = a > 0.0 ? log(a) : below;
    bool number = a == a;
    return number ? inside : a;
}
""",
    "log4": """
vec4 log4(vec4 a) {
    return vec4(log1(a.x), log1(a.y), log1(a.z), log1(a.w));
}
""",
    # pow() of zero or less is undefined in every dialect; this is what C99 (annex F.9.4.4) has
    "pow1": """
float pow1(float a, float b) {
    float whole = floor(b);
    bool odd = whole == b && whole - 2.0 * floor(whole * 0.5) == 1.0;
    float size = abs(a);
    float power = pow(size, b);
    power = size == 0.0 ? (b > 0.0 ? 0.0 : 1.0 / size) : power;
    power = abs(b) == 0.0 || size == 1.0 ? 1.0 : power;
    bool below = a < 0.0 || size == 0.0 && 1.0 / a < 0.0;
    float all = odd && below ? power * -1.0 : power;
    all = a < 0.0 && whole != b && size <= 3.40282347e38 ? sqrt(-1.0 * size) : all;
    bool numbers = a == a && b == b;
    return numbers || abs(b) == 0.0 || a == 1.0 ? all : a + b;
}
""",
    **{
        name: text
        for places in (10, 18)
        for name, text in {
            f"steps{places}_1": _STEPS.format(places=places, most=2.0 ** (places - 1)),
            f"steps{places}_4": _EACH.format(name=f"steps{places}"),
        }.items()
    },
    "pow4": """
vec4 pow4(vec4 a, vec4 b) {
    return vec4(pow1(a.x, b.x), pow1(a.y, b.y), pow1(a.z, b.z), pow1(a.w, b.w));
}
""",
}
"""Functions of the kernel language that a text may call; those that others call come first."""


def helpers_for(text: str) -> str:
    """Return the helper functions that `text` calls."""
    needed: list[str] = []
    for name, body in reversed(HELPERS.items()):
        if f"{name}(" in text or any(f"{name}(" in other for other in needed):
            needed.insert(0, body)
    return "".join(needed)


def literal(value: float) -> str:
    """Print a float32 value so that parsing it gives the same float32 back.

    Raises
    ------
    UnsupportedOpError (GE-501)
        It is infinite or not a number: the kernel language has no text for that.
    """
    if not np.isfinite(np.float32(value)):
        raise UnsupportedOpError(f"The parameter {value!r} is no finite float32.")
    number = float(np.float32(value))
    text = (
        np.format_float_positional(abs(number), unique=True, trim="0")
        if 1e-4 <= abs(number) < 1e9 or number == 0
        else f"{abs(number):.9e}"
    )
    return text if number >= 0 else f"(0.0 - {text})"


# --- numpy meanings ------------------------------------------------------------------------------

_ERF_END = 4
"""erf(4) differs from 1 by 1.5e-8, less than half a unit in the last place of float32."""
_ERF_STEPS = 64


@cache
def _erf_table() -> tuple[Array, Array]:
    points = np.arange(-_ERF_END * _ERF_STEPS, _ERF_END * _ERF_STEPS + 1) / _ERF_STEPS
    return points, np.array([exact_erf(p) for p in points])


def _erf(x: Array) -> Array:
    """Return the error function: the nearest of 513 exact values and a Taylor step of order 4.

    The step is at most 1/128, so the truncation error stays below 1e-11.
    """
    points, exact = _erf_table()
    wide = np.clip(np.asarray(x, np.float64), -_ERF_END, _ERF_END)
    index = np.rint(np.nan_to_num(wide) * _ERF_STEPS).astype(np.int64) + _ERF_END * _ERF_STEPS
    p = points[index]
    d = wide - p
    series = 1 - d * (p - d * ((2 * p * p - 1) / 3 - d * (p * (2 * p * p - 3) / 6)))
    result: Array = exact[index] + d * 2 / sqrt(pi) * np.exp(-p * p) * series
    return result.astype(np.asarray(x).dtype)


# --- running errors ------------------------------------------------------------------------------


def _either(f: Callable[..., Any], sign: int) -> Callable[[Num, Num], Num]:
    """Wrap a maximum (sign 1) or minimum (sign -1); what is certain to win brings its own error."""

    def both(a: Num, b: Num) -> Num:
        value = np.asarray(f(a.v, b.v), np.float64)
        ahead = sign * (a.v - b.v)
        certain = np.abs(ahead) > a.e + b.e
        own = np.where(ahead > 0, a.e, b.e)
        return Num(value, np.where(certain, own, np.maximum(a.e, b.e)))

    return both


def _monotone(f: Callable[..., Any]) -> Callable[[Num], Num]:
    """Wrap an exact step function: results lie between f(x - e) and f(x + e)."""

    def both(x: Num) -> Num:
        value = np.asarray(f(x.v), np.float64)
        up, down = np.abs(f(x.v + x.e) - value), np.abs(f(x.v - x.e) - value)
        return Num(value, np.asarray(np.maximum(up, down)))

    return both


def _steps(a: Num, b: Num) -> Num:
    """The integer that a quotient, correctly rounded, rounds to; of errors, as for a quotient."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sure = np.rint(a.v.astype(np.float32) / b.v.astype(np.float32)).astype(np.float64)
    loose = _monotone(np.rint)(a / b)
    exact = (a.e == 0) & (b.e == 0)
    return Num(np.where(exact, sure, loose.v), np.where(exact, 0.0, loose.e))


def _pick(c: Num, a: Num, b: Num) -> Num:
    """Take either branch; where the condition is not certain, both are possible."""
    yes = c.v > 0.5
    value = np.where(yes, a.v, b.v)
    error = np.where(yes, a.e, b.e)
    gap = np.abs(a.v - b.v) + np.maximum(a.e, b.e)
    return Num(value, np.where(c.e > 0, np.maximum(error, gap), error))


def _above(a: Num, b: Num) -> Num:
    value = np.where(a.v > b.v, 1.0, 0.0)
    close = np.abs(a.v - b.v) <= a.e + b.e
    return Num(value, np.where(close & (a.e + b.e > 0), 1.0, 0.0))


def _numpy_and(a: Any, b: Any) -> Any:
    return np.bitwise_and(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)) * 1.0


def _both(a: Num, b: Num) -> Num:
    return Num(_numpy_and(a.v, b.v), np.where((a.e > 0) | (b.e > 0), np.inf, 0.0))


def _equal(a: Num, b: Num) -> Num:
    value = np.where(a.v == b.v, 1.0, 0.0)
    close = np.abs(a.v - b.v) <= a.e + b.e
    return Num(value, np.where(close & (a.e + b.e > 0), 1.0, 0.0))


def _half(x: Any) -> Any:
    wide = np.asarray(x)
    with np.errstate(over="ignore"):
        return wide.astype(np.float16).astype(wide.dtype)


def _call(name: str) -> Callable[..., str]:
    return lambda *args: f"{name}({', '.join(args)})"


def _numpy_pick(c: Any, a: Any, b: Any) -> Any:
    return np.where(np.asarray(c) > 0.5, a, b)


def _built_in(
    text: Callable[..., str], numpy: Callable[..., Any], error: Callable[..., Num]
) -> Function:
    """Return a function whose text is the same for vectors and for numbers."""
    return Function(text, text, numpy, error)


def _helped(
    vector: str, scalar: str, numpy: Callable[..., Any], error: Callable[..., Num]
) -> Function:
    """Return a function that has a helper for vectors and one for numbers."""
    return Function(_call(vector), _call(scalar), numpy, error)


def _vector(name: str, numpy: Callable[..., Any], error: Callable[..., Num]) -> Function:
    """Return a function that has a helper for vectors only."""

    def scalar(*args: str) -> str:
        return f"{name}({', '.join(f'vec4({a})' for a in args)}).x"

    return Function(_call(name), scalar, numpy, error)


def _infix(sign: str, numpy: Callable[..., Any], error: Callable[..., Num]) -> Function:
    return _built_in(lambda a, b: f"({a} {sign} {b})", numpy, error)


FUNCTIONS: dict[str, Function] = {
    "add": _infix("+", np.add, lambda a, b: a + b),
    "sub": _infix("-", np.subtract, lambda a, b: a - b),
    "mul": _infix("*", np.multiply, lambda a, b: a * b),
    "div": _infix("/", np.divide, lambda a, b: a / b),
    "neg": _built_in(lambda a: f"(-{a})", np.negative, lambda a: -a),
    "abs": _built_in(_call("abs"), np.abs, Num.abs),
    "sign": Function(lambda a: f"keep_nan(sign({a}), {a})", lambda a: f"ordered(sign({a}), {a})",
                     np.sign, _monotone(np.sign)),
    "floor": _built_in(_call("floor"), np.floor, _monotone(np.floor)),
    "ceil": _built_in(_call("ceil"), np.ceil, _monotone(np.ceil)),
    "round": _built_in(_call("roundeven"), np.rint, _monotone(np.rint)),
    "steps8": _helped("steps10_4", "steps10_1", lambda a, b: np.rint(np.divide(a, b)), _steps),
    "steps16": _helped("steps18_4", "steps18_1", lambda a, b: np.rint(np.divide(a, b)), _steps),
    "exp": _built_in(_call("exp"), np.exp, Num.exp),
    "log": _helped("log4", "log1", np.log, Num.log),
    "sqrt": _built_in(_call("sqrt"), np.sqrt, Num.sqrt),
    "sin": _vector("sin4", np.sin, lambda x: bounds.sine(x, 0)),
    "cos": _vector("cos4", np.cos, lambda x: bounds.sine(x, pi / 2)),
    "tanh": _built_in(_call("tanh"), np.tanh, Num.tanh),
    "erf": _vector("erf4", _erf, bounds.erf),
    "pow": _helped("pow4", "pow1", np.power, bounds.power),
    "max": _helped("max4", "larger", np.maximum, _either(np.maximum, 1)),
    "min": _helped("min4", "smaller", np.minimum, _either(np.minimum, -1)),
    "above": Function(_call("above4"), lambda a, b: f"({a} > {b} ? 1.0 : 0.0)",
                      lambda a, b: np.where(np.greater(a, b), np.float32(1), np.float32(0)),
                      _above),
    "equal": _helped("equal4", "equal1",
                     lambda a, b: np.where(np.equal(a, b), np.float32(1), np.float32(0)), _equal),
    "and": _helped("and4", "and1", _numpy_and, _both),
    "none": _helped("none4", "none1", lambda a: np.where(np.isnan(a), np.float32(1), np.float32(0)),
                    lambda a: Num(np.where(np.isnan(a.v), 1.0, 0.0), np.zeros_like(a.v))),
    "pick": Function(_call("pick4"), lambda c, a, b: f"({c} > 0.5 ? {a} : {b})", _numpy_pick,
                     _pick),
    "keep_nan": _helped("keep_nan", "ordered", lambda r, a: np.where(np.isnan(a), a, r),
                        lambda r, a: r),
    "half": Function(lambda a: f"vec4(hvec4({a}))", lambda a: f"float(half({a}))", _half,
                     bounds.half),
}  # fmt: skip
"""Every function by name. ``and`` has the bits of both;
``above``, ``equal`` and ``none`` (NaN) are 1 or 0; ``pick`` takes its
second argument where the first is 1, else its third; ``steps8`` and
``steps16`` round a quotient, correctly rounded, to an integer of 8 or 16 bits (ties to even);
``keep_nan(r, a)`` is `r`, or `a` where that is NaN; ``half`` rounds to float16."""

EXACT = frozenset(
    {"add", "sub", "mul", "div", "neg", "abs", "floor", "ceil", "round", "sqrt", "max", "min"}
)
"""Functions that numpy rounds exactly, as IEEE 754 has it, in one pass over its operands."""
