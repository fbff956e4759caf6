"""The kernel language: text in, typed tree, printed for each API.

`load` makes a tree of a text, and `print_kernel` of a tree what a device builds. `interpret` runs a
kernel with numpy. Importing this package loads neither numpy nor a printer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import Extents, KernelBlob, Number
from gpuedge.lang.cache import LANGUAGE_VERSION, BlobCache, blob_key
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
    "load",
    "print_kernel",
]

_ESSL = "gpuedge.lang.essl"
PRINTERS: Final = {
    "spirv": "gpuedge.lang.spirv",
    "wgsl": "gpuedge.lang.wgsl",
    "essl310": _ESSL,
    "essl300": _ESSL,
    "essl300_single": _ESSL,
    "essl100": _ESSL,
}
"""Module of the printer of each dialect, imported when first used."""


def print_kernel(
    kernel: Kernel,
    dialect: str = "spirv",
    storage: Mapping[str, str] | None = None,
    along: str = "",
) -> KernelBlob:
    """Print a kernel for one dialect.

    Parameters
    ----------
    kernel : Kernel
    dialect : str
        A key of `PRINTERS`.
    storage : mapping of str to str, optional
        Storage kind (`gpuedge.core.storage.KINDS`) of each tensor by name: ``rgba32f`` in
        ``essl300`` and ``rgba8_float`` in ``essl100`` where none is given. The others read and
        write storage buffers; ``spirv`` and ``essl310`` read those of `READ_AS` as texel buffers,
        ``wgsl`` those of `COPIED_AS` and `LOADED_AS` in textures.
    along : str
        What neighbours from a multiple of `LAYERS` on have in common in every run of this kernel,
        so that ``essl300`` may compute it once: nothing, the ``plane`` (slice and batch) or the
        ``row`` as well. Other dialects compute one texel at a time.

    Raises
    ------
    KernelError (GE-300)
        There is no printer for `dialect`, it has no such storage, or it cannot say what the kernel
        does: fragment dialects have no group kernels; ``essl100`` has no bits of ints, and only
        ints that are float32; those of OpenGL ES have no float16. Lanes of subgroups are for
        ``spirv`` and ``wgsl``.
    """
    if dialect not in PRINTERS:
        raise KernelError(
            f"Kernels cannot be printed as {dialect!r}.",
            asked_by=f"kernel {kernel.name}",
            known=f"dialects: {', '.join(PRINTERS)}",
        )
    if kernel.has_lanes and dialect not in ("spirv", "wgsl"):
        raise KernelError(
            f"Kernel {kernel.name} asks for lanes of subgroups, which {dialect} cannot say.",
            known="Vulkan 1.1 and WebGPU have them, where a device reports it",
        )
    printer = import_module(PRINTERS[dialect])
    print_one = printer.print_kernel
    if dialect == "essl300":
        print_one = partial(print_one, along=along)
    blob: KernelBlob = print_one(kernel, dialect, storage or {})
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

    Those of halves are rounded to float16.

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
    from gpuedge.lang.interpreter import run

    values = (specs or {}, params or {})
    return run(kernel, tensors, out_extents, values, groups, strict=strict)
