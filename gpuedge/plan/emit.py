"""Writing bodies of stages as text of the kernel language.

Arithmetic is written for texels of four values at once. What reads elsewhere than at its own place
becomes a function of one element, called four times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

from gpuedge.core.dtypes import EXACT
from gpuedge.core.errors import UnsupportedOpError
from gpuedge.core.kernel import Number as Spec
from gpuedge.opset.expr import (
    Apply,
    Expr,
    LoadExpr,
    Number,
    Position,
    Where,
    rewrite,
    walk,
)
from gpuedge.opset.functions import FUNCTIONS, helpers_for, literal
from gpuedge.opset.halves import is_native
from gpuedge.opset.index import (
    Atom,
    Axis,
    Chosen,
    Index,
    Loaded,
    Quotient,
    Remainder,
    axis,
    loaded_axes,
    unflatten,
)
from gpuedge.opset.tensor import Tensor
from gpuedge.plan.context import Context
from gpuedge.plan.fuse import per_channel
from gpuedge.plan.layout import Kind, Layout
from gpuedge.plan.places import CHANNELS, guarded, negated, packed

ELEMENT = -1
"""Number of the axis that stands for the element of the output, in C order."""

STEP = -2
"""Number of the axis that stands for the step of a reduction."""

EXACT_INTS = 2**31
"""Integers below this are exact where ints are ints; where they are floats, up to `EXACT`."""

SMALL = 4
"""Integers up to this are written out; larger ones become specs, so that shapes share a text."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Kernel text with what it binds: tensors by kernel name, and specs."""

    text: str
    tensors: dict[str, str]
    specs: dict[str, Spec]
    is_half: bool = False


@dataclass
class Code:
    """Statements with the values they have made, by identity of expression or by atom."""

    lines: list[str]
    values: dict[object, str] = field(default_factory=dict)
    outer: Code | None = None


