"""Makes kernels wrong in one place each, and looks whether the conformance cases notice.

Usage: python tools/kernel_mutants.py --run | --resume [--jobs N] [--most N]
       python tools/kernel_mutants.py

One generator writes every mutant that its rules make of the kernel texts under shaders/ and of the
texts that planners write; a seeded choice of them runs. A mutant meets the listed cases whose
kernels have its text, on vulkan-lavapipe, until one fails: it is killed. One that no driver can
tell from the kernel, because the printed code is the same, is none. What survives and is equivalent
all the same stands in EQUIVALENT, with its reason. Results are kept in out/mutants/; the page
docs/tables/mutants.md is made of them. --resume goes on where a run was interrupted. A mutant that
ends its process or hangs is killed; another process goes on. The exit status is 1 unless enough are
killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "drivers")]

from farm import FARM, environment_of  # noqa: E402

import gpuedge.executors.kernels  # noqa: E402
import gpuedge.plan.storages  # noqa: E402
from gpuedge.conformance.bench import PASSED, SKIPPED, Bench  # noqa: E402
from gpuedge.conformance.case import Case  # noqa: E402
from gpuedge.conformance.catalogue import listed  # noqa: E402
from gpuedge.core.errors import GpuEdgeError  # noqa: E402
from gpuedge.lang import load, print_kernel  # noqa: E402
from gpuedge.plan.library import reads, texts  # noqa: E402
from gpuedge.plan.plan import Source  # noqa: E402

kernels: Any = gpuedge.executors.kernels
"""Where texts become code: what is put in place there is what devices get."""
storages: Any = gpuedge.plan.storages
"""Where it is looked up how devices read."""

OUT = ROOT / "out" / "mutants"
PAGE = ROOT / "docs" / "tables" / "mutants.md"
CONFIGURATION = "vulkan-lavapipe"
COUNT = 400
"""So many mutants are chosen."""
LEAST = 0.99
"""So many of those that are not equivalent have to be killed."""
PATIENCE_S = 300.0
"""Without a word for so long, a process hangs."""
START_S = 600.0
"""So long may the cases without any mistake take, which come first."""
PRINTED = "printed"
"""What the texts of planners are called, and a digest."""

Rule = tuple[str, str, str]
RULES: tuple[Rule, ...] = (
    ("index off by one", r"(?<=\bivec4\()(\w+(?:\.\w)?)(?=,)", r"\1 + 1"),
    ("index off by one", r"(?<=\[)([a-z]\w*)(?=\])", r"\1 * 0"),
    ("stride", r"\bSX\b", "SY"), ("stride", r"\bSY\b", "SX"), ("stride", r" \* S[XY]\b", ""),
    ("dilation", r"\bDX\b", "DY"), ("dilation", r"\bDY\b", "DX"),
    ("padding", r"\bPT\b", "(PT + 1)"), ("padding", r"\bPL\b", "(PL - 1)"),
    ("padding", r"\bP([BR])\b", r"(P\1 - 1)"), ("padding", r"\bload4z\(", "load4("),
    ("window", r"\bKH\b", "KW"), ("window", r"\bKW\b", "KH"),
    ("accumulate", r" \+= ", " = "), ("accumulate", r" \+= ", " -= "),
    ("rounding", r"\bfloor\(", "ceil("), ("rounding", r"\broundeven\(", "floor("),
    ("activation", r"\bepilogue\((\w+(?:\[[^\]]*\])?), ivec4\([^()]*\)\)", r"\1"),
    ("activation", r"\bmax\(", "min("), ("activation", r"\bmax4\(", "min4("),
    ("activation", r"\bmin4\(", "max4("), ("activation", r"\babs\(", "sign("),
    ("missing barrier", r"\bbarrier\(\);", ";"),
    ("wrong component", r"\.x\b", ".y"), ("wrong component", r"\.y\b", ".x"),
    ("wrong component", r"\.z\b", ".w"), ("wrong component", r"\.w\b", ".z"),
    ("swapped operands", r"\((\w+) - (\w+)", r"(\2 - \1"),
    ("swapped operands", r"\bivec4\((\w+), (\w+),", r"ivec4(\2, \1,"),
    ("swapped operands", r"\? (\w+) : (\w+)", r"? \2 : \1"),
    ("operator", r" \+ ", " - "), ("operator", r" - ", " + "), ("operator", r"\) \* ", ") + "),
    ("operator", r" / ", " * "),
    ("wrong constant", r"(?<![\w.])4(?![\w.])", "5"),
    ("wrong constant", r"(?<![\w.])3(?![\w.])", "2"),
    ("wrong constant", r"(?<![\w.])([1-9]\d*\.\d+)", r"(\1 * 1.001)"),
    ("wrong constant", r"(?<![\w.])0\.5(?![\w])", "0.25"),
    ("wrong constant", r"(?<![\w.])1\.0(?![\w])", "2.0"),
    ("dropped tail", r" < (d\.[xyz]|end|length|KT|last)\b", r" < \1 - 1"),
    ("dropped tail", r"\bleft > (\d)\b", r"left > \1 + 1"),
    ("comparison", r" < ", " <= "), ("comparison", r" >= ", " > "), ("comparison", r" > ", " >= "),
    ("condition", r" && ", " || "), ("condition", r"\bBIAS\b", "!BIAS"),
    ("condition", r"\b(A|B)_ONE \? 0 : n", r"\1_ONE ? n : 0"),
)  # fmt: skip
"""Kind of mistake, what it replaces in a line, and by what."""

EQUIVALENT: dict[str, str] = {
    "faf1632733": "of two equal numbers either is the larger",
    "f2ccd30128": "stores outside the tensor do nothing",
    "f97a4da568": "stores outside the tensor do nothing",
    "dcd41bc54a": "stores outside the tensor do nothing",
    "d7a1ef3eac": "stores outside the tensor do nothing",
    "fdd587ade8": "stores outside the tensor do nothing",
    "f7aa1a27cb": "stores outside the tensor do nothing",
    "2e0765902a": "stores outside the tensor do nothing",
    "a21f27a2e7": "stores outside the tensor do nothing",
    "ae4e4fe988": "stores outside the tensor do nothing",
    "fcb7fa9f14": "what is read behind the last slice is not stored",
    "b7d6fca8c4": "what lies behind the last row of B meets zeros of A",
    "ffdc34a885": "conditions are 0 or 1, so 0.5 is never met",
    "d98155b5b8": "what lies behind the last row of B meets zeros of A",
    "cd636c9b09": "what lies behind the last row of B meets zeros of A",
    "fc5c3c4d29": "what lies behind the last row of B meets zeros of A",
    "eba4db73e7": "what lies behind the last row of B meets zeros of A",
    "f3ee4ba77b": "what lies behind the last slice meets weights of zero",
    "cfa246d202": "what lies behind the last row of B meets zeros of A",
    "9bedb3722c": "the difference is whole: ceil leaves it as floor does",
    "2482bf19ca": "the difference is whole: ceil leaves it as floor does",
    "fefc0404f9": "places and half of an even length are whole: floor leaves them as they are",
    "ffece0652f": "floors are whole: none lies between -0.5 and -0.25",
    "ffffa3895c": "all lanes of either operand hold one number",
    "fec4cddf3c": "bases are 1 and squares: what odd exponents do with signs is not asked for",
    "ee493d9302": "of the place, what follows while packing reads slices only",
    "7ecd2cba2d": "two invocations store the same texels: which of them stays, drivers choose",
    "daa6a3185f": "what variables hold that nothing has set is the driver's choice: zeros here",
}
"""Mutants that compute the same, or that nothing can promise to notice, and why."""


@dataclass(frozen=True)
class Mutant:
    """A text, and the place that is replaced in it."""

    kernel: str
    kind: str
    line: int
    begin: int
    end: int
    new: str
    text: str

    @cached_property
    def id(self) -> str:
        """A digest of what it changes."""
        return hashlib.sha256(self.said.encode()).hexdigest()[:10]

    @property
    def said(self) -> str:
        """What it changes, in words: the name that it keeps while the kernel's line stays."""
        line = self.text.splitlines()[self.line]
        count = self.text[: self.text.find(line)].count("\n")
        again = "" if count == self.line else f" ({self.line})"
        return f"{self.kernel}{again}: {self.kind}: {self.changed.strip()}"

    @property
    def changed(self) -> str:
        """The line with its mistake."""
        line = self.text.splitlines()[self.line]
        return line[: self.begin] + self.new + line[self.end :]

    @property
    def wrong(self) -> str:
        """The text with its mistake."""
        lines = self.text.splitlines(keepends=True)
        lines[self.line] = self.changed + "\n"
        return "".join(lines)


