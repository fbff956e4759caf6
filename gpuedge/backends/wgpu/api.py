"""The C interface: loading wgpu-native, building its structures, receiving what it reports.

Only the cffi library inside the `wgpu` package is used. The package's own classes share one
instance per process, which would load every driver at once, start a thread per device, and hand the
loss of a device to a logger instead of to the caller.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from gpuedge.backends.wgpu import constants as c
from gpuedge.core.errors import BackendUnavailableError

PACKAGE = "wgpu.backends.wgpu_native"

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


def _library() -> tuple[Any, Any]:
    """Open wgpu-native: as it lies in the package, or as the package does where it imports."""
    if sys.modules.get(PACKAGE) is None:
        found = open_library([*_NEEDED, *c.FUNCTIONS, *c.CONSTANTS])
        if found is not None:
            return found
    package = import_module(PACKAGE)
    return package.ffi, package.lib


def _load() -> Api:
    try:
        from cffi import FFIError  # type: ignore[import-untyped]

        ffi, lib = _library()
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


# --- the few declarations that are used here ----------------------------------------------------
# Importing the package reads all 2,100 lines of C declarations and what it builds upon them, which
# takes a fifth of a second in every process. What is needed of them is found by name, and read in a
# tenth of that; None wherever the package is not as it is expected to be.
LIBRARIES = {"win32": "wgpu_native{}.dll", "darwin": "libwgpu_native{}.dylib"}
LIBRARY = "libwgpu_native{}.so"
HEADER = "combined_header.h"

_NAME = re.compile(r"\b(?:WGPU|wgpu)\w+")
_ENUM = re.compile(r"(?:typedef\s+)?enum\b")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)


def open_library(names: Iterable[str]) -> tuple[Any, Any] | None:
    """Return the cffi interface with `names` declared, and the library opened with it.

    None where the package, its library or one of the names is not found, or cannot be read; the
    package itself then says why.
    """
    place = _resources()
    if place is None:
        return None
    try:
        from cffi import FFI, FFIError

        ffi = FFI()
        ffi.cdef(needed((place / HEADER).read_text(encoding="utf-8"), names))
        return ffi, ffi.dlopen(_library_file(place))
    except (ImportError, OSError, ValueError, KeyError, FFIError):
        return None


def _resources() -> Path | None:
    try:
        spec = find_spec("wgpu")
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) / "resources" if places else None


def _library_file(place: Path) -> str:
    """Return the file that the package would load; OSError where it is somewhere else."""
    override = os.environ.get("WGPU_LIB_PATH", "").strip()
    if override:
        return override
    is_debug = os.environ.get("WGPU_DEBUG", "").strip() == "1"
    for build in ["-debug"] if is_debug else ["-release", ""]:
        path = place / LIBRARIES.get(sys.platform, LIBRARY).format(build)
        if path.exists():
            return str(path)
    raise FileNotFoundError(place)


def needed(header: str, names: Iterable[str]) -> str:
    """Return the declarations that define `names` and what these refer to, in their order.

    Raises
    ------
    KeyError
        A name is not declared.
    """
    declared = list(_declarations(_COMMENT.sub("", header)))
    by_name: dict[str, list[int]] = {}
    for i, text in enumerate(declared):
        for name in _defined(text):
            by_name.setdefault(name, []).append(i)
    wanted = list(names)
    missing = next((name for name in wanted if name not in by_name), None)
    if missing is not None:
        raise KeyError(missing)
    seen: set[str] = set()
    kept: set[int] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for i in by_name.get(name, ()):
            if i not in kept:
                kept.add(i)
                wanted += [] if _ENUM.match(declared[i]) else _NAME.findall(declared[i])
    return "\n".join(_without_idle(declared[i], seen) for i in sorted(kept))


def _without_idle(text: str, names: set[str]) -> str:
    """Return a declaration; of an enumeration only what is named, and the last, for its size."""
    head, brace, rest = text.partition("{")
    if not brace or not _ENUM.match(head):
        return text
    body, _, tail = rest.rpartition("}")
    *others, last = [one.strip() for one in body.split(",") if one.strip()]
    kept = [one for one in others if one.partition("=")[0].strip() in names]
    return f"{head}{{{', '.join([*kept, last])}}}{tail}"


def _declarations(text: str) -> Iterator[str]:
    """Yield what stands between semicolons that are in no braces."""
    depth, begin = 0, 0
    for match in re.finditer(r"[{};]", text):
        if match[0] == ";" and depth == 0:
            yield text[begin : match.end()].strip()
            begin = match.end()
        elif match[0] != ";":
            depth += 1 if match[0] == "{" else -1


def _defined(text: str) -> set[str]:
    """Return the names that one declaration gives a meaning to."""
    head, brace, rest = text.partition("{")
    body, _, tail = rest.rpartition("}")
    found = set(re.findall(r"\b(?:struct|enum)\s+(\w+)\s*$", head.rstrip("; \n")))
    if brace:
        found |= set(_NAME.findall(tail))
        if _ENUM.match(head):
            found |= set(re.findall(r"\b(\w+)\s*=", body))
    elif head.startswith("typedef"):
        pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", head)
        found.add(pointer[1] if pointer else re.findall(r"\w+", head)[-1])
    elif "(" in head:
        found.add(re.findall(r"\w+", head.partition("(")[0])[-1])
    elif "=" in head:
        found.add(re.findall(r"\w+", head.partition("=")[0])[-1])
    return found
