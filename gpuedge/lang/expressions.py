"""Expressions: parsed, typed and folded in one go, so the first error is the first in the text."""

from __future__ import annotations

import struct
from difflib import get_close_matches
from typing import NoReturn

from gpuedge.lang import tree as t
from gpuedge.lang.measure import INT_MAX, Unknown, evaluate
from gpuedge.lang.tokens import Tokens
from gpuedge.lang.words import ACCESS, MATH, RESERVED, TRAPS

_PRECEDENCE = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
_LETTERS = {"x": 0, "y": 1, "z": 2, "w": 3}

# Python's stack bounds how deep a tree may be: two frames per level in every printer, 1000 in all.
MAX_NESTING = 40
MAX_OPERATORS = 250

Name = t.Local | t.Shared | t.Spec | t.Param | t.Tensor | t.Function | t.Literal


class ExpressionParser:
    """Recursive descent over `Tokens`; `names` maps what is in scope."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.texts = tokens.texts
        self.at = 0
        self.kernel = t.Kernel()
        self.names: dict[str, Name] = {}
        self.nesting = 0
        self.operators = 0
        self.dead = 0  # inside a branch that constants rule out: ranges are not checked there

    # --- tokens -------------------------------------------------------------------------------
    def fail(self, message: str, hint: str | None = None, *, at: int | None = None) -> NoReturn:
        """Raise KernelSyntaxError at token `at`, else at the current one."""
        self.tokens.fail(message, self.tokens.offsets[self.at if at is None else at], hint)

    def accept(self, text: str) -> bool:
        """Step over the token `text` if it comes next."""
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str, after: str) -> None:
        """Step over the token `text`, or fail."""
        if self.texts[self.at] == text:
            self.at += 1
            return
        self._unexpected(f"expected '{text}' {after}")

    def _unexpected(self, message: str) -> NoReturn:
        found = self.texts[self.at]
        self.fail(f"{message}, found {repr(found) if found else 'the end'}", TRAPS.get(found))

    def new_name(self, what: str) -> str:
        """Step over a name that may be declared here."""
        name = self.texts[self.at]
        if self.tokens.kinds[self.at] != "name":
            self._unexpected(f"expected a name for the {what}")
        if name in RESERVED:
            self.fail(f"{name!r} is a word of the language and cannot name a {what}")
        if name[0] == "_" or name[-1] == "_" or "__" in name or name.startswith("gl_"):
            self.fail(
                f"{name!r} cannot be a name",
                "names do not begin or end with _, contain __ or begin with gl_",
            )
        if name in self.names:
            self.fail(
                f"{name!r} is already declared", "every name has one meaning where it is seen"
            )
        self.at += 1
        return name

    # --- operators ----------------------------------------------------------------------------
    def whole_expression(self) -> t.Expr:
        """Parse an expression that belongs to no other."""
        self.operators = 0
        return self.expression()

    def expression(self) -> t.Expr:
        """Parse an expression with all its operators."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail("this is nested too deeply", "name a part of it with a local")
        value = self._binary(1)
        if self.texts[self.at] == "?":
            value = self._select(value)
        self.nesting -= 1
        return value

    def _count(self) -> None:
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            self.fail("this expression is too long", "name a part of it with a local")

    def _select(self, condition: t.Expr) -> t.Expr:
        at = self.at
        self.at += 1
        self._count()
        if condition.type != "bool":
            self.fail(f"the condition of ?: is {condition.type}, not bool", at=at)
        yes = self.expression()
        self.expect(":", "between the values of ?:")
        no = self.expression()
        if yes.type != no.type:
            self.fail(f"?: chooses between {yes.type} and {no.type}", at=at)
        if isinstance(condition, t.Literal):
            return yes if condition.value else no
        time = max(condition.time, yes.time, no.time)
        return self.fold(t.Select(yes.type, condition, yes, no, time), at)

    def _binary(self, least: int) -> t.Expr:
        left = self._unary()
        while True:
            op = self.texts[self.at]
            rank = _PRECEDENCE.get(op, 0)
            if rank < least:
                return left
            at = self.at
            self.at += 1
            self._count()
            left = self.binary(op, left, self._binary(rank + 1), at)

    def binary(self, op: str, left: t.Expr, right: t.Expr, at: int) -> t.Expr:
        """Type one operator applied to two values, and fold it if it can be."""
        a, b = left.type, right.type
        kind = a
        if op in ("&&", "||"):
            if a != "bool" or b != "bool":
                self.fail(f"'{op}' joins two bools, not {a} and {b}", at=at)
        elif op in ("==", "!=", "<", ">", "<=", ">="):
            if a != b or t.WIDTH[a] != 1 or (a == "bool" and len(op) == 2 and op[0] in "<>"):
                self._mismatch(op, a, b, at)
            if a == "bool" and op in "<>":
                self._mismatch(op, a, b, at)
            kind = "bool"
        else:
            left, right = self._numbers(op, left, right, at)
            kind = left.type
            if op in "/%" and t.BASE[kind] == "int":
                self._check_divisor(op, right, at)
        return self.fold(t.Binary(kind, op, left, right, max(left.time, right.time)), at)

    def _numbers(self, op: str, left: t.Expr, right: t.Expr, at: int) -> tuple[t.Expr, t.Expr]:
        a, b = left.type, right.type
        base = t.BASE[a]
        if base == "bool" or base != t.BASE[b] or (op == "%" and base != "int"):
            self._mismatch(op, a, b, at)
        if a == b:
            return left, right
        if t.WIDTH[b] == 1:
            return left, t.Splat(a, right, right.time)
        if t.WIDTH[a] == 1:
            return t.Splat(b, left, left.time), right
        self._mismatch(op, a, b, at)

    def _check_divisor(self, op: str, right: t.Expr, at: int) -> None:
        value = right.value if isinstance(right, t.Splat) else right
        if isinstance(value, t.Literal) and value.value <= 0 and not self.dead:
            self.fail(f"int {op} needs a positive divisor, not {value.value}", at=at)

    def _mismatch(self, op: str, a: str, b: str, at: int) -> NoReturn:
        hint = None
        if "bool" in (a, b):
            hint = "a bool is used with && || ! == != and ?: only"
        elif {t.BASE[a], t.BASE[b]} == {"int", "float"}:
            hint = "there are no implicit casts: write 2.0 instead of 2, float(i), vec4(i4)"
        elif op == "%":
            hint = "% is for ints; for floats write a - b * floor(a / b)"
        elif op in ("==", "!=", "<", ">", "<=", ">="):
            hint = "compare components, for example a.x < b.x"
        self.fail(f"'{op}' does not take {a} and {b}", hint, at=at)

    def fold(self, expr: t.Expr, at: int) -> t.Expr:
        """Return the Literal an int or bool expression of literals stands for, else `expr`."""
        if expr.time != t.CONST or expr.type not in ("int", "bool"):
            return expr
        if all(isinstance(part, t.Literal) for part in t.children(expr)):
            return self.literal(expr, at)
        return expr

    def literal(self, expr: t.Expr, at: int) -> t.Expr:
        """Return the value of a CONST scalar as a Literal."""
        try:
            return t.Literal(expr.type, evaluate(expr))
        except Unknown:
            return expr
        except ArithmeticError as error:
            if self.dead:
                return t.Literal(expr.type, 1)
            self.fail(f"this constant {error}" if str(error)[0] == "d" else str(error), at=at)

    def _unary(self) -> t.Expr:
        op = self.texts[self.at]
        if op not in ("-", "!", "+", "++", "--"):
            return self._postfix(self._primary())
        at = self.at
        if op in ("+", "++", "--"):
            self.fail(f"{op!r} cannot stand here", "write x += 1 as a statement of its own")
        self.at += 1
        self.nesting += 1
        self._count()
        if self.nesting > MAX_NESTING:
            self.fail("this is nested too deeply", "name a part of it with a local")
        value = self._unary()
        self.nesting -= 1
        if (op == "!") != (t.BASE[value.type] == "bool"):
            self.fail(f"'{op}' does not take {value.type}", at=at)
        if isinstance(value, t.Literal):
            number = not value.value if op == "!" else -value.value
            return t.Literal(value.type, number)
        return t.Unary(value.type, op, value, value.time)

    # --- operands -----------------------------------------------------------------------------
    def _primary(self) -> t.Expr:
        kind, text, at = self.tokens.kinds[self.at], self.texts[self.at], self.at
        if kind == "int":
            self.at += 1
            return t.Literal("int", self._int(text, at))
        if kind == "float":
            self.at += 1
            return t.Literal("float", self._float(text, at))
        if text == "(":
            self.at += 1
            value = self.expression()
            self.expect(")", "to close '('")
            return value
        if kind == "name":
            self.at += 1
            if text in ("true", "false"):
                return t.Literal("bool", text == "true")
            if self.texts[self.at] == "(":
                return self._call(text, at)
            return self._reference(text, at)
        self._unexpected("expected a value")

    def _int(self, text: str, at: int) -> int:
        if len(text) > 10 or int(text) > INT_MAX:
            self.fail(f"{text[:20]} does not fit in a 32-bit int", at=at)
        if len(text) > 1 and text[0] == "0":
            self.fail("an int does not begin with 0", "there is no octal", at=at)
        return int(text)

    def _float(self, text: str, at: int) -> float:
        try:
            return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])
        except OverflowError:
            self.fail(f"{text} does not fit in a 32-bit float", at=at)

    def _reference(self, name: str, at: int) -> t.Expr:
        found = self.names.get(name)
        if isinstance(found, t.Local):
            if found.size:
                return self._element(found, found.type, at)
            time = t.VARYING if found.assigned else found.time
            return t.LocalRef(found.type, found, time)
        if isinstance(found, t.Literal):
            return found
        if isinstance(found, t.Spec):
            return t.SpecRef(found.type, found)
        if isinstance(found, t.Param):
            return t.ParamRef(found.type, found)
        if isinstance(found, t.Shared):
            return self._element(found, found.type, at)
        if isinstance(found, t.Tensor):
            self.fail(f"tensor {name!r} has no value of its own", "write load4(T, p)", at=at)
        if isinstance(found, t.Function) or name in MATH or name in ACCESS:
            self.fail(f"{name!r} is a function: it needs arguments in ( )", at=at)
        self._unknown(name, at)

    def _unknown(self, name: str, at: int) -> NoReturn:
        hint = TRAPS.get(name)
        if hint is None:
            near = get_close_matches(name, [*self.names, *MATH, *ACCESS, *t.BASE], n=1)
            hint = f"did you mean {near[0]!r}?" if near else None
        self.fail(f"{name!r} is not declared", hint, at=at)

    def _element(self, array: t.Local | t.Shared, kind: str, at: int) -> t.Expr:
        if self.texts[self.at] != "[":
            self.fail(f"{array.name!r} is an array: it needs an index", at=at)
        return t.Element(kind, array, self.array_index(array))

    def array_index(self, array: t.Local | t.Shared) -> t.Expr:
        """Parse ``[index]`` of an array and check what can be checked."""
        self.at += 1
        at = self.at
        index = self.expression()
        self.expect("]", "to close '['")
        if index.type != "int":
            self.fail(f"an index is int, not {index.type}", at=at)
        if isinstance(array, t.Shared):
            return index
        if index.time == t.CONST:
            index = self.constant(index, "this index", at)
            value = int(index.value)
            if not 0 <= value < array.size:
                if not self.dead:
                    self.fail(f"index {value} is outside {array.name}[{array.size}]", at=at)
                index = t.Literal("int", 0)
        elif self.kernel.form == "map":
            self.fail(
                "in a map kernel the index of a local array is a constant",
                "write unroll for (...), which makes its loop index a constant",
                at=at,
            )
        return index

    def constant(self, expr: t.Expr, what: str, at: int) -> t.Literal:
        """Return the value of `expr`, which must be known to the front end."""
        if expr.time == t.CONST:
            self.freeze(expr, at)
            value = self.literal(expr, at)
            if isinstance(value, t.Literal):
                return value
        self.fail(f"{what} must be a constant", "use literals, const int or unroll for", at=at)

    def freeze(self, expr: object, at: int) -> None:
        """Note that the values of the locals in `expr` are relied upon, so they cannot change."""
        if isinstance(expr, t.LocalRef) and not expr.local.frozen:
            if expr.local.assigned:
                self.fail(f"this needs {expr.local.name!r} to keep its first value", at=at)
            expr.local.frozen = True
            self.freeze(expr.local.value, at)
        for part in t.children(expr):
            self.freeze(part, at)

    def _postfix(self, value: t.Expr) -> t.Expr:
        while True:
            if self.texts[self.at] == ".":
                value = self._swizzle(value)
            elif self.texts[self.at] == "[":
                value = self._component(value)
            else:
                return value

    def _swizzle(self, value: t.Expr) -> t.Expr:
        self._count()
        components = self.swizzle(value.type)
        kind = t.VECTOR[t.BASE[value.type], len(components)]
        return t.Swizzle(kind, value, components, value.time)

    def swizzle(self, kind: str) -> tuple[int, ...]:
        """Parse ``.letters`` of a value of type `kind`."""
        self.at += 1
        letters = self.texts[self.at]
        if t.WIDTH[kind] == 1:
            self.fail(f"{kind} has no components", at=self.at - 1)
        picked = tuple(_LETTERS.get(letter, 9) for letter in letters)
        if not 1 <= len(picked) <= 4 or max(picked) >= t.WIDTH[kind]:
            allowed = "xyzw"[: t.WIDTH[kind]]
            self.fail(f"'.{letters}' are not components of {kind}", f"use letters of '{allowed}'")
        self.at += 1
        return picked

    def _component(self, value: t.Expr) -> t.Expr:
        self._count()
        return t.Swizzle(t.BASE[value.type], value, (self.component(value.type),), value.time)

    def component(self, kind: str) -> int:
        """Parse ``[constant]`` of a vector of type `kind`."""
        at = self.at
        self.at += 1
        index = self.expression()
        self.expect("]", "to close '['")
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

    def _call(self, name: str, at: int) -> t.Expr:
        """Parse the arguments of `name`; defined by CallParser."""
        raise NotImplementedError
