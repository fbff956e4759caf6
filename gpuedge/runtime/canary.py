"""Canaries: a few inferences of a GPU are repeated on the CPU, and the results compared.

A driver that computed rightly when it was probed may not for ever: heat, memory that fails, an
update while it runs. How far right results may lie apart is derived for the graph and the inputs at
hand (`gpuedge.runtime.rehearsal`); integers must agree exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from gpuedge.core.errors import GpuEdgeError
from gpuedge.executors.base import Executable, Executor
from gpuedge.graph.ir import Array, Graph
from gpuedge.runtime.rehearsal import FACTOR, Rehearsal, Untracked, tolerance

log = logging.getLogger("gpuedge")

DOUBT = 12
"""Runs with errors added that a difference beyond the tolerance is judged by once more."""

QUICK = 0.25
"""Share of the least tolerance of earlier inferences within which none is derived anew."""

MOST = 2e-3
"""Tolerance, as a share of the output's root mean square, beyond which each is derived anew.

It is that of inputs whose result cancels to rounding errors, and must not pass for that of others.
"""

MOST_HALF = 0.1
"""As `MOST`, for a device that keeps binary16, whose own errors are 2^13 times as large."""


class Canary:
    """Compares a share of the inferences of one compiled graph with the CPU's.

    Not for several threads at once.

    Parameters
    ----------
    graph : Graph
        The whole graph, however it is placed.
    share : float
        Share of inferences to compare, 0 to 1.
    cpu_executor : Executor
        What computes them again.
    storage : str
        How the device keeps tensors, as `Policy.storage` names it; ``float32`` where the device
        does not offer what the policy asks for.

    Attributes
    ----------
    why_off : str or None
        Why nothing is compared; None while something is.
    skipped : int
        Inferences that were due and could not be compared.
    why_skipped : str or None
        Why the last of them could not.
    """

    def __init__(
        self, graph: Graph, share: float, cpu_executor: Executor, *, storage: str = "float32"
    ) -> None:
        self.graph = graph
        self.every = round(1 / share) if share > 0 else 0
        self.skipped = 0
        self.why_skipped: str | None = None
        self.why_off: str | None = None if share > 0 else "canaries are switched off"
        if storage == "fixed16" and share > 0:
            self.why_off = "fixed-point tensors clip to ranges that no error bound knows"
        self._is_half = storage == "float16"
        self._cpu = cpu_executor
        self._count = 0
        self._again: Executable | None = None
        self._rehearsal: Rehearsal | None = None
        self._levels: dict[str, float] = {}

    def due(self) -> bool:
        """Count an inference, and tell whether it is to be compared: the first, then each n-th."""
        if self.why_off is not None:
            return False
        self._count += 1
        return (self._count - 1) % self.every == 0

    def take(self, inputs: Mapping[str, Array], *, must: bool = False) -> dict[str, Array] | None:
        """Return copies of the inputs of an inference that is to be compared, else None.

        Both sides compute from the copies: the caller's arrays may change meanwhile. `must` is for
        one that is compared whether it is its turn or not.
        """
        if not self.due() and not (must and self.why_off is None):
            return None
        try:
            return {name: array.copy() for name, array in inputs.items()}
        except MemoryError:
            self._skip("there is no memory for a copy of the inputs")
            return None

    def check(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        """Compare the outputs of an inference with the CPU's.

        Returns
        -------
        str or None
            A sentence if they differ by more than right results can; None if they agree, or if
            these inputs cannot be judged (counted in `skipped`).
        """
        if self.why_off is not None:
            return None
        try:
            return self._check(inputs, outputs)
        except Untracked as why:
            self._skip(str(why))
        except GpuEdgeError as error:
            self._skip(f"the CPU cannot repeat it: {error.what}")
        except MemoryError:  # the answer is there; only the comparison has no room
            self._skip("the CPU cannot repeat it: out of memory")
        return None

    def close(self) -> None:
        """Release what the CPU holds; may be called twice."""
        again, self._again = self._again, None
        if again is not None:
            again.close()

    def _skip(self, why: str) -> None:
        self.skipped += 1
        self.why_skipped = why
        log.debug("an inference is not compared: %s", why)

    def _check(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> str | None:
        for name in self.graph.inputs:
            if inputs[name].dtype.kind == "f" and not np.isfinite(inputs[name]).all():
                raise Untracked(f"the input '{name}' is not finite")
        names = self._comparable()
        if self._again is None:
            self._again = self._cpu.compile(self.graph)
        wanted = self._again.run(inputs)
        for name in names:
            if outputs[name].shape != wanted[name].shape:
                shapes = [list(outputs[name].shape), list(wanted[name].shape)]
                return f"'{name}' has shape {shapes[0]} instead of {shapes[1]}"
        open_ = [n for n in names if not self._is_close(n, outputs[n], wanted[n])]
        return self._judge(inputs, outputs, wanted, open_) if open_ else None

    def _comparable(self) -> list[str]:
        """Return the outputs that something is known about; none is the end of comparing."""
        if self._rehearsal is None:
            self._rehearsal = Rehearsal(self.graph, self._cpu, is_half=self._is_half)
        unknown = self._rehearsal.untracked
        names = [n for n in self.graph.outputs if n not in unknown]
        if not names:
            self.why_off = next(iter(unknown.values()), "the model has no outputs")
            raise Untracked(self.why_off)
        return names

    def _is_close(self, name: str, found: Array, wanted: Array) -> bool:
        """Tell whether an output is equal, or so near that nothing needs to be derived."""
        if np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"):
            return True
        level, most = self._levels.get(name, 0.0), MOST_HALF if self._is_half else MOST
        if found.dtype.kind != "f" or not 0.0 < level <= most:
            return False
        with np.errstate(all="ignore"):
            apart = np.abs(found.astype(np.float64) - wanted)
            return bool((apart <= QUICK * level * _level(wanted)).all())

    def _judge(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array],
        wanted: Mapping[str, Array], names: list[str],
    ) -> str | None:  # fmt: skip
        if self._rehearsal is None:
            raise TypeError("nothing was rehearsed")
        moved = self._rehearsal.deviations(inputs)
        for name, apart in moved.items():
            size = _level(wanted[name])
            if size and (level := FACTOR * _level(apart) / size):
                self._levels[name] = min(level, self._levels.get(name, level))
        if all(_said(n, outputs[n], wanted[n], moved.get(n)) is None for n in names):
            return None
        more = self._rehearsal.deviations(inputs, DOUBT)
        for name in names:
            both = np.maximum(moved[name], more[name]) if name in moved else None
            said = _said(name, outputs[name], wanted[name], both)
            if said is not None:
                return said
        return None


def _level(x: Array) -> float:
    """Return the root of the mean square, of what is finite."""
    finite = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0


def _said(name: str, found: Array, wanted: Array, moved: Array | None) -> str | None:
    """Return what is wrong with an output; None if nothing is."""
    if found.dtype.kind != "f":
        wrong = np.asarray(found != wanted)
        allowed = np.zeros(wanted.shape)
    else:
        allowed = tolerance(np.zeros(wanted.shape) if moved is None else moved)
        with np.errstate(all="ignore"):
            apart = np.abs(found.astype(np.float64) - wanted)
        is_finite = np.isfinite(wanted)
        wrong = np.where(is_finite, ~(apart <= allowed) & np.isfinite(allowed), np.isfinite(found))
        wrong &= ~np.isnan(allowed)  # nothing is promised about those
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ", ".join(str(int(i)) for i in at)
    return (
        f"{count} of {wrong.size} elements of '{name}' differ from the CPU's, such as "
        f"[{place}]: {found[at]:.9g} instead of {wanted[at]:.9g} (allowed: {allowed[at]:.2g})"
    )
