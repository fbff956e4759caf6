"""Files of jobs for phones: their form, and the script against an adb that is made up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuedge.cli.main import build_parser
from gpuedge.farm import jobs

DEVICE = "gles30:1"


def made(kind: str, folder: Path, **more: Any) -> dict[str, str]:
    given = {"device": DEVICE, "profile": "full", "parts": 3, **more}
    paths = jobs.write(kind, str(folder), **given)
    return {Path(path).name: Path(path).read_text() for path in paths}


def commands_of(text: str) -> list[list[str]]:
    """Return the arguments of every call of gpuedge in a file, with line ends joined."""
    joined = " ".join(text.replace("\\\n", " ").split())
    found = re.findall(r"(?:-m gpuedge|>-) (conformance run (?:--?[\w-]+ [^\s\"]+ ?)+)", joined)
    return [one.split() for one in found]


def check_commands(text: str, count: int) -> None:
    """Hold the calls in a file against the parser of the command line."""
    found = commands_of(text)
    assert len(found) == count
    for words in found:
        given = [word.replace("$shard", "1/3") for word in words]
        options = build_parser("conformance").parse_args(given)
        assert (options.device, options.profile, options.shard[1]) == ([DEVICE], "full", 3)
        assert options.jsonl and options.junit


def test_script_is_good_shell(tmp_path: Path) -> None:
    text = made("adb", tmp_path)["run-on-device.sh"]
    check_commands(text, 1)
    subprocess.run(["sh", "-n", tmp_path / "run-on-device.sh"], check=True, timeout=60)
    checker = Path(sys.executable).with_name("shellcheck")
    subprocess.run([checker, tmp_path / "run-on-device.sh"], check=True, timeout=60)


@pytest.mark.parametrize("code", [0, 1, 4])
def test_script_pushes_runs_and_pulls(code: int, tmp_path: Path) -> None:
    """The phone is a folder: what adb is asked becomes calls in it."""
    made("adb", tmp_path)
    phone, tree = tmp_path / "phone", tmp_path / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "python3").write_text(
        '#!/bin/sh\necho "$@" >called\nwhile [ $# -gt 0 ]; do case $1 in\n'
        f"--jsonl | --junit) echo result >$2 ;; esac; shift; done\nexit {code}\n"
    )
    (tree / "bin" / "python3").chmod(0o755)
    adb = tmp_path / "adb"
    adb.write_text(
        f'#!/bin/sh\nset -e\nhere={phone}\nat=$here/data/local/tmp/gpuedge\nmkdir -p "$at"\n'
        'case $1 in\nwait-for-device) ;;\nshell) sh -c "$(printf %s "$2" | '
        'sed "s#/data/local/tmp/gpuedge#$at#g")" ;;\n'
        'push) mkdir -p "$here$4"; cp -r "$3" "$here$4" ;;\npull) cp "$here$2" "$3" ;;\nesac\n'
    )
    adb.chmod(0o755)
    environ = {**os.environ, "ADB": str(adb), "PYTHON_TREE": str(tree), "SHARD": "2/3",
               "RESULTS": str(tmp_path / "results")}  # fmt: skip
    done = subprocess.run(
        ["sh", tmp_path / "run-on-device.sh"], env=environ, timeout=60, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    names = {p.name for p in (tmp_path / "results").iterdir()}
    assert names == {"results-2-3.jsonl", "results-2-3.xml"}
    called = (phone / "data/local/tmp/gpuedge/called").read_text().split()
    assert called[:4] == ["-m", "gpuedge", "conformance", "run"] and "2/3" in called


def test_lava_jobs_have_lavas_form(tmp_path: Path) -> None:
    files = made("lava", tmp_path)
    assert sorted(files) == ["lava-1.yaml", "lava-2.yaml", "lava-3.yaml"]
    body = yaml.safe_load(files["lava-2.yaml"])
    assert {"job_name", "device_type", "timeouts", "actions", "visibility"} <= set(body)
    assert [next(iter(action)) for action in body["actions"]] == ["deploy", "boot", "test"]
    (definition,) = body["actions"][2]["test"]["definitions"]
    assert {"repository", "from", "path", "name"} == set(definition)
    assert {"format", "name", "description"} <= set(definition["repository"]["metadata"])
    steps = definition["repository"]["run"]["steps"]
    assert all(isinstance(step, str) for step in steps)
    check_commands("\n".join(steps), 1)
    assert "--lava /dev/stdout" in steps[2] and "GPUEDGE" in definition["repository"]["params"]
    script = tmp_path / "steps.sh"
    # LAVA writes params in front of the steps
    script.write_text("#!/bin/sh\nGPUEDGE='https://x'\n" + "\n".join(steps) + "\n")
    checker = Path(sys.executable).with_name("shellcheck")
    subprocess.run([checker, script], check=True, timeout=60)


def test_lava_is_told_every_case(tmp_path: Path) -> None:
    """The steps are run with programs that are made up in the place of Python's and LAVA's."""
    test = yaml.safe_load(made("lava", tmp_path)["lava-1.yaml"])["actions"][2]["test"]
    body = test["definitions"][0]["repository"]
    steps, params = body["run"]["steps"], body["params"]
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text(
        "#!/bin/sh\nfor last; do :; done\ncase $2 in pip) echo $last >pip; exit ;; esac\n"
        'echo "signals to $last"\nexit 1\n'
    )
    (tools / "lava-test-case").write_text('#!/bin/sh\necho "$1 $3"\n')
    (tools / "lava-test-attach").write_text("#!/bin/sh\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["sh", "-c", "\n".join(["set -e", *steps])], cwd=tmp_path, check=True,
                          timeout=60, env={**os.environ, "PATH": path, **params}, text=True,
                          stdout=subprocess.PIPE)  # fmt: skip
    assert done.stdout.splitlines() == ["signals to /dev/stdout", "gpuedge-ended pass"]
    wheel = (tmp_path / "pip").read_text().strip()
    assert wheel == f"gpuedge[models] @ {params['GPUEDGE']}" and wheel.endswith(".whl")


def test_firebase_has_a_group_for_each_shard(tmp_path: Path) -> None:
    (text,) = made("firebase", tmp_path).values()
    body = yaml.safe_load(text)
    assert list(body) == ["shard-1", "shard-2", "shard-3"]
    for part, group in enumerate(body.values(), 1):
        assert group["type"] == "instrumentation" and group["timeout"] == "30m"
        assert group["app"].endswith(".apk") and group["test"].endswith(".apk")
        words = group["environment-variables"]["gpuedge_arguments"]
        check_commands(f">- {words}", 1)
        assert f"--shard {part}/3" in words and "," not in words
        assert group["directories-to-pull"] == ["/sdcard/Download/gpuedge"]


def test_aws_has_the_phases_of_a_test_spec(tmp_path: Path) -> None:
    files = made("aws", tmp_path)
    assert sorted(files) == ["aws-1.yaml", "aws-2.yaml", "aws-3.yaml", "run-on-device.sh"]
    for part in (1, 2, 3):
        body = yaml.safe_load(files[f"aws-{part}.yaml"])
        assert body["version"] == 0.1 and list(body["phases"]) == [
            "install", "pre_test", "test", "post_test"
        ]  # fmt: skip
        assert all(isinstance(c, str) for p in body["phases"].values() for c in p["commands"])
        assert body["artifacts"] == ["$DEVICEFARM_LOG_DIR"]
        assert f"SHARD={part}/3" in body["phases"]["test"]["commands"][0]


def test_a_device_is_a_word_of_the_shell(tmp_path: Path) -> None:
    text = made("adb", tmp_path, device="vulkan; rm -rf /")["run-on-device.sh"]
    assert "--device 'vulkan; rm -rf /'" in text
