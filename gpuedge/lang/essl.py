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
from collections.abc import Mapping
from ctypes import c_float
from functools import lru_cache
from itertools import pairwise
from typing import Final, NoReturn

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.storage import KINDS, TEXEL_KINDS
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BITS, PRECEDENCE, TANH_LIMIT
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
from gpuedge.lang.printer import INDENT, POSTFIX, SELECT, UNARY, Text, TextPrinter

TEXEL_WIDTH: Final = 4
MAX_TRIPS: Final = 65536
"""In ESSL 1.00 a loop to a param or extent ends here; drivers' own limits are no higher."""

MANY_LINES: Final = 150
"""Of functions, above which a fragment shader has one copy of them for all of its texels."""

_WORD = re.compile(r"\b[kKn]_\w+")
_IDENTIFIERS = {"local_id": "gl_LocalInvocationID", "group_id": "gl_WorkGroupID"}
_TYPES = {name: name for name in t.BASE}
_OLD_TYPES = _TYPES | {"int": "float", "ivec2": "vec2", "ivec3": "vec3", "ivec4": "vec4"}
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


class _Shader(TextPrinter):
    """One kernel on its way to text; every local has a name of its own, so scopes do not matter."""

    def __init__(
        self, kernel: t.Kernel, level: Level, storage: Mapping[str, str], along: str
    ) -> None:
        super().__init__(kernel, _OLD_TYPES if level.is_old else _TYPES, _name)
        self.along = along
        self.level = level
        self.is_old = level.is_old
        self.kinds = {x.name: storage.get(x.name, level.default) for x in kernel.tensors}
        self._check()
        kind = KINDS[self.kinds[kernel.out.name]]
        self.units = kind.units
        is_one = self.is_old and self.units == TEXEL_WIDTH
        self.component = one_component(kernel, 1 + most_uid(kernel)) if is_one else None
        self.main_at = 0  # where the statements of main begin
        self.in_constant = False  # in a place where ESSL 1.00 takes no calls of helpers
        self.expressions |= {
            t.Literal: self._literal,
            t.Spec: lambda e: (f"S_{e.name}", POSTFIX),
            t.Param: lambda e: (f"p_{e.name}", POSTFIX),
            t.Load: self._load,
            t.Dims: lambda e: (f"d_{e.tensor.name}", POSTFIX),
            t.Identifier: lambda e: (f"ivec3({_IDENTIFIERS[e.name]})", POSTFIX),
        }
        self.operators |= {
            "!": self._negation,
            "neg": lambda e: (f"-{self._value(e.args[0], POSTFIX)}", UNARY),
            "?:": self._select,
            "%": self._division,
            "component": lambda e: self._call("k_pick", e.args),
            "dot4": lambda _: self._refuse(
                "it multiplies packed bytes", "Vulkan and WebGPU have such products"
            ),
        }
        if level.is_old:
            self.operators |= {
                **dict.fromkeys(BITS, self._bits),
                "/": self._division,
                "cast": lambda e: self.expressions[type(e.args[0])](e.args[0]),  # a whole number
                **dict.fromkeys(("tanh", "roundeven"), self._rounding),
            }
        else:
            self.operators |= {
                **dict.fromkeys(("==", "!="), self._equality),
                "roundeven": lambda e: self._call("roundEven", e.args),
                "tanh": self._tanh,
            }
        self.statements |= {
            t.Declare: self._declare,
            t.For: self._for,
            t.Store: self._store,
            t.Barrier: self._barrier,
        }

    # --- what cannot be said --------------------------------------------------------------------
    def _refuse(self, what: str, known: str) -> NoReturn:
        raise KernelError(
            f"Kernel {self.kernel.name} cannot be printed as {self.level.dialect}: {what}.",
            known=known,
        )

    def _refuse_old(self, what: str, hint: str) -> NoReturn:
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

    # --- expressions ----------------------------------------------------------------------------
    def _constant(self, expr: t.Expr, least: int = SELECT) -> str:
        """Print an expression where ESSL 1.00 wants a constant: it may not call helpers."""
        self.in_constant = self.is_old
        text = self._value(expr, least)
        self.in_constant = False
        return text

    def _load(self, expr: t.Load) -> Text:
        if expr.component is None:
            return self._call(f"k_{expr.name}_{expr.tensor.name}", (expr.position,))
        return self._call(
            f"k_component_{expr.name}_{expr.tensor.name}", (expr.position, expr.component)
        )

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

    def _index(self, index: t.Expr) -> str:
        if not self.is_old:
            return self._value(index)
        # The one place for an int in ESSL 1.00.
        return str(index.value) if isinstance(index, t.Literal) else f"int({self._value(index)})"

    def _bits(self, expr: t.Op) -> Text:
        self._refuse_old(
            f"{expr.name} cannot be printed: ESSL 1.00 has no bits of ints",
            "work with floor and powers of two, or run the kernel on OpenGL ES 3.0 or later",
        )

    def _negation(self, expr: t.Op) -> Text:
        # Adreno's compilers may take a negated boolean for the boolean.
        return self._infix(t.Op("bool", "==", (expr.args[0], t.Literal("bool", False)), expr.time))

    def _select(self, expr: t.Op) -> Text:
        condition, yes, no = [self._value(e, SELECT + 1) for e in expr.args]
        return f"{condition} ? {yes} : {no}", SELECT

    def _infix(self, expr: t.Op) -> Text:
        """Print an operator; a repeated scalar beside a vector stays a scalar."""
        (left, right), rank = expr.args, PRECEDENCE[expr.name]
        a, b = _unsplat(left), _unsplat(right)
        if (a is left) != (b is right):
            left, right = a, b
        return f"{self._value(left, rank)} {expr.name} {self._value(right, rank + 1)}", rank

    def _equality(self, expr: t.Op) -> Text:
        left, right = expr.args
        text = self._value(left)
        if left.type == "float" and text == self._value(right):
            # Asks for NaN, of which compilers think there is none.
            sign = ">" if expr.name == "!=" else "<="
            return f"(floatBitsToInt({text}) & 0x7fffffff) {sign} 0x7f800000", PRECEDENCE[">"]
        return self._infix(expr)

    def _division(self, expr: t.Op) -> Text:
        if t.BASE[expr.type] != "int":
            return self._infix(expr)
        if expr.time > t.SPEC:
            return self._helper("k_idiv" if expr.name == "/" else "k_mod", expr)
        return self._spec_division(expr.name, *expr.args)

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

    def _tanh(self, expr: t.Op) -> Text:
        limit = float_text(TANH_LIMIT)
        return f"tanh(clamp({self._value(expr.args[0])}, -{limit}, {limit}))", POSTFIX

    def _rounding(self, expr: t.Op) -> Text:
        """Print ``tanh`` or ``roundeven`` in ESSL 1.00."""
        if self.in_constant:
            what = f"{expr.name}() cannot say how long a loop is in ESSL 1.00"
            self._refuse_old(what, "give the loop a spec of its own")
        return self._helper(f"k_{expr.name}", expr)

    # --- statements -----------------------------------------------------------------------------
    def _access(self, text: str) -> None:
        """Append a line that reaches a tensor, by helpers perhaps."""
        self.called |= _words(text)
        self._line(text)

    def _barrier(self, _: t.Barrier) -> None:
        self._line("memoryBarrierShared();")
        self._line("barrier();")

    def _declare(self, stmt: t.Declare) -> None:
        local, value = stmt.local, stmt.value
        text = self._declared(local)
        if value is None:
            self._line(f"{text}[{local.size}];" if local.size else f"{text};")
        elif self.is_old and local.frozen and value.time <= t.SPEC:
            # What a loop needs must be a constant in the language's own sense.
            self._line(f"const {text} = {self._constant(value)};")
        else:
            self._line(f"{text} = {self._value(value)};")

    def _declared(self, local: t.Local) -> str:
        return f"{self.types[local.type]} {_name(local)}"

    def _for(self, stmt: t.For) -> None:
        """Print a loop; in ESSL 1.00 with constant bounds and, if its own is none, an exit."""
        name, bound = _name(stmt.index), stmt.bound
        is_bounded = not self.is_old or bound.time <= t.SPEC
        limit = self._constant(bound, PRECEDENCE["+"]) if is_bounded else f"{MAX_TRIPS}.0"
        start, step = self._constant(stmt.start), self._constant(stmt.step)
        index = self._declared(stmt.index)
        self._open(f"for ({index} = {start}; {name} < {limit}; {name} += {step})")
        if not is_bounded:
            self._line(f"if ({name} >= {self._value(bound, PRECEDENCE['+'])}) break;")
        self._block(stmt.body)
        self._close()

    def _store(self, stmt: t.Store) -> None:
        position, value = self._value(stmt.position), self._value(stmt.value)
        self._access(f"k_{stmt.name}_{stmt.tensor.name}({position}, {value});")

    # --- functions ------------------------------------------------------------------------------
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
        p = _name(main.args[0])
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
        self._access(f"vec4 {_name(main.args[0])} = k_position({q}, d_{out});")
        if self.component is None:
            self._block(main.body)
            self._line(f"vec4 v = {self._value(main.value)};")
            text = stored(level, out, self.kinds[out], "v", "j")
        else:
            self._line(f"float {_name(self.component.component)} = j;")
            self._block(self.component.body)
            self._line(f"float v = {self._value(self.component.value)};")
            text = "k_unfloat(v)"
        self._access(f"gl_FragColor = {text};")

    def _fragments(self) -> None:
        """Print main of a fragment shader of several texels, one to each layer or some of them."""
        level, out, units = self.level, self.kernel.out.name, self.units
        count = max(1, level.layers // units)
        self._line("highp vec2 place = gl_FragCoord.xy;")
        self._line("uint f = uint(place.y) * uint(ROW) + uint(place.x);")
        if level.layers < units:
            self._line(f"uint q = f / {units}u;")
            self._line(f"uint j = f % {units}u;")
        else:
            self._line(f"uint q = {level.number(count)} * f;" if count > 1 else "uint q = f;")
        last = f"n_{out} - {count - 1}u" if self.along == "row" else f"n_{out}"
        first = f"k_position(int(min(q, {last})), d_{out})"
        if count > 1 and self._is_long():
            self._in_turn(first, count)
        else:
            self._side_by_side(first, count)
        for layer in range(level.layers):
            j, unit = divmod(layer, units)
            which = level.number(unit) if level.layers >= units else "j"
            text = stored(level, out, self.kinds[out], f"v_{j}", which)
            self._access(f"o_{out}_{layer} = {text};")

    def _side_by_side(self, first: str, count: int) -> None:
        """Print the values of neighbours, of which the first is at `first`, as v_0 and so on."""
        texels = side_by_side(self.kernel, count, self.along)
        self._access(f"ivec4 {_name(texels.positions[0])} = {first};")
        for before, local in pairwise(texels.positions):
            self._neighbour(_name(before), _name(local))
        self._block(texels.body)
        for j, value in enumerate(texels.values):
            self._line(f"vec4 v_{j} = {self._value(value)};")

    def _is_long(self) -> bool:
        """Tell whether functions, of which neighbours share nothing, are too long for copies.

        Compilers copy them for each call. Those with loops: llvmpipe takes 18 s for the 16 calls of
        a TopK instead of 0.3 s for 4. Those of many lines: NVIDIA 580.159 takes 37 s for the 400
        calls of an AffineGrid, and its numbers are wrong then.
        """
        is_looping = any(_has_loop(function.body) for function in self.kernel.functions)
        return is_looping or len(self.lines) > MANY_LINES

    def _in_turn(self, first: str, count: int) -> None:
        """Print the values of neighbours in a loop, with one copy of the code for all.

        The sign of an extent, which is 0, keeps compilers from unrolling this loop.
        """
        main, out = self.kernel.main, self.kernel.out.name
        self._access(f"ivec4 at_0 = {first};")
        for j in range(1, count):
            self._neighbour(f"at_{j - 1}", f"at_{j}")
        for j in range(count):
            self._line(f"vec4 v_{j} = vec4(0.0);")
        self._open(f"for (int turn = 0; turn < {count} + (d_{out}.x >> 31); turn += 1)")
        chosen = "".join(f"turn == {j} ? at_{j} : " for j in range(count - 1))
        self._line(f"ivec4 {_name(main.args[0])} = {chosen}at_{count - 1};")
        self._block(main.body)
        self._line(f"vec4 value = {self._value(main.value)};")
        for j in range(count):
            self._line(f"if (turn == {j}) v_{j} = value;")
        self._close()

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
            lines.append(f"uniform highp {self.types[param.type]} p_{param.name};")
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
        component = self.component
        for function in self.kernel.functions if component is None else component.functions:
            args = ", ".join(map(self._declared, function.args))
            self._function(f"{self.types[function.type]} f_{function.name}({args})", function)
        self._main()
        helpers = self._helpers()
        used = self.called.union(*map(_words, helpers))
        self.lines[self.main_at : self.main_at] = [
            INDENT + count(self.level, x.name) for x in self.kernel.tensors if f"n_{x.name}" in used
        ]
        text = "\n".join([*self._head(), *helpers, *self.lines, ""])
        return bind(self.kernel, self.level.dialect, text.encode(), self.kinds)


def _name(variable: t.Local | t.Shared) -> str:
    """Return the name of a variable; the prefix keeps it clear of reserved words."""
    if isinstance(variable, t.Shared):
        return f"m_{variable.name}"
    return f"l_{variable.name}_{variable.uid}"


def _has_loop(body: list[t.Stmt]) -> bool:
    return any(
        isinstance(stmt, t.For)
        or (isinstance(stmt, t.If) and (_has_loop(stmt.then) or _has_loop(stmt.orelse)))
        for stmt in body
    )


def _unsplat(expr: t.Expr) -> t.Expr:
    return expr.args[0] if isinstance(expr, t.Op) and expr.name == "splat" else expr
