"""Expressions as WGSL text, and the values that a function copies when it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuedge.core.kernel import Number
from gpuedge.lang import tree as t

if TYPE_CHECKING:
    from gpuedge.lang.wgsl import KernelPrinter

_SCALARS = {"float": "f32", "int": "i32", "bool": "bool"}
TYPES = {
    name: _SCALARS[base] if t.WIDTH[name] == 1 else f"vec{t.WIDTH[name]}<{_SCALARS[base]}>"
    for name, base in t.BASE.items()
}
"""WGSL spelling of each type."""

_NAMES = {"inversesqrt": "inverseSqrt", "roundeven": "round"}
_LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}
"""How strongly operators bind that need no parentheses among themselves."""
_TANH_LIMIT = 15.0  # tanh(15) is 1 in float32; drivers that divide sinh by cosh overflow at 89
_INT_MIN = -(2**31)
_IDS = {"local_id": "k_local", "group_id": "k_group"}


def literal(kind: str, value: Number) -> str:
    """Print a constant of a scalar type."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        if value == _INT_MIN:  # the digits alone are no i32
            return f"({_INT_MIN + 1}i - 1i)"
        return f"{value}i" if value >= 0 else f"({value}i)"
    text = f"{float(value)!r}f"
    return f"({text})" if text[0] == "-" else text


