"""Texts of ESSL (the OpenGL ES shading language): helper functions, declarations, loads and stores.

Every load goes through one function per tensor and way of access, with the texel number clamped
into the tensor. The number of the last texel is a global that main sets first, so that it is
computed once.

Textures: physical texel f lies at (f mod ROW, f div ROW); ROW is a power of two, so both are exact.
In ESSL 3.00 it is that of f div 4, in layer f mod 4: a fragment draws to four layers.
RGBA8 stores byte k as (k + 0.25) / 255, which drivers that truncate and drivers that round keep
alike, and reads it as floor(v * 255 + 0.5). The ES 2.0 codec of float32 has no exp2 or log2, whose
errors differ between devices: it multiplies by powers of two, each an exact product, chosen bit by
bit.

In ESSL 1.00 ints are floats, which count exactly up to 2^24; tensors of a device of this level are
small enough for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuedge.core.storage import (
    BUFFER,
    HALF_BUFFER,
    KINDS,
    LAYERS,
    SIGNED_BUFFER,
    TEXEL_KINDS,
    UNSIGNED_BUFFER,
)
from gpuedge.lang.tree import VECTOR, Tensor

# --- ints where there are none, and what old compilers lack ---------------------------------------
# For whole a and b below 2^24, however poorly the driver divides: one correction for the quotient,
# one for what its own rounding leaves. k_div takes a >= 0 and b > 0; k_idiv truncates.
_DIVIDE_NATURAL = """\
TYPE NAME(TYPE a, TYPE b) {
    TYPE q = floor(a / b);
    q += floor((a - q * b) / b);
    TYPE r = a - q * b;
    return q + step(b, r) - (1.0 - step(0.0, r));
}"""
_DIVIDE = """\
TYPE NAME(TYPE a, TYPE b) {
    return sign(a) * sign(b) * DIV(abs(a), abs(b));
}"""
_REMAINDER = """\
TYPE NAME(TYPE a, TYPE b) {
    return a - b * IDIV(a, b);
}"""
_INT_REMAINDER = """\
TYPE NAME(TYPE a, TYPE b) {
    return a - a / b * b;
}"""
_ROUND = """\
float k_roundeven(float x) {
    float f = floor(x);
    float d = x - f;
    float odd = f - 2.0 * floor(f * 0.5);
    return d > 0.5 ? f + 1.0 : (d == 0.5 ? f + odd : f);
}"""
# Below 1/4 the Taylor polynomial, whose next term is below 2^-26 of the result.
_TANH = """\
float k_tanh(float x) {
    float s = x * x;
    float near = x + x * s * (s * (s * (s * 0.0218694885 - 0.0539682540) + 0.133333333)
        - 0.333333333);
    float e = exp(-2.0 * min(abs(x), 15.0));
    float far = (1.0 - e) / (1.0 + e);
    return abs(x) < 0.25 ? near : (x < 0.0 ? -far : far);
}"""


def _by_width(texts: dict[str, str], base: str) -> Iterator[tuple[str, str]]:
    """Yield division helpers for numbers and vectors by name; those of vectors end in the width."""
    for n in ("", "2", "3", "4"):
        kind = VECTOR[base, int(n or 1)]
        for name, text in texts.items():
            helper = text.replace("TYPE", kind).replace("NAME", f"{name}{n}")
            helper = helper.replace("IDIV", f"k_idiv{n}").replace("DIV", f"k_div{n}")
            yield f"{name}{n}", helper


def _for_vectors(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a helper for a number, and those for vectors that call it."""
    yield name, text
    for n in (2, 3, 4):
        parts = ", ".join(f"{name}(x.{c})" for c in "xyzw"[:n])
        yield f"{name}{n}", f"vec{n} {name}{n}(vec{n} x) {{\n    return vec{n}({parts});\n}}"


