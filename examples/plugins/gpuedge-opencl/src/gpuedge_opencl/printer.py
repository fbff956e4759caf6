"""Kernels printed as OpenCL C 1.2.

What the language has for a whole kernel and OpenCL C for its entry only, tensors, extents, params
and shared arrays, are arguments of the same names of every function. Values of specs are macros
``S_name``, which the build is given. The arguments of the entry are, for each tensor, its buffer
and its place there in units of `PLACE_UNIT` bytes; then the values of the blob's push block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.core.storage import BUFFER, HALF_BUFFER, SIGNED_BUFFER, UNSIGNED_BUFFER
from gpuedge.lang import tree as t
from gpuedge.lang.interface import bind, push_args
from gpuedge.lang.printer import INDENT, POSTFIX, UNARY, Text, TextPrinter

ENTRY: Final = "kernel_main"
PLACE_UNIT: Final = 16

_BASES = {"float": "float", "int": "int", "bool": "bool", "half": "half"}
TYPES: Final = {
    name: _BASES[base] + (str(t.WIDTH[name]) if t.WIDTH[name] > 1 else "")
    for name, base in t.BASE.items()
}
"""OpenCL C's spelling of each type."""

_ELEMENTS = {
    BUFFER: "float4", HALF_BUFFER: "half", UNSIGNED_BUFFER: "uchar4", SIGNED_BUFFER: "char4",
}  # fmt: skip
"""What a buffer is an array of, by storage kind; ``vload_half4`` needs no extension."""

_LOADS = {
    BUFFER: "t_{0}[{1}]", HALF_BUFFER: "vload_half4({1}, t_{0})",
    UNSIGNED_BUFFER: "convert_float4(t_{0}[{1}])", SIGNED_BUFFER: "convert_float4(t_{0}[{1}])",
}  # fmt: skip
_SCALARS = {
    BUFFER: "((__global const float*)t_{0})[{1}]", HALF_BUFFER: "vload_half({1}, t_{0})",
    UNSIGNED_BUFFER: "(float)((__global const uchar*)t_{0})[{1}]",
    SIGNED_BUFFER: "(float)((__global const char*)t_{0})[{1}]",
}  # fmt: skip
_STORES = {
    BUFFER: "t_{0}[{1}] = {2};", HALF_BUFFER: "vstore_half4_rte({2}, {1}, t_{0});",
}  # fmt: skip

_HELPERS = """\
int k_at(int4 p, int4 d) { return ((p.w * d.z + p.z) * d.y + p.y) * d.x + p.x; }
uint k_last(int4 d) { return (uint)(d.x * d.y * d.z * d.w - 1); }
bool k_in2(int4 p, int4 d) { return (uint)p.x < (uint)d.x && (uint)p.y < (uint)d.y; }
bool k_in4(int4 p, int4 d) { return all(as_uint4(p) < as_uint4(d)); }
"""
_IDS = {"local_id": "get_local_id", "group_id": "get_group_id"}
_INT_MIN = -(2**31)


def print_kernel(kernel: t.Kernel, dialect: str, storage: Mapping[str, str]) -> KernelBlob:
    """Print a kernel as OpenCL C.

    Raises
    ------
    KernelError (GE-300)
        It computes in float16, or asks for lanes of a subgroup, products of packed bytes, or a
        storage other than buffers: devices of this plug-in report none of these.
    """
    return _OpenClPrinter(kernel, dialect, storage).blob()


