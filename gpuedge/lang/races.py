"""Who touched which element of a shared array since the last barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuedge.core.errors import KernelError

_NOBODY, _SEVERAL = -1, -2
Indices = npt.NDArray[np.signedinteger[Any]]


class Races:
    """Refuses accesses to one shared array whose result would depend on the order of lanes.

    Parameters
    ----------
    name : str
        What errors call the array.
    groups, size : int
        Number of workgroups, and of elements in each one's array.
    """

    def __init__(self, name: str, groups: int, size: int) -> None:
        self.name = name
        self.writer = np.full((groups, size), _NOBODY)
        self.reader = np.full((groups, size), _NOBODY)

    def forget(self) -> None:
        """Start anew: all lanes passed a barrier."""
        self.writer[...] = _NOBODY
        self.reader[...] = _NOBODY

    def _refuse(self, what: str) -> None:
        raise KernelError(
            f"In {self.name} {what}.", hint="put a barrier() between writing and reading"
        )

    def read(self, group: Indices, at: Indices, active: npt.NDArray[np.bool_]) -> None:
        """Note that each active lane reads element `at` of its group's array."""
        group, at, lane = group[active], at[active], np.flatnonzero(active)
        writer = self.writer[group, at]
        if np.any((writer != _NOBODY) & (writer != lane)):
            self._refuse("an invocation reads what another one wrote")
        old = self.reader[group, at]
        self.reader[group, at] = np.where((old == _NOBODY) | (old == lane), lane, _SEVERAL)
        # Of several lanes that read one element just now, the array kept one; the others see it.
        other = self.reader[group, at] != lane
        self.reader[group[other], at[other]] = _SEVERAL

    def write(self, group: Indices, at: Indices, active: npt.NDArray[np.bool_]) -> None:
        """Note that each active lane writes element `at` of its group's array."""
        group, at, lane = group[active], at[active], np.flatnonzero(active)
        for notes, verb in ((self.writer, "wrote"), (self.reader, "read")):
            old = notes[group, at]
            if np.any((old != _NOBODY) & (old != lane)):
                self._refuse(f"an invocation writes what another one {verb}")
        self.writer[group, at] = lane
        if np.any(self.writer[group, at] != lane):
            self._refuse("two invocations write one element")