# Read the same in both dialects; 0.00390625 is 1 / 256.
_HELPERS_BOTH: Final = {
    "k_bytes": "vec4 k_bytes(vec4 v) {\n    return floor(v * 255.0 + 0.5);\n}",
    "k_stored": "vec4 k_stored(vec4 k) {\n    return (k + 0.25) / 255.0;\n}",
    "k_fixed4": """\
vec4 k_fixed4(vec4 a, vec4 b, vec4 about) {
    vec4 low = k_bytes(vec4(a.xz, b.xz));
    vec4 high = k_bytes(vec4(a.yw, b.yw));
    return about.z + about.w * (high * 256.0 + low);
}""",
    "k_unfixed": """\
vec4 k_unfixed(vec2 v, vec4 about) {
    vec2 k = (v - about.z) / (about.w > 0.0 ? about.w : 1.0);
    k = clamp(floor(k + 0.5), 0.0, 65535.0);
    vec2 high = floor(k * 0.00390625);
    vec2 low = k - high * 256.0;
    return k_stored(vec4(low.x, high.x, low.y, high.y));
}""",
}

_LAYERS: Final = LAYERS["essl300"]
_HELPERS_300: Final = {
    **_HELPERS_BOTH,
    **dict(_by_width({"k_mod": _INT_REMAINDER}, "int")),
    "k_index": "uint k_index(int q, uint last) {\n    return min(uint(q), last);\n}",
    "k_at": """\
vec2 k_at(uint f, vec4 about) {
    return (vec2(f % uint(ROW), f / uint(ROW)) + 0.5) * about.xy;
}""",
    "k_float4": """\
vec4 k_float4(vec4 r, vec4 g, vec4 b, vec4 a) {
    uvec4 low = uvec4(k_bytes(r)) | uvec4(k_bytes(g)) << 8;
    return uintBitsToFloat(low | uvec4(k_bytes(b)) << 16 | uvec4(k_bytes(a)) << 24);
}""",
    "k_float1": """\
float k_float1(vec4 v) {
    uvec4 k = uvec4(k_bytes(v));
    return uintBitsToFloat(k.x | k.y << 8 | k.z << 16 | k.w << 24);
}""",
    "k_unfloat": """\
vec4 k_unfloat(float v) {
    uint k = floatBitsToUint(v);
    return k_stored(vec4(k & 255u, k >> 8 & 255u, k >> 16 & 255u, k >> 24));
}""",
}

# Divisions by what is no constant are slow on rasterisers.
_NEXT: Final = {
    "k_right": """\
ivec2 k_right(ivec2 p, ivec2 d) {
    ivec2 q = p.x + 1 < d.x ? ivec2(p.x + 1, p.y) : ivec2(0, p.y + 1);
    return q.y < d.y ? q : p;
}""",
    "k_next": """\
ivec4 k_next(ivec4 p, ivec4 d) {
    ivec2 q = p.x + 1 < d.x ? ivec2(p.x + 1, p.y) : ivec2(0, p.y + 1);
    ivec2 s = q.y < d.y ? p.zw : (p.z + 1 < d.z ? ivec2(p.z + 1, p.w) : ivec2(0, p.w + 1));
    return s.y < d.w ? ivec4(q.x, q.y < d.y ? q.y : 0, s) : p;
}""",
}
_IN_LAYERS: Final = f"""\
vec3 k_at(uint f, vec4 about) {{
    uint place = f / {_LAYERS}u;
    vec2 at = vec2(place % uint(ROW), place / uint(ROW)) + 0.5;
    return vec3(at * about.xy, f % {_LAYERS}u);
}}"""

