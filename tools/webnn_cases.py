"""Runs WebNN's conformance cases on driver configurations; writes docs/tables/webnn.md.

Usage: python tools/webnn_cases.py --run [CONFIGURATION...]
       python tools/webnn_cases.py --resume [CONFIGURATION...]
       python tools/webnn_cases.py --only PATTERN [CONFIGURATION...]    (prints, keeps nothing)
       python tools/webnn_cases.py

A session with ``fallback="error"`` runs each: what a device cannot run is `unsupported` and never
left to the CPU, and a case that no device computed counts as unsupported too. The rows of a
configuration are in out/webnn/CONFIGURATION.jsonl; the page is made of all files there. --resume
leaves out cases that have passed. A case whose process dies or hangs counts as wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from onnx_cases import (  # noqa: E402
    PASSED,
    PROBE_S,
    STATUSES,
    UNSUPPORTED,
    WRONG,
    answered,
    kept,
    read,
    reasons,
)
from webnn_model import GROUPS, every_case, group, model_of, tolerance  # noqa: E402
from workers import CPU  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.core.errors import InexactError, NotFiniteError, UnsupportedOpError  # noqa: E402

OUT = ROOT / "out" / "webnn"
PAGE = ROOT / "docs" / "tables" / "webnn.md"
CONFIGURATIONS = ("vulkan-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe", "gles20-llvmpipe",
                  "wgpu-lavapipe", CPU)  # fmt: skip
PATIENCE_S = 120.0
"""Longest case, two tensors of 36 million elements."""
LISTED = 40
"""Reasons that the page lists for a configuration, most cases first."""
FOREIGN = (CPU, "batch_normalization/batchNormalization float32 2D tensor")
"""Configuration and beginning of the names of cases that ONNX Runtime alone gets wrong."""

INTRODUCTION = """\
# WebNN's conformance cases

Made by `make webnn-cases` (tools/webnn_cases.py); do not edit. {count} cases of {operators}
operators of WebNN, from the [web-platform-tests](../../tests/data/webnn/README.md), as ONNX models
of one to a few nodes (tools/webnn_model.py), strict: a device computes all of a case, or the case
counts as unsupported; constants are inputs where a case has nothing else. Results are held to the
tolerances that web-platform-tests give for each operator. Configurations are those of
`tests/drivers/farm.py`; all are software drivers, and none of this has run on
real hardware.

What is wrong on `cpu` is ONNX Runtime's: 1.32 itself, without gpuedge, gives the same two numbers.
It computes x f + (b - m f) for (x - m) f + b, whose terms are larger near the mean m.
"""


# --- in a process of its own ---------------------------------------------------------------------


def child(device: str) -> None:
    """Run the cases named on standard input; print a line of JSON for each."""
    if device != CPU:
        gpuedge.probe(deadline_s=PROBE_S)
    for line in sys.stdin:
        start = time.monotonic()
        row = judged(line.rstrip("\n"), device)
        print(json.dumps(row | {"s": round(time.monotonic() - start, 3)}), flush=True)


def share(number: int, count: int) -> list[str]:
    """Return one of so many parts of the cases, always the same; none of those that are large."""
    names = (name for name in every_case() if "large" not in name)
    return [name for name in names if zlib.crc32(name.encode()) % count == number]


def judged(name: str, device: str) -> dict[str, Any]:
    """Return the row of a case on a device."""
    row: dict[str, Any] = {"case": name}
    case = every_case()[name]
    model, feeds, wanted = model_of(case)
    try:
        policy = gpuedge.Policy(crosscheck=0.0)
        with gpuedge.Session(model, device=device, policy=policy, fallback="error") as session:
            got = session.run(feeds)
            row["on"] = sorted({place.device for place in session.placement})
    except (UnsupportedOpError, NotFiniteError, InexactError) as error:
        why = str(getattr(error, "known", None) or getattr(error, "what", error))
        return row | {"status": UNSUPPORTED, "why": why}
    except Exception as error:
        return row | {"status": WRONG, "why": f"{type(error).__name__}: {error}"[:400]}
    if elsewhere := [on for on in row["on"] if on.partition(":")[0] == CPU and device != CPU]:
        return row | {"status": WRONG, "why": f"ran on {elsewhere[0]}"}
    if not any(on != "host" for on in row["on"]):
        return row | {"status": UNSUPPORTED, "why": "computed while planning, or nothing to do"}
    allowed = tolerance(case)
    for output, right in wanted.items():
        if why := allowed.excess(got[output], right):
            return row | {"status": WRONG, "why": why}
    return row | {"status": PASSED}


# --- over all cases ------------------------------------------------------------------------------


def results(configuration: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each case."""
    return answered(configuration, names, __file__, PATIENCE_S)


# --- the page ------------------------------------------------------------------------------------


def page(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the page of rows by configuration and case."""
    cases = every_case()
    operators = len({case["operator"] for case in cases.values()})
    lines = [INTRODUCTION.format(count=len(cases), operators=operators)]
    for title in GROUPS:
        names = {name for name, case in cases.items() if group(case) == title}
        lines += [f"## {title} ({len(names)} cases)", ""]
        lines += ["| configuration | passed | unsupported | wrong |", "|---|---|---|---|"]
        for configuration, rows in found.items():
            counted = Counter(row["status"] for name, row in rows.items() if name in names)
            cells = " | ".join(str(counted[status]) for status in STATUSES)
            lines.append(f"| {configuration} | {cells} |")
        lines.append("")
    lines += ["## What does not pass", "", "| configuration | cases | reason | such as |",
              "|---|---|---|---|"]  # fmt: skip
    for configuration, rows in found.items():
        for (status, why), names_of in list(reasons(rows.values()).items())[:LISTED]:
            text = f"{status}: {why}".replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {configuration} | {len(names_of)} | {text} | {names_of[0]} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 if a case is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--child", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--only", metavar="PATTERN")
    parser.add_argument("configurations", nargs="*", default=list(CONFIGURATIONS))
    chosen = parser.parse_args(arguments)
    if chosen.child:
        child(chosen.child)
        return 0
    if chosen.only:
        names = [name for name in every_case() if fnmatch.fnmatch(name, chosen.only)]
        for configuration in chosen.configurations:
            for row in results(configuration, names):
                print(configuration, row["status"], row["case"], row.get("why", ""), flush=True)
        return 0
    if chosen.run or chosen.resume:
        for configuration in chosen.configurations:
            kept(OUT / f"{configuration}.jsonl", every_case(), partial(results, configuration),
                 resume=chosen.resume)  # fmt: skip
    found = {name: rows for name in CONFIGURATIONS if (rows := read(OUT / f"{name}.jsonl"))}
    PAGE.write_text(page(found), encoding="utf-8")
    wrong = [(name, case) for name, rows in found.items() for case, row in rows.items()
             if row["status"] == WRONG]  # fmt: skip
    return int(any(name != FOREIGN[0] or not case.startswith(FOREIGN[1]) for name, case in wrong))


if __name__ == "__main__":
    sys.exit(main())
