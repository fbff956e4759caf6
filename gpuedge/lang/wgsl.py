"""Kernels printed as WGSL for WebGPU: one text that naga and Dawn both accept.

Tensors are storage arrays of texels, or textures or images that hold a copy of one; specs are
overrides with the spec's id, extents and params lie in one uniform block at the binding after the
tensors, with the offsets of the blob's push block.

What is easy to get wrong because only one of the compilers objects, or because it depends on the
driver: loops round a barrier are bounded by uniform values (Dawn analyses that, naga does not);
whatever a compiler can evaluate it does, and then overflow, NaN and division by zero are errors
(naga 29 even fails on valid code once it replaced a ``let``), so constants and overrides that meet
an operator stand in a ``var``; ``<`` after a name may begin a list of types, so comparisons stand
in parentheses; compilers may assume that there are no NaNs, so a value compared with itself becomes
a look at its bits; over OpenGL ``%`` becomes that of GLSL, which takes no negative operands.
lavapipe builds a kernel anew for the values of uniforms that its branches depend on alone, again
and again: 3 ms a dispatch. So extents and params have a zero added that only the run knows.

Lanes of subgroups are the exception to one text: Dawn wants ``enable subgroups;`` before it, which
naga 29 refuses. It is not printed, since only devices of wgpu-native report such lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import (
    BYTE_BUFFERS,
    HALF_BUFFER,
    IMAGE,
    IMAGE_KINDS,
    TEXTURE_KINDS,
    TEXTURE_ROW,
    TEXTURE_SHIFT,
    UNSIGNED_BUFFER,
)
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import COMPARISONS, TANH_LIMIT
from gpuedge.lang.interface import bind, push_args
from gpuedge.lang.printer import INDENT, POSTFIX, UNARY, Text, TextPrinter

_SCALARS = {"float": "f32", "half": "f16", "int": "i32", "bool": "bool", "uint": "u32"}
TYPES: Final = {
    name: _SCALARS[base] if t.WIDTH[name] == 1 else f"vec{t.WIDTH[name]}<{_SCALARS[base]}>"
    for name, base in t.BASE.items()
}
"""WGSL spelling of each type."""

_ENCLOSED = COMPARISONS | {"&", "&&", "||"}
_INT_MIN = -(2**31)
_ZERO = "k_zero"
_IDS = {"local_id": "k_local", "group_id": "k_group", "lane_id": "k_lane"}

_INDEX = """\
fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}
"""


def _dot(kind: str, components: tuple[str, ...]) -> str:
    """Return the helper for products of packed bytes, one for each component."""
    products = ", ".join(f"dot4I8Packed(u32(a{c}), u32(b{c}))" for c in components)
    width = "" if len(components) == 1 else len(components)
    return (
        f"fn k_dot{width}(a: {kind}, b: {kind}) -> {kind} {{\n    return {kind}({products});\n}}\n"
    )


_HELPERS = {
    "k_halves": """\
fn k_halves(h: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y));
}
""",
    "k_unhalves": """\
fn k_unhalves(v: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
}
""",
    "k_unsigned": """\
fn k_unsigned(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}
""",
    "k_signed": """\
fn k_signed(word: u32) -> vec4<f32> {
    let high = vec4<i32>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u));
    return vec4<f32>(high >> vec4<u32>(24u));
}
""",
    # As unsigned numbers, so that a negative coordinate is out of range too.
    "k_in2": """\
fn k_in2(p: vec4<i32>, d: vec4<i32>) -> bool {
    return (u32(p.x) < u32(d.x)) && (u32(p.y) < u32(d.y));
}
""",
    "k_in4": """\
fn k_in4(p: vec4<i32>, d: vec4<i32>) -> bool {
    return all(vec4<u32>(p) < vec4<u32>(d));
}
""",
    "k_nan": """\
fn k_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
""",
    **{
        f"k_mod{name[4:]}": f"""\
