"""One operation on numpy arrays: a graph of a few nodes, compiled once per signature."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuedge.core import config
from gpuedge.core.dtypes import BYTES, as_operand, rounded
from gpuedge.core.errors import (
    DTypeError,
    InputError,
    OutOfMemoryError,
    UnsupportedOpError,
    UsageError,
)
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import Graph, TensorType
from gpuedge.ops import warm
from gpuedge.ops.arguments import number
from gpuedge.opset import FUNCTIONS
from gpuedge.runtime.compiled import CompiledModel
from gpuedge.runtime.opening import closing
from gpuedge.runtime.request import Request, make_request
from gpuedge.runtime.strings import AUTO, CPU
from gpuedge.safety.interrupts import rlock, whole

if TYPE_CHECKING:
    from gpuedge.device import Device
    from gpuedge.executors.base import Executor

Array = npt.NDArray[Any]
Write = Callable[[GraphBuilder, Sequence[str]], "str | Sequence[str]"]
"""Adds an operation's nodes to a graph, given its input names; returns the names of outputs."""

Types = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of each operand."""

LARGE = 1 << 22
"""An operand of more elements is copied and scanned only when a device has accepted its shape."""

LIMIT = 256
"""Compiled operations kept; the least recently used one is dropped."""

_compiled: OrderedDict[Hashable, CompiledModel] = OrderedDict()
_inherited: list[CompiledModel] = []
_lock = rlock()


def call(
    op: str,
    inputs: Sequence[tuple[str, Any]],
    write: Write,
    *,
    device: str | Device | None,
    key: Hashable = (),
    weights: Sequence[str] = (),
    also: Sequence[str] = (),
    others: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Array:
    """Run an operation of one result; see `several`."""
    (found,) = several(op, inputs, write, device=device, key=key, weights=weights, also=also,
                       others=others)  # fmt: skip
    return found


@whole
def several(
    op: str,
    inputs: Sequence[tuple[str, Any]],
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
    arrays, dtype = _convert(op, _stand_ins(inputs), also, others)
    types = _types(arrays, inputs)
    _check_weights(op, weights, arrays)
    request = make_request(device)
    if request.device != AUTO:
        request = replace(request, fallback="error")
    signature = (op, key, types, request)
    try:
        compiled = _get(signature, lambda: _graph(types, write), request)
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
    result = compiled.run(arrays)
    warm.note(compiled, inputs, weights)
    is_float = dtype.kind == "f"
    return tuple(rounded(y, dtype) if is_float and y.dtype.kind == "f" else y
                 for y in result.values())  # fmt: skip


def _is_large(value: Any) -> bool:
    return type(value) is np.ndarray and value.size > LARGE


def _stand_ins(inputs: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return the operands with an empty array of the same dtype in place of each large one.

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
    inputs: Sequence[tuple[str, Any]],
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


def _types(arrays: dict[str, Array], inputs: Sequence[tuple[str, Any]]) -> Types:
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
    global _lock  # noqa: PLW0603  (a thread of the parent may hold the old one forever)
    _lock = rlock()
    _inherited.extend(_compiled.values())
    _compiled.clear()
    warm.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _get(signature: Hashable, build: Callable[[], Graph], request: Request) -> CompiledModel:
    with _lock:
        ready = _compiled.get(signature)
        if ready is not None and ready.is_usable:
            _compiled.move_to_end(signature)
            return ready
        config.check_environment()
        ready = _compiled[signature] = CompiledModel(build(), request, is_session=False)
        if len(_compiled) > LIMIT:
            _compiled.popitem(last=False)[1].close()
            warm.forget()
        return ready


def release(executor: Executor) -> None:
    """Close and forget every operation compiled on a device that the caller opened."""
    with _lock:
        found = [s for s, c in _compiled.items() if c.request.executor is executor]
        theirs = [_compiled.pop(signature) for signature in found]
        warm.forget()
    for compiled in theirs:
        compiled.close()


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
    one = FUNCTIONS[name]
    inputs = list(zip(one.operands, operands, strict=True))
    attrs = {key: number(key, value) for key, value in numbers.items()}
    return simple(name, one.op, inputs, device, also=one.dtypes, **attrs)


def simple(
    op: str,
    onnx_op: str,
    inputs: Sequence[tuple[str, Any]],
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
