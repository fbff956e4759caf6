"""Runs ONNX's own cases on driver configurations; writes docs/tables/onnx-cases.md.

Usage: python tools/onnx_cases.py --run [CONFIGURATION...]
       python tools/onnx_cases.py --resume [CONFIGURATION...]
       python tools/onnx_cases.py --only PATTERN [CONFIGURATION...]    (prints, keeps nothing)
       python tools/onnx_cases.py

The cases are all of the onnx package (1.23.2 in the committed table). They go through
`gpuedge.onnx_backend`, strict: what a device cannot run is `unsupported` and is never left to the
CPU; every passed case has the devices of its nodes beside it, in out/onnx/CONFIGURATION.jsonl. The
page is made of all files there. --resume leaves out cases that have passed and goes through the
others again. A case whose process dies or hangs counts as wrong; the next case starts a new
process. `tools/onnx_core_cases.txt` lists those that the descriptions of operators compute; tests
take it from here.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import textwrap
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import onnx.backend.test  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt  # noqa: E402
from workers import CPU, Worker  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.onnx_backend import GpuEdgeBackend, GpuEdgeRep  # noqa: E402

CASES = tuple((ROOT / "tools" / "onnx_core_cases.txt").read_text(encoding="utf-8").split())
OUT = ROOT / "out" / "onnx"
PAGE = ROOT / "docs" / "tables" / "onnx-cases.md"
CONFIGURATIONS = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
                  "gles20-llvmpipe", "wgpu-lavapipe", CPU)  # fmt: skip
PASSED, UNSUPPORTED, WRONG = STATUSES = ("passed", "unsupported", "wrong")
PROBE_S = 60.0
"""How long a driver may take to open where other work keeps the processor busy."""
PATIENCE_S = 900.0
"""Longest case, vgg19 on OpenGL ES 2.0; ten times as long while its process computes."""
LISTED = 60
"""Reasons that a table lists for a configuration, most cases first."""

INTRODUCTION = """\
# ONNX's own cases

Made by `make onnx-cases` (tools/onnx_cases.py); do not edit. All {count} cases of the onnx package
{version} go through `gpuedge.onnx_backend`, strict: a GPU computes all of a case, or the case
counts as unsupported. Configurations are those of `tests/drivers/farm.py`. A case is *ordinary* if
everything that enters and leaves it is a tensor of {types},
its operators are of ONNX's default domain and no training, and its result is arithmetic that
can be compared: {ordinary} cases. {run}
"""


# --- in a process of its own ---------------------------------------------------------------------


def child(device: str) -> None:
    """Run the cases named on standard input; print a line of JSON for each."""
    if device != CPU:
        gpuedge.probe(deadline_s=PROBE_S)
    noted: dict[str, Any] = {}

    class Rep(GpuEdgeRep):
        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            try:
                return super().run(inputs, **kwargs)
            except BackendIsNotSupposedToImplementIt as error:
                noted["why"] = _reason(error)
                raise
            finally:
                noted["on"] = sorted({row.device for row in self.placement})

    class Strict(GpuEdgeBackend):
        @classmethod
        def prepare(cls, model: Any, device_of_case: str = "CPU", **kwargs: Any) -> GpuEdgeRep:
            try:
                return Rep(model, device)
            except BackendIsNotSupposedToImplementIt as error:
                noted["why"] = _reason(error)
                raise

        @classmethod
        def supports_device(cls, asked: str) -> bool:
            return asked == "CPU"

    made = onnx.backend.test.BackendTest(Strict, __name__).test_cases
    homes = {name: kind for kind in made.values() for name in dir(kind)}
    for line in sys.stdin:
        name = line.strip()
        noted.clear()
        start = time.monotonic()
        result = unittest.TestResult()
        homes[f"test_{name}_cpu"](f"test_{name}_cpu").run(result)
        row = {"case": name, "s": round(time.monotonic() - start, 3), **noted}
        print(json.dumps(row | _status(result, row)), flush=True)


def _reason(error: BaseException) -> str:
    """Return what kept a case from running, without the names of its nodes where it says more."""
    return str(getattr(error.__cause__, "known", None) or error)


def _status(result: unittest.TestResult, row: Mapping[str, Any]) -> dict[str, str]:
    problems = [text for _, text in (*result.errors, *result.failures)]
    if problems:
        return {"status": WRONG, "why": _last_words(problems[0])}
    skipped = [why for _, why in result.skipped]
    if "why" in row or skipped:
        return {"status": UNSUPPORTED, "why": row.get("why") or skipped[0]}
    return {"status": PASSED}


def _last_words(trace: str) -> str:
    found = [line for line in trace.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    text = (
        " ".join(" ".join(trace[trace.index(found[-1]) :].split())[:400].split()) if found else ""
    )
    return text or trace[-400:]


# --- over all cases ------------------------------------------------------------------------------


def answered(
    configuration: str, names: Iterable[str], script: str, patience_s: float,
    more: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield a row for each case that a script answers; one that ends its process is wrong."""
    worker: Worker | None = None
    for name in names:
        if worker is None or not worker.is_alive:
            worker = Worker(configuration, script, more)
        start = time.monotonic()
        row = worker.ask(name, patience_s)
        if "status" not in row:
            row = {"case": name, "status": WRONG, "s": time.monotonic() - start, **row}
        yield row
    if worker is not None:
        worker.close()


