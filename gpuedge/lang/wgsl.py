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

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import (
    HALF_BUFFER,
    IMAGE,
    IMAGE_KINDS,
    TEXTURE_KINDS,
    TEXTURE_ROW,
    TEXTURE_SHIFT,
)
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BITS, BUILTINS, COMPARISONS, TANH_LIMIT
from gpuedge.lang.interface import bind, push_args

_SCALARS = {"float": "f32", "half": "f16", "int": "i32", "bool": "bool", "uint": "u32"}
TYPES: Final = {
    name: _SCALARS[base] if t.WIDTH[name] == 1 else f"vec{t.WIDTH[name]}<{_SCALARS[base]}>"
    for name, base in t.BASE.items()
}
"""WGSL spelling of each type."""

_SIGNS = {"neg": "-", "!": "!"}
_OPERATORS = COMPARISONS | BITS | {"&&", "||"}
_LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2}
"""How strongly operators bind that need no parentheses among themselves."""
_SPLIT = frozenset((*_LEVELS, *_OPERATORS, *_SIGNS))
_INT_MIN = -(2**31)
_ZERO = "k_zero"
_IDS = {"local_id": "k_local", "group_id": "k_group", "lane_id": "k_lane"}
_STEP = "    "

_INDEX = """\
fn k_at(p: vec4<i32>, d: vec4<i32>) -> i32 {
    return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x;
}
"""
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
    return {1}[at & 3u];
}}
"""
_FETCH = f"""\
fn k_fetch_{{0}}(at: u32) -> vec4<f32> {{{{
    return textureLoad(t_{{0}}, vec2<u32>(at & {TEXTURE_ROW - 1}u, at >> {TEXTURE_SHIFT}u){{1}});
}}}}
"""


def print_kernel(kernel: t.Kernel, _dialect: str, storage: Mapping[str, str]) -> KernelBlob:
    """Print a kernel as a WGSL text with one entry point, ``main``; it writes buffers."""
    return _WgslModule(kernel, storage).blob()


class _WgslModule:
    """One kernel on its way to text.

    Attributes
    ----------
    entry : dict of str to str
        Values that the function being printed copies when it begins: name to declaration.
    helpers : set of str
        Names of the helper functions that were used so far.
    shares_ids : bool
        Whether a function other than main asks where it runs.
    """

    def __init__(self, kernel: t.Kernel, storage: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.storage = storage
        self.halves = {name for name, kind in storage.items() if kind == HALF_BUFFER}
        self.textures = {name for name, kind in storage.items() if kind in TEXTURE_KINDS}
        self.function = kernel.main
        self.helpers: set[str] = set()
        self.shares_ids = False
        self.entry: dict[str, str] = {}
        self.held: dict[str, str] = {}  # literals in variables
        self.constant = 0  # how many operators of literals only we are inside of
        self.printers: dict[type, Callable[[Any], str]] = {
            t.Literal: self._literal,
            t.Spec: lambda e: self._copy(f"c_{e.name}", f"s_{e.name}", "var"),
            t.Param: lambda e: self._uniform(f"p_{e.name}", e.type),
            t.LocalRef: lambda e: _name(e.local),
            t.Element: lambda e: f"{_name(e.array)}[{self._value(e.index)}]",
            t.Swizzle: self._swizzle,
            t.Op: self._op,
            t.Load: self._load,
            t.Dims: lambda e: self._extents(e.tensor),
            t.Identifier: self._identifier,
            t.Lane: lambda e: f"subgroupShuffle({self._value(e.value)}, {e.lane}u)",
            t.Call: lambda e: f"f_{e.function.name}({self._list(e.args)})",
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

    def _helper(self, name: str) -> str:
        """Note that a helper function is needed, and return its name."""
        self.helpers.add(name)
        return name

    # --- expressions --------------------------------------------------------------------------
    def _value(self, expr: t.Expr) -> str:
        return self.printers[type(expr)](expr)

    def _list(self, args: tuple[t.Expr, ...]) -> str:
        return ", ".join([self._value(arg) for arg in args])

    def _literal(self, expr: t.Literal) -> str:
        text = _literal(expr.type, expr.value)
        if not self.constant or expr.type == "bool":
            return text
        # What the compiler evaluates must not overflow; what a variable holds may.
        name = self.held.setdefault(text, f"k{len(self.held)}")
        return self._copy(name, text, "var")

    def _swizzle(self, expr: t.Swizzle) -> str:
        base = self._value(expr.base)
        if isinstance(expr.base, t.Op) and expr.base.name in _SPLIT:
            base = f"({base})"
        return base + "." + "".join(["xyzw"[i] for i in expr.components])

    def _op(self, expr: t.Op) -> str:
        is_constant = expr.time == t.CONST and expr.name not in ("vector", "splat")
        self.constant += is_constant
        name, args = expr.name, expr.args
        if name == "%":
            width = t.WIDTH[expr.type]
            helper = self._helper(f"k_mod{width if width > 1 else ''}")
            text = f"{helper}({self._list(args)})"
        elif name in _LEVELS:
            level = _LEVELS[name]
            left, right = self._operand(args[0], level), self._operand(args[1], level + 1)
            text = f"{left} {name} {right}"
        elif name in _OPERATORS:
            text = self._operator(name, args[0], args[1])
        elif name in _SIGNS:
            text = f"{_SIGNS[name]}({self._value(args[0])})"
        elif name == "?:":
            condition, yes, no = args
            text = f"select({self._list((no, yes, condition))})"
        elif name in ("vector", "splat", "cast"):
            text = f"{TYPES[expr.type]}({self._list(args)})"
        else:
            text = self._builtin(expr)
        self.constant -= is_constant
        return text

    def _operand(self, expr: t.Expr, level: int) -> str:
        text = self._value(expr)
        if isinstance(expr, t.Op) and 0 < _LEVELS.get(expr.name, 0) < level:
            return f"({text})"
        return text

    def _operator(self, op: str, left: t.Expr, right: t.Expr) -> str:
        """Print an operator that stands in parentheses."""
        a, b = self._value(left), self._value(right)
        if op in ("==", "!=") and left.type in ("float", "half") and a == b:
            whole = a if left.type == "float" else f"f32({a})"
            return f"{'!' if op == '==' else ''}{self._helper('k_nan')}({whole})"
        if op == ">>":  # counts are unsigned
            b = f"{TYPES[right.type].replace('i32', 'u32')}({b})"
        return f"({a} {op} {b})"

    def _builtin(self, expr: t.Op) -> str:
        args = [self._value(arg) for arg in expr.args]
        if expr.name == "clamp":  # WGSL refuses constant bounds in the wrong order
            return f"min(max({args[0]}, {args[1]}), {args[2]})"
        if expr.name == "tanh":
            low, high = (f"{TYPES[expr.type]}({x})" for x in (-TANH_LIMIT, TANH_LIMIT))
            return f"tanh(clamp({args[0]}, {low}, {high}))"
        return f"{BUILTINS[expr.name].wgsl or expr.name}({', '.join(args)})"

    def _identifier(self, expr: t.Identifier) -> str:
        if self.function is not self.kernel.main:
            self.shares_ids = True
        return _IDS[expr.name]

    def _load(self, expr: t.Load) -> str:
        tensor, position, last = expr.tensor, self._value(expr.position), self._last(expr.tensor)
        if expr.name == "load1":
            return f"{self._helper(f'k_one_{tensor.name}')}({position}, {last})"
        if expr.name == "texel":
            return self._texel(tensor, f"min(u32({position}), {last})")
        d = self._extents(tensor)
        if expr.name == "load4z":
            self._helper("k_in2")
            return f"{self._helper(f'k_z_{tensor.name}')}({position}, {d}, {last})"
        return self._texel(tensor, f"min(u32(k_at({position}, {d})), {last})")

    def _texel(self, tensor: t.Tensor, index: str) -> str:
        if tensor.name in self.textures:
            return f"{self._helper(f'k_fetch_{tensor.name}')}({index})"
        text = f"t_{tensor.name}[{index}]"
        return text if tensor.name not in self.halves else f"{self._helper('k_halves')}({text})"

    def _stored(self, tensor: t.Tensor, value: str) -> str:
        return value if tensor.name not in self.halves else f"{self._helper('k_unhalves')}({value})"

    # --- statements ---------------------------------------------------------------------------
    def _block(self, body: list[t.Stmt]) -> list[str]:
        """Print statements as lines."""
        lines: list[str] = []
        for stmt in body:
            if isinstance(stmt, t.Declare):
                lines.append(self._declare(stmt))
            elif isinstance(stmt, t.Assign):
                lines.append(self._assign(stmt))
            elif isinstance(stmt, t.If):
                lines += [f"if ({self._value(stmt.condition)}) {{", *self._inner(stmt.then)]
                if stmt.orelse:
                    lines += ["} else {", *self._inner(stmt.orelse)]
                lines.append("}")
            elif isinstance(stmt, t.For):
                lines += self._for(stmt)
            elif isinstance(stmt, t.Store):
                lines += self._store(stmt)
            else:
                lines.append("workgroupBarrier();")
        return lines

    def _inner(self, body: list[t.Stmt]) -> list[str]:
        return [_STEP + line for line in self._block(body)]

    def _declare(self, stmt: t.Declare) -> str:
        local, kind = stmt.local, TYPES[stmt.local.type]
        if local.size:
            kind = f"array<{kind}, {local.size}>"
        if stmt.value is None:
            return f"var {_name(local)}: {kind};"
        word = "var" if local.assigned or stmt.value.time == t.CONST else "let"
        return f"{word} {_name(local)}: {kind} = {self._value(stmt.value)};"

    def _assign(self, stmt: t.Assign) -> str:
        target = _name(stmt.target)
        if stmt.index is not None:
            target += f"[{self._value(stmt.index)}]"
        if stmt.component is not None:
            target += f".{'xyzw'[stmt.component]}"
        return f"{target} = {self._value(stmt.value)};"

    def _for(self, stmt: t.For) -> list[str]:
        index = _name(stmt.index)
        start, bound, step = (self._value(e) for e in (stmt.start, stmt.bound, stmt.step))
        head = f"for (var {index}: i32 = {start}; {index} < {bound}; {index} += {step}) {{"
        return [head, *self._inner(stmt.body), "}"]

    def _store(self, stmt: t.Store) -> list[str]:
        tensor, position = stmt.tensor, self._value(stmt.position)
        if stmt.name == "storet":
            inside, index = f"u32(at) <= {self._last(tensor)}", "at"
        else:
            d = self._extents(tensor)
            inside, index = f"{self._helper('k_in4')}(at, {d})", f"k_at(at, {d})"
        value = self._stored(tensor, self._value(stmt.value))
        before: list[str] = []
        if self.kernel.has_lanes:  # lanes that store nothing may be taken from
            before, value = [f"{_STEP}let v = {value};"], "v"
        write = f"{_STEP}{_STEP}t_{tensor.name}[{index}] = {value};"
        return ["{", f"{_STEP}let at = {position};", *before, f"{_STEP}if ({inside}) {{", write,
                f"{_STEP}}}", "}"]  # fmt: skip

    # --- functions ----------------------------------------------------------------------------
    def _function(self, function: t.Function) -> str:
        self.function, self.entry, self.held = function, {}, {}
        if function is not self.kernel.main:
            args = ", ".join([f"{_name(a)}: {TYPES[a.type]}" for a in function.args])
            head = [f"fn f_{function.name}({args}) -> {TYPES[function.type]} {{"]
            body = self._block(function.body)
            body.append(f"return {self._value(function.value)};")
        elif function.type == "void":
            lane = "@builtin(subgroup_invocation_id) lane: u32, " if self.kernel.has_lanes else ""
            head = self._head(f"{lane}@builtin(local_invocation_id) local")
            word = "" if self.shares_ids else "let "
            body = [f"{word}k_local = vec3<i32>(local);", f"{word}k_group = vec3<i32>(group);"]
            body += [f"{word}k_lane = i32(lane);"] if lane else []
            body += self._block(function.body)
        else:
            head = self._head("@builtin(global_invocation_id) id")
            body = self._map_main()
        lines = [*self.entry.values(), *body]
        return "\n".join([*head, *[_STEP + line for line in lines], "}"]) + "\n"

    def _head(self, place: str) -> list[str]:
        """Print how main begins; no group has a number of 2^31 and more."""
        sizes = ", ".join([_size(size) for size in self.kernel.local_size])
        return [
            f"@compute @workgroup_size({sizes})",
            f"fn main({place}: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {{",
            f"{_STEP}let {_ZERO} = i32(group.x >> 31u);",
        ]

    def _map_main(self) -> list[str]:
        """Print main under the guard that its texel exists, and store what it returns."""
        main, out = self.function, self.kernel.out
        d = self._extents(out)
        place = _name(main.args[0])
        body = self._inner(main.body)
        value = self._value(main.value)
        inside = f"all(id < vec3<u32>(vec3<i32>({d}.x, {d}.y, {d}.z * {d}.w)))"
        return [
            f"if ({inside}) {{",
            f"{_STEP}let z = i32(id.z);",
            f"{_STEP}let {place} = vec4<i32>(i32(id.x), i32(id.y), z % {d}.z, z / {d}.z);",
            *body,
            f"{_STEP}t_{out.name}[k_at({place}, {d})] = {self._stored(out, value)};",
            "}",
        ]

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
            for prefix, text, index in (
                ("k_z_", _LOAD_Z, "min(u32(k_at(p, d)), last)"),
                ("k_one_", _LOAD_1, "at >> 2u"),
            ):
                if prefix + tensor.name in self.helpers:
                    own.append(text.format(tensor.name, self._texel(tensor, index)))
            if f"k_fetch_{tensor.name}" in self.helpers:
                level = "" if self.storage[tensor.name] in IMAGE_KINDS else ", 0"
                own.append(_FETCH.format(tensor.name, level))
        return [_INDEX, *(text for name, text in _HELPERS.items() if name in self.helpers), *own]

    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        functions = [self._function(f) for f in (*self.kernel.functions, self.kernel.main)]
        needs = ["enable f16;"] if self.kernel.is_half else []
        head = "\n".join([f"// {self.kernel.name}", *needs, *self._interface()])
        text = "\n".join([head + "\n", *self._helper_texts(), *functions])
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