fn k_mod{name[4:]}(a: {kind}, b: {kind}) -> {kind} {{
    return a - a / b * b;
}}
"""
        for name, kind in TYPES.items()
        if t.BASE[name] == "int"
    },
    "k_dot": _dot("i32", ("",)),
    **{f"k_dot{n}": _dot(f"vec{n}<i32>", (".x", ".y", ".z", ".w")[:n]) for n in (2, 3, 4)},
}
_TEXTURES = {
    kind: f"texture_storage_2d<{'rgba32float' if kind == IMAGE else 'rgba16float'}, read>"
    for kind in IMAGE_KINDS
}
_LOAD_Z = """\
fn k_z_{0}(p: vec4<i32>, d: vec4<i32>, last: u32) -> vec4<f32> {{
    let v = {1};
    return select(vec4<f32>(), v, k_in2(p, d));
}}
"""
_LOAD_1 = """\
fn k_one_{0}(e: i32, last: u32) -> f32 {{
    let at = min(u32(e), last * 4u + 3u);
    return {1};
}}
"""
_BYTE = {
    "k_unsigned": "f32(({} >> ((at & 3u) * 8u)) & 255u)",
    "k_signed": "f32(i32({} << (24u - (at & 3u) * 8u)) >> 24u)",
}
"""The byte of a word that load1 takes."""
_FETCH = f"""\
fn k_fetch_{{0}}(at: u32) -> vec4<f32> {{{{
    return textureLoad(t_{{0}}, vec2<u32>(at & {TEXTURE_ROW - 1}u, at >> {TEXTURE_SHIFT}u){{1}});
}}}}
"""


def print_kernel(kernel: t.Kernel, _dialect: str, storage: Mapping[str, str]) -> KernelBlob:
    """Print a kernel as a WGSL text with one entry point, ``main``; it writes buffers."""
    return _WgslModule(kernel, storage).blob()


class _WgslModule(TextPrinter):
    """One kernel on its way to text.

    Attributes
    ----------
    entry : dict of str to str
        Values that the function being printed copies when it begins: name to declaration.
    shares_ids : bool
        Whether a function other than main asks where it runs.
    """

    def __init__(self, kernel: t.Kernel, storage: Mapping[str, str]) -> None:
        super().__init__(kernel, TYPES, _name)
        self.storage = storage
        self.halves = {name for name, kind in storage.items() if kind == HALF_BUFFER}
        self.bytes = {
            name: "k_unsigned" if kind == UNSIGNED_BUFFER else "k_signed"
            for name, kind in storage.items()
            if kind in BYTE_BUFFERS
        }
        self.textures = {name for name, kind in storage.items() if kind in TEXTURE_KINDS}
        self.function = kernel.main
        self.shares_ids = False
        self.entry: dict[str, str] = {}
        self.held: dict[str, str] = {}  # literals in variables
        self.constant = 0  # how many operators of literals only we are inside of
        self.expressions |= {
            t.Literal: self._literal,
            t.Op: self._op,
            t.Spec: lambda e: (self._copy(f"c_{e.name}", f"s_{e.name}", "var"), POSTFIX),
            t.Param: lambda e: (self._uniform(f"p_{e.name}", e.type), POSTFIX),
            t.Load: lambda e: (self._load(e), POSTFIX),
            t.Dims: lambda e: (self._extents(e.tensor), POSTFIX),
            t.Identifier: self._identifier,
            t.Lane: lambda e: (f"subgroupShuffle({self._value(e.value)}, {e.lane}u)", POSTFIX),
        }
        self.operators |= {
            **dict.fromkeys(_ENCLOSED, self._enclosed),
            **dict.fromkeys(("==", "!="), self._equality),
            "%": lambda e: self._helper("k_mod", e),
            ">>": self._shift,
            "neg": lambda e: (f"-({self._value(e.args[0])})", UNARY),
            "!": lambda e: (f"!({self._value(e.args[0])})", UNARY),
            "?:": lambda e: (f"select({self._list((*e.args[:0:-1], e.args[0]))})", POSTFIX),
            "clamp": self._clamp,
            "roundeven": lambda e: self._call("round", e.args),
            "tanh": self._tanh,
            "dot4": lambda e: self._helper("k_dot", e),
        }
        self.statements |= {
            t.Declare: self._declare,
            t.For: self._for,
            t.Store: self._store,
            t.Barrier: lambda _: self._line("workgroupBarrier();"),
        }

    def _copy(self, name: str, source: str, word: str = "let") -> str:
        """Return the name of a value that is copied when the function begins."""
        self.entry[name] = f"{word} {name} = {source};"
        return name

    def _uniform(self, name: str, kind: str) -> str:
        """Return the name of a value of the uniform block."""
        is_bound = self.function is self.kernel.main and t.BASE[kind] == "int"
        return self._copy(name, f"u.{name}{f' + {_ZERO}' if is_bound else ''}")

    def _extents(self, tensor: t.Tensor) -> str:
        """Return the name of a tensor's extents."""
        return self._uniform(f"d_{tensor.name}", "ivec4")

    def _last(self, tensor: t.Tensor) -> str:
        """Return the name of the number of a tensor's last texel."""
        d = self._extents(tensor)
        return self._copy(f"last_{tensor.name}", f"u32({d}.x * {d}.y * {d}.z * {d}.w - 1)")

    def _needed(self, name: str) -> str:
        """Note that a helper function is needed, and return its name."""
        self.called.add(name)
        return name

    # --- expressions --------------------------------------------------------------------------
    def _literal(self, expr: t.Literal) -> Text:
        text = _literal(expr.type, expr.value)
        if self.constant and expr.type != "bool":
            # What the compiler evaluates must not overflow; what a variable holds may.
            name = self.held.setdefault(text, f"k{len(self.held)}")
            text = self._copy(name, text, "var")
        return text, POSTFIX

    def _op(self, expr: t.Op) -> Text:
        is_constant = expr.time == t.CONST and expr.name not in ("vector", "splat")
        self.constant += is_constant
        text = self.operators[expr.name](expr)
        self.constant -= is_constant
        return text

    def _enclosed(self, expr: t.Op) -> Text:
        return f"({self._infix(expr)[0]})", POSTFIX

    def _equality(self, expr: t.Op) -> Text:
        left, right = expr.args
        text = self._value(left)
        if left.type not in ("float", "half") or text != self._value(right):
            return self._enclosed(expr)
        whole = text if left.type == "float" else f"f32({text})"
        return f"{'!' if expr.name == '==' else ''}{self._needed('k_nan')}({whole})", POSTFIX

    def _shift(self, expr: t.Op) -> Text:
        value, count = self._value(expr.args[0], UNARY), self._value(expr.args[1])
        unsigned = TYPES[expr.type].replace("i32", "u32")
        return f"({value} >> {unsigned}({count}))", POSTFIX

    def _clamp(self, expr: t.Op) -> Text:
        value, low, high = map(self._value, expr.args)
        # WGSL refuses constant bounds in the wrong order.
        return f"min(max({value}, {low}), {high})", POSTFIX

    def _tanh(self, expr: t.Op) -> Text:
        low, high = (f"{TYPES[expr.type]}({x})" for x in (-TANH_LIMIT, TANH_LIMIT))
        return f"tanh(clamp({self._value(expr.args[0])}, {low}, {high}))", POSTFIX

    def _identifier(self, expr: t.Identifier) -> Text:
        if self.function is not self.kernel.main:
            self.shares_ids = True
        return _IDS[expr.name], POSTFIX

    def _load(self, expr: t.Load) -> str:
        tensor, position, last = expr.tensor, self._value(expr.position), self._last(expr.tensor)
        if expr.name == "load1":
            return f"{self._needed(f'k_one_{tensor.name}')}({position}, {last})"
        if expr.name == "texel":
            return self._texel(tensor, f"min(u32({position}), {last})")
        d = self._extents(tensor)
        if expr.name == "load4z":
            self._needed("k_in2")
            return f"{self._needed(f'k_z_{tensor.name}')}({position}, {d}, {last})"
        return self._texel(tensor, f"min(u32(k_at({position}, {d})), {last})")

    def _texel(self, tensor: t.Tensor, index: str) -> str:
        if tensor.name in self.textures:
            return f"{self._needed(f'k_fetch_{tensor.name}')}({index})"
        text = f"t_{tensor.name}[{index}]"
        if tensor.name in self.bytes:
            return f"{self._needed(self.bytes[tensor.name])}({text})"
        return text if tensor.name not in self.halves else f"{self._needed('k_halves')}({text})"

    def _one(self, tensor: t.Tensor) -> str:
        """Print number ``at & 3`` of the texel ``at >> 2``."""
        if tensor.name in self.bytes:
            return _BYTE[self.bytes[tensor.name]].format(f"t_{tensor.name}[at >> 2u]")
        return f"{self._texel(tensor, 'at >> 2u')}[at & 3u]"

    def _stored(self, tensor: t.Tensor, value: str) -> str:
        return value if tensor.name not in self.halves else f"{self._needed('k_unhalves')}({value})"

    # --- statements ---------------------------------------------------------------------------
    def _declare(self, stmt: t.Declare) -> None:
        local, kind = stmt.local, TYPES[stmt.local.type]
        if local.size:
            kind = f"array<{kind}, {local.size}>"
        if stmt.value is None:
            self._line(f"var {_name(local)}: {kind};")
            return
        word = "var" if local.assigned or stmt.value.time == t.CONST else "let"
        self._line(f"{word} {_name(local)}: {kind} = {self._value(stmt.value)};")

    def _for(self, stmt: t.For) -> None:
        name = _name(stmt.index)
        start, bound, step = map(self._value, (stmt.start, stmt.bound, stmt.step))
        self._open(f"for (var {name}: i32 = {start}; {name} < {bound}; {name} += {step})")
        self._block(stmt.body)
        self._close()

    def _store(self, stmt: t.Store) -> None:
        tensor, position = stmt.tensor, self._value(stmt.position)
        if stmt.name == "storet":
            inside, index = f"u32(at) <= {self._last(tensor)}", "at"
        else:
            d = self._extents(tensor)
            inside, index = f"{self._needed('k_in4')}(at, {d})", f"k_at(at, {d})"
        value = self._stored(tensor, self._value(stmt.value))
        self._line("{")
        self.indent += INDENT
        self._line(f"let at = {position};")
        if self.kernel.has_lanes:  # lanes that store nothing may be taken from
            self._line(f"let v = {value};")
            value = "v"
        self._open(f"if ({inside})")
        self._line(f"t_{tensor.name}[{index}] = {value};")
        self._close()
        self._close()

    # --- functions ----------------------------------------------------------------------------
    def _whole_function(self, function: t.Function) -> None:
        """Print a function, and before its body what it copies when it begins."""
        self.function, self.entry, self.held = function, {}, {}
        at = len(self.lines) + 1
        if function is self.kernel.main:
            at += 2
            self._main(function)
        else:
            args = ", ".join([f"{_name(a)}: {TYPES[a.type]}" for a in function.args])
            self._function(f"fn f_{function.name}({args}) -> {TYPES[function.type]}", function)
        self.lines[at:at] = [INDENT + line for line in self.entry.values()]
        self.lines.append("")

    def _main(self, main: t.Function) -> None:
        """Print main; no group has a number of 2^31 and more."""
        has_lanes = self.kernel.has_lanes
        place = "@builtin(global_invocation_id) id"
        if main.type == "void":
            lane = "@builtin(subgroup_invocation_id) lane: u32, " if has_lanes else ""
            place = f"{lane}@builtin(local_invocation_id) local"
        sizes = ", ".join([_size(size) for size in self.kernel.local_size])
        self._line(f"@compute @workgroup_size({sizes})")
        self._open(f"fn main({place}: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>)")
        self._line(f"let {_ZERO} = i32(group.x >> 31u);")
        if main.type == "void":
            word = "" if self.shares_ids else "let "
            self._line(f"{word}k_local = vec3<i32>(local);")
            self._line(f"{word}k_group = vec3<i32>(group);")
            if has_lanes:
                self._line(f"{word}k_lane = i32(lane);")
            self._block(main.body)
        else:
            self._map_main(main)
        self._close()

    def _map_main(self, main: t.Function) -> None:
        """Print main under the guard that its texel exists, and store what it returns."""
        out = self.kernel.out
        d = self._extents(out)
        place = _name(main.args[0])
        self._open(f"if (all(id < vec3<u32>(vec3<i32>({d}.x, {d}.y, {d}.z * {d}.w))))")
        self._line("let z = i32(id.z);")
        self._line(f"let {place} = vec4<i32>(i32(id.x), i32(id.y), z % {d}.z, z / {d}.z);")
        self._block(main.body)
        value = self._stored(out, self._value(main.value))
        self._line(f"t_{out.name}[k_at({place}, {d})] = {value};")
        self._close()

    # --- the whole ----------------------------------------------------------------------------
    def _interface(self) -> list[str]:
        lines = []
        for tensor in self.kernel.tensors:
            mode = "read" if tensor.access == "read" else "read_write"
            place = f"@group(0) @binding({tensor.binding})"
            if tensor.name in self.textures:
                kind = _TEXTURES.get(self.storage[tensor.name], "texture_2d<f32>")
                lines.append(f"{place} var t_{tensor.name}: {kind};")
                continue
            kind = "vec2<u32>" if tensor.name in self.halves else "vec4<f32>"
            kind = "u32" if tensor.name in self.bytes else kind
            lines.append(f"{place} var<storage, {mode}> t_{tensor.name}: array<{kind}>;")
        lines.append("struct Push {")
        for arg in push_args(self.kernel)[0]:
            lines.append(
                f"    {'d' if arg.type == 'ivec4' else 'p'}_{arg.name}: {TYPES[arg.type]},"
            )
        lines.append("}")
        binding = len(self.kernel.tensors)
        lines.append(f"@group(0) @binding({binding}) var<uniform> u: Push;")
        for spec in self.kernel.specs:
            value = _literal(spec.type, spec.default)
            kind = TYPES[spec.type]
            lines.append(f"@id({spec.spec_id}) override s_{spec.name}: {kind} = {value};")
        for array in self.kernel.shared:
            kind = f"array<{TYPES[array.type]}, {_size(array.size)}>"
            lines.append(f"var<workgroup> g_{array.name}: {kind};")
        if self.shares_ids:
            lines.append("var<private> k_local: vec3<i32>;")
            lines.append("var<private> k_group: vec3<i32>;")
            lines += ["var<private> k_lane: i32;"] if self.kernel.has_lanes else []
        return lines

    def _helper_texts(self) -> list[str]:
        own = []
        for tensor in self.kernel.tensors:
            if f"k_z_{tensor.name}" in self.called:
                texel = self._texel(tensor, "min(u32(k_at(p, d)), last)")
                own.append(_LOAD_Z.format(tensor.name, texel))
            if f"k_one_{tensor.name}" in self.called:
                own.append(_LOAD_1.format(tensor.name, self._one(tensor)))
            if f"k_fetch_{tensor.name}" in self.called:
                level = "" if self.storage[tensor.name] in IMAGE_KINDS else ", 0"
                own.append(_FETCH.format(tensor.name, level))
        return [_INDEX, *(text for name, text in _HELPERS.items() if name in self.called), *own]

    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        for function in (*self.kernel.functions, self.kernel.main):
            self._whole_function(function)
        needs = ["enable f16;"] if self.kernel.is_half else []
        head = "\n".join([f"// {self.kernel.name}", *needs, *self._interface()])
        text = "\n".join([head + "\n", *self._helper_texts(), *self.lines])
        return bind(self.kernel, "wgsl", text.encode(), self.storage)


def _literal(kind: str, value: Number) -> str:
    """Print a constant of a scalar type."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        if value == _INT_MIN:  # the digits alone are no i32
            return f"({_INT_MIN + 1}i - 1i)"
        return f"{value}i" if value >= 0 else f"({value}i)"
    text = f"{float(value)!r}{'h' if kind == 'half' else 'f'}"
    return f"({text})" if text[0] == "-" else text


def _name(variable: t.Local | t.Shared) -> str:
    """Return the name of a variable: no reserved word begins like it, and none is taken twice."""
    if isinstance(variable, t.Shared):
        return f"g_{variable.name}"
    return f"v{variable.uid}_{variable.name}"


def _size(expr: t.Expr) -> str:
    """Print an int expression of const and spec as an override expression."""
    if isinstance(expr, t.Literal):
        return _literal("int", expr.value)
    if isinstance(expr, t.Spec):
        return f"s_{expr.name}"
    if not isinstance(expr, t.Op):
        raise TypeError(f"{type(expr).__name__} is no size of an array")
    left, right = map(_size, expr.args)
    return f"({left} {expr.name} {right})"
