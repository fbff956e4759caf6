"""Tools for capability databases.

    python tools/capdb validate [FOLDER] [--seal] [--strict]    lint; write the digests anew
    python tools/capdb diff OLD NEW [--strict]                  whose decisions change
    python tools/capdb golden [--check]                         the table of decisions, for review
    python tools/capdb sign init|publish|renew|rotate ...       a repository of signed updates

Each takes --json. Exit codes: 0 good, 1 a check failed, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from capdb import corpus, diff, golden, signing
from capdb.corpus import read_unsealed
from capdb.lint import fitness, lint
from capdb.repository import LONG_DAYS
from capdb.rules import ERROR, WARNING, Problem
from capdb.seal import seal
from gpuedge.capdb.check import check_folder, check_schemas
from gpuedge.capdb.files import bad
from gpuedge.capdb.identities import identities
from gpuedge.capdb.source import names
from gpuedge.core.errors import DatabaseError, GpuEdgeError, UsageError
from gpuedge.plan import library

Result = tuple[dict[str, Any], list[str], bool]
"""The JSON document, lines for people, and whether all is good."""


def kernels() -> frozenset[str]:
    """Return the ids of all kernel variants."""
    return frozenset(variant.id for variant in library.variants())


def validate(options: argparse.Namespace) -> Result:
    """Lint a folder, and seal it if asked and nothing is wrong."""
    folder = Path(options.folder)
    if not names(folder):
        raise bad(folder, "it is no database")
    problems = lint(folder, kernels=kernels())
    refused = _refused(folder, is_sealed=not options.seal)
    is_bad = bool(refused) or any(options.strict or p.severity == ERROR for p in problems)
    if options.seal and not is_bad:
        seal(folder)
        refused = _refused(folder, is_sealed=True)
    problems, is_bad = [*refused, *problems], is_bad or bool(refused)
    counts = Counter(problem.severity for problem in problems)
    covered = coverage(folder)
    document = {
        "schema": "gpuedge.db.validate/1",
        "folder": str(folder),
        "result": "FAIL" if is_bad else "PASS",
        "sealed": options.seal and not is_bad,
        "counts": {severity: counts[severity] for severity in (ERROR, WARNING)},
        "coverage": covered,
        "problems": [problem.to_dict() for problem in problems],
    }
    facts = "of {facts} facts {in_entries} in entries, {in_notes} in notes, {left_out} left out"
    facts = facts.format(**covered)
    end = f"{counts[ERROR]} errors, {counts[WARNING]} warnings; {facts}"
    return document, [*map(str, problems), end], not is_bad


def _refused(folder: Path, *, is_sealed: bool) -> list[Problem]:
    """Return why the library would not use the folder, if it would not."""
    try:
        check_folder(folder, is_sealed=is_sealed)
        check_schemas(folder)
    except DatabaseError as error:
        why = (error.known or error.what).replace(f"{folder.absolute()}/", "")
        return [Problem("refused", "", "", why)]
    return []


def coverage(folder: Path) -> dict[str, int]:
    """Return how many facts there are, and how many are in entries, in notes and left out."""
    every = set(corpus.facts(folder))
    out = {fact for fact, _, _ in corpus.left_out(folder)} & every
    try:
        entries = list(read_unsealed(folder))
    except DatabaseError:
        entries = []
    records = {
        "in_entries": [e.source for e in entries],
        "in_notes": [n for n, _ in corpus.notes(folder)],
    }
    used = {
        name: len({one.get("fact") for row in rows for one in row["evidence"]} & every)
        for name, rows in records.items()
    }
    return {"facts": len(every), **used, "left_out": len(out)}


def compare(options: argparse.Namespace) -> Result:
    """Print every saved identity whose decision differs between two folders."""
    old, new = (read_unsealed(Path(folder)) for folder in (options.old, options.new))
    saved = identities(new.folder)
    changes = diff.compare(old, new, saved, time.strftime("%Y-%m-%d", time.gmtime()))
    entries = diff.entries_changed(old, new)
    document = {
        "schema": "gpuedge.db.diff/1",
        "entries": entries,
        "identities": len(saved),
        "changes": [change.to_dict() for change in changes],
    }
    lines = [
        f"{change.device} {change.level} ({change.name}): {key}: "
        f"{json.dumps(before)} -> {json.dumps(change.after[key])}"
        for change in changes
        for key, before in change.before.items()
    ]
    counts = ", ".join(f"{len(names)} {what}" for what, names in entries.items())
    number = len({change.device for change in changes})
    end = f"entries: {counts}; decisions change for {number} of {len(saved)} identities"
    return document, [*lines, end], not (options.strict and changes)


def review(options: argparse.Namespace) -> Result:
    """Write or check the table of decisions."""
    is_changed = golden.write(is_check=options.check)
    text = "changed" if is_changed else "unchanged"
    is_good = not (options.check and is_changed)
    return {"schema": "gpuedge.db.golden/1", "is_changed": is_changed}, [text], is_good


def sign(options: argparse.Namespace) -> Result:
    """Take one step of publishing; the document names what was written."""
    repository, keys, days = Path(options.repository), Path(options.keys), options.days
    if options.step == "init":
        made: dict[str, Any] = {
            "root": str(
                signing.init(
                    repository, keys, threshold=options.threshold, root_keys=options.root_keys,
                    expires_days=days or LONG_DAYS,
                )
            )
        }  # fmt: skip
    elif options.step == "publish":
        if options.database is None:
            raise UsageError("`sign publish` needs the database.", hint="--database FOLDER")
        database = Path(options.database)
        done = signing.publish(
            database, repository, keys, check=lambda path: fitness(path, kernels=kernels()),
            expires_days=days or signing.EXPIRES_DAYS,
        )  # fmt: skip
        made = asdict(done)
    elif options.step == "renew":
        made = asdict(signing.renew(repository, keys, expires_days=days or signing.EXPIRES_DAYS))
    else:
        if not options.role:
            raise UsageError("`sign rotate` needs the roles.", hint="--role root --role timestamp")
        root = signing.rotate(repository, keys, options.role, expires_days=days or LONG_DAYS)
        made = {"root": str(root)}
    lines = [f"{name}: {value}" for name, value in made.items()]
    return {"schema": "gpuedge.db.sign/1", "step": options.step, **made}, lines, True


ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], Result]]] = {
    "validate": validate, "diff": compare, "golden": review, "sign": sign,
}  # fmt: skip


def _days(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 36_500:
        raise ValueError(text)
    return number


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        "python tools/capdb", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    added = {name: actions.add_parser(name, help=ACTIONS[name].__doc__) for name in ACTIONS}
    for one in added.values():
        one.add_argument("--json", action="store_true", help="print one JSON document")
    added["validate"].add_argument("folder", nargs="?", default=str(golden.FOLDER))
    added["validate"].add_argument("--seal", action="store_true", help="write the digests anew")
    added["diff"].add_argument("old")
    added["diff"].add_argument("new")
    for name in ("validate", "diff"):
        added[name].add_argument("--strict", action="store_true", help="fail on any finding")
    added["golden"].add_argument("--check", action="store_true", help="write nothing")
    one = added["sign"]
    one.add_argument("step", choices=("init", "publish", "renew", "rotate"))
    one.add_argument("repository", help="folder that is published")
    one.add_argument("--keys", required=True, metavar="FOLDER", help="of the private keys, apart")
    one.add_argument("--database", metavar="FOLDER", help="publish: a sealed database folder")
    one.add_argument("--days", type=_days, help="until what is signed expires")
    one.add_argument("--threshold", type=_days, default=1, help="init: signatures of the root")
    one.add_argument("--root-keys", type=_days, help="init: keys of the root (the threshold)")
    one.add_argument("--role", action="append", default=[], help="rotate: whose; repeatable")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        document, lines, is_good = ACTIONS[options.action](options)
    except GpuEdgeError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(json.dumps(document) if options.json else "\n".join(lines))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
