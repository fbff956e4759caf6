"""Function bodies: statements and expressions, typed, folded, unrolled and checked while parsed."""

from __future__ import annotations

from typing import Final, NoReturn

from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BUILTINS, PRECEDENCE
from gpuedge.lang.rules import Rules
from gpuedge.lang.tokens import ACCESS, STORES, TRAPS, Cursor

_ASSIGNMENTS = {f"{op}=": op for op in ("", "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")}
_DEEP = ("this is nested too deeply", "name a part of it with a local")
_PREFIXES = frozenset(("-", "!", "~", "+", "++", "--"))
_POSTFIXES = frozenset((".", "[", "("))

# Python's stack bounds how deep a tree may be: two frames per level in every printer, 1000 in all.
MAX_NESTING: Final = 40
MAX_OPERATORS: Final = 250
MAX_UNROLLED: Final = 4096  # copies of loop bodies in one kernel; drivers choke long before
MAX_BLOCKS: Final = 16

Name = t.Local | t.Shared | t.Spec | t.Param | t.Tensor | t.Function | t.Literal


class BodyParser:
    """Recursive descent through statements and expressions.

    Attributes
    ----------
    names : dict of str to Name
        What is in scope.
    in_main : bool
        Opens what only main may do.
    """

    def __init__(self, cursor: Cursor, kernel: t.Kernel) -> None:
        self.cursor = cursor
        self.texts = cursor.texts
        self.fail = cursor.fail
        self.rules = Rules(cursor)
        self.kernel = kernel
        self.names: dict[str, Name] = {}
        self.in_main = False
        self.nesting = 0
        self.operators = 0
        self.branches = 0  # how many ifs are open
        self.free_loops = 0  # how many open loops do not run in step in all invocations
        self.blocks = 0
        self.uid = 0
        self.unrolled = 0

    # --- expressions --------------------------------------------------------------------------
    def whole_expression(self) -> t.Expr:
        """Parse an expression that belongs to no other."""
        self.operators = 0
        return self.expression()

    def expression(self) -> t.Expr:
        """Parse an expression with all its operators."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail(*_DEEP)
        value = self._operators(self._unary(), 1)
        if self.texts[self.cursor.at] == "?":
            value = self._select(value)
        self.nesting -= 1
        return value

    def _count(self) -> None:
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            self.fail("this expression is too long", "name a part of it with a local")

    def _select(self, condition: t.Expr) -> t.Expr:
        at = self.cursor.at
        self.cursor.at += 1
        self._count()
        if condition.type != "bool":
            self.fail(f"the condition of ?: is {condition.type}, not bool", at=at)
        yes = self.expression()
        self.cursor.expect(":", "between the values of ?:")
        return self.rules.select(condition, yes, self.expression(), at)

    def _operators(self, left: t.Expr, least: int) -> t.Expr:
        """Parse the operators after `left` that bind as tightly as `least`, with their operands."""
        cursor, texts = self.cursor, self.texts
        while True:
            at = cursor.at
            op = texts[at]
            rank = PRECEDENCE.get(op, 0)
            if rank < least:
                return left
            cursor.at = at + 1
            self._count()
            right = self._unary()
            if PRECEDENCE.get(texts[cursor.at], 0) > rank:
                right = self._operators(right, rank + 1)
            left = self.rules.binary(op, left, right, at)

    def _unary(self) -> t.Expr:
        cursor = self.cursor
        at = cursor.at
        op = self.texts[at]
        if op not in _PREFIXES:
            found = self.names.get(op) or self.rules.literals.get(op)
            if found is None or self.texts[at + 1] in _POSTFIXES:
                return self._postfix()
            cursor.at = at + 1  # most operands: a name or a number met before, on its own
            return found if isinstance(found, t.Literal) else self._reference(op, at)
        if op in ("+", "++", "--"):
            self.fail(f"{op!r} cannot stand here", "write x += 1 as a statement of its own")
        if op == "-" and self.texts[at + 1] == "2147483648":
            cursor.at += 2  # the one int whose absolute value is no int
            return t.Literal("int", -(2**31))
        cursor.at += 1
        self.nesting += 1
        self._count()
        if self.nesting > MAX_NESTING:
            self.fail(*_DEEP)
        value = self._unary()
        self.nesting -= 1
        return self.rules.unary(op, value, at)

    def _postfix(self) -> t.Expr:
        value = self._primary()
        while True:
            text = self.texts[self.cursor.at]
            if text == ".":
                self._count()
                value = self.rules.swizzle(value, self._letters(value.type))
            elif text == "[":
                self._count()
                value = self.rules.swizzle(value, (self._component(value.type),))
            else:
                return value

    def _letters(self, kind: str) -> tuple[int, ...]:
        """Parse ``.letters`` of a value of type `kind`."""
        self.cursor.at += 2
        return self.rules.letters(kind, self.texts[self.cursor.at - 1], self.cursor.at - 1)

    def _component(self, kind: str) -> int:
        """Parse ``[constant]`` of a vector of type `kind`."""
        at = self.cursor.at
        return self.rules.component(kind, self._in_brackets(), at)

    def _in_brackets(self) -> t.Expr:
        self.cursor.at += 1
        index = self.expression()
        self.cursor.expect("]", "to close '['")
        return index

    def _primary(self) -> t.Expr:
        cursor = self.cursor
        at = cursor.at
        text = self.texts[at]
        first = text[:1]
        if first.isalpha() or first == "_":
            cursor.at = at + 1
            if self.texts[at + 1] == "(":
                return self._call(text, at)
            return self._reference(text, at)
        if first.isdigit() or (first == "." and len(text) > 1):
            value: t.Expr = self.rules.number(text)
            cursor.at = at + 1
            return value
        if text == "(":
            cursor.at = at + 1
            value = self.expression()
            cursor.expect(")", "to close '('")
            return value
        cursor.unexpected("expected a value")

    def _reference(self, name: str, at: int) -> t.Expr:
        found = self.names.get(name)
        if isinstance(found, t.Local):
            if found.size:
                return self._element(found, at)
            return t.LocalRef(found.type, found, t.VARYING if found.assigned else found.time)
        if isinstance(found, (t.Literal, t.Spec, t.Param)):
            return found
        if isinstance(found, t.Shared):
            return self._element(found, at)
        if name in ("true", "false"):
            return t.Literal("bool", name == "true")
        if isinstance(found, t.Tensor):
            self.fail(f"tensor {name!r} has no value of its own", "write load4(T, p)", at=at)
        if isinstance(found, t.Function) or name in BUILTINS or name in ACCESS:
            self.fail(f"{name!r} is a function: it needs arguments in ( )", at=at)
        self.cursor.unknown(name, at, self.names)

    def _element(self, array: t.Local | t.Shared, at: int) -> t.Expr:
        if self.texts[self.cursor.at] != "[":
            self.fail(f"{array.name!r} is an array: it needs an index", at=at)
        return t.Element(array.type, array, self._array_index(array))

    def _array_index(self, array: t.Local | t.Shared) -> t.Expr:
        """Parse ``[index]`` of an array and check what can be checked."""
        at = self.cursor.at + 1
        index = self._in_brackets()
        if index.type != "int":
            self.fail(f"an index is int, not {index.type}", at=at)
        if isinstance(array, t.Shared):
            return index
        is_map = self.kernel.form == "map"
        return self.rules.element_index(array, index, at, is_map=is_map)

    # --- calls --------------------------------------------------------------------------------
    def _call(self, name: str, at: int) -> t.Expr:
        self._count()
        if name in ACCESS:
            return self._access(name, at)
        if name in t.BASE:
            return self.rules.construct(name, self._arguments(), at)
        if name in BUILTINS:
            return self.rules.math(name, self._arguments(), at)
        function = self.names.get(name)
        if function is None:
            self._unknown_function(name, at)
        args = self._arguments()
        if not isinstance(function, t.Function):
            self.fail(f"{name!r} is not a function", at=at)
        return self.rules.call(function, args, at)

    def _unknown_function(self, name: str, at: int) -> NoReturn:
        if name in STORES or name == "barrier":
            self.fail(f"{name} has no value", f"{name}(...); is a statement of main", at=at)
        if name == "epilogue" and self.cursor.hook >= 0:
            # The hook's own text forgot to define what it is there for: point into that text.
            self.cursor.fail_epilogue("the epilogue must define vec4 epilogue(vec4 v, ivec4 p)")
        if name == "main":
            self.fail("main cannot be called", at=at)
        if name in TRAPS:
            self.cursor.unknown(name, at, self.names)
        self.fail(f"there is no function {name!r}", "functions are declared before use", at=at)

    def _arguments(self) -> list[t.Expr]:
        self.cursor.at += 1
        args: list[t.Expr] = []
        if self.cursor.accept(")"):
            return args
        while True:
            args.append(self.expression())
            if self.cursor.accept(")"):
                return args
            self.cursor.expect(",", "or ')' after an argument")

    def _access(self, name: str, at: int) -> t.Expr:
        result, position_type = ACCESS[name]
        if name in ("local_id", "group_id"):
            if self.kernel.form == "map":
                self.fail(f"{name}() is for group kernels", "a map kernel gets p", at=at)
            if self._arguments():
                self.fail(f"{name}() takes no arguments", at=at)
            return t.Identifier(result, name)
        self.cursor.at += 1
        tensor = self._tensor(name)
        if name == "dims":
            self.cursor.expect(")", "after the tensor")
            return t.Dims(result, tensor)
        if tensor.access == "write":
            self.fail(f"{tensor.name!r} is the out tensor: it cannot be read", at=at)
        position = self._place(name, position_type)
        self.cursor.expect(")", "after the position")
        return t.Load(result, name, tensor, position)

    def _tensor(self, name: str) -> t.Tensor:
        """Parse the tensor that is the first argument of `name`."""
        found = self.texts[self.cursor.at]
        tensor = self.names.get(found)
        if not isinstance(tensor, t.Tensor):
            self.fail(f"{name}() takes a tensor first, found {found!r}")
        tensor.used = True
        self.cursor.at += 1
        return tensor

    def _place(self, name: str, kind: str) -> t.Expr:
        """Parse ``, position``."""
        self.cursor.expect(",", "after the tensor")
        at = self.cursor.at
        position = self.expression()
        if position.type != kind:
            hint = "a position is ivec4(x, y, slice, n)" if kind == "ivec4" else None
            self.fail(f"{name}() takes a position of type {kind}, not {position.type}", hint, at=at)
        return position

    # --- statements ---------------------------------------------------------------------------
    def local(self, name: str, kind: str, **values: int | str | t.Expr | None) -> t.Local:
        """Declare a local."""
        self.uid += 1
        made = t.Local(name, kind, self.uid, **values)  # type: ignore[arg-type]
        self.names[name] = made
        return made

    def typed(self, kind: str) -> t.Expr:
        """Parse a whole expression of type `kind`."""
        at = self.cursor.at
        value = self.whole_expression()
        if value.type != kind:
            self.rules.wrong_value(kind, value.type, at)
        return value

    def body(self) -> list[t.Stmt]:
        """Parse ``{ ... }`` or one statement; what it declares ends with it."""
        outer = dict(self.names)
        self.blocks += 1
        if self.blocks > MAX_BLOCKS:
            self.fail("blocks are nested too deeply")
        stmts: list[t.Stmt] = []
        if self.cursor.accept("{"):
            while not self.cursor.accept("}"):
                self.statement(stmts)
        else:
            self.statement(stmts)
        self.blocks -= 1
        self.names = outer
        return stmts

    def statement(self, into: list[t.Stmt]) -> None:
        """Parse one statement and append what it means."""
        text = self.texts[self.cursor.at]
        if text in t.BASE:
            self._declare(into)
        elif text in self.names:
            self._assign(into)
            self.cursor.expect(";", "after the assignment")
        elif text == "if":
            self._if(into)
        elif text == "for":
            self._for(into)
        elif text == "unroll":
            self._unroll(into)
        elif text == "{":
            into.extend(self.body())
        elif text in STORES:
            self._store(into)
        elif text == "barrier":
            self._barrier(into)
        elif text == "return":
            self.fail("return cannot stand here", TRAPS["return"])
        elif text[:1].isalpha() and text not in TRAPS and text != "const":
            self.cursor.unknown(text, self.cursor.at, self.names)
        else:
            self.cursor.unexpected("expected a statement")

    def _declare(self, into: list[t.Stmt]) -> None:
        cursor = self.cursor
        kind = self.texts[cursor.at]
        cursor.at += 1
        name = cursor.new_name("local", self.names)
        if self.texts[cursor.at] == "[":
            into.append(t.Declare(self._declare_array(name, kind), None))
        else:
            if self.texts[cursor.at] in (";", ","):
                hint = f"write {kind} {name} = ...; one per statement"
                self.fail(f"{name!r} needs a value", hint)
            cursor.expect("=", "after the name")
            value = self.typed(kind)
            into.append(t.Declare(self.local(name, kind, time=value.time, value=value), value))
        cursor.expect(";", "after the declaration")

    def _declare_array(self, name: str, kind: str) -> t.Local:
        at = self.cursor.at + 1
        self.operators = 0
        size = self.rules.array_size(kind, self._in_brackets(), at)
        if self.texts[self.cursor.at] == "=":
            self.fail("an array has no first value", "assign to its elements")
        return self.local(name, kind, size=size, assigned=True)

    def _assign(self, into: list[t.Stmt]) -> None:
        at = self.cursor.at
        name = self.texts[at]
        self.operators = 0
        target = self._assignable(name)
        self.cursor.at += 1
        kind, index, component = target.type, None, None
        if isinstance(target, t.Shared) or target.size > 0:
            if self.texts[self.cursor.at] != "[":
                self.fail(f"{name!r} is an array: it needs an index", at=at)
            index = self._array_index(target)
        after = self.texts[self.cursor.at]
        if after == ".":
            picked = self._letters(kind)
            if len(picked) != 1:
                self.fail("assign one component at a time", at=self.cursor.at - 1)
            component = picked[0]
        elif after == "[":
            component = self._component(kind)
        if component is not None:
            kind = t.BASE[kind]
        value = self._assigned_value(target, kind, index, component)
        into.append(t.Assign(target, index, component, value))

    def _assignable(self, name: str) -> t.Local | t.Shared:
        target = self.names[name]
        if isinstance(target, t.Function):
            self.fail("a call on its own does nothing", "functions have no side effects")
        if isinstance(target, t.Shared):
            if not self.in_main:
                self.fail("shared arrays are written in main only")
            return target
        if not isinstance(target, t.Local):
            self.fail(f"{name!r} cannot be assigned", "only locals and shared arrays can")
        if target.read_only:
            self.fail(f"{target.name!r} is {target.read_only} and read only")
        if target.frozen:
            self.fail(
                f"{target.name!r} was used as a constant or loop bound, so it cannot change",
                "use another local for the value that changes",
            )
        target.assigned = True
        return target

    def _assigned_value(
        self, target: t.Local | t.Shared, kind: str, index: t.Expr | None, component: int | None
    ) -> t.Expr:
        at = self.cursor.at
        op = self.texts[at]
        if op in ("++", "--"):
            self.fail(f"'{op}' is for the step of a loop only", "write x += 1;")
        if op not in _ASSIGNMENTS:
            self.cursor.unexpected("expected an assignment")
        self.cursor.at += 1
        value = self.expression()
        if op != "=":
            old: t.Expr
            if index is not None:
                old = t.Element(target.type, target, index)
            else:
                old = t.LocalRef(target.type, target, t.VARYING)  # type: ignore[arg-type]
            if component is not None:
                old = t.Swizzle(kind, old, (component,), t.VARYING)
            value = self.rules.binary(_ASSIGNMENTS[op], old, value, at)
        if value.type != kind:
            self.rules.wrong_value(kind, value.type, at + 1)
        return value

    # --- branches and loops -------------------------------------------------------------------
    def _if(self, into: list[t.Stmt]) -> None:
        self.cursor.at += 1
        self.cursor.expect("(", "after 'if'")
        at = self.cursor.at
        condition = self.whole_expression()
        if condition.type != "bool":
            self.fail(f"the condition is {condition.type}, not bool", at=at)
        self.cursor.expect(")", "after the condition")
        known = condition.value if isinstance(condition, t.Literal) else None
        # A branch on a constant disappears, so that const variants can hold barriers and ranges.
        self.branches += known is None
        self.rules.dead += known is False
        then = self.body()
        self.rules.dead += (known is True) - (known is False)
        orelse = self.body() if self.cursor.accept("else") else []
        self.rules.dead -= known is True
        self.branches -= known is None
        if known is None:
            into.append(t.If(condition, then, orelse))
        else:
            into.extend(then if known else orelse)

    def _header(self) -> tuple[str, list[t.Expr], list[int]]:
        """Parse ``for (int i = start; i < bound; step)``; return its parts and where they stand."""
        cursor = self.cursor
        cursor.expect("for", "after 'unroll'")
        cursor.expect("(", "after 'for'")
        cursor.expect("int", "as the type of a loop index")
        name = cursor.new_name("loop index", self.names)
        cursor.expect("=", "after the name")
        places = [cursor.at]
        parts = [self.whole_expression()]
        cursor.expect(";", "after the start")
        cursor.expect(name, "(the loop's index)")
        if self.texts[cursor.at] in ("<=", ">", ">=", "!="):
            self.fail("a loop runs while its index is < a bound", "write i < n + 1 for i <= n")
        cursor.expect("<", "after the index")
        places.append(cursor.at)
        parts.append(self.whole_expression())
        cursor.expect(";", "after the bound")
        cursor.expect(name, "(the loop's index)")
        is_one = cursor.accept("++")
        if not is_one:
            cursor.expect("+=", "or '++' as the step")
        places.append(cursor.at)
        parts.append(t.Literal("int", 1) if is_one else self.whole_expression())
        cursor.expect(")", "after the step")
        for part, at in zip(parts, places, strict=True):
            if part.type != "int":
                self.fail(f"a loop counts in int, not {part.type}", at=at)
        return name, parts, places

    def _for(self, into: list[t.Stmt]) -> None:
        name, parts, places = self._header()
        start, bound, step = parts
        self.rules.loop(parts, places, is_map=self.kernel.form == "map")
        index = self.local(name, "int", read_only="a loop index")
        free = start.time > t.UNIFORM
        self.free_loops += free
        body = self.body()
        self.free_loops -= free
        del self.names[name]
        into.append(t.For(index, start, bound, step, body))

    def _unroll(self, into: list[t.Stmt]) -> None:
        cursor, rules = self.cursor, self.rules
        cursor.at += 1
        name, parts, places = self._header()
        first, last, stride = (
            int(rules.constant(part, f"the {word} of an unrolled loop", at).value)
            for part, word, at in zip(parts, ("start", "bound", "step"), places, strict=True)
        )
        if stride <= 0:
            self.fail("the step of a loop is positive", at=places[2])
        values = range(first, last, stride)
        self.unrolled += len(values)
        if self.unrolled > MAX_UNROLLED:
            self.fail(f"more than {MAX_UNROLLED} copies are unrolled", "use for", at=places[1])
        begin, outer = cursor.at, self.names
        # The body is parsed once per value: each copy is typed with its own constant index.
        for value in values or range(first, first + 1):
            cursor.at = begin
            self.names = {**outer, name: t.Literal("int", value)}
            rules.dead += not values
            copy = self.body()
            rules.dead -= not values
            if values:
                into.extend(copy)
        self.names = outer

    # --- what only main may do ----------------------------------------------------------------
    def _only_main(self, name: str) -> None:
        if self.kernel.form == "map":
            self.fail(f"{name}() is for group kernels", "a map kernel returns its texel from main")
        if not self.in_main:
            self.fail(f"{name}() is for main only", "helper functions have no side effects")

    def _store(self, into: list[t.Stmt]) -> None:
        cursor = self.cursor
        name = self.texts[cursor.at]
        self._only_main(name)
        self.operators = 0
        cursor.at += 1
        cursor.expect("(", f"after {name!r}")
        at = cursor.at
        tensor = self._tensor(name)
        if tensor.access == "read":
            self.fail(f"{tensor.name!r} is an in tensor: it cannot be written", at=at)
        position = self._place(name, STORES[name])
        cursor.expect(",", "after the position")
        at = cursor.at
        value = self.expression()
        if value.type != "vec4":
            self.rules.wrong_value("vec4", value.type, at)
        cursor.expect(")", "after the value")
        cursor.expect(";", "after the call")
        into.append(t.Store(name, tensor, position, value))

    def _barrier(self, into: list[t.Stmt]) -> None:
        self._only_main("barrier")
        if self.branches:
            self.fail("barrier() under an if hangs or breaks devices", "put the if around the rest")
        if self.free_loops:
            self.fail(
                "barrier() in a loop whose start differs between invocations",
                "start the loop at a const, spec or param",
            )
        self.cursor.at += 1
        for text, after in (("(", "after 'barrier'"), (")", "after '('"), (";", "after the call")):
            self.cursor.expect(text, after)
        into.append(t.Barrier())
