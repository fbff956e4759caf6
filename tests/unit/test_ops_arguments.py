"""Operations on the CPU: arguments they take and refuse. Numbers are tested on real drivers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expression_child import FORMULAS, SPECIAL, WHOLE, wrong

import gpuedge
from gpuedge.core.errors import (
    ConfigError,
    DTypeError,
    GpuEdgeError,
    InputError,
    KernelSyntaxError,
    ShapeError,
    UnsupportedOpError,
    UsageError,
)
from gpuedge.ops.expression import NAMES

X = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
W = np.ones((4, 3, 3, 3), np.float32)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_DEVICE", "cpu")


@pytest.mark.parametrize(
    ("padding", "shape"),
    [
        (0, (3, 2)),
        (1, (5, 4)),
        ((2, 0), (7, 2)),
        (((1, 2), (0, 3)), (6, 5)),
        ([[1, 2], [0, 3]], (6, 5)),
        (np.int64(1), (5, 4)),
        ("same", (5, 4)),
        ("VALID", (3, 2)),
    ],
)
def test_padding_forms(padding: Any, shape: tuple[int, int]) -> None:
    assert gpuedge.conv2d(X, W, padding=padding).shape == (2, 4, *shape)


@pytest.mark.parametrize(("call", "words"), [
    (np.sum, "numpy.sum does not compute arrays on a device: gpuedge.sum does"),
    (np.exp, "numpy.exp does not compute arrays on a device: gpuedge.exp does"),
    (np.negative, "gpuedge.neg does"),
    (np.isnan, "numpy.isnan does not compute arrays on a device: numpy.asarray"),
    (np.max, "numpy.maximum.reduce does not compute arrays on a device: numpy.asarray"),
    (lambda a: X[0, 0].copy().__iadd__(a), "numpy.add does not"),
])  # fmt: skip
def test_numpy_is_refused_an_array_on_a_device_with_what_to_call(call: Any, words: str) -> None:
    given = gpuedge.array(X[0, 0])
    with pytest.raises(TypeError, match=re.escape(words)) as caught:
        call(given)
    assert "numpy.asarray(x)" in str(caught.value)


@pytest.mark.parametrize(("look", "kind", "words"), [
    (lambda a: a[0], TypeError, "gpuedge.slice does, there"),
    (lambda a: a.T, AttributeError, "gpuedge.transpose(x) does, there"),
    (lambda a: a.reshape(-1), AttributeError, "gpuedge.reshape does, there"),
    (lambda a: a.sum(), AttributeError, "gpuedge.sum does, there"),
    (lambda a: a.mean(), AttributeError, "gpuedge.mean does, there"),
    (lambda a: a.astype("f4"), AttributeError, "gpuedge.to_float(x, scale=1.0) does, there"),
    (lambda a: a.tolist(), AttributeError, "on a device: numpy.asarray(x) brings"),
    (lambda a: a.nonsense, AttributeError, "no attribute 'nonsense'"),
])  # fmt: skip
def test_what_arrays_of_numpy_have_is_told_by_its_name_here(
    look: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        look(gpuedge.array(X[0, 0]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_bytes_on_a_device_are_told_how_they_become_floats(dtype: str) -> None:
    given = gpuedge.array(np.array([1, 0, 3], dtype))
    with pytest.raises(DTypeError, match=dtype) as caught:
        given + 10
    assert caught.value.hint is not None
    assert "gpuedge.to_float(x, scale=1.0)" in caught.value.hint
    floats = gpuedge.to_float(given, scale=1.0)
    np.testing.assert_array_equal((floats + 10).numpy(), given.numpy().astype("f4") + 10)
    with pytest.raises(DTypeError, match="int64") as caught:
        gpuedge.array(X) + np.ones(4, np.int64)
    assert "x.astype(numpy.float32)" in str(caught.value.hint)


@pytest.mark.parametrize("kind", [np.float64, np.longdouble, np.int64, np.uint32, np.int8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_of_numpy_are_taken_as_those_of_python(kind: Any, dtype: str) -> None:
    host = np.array([1, -2, 3], dtype)
    there = gpuedge.array(host)
    three = kind(3)
    for result in (there * three, three * there, gpuedge.mul(host, three), there * np.mean(host)):
        assert result.dtype == dtype
    for result in (there * three, three * there, gpuedge.mul(host, three)):
        np.testing.assert_array_equal(np.asarray(result), host * np.array(3, dtype))
    with pytest.raises(InputError, match="too large for float32"):
        there * np.float64(1e300)


def test_one_recorded_operation_is_counted_as_one() -> None:
    given = gpuedge.array(X)
    assert repr(given + 1).endswith(": 1 operation recorded>")
    assert repr(given + 1 + 2).endswith(": 2 operations recorded>")
    assert "1 recorded operation, " in (given + 1).explain()


def test_an_array_elsewhere_is_told_which_device_takes_it() -> None:
    with gpuedge.open("cpu") as own:
        for one, other in ((own, "cpu"), ("cpu", own)):
            first, second = gpuedge.array(X, device=one), gpuedge.array(X, device=other)
            with pytest.raises(gpuedge.MixedDevicesError) as caught:
                first + second
            assert ("device=dev" in str(caught.value.hint)) == (one is own)


def test_operators_between_numpy_and_a_device_stay_on_the_device() -> None:
    x = np.float32([[1, -2], [3, 4]])
    y = gpuedge.array(np.float32([[2, 2], [-1, 4]]))
    z = y.numpy()
    found = {
        "+": (x + y, x + z), "-": (x - y, x - z), "*": (x * y, x * z), "/": (x / y, x / z),
        "@": (x @ y, x @ z), "==": (x == y, x == z), "!=": (x != y, x != z), "<": (x < y, x < z),
        "<=": (x <= y, x <= z), ">": (x > y, x > z), ">=": (x >= y, x >= z),
        "scalar": (np.float32(3) - y, 3 - z),
    }  # fmt: skip
    for name, (result, wanted) in found.items():
        assert isinstance(result, gpuedge.DeviceArray), name
        np.testing.assert_array_equal(result.numpy(), wanted, err_msg=name)


@pytest.mark.parametrize("call", [
    (gpuedge.relu, X), (gpuedge.conv2d, X, W), (gpuedge.topk, X, 1), (gpuedge.nonzero, X),
    (gpuedge.elementwise("a + 1"), X), (gpuedge.batch_norm, X, *[np.ones(3, np.float32)] * 4),
], ids=lambda call: getattr(call[0], "__name__", "elementwise"))  # fmt: skip
def test_an_operation_explains_itself_as_a_session_does(call: tuple[Any, ...]) -> None:
    function, *operands = call
    for _ in range(3):  # the later ones by the short cut for calls like one before
        found = gpuedge.explain(function, *operands, device="cpu")
        assert isinstance(found, gpuedge.Decision)
        assert (found.device, found.reason) == ("cpu", "Runs on cpu: asked for by name.")
        assert found.replay() == found


def test_an_operation_on_a_device_array_explains_itself_and_is_not_computed() -> None:
    given = gpuedge.array(X[0])
    kept = list[Any]()

    def chain(x: Any) -> Any:
        kept.append(gpuedge.relu(x + 1) * 2)
        return kept[-1]

    assert gpuedge.explain(chain, given).device == "cpu"
    assert not kept[0].is_computed
    assert gpuedge.explain(gpuedge.nonzero, given).device == "cpu"  # which is computed at once
    np.testing.assert_array_equal(kept[0].numpy(), np.maximum(X[0] + 1, 0) * 2)


def test_an_operation_under_auto_tells_of_every_device() -> None:
    with gpuedge.config(backends="null"):
        found = gpuedge.explain(gpuedge.relu, X, device="auto")
    assert found.record.asked == "auto" and found.device == "cpu"
    assert [row.device for row in found.rows][-1] == "cpu" and len(found.rows) > 1


@pytest.mark.parametrize("call", [(np.abs, X), (X,), (gpuedge.array, X), (len, [1])])
def test_what_is_no_operation_is_not_explained(call: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="no operation") as caught:
        gpuedge.explain(*call)
    assert "explain(gpuedge.relu, x)" in str(caught.value.hint)


def test_padding_sides_are_top_bottom_left_right() -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    w = np.ones((1, 1, 1, 1), np.float32)
    out = gpuedge.conv2d(x, w, padding=((1, 0), (0, 2)))[0, 0]
    np.testing.assert_array_equal(out, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"padding": -1}, InputError, "negative"),
        ({"padding": "full"}, InputError, "'same', 'valid'"),
        ({"padding": 1.5}, InputError, "padding"),
        ({"padding": (1, 2, 3)}, InputError, "padding"),
        ({"stride": 0}, ShapeError, "strides"),
        ({"stride": "2"}, InputError, "stride"),
        ({"dilation": (1, 0)}, ShapeError, "dilations"),
        ({"groups": 2}, ShapeError, "2 groups"),
        ({"groups": 0}, ShapeError, "group=0"),
        ({"activation": "rleu"}, InputError, "relu6"),
        ({"b": np.ones(3, np.float32)}, ShapeError, "bias"),
    ],
)
def test_conv2d_refuses(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        gpuedge.conv2d(X, W, **arguments)


def test_conv2d_refuses_nan_in_weights_but_not_in_images() -> None:
    w = W.copy()
    w[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="'w' of conv2d hold NaN"):
        gpuedge.conv2d(X, w)
    x = X.copy()
    x[0, 0, 0, 0] = np.nan
    assert np.isnan(gpuedge.conv2d(x, W)[0, :, 0, 0]).all()


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "bool", "complex64"])
def test_other_dtypes_are_refused_with_what_to_do(dtype: str) -> None:
    with pytest.raises(DTypeError, match="astype"):
        gpuedge.relu(np.ones(3, dtype))


def test_float16_is_rounded_once() -> None:
    a = np.array([1.0, 200.0, 300.0], np.float16)
    out = gpuedge.elementwise("a * b + c")(a, a, c=np.float16(1))
    assert out.dtype == np.float16
    np.testing.assert_array_equal(out, np.array([2.0, 40000.0, np.inf], np.float16))


def test_mixed_dtypes_give_float32_and_numbers_do_not_widen() -> None:
    half = np.ones(2, np.float16)
    assert gpuedge.add(half, np.ones(2, np.float32)).dtype == np.float32
    assert gpuedge.add(half, 2).dtype == np.float16
    assert gpuedge.add([1, 2], 2.5).dtype == np.float32


def test_scalars_and_rank_zero() -> None:
    out = gpuedge.add(np.float32(1), np.float32(2))
    assert out.shape == () and float(out) == 3.0


@pytest.mark.parametrize("shapes", [((2, 3), (4,)), ((2, 3), (3, 2))])
def test_shapes_that_do_not_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ShapeError, match="broadcast"):
        gpuedge.add(*(np.ones(s, np.float32) for s in shapes))


def test_expression_inputs_by_order_and_name() -> None:
    f = gpuedge.elementwise("b - a ** 2")
    assert f.names == ("b", "a")
    assert float(f(10.0, 3.0)) == 1.0
    assert float(f(a=3.0, b=10.0)) == 1.0
    assert float(f(10.0, a=3.0)) == 1.0


@pytest.mark.parametrize(
    ("args", "inputs", "words"),
    [
        ((1.0,), {}, "'a' is missing"),
        ((1.0, 2.0, 3.0), {}, "3 inputs are given"),
        ((1.0,), {"b": 2.0, "a": 1.0}, "'b' is given twice"),
        ((1.0, 2.0), {"c": 2.0}, "'c' does not appear"),
    ],
)
def test_expression_inputs_refused(
    args: tuple[float, ...], inputs: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        gpuedge.elementwise("b - a")(*args, **inputs)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "not an expression"),
        ("relu(a", 5, "never closed"),
        ("a +", 3, "not an expression"),
        ("a + (b) @ c", 9, "only names"),
        ("a.b", 2, "only names"),
        ("max(a, (b)[0])", 11, "only names"),
        ("a < b is c", 7, "only names"),
        ("a // b if c else d", 3, "only names"),
        ("a and (b | c)", 10, "only names"),
        ("not ~a", 5, "only names"),
        ("a + (b, c)", 5, "only names"),
        ("a.b(c)", 1, "only names"),
        ("[a for a in b]", 1, "only names"),
        ("'a' + b", 1, "only names"),
        ("True + b", 1, "only names"),
        ("a + 1j", 5, "only names"),
        ("a + rleu(b)", 5, "no function 'rleu'"),
        ("max(a)", 1, "max takes 2 arguments"),
        ("clip(a, 1, b)", 12, "numbers"),
        ("relu(x=a)", 6, "given in order"),
        ("max(a, *b)", 8, "given in order"),
        ("max(a, b, c)", 11, "max takes 2 arguments"),
        ("1 + 2", 1, "at least one named input"),
        ("__import__('os') + a", 1, "no function"),
        ("(" * 500 + "a" + ")" * 500, 1, "too|not an expression"),
        ("-" * 3000 + "a", 1, "too|not an expression"),
    ],
)
def test_expression_errors_point_at_the_place(text: str, column: int, words: str) -> None:
    with pytest.raises(KernelSyntaxError, match=words) as caught:
        gpuedge.elementwise(text)
    if len(text) < 100:  # where Python gives up on deep nesting differs between versions
        assert f"expression:1:{column}:" in str(caught.value)
    assert "^" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "expression:2:1: not an expression: invalid syntax\n    b\n    ^"),
        (
            "  max(a,\n    rleu(b))",
            "expression:2:5: there is no function 'rleu'\n        rleu(b))\n        ^",
        ),
        (
            "aé + rleu(b)",
            "expression:1:6: there is no function 'rleu'\n    aé + rleu(b)\n         ^",
        ),
        ("relu(\r\n a @ b)", "expression:2:4: only names"),
        ("a + (\n\fb @ c)", "expression:2:4: only names"),
        ("(é) \\\n  @ c", "expression:2:3: only names"),
        ("max((é  # )\n ) @ c, 1)", "expression:2:4: only names"),
        ("a\0b", "expression:1:3: not an expression"),
    ],
)
def test_caret_stands_under_the_line_and_the_character(text: str, shown: str) -> None:
    with pytest.raises(KernelSyntaxError) as caught:
        gpuedge.elementwise(text)
    assert shown in caught.value.what
    assert caught.value.asked_by and caught.value.known and caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a && b", "'and' instead of '&&'"),
        ("a & b", "'and' instead of '&'"),
        ("a || b", "'or' instead of '||'"),
        ("a | b", "'or' instead of '|'"),
        ("a != b and !c", "'not' instead of '!'"),
        ("~a", "'not' instead of '~'"),
        ("a = b", "'==' instead of '='"),
        ("relu(a) >= (b = c)", "'==' instead of '='"),
        ("a ^ 2", "'**' instead of '^'"),
        ("a <> b", "'!=' instead of '<>'"),
        ("a ? b : c", "'x if condition else y' instead of '?'"),
        ("sigmod(a)", "did you mean 'sigmoid'?"),
        ("Exp(a) * b", "did you mean 'exp'?"),
        ("a == b + zzzz(c)", 'one expression of these, such as "relu(a * b + c)"'),
        ("clip(a, lo=0, hi=1)", 'one expression of these, such as "relu(a * b + c)"'),
    ],
)
def test_hints_say_what_formulas_have_instead(text: str, hint: str) -> None:
    with pytest.raises(KernelSyntaxError) as caught:
        gpuedge.elementwise(text)
    assert caught.value.hint == hint


def test_the_page_lists_the_functions_of_formulas() -> None:
    page = (Path(__file__).parents[2] / "docs/running-models.md").read_text(encoding="utf-8")
    section = page.partition("### Formulas")[2].partition("\n## ")[0]
    listed = re.findall(r"`([a-z0-9_]+)(?:\([^`]*\))?`", section)
    assert sorted({*listed} - {"and", "or", "not"}) == NAMES


class Foreign:
    """A number of a class that is not ours, and that is broken."""

    def __index__(self) -> int:
        raise RuntimeError("out of order")


@pytest.mark.parametrize("value", [Foreign(), 10**5000, np.ones(2), "1", True], ids=type)
def test_what_is_no_integer_is_refused_in_four_parts(value: Any) -> None:
    with pytest.raises(InputError, match="is not an integer of 32 bits") as caught:
        gpuedge.softmax(X, axis=value)
    error = caught.value
    assert error.asked_by and error.known and error.hint
    assert not isinstance(value, Foreign) or "RuntimeError: out of order" in error.known


def test_clip_bounds() -> None:
    x = np.array([-5, 0.5, 9], np.float32)
    np.testing.assert_array_equal(gpuedge.clip(x, None, 2), [-5, 0.5, 2])
    np.testing.assert_array_equal(gpuedge.clip(x, 0, None), [0, 0.5, 9])
    for bounds in ((3, 2), (np.nan, 1)):
        with pytest.raises(InputError):
            gpuedge.clip(x, *bounds)


def test_concat_refuses_nothing_and_mismatch() -> None:
    with pytest.raises(InputError):
        gpuedge.concat([])
    with pytest.raises(InputError, match="1 to 4096 arrays"):
        gpuedge.concat(np.broadcast_to(np.float32(1), (1 << 20, 1 << 20)))
    with pytest.raises(ShapeError):
        gpuedge.concat([np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)])


def test_batch_norm_against_its_definition() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    s, b, m = (rng.normal(size=3) for _ in range(3))
    v = rng.uniform(0.1, 2, 3)
    shape = (1, 3, 1, 1)
    want = (x - m.reshape(shape)) / np.sqrt(v + 1e-5).reshape(shape)
    want = want * s.reshape(shape) + b.reshape(shape)
    np.testing.assert_allclose(gpuedge.batch_norm(x, s, b, m, v), want, rtol=0, atol=1e-5)
    with pytest.raises(InputError):
        gpuedge.batch_norm(x, s, b, m, -v)
    for scale in (10**400, np.broadcast_to(np.float32(1), (1 << 20, 1 << 20))):
        with pytest.raises(ShapeError):
            gpuedge.batch_norm(x, scale, b, m, v)
    with pytest.raises(InputError):
        gpuedge.batch_norm(x, [10**400] * 3, b, m, v)


def test_padding_of_an_array_without_axes_is_a_number() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 2, 2), np.float32)
    assert gpuedge.conv2d(x, w, padding=np.array(1), device="cpu").shape == (1, 1, 4, 4)
    with pytest.raises(InputError):
        gpuedge.conv2d(x, w, padding=np.array(1.5), device="cpu")


def test_errors_are_picklable_and_keep_their_parts() -> None:
    import pickle

    with pytest.raises(GpuEdgeError) as caught:
        gpuedge.relu(np.ones(3))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and type(again) is type(caught.value)


class Hostile:
    """Raises whatever is asked of it."""

    def __array__(self, *_: object, **__: object) -> None:
        raise KeyError("no")


BAD_CALLS: dict[str, Any] = {
    "ragged list": lambda: gpuedge.relu([[1.0], [2.0, 3.0]]),
    "hostile object": lambda: gpuedge.relu(Hostile()),
    "masked array": lambda: gpuedge.relu(np.ma.masked_array(np.ones(3, "f4"), [0, 1, 0])),
    "number too large": lambda: gpuedge.relu([1e300]),
    "none": lambda: gpuedge.relu(None),
    "groups 1.5": lambda: gpuedge.conv2d(X, W, groups=1.5),  # type: ignore[arg-type]
    "groups text": lambda: gpuedge.conv2d(X, W, groups="a"),  # type: ignore[arg-type]
    "groups none": lambda: gpuedge.conv2d(X, W, groups=None),  # type: ignore[arg-type]
    "stride array": lambda: gpuedge.conv2d(X, W, stride=np.array([1, 2, 3])),
    "stride 2**63": lambda: gpuedge.conv2d(X, W, stride=2**63),
    "stride 1.0": lambda: gpuedge.conv2d(X, W, stride=1.0),  # type: ignore[arg-type]
    "padding 2**31": lambda: gpuedge.max_pool2d(X, 2, padding=2**31),
    "padding object": lambda: gpuedge.conv2d(X, W, padding=object()),  # type: ignore[arg-type]
    "activation list": lambda: gpuedge.conv2d(X, W, activation=[]),  # type: ignore[arg-type]
    "axis 1.7": lambda: gpuedge.softmax(X, 1.7),  # type: ignore[arg-type]
    "axis none": lambda: gpuedge.concat([X, X], None),  # type: ignore[arg-type]
    "axis 9": lambda: gpuedge.softmax(X, 9),
    "alpha nan": lambda: gpuedge.leaky_relu(X, np.nan),
    "alpha text": lambda: gpuedge.elu(X, "a"),  # type: ignore[arg-type]
    "alpha huge": lambda: gpuedge.gemm(X[0, 0], X[0, 0].T, alpha=1e39),
    "trans text": lambda: gpuedge.gemm(X[0, 0], X[0, 0], trans_b="no"),  # type: ignore[arg-type]
    "epsilon text": lambda: gpuedge.batch_norm(X, *[[1.0] * 3] * 4, epsilon="a"),  # type: ignore
    "statistics short": lambda: gpuedge.batch_norm(X, *[[1.0]] * 4),
    "statistics text": lambda: gpuedge.batch_norm(X, *["abc"] * 4),
    "statistics of a vector": lambda: gpuedge.batch_norm(X[0, 0, 0], *[[1.0]] * 4),
    "clip text": lambda: gpuedge.clip(X, "a", 2),  # type: ignore[arg-type]
    "reshape int": lambda: gpuedge.reshape(X, 5),  # type: ignore[arg-type]
    "reshape floats": lambda: gpuedge.reshape(X, (2.9, 25)),  # type: ignore[arg-type]
    "reshape nested": lambda: gpuedge.reshape(X, [[50]]),  # type: ignore[list-item]
    "reshape text": lambda: gpuedge.reshape(X, "ab"),  # type: ignore[arg-type]
    "transpose int": lambda: gpuedge.transpose(X, 5),  # type: ignore[arg-type]
    "transpose text": lambda: gpuedge.transpose(X, "abcd"),  # type: ignore[arg-type]
    "transpose floats": lambda: gpuedge.transpose(X, (0.5, 1, 2, 3)),  # type: ignore[arg-type]
    "transpose twice": lambda: gpuedge.transpose(X, (0, 0, 1, 2)),
    "concat number": lambda: gpuedge.concat(5),  # type: ignore[arg-type]
    "kernel 0": lambda: gpuedge.max_pool2d(X, 0),
    "no channels": lambda: gpuedge.conv2d(X[:, :0], W[:, :0], padding=2),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_raise_our_errors(name: str) -> None:
    with pytest.raises(gpuedge.UsageError) as caught:
        BAD_CALLS[name]()
    assert caught.value.code in {"GE-201", "GE-202", "GE-203"}


def test_signed_zero_and_huge_numbers_in_expressions() -> None:
    f = gpuedge.elementwise("x / 0.0 + y / -0.0")
    assert np.isnan(f(np.float32(1), np.float32(1)))
    assert np.isinf(gpuedge.elementwise("x + 1" + "0" * 400)(np.float32(1)))
    assert gpuedge.elementwise("Mul_0 * 2 + 1")(np.float32(3)) == 7


def test_batch_norm_of_integers_in_a_list() -> None:
    out = gpuedge.batch_norm([[1, 2], [3, 4]], [1, 1], [0.5, 0.5], [0, 0], [1, 1], epsilon=0.0)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, [[1.5, 2.5], [3.5, 4.5]])


def test_generators_and_arrays_as_sequences() -> None:
    two = (np.ones(2, np.float32) for _ in range(2))
    assert gpuedge.concat(two).shape == (4,)  # type: ignore[arg-type]
    assert gpuedge.reshape(X, np.array([6, 20])).shape == (6, 20)  # type: ignore[arg-type]
    assert gpuedge.conv2d(X, W, stride=np.array([1, 2])).shape == (2, 4, 3, 1)


def test_an_operation_that_does_not_fit_is_told_without_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise UnsupportedOpError("too large", asked_by="fallback='error'", hint="fallback='cpu'")

    monkeypatch.setattr("gpuedge.ops.call.compiled", refused)
    with pytest.raises(UnsupportedOpError) as caught:
        gpuedge.relu(np.zeros(3, np.float32), device="gles20")
    assert caught.value.asked_by == "gpuedge.relu, device='gles20'"
    assert caught.value.hint == "smaller tensors, or device='cpu'"


def test_one_number_may_be_an_array_without_axes() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    one = np.array(2)
    want = gpuedge.max_pool2d(image, 2, device="cpu")
    np.testing.assert_array_equal(gpuedge.max_pool2d(image, one, device="cpu"), want)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not a sequence of integers"):
        gpuedge.reshape(X, one, device="cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", FORMULAS)
def test_conditions_and_remainders_on_the_cpu(text: str) -> None:
    assert not wrong(text, WHOLE, "cpu")
    assert not wrong(text, SPECIAL, "cpu")


def test_a_remainder_keeps_the_sign_of_the_divisor_of_zero_too() -> None:
    a, b = np.float32([-6, 6, -0.0, 0.0]), np.float32([3, -3, 5, -5])
    got = gpuedge.elementwise("a % b")(a, b, device="cpu")
    np.testing.assert_array_equal(np.signbit(got), np.signbit(np.mod(a, b)))


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("a and 1", "bool"), ("not a", "bool"), ("0 < a < 1", "bool"), ("a % 2", "float16"),
     ("a if a else 0", "float16"), ("(a != 0) + 0", "float16"), ("1 if a > 0 else 2", "float16")],
)  # fmt: skip
def test_the_type_of_a_result(text: str, dtype: str) -> None:
    got = gpuedge.elementwise(text)(np.float16([2, -1]), device="cpu")
    assert got.dtype == dtype


def test_names_of_inputs_and_depth_of_an_expression() -> None:
    assert gpuedge.elementwise("self + 1")(self=np.float32(1), device="cpu") == 2
    with pytest.raises(KernelSyntaxError, match="named 'device'"):
        gpuedge.elementwise("device + 1")
    with pytest.raises(KernelSyntaxError, match="nested too deeply"):
        gpuedge.elementwise("a" + " + 1" * 940)(np.float32(1), device="cpu")


def test_open_checks_its_arguments_before_any_driver() -> None:
    with pytest.raises(ConfigError, match="not int"):
        gpuedge.open("auto", policy=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot share a context"):
        gpuedge.open("cpu", context=object())  # type: ignore[arg-type]
