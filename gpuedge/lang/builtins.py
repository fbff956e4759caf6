"""The built-ins on numbers, one row each: types and spellings."""

from __future__ import annotations

from typing import Final, NamedTuple


class Builtin(NamedTuple):
    """A componentwise function of arguments of one type.

    Attributes
    ----------
    arguments : int
    spirv : (int, int)
        GLSL.std.450 instruction for float and for int operands; 0 where it is no such instruction.
    bases : tuple of str
        Base types of the operands.
    """

    arguments: int
    spirv: tuple[int, int] = (0, 0)
    bases: tuple[str, ...] = ("float",)


_BOTH = ("float", "int", "half")

BUILTINS: Final = {
    "min": Builtin(2, (37, 39), _BOTH),
    "max": Builtin(2, (40, 42), _BOTH),
    "clamp": Builtin(3, (43, 45), _BOTH),
    "abs": Builtin(1, (4, 5), _BOTH),
    "floor": Builtin(1, (8, 0)),
    "ceil": Builtin(1, (9, 0)),
    "sign": Builtin(1, (6, 0)),
    "exp": Builtin(1, (27, 0)),
    "log": Builtin(1, (28, 0)),
    "sqrt": Builtin(1, (31, 0)),
    "sin": Builtin(1, (13, 0)),
    "cos": Builtin(1, (14, 0)),
    "tanh": Builtin(1, (21, 0)),
    "roundeven": Builtin(1, (2, 0)),
    "pow": Builtin(2, (26, 0)),
    "dot4": Builtin(2, bases=("int",)),
}

TANH_LIMIT: Final = 15.0
"""tanh(15) is 1 in float32. Printers clamp to it: drivers that use exp overflow at 89."""

PRECEDENCE: Final = {
    "||": 1, "&&": 2, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
"""How tightly the binary operators bind; `?:` 0, unary 11, everything else 12."""

BITS: Final = frozenset(("&", ">>"))
COMPARISONS: Final = frozenset(("==", "!=", "<", ">", "<=", ">="))
