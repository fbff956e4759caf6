"""Functions of one element, and of several that broadcast. Adding one is a row of `ROWS`.

A row holds the ONNX operator, the public function, the formula that kernels and numpy compute, and
where it is tested; shape, dtype, cost, documentation, conformance cases and the running error that
bounds it follow. Formulas are made of `gpuedge.opset.functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import exp as e_to
from math import inf, pi, sqrt

import numpy as np

from gpuedge.core.dtypes import BYTES, EXACT, INTEGERS, SMALL
from gpuedge.opset.call import OperatorCall
from gpuedge.opset.expr import Expr, apply, lift
from gpuedge.opset.limits import divisor
from gpuedge.opset.operator import Function, Operator
from gpuedge.opset.ranges import Spans, largest, limits, span
from gpuedge.opset.tensor import Map, Tensor, mapped, reshape

SHORTS = tuple(dtype for dtype in SMALL if dtype not in BYTES)
"""Integers of which products leave 2^24."""

EXP_LIMIT = 88.0
"""exp() of more than 88.7 overflows float32. By then sigmoid is as flat as float32 can tell."""

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""Defaults of Selu, from its schema (ai.onnx, version 6)."""

FIRST_BROADCASTING = 7
"""Operator set from which binary operators broadcast by numpy's rules."""


def f(name: str) -> Callable[..., Expr]:
    """Return a function of `gpuedge.opset.functions` by name."""
    return lambda *args: apply(name, *args)


exp, log, tanh, larger, smaller = f("exp"), f("log"), f("tanh"), f("max"), f("min")
magnitude, keep_nan, above, pick = f("abs"), f("keep_nan"), f("above"), f("pick")


def truncated(x: Expr) -> Expr:
    """X without its fraction."""
    return pick(above(0.0, x), apply("ceil", x), apply("floor", x))


def quotient(a: Expr, b: Expr) -> Expr:
    """A / b without its fraction, exact for integers up to 2^24.

    A division may be 2.5 ULP off, which is up to 3 here; the remainder tells by how much.
    """
    size, by = magnitude(a), magnitude(b)
    whole = apply("floor", size / by)
    whole = whole + apply("floor", (size - whole * by) / by)
    rest = size - whole * by
    whole = whole + (1.0 - above(by, rest)) - above(0.0, rest)
    return apply("sign", a) * apply("sign", b) * whole


def integer_power(a: Expr, b: Expr) -> Expr:
    """A ** b for integers, by squaring; beyond 30 only the parity of an exponent matters."""
    size = magnitude(b)
    left = smaller(size, 30.0 + size - 2.0 * apply("floor", size * 0.5))
    result, power = lift(1.0), a
    for _ in range(5):
        half = apply("floor", left * 0.5)
        result = pick(above(left - 2.0 * half, 0.5), result * power, result)
        left, power = half, power * power
    return pick(above(0.0, b), truncated(1.0 / result), result)


def wrapped(call: OperatorCall, tensor: Tensor, most: float | None = None) -> Tensor:
    """Return integers of 8 and 16 bits modulo their range; others are as they are.

    `most` bounds their sizes, where the formula alone does not tell.
    Raises UnsupportedOpError (GE-501) where float32 does not hold what is to wrap.
    """
    low, high = limits(tensor.dtype)
    if most is not None:
        tensor.span = max(low, -most), min(high, most)
    if tensor.dtype not in SMALL or not isinstance(tensor.source, Map):
        return tensor
    bare = Tensor(tensor.shape, "int64", tensor.source)
    if most is not None:
        bare.span = -most, most
    if low <= span(bare)[0] and span(bare)[1] <= high:
        return tensor
    if most is None and Spans().extent(tensor.source.body) > EXACT:
        raise call.unsupported(f"computes in {tensor.dtype} beyond {EXACT}")
    count = high - low + 1
    return mapped(lambda x: x - count * apply("floor", (x - low) * (1 / count)), bare,
                  dtype=tensor.dtype)  # fmt: skip


def _clamp(x: Expr, low: float, high: float) -> Expr:
    return smaller(larger(x, low), high)


def logistic(x: Expr) -> Expr:
    """1 / (1 + exp(-x)); NaN stays NaN."""
    return keep_nan(1.0 / (1.0 + exp(-_clamp(x, -EXP_LIMIT, EXP_LIMIT))), x)


def _tanh(x: Expr) -> Expr:
    """Below 1/8, where drivers lose digits, the Taylor series (next term 62/2835 x^9 < 2^-30 x)."""
    s = x * x
    series = x * (1.0 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315))))
    return keep_nan(pick(above(magnitude(x), 0.125), tanh(x), series), x)


