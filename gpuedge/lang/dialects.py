"""The languages that kernels are printed in, and what prints each: we or a plug-in."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from gpuedge.core.errors import KernelError
from gpuedge.core.kernel import KernelBlob
from gpuedge.core.text import named
from gpuedge.safety.interrupts import is_of_handler
from gpuedge.safety.packages import plugins

_ESSL = "gpuedge.lang.essl"
PRINTERS: Final = {
    "spirv": "gpuedge.lang.spirv",
    "wgsl": "gpuedge.lang.wgsl",
    "essl310": _ESSL,
    "essl300": _ESSL,
    "essl300_single": _ESSL,
    "essl100": _ESSL,
}
"""Module of the printer of each of our dialects, imported when first used."""

GROUP: Final = "gpuedge.printers"
"""The entry points of those of other packages: the dialect, and ``module:function``."""

Printer = Callable[..., KernelBlob]


def maker(dialect: str) -> str:
    """Return name and version of the package that prints a dialect; "" for our own.

    What is kept of a printed kernel is under this: a new version of a plug-in prints anew.
    """
    point = None if dialect in PRINTERS else plugins(GROUP).get(dialect)
    return f" by {point.dist.name} {point.dist.version}" if point and point.dist else ""


def printer_of(dialect: str, kernel: str) -> Printer:
    """Return what prints a kernel in a dialect.

    Raises
    ------
    KernelError (GE-300)
        There is no printer for it, or that of a plug-in cannot be imported.
    """
    if dialect in PRINTERS:
        own: Printer = import_module(PRINTERS[dialect]).print_kernel
        return own
    point = plugins(GROUP).get(dialect)
    if point is None:
        raise KernelError(
            f"Kernels cannot be printed as {dialect!r}.",
            asked_by=f"kernel {kernel}",
            known=f"dialects: {', '.join([*PRINTERS, *plugins(GROUP)])}",
        )
    try:
        loaded: Printer = point.load()
    except BaseException as error:
        if is_of_handler(error):
            raise
        raise KernelError(
            f"The plug-in that prints {dialect!r} cannot be imported.",
            asked_by=f"kernel {kernel}",
            known=f"{point.value}: {named(error)}",
        ) from error
    return loaded
