"""How a kernel's text reaches its tensors in each ESSL dialect: declarations, loads and stores.

Every load goes through one function per tensor and way of access, with the texel number clamped
into the tensor. The number of the last texel is a global that main sets first, so that it is
computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuedge.core.storage import BUFFER, KINDS
from gpuedge.lang import essl100
from gpuedge.lang import tree as t
from gpuedge.lang.essl_storage import HELPERS_100, HELPERS_300


@dataclass(frozen=True, slots=True)
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


# What compute shaders need of the helpers for textures.
_BUFFERS: Final = {"k_index": HELPERS_300["k_index"]}
_TEXTURES: Final = frozenset(KINDS) - {BUFFER}

ESSL310: Final = Level(
    "essl310", "310 es", "int", "ivec4", "uint", "u", BUFFER, frozenset({BUFFER}), _BUFFERS
)
ESSL300: Final = Level(
    "essl300", "300 es", "int", "ivec4", "uint", "u", "rgba32f", _TEXTURES,
    HELPERS_300 | _position("int", "ivec4", "{} / {}"),
)  # fmt: skip
ESSL100: Final = Level(
    "essl100", "100", "float", "vec4", "float", ".0", "rgba8_float", _TEXTURES - {"rgba32ui"},
    essl100.HELPERS | HELPERS_100 | _position("float", "vec4", "k_div({}, {})"),
)  # fmt: skip


def declaration(level: Level, tensor: t.Tensor, kind: str) -> list[str]:
    """Return the lines that declare a tensor and the values that come with it."""
    name = tensor.name
    lines = [f"uniform highp {level.whole4} d_{name};"]
    if kind == BUFFER:
        access = "readonly" if tensor.access == "read" else "writeonly"
        head = f"layout(std430, binding = {tensor.binding}) {access} buffer B_{name} {{"
        lines += [head, f"    highp vec4 b_{name}[];", "};"]
    elif tensor.access == "read":
        sampler = "usampler2D" if kind == "rgba32ui" else "sampler2D"
        lines.append(f"uniform highp {sampler} t_{name};")
    if kind == "rgba8_fixed16" or (level.is_old and tensor.access == "read"):
        lines.append(f"uniform highp vec4 i_{name};")
    return [*lines, f"{level.index} n_{name};"]


def count(level: Level, name: str) -> str:
    """Return the statement that computes the number of the last texel."""
    texels = " * ".join(f"d_{name}.{axis}" for axis in "xyzw")
    if level.is_old:
        return f"n_{name} = {texels} - 1.0;"
    return f"n_{name} = uint({texels} - 1);"


def accesses(level: Level, tensor: t.Tensor, kind: str) -> dict[str, str]:
    """Return the functions that reach a tensor, by name, callees first."""
    name, whole, whole4 = tensor.name, level.whole, level.whole4
    number = (
        f"{whole} k_number_{name}({whole4} p) {{\n"
        f"    return ((p.w * d_{name}.z + p.z) * d_{name}.y + p.y) * d_{name}.x + p.x;\n}}"
    )
    if tensor.access == "write":
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
    }


def _fetch(level: Level, name: str, at: str, step: int = 0) -> str:
    """Print a fetch, `step` physical texels further on than `at`."""
    if level.is_old:
        return f"texture2D(t_{name}, {at}{f' + vec2({step}.0 * i_{name}.x, 0.0)' if step else ''})"
    return f"texelFetch(t_{name}, {at}{f' + ivec2({step}, 0)' if step else ''}, 0)"


def _at(level: Level, name: str, index: str) -> str:
    return f"k_at({index}, i_{name})" if level.is_old else f"k_at({index})"


def _whole_texel(level: Level, name: str, kind: str, index: str) -> str:
    """Print the four values of a kind that has them in one physical texel."""
    if kind == BUFFER:
        return f"b_{name}[{index}]"
    fetched = _fetch(level, name, _at(level, name, index))
    if kind == "rgba32ui":
        return f"uintBitsToFloat({fetched})"
    if kind == "rgba8_u8":
        return f"k_bytes({fetched})"
    return f"k_bytes({fetched}) - 128.0" if kind == "rgba8_s8" else fetched


def _texel(level: Level, name: str, kind: str) -> str:
    head = f"vec4 k_texel_{name}({level.whole} q) {{\n"
    index = f"k_index(q, n_{name})"
    units = KINDS[kind].units
    if units == 1:
        return f"{head}    return {_whole_texel(level, name, kind, index)};\n}}"
    place = "vec2" if level.is_old else "ivec2"
    lines = [f"{place} at = {_at(level, name, f'{level.number(units)} * {index}')};"]
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
    units = KINDS[kind].units
    if kind == "rgba8_float":
        lines.append(f"return k_float1({_fetch(level, name, _at(level, name, 'i'))});")
    elif kind == "rgba8_fixed16":
        lines.append(f"{level.index} f = {level.divided('i', units)};")
        lines.append(f"vec4 k = k_bytes({_fetch(level, name, _at(level, name, 'f'))});")
        second = f"{level.remainder('i', units, 'f')} > {level.number(0)}"
        lines.append(f"vec2 one = {second} ? k.zw : k.xy;")
        lines.append(f"return i_{name}.z + i_{name}.w * (one.y * 256.0 + one.x);")
    else:
        lines.append(f"{level.index} f = {level.divided('i', 4)};")
        component = level.remainder("i", 4, "f")
        if kind == BUFFER:
            lines.append(f"return b_{name}[f][{component}];")
        else:
            lines.append(f"vec4 v = {_whole_texel(level, name, kind, 'f')};")
            lines.append(f"return {_pick(level, 'v', component)};")
    head = f"float k_load1_{name}({level.whole} e) {{\n"
    return head + "".join(f"    {line}\n" for line in lines) + "}"


def _pick(level: Level, vector: str, component: str) -> str:
    return f"k_pick({vector}, {component})" if level.is_old else f"{vector}[{component}]"


def _stores(level: Level, name: str, kind: str) -> dict[str, str]:
    """Return the guarded stores of a compute shader; a fragment shader has none."""
    if kind != BUFFER:
        return {}
    inside = " && ".join(f"p.{axis} >= 0 && p.{axis} < d_{name}.{axis}" for axis in "xyzw")
    return {
        f"k_store4_{name}": (
            f"void k_store4_{name}(ivec4 p, vec4 v) {{\n    if ({inside}) {{\n"
            f"        b_{name}[k_number_{name}(p)] = v;\n    }}\n}}"
        ),
        f"k_storet_{name}": (
            f"void k_storet_{name}(int q, vec4 v) {{\n    if (uint(q) <= n_{name}) {{\n"
            f"        b_{name}[q] = v;\n    }}\n}}"
        ),
    }


def stored(level: Level, name: str, kind: str, value: str) -> str:
    """Return the expression that a fragment writes for the vec4 `value`; `j` is its unit."""
    if kind == "rgba32ui":
        return f"floatBitsToUint({value})"
    if kind == "rgba8_float":
        return f"k_unfloat({_pick(level, value, 'j')})"
    if kind == "rgba8_fixed16":
        return f"k_unfixed(j > {level.number(0)} ? {value}.zw : {value}.xy, i_{name})"
    if kind in ("rgba8_u8", "rgba8_s8"):
        offset = " + 128.0" if kind == "rgba8_s8" else ""
        return f"k_stored(clamp(floor({value} + 0.5){offset}, 0.0, 255.0))"
    return value
