"""What you will see: your devices, a filtered photograph and read digits, with one verdict.

Every way in which a GPU can be reached here (Vulkan, OpenGL ES 3.1, 3.0 and 2.0, WebGPU; software
rasterisers too) and the CPU do the same two jobs: filter a photograph and classify handwritten
digits no training ever saw. The numbers must agree.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from photo import FILTERS, contact_sheet, filtered_exactly, framed, load_photo, save_png
from rich.console import Console
from rich.table import Table
from train_digits import load_split

import gpuedge

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parent
WARM_RUNS = 5
WARM_S = 1.0
"""Warm runs end after this long."""
SLOW_S = 5.0
"""A first run of more than this is not repeated: OpenGL ES 2.0 in software takes that long."""


@dataclass
class Result:
    """One job on one device: what came out, where it ran and why, and the times in seconds."""

    asked: str
    ran_on: str
    why: str
    value: Array
    first_s: float
    warm_s: float | None


def timed(job: Callable[[], Array]) -> tuple[Array, float, float | None]:
    """Return the result, the time of the first run and the median of the next ones, if any."""
    start = time.perf_counter()
    value = job()
    first = time.perf_counter() - start
    warm: list[float] = []
    while first <= SLOW_S and len(warm) < WARM_RUNS and sum(warm) < WARM_S:
        start = time.perf_counter()
        value = job()
        warm.append(time.perf_counter() - start)
    return value, first, statistics.median(warm) if warm else None


def filter_photo(photo: Array, device: str) -> Result:
    """Blur, sharpen and find edges: one convolution with four 5x5 filters per colour."""
    weights, padded = np.stack(list(FILTERS.values()))[:, None], framed(photo)
    value, first, warm = timed(
        lambda: gpuedge.conv2d(padded, weights, padding="valid", device=device)
    )
    return Result(device, device, "named in the call", value, first, warm)


def classify(images: Array, device: str) -> Result:
    """Class probabilities of all held-out digits."""
    model = ROOT / "models" / "digits.onnx"
    start = time.perf_counter()
    fallback = "cpu" if device == "auto" else "error"  # what is named must do all of it
    with gpuedge.Session(model, device=device, fallback=fallback) as session:
        opened = time.perf_counter() - start
        value, first, warm = timed(lambda: session.run({"image": images})["probabilities"])
        decision = session.explain()
        ran_on = ", ".join(sorted({row.device for row in session.placement}))
    why = decision.reason.partition(": ")[2] or decision.reason
    return Result(device, ran_on, why, value, opened + first, warm)


def show_probe(console: Console) -> dict[str, str]:
    """Print what was probed; return the device string of each usable row, with its name.

    A first probe has seconds for everything; what it did not get to, the second one does.
    """
    gpuedge.probe(deadline_s=10.0)
    report = gpuedge.probe(deadline_s=10.0)
    console.rule("[bold]1. The devices of this machine")
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    if not report.devices:
        console.print("No GPU can be used here, for the reasons above: all work is the CPU's.")
    return {row.device: row.name for row in report.devices}


def table(
    title: str, results: list[Result], measure: str, scores: list[str], names: dict[str, str]
) -> Table:
    """Lay results out; the first one is the CPU's, which the others are compared with."""
    once = any(result.warm_s is None for result in results)
    note = f"then: the median of more runs; -: none, as the first took over {SLOW_S:.0f} s"
    out = Table(title=title, title_justify="left", caption=note if once else None)
    for column in ("asked for", "ran on", "difference to cpu", measure):
        out.add_column(column)
    for column in ("first", "then"):
        out.add_column(column, justify="right", no_wrap=True)
    for result, score in zip(results, scores, strict=True):
        gap = f"{difference(result.value, results[0].value):.1e}"
        seconds = (result.first_s, result.warm_s)
        times = ("-" if s is None else f"{s * 1e3:.1f} ms" for s in seconds)
        out.add_row(result.asked, names.get(result.ran_on, result.ran_on), gap, score, *times)
    return out


def difference(one: Array, other: Array) -> float:
    """Largest absolute difference; NaN if there is one."""
    return float(np.abs(one - other).max())


def photo_job(console: Console, devices: dict[str, str], folder: Path) -> list[str]:
    """Filter the photograph everywhere; return what is wrong, if anything."""
    photo = load_photo()
    results = [filter_photo(photo, device) for device in devices]
    exact = filtered_exactly(photo)
    errors = [difference(r.value, exact) for r in results]
    # The classic bound for a sum of 25 products in float32, whatever the order: each product and
    # each addition is off by at most 2^-24 of sum|w| * max|x|, and pixels are at most 1.
    bound = 26 * 2.0**-24 * max(float(np.abs(f).sum()) for f in FILTERS.values())
    console.rule("[bold]2. A photograph, filtered")
    scores = [f"{error:.1e}" for error in errors]
    title = f"conv2d, 3 x 427 x 640 pixels, four 5 x 5 filters; errors may reach {bound:.1e}"
    console.print(table(title, results, "error (float64)", scores, devices))
    save_png(folder / "before.png", photo[:, 0])
    save_png(folder / "after.png", contact_sheet(photo, results[-1].value))
    console.print(f"pictures: before.png and after.png in {folder}", highlight=False)
    return [
        f"the photograph is wrong on {r.asked}, by {error:.1e}"
        for r, error in zip(results, errors, strict=True)
        if not error <= bound
    ]


def digits_job(console: Console, devices: dict[str, str]) -> list[str]:
    """Classify the digits everywhere; return what is wrong, if anything."""
    _, _, images, labels = load_split()
    results = [classify(images, device) for device in [*devices, "auto"]]
    rates = [float((r.value.argmax(axis=1) == labels).mean()) for r in results]
    console.rule(f"[bold]3. {len(images)} handwritten digits, never seen in training")
    scores = [f"{rate:.2%}" for rate in rates]
    console.print(table("digits.onnx, one batch", results, "held-out accuracy", scores, devices))
    auto = results[-1]
    why = f"auto means {auto.ran_on} here: {auto.why}"
    console.print(why, markup=False, highlight=False, soft_wrap=True)
    answers = results[0].value.argmax(axis=1)
    return [
        f"{count} digits are read differently on {r.asked}"
        for r in results
        if (count := int((r.value.argmax(axis=1) != answers).sum()))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Do the same work on every device, and compare.")
    parser.add_argument("--output", type=Path, default=ROOT.parent / "out", help="for pictures")
    folder = parser.parse_args().output
    console = Console(width=shutil.get_terminal_size((120, 24)).columns)
    devices = {"cpu": "cpu", **show_probe(console)}
    try:
        wrong = photo_job(console, devices, folder) + digits_job(console, devices)
    except gpuedge.GpuEdgeError as error:
        wrong = [str(error)]
    console.rule()
    if wrong:
        console.print("FAILED: " + "; ".join(wrong), markup=False, style="bold red")
        return 1
    gpus = [device for device in devices if device != "cpu"]
    named = f" and on all {len(gpus)} usable: {', '.join(gpus)}" if gpus else ""
    verdict = f"OK: right answers on the CPU{named}."
    console.print(verdict, markup=False, highlight=False, style="bold green", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
