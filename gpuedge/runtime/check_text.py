"""How a page about a model is told to people: plain tables, which the command line colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuedge.core.text import Table, counted, duration, plain
from gpuedge.decide.explain import memory
from gpuedge.decide.options import DEFAULT
from gpuedge.runtime import yardstick
from gpuedge.runtime.strings import CPU

if TYPE_CHECKING:
    from gpuedge.runtime.check import DeviceCheck, ModelCheck, NodeCheck, PackCheck


BLIND = "a factor of 10 and more"
"""How far off the table is for a software rasteriser: that much processors differ, and their load.
"""


def parts(page: ModelCheck) -> Iterator[str | Table]:
    """Yield what the page says, from top to bottom; tables may have no rows."""
    yield f"{_headline(page)}\n"
    yield _devices(page)
    yield _refusals(page)
    yield _segments(page)
    yield _nodes(page)
    yield from _notes(page)


def as_text(page: ModelCheck) -> str:
    """Return the page as plain text."""
    shown = (part for part in parts(page) if isinstance(part, str) or part.rows)
    return "\n\n".join(str(part).strip("\n") for part in shown)


def _headline(page: ModelCheck) -> str:
    """Return what was checked, in a few lines."""
    versions = ", ".join(f"{name} {number}" for name, number in page.versions.items())
    opset = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in page.opset.items())
    lines = [f"{plain(page.model, 200)}: {counted(len(page.nodes), 'node')}, opset {opset}"]
    for verb, types in (("takes", page.inputs), ("gives", page.outputs)):
        told = (
            f"{plain(name)}: {'of a shape known when it runs' if kind == '?' else kind}"
            for name, kind in types.items()
        )
        lines.append(f"{verb} {', '.join(told)}")
    return "\n".join([*lines, f"with {versions}"])


def _notes(page: ModelCheck) -> Iterator[str]:
    """Yield what is to be said below the tables."""
    yield from () if page.pack is None else _packed(page.pack)
    if not page.is_ok and not (page.pack and any(page.pack.golden.values())):
        may_move = "" if page.fallback == CPU else ", and fallback='error' keeps them off the CPU"
        yield f"No device runs every node{may_move}: a session raises an error."
    for device in page.devices:
        if device.error:
            yield f"{device.device} cannot run it: {device.error}"
        elif any(segment.nbytes for segment in device.segments):
            yield _memory(device)
    if page.cpu["error"]:
        yield f"the CPU cannot run it alone: {page.cpu['error']}"
    if page.devices:
        yield (
            "Times of GPUs are predicted from public measurements of their class, and may be off "
            f"by a factor of {DEFAULT.prior_factor:g}; those of software rasterisers from what a "
            f"few kernels took here just now, and may be off by a factor of {yardstick.FACTOR:g}. "
            "gpuedge run --device D --repeat 20 measures."
        )
    blind = [d.device for d in page.devices if d.is_software and not (d.slowness or d.error)]
    if blind:
        yield f"Those of {', '.join(blind)} could not be measured, and may be off by {BLIND}."


def _packed(pack: PackCheck) -> Iterator[str]:
    """Yield what a packed model is, and what came of its golden values."""
    yield (
        f"packed by gpuedge {pack.gpuedge} from {plain(pack.model) or 'a model'} (format "
        f"{pack.format}, {counted(pack.kernels, 'kernel')} of language version {pack.language})"
    )
    for note in pack.notes:
        yield f"Of the packed model, {note}."
    if not pack.golden:
        yield "It holds no golden values to compare with."
    right = [device for device, wrong in pack.golden.items() if not wrong]
    if right:
        yield f"golden values come out right on {', '.join(right)}"
    for device, wrong in pack.golden.items():
        if wrong:
            yield f"GOLDEN VALUES NOT CONFIRMED on {device}: {wrong}"


def _memory(device: DeviceCheck) -> str:
    """Return what a device's memory is for."""
    uses = Counter[str]()
    for segment in device.segments:
        uses.update(segment.nbytes)
    alive = sum(segment.most_alive for segment in device.segments)
    return (
        f"memory on {device.device}: {memory(uses['constant'])} for weights, "
        f"{memory(uses['input'])} for inputs, {memory(uses['output'])} for outputs, "
        f"{memory(uses['scratch'])} for what kernels hand to each other, of which {memory(alive)} "
        "is needed at once."
    )


