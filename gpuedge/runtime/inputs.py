"""What a caller gives as inputs of a model: checked and converted before any driver is touched."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Any

import numpy as np

from gpuedge.core.dtypes import no_copy
from gpuedge.core.errors import DTypeError, InputError, OutOfMemoryError, ShapeError, UsageError
from gpuedge.core.interchange import as_numpy
from gpuedge.core.layouts import other_order
from gpuedge.core.text import MOST_LISTED, counted, plain, said, shown
from gpuedge.graph.ir import Array, Graph, TensorType
from gpuedge.graph.reader import Model, Signature, takes
from gpuedge.opset.windows import MAX_EXTENT

Feeds = Mapping[str, Any] | Sequence[Any]
"""Inputs by name, or in the model's order."""

MUCH = 1 << 26
"""Bytes of copies that are made before it is known whether the model could compute with them."""


def by_name(inputs: Any, wanted: Mapping[str, Signature]) -> Mapping[str, Any]:
    """Return inputs by name that may have been given in the model's order.

    Raises
    ------
    InputError (GE-203)
        They are neither a mapping, nor a list or tuple of as many as the model takes.
    """
    if isinstance(inputs, Mapping):
        return inputs
    if not isinstance(inputs, (list, tuple)):
        raise InputError(
            f"Inputs are given as a dict by name or a list in order, not as "
            f"{type(inputs).__name__}.",
            known=takes(wanted),
            hint="a single input x is [x]" if len(wanted) == 1 else None,
        )
    if len(inputs) != len(wanted):
        raise InputError(
            f"{counted(len(inputs), 'input')} in order cannot be the model's {len(wanted)}.",
            known=takes(wanted),
            hint="give a list of one array for each input, or a dict by name",
        )
    return dict(zip(wanted, inputs, strict=True))


def chosen(names: Any, outputs: Collection[str]) -> Sequence[str]:
    """Return the outputs asked for, of those that the model has: all for None or an empty list.

    Raises InputError (GE-203).
    """
    if names is not None and (isinstance(names, str) or not isinstance(names, Sequence)):
        raise InputError(
            f"Outputs are asked for by a list of names, not by {type(names).__name__}.",
            known=f"outputs: {', '.join(map(shown, outputs))}",
            hint="run(None, inputs) returns all in order, run(inputs) a dict; inputs in order are "
            "one list: run([x, y])",
        )
    unknown = [n for n in names or () if not isinstance(n, str) or n not in outputs]
    if unknown:
        raise InputError(
            f"The model has no output {plain(brief(unknown[0]))}.",
            known=f"outputs: {', '.join(map(shown, outputs))}",
        )
    return names or tuple(outputs)


CALLS = {
    "run": "run(inputs, timeout_s=1.0) or run(output_names, inputs)",
    "run_async": "run_async(inputs, timeout_s=1.0)",
    "bind": "bind(inputs, outputs)",
}
"""What calls of a session take."""


def wrong_call(
    call: str, more: Sequence[Any], keywords: Collection[str], wanted: Mapping[str, Signature]
) -> InputError:
    """Return the error for more arguments than a call takes, which shows the right call."""
    names = {name: name if name.isidentifier() else "..." for name in wanted}
    listed = ", ".join(f"{n!r}: {v}" for n, v in list(names.items())[:MOST_LISTED])
    right = f"{call}({{{plain(listed)}}})"
    if not more and any(name in wanted for name in keywords):
        return InputError(
            "Inputs are given as one dict by name, not as keywords.",
            known=takes(wanted),
            hint=right,
        )
    of_ort = "run(None, {...}) is the call of ONNX Runtime"
    what = "more arguments" if more else f"keyword {shown(next(iter(keywords)))}"
    return InputError(
        f"{call} takes no {what}.",
        known=f"it is {CALLS[call]}; {takes(wanted)}",
        hint=right if more else of_ort if "output_names" in keywords else None,
    )


