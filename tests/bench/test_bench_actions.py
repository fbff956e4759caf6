"""``gpuedge bench run``, ``compare``, ``history`` and ``export`` from the command line."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import daily
import farm
import pytest
from bench_fakes import FULL, open_model, result
from farm import FARM
from test_bench_spec import fai_pep, written

from gpuedge.bench import store
from gpuedge.bench.estimates import Quantile, paired
from gpuedge.bench.graphs import GRAPHS
from gpuedge.bench.results import BenchResult
from gpuedge.bench.tables import shown_quantile, shown_ratio
from gpuedge.cli import bench_actions
from gpuedge.cli import main as cli
from gpuedge.core.text import Table
from gpuedge.graph.writer import to_bytes

QUICK = [name for name, one in FARM.items() if not one.is_slow]
"""Drivers that run a network of hundreds of milliseconds elsewhere within the time of a test."""

ONE = [name for name in daily.of_today(FARM) if name in QUICK][daily.turn(2) :: 2]
"""Today's driver, or both of two."""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Makes measuring answer at once; milliseconds by subject may be changed."""
    known = {"cpu": 1.0, "onnxruntime": 1.2, "python=p": 1.0}
    turn = [0]

    def measure(case: Any, subjects: Any, **_: Any) -> list[BenchResult]:
        turn[0] += 1
        return [
            result(s.text, ms=known[s.text], case=case.name, at=turn[0], seed=turn[0], **FULL)
            if s.text in known
            else replace(result(s.text, case=case.name, at=turn[0]), blocks=(), cold=(),
                         failed="not installed")
            for s in subjects
        ]  # fmt: skip

    monkeypatch.setattr("gpuedge.cli.bench_actions.measure_case", measure)
    return known


def bench(*arguments: str | Path) -> int:
    return cli.main(["bench", *map(str, arguments)])


def document(capsys: Capture) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def test_run_prints_warm_and_cold_apart_and_keeps_all(
    tmp_path: Path, speeds: object, capsys: Capture
) -> None:
    arguments = ("run", "lenet-28", "--on", "cpu,onnxruntime", "--peers", "--store", tmp_path)
    assert bench(*arguments, "--html", tmp_path / "p.html") == 0
    shown = capsys.readouterr().out
    assert "warm runs, with 95 % intervals" in shown and "cold, medians of 12 starts" in shown
    assert "1.2" in shown and "not installed" in shown and "3.0 W, 0.12 J a run (RAPL)" in shown
    assert "2.0e-07 (float64)" in shown
    assert [r.subject for r in store.kept(str(tmp_path))] == ["cpu", "onnxruntime", "openvino"]
    assert "<svg" in (tmp_path / "p.html").read_text()


