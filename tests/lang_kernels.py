"""Kernels of ints with what they should give, by numpy, and texts as a generator writes them.

Tensors hold float32, so an int travels as its upper and its lower 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge import lang

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

PATTERNS = 4096
EDGES = np.array(
    [0, 1, -1, 2, -2, 7, -7, 31, 255, -256, 65535, 65536, -65537, 2**24 - 1, 2**24 + 1, 2**30,
     -(2**30), 2**31 - 1, -(2**31), 2**31 - 2, -(2**31) + 1, 1518500250, 0x55555555, 0x3F800000],
    np.int32,
)  # fmt: skip


def _quotient(a: Ints, b: Ints) -> Ints:
    """Truncated, by exact arithmetic on 64 bits."""
    wide, by = a.astype(np.int64), b.astype(np.int64)
    return (np.abs(wide) // np.abs(by) * np.sign(wide) * np.sign(by)).astype(np.int32)


def _divisor(b: Ints) -> Ints:
    return np.where((b == 0) | (b == -1), np.int32(3), b)


Meaning = Callable[[Ints, Ints], Any]
INT_OPERATIONS: dict[str, Meaning] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a / d": lambda a, b: _quotient(a, _divisor(b)),
    "a % d": lambda a, b: a - _quotient(a, _divisor(b)) * _divisor(b),
    "a / 7": lambda a, b: _quotient(a, np.full_like(b, 7)),
    "a % -8": lambda a, b: a - _quotient(a, np.full_like(b, -8)) * -8,
    "a & b": lambda a, b: a & b,
    "-a": lambda a, b: -a,
    "a >> (b & 31)": lambda a, b: a >> (b & 31),
    "a * 128 >> 9": lambda a, b: a * np.int32(128) >> 9,
    "min(a, b) & max(a, 5)": lambda a, b: np.minimum(a, b) & np.maximum(a, 5),
    "a < b ? a & 1 : b >> 1": lambda a, b: np.where(a < b, a & 1, b >> 1),
}
"""Expressions of the ints a and b, with d the divisor that numpy's column has."""

_BODY = """kernel map ints;
in tensor A;
out tensor O;
vec4 main(ivec4 p) {{
    vec4 v = load4(A, p);
    int a = int(v.x) * 65536 + int(v.y);
    int b = int(v.z) * 65536 + int(v.w);
    int d = b == 0 || b == -1 ? 3 : b;
    int r = {0};
    ivec2 s = {1};
    return vec4(float(r >> 16 & 65535), float(r & 65535), float(s.x >> 16), float(s.x & 65535));
}}
"""


def int_kernel(expression: str) -> str:
    """Return a kernel that computes an expression of ints; vectors must do as numbers do."""
    vector = expression
    if not any(word in expression for word in ("?", "min")):
        for name in "abd":
            vector = vector.replace(name, f"ivec2({name}, {name})")
    else:
        vector = f"ivec2({expression})"
    return _BODY.format(expression, vector)


def int_patterns(seed: int = 3) -> tuple[Ints, Ints]:
    """Return pairs of ints: every pair of edges, then random ones of every size."""
    rng = np.random.default_rng(seed)
    a, b = (x.ravel() for x in np.meshgrid(EDGES, EDGES))
    missing = PATTERNS - a.size
    more = rng.integers(-(2**31), 2**31, (2, missing)) >> rng.integers(0, 31, (2, missing))
    return np.append(a, more[0].astype(np.int32)), np.append(b, more[1].astype(np.int32))


def halves(value: Ints) -> tuple[Ints, Ints]:
    """Return the upper and the lower 16 bits, neither of them negative."""
    return (value >> 16) & 65535, value & 65535


def int_texels() -> Floats:
    """Return the patterns as one row of texels."""
    a, b = int_patterns()
    columns = (*halves(a), *halves(b))
    return np.stack(columns, axis=-1).astype(np.float32).reshape(1, 1, 1, PATTERNS, 4)


def int_wanted(expression: str) -> Floats:
    """Return the texels that the kernel of an expression must give."""
    with np.errstate(over="ignore"):
        result = np.asarray(INT_OPERATIONS[expression](*int_patterns())).astype(np.int32)
    upper, lower = halves(result)
    columns = (upper, lower, result >> 16, lower)
    return np.stack(columns, axis=-1).astype(np.float32).reshape(1, 1, 1, PATTERNS, 4)


