"""The file of a packed model: named arrays behind one header, in the safetensors format.

The header is JSON: dtype, shape and place of every part. Its metadata hold one text of gpuedge's
own, with the SHA-256 of each part, and the SHA-256 of that text. Everything else in the header
follows from the text, and a file whose header is not byte for byte what follows is refused: so no
bit of it can change unnoticed, and nothing in it can lie about sizes or places. Parts lie without
gaps, those with the largest elements first, after a multiple of 64 bytes: each is aligned. Integers
of 4 bits lie two to a byte, as ONNX has them, and the header calls them bytes.

A hash proves that a file is whole, not who wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Annotated, Any

import numpy as np

from gpuedge.core.dtypes import NIBBLES
from gpuedge.core.errors import PackError
from gpuedge.core.record import UnfitError, plain, read
from gpuedge.core.text import shown
from gpuedge.graph.ir import Array
from gpuedge.graph.limits import MAX_COUNT, MAX_ELEMENTS, MAX_RANK
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import check_readable, open_regular

START = b'{"__metadata__":{"gpuedge.pack":"'
"""What the header of a packed model begins with, behind the eight bytes of its length."""

SUFFIX = ".gpuedge"
ALIGNED = 64
MAX_HEADER = 64 << 20
"""Bytes of a header; 131,072 parts with names of a hundred characters fit."""

REMEDY = "gpuedge pack MODEL.onnx -o MODEL.gpuedge makes it anew"

DTYPES = {
    "float64": "F64", "int64": "I64", "uint64": "U64", "float32": "F32", "int32": "I32",
    "uint32": "U32", "float16": "F16", "int16": "I16", "uint16": "U16", "int8": "I8",
    "uint8": "U8", "bool": "BOOL", "int4": "U8", "uint4": "U8",
}  # fmt: skip
"""Names of dtypes in numpy and in safetensors; these parts can have."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of the file: its name, a numpy dtype, its shape, and the SHA-256 of its bytes."""

    IS_LIST = True

    name: Annotated[str, range(1, 4096)]
    dtype: Annotated[str, DTYPES]
    shape: Annotated[tuple[Annotated[int, range(MAX_ELEMENTS + 1)], ...], range(MAX_RANK + 1)]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes of the part."""
        count = prod(self.shape)
        return -(-count // 2) if self.dtype in NIBBLES else count * np.dtype(self.dtype).itemsize

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape that the header tells, of elements that the format knows."""
        return (self.nbytes,) if self.dtype in NIBBLES else self.shape


@dataclass(frozen=True, slots=True)
class About:
    """What a file says of itself.

    `format` is the version of what the parts mean, `language` that of the kernels, `gpuedge` the
    version that wrote it. `model` and `sha256` are the name of the file that was packed, and its
    hash.
    """

    IS_OPEN = True

    format: int
    gpuedge: str
    language: int
    model: str
    sha256: str
    parts: Annotated[tuple[FilePart, ...], range(MAX_COUNT)]


@dataclass(frozen=True)
class Container:
    """A file that was read, every hash checked; arrays are views of its bytes, and read-only."""

    about: About
    parts: Mapping[str, Array]
    source: str

    def damaged(self, why: str) -> PackError:
        """Return the error of a part that is not what it should be."""
        return damaged(self.source, why)

    def part(self, name: str, dtype: str | None = None) -> Array:
        """Return a part. Raises PackError where there is none, or none of that dtype."""
        array = self.parts.get(name)
        if array is None or (dtype is not None and array.dtype != dtype):
            raise self.damaged(f"it lacks its part {shown(name)}")
        return array

    def document(self, name: str) -> Any:
        """Return a part that is JSON. Raises PackError."""
        try:
            return json.loads(self.part(name, "uint8").tobytes())
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"its part {shown(name)} is no JSON: {error}") from None


def damaged(source: str, why: str) -> PackError:
    """Return the error of a packed model that is not what was written."""
    return PackError(
        f"The packed model ({source}) is damaged or was changed.", known=why, hint=REMEDY
    )


def is_packed(model: Any) -> bool:
    """Tell from its name or its first bytes whether something is a packed model; raises nothing."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model[8 : 8 + len(START)]) == START
    if not isinstance(model, (str, os.PathLike)):
        return False
    if str(model).endswith(SUFFIX):
        return True
    try:
        with open_regular(model) as file:
            return file.read(8 + len(START))[8:] == START
    except (OSError, ValueError):
        return False  # whoever is to read it says so


def written(about: About, arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a file with these parts, whose names and hashes are put in `about`."""
    order = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    flat = {name: stored(arrays[name]) for name in order}
    parts = tuple(
        FilePart(
            name, a.dtype.name, tuple(map(int, a.shape)), hashlib.sha256(flat[name]).hexdigest()
        )
        for name, a in ((n, arrays[n]) for n in order)
    )
    fields = {**plain(about), "parts": plain(parts)}
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=True)
    return b"".join([_header(text, parts), *flat.values()])


