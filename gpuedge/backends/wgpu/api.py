"""The C interface: loading wgpu-native, building its structures, receiving what it reports.

Only the cffi library inside the `wgpu` package is used. The package's own classes share one
instance per process, which would load every driver at once, start a thread per device, and hand the
loss of a device to a logger instead of to the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from gpuedge.backends import common
from gpuedge.backends.wgpu.candidates import native_files
from gpuedge.core.errors import BackendUnavailableError
from gpuedge.safety.packages import needed

TYPES = (
    "WGPUInstanceDescriptor", "WGPUInstanceExtras", "WGPUAdapter", "WGPUAdapterInfo", "WGPULimits",
    "WGPUDeviceDescriptor", "WGPURequestDeviceCallbackInfo", "WGPUDeviceLostCallbackInfo",
    "WGPUUncapturedErrorCallbackInfo", "WGPUQueueWorkDoneCallbackInfo",
    "WGPUBufferMapCallbackInfo", "WGPUBufferDescriptor", "WGPUShaderModuleDescriptor",
    "WGPUShaderSourceWGSL", "WGPUComputePipelineDescriptor", "WGPUComputeState",
    "WGPUConstantEntry", "WGPUBindGroupLayout", "WGPUBindGroupLayoutDescriptor",
    "WGPUBindGroupLayoutEntry", "WGPUPipelineLayoutDescriptor", "WGPUBindGroupDescriptor",
    "WGPUBindGroupEntry", "WGPUTextureDescriptor", "WGPUTexelCopyBufferInfo",
    "WGPUTexelCopyTextureInfo", "WGPUExtent3D", "WGPUChainedStruct", "WGPUCommandBuffer",
    "WGPUFeatureName", "void",
)  # fmt: skip
"""Types that this backend uses."""

Listener = Callable[[str, int, str, int], None]
"""Told what the driver reports about a device: event, its code, message, number of what it is of.

