"""Everything that a kernel text can get wrong, and where the error points.

In the cases `@` stands right before the token under the caret.
"""

from __future__ import annotations

import pytest

from gpuedge import lang
from gpuedge.core.errors import KernelSyntaxError

HEAD = "kernel map t;\nin tensor A;\nout tensor O;\n"
GROUP = "kernel group t;\nin tensor A;\nout tensor O;\nlocal_size(8, 1, 1);\n"
LOAD = "load4(A, p)"


def in_main(body: str) -> str:
    return (
        f"{HEAD}const int N = 3; spec int S = 2; param int P;\nvec4 main(ivec4 p) {{\n{body}\n}}\n"
    )


def statement(text: str) -> str:
    return in_main(f"    vec4 v = {LOAD}; int i = 1; float f = 1.0;\n    {text}\n    return v;")


def expression(text: str) -> str:
    return statement(f"v += vec4({text});")


def in_group(body: str) -> str:
    return (
        f"{GROUP}shared vec4 M[8]; param int P;\nfloat h(int q) {{ return load1(A, q); }}\n"
        f"void main() {{\n    ivec4 p = ivec4(group_id(), 0);\n    store4(O, p, {LOAD});\n"
        f"    {body}\n}}\n"
    )


def whole(text: str) -> str:
    return f"{text}\nvec4 main(ivec4 p) {{ return {LOAD}; }}\n"


def top(declaration: str) -> str:
    return whole(HEAD + declaration)


