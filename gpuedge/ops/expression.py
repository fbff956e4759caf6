"""`gpuedge.elementwise`: an expression of named arrays, computed in one kernel."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.dtypes import ACCEPTED, BYTES
from gpuedge.core.errors import InputError, KernelSyntaxError
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
        Python syntax: names, numbers, ``+ - * / **``, parentheses and the functions ``abs``,
        ``exp``, ``log``, ``sqrt``, ``relu``, ``sigmoid``, ``tanh``, ``min``, ``max``,
        ``clip(x, lo, hi)``, ... (all in `gpuedge.ops.expression.NAMES`). Comparisons
        ``> >= < <= ==`` give bool, or 1 and 0 where they are calculated with;
        ``where(condition, x, y)`` is x where the condition is not 0, else y.

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
    Inputs are float32 or float16; uint8, int8 and bool ones are taken as float32. One kernel as
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
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called]
    return [n.id for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]


def _error(text: str, place: ast.expr | Exception, what: str) -> KernelSyntaxError:
    """Return an error that points at a place: a node, or what Python's parser raised."""
    lines = text.strip().replace("\r\n", "\n").split("\n")
    number = min(getattr(place, "lineno", None) or 1, len(lines))
    line = lines[number - 1]
    column = getattr(place, "offset", None) or max(1, len(line))
    if isinstance(place, ast.expr):  # counts bytes
        column = len(line.encode()[: place.col_offset].decode(errors="ignore")) + 1
    return KernelSyntaxError(
        f"expression:{number}:{column}: {what}\n    {line}\n    {' ' * (column - 1)}^",
        asked_by="gpuedge.elementwise(expression)",
        known=f"names, numbers, + - * / ** > >= < <= ==, parentheses and functions: "
        f"{', '.join(NAMES)}",
        hint='one expression of these, such as "relu(a * b + c)"',
    )


UNDERSTOOD = "only names, numbers, + - * / **, single comparisons and calls are understood"


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
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
            return self.add(
                _OPERATORS[type(tree.op)], [self.node(tree.left), self.node(tree.right)]
            )
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _COMPARED:
            sides = [self.node(tree.left), self.node(tree.comparators[0])]
            return self.add(_COMPARED[type(tree.ops[0])], sides)
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, (ast.USub, ast.UAdd)):
            inner = self.node(tree.operand)
            return inner if isinstance(tree.op, ast.UAdd) else self.add("Neg", [inner])
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
            return self.call(tree, tree.func.id)
        raise _error(self.text, tree, UNDERSTOOD)

    def call(self, tree: ast.Call, name: str) -> str:
        arity = 1 if name in _UNARY or name in ACTIVATIONS else 2 if name in _BINARY else 3
        if name not in NAMES:
            raise _error(self.text, tree, f"there is no function '{name}'")
        if len(tree.args) != arity:
            raise _error(self.text, tree, f"{name} takes {arity} arguments, not {len(tree.args)}")
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
        if b.type(condition).dtype != "bool":
            condition = b.add("Cast", [condition], {"to": BOOL})
        return b.add("Where", [condition, _as_float(b, yes), _as_float(b, no)])

    def clip(self, tree: ast.Call) -> str:
        bounds = [_constant(a) for a in tree.args[1:]]
        if None in bounds:
            raise _error(self.text, tree, "the bounds of clip are numbers")
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
