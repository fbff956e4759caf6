"""The command line as a user meets it: exit codes, JSON documents, quiet failures, laziness."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpuedge
from gpuedge.cli import main as cli
from gpuedge.cli.output import Output, blaming
from gpuedge.core import errors
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.text import Table

Run = Callable[..., int]
MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Replaces what the verb `cache` does."""

    def replace(run: Run) -> None:
        monkeypatch.setattr("gpuedge.cli.cache.run", run)

    return replace


def raising(error: BaseException) -> Run:
    def run(*_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, 2),
        (errors.UnknownDeviceError, 2),
        (errors.NoUsableDeviceError, 3),
        (errors.ShapeError, 2),
        (errors.InputError, 2),
        (errors.KernelSyntaxError, 2),
        (errors.ModelError, 2),
        (errors.UnsupportedOpError, 2),
        (errors.DatabaseError, 2),
        (errors.BackendUnavailableError, 3),
        (errors.DeviceLostError, 4),
        (errors.DeviceTimeoutError, 4),
        (errors.OutOfMemoryError, 4),
        (errors.DriverError, 4),
    ],
)
def test_error_becomes_exit_code_and_message(
    kind: type[GpuEdgeError],
    code: int,
    verb: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(raising(kind("It broke.", asked_by="me", known="facts", hint="another way")))
    assert cli.main(["cache"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"[{kind.code}] It broke.",
        "  requested by: me",
        "  known here:   facts",
        "  try:          another way",
    ]


def test_error_with_json_is_one_document(
    verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(errors.DeviceLostError("Gone.", hint="again")))
    assert cli.main(["cache", "--json"]) == 4
    assert json.loads(capsys.readouterr().out) == {
        "schema": "gpuedge.error/1",
        "code": "GE-401",
        "what": "Gone.",
        "asked_by": None,
        "known": None,
        "hint": "again",
    }


def test_verbose_error_shows_traceback(
    verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(errors.InputError("No.")))
    assert cli.main(["cache", "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_unexpected_error_is_not_swallowed(verb: Callable[[Run], None]) -> None:
    verb(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["cache"])


def test_wrong_usage_with_json_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "burn", "--json"]) == 2
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["code"]) == ("gpuedge.error/1", "GE-200")


def test_interrupt_is_quiet(
    verb: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    verb(raising(KeyboardInterrupt()))
    assert cli.main(["cache"]) == 130
    assert capsys.readouterr() == ("", "")


def test_help_and_version_are_good(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], *([v, "--help"] for v in cli.VERBS)):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == 0
    assert f"gpuedge {gpuedge.__version__}" in capsys.readouterr().out


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_every_verb_is_a_module_with_the_two_functions() -> None:
    for name in cli.VERBS:
        module = cli._module(name)
        assert callable(module.add_arguments)
        assert callable(module.run)


def test_help_loads_neither_numpy_nor_rich_nor_any_verb() -> None:
    code = (
        "import sys\nfrom gpuedge.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = ['numpy', 'rich', 'onnx', 'vulkan', 'gpuedge.cli.run', 'gpuedge.cli.probe']\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "[]"


def test_module_and_command_do_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path), "NO_COLOR": "1"}
    as_module = python("-m", "gpuedge", "cache", "--json", env=environment)
    command = Path(sys.executable).with_name("gpuedge")
    as_command = subprocess.run(
        [command, "cache", "--json"], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(as_module.stdout) == json.loads(as_command.stdout)


def test_reader_that_goes_away_is_quiet(tmp_path: Path) -> None:
    # More output than a pipe holds, so that the writer is still writing when the reader goes.
    code = (
        "import sys\nimport gpuedge.cli.cache as verb\nfrom gpuedge.cli.main import main\n"
        "def run(options, output):\n    print('x\\n' * 1_000_000)\n    return 0\n"
        "verb.run = run\nsys.exit(main(['cache']))"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert writer.stdout.readline() == "x\n"
    writer.stdout.close()
    complaint = writer.stderr.read()
    writer.stderr.close()
    assert writer.wait(60) == 141
    assert complaint == ""


def test_ctrl_c_in_a_process_is_quiet() -> None:
    code = (
        "import sys\nimport gpuedge.cli.cache as verb\nfrom gpuedge.cli.main import main\n"
        "def run(options, output):\n    raise KeyboardInterrupt\n"
        "verb.run = run\nsys.exit(main(['cache']))"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_table_prints_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["\x1b[31mred\x07 [bold]x[/bold]"], [None]]
    Output(colourless=True).show({}, [Table("T", ("a",), rows)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[bold]x[/bold]" in out
    assert "-" in out


@pytest.mark.parametrize("columns", ["80", "120"])
def test_table_keeps_to_the_width_and_breaks_neither_titles_nor_names(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    title = "a title that is longer than its table"
    prose = "many words " * 20
    Output(colourless=True).show({}, [Table(title, ("a", "b"), [["n" * 30, prose], ["x", "y"]])])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == title
    assert any(line.startswith("n" * 30) for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= int(columns)
    assert " ".join(" ".join(lines).split()).count("many") == 20


def test_table_on_a_terminal_is_coloured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Output().show({}, [Table("T", ("result", "why"), [["PASS", "ok"]])])
    head, *_, row, _ = capsys.readouterr().out.splitlines()
    assert "\x1b[1mT" in head
    assert "\x1b[32mPASS" in row
    for wanted, output in (("1", Output()), ("", Output(colourless=True)), ("", Output())):
        monkeypatch.setenv("NO_COLOR", wanted)  # no-color.org: not where it is an empty string
        output.show({}, [Table("T", ("result", "why"), [["PASS", "ok"]])])
        is_plain = "\x1b" not in capsys.readouterr().out
        assert is_plain == (bool(wanted) or output.colourless)


def test_terminal_without_rich_gets_the_same_plainly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    output = Output()
    with output.working("thinking"):
        output.show({}, [Table("T", ("result", "why"), [["PASS", "ok"]])])
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "T"
    assert out.splitlines()[3] == "PASS    ok"
    assert err == ""


def every_parser() -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    for verb in cli.VERBS:
        for words, one in parsers(cli.build_parser(verb), []):
            if words[:1] == [verb]:
                yield words, one


def parsers(
    parser: argparse.ArgumentParser, words: list[str]
) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield from parsers(one, [*words, name])


def test_every_verb_and_action_takes_the_options_of_every_verb() -> None:
    found = {" ".join(words): one for words, one in every_parser()}
    assert {"probe", "conformance run", "db update"} <= set(found)
    for name, parser in found.items():
        taken = {option for action in parser._actions for option in action.option_strings}
        missing = {"--json", "-q", "--quiet", "-v", "--verbose", "--no-color"} - taken
        assert not missing, name


@pytest.mark.parametrize(
    ("words", "json", "quiet", "verbose"),
    [
        ("conformance run -v", False, False, 1),
        ("conformance -v run", False, False, 1),
        ("conformance --json run -vv -q", True, True, 2),
        ("db --json show", True, False, 0),
        ("db show --json -q", True, True, 0),
        ("cache -q", False, True, 0),
    ],
)
def test_options_count_before_and_after_an_action(
    words: str, json: bool, quiet: bool, verbose: int
) -> None:
    found = cli.build_parser(words.split(maxsplit=1)[0]).parse_args(words.split())
    assert (found.json, found.quiet, found.verbose) == (json, quiet, verbose)


@pytest.mark.parametrize(
    ("asked", "kind", "wanted"),
    [
        (None, errors.UnknownDeviceError, "--device"),
        ("argument", errors.UnknownDeviceError, "--device"),
        ("device='x'", errors.NoUsableDeviceError, "--device"),
        (None, errors.ShapeError, "--input"),
        ("probe(backends=...)", errors.UnknownDeviceError, "--device"),
        ("GPUEDGE_DEVICE", errors.UnknownDeviceError, "GPUEDGE_DEVICE"),
        (None, errors.ModelError, None),
        ("fallback='error'", errors.UnsupportedOpError, "GPUEDGE_FALLBACK"),
    ],
)
def test_error_names_the_option_it_is_about(
    asked: str | None,
    kind: type[GpuEdgeError],
    wanted: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUEDGE_FALLBACK", "error")
    given = {
        "device": (errors.UnknownDeviceError, errors.NoUsableDeviceError),
        "input": (errors.UsageError,),
    }
    with pytest.raises(kind) as caught, blaming(**given):
        raise kind("No.", asked_by=asked)
    assert caught.value.asked_by == wanted


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("options", "is_terminal", "has_rich", "is_shown", "has_bar"), [
    ({}, True, True, True, True),
    ({"json": True}, True, True, True, False),
    ({"quiet": True}, True, True, False, False),
    ({}, True, False, False, False),
    ({}, False, True, False, False),
])  # fmt: skip
def test_long_work_shows_on_a_terminal(
    options: dict[str, bool], is_terminal: bool, has_rich: bool, is_shown: bool, has_bar: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with Output(**options).working("thinking"):
        pass
    assert ("thinking" in stream.getvalue()) == is_shown == bool(stream.getvalue())
    with Output(**options).progress("opening") as tell:
        tell("compile", 3, 57)
    assert ("compile 3 of 57" in stream.getvalue()) == has_bar
    assert "\x1b[?25l" not in stream.getvalue()  # the cursor: a kill would leave it hidden


def test_a_daemon_without_stderr_gets_its_answer(tmp_path: Path) -> None:
    environment = {**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path), "GPUEDGE_BACKENDS": "null"}
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gpuedge probe --json 2>&-"],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["schema"] == "gpuedge.probe/1"


@pytest.mark.parametrize(
    ("redirect", "code"), [(">&-", 0), ("> /dev/full", 2), ("| true; exit ${PIPESTATUS[0]}", 141)]
)
def test_stdout_that_cannot_take_it(redirect: str, code: int, tmp_path: Path) -> None:
    environment = {**os.environ, "GPUEDGE_CACHE_DIR": str(tmp_path), "NO_COLOR": "1"}
    for options in ("", "--json"):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m gpuedge info {options} {redirect}"],
            env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        # A pipe may also be read to its end before it closes.
        assert done.returncode in ({code, 0} if "true" in redirect else {code}), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "option"), [
    (["run", MODEL, "--input", "image"], "--input"),
    (["run", MODEL, "--repeat", "x"], "--repeat"),
    (["run", MODEL, "--device", "cpu", "--allow-software"], "--allow-software"),
    (["check", MODEL, "--shape", "image=x"], "--shape"),
    (["check", MODEL, "--device", "cpu"], "--shape"),
    (["pack", MODEL, "-o", "x.gpuedge"], "--shapes"),
    (["pack", MODEL, "-o", "x.gpuedge", "--shapes", "image=x"], "--shapes"),
    (["pack", MODEL, "-o"], "--output"),
    (["tune", MODEL, "--shape", "image=1x1x8x8", "--device", "cpu"], "--device"),
    (["tune", "--import", MODEL, "--full"], "--import"),
    (["conformance", "run", "--device", "cpu", "--junit", "a", "--jsonl", "a"], "--jsonl"),
])  # fmt: skip
def test_errors_name_the_option_that_they_are_about(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["asked_by"] == option
    hint = said["hint"] or ""
    if "image=" in hint and option.startswith("--shape"):  # it can be pasted
        assert hint.startswith(f"{option} image=")
