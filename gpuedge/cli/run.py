"""``gpuedge run``: run an ONNX model on arrays from files, and say where it ran and why.

All files are read and all arguments checked before any driver is touched.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import gpuedge
from gpuedge.cli import profile
from gpuedge.cli.arguments import check_writable, seconds, whole
from gpuedge.cli.arrays import is_archive, read_inputs, write_outputs
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import (
    GpuEdgeError,
    NoUsableDeviceError,
    RequestTimeoutError,
    UnknownDeviceError,
    UnsupportedOpError,
    UsageError,
)
from gpuedge.core.text import Table, duration
from gpuedge.executors.base import Progress
from gpuedge.graph.ir import Array
from gpuedge.graph.packed import read_model
from gpuedge.graph.reader import Model
from gpuedge.runtime.inputs import check_inputs
from gpuedge.runtime.strings import AUTO, parse
from gpuedge.safety.paths import check_readable, save_named

BLAME: dict[str, tuple[type[GpuEdgeError], ...]] = {
    "device": (UnknownDeviceError, NoUsableDeviceError),
    "fallback": (UnsupportedOpError,),
    "isolation": (),
}
"""Options that a session takes, and which errors each is to blame for where it was given."""

SHOWN_OPS = 6
"""Operators named in a row that stands for more of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model, an ONNX file or a packed one")
    add("--input", action="append", default=[], metavar="NAME=FILE",
        help="a .npy or .npz file for an input of the model, or a .npz file for several without "
        "NAME=; repeatable")  # fmt: skip
    add("--output", metavar="DIR",
        help="write each output to DIR/NAME.npy, or all to it if it is FILE.npz; in one step"
    )  # fmt: skip
    add("--device", metavar="D", help="such as cpu, vulkan:0, auto (the default)")
    add("--allow-software", action="store_true",
        help="let auto take a software rasteriser, if it is faster")  # fmt: skip
    add("--no-rewrites", action="store_true",
        help="compute operator by operator, to find out whether a rewrite is to blame")  # fmt: skip
    add("--fallback", choices=("cpu", "error"),
        help="what happens to operators the device cannot run, and when it fails")  # fmt: skip
    add("--isolation", choices=("inline", "process"),
        help="where the driver lives: in this process (default) or in one of its own")  # fmt: skip
    add("--timeout", type=seconds(), metavar="SECONDS",
        help="give up a run that takes longer (GE-406)")  # fmt: skip
    add("--repeat", type=whole(1, 999_999_999), default=1, metavar="N",
        help="run N times (1); prints the first time and the median of the others")  # fmt: skip
    add("--profile", action="store_true",
        help="run once more step by step, and print what each took")  # fmt: skip
    add("--trace", metavar="FILE.json",
        help="write that as a trace for Perfetto or chrome://tracing")  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Run the model, write the outputs, print where it ran, why and how long it took."""
    model, inputs = _read(options)
    chosen = {n: value for n in BLAME if (value := getattr(options, n)) is not None}
    policy = gpuedge.Policy(allow_software=options.allow_software, rewrites=not options.no_rewrites)
    began, is_profiled = time.perf_counter(), options.profile or options.trace is not None
    with (
        blaming(**{name: BLAME[name] for name in chosen}, input=(UsageError,)),
        output.progress("deciding, compiling and running") as progress,
        gpuedge.Session(model, policy=policy, progress=progress, **chosen) as session,
    ):
        spans = [("open", began, time.perf_counter())]
        results = _timed(session, inputs, options, spans, progress)
        steps = session.profile(inputs)["steps"] if is_profiled else []
        placement = [asdict(row) for row in session.placement]
        refusals = dict(session.refusals)
        decision, health = session.explain(), session.health
    files = {} if options.output is None else write_outputs(results, Path(options.output))
    times = [end - begin for _, begin, end in spans[1:]]
    about = {"model": options.model, "device": decision.device, "version": gpuedge.__version__}
    if options.trace is not None:
        save_named(Path(options.trace), profile.trace(spans, steps, about), "--trace")
    body = {
        "schema": "gpuedge.run/1",
        "model": options.model,
        "device": decision.device,
        "isolation": health.isolation,
        "decision": decision.to_dict(),
        "health": health.to_dict(),
        "placement": placement,
        "refusals": refusals,
        "outputs": [
            {"name": n, "shape": list(a.shape), "dtype": a.dtype.name, "file": files.get(n)}
            for n, a in results.items()
        ],
        "steps": steps,
        "trace": options.trace,
        "first_ms": round(times[0] * 1e3, 3),
        "warm_ms": round(statistics.median(times[1:]) * 1e3, 3) if times[1:] else None,
    }
    output.show(body, _parts(body, str(decision)))
    return 0


def _read(options: argparse.Namespace) -> tuple[Model, dict[str, Array]]:
    """Return the model and its inputs; all arguments are checked."""
    check_readable(options.model, "model")
    check_writable(options.trace, "--trace")
    is_folder = not is_archive(options.output or "")
    check_writable(options.output, "--output", is_folder=is_folder)
    if options.allow_software and options.device and parse(options.device) != AUTO:
        raise UsageError(
            f"--allow-software is about auto, and --device {options.device} is not auto.",
            asked_by="--allow-software",
            hint="leave one of them out: a device that is named runs, software or not",
        )
    model = read_model(options.model)
    inputs = read_inputs(options.input)
    _check_targets(options)
    with blaming(input=(UsageError,)):
        inputs = check_inputs(inputs, model)
        model.bind({name: array.shape for name, array in inputs.items()})
    return model, inputs


def _check_targets(options: argparse.Namespace) -> None:
    """Raise UsageError (GE-200) where a run would write over what it reads, or writes itself."""
    given = [pair.rpartition("=")[2] for pair in options.input]
    read = {Path(p).resolve() for p in (options.model, *given) if p}
    trace, outputs = (
        None if p is None else Path(p).resolve() for p in (options.trace, options.output)
    )
    is_inside = trace is not None and outputs is not None and outputs in (trace, *trace.parents)
    for path, option in ((trace, "--trace"), (outputs, "--output")):
        if path is not None and (path in read or (path == trace and is_inside)):
            raise UsageError(
                f"{path} would be written over, or lie among the outputs.",
                asked_by=option,
                known="the model, the inputs, the outputs and the trace need files of their own",
                hint=f"another file for {option}",
            )


def _timed(
    session: gpuedge.Session,
    inputs: Mapping[str, Array],
    options: argparse.Namespace,
    spans: list[profile.Span],
    progress: Progress,
) -> dict[str, Array]:
    """Run as often as was asked for; note when each run began and ended."""
    for number in range(options.repeat):
        progress("run", number, options.repeat)
        start = time.perf_counter()
        try:
            results = session.run(inputs, timeout_s=options.timeout)
        except RequestTimeoutError as error:  # a command has no next request
            error.asked_by, error.hint = "--timeout", "a larger --timeout"
            raise
        name = "run" if number else "first run"
        spans.append((name, start, time.perf_counter()))
    return results


def grouped(placement: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return table rows of a placement: consecutive rows of one device and kernel are one."""
    rows = []
    for (device, kernel), group in groupby(placement, lambda r: (r["device"], r["kernel"])):
        members = list(group)
        ops = [op for row in members for op in row["ops"]]
        shown = " ".join(ops[:SHOWN_OPS]) + (" ..." if len(ops) > SHOWN_OPS else "")
        nodes = sum(len(row["nodes"]) for row in members)
        rows.append((f"{nodes} nodes: {shown}" if len(members) > 1 else shown, device, kernel))
    return rows


def _parts(body: Mapping[str, Any], why: str) -> Iterator[str | Table]:
    yield f"{why}\n"
    columns = ("operators", "device", "kernel")
    yield Table("Where each part ran", columns, grouped(body["placement"]))
    yield Table("Left to the CPU", ("node", "why"), list(body["refusals"].items()))
    outputs = [(o["name"], tuple(o["shape"]), o["dtype"], o["file"] or "") for o in body["outputs"]]
    yield Table("Outputs", ("name", "shape", "dtype", "file"), outputs)
    if body["steps"]:
        yield Table("Time of each step", profile.COLUMNS, profile.rows(body["steps"]))
        yield profile.summary(body["steps"], body["warm_ms"])
    warm = "" if body["warm_ms"] is None else f", then {duration(body['warm_ms'] * 1e6)}"
    yield f"first inference {duration(body['first_ms'] * 1e6)}{warm}"
