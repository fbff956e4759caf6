"""``gpuedge conformance``: wrong arguments before any driver, exit codes, files, resuming."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuedge.cli import main as cli
from gpuedge.conformance import runner
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import only, read
from gpuedge.core.errors import NoUsableDeviceError

CHILD = next(Path(__file__).parents[1].rglob("conformance_child.py"))
IDENTITY = {"name": "Fake"}
ADDS = [s.id for s in everything("smoke") if s.op == "add"]


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("a driver was touched")

    monkeypatch.setattr("gpuedge.cli.running.devices", touched)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes `--device` find a fake device whose children behave as told."""

    def there(**fates: str) -> None:
        command = (sys.executable, str(CHILD), json.dumps(fates))
        monkeypatch.setattr(runner, "COMMAND", command)
        found = [("fake:0", IDENTITY)]
        monkeypatch.setattr("gpuedge.cli.running.devices", lambda *_: found)

    return there


def run(*arguments: str | Path) -> int:
    return cli.main(["conformance", *map(str, arguments)])


RUN = ("run", "--only", "add/*", "--device", "fake")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: ACTION"),
        (("walk",), "walk"),
        (("run", "--shard", "3/2"), "not I/N"),
        (("run", "--shard", "0/2"), "not I/N"),
        (("run", "--shard", "half"), "not I/N"),
        (("run", "--profile", "huge"), "huge"),
        (("run", "--shard", "\u0661/\u0662"), "not I/N"),
        (("run", "--jobs", "0"), "--jobs: '0' is not a whole number from 1 to 256"),
        (("run", "--jobs", "\u0663"), "is not a whole number from 1 to 256"),
        (("run", "--case-timeout", "nan"), "'nan' is not a number of seconds from 0.1 to 86400"),
        (("run", "--case-timeout", "soon"), "is not a number of seconds from 0.1 to 86400"),
        (("run", "--only", "nothing/*"), "No case matches nothing/*"),
        (("list", "--device", "vulkan"), "--device"),
        (("run", "--jsonl", "/"), "/ cannot be written"),
        (("run", "--junit", __file__ + "/x.xml"), "cannot be written"),
        (("run", "--resume", "/nonexistent.jsonl"), "cannot be read"),
        (("run", "--resume", __file__), "not a file of conformance results"),
    ],
)
def test_wrong_arguments(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--jsonl", "--resume"])
@pytest.mark.parametrize("is_there", [True, False])
def test_report_never_replaces_results(
    option: str, is_there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_there:
        (tmp_path / "r").write_text("precious")
    (tmp_path / "link").symlink_to("r")
    assert run("run", option, tmp_path / "r", "--junit", tmp_path / "link") == 2
    assert f"--junit and {option} name the same file" in capsys.readouterr().err
    assert not is_there or (tmp_path / "r").read_text() == "precious"


def test_files_that_are_pipes_get_everything_once(
    device: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    monkeypatch.setattr("gpuedge.conformance.results.FLUSH_S", 0.0)
    readers = []
    for name in ("r.jsonl", "r.xml"):
        os.mkfifo(tmp_path / name)
        kept = os.open(tmp_path / name, os.O_RDWR)  # so that a reader is there
        readers.append((name, kept))
    with ThreadPoolExecutor(2) as pool:
        found = {name: pool.submit(drained, fd) for name, fd in readers}
        assert run(*RUN, "--jsonl", tmp_path / "r.jsonl", "--junit", tmp_path / "r.xml") == 0
        for _, fd in readers:
            os.write(fd, END)
    assert len(found["r.jsonl"].result().splitlines()) == 1 + len(ADDS)
    assert len(list(ElementTree.fromstring(found["r.xml"].result()).iter("testcase"))) == len(ADDS)


END = b"\0end"


def drained(fd: int) -> bytes:
    data = b""
    while not data.endswith(END):
        data += os.read(fd, 1 << 16)
    os.close(fd)
    return data[: -len(END)]


def test_only_a_gpu_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real search for the device, which must not begin
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: pytest.fail("probed"))
    for device in ("cpu", "auto"):
        assert run("run", "--device", device) == 2


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--only", "add/*") == 0
    assert capsys.readouterr().out.split() == ADDS
    parts = []
    for part in ("1/2", "2/2"):
        assert run("list", "--shard", part, "--json") == 0
        body = json.loads(capsys.readouterr().out)
        assert body["schema"] == "gpuedge.conformance.list/1"
        parts.append(set(body["cases"]))
    assert parts[0] | parts[1] == {s.id for s in everything("smoke")}
    assert not parts[0] & parts[1]


def test_a_good_run_writes_both_files(
    device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device()
    lines, report = tmp_path / "r.jsonl", tmp_path / "sub" / "r.xml"
    assert run(*RUN, "--jsonl", lines, "--junit", report, "--json") == 0
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert captured.err == ""
    assert body["counts"]["passed"] == len(ADDS) and body["counts"]["not_run"] == 0
    assert body["caps"] == {"level": "fake"} and body["versions"]["gpuedge"]
    found = read(str(lines))
    assert not found.damaged and set(found.parts[0].rows) == set(ADDS)
    assert len(list(ElementTree.parse(report).iter("testcase"))) == len(ADDS)


@pytest.mark.parametrize(
    ("fate", "code"), [("failed", 1), ("error", 1), ("segfault", 4), ("hang", 4), ("skipped", 0)]
)
def test_exit_code(
    fate: str, code: int, device: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    device(**{ADDS[1]: fate})
    assert run(*RUN, *(("--case-timeout", "3") if fate == "hang" else ())) == code
    captured = capsys.readouterr()
    assert (ADDS[1] in captured.err) == (code != 0)
    assert "Conformance of fake:0 (Fake), smoke" in captured.out


@pytest.mark.parametrize(("fate", "code"), [("refuse", 3), ("die", 4)])
def test_device_that_does_not_open(
    fate: str, code: int, device: Callable[..., None], tmp_path: Path
) -> None:
    device(open=fate)
    assert run(*RUN, "--jsonl", tmp_path / "r.jsonl") == code
    assert only(str(tmp_path / "r.jsonl")).rows == {}


def test_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise NoUsableDeviceError("It is not here.")

    monkeypatch.setattr("gpuedge.cli.running.devices", absent)
    assert run(*RUN) == 3


def test_resuming_runs_what_is_missing(
    device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device(**{ADDS[0]: "failed"})
    lines = tmp_path / "r.jsonl"
    assert run(*RUN, "--jsonl", lines) == 1
    kept = lines.read_bytes().splitlines(keepends=True)
    lines.write_bytes(b"".join(kept[:5]) + b'{"torn')
    device(**{"*": "error"})  # whatever is run now is told apart from what was kept
    capsys.readouterr()
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 1
    err = capsys.readouterr().err
    assert "1 damaged line left out (line 6)" in err and f"4 of {len(ADDS)} cases are in" in err
    found = [r["status"] for r in only(str(lines)).rows.values()]
    assert found.count("error") == len(ADDS) - 4
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 1
    assert "no cases left" not in capsys.readouterr().err


def test_resuming_a_file_that_lost_its_header_starts_over(
    device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device()
    lines = tmp_path / "r.jsonl"
    lines.touch()
    for _ in range(2):
        assert run(*RUN, "--jsonl", lines, "--resume", lines) == 0
        assert "has no header, so that the run starts over" in capsys.readouterr().err
        assert set(only(str(lines)).rows) == set(ADDS)
        lines.write_bytes(lines.read_bytes().partition(b"\n")[2])


def test_an_interrupted_run_keeps_what_it_found(
    device: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    taken: list[Any] = []

    def rows(self: runner.Runner) -> Any:
        for name in ADDS[:3]:
            taken.append(name)
            yield {"id": name, "op": "add", "status": "passed", "seconds": 0.1}
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "rows", rows)
    assert run(*RUN, "--jsonl", tmp_path / "r.jsonl", "--junit", tmp_path / "r.xml") == 130
    assert set(only(str(tmp_path / "r.jsonl")).rows) == set(ADDS[:3])
    assert len(list(ElementTree.parse(tmp_path / "r.xml").iter("testcase"))) == 3
