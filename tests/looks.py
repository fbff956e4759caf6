"""Waiting for probes that are under way in this process."""

from __future__ import annotations

from gpuedge.probing import background


def wait_for_looks(seconds: float = 60.0) -> None:
    """Wait until no thread looks at a driver any more, at most so long for each."""
    while (look := background.other_look(list(background._looks))) is not None:
        look.wait((), seconds)
