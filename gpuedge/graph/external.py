"""Weights in files of their own: beside the model, as long as their shape says, and no longer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuedge.core.errors import ModelError
from gpuedge.core.text import shown
from gpuedge.graph import schema
from gpuedge.graph.writer import PROTOBUF_LIMIT

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class _Place:
    tensor: onnx.TensorProto
    location: str
    path: Path
    offset: int
    length: int


def load_external(
    tensors: Iterable[onnx.TensorProto], source: str, folder: Path | None, held: int
) -> bool:
    """Read the tensors that are kept in files, which must lie in the model's folder.

    Returns whether there are any.

    Parameters
    ----------
    tensors : iterable of TensorProto
        All tensors of a model; those in files get their bytes.
    source : str
        How messages name the model.
    folder : Path, optional
        The model's folder, resolved; None where the model was not given as a path.
    held : int
        Bytes of the model without them.

    Raises
    ------
    ModelError (GE-500)
        A file lies elsewhere, is none, or is shorter or longer than the tensor; or all together
        are more than one ONNX message can carry. Nothing of that size was read to find out.
    """
    from gpuedge.graph.onnx_package import onnx

    places = [
        _place(tensor, source, folder)
        for tensor in tensors
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    total = held + sum(place.length for place in places)
    if total > PROTOBUF_LIMIT:
        raise ModelError(
            f"The weights of the model ({source}) are more than one ONNX message can carry.",
            known=f"{total} bytes; the most is {PROTOBUF_LIMIT}",
        )
    for place in places:
        _read(place)
    return bool(places)


def _place(tensor: onnx.TensorProto, source: str, folder: Path | None) -> _Place:
    """Return where a tensor lies, without having read anything."""
    entry = {e.key: e.value for e in tensor.external_data}
    location = entry.get("location", "")
    name = shown(tensor.name)
    if folder is None:
        raise ModelError(
            f"The weight {name} lies in another file ({shown(location)}), but the model was not "
            "given as a path.",
            hint="give the model's path instead of its contents",
        )
    path = _inside(folder, location)
    if path is None:
        raise ModelError(
            f"The weight {name} lies in {shown(location)}, outside the model's folder.",
            asked_by=source,
            hint="keep external weights beside the model",
        )
    try:
        offset = int(entry.get("offset") or 0)
        length = int(entry["length"]) if entry.get("length") else None
    except ValueError as error:
        raise _unreadable(tensor, location, str(error)) from None
    if offset < 0 or (length is not None and length < 0):
        raise _unreadable(tensor, location, f"offset {offset} and length {length}")
    return _Place(tensor, location, path, offset, _length(tensor, path, location, offset, length))


def _inside(folder: Path, location: str) -> Path | None:
    """Return the file that a location names, None where it is not in the folder."""
    if not location or "\0" in location or Path(location).is_absolute():
        return None
    try:
        path = (folder / location).resolve()
    except (OSError, RuntimeError):  # links in a circle
        return None
    return path if path.is_relative_to(folder) else None


def _length(
    tensor: onnx.TensorProto, path: Path, location: str, offset: int, length: int | None
) -> int:
    """Return how many bytes to read, by shape, statement and file, which must agree."""
    needed = _needed(tensor)
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(tensor, location, _why(error)) from None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait forever
        raise _unreadable(tensor, location, "it is not a file")
    there = max(0, status.st_size - offset)
    wanted = needed if length is None else length
    if there < wanted:
        raise ModelError(
            f"The file {shown(location)} is too short for the weight {shown(tensor.name)}.",
            known=f"{there} of {wanted} bytes are there",
        )
    if wanted != needed:
        raise ModelError(
            f"The weight {shown(tensor.name)} in {shown(location)} is said to have {wanted} bytes.",
            known=f"its shape {list(tensor.dims)[:MAX_SHOWN]} needs {needed}",
        )
    return wanted


MAX_SHOWN = 8
"""Extents of a shape that a message shows."""


def _needed(tensor: onnx.TensorProto) -> int:
    """Return the bytes that a tensor's shape and element type need."""
    count = 1
    for extent in tensor.dims:
        if extent < 0:
            raise ModelError(f"The weight {shown(tensor.name)} has a negative extent, {extent}.")
        count *= extent
    return (count * schema.bits(tensor.data_type) + 7) // 8


def _read(place: _Place) -> None:
    from gpuedge.graph.onnx_package import onnx

    try:
        # Without waiting, in case the file was replaced by a pipe since it was looked at.
        handle = os.open(place.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
        with open(handle, "rb") as file:
            file.seek(place.offset)
            raw = file.read(place.length)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise _unreadable(place.tensor, place.location, _why(error)) from None
    if len(raw) != place.length:
        raise _unreadable(place.tensor, place.location, "it became shorter while it was read")
    place.tensor.raw_data = raw
    place.tensor.data_location = onnx.TensorProto.DEFAULT
    del place.tensor.external_data[:]


_BINARY = getattr(os, "O_BINARY", 0)


def _why(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _unreadable(tensor: onnx.TensorProto, location: str, why: str) -> ModelError:
    return ModelError(
        f"The file {shown(location)} with the weight {shown(tensor.name)} cannot be read: {why}."
    )