class Writer:
    """Collects declarations, functions and statements of one epilogue.

    Parameters
    ----------
    ctx : Context
        Gives the operands in the layouts they are read in.
    out : Layout
        The kernel's output.
    bound : mapping of str to str, optional
        Plan tensors that the kernel reads anyway, by their names there. They are not bound twice.
    packed : collection of int, optional
        Numbers of tensors that are read in the layout of channels wherever they are read, not in C
        order.

    Attributes
    ----------
    four : int
        The axis that goes on by one from lane to lane of a texel.
    reads : list of (Tensor, Kind, str)
        What was read in which layout, in order, with the kernel's names for it.
    """

    def __init__(
        self,
        ctx: Context,
        out: Layout,
        bound: Mapping[str, str] | None = None,
        packed: Collection[int] = (),
    ) -> None:
        self.ctx = ctx
        self.out = out
        self.bound = bound or {}
        self.packed = packed
        self.size = prod(out.shape)
        self.element = axis(ELEMENT, self.size)
        self.four = CHANNELS if out.kind == "channels" else ELEMENT
        self.declarations: list[str] = []
        self.functions: list[str] = []
        self.lines: list[str] = []
        self.tensors: dict[str, str] = {}
        self.reads: list[tuple[Tensor, Kind, str]] = []
        self.specs: dict[str, Spec] = {}
        self.locals: dict[int, str] = {}
        self.first: dict[int, str] = {}
        self.halves: dict[int, str] = {}
        self.is_half = False
        self._numbers: dict[int, str] = {}
        self._has_elements = False

    # -- names ---------------------------------------------------------------------------

    def bind(self, tensor: str) -> str:
        """Return the kernel's name for a plan tensor."""
        wanted = self.ctx.tensors[tensor]
        for name, other in (*self.bound.items(), *self.tensors.items()):
            same = self.ctx.tensors[other]
            place = (same.memory, same.start, same.layout)
            if place == (wanted.memory, wanted.start, wanted.layout):
                return name
        name = f"E{len(self.tensors)}"
        self.tensors[name] = tensor
        self.declarations.append(f"in tensor {name};")
        return name

    def read(self, tensor: Tensor, kind: Kind) -> str:
        """Return the kernel's name for a tensor in a layout."""
        name = self.bind(self.ctx.need(tensor, kind))
        self.reads.append((tensor, kind, name))
        return name

    def linear(self, tensor: Tensor) -> str:
        """Return the kernel's name for a tensor in linear layout."""
        return self.read(tensor, "linear")

    def operand(self, tensor: Tensor) -> str:
        """Return the kernel's name for a tensor in the layout that it is read in."""
        return self.read(tensor, "channels" if tensor.serial in self.packed else "linear")

    def number(self, value: int) -> str:
        """Return the text of an integer."""
        if abs(value) <= SMALL:
            return str(value) if value >= 0 else f"(0 - {-value})"
        if value < 0:
            return f"(0 - {self.number(-value)})"
        if value not in self._numbers:
            name = self._numbers[value] = f"N{len(self._numbers)}"
            self.declarations.append(f"spec int {name} = 1;")
            self.specs[name] = value
        return self._numbers[value]

    def check_range(self, index: Index) -> None:
        """Refuse an integer of which some sum of terms leaves the device's exact integers.

        In ESSL 1.00 ints are floats, and drivers may add in any order. Everywhere, what is loaded
        from memory is a float32.
        """
        high, low = max(index.constant, 0), min(index.constant, 0)
        for atom, factor in index.terms:
            ends = [factor * end for end in atom.range]
            high, low = high + max(*ends, 0), low + min(*ends, 0)
            if isinstance(atom, Loaded) and max(-atom.low, atom.high) > EXACT:
                self._refuse(f"picks among {atom.high + 1} positions", EXACT)
        most = EXACT if self.ctx.caps.dialect == "essl100" else EXACT_INTS
        if max(high, -low) >= most:
            self._refuse(f"counts to {max(high, -low)}", most)

    def _refuse(self, what: str, most: int) -> NoReturn:
        raise UnsupportedOpError(
            f"{'+'.join(self.ctx.ops)} {what}.", known=f"kernels count exactly to {most} here"
        )

    def assign(self, text: str, expr: Expr | None = None, kind: str = "vec4") -> str:
        """Append a statement and return the name of its value."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"    {kind} {name} = {text};")
        if expr is not None:
            self.locals[id(expr)] = name
        return name

    # -- texels --------------------------------------------------------------------------

    def texel(self, body: Expr) -> str:
        """Return the name of a local that holds `body` for the texel at hand."""
        exprs = walk(body)
        rounded = {
            id(expr.args[0]) for expr in exprs if isinstance(expr, Apply) and is_native(expr)
        }
        for expr in exprs:
            if id(expr) not in self.locals and id(expr) not in rounded:
                self._texel(expr)
        return self.locals[id(body)]

    def _texel(self, expr: Expr) -> None:
        if isinstance(expr, Number):
            self.locals[id(expr)] = f"vec4({literal(expr.value)})"
        elif isinstance(expr, LoadExpr):
            self._load(expr)
        elif isinstance(expr, Apply) and expr.function == "half":
            self._half(expr, expr.args[0])
        elif isinstance(expr, Apply):
            args = [self.locals[id(a)] for a in expr.args]
            self.assign(FUNCTIONS[expr.function].text(*args), expr)
        else:
            self.assign(self._each(expr), expr)

    def _half(self, expr: Apply, inner: Expr) -> None:
        """Write a step in float16, or the rounding of a float32 to it."""
        self.is_half = True
        if id(inner) in self.halves:  # of an operand that was inlined
            for known in (self.halves, self.locals):
                known[id(expr)] = known[id(inner)]
            return
        text = f"hvec4({self.locals[id(inner)]})" if id(inner) in self.locals else ""
        if isinstance(inner, Apply) and is_native(expr):
            args = [self.halves.get(id(a)) or f"hvec4({self.locals[id(a)]})" for a in inner.args]
            text = FUNCTIONS[inner.function].text(*args)
        self.halves[id(expr)] = name = self.assign(text, kind="hvec4")
        self.locals[id(expr)] = f"vec4({name})"

    def _load(self, load: LoadExpr) -> None:
        if load.tensor.serial in self.first:
            self.locals[id(load)] = self.first[load.tensor.serial]
        elif self.out.kind == "linear":
            self.assign(self._linear_load(load), load)
        else:
            self.assign(self._packed_load(load), load)

    def _packed_load(self, load: LoadExpr) -> str:
        way = per_channel(load, self.out.shape, self.out.axis)
        if way == "own":
            return f"load4({self.read(load.tensor, self.out.kind)}, p)"
        if way is None:
            return self._each(load)
        name = self.linear(load.tensor)
        if way == "scalar":
            return f"vec4(load1({name}, 0))"
        return f"texel({name}, p.{self.out.slice_coordinate})"

    def _linear_load(self, load: LoadExpr) -> str:
        if load.tensor.serial in self.packed:
            return self._each(load)
        at = self._flattened(load.at)
        ahead = at - self.element
        if ahead.value is not None and ahead.value % 4 == 0:
            name = self.linear(load.tensor)
            if ahead.value == 0 and load.tensor.size == self.size:
                return f"load4({name}, p)"
            self.elements()
            return f"texel({name}, (e0 + {self.number(ahead.value)}) / 4)"
        return self._each(load)

    def _flattened(self, index: Index) -> Index:
        moved = self.flat(Position(index))
        if not isinstance(moved, Position):
            raise TypeError(type(moved).__name__)
        return moved.index

    def flat(self, body: Expr) -> Expr:
        """Return an expression over what tells elements apart, with loads where they are made.

        In C order that is the element's number in place of the output's axes.
        """
        put: dict[int, Index] = {}
        if self.out.kind == "linear":
            put = dict(enumerate(unflatten(self.element, self.out.shape)))
        return self.seen(rewrite(guarded(body), put))

    def seen(self, body: Expr) -> Expr:
        """Return an expression whose loads of packed tensors count their floats as they lie."""

        def load(old: LoadExpr) -> Expr:
            if old.tensor.serial not in self.packed:
                return old
            layout = self.ctx.tensors[self.ctx.need(old.tensor, "channels")].layout
            return LoadExpr(old.tensor, packed(old.at, layout))

        return rewrite(body, {}, load) if self.packed else body

    def elements(self) -> None:
        """Declare the numbers of the four elements, or the channels that they are of.

        Those past the end stay at the last one.
        """
        if self._has_elements:
            return
        self._has_elements = True
        first, count, name = "4 * (p.y * dims(O).x + p.x)", self.size, "e"
        if self.out.kind == "channels":
            first, count, name = "4 * p.z", self.out.packed, "c"
        lines = [f"    int {name}0 = {first};"]
        last = self.number(count - 1) if count % 4 else ""
        for lane in range(1, 4):
            ahead = f"{name}0 + {lane}"
            lines.append(f"    int {name}{lane} = {f'min({ahead}, {last})' if last else ahead};")
        self.lines[:0] = lines

    def axis_name(self, number: int) -> str:
        """Return the text of an axis of the output, or of the element's number."""
        if self.out.kind != "channels":
            return "e" if number == ELEMENT else "k"
        pixel = ("p.y", "p.x")[-(len(self.out.shape) - 2) :]
        return {STEP: "k"}.get(number) or ("p.w", "c", *pixel)[number]

    def _each(self, body: Expr) -> str:
        """Return a texel whose elements are computed elsewhere than at their own place."""
        flat, code = self.flat(body), Code([])
        if in_fours(flat, self.four):
            return self.function(code, Fours(self, code, self.four).value(flat), "vec4")
        return self.function(code, Scalars(self, code).value(flat))

    def function(self, code: Code, result: str, kind: str = "float") -> str:
        """Add a function, and return the text of what it gives for the texel at hand.

        It is a function of one element, or where `kind` is ``vec4`` of a texel's first.
        """
        self.elements()
        body = "".join(f"    {line}\n" for line in code.lines)
        is_packed = self.out.kind == "channels"
        takes, gives = ("ivec4 p, int c", "p, c") if is_packed else ("int e", "e")
        text = f"({takes}) {{\n{body}    return {result};\n}}\n"
        same = [i for i, known in enumerate(self.functions) if known == f"{kind} at{i}{text}"]
        name = f"at{same[0] if same else len(self.functions)}"
        if not same:
            self.functions.append(f"{kind} {name}{text}")
        if kind == "vec4":
            return f"{name}({gives}0)"
        return f"vec4({', '.join(f'{name}({gives}{lane})' for lane in range(4))})"

    # -- the whole -----------------------------------------------------------------------

    def masked(self, result: str) -> str:
        """Keep the unused lanes of the last slice at zero."""
        left = f"{self.number(self.out.packed)} - 4 * p.{self.out.slice_coordinate}"
        self.lines.append(f"    int left = {left};")
        value = self.assign(result)
        lanes = [f"left > {i} ? {value}.{c} : 0.0" for i, c in enumerate("yzw", 1)]
        return f"vec4({value}.x, {', '.join(lanes)})"

    def epilogue(self, result: str, *, is_masked: bool = True) -> Epilogue:
        """Return the text with what it binds; `result` is what the epilogue returns."""
        if is_masked and self.out.kind != "linear" and self.out.packed % 4:
            result = self.masked(result)
        body = "\n".join([*self.lines, f"    return {result};"])
        functions = "".join(self.functions)
        declared = "\n".join(self.declarations)
        helpers = helpers_for(functions + body)
        main = f"vec4 epilogue(vec4 v, ivec4 p) {{\n{body}\n}}\n"
        text = f"{declared}\n{helpers}{functions}{main}"
        return Epilogue(text, self.tensors, self.specs, self.is_half)


