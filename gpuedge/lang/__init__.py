"""The kernel language: text in, typed tree, printed for each API.

`load` makes a tree of a text, and `print_kernel` of a tree what a device builds. Importing this
package loads neither numpy nor a printer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.storage import READ_ONLY
from gpuedge.lang.cache import LANGUAGE_VERSION, BlobCache, blob_key
from gpuedge.lang.dialects import PRINTERS, printer_of
from gpuedge.lang.parser import load
from gpuedge.lang.tree import Kernel

__all__ = [
    "LANGUAGE_VERSION",
    "PRINTERS",
    "BlobCache",
    "Kernel",
    "blob_key",
    "load",
    "print_kernel",
]


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
        A key of `PRINTERS`, or one that a plug-in prints.
    storage : mapping of str to str, optional
        Storage kind (`gpuedge.core.storage.KINDS`) of each tensor by name: ``rgba32f`` in
        ``essl300`` and ``rgba8_float`` in ``essl100`` where none is given. The others read and
        write storage buffers; ``spirv`` and ``essl310`` read those of `READ_AS` as texel buffers,
        ``wgsl`` those of `COPIED_AS` and `LOADED_AS` in textures. All three read bytes.
    along : str
        What neighbours from a multiple of `LAYERS` on have in common in every run of this kernel,
        so that ``essl300`` may compute it once: nothing, the ``plane`` (slice and batch) or the
        ``row`` as well. Other dialects compute one texel at a time.

    Raises
    ------
    KernelError (GE-300)
        There is no printer for `dialect`, or it cannot be imported; it has no such storage, the
        kernel writes what is only read, or the dialect cannot say what it does: fragment dialects
        have no group kernels; ``essl100`` has no bits of ints, and only ints that are float32;
        those of OpenGL ES have no float16 and no lanes of subgroups.
    """
    print_one = printer_of(dialect, kernel.name)
    if kernel.has_lanes and dialect.startswith("essl"):
        raise KernelError(
            f"Kernel {kernel.name} asks for lanes of subgroups, which {dialect} cannot say.",
            known="Vulkan 1.1 and WebGPU have them, where a device reports it",
        )
    for tensor in kernel.tensors:
        kind = (storage or {}).get(tensor.name)
        if tensor.access != "read" and kind in READ_ONLY:
            raise KernelError(
                f"Kernel {kernel.name} cannot be printed: tensor {tensor.name} is written.",
                known=f"{kind} is only read, as are all of {', '.join(sorted(READ_ONLY))}",
            )
    if dialect == "essl300":
        print_one = partial(print_one, along=along)
    blob: KernelBlob = print_one(kernel, dialect, storage or {})
    return blob
