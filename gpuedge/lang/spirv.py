"""Kernels printed as SPIR-V 1.0 for Vulkan: no compiler is needed on the device.

One blob serves Vulkan 1.0 (with VK_KHR_storage_buffer_storage_class) and later; one with lanes of
subgroups is SPIR-V 1.3, for Vulkan 1.1. Values go from lane to lane by shuffles: llvmpipe makes
slower code of broadcasts. What matters and is easy to get wrong, because drivers accept it and
compute nonsense or crash: the workgroup size is a uvec3 whose parts are spec constants made
unsigned by an addition; barriers order workgroup memory (semantics 0x108); every load is clamped
into its tensor; branch conditions stay scalar while OpSelect on vectors takes a bool vector (SPIR-V
before 1.4); OpSRem and OpSMod take no negative operands (Vulkan, appendix A), so remainders are
made of divisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuedge.core.kernel import KernelBlob
from gpuedge.core.storage import (
    BYTE_BUFFERS,
    COPIED_AS,
    HALF_BUFFER,
    READ_AS,
    SIGNED_BUFFER,
    TEXTURE_ROW,
    TEXTURE_SHIFT,
)
from gpuedge.lang import spirv_module as s
from gpuedge.lang import tree as t
from gpuedge.lang.builtins import BUILTINS, TANH_LIMIT
from gpuedge.lang.interface import bind, push_args

_EXECUTION_LOCAL_SIZE = 17
_GL_COMPUTE = 5
_WORKGROUP_SCOPE, _WORKGROUP_ORDER = 2, 0x108  # AcquireRelease | WorkgroupMemory
_SUBGROUP_SCOPE = 3
_PACKED_BYTES = 0  # PackedVectorFormat4x8Bit
_SPEC_OPERATORS = {"+": s.I_ADD, "-": s.I_SUB, "*": s.I_MUL, "/": s.S_DIV, "%": s.S_REM}

# Opcodes for operands of float, int and bool; 0 where there is none.
_OPERATORS = {
    "+": (129, s.I_ADD, 0),
    "-": (131, s.I_SUB, 0),
    "*": (133, s.I_MUL, 0),
    "/": (136, s.S_DIV, 0),
    "==": (180, 170, 164),  # FOrdEqual, IEqual, LogicalEqual
    "!=": (183, 171, 165),  # FUnordNotEqual (true of NaN), INotEqual, LogicalNotEqual
    "<": (184, s.S_LESS_THAN, 0),
    ">": (186, 173, 0),
    "<=": (188, 179, 0),
    ">=": (190, 175, 0),
    "&&": (0, 0, s.LOGICAL_AND),
    "||": (0, 0, 166),
    "&": (0, s.BITWISE_AND, 0),
    ">>": (0, 195, 0),  # ShiftRightArithmetic
    "neg": (s.F_NEGATE, s.S_NEGATE, 0),
    "!": (0, 0, s.LOGICAL_NOT),
    "cast": (s.CONVERT_F_TO_S, s.CONVERT_S_TO_F, 0),
    "precision": (s.CONVERT_F_TO_F, 0, 0),  # a cast between float and half
}
_U_MIN, _F_CLAMP, _PACK_HALF, _UNPACK_HALF = 38, 43, 58, 62
_LOD = 2  # an image operand: the level of detail that follows
_ROLE = {kind: {"int": 1, "bool": 2}.get(base, 0) for kind, base in t.BASE.items()}


def print_kernel(kernel: t.Kernel, _dialect: str, storage: Mapping[str, str]) -> KernelBlob:
    """Print a kernel as a SPIR-V binary with one entry point, ``main``; tensors are buffers."""
    return _Printer(kernel, storage).blob()


class _Printer:
    """Prints a kernel; values are ids, and locals that are never assigned are plain ids too."""

    def __init__(self, kernel: t.Kernel, storage: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.storage = storage
        self.halves = {name for name, kind in storage.items() if kind == HALF_BUFFER}
        self.bytes = {name for name, kind in storage.items() if kind in BYTE_BUFFERS}
        textures, fetched = COPIED_AS.values(), (*READ_AS.values(), *COPIED_AS.values())
        self.textures = {name for name, kind in storage.items() if kind in textures}
        self.texels = {name for name, kind in storage.items() if kind in fetched}
        self.module = s.Module()
        self.functions: dict[str, int] = {}
        self.inputs: dict[int, int] = {}  # built-in inputs, listed by the entry point
        self.specs = {spec.name: self._spec(spec) for spec in kernel.specs}
        self.push = self._push_block()
        self.tensors = {tensor.name: self._tensor(tensor) for tensor in kernel.tensors}
        self.shared = {array.name: self._shared(array) for array in kernel.shared}
        self._workgroup_size()
        # Of the function that is being printed:
        self.variables: list[int] = []  # must stand first in the first block
        self.entry: list[int] = []  # after them: values used all over the function
        self.code: list[int] = []
        self.values: dict[int, int] = {}  # uid of a local -> its value, or its variable
        self.cached: dict[tuple[str | int, str | int], int] = {}
        self.printers: dict[type, Callable[[Any], int]] = {
            t.Literal: lambda e: self.module.constant(e.type, e.value),
            t.Spec: lambda e: self.specs[e.name],
            t.Param: self._param,
            t.LocalRef: self._local,
            t.Element: lambda e: self._op(s.LOAD, e.type, self._element(e.array, e.index, None)),
            t.Swizzle: self._swizzle,
            t.Op: self._operation,
            t.Load: self._load,
            t.Dims: lambda e: self._extents(e.tensor),
            t.Identifier: self._identifier,
            t.Lane: self._lane,
            t.Call: lambda e: self._op(
                s.FUNCTION_CALL, e.type, self.functions[e.function.name], *map(self._value, e.args)
            ),
        }

    # --- the interface ------------------------------------------------------------------------
    def _spec(self, spec: t.Spec) -> int:
        m = self.module
        if spec.type == "bool":
            opcode = s.SPEC_TRUE if spec.default else s.SPEC_FALSE
            constant = m.declare_typed(opcode, m.type("bool"))
        else:
            # The bits of the default are those of the ordinary constant.
            m.constant(spec.type, spec.default)
            constant = m.declare_typed(s.SPEC_CONSTANT, m.type(spec.type), m.globals[-1])
        m.decorate(constant, s.SPEC_ID, spec.spec_id)
        m.name(constant, spec.name)
        return constant

    def _push_block(self) -> int:
        m = self.module
        args, _ = push_args(self.kernel)
        block = m.declare(s.TYPE_STRUCT, *[m.type(arg.type) for arg in args])
        m.decorate(block, s.BLOCK)
        for index, arg in enumerate(args):
            m.decorate_member(block, index, s.OFFSET, arg.offset)
        variable = m.declare_typed(s.VARIABLE, m.pointer(s.PUSH_CONSTANT, block), s.PUSH_CONSTANT)
        m.name(variable, "push")
        return variable

    def _tensor(self, tensor: t.Tensor) -> int:
        m = self.module
        is_fetched = tensor.name in self.texels
        variable = self._image(tensor.name) if is_fetched else self._buffer(tensor)
        m.decorate(variable, s.DESCRIPTOR_SET, 0)
        m.decorate(variable, s.BINDING, tensor.binding)
        m.name(variable, tensor.name)
        return variable

    def _image(self, name: str) -> int:
        kind = self.module.pointer(s.UNIFORM_CONSTANT, self._image_type(name))
        return self.module.declare_typed(s.VARIABLE, kind, s.UNIFORM_CONSTANT)

    def _image_type(self, name: str) -> int:
        return self.module.texture() if name in self.textures else self.module.texel_buffer()

    def _buffer(self, tensor: t.Tensor) -> int:
        m = self.module
        # Decorations sit on the type, so each binding has a struct of its own.
        kind = "uvec2" if tensor.name in self.halves else "vec4"
        block = m.declare(s.TYPE_STRUCT, m.texels("int" if tensor.name in self.bytes else kind))
        m.decorate(block, s.BLOCK)
        m.decorate_member(block, 0, s.OFFSET, 0)
        variable = m.declare_typed(s.VARIABLE, m.pointer(s.STORAGE_BUFFER, block), s.STORAGE_BUFFER)
        m.decorate_member(block, 0, s.NON_WRITABLE if tensor.access == "read" else s.NON_READABLE)
        return variable

    def _shared(self, array: t.Shared) -> int:
        m = self.module
        kind = m.declare(s.TYPE_ARRAY, m.type(array.type), self._size(array.size))
        variable = m.declare_typed(s.VARIABLE, m.pointer(s.WORKGROUP, kind), s.WORKGROUP)
        m.name(variable, array.name)
        return variable

    def _size(self, expr: t.Expr) -> int:
        """Return a module-level constant for an int expression of const and spec."""
        m = self.module
        if isinstance(expr, t.Literal):
            return m.constant(expr.type, expr.value)
        if isinstance(expr, t.Spec):
            return self.specs[expr.name]
        if not isinstance(expr, t.Op):
            raise TypeError(f"{type(expr).__name__} is no size of an array")
        left, right = map(self._size, expr.args)
        return m.declare_typed(
            s.SPEC_OP, m.type(expr.type), _SPEC_OPERATORS[expr.name], left, right
        )

    def _workgroup_size(self) -> None:
        m = self.module
        uint = m.type("uint")
        zero = m.constant("uint", 0)
        # int + 0u is how a signed spec constant becomes the uint that the built-in must have.
        sizes = [
            m.declare_typed(s.SPEC_OP, uint, s.I_ADD, self._size(size), zero)
            for size in self.kernel.local_size
        ]
        whole = m.declare_typed(s.SPEC_COMPOSITE, m.type("uvec3"), *sizes)
        m.decorate(whole, s.BUILT_IN, s.WORKGROUP_SIZE)

    def _input_variable(self, built_in: int, kind: str) -> int:
        """Return the variable of a built-in input, declared at its first use."""
        if built_in not in self.inputs:
            m = self.module
            variable = m.declare_typed(s.VARIABLE, m.pointer(s.INPUT, m.type(kind)), s.INPUT)
            m.decorate(variable, s.BUILT_IN, built_in)
            self.inputs[built_in] = variable
        return self.inputs[built_in]

    # --- instructions -------------------------------------------------------------------------
    def _op(self, opcode: int, kind: str, *operands: int) -> int:
        """Append an instruction with a result of type `kind` and return its id."""
        m = self.module
        result = m.bound
        m.bound += 1
        type_id = m.known.get(kind) or m.type(kind)
        self.code += ((len(operands) + 3) << 16 | opcode, type_id, result, *operands)
        return result

    def _do(self, opcode: int, *operands: int) -> None:
        """Append an instruction without result."""
        self.code += ((len(operands) + 1) << 16 | opcode, *operands)

    def _chain(self, storage: int, kind: str, base: int, *indices: int) -> int:
        """Append an access chain to something of type `kind`."""
        m = self.module
        result = m.id()
        pointer = m.pointer(storage, m.type(kind))
        self.code += ((len(indices) + 4) << 16 | s.ACCESS_CHAIN, pointer, result, base, *indices)
        return result

    def _number(self, value: int) -> int:
        return self.module.constant("int", value)

    def _glsl(self, number: int, kind: str, *operands: int) -> int:
        """Append an instruction of GLSL.std.450."""
        return self._op(s.EXT_INST, kind, self.module.glsl, number, *operands)

    def _splat(self, kind: str, value: int) -> int:
        return self._op(s.COMPOSITE_CONSTRUCT, kind, *[value] * t.WIDTH[kind])

    # --- values known all over the function ---------------------------------------------------
    def _at_entry(self, key: tuple[str | int, str | int], make: Callable[[], int]) -> int:
        """Return a value computed once in the first block, where it dominates every use."""
        value = self.cached.get(key)
        if value is None:
            self.code, kept = self.entry, self.code
            value = self.cached[key] = make()
            self.entry, self.code = self.code, kept
        return value

    def _pushed(self, index: int, kind: str) -> int:
        def make() -> int:
            pointer = self._chain(s.PUSH_CONSTANT, kind, self.push, self._number(index))
            return self._op(s.LOAD, kind, pointer)

        return self._at_entry(("push", index), make)

    def _extents(self, tensor: t.Tensor) -> int:
        """Return the ivec4 (W, H, S, N) of a tensor."""
        return self._pushed(tensor.binding, "ivec4")

    def _extent(self, tensor: t.Tensor, axis: int) -> int:
        """Return one extent of a tensor."""
        value = self.cached.get((tensor.name, axis))
        if value is not None:
            return value
        whole = self._extents(tensor)
        return self._at_entry(
            (tensor.name, axis), lambda: self._op(s.COMPOSITE_EXTRACT, "int", whole, axis)
        )

    def _last(self, tensor: t.Tensor, per_texel: int = 1) -> int:
        """Return the largest index into a tensor, in texels or in floats."""
        sizes = [self._extent(tensor, axis) for axis in range(4)]

        def make() -> int:
            total = sizes[0]
            for size in (*sizes[1:], *([self._number(per_texel)] if per_texel > 1 else [])):
                total = self._op(s.I_MUL, "int", total, size)
            return self._op(s.I_SUB, "int", total, self._number(1))

        return self._at_entry((f"last {per_texel}", tensor.name), make)

    def _param(self, expr: t.Param) -> int:
        kernel = self.kernel
        return self._pushed(len(kernel.tensors) + kernel.params.index(expr), expr.type)

    def _identifier(self, expr: t.Identifier) -> int:
        if expr.name == "lane_id":
            self.module.needs(s.SUBGROUPS)
            return self._input(s.LANE_ID, "int")
        return self._input(s.LOCAL_ID if expr.name == "local_id" else s.WORKGROUP_ID)

    def _input(self, built_in: int, kind: str = "ivec3") -> int:
        def make() -> int:
            unsigned = "uint" if kind == "int" else "uvec3"
            value = self._op(s.LOAD, unsigned, self._input_variable(built_in, unsigned))
            return self._op(s.BITCAST, kind, value)

        return self._at_entry(("input", built_in), make)

    def _lane(self, expr: t.Lane) -> int:
        self.module.needs(s.SUBGROUPS, s.SUBGROUP_SHUFFLE)
        scope = self.module.constant("uint", _SUBGROUP_SCOPE)
        lane = self.module.constant("uint", expr.lane)
        return self._op(s.SHUFFLE, expr.type, scope, self._value(expr.value), lane)

    # --- expressions --------------------------------------------------------------------------
    def _value(self, expr: t.Expr) -> int:
        """Print an expression and return the id of its value."""
        return self.printers[type(expr)](expr)

    def _local(self, expr: t.LocalRef) -> int:
        known = self.values[expr.local.uid]
        return self._op(s.LOAD, expr.type, known) if expr.local.assigned else known

    def _element(
        self, array: t.Local | t.Shared, index: t.Expr | None, component: int | None
    ) -> int:
        """Return a pointer to a variable, an element of an array or one component of either."""
        if isinstance(array, t.Local) and isinstance(index, t.Literal) and component is None:
            key = (array.uid, int(index.value))
            return self.cached.get(key) or self._at_entry(key, lambda: self._chain(
                s.PRIVATE_FUNCTION, array.type, self.values[array.uid], self._value(index)
            ))  # fmt: skip
        indices = [] if index is None else [self._value(index)]
        kind = array.type
        if component is not None:
            indices.append(self._number(component))
            kind = t.BASE[kind]
        if isinstance(array, t.Shared):
            return self._chain(s.WORKGROUP, kind, self.shared[array.name], *indices)
        variable = self.values[array.uid]
        if not indices:
            return variable
        return self._chain(s.PRIVATE_FUNCTION, kind, variable, *indices)

    def _swizzle(self, expr: t.Swizzle) -> int:
        if len(expr.components) == 1:
            return self._component(expr.base, expr.components[0])
        base = self._value(expr.base)
        return self._op(s.VECTOR_SHUFFLE, expr.type, base, base, *expr.components)

    def _component(self, expr: t.Expr, index: int) -> int:
        """Return one component of a vector, without building the vector where that is easy."""
        if isinstance(expr, t.Op):
            if expr.name == "vector" and len(expr.args) == t.WIDTH[expr.type]:
                return self._value(expr.args[index])
            if expr.name == "splat":
                return self._value(expr.args[0])
        if isinstance(expr, t.Dims):
            return self._extent(expr.tensor, index)
        return self._op(s.COMPOSITE_EXTRACT, t.BASE[expr.type], self._value(expr), index)

    def _operation(self, expr: t.Op) -> int:
        name, args = expr.name, expr.args
        if name == "*" and expr.type[0] in "vh":
            for vector, scalar in (args, args[::-1]):
                if isinstance(scalar, t.Op) and scalar.name == "splat":
                    a, b = self._value(vector), self._value(scalar.args[0])
                    return self._op(s.VECTOR_TIMES_SCALAR, expr.type, a, b)
        printers = self.printers
        values = [printers[type(arg)](arg) for arg in args]
        role = _ROLE[args[0].type]
        if name == "cast" and "h" in (expr.type[0], args[0].type[0]):
            name = "precision"
        opcodes = _OPERATORS.get(name)
        if opcodes is not None:
            return self._op(opcodes[role], expr.type, *values)
        if name in BUILTINS:
            return self._builtin(name, role, expr.type, values)
        if name == "?:":
            return self._choose(expr.type, *values)
        if name != "%":  # a vector of parts, or of one repeated
            repeated = values * t.WIDTH[expr.type] if name == "splat" else values
            return self._op(s.COMPOSITE_CONSTRUCT, expr.type, *repeated)
        quotient = self._op(s.S_DIV, expr.type, *values)
        product = self._op(s.I_MUL, expr.type, quotient, values[1])
        return self._op(s.I_SUB, expr.type, values[0], product)

    def _builtin(self, name: str, role: int, kind: str, values: list[int]) -> int:
        if name == "dot4":
            return self._dot(kind, *values)
        if name == "tanh":
            values = [self._clamped(kind, values[0])]
        return self._glsl(BUILTINS[name].spirv[role], kind, *values)

    def _dot(self, kind: str, a: int, b: int) -> int:
        """Append the products of packed signed bytes, one for each component."""
        self.module.needs(s.DOT_PRODUCT, s.DOT_OF_PACKED_BYTES)
        width = t.WIDTH[kind]
        if width == 1:
            return self._op(s.S_DOT, kind, a, b, _PACKED_BYTES)
        parts = [[self._op(s.COMPOSITE_EXTRACT, "int", v, i) for v in (a, b)] for i in range(width)]
        sums = [self._op(s.S_DOT, "int", *part, _PACKED_BYTES) for part in parts]
        return self._op(s.COMPOSITE_CONSTRUCT, kind, *sums)

    def _choose(self, kind: str, condition: int, yes: int, no: int) -> int:
        """Append OpSelect; on vectors it needs a vector of bools."""
        width = t.WIDTH[kind]
        if width > 1:
            condition = self._op(s.COMPOSITE_CONSTRUCT, f"bvec{width}", *[condition] * width)
        return self._op(s.SELECT, kind, condition, yes, no)

    def _clamped(self, kind: str, value: int) -> int:
        limits = [self.module.constant("float", limit) for limit in (-TANH_LIMIT, TANH_LIMIT)]
        if kind != "float":
            limits = [self._splat(kind, limit) for limit in limits]
        return self._glsl(_F_CLAMP, kind, value, *limits)

    # --- tensors ------------------------------------------------------------------------------
    def _texel_index(self, tensor: t.Tensor, parts: list[int]) -> int:
        """Return ((n*S + s)*H + y)*W + x."""
        index = parts[3]
        for axis in (2, 1, 0):
            index = self._op(s.I_MUL, "int", index, self._extent(tensor, axis))
            index = self._op(s.I_ADD, "int", index, parts[axis])
        return index

    def _parts(self, position: t.Expr) -> list[int]:
        if isinstance(position, t.Op) and position.name == "vector" and len(position.args) == 4:
            return [self._component(position, axis) for axis in range(4)]
        whole = self._value(position)
        return [self._op(s.COMPOSITE_EXTRACT, "int", whole, axis) for axis in range(4)]

    def _load(self, expr: t.Load) -> int:
        tensor, variable = expr.tensor, self.tensors[expr.tensor.name]
        zero = self._number(0)
        if expr.name == "load1":
            at = self._glsl(_U_MIN, "int", self._value(expr.position), self._last(tensor, 4))
            texel = self._op(s.SHIFT_RIGHT, "int", at, self._number(2))
            component = self._op(s.BITWISE_AND, "int", at, self._number(3))
            if tensor.name in self.bytes:
                first = self._op(s.SHIFT_LEFT, "int", component, self._number(3))
                return self._byte(tensor, self._word(tensor, texel), first)
            if tensor.name in self.halves | self.texels:
                return self._op(s.VECTOR_EXTRACT, "float", self._texel(tensor, texel), component)
            pointer = self._chain(s.STORAGE_BUFFER, "float", variable, zero, texel, component)
            return self._op(s.LOAD, "float", pointer)
        inside = None
        if expr.name == "texel":
            index = self._value(expr.position)
        else:
            parts = self._parts(expr.position)
            index = self._texel_index(tensor, parts)
            if expr.name == "load4z":
                inside = self._inside(tensor, parts, 2)
        # As unsigned numbers, so that a negative index is out of range too.
        index = self._glsl(_U_MIN, "int", index, self._last(tensor))
        value = self._texel(tensor, index)
        if inside is None:
            return value
        nothing = self._at_entry(
            ("zero", "vec4"), lambda: self._splat("vec4", self.module.constant("float", 0.0))
        )
        return self._choose("vec4", inside, value, nothing)

    def _texel(self, tensor: t.Tensor, index: int) -> int:
        """Load the four values of a texel."""
        variable, zero = self.tensors[tensor.name], self._number(0)
        if tensor.name in self.texels:
            image = self._load_image(tensor.name, variable)
            if tensor.name not in self.textures:
                return self._op(s.IMAGE_FETCH, "vec4", image, index)
            x = self._op(s.BITWISE_AND, "int", index, self._number(TEXTURE_ROW - 1))
            y = self._op(s.SHIFT_RIGHT, "int", index, self._number(TEXTURE_SHIFT))
            place = self._op(s.COMPOSITE_CONSTRUCT, "ivec2", x, y)
            return self._op(s.IMAGE_FETCH, "vec4", image, place, _LOD, zero)
        if tensor.name in self.bytes:
            word = self._word(tensor, index)
            parts = [self._byte(tensor, word, self._number(8 * i)) for i in range(4)]
            return self._op(s.COMPOSITE_CONSTRUCT, "vec4", *parts)
        if tensor.name not in self.halves:
            pointer = self._chain(s.STORAGE_BUFFER, "vec4", variable, zero, index)
            return self._op(s.LOAD, "vec4", pointer)
        pointer = self._chain(s.STORAGE_BUFFER, "uvec2", variable, zero, index)
        packed = self._op(s.LOAD, "uvec2", pointer)
        words = (self._op(s.COMPOSITE_EXTRACT, "uint", packed, i) for i in (0, 1))
        pairs = [self._glsl(_UNPACK_HALF, "vec2", word) for word in words]
        return self._op(s.COMPOSITE_CONSTRUCT, "vec4", *pairs)

    def _word(self, tensor: t.Tensor, index: int) -> int:
        """Load the four bytes of a texel."""
        place = self.tensors[tensor.name], self._number(0), index
        return self._op(s.LOAD, "int", self._chain(s.STORAGE_BUFFER, "int", *place))

    def _byte(self, tensor: t.Tensor, word: int, first: int) -> int:
        """Return the byte that begins at a bit of a word, as a float."""
        if self.storage[tensor.name] == SIGNED_BUFFER:
            left = self._op(s.I_SUB, "int", self._number(24), first)
            high = self._op(s.SHIFT_LEFT, "int", word, left)
            byte = self._op(s.SHIFT_RIGHT_SIGNED, "int", high, self._number(24))
        else:
            low = self._op(s.SHIFT_RIGHT, "int", word, first)
            byte = self._op(s.BITWISE_AND, "int", low, self._number(255))
        return self._op(s.CONVERT_S_TO_F, "float", byte)

    def _load_image(self, name: str, variable: int) -> int:
        def make() -> int:
            m = self.module
            image = m.id()
            self.code += (4 << 16 | s.LOAD, self._image_type(name), image, variable)
            return image

        return self._at_entry(("image", name), make)

    def _inside(self, tensor: t.Tensor, parts: list[int], axes: int) -> int:
        """Return whether the first `axes` coordinates are in range; negative ones are not."""
        result = 0
        for axis in range(axes):
            fits = self._op(s.U_LESS_THAN, "bool", parts[axis], self._extent(tensor, axis))
            result = self._op(s.LOGICAL_AND, "bool", result, fits) if axis else fits
        return result

    def _write(self, tensor: t.Tensor, index: int, value: int) -> None:
        variable, kind = self.tensors[tensor.name], "vec4"
        if tensor.name in self.halves:
            kind = "uvec2"
            pairs = (self._op(s.VECTOR_SHUFFLE, "vec2", value, value, i, i + 1) for i in (0, 2))
            words = [self._glsl(_PACK_HALF, "uint", pair) for pair in pairs]
            value = self._op(s.COMPOSITE_CONSTRUCT, kind, *words)
        pointer = self._chain(s.STORAGE_BUFFER, kind, variable, self._number(0), index)
        self._do(s.STORE, pointer, value)

    # --- statements ---------------------------------------------------------------------------
    def _block(self, body: list[t.Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, t.Declare):
                self._declare(stmt)
            elif isinstance(stmt, t.Assign):
                value = self._value(stmt.value)
                self._do(s.STORE, self._element(stmt.target, stmt.index, stmt.component), value)
            elif isinstance(stmt, t.If):
                condition = self._value(stmt.condition)
                then = stmt.then
                self._branch(condition, lambda then=then: self._block(then), stmt.orelse)  # type: ignore[misc]
            elif isinstance(stmt, t.For):
                self._for(stmt)
            elif isinstance(stmt, t.Store):
                self._store(stmt)
            else:
                scope = self.module.constant("uint", _WORKGROUP_SCOPE)
                order = self.module.constant("uint", _WORKGROUP_ORDER)
                self._do(s.CONTROL_BARRIER, scope, scope, order)

    def _variable(self, local: t.Local) -> int:
        m = self.module
        kind = m.type(local.type)
        if local.size:
            kind = m.once(s.TYPE_ARRAY, kind, m.constant("uint", local.size))
        variable = m.id()
        pointer = m.pointer(s.PRIVATE_FUNCTION, kind)
        self.variables += (4 << 16 | s.VARIABLE, pointer, variable, s.PRIVATE_FUNCTION)
        self.values[local.uid] = variable
        return variable

    def _declare(self, stmt: t.Declare) -> None:
        value = None if stmt.value is None else self._value(stmt.value)
        if value is None or stmt.local.assigned:
            variable = self._variable(stmt.local)
            if value is not None:
                self._do(s.STORE, variable, value)
        else:
            self.values[stmt.local.uid] = value

    def _branch(self, condition: int, then: Callable[[], None], orelse: list[t.Stmt]) -> None:
        """Print both sides of a branch and where they meet again."""
        yes, merge = self.module.id(), self.module.id()
        no = self.module.id() if orelse else merge
        self._do(s.SELECTION_MERGE, merge, 0)
        self._do(s.BRANCH_CONDITIONAL, condition, yes, no)
        self._do(s.LABEL, yes)
        then()
        self._do(s.BRANCH, merge)
        if orelse:
            self._do(s.LABEL, no)
            self._block(orelse)
            self._do(s.BRANCH, merge)
        self._do(s.LABEL, merge)

    def _for(self, stmt: t.For) -> None:
        m = self.module
        start, bound, step = (self._value(e) for e in (stmt.start, stmt.bound, stmt.step))
        variable = self._variable(stmt.index)
        self._do(s.STORE, variable, start)
        header, check, body, resume, merge = (m.id() for _ in range(5))
        self._do(s.BRANCH, header)
        self._do(s.LABEL, header)
        self._do(s.LOOP_MERGE, merge, resume, 0)
        self._do(s.BRANCH, check)
        self._do(s.LABEL, check)
        index = self._op(s.LOAD, "int", variable)
        inside = self._op(s.S_LESS_THAN, "bool", index, bound)
        self._do(s.BRANCH_CONDITIONAL, inside, body, merge)
        self._do(s.LABEL, body)
        self.values[stmt.index.uid] = index  # one load per iteration: the body cannot change it
        self._block(stmt.body)
        self._do(s.BRANCH, resume)
        self._do(s.LABEL, resume)
        self._do(s.STORE, variable, self._op(s.I_ADD, "int", index, step))
        self._do(s.BRANCH, header)
        self._do(s.LABEL, merge)

    def _store(self, stmt: t.Store) -> None:
        tensor = stmt.tensor
        if stmt.name == "store4":
            parts = self._parts(stmt.position)
            inside = self._inside(tensor, parts, 4)
            index = self._texel_index(tensor, parts)
        else:
            index = self._value(stmt.position)
            one_more = self._op(s.I_ADD, "int", self._last(tensor), self._number(1))
            inside = self._op(s.U_LESS_THAN, "bool", index, one_more)
        value = self._value(stmt.value)
        self._branch(inside, lambda: self._write(tensor, index, value), [])

    # --- functions ----------------------------------------------------------------------------
    def _function(self, function: t.Function) -> int:
        """Append a function to the module and return its id."""
        m = self.module
        self.variables, self.entry, self.code = [], [], []
        self.values, self.cached = {}, {}
        is_main = function is self.kernel.main
        args = [] if is_main else function.args
        types = [m.type("void" if is_main else function.type), *(m.type(a.type) for a in args)]
        signature = m.once(s.TYPE_FUNCTION, *types)
        result = m.id()
        head = [5 << 16 | s.FUNCTION, types[0], result, 0, signature]
        for arg, arg_type in zip(args, types[1:], strict=True):
            self.values[arg.uid] = m.id()
            head += (3 << 16 | s.FUNCTION_PARAMETER, arg_type, self.values[arg.uid])
        head += (2 << 16 | s.LABEL, m.id())
        if is_main and function.result is not None:
            self._map_main()
        else:
            self._block(function.body)
        if is_main or function.result is None:
            self._do(s.RETURN)
        else:
            self._do(s.RETURN_VALUE, self._value(function.result))
        self._do(s.FUNCTION_END)
        m.functions += (*head, *self.variables, *self.entry, *self.code)
        m.name(result, self.kernel.name if is_main else function.name)
        return result

    def _map_main(self) -> None:
        """Print main under the guard that its texel exists, and store what it returns."""
        out = self.kernel.out
        invocation = self._input(s.GLOBAL_ID)
        x, y, z = (self._op(s.COMPOSITE_EXTRACT, "int", invocation, axis) for axis in range(3))
        planes = self._op(s.I_MUL, "int", self._extent(out, 2), self._extent(out, 3))
        inside = self._inside(out, [x, y], 2)
        fits = self._op(s.U_LESS_THAN, "bool", z, planes)
        inside = self._op(s.LOGICAL_AND, "bool", inside, fits)
        self._branch(inside, lambda: self._map_body(out, x, y, z), [])

    def _map_body(self, out: t.Tensor, x: int, y: int, z: int) -> None:
        slices = self._extent(out, 2)
        parts = [x, y, self._op(s.S_REM, "int", z, slices), self._op(s.S_DIV, "int", z, slices)]
        main = self.kernel.main
        self.values[main.args[0].uid] = self._op(s.COMPOSITE_CONSTRUCT, "ivec4", *parts)
        self._block(main.body)
        value = self._value(main.value)
        self._write(out, self._texel_index(out, parts), value)

    # --- the whole ----------------------------------------------------------------------------
    def blob(self) -> KernelBlob:
        """Print everything and return the blob."""
        m = self.module
        for function in self.kernel.functions:
            self.functions[function.name] = self._function(function)
        main = self._function(self.kernel.main)
        name = s.words_of("main")
        inputs = tuple(self.inputs.values())
        m.heads += ((3 + len(name) + len(inputs)) << 16 | s.ENTRY_POINT, _GL_COMPUTE, main)
        m.heads += (*name, *inputs)
        # A size that the WorkgroupSize built-in overrides; some tools insist on having one.
        m.heads += (6 << 16 | s.EXECUTION_MODE, main, _EXECUTION_LOCAL_SIZE, 1, 1, 1)
        return bind(self.kernel, "spirv", m.assemble(is_half=self.kernel.is_half), self.storage)
