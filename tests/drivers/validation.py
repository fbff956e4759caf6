"""Vulkan devices under the Khronos validation layer, switched on from outside, and what it says."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from gpuedge.backends import load
from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.device import OpenDevice

LAYER = "VK_LAYER_KHRONOS_validation"
SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = {log}
khronos_validation.report_flags = error,warn,perf
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
"""
_log = Path("/nonexistent/log_in was not called")
"""One file for all devices: the layer reads its settings once while it stays loaded."""
_seen: list[str] = []


def log_in(folder: Path) -> None:
    """Choose the folder of the file; before any device is opened under the layer."""
    global _log  # noqa: PLW0603
    _log = folder / "log.txt"


def environment(log: Path) -> dict[str, str]:
    """Return the variables under which a process writes the layer's messages to `log`."""
    settings = log.with_suffix(".settings")
    settings.write_text(SETTINGS.format(log=log))
    return {"VK_INSTANCE_LAYERS": LAYER, "VK_LAYER_SETTINGS_PATH": str(settings)}


def staged(info: DeviceInfo) -> DeviceInfo:
    """Return a device whose memory is used as if the host did not see it."""
    return info.replace(disabled=info.disabled | {"mapped-device-memory"})


def validated(info: DeviceInfo, *, staging: bool = False) -> OpenDevice:
    """Open a device under the layer, with its checks of synchronisation."""
    info = staged(info) if staging else info
    _take()  # each new instance empties the file
    with mock.patch.dict(os.environ, environment(_log)):
        device = load("vulkan").open(info)
    if not _log.exists():
        from required import absent  # children that import this module have no pytest to speak to

        absent("the validation layer is not installed: apt-get install -y vulkan-validationlayers")
    assert isinstance(device, OpenDevice)
    return device


def messages() -> str:
    """Return what the layer has said since this was last asked."""
    _take()
    found = "".join(_seen)
    _seen.clear()
    return found


def _take() -> None:
    if _log.exists():
        with _log.open("r+b") as file:  # devices that are open write on, each at its own place
            _seen.append(file.read().decode(errors="replace").replace("\0", ""))
            file.truncate(0)
