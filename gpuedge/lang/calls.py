"""Calls: constructors, casts, built-ins, tensor access and helper functions."""

from __future__ import annotations

from typing import NoReturn

from gpuedge.lang import tree as t
from gpuedge.lang.expressions import ExpressionParser
from gpuedge.lang.words import ACCESS, MATH, STORES, TRAPS


class CallParser(ExpressionParser):
    """Adds everything that looks like ``name(...)`` to expressions."""

    def _call(self, name: str, at: int) -> t.Expr:
        self._count()
        if name in ACCESS:
            return self._access(name, at)
        if name in STORES or name == "barrier":
            self.fail(f"{name} has no value", f"{name}(...); is a statement of main", at=at)
        if name not in t.BASE and name not in MATH and name not in self.names:
            self._unknown_function(name, at)
        args = self._arguments()
        if name in t.BASE:
            return self._construct(name, args, at)
        if name in MATH:
            return self._math(name, args, at)
        function = self.names[name]
        if not isinstance(function, t.Function):
            self.fail(f"{name!r} is not a function", at=at)
        return self._helper(function, args, at)

    def _unknown_function(self, name: str, at: int) -> NoReturn:
        if name == "epilogue" and self.tokens.has_hook:
            # The hook's own text forgot to define what it is there for: point into that text.
            self.tokens.fail(
                "the epilogue must define vec4 epilogue(vec4 v, ivec4 p)", self.tokens.splice
            )
        if name == "main":
            self.fail("main cannot be called", at=at)
        hint = "functions are declared before use" if name not in TRAPS else None
        if hint:
            self.fail(f"there is no function {name!r}", hint, at=at)
        self._unknown(name, at)

    def _arguments(self) -> list[t.Expr]:
        self.at += 1
        args: list[t.Expr] = []
        if self.accept(")"):
            return args
        while True:
            args.append(self.expression())
            if self.accept(")"):
                return args
            self.expect(",", "or ')' after an argument")

    # --- constructors and casts ---------------------------------------------------------------
    def _construct(self, kind: str, args: list[t.Expr], at: int) -> t.Expr:
        base, width = t.BASE[kind], t.WIDTH[kind]
        if not args:
            self.fail(f"{kind}() needs arguments", at=at)
        if len(args) == 1:
            return self._convert(kind, args[0], at)
        for arg in args:
            if t.BASE[arg.type] != base:
                self._cannot(kind, arg.type, at)
        total = sum(t.WIDTH[arg.type] for arg in args)
        if width == 1 or total != width:
            self.fail(f"{kind}(...) takes {width} components, not {total}", at=at)
        return t.Construct(kind, tuple(args), max(arg.time for arg in args))

    def _convert(self, kind: str, value: t.Expr, at: int) -> t.Expr:
        base, width = t.BASE[kind], t.WIDTH[kind]
        given = value.type
        if given == kind:
            return value
        if t.BASE[given] == base and t.WIDTH[given] == 1:
            return t.Splat(kind, value, value.time)
        if t.WIDTH[given] == width and "bool" not in (base, t.BASE[given]):
            if isinstance(value, t.Literal):
                return self._convert_literal(kind, value, at)
            return t.Cast(kind, value, value.time)
        self._cannot(kind, given, at)

    def _convert_literal(self, kind: str, value: t.Literal, at: int) -> t.Literal:
        if kind == "float":
            # Through the float32 rounding of literals, as the device would round it.
            return t.Literal("float", self._float(str(value.value), at))
        if value.value != int(value.value) or abs(value.value) >= 2**31:
            self.fail(f"int() takes integral values of 32 bits, not {value.value}", at=at)
        return t.Literal("int", int(value.value))

    def _cannot(self, kind: str, given: str, at: int) -> NoReturn:
        hint = None
        if t.BASE[given] == "bool":
            hint = "write condition ? 1.0 : 0.0"
        elif t.BASE[given] != t.BASE[kind]:
            hint = f"there are no implicit casts: write {t.BASE[kind]}(...) around each component"
        elif t.WIDTH[given] > t.WIDTH[kind]:
            hint = f"pick components, for example .{'xyzw'[: t.WIDTH[kind]]}"
        self.fail(f"{kind}() does not take {given}", hint, at=at)

    # --- built-ins ----------------------------------------------------------------------------
    def _math(self, name: str, args: list[t.Expr], at: int) -> t.Expr:
        count, bases = MATH[name]
        if len(args) != count:
            self.fail(f"{name}() takes {count} argument{'s'[: count > 1]}, not {len(args)}", at=at)
        kinds = [arg.type for arg in args]
        kind = max(kinds, key=t.WIDTH.__getitem__)
        if any(t.BASE[k] not in bases or t.BASE[k] != t.BASE[kind] for k in kinds):
            hint = "there are no implicit casts: write 2.0 instead of 2"
            self.fail(f"{name}() does not take {', '.join(kinds)}", hint, at=at)
        if any(t.WIDTH[k] not in (1, t.WIDTH[kind]) for k in kinds):
            self.fail(f"{name}() takes vectors of one width, not {', '.join(kinds)}", at=at)
        if name == "dot" and (t.WIDTH[kind] == 1 or kinds[0] != kinds[1]):
            self.fail(f"dot() takes two vectors of one width, not {', '.join(kinds)}", at=at)
        same = tuple(a if a.type == kind else t.Splat(kind, a, a.time) for a in args)
        result = "float" if name == "dot" else kind
        return self.fold(t.Builtin(result, name, same, max(a.time for a in args)), at)

    def _helper(self, function: t.Function, args: list[t.Expr], at: int) -> t.Expr:
        wanted = [arg.type for arg in function.args]
        given = [arg.type for arg in args]
        if wanted != given:
            text = f"{function.name}({', '.join(wanted)})"
            self.fail(f"{text} does not take ({', '.join(given)})", at=at)
        return t.Call(function.type, function, tuple(args))

    # --- tensors and ids ----------------------------------------------------------------------
    def _access(self, name: str, at: int) -> t.Expr:
        result, position_type = ACCESS[name]
        if name in ("local_id", "group_id"):
            if self.kernel.form == "map":
                self.fail(f"{name}() is for group kernels", "a map kernel gets p", at=at)
            if self._arguments():
                self.fail(f"{name}() takes no arguments", at=at)
            return t.Identifier(result, name)
        self.at += 1
        tensor = self.tensor(name)
        if name == "dims":
            self.expect(")", "after the tensor")
            return t.Dims(result, tensor)
        if tensor.access == "write":
            self.fail(f"{tensor.name!r} is the out tensor: it cannot be read", at=at)
        return t.Load(result, name, tensor, self.position(name, position_type))

    def tensor(self, name: str) -> t.Tensor:
        """Parse the tensor that is the first argument of `name`."""
        tensor = self.names.get(self.texts[self.at])
        if not isinstance(tensor, t.Tensor):
            self.fail(f"{name}() takes a tensor first, found {self.texts[self.at]!r}")
        tensor.used = True
        self.at += 1
        return tensor

    def position(self, name: str, kind: str) -> t.Expr:
        """Parse ``, position)``."""
        self.expect(",", "after the tensor")
        at = self.at
        position = self.expression()
        if position.type != kind:
            hint = "a position is ivec4(x, y, slice, n)" if kind == "ivec4" else None
            self.fail(f"{name}() takes a position of type {kind}, not {position.type}", hint, at=at)
        if name in ACCESS:
            self.expect(")", "after the position")
        return position
