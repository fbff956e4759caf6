"""What ESSL 1.00 cannot say, said otherwise: ints are floats, loops have constant bounds.

Floats count exactly up to 2^24; tensors of a device of this level are small enough for that.
Appendix A of the language's specification is taken at its word: constant loops, constant indices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gpuedge.core.errors import KernelError
from gpuedge.lang import tree as t
from gpuedge.lang.essl_expression import POSTFIX, RANK, SELECT, Text
from gpuedge.lang.essl_function import FunctionPrinter

MAX_TRIPS: Final = 65536
"""A loop whose bound is a param or extent ends here; drivers' own limits are no higher."""

_DIVIDE = """\
TYPE NAME(TYPE a, TYPE b) {
    TYPE q = floor(a / b);
    q += floor((a - q * b) / b);
    TYPE r = a - q * b;
    return q + step(b, r) - (1.0 - step(0.0, r));
}"""
_REMAINDER = """\
TYPE NAME(TYPE a, TYPE b) {
    return a - b * DIV(a, b);
}"""
_ROUND = """\
float k_roundeven(float x) {
    float f = floor(x);
    float d = x - f;
    float odd = f - 2.0 * floor(f * 0.5);
    return d > 0.5 ? f + 1.0 : (d == 0.5 ? f + odd : f);
}"""
# Below 1/4 the Taylor polynomial, whose next term is below 2^-26 of the result.
_TANH = """\
float k_tanh(float x) {
    float s = x * x;
    float near = x + x * s * (s * (s * (s * 0.0218694885 - 0.0539682540) + 0.133333333)
        - 0.333333333);
    float e = exp(-2.0 * min(abs(x), 15.0));
    float far = (1.0 - e) / (1.0 + e);
    return abs(x) < 0.25 ? near : (x < 0.0 ? -far : far);
}"""


def _helpers() -> Iterator[tuple[str, str]]:
    """Yield every helper by name; those for vectors end in the width."""
    yield from (("k_roundeven", _ROUND), ("k_tanh", _TANH))
    for n, kind in (("", "float"), (2, "vec2"), (3, "vec3"), (4, "vec4")):
        for name, text in ((f"k_div{n}", _DIVIDE), (f"k_mod{n}", _REMAINDER)):
            made = text.replace("TYPE", kind).replace("NAME", name)
            yield name, made.replace("DIV", f"k_div{n}")
        for name in ("k_roundeven", "k_tanh") if n else ():
            parts = ", ".join(f"{name}(x.{c})" for c in "xyzw"[: int(n)])
            yield f"{name}{n}", f"{kind} {name}{n}({kind} x) {{\n    return {kind}({parts});\n}}"


HELPERS: Final = dict(_helpers())
"""Helper functions for what ESSL 1.00 has no word for, by name."""


class Printer(FunctionPrinter):
    """Prints functions in ESSL 1.00."""

    has_bits = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.in_constant = False

    def constant(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression where the language wants a constant: it may not call helpers."""
        self.in_constant = True
        text = self.value(expr, least)
        self.in_constant = False
        return text

    def kind(self, name: str) -> str:
        """Return the float type that stands for an int type."""
        return {"int": "float", "ivec2": "vec2", "ivec3": "vec3", "ivec4": "vec4"}.get(name, name)

    def number(self, kind: str, value: float) -> str:
        """Print a literal; ints must be floats too."""
        if kind == "int" and struct.unpack("<f", struct.pack("<f", value))[0] != value:
            raise KernelError(
                f"Kernel {self.name}: {value} is no float32, and in ESSL 1.00 ints are floats.",
                asked_by="OpenGL ES 2.0",
                hint="keep ints below 16777216 in kernels for this level",
            )
        return super().number("float", float(value))

    def index(self, expr: t.Expr) -> str:
        """Print the index of an array: the one place for an int, and a constant in map kernels."""
        return str(expr.value) if isinstance(expr, t.Literal) else self.value(expr)

    def binary(self, expr: t.Binary) -> Text:
        """Print an operator; division of ints is done by helpers, or folded by the compiler."""
        if t.BASE[expr.type] != "int" or expr.op not in "/%":
            return super().binary(expr)
        if expr.time > t.SPEC:
            name = "k_div" if expr.op == "/" else "k_mod"
            return self.helper(name, expr.type, expr.left, expr.right)
        # A constant may not call helpers. Half a unit keeps the quotient clear of rounding.
        a, b = self.value(expr.left, RANK["+"]), self.value(expr.right, POSTFIX)
        quotient = f"floor(({a} + 0.5) / {b})"
        if expr.op == "/":
            return quotient, POSTFIX
        return f"{self.value(expr.left, RANK['-'])} - {b} * {quotient}", RANK["-"]

    def cast(self, expr: t.Cast) -> Text:
        """Print nothing: only integral values are converted."""
        return self.printers[type(expr.value)](expr.value)

    def builtin(self, expr: t.Builtin) -> Text:
        """Print a built-in, or the helper that stands for it."""
        if expr.name not in ("tanh", "roundeven"):
            return self.call(expr.name, *expr.args)
        if self.in_constant:
            raise KernelError(
                f"Kernel {self.name}: {expr.name}() cannot say how long a loop is in ESSL 1.00.",
                asked_by="OpenGL ES 2.0",
                hint="give the loop a spec of its own",
            )
        return self.helper(f"k_{expr.name}", expr.type, *expr.args)

    def helper(self, name: str, kind: str, *args: t.Expr) -> Text:
        """Print a call of a helper for values of type `kind`."""
        width = t.WIDTH[kind]
        return self.call(f"{name}{width if width > 1 else ''}", *args)

    def declare(self, stmt: t.Declare) -> None:
        """Print a declaration; what a loop needs must be a constant in the language's own sense."""
        local, value = stmt.local, stmt.value
        if value is None or not local.frozen or value.time > t.SPEC:
            super().declare(stmt)
            return
        self.line(f"const {self.kind(local.type)} {self.local(local)} = {self.constant(value)};")

    def loop(self, stmt: t.For) -> None:
        """Print a loop with constant bounds and, if its own is none, an exit."""
        name = self.local(stmt.index)
        start, step, bound = self.constant(stmt.start), self.constant(stmt.step), stmt.bound
        is_constant = bound.time <= t.SPEC
        limit = self.constant(bound, RANK["+"]) if is_constant else f"{MAX_TRIPS}.0"
        self.open(f"for (float {name} = {start}; {name} < {limit}; {name} += {step})")
        if not is_constant:
            self.line(f"if ({name} >= {self.value(bound, RANK['+'])}) break;")
        self.block(stmt.body)
        self.close()