def _softplus(x: Expr) -> Expr:
    """Below 2^-5, of which 1 + e keeps few digits, the series of log(1 + e) (e^5 / 6 < 2^-27)."""
    e = exp(-magnitude(x))
    series = e * (1.0 - e * (1 / 2 - e * (1 / 3 - e * (1 / 4 - e * (1 / 5)))))
    return larger(x, 0.0) + pick(above(e, 2.0**-5), log(1.0 + e), series)


def _tail(x: Expr, alpha: float, scale: float = 1.0) -> Expr:
    low = smaller(x, 0.0)
    return larger(x, 0.0) + alpha * (exp(low * scale if scale != 1 else low) - 1.0)


def _celu(x: Expr, alpha: float) -> Expr:
    if alpha == 0:
        raise ValueError("divides by its alpha, which is 0")
    return _tail(x, alpha, 1.0 / alpha)


def gelu(x: Expr) -> Expr:
    """X Phi(x), by the error function."""
    return 0.5 * x * (1.0 + apply("erf", x * sqrt(0.5)))


def gelu_tanh(x: Expr) -> Expr:
    """X Phi(x), by the tanh formula."""
    return 0.5 * x * (1.0 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))


def _mish(x: Expr) -> Expr:
    """Use that tanh(softplus(x)), with e for exp(x), is 1 / (1 + 2 / (e e + 2 e))."""
    e = exp(_clamp(x, -80.0, 20.0))
    return x * (1.0 / (1.0 + 2.0 / (e * (e + 2.0))))


def half_exp(x: Expr) -> Expr:
    """Return half of exp(x): above 88, where that overflows, a number times exp(x - 44)."""
    far = above(x, EXP_LIMIT)
    return pick(far, 0.5 * e_to(44), 0.5) * exp(pick(far, x - 44.0, x))


def _sinh(x: Expr) -> Expr:
    """(e - 1/e) / 2; below 1, where that cancels, the Taylor series (next term 1/11! < 2^-25)."""
    s = x * x
    series = x + x * s * (1 / 6 + s * (1 / 120 + s * (1 / 5040 + s * (1 / 362880))))
    half = half_exp(magnitude(x))
    far = apply("sign", x) * (half - 0.25 / half)
    return pick(above(magnitude(x), 1.0), far, series)


@dataclass(frozen=True)
class Row:
    """An elementwise operator.

    Attributes
    ----------
    op : str
        ONNX name.
    function : str
        Public name; empty if there is none.
    formula : callable
        Takes the operands as expressions and `numbers` by name.
    summary, bound : str
        For the documentation of the function.
    domain, narrow : (float, float)
        Where conformance cases draw from; see `Function`.
    numbers : mapping
        Numeric attributes with ONNX's defaults.
    operands : tuple of str
        Names of the operands.
    dtypes : tuple of str
        Integers on which it gives such integers again.
    integers : tuple of str
        Integers that the node of a model may have besides; results wrap as ONNX has it.
    others : tuple of int
        Operands whose dtype need not be that of the first.
    is_variadic : bool
        Whether it takes any number of operands, from left to right.
    arguments : tuple of str, optional
        Those of `numbers` that the public function takes; by default all.
    """

    op: str
    function: str
    formula: Callable[..., Expr]
    summary: str
    bound: str
    domain: tuple[float, float] = (-50, 50)
    narrow: tuple[float, float] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    operands: tuple[str, ...] = ("x",)
    dtypes: tuple[str, ...] = ()
    is_variadic: bool = False
    arguments: tuple[str, ...] | None = None
    integers: tuple[str, ...] = ()
    others: tuple[int, ...] = ()

    def operator(self) -> Operator:
        """Return the ONNX operator."""
        taken = (*self.dtypes, *(d for d in self.integers if d not in self.dtypes))
        return Operator(self.op, self.build, dtypes=taken, others=self.others)

    def public(self) -> Function:
        """Return the function on numpy arrays."""
        taken = self.numbers if self.arguments is None else self.arguments
        numbers = {name: self.numbers[name] for name in taken}
        return Function(self.function, self.op, self.summary, self.bound, self.operands,
                        numbers, self.dtypes, self.domain, self.narrow)  # fmt: skip

    def build(self, call: OperatorCall) -> Tensor:
        """Compose a node."""
        tensors = [call.input(i) for i in range(len(call.inputs)) if call.has(i)]
        count, wanted = len(tensors), len(self.operands)
        if not count or (count != wanted and not self.is_variadic):
            many = "one or more" if self.is_variadic else str(wanted)
            raise call.unsupported(f"has {count} operands instead of {many}")
        if call.version < FIRST_BROADCASTING and wanted == 2 and "axis" in call.attrs:
            raise call.unsupported("broadcasts along an axis, as operator sets before 7 did")
        numbers = {name: call.number(name, value) for name, value in self.numbers.items()}
        total = tensors[0]
        try:
            if wanted == 1 and not self.is_variadic:
                total = mapped(lambda x: self.formula(x, **numbers), total)
            for other in tensors[1:]:
                total = mapped(lambda a, b: self.formula(a, b, **numbers), total, other)
        except ValueError as error:
            why = str(error)
            raise (call.unsupported(why) if numbers else _no_fit(call)) from None
        return wrapped(call, total) if self.integers else total


