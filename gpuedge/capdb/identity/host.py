"""Facts about this machine that drivers do not report: its kernel, macOS, Android's properties."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from gpuedge.safety import paths

ANDROID = {
    "android_sdk": "ro.build.version.sdk",
    "security_patch": "ro.build.version.security_patch",
    "soc": "ro.soc.model",
    "brand": "ro.product.brand",
    "device": "ro.product.device",
    "model": "ro.product.model",
}
"""Facts that Android's properties hold, by the keys of records about devices."""

BOARD = "/proc/device-tree/model"
"""Where Linux tells the name of a board, such as ``Khadas VIM3``; other machines lack the file."""

PATIENCE_S = 1.0
"""Seconds that ``getprop`` may take; it answers in some milliseconds."""


@lru_cache(maxsize=1)
def _read() -> dict[str, str]:
    is_linux = sys.platform in {"linux", "android"}
    is_android = is_linux and (hasattr(sys, "getandroidapilevel") or "ANDROID_ROOT" in os.environ)
    facts = {
        "os": "android" if is_android else sys.platform,
        "process_bits": "64" if sys.maxsize > 1 << 32 else "32",
    }
    if hasattr(os, "uname"):
        facts["kernel_version" if is_linux else "darwin_version"] = os.uname().release
    if sys.platform == "darwin":
        import platform

        facts["macos_version"] = platform.mac_ver()[0]
    if is_android:
        properties = parse_properties(_getprop())
        facts |= {key: properties.get(name, "") for key, name in ANDROID.items()}
    elif is_linux:
        board = paths.read_regular(BOARD, 4096) or b""
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


def _getprop() -> str:
    """Return what Android's ``getprop`` writes; nothing where it cannot be run."""
    import subprocess

    try:
        done = subprocess.run(
            ["getprop"], capture_output=True, timeout=PATIENCE_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in what ``getprop`` writes, lines such as ``[name]: [value]``."""
    pairs = (line.strip().split("]: [", 1) for line in text.splitlines())
    return {p[0].removeprefix("["): p[1].removesuffix("]") for p in pairs if len(p) == 2}