def test_without_a_meter_the_words_are_not_available(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(
        "gpuedge.cli.bench_actions.measure_case", lambda case, subjects, **_: [result("cpu")]
    )
    assert bench("run", "lenet-28") == 0
    assert "not available" in capsys.readouterr().out
    assert bench("run", "lenet-28", "--json") == 0
    assert document(capsys)["results"][0]["power"] is None


def test_a_specification_runs_as_it_is_and_names_what_it_cannot(
    tmp_path: Path, speeds: object, capsys: Capture
) -> None:
    data = to_bytes(GRAPHS["relu-4k"]())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "net.onnx").write_bytes(data)
    body = fai_pep(sha256=hashlib.sha256(data).hexdigest())
    body["tests"] = body["tests"][1:]
    assert bench("run", written(tmp_path, body), "--json") == 0
    found = document(capsys)
    assert [r["case"] for r in found["results"]] == [
        "net/dims-0", "net/tf", "net/many-1x3x8x8", "net/many-4x3x8x8"
    ]  # fmt: skip
    assert [(s["case"], "commands" in s["why"]) for s in found["skipped"]] == [("net/top1", True)]
    assert bench("run", f"{tmp_path / 'spec.json'}#tf", "--json") == 0
    assert len(document(capsys)["results"]) == 1
    body["model"]["format"] = "caffe2"
    assert bench("run", written(tmp_path, body)) == 2
    assert "'caffe2', which is not ONNX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nothing"), "nothing that can be timed"),
        (("run", "lenet28"), "did you mean 'lenet-28'"),
        (("run", "lenet-28", "--on", "auto"), "auto is not compared"),
        (("run", "lenet-28", "--rounds", "0"), "whole number from 1"),
        (("run", "lenet-28", "--map", "x"), "NAME=VALUE"),
        (("run", "lenet-28", "--check"), "--store FOLDER"),
        (("run", "lenet-28", "--store", "/dev/null/x"), "cannot be written"),
        (("run", "none.onnx"), "no model at none.onnx"),
        (("run", "lenet-28", "--shape", "x=1"), "--shape is for models"),
        (("run", "lenet-28", "--shape", "x"), "does not have the form"),
        (("compare", "cpu", "onnxruntime"), "no case to compare by"),
        (("compare", "cpu", "."), "there are results at ., none at cpu"),
        (("compare", "cpu", "cpu", "--effect", "x"), "number of percent"),
        (("history", "none"), "cannot be read"),
        (("export", "."), "Nothing is to be written"),
        (("bisect", "a", "b", "lenet-28", "--rounds", "2"), "at least 8 rounds"),
        (("bisect", "a", "b", "lenet-28", "--repository", "/nowhere"), "git failed"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: tuple[str, ...], words: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("gpuedge.cli.bench_actions.measure_case", never)
    assert bench(*arguments) == 2
    assert words in capsys.readouterr().err


def test_compare_names_its_test_and_what_it_needs(speeds: object, capsys: Capture) -> None:
    assert bench("compare", "cpu", "onnxruntime", "lenet-28", "--json") == 0
    body = document(capsys)
    (row,) = body["cases"]
    assert row["ratio"]["value"] == pytest.approx(1.2, rel=0.03) and row["is_different"]
    assert row["ratio"]["test"].startswith("Wilcoxon") and row["needed"] >= 6
    assert bench("compare", "cpu", "python=p", "lenet-28") == 0
    shown = capsys.readouterr().out
    assert "~ " in shown and "A B B A" in shown and "to find 5 %" in shown
    assert bench("compare", "cpu", "openvino", "lenet-28") == 1
    assert "not installed" in capsys.readouterr().out


def test_saved_results_are_compared_without_claiming_interleaving(
    tmp_path: Path, capsys: Capture
) -> None:
    for name, ms in (("a", 1.0), ("b", 1.3)):
        store.keep([result("cpu", ms=9.0), result("cpu", at=1, ms=ms, session=name)],
                   str(tmp_path / name))  # fmt: skip
    told = tmp_path / "page.html"
    assert bench("compare", tmp_path / "a", tmp_path / "b", "--json", "--html", told) == 0
    assert all(f">{tmp_path / name}<" in told.read_text() for name in ("a", "b"))
    assert "on cpu</h2>" in told.read_text() and "not interleaved" in told.read_text()
    assert "Mann-Whitney" in told.read_text()
    body = document(capsys)
    assert "not interleaved" in body["how"]
    (row,) = body["cases"]
    assert row["ratio"]["value"] == pytest.approx(1.3, rel=0.03)
    assert row["ratio"]["test"].startswith("Mann-Whitney")


def test_a_page_takes_the_place_of_no_result(tmp_path: Path, capsys: Capture) -> None:
    a = tmp_path / "a"
    for name in ("a", "b"):
        store.keep([result("cpu")], str(tmp_path / name))
    (file,) = a.glob("*.jsonl")
    for place, target in ((a, file), (file, file), (a, a / "page.jsonl")):
        assert bench("compare", place, tmp_path / "b", "--html", target) == 2
        assert "one of the results" in capsys.readouterr().err
    assert bench("run", "lenet-28", "--store", a, "--html", file) == 2
    assert bench("export", a, "--html", a / "page.jsonl") == 2
    assert len(store.kept(str(a))) == 1
    assert bench("compare", a, tmp_path / "b", "--html", a / "page.html") == 0


def test_check_runs_a_suspect_again_and_fails_only_then(
    tmp_path: Path, speeds: dict[str, float], capsys: Capture
) -> None:
    arguments = ("run", "lenet-28", "--store", tmp_path, "--check")
    for _ in range(9):
        assert bench(*arguments) == 0
    capsys.readouterr()
    assert len(store.kept(str(tmp_path))) == 9
    speeds["cpu"] = 1.3
    assert bench(*arguments) == 1
    shown = capsys.readouterr()
    assert "Suspect, and run once more: lenet-28" in shown.err
    first, again = shown.out.split("Suspect, and run once more:")
    assert first.count("warm runs") == again.count("warm runs") == 1
    assert "lenet-28 on cpu: slower: 1.3" in again and "and 1.0" in again
    assert len(store.kept(str(tmp_path))) == 11
    assert bench("history", tmp_path, "--json", "--effect", "25") == 1
    body = document(capsys)
    (row,) = body["histories"]
    assert row["state"] == "slower" and row["changes"][0]["ratio"] == pytest.approx(1.3, rel=0.03)
    assert body["statistic"].startswith("Student's t") and row["iterations_needed"] >= 1
    assert bench("history", tmp_path) == 1
    assert "slower 1.3" in capsys.readouterr().out


def test_check_stays_red_until_the_level_returns(
    tmp_path: Path, speeds: dict[str, float], capsys: Capture
) -> None:
    arguments = ("run", "lenet-28", "--store", tmp_path, "--check", "--json")

    def checked(ms: float, code: int) -> str:
        speeds["cpu"] = ms
        assert bench(*arguments) == code
        body = document(capsys)
        assert body["slower"] == (["lenet-28 on cpu"] if code else [])
        (told,) = body["verdicts"]
        return str(told).removeprefix("lenet-28 on cpu: ")

    assert checked(1.0, 0) == "no verdict: 0 of the 8 runs that are needed before it."
    told = [checked(1.0, 0) for _ in range(9)]
    assert told[2] == "no verdict: 3 of the 8 runs that are needed before it."
    assert "no verdict: 7 of" in told[6] and told[7].startswith("same: ")
    assert "the level before, 1 run ago (2026-11-1" in checked(3.8, 1)
    for ago in (2, 3, 4):
        said = checked(3.8, 1)
        assert said.startswith("slower: 3.") and f"the level before, {ago} runs ago" in said
    assert checked(1.0, 0).startswith("faster: 0.2")
    assert bench("history", tmp_path) == 0
    capsys.readouterr()
    assert checked(1.0, 0).startswith("faster: 0.2") and checked(3.8, 1).startswith("slower: 3.")


def test_shapes_that_a_model_leaves_open_are_an_option(
    tmp_path: Path, speeds: object, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.onnx").write_bytes(open_model())
    assert bench("run", tmp_path / "net.onnx", "--shape", "x=3x4", "--json") == 0
    assert document(capsys)["results"][0]["case"] == "net-3x4"
    monkeypatch.undo()
    assert bench("run", tmp_path / "net.onnx") == 2
    assert "--shape x=1x4" in capsys.readouterr().err
    assert bench("run", tmp_path / "net.onnx", "--shape", "x=3x5") == 2
    assert "5" in capsys.readouterr().err
    assert bench("run", tmp_path / "net.onnx", "--shape", "x=3x4", "--rounds", "1", "--json") == 0
    assert document(capsys)["results"][0]["work"]["bytes_in"] == 3 * 4 * 4


@pytest.mark.parametrize("extent", [2**31, 10**30])
def test_shapes_that_no_array_has_are_refused(tmp_path: Path, capsys: Capture, extent: int) -> None:
    data = open_model()
    (tmp_path / "net.onnx").write_bytes(data)
    sha = hashlib.sha256(data).hexdigest()
    own: dict[str, Any] = {"model": "net.onnx", "sha256": sha}
    assert bench("run", written(tmp_path, own | {"tests": [{"shapes": {"x": [extent, 4]}}]})) == 2
    assert f"{extent} is greater than the maximum" in " ".join(capsys.readouterr().err.split())
    body = fai_pep(location="net.onnx", sha256=sha)
    dims = f"--input x --input_dims {extent},4"
    body["tests"] = [{"identifier": "a", "metric": "delay", "arguments": dims}]
    assert bench("run", written(tmp_path, body)) == 2
    assert f"A shape of 'x' has the extent {extent}" in capsys.readouterr().err


def test_cases_of_one_name_are_refused(tmp_path: Path, speeds: object, capsys: Capture) -> None:
    data = open_model()
    (tmp_path / "net.onnx").write_bytes(data)
    body = {"model": "net.onnx", "sha256": hashlib.sha256(data).hexdigest(), "tests": [
        {"name": "1", "shapes": {"x": [1, 4]}}, {"shapes": {"x": [9, 4]}}]}  # fmt: skip
    spec = written(tmp_path, body)
    assert bench("run", spec) == 2
    assert "Two cases are called 'spec/1'" in capsys.readouterr().err
    assert bench("run", f"{spec}#1") == 2 and bench("run", "relu-4k", "relu-4k") == 2
    assert bench("run", "relu-4k", "lenet-28") == 0


def test_no_output_replaces_what_is_read_or_another(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("gpuedge.cli.bench_actions.measure_case", never)
    monkeypatch.chdir(tmp_path)
    data = open_model()
    Path("net.onnx").write_bytes(data)
    written(tmp_path, {"model": "net.onnx", "sha256": hashlib.sha256(data).hexdigest(),
                       "tests": [{"name": "a", "shapes": {"x": [1, 4]}}]})  # fmt: skip
    kept = Path(store.keep([result()], "s")).rename("s/x.jsonl").read_bytes()
    spec = Path("spec.json").read_bytes()
    for words in (
        "run spec.json --html spec.json", "run spec.json#a --html ./spec.json",
        "run spec.json --html net.onnx", "run spec.json --html new --store new",
        "compare cpu onnxruntime spec.json --html net.onnx", "export s --html s/x.jsonl",
        "export s/x.jsonl --pytest-benchmark s/x.jsonl", "export s --html p --pytest-benchmark p",
        "export s --asv p --html p", "export s --asv asv --html asv/benchmarks.json",
    ):  # fmt: skip
        assert bench(*words.split()) == 2, words
        assert "name the same file" in capsys.readouterr().err, words
    assert Path("net.onnx").read_bytes() == data and Path("spec.json").read_bytes() == spec
    assert Path("s/x.jsonl").read_bytes() == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "s", "spec.json"]


def test_functions_are_found_in_the_current_folder_or_not_at_all(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mybench.py").write_text("import types\nN = 1\ndef work(): pass\n")
    (tmp_path / "types.py").write_text("raise ValueError('not the one of Python')\n")
    monkeypatch.chdir(tmp_path)
    assert bench("run", "mybench:work", "--rounds", "1", "--json") == 0
    (found,) = document(capsys)["results"]
    assert found["device"] == "Python" and not found["failed"]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("gpuedge.cli.bench_actions.measure_case", never)
    for call, words in (("mybenhc:work", "No module named 'mybenhc'"),
                        ("mybench:wrok", f"{tmp_path / 'mybench.py'} has no function wrok"),
                        ("mybench:N", "has no function N")):  # fmt: skip
        assert bench("run", "lenet-28", call) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "GE-203" in said and call in said and words in said
        assert f"looked in {tmp_path}, PYTHONPATH" in said


def test_exports_are_written(tmp_path: Path, capsys: Capture) -> None:
    store.keep([result("cpu"), result("vulkan")], str(tmp_path / "s"))
    files = [tmp_path / name for name in ("p.json", "asv", "p.html")]
    options = zip(("--pytest-benchmark", "--asv", "--html"), files, strict=True)
    assert bench("export", tmp_path / "s", *(word for pair in options for word in pair)) == 0
    assert all(file.exists() for file in files)
    assert len(json.loads(files[0].read_text())["benchmarks"]) == 2


def test_times_are_shown_in_one_unit() -> None:
    assert shown_quantile(Quantile(1.234e6, 0.9e6, 1.5e9)) == "1.23 [0.9, 1500] ms"
    assert shown_quantile(Quantile(40.0, None, None)) == "40 [?, ?] ns"


def test_too_few_rounds_are_marked_otherwise_than_no_difference() -> None:
    assert shown_ratio(paired([math.log(14.36)] * 4)) == "? 14.360x [?, ?]"
    assert shown_ratio(paired([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])).startswith("~ ")
    assert shown_ratio(paired([0.1, 0.11, 0.12, 0.13, 0.14, 0.15])).startswith("1.1")


@pytest.mark.driver
@pytest.mark.parametrize("name", daily.others_long(QUICK, ONE))
def test_a_driver_is_timed_beside_the_cpu_and_is_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    farm.require(name)
    for key, value in farm.environment_of(name).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(farm.cache(name)))
    device = farm.EVERY[name].device
    arguments = ("run", "softmax-256x1000", "--on", f"{device},cpu", "--rounds", "1", "--json")
    assert bench(*arguments) == 0
    found = {row["subject"]: row for row in document(capsys)["results"]}
    for row in found.values():
        assert row["latency_ns"]["p50"]["value"] > 0 and row["cold_ns"]["open"]["value"] > 0
        assert row["accuracy"]["reference"] == "float64" and row["work"]["flops"] == 1_024_000
    # 16 bits where a level stores no more; a softmax of 1,000 is about 1e-3
    assert found["cpu"]["accuracy"]["relative"] < 1e-5
    assert found[device]["accuracy"]["relative"] < 1e-3
    assert found[device]["device"] != "CPU"


@pytest.mark.parametrize(("needed", "words"), [(30, "24 of 30"), (None, "24 (no number suffices)")])
def test_a_history_says_how_many_iterations_it_needs(needed: int | None, words: str) -> None:
    row = {"case": "c", "subject": "cpu", "runs": 9, "state": "steady", "ratio": None, "limit": 1.1,
           "changes": [], "iterations": 24, "iterations_needed": needed}  # fmt: skip
    body = {"histories": [row], "statistic": "t", "least_runs": 8, "effect": 0.05}
    shown, _ = bench_actions._history_tables(body)
    assert isinstance(shown, Table) and shown.rows[0][5] == words