CASES: list[tuple[str, str]] = [
    # characters and numbers
    (statement("v += vec4(1.0) @& v;"), "'&' does not take vec4 and vec4"),
    (statement("v += vec4(1.0) @$ v;"), "unexpected character '$'"),
    (expression("float(i @>> -1)"), "'>>' shifts by 0 to 31 bits, not -1"),
    (expression("float(i @& 1 == 1)"), "'&' does not take int and bool"),
    (top("@#define N 3"), "unexpected character '#'"),
    (expression("@1.0f"), "'1.0f' is no number"),
    (expression("@0x10"), "'0x10' is no number"),
    (expression("float(@010)"), "does not begin with 0"),
    (expression("float(@2147483648)"), "does not fit in a 32-bit int"),
    (expression("float(@99999999999999999999999)"), "does not fit in a 32-bit int"),
    (expression("@1e39"), "does not fit in a 32-bit float"),
    # the kernel line and declarations
    ("@vec4 main(ivec4 p) { return p; }", "expected 'kernel' as the first word"),
    ("@", "expected 'kernel' as the first word, found the end"),
    ("kernel @reduce t;", "expected 'map' or 'group'"),
    (top("@layout(binding = 0) buffer B;"), "expected a declaration"),
    (top("@out tensor R;"), "a kernel has one out tensor"),
    (whole("kernel map t;\nin tensor A;") + "@", "the kernel has no out tensor"),
    (HEAD + "@", "the kernel has no main"),
    (top("") + "@int late = 3;", "main is the last declaration"),
    (top("in tensor @B;"), "tensor 'B' is never used"),
    (top("const @float X = 1.0;"), "expected 'int' after 'const'"),
    (top("const int X = @1.0;"), "a const is int, not float"),
    (top("spec int S = 1; const int X = @S;"), "a const must be a constant"),
    (top("const int X = 2147483647 @+ 1;"), "this constant does not fit in 32 bits"),
    (top("const int X = 3 @/ (1 - 1);"), "int / needs a divisor, not 0"),
    (top("const int X = -2147483648 @/ -1;"), "this constant does not fit in 32 bits"),
    (top("spec @vec2 X = 1;"), "expected int, float or bool after 'spec'"),
    (top("spec int X = @1.0;"), "a value of type float for int"),
    (top("spec int X@;"), "expected '=' after the name"),
    (top("param @bool X;"), "expected int or float after 'param'"),
    (top("spec int @LX = 1;"), "'LX' is a word of the language"),
    (top("@shared vec4 M[4];"), "shared is for group kernels"),
    (top("@local_size(8, 8, 1);"), "local_size is for group kernels"),
    (whole(GROUP + "shared @bool M[4];"), "expected a number type after 'shared'"),
    (whole(GROUP + "param int P; shared vec4 M[@P];"), "of const and spec ints"),
    (whole(GROUP + "shared vec4 M[@0];"), "a shared array of 0 elements"),
    (whole(GROUP + "@local_size(8, 1, 1);"), "local_size is given twice"),
    (GROUP.replace("(8", "(@0"), "size 1 is a positive constant or LX"),
    (GROUP.replace("local", "spec int LX = 4;\nlocal").replace("(8", "(@8"), "LX is declared"),
    (GROUP.replace("local", "spec @float LX = 4.0;\nlocal"), "LX is an int"),
    (GROUP.replace("local", "spec int LX = @0;\nlocal"), "LX is at least 1"),
    (
        "kernel group t;\nout tensor O;\nvoid main() { storet(O, 0, vec4(1.0)); }\n@",
        "a group kernel needs local_size(X, Y, Z);",
    ),
    # names
    (statement("int @vec3 = 1;"), "'vec3' is a word of the language"),
    (statement("int @x_ = 1;"), "'x_' cannot be a name"),
    (statement("int @_x = 1;"), "'_x' cannot be a name"),
    (statement("int @x__y = 1;"), "'x__y' cannot be a name"),
    (statement("int @gl_x = 1;"), "'gl_x' cannot be a name"),
    (statement("float @A = 1.0;"), "'A' is already declared"),
    (statement("float @i = 1.0;"), "'i' is already declared"),
    (statement("int @3 = 1;"), "expected a name for the local, found '3'"),
    (statement("@w += v;"), "expected a statement, found 'w'"),
    (expression("@flor(f)"), "there is no function 'flor'"),
    (expression("@lood"), "'lood' is not declared"),
    (expression("@A"), "'A' has no value of its own"),
    (expression("@f(1.0)"), "'f' is not a function"),
    # functions
    (top("@void h(int a) { }"), "a function returns a value"),
    (top("int h(@uint a) { return 1; }"), "expected the type of a parameter"),
    (top("int h(int a@; int b) { return 1; }"), "expected ',' or ')' after a parameter"),
    (top("int h(int a) { @a = 2; return a; }"), "'a' is a parameter and read only"),
    (top("int h(int a) { int b = a; @}"), "h ends without return"),
    (top("int h(int a) { return @1.0; }"), "a value of type float for int"),
    (top("int h(int a) { return a; @a += 1; }"), "right after the one return"),
    (top("int h(int a) { return @h(a); }"), "there is no function 'h'"),
    (HEAD + "ivec4 @main(ivec4 p) { return p; }", "the main of a map kernel is vec4 main"),
    (GROUP + "void @main(ivec4 p) { }", "the main of a group kernel is void main()"),
    (in_group("if (p.x > 0) { @return; }"), "expected a statement, found 'return'"),
    (in_group("@return;"), "expected '}' at the end of main, found 'return'"),
    # statements
    (statement("int i2@;"), "expected '=' after the name"),
    (statement("float x = @1;"), "a value of type int for float"),
    (statement("float x = 1.0@, y = 2.0;"), "expected ';' after the declaration"),
    (statement("float x[@i * P];"), "the size of an array must be a constant"),
    (statement("float x[@0];"), "an array of 0 elements"),
    (statement("float x[@257];"), "from 1 to 256"),
    (statement("bool x[@2];"), "no arrays of bool"),
    (statement("@while (i < 3) { }"), "expected a statement, found 'while'"),
    (statement("@break;"), "expected a statement"),
    (statement("@A = v;"), "'A' cannot be assigned"),
    (in_main(f"    vec4 v = {LOAD};\n    v @;\n    return v;"), "expected an assignment"),
    (statement("i @+= 1.0;"), "'+' does not take int and float"),
    (statement("i = @1.0;"), "a value of type float for int"),
    (statement("v.@xy = v.zw;"), "assign one component at a time"),
    (statement("v.@q = 1.0;"), "'.q' are not components of vec4"),
    (statement("f@.x = 1.0;"), "float has no components"),
    (statement("float x[2]; @x = 1.0;"), "'x' is an array: it needs an index"),
    (statement("@store4(O, p, v);"), "store4() is for group kernels"),
    (statement("@barrier();"), "barrier() is for group kernels"),
    (statement("if (@i) { }"), "the condition is int, not bool"),
    (in_main(f"{{ vec4 w = {LOAD}; }}\n return @w;"), "'w' is not declared"),
    (statement("{" * 16 + "@{"), "blocks are nested too deeply"),
    # loops
    (statement("for (@float j = 0.0; j < 1.0; j++) { }"), "expected 'int' as the type"),
    (statement("for (int j = 0; @i < 3; j++) { }"), "expected 'j' (the loop's index)"),
    (statement("for (int j = 0; j < @f; j++) { }"), "a loop counts in int, not float"),
    (statement("for (int j = 0; j < @p.x; j++) { }"), "const, spec, param and dims() only"),
    (statement("for (int j = 0; j < 3; j @-= 1) { }"), "expected '+=' or '++'"),
    (statement("for (int j = 0; j < 3; j += @0) { }"), "a positive const or spec"),
    (statement("for (int j = 0; j < 3; j += @P) { }"), "a positive const or spec"),
    (statement("for (int j = @P; j < 3; j++) { }"), "the start of a loop is a const or spec"),
    (statement("for (int j = 0; j < 3; j++) { @j += 1; }"), "'j' is a loop index and read only"),
    (statement("for (int j = 0; j < i; j++) { @i += 1; }"), "so it cannot change"),
    (statement("int k = i; i = 2; for (int j = 0; j < @k; j++) { }"), "keep its first value"),
    (statement("unroll for (int j = 0; j < @P; j++) { }"), "bound of an unrolled loop must be"),
    (statement("unroll for (int j = 0; j < 9; j += @-1) { }"), "the step of a loop is positive"),
    (statement("unroll for (int j = 0; j < @5000; j++) { }"), "more than 4096 copies"),
    # operators
    (expression("1.0 @+ 1"), "'+' does not take float and int"),
    (expression("v.xy @* v.xyz"), "'*' does not take vec2 and vec3"),
    (expression("f @% 2.0"), "'%' does not take float and float"),
    (expression("float(i @/ 0)"), "int / needs a divisor, not 0"),
    (expression("float(i @% 0)"), "int % needs a divisor, not 0"),
    (expression("v @< v ? 1.0 : 0.0"), "'<' does not take vec4 and vec4"),
    (expression("true @< false ? 1.0 : 0.0"), "'<' does not take bool and bool"),
    (expression("i @&& true ? 1.0 : 0.0"), "'&&' joins two bools, not int and bool"),
    (expression("i @? 1.0 : 0.0"), "the condition of ?: is int, not bool"),
    (expression("i > 0 @? 1.0 : 0"), "?: chooses between float and int"),
    (expression("i > 0 ? 1.0 @, 0.0"), "expected ':' between the values of ?:"),
    (expression("@!f"), "'!' does not take float"),
    (expression("@-true"), "'-' does not take bool"),
    (expression("f + @"), "expected a value, found ')'"),
    (expression("(f + 1.0@;"), "expected ')' to close '('"),
    (expression("(" * 39 + "@(f"), "nested too deeply"),
    (expression("- " * 39 + "@f"), "nested too deeply"),
    (expression("f" + "+f" * 249 + " + @f"), "this expression is too long"),
    # vectors and arrays
    (expression("v.@xq"), "'.xq' are not components of vec4"),
    (expression("v.xy.@z"), "'.z' are not components of vec2"),
    (expression("f@.x"), "float has no components"),
    (expression("v[@4]"), "vec4 has no component 4"),
    (expression("v[@p.x]"), "the index of a vector must be a constant"),
    (expression("v[@1.0]"), "an index is int, not float"),
    (expression("f@[0]"), "float has no components"),
    (statement("float x[2]; x[@2] = 1.0;"), "index 2 is outside x[2]"),
    (statement("float x[2]; x[@p.x] = 1.0;"), "map kernels index local arrays by"),
    (statement("float x[2]; x[@f] = 1.0;"), "an index is int, not float"),
    (statement("float x[2]; v.x = @x;"), "'x' has no value of its own"),
    (expression("@vec4(v.xyz)"), "vec4() does not take vec3"),
    (expression("@vec3(v)"), "vec3() does not take vec4"),
    (expression("@vec4(1.0, 2.0, 3.0)"), "vec4(...) takes 4 components, not 3"),
    (expression("@vec4(1, 2, 3, 4)"), "vec4() does not take int"),
    (expression("@float()"), "float() needs arguments"),
    (expression("@float(true)"), "float() does not take bool"),
    (expression("float(@int(1.5))"), "int() takes integral values"),
    # built-ins
    (expression("@min(f)"), "min() takes 2 arguments, not 1"),
    (expression("@floor(f, f)"), "floor() takes 1 argument, not 2"),
    (expression("@min(f, 1)"), "min() does not take float, int"),
    (expression("float(@floor(i))"), "floor() does not take int"),
    (expression("@max(v.xy, v)"), "vectors of one width"),
    (expression("min(f@; f)"), "expected ',' or ')' after an argument"),
    (expression("load4(@v, p)"), "load4() takes a tensor first"),
    (expression("@load4(O, p)"), "'O' is the out tensor: it cannot be read"),
    (expression("load4(A, @p.xyz)"), "position of type ivec4, not ivec3"),
    (expression("texel(A, @p)"), "position of type int, not ivec4"),
    (expression("vec4(@local_id(), 1)"), "local_id() is for group kernels"),
    (in_group("float z = @h(1.0);"), "h(int) does not take (float)"),
    (in_group("store4(@A, p, vec4(1.0));"), "'A' is an in tensor: it cannot be written"),
    (in_group("store4(O, p, @1.0);"), "a value of type float for vec4"),
    (in_group("ivec3 q = @local_id(1);"), "local_id() takes no arguments"),
    (in_group("if (p.x > 0) { @barrier(); }"), "barrier() under an if"),
    (
        in_group("for (int i = p.x; i < 9; i++) { @barrier(); }"),
        "barrier() in a loop whose start differs",
    ),
    (expression("@lane_value(1.0, 0)"), "lane_value() is for group kernels"),
    (in_group("int z = @lane_id(1);"), "lane_id() takes no arguments"),
    (in_group("float z = @lane_value(1.0);"), "lane_value() takes 2 arguments, not 1"),
    (in_group("bool z = @lane_value(P > 1, 0);"), "lane_value() does not take bool"),
    (in_group("float z = @lane_value(1.0, 0.0);"), "the number of a lane is int, not float"),
    (in_group("float z = @lane_value(1.0, P);"), "the number of a lane must be a constant"),
    (in_group("float z = @lane_value(1.0, 128);"), "there is no lane 128"),
    (in_group("float z = @lane_value(1.0, -1);"), "there is no lane -1"),
    (in_group("if (P > 1) { float z = @lane_value(1.0, 0); }"), "lane_value() under an if"),
    (
        in_group("for (int i = p.x; i < 9; i++) { float z = @lane_value(1.0, 0); }"),
        "lane_value() in a loop whose start differs",
    ),
    (GROUP + "float h(int q) { return @lane_value(1.0, 0); }\n", "lane_value() is for main only"),
    (
        GROUP + "shared float M[2];\nfloat h(int q) { @M[q] = 1.0; return 1.0; }\n",
        "shared arrays are written in main only",
    ),
    (
        GROUP + "float h(int q) { @storet(O, q, vec4(1.0)); return 1.0; }\n",
        "storet() is for main only",
    ),
]


