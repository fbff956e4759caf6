"""Arrays that stay on a device: `gpuedge.array`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from gpuedge.core import config
from gpuedge.core.dtypes import ACCEPTED, BYTES, as_operand, no_copy, rounded
from gpuedge.core.errors import InputError, MixedDevicesError
from gpuedge.core.interchange import as_numpy
from gpuedge.core.text import counted
from gpuedge.device import Device
from gpuedge.executors.resident import Resident, resident
from gpuedge.ops.call import Array, Operation, one_operator, recorders, simple
from gpuedge.ops.chain import (
    Chain,
    LazyArray,
    RecordedNode,
    count,
    evaluate,
    operation_of,
)
from gpuedge.opset import FUNCTIONS
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.request import Request, make_request
from gpuedge.runtime.strings import AUTO, CPU
from gpuedge.safety.interrupts import whole

if TYPE_CHECKING:
    from gpuedge.core.words import DeviceName

LONGEST = 64
"""Recorded operations; one more has them computed and their result read back. So a loop that never
looks keeps neither memory nor work for later, and a lost device costs no more than these."""


class DeviceArray:
    """An array on a device; made by `gpuedge.array` and by operations on such arrays.

    Operations are recorded, and computed together when somebody looks at a result, by `numpy`,
    `numpy.asarray`, DLPack, the buffer protocol (Python 3.12 and later), `float`, `bool` or
    printing. It never changes. Thread-safe.
    """

    __slots__ = ("_lazy",)

    __hash__ = None  # type: ignore[assignment]  # == compares elements

    def __init__(self, lazy_array: LazyArray) -> None:
        self._lazy = lazy_array

    # -- looking ------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        dtype: np.dtype[Any] = self._lazy.dtype
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return self._lazy.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._lazy.kind.size

    @property
    def device(self) -> str:
        """Device string."""
        return self._lazy.request.device

    @property
    def is_computed(self) -> bool:
        """Whether looking at it would compute nothing."""
        return self._lazy.is_there

    @whole
    def numpy(self) -> Array:
        """Return the elements as an array of the host, which is read-only: others may have it too.

        Computes them if they are not yet. ``numpy.array(x)`` makes a copy that may be written to.

        Raises
        ------
        DeviceError (GE-4xx)
            The device failed, and the CPU may not answer for it (``GPUEDGE_FALLBACK=error``).
        UnsupportedOpError (GE-501), NotFiniteError (GE-205), InexactError (GE-206)
            The device cannot compute it, and the CPU may not; or it cannot keep the numbers.
        ClosedError (GE-204)
            It was on a device that was closed, and nothing is left to compute it from.
        """
        array = rounded(self._lazy.host(), self.dtype)
        array.flags.writeable = False
        return array

    @whole
    def compute(self) -> DeviceArray:
        """Compute it now if it is not yet, leave it on the device, and return it.

        Raises
        ------
        GpuEdgeError
            As `numpy`.
        """
        if not self._lazy.is_there:
            evaluate(self._lazy)
        return self

    @whole
    def explain(self) -> str:
        """Return where it is, or what has to run for it and how: a line per kernel.

        Raises
        ------
        GpuEdgeError
            What is recorded cannot be compiled.
        """
        lazy_array = self._lazy
        if lazy_array.is_there:
            value = lazy_array.resident
            places = [value.device, CPU if value.is_on_host else None]
            return f"computed; on {' and '.join(p for p in places if p)}"
        chain = Chain(lazy_array)
        model, _ = chain.compiled(lazy_array.request)
        rows = [f"{r.device}: {', '.join(r.ops)} by {r.kernel}" for r in model.rows]
        what = f"{counted(len(chain.steps), 'recorded operation')}, {counted(len(rows), 'kernel')}"
        return "\n".join([f"{what}: {model.decision.reason}", *rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = _FROM_NUMPY.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and not options and name in _OPERATORS:  # ndarray + DeviceArray
            return _OPERATORS[name](*inputs)
        called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        name, called = ("sum", "sum") if called == "add.reduce" else (name, called)
        is_ours = "." not in called and name in {*FUNCTIONS, "matmul", "sum"}
        raise TypeError(_not_numpy(called, name if is_ours else None))

    if not TYPE_CHECKING:  # or type checkers would take every attribute for one that is there

        def __getattr__(self, name: str) -> NoReturn:
            is_known = hasattr(np.ndarray, name) and not name.startswith("_")
            known = _not_numpy(f"ndarray.{name}", _METHODS.get(name))
            raise AttributeError(known if is_known else f"'DeviceArray' has no attribute {name!r}")

        def __getitem__(self, key: Any) -> NoReturn:
            raise TypeError(_not_numpy("ndarray[...]", "slice"))

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __buffer__(self, flags: int) -> memoryview:
        return self.numpy().data

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        state = (
            "computed"
            if self.is_computed
            else f"{counted(self._lazy.length, 'operation')} recorded"
        )
        kind = f"{self.dtype.name}{list(self.shape)}"
        return f"<gpuedge array {kind} on {self.device}: {state}>"

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("div", other, self)

    def __pow__(self, other: Any) -> Any:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _binary("pow", other, self)

    def __neg__(self) -> Any:
        return one_operator("neg", (self,), {}, None)

    def __abs__(self) -> Any:
        return one_operator("abs", (self,), {}, None)

    def __matmul__(self, other: Any) -> Any:
        return _matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _matmul(other, self)

    def __eq__(self, other: object) -> Any:
        return _binary("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _not_equal(self, other)

    def __deepcopy__(self, memo: Any) -> DeviceArray:
        return self  # it never changes

    def __reduce__(self) -> Any:
        return _restored, (self.numpy(), self.device)

    def __lt__(self, other: Any) -> Any:
        return _binary("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _binary("greater_equal", self, other)


def _record(operation: Operation, values: Sequence[Any]) -> tuple[Any, ...]:
    """Record an operation; see `gpuedge.ops.call.recorders`."""
    request = _request_of(operation, values)
    op = operation_of(operation)
    if op.kinds is None:  # only the values say how large the results are
        return _now(operation, values, request)
    operands = tuple(
        value._lazy if isinstance(value, DeviceArray) else _operand(
            value, operation.arrays[name], request)
        for name, value in zip(operation.names, values, strict=True)
    )  # fmt: skip
    for name, operand in zip(operation.names, operands, strict=True):
        if name in operation.weights and isinstance(operand, LazyArray):
            _check_weights(operation.op, name, operand)
    node = RecordedNode(op, operands)
    distinct = {id(o): o for o in operands if isinstance(o, LazyArray)}.values()
    length = 1 + sum(o.length for o in distinct)
    if length > LONGEST:
        length = 1 + count(operands)
    results = []
    for kind in op.kinds:
        is_float = operation.dtype.kind == "f" and kind.dtype in ACCEPTED
        dtype = operation.dtype if is_float else kind.dtype
        results.append(LazyArray(request, dtype, kind.shape, node=node, length=length))
    node.results = [weakref.ref(result) for result in results]
    for operand in distinct:
        operand.uses += 1
    if length > LONGEST:
        for result in results:
            result.host()
    return tuple(map(DeviceArray, results))


recorders[DeviceArray] = _record


def _not_numpy(called: str, ours: str | None) -> str:
    """Return what is said of a name of numpy, of which `ours` may be the one in gpuedge."""
    there = f"gpuedge.{ours} does, there; " if ours else ""
    return (
        f"numpy.{called} does not compute arrays on a device: {there}numpy.asarray(x) brings "
        "one to the host"
    )


def _restored(values: Array, device: str) -> DeviceArray:
    """Return an array that was pickled."""
    return array(values, device=device)


@whole
def _binary(name: str, first: Any, second: Any) -> Any:
    return one_operator(name, (first, second), {}, None)


@whole
def _matmul(first: Any, second: Any) -> Any:
    return simple("matmul", "MatMul", [("a", first), ("b", second)], None)


@whole
def _not_equal(first: Any, second: Any) -> Any:
    is_equal = _binary("equal", first, second)
    return simple("not_equal", "Not", [("a", is_equal)], None, also=("bool",))


_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: partial(_binary, name) for name in (
        "add", "sub", "mul", "div", "pow", "equal", "less", "less_equal", "greater",
        "greater_equal")},
    "matmul": _matmul, "not_equal": _not_equal,
}  # fmt: skip
"""What operators of Python call, of which numpy hands over those with an array of its own."""

_FROM_NUMPY = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "negative": "neg",
    "absolute": "abs",
}  # fmt: skip
"""Operations that numpy calls by another name."""

_METHODS = {
    "T": "transpose(x)", "astype": "to_float(x, scale=1.0)", **{name: name for name in (
        "argmax", "clip", "flatten", "mean", "nonzero", "reshape", "round", "sum", "take",
        "transpose")},
}  # fmt: skip
"""Operations that are attributes of numpy's arrays."""


