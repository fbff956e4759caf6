"""``gpuedge db``: what the capability database says, whether it is sound, and getting a newer one.

Actions are in files of their own; this one knows their arguments, and loads the one that is asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from gpuedge.cli.arguments import seconds, whole
from gpuedge.cli.output import Output

ACTIONS: Mapping[str, tuple[str, str]] = {
    "show": ("db_show", "list the entries, or show some of them in full"),
    "lookup": ("db_why", "what a device may not do, in brief"),
    "why": ("db_why", "the trace of every entry for a device"),
    "validate": ("db_check", "check a database folder, and look for entries that cannot be right"),
    "diff": ("db_diff", "every saved identity that two databases decide differently about"),
    "replay": ("db_diff", "decide a saved decision again, and compare it byte by byte"),
    "sign": ("db_sign", "make a repository of signed updates, and publish a database in it"),
    "update": ("db_sign", "get a newer database from a mirror, if it is signed and good"),
}
"""Actions in the order of the help: the module of each in this package, and what it does."""

DEVICE = "a record of a device in a JSON file, the id of a stored identity, or such as vulkan:0"
FOLDER = "a database folder, or the word embedded or in-use"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (_, summary) in ACTIONS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        one = actions.add_parser(name, help=summary, description=about)
        _ARGUMENTS[name](one)


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="entries to show in full")


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="D", help=f"{DEVICE} (default: the devices of this machine)"
    )


def _validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help=f"{FOLDER} (the default)")
    parser.add_argument(
        "--seal", action="store_true", help="if all is good, write the digests of the files anew"
    )
    parser.add_argument("--strict", action="store_true", help="let warnings fail, too")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help=FOLDER)
    parser.add_argument("new", metavar="NEW", help="another one")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if anything differs")


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="DECISION.json", help="made by Decision.to_json() or gpuedge run --json"
    )


def _sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", choices=("init", "publish", "renew", "rotate"), help="what to do")
    parser.add_argument("repository", metavar="REPOSITORY", help="folder that is published")
    parser.add_argument(
        "--keys", required=True, metavar="FOLDER", help="folder of the private keys, apart from it"
    )
    parser.add_argument("--database", metavar="FOLDER", help="publish: a sealed database folder")
    parser.add_argument(
        "--days", type=whole(1, 36_500), metavar="N", help="days until what is signed expires"
    )
    parser.add_argument(
        "--threshold",
        type=whole(1, 36_500),
        default=1,
        metavar="N",
        help="init: signatures of the root (1)",
    )
    parser.add_argument(
        "--root-keys",
        type=whole(1, 36_500),
        metavar="N",
        help="init: keys of the root (the threshold)",
    )
    parser.add_argument(
        "--role", action="append", default=[], metavar="ROLE", help="rotate: whose; repeatable"
    )


def _update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="MIRROR", help="a folder or an http(s) address"
    )
    parser.add_argument("--root", metavar="FILE", help="the root of trust, a TUF root.json")
    parser.add_argument("--deadline", type=seconds(), metavar="S", help="seconds in all (30)")
    parser.add_argument(
        "--rollback", action="store_true", help="go back to the version before the last update"
    )


_ARGUMENTS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "show": _show,
    "lookup": _device,
    "why": _device,
    "validate": _validate,
    "diff": _diff,
    "replay": _replay,
    "sign": _sign,
    "update": _update,
}


def run(options: argparse.Namespace, output: Output) -> int:
    """Do what the action says; 1 where a check failed or an update was refused."""
    module = import_module(f"gpuedge.cli.{ACTIONS[options.action][0]}")
    action = cast("Callable[[argparse.Namespace, Output], int]", getattr(module, options.action))
    return action(options, output)