def parts_of(error: KernelSyntaxError) -> tuple[str, str, str]:
    first, source, caret = error.what.split("\n")
    return first, source, caret


@pytest.mark.parametrize(("text", "message"), CASES)
def test_error_points_at_the_mistake(text: str, message: str) -> None:
    offset = text.index("@")
    text = text.replace("@", "")
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(text, filename="t.kern")
    first, source, caret = parts_of(caught.value)
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1)
    assert message in first
    assert first.startswith(f"t.kern:{line}:{column + 1}: ")
    assert source == "    " + text.split("\n")[line - 1].rstrip()
    assert caret == "    " + " " * column + "^"
    assert str(caught.value).startswith("[GE-301] t.kern:")


def test_caret_stands_under_the_column_after_tabs() -> None:
    text = HEAD + "vec4 main(ivec4 p) {\n\t\treturn\tq;\n}\n"
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(text, filename="t.kern")
    assert parts_of(caught.value)[1:] == ("    \t\treturn\tq;", "    \t\t      \t^")
    assert ":5:10:" in caught.value.what


def test_blocks_cannot_nest_without_end() -> None:
    with pytest.raises(KernelSyntaxError, match="blocks are nested too deeply"):
        lang.load(statement("{" * 17 + "}" * 17), filename="t.kern")
    lang.load(statement("{" * 16 + "}" * 16), filename="t.kern")


