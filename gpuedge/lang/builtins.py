"""The built-ins on numbers, one row each: types, meaning in numpy, and spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Builtin(NamedTuple):
    """A componentwise function of arguments of one type.

    Attributes
    ----------
    arguments : int
    numpy : callable
        From the numpy module, which is not imported here, to the meaning on float32 and int32.
    spirv : (int, int)
        GLSL.std.450 instruction for float and for int operands; 0 where it is no such instruction.
    bases : tuple of str
        Base types of the operands.
    """

    arguments: int
    numpy: Callable[[Any], Callable[..., Any]]
    spirv: tuple[int, int] = (0, 0)
    bases: tuple[str, ...] = ("float",)


_BOTH = ("float", "int", "half")


def _dot4(np: Any) -> Callable[..., Any]:
    """Return the sum of the products of the four signed bytes of two ints."""

    def byte(value: Any, at: int) -> Any:
        return np.right_shift(np.left_shift(value, np.int32(24 - at)), np.int32(24))

    return lambda a, b: sum(byte(a, at) * byte(b, at) for at in (0, 8, 16, 24))


BUILTINS: Final = {
    "min": Builtin(2, lambda np: np.minimum, (37, 39), _BOTH),
    "max": Builtin(2, lambda np: np.maximum, (40, 42), _BOTH),
    "clamp": Builtin(
        3, lambda np: lambda x, a, b: np.minimum(np.maximum(x, a), b), (43, 45), _BOTH
    ),
    "abs": Builtin(1, lambda np: np.abs, (4, 5), _BOTH),
    "floor": Builtin(1, lambda np: np.floor, (8, 0)),
    "ceil": Builtin(1, lambda np: np.ceil, (9, 0)),
    "sign": Builtin(1, lambda np: np.sign, (6, 0)),
    "exp": Builtin(1, lambda np: np.exp, (27, 0)),
    "log": Builtin(1, lambda np: np.log, (28, 0)),
    "sqrt": Builtin(1, lambda np: np.sqrt, (31, 0)),
    "sin": Builtin(1, lambda np: np.sin, (13, 0)),
    "cos": Builtin(1, lambda np: np.cos, (14, 0)),
    "tanh": Builtin(1, lambda np: np.tanh, (21, 0)),
    "roundeven": Builtin(1, lambda np: np.rint, (2, 0)),
    "pow": Builtin(2, lambda np: np.power, (26, 0)),
    "dot4": Builtin(2, _dot4, bases=("int",)),
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
