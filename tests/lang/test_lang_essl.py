"""Printed ESSL: accepted by a compiler that enforces ES 2.0's rules, stable, named as agreed.

That it computes the right thing is shown on drivers, in tests/drivers/test_essl_run.py.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import daily
import numpy as np
import numpy.typing as npt
import pytest
import wgsl_corpus
from essl_corpus import corpus, planned
from hypothesis import given
from hypothesis import strategies as st

from gpuedge import lang
from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob, PushArg, TensorArg
from gpuedge.core.storage import HALF_BUFFER, HALF_TEXELS, TEXELS
from gpuedge.lang.essl import float_text
from gpuedge.lang.essl_texts import ESSL100

pytestmark = daily.day(2, of=4)

Array = npt.NDArray[Any]
TESTS = Path(__file__).resolve().parents[1]
SAMPLES, GOLDEN = TESTS / "golden" / "spirv", TESTS / "golden" / "essl"
LIMITS = TESTS / "essl100.conf"
STAGES = {"essl310": "comp", "essl300": "frag", "essl300_single": "frag", "essl100": "frag"}
DIALECTS = list(STAGES)
HEAD = "kernel map t;\nin tensor A;\nout tensor O;\n"
COPY = HEAD + "vec4 main(ivec4 p) { return load4(A, p); }"


def sample(name: str) -> lang.Kernel:
    return lang.load((SAMPLES / f"{name}.kern").read_text(), filename=f"{name}.kern")


def printed(text: str, dialect: str, **storage: str) -> str:
    return lang.print_kernel(lang.load(text, filename="t"), dialect, storage).code.decode()


def body(text: str, dialect: str = "essl100", more: str = "") -> str:
    """The statements of a main with the position p and a vec4 v."""
    whole = f"{HEAD}{more}vec4 main(ivec4 p) {{ vec4 v = load4(A, p);\n{text}\nreturn v; }}"
    code = printed(whole, dialect)
    return code[code.index("void main()") :]


def refused(dialect: str, texts: dict[str, str], folder: Path) -> dict[str, str]:
    """What the reference compiler says against any of these texts, in one process."""
    paths = {}
    for i, (name, text) in enumerate(texts.items()):
        path = folder / f"{i}.{dialect}"
        path.write_text(text)
        paths[str(path)] = name
    limits = [str(LIMITS)] if dialect == "essl100" else []
    # Twice each: the compiler names its files only where there are several.
    command = ["glslangValidator", "-S", STAGES[dialect], *limits, *paths, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    # Each file's messages follow its name.
    said: dict[str, str] = {}
    name, seen = "", set[str]()
    for line in done.stdout.splitlines():
        if line in paths:
            name = paths[line]
            seen.add(line)
        elif line.strip():
            said[name] = said.get(name, "") + line + "\n"
    assert seen == paths.keys()
    assert bool(said) == (done.returncode != 0)
    return said


# --- what is compiled -------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", DIALECTS)
def test_everything_compiles(dialect: str, tmp_path: Path) -> None:
    texts = dict(corpus(dialect))
    assert len(planned()) > 30
    assert len(texts) > 110
    assert refused(dialect, texts, tmp_path) == {}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_boolean_is_negated(dialect: str) -> None:
    """Some of Qualcomm's compilers take a negated boolean for the boolean itself."""
    texts = dict(corpus(dialect))
    assert [name for name, text in texts.items() if re.search("!(?!=)", text)] == []
    assert any("== false" in text for text in texts.values())


OLD_MAIN = "#version 100\nprecision highp float;\nuniform float n;\nvoid main() {\nfloat r = 0.0;\n"
FORBIDDEN = {
    "loop to a uniform": "for (float i = 0.0; i < n; i += 1.0) r += 1.0;",
    "loop that changes its index": "for (float i = 0.0; i < 5.0; i += 1.0) i = 3.0;",
    "while": "while (r < 3.0) r += 1.0;",
    "do": "do { r += 1.0; } while (r < 3.0);",
    "computed index": "float a[3]; a[0] = 0.0; r += a[int(n)];",
    "remainder": "int q = 5 % 3;",
    "tanh": "r = tanh(r);",
}


