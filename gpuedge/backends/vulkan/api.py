"""The raw C interface: loading the loader, building structures, checking results.

The `vulkan` package's wrappers rebuild every argument at each call; its cffi library underneath is
ten times cheaper per call, so only that is used. Nothing is loaded before `load()` is called.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

from gpuedge.backends.vulkan import constants as c
from gpuedge.core.errors import BackendUnavailableError, DriverError

MAX_LISTED = 1 << 14
"""Longest list that is believed: drivers have a few hundred extensions, and less of all else."""

MAX_TRIES = 16
"""Lists may grow between the questions for their length and for their items, but not forever."""

_lock = threading.Lock()
_api: Api | None = None


class Api:
    """The cffi library of the `vulkan` package, and helpers to call it.

    Attributes
    ----------
    ffi, lib
        The cffi interface and the Vulkan loader opened with it.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi = ffi
        self.lib = lib
        self._alive: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()

    def make(self, name: str, **fields: Any) -> Any:
        """Return a new structure with ``sType`` and `fields` set; it keeps what it points to."""
        values = {k: v for k, v in fields.items() if v is not None}
        if name in c.STRUCTURE_TYPES:
            values["sType"] = c.STRUCTURE_TYPES[name]
        made = self.ffi.new(f"{name} *", values)
        self._alive[made] = tuple(v for v in values.values() if isinstance(v, self.ffi.CData))
        return made

    def array(self, name: str, items: list[Any]) -> Any:
        """Return a C array; structures in `items` (pointers) are copied and what they need kept."""
        structs = bool(items) and self.ffi.typeof(f"{name} *").item.kind in ("struct", "union")
        made = self.ffi.new(f"{name}[]", [item[0] for item in items] if structs else items)
        self._alive[made] = tuple(i for i in items if isinstance(i, self.ffi.CData))
        return made

    def strings(self, names: list[str]) -> Any:
        """Return a C array of strings, or NULL for none."""
        if not names:
            return self.ffi.NULL
        return self.array("char *", [self.ffi.new("char[]", n.encode()) for n in names])

    def text(self, chars: Any) -> str:
        """Return a C string as Python text; drivers' stray bytes are replaced."""
        return bytes(self.ffi.string(chars)).decode("utf-8", "replace")

    def listing(self, name: str, call: Any, *args: Any) -> Any:
        """Call a Vulkan enumeration (count, then items) and return the C array.

        Raises DriverError where the driver refuses, or the list has no end.
        """
        count = self.ffi.new("uint32_t *")
        for _ in range(MAX_TRIES):
            self._checked(call(*args, count, self.ffi.NULL), name)
            given = count[0]
            if given > MAX_LISTED:
                raise DriverError(
                    "The Vulkan driver lists more than there can be.", known=f"{given} of {name}"
                )
            items = self.ffi.new(f"{name}[]", max(1, given))
            if self._checked(call(*args, count, items), name) != c.INCOMPLETE:
                return items[0 : min(count[0], given)]
        raise DriverError(
            "The Vulkan driver does not come to the end of a list.",
            known=f"enumerating {name} returned VK_INCOMPLETE {MAX_TRIES} times",
        )

    def _checked(self, result: int | None, name: str) -> int:
        if result not in (None, c.SUCCESS, c.INCOMPLETE):
            raise c.error_for(result, f"enumerating {name}")
        return result or 0

    def function(self, instance: Any, name: str) -> Any:
        """Return an extension's function of an instance, or None if there is none."""
        address = self.lib.vkGetInstanceProcAddr(instance, name.encode())
        if address == self.ffi.NULL:
            return None
        return self.ffi.cast(f"PFN_{name}", address)


def load() -> Api:
    """Load the Vulkan loader once and return the interface.

    Raises
    ------
    BackendUnavailableError (GE-404)
        The `vulkan` package or the loader library is missing; the message says which.
    """
    global _api  # noqa: PLW0603  (a library can only be loaded once per process anyway)
    with _lock:
        if _api is None:
            _api = _load()
        return _api


def _load() -> Api:
    try:
        from vulkan._vulkan import ffi, lib
    except ImportError as error:
        raise BackendUnavailableError(
            "The Python package 'vulkan' cannot be imported.",
            known=str(error),
            hint="pip install vulkan",
            reason="no-loader",
        ) from None
    except OSError as error:
        raise BackendUnavailableError(
            "The Vulkan loader library is not installed.",
            known=str(error).split(".")[0],
            hint="install the loader, for example: apt install libvulkan1",
            reason="no-loader",
        ) from None
    return Api(ffi, lib)
