"""Statements and function bodies: typed, unrolled and checked while they are parsed."""

from __future__ import annotations

from gpuedge.lang import tree as t
from gpuedge.lang.calls import CallParser
from gpuedge.lang.words import STORES, TRAPS

MAX_UNROLLED = 4096  # copies of loop bodies in one kernel; drivers choke long before
MAX_BLOCKS = 16
MAX_ARRAY = 256  # elements of a local array: registers, on real devices


class StatementParser(CallParser):
    """Adds statements. `in_main` opens what only main may do."""

    in_main = False
    branches = 0  # how many ifs are open
    free_loops = 0  # how many open loops do not run in step in all invocations
    blocks = 0
    uid = 0
    unrolled = 0
    emitted: set[str]  # further out tensors that have a value
    position_of_main: t.Local  # the argument of a map kernel's main

    def local(self, name: str, kind: str, **values: int | str | t.Expr | None) -> t.Local:
        """Declare a local."""
        self.uid += 1
        made = t.Local(name, kind, self.uid, **values)  # type: ignore[arg-type]
        self.names[name] = made
        return made

    def body(self) -> list[t.Stmt]:
        """Parse ``{ ... }`` or one statement; what it declares ends with it."""
        outer = dict(self.names)
        self.blocks += 1
        if self.blocks > MAX_BLOCKS:
            self.fail("blocks are nested too deeply")
        stmts: list[t.Stmt] = []
        if self.accept("{"):
            while not self.accept("}"):
                self.statement(stmts)
        else:
            self.statement(stmts)
        self.blocks -= 1
        self.names = outer
        return stmts

    def statement(self, into: list[t.Stmt]) -> None:
        """Parse one statement and append what it means."""
        text = self.texts[self.at]
        if text in t.BASE:
            self._declare(into)
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
        elif text == "emit":
            self._emit(into)
        elif text == "barrier":
            self._barrier(into)
        elif self.tokens.kinds[self.at] == "name" and text in self.names:
            self._assign(into)
            self.expect(";", "after the assignment")
        elif text == "return":
            self.fail("return cannot stand here", TRAPS["return"])
        elif self.tokens.kinds[self.at] == "name" and text not in TRAPS and text != "const":
            self._unknown(text, self.at)
        else:
            self._unexpected("expected a statement")

    # --- locals -------------------------------------------------------------------------------
    def _declare(self, into: list[t.Stmt]) -> None:
        kind = self.texts[self.at]
        self.at += 1
        name = self.new_name("local")
        if self.accept("["):
            at = self.at
            size = int(self.constant(self.whole_expression(), "the size of an array", at).value)
            self.expect("]", "to close '['")
            if not 1 <= size <= MAX_ARRAY:
                self.fail(f"an array of {size} elements: from 1 to {MAX_ARRAY} are allowed", at=at)
            if kind == "bool":
                self.fail("there are no arrays of bool", at=at)
            if self.texts[self.at] == "=":
                self.fail("an array has no first value", "assign to its elements")
            into.append(t.Declare(self.local(name, kind, size=size, assigned=True), None))
        else:
            if self.texts[self.at] in (";", ","):
                self.fail(
                    f"{name!r} needs a value", f"write {kind} {name} = ...; one per statement"
                )
            self.expect("=", "after the name")
            at = self.at
            value = self.whole_expression()
            if value.type != kind:
                self._wrong_value(kind, value.type, at)
            made = self.local(name, kind, time=value.time, value=value)
            into.append(t.Declare(made, value))
        self.expect(";", "after the declaration")

    def _wrong_value(self, kind: str, given: str, at: int) -> None:
        hint = "there are no implicit casts: write 2.0 instead of 2, vec4(x) instead of x"
        self.fail(f"a value of type {given} for {kind}", hint, at=at)

    def _assign(self, into: list[t.Stmt]) -> None:
        name, at = self.texts[self.at], self.at
        target = self.names[name]
        self.operators = 0
        if isinstance(target, t.Function):
            self.fail("a call on its own does nothing", "functions have no side effects")
        if not isinstance(target, t.Local | t.Shared):
            self.fail(f"{name!r} cannot be assigned", "only locals and shared arrays can")
        self._check_assignable(target)
        self.at += 1
        kind, index, component = target.type, None, None
        is_array = isinstance(target, t.Shared) or target.size > 0
        if is_array:
            if self.texts[self.at] != "[":
                self.fail(f"{name!r} is an array: it needs an index", at=at)
            index = self.array_index(target)
        if self.texts[self.at] == ".":
            letters = self.at + 1
            picked = self.swizzle(kind)
            if len(picked) != 1:
                self.fail("assign one component at a time", at=letters)
            component = picked[0]
        elif self.texts[self.at] == "[":
            component = self.component(kind)
        if component is not None:
            kind = t.BASE[kind]
        value = self._assigned_value(target, kind, index, component)
        into.append(t.Assign(target, index, component, value))

    def _check_assignable(self, target: t.Local | t.Shared) -> None:
        if isinstance(target, t.Shared):
            if not self.in_main:
                self.fail("shared arrays are written in main only")
            return
        if target.read_only:
            self.fail(f"{target.name!r} is {target.read_only} and read only")
        if target.frozen:
            self.fail(
                f"{target.name!r} was used as a constant or loop bound, so it cannot change",
                "use another local for the value that changes",
            )
        target.assigned = True

    def _assigned_value(
        self, target: t.Local | t.Shared, kind: str, index: t.Expr | None, component: int | None
    ) -> t.Expr:
        op, at = self.texts[self.at], self.at
        if op in ("++", "--"):
            self.fail(f"'{op}' is for the step of a loop only", "write x += 1;")
        if op not in ("=", "+=", "-=", "*=", "/=", "%="):
            self._unexpected("expected an assignment")
        self.at += 1
        value = self.expression()
        if op != "=":
            old: t.Expr
            if index is not None:
                old = t.Element(target.type, target, index)
            else:
                old = t.LocalRef(target.type, target, t.VARYING)  # type: ignore[arg-type]
            if component is not None:
                old = t.Swizzle(kind, old, (component,), t.VARYING)
            value = self.binary(op[0], old, value, at)
        if value.type != kind:
            self._wrong_value(kind, value.type, at + 1)
        return value

    # --- control ------------------------------------------------------------------------------
    def _if(self, into: list[t.Stmt]) -> None:
        self.at += 1
        self.expect("(", "after 'if'")
        at = self.at
        condition = self.whole_expression()
        if condition.type != "bool":
            self.fail(f"the condition is {condition.type}, not bool", at=at)
        self.expect(")", "after the condition")
        known = condition.value if isinstance(condition, t.Literal) else None
        # A branch on a constant disappears, so that const variants can hold barriers and ranges.
        self.branches += known is None
        self.dead += known is False
        then = self.body()
        self.dead += (known is True) - (known is False)
        orelse = self.body() if self.accept("else") else []
        self.dead -= known is True
        self.branches -= known is None
        if known is None:
            into.append(t.If(condition, then, orelse))
        else:
            into.extend(then if known else orelse)

    def _header(self) -> tuple[str, t.Expr, t.Expr, t.Expr, tuple[int, int, int]]:
        """Parse ``for (int i = start; i < bound; step)`` and return where its parts stand."""
        self.expect("for", "after 'unroll'")
        self.expect("(", "after 'for'")
        self.expect("int", "as the type of a loop index")
        name = self.new_name("loop index")
        self.expect("=", "after the name")
        start_at = self.at
        start = self.whole_expression()
        self.expect(";", "after the start")
        self.expect(name, "(the loop's index)")
        if self.texts[self.at] in ("<=", ">", ">=", "!="):
            self.fail("a loop runs while its index is < a bound", "write i < n + 1 for i <= n")
        self.expect("<", "after the index")
        bound_at = self.at
        bound = self.whole_expression()
        self.expect(";", "after the bound")
        self.expect(name, "(the loop's index)")
        step_at = self.at
        step: t.Expr = t.Literal("int", 1)
        if not self.accept("++"):
            self.expect("+=", "or '++' as the step")
            step_at = self.at
            step = self.whole_expression()
        self.expect(")", "after the step")
        for part, at in ((start, start_at), (bound, bound_at), (step, step_at)):
            if part.type != "int":
                self.fail(f"a loop counts in int, not {part.type}", at=at)
        return name, start, bound, step, (start_at, bound_at, step_at)

    def _for(self, into: list[t.Stmt]) -> None:
        name, start, bound, step, (start_at, bound_at, step_at) = self._header()
        if bound.time > t.UNIFORM:
            self.fail(
                "the bound of a loop is made of const, spec, param and dims() only",
                "loop to the largest count and use if inside",
                at=bound_at,
            )
        if step.time > t.SPEC or (isinstance(step, t.Literal) and step.value <= 0):
            self.fail("the step of a loop is a positive const or spec", at=step_at)
        if start.time > t.SPEC and self.kernel.form == "map":
            self.fail("in a map kernel the start of a loop is a const or spec", at=start_at)
        for part, at in ((start, start_at), (bound, bound_at), (step, step_at)):
            if part.time <= t.UNIFORM:
                self.freeze(part, at)
        outer = dict(self.names)
        index = self.local(name, "int", read_only="a loop index")
        free = start.time > t.UNIFORM
        self.free_loops += free
        body = self.body()
        self.free_loops -= free
        self.names = outer
        into.append(t.For(index, start, bound, step, body))

    def _unroll(self, into: list[t.Stmt]) -> None:
        self.at += 1
        name, start, bound, step, places = self._header()
        what = ("the start", "the bound", "the step")
        first, last, stride = (
            int(self.constant(part, f"{word} of an unrolled loop", at).value)
            for part, word, at in zip((start, bound, step), what, places, strict=True)
        )
        if stride <= 0:
            self.fail("the step of a loop is positive", at=places[2])
        values = range(first, last, stride)
        self.unrolled += len(values)
        if self.unrolled > MAX_UNROLLED:
            self.fail(f"more than {MAX_UNROLLED} copies are unrolled", "use for", at=places[1])
        begin, outer = self.at, dict(self.names)
        # The body is parsed once per value: each copy is typed with its own constant index.
        for value in values or range(first, first + 1):
            self.at = begin
            self.names = {**outer, name: t.Literal("int", value)}
            self.dead += not values
            copy = self.body()
            self.dead -= not values
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
        name = self.texts[self.at]
        self._only_main(name)
        self.operators = 0
        self.at += 1
        self.expect("(", f"after {name!r}")
        at = self.at
        tensor = self.tensor(name)
        if tensor.access == "read":
            self.fail(f"{tensor.name!r} is an in tensor: it cannot be written", at=at)
        position = self.position(name, STORES[name])
        self.expect(",", "after the position")
        at = self.at
        value = self.expression()
        if value.type != "vec4":
            self._wrong_value("vec4", value.type, at)
        self.expect(")", "after the value")
        self.expect(";", "after the call")
        into.append(t.Store(name, tensor, position, value))

    def _emit(self, into: list[t.Stmt]) -> None:
        """Parse ``emit(S, value);``: the texel of a further out tensor of a map kernel."""
        if self.kernel.form != "map" or not self.in_main:
            self.fail("emit() is for the main of map kernels")
        if self.blocks or self.branches or self.free_loops:
            self.fail("emit() stands under no if and in no loop", "every texel must get a value")
        self.operators = 0
        self.at += 1
        self.expect("(", "after 'emit'")
        at = self.at
        tensor = self.tensor("emit")
        if tensor.access == "read" or tensor is self.kernel.out:
            self.fail("emit() is for the out tensors after the first", at=at)
        if tensor.name in self.emitted:
            self.fail(f"{tensor.name!r} is emitted twice", at=at)
        self.emitted.add(tensor.name)
        self.expect(",", "after the tensor")
        at = self.at
        value = self.expression()
        if value.type != "vec4":
            self._wrong_value("vec4", value.type, at)
        self.expect(")", "after the value")
        self.expect(";", "after the call")
        where = t.LocalRef("ivec4", self.position_of_main, t.VARYING)
        into.append(t.Store("emit", tensor, where, value))

    def _barrier(self, into: list[t.Stmt]) -> None:
        self._only_main("barrier")
        if self.branches:
            self.fail("barrier() under an if hangs or breaks devices", "put the if around the rest")
        if self.free_loops:
            self.fail(
                "barrier() in a loop whose start differs between invocations",
                "start the loop at a const, spec or param",
            )
        self.at += 1
        self.expect("(", "after 'barrier'")
        self.expect(")", "after '('")
        self.expect(";", "after the call")
        into.append(t.Barrier())