@whole
def array(x: Any, *, device: DeviceName | Device | None = None) -> DeviceArray:
    """Put an array on a device, where operations on it and their results stay.

    Parameters
    ----------
    x : array_like
        float32, float16, uint8, int8 or bool; numbers and lists become float32. It is copied, and
        goes to the device when it is first needed there.
    device : str or Device, optional
        As for operations. With ``"auto"`` every chain runs where that is expected to pay.

    Returns
    -------
    DeviceArray

    Raises
    ------
    DTypeError (GE-202), InputError (GE-203)
        It is no array that devices compute with.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103), ClosedError (GE-204)
        The device. It is not opened yet.

    Notes
    -----
    The host keeps its copy: if the device is lost, what was recorded since is computed on the CPU
    from there (unless ``GPUEDGE_FALLBACK=error``).

    Examples
    --------
    >>> import gpuedge, numpy as np
    >>> x = gpuedge.array(np.float32([1, -2]), device="cpu")
    >>> gpuedge.relu(x * 3 + 1).numpy().tolist()
    [4.0, 0.0]
    """
    request = _request(device)
    x = as_numpy(x, "'x' of array")
    converted, dtype = as_operand(x, "'x' of array", (*BYTES, "bool"))
    is_shared = isinstance(x, np.ndarray) and np.may_share_memory(converted, x)
    copy = is_shared or not converted.flags.owndata
    return DeviceArray(_source(converted, dtype, request, copy=copy))


