"""``gpuedge db validate``: whether a folder is whole, and whether its entries can be right."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuedge.capdb.database import check_folder, read_unsealed
from gpuedge.capdb.lint import corpus, lint
from gpuedge.capdb.place import folder as in_use
from gpuedge.capdb.seal import seal
from gpuedge.cli.output import Output
from gpuedge.core.errors import DatabaseError
from gpuedge.core.text import counted
from gpuedge.safety import paths

HOW_TO_SEAL = "files changed on purpose: gpuedge db validate --seal"


def place(named: str | None) -> Path:
    """Return the folder that an argument names; ``embedded`` and ``in-use`` are words for one."""
    if named in (None, "in-use"):
        return in_use()
    return paths.data_dir("capability_db") if named == "embedded" else Path(str(named))


@contextmanager
def naming(argument: str | None) -> Iterator[None]:
    """Name the folder that was given as what an error in this block is about."""
    try:
        yield
    except DatabaseError as error:
        if argument is not None:
            error.asked_by, error.hint = argument, f"gpuedge db validate {argument}"
        raise


def kernels() -> frozenset[str]:
    """Return the ids of all kernel variants."""
    from gpuedge.kernels import library

    return frozenset(variant.id for variant in library.variants())


def validate(options: argparse.Namespace, output: Output) -> int:
    """Check a folder, and seal it if asked and nothing is wrong; 1 if something is."""
    folder = place(options.folder)
    with naming(options.folder):
        problems = lint.lint(folder, kernels=kernels())
    is_bad = _is_bad(problems, options.strict)
    unfit = _refused(folder, is_sealed=False) if options.seal else []
    is_sealed = options.seal and not (is_bad or unfit)
    if is_sealed:
        seal(folder)
    refused = unfit or _refused(folder, is_sealed=True)
    problems = [*refused, *problems]
    is_bad = is_bad or bool(refused)
    counts = Counter(problem.severity for problem in problems)
    covered = coverage(folder)
    number = len(read_unsealed(folder)) if not counts[lint.ERROR] else None
    output.document(
        {
            "schema": "gpuedge.db.validate/1",
            "folder": str(folder),
            "result": "FAIL" if is_bad else "PASS",
            "entries": number,
            "sealed": is_sealed,
            "counts": {severity: counts[severity] for severity in (lint.ERROR, lint.WARNING)},
            "coverage": covered,
            "problems": [problem.to_dict() for problem in problems],
        }
    )
    _print(problems, output)
    what = f"{folder}: " + ("not good" if is_bad else "good")
    sealed = ", sealed" if is_sealed else ""
    errors, warnings = (counted(counts[s], s) for s in (lint.ERROR, lint.WARNING))
    output.text(f"{what}{sealed}; {errors}, {warnings}{_coverage(covered)}")
    if any("digest" in problem.text for problem in refused):
        output.log(HOW_TO_SEAL)
    return 1 if is_bad else 0


def _is_bad(problems: list[lint.Problem], is_strict: bool) -> bool:
    return any(is_strict or problem.severity == lint.ERROR for problem in problems)


def _refused(folder: Path, *, is_sealed: bool) -> list[lint.Problem]:
    """Return why the library would not use the folder, if it would not (as `check_folder`)."""
    try:
        check_folder(folder, is_sealed=is_sealed)
    except DatabaseError as error:
        why = (error.known or error.what).replace(f"{folder.absolute()}/", "")
        return [lint.Problem("refused", "", "", why)]
    return []


def _print(problems: list[lint.Problem], output: Output) -> None:
    rows = [
        ("FAIL" if p.severity == lint.ERROR else "WARN", p.rule, p.entry or "-", p.file, p.text)
        for p in problems
    ]
    if rows:
        titles = ("result", "rule", "entry", "file", "what")
        output.table("Entries that need a look", titles, rows)


def coverage(folder: Path) -> dict[str, int]:
    """Return how many facts there are, how many entries rest on, and how many are left out."""
    every = set(corpus.facts(folder))
    out = {fact for fact, _, _ in corpus.left_out(folder)} & every
    try:
        used = {e.get("fact") for entry in read_unsealed(folder) for e in entry.evidence} & every
    except DatabaseError:
        used = set()
    return {"facts": len(every), "in_entries": len(used), "left_out": len(out)}


def _coverage(found: dict[str, int]) -> str:
    if not found["facts"]:
        return ""
    used, out = found["in_entries"], found["left_out"]
    return f"; {used} of {found['facts']} facts in entries, {out} left out"