class _OpenClPrinter(TextPrinter):
    """One kernel on its way to text; `kinds` has the storage kind of each tensor."""

    def __init__(self, kernel: t.Kernel, dialect: str, storage: Mapping[str, str]) -> None:
        super().__init__(kernel, TYPES, _name)
        self.dialect = dialect
        self.kinds = {x.name: storage.get(x.name, BUFFER) for x in kernel.tensors}
        self._check()
        self.expressions |= {
            t.Literal: lambda e: (literal(e.type, e.value), POSTFIX),
            t.Spec: lambda e: (f"S_{e.name}", POSTFIX),
            t.Param: lambda e: (f"p_{e.name}", POSTFIX),
            t.Dims: lambda e: (f"d_{e.tensor.name}", POSTFIX),
            t.Load: self._load,
            t.Identifier: self._identifier,
            t.Call: lambda e: (f"f_{e.function.name}({self._arguments(e)})", POSTFIX),
        }
        self.operators |= {
            **dict.fromkeys(("vector", "splat"), self._vector),
            "cast": lambda e: self._call(f"convert_{TYPES[e.type]}", e.args),
            "neg": lambda e: (f"-({self._value(e.args[0])})", UNARY),
            "!": lambda e: (f"!({self._value(e.args[0])})", UNARY),
            "?:": self._select,
            "abs": self._abs,
            "roundeven": lambda e: self._call("rint", e.args),
            "dot4": lambda _: self._refuse("it multiplies packed bytes"),
        }
        self.statements |= {
            t.Declare: self._declare,
            t.For: self._for,
            t.Store: self._store,
            t.Barrier: lambda _: self._line("barrier(CLK_LOCAL_MEM_FENCE);"),
        }

    def _refuse(self, what: str) -> NoReturn:
        name = self.kernel.name
        raise KernelError(f"Kernel {name} cannot be printed as {self.dialect}: {what}.")

    def _check(self) -> None:
        if self.kernel.is_half:
            self._refuse("it computes in float16")
        if self.kernel.has_lanes:
            self._refuse("it asks for lanes of subgroups")
        for name, kind in self.kinds.items():
            if kind not in _ELEMENTS:
                self._refuse(f"tensor {name} is kept as {kind!r}")

    # --- expressions --------------------------------------------------------------------------
    def _vector(self, expr: t.Op) -> Text:
        return f"(({TYPES[expr.type]})({self._list(expr.args)}))", POSTFIX

    def _select(self, expr: t.Op) -> Text:
        condition, yes, no = map(self._value, expr.args)
        width = t.WIDTH[expr.type]
        if width == 1:
            return f"(({condition}) ? ({yes}) : ({no}))", POSTFIX
        return f"select({no}, {yes}, (int{width})(({condition}) ? -1 : 0))", POSTFIX

    def _abs(self, expr: t.Op) -> Text:
        if t.BASE[expr.type] != "int":
            return self._call("fabs", expr.args)
        return f"as_{TYPES[expr.type]}(abs({self._list(expr.args)}))", POSTFIX

    def _identifier(self, expr: t.Identifier) -> Text:
        parts = ", ".join([f"(int){_IDS[expr.name]}({axis})" for axis in range(3)])
        return f"((int3)({parts}))", POSTFIX

    def _arguments(self, expr: t.Call) -> str:
        own = [self._value(arg) for arg in expr.args]
        return ", ".join([*own, *[name for _, name in self._common()]])

    def _load(self, expr: t.Load) -> Text:
        name, position = expr.tensor.name, self._value(expr.position)
        last, load = f"k_last(d_{name})", _LOADS[self.kinds[name]]
        if expr.name == "load1":
            at = f"min((uint)({position}), {last} * 4u + 3u)"
            return f"({_SCALARS[self.kinds[name]].format(name, at)})", POSTFIX
        if expr.name == "load4z":
            self.called.add(f"k_z_{name}")
            return f"k_z_{name}({position}, t_{name}, d_{name})", POSTFIX
        at = position if expr.name == "texel" else f"k_at({position}, d_{name})"
        return load.format(name, f"min((uint)({at}), {last})"), POSTFIX

    # --- statements ---------------------------------------------------------------------------
    def _declare(self, stmt: t.Declare) -> None:
        local = stmt.local
        size = f"[{local.size}]" if local.size else ""
        value = "" if stmt.value is None else f" = {self._value(stmt.value)}"
        self._line(f"{TYPES[local.type]} {_name(local)}{size}{value};")

    def _for(self, stmt: t.For) -> None:
        name = _name(stmt.index)
        start, bound, step = map(self._value, (stmt.start, stmt.bound, stmt.step))
        self._open(f"for (int {name} = {start}; {name} < {bound}; {name} += {step})")
        self._block(stmt.body)
        self._close()

    def _store(self, stmt: t.Store) -> None:
        name = stmt.tensor.name
        is_number = stmt.name == "storet"
        inside = f"(uint)at <= k_last(d_{name})" if is_number else f"k_in4(at, d_{name})"
        index = "at" if is_number else f"k_at(at, d_{name})"
        self._open("")
        self._line(f"{'int' if is_number else 'int4'} at = {self._value(stmt.position)};")
        self._open(f"if ({inside})")
        self._line(_STORES[self.kinds[name]].format(name, index, self._value(stmt.value)))
        self._close()
        self._close()

    # --- functions ----------------------------------------------------------------------------
    def _pointer(self, tensor: t.Tensor) -> str:
        const = "const " if tensor.access == "read" else ""
        return f"__global {const}{_ELEMENTS[self.kinds[tensor.name]]}*"

    def _common(self) -> list[tuple[str, str]]:
        """Return type and name of what every function is given."""
        kernel = self.kernel
        return [
            *[(f"{self._pointer(x)} restrict", f"t_{x.name}") for x in kernel.tensors],
            *[(TYPES[a.type], _pushed(a.type, a.name)) for a in push_args(kernel)[0]],
            *[(f"__local {TYPES[x.type]}*", _name(x)) for x in kernel.shared],
        ]

    def _helper_function(self, function: t.Function) -> None:
        own = [(TYPES[a.type], _name(a)) for a in function.args]
        arguments = ", ".join([f"{kind} {name}" for kind, name in [*own, *self._common()]])
        self._function(f"{TYPES[function.type]} f_{function.name}({arguments})", function)

    def _main(self, main: t.Function) -> None:
        kernel, arguments = self.kernel, []
        for x in kernel.tensors:
            arguments += [f"{self._pointer(x)} restrict b_{x.name}", f"uint o_{x.name}"]
        for a in push_args(kernel)[0]:
            arguments.append(f"{TYPES[a.type]} {_pushed(a.type, a.name)}")
        sizes = ", ".join([_size(size) for size in kernel.local_size])
        self._line(f"__kernel __attribute__((reqd_work_group_size({sizes})))")
        self._open(f"void {ENTRY}({', '.join(arguments)})")
        for array in kernel.shared:
            self._line(f"__local {TYPES[array.type]} {_name(array)}[{_size(array.size)}];")
        for x in kernel.tensors:
            unit = f"o_{x.name} * {PLACE_UNIT}ul"
            kind = self._pointer(x).replace(_ELEMENTS[self.kinds[x.name]], "uchar")
            place = f"({self._pointer(x)})(({kind})b_{x.name} + {unit})"
            self._line(f"{self._pointer(x)} restrict t_{x.name} = {place};")
        if main.type == "void":
            self._block(main.body)
        else:
            self._map_main(main)
        self._close()

    def _map_main(self, main: t.Function) -> None:
        """Print main under the guard that its texel exists, and store what it returns."""
        out, place = self.kernel.out.name, _name(main.args[0])
        self._line("int4 id = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);")
        self._open(f"if (id.x < d_{out}.x && id.y < d_{out}.y && id.z < d_{out}.z * d_{out}.w)")
        self._line(f"int4 {place} = (int4)(id.x, id.y, id.z % d_{out}.z, id.z / d_{out}.z);")
        self._block(main.body)
        store, index = _STORES[self.kinds[out]], f"k_at({place}, d_{out})"
        self._line(store.format(out, index, self._value(main.value)))
        self._close()

    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        for function in self.kernel.functions:
            self._helper_function(function)
        self._main(self.kernel.main)
        zero = [self._load_z(x) for x in self.kernel.tensors if f"k_z_{x.name}" in self.called]
        text = "\n".join([f"// {self.kernel.name}", _HELPERS, *zero, *self.lines, ""])
        return bind(self.kernel, self.dialect, text.encode(), self.kinds)

    def _load_z(self, tensor: t.Tensor) -> str:
        """Print the helper of ``load4z``: zero outside of the plane."""
        name, load = tensor.name, _LOADS[self.kinds[tensor.name]]
        value = load.format(name, "min((uint)k_at(p, d), k_last(d))")
        head = f"float4 k_z_{name}(int4 p, {self._pointer(tensor)} t_{name}, int4 d) {{"
        body = f"float4 v = {value};\n{INDENT}if (!k_in2(p, d)) v = (float4)(0.0f);"
        return f"{head}\n{INDENT}{body}\n{INDENT}return v;\n}}\n"


def literal(kind: str, value: Number) -> str:
    """Print a constant of a scalar type."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        text = f"({_INT_MIN + 1}-1)" if value == _INT_MIN else str(int(value))
    else:
        text = f"{float(value)!r}f"
    return f"({text})" if text[0] == "-" else text


def _pushed(kind: str, name: str) -> str:
    """Return the name of a value that is given with each dispatch."""
    return f"{'d' if kind == 'ivec4' else 'p'}_{name}"


def _name(variable: t.Local | t.Shared) -> str:
    """Return the name of a variable: no word of OpenCL C begins like it."""
    if isinstance(variable, t.Shared):
        return f"g_{variable.name}"
    return f"v{variable.uid}_{variable.name}"


def _size(expr: t.Expr) -> str:
    """Print an int expression of const and spec."""
    if isinstance(expr, t.Literal):
        return literal("int", expr.value)
    if isinstance(expr, t.Spec):
        return f"S_{expr.name}"
    if not isinstance(expr, t.Op):
        raise TypeError(f"{type(expr).__name__} is no size of an array")
    left, right = map(_size, expr.args)
    return f"({left} {expr.name} {right})"
