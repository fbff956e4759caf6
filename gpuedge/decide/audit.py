"""Trying a share of what predictions rule out, so that wrong predictions come to light.

A cost model that is too sure of itself screens out the very devices that would prove it wrong. So
of the cases where a GPU is left alone on prediction, one in twenty is tried all the same. The coin
is a hash: the same device and model are drawn on the same day in every process, and a record of
the coin replays.
"""

from __future__ import annotations

from gpuedge.decide.belief import MICRO

SHARE_PPM = 50_000
"""Share of screened-out cases that are tried, in millionths."""


def coin(device: str, model: str, day: int) -> int:
    """Return a number from 0 to 999,999 that these three alone decide.

    Parameters
    ----------
    device : str
        The device's key, driver included.
    model : str
        Digest of the model.
    day : int
        Days since the epoch: a case that was not drawn today may be another day.
    """
    import hashlib

    text = f"gpuedge.audit/1\0{device}\0{model}\0{day}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") * MICRO >> 64


def is_drawn(number: int | None) -> bool:
    """Say whether a coin asks for a trial; None, where none was thrown, does not."""
    return number is not None and number < SHARE_PPM
