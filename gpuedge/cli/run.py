"""``gpuedge run``: run an ONNX model on arrays from files, and say where it ran and why.

All files are read and all arguments checked before any driver is touched.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuedge.cli.arguments import check_writable, seconds, whole
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import (
    GpuEdgeError,
    InputError,
    NoUsableDeviceError,
    RequestTimeoutError,
    UnknownDeviceError,
    UnsupportedOpError,
    UsageError,
)
from gpuedge.runtime.strings import AUTO, parse
from gpuedge.safety.paths import open_regular, write_named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpuedge.session import Session

    Array = npt.NDArray[np.generic]

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
    add("model", metavar="MODEL.onnx", help="the model, an ONNX file")
    add("--input", action="append", default=[], metavar="NAME=FILE.npy",
        help="one per input of the model; repeatable")  # fmt: skip
    add("--output", metavar="DIR", help="write each output to DIR/NAME.npy, whole or not at all")
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


def run(options: argparse.Namespace, output: Output) -> int:
    """Run the model, write the outputs, print where it ran, why and how long it took."""
    inputs = read_inputs(options.input)
    check_writable(options.output, "--output", is_folder=True)
    check_model(options.model)
    import gpuedge

    if options.allow_software and options.device and parse(options.device) != AUTO:
        raise UsageError(
            f"--allow-software is about auto, and --device {options.device} is not auto.",
            asked_by="the command line",
            hint="leave one of them out: a device that is named runs, software or not",
        )
    chosen = {n: value for n in BLAME if (value := getattr(options, n)) is not None}
    policy = gpuedge.Policy(allow_software=options.allow_software, rewrites=not options.no_rewrites)
    with (
        blaming(**{name: BLAME[name] for name in chosen}, input=(UsageError,)),
        output.working("deciding, compiling and running"),
        gpuedge.Session(options.model, policy=policy, **chosen) as session,
    ):
        results, times = _timed(session, inputs, options.repeat, options.timeout)
        placement = [asdict(row) for row in session.placement]
        refusals = dict(session.refusals)
        decision, health = session.explain(), session.health
    files = {} if options.output is None else write_outputs(results, Path(options.output))
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
        "first_ms": round(times[0] * 1e3, 3),
        "warm_ms": round(statistics.median(times[1:]) * 1e3, 3) if times[1:] else None,
    }
    output.document(body)
    _show(body, str(decision), output)
    return 0


def check_model(path: str) -> None:
    """Raise InputError (GE-203) where there is no such file."""
    if not os.path.isfile(path):  # noqa: PTH113  (a Path raises for a long name)
        what = "is not a file" if os.path.exists(path) else "does not exist"  # noqa: PTH110
        raise InputError(f"The model {path} {what}.", asked_by="the command line")


def read_inputs(pairs: Sequence[str]) -> dict[str, Array]:
    """Return the arrays named by ``NAME=FILE.npy`` arguments.

    Raises UsageError for another form or an input named twice, InputError for a bad file.
    """
    arrays: dict[str, Array] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise UsageError(
                f"--input {pair!r} does not have the form NAME=FILE.npy.",
                asked_by="the command line",
                hint="--input image=image.npy",
            )
        if name in arrays:
            raise UsageError(f"The input {name!r} is given twice.", asked_by="the command line")
        arrays[name] = read_array(path)
    return arrays


def read_array(path: str) -> Array:
    """Return the array in a .npy file; pickled objects are never loaded. Raises InputError."""
    import numpy as np

    try:
        with open_regular(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # numpy's header parser raises whatever tokenize and ast raise
        raise InputError(
            f"{path} is not an intact .npy file of numbers: {error}.",
            asked_by="--input",
            hint="write it with numpy.save(path, array)",
        ) from None


def _timed(
    session: Session, inputs: Mapping[str, Array], repeat: int, timeout_s: float | None
) -> tuple[dict[str, Array], list[float]]:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        try:
            results = session.run(inputs, timeout_s=timeout_s)
        except RequestTimeoutError as error:  # a command has no next request
            error.asked_by, error.hint = "--timeout", "a larger --timeout"
            raise
        times.append(time.perf_counter() - start)
    return results, times


def write_outputs(results: Mapping[str, Array], folder: Path) -> dict[str, str]:
    """Write each array to ``folder/NAME.npy`` in one step; return the file of each name.

    Characters that file systems or shells treat specially become ``_``. Raises InputError where two
    names make the same file, or the folder cannot be written.
    """
    import numpy as np

    files = {name: re.sub(r"[^\w.-]|^\.", "_", name) + ".npy" for name in results}
    if len(set(files.values())) < len(files):
        raise InputError(f"Two outputs would share a file: {', '.join(files)}.")
    for name, array in results.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
        why = write_named(folder / files[name], buffer.getvalue())
        if why is not None:
            raise InputError(
                f"{folder / files[name]} cannot be written.",
                asked_by="--output",
                known=why,
                hint="choose a folder that can be written and has space",
            )
    return {name: str(folder / file) for name, file in files.items()}


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


def _show(body: Mapping[str, Any], why: str, output: Output) -> None:
    output.text(f"{why}\n")
    columns = ("operators", "device", "kernel")
    output.table("Where each part ran", columns, grouped(body["placement"]))
    if body["refusals"]:
        left = list(body["refusals"].items())
        output.table("Left to the CPU", ("node", "why"), left)
    made = [(o["name"], tuple(o["shape"]), o["dtype"], o["file"]) for o in body["outputs"]]
    output.table("Outputs", ("name", "shape", "dtype", "file"), made)
    warm = "" if body["warm_ms"] is None else f", then {body['warm_ms']} ms"
    output.text(f"first inference {body['first_ms']} ms{warm}")
