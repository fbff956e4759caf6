"""Loading one driver alone: the environment it is loaded under, and keeping its library.

The environment belongs to the whole process, so there is one lock for all backends: two of them
that each set `VK_DRIVER_FILES` for a driver of their own must not do so at the same time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpuedge.backends.manifests import read_manifest
from gpuedge.core.driver import Candidate
from gpuedge.safety.interrupts import rlock

_QUIET = {
    # Mesa's implicit device-select layer connects to Wayland and complains on stderr without it;
    # it also reorders devices, and an index must mean the same device every time.
    "NODEVICE_SELECT": "1",
    # The loader's own complaints (a missing library) come back as results; stderr is the user's.
    "VK_LOADER_DEBUG": "none",
}

_environment = rlock()
_loaded: dict[str, Any] = {}
"""Driver libraries that stay loaded, by path; see `keep_loaded`."""


@contextmanager
def driver_environment(candidate: Candidate) -> Iterator[None]:
    """Set what loaders must see to load exactly this driver; restore everything afterwards."""
    changes: dict[str, str | None] = {
        name: value for name, value in _QUIET.items() if name not in os.environ
    }
    changes.update(candidate.env)
    if "VK_DRIVER_FILES" in candidate.env:
        changes["VK_ADD_DRIVER_FILES"] = None
    with _environment:
        before = {name: os.environ.get(name) for name in changes}
        try:
            _set(changes)
            yield
        finally:
            _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def keep_loaded(manifest: str, dlopen: Callable[[str], Any], log: logging.Logger) -> None:
    """Hold the library that a Vulkan driver's manifest names until the process ends.

    The loader unloads it with the last instance. Drivers are rarely tested for that: SwiftShader
    loses a file descriptor each time, others leave threads behind whose code is gone.
    """
    library = read_manifest(manifest).library
    if library is None or library in _loaded:
        return
    try:
        _loaded[library] = dlopen(library)
    except OSError as error:
        log.debug("%s cannot be kept loaded: %s", library, error)


_ENTRIES = ("vk_icdGetInstanceProcAddr", "vkGetInstanceProcAddr")
"""What loaders look for in a Vulkan driver's library; old drivers have only the second."""


def load_fault(manifest: str) -> str | None:
    """Return why a Vulkan driver's library cannot be used, or None if it can; this loads it.

    Loaders answer the same to a library that the dynamic linker refuses, to one that is no Vulkan
    driver, and to missing hardware.
    """
    named = read_manifest(manifest)
    if named.problem is not None:
        return named.problem.sentence
    return None if named.library is None else library_fault(named.library, _ENTRIES)


def library_fault(library: str, entries: tuple[str, ...]) -> str | None:
    """Return why a library is not a driver with one of these functions, or None; this loads it."""
    import ctypes

    try:
        loaded = ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    if any(hasattr(loaded, name) for name in entries):
        return None
    return f"{library} is not a driver of this API: it has no function {entries[0]}"