class Scalars:
    """Writes expressions over one element as statements of a function."""

    kind = "float"

    def __init__(self, writer: Writer, code: Code) -> None:
        self.writer = writer
        self.code = code

    def _assign(self, kind: str, text: str, key: object, *, is_inner: bool) -> str:
        code = self.code if is_inner or self.code.outer is None else self.code.outer
        name = f"{kind[0]}{len(code.lines)}{'' if code.outer is None else 'k'}"
        code.lines.append(f"{kind} {name} = {text};")
        code.values[key] = name
        return name

    def _known(self, key: object) -> str | None:
        outer = self.code.outer.values.get(key) if self.code.outer else None
        return self.code.values.get(key) or outer

    def value(self, body: Expr) -> str:
        """Return the text of a value, after the statements it needs."""
        for expr in walk(body):
            if self._known(id(expr)) is None and not isinstance(expr, Number):
                # only where there is an outer part does it matter what goes there
                inner = self.code.outer is None or depends(expr)
                self._assign(self.kind, self._text(expr), id(expr), is_inner=inner)
        return self._atom(body)

    def _atom(self, expr: Expr) -> str:
        if isinstance(expr, Number):
            return literal(expr.value)
        return self._known(id(expr)) or self.value(expr)

    def _float(self, expr: Expr) -> str:
        """Return the text of a value that all elements have together."""
        return self._atom(expr)

    def _text(self, expr: Expr) -> str:
        if isinstance(expr, LoadExpr):
            if expr.tensor.serial in self.writer.first:
                raise TypeError("an anchor's result is read elsewhere than at its own place")
            return f"load1({self.writer.operand(expr.tensor)}, {self.integer(expr.at)})"
        if isinstance(expr, Apply):
            self.writer.is_half |= expr.function == "half"
            return FUNCTIONS[expr.function].scalar(*(self._atom(a) for a in expr.args))
        if isinstance(expr, Where):
            test = self._test(expr.test)
            return f"{test} ? {self._atom(expr.yes)} : {self._atom(expr.no)}"
        if isinstance(expr, Position):
            return f"float({self.integer(expr.index)})"
        raise TypeError(type(expr).__name__)

    def _test(self, test: Sequence[Index]) -> str:
        return " && ".join(f"{self.integer(t)} >= 0" for t in test)

    def integer(self, index: Index) -> str:
        """Return the text of an integer. Raises UnsupportedOpError (GE-501) if it may not fit."""
        self.writer.check_range(index)
        number = self.writer.number
        terms = []
        for atom, factor in index.terms:
            name = self._integer(atom)
            terms.append(name if factor == 1 else f"{name} * {number(factor)}")
        if index.constant or not terms:
            terms.append(number(index.constant))
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"

    def _integer(self, atom: Atom) -> str:
        if isinstance(atom, Axis):
            return self.writer.axis_name(atom.number)
        known = self._known(atom)
        if known is not None:
            return known
        number = self.writer.number
        if isinstance(atom, Quotient):
            text = f"{self.integer(atom.of)} / {number(atom.by)}"
        elif isinstance(atom, Remainder):
            text = f"{self.integer(atom.of)} % {number(atom.by)}"
        elif isinstance(atom, Chosen):
            yes, no = self.integer(atom.yes), self.integer(atom.no)
            text = f"{self._test(atom.test)} ? {yes} : {no}"
        else:
            low, high = (f"float({number(end)})" for end in (atom.low, atom.high))
            text = f"int(roundeven(clamp({self._float(atom.value)}, {low}, {high})))"
        inner = _steps(Index(0, {atom: 1}))
        return self._assign("int", text, atom, is_inner=inner)


