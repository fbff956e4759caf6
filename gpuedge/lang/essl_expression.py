"""Expressions as text of ESSL 3.00 and 3.10, without needless parentheses.

ESSL is the OpenGL ES shading language.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float
from typing import Any

from gpuedge.lang import tree as t

RANK = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
"""How tightly the operators bind; `?:` 0, unary 7, everything else 8."""
SELECT, UNARY, POSTFIX = 0, 7, 8

Text = tuple[str, int]
"""A text and its rank."""

_TANH_LIMIT = 15.0  # tanh(15) is 1 in float32; drivers that divide sinh by cosh overflow at 89
_IDENTIFIERS = {"local_id": "gl_LocalInvocationID", "group_id": "gl_WorkGroupID"}


def float_text(value: float) -> str:
    """Print a float32 with as few digits as give it back, nine at the most."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if c_float(float(text)).value == value:  # (struct refuses what rounds to infinity)
            break
    return text if "." in text or "e" in text else f"{text}.0"


class ExpressionPrinter:
    """Prints expressions; every local has a name of its own, so scopes do not matter."""

    has_bits = True  # whether the dialect can look at the bits of a float

    def __init__(self) -> None:
        self.printers: dict[type, Callable[[Any], Text]] = {
            t.Literal: self._literal,
            t.SpecRef: lambda e: (f"S_{e.spec.name}", POSTFIX),
            t.ParamRef: lambda e: (f"p_{e.param.name}", POSTFIX),
            t.LocalRef: lambda e: (self.local(e.local), POSTFIX),
            t.Element: lambda e: (self.element(e.array, e.index), POSTFIX),
            t.Swizzle: self._swizzle,
            t.Unary: lambda e: (f"{e.op}{self.value(e.value, POSTFIX)}", UNARY),
            t.Binary: self.binary,
            t.Select: self._select,
            t.Construct: lambda e: self.call(self.kind(e.type), *e.args),
            t.Splat: lambda e: self.call(self.kind(e.type), e.value),
            t.Cast: self.cast,
            t.Builtin: self.builtin,
            t.Load: lambda e: self.call(f"k_{e.name}_{e.tensor.name}", e.position),
            t.Dims: lambda e: (f"d_{e.tensor.name}", POSTFIX),
            t.Identifier: lambda e: (f"ivec3({_IDENTIFIERS[e.name]})", POSTFIX),
            t.Call: lambda e: self.call(f"f_{e.function.name}", *e.args),
        }

    def value(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression, in parentheses if it binds less tightly than `least`."""
        text, rank = self.printers[type(expr)](expr)
        return text if rank >= least else f"({text})"

    def call(self, name: str, *args: t.Expr) -> Text:
        """Print a call or constructor."""
        return f"{name}({', '.join(self.value(arg) for arg in args)})", POSTFIX

    # --- names ----------------------------------------------------------------------------------
    def kind(self, name: str) -> str:
        """Return what the dialect calls a type."""
        return name

    @staticmethod
    def local(local: t.Local) -> str:
        """Return the name of a local; the prefix keeps it clear of reserved words."""
        return f"l_{local.name}_{local.uid}"

    def element(self, array: t.Local | t.Shared, index: t.Expr | None) -> str:
        """Print an element of an array, or a whole local."""
        name = self.local(array) if isinstance(array, t.Local) else f"m_{array.name}"
        return name if index is None else f"{name}[{self.index(index)}]"

    def index(self, expr: t.Expr) -> str:
        """Print the index of an array."""
        return self.value(expr)

    # --- values ---------------------------------------------------------------------------------
    def _literal(self, expr: t.Literal) -> Text:
        if expr.type == "bool":
            return ("true" if expr.value else "false"), POSTFIX
        text = self.number(expr.type, expr.value)
        return text, UNARY if text[0] == "-" else POSTFIX

    def number(self, kind: str, value: float) -> str:
        """Print an int or float literal."""
        if kind == "float":
            return float_text(value)
        # The one int whose absolute value is no int.
        return "(-2147483647 - 1)" if value == -(2**31) else str(int(value))

    def _swizzle(self, expr: t.Swizzle) -> Text:
        letters = "".join("xyzw"[component] for component in expr.components)
        return f"{self.value(expr.base, POSTFIX)}.{letters}", POSTFIX

    def binary(self, expr: t.Binary) -> Text:
        """Print an operator; a repeated scalar beside a vector stays a scalar."""
        rank = RANK[expr.op]
        left, right = expr.left, expr.right
        if expr.op in ("==", "!=") and self.has_bits and left.type == "float":
            text = self.value(left)
            if text == self.value(right):  # asks for NaN, of which compilers think there is none
                op = ">" if expr.op == "!=" else "<="
                return f"(floatBitsToInt({text}) & 0x7fffffff) {op} 0x7f800000", RANK[">"]
        if isinstance(left, t.Splat) != isinstance(right, t.Splat):
            left = left.value if isinstance(left, t.Splat) else left
            right = right.value if isinstance(right, t.Splat) else right
        return f"{self.value(left, rank)} {expr.op} {self.value(right, rank + 1)}", rank

    def _select(self, expr: t.Select) -> Text:
        parts = (self.value(e, SELECT + 1) for e in (expr.condition, expr.yes, expr.no))
        return "{} ? {} : {}".format(*parts), SELECT

    def cast(self, expr: t.Cast) -> Text:
        """Print a conversion between int and float."""
        return self.call(self.kind(expr.type), expr.value)

    def builtin(self, expr: t.Builtin) -> Text:
        """Print a mathematical built-in."""
        if expr.name == "tanh":
            limit = float_text(_TANH_LIMIT)
            return f"tanh(clamp({self.value(expr.args[0])}, -{limit}, {limit}))", POSTFIX
        return self.call("roundEven" if expr.name == "roundeven" else expr.name, *expr.args)
