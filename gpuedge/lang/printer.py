"""The walk through a kernel's statements and expressions that ESSL and WGSL share.

A printer of one language inherits from `TextPrinter`, fills in how the language spells what they
write differently, and replaces what only it must say in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BUILTINS, PRECEDENCE

SELECT, UNARY, POSTFIX = 0, 11, 12
"""Ranks beside those of `PRECEDENCE`: how tightly a text binds."""

INDENT: Final = "    "

Text = tuple[str, int]
"""A text and its rank."""


class TextPrinter:
    """One kernel on its way to text.

    Attributes
    ----------
    types : dict of str to str
        What the language calls types.
    name : callable
        Returns what a variable is called.
    expressions, statements : dict of type to callable
        Printers by class of node; the language adds those of its own.
    operators : dict of str to callable
        Printers of operators and built-ins; the language replaces what it writes otherwise.
    lines : list of str
        What was printed so far.
    called : set of str
        Names that were called: helpers, and others.
    """

    def __init__(
        self, kernel: t.Kernel, types: dict[str, str], name: Callable[[t.Local | t.Shared], str]
    ) -> None:
        self.kernel = kernel
        self.types = types
        self.name = name
        self.lines: list[str] = []
        self.indent = ""
        self.called: set[str] = set()
        self.expressions: dict[type, Callable[[Any], Text]] = {
            t.LocalRef: lambda e: (name(e.local), POSTFIX),
            t.Element: lambda e: (self._target(e.array, e.index), POSTFIX),
            t.Swizzle: self._swizzle,
            t.Op: lambda e: self.operators[e.name](e),
            t.Call: lambda e: self._call(f"f_{e.function.name}", e.args),
        }
        self.operators: dict[str, Callable[[t.Op], Text]] = {
            **dict.fromkeys(PRECEDENCE, self._infix),
            **dict.fromkeys(BUILTINS, lambda e: self._call(e.name, e.args)),
            **dict.fromkeys(("vector", "splat", "cast"), self._construct),
        }
        self.statements: dict[type, Callable[[Any], None]] = {
            t.Assign: self._assign,
            t.If: self._if,
        }

    # --- expressions ----------------------------------------------------------------------------
    def _value(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression, in parentheses if it binds less tightly than `least`."""
        text, rank = self.expressions[type(expr)](expr)
        return text if rank >= least else f"({text})"

    def _list(self, args: Iterable[t.Expr]) -> str:
        return ", ".join([self._value(arg) for arg in args])

    def _call(self, name: str, args: Iterable[t.Expr]) -> Text:
        self.called.add(name)
        return f"{name}({self._list(args)})", POSTFIX

    def _construct(self, expr: t.Op) -> Text:
        return f"{self.types[expr.type]}({self._list(expr.args)})", POSTFIX

    def _helper(self, name: str, expr: t.Op) -> Text:
        """Print a call of a helper for values of the type of `expr`."""
        width = t.WIDTH[expr.type]
        return self._call(f"{name}{width if width > 1 else ''}", expr.args)

    def _swizzle(self, expr: t.Swizzle) -> Text:
        letters = "".join(["xyzw"[component] for component in expr.components])
        return f"{self._value(expr.base, POSTFIX)}.{letters}", POSTFIX

    def _infix(self, expr: t.Op) -> Text:
        (left, right), rank = expr.args, PRECEDENCE[expr.name]
        return f"{self._value(left, rank)} {expr.name} {self._value(right, rank + 1)}", rank

    def _target(self, array: t.Local | t.Shared, index: t.Expr | None) -> str:
        """Print an element of an array, or a whole local."""
        return self.name(array) + ("" if index is None else f"[{self._index(index)}]")

    def _index(self, index: t.Expr) -> str:
        return self._value(index)

    # --- statements -----------------------------------------------------------------------------
    def _line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append(self.indent + text)

    def _open(self, head: str) -> None:
        """Append a line that begins a block."""
        self._line(f"{head} {{")
        self.indent += INDENT

    def _close(self) -> None:
        """End a block."""
        self.indent = self.indent.removesuffix(INDENT)
        self._line("}")

    def _block(self, body: list[t.Stmt]) -> None:
        for stmt in body:
            self.statements[type(stmt)](stmt)

    def _assign(self, stmt: t.Assign) -> None:
        text = self._target(stmt.target, stmt.index)
        if stmt.component is not None:
            text += f".{'xyzw'[stmt.component]}"
        self._line(f"{text} = {self._value(stmt.value)};")

    def _if(self, stmt: t.If) -> None:
        self._open(f"if ({self._value(stmt.condition)})")
        self._block(stmt.then)
        if stmt.orelse:
            self.indent = self.indent.removesuffix(INDENT)
            self._open("} else")
            self._block(stmt.orelse)
        self._close()

    def _function(self, head: str, function: t.Function) -> None:
        self._open(head)
        self._block(function.body)
        self._line(f"return {self._value(function.value)};")
        self._close()
