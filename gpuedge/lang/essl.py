"""Kernels printed as OpenGL ES shaders: ESSL 3.10 compute, ESSL 3.00 and 1.00 fragment.

A fragment shader of ESSL 1.00 computes one physical texel of its out texture, one of ESSL 3.00 as
many as there are layers (see `gpuedge.core.storage`); a kernel without workgroups runs either way.
Specs are macros, given by `KernelBlob.specialised`.
What ESSL 1.00 cannot say is said otherwise: ints are floats, and loops and indices keep to
appendix A of its specification (constant bounds; indices of constants and loop indices).

Names, which never meet each other or a word of the language: ``b_T``, ``t_T`` a tensor as buffer or
sampler, ``d_T`` its extents, ``i_T`` 1/width, 1/height, low and step of its texture, ``n_T`` its
last texel, ``o_T`` an output, ``p_N`` a param, ``S_N`` a spec, ``m_N`` a shared array, ``f_N`` a
function, ``l_N_uid`` a local, ``k_N`` a helper of the printer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ctypes import c_float
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.storage import KINDS, TEXEL_KINDS
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BITS, BUILTINS, PRECEDENCE, TANH_LIMIT
from gpuedge.lang.components import one_component
from gpuedge.lang.essl_texts import (
    ESSL100,
    ESSL300,
    ESSL300_SINGLE,
    ESSL310,
    TEXEL_HEAD,
    Level,
    accesses,
    count,
    declaration,
    stored,
)  # fmt: skip
from gpuedge.lang.interface import bind
from gpuedge.lang.neighbours import most_uid, side_by_side

SELECT, UNARY, POSTFIX = 0, 11, 12
TEXEL_WIDTH: Final = 4
MAX_TRIPS: Final = 65536
"""In ESSL 1.00 a loop to a param or extent ends here; drivers' own limits are no higher."""

Text = tuple[str, int]
"""A text and its rank."""

_WORD = re.compile(r"\b[kKn]_\w+")
_IDENTIFIERS = {"local_id": "gl_LocalInvocationID", "group_id": "gl_WorkGroupID"}
_OLD_KINDS = {"int": "float", "ivec2": "vec2", "ivec3": "vec3", "ivec4": "vec4"}
_INDENT = "    "
_LEVELS = {level.dialect: level for level in (ESSL310, ESSL300, ESSL300_SINGLE, ESSL100)}


def float_text(value: float) -> str:
    """Print a float32 with as few digits as give it back, nine at the most."""
    return _digits(value) if value else str(value)  # (a cache takes -0.0 for 0.0)


@lru_cache(maxsize=1024)
def _digits(value: float) -> str:
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if c_float(float(text)).value == value:  # (struct refuses what rounds to infinity)
            break
    return text if "." in text or "e" in text else f"{text}.0"


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    """Return the helpers and numbers of last texels that a text names."""
    return frozenset(_WORD.findall(text))


def print_kernel(
    kernel: t.Kernel, dialect: str, storage: Mapping[str, str], along: str = ""
) -> KernelBlob:
    """Print a kernel as ESSL 3.10 (compute), 3.00 or 1.00 (fragment); see `gpuedge.lang`."""
    if kernel.is_half:
        raise KernelError(
            f"Kernel {kernel.name} computes in float16, which {dialect} cannot say.",
            known="mediump only allows a driver to compute in less than float32; no driver says "
            "what it makes of that",
        )
    return _Shader(kernel, _LEVELS[dialect], storage, along).blob()


