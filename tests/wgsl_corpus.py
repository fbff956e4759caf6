"""Kernels to compile as WGSL: all that we have, and texts that use every part of the language."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from pathlib import Path

import lang_kernels

from gpuedge import lang
from gpuedge.core.kernel import KernelBlob, Number
from gpuedge.opset.functions import FUNCTIONS, helpers_for
from gpuedge.plan import library

SAMPLES = Path(__file__).parent / "golden" / "spirv"

FUSED = """
in tensor R;
spec float LOW = -1.0;
param float GAIN;
vec4 epilogue(vec4 v, ivec4 p) {
    return max(v * GAIN + load4z(R, p), LOW);
}
"""
"""An epilogue with a tensor, a spec and a param of its own."""

HEAD = "kernel map t;\nin tensor A;\nout tensor O;\n"
BODIES = (
    "int a = 1; for (int i = 0; i < a; i++) { for (int j = 0; j < P; j += S) v += 1.0; }",
    "if (F) { if (v.x > 0.0) v.x = 1.0; else v.y = 2.0; } else { }",
    "if (F) v.x = 1.0; else for (int i = 0; i < P; i++) { if (i > 1) v *= v; }",
    "bool b = v.x > 0.0; b = !b || F; bool c = b == F && v.y < v.z; v = c ? v : -v;",
    "vec3 q[2]; q[0] = v.xyz; q[1] = q[0]; q[1].z *= 2.0; v.x = q[1].z; v.y -= -v.x;",
    "ivec3 i = ivec3(p.xy, S); i[1] += P; i = i % 3 / 2 - i; v *= vec4(vec3(i), 1.0);",
    "vec2 w = tanh(v.xy) + pow(v.zw, vec2(2.0)); v.w = tanh(w.x) + w.x * w.y;",
    "v = sign(v) + roundeven(v) + sqrt(abs(v)); v.x = -v.x;",
    "v += texel(A, p.x) + load1(A, dims(A).y) + load4z(A, dims(A) - 1) + load4(A, ivec4(0));",
    "v += texel(A, -1) + load1(A, -2147483647 - 1) + float(S * 2147483647); v.x = -0.0;",
    "v += 1.0 / 0.0 - sqrt(-1.0) + exp(1000.0) * log(0.0) + clamp(v, 2.0, 1.0);",
    "v += vec4(ivec4(2147483647) + ivec4(1)) + vec4(vec4(3.0e38) * vec4(10.0)); v -= 1.0e-45;",
    "bool n = v.x != v.x || !(v.y == v.y); v = n ? vec4(1.0, vec3(2.0)) : v; v.z = float(S / S);",
    "float f = v.x < v.y ? v.z > v.w ? 1.0 : 2.0 : 3.0; bool g = v.x < f; v.x = g ? f : -f;",
    "int k = min(max(p.x, -3), 3) - abs(p.y - 4) * clamp(S, 1, P); v += float(-k - -k);",
    "float let = 1.0; float fn = 2.0; float var = let + fn; float f32 = var; v += f32 * vec4(W1);",
)
GROUP = """kernel group t;
in tensor A;
out tensor O;
spec int Q = 2;
spec int LX = 8;
local_size(LX, 2, 1);
shared ivec2 M[LX * (Q + 1) / 2 % 64 + 1];
shared float H[16];
int lane() { return local_id().y * LX + local_id().x; }
float get(int i) { return H[i % 16] * float(M[i % 4].x + group_id().z); }
void main() {
    ivec3 l = local_id();
    int q = group_id().x;
    float z[3];
    z[0] = 0.5; z[1] = 1.5; z[2] = 2.5;
    M[l.x] = ivec2(q, lane());
    M[l.x].y += 2;
    H[lane()] = load1(A, lane());
    barrier();
    for (int i = l.x; i < Q; i += LX) {
        if (i > 1) { storet(O, i, vec4(get(i), vec3(z[i % 3]))); }
    }
    for (int i = 0; i < Q; i++) {
        barrier();
        store4(O, dims(O) - i, vec4(get(i)));
    }
}
"""


@dataclass(frozen=True)
class Text:
    """A kernel with the specialisation values that it is compiled with."""

    name: str
    kernel: lang.Kernel
    specs: dict[str, Number] = field(default_factory=dict)

    @property
    def blob(self) -> KernelBlob:
        """The kernel as WGSL."""
        return lang.print_kernel(self.kernel, "wgsl")

    def reading(self, kind: str) -> KernelBlob:
        """Return the kernel as WGSL that reads every tensor as a kind."""
        kinds = {t.name: kind for t in self.kernel.tensors if t.access == "read"}
        return lang.print_kernel(self.kernel, "wgsl", kinds)


@lru_cache(maxsize=1)
def texts() -> tuple[Text, ...]:
    """Return every kernel of the corpus."""
    found = (*_samples(), *_shaders(), *_operators(), *_bodies(), *_generated())
    assert len({text.name for text in found}) == len(found)
    return found


def _samples() -> Iterator[Text]:
    for path in sorted(SAMPLES.glob("*.kern")):
        yield Text(path.stem, lang.load(path.read_text(), filename=path.name), {"LX": 4, "LY": 4})


def _shaders() -> Iterator[Text]:
    for name, text in library.texts().items():
        specs: dict[str, Number] = {"LX": 8, "LY": 8}
        yield Text(name, lang.load(text, filename=name), specs)
        if "//EPILOGUE" in text:
            fused = lang.load(text, filename=name, epilogue=FUSED)
            yield Text(f"{name} fused", fused, specs)


def _operators() -> Iterator[Text]:
    for name, one in FUNCTIONS.items():
        taken = [p for p in signature(one.error).parameters.values() if p.default is p.empty]
        yield _operator(name, one.text(*"abc"[: len(taken)]))


def _operator(op: str, value: str) -> Text:
    helpers = helpers_for(value)
    body = f"vec4 a = load4(A, p); vec4 b = load4(B, p); vec4 c = a + b; return {value} + b * 0.0;"
    text = f"in tensor A;\nin tensor B;\n{helpers}\nvec4 epilogue(vec4 v, ivec4 p) {{ {body} }}"
    base = library.texts()["map/elementwise"]
    return Text(f"operator {op}", lang.load(base, filename=op, epilogue=text), {"LX": 64})


def _generated() -> Iterator[Text]:
    generated = {"gathered": lang_kernels.gather_kernel(7), "table": lang_kernels.TABLE}
    generated |= {f"ints {e}": lang_kernels.int_kernel(e) for e in lang_kernels.INT_OPERATIONS}
    for name, text in generated.items():
        yield Text(name, lang.load(text, filename="generated"))


def _bodies() -> Iterator[Text]:
    for i, body in enumerate(BODIES):
        text = (
            f"{HEAD}spec int S = 2; spec bool F = true; param int P; param float W1;\n"
            f"vec4 main(ivec4 p) {{ vec4 v = load4(A, p) * W1 + float(P);\n{body}\nreturn v; }}"
        )
        yield Text(f"body {i}", lang.load(text, filename=f"body{i}"))
    yield Text("group statements", lang.load(GROUP, filename="group"), {"Q": 3})
