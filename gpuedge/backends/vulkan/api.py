"""The raw C interface: loading the loader, building structures, naming results.

The `vulkan` package's wrappers rebuild every argument at each call; its cffi interface underneath
is ten times cheaper per call, and without them takes half the time to import. So only that is used.
Nothing is loaded before `load()` is called.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec
from typing import Any
from weakref import WeakKeyDictionary

from gpuedge.backends import common
from gpuedge.backends.vulkan import constants as c
from gpuedge.core.errors import BackendUnavailableError, DeviceError, DriverError
from gpuedge.core.system import is_android
from gpuedge.safety.packages import needed

MAX_LISTED = 1 << 14
"""Longest list that is believed: drivers have a few hundred extensions, and less of all else."""


class Api:
    """The cffi library of the `vulkan` package, and helpers to call it.

    `ffi` is the cffi interface, `lib` the Vulkan loader opened with it.
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
        struct = self.ffi.new(f"{name} *", values)
        self._alive[struct] = tuple(v for v in values.values() if isinstance(v, self.ffi.CData))
        return struct

    def array(self, name: str, items: list[Any]) -> Any:
        """Return a C array; structures in `items` (pointers) are copied and what they need kept."""
        structs = bool(items) and self.ffi.typeof(f"{name} *").item.kind in ("struct", "union")
        items_ = self.ffi.new(f"{name}[]", [item[0] for item in items] if structs else items)
        self._alive[items_] = tuple(i for i in items if isinstance(i, self.ffi.CData))
        return items_

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

        Raises DriverError where the driver refuses, or lists more than there can be.
        """
        count = self.ffi.new("uint32_t *")
        self.check(call(*args, count, self.ffi.NULL) or 0, f"enumerating {name}")
        given = count[0]
        if given > MAX_LISTED:
            raise DriverError(
                "The Vulkan driver lists more than there can be.", known=f"{given} of {name}"
            )
        items = self.ffi.new(f"{name}[]", max(1, given))
        result = call(*args, count, items) or 0
        if result != c.INCOMPLETE:  # a list that grew meanwhile serves as far as it was read
            self.check(result, f"enumerating {name}")
        filled = items[0 : min(count[0], given)]
        self._alive[filled] = (items,)  # a slice does not keep the memory that it is of
        return filled

    def result_name(self, result: int) -> str:
        """Return the specification's name of a VkResult, or its number."""
        name: str = self.ffi.typeof("VkResult").elements.get(result, f"VkResult {result}")
        return name

    def check(self, result: int, call: str, device: str = "the device") -> None:
        """Raise the error of a failing result of `call`."""
        if result != c.SUCCESS:
            raise self.error(result, call, device)

    def error(self, result: int, call: str, device: str = "the device") -> DeviceError:
        """Return the error that a failing VkResult of `call` becomes (not raised here)."""
        known = f"{call} returned {self.result_name(result)}"
        if result == c.DEVICE_LOST:
            return common.lost_error(device, known)
        if result in c.MEMORY_RESULTS:
            return common.memory_error(device, known)
        return DriverError(f"The Vulkan driver of {device} refused a call.", known=known)


def _names() -> tuple[str, ...]:
    """Return the names that the loader may have here, Termux's before Android's own."""
    own = {"win32": ("vulkan-1.dll",), "darwin": ("libvulkan.dylib",)}
    others = ("libvulkan.so.1", "libvulkan.so") if is_android() else ("libvulkan.so.1",)
    return own.get(sys.platform, others)


def _interface() -> Any:
    """Return the cffi interface of the `vulkan` package. Raises ImportError.

    The package itself is not imported: it opens the loader by names of its own, which Android's
    does not have, and fails where it finds none.
    """
    package, name = find_spec("vulkan"), "vulkan._vulkancache"
    places = (package and package.submodule_search_locations) or ()
    for finder in sys.meta_path if places else ():  # also those of frozen applications
        find = getattr(finder, "find_spec", None)
        spec = find and find(name, places, None)
        if spec and spec.loader:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.ffi
    raise ImportError(f"No module named {name!r}")


@cache
def load() -> Api:
    """Load the Vulkan loader once and return the interface.

    Raises BackendUnavailableError where the `vulkan` package or the loader library is missing.
    """
    with needed("vulkan", "Vulkan", BackendUnavailableError, reason="no-loader"):
        ffi = _interface()
    known = ""
    for name in _names():
        try:
            return Api(ffi, ffi.dlopen(name))
        except OSError as error:
            known = str(error)
    way = "Android has it since version 7; in Termux: pkg install vulkan-loader-generic"
    raise common.no_loader(
        "The Vulkan loader library cannot be loaded.",
        known,
        way if is_android() else "install the loader, for example: apt install libvulkan1",
    )
