"""`gpuedge.elementwise`: an expression of named arrays, computed in one kernel."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import ACCEPTED, BYTES
from gpuedge.core.errors import InputError, KernelSyntaxError
from gpuedge.core.text import nearest
from gpuedge.graph.build import GraphBuilder
from gpuedge.ops.arguments import ACTIVATIONS
from gpuedge.ops.call import Array, call
from gpuedge.opset import FUNCTIONS

if TYPE_CHECKING:
    from gpuedge.device import Device

FLOAT, BOOL = 1, 9
"""Element types of ONNX (TensorProto.DataType)."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.NotEq: "Equal",  # and a Not of it
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Eq: "Equal",
}
_SIGNS = ("add", "sub", "mul", "div", "neg")
_CALLED = {name: one for name, one in FUNCTIONS.items() if name not in _SIGNS}
_UNARY = {name: one.op for name, one in _CALLED.items() if len(one.operands) == 1}
_BINARY = {name: one.op for name, one in _CALLED.items() if len(one.operands) == 2}
_BINARY |= {"min": "Min", "max": "Max"}
NAMES = sorted({*_UNARY, *_BINARY, *ACTIVATIONS, "clip", "where"})
"""Functions an expression may call."""


class Elementwise:
    """A compiled expression; call it with arrays by keyword or in order of first appearance.

    Attributes
    ----------
    text : str
        The expression.
    names : tuple of str
        Its inputs, in order of first appearance.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parse(text)
        self.names = tuple(dict.fromkeys(_names(self._tree)))
        if not self.names:
            raise _error(text, self._tree, "an expression needs at least one named input")
        if "device" in self.names:
            raise _error(text, self._tree, "an input cannot be named 'device': that is an argument")
        _Writer(text, {n: n for n in self.names}).check(self._tree)

    def __call__(self, /, *args: Any, device: str | Device | None = None, **inputs: Any) -> Array:
        """Compute the expression; inputs broadcast by numpy's rules.

        Raises
        ------
        InputError (GE-203)
            An input is missing, unknown or given twice.
        """
        if len(args) > len(self.names):
            raise InputError(
                f"{len(args)} inputs are given; {self.text!r} has {len(self.names)}.",
                known=f"inputs: {', '.join(self.names)}",
            )
        given = dict(zip(self.names, args, strict=False))
        twice = [n for n in inputs if n in given]
        given |= inputs
        missing = [n for n in self.names if n not in given]
        unknown = [n for n in given if n not in self.names]
        for names, what in ((twice, "is given twice"), (missing, "is missing"),
                            (unknown, "does not appear")):  # fmt: skip
            if names:
                raise InputError(
                    f"Input '{names[0]}' {what} in {self.text!r}.",
                    known=f"inputs: {', '.join(self.names)}",
                )

        def write(builder: GraphBuilder, names: Sequence[str]) -> str:
            given = {n: _as_float(builder, i) for n, i in zip(self.names, names, strict=True)}
            writer = _Writer(self.text, given, builder)
            result = writer.node(self._tree)
            return builder.add("Identity", [result]) if result in names else result

        ordered = [(n, given[n]) for n in self.names]
        try:
            return call("elementwise", ordered, write, device=device, key=self.text,
                        others=dict.fromkeys(self.names, (*BYTES, "bool")))  # fmt: skip
        except RecursionError:
            raise _error(self.text, self._tree, "nested too deeply") from None

    def __repr__(self) -> str:
        return f"gpuedge.elementwise({self.text!r})"


def elementwise(expression: str) -> Elementwise:
    """Compile an expression of named inputs into one callable kernel.

    Parameters
    ----------
    expression : str
        Python syntax: names, numbers, ``+ - * / % **``, parentheses and the functions ``abs``,
        ``exp``, ``log``, ``sqrt``, ``relu``, ``sigmoid``, ``tanh``, ``min``, ``max``,
        ``clip(x, lo, hi)``, ... (all in `gpuedge.ops.expression.NAMES`). Comparisons
        ``> >= < <= == !=``, also chained (``0 < x < 1``), and ``and``, ``or``, ``not`` give bool,
        or 1 and 0 where they are calculated with. ``x if condition else y`` and
        ``where(condition, x, y)`` are x where the condition is not 0, else y.

    Returns
    -------
    Elementwise
        Call it with arrays by keyword or in order of first appearance; `device=` as everywhere.

    Raises
    ------
    KernelSyntaxError (GE-301)
        The expression is not understood; the message points at the place.

    Notes
    -----
    Inputs are float32 or float16; uint8, int8 and bool ones are taken as float32. The result is
    bool as said above, else float32, or float16 where all inputs of floats are. It is numpy's:
    ``%`` is `numpy.mod`, whose result has the sign of the divisor; ``and``, ``or`` and ``not`` are
    `numpy.logical_and` and so on, for which NaN is true. Both sides of ``and``, ``or`` and ``if``
    are computed for every element. One kernel as
    long as the device can bind all inputs at once; otherwise a few. Each operation adds the error
    of the function of that name and passes on those before it.

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> f = gpuedge.elementwise("relu(a * b + c)")
    >>> f(np.float32([1, -2]), np.float32([3, 4]), c=np.float32(1), device="cpu").tolist()
    [4.0, 0.0]
    """
    return Elementwise(expression)


def _parse(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise InputError(f"An expression is a string, not {type(text).__name__}.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _error(text, error, f"not an expression: {getattr(error, 'msg', error)}") from None


def _names(tree: ast.expr) -> list[str]:
    """Return names in the order of the text."""
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called]
    return [n.id for n in sorted(names, key=lambda n: (n.lineno, n.col_offset))]


Position = tuple[int, int]
"""A line, counted from 1, and a column, counted from 0, in bytes: as in syntax trees."""


def _lines(text: str) -> list[str]:
    return text.strip().replace("\r\n", "\n").split("\n")


def _behind(text: str, tree: ast.expr) -> Position:
    """Return where what follows an operand stands: an operator, a dot, a bracket."""
    number, at = tree.end_lineno or 1, tree.end_col_offset or 0
    for line in _lines(text)[number - 1 :]:
        rest = line.encode()[at:].decode(errors="ignore").split("#")[0]
        behind = rest.lstrip(" \t\f)\\")
        if behind:
            return number, at + len(rest[: -len(behind)].encode())
        number, at = number + 1, 0
    return tree.lineno, tree.col_offset


FOREIGN = {
    "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not", "~": "not", "^": "**", "<>": "!=",
    "=": "==", "?": "x if condition else y",
}  # fmt: skip
"""What other languages write, and numpy, and formulas do not know; and what it is here."""


def _error(
    text: str, place: ast.AST | Position | Exception, what: str, hint: str | None = None
) -> KernelSyntaxError:
    """Return an error that points at a place: a node, a position, what Python's parser raised."""
    is_unread = isinstance(place, Exception)
    lines = _lines(text)
    if isinstance(place, ast.AST):
        place = place.lineno, place.col_offset  # type: ignore[attr-defined]
    if isinstance(place, tuple):
        number, (line, at) = place[0], (lines[place[0] - 1], place[1])
        column = len(line.encode()[:at].decode(errors="ignore")) + 1
    else:
        number = min(getattr(place, "lineno", None) or 1, len(lines))
        line = lines[number - 1]
        column = getattr(place, "offset", None) or max(1, len(line))
    foreign = re.search(r"&&?|\|\|?|!(?!=)|[~^?]|<>|(?<![=<>!])=(?!=)", text)
    if hint is None and foreign is not None and (is_unread or foreign[0] != "="):
        hint = f"{FOREIGN[foreign[0]]!r} instead of {foreign[0]!r}"
    return KernelSyntaxError(
        f"expression:{number}:{column}: {what}\n    {line}\n    {' ' * (column - 1)}^",
        asked_by="gpuedge.elementwise(expression)",
        known=f"names, numbers, + - * / % ** > >= < <= == != and or not if else, parentheses and "
        f"functions: {', '.join(NAMES)}",
        hint=hint or 'one expression of these, such as "relu(a * b + c)"',
    )