def check_inputs(inputs: Any, model: Model) -> dict[str, Array]:
    """Return the inputs as arrays in the model's order, or say what is wrong with them.

    Nothing large is copied before all dtypes and shapes were found to fit, and what the model would
    compute from them to be no larger than the machine.

    Parameters
    ----------
    inputs : mapping of str to array_like, or sequence of array_like
    model : Model

    Raises
    ------
    InputError (GE-203), DTypeError (GE-202), ShapeError (GE-201)
    ModelError (GE-500)
        An input has to be copied, and what the model computes from it would be too large.
    OutOfMemoryError (GE-402)
        An input has to be copied, and there is no memory for that.
    """
    wanted = model.inputs
    inputs = by_name(inputs, wanted)
    check_names(inputs, wanted)
    try:
        arrays = {n: fitting(n, inputs[n], s) for n, s in wanted.items()}
        check_copies(arrays, arrays, model)
        return {n: np.require(a, wanted[n][0], ["C", "A"]) for n, a in arrays.items()}
    except (DTypeError, ShapeError) as error:
        error.known = takes(wanted)
        raise
    except MemoryError as error:
        raise no_copy("the inputs", error) from None


def check_copies(given: Mapping[str, Array], inputs: Mapping[str, Array], model: Model) -> None:
    """Check that a model could compute with all inputs before much of what is given is copied.

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201), ModelError (GE-500)
    """
    if sum(a.nbytes for a in given.values() if not a.flags.c_contiguous) > MUCH:
        model.check_shapes({n: a.shape for n, a in inputs.items()})


def check_dict(inputs: Any, wanted: Mapping[str, Signature]) -> None:
    """Check that inputs are given by name. Raises InputError (GE-203)."""
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"Inputs are given as a dict by name, not as {type(inputs).__name__}.",
            known=takes(wanted),
        )


def check_names(inputs: Any, wanted: Mapping[str, Signature]) -> None:
    """Check that every input has a value, and nothing else. Raises InputError (GE-203)."""
    check_dict(inputs, wanted)
    if inputs.keys() != wanted.keys():
        missing = [n for n in wanted if n not in inputs]
        unknown = [n for n in inputs if n not in wanted]
        wrong = [f"Input {shown(n)} is missing" for n in missing[:MOST_LISTED]]
        wrong += [f"the model has no input {shown(str(n))}" for n in unknown[:MOST_LISTED]]
        text = "; ".join(wrong)
        raise InputError(
            f"{text[0].upper()}{text[1:]}.",
            known=takes(wanted),
        )


def own_copies(arrays: Mapping[str, Array], given: Mapping[str, Any]) -> dict[str, Array]:
    """Return checked inputs that no later change of what the caller gave can reach.

    Raises OutOfMemoryError (GE-402).
    """
    made_here = (bool, int, float, list, tuple)  # a class of these may offer memory of its own
    try:
        return {n: a if type(given[n]) in made_here else a.copy() for n, a in arrays.items()}
    except MemoryError as error:
        raise no_copy("the inputs", error) from None


def fixed_shape(signature: Signature) -> tuple[int, ...] | None:
    """Return a signature's shape if every extent is a number."""
    _, dims = signature
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    return tuple(d for d in dims if isinstance(d, int))


def shapes_for(shapes: Any, model: Model) -> tuple[tuple[int, ...], ...]:
    """Return the shape of every input: as given, or as the model fixes it.

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        One is missing, or they do not fit the model.
    """
    given = given_shapes(shapes, model)
    model.bind(given)
    return tuple(given.get(n) or fixed_shape(s) or () for n, s in model.inputs.items())


