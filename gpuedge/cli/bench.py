"""``gpuedge bench``: time fixed graphs on a GPU and on the CPU path; write an anonymous trace.

Its actions time, compare and judge anything else (`bench_actions`).
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from gpuedge.bench import SCHEMA, measure, trace
from gpuedge.cli import bench_actions
from gpuedge.cli.arguments import check_writable, whole
from gpuedge.cli.devices import named_gpu
from gpuedge.cli.output import Output
from gpuedge.core.text import Table, duration
from gpuedge.decide.speeds import predict, speeds_of

MAX_ROUNDS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--device", metavar="D", help="such as vulkan, gles20:1; never the CPU")
    parser.add_argument(
        "--trace", metavar="FILE",
        help="write every latency to FILE, with nothing that names the device or its user",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=whole(1, MAX_ROUNDS), default=6, metavar="N",
        help=f"how often each graph is timed, 1 to {MAX_ROUNDS} (6)",
    )  # fmt: skip
    bench_actions.add_actions(parser)


def run(options: argparse.Namespace, output: Output) -> int:
    """Time the graphs; print a table, and write the trace. Or do what an action says."""
    if options.action is not None:
        return bench_actions.run(options, output)
    check_writable(options.trace, "--trace")
    device = named_gpu(options.device, "bench", output).device
    with output.working("starting") as progress:
        traced = measure.measure(device, rounds=options.rounds, say=progress)
    if options.trace is not None:
        trace.write(traced, options.trace)
        output.log(f"{options.trace}: {traced.runs} runs of {len(traced.series)} graphs")
    body = document(traced)
    rows = [
        (row["graph"], *(duration(row[key]) for key in ("cpu_ns", "gpu_ns")),
         f"{row['cpu_ns'] / row['gpu_ns']:.2f}x", duration(row["predicted_ns"]))
        for row in body["rows"]
    ]  # fmt: skip
    title = f"{device} ({traced.device_class}, opened in {duration(traced.opening_ns)})"
    columns = ("graph", f"CPU ({traced.engine})", "GPU", "speed-up", "predicted of its class")
    output.show(body, [Table(title, columns, rows)])
    return 0


def document(traced: trace.Trace) -> dict[str, Any]:
    """Return medians of the warm runs as JSON."""
    speeds = speeds_of(traced.device_class)
    rows = [
        {
            "graph": series.graph,
            **{
                key: round(median(ns for w in series.windows for ns in w.warm(side)))
                for key, side in (("cpu_ns", trace.CPU), ("gpu_ns", trace.GPU))
            },
            "predicted_ns": predict(series.work, speeds, traced.level),
        }
        for series in traced.series
    ]
    return {
        "schema": "gpuedge.bench/1", "trace": SCHEMA, "class": traced.device_class,
        "level": traced.level, "opening_ns": traced.opening_ns, "rows": rows,
    }  # fmt: skip