# --- as a generator writes them -------------------------------------------------------------------
def gather_kernel(tensors: int) -> str:
    """Return a map kernel that gathers from tensors, each by index arithmetic of its own."""
    lines = ["kernel map gathered;"]
    lines += [f"in tensor T{i};" for i in range(tensors)]
    lines += ["out tensor O;", "param int N;", "vec4 main(ivec4 p) {"]
    lines.append(
        "int q = ((p.w * dims(O).z + p.z) * dims(O).y + p.y) * dims(O).x + p.x; vec4 r = vec4(0.0);"
    )
    for i in range(tensors):
        # Column i of a table that is read transposed, shifted and padded.
        lines.append(f"vec4 c{i} = vec4(0.0);")
        lines.append("for (int k = 0; k < 2; k++) {")
        for lane in range(4):
            e, n = f"e{lane}", f"n{lane}"
            lines.append(f"int {e} = q * 4 + {lane}; int {n} = ({e} % {5 + i}) * {3 + i};")
            lines.append(f"int m{lane} = {n} + {e} / {5 + i} % {3 + i} + k - {i};")
            lines.append(
                f"c{i}.{'xyzw'[lane]} += m{lane} >= 0 && m{lane} < N ? load1(T{i}, m{lane}) : 0.5;"
            )
        lines.append(f"}} r += c{i} * {i + 1}.0;")
    return "\n".join([*lines, "return r;\n}"])


def gather_wanted(tensors: list[Floats], texels: int, n: int) -> Floats:
    """Return what `gather_kernel` gives."""
    e = np.arange(texels * 4)
    result = np.zeros(texels * 4, np.float32)
    for i, tensor in enumerate(tensors):
        flat = tensor.reshape(-1)
        for k in range(2):
            m = (e % (5 + i)) * (3 + i) + e // (5 + i) % (3 + i) + k - i
            inside = (m >= 0) & (m < n)
            value = np.where(inside, flat[np.clip(m, 0, flat.size - 1)], np.float32(0.5))
            result += value * np.float32(i + 1)
    return result


TABLE = """kernel map table;
in tensor A;
out tensor O;
param int N;
vec4 main(ivec4 p) {
    float w[3];
    w[0] = 1.0; w[1] = -2.0; w[2] = 4.0;
    vec4 best = vec4(-1000.0);
    int at = -1;
    int last = dims(A).x - 1;
    for (int i = 0; i < 3; i++) {
        vec4 v = load4(A, ivec4((p.x + i) % dims(A).x, 0, 0, 0)) * w[i];
        best = max(best, v);
    }
    for (int j = 0; j < N; j++) {
        float v = load4(A, ivec4(min(p.x + j, last), 0, 0, 0)).x;
        at = v > 2.0 ? j : at;
    }
    return vec4(best.xyz, float(at));
}
"""
"""A table of constants read by a loop's index, and two accumulators, one an int."""


def table_wanted(a: Floats, n: int) -> Floats:
    """Return what `TABLE` gives for one row of texels."""
    row = a.reshape(-1, 4)
    width = len(row)
    weights = np.array([1, -2, 4], np.float32)
    best = np.max([np.roll(row, -i, axis=0) * weights[i] for i in range(3)], axis=0)
    first = np.minimum(np.arange(width)[:, None] + np.arange(n), width - 1)
    hit = np.where(row[first, 0] > 2, np.arange(n), -1)
    best[:, 3] = hit.max(axis=1)
    return best


DOTS = """kernel map t;
in tensor A;
in tensor B;
out tensor O;
int word(vec4 v) {
    ivec4 i = ivec4(v);
    return (i.x & 255) + (i.y & 255) * 256 + (i.z & 255) * 65536 + i.w * 16777216;
}
vec4 main(ivec4 p) {
    int a = word(load4(A, p));
    int b = word(load4(B, p));
    return vec4(float(dot4(a, b)), vec3(dot4(a, ivec3(b, a, -1))));
}
"""
"""Packs signed bytes and multiplies them: with others, with the same, and with minus one."""


def dot_wanted(a: Floats, b: Floats) -> Floats:
    """Return what it stores, (texels, 4), for texels of signed bytes."""
    other, same = (a * b).sum(-1), (a * a).sum(-1)
    return np.stack([other, other, same, -a.sum(-1)], axis=-1)


LANES = (
    "kernel group t;\nin tensor A;\nout tensor O;\nconst int N = 4;\nlocal_size(N, 1, 1);\n"
    "void main() { int q = group_id().x * N + lane_id(); ivec2 who = ivec2(q, lane_id());\n"
    "vec4 v = texel(A, q); vec4 w = v * 2.0;\n"
    "for (int round = 0; round < dims(A).y; round++) { unroll for (int k = 0; k < N; k++) {\n"
    "ivec2 i = lane_value(who, k); float x = lane_value(w.x, k);\n"
    "storet(O, q * N + k, lane_value(v, k) + vec4(x, vec2(i), 0.0)); } } }"
)
"""Invocation i of a group stores at i * N + k what it takes from lane k."""


def lane_kernel(lanes: int) -> lang.Kernel:
    """Return the kernel that takes values from every lane of subgroups of so many."""
    return lang.load(LANES, filename="t", consts={"N": lanes})


def lane_values(x: Floats, lanes: int) -> Floats:
    """Return what it stores, (texels * lanes, 4), if A is `x`, (texels, 4)."""
    own = np.arange(len(x), dtype=np.float32)
    extra = np.stack([2 * x[:, 0], own, own % lanes, 0 * own], axis=1)
    groups: Floats = (x + extra).reshape(-1, 1, lanes, 4).astype(np.float32)
    return np.broadcast_to(groups, (len(groups), lanes, lanes, 4)).reshape(-1, 4)