def _no_fit(call: OperatorCall) -> Exception:
    return call.bad_shape("has inputs that do not broadcast")


PAIR = ("a", "b")

ROWS: tuple[Row, ...] = (
    Row("Abs", "abs", magnitude, "Absolute value, element by element", "exact",
        integers=INTEGERS),
    Row("Neg", "neg", f("neg"), "Negation, element by element", "exact", integers=INTEGERS),
    Row("Floor", "floor", f("floor"), "Greatest integer not above, element by element", "exact"),
    Row("Ceil", "ceil", f("ceil"), "Least integer not below, element by element", "exact"),
    Row("Round", "round", f("round"), "Nearest integer, ties to even, element by element", "exact"),
    Row("Sign", "sign", f("sign"), "-1, 0 or 1, element by element", "exact", (-2, 2),
        dtypes=BYTES, integers=INTEGERS),
    Row("Exp", "exp", lambda x: keep_nan(exp(x), x), "Exponential, element by element",
        "(3 + 2 abs(x)) ULP (Vulkan specification, precision of exp)", (-80, 80), (-4, 4)),
    Row("Log", "log", log, "Natural logarithm, element by element",
        "3 ULP outside [0.5, 2], 2^-21 absolute inside (Vulkan specification)", (1e-3, 50),
        (0.5, 8)),
    Row("Sqrt", "sqrt", f("sqrt"), "Square root, element by element",
        "4.5 ULP (Vulkan specification: inherited from 1 / inversesqrt)", (0, 5000), (0, 50)),
    Row("Reciprocal", "reciprocal", lambda x: 1.0 / x, "`1 / x`, element by element",
        "2.5 ULP (Vulkan specification, division)", (0.01, 50), (0.5, 8)),
    Row("Sin", "sin", f("sin"), "Sine, angles in radians, element by element",
        "2e-6 absolute for abs(x) <= 1000", (-1000, 1000), (-6, 6)),
    Row("Cos", "cos", f("cos"), "Cosine, angles in radians, element by element",
        "2e-6 absolute for abs(x) <= 1000", (-1000, 1000), (-6, 6)),
    Row("Sinh", "sinh", _sinh, "Hyperbolic sine, element by element",
        "(8 + 2 abs(x)) ULP, from the precision of exp (Vulkan specification)", (-20, 20),
        (-4, 4)),
    Row("Erf", "erf", lambda x: keep_nan(apply("erf", x), x),
        "Gauss error function, element by element", "3e-6 absolute", (-5, 5)),
    Row("Relu", "relu", lambda x: larger(x, 0.0), "`max(x, 0)`", "exact", dtypes=("int8",)),
    Row("LeakyRelu", "leaky_relu",
        lambda x, alpha: larger(x, 0.0) + alpha * smaller(x, 0.0),
        "`x` where positive, else `alpha * x`", "1.25 ULP", numbers={"alpha": 0.01}),
    Row("Elu", "elu", _tail, "`x` where positive, else `alpha * (exp(x) - 1)`",
        "1e-6 * max(1, alpha) absolute plus 1 ULP", narrow=(-8, 8), numbers={"alpha": 1.0}),
    Row("Celu", "celu", _celu, "`x` where positive, else `alpha * (exp(x / alpha) - 1)`",
        "1e-6 * max(1, alpha) absolute plus 1 ULP", narrow=(-8, 8), numbers={"alpha": 1.0}),
    Row("Selu", "selu", lambda x, alpha, gamma: gamma * _tail(x, alpha),
        "Scaled exponential unit: `gamma * elu(x, alpha)` with the constants of ONNX",
        "1e-6 absolute plus 1e-6 relative", narrow=(-8, 8),
        numbers={"alpha": SELU_ALPHA, "gamma": SELU_GAMMA}, arguments=()),
    Row("Sigmoid", "sigmoid", logistic, "`1 / (1 + exp(-x))`", "1e-6 absolute", (-100, 100),
        (-8, 8)),
    Row("Swish", "", lambda x, alpha: x * logistic(x if alpha == 1 else x * alpha),
        "`x * sigmoid(alpha * x)`", "2e-6 * max(1, abs(x))", (-100, 100),
        (-8, 8), numbers={"alpha": 1.0}),
    Row("HardSigmoid", "hard_sigmoid",
        lambda x, alpha, beta: _clamp(x * alpha + beta, 0.0, 1.0),
        "`clip(alpha * x + beta, 0, 1)`", "2 ULP of max(1, alpha * x)", (-8, 8),
        numbers={"alpha": 0.2, "beta": 0.5}),
    Row("HardSwish", "hard_swish", lambda x: x * _clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
        "`x * clip(x / 6 + 0.5, 0, 1)`", "2e-7 * max(1, abs(x))", (-8, 8)),
    Row("Tanh", "tanh", _tanh, "Hyperbolic tangent",
        "1e-5 absolute (Vulkan specification: sinh / cosh)", (-30, 30), (-4, 4)),
    Row("Softplus", "softplus", _softplus, "`log(1 + exp(x))`",
        "2e-6 absolute plus 1e-6 relative", (-100, 100), (-8, 8)),
    Row("Softsign", "softsign", lambda x: x / (1.0 + magnitude(x)), "`x / (1 + abs(x))`", "4 ULP"),
    Row("Mish", "mish", _mish, "`x * tanh(softplus(x))`", "1e-6 * max(1, abs(x))", (-30, 30),
        (-8, 8)),
    Row("ThresholdedRelu", "thresholded_relu",
        lambda x, alpha: pick(above(x, alpha), x, 0.0), "`x` where above alpha, else 0", "exact",
        numbers={"alpha": 1.0}),
    Row("Add", "add", f("add"), "`a + b`, with broadcasting", "exactly rounded", operands=PAIR,
        integers=INTEGERS),
    Row("Sub", "sub", f("sub"), "`a - b`, with broadcasting", "exactly rounded", operands=PAIR,
        integers=INTEGERS),
    Row("Mul", "mul", f("mul"), "`a * b`, with broadcasting", "exactly rounded", operands=PAIR,
        integers=INTEGERS),
    Row("Div", "div", f("div"), "`a / b`, with broadcasting",
        "2.5 ULP (Vulkan specification, division)", operands=PAIR),
    Row("Pow", "pow", f("pow"),
        "`a ** b`, with broadcasting; NaN for a negative base with a fractional exponent",
        "that of exp2(b * log2(abs(a))) (Vulkan specification, pow)", operands=PAIR),
    Row("PRelu", "prelu", lambda x, slope: larger(x, 0.0) + slope * smaller(x, 0.0),
        "`x` where positive, else `slope * x`; `slope` broadcasts to `x`", "1 ULP",
        operands=("x", "slope")),
    Row("Max", "maximum", larger, "The larger of a and b, with broadcasting", "exact",
        operands=PAIR, dtypes=BYTES, is_variadic=True, integers=INTEGERS),
    Row("Min", "minimum", smaller, "The smaller of a and b, with broadcasting", "exact",
        operands=PAIR, dtypes=BYTES, is_variadic=True, integers=INTEGERS),
    Row("Sum", "", f("add"), "Sum of all operands", "exactly rounded", operands=PAIR,
        is_variadic=True),
)  # fmt: skip
"""The elementwise operators."""


