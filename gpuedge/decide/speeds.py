"""What a model is predicted to take on a kind of GPU, from public measurements, without opening it.

The time of one inference is modelled as

    overhead + launches * launch + bytes_in / rate_in + bytes_out / rate_out
             + max(bytes_moved / bandwidth, sum over kernel classes of flops / rate of the class)

The maximum is the roofline bound (Williams, Waterman, Patterson: "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009), taken over the whole model and
not kernel by kernel, because `Work` does not say which kernel moves which bytes. That can
underestimate a mixed graph by a factor of two at most, which is inside `ERROR`.

The numbers are rows of ``shaders/speeds.json``, each with its source. No code names a maker: a row
is found by the tables that the capability database has of classes, families and names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuedge.capdb import classify
from gpuedge.capdb.identity.families import load_families
from gpuedge.capdb.identity.subject import Subject, subject
from gpuedge.capdb.identity.texts import folded
from gpuedge.core.errors import ConfigError
from gpuedge.core.identity import Identity
from gpuedge.safety.paths import data_dir

if TYPE_CHECKING:  # executors.base pulls numpy in
    from gpuedge.executors.base import Work

SCHEMA = "gpuedge.speeds/1"

ERROR = 3.0
"""Error of a prediction as a factor, one standard deviation of ln(latency); never claim less. What
is claimed too small keeps the very devices from being tried that refute it."""

KERNEL_CLASSES = ("conv", "matmul", "map")
"""Classes of `Work.flops`, in the order of a row's rates."""

UNKNOWN = "generic"
"""The row of a device that no other row fits."""

MOST_NS = 10**18
"""Thirty years; a longer time is a mistake of whoever counted the work."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """A row of the table: times in nanoseconds, bytes and operations per nanosecond.

    Attributes
    ----------
    id : str
        What `class_of` returns.
    device_class : str
        The tuning class it is of; empty where any will do.
    overhead_ns, launch_ns : float
        Of each inference, and of each of its launches.
    bytes_in, bytes_out, bytes_moved : float
        Rates: host to device, device to host, memory of the device.
    flops : tuple of float
        Rates of `KERNEL_CLASSES`.
    opening_ns, compile_ns : float
        Opening the device, and compiling each pass.
    families, layers, words : frozenset of str
        Families of the capability database, layers round the driver, words of the name; empty where
        any will do.
    models : tuple of int or None
        First number of a model, and the one after the last.
    device_type : str or None
        As Vulkan spells it.
    scales : mapping
        What `flops` is multiplied by at each API level.
    """

    id: str
    device_class: str
    overhead_ns: float
    launch_ns: float
    bytes_in: float
    bytes_out: float
    bytes_moved: float
    flops: tuple[float, ...]
    opening_ns: float
    compile_ns: float
    families: frozenset[str] = frozenset()
    layers: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    models: tuple[int, int] | None = None
    device_type: str | None = None
    scales: Mapping[str, float] = field(default_factory=dict)

    def fits(self, device_class: str, who: Subject, device_type: str | None) -> bool:
        """Say whether the row is about a device; what is not known of it never fits."""
        model = self.models
        return (
            self.device_class in ("", device_class)
            and (not self.families or who.family in self.families)
            and (model is None or (who.model is not None and model[0] <= who.model < model[1]))
            and self.device_type in (None, device_type)
            and (not self.layers or not self.layers.isdisjoint(who.layers or ()))
            and (not self.words or not self.words.isdisjoint(folded(who.name or "").split()))
        )


@lru_cache(maxsize=1)
def table() -> tuple[Speeds, ...]:
    """Return the rows in order.

    Raises
    ------
    ConfigError (GE-101)
        The file is missing, or holds what is no row.
    """
    path = data_dir("shaders") / "speeds.json"
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError(f"the schema is not {SCHEMA!r}")
        return tuple(_row(record, document["levels"]) for record in document["rows"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error!r}") from error


def _row(record: Mapping[str, Any], levels: Mapping[str, float]) -> Speeds:
    match = record["match"]
    (overhead, launch), rates, (opening, compiling) = record["us"], record["gbs"], record["ms"]
    bytes_in, bytes_out, bytes_moved = rates
    flops = tuple(record["gops"])
    if len(flops) != len(KERNEL_CLASSES) or min(*rates, *flops) <= 0:
        raise ValueError(f"{record['id']} lacks a rate")
    return Speeds(
        record["id"], match.get("class", ""), overhead * 1e3, launch * 1e3, bytes_in, bytes_out,
        bytes_moved, flops, opening * 1e6, compiling * 1e6,
        **{key: frozenset(match.get(key, ())) for key in ("families", "layers", "words")},
        models=tuple(match["models"]) if "models" in match else None,
        device_type=match.get("type"),
        scales={**levels, **record.get("levels", {})},
    )  # fmt: skip


def class_of(identity: Identity) -> str:
    """Return which row of the table a device has, ``generic`` where nothing is known of it.

    >>> class_of(Identity("vulkan", "Mali-G610", "linux"))
    'mali-valhall'
    """
    device_class, who = classify(identity), subject(identity, host={})
    named, _ = load_families().named(who.name or "")
    kind = "CPU" if named is not None and named.is_software else identity.device_type
    return next((row.id for row in table() if row.fits(device_class, who, kind)), UNKNOWN)


def speeds_of(device_class: str) -> Speeds:
    """Return the row that `class_of` named; that of ``generic`` for one that is not in the table.

    >>> speeds_of("mali-valhall").flops[0]
    76
    """
    rows = {row.id: row for row in table()}
    return rows.get(device_class, rows[UNKNOWN])


def predict(work: Work, row: Speeds, level: str) -> int:
    """Return the predicted nanoseconds of one inference.

    Parameters
    ----------
    work : Work
        As counted from the plan for that device, or from the graph.
    row : Speeds
    level : str
        The API level: ``vulkan``, ``wgpu``, ``gles31``, ``gles30``, ``gles20``.
    """
    scale = row.scales.get(level, 1.0)
    rates = dict(zip(KERNEL_CLASSES, row.flops, strict=True))
    slowest = min(row.flops)
    compute = sum(flops / rates.get(kind, slowest) for kind, flops in sorted(work.flops.items()))
    ns = row.overhead_ns + work.launches * row.launch_ns
    ns += work.bytes_in / row.bytes_in + work.bytes_out / row.bytes_out
    ns += max(work.bytes_moved / row.bytes_moved, compute / scale)
    return _whole(ns)


def startup_ns(work: Work, row: Speeds) -> int:
    """Return the predicted nanoseconds of opening the device and compiling the model, once."""
    return _whole(row.opening_ns + work.launches * row.compile_ns)


def _whole(ns: float) -> int:
    return round(max(1.0, min(ns, MOST_NS)))
