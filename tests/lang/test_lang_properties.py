"""Random expressions against Python, and random damage to texts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_interpreter import interpret

from gpuedge import lang
from gpuedge.core.errors import KernelSyntaxError
from gpuedge.lang import tree as t

SAMPLES = Path(__file__).resolve().parents[1] / "golden" / "spirv"
TEXTS = [path.read_text() for path in sorted(SAMPLES.glob("*.kern"))]
TOKEN = re.compile(r"//[^\n]*|\w+|\s+|.")
STEADY = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LEAVES = {"a": 7, "b": 2, "c": 0, "d": 30}
"""Locals of the test kernel and their values: never negative, as / and % demand."""

# Pairs of (text in the language, text in Python); ints stay small and not negative.
leaf = st.one_of(
    st.sampled_from(sorted(LEAVES)).map(lambda name: (name, name)),
    st.integers(0, 50).map(lambda n: (str(n), str(n))),
)


def grow(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    def binary(parts: tuple[str, tuple[str, str], tuple[str, str]]) -> tuple[str, str]:
        op, (a, x), (b, y) = parts
        if op in "/%":
            return (
                f"({a}) {op} (({b}) % 9 + 1)",
                f"({x}) {'//' if op == '/' else op} (({y}) % 9 + 1)",
            )
        if op == "-":
            return f"max(({a}) - ({b}), 0)", f"max(({x}) - ({y}), 0)"
        if op == "*":
            return f"({a}) % 100 * ({b}) % 1000", f"({x}) % 100 * ({y}) % 1000"
        if op in ("min", "max"):
            return f"{op}({a}, {b})", f"{op}({x}, {y})"
        return f"{a} {op} {b}", f"{x} {op} {y}"

    def choice(parts: tuple[str, tuple[str, str], tuple[str, str]]) -> tuple[str, str]:
        op, (a, x), (b, y) = parts
        text = f"(({a}) {op} ({b}) || !(a == b) && false ? ({a}) : ({b}) + 1)"
        return text, f"(({x}) if ({x}) {op} ({y}) or (not (a == b) and False) else ({y}) + 1)"

    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "/", "%", "min", "max"]), pair).map(
            lambda p: binary((p[0], *p[1]))
        ),
        st.tuples(st.sampled_from(["<", ">", "<=", ">=", "==", "!="]), pair).map(
            lambda p: choice((p[0], *p[1]))
        ),
    )


# Longer ones meet the limit on operators.
expressions = st.recursive(leaf, grow, max_leaves=12).filter(lambda pair: len(pair[0]) < 500)


def kernel_of(text: str, names: str) -> lang.Kernel:
    return lang.load(
        "kernel map t;\nin tensor A;\nout tensor O;\n"
        f"{names}\nvec4 main(ivec4 p) {{ vec4 v = load4(A, p);\n"
        f"int a = 7; int b = int(v.x); int r = {text};\n"
        "return vec4(float(r % 4096), float(r / 4096), float(a), float(b)); }}".replace("}}", "}"),
        filename="t",
    )


@STEADY
@given(expressions)
def test_folding_and_interpreting_agree_with_python(pair: tuple[str, str]) -> None:
    text, python = pair
    want = eval(python, {"min": min, "max": max}, dict(LEAVES))
    texel = np.array([2, 0, 0, 0], np.float32).reshape(1, 1, 1, 1, 4)
    run = kernel_of(text, "param int c; spec int d = 30;")
    got = interpret(run, {"A": texel}, (1, 1, 1, 1), params={"c": 0})[0, 0, 0, 0]
    assert (got[1] * 4096 + got[0], got[2], got[3]) == (want, 7, 2)

    names = "".join(f"const int {name} = {value};" for name, value in LEAVES.items())
    head = f"kernel map t;\nin tensor A;\nout tensor O;\n{names}const int R = {text};\n"
    folded = lang.load(
        head + "vec4 main(ivec4 p) { int r = R; return load4(A, p) * float(r); }", filename="t"
    )
    first = folded.main.body[0]
    assert isinstance(first, t.Declare)
    assert isinstance(first.value, t.Literal)
    assert first.value.value == want


@STEADY
@given(
    st.sampled_from(TEXTS),
    st.lists(
        st.tuples(
            st.sampled_from(["drop", "double", "swap", "cut"]),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_damaged_texts_raise_only_syntax_errors(
    text: str, damage: list[tuple[str, int, int]]
) -> None:
    tokens = TOKEN.findall(text)
    for kind, where, other in damage:
        at, to = where % len(tokens), other % len(tokens)
        if kind == "drop":
            tokens.pop(at)
        elif kind == "double":
            tokens.insert(at, tokens[at])
        elif kind == "swap":
            tokens[at], tokens[to] = tokens[to], tokens[at]
        else:
            del tokens[min(at, to) : min(at, to) + 3]
        tokens = tokens or ["kernel"]
    try:
        kernel = lang.load("".join(tokens), filename="t")
    except KernelSyntaxError:
        return
    # Whatever still means something prints, and prints as valid code.
    code = lang.print_kernel(kernel).code
    done = subprocess.run(
        ["spirv-val", "--target-env", "vulkan1.0", "-"],
        input=code, capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode() + "\n" + "".join(tokens)


@STEADY
@given(
    st.text(alphabet='kernelmapgou ;(){}[]+-*/%<>=!?:.,&|0123456789efxyzw\n\t/"#é_', max_size=200)
)
def test_noise_raises_only_syntax_errors(noise: str) -> None:
    for text in (noise, TEXTS[0] + noise, TEXTS[0].replace("return", noise)):
        try:
            lang.print_kernel(lang.load(text, filename="t"))
        except KernelSyntaxError as error:
            assert error.what.endswith("^")


def test_deep_and_long_texts_do_not_exhaust_the_stack() -> None:
    head = (
        "kernel map t;\nin tensor A;\nout tensor O;\nvec4 main(ivec4 p) { vec4 v = load4(A, p);\n"
    )
    chain = " + ".join(["v"] * 249)
    nested = "(" * 38 + "v" + ")" * 38
    body = f"v = {chain};\nv = {nested};\n" + "int i = 0;" + "i = i + 1;" * 2000
    kernel = lang.load(f"{head}{body} return v; }}", filename="t")
    lang.print_kernel(kernel)
    texel = np.ones((1, 1, 1, 1, 4), np.float32)
    assert interpret(kernel, {"A": texel}, (1, 1, 1, 1))[0, 0, 0, 0, 0] == 249