def _source(given: Array, dtype: Any, request: Request, *, copy: bool) -> LazyArray:
    """Return an array that the host has."""
    try:
        own = given.copy() if copy else given
    except MemoryError as error:
        raise no_copy("'x'", error) from None
    return LazyArray(request, dtype, given.shape, value=Resident.of(own))


def _request(device: str | Device | None) -> Request:
    """Return where arrays of a device are."""
    return located(make_request(device))


def located(request: Request) -> Request:
    """Return a request of arrays that stay on a device, which has its number there.

    Raises NoUsableDeviceError (GE-103).
    """
    device = request.device
    if request.executor is None and device not in (AUTO, CPU):
        device = POOL.named(device, request.backends).device
    return replace(request, device=device, stays=True, told=set(), progress=None)


def _request_of(operation: Operation, values: Sequence[Any]) -> Request:
    """Return where the operands are. Raises MixedDevicesError (GE-207)."""
    arrays = [value for value in values if isinstance(value, DeviceArray)]
    requests = [value._lazy.request for value in arrays]
    if operation.device is not None:
        requests.append(_request(operation.device))
    first = requests[0]
    for other in requests[1:]:
        if other is not first and _place(other) != _place(first):
            raise MixedDevicesError(
                f"{operation.op} is given arrays on {_named(first)} and {_named(other)}.",
                asked_by=f"gpuedge.{operation.op}",
                hint=f"{_way_to(first)} moves one of them",
            )
    return first