def _devices(page: ModelCheck) -> Table:
    """Return a line for each device and one for the CPU."""
    columns = ("device", "on it", "on the CPU", "segments", "memory", "a run", "start", "name")
    rows: list[Sequence[object]] = []
    for device in page.devices:
        on_it, on_cpu = (_count(page, device.device, where) for where in (device.device, CPU))
        facts = ["-"] * 4
        name = plain(device.name)
        if not device.error:
            segments, taken = len(device.segments), len(device.auto)
            under_auto = f", {taken} under auto" if 0 < taken < segments else ""
            times = (f"about {duration(ns or 0, 2)}"
                     for ns in (device.predicted_ns, device.startup_ns))  # fmt: skip
            facts = [f"{segments}{under_auto}", memory(device.nbytes), *times]
            name += f" (as {device.speeds})"
        rows.append((device.device, on_it, on_cpu, *facts, name))
    alone = duration(page.cpu["ns"]) if page.cpu["ns"] else "-"
    engine = f"{page.cpu['kernel']}, measured"
    rows.append((CPU, "", _count(page, CPU, CPU), "1", "", alone, "", engine))
    return Table("If a device is asked for", columns, rows)


def _count(page: ModelCheck, asked: str, device: str) -> str:
    return str(sum(node.places[asked].device == device for node in page.nodes))


def _refusals(page: ModelCheck) -> Table:
    """Return every node that a device cannot run, with the devices and the reason."""
    every = {device.device for device in page.devices}
    rows: list[Sequence[object]] = []
    for node in page.nodes:
        devices_by_why: dict[str, list[str]] = {}
        for asked, place in node.places.items():
            if place.why:
                devices_by_why.setdefault(place.why, []).append(asked)
        for why, devices in devices_by_why.items():
            is_all = len(every) > 1 and every <= set(devices)
            where = "every device" if is_all else ", ".join(devices)
            opset, reads = str(node.opset or "?"), ", ".join(node.reads)
            rows.append((*_about(node), opset, reads, where, why))
    return Table("Cannot run there", ("node", "operator", "opset", "reads", "on", "why"), rows)


def _about(node: NodeCheck) -> tuple[str, str]:
    domain = f"{node.domain}." if node.domain else ""
    return plain(node.name, 40), plain(f"{domain}{node.op}", 40)


def _segments(page: ModelCheck) -> Table:
    """Return the segments of devices that run the model in several."""
    rows: list[Sequence[object]] = []
    for device in page.devices:
        for at, segment in enumerate(device.segments if len(device.segments) > 1 else ()):
            first, last = plain(segment.nodes[0], 40), plain(segment.nodes[-1], 40)
            is_left = segment.device != CPU and at not in device.auto
            rows.append((
                device.device, f"{segment.device} (auto: {CPU})" if is_left else segment.device,
                str(len(segment.nodes)), str(segment.launches or "-"),
                memory(sum(segment.nbytes.values())) if segment.nbytes else "-",
                duration(segment.predicted_ns, 2),
                first if len(segment.nodes) == 1 else f"{first} ... {last}",
            ))  # fmt: skip
    columns = ("asked for", "runs on", "nodes", "dispatches", "memory", "about", "from ... to")
    return Table("Segments, in order", columns, rows)


def _nodes(page: ModelCheck) -> Table:
    """Return every node: with one device its kernel, with several where it runs of each."""
    asked = [device.device for device in page.devices] or [CPU]
    is_one = len(asked) == 1
    rows: list[Sequence[object]] = []
    for node in page.nodes:
        places = [node.places[device] for device in asked]
        cells = ["yes" if p.device == d else p.device for p, d in zip(places, asked, strict=True)]
        cells = [places[0].device, places[0].kernel] if is_one else cells
        rows.append((*_about(node), *(cell or "nowhere" for cell in cells), ", ".join(node.gives)))
    where = ("runs on", "kernel") if is_one else asked
    return Table("Every node", ("node", "operator", *where, "gives"), rows)
