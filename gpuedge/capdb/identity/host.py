"""Facts about this machine that drivers do not report: its kernel, macOS, Android's properties."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from gpuedge.core.system import is_android, is_linux
from gpuedge.safety import machine, paths

ANDROID = ("android_sdk", "security_patch", "soc", "brand", "device", "model")
"""Facts that Android's properties hold."""


@lru_cache(maxsize=1)
def _read() -> dict[str, str]:
    facts = {
        "os": "android" if is_android() else sys.platform,
        "process_bits": "64" if sys.maxsize > 1 << 32 else "32",
    }
    if hasattr(os, "uname"):
        facts["kernel_version" if is_linux() else "darwin_version"] = os.uname().release
    if sys.platform == "darwin":
        import platform

        facts["macos_version"] = platform.mac_ver()[0]
    if is_android():
        facts |= {key: machine.android_property(machine.PROPERTIES[key]) for key in ANDROID}
    elif is_linux():
        board = paths.read_regular(machine.FILES["model"], 4096) or b""  # such as ``Khadas VIM3``
        facts["device"] = board.decode("utf-8", "replace").strip("\0 \n")
    return {key: value for key, value in facts.items() if value}


def host_facts() -> dict[str, str]:
    """Return what this machine tells about itself; read once, and never raises.

    That is ``os`` and ``process_bits`` always; ``kernel_version`` on Linux and Android, ``device``
    on boards with Linux, ``macos_version`` on macOS, and on Android those of `ANDROID` that can be
    read.
    """
    try:
        return dict(_read())
    except (OSError, ValueError):
        return {"os": sys.platform}
