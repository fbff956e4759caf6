"""The words of the language: what may be called, what is reserved, and known traps."""

from __future__ import annotations

from gpuedge.lang.tree import BASE

MATH: dict[str, tuple[int, tuple[str, ...]]] = {
    "min": (2, ("float", "int")),
    "max": (2, ("float", "int")),
    "clamp": (3, ("float", "int")),
    "abs": (1, ("float", "int")),
    **dict.fromkeys(
        (
            "floor", "ceil", "sign", "exp", "log", "sqrt", "inversesqrt", "sin", "cos", "tanh",
            "roundeven",
        ),
        (1, ("float",)),
    ),
    "mix": (3, ("float",)),
    "step": (2, ("float",)),
    "pow": (2, ("float",)),
    "dot": (2, ("float",)),
}  # fmt: skip
"""Built-ins on numbers: how many arguments, and the base types they take, componentwise."""

ACCESS = {
    "load4": ("vec4", "ivec4"),
    "load4z": ("vec4", "ivec4"),
    "load1": ("float", "int"),
    "texel": ("vec4", "int"),
    "dims": ("ivec4", ""),
    "local_id": ("ivec3", ""),
    "group_id": ("ivec3", ""),
}
"""Built-ins that reach outside: result, and type of the position."""

STORES = {"store4": "ivec4", "storet": "int"}
"""Statements that write the out tensor: type of the position."""

KEYWORDS = frozenset(
    {
        "kernel", "map", "group", "in", "out", "tensor", "const", "spec", "param", "shared",
        "local_size", "emit", "if", "else", "for", "unroll", "return", "true", "false", "void",
        "barrier", "main", "LX", "LY", "LZ",
    }
)  # fmt: skip
RESERVED = KEYWORDS | BASE.keys() | MATH.keys() | ACCESS.keys() | STORES.keys()
"""Names that a text cannot declare (LX, LY, LZ only as specs of a group kernel)."""

_LOOP = "the one loop is for (int i = 0; i < N; i++) { ... } with a const, spec or param N"
_EXIT = "there is no early exit: use if / else, and one return at the end"
_TYPES = "the types are float vec2 vec3 vec4 int ivec2 ivec3 ivec4 bool"
TRAPS = {
    "while": _LOOP,
    "do": _LOOP,
    "break": _EXIT,
    "continue": _EXIT,
    "discard": _EXIT,
    "switch": "use if / else",
    "struct": _TYPES,
    "uint": _TYPES,
    "half": _TYPES,
    "double": _TYPES,
    "bvec2": _TYPES,
    "bvec4": _TYPES,
    "mat4": _TYPES,
    "qtensor": "only tensor is supported",
    "layout": "tensors are declared with in tensor T; or out tensor T;",
    "uniform": "write param int N; for a value per dispatch, spec int N = 1; per pipeline",
    "buffer": "tensors are declared with in tensor T; or out tensor T;",
    "define": "write const int N = 1;",
    "precision": "all arithmetic is 32 bits wide",
    "highp": "all arithmetic is 32 bits wide",
    "inout": "parameters are read only; return the value",
    "return": "a function has one return, its last statement",
    "round": "roundeven rounds to nearest, ties to even, on every device",
    "roundEven": "it is spelled roundeven",
    "fract": "write x - floor(x)",
    "mod": "write a - b * floor(a / b)",
    "fma": "write a * b + c",
    "length": "write sqrt(dot(v, v))",
    "exp2": "write exp(x * 0.6931471805599453)",
    "log2": "write log(x) * 1.4426950408889634",
    "tan": "write sin(x) / cos(x)",
    "isnan": "a NaN is what is not equal to itself: x != x",
    "select": "write condition ? a : b",
    "gl_GlobalInvocationID": "map kernels get p; group kernels have group_id() and local_id()",
}
"""What to write instead of a word of GLSL that the language does not have."""