def over(request: Request, result: Any) -> DeviceArray:
    """Return an array that has a result of a run: a `Resident`, or an array of the host."""
    value = resident(result)
    dtype = value.dtype
    if dtype == "float16":  # kept as in chains
        value = value.widened()
    return DeviceArray(LazyArray(request, dtype, value.shape, value=value))


def resident_of(array: DeviceArray) -> Resident:
    """Return what there is of an array, computed now if it is not yet. Raises GpuEdgeError."""
    return array._lazy.there or array.compute()._lazy.resident


def check_place(what: str, value: DeviceArray, request: Request) -> None:
    """Check that an array is where a request runs. Raises MixedDevicesError (GE-207)."""
    theirs = value._lazy.request
    if _place(theirs) != _place(request):
        raise MixedDevicesError(
            f"An array on {_named(theirs)} is {what} on {_named(request)}.",
            hint=f"{_way_to(request)} moves it",
        )


def _place(request: Request) -> tuple[Any, ...]:
    return request.device, request.isolation, id(request.executor)


def _way_to(request: Request) -> str:
    """Return the call that puts an array where a request runs."""
    if request.executor is not None:
        return "gpuedge.array(x, device=dev), where dev is the device that gpuedge.open returned,"
    call = f"gpuedge.array(x, device={request.device!r})"
    if request.isolation == config.get("isolation").value or request.device in (AUTO, CPU):
        return call
    setting = f"isolation={request.isolation!r}"
    return (
        f"one device for both, gpuedge.open({request.device!r}, {setting}), or {call} within "
        f"gpuedge.config({setting})"
    )


def _named(request: Request) -> str:
    own = "" if request.executor is None else " (a device of your own)"
    where = f" in {request.isolation}" if request.isolation == "process" else ""
    return f"{request.device}{where}{own}"


_kept: dict[Hashable, tuple[Any, LazyArray]] = {}
"""Of read-only arrays that are operands what is on a device, by identity, while they are alive."""


def _operand(value: Any, converted: Array, request: Request) -> LazyArray | Array:
    """Return an operand that was not on a device: a number, or an array that now is.

    What nobody can change goes there once. That is an array of numpy which is read-only, as all are
    that it is a view of.
    """
    if not converted.shape:
        return np.array(converted)
    if not _is_constant(value):
        is_shared = not isinstance(value, np.ndarray) or np.may_share_memory(converted, value)
        return _source(converted, converted.dtype, request, copy=is_shared)
    key = id(value), *_place(request)
    if key not in _kept:  # a copy, or what is kept would keep the array alive
        lazy_array = _source(converted, converted.dtype, request, copy=True)
        _kept[key] = weakref.ref(value, lambda _: _kept.pop(key, None)), lazy_array
    return _kept[key][1]


def _is_constant(value: Any) -> bool:
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return False
        value = value.base
    return value is None or isinstance(value, bytes)


def _check_weights(op: str, name: str, operand: LazyArray) -> None:
    """Refuse weights that hold NaN, as far as the host has them."""
    if operand.is_there and operand.resident.is_on_host and operand.resident.has_nan:
        raise InputError(f"The weights '{name}' of {op} hold NaN.")


def _now(operation: Operation, values: Sequence[Any], request: Request) -> tuple[Array, ...]:
    """Compute an operation at once, from arrays of the host."""
    arrays = [v.numpy() if isinstance(v, DeviceArray) else v for v in values]
    own = request.executor
    device = request.device if own is None else Device(own, "an array is on it", request.policy)
    inputs = list(zip(operation.names, arrays, strict=True))
    return operation.run(inputs=inputs, device=device)
