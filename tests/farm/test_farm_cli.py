"""``gpuedge farm`` as it is called: exit codes, what goes on, what is refused and when."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daily import some
from farm_fakes import CASES, answers, desk, names_in
from farm_fakes import farm as fake_farm

from gpuedge.cli import farm
from gpuedge.cli.main import main
from gpuedge.farm import coordinator, devices, engine, work
from gpuedge.safety import packages

ADDS = sorted(name for name, case in CASES.items() if case.op == "add")
RUN = ("farm", "run", "--only", "add/*", "--shards", "3", "--grace", "1", "-q")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine with two equal devices and another one."""
    here = desk("here", "G1", "G1", "G2").announcement
    monkeypatch.setattr(devices, "found_here", lambda *_: here)
    monkeypatch.setattr(work, "answer", answers({}))
    monkeypatch.setattr(coordinator, "TICK_S", 0.1)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_run_query_export_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "s")
    assert main([*RUN, "--store", store, "--json"]) == 0
    body = document(capsys)
    assert body["schema"] == "gpuedge.farm/1"
    counts = {name: count for name, count in body["counts"].items() if count}
    assert counts == dict.fromkeys(("cases", "executed", "passed"), 2 * len(ADDS))
    assert sorted(names_in(tmp_path / "s")) == sorted(2 * ADDS)
    assert main(["farm", "query", store, "select count(*) as n from rows", "--json"]) == 0
    assert document(capsys)["rows"] == [[2 * len(ADDS)]]
    assert main(["farm", "export", store, "-o", str(tmp_path / "r.parquet"), "--json"]) == 0
    assert document(capsys)["rows"] == 2 * len(ADDS)
    assert main(["farm", "report", store, "-o", str(tmp_path / "r.html")]) == 0
    assert "1 run, 2 devices" in (out := capsys.readouterr().out)
    assert "0 failures" in out and "0 proposals" in out
    assert main([*RUN, "--store", store]) == 2
    assert "holds a run already" in capsys.readouterr().err
    for other in (["--only", "tanh/*"], ["--profile", "full"]):
        assert main(["farm", "run", "--resume", *other, "--store", store]) == 2
        assert "goes on with the cases" in capsys.readouterr().err
    assert main([*RUN, "--store", store, "--resume"]) == 0
    out = capsys.readouterr().out
    assert f"smoke, only add/*, {len(ADDS)} cases" in out
    assert f"{len(ADDS)} of {len(ADDS)}" in out and "2 devices; results in" in out
    assert "verified" not in out
    assert main([*RUN, "--store", str(tmp_path / "t"), "--verify", "0.001"]) == 0
    assert "no shard drawn to be verified" in capsys.readouterr().out
    assert len(list((tmp_path / "s" / "summaries").iterdir())) == 2


def test_cases_that_do_not_apply_are_told_as_by_conformance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def skip(header: Any, rows: list[dict[str, Any]]) -> None:
        for one in rows:
            if one["id"] == ADDS[0]:
                one |= {"status": "skipped", "reason": "not here"}

    monkeypatch.setattr(work, "answer", answers({"here": skip}))
    asked = ["--store", str(tmp_path / "s"), "--verify", "1"]
    assert main([*RUN, *asked]) == 0
    out, left = capsys.readouterr().out, len(ADDS) - 1
    assert f"{left} of {left}  " in out
    assert f"\n{2 * left} of {2 * left} cases passed; 2 do not apply\n" in out
    assert "2 devices; results in" in out
    assert "4 shards not verified, for lack of a second equal device" in out


def test_what_is_wrong_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(header: Any, rows: list[dict[str, Any]]) -> None:
        rows[0] |= {"status": "failed", "reason": "so it is"}

    monkeypatch.setattr(work, "answer", answers({"here": fail}))
    assert main([*RUN, "--store", str(tmp_path / "a")]) == 1
    assert "failed" in capsys.readouterr().out
    page = str(tmp_path / "r.html")
    assert main(["farm", "report", str(tmp_path / "a"), "-o", page]) == 0
    assert ", 4 failures, 0 regressions, 0 flakes, " in capsys.readouterr().out
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    both = [str(tmp_path / name) for name in ("a", "copy")]
    assert main(["farm", "report", *both, "-o", page]) == 2
    assert f"{both[1]} and {both[0]} hold the same run" in capsys.readouterr().err
    for twice in (both, both[:1] * 2):
        assert main(["farm", "query", *twice, "select count(*) from rows"]) == 2
        assert main(["farm", "export", *twice, "-o", str(tmp_path / "r.parquet")]) == 2
        assert capsys.readouterr().err.count("hold the same run") == 2
    job = ["farm", "job", "lava", "-o", str(tmp_path / "job")]
    assert main([*job, "--device", "x; rm"]) == 2
    assert main([*job, "--shards", "2"]) == 0
    assert len(list((tmp_path / "job").iterdir())) == 2


