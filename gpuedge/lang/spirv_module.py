"""A SPIR-V module under construction: ids, types, constants and sections in the required order.

Opcode and enumerant numbers are those of the SPIR-V specification (Khronos, unified1, section 3)
and of its extended instruction set GLSL.std.450.
"""

from __future__ import annotations

import struct
from array import array

from gpuedge.lang.tree import BASE

# Instructions.
NAME, MEMBER_NAME, EXTENSION, EXT_INST_IMPORT, EXT_INST, MEMORY_MODEL = 5, 6, 10, 11, 12, 14
ENTRY_POINT, EXECUTION_MODE, CAPABILITY = 15, 16, 17
TYPE_VOID, TYPE_BOOL, TYPE_INT, TYPE_FLOAT, TYPE_VECTOR, TYPE_IMAGE = 19, 20, 21, 22, 23, 25
TYPE_ARRAY, TYPE_RUNTIME_ARRAY, TYPE_STRUCT, TYPE_POINTER, TYPE_FUNCTION = 28, 29, 30, 32, 33
CONSTANT_TRUE, CONSTANT_FALSE, CONSTANT = 41, 42, 43
SPEC_TRUE, SPEC_FALSE, SPEC_CONSTANT, SPEC_COMPOSITE, SPEC_OP = 48, 49, 50, 51, 52
FUNCTION, FUNCTION_PARAMETER, FUNCTION_END, FUNCTION_CALL = 54, 55, 56, 57
VARIABLE, LOAD, STORE, ACCESS_CHAIN, DECORATE, MEMBER_DECORATE = 59, 61, 62, 65, 71, 72
VECTOR_EXTRACT, VECTOR_SHUFFLE, COMPOSITE_CONSTRUCT, COMPOSITE_EXTRACT = 77, 79, 80, 81
IMAGE_FETCH = 95
CONVERT_F_TO_S, CONVERT_S_TO_F, CONVERT_F_TO_F, BITCAST = 110, 111, 115, 124
S_NEGATE, F_NEGATE, I_ADD, I_SUB, I_MUL, S_DIV, S_REM = 126, 127, 128, 130, 132, 135, 138
VECTOR_TIMES_SCALAR = 142
LOGICAL_AND, LOGICAL_NOT, SELECT, U_LESS_THAN, S_LESS_THAN = 167, 168, 169, 176, 177
SHIFT_RIGHT, SHIFT_RIGHT_SIGNED, SHIFT_LEFT, BITWISE_AND = 194, 195, 196, 199
CONTROL_BARRIER, LOOP_MERGE, SELECTION_MERGE, LABEL = 224, 246, 247, 248
BRANCH, BRANCH_CONDITIONAL, RETURN, RETURN_VALUE = 249, 250, 253, 254
SHUFFLE = 345  # OpGroupNonUniformShuffle
S_DOT = 4450

# Enumerants: storage classes, decorations, built-ins.
UNIFORM_CONSTANT, INPUT, UNIFORM, WORKGROUP, PRIVATE_FUNCTION = 0, 1, 2, 4, 7
PUSH_CONSTANT, STORAGE_BUFFER = 9, 12
SPEC_ID, BLOCK, BUFFER_BLOCK, ARRAY_STRIDE, BUILT_IN, NON_WRITABLE, NON_READABLE = (
    1,
    2,
    3,
    6,
    11,
    24,
    25,
)
BINDING, DESCRIPTOR_SET, OFFSET = 33, 34, 35
WORKGROUP_SIZE, WORKGROUP_ID, LOCAL_ID, GLOBAL_ID, LANE_ID = 25, 26, 27, 28, 41

# Capabilities: those of SPIR-V 1.3 are of subgroups, those from 6018 on of an extension.
SHADER, FLOAT16, SAMPLED_BUFFER, SUBGROUPS, SUBGROUP_SHUFFLE = 1, 9, 46, 61, 65
DOT_OF_PACKED_BYTES, DOT_PRODUCT = 6018, 6019
_EXTENSIONS = {
    SHADER: "SPV_KHR_storage_buffer_storage_class",
    DOT_PRODUCT: "SPV_KHR_integer_dot_product",
}

MAGIC, _VERSION_1_0, _VERSION_1_3 = 0x07230203, 0x00010000, 0x00010300


