"""What a session takes for an input: numbers that fit, arrays of the dtype, nothing cut."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import model, value, weight
from planrun import plan_device

import gpuedge
from gpuedge.core.errors import (
    ClosedError,
    DTypeError,
    GpuEdgeError,
    InputError,
    ModelError,
    OutOfMemoryError,
    ShapeError,
)
from gpuedge.graph import sizes
from gpuedge.graph.reader import OnnxModel
from gpuedge.runtime.inputs import check_inputs


def session(dtype: str, shape: tuple[Any, ...] = ("N",)) -> gpuedge.Session:
    """Return a session that gives its input back."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Identity", ["x"], ["y"])
    proto = model([node], [value("x", shape, element)], [value("y", shape, element)])
    return gpuedge.Session(proto, device="cpu")


HUGE = np.broadcast_to(np.float32(1), (2**33,))
"""32 GiB once it is copied."""


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Allow this process 4 GiB more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
def test_no_memory_for_a_copy_of_an_input_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "_memory", lambda: 1 << 50)  # so that the model is not refused first
    with session("float32") as s:
        for call in (lambda: s.run({"x": HUGE}), lambda: s.run_async({"x": HUGE}).result(60)):
            with pytest.raises(OutOfMemoryError, match="no memory for a copy"):
                call()
        assert s.run({"x": [2.0]})["y"] == 2


def refusals(proto: Any, inputs: Any) -> Iterator[GpuEdgeError]:
    """Yield the errors of both kinds of run; each without a copy of 256 MiB, or any large one."""
    with gpuedge.Session(proto, device="cpu") as s:
        tracemalloc.start()
        try:
            for call in (lambda: s.run(inputs), lambda: s.run_async(inputs).result(60)):
                with pytest.raises(GpuEdgeError) as caught:
                    call()
                yield caught.value
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


LARGE = np.broadcast_to(np.float32(1), (2**26,))
"""256 MiB once it is copied."""


def test_the_size_of_a_model_is_refused_before_an_input_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "_memory", lambda: 511 << 20)
    node = helper.make_node("Neg", ["x"], ["y"])
    proto = model([node], [value("x", ["N"])], [value("y", None)])
    for error in refusals(proto, [LARGE]):
        assert isinstance(error, ModelError)
        assert "would need 0.5 GiB" in error.what


@pytest.mark.parametrize(
    ("other", "kind", "words"),
    [
        (np.float64([1]), DTypeError, "float64"),
        (np.float32([[1]]), ShapeError, r"[1, 1]"),
        (np.float32([1]), ShapeError, "sets 'N' to 1, but 'x' sets it to 67108864"),
    ],
)
def test_no_input_is_copied_where_another_does_not_fit(other: Any, kind: Any, words: str) -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    proto = model([node], [value("x", ["N"]), value("z", ["N"])], [value("y", None)])
    for error in refusals(proto, [LARGE, other]):
        assert isinstance(error, kind)
        assert words in error.what