def given_shapes(shapes: Any, model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a caller gave for some inputs, by name.

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        They are no shapes by name.
    """
    given = {} if shapes is None else shapes
    if not isinstance(given, Mapping):
        raise InputError(
            f"Shapes are given as a dict by name, not as {type(given).__name__}.",
            known=takes(model.inputs),
        )
    return {name: extents_of(name, shape, model.inputs) for name, shape in given.items()}


def extents_of(name: Any, shape: Any, wanted: Mapping[str, Signature]) -> tuple[int, ...]:
    """Return a shape that the caller gave for an input.

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        It is no sequence of whole numbers; no input has such an extent.
    """
    try:
        extents = tuple(map(index, shape))
    except TypeError:
        raise InputError(
            "A shape is a sequence of whole numbers.",
            known=f"given: {brief({name: shape})}; {takes(wanted)}",
        ) from None
    wrong = [n for n in extents if not 0 <= n <= MAX_EXTENT]
    if wrong:
        raise ShapeError(
            f"A shape of {plain(brief(name))} has the extent {brief(wrong[0])}.",
            known=f"extents are 0 to {MAX_EXTENT}",
        )
    return extents


def zeros(name: str, extents: tuple[int, ...], dtype: str) -> Array:
    """Return memory for an input. Raises OutOfMemoryError (GE-402)."""
    try:
        return np.zeros(extents, dtype)
    except (MemoryError, ValueError) as error:  # the latter where no array has so many bytes
        raise OutOfMemoryError(
            f"There is no memory for the input {shown(name)} of shape {brief(list(extents))}.",
            known=str(error),
        ) from None


def check_timeout(timeout_s: Any) -> float | None:
    """Return a time limit in seconds, or None for none.

    Raises
    ------
    UsageError (GE-200)
        It is not a positive, finite number.
    """
    if timeout_s is None:
        return None
    kinds = (int, float, np.integer, np.floating)
    seconds = math.nan
    with suppress(OverflowError):  # of a whole number beyond all floats
        if isinstance(timeout_s, kinds) and not isinstance(timeout_s, bool):
            seconds = float(timeout_s)
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"timeout_s cannot be {brief(timeout_s)}.",
            asked_by="timeout_s",
            known="it is a positive number of seconds, or None for no limit",
        )
    return seconds


def brief(value: Any) -> str:
    """Return what a value looks like, in a few characters."""
    try:
        text = repr(value)
    except Exception:  # of a type of the caller's, or a number of more digits than Python prints
        return f"this {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def fitting(name: str, value: Any, signature: Signature) -> Array:
    """Return `value` as an array of the model's dtype and a shape it takes, of any strides.

    Arrays must have the dtype; numbers and lists of numbers are converted where each fits.
    """
    dtype, dims = signature
    value = as_numpy(value, f"Input '{name}'")
    array = _as_array(name, value)
    if array.dtype == dtype and array.shape == dims and array.flags.c_contiguous:
        return array
    if not isinstance(value, (np.ndarray, np.generic)):
        array = _converted(name, array, np.dtype(dtype))
    if array.dtype.newbyteorder("=").name != np.dtype(dtype).name:
        raise DTypeError(
            f"Input '{name}' has dtype {array.dtype}; the model takes {dtype}.",
            hint=f"convert it yourself, for example x.astype('{dtype}')",
        )
    check_fit(name, array.shape, dims)
    return array


def check_fit(name: str, shape: tuple[int, ...], dims: Any) -> None:
    """Check a shape against the extents that the model takes. Raises ShapeError (GE-201)."""
    if dims is not None and not _fits(dims, shape):
        wanted = ", ".join("?" if d is None else str(d) for d in dims)
        raise ShapeError(
            f"Input '{name}' has shape {list(shape)}; the model takes [{wanted}].",
            hint=other_order(shape, partial(_fits, dims)),
        )


def _fits(dims: Sequence[Any], shape: tuple[int, ...]) -> bool:
    pairs = zip(dims, shape, strict=False)
    return len(dims) == len(shape) and all(d == e for d, e in pairs if isinstance(d, int))


def _as_array(name: str, value: Any) -> Array:
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InputError(
            f"Input '{name}' is a masked array, and a model knows no masks.",
            hint="say what the masked elements are to hold: x.filled(0)",
        )
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # whatever is in a list, or an attribute of an object, raises
        raise InputError(
            f"Input '{name}' cannot be made an array: {said(error)}.",
            hint="all rows of a list must have the same length",
        ) from None


def _converted(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers given without a dtype in `dtype`; as they are where that is another kind.

    Raises
    ------
    InputError (GE-203)
        A number lies outside the range of `dtype`.
    """
    takes = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}.get(dtype.kind, "")
    if array.size == 0 and takes:
        return array.astype(dtype)
    if array.dtype.kind not in takes or array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    is_lost = np.isinf(result) & np.isfinite(array) if dtype.kind == "f" else result != array
    if is_lost.any():
        raise InputError(f"Input '{name}' holds {array[is_lost][0]}, which does not fit {dtype}.")
    return result


def samples(graph: Graph) -> dict[str, Array]:
    """Return inputs of a graph whose timing is that of ordinary data."""
    return {name: _sample(graph.types[name]) for name in graph.inputs}


def _sample(kind: TensorType) -> Array:
    if np.dtype(kind.dtype).kind == "f":
        count = int(np.prod(kind.shape))
        return np.linspace(-1, 1, count).reshape(kind.shape).astype(kind.dtype)
    return np.zeros(kind.shape, kind.dtype)
