"""Function bodies: statements and expressions, typed, folded, unrolled and checked.

A text is parsed once. Parsing gives functions that build what the text means; those of the body of
an unrolled loop are called once per copy, each time with another value of the loop's index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BUILTINS, PRECEDENCE
from gpuedge.lang.rules import Rules
from gpuedge.lang.tokens import ACCESS, STORES, Cursor

_ASSIGNMENTS = {f"{op}=": op for op in ("", "+", "-", "*", "/", "%", "&", ">>")}
_DEEP = ("this is nested too deeply", "name a part of it with a local")

# Python's stack bounds how deep a tree may be: two frames per level in every printer, 1000 in all.
MAX_NESTING: Final = 40
MAX_OPERATORS: Final = 250
MAX_UNROLLED: Final = 4096  # copies of loop bodies in one kernel; drivers choke long before
MAX_BLOCKS: Final = 16

Make = Callable[[], t.Expr]
"""Builds an expression, with the meaning that names have when it is called."""
Step = Callable[[list[t.Stmt]], None]
"""Builds a statement and appends it."""
Name = t.Local | t.Shared | t.Spec | t.Param | t.Tensor | t.Function | t.Literal


class BodyParser:
    """Recursive descent through statements and expressions.

    Attributes
    ----------
    names : dict of str to Name
        What is in scope where something is being built.
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
        self.declared: list[str] = []  # the locals in scope, and loop indices that were
        self.seen: set[str] = set()  # names of locals in what was parsed
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
        """Parse and build an expression that belongs to no other."""
        return self._whole()()

    def typed(self, kind: str) -> t.Expr:
        """Parse and build a whole expression of type `kind`."""
        return self._typed(kind)()

    def _whole(self) -> Make:
        self.operators = 0
        return self.expression()

    def _typed(self, kind: str) -> Make:
        self.operators = 0
        return self._expected(kind, self.cursor.at, self.expression())

    def _expected(self, kind: str, at: int, build: Make) -> Make:
        def make() -> t.Expr:
            value = build()
            if value.type != kind:
                self.rules.wrong_value(kind, value.type, at)
            return value

        return make

    def expression(self) -> Make:
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

    def _select(self, condition: Make) -> Make:
        at = self.cursor.at
        self.cursor.at += 1
        self._count()
        yes = self.expression()
        self.cursor.expect(":", "between the values of ?:")
        no = self.expression()

        def make() -> t.Expr:
            test = condition()
            if test.type != "bool":
                self.fail(f"the condition of ?: is {test.type}, not bool", at=at)
            known = test.value if isinstance(test, t.Literal) else None
            self.rules.dead += known is False
            chosen = yes()
            self.rules.dead += (known is True) - (known is False)
            other = no()
            self.rules.dead -= known is True
            return self.rules.select(test, chosen, other, at)

        return make

    def _operators(self, left: Make, least: int) -> Make:
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
            left = self._binary(op, left, right, at)

    def _binary(self, op: str, left: Make, right: Make, at: int) -> Make:
        binary = self.rules.binary
        return lambda: binary(op, left(), right(), at)

    def _unary(self) -> Make:
        cursor = self.cursor
        at = cursor.at
        op = self.texts[at]
        if op not in ("-", "!"):
            return self._postfix()
        if op == "-" and self.texts[at + 1] == "2147483648":
            cursor.at += 2  # the one int whose absolute value is no int
            return lambda: t.Literal("int", -(2**31))
        cursor.at += 1
        self.nesting += 1
        self._count()
        if self.nesting > MAX_NESTING:
            self.fail(*_DEEP)
        value = self._unary()
        self.nesting -= 1
        return lambda: self.rules.unary(op, value(), at)

    def _postfix(self) -> Make:
        value = self._primary()
        while (text := self.texts[self.cursor.at]) in (".", "["):
            self._count()
            value = self._lettered(value) if text == "." else self._component(value)
        return value

    def _lettered(self, vector: Make) -> Make:
        """Parse ``.letters`` of a vector."""
        at, rules = self._letters(), self.rules
        letters = self.texts[at]

        def make() -> t.Expr:
            value = vector()
            return rules.swizzle(value, rules.letters(value.type, letters, at))

        return make

    def _letters(self) -> int:
        """Step over ``.letters``; return where the letters are."""
        self.cursor.at += 2
        at = self.cursor.at - 1
        if not self.texts[at][:1].isalpha():
            self.fail(f"'.{self.texts[at]}' are no components", at=at)
        return at

    def _component(self, vector: Make) -> Make:
        """Parse ``[constant]`` of a vector."""
        at = self.cursor.at
        index = self._in_brackets()

        def make() -> t.Expr:
            value = vector()
            return self.rules.swizzle(value, (self.rules.component(value.type, index(), at),))

        return make

    def _in_brackets(self) -> Make:
        self.cursor.at += 1
        index = self.expression()
        self.cursor.expect("]", "to close '['")
        return index

    def _primary(self) -> Make:
        cursor = self.cursor
        at = cursor.at
        text = self.texts[at]
        first = text[:1]
        if first.isalpha() or first == "_":
            cursor.at = at + 1
            after = self.texts[at + 1]
            if after == "(":
                return self._call(text, at)
            return self._indexed(text, at) if after == "[" else self._named(text, at)
        if first.isdigit() or (first == "." and len(text) > 1):
            number = self.rules.number(text)
            cursor.at = at + 1
            return lambda: number
        if text == "(":
            cursor.at = at + 1
            inner = self.expression()
            cursor.expect(")", "to close '('")
            return inner
        cursor.unexpected("expected a value")

    def _named(self, name: str, at: int) -> Make:
        if name not in self.names and name not in self.seen and name not in ("true", "false"):
            self._reference(name, at)  # which says what is wrong with it

        def make() -> t.Expr:
            meaning = self.names.get(name)
            return meaning if isinstance(meaning, t.Literal) else self._reference(name, at)

        return make

    def _reference(self, name: str, at: int) -> t.Expr:
        meaning = self.names.get(name)
        if isinstance(meaning, t.Local) and not meaning.size:
            time = t.VARYING if meaning.assigned else meaning.time
            return t.LocalRef(meaning.type, meaning, time)
        if isinstance(meaning, (t.Literal, t.Spec, t.Param)):
            return meaning
        if name in ("true", "false"):
            return t.Literal("bool", name == "true")
        if meaning is None:
            self.cursor.unknown(name, at)
        self.fail(f"{name!r} has no value of its own", at=at)

    def _indexed(self, name: str, at: int) -> Make:
        """Parse ``[index]`` of an array, or ``[constant]`` of a vector."""
        place = self.cursor.at
        index = self._in_brackets()

        def make() -> t.Expr:
            meaning = self.names.get(name)
            if isinstance(meaning, t.Shared) or (isinstance(meaning, t.Local) and meaning.size):
                at_index = self._array_index(meaning, index, place + 1)
                return t.Element(meaning.type, meaning, at_index)
            value = self._reference(name, at)
            return self.rules.swizzle(value, (self.rules.component(value.type, index(), place),))

        return make

    def _array_index(self, array: t.Local | t.Shared, build: Make, at: int) -> t.Expr:
        """Build the index of an array and check what can be checked."""
        index = build()
        if index.type != "int":
            self.fail(f"an index is int, not {index.type}", at=at)
        if isinstance(array, t.Shared):
            return index
        if isinstance(index, t.Literal) and 0 <= index.value < array.size:
            return index
        is_map = self.kernel.form == "map"
        return self.rules.element_index(array, index, at, is_map=is_map)

    # --- calls --------------------------------------------------------------------------------
    def _call(self, name: str, at: int) -> Make:
        self._count()
        if name in ACCESS:
            return self._access(name, at)
        if name not in t.BASE and name not in BUILTINS and name not in self.names:
            self.fail(f"there is no function {name!r}", "functions are declared before use", at=at)
        args, rules = self._arguments(), self.rules
        if name in t.BASE:
            return lambda: rules.construct(name, [arg() for arg in args], at)
        if name in BUILTINS:
            return lambda: rules.math(name, [arg() for arg in args], at)

        def make() -> t.Expr:
            function = self.names.get(name)
            if not isinstance(function, t.Function):
                self.fail(f"{name!r} is not a function", at=at)
            return rules.call(function, [arg() for arg in args], at)

        return make

    def _arguments(self) -> list[Make]:
        self.cursor.at += 1
        args: list[Make] = []
        if self.cursor.accept(")"):
            return args
        while True:
            args.append(self.expression())
            if self.cursor.accept(")"):
                return args
            self.cursor.expect(",", "or ')' after an argument")

    def _access(self, name: str, at: int) -> Make:
        result, position_type = ACCESS[name]
        if name == "lane_value":
            return self._lane(at)
        if name in ("local_id", "group_id", "lane_id"):
            if self.kernel.form == "map":
                self.fail(f"{name}() is for group kernels", at=at)
            if self._arguments():
                self.fail(f"{name}() takes no arguments", at=at)
            return lambda: self._identifier(result, name)
        self.cursor.at += 1
        tensor = self._tensor(name)
        if name == "dims":
            self.cursor.expect(")", "after the tensor")
            return lambda: t.Dims(result, tensor)
        if tensor.access == "write":
            self.fail(f"{tensor.name!r} is the out tensor: it cannot be read", at=at)
        position = self._place(name, position_type)
        self.cursor.expect(")", "after the position")
        return lambda: t.Load(result, name, tensor, position())

    def _identifier(self, result: str, name: str) -> t.Expr:
        if name == "lane_id":
            self.kernel.has_lanes |= not self.rules.dead
        return t.Identifier(result, name)

    def _lane(self, at: int) -> Make:
        """Parse the arguments of ``lane_value(value, number)``."""
        self.cursor.at = at  # what to blame if it may not stand here
        self._only_main("lane_value")
        self.cursor.at += 1
        args = self._arguments()
        if len(args) != 2:
            self.fail(f"lane_value() takes 2 arguments, not {len(args)}", at=at)
        value, number = args

        def make() -> t.Expr:
            self._in_step("lane_value", "reads invocations that are not there", at)
            self.kernel.has_lanes |= not self.rules.dead
            return self.rules.lane(value(), number(), at)

        return make

    def _tensor(self, name: str) -> t.Tensor:
        """Parse the tensor that is the first argument of `name`."""
        word = self.texts[self.cursor.at]
        tensor = self.names.get(word)
        if not isinstance(tensor, t.Tensor):
            self.fail(f"{name}() takes a tensor first, found {word!r}")
        tensor.used = True
        self.cursor.at += 1
        return tensor

    def _place(self, name: str, kind: str) -> Make:
        """Parse ``, position``."""
        self.cursor.expect(",", "after the tensor")
        at = self.cursor.at
        position = self.expression()

        def make() -> t.Expr:
            value = position()
            if value.type != kind:
                self.fail(f"{name}() takes a position of type {kind}, not {value.type}", at=at)
            return value

        return make

    # --- statements ---------------------------------------------------------------------------
    def local(self, name: str, kind: str, **values: int | str | t.Expr | None) -> t.Local:
        """Declare a local."""
        self.uid += 1
        local = t.Local(name, kind, self.uid, **values)  # type: ignore[arg-type]
        self.names[name] = local
        self.declared.append(name)
        return local

    def body(self) -> Step:
        """Parse ``{ ... }`` or one statement; what it declares ends with it."""
        self.blocks += 1
        if self.blocks > MAX_BLOCKS:
            self.fail("blocks are nested too deeply")
        steps: list[Step] = []
        if self.cursor.accept("{"):
            while not self.cursor.accept("}"):
                steps.append(self.statement())
        else:
            steps.append(self.statement())
        self.blocks -= 1

        def build(into: list[t.Stmt]) -> None:
            outer = len(self.declared)
            for step in steps:
                step(into)
            for name in self.declared[outer:]:
                self.names.pop(name, None)
            del self.declared[outer:]

        return build

    def statement(self) -> Step:
        """Parse one statement."""
        text = self.texts[self.cursor.at]
        if text in t.BASE:
            return self._declare()
        if text in self.names or text in self.seen:
            step = self._assign()
            self.cursor.expect(";", "after the assignment")
            return step
        if text == "{":
            return self.body()
        if text in STORES:
            return self._store()
        known = {"if": self._if, "for": self._for, "unroll": self._unroll, "barrier": self._barrier}
        if text in known:
            return known[text]()
        self.cursor.unexpected("expected a statement")

    def _declare(self) -> Step:
        cursor = self.cursor
        kind = self.texts[cursor.at]
        cursor.at += 1
        at = cursor.at
        name = self._new_name("local")
        if self.texts[cursor.at] == "[":
            step = self._declare_array(name, kind, at)
        else:
            cursor.expect("=", "after the name")
            step = self._declare_value(name, kind, at, self._typed(kind))
        cursor.expect(";", "after the declaration")
        return step

    def _new_name(self, what: str) -> str:
        """Parse the name of a local; whether it is free is asked when the local is made."""
        name = self.cursor.any_name(what)
        self.seen.add(name)
        return name

    def _declare_value(self, name: str, kind: str, at: int, build_value: Make) -> Step:
        def build(into: list[t.Stmt]) -> None:
            self.cursor.check_free(name, at, self.names)
            value = build_value()
            into.append(t.Declare(self.local(name, kind, time=value.time, value=value), value))

        return build

    def _declare_array(self, name: str, kind: str, name_at: int) -> Step:
        at = self.cursor.at + 1
        self.operators = 0
        build_size = self._in_brackets()

        def build(into: list[t.Stmt]) -> None:
            self.cursor.check_free(name, name_at, self.names)
            size = self.rules.array_size(kind, build_size(), at)
            into.append(t.Declare(self.local(name, kind, size=size, assigned=True), None))

        return build

    def _assign(self) -> Step:
        cursor, at = self.cursor, self.cursor.at
        name = self.texts[at]
        self.operators = 0
        cursor.at += 1
        places: list[tuple[int, Make]] = []  # what stands in brackets after the name
        while self.texts[cursor.at] == "[" and len(places) < 2:
            places.append((cursor.at, self._in_brackets()))
        letters = self._letters() if self.texts[cursor.at] == "." else 0
        op_at = cursor.at
        op = self._assignment()
        value = self.expression()

        def build(into: list[t.Stmt]) -> None:
            target = self._assignable(name, at)
            index = component = None
            rest = places
            if isinstance(target, t.Shared) or target.size:
                if not places:
                    self.fail(f"{name!r} is an array: it needs an index", at=at)
                index = self._array_index(target, places[0][1], places[0][0] + 1)
                rest = places[1:]
            if rest or letters:
                component = self._assigned_component(target.type, rest, letters)
            built = self._assigned_value((target, index, component), op, value, op_at)
            into.append(t.Assign(target, index, component, built))

        return build

    def _assignment(self) -> str:
        """Parse the sign of an assignment."""
        op = self.texts[self.cursor.at]
        if op not in _ASSIGNMENTS:
            self.cursor.unexpected("expected an assignment")
        self.cursor.at += 1
        return op

    def _assigned_component(
        self, kind: str, places: list[tuple[int, Make]], letters: int
    ) -> int | None:
        """Build the component of a value of type `kind` that is assigned."""
        component = None
        for place, build in places:
            component = self.rules.component(kind, build(), place)
            kind = t.BASE[kind]
        if letters:
            picked = self.rules.letters(kind, self.texts[letters], letters)
            if len(picked) != 1:
                self.fail("assign one component at a time", at=letters)
            component = picked[0]
        return component

    def _assignable(self, name: str, at: int) -> t.Local | t.Shared:
        target = self.names.get(name)
        if target is None:
            self.cursor.unknown(name, at)
        if isinstance(target, t.Shared):
            if not self.in_main:
                self.fail("shared arrays are written in main only", at=at)
            return target
        if not isinstance(target, t.Local):
            self.fail(f"{name!r} cannot be assigned", at=at)
        if target.read_only:
            self.fail(f"{target.name!r} is {target.read_only} and read only", at=at)
        if target.frozen:
            what = f"{target.name!r} was used as a constant or loop bound, so it cannot change"
            self.fail(what, at=at)
        target.assigned = True
        return target

    def _assigned_value(
        self, place: tuple[t.Local | t.Shared, t.Expr | None, int | None], op: str, build: Make,
        at: int,
    ) -> t.Expr:  # fmt: skip
        target, index, component = place
        kind = target.type if component is None else t.BASE[target.type]
        value = build()
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
    def _if(self) -> Step:
        self.cursor.at += 1
        self.cursor.expect("(", "after 'if'")
        at = self.cursor.at
        condition = self._whole()
        self.cursor.expect(")", "after the condition")
        then = self.body()
        orelse = self.body() if self.cursor.accept("else") else None

        def build(into: list[t.Stmt]) -> None:
            test = condition()
            if test.type != "bool":
                self.fail(f"the condition is {test.type}, not bool", at=at)
            known = test.value if isinstance(test, t.Literal) else None
            # A branch on a constant disappears, so that const variants can hold barriers and
            # ranges.
            yes: list[t.Stmt] = []
            no: list[t.Stmt] = []
            self.branches += known is None
            self.rules.dead += known is False
            then(yes)
            self.rules.dead += (known is True) - (known is False)
            if orelse is not None:
                orelse(no)
            self.rules.dead -= known is True
            self.branches -= known is None
            if known is None:
                into.append(t.If(test, yes, no))
            else:
                into.extend(yes if known else no)

        return build

    def _header(self) -> tuple[str, Callable[[], list[t.Expr]], list[int]]:
        """Parse ``for (int i = start; i < bound; step)``.

        Returns the index's name, what builds the parts, and where they stand.
        """
        cursor = self.cursor
        cursor.expect("for", "after 'unroll'")
        cursor.expect("(", "after 'for'")
        cursor.expect("int", "as the type of a loop index")
        name_at = cursor.at
        name = self._new_name("loop index")
        cursor.expect("=", "after the name")
        places = [cursor.at]
        makes = [self._whole()]
        cursor.expect(";", "after the start")
        cursor.expect(name, "(the loop's index)")
        cursor.expect("<", "after the index")
        places.append(cursor.at)
        makes.append(self._whole())
        cursor.expect(";", "after the bound")
        cursor.expect(name, "(the loop's index)")
        is_one = cursor.accept("++")
        if not is_one:
            cursor.expect("+=", "or '++' as the step")
        places.append(cursor.at)
        makes.append((lambda: t.Literal("int", 1)) if is_one else self._whole())
        cursor.expect(")", "after the step")

        def build() -> list[t.Expr]:
            self.cursor.check_free(name, name_at, self.names)
            parts = [make() for make in makes]
            for part, at in zip(parts, places, strict=True):
                if part.type != "int":
                    self.fail(f"a loop counts in int, not {part.type}", at=at)
            return parts

        return name, build, places

    def _for(self) -> Step:
        name, header, places = self._header()
        body = self.body()

        def build(into: list[t.Stmt]) -> None:
            parts = header()
            start, bound, step = parts
            self.rules.loop(parts, places, is_map=self.kernel.form == "map")
            index = self.local(name, "int", read_only="a loop index")
            free = start.time > t.UNIFORM
            self.free_loops += free
            stmts: list[t.Stmt] = []
            body(stmts)
            self.free_loops -= free
            del self.names[name]
            into.append(t.For(index, start, bound, step, stmts))

        return build

    def _unroll(self) -> Step:
        self.cursor.at += 1
        name, header, places = self._header()
        body, rules = self.body(), self.rules

        def build(into: list[t.Stmt]) -> None:
            first, last, stride = (
                int(rules.constant(part, f"the {word} of an unrolled loop", at).value)
                for part, word, at in zip(header(), ("start", "bound", "step"), places, strict=True)
            )
            if stride <= 0:
                self.fail("the step of a loop is positive", at=places[2])
            values = range(first, last, stride)
            self.unrolled += len(values)
            if self.unrolled > MAX_UNROLLED:
                self.fail(f"more than {MAX_UNROLLED} copies are unrolled", at=places[1])
            # Each copy is typed with its own constant index; without any, the body is typed still.
            for value in values or range(first, first + 1):
                self.names[name] = t.Literal("int", value)
                rules.dead += not values
                body(into if values else [])
                rules.dead -= not values
            self.names.pop(name, None)

        return build

    # --- what only main may do ----------------------------------------------------------------
    def _only_main(self, name: str) -> None:
        if self.kernel.form == "map":
            self.fail(f"{name}() is for group kernels")
        if not self.in_main:
            self.fail(f"{name}() is for main only")

    def _store(self) -> Step:
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
        value = self._expected("vec4", cursor.at, self.expression())
        cursor.expect(")", "after the value")
        cursor.expect(";", "after the call")
        return lambda into: into.append(t.Store(name, tensor, position(), value()))

    def _in_step(self, name: str, what: str, at: int) -> None:
        """Check that all invocations of a group come here, and as often."""
        if self.branches:
            self.fail(f"{name}() under an if {what}", at=at)
        if self.free_loops:
            self.fail(f"{name}() in a loop whose start differs between invocations", at=at)

    def _barrier(self) -> Step:
        at = self.cursor.at
        self._only_main("barrier")
        self.cursor.at += 1
        for text, after in (("(", "after 'barrier'"), (")", "after '('"), (";", "after the call")):
            self.cursor.expect(text, after)

        def build(into: list[t.Stmt]) -> None:
            self._in_step("barrier", "hangs or breaks devices", at)
            into.append(t.Barrier())

        return build
