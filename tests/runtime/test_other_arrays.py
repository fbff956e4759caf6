"""Arrays of other packages in and out: DLPack, ``__array__`` and buffers, on the CPU.

Tensors of PyTorch and arrays of JAX are not at hand here; these classes offer what those offer.
"""

from __future__ import annotations

import array
import ctypes
import re
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import model, value

import gpuedge
from gpuedge.core.errors import DTypeError, InputError
from gpuedge.core.interchange import as_numpy
from gpuedge.runtime.inputs import own_copies

X = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_DEVICE", "cpu")


class ByDLPack:
    """Offers DLPack and nothing else; `place` is its device."""

    def __init__(self, values: Any, place: tuple[int, int] = (1, 0)) -> None:
        self._values, self._place = values, place

    def __dlpack__(self, **options: Any) -> Any:
        if self._place[0] != 1:
            raise BufferError("its memory is elsewhere")
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place


class Tensor(ByDLPack):
    """Like one of PyTorch: DLPack, ``__array__``, and a dtype that is not one of numpy."""

    def __init__(self, values: Any, **more: Any) -> None:
        super().__init__(values)
        self.dtype, self.shape = f"torch.{values.dtype.name}", values.shape
        self.requires_grad = more.get("requires_grad", False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self._values.copy() if copy else self._values


def identity() -> gpuedge.Session:
    """Return a session that gives a float32 matrix back."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return gpuedge.Session(model([node], [value("x", ("N", 3, 4))], [value("y", ("N", 3, 4))]))


KINDS = [ByDLPack, Tensor, memoryview]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["plain", "strided", "reversed"])
def test_an_array_of_another_package_is_taken_wherever_one_of_numpy_is(
    kind: Any, place: str
) -> None:
    values = {"plain": X, "strided": X[..., ::2], "reversed": X[:, ::-1]}[place]
    given = kind(values)
    np.testing.assert_array_equal(gpuedge.relu(given), np.maximum(values, 0))
    np.testing.assert_array_equal(gpuedge.elementwise("a * 2 + b")(given, b=1), values * 2 + 1)
    np.testing.assert_array_equal(gpuedge.concat([given, values]), np.concatenate([values] * 2))
    np.testing.assert_array_equal(gpuedge.sum(given, axis=0), values.sum(axis=0))
    np.testing.assert_array_equal(gpuedge.array(given).numpy(), values)
    np.testing.assert_array_equal((gpuedge.array(values) + 1 - given).numpy(), np.ones_like(values))
    if place != "strided":
        with identity() as session:
            np.testing.assert_array_equal(session.run({"x": given})["y"], values)
            np.testing.assert_array_equal(session.run_async([given]).result(60)["y"], values)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_indices_keep_their_dtype(kind: Any) -> None:
    small = np.array([[1, 200, 3]], np.uint8)
    biggest = gpuedge.maximum(kind(small), np.uint8(2))
    assert biggest.dtype == np.uint8 and biggest.tolist() == [[2, 200, 3]]
    assert gpuedge.array(kind(small)).dtype == np.uint8
    assert gpuedge.take(X, kind(np.array([1, 0])), 0).tolist() == X[[1, 0]].tolist()
    per_channel = kind(np.ones(3, np.float32))
    assert (
        gpuedge.batch_norm(X, per_channel, per_channel, per_channel, per_channel).shape == X.shape
    )


@pytest.mark.parametrize("given", [array.array("f", [1, -2]), (ctypes.c_float * 2)(1, -2)])
def test_buffers_of_the_standard_library_are_arrays(given: Any) -> None:
    assert gpuedge.relu(given).tolist() == [1, 0]


def test_a_buffer_says_its_dtype_and_is_not_converted() -> None:
    with pytest.raises(DTypeError, match="float64"):
        gpuedge.relu(array.array("d", [1, -2]))
    assert gpuedge.relu([1.0, -2.0]).dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_shared_where_it_can_be(kind: Any) -> None:
    for values in (X.copy(), X.copy()[:, ::-1, ::2], X.copy().T):
        assert np.shares_memory(as_numpy(kind(values), "x"), values)


@pytest.mark.parametrize(("place", "name"), [((2, 1), "cuda:1"), ((8, 0), "metal:0"),
                                             ((99, 3), "device type 99 of DLPack:3")])  # fmt: skip
def test_an_array_on_another_device_is_refused_by_its_name(
    place: tuple[int, int], name: str
) -> None:
    given = ByDLPack(X, place)
    with identity() as session:
        for call in (
            lambda: gpuedge.relu(given),
            lambda: gpuedge.array(given),
            lambda: session.run([given]),
            lambda: session.bind({"x": given}),
            lambda: gpuedge.take(X, given),
        ):
            with pytest.raises(InputError, match=f"is on {name}, ") as caught:
                call()
            assert "x.cpu()" in str(caught.value.hint)


def test_pinned_memory_of_the_host_is_taken() -> None:
    class Pinned(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            return 3, 0

    np.testing.assert_array_equal(gpuedge.relu(Pinned(X)), np.maximum(X, 0))


def test_a_tensor_that_requires_grad_is_told_what_to_call() -> None:
    given = Tensor(X, requires_grad=True)
    with identity() as session:
        for call in (lambda: gpuedge.relu(given), lambda: session.run([given])):
            with pytest.raises(InputError, match="requires grad") as caught:
                call()
            assert caught.value.hint == "x.detach()"


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_is_bound_to_memory_of_another_package(kind: Any) -> None:
    values, result = X.copy(), np.zeros_like(X)
    with identity() as session:
        bound = session.bind({"x": kind(values)}, {"y": kind(result)})
        bound.run()
        np.testing.assert_array_equal(result, X)
        values += 5
        bound.run()
        np.testing.assert_array_equal(result, X + 5)
        for bad in (X.tolist(), bytes(8), np.float32(1), np.ma.masked_array(X)):
            with pytest.raises(InputError, match="is bound to"):
                session.bind({"x": bad})


def test_results_are_given_by_dlpack_and_by_the_buffer_protocol() -> None:
    for result in (gpuedge.relu(X), identity().run({"x": X - 1})["y"] + 1):
        taken = np.from_dlpack(result)
        assert np.shares_memory(taken, result) and memoryview(result).format == "f"
    stays = gpuedge.array(X) * 2
    np.testing.assert_array_equal(np.from_dlpack(stays), X * 2)
    np.testing.assert_array_equal(gpuedge.relu(ByDLPack(X)), gpuedge.relu(X))


class Copying(ByDLPack):
    """Its ``__array__`` copies; DLPack gives the memory itself."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values.copy()


class Unversioned(Copying):
    """Like packages before DLPack 1.0, whose memory numpy takes as read-only."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__()


@pytest.mark.parametrize("kind", [Copying, Unversioned])
def test_what_is_bound_is_the_memory_itself_and_no_copy(kind: Any) -> None:
    values, result = X.copy(), np.zeros_like(X)
    with identity() as session:
        bound = session.bind({"x": kind(values)}, {"y": kind(result)})
        for more in (0, 5):
            values += more
            bound.run()
            np.testing.assert_array_equal(result, X + more)


def test_memory_that_cannot_be_had_is_no_output() -> None:
    class Elsewhere(Copying):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not now")

    with identity() as session, pytest.raises(InputError, match="as an array: not now"):
        session.bind({"x": X}, {"y": Elsewhere(X.copy())})


class Awkward(ByDLPack):
    """Fails to give its values, by an exception that is asked for."""

    def __init__(self, error: Exception) -> None:
        super().__init__(X)
        self._error = error

    def __dlpack__(self, **options: Any) -> Any:
        raise self._error

    @property
    def requires_grad(self) -> bool:
        raise RuntimeError("no grad")


class SilentError(Exception):
    """Cannot even say what happened."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unnamed:
    """Raises something else than AttributeError for a name that it does not have."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


def released() -> memoryview:
    """Return a memoryview that has no memory any more."""
    view = memoryview(X)
    view.release()
    return view


@pytest.mark.parametrize(("given", "words"), [
    (released(), "released memoryview"),
    (Awkward(RuntimeError("not today")), "as an array: not today"),
    (Awkward(SilentError()), "as an array: SilentError$"),
    (Awkward(RuntimeError()), "as an array: RuntimeError$"),
    (Awkward(RuntimeError("a" * 5000)), r"as an array: a{150}\.\.\.a{150}$"),
    (Unnamed(), ""),
], ids=["released", "refusing", "silent", "empty", "long", "unnamed"])  # fmt: skip
def test_objects_that_fail_are_errors_of_an_input(given: Any, words: str) -> None:
    with identity() as session:
        for call in (
            lambda: gpuedge.relu(given),
            lambda: gpuedge.add(X, given),
            lambda: gpuedge.array(given),
            lambda: gpuedge.take(X, given),
            lambda: session.run([given]),
            lambda: session.run_async([given]).result(60),
            lambda: session.bind({"x": given}),
            lambda: session.bind({"x": X}, {"y": given}),
        ):
            with pytest.raises((InputError, DTypeError)) as caught:
                call()
            assert re.search(words, caught.value.what)


def test_the_mask_of_another_package_is_not_lost() -> None:
    class Masked:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.ma.masked_array(X, X > 0)

    with identity() as session:
        for call in (
            lambda: gpuedge.relu(Masked()),
            lambda: gpuedge.take(X, Masked()),
            lambda: gpuedge.take(X, np.ma.masked_array([0])),
            lambda: session.run([Masked()]),
        ):
            with pytest.raises(InputError, match="is a masked array"):
                call()


def test_a_class_of_lists_with_memory_of_its_own_is_copied_for_later() -> None:
    class Listed(list[Any]):
        memory = X.copy()

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return self.memory

    given = Listed()
    arrays = own_copies({"x": np.asarray(given)}, {"x": given})
    assert np.shares_memory(np.asarray(given), given.memory)
    assert not np.shares_memory(arrays["x"], given.memory)
