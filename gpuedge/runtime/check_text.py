"""How a page about a model is told to people: plain tables, which the command line colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpuedge.core.text import counted, duration, plain, table
from gpuedge.decide.explain import memory
from gpuedge.decide.options import DEFAULT
from gpuedge.runtime import yardstick
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.runtime.check import DeviceCheck, ModelCheck, NodeCheck


BLIND = "a factor of 10 and more"
"""How far off the table is for a software rasteriser: that much processors differ, and their load.
"""


class Table(NamedTuple):
    """A title, the heads of columns, and rows of cells."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def headline(found: ModelCheck) -> str:
    """Return what was checked, in a few lines."""
    versions = ", ".join(f"{name} {number}" for name, number in found.versions.items())
    opset = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in found.opset.items())
    lines = [f"{plain(found.model, 200)}: {counted(len(found.nodes), 'node')}, opset {opset}"]
    for word, values in (("takes", found.inputs), ("gives", found.outputs)):
        told = {
            n: "of a shape known when it runs" if kind == "?" else kind
            for n, kind in values.items()
        }
        lines.append(f"{word} {', '.join(f'{plain(n)}: {kind}' for n, kind in told.items())}")
    return "\n".join([*lines, f"with {versions}"])


def tables(found: ModelCheck) -> Iterable[Table]:
    """Yield the tables of the page, those that have rows."""
    made = [_devices(found), _refusals(found), _segments(found), _nodes(found)]
    return [one for one in made if one.rows]


def notes(found: ModelCheck) -> list[str]:
    """Return what is to be said below the tables."""
    said = []
    for device in found.devices:
        if device.error:
            said.append(f"{device.device} cannot run it: {device.error}")
        elif any(part.nbytes for part in device.segments):
            said.append(_memory(device))
    if found.cpu["error"]:
        said.append(f"the CPU cannot run it alone: {found.cpu['error']}")
    if found.devices:
        said.append(
            "Times of GPUs are predicted from public measurements of their class, and may be off "
            f"by a factor of {DEFAULT.prior_factor:g}; those of software rasterisers from what a "
            f"few kernels took here just now, and may be off by a factor of {yardstick.FACTOR:g}. "
            "gpuedge run --device D --repeat 20 measures."
        )
    blind = [d.device for d in found.devices if d.is_software and not (d.slowness or d.error)]
    if blind:
        said.append(
            f"Those of {', '.join(blind)} could not be measured, and may be off by {BLIND}."
        )
    return said


def as_text(found: ModelCheck) -> str:
    """Return the page as plain text."""
    parts = [headline(found)]
    for title, columns, rows in tables(found):
        cells = [tuple(plain(str(cell), None, lines=True) for cell in row) for row in rows]
        parts.append("\n".join([title, *table([columns, *cells])]))
    return "\n\n".join([*parts, *notes(found)])


def _devices(found: ModelCheck) -> Table:
    """Return a line for each device and one for the CPU."""
    columns = ("device", "on it", "on the CPU", "segments", "memory", "a run", "start", "name")
    alone = duration(found.cpu["ns"]) if found.cpu["ns"] else "-"
    rows = [_device(found, one) for one in found.devices]
    last = (
        CPU,
        "",
        _where(found, CPU, CPU),
        "1",
        "",
        alone,
        "",
        f"{found.cpu['kernel']}, measured",
    )
    return Table("If a device is asked for", columns, [*rows, last])


def _device(found: ModelCheck, one: DeviceCheck) -> tuple[object, ...]:
    mine, left = (_where(found, one.device, where) for where in (one.device, CPU))
    if one.error:
        return one.device, mine, left, "-", "-", "-", "-", plain(one.name)
    kind = f"{plain(one.name)} (as {one.speeds})"
    times = [f"about {duration(ns, 2)}" for ns in (one.predicted_ns, one.startup_ns or 0)]
    segments = str(len(one.segments))
    if 0 < len(one.auto) < len(one.segments):
        segments = f"{segments}, {len(one.auto)} under auto"
    return one.device, mine, left, segments, memory(one.nbytes), *times, kind


def _memory(one: DeviceCheck) -> str:
    """Return what a device's memory is for."""
    uses = Counter[str]()
    for part in one.segments:
        uses.update(part.nbytes)
    alive = sum(part.most_alive for part in one.segments)
    return (
        f"memory on {one.device}: {memory(uses['constant'])} for weights, {memory(uses['input'])} "
        f"for inputs, {memory(uses['output'])} for outputs, {memory(uses['scratch'])} for what "
        f"kernels hand to each other, of which {memory(alive)} is needed at once."
    )


def _where(found: ModelCheck, asked: str, device: str) -> str:
    return str(sum(node.places[asked].device == device for node in found.nodes))


def _refusals(found: ModelCheck) -> Table:
    """Return every node that a device cannot run, with the devices and the reason."""
    rows: list[tuple[object, ...]] = []
    for node in found.nodes:
        whys: dict[str, list[str]] = {}
        for asked, place in node.places.items():
            if place.why:
                whys.setdefault(place.why, []).append(asked)
        rows += [
            (*_about(node), ", ".join(node.reads), _all_of(devices, found), why)
            for why, devices in whys.items()
        ]
    return Table("Cannot run there", ("node", "operator", "opset", "reads", "on", "why"), rows)


def _about(node: NodeCheck) -> tuple[str, str, str]:
    domain = f"{node.domain}." if node.domain else ""
    return plain(node.name, 40), plain(f"{domain}{node.op}", 40), str(node.opset or "?")


def _all_of(devices: Sequence[str], found: ModelCheck) -> str:
    every = [one.device for one in found.devices]
    return "every device" if len(every) > 1 and set(every) <= set(devices) else ", ".join(devices)


def _segments(found: ModelCheck) -> Table:
    """Return the segments of devices that run the model in several."""
    rows: list[tuple[object, ...]] = []
    for one in found.devices:
        for at, part in enumerate(one.segments if len(one.segments) > 1 else ()):
            first, last = plain(part.nodes[0], 40), plain(part.nodes[-1], 40)
            span = first if len(part.nodes) == 1 else f"{first} ... {last}"
            taken = memory(sum(part.nbytes.values())) if part.nbytes else "-"
            stays = part.device == CPU or at in one.auto
            where = part.device if stays else f"{part.device} (auto: {CPU})"
            rows.append((
                one.device, where, str(len(part.nodes)), str(part.launches or "-"), taken,
                duration(part.predicted_ns, 2), span,
            ))  # fmt: skip
    columns = ("asked for", "runs on", "nodes", "dispatches", "memory", "about", "from ... to")
    return Table("Segments, in order", columns, rows)


def _nodes(found: ModelCheck) -> Table:
    """Return every node: with one device its kernel, with several where it runs of each."""
    asked = [one.device for one in found.devices] or [CPU]
    rows: list[tuple[object, ...]] = []
    for node in found.nodes:
        place = node.places[asked[0]]
        cells = ["yes" if node.places[d].device == d else node.places[d].device for d in asked]
        cells = cells if len(asked) > 1 else [place.device, place.kernel]
        about = _about(node)[:2]
        rows.append((*about, *(cell or "nowhere" for cell in cells), ", ".join(node.gives)))
    where = asked if len(asked) > 1 else ("runs on", "kernel")
    return Table("Every node", ("node", "operator", *where, "gives"), rows)
