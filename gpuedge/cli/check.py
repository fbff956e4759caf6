"""``gpuedge check``: where every operator of a model would run, why not, and at what cost."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

import gpuedge
from gpuedge.cli.devices import PROBE_S
from gpuedge.cli.output import Output, blaming
from gpuedge.core.errors import NoUsableDeviceError, UnknownDeviceError, UsageError
from gpuedge.runtime import check, check_text
from gpuedge.runtime.strings import CPU, wanted
from gpuedge.safety.paths import check_readable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model, an ONNX file or a packed one")
    add("--device", metavar="D",
        help="such as vulkan, cpu; by default the best device of every level")  # fmt: skip
    add_shapes(add)
    add("--fallback", choices=("cpu", "error"),
        help="error: fail (exit code 1) where an operator would move to the CPU")  # fmt: skip


def add_shapes(add: Callable[..., Any]) -> None:
    """Add the shapes of inputs that a model leaves open."""
    add("--shape", action="append", default=[], metavar="NAME=1x3x224x224",
        help="shape of an input that the model leaves open; repeatable")  # fmt: skip


def run(options: argparse.Namespace, output: Output) -> int:
    """Print the page; return 1 if an operator has nowhere to run."""
    check_readable(options.model, "model")
    shapes = read_shapes(options.shape)
    blamed = {"device": (UnknownDeviceError, NoUsableDeviceError)} if options.device else {}
    with (
        blaming(shape=(UsageError,), **blamed),
        output.working("reading, probing and planning"),
    ):
        if wanted(options.device) != CPU:
            gpuedge.probe(deadline_s=PROBE_S)  # a slow machine; what follows finds the verdicts
        checked = check.check(
            options.model, device=options.device, shapes=shapes, fallback=options.fallback
        )
    output.show(checked.to_dict(), check_text.parts(checked))
    return 0 if checked.is_ok else 1


def read_shapes(pairs: Sequence[str], option: str = "--shape") -> dict[str, tuple[int, ...]]:
    """Return the shapes named by ``NAME=1x3x224x224`` arguments of an option.

    Raises UsageError (GE-200).
    """
    shapes = {}
    for pair in pairs:
        name, _, text = pair.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", text):
            raise UsageError(
                f"{option} {pair!r} does not have the form NAME=1x3x224x224.",
                asked_by=option,
                hint=f"{option} image=1x3x224x224",
            )
        shapes[name] = tuple(map(int, text.split("x")))
    return shapes