UNDERSTOOD = (
    "only names, numbers, + - * / % **, comparisons, and, or, not, if ... else and calls of "
    "functions are understood"
)


def _as_float(builder: GraphBuilder, name: str) -> str:
    """Return a value as numbers to calculate with."""
    is_float = builder.type(name).dtype in ACCEPTED
    return name if is_float else builder.add("Cast", [name], {"to": FLOAT})


class _Writer:
    """Turns the tree into graph nodes; without a builder it only checks."""

    def __init__(
        self, text: str, inputs: dict[str, str], builder: GraphBuilder | None = None
    ) -> None:
        self.text = text
        self.inputs = inputs
        self.builder = builder
        self._constants: dict[str, str] = {}

    def check(self, tree: ast.expr) -> None:
        """Raise KernelSyntaxError for anything that `node` would not understand."""
        try:
            self.node(tree)
        except RecursionError:
            raise _error(self.text, tree, "nested too deeply") from None

    def add(self, op: str, inputs: Sequence[str]) -> str:
        if self.builder is None:
            return op
        return self.builder.add(op, [_as_float(self.builder, name) for name in inputs])

    def number(self, value: float) -> str:
        if self.builder is None:
            return "number"
        key = repr(value)  # 0.0 and -0.0 are equal, and not the same
        if key not in self._constants:
            with np.errstate(over="ignore"):
                number = np.float32(value)
            self._constants[key] = self.builder.constant(f"/number{len(self._constants)}", number)
        return self._constants[key]

    def node(self, tree: ast.expr) -> str:
        """Return the graph value of a subtree."""
        if isinstance(tree, ast.Name):
            return self.inputs[tree.id]
        value = _constant(tree)
        if value is not None:
            return self.number(value)
        if isinstance(tree, ast.Compare):
            return self.compare(tree)
        if isinstance(tree, ast.IfExp):
            return self.where(*map(self.node, (tree.test, tree.body, tree.orelse)))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return self.call(tree, tree.func.id)
        return self.operation(tree)

    def operation(self, tree: ast.expr) -> str:
        """Return an operator applied to its operands."""
        kind = type(getattr(tree, "op", None))
        if isinstance(tree, ast.BinOp) and (kind in _OPERATORS or kind is ast.Mod):
            sides = [self.node(tree.left), self.node(tree.right)]
            return self.remainder(*sides) if kind is ast.Mod else self.add(_OPERATORS[kind], sides)
        if isinstance(tree, ast.BoolOp):
            return self.joined(kind.__name__, [self.node(v) for v in tree.values])
        if isinstance(tree, ast.UnaryOp) and kind is not ast.Invert:
            inner = self.node(tree.operand)
            if kind is ast.Not:
                return self.joined("Not", [inner])
            return inner if kind is ast.UAdd else self.add("Neg", [inner])
        raise _error(self.text, self.offender(tree), UNDERSTOOD)

    def offender(self, tree: ast.expr) -> ast.AST | Position:
        """Return which part of a node is not understood."""
        if isinstance(tree, ast.BinOp):
            return _behind(self.text, tree.left)
        if isinstance(tree, (ast.Attribute, ast.Subscript)):
            return _behind(self.text, tree.value)
        return tree.func if isinstance(tree, ast.Call) else tree

    def compare(self, tree: ast.Compare) -> str:
        """Return one comparison, or several that all hold."""
        sides, tests = [tree.left, *tree.comparators], list[str]()
        for left, kind in zip(sides, map(type, tree.ops), strict=False):
            if kind not in _COMPARED:
                raise _error(self.text, _behind(self.text, left), UNDERSTOOD)
        values = [self.node(side) for side in sides]
        for at, kind in enumerate(map(type, tree.ops)):
            test = self.add(_COMPARED[kind], values[at : at + 2])
            tests.append(self.joined("Not", [test]) if kind is ast.NotEq else test)
        return self.joined("And", tests)

    def joined(self, op: str, values: Sequence[str]) -> str:
        """Return conditions joined from left to right, or the opposite of one."""
        b = self.builder
        if b is None:
            return op
        first, *others = (self.condition(value) for value in values)
        if op == "Not":
            return b.add(op, [first])
        return reduce(lambda x, y: b.add(op, [x, y]), others, first)

    def condition(self, value: str) -> str:
        """Return whether a value is not 0."""
        b = self.builder
        if b is None or b.type(value).dtype == "bool":
            return value
        return b.add("Cast", [value], {"to": BOOL})

    def remainder(self, x: str, by: str) -> str:
        """Return what is left of a division, as numpy has it: with the sign of the divisor.

        ONNX's Mod has it that way for integers only, and for floats that of the dividend.
        """
        b = self.builder
        if b is None:
            return "Mod"
        x, by = (_as_float(b, value) for value in (x, by))
        sign = b.add("Sign", [by])
        rest = b.add("Mul", [b.add("Mod", [x, by], {"fmod": 1}), sign])
        above = b.add("Add", [rest, b.add("Abs", [by])])
        is_below = b.add("Less", [rest, self.number(0.0)])
        size = b.add("Where", [is_below, above, b.add("Abs", [rest])])
        return b.add("Mul", [size, sign])  # 0 has the sign of the divisor too

    def call(self, tree: ast.Call, name: str) -> str:
        arity = 1 if name in _UNARY or name in ACTIVATIONS else 2 if name in _BINARY else 3
        if name not in NAMES:
            hint = nearest(name.lower(), NAMES)
            raise _error(self.text, tree, f"there is no function '{name}'", hint)
        odd = [a for a in (*tree.args, *tree.keywords) if isinstance(a, (ast.Starred, ast.keyword))]
        if odd:
            raise _error(self.text, odd[0], f"arguments of {name} are given in order, one by one")
        if len(tree.args) != arity:
            place = tree.args[arity] if len(tree.args) > arity else tree
            raise _error(self.text, place, f"{name} takes {arity} arguments, not {len(tree.args)}")
        if name == "clip":
            return self.clip(tree)
        operands = [self.node(a) for a in tree.args]
        if name == "where":
            return self.where(*operands)
        if name in ACTIVATIONS and name not in _UNARY:
            b = self.builder
            return ACTIVATIONS[name](b, _as_float(b, operands[0])) if b else name
        return self.add(_UNARY.get(name) or _BINARY[name], operands)

    def where(self, condition: str, yes: str, no: str) -> str:
        b = self.builder
        if b is None:
            return "Where"
        return b.add("Where", [self.condition(condition), _as_float(b, yes), _as_float(b, no)])

    def clip(self, tree: ast.Call) -> str:
        bounds = [_constant(a) for a in tree.args[1:]]
        if None in bounds:
            place = tree.args[1 + bounds.index(None)]
            raise _error(self.text, place, "the bounds of clip are numbers")
        x = self.node(tree.args[0])
        return self.add("Clip", [x, *(self.number(b) for b in bounds if b is not None)])


def _constant(tree: ast.expr) -> float | None:
    """Return the value of a number with an optional sign."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _constant(tree.operand)
        return None if inner is None else -inner
    if (
        isinstance(tree, ast.Constant)
        and isinstance(tree.value, (int, float))
        and not isinstance(tree.value, bool)
    ):
        try:
            return float(tree.value)
        except OverflowError:
            return math.inf
    return None
