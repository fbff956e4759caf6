"""Vulkan devices under the Khronos validation layer, switched on from outside, and what it says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from required import absent

from gpuedge.backends.base import DeviceInfo
from gpuedge.backends.vulkan import VulkanBackend
from gpuedge.backends.vulkan.device import VulkanDevice

LAYER = "VK_LAYER_KHRONOS_validation"
SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = {log}
khronos_validation.report_flags = error,warn,perf
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
"""
_folder = tempfile.TemporaryDirectory(prefix="gpuedge-validation-")
_logs: list[Path] = []


def environment(log: Path) -> dict[str, str]:
    """Return the variables under which a process writes the layer's messages to `log`."""
    settings = log.with_suffix(".settings")
    settings.write_text(SETTINGS.format(log=log))
    return {"VK_INSTANCE_LAYERS": LAYER, "VK_LAYER_SETTINGS_PATH": str(settings)}


def validated(info: DeviceInfo, **options: Any) -> VulkanDevice:
    """Open a device under the layer, with its checks of synchronisation."""
    log = Path(_folder.name) / f"{len(_logs)}.txt"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(log).items():
            patch.setenv(name, value)
        device = VulkanBackend().open(info, **options)
    if not log.exists():
        absent("the validation layer is not installed: apt-get install -y vulkan-validationlayers")
    _logs.append(log)
    assert isinstance(device, VulkanDevice)
    return device


def messages() -> str:
    """Return what the layer has said since this was last asked."""
    found = "".join(log.read_text(errors="replace") for log in _logs)
    for log in _logs:
        with log.open("r+b") as file:  # the layer writes on at its own place
            file.truncate(0)
    return found.replace("\0", "")
