"""What a model is predicted to take on a kind of GPU, from public measurements, without opening it.

The time of one inference is modelled as

    overhead + launches * launch + bytes_in / rate_in + bytes_out / rate_out
             + max(bytes_moved / bandwidth, sum over kernel classes of flops / rate of the class)

The maximum is the roofline bound (Williams, Waterman, Patterson: "Roofline: an insightful visual
performance model for multicore architectures", CACM 52(4), 2009), taken over the whole model and
not kernel by kernel, because `Work` does not say which kernel moves which bytes. That can
underestimate a mixed graph by a factor of two at most, which is inside the error claimed
(`Options.prior_factor`).

The numbers are rows of ``shaders/speeds.json``, each with its source. No code names a maker: a row
is found by the tables that the capability database has of classes, families and names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuedge.capdb import classify
from gpuedge.capdb.identity.families import load_families
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.identity.texts import folded
from gpuedge.core.errors import ConfigError
from gpuedge.core.identity import Identity
from gpuedge.decide.options import MOST
from gpuedge.safety.paths import data_dir

if TYPE_CHECKING:  # executors.base pulls numpy in
    from gpuedge.executors.base import Work

SCHEMA = "gpuedge.speeds/1"

KERNEL_CLASSES = ("conv", "matmul", "map")
"""Classes of `Work.flops`, in the order of a row's rates."""

UNKNOWN = "generic"
"""The row of a device that no other row fits."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """A row of the table: times in nanoseconds, bytes and operations per nanosecond.

    Attributes
    ----------
    id : str
        What `class_of` returns.
    match : mapping
        What is asked of a device: its tuning ``class``, ``families`` of the capability database,
        ``models`` by number, ``type`` as Vulkan spells it, ``layers`` round the driver, ``words``
        of its name. Of each, one must be among the values.
    overhead_ns, launch_ns : float
        Of each inference, and of each of its launches.
    bytes_in, bytes_out, bytes_moved : float
        Rates: host to device, device to host, memory of the device.
    flops : tuple of float
        Rates of `KERNEL_CLASSES`.
    opening_ns, compile_ns : float
        Opening the device, and compiling each pass.
    scales : mapping
        What `flops` is multiplied by at each API level.
    """

    id: str
    match: Mapping[str, Container[object]]
    overhead_ns: float
    launch_ns: float
    bytes_in: float
    bytes_out: float
    bytes_moved: float
    flops: tuple[float, ...]
    opening_ns: float
    compile_ns: float
    scales: Mapping[str, float]


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
    match = {key: [value] if isinstance(value, str) else value
             for key, value in record["match"].items()}  # fmt: skip
    if "models" in match:
        match["models"] = range(*match["models"])
    overhead, launch = record["us"]
    opening, compiling = record["ms"]
    (up, down, moved), flops = record["gbs"], tuple(record["gops"])
    if len(flops) != len(KERNEL_CLASSES) or min(up, down, moved, *flops) <= 0:
        raise ValueError(f"{record['id']} lacks a rate")
    return Speeds(
        record["id"], match, overhead * 1e3, launch * 1e3, up, down, moved, flops,
        opening * 1e6, compiling * 1e6, {**levels, **record.get("levels", {})},
    )  # fmt: skip


@lru_cache(maxsize=64)
def class_of(identity: Identity) -> str:
    """Return which row of the table a device has, ``generic`` where nothing is known of it.

    >>> class_of(Identity("vulkan", "Mali-G610", "linux"))
    'mali-valhall'
    """
    device_class, who = classify(identity), subject(identity, host={})
    named, _ = load_families().named(who.name or "")
    kind = "CPU" if named is not None and named.is_software else identity.device_type
    known: dict[str, Sequence[object]] = {
        "class": [device_class], "families": [who.family], "models": [who.model], "type": [kind],
        "layers": [*(who.layers or ())], "words": folded(who.name or "").split(),
    }  # fmt: skip
    fitting = (
        row.id for row in table()
        if all(any(fact in wanted for fact in known[key]) for key, wanted in row.match.items())
    )  # fmt: skip
    return next(fitting, UNKNOWN)


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


def scaled(row: Speeds, slowness: Mapping[str, float]) -> Speeds:
    """Return a row for a machine where kernels of each class take so many times as long.

    What a launch, a copy and compiling take is longer on a busy machine too, but hardly shorter on
    a fast one.
    """
    if not slowness:
        return row
    mean = math.exp(math.fsum(map(math.log, slowness.values())) / len(slowness))
    flops = (rate / slowness[kind] for kind, rate in zip(KERNEL_CLASSES, row.flops, strict=True))
    other = max(mean, 1.0)
    return replace(
        row, overhead_ns=row.overhead_ns * other, launch_ns=row.launch_ns * other,
        bytes_in=row.bytes_in / other, bytes_out=row.bytes_out / other,
        bytes_moved=row.bytes_moved / slowness["map"], flops=tuple(flops),
        opening_ns=row.opening_ns * other, compile_ns=row.compile_ns * other,
    )  # fmt: skip


def startup_ns(work: Work, row: Speeds) -> int:
    """Return the predicted nanoseconds of opening the device and compiling the model, once."""
    return _whole(row.opening_ns + work.launches * row.compile_ns)


def mixture(
    cpu_ns: Sequence[int], gpu_ns: Sequence[int | None], whole_ns: int | None = None
) -> tuple[list[int], int]:
    """Return which segments of a model a GPU is predicted to run faster, and what all take then.

    Parameters
    ----------
    cpu_ns, gpu_ns : sequence of int
        By segment; None where the GPU cannot run it. What crosses between host and device is part
        of the latter: neighbours of a segment that the GPU can run are ones that it cannot.
    whole_ns : int, optional
        The whole model on the CPU, where it was timed: the segments are scaled to it.
    """
    total = sum(cpu_ns)
    if whole_ns is not None:
        cpu_ns = [ns * whole_ns // total for ns in cpu_ns]
    best = [
        ns if there is None else min(ns, there) for ns, there in zip(cpu_ns, gpu_ns, strict=True)
    ]
    return [i for i, (ns, mine) in enumerate(zip(best, cpu_ns, strict=True)) if ns < mine], sum(
        best
    )


def _whole(ns: float) -> int:
    return round(max(1.0, min(ns, MOST)))
