"""Printed SPIR-V: valid for Vulkan 1.0 and later, stable, with the interface that it declares.

That it computes the right thing is shown on drivers, in tests/drivers.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import daily
import pytest
import wgsl_corpus
from lang_kernels import DOTS

from gpuedge import lang
from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg
from gpuedge.core.storage import HALF_TEXELS, HALF_TEXTURE, TEXELS, TEXTURE

pytestmark = daily.day(1, of=4)

SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"
NAMES = sorted(path.stem for path in SAMPLES.glob("*.kern"))


def printed(name: str, consts: dict[str, int] | None = None) -> KernelBlob:
    text = (SAMPLES / f"{name}.kern").read_text()
    return lang.print_kernel(lang.load(text, filename=f"{name}.kern", consts=consts))


def tool(*command: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*command, "-"], input=stdin, capture_output=True, timeout=280, check=False
    )


def assert_valid(code: bytes) -> None:
    for target in ("vulkan1.0", "vulkan1.1", "vulkan1.3"):
        done = tool("spirv-val", "--target-env", target, stdin=code)
        assert done.returncode == 0, (target, done.stderr.decode() + done.stdout.decode())


def disassembly(code: bytes) -> str:
    done = tool("spirv-dis", "--no-color", "--no-header", stdin=code)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_valid(name: str) -> None:
    assert_valid(printed(name).code)


def test_the_validator_would_object() -> None:
    code = bytearray(printed("affine").code)
    code[12:16] = struct.pack("<I", 3)  # the id bound
    assert tool("spirv-val", stdin=bytes(code)).returncode != 0


@pytest.mark.parametrize("name", ["affine", "gemm"])
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    path = SAMPLES / f"{name}.spvasm"
    text = disassembly(printed(name).code)
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text(), "see tests/golden/spirv/README.md"


def test_interface_of_the_blob() -> None:
    blob = printed("affine")
    assert (blob.name, blob.dialect, blob.entry) == ("affine", "spirv", "main")
    assert blob.tensors == (
        TensorArg("A", "read", 0), TensorArg("B", "read", 1), TensorArg("O", "write", 2),
    )  # fmt: skip
    assert blob.specs == (
        SpecArg("LX", "int", 0, 1), SpecArg("LY", "int", 1, 1), SpecArg("LZ", "int", 2, 1),
        SpecArg("FLOOR", "float", 3, 0.0), SpecArg("CLAMP", "bool", 4, False),
    )  # fmt: skip
    assert blob.push == (
        PushArg("A", "ivec4", 0), PushArg("B", "ivec4", 16), PushArg("O", "ivec4", 32),
        PushArg("K", "float", 48),
    )  # fmt: skip
    assert blob.push_bytes == 52
    packed = blob.pack_push([(1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)], {"K": 0.5})
    assert packed == struct.pack("<12if", *range(1, 13), 0.5)


def test_declared_interface_is_in_the_code() -> None:
    text = disassembly(printed("affine").code)
    assert re.findall(r"OpDecorate %(\w+) Binding (\d)", text) == [
        ("A", "0"),
        ("B", "1"),
        ("O", "2"),
    ]
    assert text.count("DescriptorSet 0") == 3
    found = dict(re.findall(r"OpDecorate %(\w+) SpecId (\d)", text))
    assert found == {"LX": "0", "LY": "1", "LZ": "2", "FLOOR": "3", "CLAMP": "4"}
    offsets = re.findall(r"OpMemberDecorate (%\w+) \d Offset (\d+)", text)
    blocks = [block for block, _ in offsets]
    push = max(set(blocks), key=blocks.count)
    assert [int(n) for block, n in offsets if block == push] == [0, 16, 32, 48]
    assert text.count("NonWritable") == 2
    assert text.count("NonReadable") == 1


def test_workgroup_size_is_a_uvec3_made_of_the_specs() -> None:
    text = disassembly(printed("gemm").code)
    size = re.search(r"OpDecorate %(\w+) BuiltIn WorkgroupSize", text)
    assert size is not None
    parts = re.search(rf"%{size[1]} = OpSpecConstantComposite %v3uint %(\w+) %(\w+) %(\w+)", text)
    assert parts is not None
    sources = [
        re.search(rf"%{part} = OpSpecConstantOp %uint IAdd %(\w+) %uint_0", text)
        for part in parts.groups()
    ]
    assert [source and source[1] for source in sources] == ["LX", "LY", "int_1"]


def test_barriers_order_workgroup_memory() -> None:
    text = disassembly(printed("gemm").code)
    assert text.count("OpControlBarrier %uint_2 %uint_2 %uint_264") == 2


@pytest.mark.parametrize("name", NAMES)
def test_only_old_and_common_features_are_used(name: str) -> None:
    code = printed(name).code
    assert struct.unpack_from("<2I", code) == (0x07230203, 0x00010000)
    text = disassembly(code)
    assert re.findall(r"OpCapability (\w+)", text) == ["Shader"]
    assert re.findall(r'OpExtension "(\w+)"', text) == ["SPV_KHR_storage_buffer_storage_class"]


def read_as(kernel: lang.Kernel, kind: str) -> KernelBlob:
    """Print a kernel that reads all its tensors as texel buffers or textures."""
    kinds = {x.name: kind for x in kernel.tensors if x.access == "read"}
    return lang.print_kernel(kernel, "spirv", kinds)


def test_every_kernel_that_reads_texel_buffers_or_textures_is_valid() -> None:
    found = [
        text.kernel
        for text in wgsl_corpus.texts()
        if ("/" in text.name or text.name in NAMES) and len(text.kernel.tensors) > 1
    ]
    assert len(found) > 25
    for kernel in found:
        for kind in (TEXELS, HALF_TEXELS, TEXTURE, HALF_TEXTURE):
            assert_valid(read_as(kernel, kind).code)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [TEXELS, HALF_TEXELS])
def test_texel_buffers(name: str, kind: str) -> None:
    kernel = lang.load((SAMPLES / f"{name}.kern").read_text(), filename=name)
    blob = read_as(kernel, kind)
    reads = [x.name for x in kernel.tensors if x.access == "read"]
    assert [x.storage for x in blob.tensors] == [kind] * len(reads) + ["buffer"]
    text = disassembly(blob.code)
    assert re.findall(r"OpCapability (\w+)", text) == ["Shader", "SampledBuffer"]
    image = re.findall(r"(%\w+) = OpTypeImage %float Buffer 0 0 0 1 Unknown", text)
    assert len(image) == 1
    constants = re.findall(rf"%(\w+) = OpVariable %_ptr_UniformConstant_{image[0][1:]} ", text)
    assert constants == reads
    clamped = set(re.findall(r"(%\w+) = OpExtInst %int %\w+ UMin", text))
    shifts = re.findall(r"(%\w+) = OpShiftRightLogical %int (%\w+)", text)
    clamped |= {made for made, source in shifts if source in clamped}
    places = re.findall(r"OpImageFetch %v4float %\w+ (%\w+)$", text, re.MULTILINE)
    assert places and set(places) <= clamped


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [TEXTURE, HALF_TEXTURE])
def test_textures(name: str, kind: str) -> None:
    """Texel q lies at (q mod 2048, q div 2048)."""
    kernel = lang.load((SAMPLES / f"{name}.kern").read_text(), filename=name)
    text = disassembly(read_as(kernel, kind).code)
    assert re.findall(r"OpCapability (\w+)", text) == ["Shader"]
    image = re.findall(r"(%\w+) = OpTypeImage %float 2D 0 0 0 1 Unknown", text)
    constants = re.findall(rf"%(\w+) = OpVariable %_ptr_UniformConstant_{image[0][1:]} ", text)
    assert constants == [x.name for x in kernel.tensors if x.access == "read"]
    columns = dict(re.findall(r"(%\w+) = OpBitwiseAnd %int (%\w+) %int_2047", text))
    rows = dict(re.findall(r"(%\w+) = OpShiftRightLogical %int (%\w+) %int_11", text))
    places = re.findall(r"(%\w+) = OpCompositeConstruct %v2int (%\w+) (%\w+)", text)
    assert places and all(columns[x] == rows[y] for _, x, y in places)
    fetches = re.findall(r"OpImageFetch %v4float %\w+ (%\w+) Lod %int_0$", text, re.MULTILINE)
    assert set(fetches) == {made for made, _, _ in places}


@pytest.mark.parametrize("name", NAMES)
def test_every_load_of_a_tensor_is_clamped(name: str) -> None:
    text = disassembly(printed(name).code)
    clamped = set(re.findall(r"(%\w+) = OpExtInst %int %\w+ UMin", text))
    shifted = {
        made
        for made, source in re.findall(r"(%\w+) = OpShiftRightLogical %int (%\w+)", text)
        if source in clamped
    }
    loads = re.findall(
        r"(%\w+) = OpAccessChain %_ptr_StorageBuffer_\w+ %\w+ %int_0 (%\w+).*\n.*OpLoad", text
    )
    assert loads
    assert {index for _, index in loads} <= clamped | shifted


def test_printing_is_deterministic_and_the_digest_follows_the_code() -> None:
    assert printed("gemm") == printed("gemm")
    digests = {printed("gemm", {"RM": n}).digest for n in (1, 2, 4)}
    assert len(digests) == 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)


def test_locals_that_never_change_need_no_variable() -> None:
    head = "kernel map t;\nin tensor A;\nout tensor O;\n"
    text = head + "vec4 main(ivec4 p) { vec4 a = load4(A, p); vec4 b = a * a; return b + a; }"
    plain = disassembly(lang.print_kernel(lang.load(text, filename="t")).code)
    assert "Function" not in re.findall(r"OpVariable %\w+ (\w+)", plain)
    changed = text.replace("return", "b += a; return")
    code = disassembly(lang.print_kernel(lang.load(changed, filename="t")).code)
    assert re.findall(r"OpVariable %\w+ (\w+)", code).count("Function") == 1


@pytest.mark.parametrize(
    "body",
    [
        "int a = 1; for (int i = 0; i < a; i++) { for (int j = 0; j < P; j += S) v += 1.0; }",
        "if (F) { if (v.x > 0.0) v.x = 1.0; else v.y = 2.0; }",
        "if (F) v.x = 1.0; else for (int i = 0; i < P; i++) { if (i > 1) v *= v; }",
        "bool b = v.x > 0.0; b = !b || F; v = b == F ? v : -v;",
        "vec3 q[2]; q[0] = v.xyz; q[1] = q[0]; q[1].z *= 2.0; v.x = q[1].z;",
        "ivec3 i = ivec3(p.xy, S); i[1] += P; i = -i % 3 / 2; v *= vec4(vec3(i), 1.0);",
        "vec2 w = tanh(v.xy) + pow(v.zw, vec2(2.0)); v.w = tanh(w.x) + w.x * w.y;",
        "v = sign(v) + roundeven(v) + sqrt(abs(v)); v.x = -v.x;",
        "v += texel(A, p.x) + load1(A, dims(A).y) + load4z(A, dims(A) - 1) + load4(A, ivec4(0));",
    ],
)
def test_statements_print_as_valid_code(body: str) -> None:
    text = (
        "kernel map t;\nin tensor A;\nout tensor O;\n"
        "spec int S = 2; spec bool F = true; param int P;\n"
        f"vec4 main(ivec4 p) {{ vec4 v = load4(A, p);\n{body}\nreturn v; }}"
    )
    assert_valid(lang.print_kernel(lang.load(text, filename="t")).code)


def test_group_statements_print_as_valid_code() -> None:
    text = (
        "kernel group t;\nin tensor A;\nout tensor O;\nspec int Q = 2; spec int LX = 8;\n"
        "local_size(LX, 2, 1);\n"
        "shared ivec2 M[LX * (Q + 1) / 2 % 64 - 1]; shared float H[4];\n"
        "float get(int i) { return H[i] * float(M[i].x); }\n"
        "void main() { ivec3 l = local_id(); int q = group_id().z; float z[3];\n"
        "M[l.x].y += 2; H[l.y] = load1(A, q); z[l.x % 3] = 1.0; barrier();\n"
        "for (int i = l.x; i < Q; i += LX) { if (i > 1) storet(O, i, vec4(get(i), vec3(z[i]))); }\n"
        "for (int i = 0; i < Q; i++) { barrier(); store4(O, dims(O) - i, vec4(1.0)); } }"
    )
    assert_valid(lang.print_kernel(lang.load(text, filename="t")).code)


@pytest.mark.parametrize("name", NAMES)
def test_halves_are_valid(name: str) -> None:
    """With every tensor kept as float16, two to a word."""
    kernel = lang.load((SAMPLES / f"{name}.kern").read_text(), filename=f"{name}.kern")
    blob = lang.print_kernel(kernel, "spirv", {t.name: "buffer_f16" for t in kernel.tensors})
    assert_valid(blob.code)
    assert {t.storage for t in blob.tensors} == {"buffer_f16"}
    text = disassembly(blob.code)
    assert "UnpackHalf2x16" in text and "PackHalf2x16" in text
    assert blob.digest != printed(name).digest


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["buffer_u8", "buffer_s8"])
def test_bytes_are_valid(name: str, kind: str) -> None:
    """With every tensor that is read kept as bytes, four to a word."""
    kernel = lang.load((SAMPLES / f"{name}.kern").read_text(), filename=f"{name}.kern")
    read = {t.name: kind for t in kernel.tensors if t.access == "read"}
    blob = lang.print_kernel(kernel, "spirv", read)
    assert_valid(blob.code)
    assert {t.name: t.storage for t in blob.tensors if t.storage == kind} == read
    assert ("ShiftRightArithmetic" in disassembly(blob.code)) is (kind == "buffer_s8")


@pytest.mark.parametrize("dialect", ["spirv", "wgsl", "essl310"])
@pytest.mark.parametrize("kind", ["buffer_u8", "texels", "image_f16"])
def test_what_is_only_read_is_not_written(dialect: str, kind: str) -> None:
    kernel = lang.load((SAMPLES / "affine.kern").read_text(), filename="affine.kern")
    with pytest.raises(KernelError, match="tensor O is written") as caught:
        lang.print_kernel(kernel, dialect, {"O": kind})
    assert f"{kind} is only read" in str(caught.value)


LANES = (
    "kernel group t;\nin tensor A;\nout tensor O;\nconst int SHARE = 1;\nlocal_size(8, 1, 1);\n"
    "void main() { vec4 v = SHARE > 0 ? lane_value(texel(A, lane_id()), 7) : texel(A, 0);\n"
    "if (SHARE > 0) { ivec3 i = lane_value(local_id(), 1); v.x = lane_value(float(i.x), 3); }\n"
    "storet(O, 0, v); }"
)


def test_lanes_of_subgroups_take_a_later_version() -> None:
    """Only kernels that use them do; those are no code for Vulkan 1.0."""
    blob = lang.print_kernel(lang.load(LANES, filename="t"))
    assert struct.unpack("<I", blob.code[4:8]) == (0x10300,)
    for target, is_fine in (("vulkan1.0", False), ("vulkan1.1", True), ("vulkan1.3", True)):
        done = tool("spirv-val", "--target-env", target, stdin=blob.code)
        assert (done.returncode == 0) == is_fine, done.stderr.decode()
    text = disassembly(blob.code)
    assert re.findall(r"OpCapability (GroupNonUniform\w*)", text) == [
        "GroupNonUniform", "GroupNonUniformShuffle",
    ]  # fmt: skip
    assert re.findall(r"GroupNonUniformShuffle %\w+ (%\w+) %\w+ (%\w+)", text) == [
        ("%uint_3", "%uint_7"), ("%uint_3", "%uint_1"), ("%uint_3", "%uint_3"),
    ]  # fmt: skip


def test_lanes_that_a_constant_rules_out_are_none() -> None:
    kernel = lang.load(LANES, filename="t", consts={"SHARE": 0})
    assert not kernel.has_lanes
    assert_valid(lang.print_kernel(kernel).code)


def test_products_of_packed_bytes_are_of_an_extension() -> None:
    """Kernels that have none do not ask for it: they are code for Vulkan 1.0 without it."""
    code = lang.print_kernel(lang.load(DOTS, filename="t")).code
    assert_valid(code)
    text = disassembly(code)
    words = ["DotProduct", "DotProductInput4x8BitPacked"]
    assert re.findall(r"OpCapability (Dot\w*)", text) == words
    assert text.count('OpExtension "SPV_KHR_integer_dot_product"') == 1
    assert len(re.findall(r"= OpSDot %int %\w+ %\w+ PackedVectorFormat4x8Bit", text)) == 4
    assert 'OpExtension "SPV_KHR_integer' not in disassembly(printed("affine").code)


@pytest.mark.parametrize("dialect", sorted(set(lang.PRINTERS) - {"spirv", "wgsl"}))
def test_other_dialects_refuse_products_of_packed_bytes(dialect: str) -> None:
    text = DOTS.replace("& 255", "+ 0")  # OpenGL ES 2.0 has no bits either
    with pytest.raises(KernelError, match=f"as {dialect}: it multiplies packed bytes"):
        lang.print_kernel(lang.load(text, filename="t"), dialect)


@pytest.mark.parametrize("dialect", sorted(set(lang.PRINTERS) - {"spirv", "wgsl"}))
def test_other_dialects_refuse_lanes(dialect: str) -> None:
    with pytest.raises(KernelError, match=f"lanes of subgroups, which {dialect} cannot say"):
        lang.print_kernel(lang.load(LANES, filename="t"), dialect)
