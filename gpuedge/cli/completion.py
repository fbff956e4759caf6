"""``gpuedge completion SHELL``: a script by which a shell completes verbs, actions and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from gpuedge import backends
from gpuedge.cli.main import FLAGS, VERBS, actions_of, build_parser
from gpuedge.cli.output import Output
from gpuedge.runtime.strings import AUTO, CPU

SCHEMA = "gpuedge.completion/1"
SHELLS = ("bash", "zsh", "fish")
BASH = """_gpuedge() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[$((COMP_CWORD - 1))]} at= known= word
  [[ $cur == = ]] && cur=; [[ $prev == = ]] && prev=${COMP_WORDS[$((COMP_CWORD - 2))]}
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
    case "$at $word" in
%(places)s
    esac
  done
  case "$at $prev" in
%(values)s
  *)
    case "$at" in
%(words)s
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$known" -- "$cur"))
}
complete -o default -F _gpuedge gpuedge"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True, slots=True)
class Choices:
    """What may follow some words: ``""``, a verb, or a verb and an action.

    `words` are verbs, actions and choices with what they do; `options` are those of the parser.
    """

    at: str
    words: dict[str, str]
    options: list[argparse.Action]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to read the script")


def run(options: argparse.Namespace, output: Output) -> int:
    """Print the script."""
    places = list(_places())
    script = _fish(places) if options.shell == "fish" else _bash(places)
    script = ZSH + script if options.shell == "zsh" else script
    output.show({"schema": SCHEMA, "shell": options.shell, "script": script}, [script])
    return 0


def _places() -> Iterator[Choices]:
    for verb in VERBS:
        parser = build_parser(verb)
        own = actions_of(parser)[verb]
        if verb == next(iter(VERBS)):
            first = [*parser._actions[1:], *own._actions]  # the help is the verb's
            yield Choices("", VERBS, [o for o in first if {*o.option_strings} & {*FLAGS}])
        below = actions_of(own)
        yield _place(verb, own)
        yield from (_place(f"{verb} {action}", one) for action, one in below.items())


def _place(at: str, parser: argparse.ArgumentParser) -> Choices:
    words = {name: one.description or "" for name, one in actions_of(parser).items()}
    options = []
    for action in parser._actions:
        if action.option_strings:
            options.append(action)
        elif not words:  # a choice of words, where there is one
            words = dict.fromkeys(map(str, action.choices or ()), action.help or "")
    return Choices(at, words, options)


def _choices(option: argparse.Action) -> str:
    """Return what the value of an option may be; nothing where it is a file or anything."""
    devices = (AUTO, CPU, *backends.PROBED) if "--device" in option.option_strings else ()
    return " ".join(map(str, option.choices or devices))


def _bash(places: list[Choices]) -> str:
    """Return a script for bash, which zsh reads as well."""
    steps, values, words = [], [], []
    for place in places:
        before, _, last = place.at.rpartition(" ")
        if last:
            steps.append(f'    "{before} {last}") at="{place.at}" ;;')
        for option in place.options:
            if option.nargs != 0:
                names = "|".join(f'"{place.at} {name}"' for name in option.option_strings)
                values.append(f'  {names}) known="{_choices(option)}" ;;')
        names = " ".join([*place.words, *(s for o in place.options for s in o.option_strings)])
        words.append(f'    "{place.at}") known="{names}" ;;')
    lines = {"places": steps, "values": values, "words": words}
    return BASH % {name: "\n".join(text) for name, text in lines.items()}


def _fish(places: list[Choices]) -> str:
    lines = []
    for place in places:
        seen = [f"__fish_seen_subcommand_from {word}" for word in place.at.split()]
        when = "; and ".join(seen) or "__fish_use_subcommand"
        known = " ".join(place.words)
        only = f"{when}; and not __fish_seen_subcommand_from {known}" if seen else when
        for word, about in place.words.items():
            lines.append(f"complete -c gpuedge -f -n '{only}' -a {word} -d {_quoted(about)}")
        for option in place.options:
            flags = " ".join(f"-{'l' if s.startswith('--') else 's'} {s.lstrip('-')}"
                             for s in option.option_strings)  # fmt: skip
            value = "" if option.nargs == 0 else " -r"
            if choices := _choices(option):
                value = f" -{'x' if option.choices else 'r'} -a '{choices}'"
            about = _quoted(option.help or "")
            lines.append(f"complete -c gpuedge -n '{when}' {flags}{value} -d {about}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return text as fish reads it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
