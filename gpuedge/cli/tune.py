"""``gpuedge tune``: time the kernels of a model on one GPU, and pass on what was found."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import gpuedge
from gpuedge.cli.arguments import check_writable
from gpuedge.cli.check import add_shapes, read_shapes
from gpuedge.cli.devices import named_gpu
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import NoUsableDeviceError, UsageError
from gpuedge.core.identity import Identity
from gpuedge.core.record import plain
from gpuedge.core.text import Table, counted, duration
from gpuedge.core.words import Tuning
from gpuedge.executors.gpu import GpuExecutor
from gpuedge.graph.packed import read_model
from gpuedge.graph.shaped import ShapedModel
from gpuedge.plan.tuned import TunedKernel, Tunings, label_of
from gpuedge.runtime import tunings
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.request import make_request
from gpuedge.runtime.segments import Segments
from gpuedge.safety.paths import check_readable

NAME = "gpuedge.tune/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL.onnx", help="the model, an ONNX file")
    add("--device", metavar="D", help="such as vulkan, gles31:1; never the CPU")
    add_shapes(add)
    add("--full", action="store_true",
        help="time all variants of all kernels, which takes minutes and goes on where it was "
        "interrupted (the most expensive ones, for 2 s)")  # fmt: skip
    add("--refresh", action="store_true", help="time again what is known already")
    add("--out", metavar="FILE", help="write what is known of the device to FILE, for others")
    add("--import", dest="file", metavar="FILE",
        help="keep what is in a FILE of another machine; with --device only what is for that"
    )  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Tune a model, or keep results of another machine.

    1 if nothing of these can be used, results cannot be kept, or no variant of a kernel is right.
    """
    if (options.model is None) == (options.file is None):
        raise UsageError(
            "tune takes a model, or --import FILE.",
            asked_by="the command line",
            hint="gpuedge tune MODEL.onnx --device vulkan --out FILE",
        )
    if options.file is not None:
        return _import(options, output)
    return _tune(options, output)


def _import(options: argparse.Namespace, output: Output) -> int:
    if options.full or options.refresh or options.out or options.shape:
        raise UsageError(
            "--import takes no option but --device.", asked_by="--import",
            hint="gpuedge tune --import FILE",
        )  # fmt: skip
    check_readable(options.file, "file", "--import")
    here = None
    if options.device is not None:
        here = Identity.from_dict(
            dict(named_gpu(options.device, f"tune --import {options.file}", output).identity)
        )
    taken = tunings.take(options.file, "--import", here)
    rows = [
        (one.name, one.kernels, f"not used: {one.why_not}" if one.why_not else "kept")
        for one in taken
    ]
    body = {
        "schema": NAME, "imported": options.file, "device": options.device,
        "devices": [plain(one) for one in taken],
    }  # fmt: skip
    output.show(body, [Table(options.file, ("device", "kernels", "result"), rows)])
    return 0 if any(not one.why_not for one in taken) else 1


def _tune(options: argparse.Namespace, output: Output) -> int:
    check_readable(options.model, "model")
    if options.out and os.path.realpath(options.out) == os.path.realpath(options.model):
        raise UsageError(
            "--out names the model itself.", asked_by="--out", hint="give it another file",
        )  # fmt: skip
    check_writable(options.out, "--out")
    shapes = read_shapes(options.shape)
    with blaming(shape=(UsageError,)):
        graph = read_model(options.model).specialise(shapes)
    row = named_gpu(options.device, f"tune {options.model}", output)
    start = time.perf_counter()
    effort: Tuning = "full" if options.full else "fast"
    with (
        gpuedge.open(row.device) as device,
        output.progress("timing kernels") as progress,
    ):
        executor = device.executor
        if not isinstance(executor, GpuExecutor):
            raise NoUsableDeviceError(f"{row.device!r} is not a GPU, which is what tune is about.")
        request = make_request(device, gpuedge.Policy(tune=effort), "cpu")
        segments = Segments(ShapedModel(lambda: graph), request, POOL.cpu())
        tuner = segments.tune(executor, None, progress, is_anew=options.refresh)
        identity = executor.impl.info.identity
    found = {key: tuner.known[key] for key in sorted(tuner.keys)}
    took_s = time.perf_counter() - start
    if options.out is not None:
        count = tunings.export(identity, tuner.known, Path(options.out), "--out")
        output.log(f"{options.out}: {counted(count, 'kernel')} of {row.device} ({row.name})")
    body = {
        "schema": NAME, "model": options.model, "device": row.device, "name": row.name,
        "effort": effort, "seconds": round(took_s, 3), "file": options.out,
        "kernels": [{"key": key, **plain(kernel)} for key, kernel in found.items()],
    }  # fmt: skip
    title = f"{row.device} ({row.name}), in {duration(took_s * 1e9)}"
    output.show(body, _parts(title, found, is_full=options.full))
    if not tuner.is_kept:
        output.log("The cache folder cannot be written: no session will use these results.")
    wrong = [label_of(key) for key, kernel in found.items() if kernel.is_wrong]
    if wrong:
        output.log(f"No variant is right of {', '.join(wrong)}: the usual one is used as ever.")
    return 0 if tuner.is_kept and not wrong else 1


def _parts(title: str, found: Tunings, *, is_full: bool) -> Iterator[str | Table]:
    """Yield a row for each kernel, and one for each variant that is not to be used."""
    columns = ("operation", "output (texels)", "usual variant", "variant now", "times as fast")
    rows = [
        (*label_of(key).split(), kernel.usual, kernel.variant, _gain(kernel, is_full=is_full))
        for key, kernel in found.items()
    ]
    yield Table(title, columns, rows)
    if not rows:
        yield f"{title}: the model has no kernel with several variants here"
    wrong = [
        (label_of(key), variant, why)
        for key, kernel in found.items()
        for variant, why in kernel.left_out.items()
    ]
    yield Table("Left out on this device", ("kernel", "variant", "why"), wrong)


def _gain(kernel: TunedKernel, *, is_full: bool) -> str:
    if kernel.effort == "none":
        return "not timed alone" if is_full else "not timed"
    if kernel.is_wrong:
        return "none is right"
    return f"{kernel.gain:.2f}" if kernel.is_other else "as usual"
