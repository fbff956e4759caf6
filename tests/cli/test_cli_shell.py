"""The command line in a shell: options anywhere, completion, and progress on a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BAD, GOOD

from gpuedge.cli.main import VERBS, main, word_first
from gpuedge.probing.report import ProbeProgress, ProbeReport

# --- options before the verb ----------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "put"), [
    ("--json cache", "cache --json"),
    ("-q --json cache info", "cache -q --json info"),
    ("--device vulkan:0 run m.onnx", "run --device vulkan:0 m.onnx"),
    ("--device=vulkan run m.onnx", "run --device=vulkan m.onnx"),
    ("--device vulkan --repeat 3 run m.onnx", "run --device vulkan --repeat 3 m.onnx"),
    ("run --device cache m.onnx", "run --device cache m.onnx"),
    ("--help probe", "probe --help"),
    ("--version probe", "--version probe"),
    ("prob --json", "prob --json"),
    ("--json prob run", "--json prob run"),
    ("--json", "--json"),
    ("", ""),
])  # fmt: skip
def test_a_verb_is_found_behind_its_options(typed: str, put: str) -> None:
    assert word_first(typed.split(), VERBS)[1] == put.split()


@pytest.mark.parametrize("typed", [
    "db why --device D138 --json", "--json db why --device D138", "--device D138 --json db why",
    "db --device D138 why --json", "--json db --device D138 why", "-q db --json --device=D138 why",
])  # fmt: skip
def test_options_of_an_action_stand_anywhere(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "gpuedge.db.why/1" and body["subject"]["model"] == 620


def test_a_verb_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "prob", "run"]) == 2
    assert "'prob'" in json.loads(capsys.readouterr().out)["what"]


@pytest.mark.parametrize(("typed", "what", "hint"), [
    ("prob", "'prob'", "did you mean 'probe'? gpuedge --help lists all"),
    ("db wy", "'wy'", "did you mean 'why'? gpuedge db --help lists all"),
    ("run --devise vulkan m.onnx", "Unrecognized arguments: --devise.",
     "did you mean '--device'? gpuedge run --help lists all"),
    ("db why --devise D138", "--devise", "did you mean '--device'? gpuedge db why --help lists"),
    ("run m.onnx --shape x=1", "--shape.", "gpuedge run --help"),
    ("info extra", "Unrecognized arguments: extra.", "gpuedge info --help"),
    ("run m.onnx --fallback gpu", "'gpu'", "gpuedge run --help"),
])  # fmt: skip
def test_what_is_not_known_is_told_with_the_nearest_that_is(
    typed: str, what: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*typed.split(), "--json"]) == 2
    body = json.loads(capsys.readouterr().out)
    assert what in body["what"] and body["hint"].startswith(hint)


# --- completion -----------------------------------------------------------------------------------


def completions(script: Path, *lines: str) -> list[list[str]]:
    """Return what bash offers for the last word of each line."""
    steps = [
        "COMP_WORDS=(%s); COMPREPLY=(); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gpuedge; "
        'echo "${COMPREPLY[*]}"' % (f"{line}''" if line.endswith(" ") else line)
        for line in lines
    ]
    code = "\n".join([f"source {script}", *steps])
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for bash, in a file."""
    assert main(["completion", "bash"]) == 0
    (tmp_path / "c.bash").write_text(capsys.readouterr().out)
    return tmp_path / "c.bash"


def test_bash_completes_verbs_actions_options_and_choices(script: Path) -> None:
    found = completions(
        script, "gpuedge ", "gpuedge pro", "gpuedge db ", "gpuedge --json db w",
        "gpuedge run --fallback ", "gpuedge run --fallb", "gpuedge run --input ", "gpuedge run net",
        "gpuedge conformance --only x r", "gpuedge run --device v", "gpuedge kernels ex",
        "gpuedge completion f", "gpuedge --device vulkan run --iso", "gpuedge --js",
        "gpuedge run --isolation =", "gpuedge run --isolation = pr",
    )  # fmt: skip
    assert set(VERBS) <= set(found[0])
    assert found[1] == ["probe"]
    assert {"show", "why", "update", "replay", "--json"} <= set(found[2])
    assert found[3:] == [["why"], ["cpu", "error"], ["--fallback"], [], [], ["run"], ["vulkan"],
                         ["explain"], ["fish"], ["--isolation"], ["--json"],
                         ["inline", "process"], ["process"]]  # fmt: skip


def test_bash_completes_every_option_of_every_verb(script: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "tables" / "cli-options.md"
    parts = page.read_text(encoding="utf-8").split("\n## `")[1:]
    verbs = [part.partition("`")[0] for part in parts]
    options = [set(re.findall(r"^\| `(--[a-z-]+)", part, re.MULTILINE)) for part in parts]
    assert "--deadline" in options[0]
    found = completions(script, *(f"{verb} --" for verb in verbs))
    assert len(verbs) > 10
    for verb, offered, wanted in zip(verbs, found, options, strict=True):
        assert wanted <= set(offered), verb
        assert {"--json", "--quiet", "--verbose", "--no-color", "--help"} <= set(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_one_that_its_shell_reads(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["shell"]) == ("gpuedge.completion/1", shell)
    assert all(verb in body["script"] for verb in VERBS)
    if shutil.which(shell) is None:
        assert shell != "bash"
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(body["script"])
    done = subprocess.run(
        [shell, "-n", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_of_the_page_write_their_files_on_a_fresh_account(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    part = page.read_text(encoding="utf-8").partition("## `gpuedge completion")[2]
    commands = re.findall(r"^    (mkdir .*|.* > .*)$", part, re.MULTILINE)
    home = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        subprocess.run(["bash", "-c", command], env=home, check=True, timeout=60)
    written = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size}
    assert {"gpuedge", "gpuedge.fish"} <= written


# --- progress -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def probing(**arguments: Any) -> ProbeReport:
    """Tell of two drivers that are tested, and of one in the cache."""
    steps = (
        ("verdict", "vulkan", "kept.json", (GOOD,), 1),
        ("started", "vulkan", "new.json", (), 1), ("started", "gles31", "mesa.json", (), 1),
        ("verdict", "vulkan", "new.json", (GOOD, GOOD), 2),
        ("verdict", "gles31", "mesa.json", (BAD,), 3),
    )  # fmt: skip
    for stage, backend, name, rows, done in steps:
        arguments["progress"](ProbeProgress(stage, backend, name, rows, done, 3))
    return ProbeReport((GOOD, BAD), "0.1.0", 0.5)


@pytest.mark.parametrize("verb", ["probe", "doctor"])
@pytest.mark.parametrize(("options", "is_terminal", "has_rich"), [
    ([], True, False), ([], True, True), (["-q"], True, False), (["-q"], True, True),
    ([], False, False), (["--json"], False, True),
])  # fmt: skip
def test_a_probe_tells_a_terminal_how_far_it_is(
    verb: str, options: list[str], is_terminal: bool, has_rich: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gpuedge.probing.api.probe", probing)
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    main([verb, *options])
    said = stream.getvalue()
    if options or not is_terminal:
        assert said == ""
    elif has_rich:  # the last text that a line of rich showed before it was taken away
        assert "kept.json" not in said
        assert "mesa.json (gles31): crashed; 3 of 3 drivers done" in said
    else:
        assert said.splitlines() == [
            "testing new.json (vulkan)",
            "testing mesa.json (gles31)",
            "new.json (vulkan): ok; 2 of 3 drivers done",
            "mesa.json (gles31): crashed; 3 of 3 drivers done",
        ]
