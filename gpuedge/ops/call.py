"""One operation on numpy arrays: a graph of a few nodes, compiled once per signature.

What a public function makes of its arguments depends on the shapes and dtypes of its arrays, on
the other arguments and on the settings. Where all of these are as in a call before, the compiled
model of that is run at once (`warm`).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gpuedge.core import config
from gpuedge.core.dtypes import ACCEPTED, BYTES, as_operand, rounded
from gpuedge.core.errors import (
    DTypeError,
    InputError,
    OutOfMemoryError,
    UnsupportedOpError,
    UsageError,
)
from gpuedge.core.interchange import as_numpy
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.ops.arguments import number
from gpuedge.opset import FUNCTIONS
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.models import SHORTCUTS, ModelCache, Shortcut
from gpuedge.runtime.opening import closing
from gpuedge.runtime.request import Request, make_request
from gpuedge.runtime.strings import AUTO, CPU
from gpuedge.safety.interrupts import entry, let_go, rlock, whole

if TYPE_CHECKING:
    from gpuedge.device import Device
    from gpuedge.executors.base import Executor

Array = npt.NDArray[Any]
Inputs = Sequence[tuple[str, Any]]
F = TypeVar("F", bound=Callable[..., Array])
Write = Callable[[GraphBuilder, Sequence[str]], "str | Sequence[str]"]
"""Adds an operation's nodes to a graph, given its input names; returns the names of outputs."""