Events are ``error`` and ``lost`` of the device, ``done`` and ``mapped`` of the queue.
"""


class Api:
    """The cffi library of the `wgpu` package, and helpers to call it.

    `ffi` is the cffi interface, `lib` wgpu-native opened with it.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi = ffi
        self.lib = lib
        # Where the package read the header, cffi takes 20 ms for each string that names types; so
        # all are in one declaration, and nothing else names a type by a string.
        declared = ffi.typeof(f"void(*)({', '.join(f'{name} *' for name in TYPES)})").args
        self.types: dict[str, Any] = dict(zip(TYPES, declared, strict=True))
        self._word = ffi.typeof(lib.wgpuInstanceEnumerateAdapters).result  # size_t
        self._alive: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._listeners: dict[int, Listener] = {}
        self._numbers = itertools.count(1)
        lib.wgpuSetLogLevel(lib.WGPULogLevel_Off)  # the package would log to stderr, the user's
        # One of each serves all devices and lives as long as the process.
        self.error_callback = self._of_device("WGPUUncapturedErrorCallbackInfo", "error")
        self.lost_callback = self._of_device("WGPUDeviceLostCallbackInfo", "lost")
        self.done_callback = self._of_queue("WGPUQueueWorkDoneCallbackInfo", "done")
        self.mapped_callback = self._of_queue("WGPUBufferMapCallbackInfo", "mapped")

    # --- structures -----------------------------------------------------------------------------
    def make(self, name: str, **fields: Any) -> Any:
        """Return a new structure with `fields` set; it keeps what it points to.

        Bytes become string views; pointers to structures are copied where the field is no pointer.
        """
        struct = self.ffi.new(self.types[name])
        kept: list[Any] = []
        for key, value in fields.items():
            if isinstance(value, bytes):
                chars = self.ffi.from_buffer(value)
                view = getattr(struct, key)
                view.data, view.length = chars, len(value)
                kept.append(chars)
                continue
            inner = isinstance(value, self.ffi.CData) and self._is_struct(struct, key)
            setattr(struct, key, value[0] if inner else value)
            kept.append(value)
        self._alive[struct] = kept
        return struct

    def _is_struct(self, struct: Any, key: str) -> bool:
        field = dict(self.ffi.typeof(struct).item.fields)[key]
        return bool(field.type.kind == "struct")

    def array(self, name: str, items: list[Any]) -> Any:
        """Return a C array of the structures that `items` point to; what they need is kept."""
        items_ = self.empty(name, len(items))
        for i, item in enumerate(items):
            items_[i] = item[0]
        self._alive[items_] = list(items)
        return items_

    def empty(self, name: str, count: int) -> Any:
        """Return a C array of `count` zeros (at least one) of a type."""
        kind = self.types[name]
        size = self.ffi.sizeof(kind.item) * max(1, count)
        return self.ffi.from_buffer(kind, bytearray(size))

    def pointer(self, number: int) -> Any:
        """Return a number as the ``void *`` that callbacks are given."""
        return self.ffi.cast(self.types["void"], number)

    def chain(self, struct: Any) -> Any:
        """Return a structure as a link of a chain."""
        return self.ffi.cast(self.types["WGPUChainedStruct"], struct)

    def callback(self, name: str, function: Any) -> Any:
        """Return `function` as the C callback of a ``...CallbackInfo`` structure."""
        return self.ffi.callback(dict(self.types[name].item.fields)["callback"].type, function)

    def text(self, view: Any) -> str:
        """Return a string view as text; drivers' stray bytes are replaced."""
        if view.data == self.ffi.NULL or view.length == 0:
            return ""
        if view.length >= 1 << 31:  # WGPU_STRLEN: it ends with a zero
            raw = self.ffi.string(view.data)
        else:
            raw = self.ffi.string(view.data, view.length)
        return bytes(raw).decode("utf-8", "replace")

    # --- callbacks ------------------------------------------------------------------------------
    def register(self, listener: Listener) -> int:
        """Return the number under which a listener is told things; none after `forget`."""
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def forget(self, number: int) -> None:
        """End a registration; what is reported late is dropped."""
        self._listeners.pop(number, None)

    def _tell(self, who: Any, event: str, code: int, message: Any, which: int = 0) -> None:
        listener = self._listeners.get(self._number(who))
        if listener is not None:
            listener(event, code, self.text(message), which)

    def _of_device(self, info: str, event: str) -> Any:
        def called(_: Any, code: int, message: Any, who: Any, __: Any) -> None:
            self._tell(who, event, code, message)

        return self.callback(info, called)

    def _of_queue(self, info: str, event: str) -> Any:
        def called(code: int, message: Any, who: Any, which: Any) -> None:
            self._tell(who, event, code, message, self._number(which))

        return self.callback(info, called)

    def _number(self, userdata: Any) -> int:
        return int(self.ffi.cast(self._word, userdata))


@cache
def load() -> Api:
    """Load wgpu-native once and return the interface.

    Raises BackendUnavailableError where the `wgpu` package or its library is missing, or its C
    interface is not the one known here.
    """
    try:
        with needed("wgpu", "WebGPU", BackendUnavailableError, reason="no-loader"):
            ffi, lib = _library()
    except (OSError, RuntimeError) as error:
        raise common.no_loader(
            "The library of the Python package 'wgpu' cannot be loaded.",
            str(error).split("\n")[0],
            "reinstall the package: pip install --force-reinstall wgpu",
        ) from None
    try:
        return Api(ffi, lib)
    except Exception as error:  # cffi has a class for each way to misunderstand
        raise common.no_loader(
            "The Python package 'wgpu' has a C interface that this gpuedge does not know.",
            str(error),
            "pip install 'wgpu==0.32.*'",
        ) from None


def _library() -> tuple[Any, Any]:
    """Open wgpu-native by what `types` knows of its C interface; another version by the package.

    Importing the package takes a quarter of a second: it reads the header of 2,100 lines.
    """
    from gpuedge.backends.wgpu import types

    files = native_files()
    if len(files) == 1:
        lib = types.ffi.dlopen(files[0])
        if lib.wgpuGetVersion() == types.VERSION:
            return types.ffi, lib
    from wgpu.backends import wgpu_native

    return wgpu_native.ffi, wgpu_native.lib