def test_the_compiler_enforces_the_rules_of_the_old_language(tmp_path: Path) -> None:
    allowed = "for (float i = 0.0; i < 9.0; i += 1.0) { if (i >= n) break; r += 1.0; }"
    texts = {
        name: f"{OLD_MAIN}{text}\ngl_FragColor = vec4(r);\n}}"
        for name, text in {**FORBIDDEN, "allowed": allowed}.items()
    }
    assert refused("essl100", texts, tmp_path).keys() == FORBIDDEN.keys()


# --- golden files -----------------------------------------------------------------------------
STORAGE = {"A": "rgba8_float", "B": "rgba8_fixed16", "O": "rgba8_u8"}


@pytest.mark.parametrize(
    ("name", "dialect"),
    [("affine", "essl100"), ("affine", "essl300"), ("affine", "essl310"), ("gemm", "essl310"),
     ("softmax", "essl100")],
)  # fmt: skip
def test_golden(name: str, dialect: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.{dialect}"
    storage = STORAGE if (name, dialect) == ("affine", "essl300") else {}
    code = lang.print_kernel(sample(name), dialect, storage).code.decode()
    if request.config.getoption("--update-golden"):
        path.write_text(code)
    assert code == path.read_text(), "see tests/golden/essl/README.md"


# --- the interface ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dialect", "default"),
    [("essl310", "buffer"), ("essl300", "rgba32f"), ("essl100", "rgba8_float")],
)
def test_interface_of_the_blob(dialect: str, default: str) -> None:
    blob = lang.print_kernel(sample("affine"), dialect)
    reference = lang.print_kernel(sample("affine"))
    assert (blob.name, blob.dialect, blob.entry) == ("affine", dialect, "main")
    assert blob.tensors == tuple(
        TensorArg(x.name, x.access, x.binding, default) for x in reference.tensors
    )
    assert (blob.specs, blob.push, blob.push_bytes) == (
        reference.specs, reference.push, reference.push_bytes,
    )  # fmt: skip
    assert blob.push[-1] == PushArg("K", "float", 48)


def declared(code: str) -> set[str]:
    return set(re.findall(r"^uniform highp (\w+ \w+);", code, re.MULTILINE))


def test_declared_names() -> None:
    kinds = {"A": "rgba32ui", "B": "rgba8_fixed16", "O": "rgba8_fixed16"}
    new = lang.print_kernel(sample("affine"), "essl300", kinds).code.decode()
    assert declared(new) == {
        "ivec4 d_A", "ivec4 d_B", "ivec4 d_O", "usampler2DArray t_A", "sampler2DArray t_B",
        "vec4 i_A", "vec4 i_B",
        "vec4 i_O", "float p_K",
    }  # fmt: skip
    outs = re.findall(r"layout\(location = (\d)\) out highp vec4 o_O_(\d);", new)
    assert outs == [(str(i), str(i)) for i in range(4)]
    old = lang.print_kernel(sample("affine"), "essl100").code.decode()
    assert declared(old) == {
        "vec4 d_A", "vec4 d_B", "vec4 d_O", "sampler2D t_A", "sampler2D t_B", "vec4 i_A",
        "vec4 i_B", "float p_K",
    }  # fmt: skip
    compute = lang.print_kernel(sample("affine"), "essl310").code.decode()
    assert re.findall(r"layout\(std430, binding = (\d)\) (\w+) buffer B_(\w)", compute) == [
        ("0", "readonly", "A"), ("1", "readonly", "B"), ("2", "writeonly", "O"),
    ]  # fmt: skip


def test_texel_buffers() -> None:
    kinds = {"A": TEXELS, "B": HALF_TEXELS}
    code = lang.print_kernel(sample("affine"), "essl310", kinds).code.decode()
    assert code.startswith(
        "#version 310 es\n#extension GL_EXT_texture_buffer : enable\n"
        "#extension GL_OES_texture_buffer : enable\nprecision"
    )
    assert {"samplerBuffer t_A", "samplerBuffer t_B"} <= declared(code)
    assert re.findall(r"(\w+) buffer B_(\w)", code) == [("writeonly", "O")]
    assert "texelFetch(t_A, int(k_index(q, n_A)))" in code
    plain = lang.print_kernel(sample("affine"), "essl310", {"A": HALF_BUFFER}).code.decode()
    assert "#extension" not in plain and "samplerBuffer" not in plain


