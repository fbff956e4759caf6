"""Every constant of the decision, in one place: the product and the simulator read the same object.

Where a constant comes from is said beside it. "Study" is the simulation in docs/decision.md,
repeated by `benchmarks/fleet`; the README there says how to fit the noise from traces of real
devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

MOST = 10**18
"""Beyond any time in nanoseconds, size or count: thirty years."""

Count = Annotated[int, range(MOST + 1)]
"""A time in nanoseconds, a size or a number of things, where a record of them is read back."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far a comparison of two alternatives may be from the long run, in nats.

    Attributes
    ----------
    window : float
        Standard deviation of what a whole window shares: heat, other programs.
    run : float
        Least standard deviation of one run that is believed.
    bias : float
        Added to what a window shows.
    """

    window: float = 0.21
    run: float = 0.35
    bias: float = -0.01


@dataclass(frozen=True, slots=True)
class Options:
    """The constants. Times are nanoseconds unless the name says otherwise."""

    # -- belief: theta = ln(latency on the GPU / latency on the CPU)
    prior_factor: float = 3.0
    """Error claimed of a prediction (one standard deviation, as a factor). Study: 2 to 4 make no
    difference, 1.5 is dangerous, because a prediction that is too sure of itself keeps the very
    devices from being tried that refute it."""
    shared: float = 0.7
    """Share of the surprise about a device's other models that is carried over to a new one."""
    correlation: float = 0.9
    """Correlation of the errors of two predictions for one model and device: two API routes are one
    chip."""
    lasting: float = 0.10
    """Standard deviation that no number of windows takes away."""
    drift_per_s: float = 0.2 * 0.2 / 600
    """Variance that a second adds: theta wanders by 0.2 nats in ten minutes. Chosen, not
    measured."""
    forgetting: float = 0.35 * 0.35
    """Most variance that time alone adds."""

    # -- noise of one comparison
    trial: Noise = Noise()
    warm: Noise = Noise(window=0.35)
    """Of the runs that warm a GPU up, beside a CPU that serves."""
    burst: Noise = Noise(window=0.27)
    routes: Noise = Noise(window=0.06, bias=0.0)
    """Of two routes to one GPU, which share its heat and its load."""

    # -- opening
    exploration: float = 5.0
    """Runs on a GPU that trying it takes, warm-up and trial; part of the price of opening one that
    was never measured. In the simulation 3 finds more wins (missed in launch 5: 2 % of them) and 10
    harms less (2 %); the mean hardly moves."""
    launches: int = 8
    """Launches whose median says how many requests to expect."""
    retries: int = 3
    """How often an opening that stalled is tried again in a launch."""
    retry_s: float = 30.0
    """After how long at first; then twice as long each time."""

    # -- trial
    warm_up: int = 2
    warm_up_ns: int = 150_000_000
    """First runs on a GPU that was opened, beside a CPU that serves: so many, or until they took so
    long together. They say nothing. More of them would cost a short launch more than they save."""
    warm_runs: int = 1
    """Runs after those; the first evidence."""
    eps: float = 0.005
    """Expected loss, as a part of the CPU's latency, below which nothing is tried before the first
    request (`Policy(decide="load")`)."""
    rough: int = 2
    """First runs of a trial, on the GPU. Every one costs its time twice, as the CPU answers."""
    beside: int = 8
    """Runs of what serves, just before a trial, that it begins with: they cost nothing."""
    block: int = 4
    """Runs of one side in a row, of fast models."""
    fast_ns: int = 30_000_000
    """A model whose first run on the CPU is up to this long is fast: it is run in blocks."""
    switch_ns: int = 100_000_000
    """Up to this length the first run after a switch is dropped: what a switch costs is bounded, so
    it says little of longer ones."""
    max_runs: int = 240
    """Runs of a trial, dropped ones included."""
    enough: float = 2.0
    """A trial ends once the error of its own runs is below this part of the error of the window (as
    variances): bursts at other times tell more than a longer window."""
    hopeless: float = 5.0
    """A trial ends where a run on the GPU takes this many times as long as the CPU."""

    # -- in service
    burst_runs: int = 6
    burst_dropped: int = 2
    burst_beside: int = 6
    """Runs of the side in use before a burst, and after it, that it is compared with."""
    burst_switch: int = 1
    """First runs after a burst that are not counted."""
    burst_gap_s: float = 15.0
    bursts: int = 30
    """Bursts in a launch at most."""
    switches_per_minute: int = 2
    stay: float = 3.0
    """After the first switch of a launch the expected loss of the other side must be so many times
    smaller. In the simulation a third fewer switches and no loss; 2 to 8 make no difference."""
    surprise: float = 0.7
    """Nats by which the latency in use must have moved before the other side is looked at."""
    contradiction: float = 2.5
    """Standard deviations by which a burst contradicts what was believed: once it counts as noise,
    twice in a row as a change."""
    put_away: float = 10.0
    """A GPU that lost is closed where looking at it again would pay only after so many times the
    requests served so far."""

    def retry_ns(self, earlier: int) -> int:
        """Return after how long an opening is tried again that was tried again `earlier` times."""
        return round(self.retry_s * 2.0**earlier * 1e9)


DEFAULT = Options()
