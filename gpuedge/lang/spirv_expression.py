"""Expressions as SPIR-V: every value an id, tensor extents loaded once per function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuedge.lang import spirv_module as s
from gpuedge.lang import tree as t

if TYPE_CHECKING:
    from gpuedge.lang.spirv import KernelPrinter

# (float, int) opcodes of arithmetic; (float, int, bool) of comparisons and logic.
_ARITHMETIC = {
    "+": (129, s.I_ADD),
    "-": (131, s.I_SUB),
    "*": (133, s.I_MUL),
    "/": (136, s.S_DIV),
    "%": (0, s.S_REM),
}
_COMPARE = {
    "==": (180, 170, 164),  # FOrdEqual, IEqual, LogicalEqual
    "!=": (183, 171, 165),  # FUnordNotEqual (true of NaN), INotEqual, LogicalNotEqual
    "<": (184, s.S_LESS_THAN, 0),
    ">": (186, 173, 0),
    "<=": (188, 179, 0),
    ">=": (190, 175, 0),
    "&&": (0, 0, s.LOGICAL_AND),
    "||": (0, 0, 166),
}
_GLSL = {
    "roundeven": (2, 2), "abs": (4, 5), "sign": (6, 7), "floor": (8, 8), "ceil": (9, 9),
    "sin": (13, 13), "cos": (14, 14), "tanh": (21, 21), "pow": (26, 26), "exp": (27, 27),
    "log": (28, 28), "sqrt": (31, 31), "inversesqrt": (32, 32), "min": (37, 39), "max": (40, 42),
    "clamp": (43, 45), "mix": (46, 46), "step": (48, 48),
}  # fmt: skip
"""GLSL.std.450 instruction for float and for int operands."""
_U_MIN, _F_CLAMP = 38, 43
_TANH_LIMIT = 15.0  # tanh(15) is 1 in float32; drivers that divide sinh by cosh overflow at 89
_ROLE = {"float": 0, "int": 1, "bool": 2}


class ExpressionPrinter:
    """Prints expressions into `code`, and what all of a function needs into `entry`."""

    def __init__(self, kernel: KernelPrinter, function: t.Function) -> None:
        self.kernel = kernel
        self.function = function
        self.module = kernel.module
        self.variables: list[int] = []  # must stand first in the first block
        self.entry: list[int] = []  # after them: values used all over the function
        self.code: list[int] = []
        self.values: dict[int, int] = {}  # uid of a local -> its value, or its variable
        self.cached: dict[tuple[str, str | int], int] = {}
        self.position: tuple[list[int], int] | None = None
        self.printers: dict[type, Callable[[Any], int]] = {
            t.Literal: lambda e: self.module.constant(e.type, e.value),
            t.SpecRef: lambda e: self.kernel.specs[e.spec.name],
            t.ParamRef: self._param,
            t.LocalRef: self._local,
            t.Element: lambda e: self.op(s.LOAD, e.type, self._element(e)),
            t.Swizzle: self._swizzle,
            t.Unary: self._unary,
            t.Binary: self._binary,
            t.Select: self._select,
            t.Construct: lambda e: self.op(
                s.COMPOSITE_CONSTRUCT, e.type, *(self.value(a) for a in e.args)
            ),
            t.Splat: lambda e: self._splat(e.type, self.value(e.value)),
            t.Cast: self._cast,
            t.Builtin: self._builtin,
            t.Load: self._load,
            t.Dims: lambda e: self.extents(e.tensor),
            t.Identifier: self._identifier,
            t.Call: lambda e: self.op(
                s.FUNCTION_CALL,
                e.type,
                self.kernel.functions[e.function.name],
                *(self.value(a) for a in e.args),
            ),
        }

    # --- instructions -------------------------------------------------------------------------
    def op(self, opcode: int, kind: str, *operands: int) -> int:
        """Append an instruction with a result of type `kind` and return its id."""
        result = self.module.id()
        self.code += (
            (len(operands) + 3) << 16 | opcode, self.module.type(kind), result, *operands,
        )  # fmt: skip
        return result

    def do(self, opcode: int, *operands: int) -> None:
        """Append an instruction without result."""
        self.code += ((len(operands) + 1) << 16 | opcode, *operands)

    def chain(self, storage: int, kind: str, base: int, *indices: int) -> int:
        """Append an access chain to something of type `kind`."""
        m = self.module
        result = m.id()
        pointer = m.pointer(storage, m.type(kind))
        self.code += ((len(indices) + 4) << 16 | s.ACCESS_CHAIN, pointer, result, base, *indices)
        return result

    def label(self, label: int) -> None:
        """Begin a block."""
        self.do(s.LABEL, label)

    def number(self, value: int) -> int:
        """Return an int constant."""
        return self.module.constant("int", value)

    def glsl(self, number: int, kind: str, *operands: int) -> int:
        """Append an instruction of GLSL.std.450."""
        return self.op(s.EXT_INST, kind, self.module.glsl, number, *operands)

    def _splat(self, kind: str, value: int) -> int:
        return self.op(s.COMPOSITE_CONSTRUCT, kind, *[value] * t.WIDTH[kind])

    # --- values known all over the function ---------------------------------------------------
    def _at_entry(self, key: tuple[str, str | int], make: Callable[[], int]) -> int:
        """Return a value computed once in the first block, where it dominates every use."""
        if key not in self.cached:
            self.code, kept = self.entry, self.code
            self.cached[key] = make()
            self.entry, self.code = self.code, kept
        return self.cached[key]

    def _push(self, index: int, kind: str) -> int:
        return self._at_entry(
            ("push", index),
            lambda: self.op(
                s.LOAD,
                kind,
                self.chain(s.PUSH_CONSTANT, kind, self.kernel.push, self.number(index)),
            ),
        )

    def extents(self, tensor: t.Tensor) -> int:
        """Return the ivec4 (W, H, S, N) of a tensor."""
        return self._push(tensor.binding, "ivec4")

    def extent(self, tensor: t.Tensor, axis: int) -> int:
        """Return one extent of a tensor."""
        whole = self.extents(tensor)
        return self._at_entry(
            (tensor.name, axis), lambda: self.op(s.COMPOSITE_EXTRACT, "int", whole, axis)
        )

    def _last(self, tensor: t.Tensor, per_texel: int = 1) -> int:
        """Return the largest index into a tensor, in texels or in floats."""
        sizes = [self.extent(tensor, axis) for axis in range(4)]

        def make() -> int:
            total = sizes[0]
            for size in (*sizes[1:], *([self.number(per_texel)] if per_texel > 1 else [])):
                total = self.op(s.I_MUL, "int", total, size)
            return self.op(s.I_SUB, "int", total, self.number(1))

        return self._at_entry((f"last {per_texel}", tensor.name), make)

    def _param(self, expr: t.ParamRef) -> int:
        kernel = self.kernel.kernel
        return self._push(len(kernel.tensors) + kernel.params.index(expr.param), expr.type)

    def _identifier(self, expr: t.Identifier) -> int:
        built_in = s.LOCAL_ID if expr.name == "local_id" else s.WORKGROUP_ID
        return self._input(built_in)

    def _input(self, built_in: int) -> int:
        return self._at_entry(
            ("input", built_in),
            lambda: self.op(
                s.BITCAST, "ivec3", self.op(s.LOAD, "uvec3", self.kernel.input(built_in))
            ),
        )

    # --- expressions --------------------------------------------------------------------------
    def value(self, expr: t.Expr) -> int:
        """Print an expression and return the id of its value."""
        return self.printers[type(expr)](expr)

    def _local(self, expr: t.LocalRef) -> int:
        known = self.values[expr.local.uid]
        return self.op(s.LOAD, expr.type, known) if expr.local.assigned else known

    def _element(self, expr: t.Element | t.Assign) -> int:
        """Return a pointer to an array element, or to one component of it."""
        array = expr.array if isinstance(expr, t.Element) else expr.target
        indices = [] if expr.index is None else [self.value(expr.index)]
        kind = array.type
        if isinstance(expr, t.Assign) and expr.component is not None:
            indices.append(self.number(expr.component))
            kind = t.BASE[kind]
        if isinstance(array, t.Shared):
            return self.chain(s.WORKGROUP, kind, self.kernel.shared[array.name], *indices)
        variable = self.values[array.uid]
        if not indices:
            return variable
        return self.chain(s.PRIVATE_FUNCTION, kind, variable, *indices)

    def _swizzle(self, expr: t.Swizzle) -> int:
        if len(expr.components) == 1:
            return self.component(expr.base, expr.components[0])
        base = self.value(expr.base)
        return self.op(s.VECTOR_SHUFFLE, expr.type, base, base, *expr.components)

    def component(self, expr: t.Expr, index: int) -> int:
        """Return one component of a vector, without building the vector where that is easy."""
        if isinstance(expr, t.Construct) and len(expr.args) == t.WIDTH[expr.type]:
            return self.value(expr.args[index])
        if isinstance(expr, t.Splat):
            return self.value(expr.value)
        if isinstance(expr, t.Dims):
            return self.extent(expr.tensor, index)
        return self.op(s.COMPOSITE_EXTRACT, t.BASE[expr.type], self.value(expr), index)

    def _unary(self, expr: t.Unary) -> int:
        value = self.value(expr.value)
        if expr.op == "!":
            return self.op(s.LOGICAL_NOT, "bool", value)
        is_float = t.BASE[expr.type] == "float"
        return self.op(s.F_NEGATE if is_float else s.S_NEGATE, expr.type, value)

    def _binary(self, expr: t.Binary) -> int:
        op, left, right = expr.op, expr.left, expr.right
        if op == "*" and expr.type.startswith("vec"):
            for vector, scalar in ((left, right), (right, left)):
                if isinstance(scalar, t.Splat):
                    a, b = self.value(vector), self.value(scalar.value)
                    return self.op(s.VECTOR_TIMES_SCALAR, expr.type, a, b)
        role = _ROLE[t.BASE[left.type]]
        opcode = _COMPARE[op][role] if op in _COMPARE else _ARITHMETIC[op][role]
        a = self.value(left)
        return self.op(opcode, expr.type, a, self.value(right))

    def _select(self, expr: t.Select) -> int:
        condition = self.value(expr.condition)
        yes, no = self.value(expr.yes), self.value(expr.no)
        return self.choose(expr.type, condition, yes, no)

    def choose(self, kind: str, condition: int, yes: int, no: int) -> int:
        """Append OpSelect; on vectors it needs a vector of bools."""
        width = t.WIDTH[kind]
        if width > 1:
            condition = self.op(s.COMPOSITE_CONSTRUCT, f"bvec{width}", *[condition] * width)
        return self.op(s.SELECT, kind, condition, yes, no)

    def _cast(self, expr: t.Cast) -> int:
        to_float = t.BASE[expr.type] == "float"
        opcode = s.CONVERT_S_TO_F if to_float else s.CONVERT_F_TO_S
        return self.op(opcode, expr.type, self.value(expr.value))

    def _builtin(self, expr: t.Builtin) -> int:
        args = [self.value(arg) for arg in expr.args]
        if expr.name == "dot":
            return self.op(s.DOT, "float", *args)
        if expr.name == "tanh":
            args = [self._clamped(expr.type, args[0])]
        number = _GLSL[expr.name][_ROLE[t.BASE[expr.type]]]
        return self.glsl(number, expr.type, *args)

    def _clamped(self, kind: str, value: int) -> int:
        limits = [self.module.constant("float", limit) for limit in (-_TANH_LIMIT, _TANH_LIMIT)]
        if kind != "float":
            limits = [self._splat(kind, limit) for limit in limits]
        return self.glsl(_F_CLAMP, kind, value, *limits)

    # --- tensors ------------------------------------------------------------------------------
    def _texel_index(self, tensor: t.Tensor, parts: list[int]) -> int:
        """Return ((n*S + s)*H + y)*W + x."""
        index = parts[3]
        for axis in (2, 1, 0):
            index = self.op(s.I_MUL, "int", index, self.extent(tensor, axis))
            index = self.op(s.I_ADD, "int", index, parts[axis])
        return index

    def _parts(self, position: t.Expr) -> list[int]:
        if not isinstance(position, t.Construct | t.Splat):
            whole = self.value(position)
            return [self.op(s.COMPOSITE_EXTRACT, "int", whole, axis) for axis in range(4)]
        if len(getattr(position, "args", ())) == 4:
            return [self.component(position, axis) for axis in range(4)]
        whole = self.value(position)
        return [self.op(s.COMPOSITE_EXTRACT, "int", whole, axis) for axis in range(4)]

    def _load(self, expr: t.Load) -> int:
        tensor, variable = expr.tensor, self.kernel.tensors[expr.tensor.name]
        zero = self.number(0)
        if expr.name == "load1":
            at = self.glsl(_U_MIN, "int", self.value(expr.position), self._last(tensor, 4))
            texel = self.op(s.SHIFT_RIGHT, "int", at, self.number(2))
            component = self.op(s.BITWISE_AND, "int", at, self.number(3))
            pointer = self.chain(s.STORAGE_BUFFER, "float", variable, zero, texel, component)
            return self.op(s.LOAD, "float", pointer)
        inside = None
        if expr.name == "texel":
            index = self.value(expr.position)
        else:
            parts = self._parts(expr.position)
            index = self._texel_index(tensor, parts)
            if expr.name == "load4z":
                inside = self._inside(tensor, parts, 2)
        # As unsigned numbers, so that a negative index is out of range too.
        index = self.glsl(_U_MIN, "int", index, self._last(tensor))
        pointer = self.chain(s.STORAGE_BUFFER, "vec4", variable, zero, index)
        value = self.op(s.LOAD, "vec4", pointer)
        if inside is None:
            return value
        nothing = self._at_entry(
            ("zero", "vec4"), lambda: self._splat("vec4", self.module.constant("float", 0.0))
        )
        return self.choose("vec4", inside, value, nothing)

    def _inside(self, tensor: t.Tensor, parts: list[int], axes: int) -> int:
        """Return whether the first `axes` coordinates are in range; negative ones are not."""
        result = 0
        for axis in range(axes):
            fits = self.op(s.U_LESS_THAN, "bool", parts[axis], self.extent(tensor, axis))
            result = self.op(s.LOGICAL_AND, "bool", result, fits) if axis else fits
        return result

    def _write(self, tensor: t.Tensor, index: int, value: int) -> None:
        variable = self.kernel.tensors[tensor.name]
        pointer = self.chain(s.STORAGE_BUFFER, "vec4", variable, self.number(0), index)
        self.do(s.STORE, pointer, value)