def stored(array: Array) -> memoryview:
    """Return the bytes of an array as they lie in a file, and in ONNX's raw data."""
    if array.dtype.name in NIBBLES:
        codes = array.reshape(-1).view(np.uint8) & 15  # ml_dtypes has a byte for each
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        return (codes[::2] | codes[1::2] << 4).data
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return little.reshape(-1).view(np.uint8).data


def _header(text: str, parts: tuple[FilePart, ...]) -> bytes:
    """Return the only header that a file of this text can have."""
    metadata = {"gpuedge.pack": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    fields: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for part in parts:
        places = [at, at + part.nbytes]
        fields[part.name] = {
            "dtype": DTYPES[part.dtype], "shape": list(part.stored), "data_offsets": places,
        }  # fmt: skip
        at += part.nbytes
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=True).encode()
    header += b" " * (-(len(header) + 8) % ALIGNED)
    return len(header).to_bytes(8, "little") + header


def opened(model: Any) -> Container:
    """Read a file, or the bytes of one.

    Raises
    ------
    PackError (GE-502)
        It is no packed model, is damaged or was changed; says what was found.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        data = memoryview(bytes(model))
        source, places = f"{len(data)} bytes", [0]

        def take(count: int) -> memoryview:
            places.append(places[-1] + count)
            return data[places[-2] : places[-1]]

        return _read(take, len(data), source)
    check_readable(model, "packed model", kind=PackError)
    source = str(model)
    try:
        with open_regular(model) as file:
            return _read(file.read, os.fstat(file.fileno()).st_size, source)
    except OSError as error:
        raise PackError(f"The packed model {source} cannot be read: {error.strerror}.") from None
    except MemoryError:
        raise PackError(f"The packed model {source} does not fit in memory.") from None


def _read(take: Callable[[int], bytes | memoryview], size: int, source: str) -> Container:
    """Read and check everything. Nothing is read or made that is larger than the file."""
    first = bytes(take(min(size, 8)))
    length = int.from_bytes(first, "little")
    start = bytes(take(min(length, size - len(first), len(START))))
    if start != START:
        raise _foreign(first + start, size, source)
    if not len(START) <= length <= min(MAX_HEADER, size - 8):
        raise damaged(source, f"its header of {length} bytes does not fit into {size} bytes")
    header = start + bytes(take(length - len(start)))
    about, text = _about(header, source)
    names = {part.name for part in about.parts}
    if len(names) < len(about.parts) or "__metadata__" in names:
        raise damaged(source, "two of its parts have the same name")
    if _header(text, about.parts) != first + header:
        raise damaged(source, "its header does not say what follows from its contents")
    body = 8 + length + sum(part.nbytes for part in about.parts)
    if body != size:
        raise damaged(source, f"it has {size} bytes of {body}")
    return Container(about, dict(_arrays(take(body - 8 - length), about.parts, source)), source)


def _about(header: bytes, source: str) -> tuple[About, str]:
    """Return what the header says, and the text of gpuedge's in it."""
    try:
        metadata = json.loads(header)["__metadata__"]
        text = metadata["gpuedge.pack"]
        if hashlib.sha256(text.encode()).hexdigest() != metadata["sha256"]:
            raise damaged(source, "the hash of its header does not match")
        return read(About, json.loads(text)), text
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        known = error if isinstance(error, UnfitError) else "its header cannot be read"
        raise damaged(source, str(known)) from None


def _arrays(
    body: bytes | memoryview, parts: tuple[FilePart, ...], source: str
) -> Iterator[tuple[str, Array]]:
    view, at = memoryview(body), 0
    for part in parts:
        data = view[at : at + part.nbytes]
        at += part.nbytes
        if len(data) != part.nbytes or hashlib.sha256(data).hexdigest() != part.sha256:
            raise damaged(source, f"the hash of its part {shown(part.name)} does not match")
        if part.dtype in NIBBLES:
            flat = _nibbles(data, part)
        else:
            flat = np.frombuffer(data, np.dtype(part.dtype).newbyteorder("<"))
        yield part.name, flat.reshape(part.shape)


def _nibbles(data: memoryview, part: FilePart) -> Array:
    with needed("ml_dtypes", f"{shown(part.name)}, of {part.dtype}", kind=PackError):
        kind = np.dtype(getattr(import_module("ml_dtypes"), part.dtype))
    pairs = np.frombuffer(data, np.uint8)
    codes = np.stack((pairs & 15, pairs >> 4), -1).reshape(-1)[: prod(part.shape)]
    if part.dtype == "int4":  # the sign is the fourth bit
        codes = (codes ^ 8) - np.uint8(8)
    flat: Array = codes.view(kind)
    flat.flags.writeable = False
    return flat


def _foreign(start: bytes, size: int, source: str) -> PackError:
    """Return the error of a file that is something else."""
    if not size:
        return PackError(f"The packed model ({source}) is empty.", hint=REMEDY)
    if START.startswith(start[8:]) and size < 8 + len(START):
        return damaged(source, f"it ends after {size} bytes")
    return PackError(
        f"This is not a packed model: {source}.",
        known=f"{size} bytes, starting with {start[:8]!r}",
        hint=f"{REMEDY}; a file that is not one needs another ending than {SUFFIX}",
    )