def _mean(call: OperatorCall) -> Tensor:
    count = float(len(call.inputs))
    total = BY_NAME["Sum"].build(call)
    return mapped(lambda x: x / count, total)


def _gelu_node(call: OperatorCall) -> Tensor:
    mode = call.text("approximate", "none")
    if mode not in {"none", "tanh"}:
        raise call.unsupported(f"has approximate={mode!r}; only 'none' and 'tanh' exist")
    return mapped(gelu_tanh if mode == "tanh" else gelu, call.input(0))


def _selu_node(call: OperatorCall) -> Tensor:
    if call.version >= 6:
        return BY_NAME["Selu"].build(call)
    alpha, gamma = call.number("alpha", 1.6732), call.number("gamma", 1.0507)
    return mapped(lambda x: gamma * _tail(x, alpha), call.input(0))


def _prelu_node(call: OperatorCall) -> Tensor:
    x, slope = call.input(0), call.input(1)
    if call.version < FIRST_BROADCASTING and slope.rank == 1 and x.rank > 1:
        # by channel
        column = reshape(slope, (slope.size, *(1,) * (x.rank - 2)))
        call = replace(call, inputs=(x, column))
    result = BY_NAME["PRelu"].build(call)
    if result.shape != call.shape(0):
        raise call.bad_shape("has a slope that does not broadcast to its input")
    return result


