"""What the fault matrix consists of: each cell of the kit, probed, and late ones in service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import kit

ENDING = ("segv", "bus", "ill", "fpe", "abort", "stackoverflow")
"""Faults that end a process by a signal; those whose names begin with exit or quit end it, too."""

HANGING = ("hang", "spin")
LATE = ("compile", "submit", "read", "teardown")
"""Points that an application comes by after a probe has passed."""

DATA = frozenset(
    {
        "wrong", "zero-output", "untouched-output", "torn-output", "nan", "unstable",
        "unstable-zero", "stale",
    }
)  # fmt: skip
REFUSALS = {
    "lost": ("device-lost",),
    "oom-host": ("out-of-memory",),
    "oom-device": ("out-of-memory",),
    "compile-failed": ("compile-failed",),
}
"""Faults that an API can tell of, and the reason codes that are right in service."""

LATER = {"submit": ":4", "read": ":4"}
LATER_BY_API = {
    "gles31": {"compile": ":6", "submit": ":10", "read": ":6"},
    "gles30": {"compile": ":24", "submit": ":20", "read": ":40"},
    "gles20": {"compile": ":24", "submit": ":40", "read": ":9"},
}
"""Which call fails in service, after the device was opened and, but for `compile`, some requests
have gone well. Opening an OpenGL ES device compiles, draws and reads, too."""

LATER_REFUSAL = {"gles31": ":6+", "gles30": ":12+", "gles20": ":12+"}
"""The same for shaders that do not compile, which is counted at those alone. From then on none
does: where one variant of a kernel is refused, another one takes its place."""

NO_CODE = frozenset({"missing-library", "missing-symbol", "bad-manifest", "wrong-format"})
"""Faults of what names a driver, in which no code of the kit runs that could report."""

DEADLINE_S, SHORT_S = 40.0, 10.0
"""Deadlines of probes: one that nothing but a hang reaches, and one for hangs."""

WATCHDOG_S, SHORT_WATCHDOG_S = 30.0, 5.0


@dataclass(frozen=True)
class Planned:
    """A cell of the matrix.

    Attributes
    ----------
    part : {"probe", "process", "inline"}
        Probed before anything; in service in a host process; in service in the application.
    fault : kit.Fault
    api : str
    status : str
        What the probe's row says; empty in service.
    codes : tuple of str
        Reason codes that are right.
    others : tuple of (str, str)
        Statuses and codes that are right as well.
    """

    part: str
    fault: kit.Fault
    api: str
    status: str
    codes: tuple[str, ...]
    others: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What `--only` selects by, and results are kept under."""
        return f"{self.part} {self.api} {self.fault}"

    @property
    def is_waiting(self) -> bool:
        """Whether most of its time is waited and not computed."""
        hangs = self.fault.name in ("hang", "slow") or "deadline" in self.codes
        return hangs and self.fault.name != "spin"

    def trial(self, seed: int) -> dict[str, Any]:
        """Return the trial with this seed, as matrix_trials.py takes it."""
        is_slow = self.is_waiting or self.fault.name == "spin"
        return {
            "id": f"{self.name}-{seed}".replace(" ", "-").replace("/", "-"),
            "name": self.name,
            "part": "probe" if self.part == "probe" else "service",
            "isolation": self.part,
            "api": self.api,
            "fault": str(self.fault),
            "seed": seed,
            "status": self.status,
            "codes": list(self.codes),
            "others": list(self.others),
            "deadline_s": SHORT_S if is_slow else DEADLINE_S,
            "watchdog_s": SHORT_WATCHDOG_S if is_slow else WATCHDOG_S,
            "is_data": self.fault.name in DATA,
            "must_fire": self.fault.name not in NO_CODE,
        }


def ends_process(fault: kit.Fault) -> bool:
    """Tell whether a fault ends the process that the driver lives in."""
    return fault.name in ENDING or fault.name.startswith(("exit", "quit"))


def plan() -> list[Planned]:
    """Return the whole matrix."""
    probed = [Planned("probe", c.fault, c.api, c.status, c.codes, c.also) for c in kit.cells()]
    served = list(dict.fromkeys(_served(kit.cells())))
    return probed + served


def _served(cells: Iterable[kit.Cell]) -> Iterator[Planned]:
    for cell in cells:
        fault = cell.fault
        if fault.point not in LATE or cell.status == "ok":
            continue
        late = replace(fault, when=_when(fault, cell.api))
        if ends_process(fault) or fault.name in HANGING:
            code = "device-hung" if fault.name in HANGING else "worker-died"
            codes = () if fault.point == "teardown" else (code,)
            yield Planned("process", late, cell.api, "", codes)
        elif fault.name in REFUSALS and fault.point != "teardown":
            yield from _refusals(late, cell)
        elif fault.name in DATA and cell.status == "wrong" and not _is_no_drift(cell):
            first = ":1" if fault.point == "compile" else late.when
            yield Planned("inline", replace(fault, when=f"{first}+"), cell.api, "", ("drifted",))


def _is_no_drift(cell: kit.Cell) -> bool:
    """Tell of numbers that no right results are held to.

    The sign of a zero, and the last bit of a fraction, which is what OpenGL ES' `unstable` changes.
    """
    name = cell.fault.name
    return name == "unstable-zero" or (name == "unstable" and cell.api.startswith("gles"))


def _when(fault: kit.Fault, api: str) -> str:
    """Return which call fails, so that it does in service."""
    if fault.name == "compile-failed":
        return LATER_REFUSAL.get(api, ":1+")
    return LATER_BY_API.get(api, LATER).get(fault.point, "")


def _refusals(late: kit.Fault, cell: kit.Cell) -> Iterator[Planned]:
    """Yield faults that an API tells of; what kills the process is survived by a host only."""
    if cell.status == "crashed":
        # Now and then it says that the device is lost before it kills the process.
        yield Planned("process", late, cell.api, "", ("worker-died", "device-lost"))
        return
    codes = REFUSALS[late.name]
    if late.point == "compile":
        codes = tuple(dict.fromkeys((*codes, "compile-failed")))
    if "device-lost" in cell.codes:  # how this API tells of it
        codes = tuple(dict.fromkeys((*codes, "device-lost")))
    for part in ("inline", "process"):
        yield Planned(part, late, cell.api, "", codes)