class Fours(Scalars):
    """Writes expressions over four elements, or four steps, that `in_fours` allows, as texels."""

    kind = "vec4"

    def __init__(self, writer: Writer, code: Code, number: int) -> None:
        super().__init__(writer, code)
        self.number = number

    def _atom(self, expr: Expr) -> str:
        return f"vec4({literal(expr.value)})" if isinstance(expr, Number) else super()._atom(expr)

    def _float(self, expr: Expr) -> str:
        return f"{self._atom(expr)}.x"

    def _text(self, expr: Expr) -> str:
        if isinstance(expr, Apply):
            self.writer.is_half |= expr.function == "half"
            return FUNCTIONS[expr.function].text(*(self._atom(a) for a in expr.args))
        if isinstance(expr, LoadExpr):
            name = self.writer.operand(expr.tensor)
            if pace(expr.at, self.number) != 1:
                return f"vec4(load1({name}, {self.integer(expr.at)}))"
            if expr.tensor.serial in self.writer.packed:
                return f"texel({name}, {self.integer(expr.at // 4)})"
            return f"texel({name}, {self.integer(expr.at)} / 4)"
        if isinstance(expr, Where):
            test = self._test(expr.test)
            return f"{test} ? {self._atom(expr.yes)} : {self._atom(expr.no)}"
        raise TypeError(type(expr).__name__)