HOOKED = HEAD + "//EPILOGUE\nvec4 main(ivec4 p) { return epilogue(load4(A, p), p); }\n"


def test_errors_in_the_epilogue_name_the_epilogue() -> None:
    epilogue = "in tensor B;\nvec4 epilogue(vec4 v, ivec4 p) {\n    return v + load4(B, q);\n}"
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(HOOKED, filename="t.kern", epilogue=epilogue)
    first, source, caret = parts_of(caught.value)
    assert first.startswith("epilogue:3:25: 'q' is not declared")
    assert source == "        return v + load4(B, q);"
    assert caret.index("^") == source.index("q")


def test_errors_after_the_epilogue_name_the_text() -> None:
    with pytest.raises(KernelSyntaxError, match=r"^\[GE-301\] t.kern:5:30: 'qq'"):
        lang.load(HOOKED.replace("epilogue(", "qq + ep(").replace("return ", "return  "),
                  filename="t.kern", epilogue="// none\n" * 9)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "epilogue", "message"),
    [
        (HOOKED, "", "t.kern:5:29: there is no function 'epilogue'"),
        (
            HOOKED,
            "vec4 epilogue(vec4 v) { return v; }",
            "t.kern:5:29: epilogue(vec4) does not take (vec4, ivec4)",
        ),
        (HOOKED, "vec4 main(ivec4 p) { return vec4(1.0); }", "main is the last declaration"),
        (HOOKED.replace("//EPILOGUE", ""), "", "t.kern:1:1: an epilogue was given, but"),
        (HOOKED.replace("\nvec4", "\n//EPILOGUE\nvec4"), None, "t.kern:5:1: //EPILOGUE may stand"),
    ],
)
def test_hook_mistakes(text: str, epilogue: str | None, message: str) -> None:
    with pytest.raises(KernelSyntaxError) as caught:
        lang.load(text, filename="t.kern", epilogue=epilogue)
    assert message in caught.value.what


@pytest.mark.parametrize(
    ("consts", "message"),
    [
        ({"M": 1}, "there is no const int 'M'"),
        ({"N": 1.5}, "the value 1.5, not an int"),
        ({"N": True}, "the value True, not an int"),
        ({"N": 2**31}, "not a 32-bit int"),
    ],
)
def test_const_values_are_checked(consts: dict[str, int], message: str) -> None:
    with pytest.raises(KernelSyntaxError, match=message):
        lang.load(top("const int N = 1;"), filename="t.kern", consts=consts)
