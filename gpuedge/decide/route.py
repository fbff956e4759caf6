"""An API route to a GPU, as it is known before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass

from gpuedge.decide.belief import Belief


@dataclass(frozen=True, slots=True)
class Route:
    """One way to run one model on a GPU.

    Attributes
    ----------
    device : str
        Device string.
    predicted_ns : int
        One inference, by the device's class and what its other models showed
        (`gpuedge.decide.speeds`).
    startup_ns : int
        Opening and compiling: as an earlier launch measured it, else predicted.
    belief : Belief or None
        What earlier launches came to believe of this model here; None where it was never measured.
    is_demoted : bool
        Whether the capability database puts it behind the others.
    """

    device: str
    predicted_ns: int
    startup_ns: int
    belief: Belief | None = None
    is_demoted: bool = False
