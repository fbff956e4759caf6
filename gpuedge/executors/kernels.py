"""The kernel of a pass: its key, its print for a dialect, and what a packed model has of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Literal

from gpuedge.core.kernel import KernelBlob
from gpuedge.core.record import UnfitError, fit
from gpuedge.core.storage import BUFFER
from gpuedge.lang import blob_key, load, print_kernel
from gpuedge.lang.cache import unpacked
from gpuedge.plan.library import texts
from gpuedge.plan.plan import Pass

NO_KERNELS: Mapping[str, bytes] = MappingProxyType({})

_Whole = Annotated[int, range(-(1 << 31), 1 << 31)]
_Place = Annotated[int, range(1 << 12)]
_Tensor = tuple[str, Literal["read", "write"], _Place, str]
_Spec = tuple[str, Literal["int", "float", "bool"], _Place, bool | _Whole | float]
_Push = tuple[str, Literal["ivec4", "int", "float"], _Place]
_Interface = tuple[
    str, str, str, tuple[_Tensor, ...], tuple[_Spec, ...], tuple[_Push, ...], _Place, str
]
"""What `KernelBlob.to_record` gives."""


def key_of(launch: Pass, kinds: Mapping[str, str], dialect: str) -> str:
    """Return the key of the kernel of a pass, as the cache of printed kernels has it.

    `kinds` are the storage kinds of the kernel's tensors, by their names there.
    """
    source = launch.source
    return blob_key(
        texts()[source.kernel], source.epilogue, dict(source.consts), dialect, _storage(kinds),
        is_half=source.is_half, along=source.along,
    )  # fmt: skip


def printed(launch: Pass, kinds: Mapping[str, str], dialect: str) -> KernelBlob:
    """Return the kernel of a pass, printed for a dialect."""
    source = launch.source
    kernel = load(
        texts()[source.kernel], filename=f"{source.kernel}.kern", consts=dict(source.consts),
        epilogue=source.epilogue, is_half=source.is_half,
    )  # fmt: skip
    return print_kernel(kernel, dialect, _storage(kinds), source.along)


def listing(launch: Pass) -> str:
    """Return the text of the kernel of a pass, for people."""
    source = launch.source
    return texts()[source.kernel].replace("//EPILOGUE", source.epilogue or "//EPILOGUE")


def _storage(kinds: Mapping[str, str]) -> Mapping[str, str]:
    return {} if set(kinds.values()) == {BUFFER} else kinds


def fitting(
    kernels: Mapping[str, bytes], key: str, launch: Pass, kinds: Mapping[str, str], dialect: str
) -> KernelBlob | None:
    """Return the kernel that a packed model has of a pass; None for none that fits it.

    The key says what was printed, but whoever wrote the file may have written anything: types,
    names, kinds and sizes are checked, which of printed kernels are right as they were made. It
    gets a digest of its own, so that no other model's pass is ever computed by it.
    """
    data = kernels.get(key)
    blob = None if data is None else unpacked(data)
    if blob is None or data is None:
        return None
    try:
        fit(blob.to_record(), _Interface)
        if dialect != "spirv":
            blob.code.decode()
    except (UnfitError, TypeError, UnicodeError):
        return None
    tensors = {tensor.name: tensor.storage for tensor in blob.tensors}
    extents = {push.name for push in blob.push if push.type == "ivec4"}
    params = {push.name for push in blob.push if push.type != "ivec4"}
    ends = [push.offset + (16 if push.type == "ivec4" else 4) for push in blob.push]
    fits = (
        (blob.dialect, blob.entry) == (dialect, "main")
        and [tensor.binding for tensor in blob.tensors] == [*range(len(kinds))]
        and tensors == dict(kinds)
        and tensors.keys() >= extents
        and launch.specs.keys() >= params
        and max(ends, default=0) <= blob.push_bytes
        and (dialect != "spirv" or len(blob.code) % 4 == 0 < len(blob.code))
    )
    return replace(blob, digest=hashlib.sha256(b"packed\0" + data).hexdigest()) if fits else None