_UNFLOAT = """\
vec4 k_unfloat(float v) {
    float a = abs(v);
    float up = a < 1.0 ? K_UP : 1.0;
    a = a * up * up;
    float e = a < 1.0 ? 0.0 : (up > 1.0 ? 1.0 : 127.0);
    float bit = step(K_64, a);
    a *= (1.0 - bit) + K_DOWN64 * bit;
    e += 64.0 * bit;
STEPS    float finite = a < 2.0 ? 1.0 : 0.0;
    float m = e > 0.0 ? (a - 1.0) * 8388608.0 : 0.0;
    m = finite > 0.0 ? m : (a >= 2.0 ? 0.0 : 4194304.0);
    e = finite > 0.0 ? e : 255.0;
    float half_e = floor(e * 0.5);
    float high = floor(m * (1.0 / 65536.0));
    float rest = m - high * 65536.0;
    float mid = floor(rest * 0.00390625);
    return k_stored(vec4(rest - mid * 256.0, mid, high + 128.0 * (e - 2.0 * half_e),
        half_e + (v < 0.0 ? 128.0 : 0.0)));
}"""

# Compilers move constant factors about (Mesa 22.3: a later "* 0.75" into the middle of this), so
# no factor here is a constant, and products stay between 1 and the result: a value half way may
# not be denormal, which becomes zero, or infinite, unless the result is. 2^(e - 127) is s * s or
# 2 * s * s, and s is 2^(x - 63); where exp2 of whole numbers was found to be exact (EXP2), it is
# that, which takes half the time. Infinity comes of it as it stands. The last factor is 0 for zero
# and for NaN, which infinity times 0 is; it is no product of comparisons, which Mesa would make a
# choice between infinity and 0.
_FLOAT = """\
TYPE NAME(TYPE r, TYPE g, TYPE b, TYPE a) {
    TYPE negative = step(128.0, a);
    TYPE odd = step(128.0, b);
    TYPE v = 1.0 + (((b - 128.0 * odd) * 256.0 + g) * 256.0 + r) * (1.0 / 8388608.0);
#ifdef EXP2
    TYPE n = (a - 128.0 * negative) * 2.0 + odd;
    TYPE there = min(n, min(255.0 - n + step(-1.0, -v), 1.0));
    return v * exp2(n - 127.0) * (1.0 - 2.0 * negative) * there;
#else
    TYPE x = a - 128.0 * negative + odd - 1.0;
    TYPE there = min(x + 1.0, min(128.0 - x - odd + step(-1.0, -v), 1.0));
    v *= 2.0 - odd;
    TYPE bit = step(64.0, x);
    TYPE s = K_DOWN * (1.0 - bit) + 2.0 * bit;
    x -= 64.0 * bit;
STEPS    return v * s * s * (1.0 - 2.0 * negative) * there;
#endif
}"""

_POWERS: Final = (
    # bits of the exponent, the power of two it stands for, and its reciprocal
    (64, "K_64", "K_DOWN64"),
    (32, "4294967296.0", "(1.0 / 4294967296.0)"),
    (16, "65536.0", "(1.0 / 65536.0)"),
    (8, "256.0", "0.00390625"),
    (4, "16.0", "0.0625"),
    (2, "4.0", "0.25"),
    (1, "2.0", "0.5"),
)


def _decode(kind: str, name: str) -> str:
    steps = "".join(
        f"    bit = step({n}.0, x);\n    s *= (1.0 - bit) + {power} * bit;\n"
        + (f"    x -= {n}.0 * bit;\n" if n > 1 else "")
        for n, power, _ in _POWERS[1:]
    )
    return _FLOAT.replace("NAME", name).replace("TYPE", kind).replace("STEPS", steps)


def _encode() -> str:
    steps = "".join(
        f"    bit = step({power}, a);\n"
        f"    a *= (1.0 - bit) + {down} * bit;\n"
        f"    e += {n}.0 * bit;\n"
        for n, power, down in _POWERS[1:]
    )
    return _UNFLOAT.replace("STEPS", steps)


