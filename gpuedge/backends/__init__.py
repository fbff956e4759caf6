"""Backends: one folder per GPU API. This registry is the only place that knows their names.

Other packages bring devices (entry-point group ``gpuedge.backends``) and runtimes that take whole
segments of graphs (``gpuedge.executors``). Both are found, named and opened in the same way.
"""

from __future__ import annotations

import sys
from importlib import import_module

from gpuedge.core.errors import UnknownDeviceError
from gpuedge.core.text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gpuedge.backends.base import Backend, Candidate, DeviceImpl, DeviceInfo

BUILTIN = {
    "metal": "wgpu",
    "dx12": "wgpu",
    "vulkan": "vulkan",
    "gles31": "gles",
    "wgpu": "wgpu",
    "gles30": "gles",
    "gles20": "gles",
    "null": "gpuedge.backends.null:NullBackend",
}
"""Backend name to its folder or class, in order of preference. Others are found by entry point."""

_ELSEWHERE = {"metal": "darwin", "dx12": "win32"}
"""Backends of APIs that exist on one system only, and that system (as in `sys.platform`)."""


_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}

_CALLED = {
    "": "gpu igpu dgpu npu cuda nvidia tensorrt trt rocm hip migraphx amd intel openvino xpu "
    "oneapi sycl opencl cl nnapi qnn",
    "vulkan": "vk",
    "gles31": "gl opengl opengles gles egl glsl",
    "gles30": "gles3 webgl",
    "gles20": "gles2",
    "wgpu": "webgpu dawn",
    "metal": "mps coreml",
    "dx12": "dx directx d3d d3d11 d3d12 directml dml",
}
"""What programs for other libraries call devices of these backends; first those of any backend."""

_PLUGINS = ("opencl", "openvino")
"""Names that plug-ins in ``examples/plugins`` bring; each in the folder ``gpuedge-NAME``."""

DEVICES, EXECUTORS = "gpuedge.backends", "gpuedge.executors"
"""Groups of entry points. A name in both is a device."""

PROVIDER = "executionprovider"
"""What names of ONNX Runtime's execution providers end with, in small letters."""


def probed(platform: str = sys.platform) -> tuple[str, ...]:
    """Return the built-in backends that `gpuedge.probe()` tries by default, best level first."""
    skipped = {name for name, home in _ELSEWHERE.items() if home != platform}
    return tuple(name for name in BUILTIN if name not in skipped | {"null"})


PROBED = probed()
"""Built-in backends that `gpuedge.probe()` tries by default on this system."""


def instead(name: str, platform: str = sys.platform) -> str | None:
    """Return what to write for a name that devices have elsewhere; None for one that they do not.

    Parameters
    ----------
    name : str
        Of a device or a backend, in small letters.
    platform : str, optional
    """
    is_ours = name in BUILTIN and _ELSEWHERE.get(name, platform) == platform
    if is_ours or name in _plugins():
        return None
    called = {word: backend for backend, words in _CALLED.items() for word in words.split()}
    found = called.get(name, called.get(name.rstrip("0123456789"), name))
    if found and found not in BUILTIN:
        return None
    home = _ELSEWHERE.get(found, platform)
    best = found if found and home == platform else probed(platform)[0]
    only = "" if home == platform else f" here; {found} is on {_SYSTEMS[home]} only"
    own = f", or install its plug-in: pip install ./examples/plugins/gpuedge-{name} in a checkout"
    return f"write {best!r}{only}{own + ' (docs/plugins.md)' if name in _PLUGINS else ''}"


def names() -> list[str]:
    """Return the names of all backends that reach devices, built in and plug-ins."""
    known = dict.fromkeys([*PROBED, *BUILTIN])
    return [*(name for name in known if name != "null"), *sorted(_plugins())]


def installed() -> tuple[str, ...]:
    """Return the backends that `gpuedge.probe()` tries by default, and those of plug-ins."""
    return (*PROBED, *sorted(_plugins()))


def is_aside(name: str, in_use: Sequence[str] | None) -> bool:
    """Tell whether ``auto`` leaves a backend aside: a plug-in's, unless `in_use` names it."""
    return name not in BUILTIN and name not in (in_use or ())


def _plugins(*groups: str) -> dict[str, str]:
    from gpuedge.safety.packages import plugins

    points = {n: e for group in groups or (EXECUTORS, DEVICES) for n, e in plugins(group).items()}
    return {n: e.value for n, e in points.items() if n not in BUILTIN}


def is_executor(name: str) -> bool:
    """Tell whether what a backend opens takes whole segments of graphs, not kernels."""
    return name not in BUILTIN and name in _plugins(EXECUTORS).keys() - _plugins(DEVICES).keys()


class FolderBackend:
    """A backend in a folder of this package; see `gpuedge.backends.base.Backend` for its calls.

    The folder's files are imported by the call that needs them: looking for drivers imports no GPU
    library. The one option of `open` is OpenGL's: `context`, the `moderngl.Context` of the
    application that is current, which the device then shares textures and buffers with.
    """

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self._folder = f"{__name__}.{folder}"

    def candidates(self, environ: Mapping[str, str]) -> Sequence[Candidate]:
        """List drivers that may exist, without loading any. Never raises for absence."""
        result: Sequence[Candidate] = self._call("candidates.candidates", environ, self.name)
        return result

    def enumerate(self, candidate: Candidate) -> Sequence[DeviceInfo]:
        """Load a driver and list its devices. Raises BackendUnavailableError if there is none."""
        result: Sequence[DeviceInfo] = self._call("physical.enumerate_devices", candidate)
        return result

    def open(self, info: DeviceInfo, **options: Any) -> DeviceImpl:
        """Open a device. Raises a DeviceError."""
        device: DeviceImpl = self._call("device.open_device", info, **options)
        return device

    def _call(self, function: str, *args: Any, **options: Any) -> Any:
        file, _, name = function.partition(".")
        return getattr(import_module(f"{self._folder}.{file}"), name)(*args, **options)


def code_of(name: str) -> str:
    """Return the folder or file of a backend's code, as stacks name it; "" where there is none."""
    module, _, attribute = (BUILTIN.get(name) or _plugins().get(name) or "").partition(":")
    if not module:
        return ""
    loaded = import_module(module if attribute else f"{__name__}.{module}")
    return next(iter(getattr(loaded, "__path__", ())), loaded.__file__ or "")


def target(name: str) -> str:
    """Return the folder or class of a backend. Raises UnknownDeviceError (GE-102)."""
    found = BUILTIN.get(name) or _plugins().get(name)
    if found is None:
        raise UnknownDeviceError(
            f"No backend is called {shown(name)}.",
            known=f"backends: {', '.join(names())}",
            hint=instead(name),
        )
    return found


def load(name: str) -> Backend:
    """Return the backend called `name`. Its GPU library is not loaded yet.

    Raises
    ------
    UnknownDeviceError (GE-102)
        No backend has that name.
    """
    module, _, attribute = target(name).partition(":")
    if not attribute:
        return FolderBackend(name, module)
    backend: Backend = getattr(import_module(module), attribute)()
    return backend
