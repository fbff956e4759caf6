"""Finds entries that are valid and yet wrong: each rule is a fault that public lists really had.

>>> from capdb.lint import lint
>>> [problem.rule for problem in lint(folder)]                                # doctest: +SKIP
['dead', 'over-broad']
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from capdb import checks_entry, checks_folder, checks_pairs, checks_text
from capdb.rules import ERROR, Folder, Problem, Row
from gpuedge.capdb import source
from gpuedge.capdb.entries import parse
from gpuedge.capdb.files import bad, contents, document
from gpuedge.core.errors import DatabaseError


def lint(
    folder: Path, *, today: str | None = None, kernels: Collection[str] | None = None
) -> list[Problem]:
    """Return what is wrong with the entries of a folder; it need not be sealed.

    Parameters
    ----------
    folder : Path
    today : str, optional
        ISO date that reviews are compared with.
    kernels : collection of str, optional
        Ids of the kernel variants there are; without them ``unknown-kernel`` finds nothing.

    Raises
    ------
    DatabaseError (GE-600)
        The folder, its identities or its facts cannot be read at all. What is wrong with single
        files of entries is told as problems.
    """
    day = today or time.strftime("%Y-%m-%d", time.gmtime())
    path = Path(folder).absolute()
    rows: list[Row] = []
    problems: list[Problem] = []
    for name in source.names(path):
        if name.startswith(f"{source.ENTRIES}/"):
            try:
                rows += _rows(path, name)
            except DatabaseError as error:
                why = (error.known or error.what).removeprefix(f"{path / name}: ")
                problems.append(Problem("schema", "", name, why))
    known = None if kernels is None else frozenset(kernels)
    about = Folder(path, day, tuple(rows), known, _envelope(path))
    for checks in (checks_text, checks_entry, checks_pairs, checks_folder):
        problems += checks.check(about)
    return sorted(set(problems), key=lambda p: (p.severity, p.rule, p.entry, p.file, p.text))


def _rows(folder: Path, name: str) -> Iterator[Row]:
    path = folder / name
    body = document(path, contents(path))
    _, api, file = name.split("/")
    head = {"schema": source.ENTRIES_SCHEMA, "api": api, "vendor": file.removesuffix(".json")}
    listed = body.pop("entries", None)
    if body != head or not isinstance(listed, list):
        raise bad(path, f"besides a list of entries it must hold exactly {head}")
    for record in listed:
        try:
            yield Row(name, api, record, parse(record, api))
        except ValueError as error:
            yield Row(name, api, record, None, str(error))


def _envelope(folder: Path) -> Mapping[str, Any]:
    path = folder / source.FILE
    try:
        return document(path, contents(path))
    except DatabaseError:
        return {}


def fitness(folder: Path, *, kernels: Collection[str] | None = None) -> list[str]:
    """Return the errors as texts: what keeps a database from being published."""
    found = lint(folder, kernels=kernels)
    return [str(problem) for problem in found if problem.severity == ERROR]