def test_nothing_is_written_into_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s"
    assert main([*RUN, "--store", str(store)]) == 0
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    (tmp_path / "link").symlink_to(store)
    page = str(tmp_path / "r.html")
    for words in (
        ["report", str(store), "-o", str(store / "run.json")],
        ["report", f"file://{store}", "-o", str(tmp_path / "link" / "new.html")],
        ["report", str(store), "-o", page, "--proposals", str(store)],
        ["export", str(tmp_path / "link"), "-o", str(store / "shards" / "r.parquet")],
    ):
        capsys.readouterr()
        assert main(["farm", *words]) == 2
        assert "lies in the store" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before
    assert main(["farm", "report", str(store), "-o", page]) == 0, "beside it is well"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--store", "{}/s", "--resume"), "holds no run"),
        (("run", "--store", "{}/s", "--only", "nothing/*"), "No case matches"),
        (("run", "--store", "nonsense://x"), "is no place to keep results"),
        (("run", "--store", ""), "An empty name is no place to keep results"),
        (("run", "--store", "file://"), "it names no folder"),
        (("run", "--store", __file__), f"{__file__} is a file"),
        (("run", "--store", f"file://{__file__}/s"), f"{__file__} is a file"),
        (("run", "--store", "{}/s", "--verify", "2"), "not a number from 0 to 1"),
        (("run", "--store", "{}/s", "--scheduler", "lab"), "no scheduler's address"),
        (("run", "--store", "{}/s", "--scheduler", "tcp://127.0.0.1:1", "--device", "vulkan"),
         "the workers say which devices"),
        (("run", "--store", "{}/s", "--tls-ca", "x"), "three files"),
        (("worker", "--scheduler", "tls://lab:1"), "needs --tls-ca"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1", "--label", "x"), "not KEY=VALUE"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1", "--label", "x=\udcff"), "not KEY=VALUE"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1", "--serial", "s\udcff"), "is not a name of"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1", "--serial", "s" * 200), "1 to 199 char"),
        (("worker", "--scheduler", "tcp://127.0.0.1:1", "--serial", ""), "is not a name of"),
        (("scheduler", "--host", "0.0.0.0"), "needs TLS"),
        (("query", "{}/none", "select 1"), "holds no run"),
        (("report", "{}/none", "-o", "{}/x.html"), "holds no run"),
        (("report", "{}/none", "-o", "{}/no/folder/x.html"), "holds no run"),
        (("job", "tablet", "-o", "{}/x"), "invalid choice"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_before_anything_happens(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(devices, "found_here", lambda *_: pytest.fail("drivers were touched"))
    assert main(["farm", *(word.format(tmp_path) for word in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_results_of_another_version_are_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--store", str(tmp_path)]) == 0
    file = tmp_path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.0.3"}))
    assert main([*RUN, "--store", str(tmp_path), "--resume"]) == 2
    said = capsys.readouterr().err
    assert "there gpuedge 0.0.3" in said and "another version" in said
    file.write_text("{")
    assert main([*RUN, "--store", str(tmp_path), "--resume"]) == 2
    assert "holds no run that can be read" in capsys.readouterr().err


def test_a_scheduler_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuedge.farm.engine.CONNECT_S", 0.5)
    arguments = ["--store", str(tmp_path / "s"), "--scheduler", "tcp://127.0.0.1:9"]
    assert main([*RUN, *arguments]) == 4
    assert "GE-407" in capsys.readouterr().err
    assert not (tmp_path / "s" / "run.json").exists()


@pytest.fixture
def scheduler(tmp_path_factory: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Have a scheduler in a process of its own; yield it and its address."""
    environ = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("tmp"))}  # a kill leaves files
    command = [sys.executable, "-m", "gpuedge", "farm", "scheduler", "--port", "0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.parametrize("end", some(("killed", "stopped", "told", "retired")))
def test_how_a_worker_ends(
    end: str, scheduler: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process, address = scheduler

    def retire() -> None:
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            client.retire_workers()

    ends = {"killed": process.kill, "stopped": process.terminate, "retired": retire,
            "told": lambda: os.kill(os.getpid(), signal.SIGTERM)}  # fmt: skip
    threads: list[threading.Timer] = []

    def ready(*_: object) -> None:
        threads.append(threading.Timer(0.5, ends[end]))
        threads[0].start()

    monkeypatch.setattr(farm, "_ready", ready)
    code = main(["farm", "worker", "--scheduler", address])
    threads[0].join()
    err = capsys.readouterr().err
    if end in ("killed", "stopped"):
        assert code == 4 and err.startswith(f"[GE-407] The scheduler at {address} is gone.")
        assert "Restart=on-failure" in err
    else:
        assert (code, err) == (0, "")


def test_a_run_whose_scheduler_is_killed_says_so_and_nothing_else(
    tmp_path: Path, scheduler: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    process, address = scheduler
    look, looks = engine.Engine.workers, []

    def workers(self: engine.Engine) -> Any:
        looks.append(self)
        if len(looks) == 2:
            process.kill()
            process.wait()
        return look(self)

    monkeypatch.setattr(engine.Engine, "workers", workers)
    monkeypatch.setitem(engine.CONFIG, "distributed.comm.timeouts.connect", "1s")
    monkeypatch.setattr(engine, "CONNECT_S", 5.0)
    log = logging.getLogger("distributed.client")
    log.addHandler(caplog.handler)  # Dask's logs may end before the root
    at = ["--store", str(tmp_path / "s"), "--scheduler", address, "--grace", "60"]
    assert main([*RUN[:-1], *at]) == 4
    log.removeHandler(caplog.handler)
    err = capsys.readouterr().err
    assert err.startswith(f"[GE-407] The scheduler at {address} is gone."), err
    assert err.count("\n") == 4 and caplog.records == []
    assert not (tmp_path / "s").exists(), "a store in which nothing ran"


def test_a_label_that_no_worker_has(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    desks = [desk("a", "G1", rack="1"), desk("b", "G1"), desk("old", "G1", version="0.0.9")]
    with fake_farm(*desks) as client:
        monkeypatch.setattr(engine, "connected", lambda *_: contextlib.nullcontext(client))
        at = ["--scheduler", "tcp://127.0.0.1:9", "--store", str(tmp_path / "s")]
        assert main([*RUN, *at, "--label", "rack=9"]) == 3
        err = capsys.readouterr().err
        assert "GE-103" in err and "is labelled rack=9." in err
        assert "a (rack=1)" in err and "b (no label)" in err and "old: it has gpuedge 0.0.9" in err
        assert not (tmp_path / "s").exists(), "a store in which nothing ran"
        assert main([*RUN, *at, "--label", "rack=1"]) == 1  # of the one with another version
        assert (tmp_path / "s" / "run.json").exists()


def test_results_in_a_place_that_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--store", "memory://farm/one"]) == 0
    assert main([*RUN, "--store", "memory://farm/one", "--resume", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["counts"]["not_run"] == 0


def test_dask_writes_into_a_folder_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    seen: set[str] = set()

    def look(*_: Any) -> None:
        seen.update(path.relative_to(temporary).as_posix() for path in temporary.rglob("*"))

    monkeypatch.setattr(work, "answer", answers({"here": look}))
    assert main([*RUN, "--store", str(tmp_path / "s")]) == 0
    assert {path[:13] for path in seen} == {"gpuedge-farm-"}
    assert any("/dask-scratch-space/worker-" in path for path in seen)
    assert any("/dask-scratch-space/scheduler-" in path for path in seen)
    assert list(temporary.iterdir()) == []


def test_importing_gpuedge_and_its_commands_loads_no_dask() -> None:
    code = (
        "import sys, gpuedge, gpuedge.cli.farm; gpuedge.probe\n"
        f"print([m for m in {sorted(packages.EXTRAS)} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["distributed", "fsspec"])
def test_what_installs_a_package_that_is_missing(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*RUN, "--store", str(tmp_path / "s")]) == 2
    assert "pip install 'gpuedge[farm]'" in capsys.readouterr().err