Types = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of each operand."""

LARGE = 1 << 22
"""An operand of more elements is copied and scanned only when a device has accepted its shape."""

LIMIT = 256
"""Compiled operations kept; the least recently used one is dropped."""

PLAIN = (int, float, str, bool, type(None))
"""Arguments that may be part of a key; of tuples, what they hold."""

MOST_NUMBER = 1e38
"""Python numbers below are float32, and no others that are written so."""

_FLOAT32 = np.dtype(np.float32)


class _Answers(threading.local):
    """What answered in this thread since it entered a public function: models, inputs, weights.

    `explained` are the models that answered since `explain` was entered.
    """

    latest: list[tuple[CompiledModel, Inputs, Sequence[str]]] | None = None
    explained: list[CompiledModel] | None = None


class Operation(NamedTuple):
    """A checked call of an operation, of which some operands are lazy.

    Attributes
    ----------
    signature : hashable
        What its nodes depend on: name, other arguments, types of the operands.
    graph : callable
        Returns them as a graph.
    arrays : mapping of str to ndarray
        The operands that are not lazy, in the dtypes that it takes.
    dtype : numpy.dtype
        Of results that are floats.
    weights : sequence of str
        Operands that must not hold NaN.
    device : str, Device or None
        Where to run, as far as the call says.
    run : callable
        Runs it at once, on ``inputs`` of which none is lazy and on a ``device``.
    """

    op: str
    names: Sequence[str]
    signature: Hashable
    graph: Callable[[], Graph]
    arrays: Mapping[str, Array]
    dtype: np.dtype[Any]
    weights: Sequence[str]
    device: str | Device | None
    run: Callable[..., tuple[Array, ...]]


Record = Callable[[Operation, Sequence[Any]], "tuple[Any, ...]"]
recorders: dict[type, Record] = {}
"""What records operations on lazy operands, by their class: they have a dtype and a shape, and need
not be computed yet. There is one, once its module is loaded."""

_operations: dict[Hashable, Operation] = {}  # whose operands are all lazy, by what they are
models = ModelCache(LIMIT)
_inherited: list[ModelCache] = []
_lock = rlock()
_answers = _Answers()


def warm(function: F) -> F:
    """Let a public function run at once what answered a call like this one before."""
    name = function.__name__

    @entry
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Array:
        before = _answers.latest
        try:
            key, given = _key(name, args, options)
            known = None if key is None else models.shortcuts.get(key)
            if known is not None and not any(np.isnan(given[i]).any() for i in known.weights):
                outputs = known.model.run({n: given[i] for n, i in known.operands})
                if _answers.explained is not None:
                    _answers.explained.append(known.model)
                return next(iter(outputs.values()))
            if key is None:
                return function(*args, **options)
            answers: list[tuple[CompiledModel, Inputs, Sequence[str]]] = []
            _answers.latest = answers
            result = function(*args, **options)
            if len(answers) == 1:
                _shorten(key, given, *answers[0])
            _answers.latest = before
            return result
        except BaseException as error:
            _answers.latest = before
            let_go(error)
            raise

    return cast("F", call)


def _key(
    name: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[Hashable | None, Sequence[Any]]:
    """Return what tells a call from others, and its arguments; no key for one that is not plain."""
    given = (*args, *options.values())
    key: list[Any] = [name, len(args), *options]
    for argument in given:
        kind = type(argument)
        if kind is np.ndarray:
            flags = argument.flags
            if argument.dtype is not _FLOAT32 or not flags.c_contiguous or not flags.aligned:
                return None, given
            key.append(argument.shape)
        elif kind in PLAIN:
            key.extend((kind, argument))
        elif kind is tuple and all(type(part) in PLAIN for part in argument):
            key.extend((tuple, argument))
            key.extend(map(type, argument))
        else:
            return None, given
    settings = config.state()
    if settings is None:
        return None, given
    key.append(settings)
    return tuple(key), given


def _shorten(
    key: Hashable,
    given: Sequence[Any],
    model: CompiledModel,
    inputs: Inputs,
    weights: Sequence[str],
) -> None:
    """Remember a call whose operands are arrays that it was given."""
    places = {n: i for n, v in inputs for i, argument in enumerate(given) if argument is v}
    if any(type(v) is not np.ndarray for _, v in inputs) or len(places) != len(inputs):
        return
    known_weights = tuple(places[n] for n in weights if n in places)
    models.shorten(key, Shortcut(model, tuple(places.items()), known_weights))


def call(
    op: str,
    inputs: Inputs,
    write: Write,
    *,
    device: str | Device | None,
    key: Hashable = (),
    weights: Sequence[str] = (),
    also: Sequence[str] = (),
    others: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Array:
    """Run an operation of one result; see `several`."""
    (result,) = several(op, inputs, write, device=device, key=key, weights=weights, also=also,
                        others=others)  # fmt: skip
    return result


@whole
def several(
    op: str,
    inputs: Inputs,
    write: Write,
    *,
    device: str | Device | None,
    key: Hashable = (),
    weights: Sequence[str] = (),
    also: Sequence[str] = (),
    others: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Array, ...]:
    """Run an operation.

    Parameters
    ----------
    op : str
        Name in messages, and part of the signature.
    inputs : sequence of (str, array_like)
        Named operands; float32 or float16, or all of one dtype in `also`.
    write : callable
        See `Write`.
    device : str, Device or None
        Where to run; a device that is named is never left silently.
    key : hashable
        Everything besides shapes that `write` depends on.
    weights : sequence of str
        Names of operands that must not hold NaN.
    also : sequence of str
        Integer dtypes that the operation takes and gives.
    others : mapping of str to sequence of str
        Dtypes besides floats of operands that may differ from the rest, by name.

    Raises
    ------
    DTypeError (GE-202), ShapeError (GE-201), InputError (GE-203)
        The operands; no driver was touched, except before NaN is found in weights of more than
        `LARGE` elements.
    OutOfMemoryError (GE-402)
        An operand has to be copied, and there is no memory for that.
    UnsupportedOpError (GE-501), DeviceError (GE-4xx)
        The device named cannot do it or failed.
    """
    inputs = [
        (n, v if is_lazy(v) else _as_number(as_numpy(v, f"'{n}' of {op}"), others.get(n, also)))
        for n, v in inputs
    ]
    if any(is_lazy(value) for _, value in inputs):
        run = partial(several, op, write=write, key=key, weights=weights, also=also, others=others)
        return _recorded(op, inputs, write, run, device, key, weights, also, others)
    arrays, dtype = _convert(op, _stand_ins(inputs), also, others)
    types = _types(arrays, inputs)
    _check_weights(op, weights, arrays)
    request = make_request(device)
    if request.device != AUTO:
        request = replace(request, fallback="error")
    signature = (op, key, types, request)
    try:
        model = compiled(signature, lambda: _graph(types, write), request)
    except UsageError as error:
        error.asked_by = error.asked_by or f"gpuedge.{op}"
        raise
    except UnsupportedOpError as error:
        if request.device not in {AUTO, CPU}:  # operations take no fallback= that could help
            error.asked_by = f"gpuedge.{op}, device={request.device!r}"
            error.hint = "smaller tensors, or device='cpu'"
        raise
    if any(_is_large(value) for _, value in inputs):
        arrays, _ = _convert(op, inputs, also, others)
        _check_weights(op, weights, arrays)
    result = model.run(arrays)
    if _answers.latest is not None:
        _answers.latest.append((model, inputs, weights))
    if _answers.explained is not None:
        _answers.explained.append(model)
    is_float = dtype.kind == "f"
    return tuple(rounded(y, dtype) if is_float and y.dtype.kind == "f" else y
                 for y in result.values())  # fmt: skip


def answered(run: Callable[[], Any]) -> tuple[Any, list[CompiledModel]]:
    """Return what `run` returns, and the models that answered it."""
    before, models = _answers.explained, list["CompiledModel"]()
    _answers.explained = models
    try:
        return run(), models
    finally:
        _answers.explained = before


def _recorded(  # noqa: PLR0917  (what `several` was given)
    op: str,
    inputs: Inputs,
    write: Write,
    run: Callable[..., tuple[Array, ...]],
    device: str | Device | None,
    key: Hashable,
    weights: Sequence[str],
    also: Sequence[str],
    others: Mapping[str, Sequence[str]],
) -> tuple[Any, ...]:
    """Record an operation of which some operands are lazy.

    Where the others are numbers, as it is known from a call before.
    """
    values = [value for _, value in inputs]
    record = next(recorders[type(value)] for value in values if is_lazy(value))
    numbers = {n: v for n, v in inputs if type(v) in (float, int) and abs(v) < MOST_NUMBER}
    is_plain = device is None and sum(map(is_lazy, values)) + len(numbers) == len(values)
    kinds = ((n, *((float,) if n in numbers else (v.dtype, v.shape))) for n, v in inputs)
    short = op, key, tuple(kinds) if is_plain else ()
    try:
        if is_plain and short in _operations:
            known = _operations[short]
            arrays = {n: np.asarray(v).astype(np.float32) for n, v in numbers.items()}
            return record(known._replace(arrays=arrays) if arrays else known, values)
        arrays, dtype = _convert(op, _stand_ins(inputs), also, others)
        types = _types(arrays, inputs)
        if any(_is_large(v) and not is_lazy(v) for v in values):
            _graph(types, write)  # or it is an error, before anything large is copied
            plain = [(n, np.empty(0, v.dtype) if is_lazy(v) else v) for n, v in inputs]
            arrays, _ = _convert(op, plain, also, others)
        arrays = {n: arrays[n] for n, v in inputs if not is_lazy(v)}
        _check_weights(op, weights, arrays)
        operation = Operation(
            op, [n for n, _ in inputs], (op, key, types), lambda: _graph(types, write), arrays,
            dtype, weights, device, run,
        )  # fmt: skip
        results = record(operation, values)
    except UsageError as error:
        error.asked_by = error.asked_by or f"gpuedge.{op}"
        there = {v.dtype.name for v in values if is_lazy(v)}.difference(ACCEPTED)
        if isinstance(error, DTypeError) and any(dtype in error.what for dtype in there):
            error.hint = "gpuedge.to_float(x, scale=1.0) makes float32 of it on the device"
        raise
    if is_plain and all(array.dtype == np.float32 for array in arrays.values()):
        if len(_operations) >= SHORTCUTS:
            _operations.clear()
        _operations[short] = operation
    return results


def _as_number(value: Any, also: Sequence[str]) -> Any:
    """Return a number of numpy as one of Python, unless its dtype is one that is taken."""
    if not isinstance(value, (np.integer, np.floating)) or value.dtype.name in (*ACCEPTED, *also):
        return value
    return float(value) if isinstance(value, np.floating) else int(value)


def is_lazy(value: Any) -> bool:
    """Tell whether a value is a lazy operand."""
    return type(value) in recorders


def _is_large(value: Any) -> bool:
    return (type(value) is np.ndarray and value.size > LARGE) or is_lazy(value)


def _stand_ins(inputs: Inputs) -> Inputs:
    """Return the operands with an empty array of the same dtype in place of each large or lazy one.

    Copying a large operand takes seconds: first it must be known that its shape can be computed.
    """
    return [(n, np.empty(0, v.dtype) if _is_large(v) else v) for n, v in inputs]


def _check_weights(op: str, weights: Sequence[str], arrays: dict[str, Array]) -> None:
    for name in weights:
        if name in arrays and _has_nan(name, arrays[name]):
            raise InputError(f"The weights '{name}' of {op} hold NaN.")


def _has_nan(name: str, array: Array) -> bool:
    try:
        return bool(np.isnan(array).any())
    except MemoryError as error:
        raise OutOfMemoryError(
            f"There is no memory for looking through '{name}'.", known=str(error) or None
        ) from None


def _convert(
    op: str,
    inputs: Inputs,
    also: Sequence[str],
    others: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Array], np.dtype[Any]]:
    """Return the operands, float32 or bytes, and the result's dtype; Python numbers keep it."""
    arrays: dict[str, Array] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for name, value in inputs:
        arrays[name], dtype = as_operand(value, f"'{name}' of {op}", others.get(name, also))
        if hasattr(value, "dtype") and dtype.name not in others.get(name, ()):
            dtypes[name] = dtype
    given = {dtype.name for dtype in dtypes.values()}
    if not given & set(BYTES):
        return arrays, np.result_type(*dtypes.values()) if dtypes else np.dtype(np.float32)
    if len(given) > 1:
        raise DTypeError(
            f"{op} mixes the dtypes {', '.join(sorted(given))}.", hint="convert one of them"
        )
    dtype = next(iter(dtypes.values()))
    return {n: a if n in others else _as_bytes(op, n, a, dtype) for n, a in arrays.items()}, dtype


