"""Writes docs/tables/cli-options.md from the command line's own parsers: every verb and option.

Usage: python tools/cli_options.py    (a test compares the page with what this makes)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gpuedge.cli.main import VERBS, actions_of, build_parser

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tables" / "cli-options.md"

INTRODUCTION = """# Options of the command line

This page is made from the parsers by `make generate`; a test compares them. What the verbs
do, print and return is in [cli](../cli.md).

## Every verb and action

"""


def rows(parser: argparse.ArgumentParser, *, common: bool) -> list[str]:
    """Return the table rows of a parser: of the options of every verb, or of its own."""
    found = []
    for group in parser._action_groups:
        if (group.title == "output") is not common:
            continue
        for action in group._group_actions:
            if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
                found.append(f"| {name_of(action)} | {(action.help or '').replace('%%', '%')} |")
    return found


def name_of(action: argparse.Action) -> str:
    """Return how an argument is written, such as ``--device D`` or ``[NAME]``."""
    choices = "|".join(map(str, action.choices or ())).replace("|", " \\| ")
    value = str(action.metavar or choices or action.dest)
    if not action.option_strings:
        return f"`[{value}]`" if action.nargs in ("?", "*") else f"`{value}`"
    flags = "`, `".join(action.option_strings)
    return f"`{flags}`" if action.nargs == 0 else f"`{flags} {value}`"


def sections() -> Iterator[str]:
    """Return the section of each verb and action that takes arguments of its own."""
    for verb in VERBS:
        parser = actions_of(build_parser(verb))[verb]
        below = actions_of(parser)
        for words, one in [(verb, parser), *((f"{verb} {name}", p) for name, p in below.items())]:
            table = rows(one, common=False)
            if table:
                yield f"\n## `gpuedge {words}`\n\n| argument | meaning |\n|---|---|\n" + "\n".join(
                    table
                )


def page() -> str:
    """Return the text of docs/tables/cli-options.md."""
    common = rows(actions_of(build_parser(None))["info"], common=True)
    head = INTRODUCTION + "| argument | meaning |\n|---|---|\n" + "\n".join(common)
    return "\n".join([head, *sections()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
