"""Which conformance cases a command is about: profile, shard, names and patterns."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from gpuedge.conformance.case import Case
from gpuedge.conformance.catalogue import everything, shard_of
from gpuedge.core.errors import UsageError
from gpuedge.core.text import nearest, shown

WILD = frozenset("*?[")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose cases."""
    add_names(parser)
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N",
        help="only part I of N, from 1; a case's part depends on its name only",
    )  # fmt: skip


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add those of them that go by profile and name."""
    profile = parser.add_argument("--profile", choices=("smoke", "full"), default="smoke")
    profile.help = "how many and how large"
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB",
        help="only cases whose name matches, such as 'conv2d/*'; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="only this case; repeatable"
    )


def shard(text: str) -> tuple[int, int]:
    """Return the part and the number of parts of ``I/N``."""
    match = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not I/N with I from 1 to N and N up to 99999"
        )
    return int(match[1]), int(match[2])


def chosen(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the options select.

    Raises UsageError (GE-200) for a name or a pattern that is of no case of the profile.
    """
    part, parts = options.shard
    known = everything(options.profile)
    names = [case.id for case in known]
    wanted: set[str] = set()
    for option, patterns in (("--only", options.only), ("--case", options.case)):
        for pattern in patterns:
            wanted.update(matching(pattern, names, option, options.profile))
    cases = [
        case
        for case in known
        if shard_of(case.id, parts) == part
        and (case.id in wanted or not options.only + options.case)
    ]
    if (seed := getattr(options, "shuffle", None)) is not None:
        random.Random(seed).shuffle(cases)
    return cases


def matching(pattern: str, names: Sequence[str], asked_by: str, profile: str) -> list[str]:
    """Return the names that a pattern is of; with ``--case`` it is a name.

    Raises UsageError (GE-200), with the most similar name, where there is none.
    """
    is_glob = asked_by != "--case"
    found = [n for n in names if n == pattern or (is_glob and fnmatchcase(n, pattern))]
    if found:
        return found
    is_full = profile == "smoke" and any(
        case.id == pattern or (is_glob and fnmatchcase(case.id, pattern))
        for case in everything("full")
    )
    hint = "--profile full has it" if is_full else similar(pattern, names)
    raise UsageError(
        f"No case matches {pattern}." if is_glob else f"There is no case {shown(pattern)}.",
        asked_by=asked_by,
        known=f"profile {profile}: {len(names)} cases",
        hint=hint or "gpuedge conformance list",
    )


def similar(pattern: str, names: Iterable[str]) -> str | None:
    """Return a question about the name that is most like an unknown name or pattern.

    The operation is looked at first: a name has some 60 letters, and there are thousands.
    """
    op, _, rest = pattern.partition("/")
    by_op: dict[str, list[str]] = {}
    for name in names:
        by_op.setdefault(name.partition("/")[0], []).append(name)
    if op in by_op and rest and not WILD & set(rest):
        return nearest(pattern, by_op[op], f"{op}/")
    found = nearest(op, by_op) if op not in by_op else None
    if found is None or not rest:
        return found
    # the rest of the pattern is kept
    return re.sub(r"'(.*)'", lambda match: f"'{match[1]}/{rest}'", found)