class _Shader:
    """One kernel on its way to text; every local has a name of its own, so scopes do not matter."""

    def __init__(
        self, kernel: t.Kernel, level: Level, storage: Mapping[str, str], along: str
    ) -> None:
        self.kernel = kernel
        self.along = along
        self.level = level
        self.is_old = level.is_old
        self.kinds = {x.name: storage.get(x.name, level.default) for x in kernel.tensors}
        self._check()
        kind = KINDS[self.kinds[kernel.out.name]]
        self.units = kind.units
        is_one = self.is_old and self.units == TEXEL_WIDTH
        self.component = one_component(kernel, 1 + most_uid(kernel)) if is_one else None
        self.lines: list[str] = []
        self.depth = 0
        self.called: set[str] = set()  # helpers, and other words that are none
        self.main_at = 0  # where the statements of main begin
        self.in_constant = False  # in a place where ESSL 1.00 takes no calls of helpers
        self.printers: dict[type, Callable[[Any], Text]] = {
            t.Literal: self._literal,
            t.Spec: lambda e: (f"S_{e.name}", POSTFIX),
            t.Param: lambda e: (f"p_{e.name}", POSTFIX),
            t.LocalRef: lambda e: (_local(e.local), POSTFIX),
            t.Element: lambda e: (self._target(e.array, e.index), POSTFIX),
            t.Swizzle: self._swizzle,
            t.Op: self._op,
            t.Load: self._load,
            t.Dims: lambda e: (f"d_{e.tensor.name}", POSTFIX),
            t.Identifier: lambda e: (f"ivec3({_IDENTIFIERS[e.name]})", POSTFIX),
            t.Call: lambda e: self._call(f"f_{e.function.name}", *e.args),
        }

    # --- what cannot be said --------------------------------------------------------------------
    def _refuse(self, what: str, known: str) -> None:
        raise KernelError(
            f"Kernel {self.kernel.name} cannot be printed as {self.level.dialect}: {what}.",
            known=known,
        )

    def _refuse_old(self, what: str, hint: str) -> None:
        raise KernelError(
            f"Kernel {self.kernel.name}: {what}.", asked_by="OpenGL ES 2.0", hint=hint
        )

    def _check(self) -> None:
        kernel, level = self.kernel, self.level
        if kernel.form == "group" and level is not ESSL310:
            self._refuse("it is a group kernel", "fragment shaders have no workgroups")
        for name, kind in self.kinds.items():
            if kind not in level.kinds:
                known = f"storage kinds: {', '.join(sorted(level.kinds))}"
                self._refuse(f"tensor {name} is kept as {kind!r}", known)
        if self.kinds[kernel.out.name] in TEXEL_KINDS:
            self._refuse(f"tensor {kernel.out.name} is written", "texel buffers are only read")

    # --- expressions ----------------------------------------------------------------------------
    def _value(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression, in parentheses if it binds less tightly than `least`."""
        text, rank = self.printers[type(expr)](expr)
        return text if rank >= least else f"({text})"

    def _constant(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression where ESSL 1.00 wants a constant: it may not call helpers."""
        self.in_constant = self.is_old
        text = self._value(expr, least)
        self.in_constant = False
        return text

    def _call(self, name: str, *args: t.Expr) -> Text:
        self.called.add(name)
        return f"{name}({', '.join([self._value(arg) for arg in args])})", POSTFIX

    def _load(self, expr: t.Load) -> Text:
        if expr.component is None:
            return self._call(f"k_{expr.name}_{expr.tensor.name}", expr.position)
        return self._call(
            f"k_component_{expr.name}_{expr.tensor.name}", expr.position, expr.component
        )

    def _kind(self, name: str) -> str:
        """Return what the dialect calls a type."""
        return _OLD_KINDS.get(name, name) if self.is_old else name

    def _literal(self, expr: t.Literal) -> Text:
        if expr.type == "bool":
            return ("true" if expr.value else "false"), POSTFIX
        text = self._number(expr)
        return text, UNARY if text[0] == "-" else POSTFIX

    def _number(self, expr: t.Literal) -> str:
        value = expr.value
        if expr.type == "float" or self.is_old:
            if c_float(value).value != value:
                self._refuse_old(
                    f"{value} is no float32, and in ESSL 1.00 ints are floats",
                    "keep ints below 16777216 in kernels for this level",
                )
            return float_text(float(value))
        # The one int whose absolute value is no int.
        return "(-2147483647 - 1)" if value == -(2**31) else str(int(value))

    def _target(self, array: t.Local | t.Shared, index: t.Expr | None) -> str:
        """Print an element of an array, or a whole local."""
        name = _local(array) if isinstance(array, t.Local) else f"m_{array.name}"
        if index is None:
            return name
        if self.is_old:  # the one place for an int
            if isinstance(index, t.Literal):
                return f"{name}[{index.value}]"
            return f"{name}[int({self._value(index)})]"
        return f"{name}[{self._value(index)}]"

    def _swizzle(self, expr: t.Swizzle) -> Text:
        letters = "".join(["xyzw"[component] for component in expr.components])
        return f"{self._value(expr.base, POSTFIX)}.{letters}", POSTFIX

    def _op(self, expr: t.Op) -> Text:
        name, args = expr.name, expr.args
        if self.is_old and name in BITS:
            self._refuse_old(
                f"{name} cannot be printed: ESSL 1.00 has no bits of ints",
                "work with floor and powers of two, or run the kernel on OpenGL ES 3.0 or later",
            )
        if name == "!":  # Adreno's compilers may take a negated boolean for the boolean
            name, args = "==", (args[0], t.Literal("bool", False))
        if name in PRECEDENCE:
            return self._binary(expr, name, args[0], args[1])
        if name == "neg":
            return f"-{self._value(args[0], POSTFIX)}", UNARY
        if name == "?:":
            parts = [self._value(e, SELECT + 1) for e in args]
            return "{} ? {} : {}".format(*parts), SELECT
        if name == "cast" and self.is_old:  # only integral values are converted
            return self.printers[type(args[0])](args[0])
        if name in ("vector", "splat", "cast", "component"):
            return self._call("k_pick" if name == "component" else self._kind(expr.type), *args)
        return self._builtin(expr)

    def _binary(self, expr: t.Op, op: str, left: t.Expr, right: t.Expr) -> Text:
        """Print an operator; a repeated scalar beside a vector stays a scalar."""
        rank = PRECEDENCE[op]
        if op in "/%" and t.BASE[expr.type] == "int" and (op == "%" or self.is_old):
            if expr.time > t.SPEC:
                return self._helper("k_idiv" if op == "/" else "k_mod", expr)
            return self._spec_division(op, left, right)
        if op in ("==", "!=") and not self.is_old and left.type == "float":
            text = self._value(left)
            if text == self._value(right):  # asks for NaN, of which compilers think there is none
                sign = ">" if op == "!=" else "<="
                return f"(floatBitsToInt({text}) & 0x7fffffff) {sign} 0x7f800000", PRECEDENCE[">"]
        if _is_splat(left) != _is_splat(right):
            left, right = _unsplat(left), _unsplat(right)
        return f"{self._value(left, rank)} {op} {self._value(right, rank + 1)}", rank

    def _spec_division(self, op: str, left: t.Expr, right: t.Expr) -> Text:
        """Print a division, or in ESSL 3 a remainder, in a constant: it may not call helpers.

        Half a unit keeps the quotient of floats clear of rounding.
        """
        a, b = self._value(left), self._value(right, POSTFIX)
        if not self.is_old:
            dividend = self._value(left, PRECEDENCE["/"])
            return f"{self._value(left, PRECEDENCE['-'])} - {dividend} / {b} * {b}", PRECEDENCE["-"]
        size = f"floor((abs({a}) + 0.5) / {b if isinstance(right, t.Literal) else f'abs({b})'})"
        signs = f"sign({a}) * " + ("" if isinstance(right, t.Literal) else f"sign({b}) * ")
        if isinstance(right, t.Literal) and right.value < 0:
            size, signs = size.replace(f"/ {b}", f"/ {b[2:-1]}"), f"-{signs}"
        if op == "/":
            return f"{signs}{size}", PRECEDENCE["*"]
        return f"{self._value(left, PRECEDENCE['-'])} - {b} * ({signs}{size})", PRECEDENCE["-"]

    def _builtin(self, expr: t.Op) -> Text:
        name, args = expr.name, expr.args
        if name not in ("tanh", "roundeven") or not self.is_old:
            if name == "tanh":
                limit = float_text(TANH_LIMIT)
                return f"tanh(clamp({self._value(args[0])}, -{limit}, {limit}))", POSTFIX
            return self._call(BUILTINS[name].essl or name, *args)
        if self.in_constant:
            what = f"{name}() cannot say how long a loop is in ESSL 1.00"
            self._refuse_old(what, "give the loop a spec of its own")
        return self._helper(f"k_{name}", expr)

    def _helper(self, name: str, expr: t.Op) -> Text:
        """Print a call of a helper for values of the type of `expr`."""
        width = t.WIDTH[expr.type]
        return self._call(f"{name}{width if width > 1 else ''}", *expr.args)

    # --- statements -----------------------------------------------------------------------------
    def _line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append(_INDENT * self.depth + text)

    def _access(self, text: str) -> None:
        """Append a line that reaches a tensor, by helpers perhaps."""
        self.called |= _words(text)
        self._line(text)

    def _open(self, head: str) -> None:
        """Append a line that begins a block."""
        self._line(f"{head} {{")
        self.depth += 1

    def _close(self) -> None:
        """End a block."""
        self.depth -= 1
        self._line("}")

    def _block(self, body: list[t.Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, t.Declare):
                self._declare(stmt)
            elif isinstance(stmt, t.Assign):
                text = self._target(stmt.target, stmt.index)
                if stmt.component is not None:
                    text += f".{'xyzw'[stmt.component]}"
                self._line(f"{text} = {self._value(stmt.value)};")
            elif isinstance(stmt, t.If):
                self._if(stmt)
            elif isinstance(stmt, t.For):
                self._for(stmt)
            elif isinstance(stmt, t.Store):
                self._store(stmt)
            else:
                self._line("memoryBarrierShared();")
                self._line("barrier();")

    def _declare(self, stmt: t.Declare) -> None:
        local, value = stmt.local, stmt.value
        text = f"{self._kind(local.type)} {_local(local)}"
        if value is None:
            self._line(f"{text}[{local.size}];" if local.size else f"{text};")
        elif self.is_old and local.frozen and value.time <= t.SPEC:
            # What a loop needs must be a constant in the language's own sense.
            self._line(f"const {text} = {self._constant(value)};")
        else:
            self._line(f"{text} = {self._value(value)};")

    def _if(self, stmt: t.If) -> None:
        self._open(f"if ({self._value(stmt.condition)})")
        self._block(stmt.then)
        if stmt.orelse:
            self.depth -= 1
            self._open("} else")
            self._block(stmt.orelse)
        self._close()

    def _for(self, stmt: t.For) -> None:
        """Print a loop; in ESSL 1.00 with constant bounds and, if its own is none, an exit."""
        name, kind, bound = _local(stmt.index), self._kind("int"), stmt.bound
        start, step = self._constant(stmt.start), self._constant(stmt.step)
        is_bounded = not self.is_old or bound.time <= t.SPEC
        limit = self._constant(bound, PRECEDENCE["+"]) if is_bounded else f"{MAX_TRIPS}.0"
        self._open(f"for ({kind} {name} = {start}; {name} < {limit}; {name} += {step})")
        if not is_bounded:
            self._line(f"if ({name} >= {self._value(bound, PRECEDENCE['+'])}) break;")
        self._block(stmt.body)
        self._close()

    def _store(self, stmt: t.Store) -> None:
        position, value = self._value(stmt.position), self._value(stmt.value)
        self._access(f"k_{stmt.name}_{stmt.tensor.name}({position}, {value});")

    # --- functions ------------------------------------------------------------------------------
    def _function(self, function: t.Function) -> None:
        args = ", ".join([f"{self._kind(a.type)} {_local(a)}" for a in function.args])
        self._open(f"{self._kind(function.type)} f_{function.name}({args})")
        self._block(function.body)
        self._line(f"return {self._value(function.value)};")
        self._close()

    def _main(self) -> None:
        self._open("void main()")
        self.main_at = len(self.lines)
        if self.kernel.form == "group":
            self._block(self.kernel.main.body)
        elif self.level is ESSL310:
            self._invocation()
        elif self.is_old:
            self._fragment()
        else:
            self._fragments()
        self._close()

    def _invocation(self) -> None:
        """Print main of a compute shader under the guard that its texel exists."""
        main, out = self.kernel.main, self.kernel.out.name
        self._line("ivec3 at = ivec3(gl_GlobalInvocationID);")
        inside = f"at.x < d_{out}.x && at.y < d_{out}.y && at.z < d_{out}.z * d_{out}.w"
        self._open(f"if ({inside})")
        p = _local(main.args[0])
        self._line(f"ivec4 {p} = ivec4(at.xy, at.z % d_{out}.z, at.z / d_{out}.z);")
        self._block(main.body)
        value = stored(self.level, out, self.kinds[out], self._value(main.value))
        self._access(f"b_{out}[k_number_{out}({p})] = {value};")
        self._close()

    def _fragment(self) -> None:
        """Print main of a fragment shader: which texel it is, its value, one unit of that."""
        level, main = self.level, self.kernel.main
        out = self.kernel.out.name
        # gl_FragCoord may be mediump, so nothing is computed with it before it is a highp value.
        self._line("highp vec2 place = gl_FragCoord.xy;")
        self._line("float f = floor(place.y) * ROW + floor(place.x);")
        self._line(f"float texel = {level.divided('f', self.units)};")
        if self.units > 1:
            self._line(f"float j = {level.remainder('f', self.units, 'texel')};")
        q = f"min(texel, n_{out})"
        self._access(f"vec4 {_local(main.args[0])} = k_position({q}, d_{out});")
        if self.component is None:
            self._block(main.body)
            self._line(f"vec4 v = {self._value(main.value)};")
            text = stored(level, out, self.kinds[out], "v", "j")
        else:
            self._line(f"float {_local(self.component.component)} = j;")
            self._block(self.component.body)
            self._line(f"float v = {self._value(self.component.value)};")
            text = "k_unfloat(v)"
        self._access(f"gl_FragColor = {text};")

    def _fragments(self) -> None:
        """Print main of a fragment shader of several texels, one to each layer or some of them."""
        level, out, units = self.level, self.kernel.out.name, self.units
        count = max(1, level.layers // units)
        texels = side_by_side(self.kernel, count, self.along)
        first = _local(texels.positions[0])
        self._line("highp vec2 place = gl_FragCoord.xy;")
        self._line("uint f = uint(place.y) * uint(ROW) + uint(place.x);")
        if level.layers < units:
            self._line(f"uint q = f / {units}u;")
            self._line(f"uint j = f % {units}u;")
        else:
            self._line(f"uint q = {level.number(count)} * f;" if count > 1 else "uint q = f;")
        last = f"n_{out} - {count - 1}u" if self.along == "row" else f"n_{out}"
        self._access(f"ivec4 {first} = k_position(int(min(q, {last})), d_{out});")
        for before, local in pairwise(texels.positions):
            self._neighbour(_local(before), _local(local))
        self._block(texels.body)
        for j, value in enumerate(texels.values):
            self._line(f"vec4 v_{j} = {self._value(value)};")
        for layer in range(level.layers):
            j, unit = divmod(layer, units)
            which = level.number(unit) if level.layers >= units else "j"
            text = stored(level, out, self.kinds[out], f"v_{j}", which)
            self._access(f"o_{out}_{layer} = {text};")

    def _neighbour(self, before: str, name: str) -> None:
        """Print the position of the texel after that at `before`; of the last one, its own."""
        d = f"d_{self.kernel.out.name}"
        if self.along == "row":
            self._line(f"ivec4 {name} = ivec4({before}.x + 1, {before}.yzw);")
        elif self.along == "plane":
            self._access(f"ivec4 {name} = ivec4(k_right({before}.xy, {d}.xy), {before}.zw);")
        else:
            self._access(f"ivec4 {name} = k_next({before}, {d});")

    # --- the whole ------------------------------------------------------------------------------
    def _head(self) -> list[str]:
        level, kernel = self.level, self.kernel
        lines = [f"#version {level.version}"]
        if not TEXEL_KINDS.isdisjoint(self.kinds.values()):
            lines += TEXEL_HEAD
        lines += ["precision highp float;", "precision highp int;"]
        if level is ESSL100:
            lines.append("precision highp sampler2D;")
        if level.version == ESSL300.version:
            of = "2DArray" if level.layers > 1 else "2D"
            lines += [f"precision highp {sign}sampler{of};" for sign in ("", "u")]
        lines.append("//SPECS")
        if level is ESSL310:
            sizes = [self._value(size) for size in kernel.local_size]
            size = "local_size_x = {}, local_size_y = {}, local_size_z = {}".format(*sizes)
            lines.append(f"layout({size}) in;")
        for tensor in kernel.tensors:
            lines += declaration(level, tensor, self.kinds[tensor.name])
        if level.version == ESSL300.version:
            kind = "uvec4" if self.kinds[kernel.out.name] == "rgba32ui" else "vec4"
            lines += [
                f"layout(location = {layer}) out highp {kind} o_{kernel.out.name}_{layer};"
                for layer in range(level.layers)
            ]
        for param in kernel.params:
            lines.append(f"uniform highp {self._kind(param.type)} p_{param.name};")
        for array in kernel.shared:
            size = self._value(array.size)
            lines.append(f"shared highp {array.type} m_{array.name}[{size}];")
        return lines

    def _helpers(self) -> list[str]:
        """Return the helper functions that were called, and those that they call, in order."""
        known = dict(self.level.helpers)
        for x in self.kernel.tensors:
            kind = self.kinds[x.name]
            known |= accesses(self.level, x.name, kind, is_read=x.access == "read")
        needed: set[str] = set()
        new = self.called
        while new:
            needed |= new
            new = {word for name in new for word in _words(known.get(name, ""))} - needed
        if any(name.startswith("K_") for name in needed):
            needed.add("k_powers")
        return [text for name, text in known.items() if name in needed]

    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        for function in (
            self.kernel.functions if self.component is None else self.component.functions
        ):
            self._function(function)
        self._main()
        helpers = self._helpers()
        used = self.called.union(*map(_words, helpers))
        self.lines[self.main_at : self.main_at] = [
            _INDENT + count(self.level, x.name)
            for x in self.kernel.tensors
            if f"n_{x.name}" in used
        ]
        text = "\n".join([*self._head(), *helpers, *self.lines, ""])
        return bind(self.kernel, self.level.dialect, text.encode(), self.kinds)


def _local(local: t.Local) -> str:
    """Return the name of a local; the prefix keeps it clear of reserved words."""
    return f"l_{local.name}_{local.uid}"


def _is_splat(expr: t.Expr) -> bool:
    return isinstance(expr, t.Op) and expr.name == "splat"


def _unsplat(expr: t.Expr) -> t.Expr:
    return expr.args[0] if isinstance(expr, t.Op) and expr.name == "splat" else expr