class ExpressionPrinter:
    """Prints expressions of one function, and notes what it needs when it begins.

    Attributes
    ----------
    entry : dict of str to str
        Values copied at the start of the function: name to declaration.
    """

    def __init__(self, kernel: KernelPrinter, function: t.Function) -> None:
        self.kernel = kernel
        self.function = function
        self.entry: dict[str, str] = {}
        self.constant = 0  # how many operators of literals only we are inside of
        self.held: dict[str, str] = {}  # literals in variables
        self.printers: dict[type, Callable[[Any], str]] = {
            t.Literal: self._literal,
            t.SpecRef: lambda e: self._copy(f"c_{e.spec.name}", f"s_{e.spec.name}"),
            t.ParamRef: lambda e: self._copy(f"p_{e.param.name}", f"u.p_{e.param.name}"),
            t.LocalRef: lambda e: name_of(e.local),
            t.Element: lambda e: f"{array_name(e.array)}[{self.value(e.index)}]",
            t.Swizzle: self._swizzle,
            t.Unary: lambda e: f"{e.op}({self.value(e.value)})",
            t.Binary: self._binary,
            t.Select: self._select,
            t.Construct: lambda e: f"{TYPES[e.type]}({self._list(e.args)})",
            t.Splat: lambda e: f"{TYPES[e.type]}({self.value(e.value)})",
            t.Cast: lambda e: f"{TYPES[e.type]}({self.value(e.value)})",
            t.Builtin: self._builtin,
            t.Load: self._load,
            t.Dims: lambda e: self.extents(e.tensor),
            t.Identifier: self._identifier,
            t.Call: lambda e: f"f_{e.function.name}({self._list(e.args)})",
        }

    def _copy(self, name: str, source: str) -> str:
        """Return the name of a value that is copied when the function begins."""
        self.entry[name] = f"let {name} = {source};"
        return name

    def extents(self, tensor: t.Tensor) -> str:
        """Return the name of a tensor's extents."""
        return self._copy(f"d_{tensor.name}", f"u.d_{tensor.name}")

    def last(self, tensor: t.Tensor) -> str:
        """Return the name of the number of a tensor's last texel."""
        d = self.extents(tensor)
        return self._copy(f"last_{tensor.name}", f"u32({d}.x * {d}.y * {d}.z * {d}.w - 1)")

    def helper(self, name: str) -> str:
        """Note that a helper function is needed, and return its name."""
        self.kernel.helpers.add(name)
        return name

    # --- expressions --------------------------------------------------------------------------
    def value(self, expr: t.Expr) -> str:
        """Print an expression."""
        operates = isinstance(expr, t.Binary | t.Unary | t.Builtin | t.Cast | t.Select)
        if not (operates and expr.time == t.CONST):
            return self.printers[type(expr)](expr)
        self.constant += 1
        text = self.printers[type(expr)](expr)
        self.constant -= 1
        return text

    def _list(self, args: tuple[t.Expr, ...]) -> str:
        return ", ".join(self.value(arg) for arg in args)

    def _literal(self, expr: t.Literal) -> str:
        text = literal(expr.type, expr.value)
        if not self.constant or expr.type == "bool":
            return text
        # What the compiler evaluates must not overflow; what a variable holds may.
        name = self.held.setdefault(text, f"k{len(self.held)}")
        self.entry[name] = f"var {name} = {text};"
        return name

    def _swizzle(self, expr: t.Swizzle) -> str:
        base = self.value(expr.base)
        if isinstance(expr.base, t.Binary | t.Unary | t.Literal):
            base = f"({base})"
        return base + "." + "".join("xyzw"[i] for i in expr.components)

    def _operand(self, expr: t.Expr, level: int) -> str:
        text = self.value(expr)
        if isinstance(expr, t.Binary) and 0 < _LEVELS.get(expr.op, 0) < level:
            return f"({text})"
        return text

    def _binary(self, expr: t.Binary) -> str:
        op, level = expr.op, _LEVELS.get(expr.op, 0)
        left = self._operand(expr.left, level)
        if op in ("==", "!=") and expr.left.type == "float":
            right = self.value(expr.right)
            if left == right:
                return f"{'!' if op == '==' else ''}{self.helper('k_nan')}({left})"
        if level:
            return f"{left} {op} {self._operand(expr.right, level + 1)}"
        return f"({left} {op} {self.value(expr.right)})"

    def _select(self, expr: t.Select) -> str:
        parts = (expr.no, expr.yes, expr.condition)
        return f"select({self._list(parts)})"

    def _builtin(self, expr: t.Builtin) -> str:
        args = [self.value(arg) for arg in expr.args]
        if expr.name == "clamp":  # WGSL refuses constant bounds in the wrong order
            return f"min(max({args[0]}, {args[1]}), {args[2]})"
        if expr.name == "tanh":
            low, high = (f"{TYPES[expr.type]}({x})" for x in (-_TANH_LIMIT, _TANH_LIMIT))
            return f"tanh(clamp({args[0]}, {low}, {high}))"
        return f"{_NAMES.get(expr.name, expr.name)}({', '.join(args)})"

    def _identifier(self, expr: t.Identifier) -> str:
        if self.function is not self.kernel.kernel.main:
            self.kernel.shares_ids = True
        return _IDS[expr.name]

    # --- tensors ------------------------------------------------------------------------------
    def _load(self, expr: t.Load) -> str:
        tensor, position, last = expr.tensor, self.value(expr.position), self.last(expr.tensor)
        if expr.name == "load1":
            return f"{self.helper(f'k_one_{tensor.name}')}({position}, {last})"
        if expr.name == "texel":
            return f"t_{tensor.name}[min(u32({position}), {last})]"
        d = self.extents(tensor)
        if expr.name == "load4z":
            self.helper("k_in2")
            return f"{self.helper(f'k_z_{tensor.name}')}({position}, {d}, {last})"
        return f"t_{tensor.name}[min(u32(k_at({position}, {d})), {last})]"


def name_of(local: t.Local) -> str:
    """Return the name of a local: no reserved word begins like it, and none is taken twice."""
    return f"v{local.uid}_{local.name}"


def array_name(array: t.Local | t.Shared) -> str:
    """Return the name of an array or another variable that can be assigned."""
    return f"g_{array.name}" if isinstance(array, t.Shared) else name_of(array)


def size_text(expr: t.Expr) -> str:
    """Print an int expression of const and spec as an override expression."""
    if isinstance(expr, t.Literal):
        return literal("int", expr.value)
    if isinstance(expr, t.SpecRef):
        return f"s_{expr.spec.name}"
    if not isinstance(expr, t.Binary):
        raise TypeError(f"{type(expr).__name__} is no size of an array")
    return f"({size_text(expr.left)} {expr.op} {size_text(expr.right)})"