DECLARATION = re.compile(
    r"\s*(//|kernel |in |out |const |spec |param |local_size|\}|shared |h?vec4 \w+\[)"
)


def mutants_of(kernel: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant that the rules make of a text."""
    for number, line in enumerate(text.splitlines()):
        if DECLARATION.match(line) or not line.strip():
            continue
        code = line.partition("//")[0]
        for kind, old, new in RULES:
            for found in re.finditer(old, code):
                put = found.expand(new)
                if put != found[0]:
                    yield Mutant(kernel, kind, number, found.start(), found.end(), put, text)


def chosen(every: Iterable[Mutant], count: int) -> list[Mutant]:
    """Return so many mutants, of each kernel and kind in turn; which, their names decide."""
    lots: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for mutant in sorted(every, key=lambda m: m.id):
        lots[mutant.kernel.partition(" ")[0], mutant.kind].append(mutant)
    order = sorted(lots, key=lambda lot: hashlib.sha256(repr(lot).encode()).hexdigest())
    found: list[Mutant] = []
    while len(found) < count and any(lots.values()):
        found += [lots[lot].pop() for lot in order if lots[lot]][: count - len(found)]
    return found


# --- running -------------------------------------------------------------------------------------


class Ground:
    """An open device, and which cases use which texts there."""

    def __init__(self, cases: Sequence[Case]) -> None:
        # bytes of weights are kept as on GPUs: the kernels have code for them
        storages.reads = lambda device_class: reads(device_class) - {"floats"}
        self.bench = Bench(FARM[CONFIGURATION].device)
        self.original = dict(texts())
        self.cases: dict[str, list[tuple[float, Case]]] = defaultdict(list)
        self.sources: dict[str, set[Source]] = defaultdict(set)
        self.epilogues: dict[str, str] = {}
        for case in cases:
            start = time.process_time()
            row = self.bench.run(case)
            if row["status"] == SKIPPED:
                continue
            assert row["status"] == PASSED, row
            took = time.process_time() - start
            for name, source in self._seen():
                self.cases[name].append((took, case))
                self.sources[name].add(source)

    def _seen(self) -> Iterator[tuple[str, Source]]:
        names = set()
        for model in self.bench.executor.made:
            for one in model.plan.passes:  # type: ignore[union-attr]
                for name in (one.source.kernel, self._of_epilogue(one.source.epilogue)):
                    if name and name not in names:
                        names.add(name)
                        yield name, one.source

    def _of_epilogue(self, text: str | None) -> str:
        if text is None or text.count("\n") < 2:
            return ""
        name = f"{PRINTED} {hashlib.sha256(text.encode()).hexdigest()[:8]}"
        self.epilogues[name] = text
        return name

    def every(self) -> Iterator[Mutant]:
        """Yield the mutants of all texts that cases use here."""
        for name in self.sources:
            text = self.epilogues.get(name) or self.original[name]
            yield from mutants_of(name, text)

    def is_none(self, mutant: Mutant) -> str:
        """Return why a mutant is none: its text is no kernel, or the same code."""
        for source in self.sources[mutant.kernel]:
            try:
                if self._code(source, mutant) != self._code(source, None):
                    return ""
            except GpuEdgeError as error:
                return f"no kernel: {error.what}"
        return "the same code"

    def _code(self, source: Source, mutant: Mutant | None) -> bytes:
        text, epilogue = self.original[source.kernel], source.epilogue
        if mutant is not None and mutant.kernel in self.epilogues:
            epilogue = mutant.wrong if epilogue == mutant.text else epilogue
        elif mutant is not None:
            text = mutant.wrong
        kernel = load(text, filename="mutant", consts=dict(source.consts), epilogue=epilogue,
                      is_half=source.is_half)  # fmt: skip
        return print_kernel(kernel, "spirv", {}, source.along).code

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """Run the cases of a mutant until one fails, and return what came of it."""
        tried = 0
        with wrong(mutant, self.original, mutant.kernel in self.epilogues):
            for _, case in sorted(self.cases[mutant.kernel], key=lambda one: one[0]):
                tried += 1
                row = self.bench.run(case)
                if row["status"] not in (PASSED, SKIPPED):
                    return {"fate": "killed", "by": case.id, "tried": tried}
        return {"fate": "survived", "tried": tried}


class wrong:  # noqa: N801  (a context)
    """The package's kernels with a mistake, for as long as it is entered."""

    def __init__(self, mutant: Mutant, original: Mapping[str, str], is_printed: bool) -> None:
        self._texts, self._load, self._key = kernels.texts, kernels.load, kernels.blob_key
        self._mutant, self._is_printed = mutant, is_printed
        self._wrong = {**original} if is_printed else {**original, mutant.kernel: mutant.wrong}

    def __enter__(self) -> None:
        def spoilt(epilogue: str) -> str:
            is_it = self._is_printed and epilogue == self._mutant.text
            return self._mutant.wrong if is_it else epilogue

        def key(text: str, epilogue: str, *rest: Any, **more: Any) -> str:
            return self._key(text, spoilt(epilogue), *rest, **more)

        def read(text: str, *, epilogue: str = "", **more: Any) -> Any:
            return self._load(text, epilogue=spoilt(epilogue), **more)

        kernels.texts = lambda: self._wrong
        kernels.load, kernels.blob_key = read, key

    def __exit__(self, *_: object) -> None:
        kernels.texts, kernels.load, kernels.blob_key = self._texts, self._load, self._key


def work(part: int, parts: int, most: int) -> int:
    """Judge the mutants that have no result yet; what each is, is said before and after."""
    os.environ.update(environment_of(CONFIGURATION))
    ground = Ground(listed())
    known = {row["id"] for row in read() if "fate" in row}
    with results_of(part).open("a", encoding="utf-8") as file:
        left = chosen(ground.every(), 3 * COUNT)
        for mutant in left[part::parts]:
            counted = sum(row.get("fate") in ("killed", "survived") for row in read())
            if counted >= most:
                break
            if mutant.id in known:
                continue
            row = {"id": mutant.id, "said": mutant.said, "kind": mutant.kind,
                   "kernel": mutant.kernel}  # fmt: skip
            why = ground.is_none(mutant)
            if why:
                _say(file, {**row, "fate": "none", "why": why})
                continue
            _say(file, row)
            _say(file, {**row, **ground.judge(mutant)})
    return 0


def _say(file: Any, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()


def results_of(part: int) -> Path:
    """Return the file of results of one of the processes."""
    return OUT / f"results-{part}.jsonl"


def read(name: str = "results-*.jsonl") -> list[dict[str, Any]]:
    """Return the rows of results, whole ones only."""
    rows = []
    for path in sorted(OUT.glob(name)):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def run(part: int, parts: int, most: int) -> None:
    """Run processes, one after the other, until one comes to the end of a part of the mutants."""
    numbers = map(str, (part, parts))
    command = [sys.executable, __file__, "--child", *numbers, "--most", str(most)]
    # what a kernel leaves as it was must not be what the right one left there before
    environment = {**environment_of(CONFIGURATION), "MALLOC_PERTURB_": "165"}
    path = results_of(part)
    for _ in range(COUNT):
        with tempfile.TemporaryDirectory(prefix="gpuedge-mutants-") as cache:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**environment, "GPUEDGE_CACHE_DIR": cache}
            )
            while process.poll() is None:
                time.sleep(1)
                is_known = path.exists()
                if is_known and time.time() - path.stat().st_mtime > PATIENCE_S + START_S:
                    process.kill()
        if process.returncode == 0:
            return
        rows = read(path.name)
        if not rows or "fate" in rows[-1]:
            print(f"a process ended with {process.returncode} between mutants", file=sys.stderr)
            return
        with path.open("a", encoding="utf-8") as file:
            _say(file, {**rows[-1], "fate": "killed", "by": f"exit {process.returncode}"})


