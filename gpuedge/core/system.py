"""Which system this is, where `sys.platform` alone does not say it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def is_android(platform: str | None = None) -> bool:
    """Say whether this Python was built for Android: for its C library, linker and folders.

    Python 3.13 and later say so in `sys.platform` (PEP 738), which `platform` may stand in for;
    earlier ones say ``linux`` and have a function that no other Python has. A Linux in a container
    on a phone is a Linux.
    """
    return (platform or sys.platform) == "android" or hasattr(sys, "getandroidapilevel")


def is_linux(platform: str | None = None) -> bool:
    """Say whether the kernel is Linux, as Android's is."""
    return (platform or sys.platform) in ("linux", "android")


def userland(environ: Mapping[str, str]) -> str:
    """Return the folder that Termux keeps programs, libraries and settings below, as Linux does.

    Empty in an Android app of its own: it sees what Android has and what it brings.
    """
    return environ.get("PREFIX", "").rstrip("/")
