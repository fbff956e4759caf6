"""The sides of a choice while a model serves: the CPU, and each route to a GPU with its state."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from gpuedge.decide.belief import Belief, prior
from gpuedge.decide.options import Options
from gpuedge.decide.route import Route

CPU = "cpu"
RECENT = 31
"""Latencies of a side that are kept; their median counts."""

Phase = Literal["closed", "opening", "trial", "ready", "lost", "late", "failed"]
Kind = Literal["serve", "trial", "burst"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Who runs the next request.

    Attributes
    ----------
    side : str
        ``cpu`` or a device string.
    kind : {"serve", "trial", "burst"}
        ``trial``: the device is not trusted yet, so the answer is the CPU's and the device's is
        compared with it. ``burst``: a look at the side that is not in use.
    """

    side: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a launch leaves for the next one.

    Attributes
    ----------
    beliefs, startups : dict
        By device, of the routes that were measured; nanoseconds.
    cpu_ns : int
        Latency of the CPU; 0 where it never ran.
    requests : int
    """

    beliefs: dict[str, Belief]
    startups: dict[str, int]
    cpu_ns: int
    requests: int


class RouteState:
    """One route while a model serves: what is believed of it, and what it is doing.

    Attributes
    ----------
    phase : str
        ``closed``: not open, perhaps not yet worth it; ``opening``; ``trial``: open, being compared
        or waiting for it; ``ready``: open and compared; ``lost``: compared, slower, and closed
        again; ``late``: opening stalled, tried again at `retry_ns`; ``failed``: not to be used in
        this launch.
    belief : Belief
        Of ln(its latency / the CPU's).
    since : int
        Requests served when its account of losses began.
    """

    def __init__(self, route: Route, cpu_ns: int, options: Options) -> None:
        self.route = route
        self.phase: Phase = "closed"
        self.startup_ns = route.startup_ns
        self.predicted_ns = route.predicted_ns
        self.belief = route.belief or prior(route.predicted_ns, cpu_ns, options.prior_factor)
        self.since = self.retries = self.retry_ns = 0
        self.recent: deque[int] = deque(maxlen=RECENT)

    @property
    def is_open(self) -> bool:
        """Whether it can serve."""
        return self.phase in ("trial", "ready")