@pytest.mark.parametrize(
    "call",
    [
        lambda: gpuedge.relu(HUGE, device="cpu"),
        lambda: gpuedge.add(HUGE, 1.0, device="cpu"),
        lambda: gpuedge.transpose(HUGE, (0,), device="cpu"),
        lambda: gpuedge.elementwise("x * 2")(HUGE, device="cpu"),
    ],
    ids=["relu", "add", "transpose", "elementwise"],
)
@pytest.mark.usefixtures("little_memory")
def test_no_memory_for_a_copy_of_an_operand(call: Any) -> None:
    with pytest.raises(OutOfMemoryError):
        call()


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("int32", [1, -2, 2**31 - 1]),
        ("int32", (1, 2)),
        ("int32", range(3)),
        ("uint8", [0, 255]),
        ("int64", [-(2**63), 2**63 - 1]),
        ("uint64", [2**64 - 1]),
        ("float32", [1.5, -2, 3]),
        ("float32", [1, 2]),
        ("float32", [np.nan, np.inf, -np.inf]),
        ("float16", [65504.0]),
        ("bool", [True, False]),
        ("int32", []),
        ("float32", []),
    ],
)
def test_numbers_that_fit_are_converted(dtype: str, given: Any) -> None:
    with session(dtype) as s:
        found = s.run({"x": given})["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(list(given), dtype))


@pytest.mark.parametrize(
    ("dtype", "given", "error", "words"),
    [
        ("int32", [1.7, -2.9], DTypeError, "float64; the model takes int32"),
        ("int32", [1.0], DTypeError, "float64"),
        ("int32", [float("nan")], DTypeError, "float64"),
        ("int32", [1e30], DTypeError, "float64"),
        ("int32", [2**40], InputError, "1099511627776, which does not fit int32"),
        ("int32", [True], DTypeError, "bool"),
        ("uint8", [256], InputError, "256"),
        ("uint8", [-1], InputError, "-1, which does not fit uint8"),
        ("int64", [2**63], InputError, "9223372036854775808"),
        ("int64", [2**70], DTypeError, "object"),
        ("float32", [1.0, 1e39], InputError, r"1e\+39, which does not fit float32"),
        ("float16", [65520], InputError, "65520, which does not fit float16"),
        ("float32", [True], DTypeError, "bool"),
        ("float32", [1j], DTypeError, "complex"),
        ("float32", ["1"], DTypeError, "U1"),
        ("float32", None, DTypeError, "object"),
        ("bool", [1], DTypeError, "int64"),
        ("float32", np.float64(1), DTypeError, "float64"),
        ("int32", np.array([1.0]), DTypeError, "float64"),
        ("float32", np.array([1]), DTypeError, "int64"),
        ("float32", [[1.0, 2.0], [3.0]], InputError, "inhomogeneous"),
        ("float32", [1.0, [2.0]], InputError, "cannot be made an array"),
        ("float32", [[1.0]], ShapeError, r"shape \[1, 1\]"),
    ],
)
def test_what_would_be_cut_or_guessed_is_refused(
    dtype: str, given: Any, error: type[Exception], words: str
) -> None:
    with session(dtype) as s, pytest.raises(error, match=words) as caught:
        s.run({"x": given})
    assert "'x'" in str(caught.value)


@pytest.mark.parametrize("inside", [False, True])
def test_masked_arrays_are_refused(inside: bool) -> None:
    masked = np.ma.masked_array(np.ones(2, np.float32), [True, False])
    shape = ("M", "N") if inside else ("N",)
    with session("float32", shape) as s, pytest.raises(InputError, match="masked array") as caught:
        s.run({"x": [masked, masked] if inside else masked})
    assert "x.filled(0)" in str(caught.value)


class Refusing:
    """Like a tensor on a GPU: an array only after the user copied it."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("call .cpu() first")


def test_objects_that_refuse_to_be_arrays() -> None:
    with session("float32") as s, pytest.raises(InputError, match=r"call \.cpu\(\) first"):
        s.run({"x": Refusing()})


@pytest.mark.parametrize("shape", [("N",), (4,)], ids=["open", "fixed"])
def test_unaligned_arrays_are_taken(shape: tuple[Any, ...]) -> None:
    raw = np.zeros(17, np.uint8)
    x = raw[1:].view(np.float32)
    x[:] = [1, 2, 3, 4]
    assert not x.flags.aligned
    node = helper.make_node("Identity", ["x"], ["y"])
    proto = model([node], [value("x", list(shape))], [value("y", list(shape))])
    assert check_inputs([x], OnnxModel.load(proto))["x"].flags.aligned
    with session("float32", shape) as s:
        np.testing.assert_array_equal(s.run({"x": x})["y"], [1, 2, 3, 4])


def difference() -> gpuedge.Session:
    """Return a session of two inputs and two outputs, on the CPU."""
    nodes = [helper.make_node("Sub", ["b", "a"], ["d"]), helper.make_node("Neg", ["d"], ["e"])]
    return gpuedge.Session(
        model(nodes, [value("b", ["N"]), value("a", ["N"])],
              [value("d", ["N"]), value("e", ["N"])]), device="cpu")  # fmt: skip


def test_the_ways_to_give_inputs_and_ask_for_outputs() -> None:
    b, a = np.float32([5, 7]), np.float32([1, 2])
    feeds = {"a": a, "b": b}
    with difference() as s:
        later = [s.run_async(given).result(60) for given in ([b, a], (b, a))]
        for by_name in (
            s.run(feeds),
            s.run([b, a]),
            s.run((b, [1, 2])),
            s.run(inputs=feeds),
            *later,
        ):
            assert {n: v.tolist() for n, v in by_name.items()} == {"d": [4, 5], "e": [-4, -5]}
        wanted = {"d": [4, 5], "e": [-4, -5]}
        for names in (None, [], ["d"], ("e", "d"), ["e", "e"]):
            for given in (feeds, [b, a]):
                found = s.run(names, given, timeout_s=60)
                assert type(found) is list
                assert [v.tolist() for v in found] == [wanted[n] for n in names or wanted]
        assert s.profile([b, a])["steps"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([np.zeros(2, "f4")],), "1 input in order cannot be the model's 2"),
        (([np.zeros(2, "f4")] * 3,), "3 inputs in order"),
        ((np.zeros((2, 2), "f4"),), "a dict by name or a list in order, not as ndarray"),
        ((None,), "not as NoneType"),
        (("ba",), "not as str"),
        ((None, {"a": [1.0]}), "Input 'b' is missing"),
        ((["q"], {"a": [1.0], "b": [1.0]}), "The model has no output 'q'"),
        (([["d"]], {"a": [1.0], "b": [1.0]}), r"The model has no output \['d'\]"),
        (("d", {"a": [1.0], "b": [1.0]}), "by a list of names, not by str"),
        (({"a": [1.0]}, {"a": [1.0], "b": [1.0]}), "by a list of names, not by dict"),
    ],
)
def test_wrong_ways_to_give_inputs_are_told(given: Any, words: str) -> None:
    with difference() as s:
        with pytest.raises(InputError, match=words) as caught:
            s.run(*given)
        assert "b" in str(caught.value.known) or "outputs: 'd', 'e'" in str(caught.value.known)
        if len(given) == 1:
            with pytest.raises(InputError, match=words):
                s.run_async(given[0]).result(60)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "words"),
    [
        ("x", (-1,), ShapeError, "'x' has the extent -1"),
        ("x", (2**36,), ShapeError, f"has the extent {2**36}"),
        ("x", (2**70,), ShapeError, f"has the extent {2**70}"),
        ("x", (2, 2), ShapeError, r"has shape \[2, 2\]"),
        ("x", (1.5,), InputError, "sequence of whole numbers"),
        ("x", 5, InputError, "sequence of whole numbers"),
        ("x", None, InputError, "leaves the shape of 'x' open"),
        (["x"], (2,), InputError, "no input"),
        ("any", (2**31 - 1,) * 2, OutOfMemoryError, "no memory for the input 'any'"),
        ("any", (2**31 - 1,) * 9, OutOfMemoryError, "no memory for the input 'any'"),
    ],
)
def test_memory_for_an_input_of_a_shape_that_cannot_be(
    name: Any, shape: Any, kind: Any, words: str
) -> None:
    node = helper.make_node("Add", ["x", "any"], ["y"])
    proto = model([node], [value("x", ["N"]), value("any", None)], [value("y", None)])
    s = gpuedge.Session(proto, device="cpu")
    with s, pytest.raises(kind, match=words):
        s.input(name, shape)
    with pytest.raises(ClosedError):
        s.input(name, shape)


def test_what_is_bound_is_copied_only_where_the_model_can_compute_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "_memory", lambda: 511 << 20)
    with session("float32") as s:
        with pytest.raises(ModelError, match="would need"):
            s.bind({"x": LARGE})
        bound = s.bind({"x": np.float32([1])})
        with pytest.raises(ModelError, match="would need"):
            bound.run({"x": LARGE})
        assert bound.run()["y"].numpy() == 1


@pytest.mark.usefixtures("little_memory")
def test_no_memory_for_a_copy_of_what_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_memory", lambda: 1 << 50)
    with session("float32") as s, pytest.raises(OutOfMemoryError, match="no memory for a copy"):
        s.bind({"x": HUGE}).run()


def test_bound_arrays_may_have_the_other_order_of_bytes() -> None:
    x = np.arange(3, dtype=np.dtype(np.float32).newbyteorder())
    with session("float32") as s:
        bound = s.bind({"x": x})
        assert bound.run()["y"].numpy().tolist() == [0, 1, 2]
        x += 1
        assert bound.run()["y"].numpy().tolist() == [1, 2, 3]


WAYS: dict[str, list[tuple[str, list[str], dict[str, Any]]]] = {
    "directly": [],
    "once each": [("Unique", ["i"], {})],
    "moved": [("Unsqueeze", ["i", "at"], {}), ("Transpose", ["v0"], {"perm": [1, 0]})],
    "through": [("Identity", ["i"], {}), ("Flatten", ["v0"], {}), ("Identity", ["v1"], {})],
}


@pytest.mark.parametrize("device", ["cpu", "plan"])
@pytest.mark.parametrize("way", WAYS)
def test_indices_that_lead_nowhere_are_refused_however_they_get_there(
    way: str, device: str
) -> None:
    """What is computed with is never some other element: ONNX says that it is an error."""
    names = ["i", *(f"v{i}" for i in range(len(WAYS[way])))]
    nodes = [
        helper.make_node(op, inputs, [name], **attrs)
        for (op, inputs, attrs), name in zip(WAYS[way], names[1:], strict=True)
    ]
    nodes.append(helper.make_node("Gather", ["t", names[-1]], ["y"], name="table"))
    inputs = [value("i", [3], 7), value("t", [6])]
    held = [weight("at", np.array([0]))]
    proto = model(nodes, inputs, [value("y", ["?"] * (2 if len(nodes) > 2 else 1))], held)
    table = np.arange(6, dtype=np.float32)
    where: Any = plan_device() if device == "plan" else device
    with gpuedge.Session(proto, device=where, fallback="cpu") as own:
        got = own.run({"i": np.array([5, -6, 5]), "t": table})["y"]
        assert set(got.ravel()) == {5, 0}
        for wrong in (6, -7):
            with pytest.raises(InputError, match=f"'i' holds {wrong}: Gather node 'table'"):
                own.run({"i": np.array([0, wrong, 1]), "t": table})