_HELPERS_100: Final = {
    **dict(_for_vectors("k_roundeven", _ROUND)),
    **dict(_for_vectors("k_tanh", _TANH)),
    **dict(_by_width({"k_div": _DIVIDE_NATURAL, "k_idiv": _DIVIDE, "k_mod": _REMAINDER}, "float")),
    **_HELPERS_BOTH,
    # 2^63, 2^64 and their inverses from small factors: exact however a driver reads literals
    "k_powers": """\
const float K_UP = 65536.0 * 65536.0 * 65536.0 * 32768.0;
const float K_DOWN = 1.0 / 65536.0 / 65536.0 / 65536.0 / 32768.0;
const float K_64 = 65536.0 * 65536.0 * 65536.0 * 65536.0;
const float K_DOWN64 = 1.0 / 65536.0 / 65536.0 / 65536.0 / 65536.0;""",
    "k_index": """\
float k_index(float q, float last) {
    return q < 0.0 ? last : min(q, last);
}""",
    "k_at": """\
vec2 k_at(float f, vec4 about) {
    float y = floor(f * (1.0 / ROW));
    return (vec2(f - y * ROW, y) + 0.5) * about.xy;
}""",
    "k_pick": """\
float k_pick(vec4 v, float i) {
    return i < 2.0 ? (i < 1.0 ? v.x : v.y) : (i < 3.0 ? v.z : v.w);
}""",
    "k_decoded4": _decode("vec4", "k_decoded4"),
    "k_decoded1": _decode("float", "k_decoded1"),
    "k_float4": """\
vec4 k_float4(vec4 r, vec4 g, vec4 b, vec4 a) {
    return k_decoded4(k_bytes(r), k_bytes(g), k_bytes(b), k_bytes(a));
}""",
    "k_float1": """\
float k_float1(vec4 v) {
    vec4 k = k_bytes(v);
    return k_decoded1(k.x, k.y, k.z, k.w);
}""",
    "k_unfloat": _encode(),
}