# --- the page ------------------------------------------------------------------------------------

INTRODUCTION = """\
# Mutants

Made by `make release-check` (tools/kernel_mutants.py); do not edit. A mutant is a kernel with one
mistake. It is killed when a case fails on {name}, where weights of int8 stay bytes here
as on GPUs: one of those picked by hand or drawn first (`listed` in
gpuedge/conformance/catalogue.py). Mutants whose printed code is that of the kernel, and texts that
are no kernel, are left out. Equivalent ones are argued below.
"""


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of results."""
    last = {row["id"]: row for row in rows if row.get("fate") in ("killed", "survived")}
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for row in last.values():
        by_kind[row["kind"]][_fate(row)] += 1
    lines = ["| mistake | mutants | killed | equivalent | survived |", "|---|---|---|---|---|"]
    whole: Counter[str] = Counter()
    for kind, counts in sorted(by_kind.items()):
        whole += counts
        lines.append(_line(kind, counts))
    lines.append(_line("all", whole))
    living = [row for row in last.values() if row["fate"] == "survived"]
    told = [f"* `{row['said']}`: {EQUIVALENT.get(row['id'], '**survived**')}" for row in living]
    head = INTRODUCTION.format(name=CONFIGURATION)
    return "\n".join([head, *lines, "", "## Equivalent mutants and survivors", "", *told, ""])


def _fate(row: Mapping[str, Any]) -> str:
    return "equivalent" if row["fate"] == "survived" and row["id"] in EQUIVALENT else row["fate"]


def _line(kind: str, counts: Counter[str]) -> str:
    cells = (kind, counts.total(), *(counts[k] for k in ("killed", "equivalent", "survived")))
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, write the page, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--run", action="store_true", help="run all of them anew")
    parser.add_argument("--resume", action="store_true", help="go on where a run ended")
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once")
    parser.add_argument("--most", type=int, default=COUNT, metavar="N", help="so many at the most")
    options = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    if options.child:
        part, parts = options.child
        return work(part, parts, options.most)
    for path in OUT.glob("results-*.jsonl") if options.run else ():
        path.unlink()
    if options.run or options.resume:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda i: run(i, options.jobs, options.most), range(options.jobs)))
    rows = read()
    fates = Counter(_fate(row) for row in {r["id"]: r for r in rows if "fate" in r}.values())
    PAGE.write_text(page(rows), encoding="utf-8")
    print(f"{dict(fates)}; wrote {os.path.relpath(PAGE)}", file=sys.stderr)
    return int(
        fates["killed"] < LEAST * (fates["killed"] + fates["survived"]) or not fates["killed"]
    )


if __name__ == "__main__":
    sys.exit(main())