def kept(
    file: Path, names: Iterable[str], run: Callable[[list[str]], Iterable[dict[str, Any]]], *,
    resume: bool,
) -> None:  # fmt: skip
    """Run all cases, or those that have not passed yet, into a file of their rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = {n: r for n, r in read(file).items() if r["status"] == PASSED} if resume else {}
    with file.open("w", encoding="utf-8") as out:
        for row in done.values():
            print(json.dumps(row), file=out)
        for row in run([name for name in names if name not in done]):
            print(json.dumps(row), file=out, flush=True)
    counted = Counter(row["status"] for row in read(file).values())
    print(file.stem, *(f"{s} {counted[s]}" for s in STATUSES), file=sys.stderr, flush=True)


def results(configuration: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each case."""
    return answered(
        configuration, names, __file__, PATIENCE_S, {"ONNX_HOME": str(OUT / "home")}
    )  # fmt: skip


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by case; those that do not tell their day are of the file's."""
    if not file.exists():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()
    return {row["case"]: {"day": written} | row for row in rows}


# --- the page ------------------------------------------------------------------------------------


def page(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the page of rows by configuration and case."""
    kinds = {name: kind_of(name, model) for name, model in every_case()}
    ordinary = {name for name, kind in kinds.items() if not kind}
    lines = [INTRODUCTION.format(
        count=len(kinds), version=onnx.__version__, ordinary=len(ordinary),
        types=", ".join(KERNEL_TYPES).lower(), run=_days(found.values()),
    )]  # fmt: skip
    lines += _counts("Ordinary cases", found, ordinary)
    lines += _counts("All cases", found, set(kinds))
    rows = list(Counter(kind for kind in kinds.values() if kind).items())
    lines += _table("What is not ordinary", ("what", "cases"), rows)
    lines += _reasons("Ordinary cases that do not pass", found, ordinary)
    lines += _reasons("Other cases that do not pass", found, kinds.keys() - ordinary)
    return "\n".join([*lines, ""])


def _days(found: Iterable[Mapping[str, Mapping[str, Any]]]) -> str:
    """Return a sentence of when rows were made."""
    days = sorted({row["day"] for rows in found for row in rows.values()})
    if not days:
        return ""
    return f"Run on {days[0]}." if len(days) == 1 else f"Run from {days[0]} to {days[-1]}."


def _reasons(
    title: str, found: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Container[str]
) -> list[str]:
    """Return a table of why some cases did not pass, by configuration."""
    lines = list[tuple[str, int, str, str]]()
    for configuration, rows in found.items():
        failed = reasons(row for name, row in rows.items() if name in names)
        for (status, why), cases in list(failed.items())[:LISTED]:
            text = f"{status}: {why}".replace("|", "\\|")
            lines.append((configuration, len(cases), text, ", ".join(cases[:3])))
    return _table(title, ("configuration", "cases", "reason", "such as"), lines)


def _counts(
    title: str, found: Mapping[str, Mapping[str, Mapping[str, Any]]], names: set[str]
) -> list[str]:
    """Return a table of how many of some cases passed, by configuration."""
    lines = list[tuple[object, ...]]()
    for configuration, rows in found.items():
        counted = Counter(row["status"] for name, row in rows.items() if name in names)
        share = f"{100 * counted[PASSED] / len(names):.1f} %"
        lines.append((configuration, *(counted[s] for s in STATUSES), share))
    return _table(title, ("configuration", *STATUSES, "share"), lines)


def _table(title: str, head: Sequence[str], lines: Iterable[Sequence[object]]) -> list[str]:
    """Return a section of the page with a table."""
    rows = [f"| {' | '.join(map(str, line))} |" for line in (head, *lines)]
    return ["", f"## {title}", "", rows[0], "|---" * len(head) + "|", *rows[1:]]


def reasons(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return cases that did not pass by status and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != PASSED:
            groups.setdefault((row["status"], _brief(row["why"])), []).append(row["case"])
    return dict(sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])))


def _brief(why: str) -> str:
    """Return a reason in one line, without what differs from case to case."""
    text = "; ".join(line.strip() for line in why.splitlines() if line.strip())
    text = re.sub(r"(?<!\w)'[^']*'", "'..'", text)  # the apostrophe in "model's" opens no name
    text = re.sub(r"\b\d+(?:(?:[.,]|, )\d+)*", "N", text)
    return textwrap.shorten(text, 160, placeholder=" ...")


KERNEL_TYPES = ("FLOAT", "FLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL")
"""Element types of which the core has whole families of cases."""

Rule = tuple[str, Callable[[Any], bool]]
RULES: tuple[Rule, ...] = (
    ("training",
     lambda model: any(n.domain == "ai.onnx.preview.training" for n in model.graph.node)),
    ("operators of other domains (`ai.onnx.ml`, `ai.onnx.preview`)",
     lambda model: any(n.domain not in ("", "ai.onnx") for n in model.graph.node)),
    ("sequences and optional values that enter or leave",
     lambda model: any(kind != "tensor_type" for kind, _ in _kinds(model))),
    ("text", lambda model: any(e == "STRING" for _, e in _kinds(model))),
    ("float64, bfloat16, floats of 4 and 8 bits, integers of 2, 4, 16 bits and unsigned ones of 32 "
     "and 64", lambda model: any(e not in KERNEL_TYPES for _, e in _kinds(model))),
)  # fmt: skip
"""Why cases are not ordinary, the first that holds."""


OF_NAMES = {
    "training_dropout": "random numbers of numpy",
    "bernoulli": "random numbers of numpy",
    "image_decoder": "files of images to be decoded",
    "dft_inverse": "an exact 0 for which numpy's rounding error is expected (1.9e-7, allowed 1e-7)",
}
"""The same for cases by how their names begin."""


def kind_of(name: str, model: Any) -> str:
    """Return why a case is not ordinary, nothing if it is; whole networks are."""
    if model is None:
        return ""
    by_name = next((why for begin, why in OF_NAMES.items() if name.startswith(begin)), "")
    return by_name or next((why for why, holds in RULES if holds(model)), "")


def _kinds(model: Any) -> list[tuple[str, str]]:
    """Return kinds and element types of a model's inputs and outputs."""
    values = [value.type for value in (*model.graph.input, *model.graph.output)]
    name = onnx.TensorProto.DataType.Name
    return [(str(v.WhichOneof("value")), name(v.tensor_type.elem_type)) for v in values]


def every_case() -> Iterator[tuple[str, Any]]:
    """Yield the names and models of all cases of the onnx package; no model of whole networks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, while the cases are computed
        for kind in ("node", "real", "simple", "pytorch-converted", "pytorch-operator"):
            for case in load_model_tests(kind=kind):
                name = case.name.removeprefix("test_")
                network = kind == "real" and case.model is None
                yield (
                    name,
                    None if network else case.model or onnx.load(f"{case.model_dir}/model.onnx"),
                )


def every_name() -> list[str]:
    """Return the names of all cases of the onnx package."""
    return [name for name, _ in every_case()]


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
        names = [n for n in every_name() for p in chosen.only.split(",") if fnmatch.fnmatch(n, p)]
        for configuration in chosen.configurations:
            for row in results(configuration, names):
                print(configuration, row["status"], row["case"], row.get("why", ""), flush=True)
        return 0
    if chosen.run or chosen.resume:
        for configuration in chosen.configurations:
            kept(OUT / f"{configuration}.jsonl", every_name(), partial(results, configuration),
                 resume=chosen.resume)  # fmt: skip
    found = {name: rows for name in CONFIGURATIONS if (rows := read(OUT / f"{name}.jsonl"))}
    PAGE.write_text(page(found), encoding="utf-8")
    return int(any(row["status"] == WRONG for rows in found.values() for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
