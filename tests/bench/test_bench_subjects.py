"""Subjects: how they are named, and their processes: some die, hang or are another build."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gpuedge.bench.cases import BenchCase, cases_of, error_of
from gpuedge.bench.interleave import Interleaved, interleaved, measure_case
from gpuedge.bench.meters import Meter
from gpuedge.bench.results import ratio
from gpuedge.bench.spec import SpecPlaces
from gpuedge.bench.subjects import SubjectName, TimedProcess, check_build, parse_subject
from gpuedge.core.errors import InputError, UnknownDeviceError, UsageError

LINUX = pytest.mark.skipif(sys.platform == "win32", reason="signals")


def test_subjects_are_devices_runtimes_and_builds() -> None:
    assert parse_subject("Vulkan:1").device == "vulkan:1"
    assert parse_subject("onnxruntime").peer == "onnxruntime"
    assert parse_subject("tree=/x", "gles31") == SubjectName("tree=/x", device="gles31", tree="/x")
    found = parse_subject("wgpu@commit=HEAD~1", "cpu")
    assert (found.device, found.commit, found.peer) == ("wgpu", "HEAD~1", "gpuedge")
    assert parse_subject("openvino@python=/y/python").python == "/y/python"


@pytest.mark.parametrize("text", ["auto", "", "@", "tree=", "cpu@x=1", "cpu@tree", "nothing"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises((UsageError, UnknownDeviceError)):
        parse_subject(text)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH with functions to time."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "work.py").write_text(
        "import os, time\nCALLS = []\n"
        "def step(): time.sleep(0.001)\n"
        "def loud(): print('said', flush=True); os.write(1, b'more\\n')\n"
        "def die(): os.kill(os.getpid(), 11)\n"
        "def late():\n    CALLS.append(1)\n    len(CALLS) > 3 and os._exit(3)\n"
        "def hang(): time.sleep(600)\n"
        "def fail(): raise ValueError('no such thing')\n"
    )
    return folder


def loaded(process: TimedProcess, function: str, deadline_s: float = 60.0) -> dict[str, object]:
    return process.ask(deadline_s, do="load", call=f"work:{function}")


@pytest.fixture
def process(tree: Path, tmp_path: Path) -> TimedProcess:
    made = TimedProcess(SubjectName("tree", tree=str(tree)), tmp_path)
    yield made
    made.close()


def test_a_process_times_cold_and_warm_apart(process: TimedProcess, tree: Path) -> None:
    answer = loaded(process, "step")
    assert answer["first_ns"] >= 1_000_000 and answer["names"] == []  # type: ignore[operator]
    assert check_build(process.subject, answer) == ""
    other = SubjectName("x", tree=str(tree / "elsewhere"))
    assert "which is not in" in check_build(other, answer)
    timed = process.ask(60.0, do="time", runs=3)
    assert len(timed["took_ns"]) == 3 and min(timed["took_ns"]) >= 1_000_000
    assert timed["lead_ns"] >= 1_000_000 and timed["peak_bytes"] > 1 << 20


def test_what_a_runtime_prints_is_no_answer(process: TimedProcess, tmp_path: Path) -> None:
    assert "failed" not in loaded(process, "loud")
    assert "took_ns" in process.ask(60.0, do="time", runs=2)
    assert b"said" in (tmp_path / "log").read_bytes()


@LINUX
def test_a_process_that_dies_says_how(process: TimedProcess) -> None:
    assert "SIGSEGV" in str(loaded(process, "die")["failed"])
    assert "SIGSEGV" in str(process.ask(1.0, do="time", runs=1)["failed"])


def test_a_process_that_hangs_is_ended(process: TimedProcess) -> None:
    begin = time.monotonic()
    assert "no answer within 1 s" in str(loaded(process, "hang", 1.0)["failed"])
    assert time.monotonic() - begin < 20
    assert "no answer" in str(process.ask(60.0, do="time", runs=1)["failed"])


def test_an_exception_is_told_in_its_words(process: TimedProcess) -> None:
    assert loaded(process, "fail")["failed"] == "ValueError: no such thing"


def test_a_program_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be started"):
        TimedProcess(SubjectName("x", python=str(tmp_path / "none")), tmp_path)


@LINUX
def test_a_process_is_stopped_while_it_is_not_asked(process: TimedProcess) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc")
    loaded(process, "step")
    state = Path(f"/proc/{process._child.pid}/stat")
    until = time.monotonic() + 10
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until, "it goes on while others would be timed"
        time.sleep(0.01)


class Counter:
    """A meter that counts how often it was read."""

    name = "fake"

    def start(self) -> None:
        pass

    def joules(self, seconds: float) -> float | None:
        return 2.0


def test_blocks_alternate_and_drift_cancels(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = BenchCase("step", call="work:step", iterations=20, warm_up=2)
    monkeypatch.setattr("gpuedge.bench.interleave.meters", lambda: [Counter()])
    names = [SubjectName(t, tree=str(tree)) for t in ("a", "b")]
    order: list[str] = []
    ask = TimedProcess.ask

    def asked(process: TimedProcess, deadline_s: float, **more: object) -> dict[str, object]:
        answer = ask(process, deadline_s, **more)
        if more["do"] == "time" and more["runs"] != 1:  # no warm-up
            order.append(process.subject.text)
            # what takes 4 % longer with every block that was timed before
            slow = 1 + 0.04 * len(order) + (0.1 if process.subject.text == "b" else 0)
            answer["took_ns"] = [int(1e7 * slow)] * len(answer["took_ns"])
        return answer

    monkeypatch.setattr(TimedProcess, "ask", asked)
    with interleaved(case, names, machine="m") as timed:
        for _ in range(8):
            timed.round(8)
        a, b = timed.results()
    assert "".join(order) == "abbabaab" * 4
    assert len(a.blocks) == 16 and all(len(block) >= 2 for block in a.blocks)
    assert a.session == b.session and a.machine == "m" and not a.failed
    assert len(a.cold) == 8 and all(len(cold.warm_up_ns) == 2 for cold in a.cold)
    # whole drift of the run is 128 %, and the ratio of each round is that of its own levels
    found = ratio(a, b)
    middle = [1 + 0.04 * (4 * r + 2.5) for r in range(8)]
    wanted = [math.log((m + 0.1) / m) for m in middle]
    assert math.log(found.value) == pytest.approx(np.median(wanted), abs=0.005)
    assert found.low > 1 and found.n == 8
    (energy,) = a.energy
    assert energy.joules == 32.0 and energy.runs == sum(len(x) + 1 for x in a.blocks)
    assert a.power is not None and a.power[0]["joules_per_run"] == 32.0 / energy.runs


def test_a_subject_that_fails_costs_the_others_nothing(tree: Path) -> None:
    case = BenchCase("late", call="work:late", iterations=4, warm_up=0)
    other = SubjectName("missing", tree=str(tree.parent))
    late, missing = measure_case(case, [SubjectName("late", tree=str(tree)), other], rounds=2)
    assert "exit 3" in late.failed and late.blocks == () and late.latency() == {}
    assert "ModuleNotFoundError" in missing.failed and missing.summary()["latency_ns"] == {}


def test_models_run_on_gpuedge_and_onnxruntime_and_are_right(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16]) for n in ("file", "y")]
    node = helper.make_node("Exp", ["file"], ["y"])  # a name that numpy.savez takes for its own
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "m.onnx")
    (case,) = cases_of(str(tmp_path / "m.onnx"), SpecPlaces())
    assert isinstance(case, BenchCase)
    own, ort = measure_case(case, [parse_subject("cpu"), parse_subject("onnxruntime")], rounds=1)
    for one in (own, ort):
        assert one.failed == "" and len(one.cold) == 1
        assert one.accuracy is not None and one.accuracy.reference == "float64"
        assert one.accuracy.relative is not None and 0 < one.accuracy.relative < 1e-6
        assert one.work is not None and one.work["flops"] == 16 and one.work["bytes_in"] == 64
    assert own.version != ort.version and own.device == ort.device == "CPU"


def test_errors_are_the_largest_difference() -> None:
    right = {"y": np.array([1.0, -4.0, np.nan, np.inf])}
    assert error_of({"y": np.array([1.0, -4.5, np.nan, np.inf])}, right) == (0.5, 0.125)
    assert error_of({"y": np.array([1.0, np.nan, np.nan, np.inf])}, right) == (math.inf, math.inf)
    assert error_of({"y": np.zeros(3)}, right) == (math.inf, math.inf)
    assert error_of({}, right) == (math.inf, math.inf) and error_of({}, {}) is None
    assert error_of({"y": np.array(["a"])}, {"y": np.array(["b"])}) == (1.0, 1.0)


def test_each_round_has_processes_of_its_own_and_none_stays(tree: Path) -> None:
    pids = set()
    with interleaved(BenchCase("step", call="work:step"), [SubjectName("a", tree=str(tree))]) as it:
        assert isinstance(it, Interleaved)
        for _ in range(3):
            it.round(3)
            process = it._sides[0].process
            assert process is not None
            pids.add(process._child.pid)
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT if sys.platform != "win32" else 0)


def test_counters_are_meters() -> None:
    meter: Meter = Counter()
    assert meter.joules(1.0) == 2.0
