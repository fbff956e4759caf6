"""Printed WGSL: stable, with the interface that it declares, and without the known traps.

That two compilers accept it and devices compute the right thing is shown in tests/drivers.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from lang_kernels import lane_kernel
from wgsl_corpus import FUSED, GROUP, HEAD, Text, texts

from gpuedge import lang
from gpuedge.core.kernel import PushArg, SpecArg, TensorArg
from gpuedge.core.storage import HALF_IMAGE, HALF_TEXTURE, IMAGE, TEXTURE
from gpuedge.plan import library

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = TESTS / "golden" / "wgsl"
GOLDEN_NAMES = ("affine", "gemm", "words", "map/pool", "map/conv2d fused")
SCALED = (
    "kernel map t;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { return load4(A, p) * 2.0; }"
)


def wgsl(text: str) -> str:
    return lang.print_kernel(lang.load(text, filename="t.kern"), "wgsl").code.decode()


def body(text: str) -> str:
    """Print a map kernel whose main holds `text`, and return its main."""
    whole = wgsl(f"{HEAD}spec int S = 2; param int P;\nvec4 main(ivec4 p) {{ {text} }}")
    return whole[whole.index("@compute") :]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name.replace('/', '_').replace(' ', '_')}.wgsl"
    text = next(t for t in texts() if t.name == name).blob.code.decode()
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text(), "see tests/golden/wgsl/README.md"


def test_interface_of_the_blob_is_that_of_spirv() -> None:
    text = library.texts()["map/matmul"]
    kernel = lang.load(text, filename="matmul", epilogue=FUSED)
    blob, spirv = lang.print_kernel(kernel, "wgsl"), lang.print_kernel(kernel, "spirv")
    assert (blob.name, blob.dialect, blob.entry) == ("matmul", "wgsl", "main")
    assert blob.tensors[-1] == TensorArg("R", "read", 3)
    assert (blob.tensors, blob.specs) == (spirv.tensors, spirv.specs)
    assert (blob.push, blob.push_bytes) == (spirv.push, spirv.push_bytes)
    assert blob.digest != spirv.digest


def test_declared_interface_is_in_the_code() -> None:
    kernel = lang.load(library.texts()["map/matmul"], filename="matmul", epilogue=FUSED)
    blob = lang.print_kernel(kernel, "wgsl")
    code = blob.code.decode()
    buffers = re.findall(r"@group\(0\) @binding\((\d)\) var<storage, (\w+)> t_(\w+): (.*);", code)
    modes = {"read": "read", "read_write": "write"}
    found = tuple(TensorArg(name, modes[m], int(b)) for b, m, name, _ in buffers)  # type: ignore[arg-type]
    assert found == blob.tensors
    assert {kind for *_, kind in buffers} == {"array<vec4<f32>>"}
    assert f"@group(0) @binding({len(buffers)}) var<uniform> u: Push;" in code
    overrides = re.findall(r"@id\((\d+)\) override s_(\w+): (\w+) = (.*);", code)
    types = {"i32": "int", "f32": "float", "bool": "bool"}
    assert [(int(i), n, types[t]) for i, n, t, _ in overrides] == [
        (s.spec_id, s.name, s.type) for s in blob.specs
    ]
    assert overrides[-1][3] == "(-1.0f)"


def test_uniform_block_has_the_offsets_of_the_push_block() -> None:
    kernel = lang.load(library.texts()["map/matmul"], filename="matmul", epilogue=FUSED)
    blob = lang.print_kernel(kernel, "wgsl")
    fields = re.search(r"struct Push \{(.*?)\}", blob.code.decode(), re.DOTALL)
    assert fields is not None
    at, laid_out = 0, []
    for name, kind in re.findall(r"[dp]_(\w+): (\S+),", fields[1]):
        size = {"vec4<i32>": 16, "i32": 4, "f32": 4}[kind]  # alignments are equal to these
        at = -(-at // size) * size
        word = {"vec4<i32>": "ivec4", "i32": "int", "f32": "float"}[kind]
        laid_out.append(PushArg(name, word, at))  # type: ignore[arg-type]
        at += size
    assert (tuple(laid_out), at) == (blob.push, blob.push_bytes)
    packed = blob.pack_push([(1, 2, 3, 4)] * 4, {"GAIN": 0.5})
    assert packed == struct.pack("<16if", *(1, 2, 3, 4) * 4, 0.5)


def test_workgroup_sizes_and_shared_arrays_are_made_of_overrides() -> None:
    code = wgsl(GROUP)
    assert "@workgroup_size(s_LX, 2i, 1i)" in code
    assert "g_M: array<vec2<i32>, ((((s_LX * (s_Q + 1i)) / 2i) % 64i) + 1i)>;" in code
    map_code = wgsl(SCALED)
    assert "@workgroup_size(s_LX, s_LY, s_LZ)" in map_code
    assert "@id(2) override s_LZ: i32 = 1i;" in map_code


def test_every_load_of_a_tensor_is_clamped() -> None:
    for text in texts():
        code = text.blob.code.decode()
        for tensor in (t for t in text.kernel.tensors if t.access == "read"):
            for use in re.finditer(rf"\bt_{tensor.name}\[", code):
                assert code[use.end() :].startswith(("min(u32(", "at >> 2u]")), text.name


@pytest.mark.parametrize("kind", [TEXTURE, IMAGE])
def test_every_load_of_a_copy_is_clamped(kind: str) -> None:
    for text in texts():
        check_copy(text, kind)


def check_copy(text: Text, kind: str) -> None:
    blob = text.reading(kind)
    code = blob.code.decode()
    read = [x.name for x in blob.tensors if x.access == "read"]
    assert [x.name for x in blob.tensors if x.storage == kind] == read
    of = r"texture_2d<f32>" if kind == TEXTURE else r"texture_storage_2d<rgba32float, read>"
    assert re.findall(rf" t_(\w+): {of};", code) == read
    for name in read:
        calls = list(re.finditer(rf"\bk_fetch_{name}\((?!at: u32\))", code))
        assert all(code[x.end() :].startswith(("min(u32(", "at >> 2u)")) for x in calls)
        loads = re.findall(rf"\bt_{name}\b([^:].*)", code)
        level = ", 0" if kind == TEXTURE else ""
        assert loads == [f", vec2<u32>(at & 2047u, at >> 11u){level});"] * bool(calls)
    half = text.reading(HALF_TEXTURE if kind == TEXTURE else HALF_IMAGE).code.decode()
    assert half.replace("rgba16float", "rgba32float") == code


def test_every_store_of_a_tensor_is_guarded() -> None:
    for text in texts():
        lines = text.blob.code.decode().split("\n")
        stores = [i for i, line in enumerate(lines) if re.match(r" +t_\w+\[.*\] = ", line)]
        assert stores, text.name
        for at in stores:
            depth = len(lines[at]) - len(lines[at].lstrip())
            above = (line for line in reversed(lines[:at]) if line.index(line.strip()[:1]) < depth)
            guard = r" +if \((all\(id <|k_in4\(at,|u32\(at\) <=)"
            assert re.match(guard, next(above)), text.name


def test_main_has_no_branch_that_depends_on_uniforms_alone() -> None:
    """Such a branch makes lavapipe build the kernel anew for each dispatch."""
    for text in texts():
        main = text.blob.code.decode().partition("@compute")[2]
        ints = {f"p_{p.name}" for p in text.kernel.params if p.type == "int"}
        found = re.findall(r"\bu\.(\w+)(.*)", main)
        assert found and "let k_zero = i32(group.x >> 31u);" in main, text.name
        uses = [rest for name, rest in found if name[:2] == "d_" or name in ints]
        assert set(uses) <= {" + k_zero;"}, text.name


def test_no_name_of_a_text_stands_alone() -> None:
    words = ["let", "fn", "override", "active", "filter", "f32", "enable", "main_", "u", "k_at"]
    words = [w.rstrip("_") + "x" if w == "main_" else w for w in words]
    lines = " ".join(f"float {w} = 1.0;" for w in words)
    code = wgsl(
        f"{HEAD}param int move;\nspec int self = 1;\nfloat resource(float ref) {{ return ref; }}\n"
        f"vec4 main(ivec4 p) {{ {lines} return load4(A, p) * {' * '.join(words)} * "
        "resource(float(move + self)); }"
    )
    own = set(re.findall(r"(?:let|var|fn|override) ((?:v\d+|[fs])_\w+)", code))
    assert {name.partition("_")[2] for name in own} >= {*words, "resource", "self"}
    declared = re.findall(r"\b(?:let|var|fn|override) (\w+)", code)
    assert all(re.match(r"(v\d+|[dfkspc]|last)_|main$|[vz]$|at$", name) for name in declared)


def test_a_function_cannot_be_hidden_by_a_local() -> None:
    code = wgsl(
        f"{HEAD}float a_2(float x) {{ return x; }}\n"
        "vec4 main(ivec4 p) { float f_a = 1.0; float a = 2.0; return load4(A, p) * a_2(f_a * a); }"
    )
    functions = set(re.findall(r"fn (\w+)\(", code))
    values = set(re.findall(r"(?:let|var) (\w+)\b", code))
    assert functions.isdisjoint(values)


def test_literals_are_exact_and_in_range() -> None:
    code = body("return vec4(0.1, -0.0, 1e-38, 3.4028234663852886e38) * load1(A, -2147483647 - 1);")
    found = re.search(r"vec4<f32>\((.*?)\) \*", code)
    assert found is not None
    numbers = [float(x.strip("()f")) for x in found[1].split(", ")]
    want = [struct.unpack("<f", struct.pack("<f", x))[0] for x in (0.1, -0.0, 1e-38, 3.4028234e38)]
    assert [struct.pack("<f", n) for n in numbers] == [struct.pack("<f", w) for w in want]
    assert "k_one_A((-2147483647i - 1i), " in code


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("return load4(A, p) * (1.0 / 0.0);", r"1\.0f / 0\.0f"),
        ("return load4(A, p) * sqrt(-1.0);", r"sqrt\(\(?-1"),
        ("return load4(A, p) + vec4(ivec4(2147483647) + ivec4(1));", r"\(2147483647i\) \+ \w+<"),
        ("return load4(A, p) * vec4(vec4(3e38) * 10.0);", r"e\+38f\) \* vec4<f32>\(10"),
        ("return load4(A, p) * float(7 / S);", r"7i / s_S"),
    ],
)
def test_the_compiler_is_given_nothing_to_evaluate_that_it_might_refuse(
    text: str, refused: str
) -> None:
    assert re.search(refused, body(text)) is None


def test_negative_positions_are_converted_as_i32() -> None:
    code = body("return texel(A, -1) + load1(A, -5);")
    assert "u32((-1i))" in code
    assert "k_one_A((-5i), last_A)" in code


def test_nan_is_recognised_by_its_bits() -> None:
    code = body("vec4 v = load4(A, p); bool n = v.x != v.x; return n || !(v.y == v.y) ? -v : v;")
    assert code.count("k_nan(") == 2
    assert "!k_nan(v2_v.y)" in code or "!k_nan(v1_v.y)" in code
    assert "k_nan" not in body("vec4 v = load4(A, p); return v.x != v.y ? -v : v;")


def test_comparisons_cannot_begin_a_list_of_types() -> None:
    code = body(
        "vec4 v = load4(A, p); return vec4(v.x < v.y ? v.z : v.w, v.z > v.w ? 1.0 : 2.0, 0.0, 0.0);"
    )
    assert "(v2_v.x < v2_v.y))" in code


def test_clamps_keep_their_order_and_tanh_its_range() -> None:
    assert "min(max(" in body("return clamp(load4(A, p), 2.0, 1.0);")
    code = body("return tanh(load4(A, p));")
    assert re.search(r"tanh\(clamp\(.*, vec4<f32>\(-15\.0\), vec4<f32>\(15\.0\)\)\)", code)


def test_helpers_that_ask_where_they_run_are_told_by_main() -> None:
    code = wgsl(GROUP)
    assert "var<private> k_local: vec3<i32>;" in code
    assert "\n    k_local = vec3<i32>(local);" in code
    plain = GROUP.replace("return local_id().y * LX + local_id().x", "return LX")
    plain = wgsl(plain.replace("group_id().z", "LX"))
    assert "var<private>" not in plain
    assert "\n    let k_local = vec3<i32>(local);" in plain


def test_deep_sums_need_no_deep_parentheses() -> None:
    code = body(f"float a = load1(A, 1); return vec4({' + '.join(['a * a'] * 60)});")
    assert max(line.count("(") for line in code.split("\n")) < 12


def test_printing_is_deterministic_and_the_digest_follows_the_code() -> None:
    one, two = (lang.print_kernel(lang.load(SCALED, filename="s"), "wgsl") for _ in range(2))
    assert one == two
    changed = lang.print_kernel(lang.load(SCALED.replace("2.0", "3.0"), filename="s"), "wgsl")
    assert changed.digest != one.digest
    assert re.fullmatch(r"[0-9a-f]{64}", one.digest)
    assert one.specs == tuple(SpecArg(n, "int", i, 1) for i, n in enumerate(("LX", "LY", "LZ")))


def test_lanes_of_subgroups() -> None:
    """Without the directive, which naga refuses and only Dawn needs."""
    code = lang.print_kernel(lane_kernel(8), "wgsl").code.decode()
    assert "enable" not in code
    assert "fn main(@builtin(subgroup_invocation_id) lane: u32, @builtin(local_inv" in code
    assert code.count("let k_lane = i32(lane);") == 1
    taken = re.findall(r"subgroupShuffle\((.*?), (\d)u\)", code)
    assert [int(lane) for _, lane in taken] == [k for k in range(8) for _ in range(3)]
    assert "subgroup" not in wgsl(GROUP)
    asked = wgsl(GROUP.replace("int lane() { return ", "int lane() { return lane_id() * 0 + "))
    assert asked.count("var<private> k_lane: i32;") == asked.count("    k_lane = i32(lane);") == 1
