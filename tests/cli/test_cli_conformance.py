"""``gpuedge conformance``: wrong arguments before any driver, exit codes, files, resuming."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuedge.cli import main as cli
from gpuedge.cli import output, running
from gpuedge.cli.output import Output
from gpuedge.conformance import runner
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import only, read
from gpuedge.core.errors import NoUsableDeviceError
from gpuedge.safety import paths

CHILD = next(Path(__file__).parents[1].rglob("conformance_child.py"))
IDENTITY = {"api": "gles20", "name": "Fake", "os": "linux"}
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
        (("run", "--rerun", "failed"), "without a file of results"),
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
    kept[0] = json.dumps({**json.loads(kept[0]), "seconds": 1000.0}).encode() + b"\n"
    lines.write_bytes(b"".join(kept[:5]) + b'{"torn')
    device(**{"*": "error"})  # whatever is run now is told apart from what was kept
    assert "smoke, only add/*" in capsys.readouterr().out
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 1
    err = capsys.readouterr().err
    assert "1 damaged line left out (line 6)" in err and f"4 of {len(ADDS)} cases are in" in err
    found = [r["status"] for r in only(str(lines)).rows.values()]
    assert found.count("error") == len(ADDS) - 4
    assert only(str(lines)).header["seconds"] > 1000, "of both runs"
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 1
    assert "no cases left" not in capsys.readouterr().err


def test_resuming_the_file_to_be_written_needs_no_such_file(
    device: Callable[..., None], tmp_path: Path
) -> None:
    device()
    lines = tmp_path / "r.jsonl"
    assert run(*RUN, "--jsonl", tmp_path / "other.jsonl", "--resume", lines) == 2
    for _ in range(2):
        assert run(*RUN, "--jsonl", lines, "--resume", lines) == 0
        assert set(only(str(lines)).rows) == set(ADDS)


def test_a_long_run_without_a_terminal_says_how_far_it_is(
    device: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device()
    assert run(*RUN) == 0
    assert f"of {len(ADDS)}" not in capsys.readouterr().err
    monkeypatch.setattr(output, "EACH_S", 0.0)
    assert run(*RUN) == 0
    assert f"fake:0 3 of {len(ADDS)}\n" in capsys.readouterr().err


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


def several(device: Callable[..., None], monkeypatch: pytest.MonkeyPatch, **fates: str) -> None:
    device(**fates)
    found = [(f"fake:{i}", {**IDENTITY, "name": f"Fake {i}"}) for i in (0, 1)]
    monkeypatch.setattr("gpuedge.cli.running.devices", lambda *_: found)


def test_several_devices_in_one_run(
    device: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    several(device, monkeypatch, **{ADDS[1]: "failed"})
    files = {name: tmp_path / f"r.{name}" for name in ("jsonl", "junit", "tap", "csv", "html")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    assert run(*RUN, *options, "--lava", "/dev/stdout", "--label", "room=7") == 1
    out = capfd.readouterr().out
    assert out.count("<LAVA_SIGNAL_TESTCASE") == 2 * len(ADDS)
    assert f"fake:0  {len(ADDS) - 1} of {len(ADDS)}" in out and "fake:1" in out
    found = read(str(files["jsonl"]))
    assert [part.device for part in found] == ["fake:0", "fake:1"]
    for part in found:
        assert set(part.rows) == set(ADDS) and part.header["labels"] == {"room": "7"}
        assert part.header["caps"] == {"level": "fake"} and part.header["only"] == ["add/*"]
        assert part.rows[ADDS[1]]["again"] == "failed"
    assert len(list(ElementTree.parse(files["junit"]).iter("testcase"))) == 2 * len(ADDS)
    assert files["tap"].read_text().count("not ok") == 2
    assert len(files["csv"].read_text().splitlines()) == 1 + 2 * len(ADDS)
    assert files["html"].read_text().count('<h2 id="d') == 2


def test_a_device_that_fails_does_not_keep_the_next_from_running(
    device: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    several(device, monkeypatch, open=f"until {tmp_path / 'n'} 1", close="crash")
    files = ("--jsonl", tmp_path / "r.jsonl", "--tap", tmp_path / "r.tap")
    assert run(*RUN, *files, "--jobs", "1", "--json") == 4
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert body["counts"]["not_run"] == len(ADDS)
    assert "error" not in body["devices"][0] and body["devices"][1]["error"]["code"] == "GE-400"
    assert f"{len(ADDS)} of {2 * len(ADDS)} cases were not run" in captured.err
    assert (tmp_path / "r.tap").read_text().endswith(f"Bail out! {len(ADDS)} cases were not run\n")
    device()
    assert run(*RUN, "--resume", tmp_path / "r.jsonl") == 2, "fake:1 is not part of this run"
    assert "another device" in capsys.readouterr().err
    several(device, monkeypatch)
    assert run(*RUN, "--resume", tmp_path / "r.jsonl") == 0
    assert f"{len(ADDS)} of {2 * len(ADDS)} cases are in" in capsys.readouterr().err


def test_every_usable_device_runs_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("GPUEDGE_DEVICE", raising=False)
    rows = [
        SimpleNamespace(device=f"vulkan:{i}", identity=IDENTITY, is_software=i > 1)
        for i in range(3)
    ]
    report = SimpleNamespace(devices=rows)
    monkeypatch.setattr("gpuedge.cli.running.gpuedge.probe", lambda **_: report)
    assert [d for d, _ in running.devices(None, "run", Output())] == ["vulkan:0", "vulkan:1"]
    assert "software rasterisers left aside: vulkan:2" in capsys.readouterr().err
    report.devices = rows[2:]
    assert [d for d, _ in running.devices(None, "run", Output())] == ["vulkan:2"]
    report.devices = []
    assert run("run") == 3
    assert "No usable GPU was found" in capsys.readouterr().err
    monkeypatch.setattr("gpuedge.cli.running.named_gpu", lambda named, *_: rows[0])
    assert run("run", "--device", "vulkan", "--device", "vulkan:0") == 2
    assert "vulkan:0 is named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "ad/*"), "did you mean 'pad/*'?"),
        (("--only", "add/*", "--only", "conv2/x"), "did you mean 'conv2d/x'?"),
        (("--case", ADDS[0][:-1]), f"did you mean '{ADDS[0]}'?"),
        (("--case", "add/*"), "There is no case 'add/*'"),
        (("--label", "room"), "'room' is not KEY=VALUE"),
        (("--rerun", "passed"), "invalid choice: 'passed'"),
        (("--tap", "x", "--csv", "./x"), "--csv and --tap name the same file"),
        (("--html", "x", "--expectations", "x"), "--expectations and --html name the same file"),
        (("--jsonl", "x", "--expectations", "x"), "--expectations and --jsonl name the same file"),
        (("--expectations", "/nonexistent"), "cannot be read"),
        (("--shuffle", "-1"), "'-1' is not a whole number"),
    ],
)
def test_more_wrong_arguments(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_case_of_the_other_profile_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = {case.id for case in everything("smoke")}
    large = next(case.id for case in everything("full") if case.id not in small)
    assert run("run", "--case", large) == 2
    assert "--profile full has it" in capsys.readouterr().err
    assert run("list", "--profile", "full", "--case", large) == 0
    assert capsys.readouterr().out.split() == [large]


def test_expectations(
    device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, lines = tmp_path / "known.toml", tmp_path / "r.jsonl"

    def entry(case: str, kind: str) -> str:
        more = 'link = "x"\nmatch = { os = ["linux"] }\n' if kind == "xfail" else ""
        return f'[[expect]]\ncase = "{case}"\nkind = "{kind}"\nreason = "known"\n{more}'

    top = 'schema = "gpuedge.expectations/1"\n'
    known.write_text(top + entry(ADDS[0], "unsupported") + entry(ADDS[1], "xfail")
                     + entry(ADDS[2], "quarantine"))  # fmt: skip
    device(**dict.fromkeys(ADDS[:3], "failed"))
    arguments = (*RUN, "--expectations", known, "--jsonl", lines)
    assert run(*arguments, "--json") == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert {k: counts[k] for k in ("executed", "passed", "xfailed", "quarantined")} == {
        "executed": len(ADDS) - 2, "passed": len(ADDS) - 3, "xfailed": 1, "quarantined": 1,
    }  # fmt: skip
    assert counts["unsupported"] == 1
    rows = only(str(lines)).rows
    assert rows[ADDS[0]]["status"] == "skipped" and rows[ADDS[1]]["expectation"]["kind"] == "xfail"
    assert "again" not in rows[ADDS[1]], "what is expected is not run again"
    # what is no longer expected is judged anew; what was not run is run
    known.write_text(top + entry(ADDS[1], "xfail"))
    device()
    assert run(*arguments, "--resume", lines) == 1
    rows = only(str(lines)).rows
    assert (rows[ADDS[0]]["status"], rows[ADDS[2]]["status"]) == ("passed", "failed")
    known.write_text(top + entry(ADDS[1], "xfail"))
    assert run(*arguments) == 1
    assert "unexpected pass" in capsys.readouterr().out
    known.write_text(top + entry("ad/*", "xfail"))
    assert run(*arguments) == 2
    assert "expect number 1 is about no case" in capsys.readouterr().err


def test_what_crashed_is_run_again_when_it_is_asked_for(
    device: Callable[..., None], tmp_path: Path
) -> None:
    lines = tmp_path / "r.jsonl"
    device(**{ADDS[1]: "segfault", ADDS[2]: "failed"})
    assert run(*RUN, "--jsonl", lines) == 4
    device()
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 4
    assert run(*RUN, "--jsonl", lines, "--resume", lines, "--rerun", "crashed") == 1
    assert run(*RUN, "--jsonl", lines, "--resume", lines, "--rerun", "failed") == 0


def test_a_flake_makes_a_run_fail(device: Callable[..., None], tmp_path: Path) -> None:
    device(**{ADDS[3]: f"once {tmp_path / 'seen'}"})
    assert run(*RUN, "--jsonl", tmp_path / "r.jsonl") == 1
    assert only(str(tmp_path / "r.jsonl")).rows[ADDS[3]]["status"] == "flake"
    device(**{ADDS[3]: f"once {tmp_path / 'other'}"})
    assert run(*RUN, "--no-retry", "--jsonl", tmp_path / "r.jsonl") == 1
    assert only(str(tmp_path / "r.jsonl")).rows[ADDS[3]]["status"] == "failed"


def test_a_row_that_was_to_run_again_does_so_on_resuming(
    device: Callable[..., None], tmp_path: Path
) -> None:
    device(**{ADDS[1]: "failed"})
    lines = tmp_path / "r.jsonl"
    assert run(*RUN, "--jsonl", lines) == 1
    part = only(str(lines))
    part.rows[ADDS[1]]["is_due"] = True
    lines.write_bytes(part.lines())
    device()
    assert run(*RUN, "--jsonl", lines, "--resume", lines) == 0


def test_another_order_is_the_same_for_a_seed(
    device: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device()
    orders = []
    monkeypatch.setattr(runner.Runner, "rows", lambda self: orders.append(
        [case.id for case in self.cases]) or iter(()))  # fmt: skip
    for seed in ("7", "7", "8"):
        run(*RUN, "--shuffle", seed, "--jsonl", tmp_path / "r.jsonl")
    assert only(str(tmp_path / "r.jsonl")).header["shuffle"] == 8
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(ADDS)


def test_redacted_results_name_nobody(
    device: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "kitchen")
    device(**{ADDS[1]: "failed"})
    files = {name: tmp_path / f"r.{name}" for name in ("jsonl", "junit", "html")}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    for _ in range(2):  # and it can be resumed
        assert run(*RUN, *options, "--redact", "--label", "owner=Annabel") == 1
        for file in files.values():
            text = file.read_text()
            assert "redacted-" in text
            assert not {"kitchen", "Annabel", '"Fake"'} & set(text.replace(">", "<").split("<"))
            assert "kitchen" not in text and "Annabel" not in text
        options += ["--resume", files["jsonl"]]


def test_a_file_that_cannot_be_written_costs_no_other(
    device: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    device()
    named = {name: tmp_path / name for name in ("jsonl", "junit", "tap")}
    keep = paths.write_named
    full = (named["jsonl"], named["junit"])

    def write(path: Path, data: bytes) -> str | None:
        return "it is full" if path in full else keep(path, data)

    monkeypatch.setattr(paths, "write_named", write)
    assert run(*RUN, *(word for name, file in named.items() for word in (f"--{name}", file))) == 2
    out, err = capsys.readouterr()
    assert err.count("it is full") == 2 and f"{len(ADDS)} of {len(ADDS)} cases passed" in out
    assert named["tap"].read_text().count("\nok ") == len(ADDS) and not named["junit"].exists()


def test_merging_and_comparing(
    device: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device()
    files = [tmp_path / f"{i}.jsonl" for i in (1, 2)]
    for i, file in enumerate(files, 1):
        assert run(*RUN, "--shard", f"{i}/2", "--jsonl", file) == 0
    whole = tmp_path / "whole.jsonl"
    assert run("merge", *files, "-o", whole, "--html", tmp_path / "r.html") == 0
    assert set(only(str(whole)).rows) == set(ADDS)
    before = files[0].read_bytes()
    assert run("merge", *files, "--junit", files[0]) == 2
    assert files[0].read_bytes() == before, "a report never replaces what is merged"
    assert run("merge", *files, "-o", files[0], "--csv", tmp_path / "r.csv") == 0
    assert set(only(str(files[0])).rows) == set(ADDS)
    files[0].write_bytes(before)
    capsys.readouterr()
    assert run("merge", files[0]) == 1
    assert "2/2" in capsys.readouterr().out
    device(**{ADDS[0]: "failed"})
    now = tmp_path / "now.jsonl"
    assert run(*RUN, "--jsonl", now) == 1
    capsys.readouterr()
    assert run("compare", whole, now) == 1
    out = capsys.readouterr().out
    assert ADDS[0] in out and "1 new failures, 0 fixed" in out
    assert run("compare", now, whole, "--json") == 0
    assert json.loads(capsys.readouterr().out)["counts"]["fixed"] == 1
    assert run("compare", now, now) == 0
    capsys.readouterr()
    assert run("compare", now, "/nonexistent") == 2
    (tmp_path / "empty").touch()
    assert run("merge", tmp_path / "empty") == 2
    assert "has no header" in capsys.readouterr().err
    assert run("compare", now, whole, "--factor", "0.5") == 2
