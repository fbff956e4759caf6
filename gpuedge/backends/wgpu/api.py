"""The C interface: loading wgpu-native, building its structures, receiving what it reports.

Only the cffi library inside the `wgpu` package is used. The package's own classes share one
instance per process, which would load every driver at once, start a thread per device, and hand the
loss of a device to a logger instead of to the caller.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from gpuedge.core.errors import BackendUnavailableError

log = logging.getLogger("gpuedge.wgpu")

_lock = threading.Lock()
_api: Api | None = None

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
"""WGPULogLevel; traces are below what logging has a name for."""

_NEEDED: dict[str, tuple[str, ...]] = {
    "WGPUInstanceDescriptor": ("nextInChain",),
    "WGPUInstanceExtras": ("chain", "backends"),
    "WGPUAdapterInfo": ("vendor", "device", "description", "adapterType", "backendType"),
    "WGPULimits": ("maxBufferSize", "maxComputeWorkgroupStorageSize"),
    "WGPUDeviceDescriptor": ("requiredLimits", "requiredFeatureCount", "requiredFeatures"),
    "WGPUFeatureName": (),
    "WGPURequestDeviceCallbackInfo": ("mode", "callback"),
    "WGPUDeviceLostCallbackInfo": ("mode", "callback", "userdata1"),
    "WGPUUncapturedErrorCallbackInfo": ("callback", "userdata1"),
    "WGPUBufferDescriptor": ("usage", "size", "mappedAtCreation"),
    "WGPUBufferMapCallbackInfo": ("mode", "callback", "userdata1", "userdata2"),
    "WGPUQueueWorkDoneCallbackInfo": ("mode", "callback", "userdata1", "userdata2"),
    "WGPUShaderModuleDescriptor": ("nextInChain",),
    "WGPUShaderSourceWGSL": ("chain", "code"),
    "WGPUComputePipelineDescriptor": ("layout", "compute"),
    "WGPUComputeState": ("module", "entryPoint", "constantCount", "constants"),
    "WGPUConstantEntry": ("key", "value"),
    "WGPUBindGroupLayoutDescriptor": ("entryCount", "entries"),
    "WGPUBindGroupLayoutEntry": ("binding", "visibility", "buffer"),
    "WGPUPipelineLayoutDescriptor": ("bindGroupLayoutCount", "bindGroupLayouts"),
    "WGPUBindGroupDescriptor": ("layout", "entryCount", "entries"),
    "WGPUBindGroupEntry": ("binding", "buffer", "offset", "size"),
    "WGPUChainedStruct": ("sType",),
    "WGPUAdapter": (),
    "WGPUBindGroupLayout": (),
    "WGPUCommandBuffer": (),
}
"""Types with fields that this backend relies on; the interface changed between releases."""


class Sink(Protocol):
    """Who is told what the driver reports; devices are."""

    def on_error(self, kind: int, message: str) -> None:
        """Take an error of the call that runs now."""

    def on_lost(self, reason: int, message: str) -> None:
        """Take note that the device is lost."""

    def on_done(self, number: int) -> None:
        """Take note that a submission has finished."""

    def on_mapped(self, number: int, status: int, message: str) -> None:
        """Take note that a buffer was mapped, or not."""


class Api:
    """The cffi library of the `wgpu` package, and helpers to call it.

    Attributes
    ----------
    ffi, lib
        The cffi interface and wgpu-native opened with it.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi = ffi
        self.lib = lib
        self.types = _types(ffi)
        self._word = ffi.typeof(lib.wgpuInstanceEnumerateAdapters).result  # size_t
        self._alive: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._sinks: dict[int, Sink] = {}
        self._numbers = itertools.count(1)
        self._callbacks()

    # --- structures -----------------------------------------------------------------------------
    def make(self, name: str, **fields: Any) -> Any:
        """Return a new structure with `fields` set; it keeps what it points to.

        Bytes become string views; pointers to structures are copied where the field is no pointer.
        """
        made = self.ffi.new(self.types[name])
        kept: list[Any] = []
        for key, value in fields.items():
            if isinstance(value, bytes):
                chars = self.ffi.from_buffer(value)
                view = getattr(made, key)
                view.data, view.length = chars, len(value)
                kept.append(chars)
                continue
            inner = isinstance(value, self.ffi.CData) and self._is_struct(made, key)
            setattr(made, key, value[0] if inner else value)
            kept.append(value)
        self._alive[made] = kept
        return made

    def _is_struct(self, made: Any, key: str) -> bool:
        field = dict(self.ffi.typeof(made).item.fields)[key]
        return bool(field.type.kind == "struct")

    def array(self, name: str, items: list[Any]) -> Any:
        """Return a C array of the structures that `items` point to; what they need is kept."""
        made = self.empty(name, len(items))
        for i, item in enumerate(items):
            made[i] = item[0]
        self._alive[made] = list(items)
        return made

    def empty(self, name: str, count: int) -> Any:
        """Return a C array of `count` zeros (at least one) of a type."""
        kind = self.types[name]
        size = self.ffi.sizeof(kind.item) * max(1, count)
        return self.ffi.from_buffer(kind, bytearray(size))

    def numbers(self, name: str, values: Sequence[int]) -> Any:
        """Return a C array of numbers, such as those of an enumeration."""
        made = self.empty(name, len(values))
        for i, value in enumerate(values):
            made[i] = value
        return made

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
    def register(self, sink: Sink) -> int:
        """Return the number under which a sink is told things; None is told after `forget`."""
        number = next(self._numbers)
        self._sinks[number] = sink
        return number

    def forget(self, number: int) -> None:
        """End a registration; what is reported late is dropped."""
        self._sinks.pop(number, None)

    def _sink(self, userdata: Any) -> Sink | None:
        return self._sinks.get(self._number(userdata))

    def _callbacks(self) -> None:
        """Make the C functions; one of each serves all devices and lives as long as the process."""
        number = self._number

        def on_error(_: Any, kind: int, message: Any, who: Any, __: Any) -> None:
            sink = self._sink(who)
            if sink is not None:
                sink.on_error(kind, self.text(message))

        def on_lost(_: Any, reason: int, message: Any, who: Any, __: Any) -> None:
            sink = self._sink(who)
            if sink is not None:
                sink.on_lost(reason, self.text(message))

        def on_done(_: int, __: Any, who: Any, which: Any) -> None:
            sink = self._sink(who)
            if sink is not None:
                sink.on_done(number(which))

        def on_mapped(status: int, message: Any, who: Any, which: Any) -> None:
            sink = self._sink(who)
            if sink is not None:
                sink.on_mapped(number(which), status, self.text(message))

        def on_log(level: int, message: Any, _: Any) -> None:
            if log.hasHandlers():  # without any, Python would write to stderr, which is the user's
                log.log(_LEVELS.get(level, logging.DEBUG), "%s", self.text(message))

        self.error_callback = self.callback("WGPUUncapturedErrorCallbackInfo", on_error)
        self.lost_callback = self.callback("WGPUDeviceLostCallbackInfo", on_lost)
        self.done_callback = self.callback("WGPUQueueWorkDoneCallbackInfo", on_done)
        self.mapped_callback = self.callback("WGPUBufferMapCallbackInfo", on_mapped)
        set_callback = self.lib.wgpuSetLogCallback
        kind = self.ffi.typeof(set_callback).args[0]
        self._log_callback = self.ffi.callback(kind, on_log)
        set_callback(self._log_callback, self.ffi.NULL)

    def _number(self, userdata: Any) -> int:
        return int(self.ffi.cast(self._word, userdata))


