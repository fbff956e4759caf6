"""``gpuedge quantize``: write a model of fewer bits, and how far it is from the floats."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import gpuedge
from gpuedge.cli.arguments import check_target
from gpuedge.cli.arrays import read_samples, sample_files
from gpuedge.cli.output import Output
from gpuedge.core.errors import ModelError, UsageError
from gpuedge.core.text import Table, counted
from gpuedge.executors.quantiser import BITS, BLOCK_SIZE, BLOCK_SIZES
from gpuedge.quantising import QuantizationReport
from gpuedge.safety.paths import check_readable, save_named

OPTION = "--calibration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX file of float32")
    add("-o", "--output", metavar="FILE.onnx", required=True, help="the file to write")
    add("--weights", choices=tuple(BITS),
        help="quantise the weights of products alone, to so many bits (all of the model, to 8)"
    )  # fmt: skip
    add("--block-size", type=int, choices=BLOCK_SIZES,
        help=f"how many weights share a scale, with --weights ({BLOCK_SIZE})")  # fmt: skip
    add(OPTION, action="append", default=[], metavar="SAMPLE.npz",
        help="inputs in a .npz file, or in all of a folder, to calibrate with (not needed with "
        "--weights) and to compare outputs on; repeatable")  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Write the quantised model, and print how far its outputs are off."""
    check_readable(options.model, "model")
    files = list(sample_files(options.calibration, OPTION))
    check_target(options.output, [options.model, *files])
    if not files and options.weights is None:
        raise UsageError(
            "Without --weights a model is quantised by samples, and there are none.",
            asked_by=OPTION,
            hint="--calibration FOLDER, with a .npz file for each sample, or --weights int8",
        )
    if options.block_size is not None and options.weights is None:
        raise UsageError("Only weights alone are in blocks.", asked_by="--block-size",
                         hint="--weights int4 or --weights int8")  # fmt: skip
    with output.working("quantising"):
        samples = None if options.weights else read_samples(files, OPTION)
        small = gpuedge.quantize(
            options.model,
            samples,
            weights=options.weights,
            block_size=options.block_size or BLOCK_SIZE,
        )
        try:
            data = small.SerializeToString()
        except ValueError as error:  # more than a protobuf message holds
            raise ModelError(f"The quantised model cannot be written: {error}") from None
    report = None
    if files:
        with output.working("comparing"):
            taken = read_samples(files, OPTION)
            report = gpuedge.quantization_error(options.model, small, taken)
    save_named(Path(options.output), data, "--output")
    before = Path(options.model).stat().st_size
    body = {
        "schema": "gpuedge.quantize/1", "model": options.model, "path": options.output,
        "weights": options.weights, "nbytes": len(data), "nbytes_before": before,
        "error": None if report is None else report.to_dict(),
    }  # fmt: skip
    output.show(body, _parts(options.output, len(data), before, report))
    return 0


def _parts(
    path: str, size: int, before: int, report: QuantizationReport | None
) -> Iterator[str | Table]:
    yield f"{path}: {size} bytes, from {before}\n"
    if report is None:
        return
    rows = [
        (name, *("not comparable" if v is None else f"{v:.3%}" for v in (one.rms, one.largest)))
        for name, one in report.outputs.items()
    ]
    title = f"Off from the floats, over {counted(report.samples, 'sample')}"
    yield Table(title, ("output", "RMS, of the floats' RMS", "largest, of the largest float"), rows)
