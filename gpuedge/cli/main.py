"""Entry point of the command line: finds the verb, loads only its file, maps errors to exit codes.

Exit codes: 0 good, 1 a check failed, 2 usage, 3 no usable device, 4 device lost or timed out.
As shells have it, 130 means interrupted and 141 that nobody read the output any more.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

import gpuedge
from gpuedge.cli.output import Output
from gpuedge.core.errors import (
    BackendUnavailableError,
    DeviceError,
    GpuEdgeError,
    NoUsableDeviceError,
    UsageError,
)
from gpuedge.core.text import nearest
from gpuedge.safety.interrupts import held
from gpuedge.safety.packages import is_interrupt

USAGE, NO_DEVICE, DEVICE_FAILED = 2, 3, 4
INTERRUPTED, BROKEN_PIPE = 130, 141

VERBS: dict[str, str] = {
    "probe": "find the devices of this machine and test each driver in a process of its own",
    "doctor": "check drivers, packages and settings, with a remedy for each finding",
    "run": "run an ONNX model on arrays from .npy files",
    "check": "say where every operator of a model would run, why not elsewhere, and at what cost",
    "pack": "write a model to one file, which is read without the onnx package",
    "quantize": "write a model of fewer bits, and say how far its outputs are from the floats",
    "conformance": "test whether a device computes what it should, case by case",
    "report": "one file about this machine to send: doctor, probe and conformance",
    "farm": "run the conformance cases on the devices of many machines, and report on them",
    "bench": "time fixed graphs on a GPU and on the CPU path; write an anonymous trace",
    "tune": "time the kernels of a model on a GPU, and keep or pass on which are the fastest",
    "db": "the capability database: what it says of a device and why, signed updates",
    "info": "versions, settings and where they come from, known devices, folders",
    "kernels": "list or show the kernel texts and their variants",
    "cache": "show or clear what gpuedge keeps on disk",
    "completion": "print a script by which bash, zsh or fish completes this command",
}
"""Verbs in the order of the help; each is the module of that name in this package."""


FLAGS = ("--json", "--quiet", "--verbose", "--no-color", "--help", "--version")
"""Options that every verb takes and that take no value."""


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage as an error of ours, so that ``--json`` gets a document too."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"(?:arguments: |choice: ')(-*)(\w[\w-]*)", message)
        dashes, word = found.groups() if found else ("", "")
        option = re.match(r"argument (?:-\w/)?(--[\w-]+)", message)
        near = nearest(word, self._option_string_actions if dashes else actions_of(self), dashes)
        raise UsageError(
            f"{message[:1].upper()}{message[1:]}.",
            asked_by=option[1] if option else "the command line",
            hint=f"{near} {self.prog} --help lists all" if near else f"{self.prog} --help",
        )


def build_parser(verb: str | None) -> argparse.ArgumentParser:
    """Return the parser; only `verb` gets its arguments, so that no other file is loaded."""
    parser = _Parser(
        prog="gpuedge",
        description="Use the GPU of an unknown device safely: probe, decide, run.",
        epilog="Exit codes: 0 good, 1 a check failed, 2 usage, 3 no usable device, "
        "4 device lost or timed out.",
    )
    parser.add_argument("--version", action="version", version=f"gpuedge {gpuedge.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        child = verbs.add_parser(name, help=summary, description=about)
        if name == verb:
            _module(name).add_arguments(child)
        _add_output_options(child)
    return parser


def _add_output_options(parser: argparse.ArgumentParser, *, is_action: bool = False) -> None:
    """Add what every verb takes to its parser and to those of its actions."""
    for child in actions_of(parser).values():
        _add_output_options(child, is_action=True)
    # An action's default would hide what was said before the action.
    flag, count = (argparse.SUPPRESS, argparse.SUPPRESS) if is_action else (False, 0)
    common = parser.add_argument_group("output")
    common.add_argument(
        "--json", action="store_true", default=flag, help="print one JSON document on stdout"
    )
    common.add_argument(
        "-q", "--quiet", action="store_true", default=flag, help="no messages on stderr but errors"
    )
    common.add_argument(
        "-v", "--verbose", action="count", default=count,
        help="more, and tracebacks of errors; -vv for the whole log",
    )  # fmt: skip
    common.add_argument(
        "--no-color", action="store_true", default=flag, help="plain text, as NO_COLOR=1 does"
    )


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def word_first(arguments: Sequence[str], words: Collection[str]) -> tuple[str | None, list[str]]:
    """Return the first argument that is no option, and all arguments with it in front.

    So that options may stand before a verb or an action, what follows an option that takes a value
    is taken for its value unless it is one of `words`.
    """
    for i, argument in enumerate(arguments):
        before = arguments[i - 1] if i else ""
        is_value = before.startswith("--") and "=" not in before and before not in FLAGS
        if argument.startswith("-") or (is_value and argument not in words):
            continue
        if argument not in words or "--version" in arguments[:i]:
            return argument, list(arguments)
        return argument, [argument, *arguments[:i], *arguments[i + 1 :]]
    return None, list(arguments)


def _module(verb: str) -> Any:
    """Return the module of a verb: it offers `add_arguments` and `run`."""
    with held:  # numpy comes with it
        return import_module(f"gpuedge.cli.{verb}")


def exit_code(error: GpuEdgeError) -> int:
    """Return the exit code that `error` stands for."""
    if isinstance(error, (NoUsableDeviceError, BackendUnavailableError)):
        return NO_DEVICE
    return DEVICE_FAILED if isinstance(error, DeviceError) else USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; those of the process by default.
    """
    if sys.stdout is None:  # closed by the caller: whoever does that wants the exit code only
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb, arguments = word_first(arguments, VERBS)
    # Until the arguments are parsed: an error in them is printed as was asked for, too.
    output = Output(json="--json" in arguments)
    is_verbose = False
    try:
        parser = build_parser(verb)
        if verb in VERBS:
            below = actions_of(actions_of(parser)[verb])
            arguments = [verb, *word_first(arguments[1:], below)[1]]
        options, rest = parser.parse_known_args(arguments)
        if rest:
            at = actions_of(parser)[options.verb]
            at = actions_of(at).get(getattr(options, "action", ""), at)
            # What follows an option that is none may be its value, or not.
            odd = [word for word in rest if word.startswith("-")] or rest
            at.error(f"unrecognized arguments: {' '.join(odd)}")
        is_verbose = options.verbose > 0  # a traceback of the parser helps nobody
        output = Output(options.json, options.quiet, options.no_color)
        level = max(logging.DEBUG, logging.WARNING - 10 * options.verbose)
        level = logging.ERROR if options.quiet else level
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
        code: int = _module(options.verb).run(options, output)
        sys.stdout.flush()
    except GpuEdgeError as error:
        if is_verbose:
            traceback.print_exc()
        output.error(error)
        return exit_code(error)
    except (KeyboardInterrupt, ImportError) as error:
        if not is_interrupt(error):
            raise
        return INTERRUPTED
    except OSError as error:
        return _unwritable(error, output)
    return code


def _unwritable(error: OSError, output: Output) -> int:
    """Return the exit code where stdout cannot take the output; other errors are raised again."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        raise error
    if error.errno == errno.ENOSPC:
        output.log(f"The output cannot be written: {error.strerror}.")
    # Python flushes stdout once more at exit, and would complain there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE if error.errno == errno.EPIPE else USAGE