def in_fours(body: Expr, number: int) -> bool:
    """Tell whether an expression can be computed for four values of an axis at once.

    They begin at a multiple of four; each load then has one place for all, or those of a texel,
    and each test one answer.
    """
    for e in walk(body):
        if isinstance(e, LoadExpr):
            may = pace(e.at, number) is not None
        elif isinstance(e, Where):
            may = all(pace(t, number) is not None or pace(negated(t), number) == 1 for t in e.test)
        else:
            may = isinstance(e, (Apply, Number))
        if not may:
            return False
    return True


def pace(index: Index, number: int) -> int | None:
    """Return how an index goes along with four values of an axis, from a multiple of four on.

    1 if it does the same, 0 if it stays what it is, None if neither.
    """
    total, is_texel = 0, index.constant % 4 == 0
    for atom, factor in index.terms:
        step, starts = 0, False  # whether it begins at a multiple of four
        if isinstance(atom, Axis):
            step = starts = atom.number == number
        elif isinstance(atom, (Quotient, Remainder)):
            inner = pace(atom.of, number)
            if inner is None or (inner and atom.by % 4):
                return None
            step = starts = bool(inner) and isinstance(atom, Remainder)
        elif isinstance(atom, Chosen):
            if any(pace(part, number) != 0 for part in (*atom.test, atom.yes, atom.no)):
                return None
        elif not is_still(atom.value, number):
            return None
        total += step * factor
        is_texel &= starts or factor % 4 == 0
    return 0 if not total else 1 if total == 1 and is_texel else None


def is_still(body: Expr, number: int) -> bool:
    """Tell whether four values along an axis, from a multiple of four on, are the same."""
    return in_fours(body, number) and all(
        pace(e.at, number) == 0 for e in walk(body) if isinstance(e, LoadExpr)
    )


def depends(body: Expr) -> bool:
    """Tell whether a value changes from step to step of a reduction."""
    for e in walk(body):
        if isinstance(e, LoadExpr):
            indices: tuple[Index, ...] = (e.at,)
        elif isinstance(e, Where):
            indices = e.test
        else:
            indices = (e.index,) if isinstance(e, Position) else ()
        if any(STEP in loaded_axes(i) for i in indices):
            return True
    return False


def _steps(index: Index) -> bool:
    """Tell the same of an index, whose parts may be loaded from memory."""
    return STEP in loaded_axes(index) or any(depends(e) for e in index.loaded)


def epilogue(
    ctx: Context,
    out: Layout,
    anchor: Tensor,
    body: Expr | None,
    *,
    partial: str | None,
    bound: Mapping[str, str],
) -> Epilogue | None:
    """Return what follows an anchor's own sum in its kernel; None if nothing does.

    Parameters
    ----------
    ctx : Context
    out : Layout
        The kernel's output.
    anchor : Tensor
        What the kernel computes itself and passes in as `v`.
    body : Expr or None
        What is done to it.
    partial : str or None
        Plan tensor to add to `v` first: an earlier part of a split sum.
    bound : mapping of str to str
        Plan tensors that the kernel reads anyway, by their names there.
    """
    if body is None and partial is None:
        return None
    writer = Writer(ctx, out, bound)
    result = writer.assign("v")
    if partial is not None:
        result = writer.assign(f"{result} + load4({writer.bind(partial)}, p)")
    if body is None:
        return writer.epilogue(result, is_masked=False)
    writer.first[anchor.serial] = result
    return writer.epilogue(writer.texel(body))