@pytest.mark.parametrize(
    ("kind", "texel", "one"),
    [
        ("buffer_u8", "k_unsigned(b_A[", "float(b_A[f] >> 8u * (i % 4u) & 255u)"),
        ("buffer_s8", "k_signed(b_A[", "float(int(b_A[f] << 24u - 8u * (i % 4u)) >> 24)"),
    ],
)
def test_bytes_of_buffers(kind: str, texel: str, one: str) -> None:
    text = COPY.replace("load4(A, p)", "load4(A, p) + load1(A, p.x)")
    code = lang.print_kernel(lang.load(text, filename="t"), "essl310", {"A": kind}).code.decode()
    assert "highp uint b_A[];" in code and "highp vec4 b_O[];" in code
    assert texel in code and one in code


def test_specs_are_macros() -> None:
    blob = lang.print_kernel(sample("affine"), "essl310")
    text = blob.specialised({"LX": 8, "FLOOR": -0.5, "CLAMP": True}, {"ROW": 64})
    defined = dict(re.findall(r"^#define (\w+) (.*)$", text, re.MULTILINE))
    assert defined == {
        "S_LX": "8", "S_LY": "1", "S_LZ": "1", "S_FLOOR": "(-5.000000000e-01)",
        "S_CLAMP": "true", "ROW": "64",
    }  # fmt: skip
    old = lang.print_kernel(sample("conv"), "essl100").specialised({"PX": -1}, {"ROW": 64})
    assert "#define S_PX (-1.0)\n" in old
    assert "#define ROW 64.0\n" in old


def test_printing_is_deterministic_and_the_digest_follows_code_and_storage() -> None:
    kernel = sample("affine")
    assert lang.print_kernel(kernel, "essl300") == lang.print_kernel(kernel, "essl300")
    kinds: list[dict[str, str]] = [{}, {"A": "rgba16f"}, {"A": "rgba8_u8"}, {"O": "rgba8_u8"}]
    blobs: Sequence[KernelBlob] = [lang.print_kernel(kernel, "essl300", k) for k in kinds]
    assert len({blob.digest for blob in blobs}) == 4
    assert blobs[0].code == blobs[1].code  # half floats read like floats, but are not the same blob


# --- the old language -------------------------------------------------------------------------
def test_ints_are_floats() -> None:
    code = "".join(text for _, text in corpus("essl100"))
    code = code.replace("precision highp int;", "").replace("[int(", "[(")  # but for indices
    assert re.findall(r"\b(?:int|ivec\d|uint|uvec\d)\b", code) == []
    assert "%" not in code


def test_loops_are_constant_or_end_by_break() -> None:
    code = body(
        "int n = S / 2; for (int i = 0; i < n; i += S) v += 1.0;\n"
        "for (int i = 1; i < P + dims(A).x; i++) v += float(i);",
        more="spec int S = 4; param int P;\n",
    )
    assert "const float l_n_3 = sign(S_S) * floor((abs(S_S) + 0.5) / 2.0);" in code
    assert "for (float l_i_4 = 0.0; l_i_4 < l_n_3; l_i_4 += S_S) {" in code
    loop = "for (float l_i_5 = 1.0; l_i_5 < 65536.0; l_i_5 += 1.0) {\n"
    assert f"{loop}        if (l_i_5 >= p_P + d_A.x) break;\n" in code


def test_division_is_by_helpers() -> None:
    code = body("v.x = float((p.x + 1) / p.y % 3); ivec2 q = p.xy / p.zw; v.y = float(q.x);")
    assert "k_mod(k_idiv(l_p_1.x + 1.0, l_p_1.y), 3.0)" in code
    assert "k_idiv2(l_p_1.xy, l_p_1.zw)" in code


def with_poor_division(text: str, ulps: Array) -> Callable[[Array, Array], Array]:
    """Return k_div as a function of float32 arrays whose division is wrong by some last places."""

    def divide(a: Array, b: Array) -> Array:
        quotient = a / b
        return quotient + ulps * np.spacing(quotient)

    lines = text.replace("(a - q * b) / b", "divide(a - q * b, b)").replace("a / b", "divide(a, b)")
    assert "/" not in lines
    lines = re.sub(r"^float k_div\(float a, float b\) {", "def k_div(a, b):", lines)
    lines = re.sub(r"\n    float |\n    ", "\n    ", lines).replace(";", "").removesuffix("}")
    names: dict[str, Any] = {
        "divide": divide,
        "floor": np.floor,
        "step": lambda edge, x: np.where(x < edge, np.float32(0), np.float32(1)),
    }
    exec(lines, names)
    made: Callable[[Array, Array], Array] = names["k_div"]
    return made


