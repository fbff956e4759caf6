"""Run printed kernels on one level of OpenGL ES and compare with the interpreter.

``python essl_child.py 2.0`` prints one JSON object: how many values of each case are
wrong. `test_essl_run.py` starts it, once per level.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

LEVEL = sys.argv[1] if __name__ == "__main__" else "2.0"
os.environ.setdefault("MESA_GLES_VERSION_OVERRIDE", LEVEL)

sys.path.append(str(Path(__file__).resolve().parents[1]))

import lang_kernels as kernels  # noqa: E402
import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from essl_gl import GL, Launch, Range  # noqa: E402
from kernel_interpreter import interpret  # noqa: E402

from gpuedge import lang  # noqa: E402
from gpuedge.core.kernel import Extents, Number  # noqa: E402
from gpuedge.core.storage import KINDS, LAYERS  # noqa: E402
from gpuedge.opset.functions import FUNCTIONS, helpers_for  # noqa: E402
from gpuedge.plan.layout import along  # noqa: E402
from gpuedge.plan.library import texts  # noqa: E402

Array = npt.NDArray[np.float32]
DIALECTS = {"2.0": "essl100", "3.0": "essl300", "3.1": "essl310"}
SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"
HEAD = "kernel map t;\nin tensor A;\nout tensor O;\n"
COPY = HEAD + "vec4 main(ivec4 p) { return load4(A, p); }"
ELEMENTS = (
    HEAD + "vec4 main(ivec4 p) { int e = 4 * (p.y * dims(O).x + p.x);\n"
    "return vec4(load1(A, e), load1(A, e + 1), load1(A, e + 2), load1(A, e + 3)); }"
)
WHERE = HEAD + (
    "vec4 main(ivec4 p) { float rest = float(p.z + 10 * p.w);\n"
    "return vec4(float(p.x), float(p.y), rest, load4(A, p).z); }"
)
DIVIDE = HEAD + (
    "vec4 main(ivec4 p) { vec4 v = load4(A, p); ivec2 a = ivec2(v.xz); ivec2 b = ivec2(v.yw);\n"
    "ivec2 q = a / b; ivec2 r = a % b; return vec4(vec2(q), vec2(r)); }"
)
DIVIDE_ONE = HEAD + (
    "vec4 main(ivec4 p) { vec4 v = load4(A, p); int a = int(v.x); int b = int(v.y);\n"
    "return vec4(float(a / b), float(a % b), float(a / 3), float(a % 4096)); }"
)
LOOPS = HEAD + (
    "spec int N = 10; spec int STEP = 3; param int P; param float G;\n"
    "vec4 main(ivec4 p) { vec4 r = vec4(0.0); int middle = (N + 3) / 4; int odd = N % 4;\n"
    "for (int i = odd; i < middle * 4; i += STEP) { r.x += float(i) * G; }\n"
    "for (int i = 1; i < P; i += 2) {\n"
    "    for (int j = 0; j < dims(A).x + P; j++) r.y += float(i * j); }\n"
    "for (int i = 0; i < min(middle, 2); i++) {\n"
    "    if (i == 1) r.z += load4(A, p).x; else r.z -= 0.5; }\n"
    "bool b = r.x > 3.0; b = !b || p.x == 1; r.w = b ? -r.x : float(middle * 10 + odd);\n"
    "vec2 pair[2]; unroll for (int i = 0; i < 2; i++) pair[i] = r.xy; pair[1].y = 0.25;\n"
    "return r + vec4(pair[1], pair[0]); }"
)
ROUND = HEAD + (
    "vec4 main(ivec4 p) { vec4 v = load4(A, p); return vec4(roundeven(v.x), roundeven(v.yz),"
    " roundeven(v).w); }"
)


def exact_powers(code: str) -> str:
    """Return a text as for a device whose exp2 of whole numbers is exact."""
    return code.replace("//SPECS", "#define EXP2 1\n//SPECS")


class Cases:
    """Runs cases on one level and keeps what was wrong."""

    def __init__(self, level: str) -> None:
        self.gl = GL(*(int(part) for part in level.split(".")))
        self.dialect = DIALECTS[level]
        self.random = np.random.default_rng(1)
        self.wrong: dict[str, int] = {}
        self.default = {"essl100": "rgba8_float", "essl300": "rgba32f"}.get(self.dialect, "buffer")

    def ints(self, w: int, h: int, s: int = 1, n: int = 1, limit: int = 9) -> Array:
        shape = (n, s, h, w, 4)
        return self.random.integers(-limit, limit, shape).astype(np.float32)

    def check(
        self,
        name: str,
        text: str,
        tensors: Mapping[str, Array],
        out: Extents,
        *,
        specs: Mapping[str, Number] | None = None,
        params: Mapping[str, Number] | None = None,
        epilogue: str | None = None,
        kinds: Mapping[str, str] | None = None,
        ranges: Mapping[str, Range] | None = None,
        groups: tuple[int, int, int] | None = None,
        error: float = 0.0,
        row: int = 4096,
        change: Callable[[str], str] = str,
    ) -> None:
        """Count the values that are further than `error` x max(1, abs) from the interpreter's."""
        kernel = lang.load(text, filename=name, epilogue=epilogue)
        want = interpret(kernel, tensors, out, specs, params, groups)
        bound = error * np.maximum(1, np.abs(np.where(np.isfinite(want), want, 0)))
        for common in {"", along(out, LAYERS.get(self.dialect, 1))}:
            blob = lang.print_kernel(kernel, self.dialect, kinds, common)
            blob = replace(blob, code=change(blob.code.decode()).encode())
            job = Launch(blob, tensors, out, specs or {}, params or {}, groups, ranges or {}, row)
            got = self.gl.run(job)
            values = got[kernel.out.name]
            is_same = (values == want) | (np.isnan(values) & np.isnan(want))
            with np.errstate(invalid="ignore"):
                wrong = int(np.sum(~(is_same | (np.abs(values - want) <= bound))))
            self.wrong[name] = self.wrong.get(name, 0) + wrong

    # --- storage --------------------------------------------------------------------------------
    def codec(self) -> None:
        """Every exponent and sign with 64 mantissas, infinity, NaN, by texel and by element."""
        mantissas = self.random.integers(0, 1 << 23, 64, dtype=np.uint32)
        mantissas[:4] = 0, 1, (1 << 23) - 1, 1 << 22
        exponents, signs = np.arange(1, 255, dtype=np.uint32), np.arange(2, dtype=np.uint32)
        bits = signs[:, None, None] << 31 | exponents[:, None] << 23 | mantissas
        last = np.array([0, 0x7F800000, 0xFF800000, 0, 0x7FC00000, 0xFFC00000, 0, 0], np.uint32)
        values = np.append(bits.ravel(), last).view(np.float32)
        grid = values.reshape(1, 1, 1, -1, 4)
        out = (grid.shape[3], 1, 1, 1)
        changes = (str, exact_powers) if self.dialect == "essl100" else (str,)
        for kind in self.kinds():
            if KINDS[kind].is_exact and KINDS[kind].high is None:
                for way, text in (("texels", COPY), ("elements", ELEMENTS)):
                    kinds = {"A": kind, "O": kind}
                    for change in changes:
                        self.check(
                            f"codec {kind} {way}", text, {"A": grid}, out, kinds=kinds,
                            change=change,
                        )  # fmt: skip
        # Compilers move constant factors into the codec, where they must not lead out of range.
        for factor in (0.75, 1.5, 3e-20, 7e18):
            with_it = np.abs(values * np.float32(factor))
            inside = (with_it >= 2.0**-126) & (with_it < np.inf)
            kept = np.where(inside, values, np.float32(1)).reshape(grid.shape)
            text = COPY.replace("load4(A, p)", f"load4(A, p) * {factor:f}")
            for change in changes:
                self.check(f"codec times {factor}", text, {"A": kept}, out, change=change)

    def kinds(self) -> list[str]:
        """Kinds that this level can be asked to draw to: float textures only where they are."""
        if self.dialect == "essl310":
            return ["buffer"]
        bytes_only = self.dialect == "essl100"
        return [k for k in KINDS if k.startswith("rgba8") or not (bytes_only or "buffer" in k)]

    def conversions(self) -> None:
        """Every kind to every other one, by texel and by element."""
        if self.dialect == "essl310":
            return
        sources = [k for k in KINDS if "buffer" not in k and (k != "rgba32ui" or LEVEL != "2.0")]
        ranges = {"A": (-4.0, 28.0), "O": (-4.0, 28.0)}
        for source in sources:
            for target in self.kinds():
                signed = "rgba8_u8" not in (source, target)
                values = self.random.integers(-4 if signed else 0, 29, (1, 1, 5, 9, 4))
                fixed = "rgba8_fixed16" in (source, target)
                # A whole number is at most half a step away, and one storage more doubles that;
                # float16 has 11 bits, and drivers may truncate.
                error = 32 / 65535 if fixed else 0.0
                error += 2**-10 if fixed and target == "rgba16f" else 0.0
                tensors = {"A": values.astype(np.float32)}
                for way, text in (("texels", COPY), ("elements", ELEMENTS)):
                    self.check(
                        f"{source} to {target} by {way}", text, tensors, (9, 5, 1, 1),
                        kinds={"A": source, "O": target}, ranges=ranges, error=error, row=16,
                    )  # fmt: skip

    def places(self) -> None:
        """Wide and folded textures: positions, the last texel, narrow rows."""
        for w, h, s, n, row in ((5000, 3, 2, 1, 4096), (7, 5, 3, 2, 64), (1, 1, 1, 1, 64)):
            a = self.ints(w, h, s, n)
            self.check(f"places {w} in {row}", WHERE, {"A": a}, (w, h, s, n), row=row)

    # --- the language ---------------------------------------------------------------------------
    def words(self) -> None:
        """Division of all sizes, loops of all kinds, every word, sums that must round to even."""
        a = self.random.integers(0, 1 << 24, 20000)
        b = 1 + self.random.integers(0, 1 << self.random.integers(1, 24, 20000))
        a[::3] = (a // b * b)[::3]
        a[1::3] = np.maximum(a // b * b - 1, 0)[1::3]
        pairs = np.stack([a, b], 1).astype(np.float32).reshape(1, 1, 20, 500, 4)
        self.check("divide", DIVIDE, {"A": pairs}, (500, 20, 1, 1))
        self.check("divide one", DIVIDE_ONE, {"A": pairs}, (500, 20, 1, 1))
        signed = pairs * self.random.choice(np.array([-1, 1], np.float32), pairs.shape)
        self.check("divide signed", DIVIDE, {"A": signed}, (500, 20, 1, 1))
        self.check("divide one signed", DIVIDE_ONE, {"A": signed}, (500, 20, 1, 1))
        specs, params = {"N": 11, "STEP": 2}, {"P": 6, "G": 0.5}
        self.check("loops", LOOPS, {"A": self.ints(3, 2)}, (3, 2, 1, 1), specs=specs, params=params)
        ties = np.arange(-40, 40, dtype=np.float32).reshape(1, 1, 4, 5, 4) / 4
        self.check("roundeven", ROUND, {"A": ties}, (5, 4, 1, 1))
        self.check(
            "words", (SAMPLES / "words.kern").read_text(), {"A": self.ints(6, 5, 2)}, (6, 5, 2, 1),
            params={"SHIFT": 3, "G": 0.5},
        )  # fmt: skip
        self.check(
            "softmax", (SAMPLES / "softmax.kern").read_text(), {"X": self.ints(4, 3, 3)},
            (4, 3, 3, 1), params={"C": 10}, error=1e-6,
        )  # fmt: skip

    def elementwise(self) -> None:
        """Every elementwise expression with its helpers, over small, large and special values."""
        special = [0.0, 1.0, -1.0, 0.5, 1e-6, -1e-6, 30.0, -30.0, 80.0, -80.0, 2.5, -3.5]
        a = np.append(self.random.normal(0, 3, 484), special).astype(np.float32)
        a = a.reshape(1, 1, 4, 31, 4)
        b = self.random.normal(0, 2, a.shape).astype(np.float32)
        for name, one in FUNCTIONS.items():
            taken = signature(one.error).parameters.values()
            count = sum(p.default is p.empty for p in taken)
            inputs = {"E0": a, "E1": b, "E2": a[..., ::-1].copy()}
            if name in ("log", "sqrt"):
                inputs["E0"] = np.abs(a) + np.float32(0.01)
            elif name == "pow":
                inputs |= {"E0": np.abs(a) + np.float32(0.1), "E1": np.clip(b, -3, 3)}
            elif name == "exp":
                inputs["E0"] = np.clip(a, -80, 20)
            elif name == "div":
                inputs["E1"] = np.where(np.abs(b) < 0.1, np.float32(4), b)
            given = dict(list(inputs.items())[:count])
            self._expression(name, one.text(*"abc"[:count]), given)
        self._expression("tanh far", "tanh(a * 1000.0) + tanh(a)", {"E0": a})

    def _expression(self, name: str, text: str, inputs: Mapping[str, Array]) -> None:
        lines = "".join(f"in tensor {x};\n" for x in inputs) + helpers_for(text)
        loads = "".join(f"vec4 {x} = load4({y}, p); " for x, y in zip("abc", inputs, strict=False))
        epilogue = f"{lines}vec4 epilogue(vec4 v, ivec4 p) {{ {loads}return {text}; }}"
        self.check(
            f"expression {name}", texts()["map/elementwise"], inputs, (31, 4, 1, 1),
            epilogue=epilogue, error=2e-5,
        )  # fmt: skip

    # --- the library ----------------------------------------------------------------------------
    def library(self) -> None:
        """Every map kernel on whole numbers, which every device computes exactly."""
        for name, tensors, out, values in self._library():
            bits = f"BITS = {values.pop('BITS', 8)}"  # a constant of the text, not of a launch
            text = texts()[name].replace("BITS = 8", bits)
            open_ = {param.name for param in lang.load(text, filename=name).params}
            params = {name: values.pop(name) for name in open_}
            # 10 roundings of sums that are 55 times the largest number, 9, at most
            error = 3e-4 if "winograd" in name else 0.0
            self.check(name, text, tensors, out, specs=values, params=params, error=error)

    def _library(self) -> Iterator[tuple[str, dict[str, Array], Extents, dict[str, Number]]]:
        window = {"KH": 3, "KW": 2, "SY": 2, "SX": 1, "DY": 1, "DX": 2, "PT": 1, "PL": 1}
        x, k = self.ints(6, 7, 2, 2), self.ints(8, 7, 2)
        sums = {**window, "SPAN": 2, "ICG": 8, "OCG": 8, "BIAS": True}
        yield "map/conv2d", {"X": x, "K": k}, (6, 4, 2, 2), sums
        carried = {**sums, "CHUNKS": 2, "PART": 1}
        del carried["SPAN"]
        yield "map/conv2d_int", {"X": x * 1000, "K": k * 9}, (6, 4, 2, 2), carried
        yield "map/conv_transpose2d", {"X": x, "K": k}, (7, 14, 2, 2), sums
        yield "map/dwconv2d", {"X": x, "K": self.ints(2, 7)}, (6, 4, 2, 2), {**window, "BIAS": True}
        around = {**window, "PB": 1, "PR": 1}
        yield "map/pool", {"X": x}, (6, 4, 2, 2), {**around, "C": 6}
        yield "map/matmul", {"A": self.ints(3, 5, n=2), "B": self.ints(4, 12, n=2)}, (4, 5, 1, 2), {
            "KT": 3,
        }  # fmt: skip
        a, b = self.ints(3, 5, n=2) * 1000, self.ints(4, 12, n=2)
        for bits, zeros in ((8, False), (8, True), (4, False), (4, True)):
            codes = np.abs(self.ints(4, 24, limit=255))
            packed = {"A": self.ints(5, 5, n=2), "B": codes, "S": self.ints(4, 4, limit=3)}
            blocks: dict[str, Number] = {"BLOCK": 3, "BLOCKS": 2, "ZEROS": zeros, "ZERO": 7.0}
            yield "map/matmul_packed", packed, (4, 5, 1, 2), {**blocks, "BITS": bits}
        turned = {
            "A": self.ints(3, 5, n=2),
            "B": self.ints(4, 10, n=2),
        }  # B ends within a texel of A
        yield "map/matmul_turned", turned, (8, 1, 4, 2), {"KT": 3}
        yield "map/turn", {"X": self.ints(8, 1, 4, 2)}, (4, 5, 1, 2), {}
        yield "map/trim", {"X": self.ints(8, 3, 2, 2)}, (5, 3, 2, 2), {}
        tiles = {"ACROSS": 2, "PT": 1, "PL": 0}
        yield "map/winograd_input", {"X": self.ints(8, 7, 2, 2)}, (4, 36, 2, 2), tiles
        points = {"X": self.ints(4, 36, 2, 2), "K": self.ints(1, 37, 2)}
        for out in ((8, 7, 2, 2), (7, 8, 2, 2)):
            yield "map/winograd_output", points, out, {"BIAS": True}
        yield "map/matmul_int", {"A": a, "B": b}, (4, 5, 1, 2), {"CHUNKS": 3, "PART": 2}
        line = self.ints(31, 1)
        yield "map/pack", {"X": line}, (6, 1, 3, 2), {"C": 10, "INNER": 6}
        yield "map/unpack", {"X": self.ints(6, 1, 3, 2)}, (30, 1, 1, 1), {"C": 10, "INNER": 6}
        yield "map/unpack", {"X": self.ints(8, 1, 3, 2)}, (40, 1, 1, 1), {"C": 10, "INNER": 8}
        for out in ((8, 3, 2, 2), (5, 3, 2, 2)):  # neighbours in a row, or not even in a slice
            yield "map/conv2d", {"X": x, "K": k}, out, sums
            yield "map/conv_transpose2d", {"X": x, "K": k}, out, sums
            yield "map/pool", {"X": x}, out, {**around, "C": 6}

    def groups(self) -> None:
        """Workgroups with shared memory, where the level has them."""
        if self.dialect != "essl310":
            return
        a, b = self.ints(5, 13, n=2), self.ints(6, 20, n=2)
        for name, shape in (("matmul_tile", (1, 1, 2)), ("matmul_rows", (1, 1, 2))):
            self.check(
                name, texts()[f"group/{name}"], {"A": a, "B": b}, (6, 13, 1, 2),
                specs={"KT": 5}, groups=shape,
            )  # fmt: skip
        tensors = {"X": self.ints(9, 8, 2), "K": self.ints(8, 10, 2)}
        specs = {"KH": 3, "KW": 3, "PT": 1, "PL": 1, "SPAN": 2, "ICG": 8, "OCG": 8, "BIAS": True}
        self.check(
            "conv2d_px4", texts()["group/conv2d_px4"], tensors, (9, 8, 2, 1), specs=specs,
            groups=(1, 1, 2),
        )  # fmt: skip

    def generated(self) -> None:
        """Kernels as a generator writes them, and all of 32 bits where the level has them."""
        for count in (1, 8):
            given = [self.ints(16 + i, 1) for i in range(count)]
            tensors = {f"T{i}": tensor for i, tensor in enumerate(given)}
            text, n = kernels.gather_kernel(count), {"N": 60}
            self.check(f"gathered {count}", text, tensors, (25, 1, 1, 1), params=n)
        a = self.ints(30, 1)
        self.check("table", kernels.TABLE, {"A": a}, (30, 1, 1, 1), params={"N": 5})
        for expression in kernels.INT_OPERATIONS if self.dialect != "essl100" else ():
            text, out = kernels.int_kernel(expression), (kernels.PATTERNS, 1, 1, 1)
            self.check(f"ints {expression}", text, {"A": kernels.int_texels()}, out)

    def mutants(self) -> None:
        """Texts that ask for less precision: what shows that the word is needed."""
        values = self.random.normal(0, 10, (1, 1, 4, 8, 4)).astype(np.float32)
        text = HEAD + "vec4 main(ivec4 p) { return load4(A, p) * 3.0 + 1.0; }"
        for name, old in (("all", "highp"), ("samplers", "highp sampler2D")):
            self.check(
                f"mutant {name}", text, {"A": values}, (8, 4, 1, 1), error=1e-6,
                change=lambda code, old=old: code.replace(old, old.replace("highp", "mediump")),
            )  # fmt: skip
        self.check("no mutant", text, {"A": values}, (8, 4, 1, 1), error=1e-6)


def run(level: str) -> dict[str, Any]:
    """Run all cases of one level."""
    cases = Cases(level)
    for part in (
        cases.codec, cases.conversions, cases.places, cases.words, cases.elementwise,
        cases.library, cases.groups, cases.generated, cases.mutants,
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            part()
    return {"version": cases.gl.GetString(0x1F02).decode(), "wrong": cases.wrong}


if __name__ == "__main__":
    print(json.dumps(run(LEVEL)))