def _types(ffi: Any) -> dict[str, Any]:
    """Return the pointer type of everything needed, from one declaration.

    cffi reads the whole list of types again for each string that it has to understand, which takes
    20 ms; so all are in one, and nothing else here names a type by a string.
    """
    names = [*_NEEDED, "void"]
    declared = ffi.typeof(f"void(*)({', '.join(f'{name} *' for name in names)})").args
    types = dict(zip(names, declared, strict=True))
    for name, fields in _NEEDED.items():
        have = dict(types[name].item.fields or ()) if fields else {}
        absent = [field for field in fields if field not in have]
        if absent:
            raise AttributeError(f"{name} has no {absent[0]}")
    return types


def load() -> Api:
    """Load wgpu-native once and return the interface.

    Raises
    ------
    BackendUnavailableError (GE-404)
        The `wgpu` package or its library is missing, or its C interface is not the one known here.
    """
    global _api  # noqa: PLW0603  (a library can only be loaded once per process anyway)
    with _lock:
        if _api is None:
            _api = _load()
        return _api


def _load() -> Api:
    try:
        from cffi import FFIError  # type: ignore[import-untyped]
        from wgpu.backends.wgpu_native import ffi, lib
    except ImportError as error:
        raise BackendUnavailableError(
            "The Python package 'wgpu' cannot be imported.",
            known=str(error),
            hint="pip install wgpu",
            reason="no-loader",
        ) from None
    except (OSError, RuntimeError) as error:
        raise BackendUnavailableError(
            "The library of the Python package 'wgpu' cannot be loaded.",
            known=str(error).split("\n")[0],
            hint="reinstall the package: pip install --force-reinstall wgpu",
            reason="no-loader",
        ) from None
    try:
        return Api(ffi, lib)
    except (FFIError, AttributeError, KeyError, TypeError) as error:
        raise BackendUnavailableError(
            "The Python package 'wgpu' has a C interface that this gpuedge does not know.",
            known=str(error),
            hint="pip install 'wgpu==0.32.*'",
            reason="no-loader",
        ) from None