def words_of(text: str) -> list[int]:
    """Return a literal string: UTF-8, ended by at least one zero byte, padded to whole words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


class Module:
    """Collects instructions per section; equal types and constants share an id."""

    def __init__(self) -> None:
        self.bound = 1
        self.heads: list[int] = []  # entry point and execution modes
        self.names: list[int] = []
        self.decorations: list[int] = []
        self.globals: list[int] = []  # types, constants, global variables
        self.functions: list[int] = []
        self.known: dict[str | tuple[object, ...], int] = {}
        self.capabilities = [SHADER]
        self.glsl = self.id()

    def id(self) -> int:
        """Return a fresh id."""
        self.bound += 1
        return self.bound - 1

    def name(self, target: int, text: str) -> None:
        """Give an id a name for people who read the module."""
        words = words_of(text)
        self.names += ((len(words) + 2) << 16 | NAME, target, *words)

    def decorate(self, target: int, *what: int) -> None:
        """Decorate an id."""
        self.decorations += ((len(what) + 2) << 16 | DECORATE, target, *what)

    def decorate_member(self, target: int, member: int, *what: int) -> None:
        """Decorate a member of a struct type."""
        self.decorations += ((len(what) + 3) << 16 | MEMBER_DECORATE, target, member, *what)

    def declare(self, opcode: int, *operands: int) -> int:
        """Append a type or other global whose first operand is its result."""
        result = self.id()
        self.globals += ((len(operands) + 2) << 16 | opcode, result, *operands)
        return result

    def declare_typed(self, opcode: int, kind: int, *operands: int) -> int:
        """Append a constant or global variable of type `kind`."""
        result = self.id()
        self.globals += ((len(operands) + 3) << 16 | opcode, kind, result, *operands)
        return result

    def once(self, opcode: int, *operands: int) -> int:
        """Return the type with these operands, declared at its first use."""
        key = (opcode, *operands)
        if key not in self.known:
            self.known[key] = self.declare(opcode, *operands)
        return self.known[key]

    def type(self, kind: str) -> int:
        """Return the id of a type of the language, ``uint``, ``uvec3``, ``bvec4`` or ``void``."""
        type_id = self.known.get(kind)
        if type_id is None:
            type_id = self.known[kind] = self._type(kind)
        return type_id

    def _type(self, kind: str) -> int:
        if kind == "void":
            return self.declare(TYPE_VOID)
        if kind == "bool":
            return self.declare(TYPE_BOOL)
        if kind in ("int", "uint"):
            return self.declare(TYPE_INT, 32, kind == "int")
        if kind in ("float", "half"):
            return self.declare(TYPE_FLOAT, 32 if kind == "float" else 16)
        base = BASE.get(kind, "uint" if kind[0] == "u" else "bool")
        return self.declare(TYPE_VECTOR, self.type(base), int(kind[-1]))

    def texels(self, kind: str = "vec4") -> int:
        """Return the type of an unsized array of texels, such as uvec2 for two pairs of halves."""
        key, stride = f"texels {kind}", {"vec4": 16, "uvec2": 8, "int": 4}[kind]
        if key not in self.known:
            self.known[key] = self.declare(TYPE_RUNTIME_ARRAY, self.type(kind))
            self.decorate(self.known[key], ARRAY_STRIDE, stride)
        return self.known[key]

    def texel_buffer(self) -> int:
        """Return the type of a texel buffer of floats that kernels read."""
        if "texel buffer" not in self.known:
            self.needs(SAMPLED_BUFFER)
            # dimension Buffer; no depth, not arrayed, one sample, sampled, of any format
            kind = self.declare(TYPE_IMAGE, self.type("float"), 5, 0, 0, 0, 1, 0)
            self.known["texel buffer"] = kind
        return self.known["texel buffer"]

    def texture(self) -> int:
        """Return the type of a texture of floats that kernels read."""
        return self.once(TYPE_IMAGE, self.type("float"), 1, 0, 0, 0, 1, 0)

    def needs(self, *capabilities: int) -> None:
        """Declare what a device must be capable of."""
        self.capabilities += [c for c in capabilities if c not in self.capabilities]

    def pointer(self, storage: int, kind: int) -> int:
        """Return the type of pointers to `kind` in a storage class."""
        return self.once(TYPE_POINTER, storage, kind)

    def constant(self, kind: str, value: float) -> int:
        """Return a scalar constant; equal bits share an id."""
        if kind == "bool":
            bits = int(value)
        elif kind == "float":
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
        elif kind == "half":  # the high half of the word is zero
            bits = struct.unpack("<H", struct.pack("<e", value))[0]
        else:
            bits = int(value) & 0xFFFFFFFF
        key = (kind, bits)
        result = self.known.get(key)
        if result is None:
            if kind == "bool":
                opcode = CONSTANT_TRUE if value else CONSTANT_FALSE
                result = self.declare_typed(opcode, self.type(kind))
            else:
                result = self.declare_typed(CONSTANT, self.type(kind), bits)
            self.known[key] = result
        return result

    def assemble(self, *, is_half: bool = False) -> bytes:
        """Return the finished module, little-endian; `is_half` where it has float16."""
        extensions = [words_of(_EXTENSIONS[c]) for c in self.capabilities if c in _EXTENSIONS]
        library = words_of("GLSL.std.450")
        version = _VERSION_1_3 if SUBGROUPS in self.capabilities else _VERSION_1_0
        head = [
            *(MAGIC, version, 0, self.bound, 0),
            *(word for c in self.capabilities for word in (2 << 16 | CAPABILITY, c)),
            *((2 << 16 | CAPABILITY, FLOAT16) if is_half else ()),
            *(word for e in extensions for word in ((len(e) + 1) << 16 | EXTENSION, *e)),
            *((len(library) + 2) << 16 | EXT_INST_IMPORT, self.glsl, *library),
            *(3 << 16 | MEMORY_MODEL, 0, 1),  # Logical, GLSL450
        ]
        sections = (head, self.heads, self.names, self.decorations, self.globals, self.functions)
        words = array("I")
        for section in sections:
            words.fromlist(section)
        if struct.pack("=I", 1) != struct.pack("<I", 1):
            words.byteswap()
        return words.tobytes()
