"""What the parser makes of valid texts: types, folding, unrolling, constants, interface."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_needs import shared_bytes, trip_count

from gpuedge import lang
from gpuedge.core.errors import KernelError, KernelSyntaxError
from gpuedge.lang import tree as t

SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"
HEAD = "kernel map t;\nin tensor A;\nout tensor O;\nconst int N = 3; spec int S = 2; param int P;\n"


def main_of(body: str) -> t.Function:
    text = HEAD + "vec4 main(ivec4 p) {\nvec4 v = load4(A, p); int i = p.x; float f = 1.0;\n"
    return lang.load(f"{text}{body}\nreturn v;\n}}", filename="t").main


def value_of(expression: str, kind: str) -> t.Expr:
    declare = main_of(f"{kind} x = {expression};").body[-1]
    assert isinstance(declare, t.Declare)
    assert declare.value is not None
    return declare.value


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        ("float", "f + 1.0"),
        ("vec4", "v * 2.0"),
        ("vec4", "2.0 / v"),
        ("vec3", "v.xyz - v.zyx"),
        ("ivec2", "p.xy % 2"),
        ("int", "i / 3 * (i - 1)"),
        ("bool", "i < 3 && f >= 1.0 || !(f != 2.0)"),
        ("bool", "true == (i == 2)"),
        ("vec4", "i > 0 ? v : vec4(0.0)"),
        ("int", "i > 0 ? i > 1 ? 2 : 1 : 0"),
        ("vec4", "vec4(v.xy, f, 1.0)"),
        ("ivec4", "ivec4(p.xyz, 1)"),
        ("ivec4", "ivec4(v)"),
        ("vec2", "vec2(p.xy)"),
        ("float", "float(i)"),
        ("int", "int(f)"),
        ("int", "i & 7 + i >> 2 + 1"),
        ("ivec4", "p & 255 & p.wzyx >> 3"),
        ("bool", "(i & 1) == 1"),
        ("vec4", "clamp(v, 0.0, 6.0)"),
        ("vec4", "max(0.0, v)"),
        ("int", "min(i, 3)"),
        ("ivec4", "max(p, 0)"),
        ("float", "v[2]"),
        ("vec2", "v.wx"),
        ("ivec4", "dims(A)"),
        ("vec4", "load4z(A, p) + texel(A, 0)"),
        ("float", "load1(A, i)"),
        ("float", "-f + 1e3 + .5 + 2."),
    ],
)
def test_expression_has_the_type(kind: str, expression: str) -> None:
    assert value_of(expression, kind).type == kind


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("N * 2 + 1", 7),
        ("(7 + N) / 4 % 3", 2),
        ("-N + 5", 2),
        ("N > 2 ? 10 : 20", 10),
        ("min(N, 2) + max(N, 9) + clamp(50, 0, N) + abs(-4)", 18),
        ("int(3.0) - int(-2.0)", 5),
        ("-2147483647 - 1", -(2**31)),
        ("-2147483648", -(2**31)),
        ("-7 / 2", -3),
        ("7 / -2", -3),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("12 & 10", 8),
        ("-17 >> 2", -5),
        ("60 + 3 >> 1 & 24", 24),
    ],
)
def test_int_constants_fold(expression: str, value: int) -> None:
    literal = value_of(expression, "int")
    assert isinstance(literal, t.Literal)
    assert literal.value == value


def test_float_literals_are_float32() -> None:
    literal = value_of("0.1", "float")
    assert isinstance(literal, t.Literal)
    assert literal.value == 0.10000000149011612
    cast = value_of("float(16777217)", "float")
    assert isinstance(cast, t.Literal)
    assert cast.value == 16777216.0


@pytest.mark.parametrize(
    ("expression", "time"),
    [("N + 1", t.CONST), ("N + S", t.SPEC), ("S * P", t.UNIFORM), ("dims(A).x", t.UNIFORM),
     ("dims(A).x / S", t.UNIFORM), ("i + P", t.VARYING), ("min(P, S)", t.UNIFORM)],
)  # fmt: skip
def test_binding_time(expression: str, time: int) -> None:
    assert value_of(expression, "int").time == time


def test_scalars_beside_vectors_are_splatted() -> None:
    value = value_of("v * f", "vec4")
    assert isinstance(value, t.Op)
    repeated = value.args[1]
    assert isinstance(repeated, t.Op)
    assert (repeated.name, repeated.type) == ("splat", "vec4")


def test_unrolled_loops_are_written_out_with_constant_indices() -> None:
    body = main_of(
        "vec4 a[N]; unroll for (int j = 0; j < N; j++) { a[j] = v * float(j + 1); }"
    ).body
    assigned = [stmt for stmt in body if isinstance(stmt, t.Assign)]
    indices = [stmt.index.value for stmt in assigned if isinstance(stmt.index, t.Literal)]
    assert indices == [0, 1, 2]


def test_unrolled_loop_without_rounds_is_checked_and_dropped() -> None:
    assert len(main_of("unroll for (int j = 3; j < N; j++) { v += v[j]; }").body) == 3
    with pytest.raises(KernelSyntaxError, match="'q' is not declared"):
        main_of("unroll for (int j = 3; j < N; j++) { v += q; }")


def test_constant_branches_disappear_but_are_checked() -> None:
    body = main_of("float a[N]; if (N > 3) a[3] = 1.0; else a[2] = 2.0;").body
    assert not [stmt for stmt in body if isinstance(stmt, t.If)]
    last = body[-1]
    assert isinstance(last, t.Assign)
    assert isinstance(last.index, t.Literal)
    assert last.index.value == 2
    with pytest.raises(KernelSyntaxError, match="does not take"):
        main_of("if (N > 3) v += 1;")


def test_a_constant_local_can_index() -> None:
    main_of("float a[N]; unroll for (int j = 0; j < N; j++) { int k = N - 1 - j; a[k] = f; }")


def test_compound_assignment_is_spelled_out() -> None:
    stmt = main_of("v.y *= 2.0;").body[-1]
    assert isinstance(stmt, t.Assign)
    assert stmt.component == 1
    assert isinstance(stmt.value, t.Op)
    assert stmt.value.name == "*"
    assert isinstance(stmt.value.args[0], t.Swizzle)


def test_assigned_is_known_per_local() -> None:
    body = main_of("int a = 1; int b = 2; b = a;").body
    names = {s.local.name: s.local.assigned for s in body if isinstance(s, t.Declare)}
    assert names == {"v": False, "i": False, "f": False, "a": False, "b": True}


def test_names_end_with_their_block() -> None:
    main_of("{ int q = 1; i += q; } { float q = 2.0; f += q; } for (int q = 0; q < P; q++) { }")


def test_interface_of_a_map_kernel() -> None:
    kernel = lang.load((SAMPLES / "affine.kern").read_text(), filename="affine.kern")
    assert (kernel.name, kernel.form, kernel.out.name) == ("affine", "map", "O")
    assert [(x.name, x.access, x.binding) for x in kernel.tensors] == [
        ("A", "read", 0), ("B", "read", 1), ("O", "write", 2),
    ]  # fmt: skip
    assert [(x.name, x.type, x.spec_id, x.default) for x in kernel.specs] == [
        ("LX", "int", 0, 1), ("LY", "int", 1, 1), ("LZ", "int", 2, 1),
        ("FLOOR", "float", 3, 0.0), ("CLAMP", "bool", 4, False),
    ]  # fmt: skip
    assert [(x.name, x.type) for x in kernel.params] == [("K", "float")]


def test_interface_of_a_group_kernel() -> None:
    text = (
        "kernel group g;\nout tensor O;\nspec int Q = 5;\nspec int LY = 4;\nlocal_size(8, LY, 1);\n"
    )
    kernel = lang.load(text + "void main() { storet(O, 0, vec4(1.0)); }", filename="g.kern")
    assert [(x.name, x.spec_id, x.default) for x in kernel.specs] == [
        ("LX", 0, 8), ("LY", 1, 4), ("LZ", 2, 1), ("Q", 3, 5),
    ]  # fmt: skip


def test_epilogue_brings_its_own_arguments() -> None:
    text = (SAMPLES / "affine.kern").read_text()
    epilogue = (
        "in tensor R; param float Z;\n"
        "vec4 epilogue(vec4 v, ivec4 p) { return v + load4(R, p) * Z; }"
    )
    kernel = lang.load(text, filename="affine.kern", epilogue=epilogue)
    assert [x.name for x in kernel.tensors] == ["A", "B", "O", "R"]
    assert [x.name for x in kernel.params] == ["K", "Z"]


def test_consts_are_replaced() -> None:
    text = (SAMPLES / "gemm.kern").read_text()
    small = lang.load(text, filename="gemm.kern")
    large = lang.load(text, filename="gemm.kern", consts={"RM": 8})
    assert shared_bytes(small) == (4 * 2 * 4 + 4 * 4 * 4) * 16
    assert shared_bytes(large, {"LX": 8}) == (4 * 8 * 4 + 4 * 4 * 8) * 16


def test_trip_count() -> None:
    conv = lang.load((SAMPLES / "conv.kern").read_text(), filename="conv.kern")
    assert trip_count(conv, extents={}, params={"CS": 5}) == 5 * (1 + 3 * (1 + 3))
    assert trip_count(conv, extents={}, params={"CS": 5}, specs={"KW": 1}) == 5 * (1 + 3 * 2)
    softmax = lang.load((SAMPLES / "softmax.kern").read_text(), filename="softmax.kern")
    assert trip_count(softmax, extents={"X": (2, 2, 7, 1)}) == 14
    with pytest.raises(KeyError, match="loop s in kernel softmax"):
        trip_count(softmax, extents={})


def test_trip_count_adds_calls_and_counts_strides() -> None:
    text = (
        HEAD
        + "float h(int n) { float x = 0.0; for (int j = 1; j < P; j += S) x += 1.0; return x; }\n"
        "vec4 main(ivec4 p) { return load4(A, p) * (h(1) + max(h(2), 0.0)); }"
    )
    kernel = lang.load(text, filename="t")
    assert trip_count(kernel, extents={}, params={"P": 8}) == 2 * 4


def test_unknown_dialect_is_refused() -> None:
    kernel = lang.load((SAMPLES / "affine.kern").read_text(), filename="affine.kern")
    with pytest.raises(KernelError, match="cannot be printed as 'hlsl'"):
        lang.print_kernel(kernel, "hlsl")