def test_division_is_exact_where_the_driver_s_is_not() -> None:
    # 2.5 units in the last place is what ESSL 3.00 asks of a division (section 4.5.1).
    random = np.random.default_rng(0)
    b = 1 + random.integers(0, 1 << random.integers(1, 24, 300_000))
    a = random.integers(0, 1 << 24, b.size)
    a[::3] = (a // b * b)[::3]
    a[1::3] = np.maximum(a // b * b - 1, 0)[1::3]
    ulps = random.integers(-3, 4, b.size).astype(np.float32)
    text = ESSL100.helpers["k_div"]

    def wrong(changed: str) -> int:
        divided = with_poor_division(changed, ulps)(a.astype(np.float32), b.astype(np.float32))
        return int(np.sum(divided != a // b))

    assert wrong(text) == 0
    first, last = "    q += floor((a - q * b) / b);\n", " + step(b, r) - (1.0 - step(0.0, r))"
    assert wrong(text.replace(first, "")) > 100
    assert wrong(text.replace(last, "")) > 100


def test_indices_are_ints() -> None:
    code = body("float a[2]; unroll for (int i = 0; i < 2; i++) a[i] = v.x; v.y = a[1];")
    assert re.findall(r"l_a_3\[(.*?)\]", code) == ["2", "0", "1", "1"]


# --- everywhere -------------------------------------------------------------------------------
@pytest.mark.parametrize("dialect", DIALECTS)
def test_everything_is_highp(dialect: str) -> None:
    samplers = {
        "essl310": set(), "essl100": {"sampler2D"}, "essl300_single": {"sampler2D", "usampler2D"},
        "essl300": {"sampler2DArray", "usampler2DArray"},
    }  # fmt: skip
    wanted = {"float", "int"} | samplers[dialect]
    for _, code in corpus(dialect):
        assert set(re.findall(r"^precision highp (\w+);", code, re.MULTILINE)) == wanted
        assert not re.search(r"\b(?:mediump|lowp)\b", code)
        outside = re.findall(r"^(?:uniform|shared|layout\(location).*", code, re.MULTILINE)
        assert outside
        assert all(" highp " in line for line in outside)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_names_meet_nothing(dialect: str, tmp_path: Path) -> None:
    text = (
        "kernel map main_;\n"
        "in tensor float4;\nin tensor index;\nout tensor gl;\n"
        "spec int ROW = 3;\nparam float texture;\n"
        "float k_div(float fixed) { float input = fixed; input *= 2.0; return input; }\n"
        "vec4 main(ivec4 place) {\n"
        "float webgl = load1(index, place.x); float k_at = k_div(webgl) * texture;\n"
        "vec4 j = load4(float4, place); vec4 sampler = j * float(ROW); vec4 f = sampler + k_at;\n"
        "return f + texel(float4, place.y / 3); }"
    ).replace("main_", "names")
    blob = lang.print_kernel(lang.load(text, filename="names"), dialect)
    assert refused(dialect, {"names": blob.specialised({}, {"ROW": 4096})}, tmp_path) == {}
    used = set(re.findall(r"[A-Za-z_]\w*", blob.code.decode()))
    assert {n for n in used if "__" in n or re.match("gl_(?![FGLW])|webgl|_webgl", n)} == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_needed_parentheses(dialect: str) -> None:
    code = body(
        "v.x = (v.x + v.y) + (v.z + v.w) * 2.0 - (v.x - (v.y - -v.z)) / (v.x / v.y);", dialect
    )
    v = "l_v_2"
    assert (
        f"{v}.x + {v}.y + ({v}.z + {v}.w) * 2.0 - ({v}.x - ({v}.y - -{v}.z)) / ({v}.x / {v}.y);"
        in code
    )


NEIGHBOURS = (
    "kernel map t;\nin tensor A;\nin tensor K;\nout tensor O;\nspec int N = 3;\n"
    "vec4 main(ivec4 p) { vec4 v = vec4(0.0); int z = p.z + 1;\n"
    "for (int i = 0; i < N; i++) {\n"
    "    vec4 a = load4(A, ivec4(p.x + i, p.y, p.z, 0));\n"
    "    v += a.x * load4(K, ivec4(i, z, 0, 0));\n"
    "    if (a.y > 0.0) { float s = a.z; v.x += s; } }\n"
    "return v; }"
)


@pytest.mark.parametrize(
    ("along", "rows", "after"), [("row", 1, ""), ("plane", 4, "k_right("), ("", 4, "k_next(")]
)
def test_neighbours_share_what_is_the_same(along: str, rows: int, after: str) -> None:
    code = lang.print_kernel(
        lang.load(NEIGHBOURS, filename="t"), "essl300", None, along
    ).code.decode()
    main = code[code.index("void main()") :]
    slices = 1 if along else 4  # of p.z, which `row` and `plane` have in common
    assert main.count("k_position(") == 1 and (not after or main.count(after) == 3)
    assert (main.count("k_load4_A("), main.count("k_load4_K(")) == (4, slices)
    assert main.count("int l_z_") == slices and main.count("float l_s_") == 4
    assert main.count("for (") == 1 and main.count("if (") == 4
    assert len(set(re.findall(r"k_load4_A\(ivec4\(\w+\.x \+ \w+, (\w+)\.y", main))) == rows
    assert [f"o_O_{i} = v_{i};" in main for i in range(4)] == [True] * 4


def test_functions_with_loops_are_there_once_for_all_neighbours() -> None:
    text = (
        "kernel map t; in tensor A; out tensor O; spec int N = 16;\n"
        "float total(float x) { float sum = 0.0;\n"
        "    for (int i = 0; i < N; i++) { sum += x * float(i); } return sum; }\n"
        "vec4 main(ivec4 p) { vec4 v = load4(A, p);\n"
        "return vec4(total(v.x), total(v.y), total(v.z), total(v.w)); }"
    )
    code = printed(text, "essl300")
    main = code[code.index("void main()") :]
    assert main.count("f_total(") == 4, "not 4 calls for each of 4 texels"
    assert main.count("for (int turn = 0; turn < 4 + (d_O.x >> 31); turn += 1)") == 1
    assert [f"if (turn == {i}) v_{i} = value;" in main for i in range(4)] == [True] * 4
    one = printed(text, "essl300", O="rgba8_float")
    assert "turn < " not in one, "one texel to a fragment"


def test_long_functions_are_there_once_for_all_neighbours() -> None:
    steps = "".join(f"    y = y * x + {i}.0;\n" for i in range(160))
    text = (
        "kernel map t; in tensor A; out tensor O;\n"
        "float poly(float x) {{ float y = x;\n{}    return y; }}\n"
        "vec4 main(ivec4 p) {{ vec4 v = load4(A, p); return vec4(poly(v.x), v.yzw); }}"
    )
    long, short = printed(text.format(steps), "essl300"), printed(text.format(""), "essl300")
    assert [code[code.index("void main()") :].count("f_poly(") for code in (long, short)] == [1, 4]


def test_a_layer_takes_a_physical_texel() -> None:
    code = printed(COPY, "essl300", O="rgba8_float", A="rgba8_fixed16")
    main = code[code.index("void main()") :]
    assert main.count("k_load4_A(") == 1, "four physical texels are one"
    assert [f"o_O_{i} = k_unfloat(v_0[{i}u]);" in main for i in range(4)] == [True] * 4
    assert "textureLod(t_A, at + vec3(0.0, 0.0, 1.0), 0.0)" in code
    main = printed(COPY, "essl300", O="rgba8_fixed16")
    assert "o_O_2 = k_unfixed(0u > 0u ? v_1.zw : v_1.xy, i_O);" in main
    assert "o_O_3 = k_unfixed(1u > 0u ? v_1.zw : v_1.xy, i_O);" in main


def test_one_number_of_a_texel_is_computed_alone() -> None:
    code = printed(NEIGHBOURS.replace("v.x += s", "v += vec4(s)"), "essl100")
    main = code[code.index("void main()") :]
    assert "vec4 l_a_" in main and "k_load4_A(" in main, "its components are used"
    assert "float l_v_" in main and "vec4 l_v_" not in main
    assert re.search(r"k_component_load4_K\(.*, l_component_\d+\)", main)
    assert "gl_FragColor = k_unfloat(v);" in main
    whole = printed(NEIGHBOURS, "essl100")
    assert "vec4 l_v_" in whole, "one component of it is assigned"
    assert "k_load4_K(" in whole and "float v = k_pick(l_v_" in whole
    assert "_component" not in printed(NEIGHBOURS, "essl100", O="rgba32f")
    helper = (
        "float deep(vec4 v) { return v.x + v.y; }\n"
        "vec4 add(vec4 v, vec4 w) { return v + w * deep(w); }\n"
    )
    text = HEAD + helper + "vec4 main(ivec4 p) { return add(load4(A, p), load4(A, p)); }"
    code = printed(text, "essl100")
    assert "float f_add_component(float l_v_" in code and ", vec4 l_w_" in code
    assert "f_add_component(k_component_load4_A(" in code


def test_barriers_order_shared_memory() -> None:
    code = lang.print_kernel(sample("gemm"), "essl310").code.decode()
    assert len(re.findall(r"memoryBarrierShared\(\);\n\s+barrier\(\);", code)) == 2
    assert code.count("barrier();") == 2
    assert "layout(local_size_x = S_LX, local_size_y = S_LY, local_size_z = 1) in;" in code


@pytest.mark.parametrize(
    ("dialect", "kinds"),
    [
        *((dialect, {}) for dialect in DIALECTS),
        ("essl310", {"A": TEXELS}),
        ("essl310", {"A": HALF_TEXELS}),
    ],
)
def test_every_load_of_a_tensor_is_clamped(dialect: str, kinds: dict[str, str]) -> None:
    code = lang.print_kernel(sample("words"), dialect, kinds).code.decode()
    fetches = re.findall(r"(?:texelFetch|textureLod|texture2D)\(|\bb_A\[\w", code)
    functions = re.findall(r"k_(?:texel|load1)_A\(\w+ \w\) {.*?\n}", code, re.DOTALL)
    assert len(functions) == 2
    inside = "".join(functions)
    assert (
        len(re.findall(r"(?:texelFetch|textureLod|texture2D)\(|\bb_A\[\w", inside))
        == len(fetches)
        > 1
    )
    assert inside.count("k_index(") == 2


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_come_back(value: float) -> None:
    text = float_text(value)
    assert re.fullmatch(r"-?\d+\.\d+|-?\d(\.\d+)?e[+-]\d\d", text)
    assert struct.pack("<f", np.float32(text)) == struct.pack("<f", value)
    assert len(re.sub(r"e.*|\D", "", text).strip("0")) <= 9


def test_the_least_int() -> None:
    assert "(-2147483647 - 1)" in body("int i = -2147483647 - 1; v.x += float(i);", "essl300")


# --- what cannot be said ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "dialect", "storage", "what"),
    [
        (wgsl_corpus.GROUP, "essl300", {}, "group kernel"),
        (wgsl_corpus.GROUP, "essl100", {}, "group kernel"),
        (COPY, "essl300", {"A": "rgba64"}, "tensor A is kept as 'rgba64'"),
        (COPY, "essl300", {"A": "buffer"}, "tensor A is kept as 'buffer'"),
        (COPY, "essl300", {"A": "buffer_f16"}, "tensor A is kept as 'buffer_f16'"),
        (COPY, "essl310", {"A": "rgba32f"}, "tensor A is kept as 'rgba32f'"),
        (COPY, "essl300", {"A": TEXELS}, "tensor A is kept as 'texels'"),
        (COPY, "essl310", {"O": TEXELS}, "tensor O is written"),
        (HEAD + "vec4 main(ivec4 p) { return texel(A, 16777217); }", "essl100", {}, "16777217"),
        (
            HEAD + "spec float S = 2.5; vec4 main(ivec4 p) { vec4 v = load4(A, p);\n"
            "for (int i = 0; i < int(roundeven(S)); i++) v += 1.0; return v; }",
            "essl100", {}, "roundeven() cannot say",
        ),
    ],
)  # fmt: skip
def test_refusals(text: str, dialect: str, storage: dict[str, str], what: str) -> None:
    kernel = lang.load(text, filename="t")
    with pytest.raises(KernelError, match=re.escape(what)) as caught:
        lang.print_kernel(kernel, dialect, storage)
    assert caught.value.code == "GE-300"
    assert f"Kernel {kernel.name}" in str(caught.value)
