"""``gpuedge pack``: write a model to one file, which devices read without the onnx package."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import gpuedge
from gpuedge.cli.arguments import check_target
from gpuedge.cli.arrays import read_inputs, read_samples, sample_files
from gpuedge.cli.check import read_shapes
from gpuedge.cli.devices import PROBE_S
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import (
    ConfigError,
    InputError,
    NoUsableDeviceError,
    UnknownDeviceError,
    UsageError,
)
from gpuedge.core.text import Table, counted
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.pack import Packed, pack
from gpuedge.safety.paths import check_readable, read_start

MOST_REPORT = 16 << 20
"""Bytes of a probe report that are read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX file, or a packed model that is packed anew")
    add("-o", "--output", metavar="FILE.gpuedge", required=True, help="the file to write")
    add("--for", dest="devices", action="append", default=[], metavar="D,...",
        help="levels or devices that kernels are printed for, such as vulkan,gles31; repeatable"
    )  # fmt: skip
    add("--probed", action="append", default=[], metavar="REPORT.json",
        help="print kernels for every usable device of a report that `gpuedge probe --json` wrote "
        "on another machine; repeatable")  # fmt: skip
    add("--shapes", action="append", default=[], metavar="NAME=1x3x224x224,...",
        help="shapes of the inputs that the model leaves open; repeatable: a graph for each set"
    )  # fmt: skip
    add("--quantise", action="append", default=[], metavar="SAMPLE.npz",
        help="quantise to 8 bits first, calibrated with the inputs in a .npz file, or in all of a "
        "folder; repeatable")  # fmt: skip
    add("--input", action="append", default=[], metavar="NAME=FILE",
        help="a .npy or .npz file for an input of the golden values (random numbers); repeatable"
    )  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the packed model, and print what is in it."""
    check_readable(options.model, "model")
    files = list(sample_files(options.quantise, "--quantise"))
    given = [pair.rpartition("=")[2] for pair in options.input]
    check_target(options.output, [options.model, *given, *options.probed, *files])
    sets = [read_shapes(group.split(","), "--shapes") for group in options.shapes]
    names = [name for group in options.devices for name in group.split(",")]
    rows = [row for path in options.probed for row in _reported(path)]
    samples = list(read_samples(files, "--quantise")) or None
    inputs = read_inputs(options.input) or None
    blamed = {"for": (UnknownDeviceError, NoUsableDeviceError, ConfigError)} if names else {}
    with blaming(shapes=(UsageError,), **blamed), output.working("reading and packing"):
        if names:
            gpuedge.probe(deadline_s=PROBE_S)
        done = pack(
            options.model, options.output, devices=[*names, *rows], shapes=sets or None,
            calibration=samples, inputs=inputs,
        )  # fmt: skip
    output.show(done.to_dict(), _parts(done))
    return 0


def _reported(path: str) -> Iterator[ProbeRow]:
    """Yield the usable devices of a probe report. Raises InputError (GE-203)."""
    check_readable(path, "probe report", "--probed")
    try:
        record = json.loads(read_start(path, MOST_REPORT))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}.", asked_by="--probed") from None
    yield from ProbeReport.from_dict(record).devices


def _parts(done: Packed) -> Iterator[str | Table]:
    yield (
        f"{done.path}: {done.nbytes} bytes, {done.weights} of them arrays, format {done.format}, "
        f"kernels of language version {done.language}\n"
    )
    rows: list[tuple[Any, ...]] = []
    for shapes, missing in zip(done.shapes, done.golden, strict=True):
        text = ", ".join(f"{n}: {'x'.join(map(str, s)) or 'scalar'}" for n, s in shapes.items())
        rows.append((text, f"none: {missing}" if missing else "yes"))
    yield Table("Graphs", ("shapes", "golden values"), rows)
    kernels = [(name, counted(count, "kernel")) for name, count in done.kernels.items()]
    yield Table("Kernels", ("printed for", "how many"), kernels)
