"""What a classifier says: the most probable classes of its outputs, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuedge.core.errors import InputError
from gpuedge.graph.ir import Array
from gpuedge.graph.reader import Signature
from gpuedge.safety.paths import read_start

TOP = 5
"""Classes that are shown."""

MAX_BYTES = 16 << 20
"""Bytes of a file of names that are read."""


def read_labels(path: str) -> list[str]:
    """Return the names of classes, one a line. Raises InputError."""
    try:
        data = read_start(path, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
        names = [line.strip() for line in data.decode("utf-8-sig").rstrip().split("\n")]
        if names == [""]:
            raise ValueError("it is empty")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as names of classes: {error}.",
            asked_by="--labels",
            hint="a text file in UTF-8, one name a line, in the order of the model's classes",
        ) from None
    return names


def check_labels(names: Sequence[str], outputs: Mapping[str, Signature]) -> None:
    """Raise InputError where no output of the model can have as many classes as there are names."""
    for _, dims in outputs.values():
        if dims is None or any(_may_be(d, len(names)) for d in dims):
            return
    raise _no_classes(names, ((n, dims or ()) for n, (_, dims) in outputs.items()))


def _may_be(dim: int | str | None, count: int) -> bool:
    return not isinstance(dim, int) or dim == count


def _no_classes(names: Sequence[str], shapes: Iterable[tuple[str, Sequence[Any]]]) -> InputError:
    return InputError(
        f"No output has {len(names)} classes, as the file of names has.",
        asked_by="--labels",
        known=", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes),
        hint="one name a line, and a line for every class",
    )


def classes(results: Mapping[str, Array], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the most probable classes of every output that has as many as there are names.

    Numbers from 0 to 1 are taken for probabilities; of others the softmax is taken. What is not
    finite has none.

    Returns
    -------
    list of dict
        ``output``, ``softmax`` (whether it was taken) and ``top``: for each of the batch a list of
        ``index``, ``name`` and ``probability``, the most probable first.

    Raises
    ------
    InputError (GE-203)
        No output has as many classes.
    """
    found = []
    for output, array in results.items():
        rows = _rows(array, len(names))
        if rows is None:
            continue
        is_softmax = bool(((rows < 0) | (rows > 1)).any())
        top = [_best(_softmax(row) if is_softmax else row, names) for row in rows]
        found.append({"output": output, "softmax": is_softmax, "top": top})
    if not found:
        raise _no_classes(names, ((n, array.shape) for n, array in results.items()))
    return found


def _rows(array: Array, count: int) -> Any:
    """Return an output as (batch, classes) in float64, None where it has not that form."""
    if array.dtype.kind != "f" or not array.size:
        return None
    shape = array.shape
    while len(shape) > 1 and shape[-1] == 1 != count:
        shape = shape[:-1]
    if len(shape) not in (1, 2) or shape[-1] != count:
        return None
    return array.reshape(-1, count).astype("float64")


def _softmax(row: Any) -> Any:
    with np.errstate(invalid="ignore"):
        powers = np.exp(row - row.max())
    return powers / powers.sum()


def _best(row: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    if not np.isfinite(row).all():
        return []
    order = np.argsort(-row, kind="stable")[:TOP]
    return [
        {"index": int(i), "name": names[i], "probability": round(float(row[i]), 6)} for i in order
    ]


def tables(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...], list[Any]]]:
    """Return titles, columns and rows of what `classes` found."""
    out = []
    for one in found:
        rows: list[tuple[str | int, ...]] = []
        for number, best in enumerate(one["top"]):
            which = (number,) if len(one["top"]) > 1 else ()
            rows += [
                (*which, f"{c['probability']:.2%}", c["index"], c["name"] or "-") for c in best
            ] or [(*which, "-", "-", "not finite")]
        of = " (softmax)" if one["softmax"] else ""
        which_column = ("of the batch",) if len(one["top"]) > 1 else ()
        columns = (*which_column, f"probability{of}", "class", "name")
        out.append((f"Classes by {one['output']}", columns, rows))
    return out
