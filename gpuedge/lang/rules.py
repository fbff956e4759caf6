"""What the language allows: types of operators and built-ins, constants, what must not change.

Each rule gets values that were parsed already and the number of the token to blame.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from gpuedge.core.kernel import Number
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BITS, BUILTINS, COMPARISONS
from gpuedge.lang.evaluate import INT_MAX, Unknown, evaluate
from gpuedge.lang.tokens import Cursor

MAX_ARRAY: Final = 256  # elements of a local array: registers, on real devices
MAX_LANES: Final = 128  # invocations of the largest subgroup that Vulkan allows
NO_CASTS: Final = "there are no implicit casts: write 2.0 instead of 2, float(i), vec4(i4)"
_CASTS = ({"int", "float"}, {"half", "float"})
_ANY_NUMBERS = frozenset("+-*")  # what takes any two numbers of one type
_LETTERS = {"x": 0, "y": 1, "z": 2, "w": 3}


class Rules:
    """Builds expressions from their parts, or says what is wrong with them.

    Attributes
    ----------
    dead : int
        How many branches that constants rule out are open: ranges are not checked there.
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.fail = cursor.fail
        self.dead = 0
        self.literals: dict[str, t.Literal] = {}
        self.folded: dict[tuple[str, Number, Number], t.Expr] = {}  # what ints gave before

    # --- literals and constants ---------------------------------------------------------------
    def number(self, text: str) -> t.Literal:
        """Return the value of the next token, a number."""
        known = self.literals.get(text)
        if known is None:
            is_int = self.cursor.check_number(text)
            known = t.Literal("int", self._int(text)) if is_int else self._float(text)
            self.literals[text] = known
        return known

    def _int(self, text: str) -> int:
        if len(text) > 1 and text[0] == "0":
            self.fail("an int does not begin with 0")
        if len(text) > 10 or int(text) > INT_MAX:
            self.fail(f"{text[:20]} does not fit in a 32-bit int")
        return int(text)

    def _float(self, text: str, at: int | None = None) -> t.Literal:
        try:
            value = struct.unpack("<f", struct.pack("<f", float(text)))[0]
        except OverflowError:
            self.fail(f"{text} does not fit in a 32-bit float", at=at)
        return t.Literal("float", float(value))

    def _half(self, value: float, at: int) -> t.Literal:
        try:
            return t.Literal("half", struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            self.fail(f"{value} does not fit in a 16-bit float", at=at)

    def fold(self, expr: t.Op, at: int) -> t.Expr:
        """Return the Literal an int or bool expression of literals stands for, else `expr`."""
        if expr.time != t.CONST or expr.type not in ("int", "bool"):
            return expr
        for arg in expr.args:
            if not isinstance(arg, t.Literal):
                return expr
        return self._literal(expr, at)

    def _literal(self, expr: t.Expr, at: int) -> t.Expr:
        """Return the value of a CONST scalar as a Literal."""
        try:
            return t.Literal(expr.type, evaluate(expr))
        except Unknown:
            return expr
        except ArithmeticError as error:
            if self.dead:
                return t.Literal(expr.type, 1)
            self.fail(str(error), at=at)

    def constant(self, expr: t.Expr, what: str, at: int) -> t.Literal:
        """Return the value of `expr`, which must be known to the front end."""
        if isinstance(expr, t.Literal):
            return expr
        if expr.time == t.CONST:
            self.freeze(expr, at)
            value = self._literal(expr, at)
            if isinstance(value, t.Literal):
                return value
        self.fail(f"{what} must be a constant", at=at)

    def freeze(self, expr: t.Expr | None, at: int) -> None:
        """Note that the values of the locals in `expr` are relied upon, so they cannot change."""
        if expr is None or isinstance(expr, t.Literal):
            return
        if isinstance(expr, t.LocalRef) and not expr.local.frozen:
            if expr.local.assigned:
                self.fail(f"this needs {expr.local.name!r} to keep its first value", at=at)
            expr.local.frozen = True
            self.freeze(expr.local.value, at)
        for part in t.children(expr):
            self.freeze(part, at)

    def wrong_value(self, kind: str, given: str, at: int) -> NoReturn:
        """Fail because a value of type `given` stands where one of type `kind` must."""
        self.fail(f"a value of type {given} for {kind}", NO_CASTS, at=at)

    # --- operators ----------------------------------------------------------------------------
    def binary(self, op: str, left: t.Expr, right: t.Expr, at: int) -> t.Expr:
        """Return one operator applied to two values."""
        a, b = left.type, right.type
        if isinstance(left, t.Literal) and isinstance(right, t.Literal) and a == b == "int":
            key = (op, left.value, right.value)
            folded = self.folded.get(key)
            if folded is None:
                folded = self.fold(self._operator(op, left, right, at), at)
                if not self.dead:
                    self.folded[key] = folded
            return folded
        operator = self._operator(op, left, right, at)
        return operator if operator.time else self.fold(operator, at)

    def _operator(self, op: str, left: t.Expr, right: t.Expr, at: int) -> t.Op:
        a, b = left.type, right.type
        time = left.time if left.time > right.time else right.time
        if a == b and op in _ANY_NUMBERS and a != "bool":
            return t.Op(a, op, (left, right), time)
        if op in COMPARISONS:
            if a != b or t.WIDTH[a] != 1 or (a == "bool" and op not in ("==", "!=")):
                self._mismatch(op, a, b, at)
            return t.Op("bool", op, (left, right), time)
        if op in ("&&", "||"):
            if a != "bool" or b != "bool":
                self.fail(f"'{op}' joins two bools, not {a} and {b}", at=at)
            return t.Op("bool", op, (left, right), time)
        left, right = self._numbers(op, left, right, at)
        if op not in _ANY_NUMBERS and t.BASE[left.type] == "int":
            self._check_right(op, right, at)
        return t.Op(left.type, op, (left, right), time)

    def _numbers(self, op: str, left: t.Expr, right: t.Expr, at: int) -> tuple[t.Expr, t.Expr]:
        """Return two numbers as values of one type."""
        a, b = left.type, right.type
        base = t.BASE[a]
        if base != t.BASE[b] or base == "bool" or (base != "int" and (op == "%" or op in BITS)):
            self._mismatch(op, a, b, at)
        if base == "half" and op == "/":
            self._mismatch(op, a, b, at)
        if a == b:
            return left, right
        if t.WIDTH[b] == 1:
            return left, t.Op(a, "splat", (right,), right.time)
        if t.WIDTH[a] == 1:
            return t.Op(b, "splat", (left,), left.time), right
        self._mismatch(op, a, b, at)

    def _check_right(self, op: str, right: t.Expr, at: int) -> None:
        """Check a divisor or the count of a shift, where it is a literal."""
        value = right.args[0] if isinstance(right, t.Op) and right.name == "splat" else right
        if not isinstance(value, t.Literal) or self.dead:
            return
        if op in "/%" and value.value == 0:
            self.fail(f"int {op} needs a divisor, not 0", at=at)
        if op == ">>" and not 0 <= value.value < 32:
            self.fail(f"'{op}' shifts by 0 to 31 bits, not {value.value}", at=at)

    def _mismatch(self, op: str, a: str, b: str, at: int) -> NoReturn:
        hint = None if t.BASE[a] == t.BASE[b] else NO_CASTS
        self.fail(f"'{op}' does not take {a} and {b}", hint, at=at)

    def unary(self, op: str, value: t.Expr, at: int) -> t.Expr:
        """Return ``-`` or ``!`` applied to a value."""
        base = t.BASE[value.type]
        if (op == "!") != (base == "bool"):
            self.fail(f"'{op}' does not take {value.type}", at=at)
        if op == "-" and isinstance(value, t.Literal) and value.type in ("float", "half"):
            return t.Literal(value.type, -value.value)
        name = "neg" if op == "-" else op
        return self.fold(t.Op(value.type, name, (value,), value.time), at)

    def select(self, condition: t.Expr, yes: t.Expr, no: t.Expr, at: int) -> t.Expr:
        """Return ``condition ? yes : no``."""
        if yes.type != no.type:
            self.fail(f"?: chooses between {yes.type} and {no.type}", at=at)
        if isinstance(condition, t.Literal):
            return yes if condition.value else no
        time = max(condition.time, yes.time, no.time)
        return self.fold(t.Op(yes.type, "?:", (condition, yes, no), time), at)

    # --- vectors ------------------------------------------------------------------------------
    def letters(self, kind: str, letters: str, at: int) -> tuple[int, ...]:
        """Return the components of a value of type `kind` that ``.letters`` picks."""
        if t.WIDTH[kind] == 1:
            self.fail(f"{kind} has no components", at=at - 1)
        picked = tuple([_LETTERS.get(letter, 9) for letter in letters])
        if not 1 <= len(picked) <= 4 or max(picked) >= t.WIDTH[kind]:
            self.fail(f"'.{letters}' are not components of {kind}", at=at)
        return picked

    def component(self, kind: str, index: t.Expr, at: int) -> int:
        """Return the component of a value of type `kind` that ``[index]`` picks."""
        if t.WIDTH[kind] == 1:
            self.fail(f"{kind} has no components", at=at)
        if index.type != "int":
            self.fail(f"an index is int, not {index.type}", at=at + 1)
        value = int(self.constant(index, "the index of a vector", at + 1).value)
        if not 0 <= value < t.WIDTH[kind]:
            if not self.dead:
                self.fail(f"{kind} has no component {value}", at=at + 1)
            value = 0
        return value

    def swizzle(self, value: t.Expr, components: tuple[int, ...]) -> t.Expr:
        """Return components of a vector; one of a vector that is just being made is its part."""
        if isinstance(value, t.Op) and len(components) == 1:
            if value.name == "splat":
                return value.args[0]
            if value.name == "vector" and len(value.args) == t.WIDTH[value.type]:
                return value.args[components[0]]
        kind = t.VECTOR[t.BASE[value.type], len(components)]
        return t.Swizzle(kind, value, components, value.time)

    def element_index(self, array: t.Local, index: t.Expr, at: int, *, is_map: bool) -> t.Expr:
        """Check the index of a local array, and return it as a Literal where it is constant."""
        if index.time == t.CONST:
            index = self.constant(index, "this index", at)
            value = int(index.value)
            if not 0 <= value < array.size:
                if not self.dead:
                    self.fail(f"index {value} is outside {array.name}[{array.size}]", at=at)
                index = t.Literal("int", 0)
        elif is_map and not _counts(index):
            self.fail("map kernels index local arrays by constants and loop indices", at=at)
        return index

    def array_size(self, kind: str, size: t.Expr, at: int) -> int:
        """Return the size of a local array of `kind`."""
        count = int(self.constant(size, "the size of an array", at).value)
        if not 1 <= count <= MAX_ARRAY:
            self.fail(f"an array of {count} elements: from 1 to {MAX_ARRAY} are allowed", at=at)
        if kind == "bool":
            self.fail("there are no arrays of bool", at=at)
        return count

    # --- constructors and casts ---------------------------------------------------------------
    def construct(self, kind: str, args: list[t.Expr], at: int) -> t.Expr:
        """Return ``kind(args)``."""
        if not args:
            self.fail(f"{kind}() needs arguments", at=at)
        if len(args) == 1:
            return args[0] if args[0].type == kind else self._convert(kind, args[0], at)
        base, width = t.BASE[kind], t.WIDTH[kind]
        total = time = 0
        for arg in args:
            if t.BASE[arg.type] != base:
                self._cannot(kind, arg.type, at)
            total += t.WIDTH[arg.type]
            time = max(time, arg.time)
        if width == 1 or total != width:
            self.fail(f"{kind}(...) takes {width} components, not {total}", at=at)
        return t.Op(kind, "vector", tuple(args), time)

    def _convert(self, kind: str, value: t.Expr, at: int) -> t.Expr:
        base, width = t.BASE[kind], t.WIDTH[kind]
        given = value.type
        if t.BASE[given] == base and t.WIDTH[given] == 1:
            return t.Op(kind, "splat", (value,), value.time)
        if t.WIDTH[given] == width and {base, t.BASE[given]} in _CASTS:
            if isinstance(value, t.Literal):
                return self._convert_literal(kind, value, at)
            return t.Op(kind, "cast", (value,), value.time)
        self._cannot(kind, given, at)

    def _convert_literal(self, kind: str, value: t.Literal, at: int) -> t.Literal:
        if kind == "half":
            return self._half(float(value.value), at)
        if kind == "float":
            # Through the float32 rounding of literals, as the device would round it.
            return self._float(str(value.value), at)
        if value.value != int(value.value) or abs(value.value) >= 2**31:
            self.fail(f"int() takes integral values of 32 bits, not {value.value}", at=at)
        return t.Literal("int", int(value.value))

    def _cannot(self, kind: str, given: str, at: int) -> NoReturn:
        hint = None if t.BASE[given] == t.BASE[kind] else NO_CASTS
        self.fail(f"{kind}() does not take {given}", hint, at=at)

    # --- built-ins and helpers ----------------------------------------------------------------
    def math(self, name: str, args: list[t.Expr], at: int) -> t.Expr:
        """Return a built-in on numbers applied to its arguments."""
        row = BUILTINS[name]
        count, bases = row.arguments, row.bases
        if len(args) != count:
            self.fail(f"{name}() takes {count} argument{'s'[: count > 1]}, not {len(args)}", at=at)
        kinds = [arg.type for arg in args]
        kind = max(kinds, key=t.WIDTH.__getitem__)
        base, width = t.BASE[kind], t.WIDTH[kind]
        if any(t.BASE[k] not in bases or t.BASE[k] != base for k in kinds):
            self.fail(f"{name}() does not take {', '.join(kinds)}", NO_CASTS, at=at)
        if any(t.WIDTH[k] not in (1, width) for k in kinds):
            self.fail(f"{name}() takes vectors of one width, not {', '.join(kinds)}", at=at)
        same = tuple([a if a.type == kind else t.Op(kind, "splat", (a,), a.time) for a in args])
        return self.fold(t.Op(kind, name, same, max([a.time for a in args])), at)

    def lane(self, value: t.Expr, number: t.Expr, at: int) -> t.Lane:
        """Return what a value is in one invocation of the subgroup."""
        if t.BASE[value.type] not in ("float", "int"):
            self.fail(f"lane_value() does not take {value.type}", at=at)
        if number.type != "int":
            self.fail(f"the number of a lane is int, not {number.type}", at=at)
        wanted = int(self.constant(number, "the number of a lane", at).value)
        if not 0 <= wanted < MAX_LANES and not self.dead:
            self.fail(f"there is no lane {wanted}: subgroups have 1 to {MAX_LANES}", at=at)
        return t.Lane(value.type, value, wanted)

    def call(self, function: t.Function, args: list[t.Expr], at: int) -> t.Call:
        """Return a call of a helper function."""
        wanted = [arg.type for arg in function.args]
        given = [arg.type for arg in args]
        if wanted != given:
            text = f"{function.name}({', '.join(wanted)})"
            self.fail(f"{text} does not take ({', '.join(given)})", at=at)
        return t.Call(function.type, function, tuple(args))

    def loop(self, parts: list[t.Expr], places: list[int], *, is_map: bool) -> None:
        """Check the start, bound and step of a loop, and note that they are relied upon."""
        start, bound, step = parts
        if bound.time > t.UNIFORM:
            what = "the bound of a loop is made of const, spec, param and dims() only"
            self.fail(what, at=places[1])
        if step.time > t.SPEC or (isinstance(step, t.Literal) and step.value <= 0):
            self.fail("the step of a loop is a positive const or spec", at=places[2])
        if start.time > t.SPEC and is_map:
            self.fail("in a map kernel the start of a loop is a const or spec", at=places[0])
        for part, at in zip(parts, places, strict=True):
            if part.time <= t.UNIFORM:
                self.freeze(part, at)


def _counts(expr: t.Expr) -> bool:
    """Return whether ESSL 1.00 (appendix A) lets a fragment shader index with this value."""
    if isinstance(expr, t.LocalRef):
        return expr.local.read_only == "a loop index" or expr.time == t.CONST
    if isinstance(expr, t.Op):
        return expr.name in ("+", "-", "*") and all(map(_counts, expr.args))
    return isinstance(expr, t.Literal)