def _div(call: OperatorCall) -> Tensor:
    if call.input(0).dtype not in INTEGERS:
        return BY_NAME["Div"].build(call)
    return wrapped(call, _pair(call, quotient), largest(call.input(0)))


def _pow(call: OperatorCall) -> Tensor:
    if call.input(0).dtype not in INTEGERS:
        return BY_NAME["Pow"].build(call)
    if call.input(1).dtype not in INTEGERS:
        power = mapped(lambda a, b: truncated(apply("pow", a, b)), call.input(0), call.input(1))
        return wrapped(call, power)
    return wrapped(call, _pair(call, integer_power))


def _pair(call: OperatorCall, formula: Callable[..., Expr]) -> Tensor:
    """Return a formula of two operands that broadcast."""
    try:
        return mapped(formula, call.input(0), call.input(1))
    except ValueError:
        raise _no_fit(call) from None


def _clip(call: OperatorCall) -> Tensor:
    """Limit to bounds; an absent one is the extreme finite value of the dtype.

    Infinite ones that limit nothing are left out: infinity stays what it is then, unlike there.
    """
    x = call.input(0)
    about = np.iinfo(x.dtype) if x.dtype in INTEGERS else np.finfo(x.dtype)
    low, high = (
        _bound(call, i, name, float(end))
        for i, name, end in ((1, "min", about.min), (2, "max", about.max))
    )
    given = [b for b in (low, high) if isinstance(b, Tensor)]

    def formula(x: Expr, *rest: Expr) -> Expr:
        limits_given = iter(rest)
        least = next(limits_given) if isinstance(low, Tensor) else low
        most = next(limits_given) if isinstance(high, Tensor) else high
        raised = x if low == -inf else larger(x, least)
        return raised if high == inf else smaller(raised, most)

    return mapped(formula, x, *given)


def _bound(call: OperatorCall, index: int, name: str, extreme: float) -> float | Tensor:
    """Return a bound: a number if it is constant, the extreme if it is absent."""
    if call.version < 11:
        return call.number(name, extreme)
    bound = call.optional(index)
    if bound is None:
        return extreme
    if bound.size != 1:
        raise call.bad_shape(f"needs a scalar as its input {index}")
    return reshape(bound, ()) if bound.array is None else float(bound.array.reshape(()))


BY_NAME = {row.op: row for row in ROWS}


def _mul_node(call: OperatorCall) -> Tensor:
    """Multiply 16 bits by 8 at a time, so that nothing leaves 2^24."""
    a, b = call.input(0), call.input(1)
    if a.dtype not in SHORTS or b.dtype != a.dtype:
        return BY_NAME["Mul"].build(call)
    wide = "int32"
    high = mapped(lambda v: apply("floor", v * (1 / 256)), a, dtype=wide)
    low = mapped(lambda v, h: v - 256.0 * h, a, high, dtype=wide)
    high.span, low.span = (-128.0, 255.0), (0.0, 255.0)
    try:
        over = mapped(lambda h, v: h * v, high, b, dtype=wide)
        rest = mapped(lambda o: o - 256.0 * apply("floor", o * (1 / 256)), over, dtype=wide)
        rest.span = 0.0, 255.0
        return wrapped(call, mapped(lambda r, n, v: 256.0 * r + n * v, rest, low, b, dtype=a.dtype))
    except ValueError:
        raise _no_fit(call) from None


OPERATORS: tuple[Operator, ...] = (
    *(row.operator() for row in ROWS if row.op not in {"Selu", "PRelu", "Mul", "Div", "Pow"}),
    Operator("Mul", _mul_node, dtypes=INTEGERS),
    Operator("Div", _div, dtypes=INTEGERS, limits=divisor),
    Operator("Pow", _pow, dtypes=INTEGERS, others=(1,)),
    Operator("Selu", _selu_node),
    Operator("PRelu", _prelu_node),
    Operator("Mean", _mean),
    Operator("Gelu", _gelu_node),
    Operator("Clip", _clip, dtypes=INTEGERS),
)

FUNCTIONS: tuple[Function, ...] = tuple(row.public() for row in ROWS if row.function)