def _as_bytes(op: str, name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return an operand in an integer dtype: an array of it, or Python numbers that fit it."""
    if array.dtype == dtype:
        return array
    result = rounded(array, dtype)
    if not np.array_equal(result, array):
        raise InputError(f"'{name}' of {op} holds numbers that do not fit {dtype}.")
    return result


def _types(arrays: dict[str, Array], inputs: Inputs) -> Types:
    """Return the types of operands, some of which are stand-ins for large ones."""
    large = {name: value.shape for name, value in inputs if _is_large(value)}
    return tuple((n, a.dtype.name, large.get(n, a.shape)) for n, a in arrays.items())


def _graph(types: Types, write: Write) -> Graph:
    builder = GraphBuilder()
    names = [builder.input(n, TensorType(dtype, shape)) for n, dtype, shape in types]
    written = write(builder, names)
    builder.output(*([written] if isinstance(written, str) else written))
    return builder.build()


def _after_fork() -> None:
    """Start without what the parent compiled; it is kept: its threads did not come along."""
    global _lock, models
    _inherited.append(models)
    _lock, models = rlock(), ModelCache(LIMIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def compiled(signature: Hashable, build: Callable[[], Graph], request: Request) -> CompiledModel:
    """Return the compiled model of a signature, made now if there is none."""
    with _lock:
        model = models.get(signature)
        if model is None:
            config.check_environment()
            model = CompiledModel(build(), request, is_session=False)
            models.make_room(signature)
            models.add(signature, model)
        return model


def release(executor: Executor) -> None:
    """Close and forget every operation compiled on a device that the caller opened."""
    with _lock:
        theirs = models.take(lambda _, model: model.request.executor is executor)
    for model in theirs:
        model.close()


closing.append(release)


def one_operator(
    name: str, operands: Sequence[Any], numbers: Mapping[str, Any], device: str | Device | None
) -> Array:
    """Run a function of `gpuedge.opset.FUNCTIONS`.

    Parameters
    ----------
    name : str
    operands : sequence of array_like
        In the order of the function's operands.
    numbers : mapping
        Its further arguments, which become attributes; each must be a finite number.
    device : str, Device or None
    """
    function = FUNCTIONS[name]
    inputs = list(zip(function.operands, operands, strict=True))
    attrs = {key: number(key, value) for key, value in numbers.items()}
    return simple(name, function.op, inputs, device, also=function.dtypes, **attrs)


def simple(
    op: str,
    onnx_op: str,
    inputs: Inputs,
    device: str | Device | None,
    *,
    also: Sequence[str] = (),
    **attrs: Any,
) -> Array:
    """Run an operation that is one ONNX node; attributes that are None are left out."""
    given = {k: v for k, v in attrs.items() if v is not None}
    return call(
        op,
        inputs,
        lambda b, names: b.add(onnx_op, names, given),
        device=device,
        key=tuple((k, repr(v)) for k, v in sorted(given.items())),
        also=also,
    )