# --- dialects ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What a dialect calls things.

    `whole` is the type of an int and `index` that of a texel number once it is clamped, whose
    literals end in `suffix`. `kinds` are the storage kinds it can print, `default` the one where
    none is given, and `helpers` its helper functions, callees first.
    """

    dialect: str
    version: str
    whole: str
    whole4: str
    index: str
    suffix: str
    default: str
    kinds: frozenset[str]
    helpers: dict[str, str]

    @property
    def layers(self) -> int:
        """Layers of a texture."""
        return LAYERS.get(self.dialect, 1)

    @property
    def is_old(self) -> bool:
        """Whether this is ESSL 1.00, where ints are floats."""
        return self.index == "float"

    def number(self, value: int) -> str:
        """Print a literal of an index."""
        return f"{value}{self.suffix}"

    def divided(self, value: str, units: int) -> str:
        """Print an index divided by a power of two, rounded down."""
        if units == 1:
            return value
        return f"floor({value} * {1 / units})" if self.is_old else f"{value} / {units}u"

    def remainder(self, value: str, units: int, quotient: str) -> str:
        """Print what the division by `units` leaves."""
        return f"{value} - {units}.0 * {quotient}" if self.is_old else f"{value} % {units}u"


_POSITION: Final = """\
{w4} k_position({w} q, {w4} d) {{
    {w} row = {row};
    {w} plane = {plane};
    {w} n = {n};
    return {w4}(q - row * d.x, row - plane * d.y, plane - n * d.z, n);
}}"""


def _position(whole: str, whole4: str, form: str) -> dict[str, str]:
    quotients = {
        "row": form.format("q", "d.x"),
        "plane": form.format("row", "d.y"),
        "n": form.format("plane", "d.z"),
    }
    return {"k_position": _POSITION.format(w=whole, w4=whole4, **quotients)}


_HALVES: Final = """vec4 k_halves(uvec2 h) {
    return vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y));
}"""
_UNHALVES: Final = """uvec2 k_unhalves(vec4 v) {
    return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
}"""
_UNSIGNED: Final = """vec4 k_unsigned(uint word) {
    return vec4(uvec4(word, word >> 8, word >> 16, word >> 24) & 255u);
}"""
_SIGNED: Final = """vec4 k_signed(uint word) {
    return vec4(ivec4(word << 24, word << 16, word << 8, word) >> 24);
}"""
# What compute shaders need of the helpers for textures.
_BUFFERS: Final = {
    "k_index": _HELPERS_300["k_index"],
    "k_halves": _HALVES,
    "k_unhalves": _UNHALVES,
    "k_unsigned": _UNSIGNED,
    "k_signed": _SIGNED,
    **dict(_by_width({"k_mod": _INT_REMAINDER}, "int")),
}
_BUFFER_TYPES: Final = {
    BUFFER: "vec4", HALF_BUFFER: "uvec2", UNSIGNED_BUFFER: "uint", SIGNED_BUFFER: "uint"
}  # fmt: skip
_UNPACKING: Final = {
    HALF_BUFFER: "k_halves", UNSIGNED_BUFFER: "k_unsigned", SIGNED_BUFFER: "k_signed"
}  # fmt: skip
_TEXTURES: Final = frozenset(KINDS) - frozenset(_BUFFER_TYPES)

TEXEL_HEAD: Final = (
    "#extension GL_EXT_texture_buffer : enable",
    "#extension GL_OES_texture_buffer : enable",
)
"""Makes samplers of texel buffers known to ESSL 3.10, by the name that a driver knows them by: what
it does not know is a warning."""

ESSL310: Final = Level(
    "essl310", "310 es", "int", "ivec4", "uint", "u", BUFFER,
    frozenset(_BUFFER_TYPES) | TEXEL_KINDS, _BUFFERS,
)  # fmt: skip
ESSL300: Final = Level(
    "essl300", "300 es", "int", "ivec4", "uint", "u", "rgba32f", _TEXTURES,
    _HELPERS_300 | _position("int", "ivec4", "{} / {}") | {"k_at": _IN_LAYERS} | _NEXT,
)  # fmt: skip
ESSL300_SINGLE: Final = Level(
    "essl300_single", "300 es", "int", "ivec4", "uint", "u", "rgba32f", _TEXTURES,
    _HELPERS_300 | _position("int", "ivec4", "{} / {}"),
)  # fmt: skip
ESSL100: Final = Level(
    "essl100", "100", "float", "vec4", "float", ".0", "rgba8_float", _TEXTURES - {"rgba32ui"},
    _HELPERS_100 | _position("float", "vec4", "k_div({}, {})"),
)  # fmt: skip


def declaration(level: Level, tensor: Tensor, kind: str) -> list[str]:
    """Return the lines that declare a tensor and the values that come with it."""
    name = tensor.name
    lines = [f"uniform highp {level.whole4} d_{name};"]
    if kind in _BUFFER_TYPES:
        access = "readonly" if tensor.access == "read" else "writeonly"
        head = f"layout(std430, binding = {tensor.binding}) {access} buffer B_{name} {{"
        lines += [head, f"    highp {_BUFFER_TYPES[kind]} b_{name}[];", "};"]
    elif tensor.access == "read":
        lines.append(f"uniform highp {_sampler(level, kind)} t_{name};")
    if kind in _TEXTURES and (kind == "rgba8_fixed16" or tensor.access == "read"):
        lines.append(f"uniform highp vec4 i_{name};")
    return [*lines, f"{level.index} n_{name};"]


def _sampler(level: Level, kind: str) -> str:
    if kind in TEXEL_KINDS:
        return "samplerBuffer"
    name = "sampler2D" if level.layers == 1 else "sampler2DArray"
    return f"u{name}" if kind == "rgba32ui" else name


def count(level: Level, name: str) -> str:
    """Return the statement that computes the number of the last texel."""
    texels = " * ".join(f"d_{name}.{axis}" for axis in "xyzw")
    if level.is_old:
        return f"n_{name} = {texels} - 1.0;"
    return f"n_{name} = uint({texels} - 1);"


@lru_cache(maxsize=256)
def accesses(level: Level, name: str, kind: str, *, is_read: bool) -> dict[str, str]:
    """Return the functions that reach a tensor, by name, callees first."""
    whole, whole4 = level.whole, level.whole4
    number = (
        f"{whole} k_number_{name}({whole4} p) {{\n"
        f"    return ((p.w * d_{name}.z + p.z) * d_{name}.y + p.y) * d_{name}.x + p.x;\n}}"
    )
    if not is_read:
        return {f"k_number_{name}": number, **_stores(level, name, kind)}
    zero = level.number(0) if level.is_old else "0"
    inside = " && ".join(f"p.{axis} >= {zero} && p.{axis} < d_{name}.{axis}" for axis in "xy")
    load4z = (
        f"vec4 k_load4z_{name}({whole4} p) {{\n"
        f"    bool inside = {inside};\n"
        f"    vec4 v = k_load4_{name}(p);\n"
        f"    return inside ? v : vec4(0.0);\n}}"
    )
    return {
        f"k_number_{name}": number,
        f"k_texel_{name}": _texel(level, name, kind),
        f"k_load1_{name}": _load1(level, name, kind),
        f"k_load4_{name}": (
            f"vec4 k_load4_{name}({whole4} p) {{\n"
            f"    return k_texel_{name}(k_number_{name}(p));\n}}"
        ),
        f"k_load4z_{name}": load4z,
        f"k_component_texel_{name}": (
            f"float k_component_texel_{name}({whole} q, {whole} component) {{\n"
            f"    return k_load1_{name}({level.number(4) if level.is_old else 4} * q "
            f"+ component);\n}}"
        ),
        f"k_component_load4_{name}": (
            f"float k_component_load4_{name}({whole4} p, {whole} component) {{\n"
            f"    return k_component_texel_{name}(k_number_{name}(p), component);\n}}"
        ),
        f"k_component_load4z_{name}": (
            f"float k_component_load4z_{name}({whole4} p, {whole} component) {{\n"
            f"    float v = k_component_load4_{name}(p, component);\n"
            f"    return {inside} ? v : 0.0;\n}}"
        ),
    }


def _units(kind: str) -> int:
    """Return how many physical texels hold one logical texel."""
    return 1 if kind in TEXEL_KINDS else KINDS[kind].units


def _fetch(level: Level, name: str, at: str, step: int = 0) -> str:
    """Print a fetch, `step` physical texels further on than `at`."""
    if level.is_old:
        return f"texture2D(t_{name}, {at}{f' + vec2({step}.0 * i_{name}.x, 0.0)' if step else ''})"
    ahead = f"vec2({step}.0 * i_{name}.x, 0.0)"
    if level.layers > 1:
        ahead = f"vec3(0.0, 0.0, {step}.0)"
    return f"textureLod(t_{name}, {f'{at} + {ahead}' if step else at}, 0.0)"


def _at(name: str, index: str) -> str:
    return f"k_at({index}, i_{name})"


def _whole_texel(level: Level, name: str, kind: str, index: str) -> str:
    """Print the four values of a kind that has them in one physical texel."""
    if kind in _BUFFER_TYPES:
        text, helper = f"b_{name}[{index}]", _UNPACKING.get(kind)
        return text if helper is None else f"{helper}({text})"
    if kind in TEXEL_KINDS:
        return f"texelFetch(t_{name}, int({index}))"
    fetched = _fetch(level, name, _at(name, index))
    if kind == "rgba32ui":
        return f"uintBitsToFloat({fetched})"
    if kind == "rgba8_u8":
        return f"k_bytes({fetched})"
    return f"k_bytes({fetched}) - 128.0" if kind == "rgba8_s8" else fetched


def _texel(level: Level, name: str, kind: str) -> str:
    head = f"vec4 k_texel_{name}({level.whole} q) {{\n"
    index = f"k_index(q, n_{name})"
    units = _units(kind)
    if units == 1:
        return f"{head}    return {_whole_texel(level, name, kind, index)};\n}}"
    place = "vec2" if level.layers == 1 else "vec3"
    lines = [f"{place} at = {_at(name, f'{level.number(units)} * {index}')};"]
    lines += [f"vec4 {'abcd'[j]} = {_fetch(level, name, 'at', j)};" for j in range(units)]
    if kind == "rgba8_fixed16":
        lines.append(f"return k_fixed4(a, b, i_{name});")
    else:
        parts = ", ".join(f"vec4(a.{c}, b.{c}, c.{c}, d.{c})" for c in "xyzw")
        lines.append(f"return k_float4({parts});")
    return head + "".join(f"    {line}\n" for line in lines) + "}"


def _load1(level: Level, name: str, kind: str) -> str:
    last = f"{level.number(4)} * n_{name} + {level.number(3)}"
    lines = [f"{level.index} i = k_index(e, {last});"]
    units = _units(kind)
    if kind == "rgba8_float":
        lines.append(f"return k_float1({_fetch(level, name, _at(name, 'i'))});")
    elif kind == "rgba8_fixed16":
        lines.append(f"{level.index} f = {level.divided('i', units)};")
        lines.append(f"vec4 k = k_bytes({_fetch(level, name, _at(name, 'f'))});")
        second = f"{level.remainder('i', units, 'f')} > {level.number(0)}"
        lines.append(f"vec2 one = {second} ? k.zw : k.xy;")
        lines.append(f"return i_{name}.z + i_{name}.w * (one.y * 256.0 + one.x);")
    else:
        lines.append(f"{level.index} f = {level.divided('i', 4)};")
        component = level.remainder("i", 4, "f")
        if kind == BUFFER:
            lines.append(f"return b_{name}[f][{component}];")
        elif kind == UNSIGNED_BUFFER:
            lines.append(f"return float(b_{name}[f] >> 8u * ({component}) & 255u);")
        elif kind == SIGNED_BUFFER:
            lines.append(f"return float(int(b_{name}[f] << 24u - 8u * ({component})) >> 24);")
        else:
            lines.append(f"vec4 v = {_whole_texel(level, name, kind, 'f')};")
            lines.append(f"return {_pick(level, 'v', component)};")
    head = f"float k_load1_{name}({level.whole} e) {{\n"
    return head + "".join(f"    {line}\n" for line in lines) + "}"


def _pick(level: Level, vector: str, component: str) -> str:
    return f"k_pick({vector}, {component})" if level.is_old else f"{vector}[{component}]"


def _stores(level: Level, name: str, kind: str) -> dict[str, str]:
    """Return the guarded stores of a compute shader; a fragment shader has none."""
    if kind not in _BUFFER_TYPES:
        return {}
    value = stored(level, name, kind, "v")
    inside = " && ".join(f"p.{axis} >= 0 && p.{axis} < d_{name}.{axis}" for axis in "xyzw")
    return {
        f"k_store4_{name}": (
            f"void k_store4_{name}(ivec4 p, vec4 v) {{\n    if ({inside}) {{\n"
            f"        b_{name}[k_number_{name}(p)] = {value};\n    }}\n}}"
        ),
        f"k_storet_{name}": (
            f"void k_storet_{name}(int q, vec4 v) {{\n    if (uint(q) <= n_{name}) {{\n"
            f"        b_{name}[q] = {value};\n    }}\n}}"
        ),
    }


def stored(level: Level, name: str, kind: str, value: str, unit: str = "0") -> str:
    """Return the expression that is written for the vec4 `value` to its `unit` physical texel."""
    if kind == HALF_BUFFER:
        return f"k_unhalves({value})"
    if kind == "rgba32ui":
        return f"floatBitsToUint({value})"
    if kind == "rgba8_float":
        return f"k_unfloat({_pick(level, value, unit)})"
    if kind == "rgba8_fixed16":
        return f"k_unfixed({unit} > {level.number(0)} ? {value}.zw : {value}.xy, i_{name})"
    if kind in ("rgba8_u8", "rgba8_s8"):
        offset = " + 128.0" if kind == "rgba8_s8" else ""
        return f"k_stored(clamp(floor({value} + 0.5){offset}, 0.0, 255.0))"
    return value
