"""Packages that gpuedge can do without: imported whole, or refused with what installs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from gpuedge.core.errors import GpuEdgeError, MissingPackageError
from gpuedge.core.text import named
from gpuedge.safety.interrupts import held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.metadata import EntryPoint

EXTRAS: Final = {
    "vulkan": "vulkan",
    "wgpu": "wgpu",
    "onnx": "models",
    "onnxruntime": "models",
    "onnx_ir": "quantize",
    "moderngl": "moderngl",
    "jsonschema": "updates",
    "securesystemslib": "updates",
    "tuf": "updates",
    "rich": "cli",
    "jinja2": "cli",
    "pyshaderc": "shaderc",
    "distributed": "farm",
    "fsspec": "farm",
    "duckdb": "farm",
    "pyarrow": "farm",
}
"""The extra of gpuedge that brings a package, as pyproject.toml has it."""


def command(package: str) -> str:
    """Return the command that installs a package as gpuedge needs it."""
    extra = EXTRAS.get(package)
    return f"pip install 'gpuedge[{extra}]'" if extra else f"pip install {package}"


@contextmanager
def needed(
    package: str, use: str, kind: type[GpuEdgeError] = MissingPackageError, **more: Any
) -> Iterator[None]:
    """Import a package in this block, with handlers held; raise `kind` where that fails.

    An import that an exception of a handler cuts short leaves modules without their submodules, for
    as long as the process lives.

    Parameters
    ----------
    package : str
        As pip knows it.
    use : str
        What asks for it.
    kind : type, optional
        By default MissingPackageError (GE-104).
    **more
        Further arguments of `kind`.
    """
    try:
        with held:
            yield
    except (ImportError, UnicodeError, MemoryError) as error:
        if is_interrupt(error):
            raise
        raise kind(
            f"The Python package '{package}' cannot be imported.",
            asked_by=use, known=_said(error), hint=_remedy(error) or command(package), **more,
        ) from None  # fmt: skip


def _said(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return f"it lies in a folder whose name this locale cannot write: {error}"
    return str(error)


def _remedy(error: Exception) -> str | None:
    """Return what helps a package that is installed, and still cannot be imported."""
    if isinstance(error, UnicodeError):
        return "PYTHONUTF8=1, or a locale with UTF-8"
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        return "more memory (ulimit -v, the container's limit), or a place that is not noexec"
    return None


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages offer under a group of entry points, by name.

    Nothing is imported. It looks through all installed packages, which takes 15 ms, once for each
    `sys.path`.
    """
    return _points(tuple(sys.path))[0].get(group, {})


def unread() -> Sequence[str]:
    """Return of which installed packages the entry points cannot be read, and why."""
    return _points(tuple(sys.path))[1]


@lru_cache
def _points(_: tuple[str, ...]) -> tuple[dict[str, dict[str, EntryPoint]], list[str]]:
    """Return ours by group and name, the first of a name on the path, and what cannot be read."""
    from importlib.metadata import distributions

    points: dict[str, dict[str, EntryPoint]] = {}
    bad = []
    for package in distributions():
        try:
            listed = [p for p in package.entry_points if p.group.startswith("gpuedge.")]
            keys = [(p.group, p.name, p.module) for p in listed]  # raises where it names no module
        except Exception as error:  # of any damage
            bad.append(f"{getattr(package, '_path', package)}: {named(error)}")
            continue
        for point, (group, name, _module) in zip(listed, keys, strict=True):
            points.setdefault(group, {}).setdefault(name, point)
    return points, bad


def is_interrupt(error: BaseException | None) -> bool:
    """Tell whether an error is Ctrl-C, or the ImportError that a package has made of it."""
    while isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)
