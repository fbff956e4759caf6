"""The kernel language: text in, typed tree, printed for each API.

``load`` parses, ``print_kernel`` prints for one dialect, ``interpret`` runs with numpy. Importing
this package loads neither numpy nor a printer.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import Extents, KernelBlob, Number
from gpuedge.lang.cache import LANGUAGE_VERSION, BlobCache, blob_key
from gpuedge.lang.evaluate import shared_bytes, trip_count
from gpuedge.lang.parser import load
from gpuedge.lang.tree import Kernel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "LANGUAGE_VERSION",
    "PRINTERS",
    "BlobCache",
    "Kernel",
    "blob_key",
    "interpret",
    "interpret_all",
    "load",
    "print_kernel",
    "shared_bytes",
    "trip_count",
]

PRINTERS = {
    "spirv": "gpuedge.lang.spirv:print_spirv",
    "wgsl": "gpuedge.lang.wgsl:print_wgsl",
    "essl310": "gpuedge.lang.essl:print_essl310",
    "essl300": "gpuedge.lang.essl:print_essl300",
    "essl100": "gpuedge.lang.essl:print_essl100",
}
"""Printers by dialect, as ``module:function``; imported when first used."""


def print_kernel(
    kernel: Kernel, dialect: str = "spirv", storage: Mapping[str, str] | None = None
) -> KernelBlob:
    """Print a kernel for one dialect.

    Parameters
    ----------
    kernel : Kernel
    dialect : str
        A key of `PRINTERS`.
    storage : mapping of str to str, optional
        Storage kind (`gpuedge.core.storage.KINDS`) of each tensor by name, for the fragment
        dialects ``essl300`` and ``essl100``; the others read and write storage buffers.

    Raises
    ------
    KernelError (GE-300)
        There is no printer for `dialect`, or the dialect cannot say what the kernel does or has no
        such storage.
    """
    if dialect not in PRINTERS:
        raise KernelError(
            f"Kernels cannot be printed as {dialect!r}.",
            asked_by=f"kernel {kernel.name}",
            known=f"dialects: {', '.join(PRINTERS)}",
        )
    module, _, name = PRINTERS[dialect].partition(":")
    blob: KernelBlob = getattr(import_module(module), name)(kernel, storage or {})
    return blob


def interpret(  # noqa: PLR0917  (the names of a dispatch, in their usual order)
    kernel: Kernel,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    out_extents: Extents,
    specs: Mapping[str, Number] | None = None,
    params: Mapping[str, Number] | None = None,
    groups: tuple[int, int, int] | None = None,
    *,
    strict: bool = False,
) -> npt.NDArray[np.float32]:
    """Run a kernel with numpy, all invocations in step, each operation rounded to float32.

    Parameters
    ----------
    tensors : mapping
        The in tensors by name, float32 of shape (N, S, H, W, 4).
    out_extents : tuple
        (W, H, S, N) of the out tensor.
    specs, params : mapping, optional
        Values by name; specs have defaults, params do not.
    groups : tuple, optional
        Workgroups in x, y, z; needed by and only by group kernels.
    strict : bool
        Also refuse what devices tolerate but no kernel should do: loads clamped into range, data
        races in shared memory and texels written twice.

    Returns
    -------
    ndarray
        float32 of shape (N, S, H, W, 4); what a group kernel did not write is NaN.

    Raises
    ------
    InputError (GE-203)
        A tensor, param or `groups` is missing, unknown or has the wrong shape.
    KernelError (GE-300)
        An array index is out of range, or one of the strict rules is broken.
    """
    outs = interpret_all(kernel, tensors, out_extents, specs, params, groups, strict=strict)
    return outs[kernel.out.name]


def interpret_all(  # noqa: PLR0917  (the names of a dispatch, in their usual order)
    kernel: Kernel,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    out_extents: Extents,
    specs: Mapping[str, Number] | None = None,
    params: Mapping[str, Number] | None = None,
    groups: tuple[int, int, int] | None = None,
    *,
    strict: bool = False,
) -> dict[str, npt.NDArray[np.float32]]:
    """Run a kernel as `interpret` does and return every out tensor by name."""
    from gpuedge.lang import interpreter

    return interpreter.run(
        kernel,
        tensors,
        out_extents,
        specs=specs or {},
        params=params or {},
        groups=groups,
        strict=strict,
    )
