"""How fragment shaders keep texels in textures: fetches, codecs and what a fragment stores.

Texts for ESSL 3.00 (indices are ints) and ESSL 1.00 (indices are floats below 2^24, exact).
Physical texel f lies at (f mod ROW, f div ROW); ROW is a power of two, so both are exact. RGBA8
stores byte k as (k + 0.25) / 255, which drivers that truncate and drivers that round keep alike,
and reads it as floor(v * 255 + 0.5). The ES 2.0 codec of float32 has no exp2 or log2, whose errors
differ between devices: it multiplies by powers of two, each an exact product, chosen bit by bit.
"""

from __future__ import annotations

from typing import Final

HELPERS_BOTH: Final = {
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
"""Helpers that read the same in both dialects; 0.00390625 is 1 / 256."""

HELPERS_300: Final = {
    **HELPERS_BOTH,
    "k_index": "uint k_index(int q, uint last) {\n    return min(uint(q), last);\n}",
    "k_at": "ivec2 k_at(uint f) {\n    return ivec2(f % uint(ROW), f / uint(ROW));\n}",
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
"""Helper functions of ESSL 3.00 by name."""

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
# 2 * s * s, and s is 2^(x - 63).
_FLOAT = """\
TYPE NAME(TYPE r, TYPE g, TYPE b, TYPE a) {
    TYPE negative = step(128.0, a);
    TYPE odd = step(128.0, b);
    TYPE x = a - 128.0 * negative + odd - 1.0;
    TYPE there = step(0.0, x);
    TYPE v = 1.0 + (((b - 128.0 * odd) * 256.0 + g) * 256.0 + r) * (1.0 / 8388608.0);
    v *= 2.0 - odd;
    TYPE bit = step(64.0, x);
    TYPE s = K_DOWN * (1.0 - bit) + 2.0 * bit;
    x -= 64.0 * bit;
STEPS    return v * s * s * (1.0 - 2.0 * negative) * there;
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


HELPERS_100: Final = {
    **HELPERS_BOTH,
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
"""Helper functions of ESSL 1.00 by name."""
