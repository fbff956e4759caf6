"""The benchmark of peers: models, processes that answer, hang or die, cells, and the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from kernel_interpreter import interpret

from benchmarks.peers import ceilings, cells, models, report, run
from benchmarks.peers.adapters import GPUEDGE, PEERS
from benchmarks.peers.child import error_of, short
from benchmarks.peers.process import Process
from gpuedge import lang
from gpuedge.graph.cost import count

VULKAN, GLES, DRIVER = "gpuedge vulkan:0", "gpuedge gles31:0", "soft (256 bits)"


def cell(*seconds: float, device: str = DRIVER, **more: Any) -> dict[str, Any]:
    samples = [[2 * s, s] for s in seconds]
    return {"samples": samples, "device": device, "error": 0.0, "version": "1", **more}


# what is computed


def test_weights_come_from_the_seed_and_replace_zeros_only() -> None:
    one, again = models.graph_of("tcn"), models.graph_of("tcn")
    for name, array in one.constants.items():
        np.testing.assert_array_equal(array, again.constants[name])
        assert array.any()
    kernel = next(a for a in one.constants.values() if a.ndim == 4 and a.shape == (64, 64, 1, 3))
    assert kernel.std() == pytest.approx((2 / 192) ** 0.5, rel=0.05)


def test_scales_of_normalisations_lie_around_one() -> None:
    graph = models.graph_of("transformer")
    scales = [n.inputs[1] for n in graph.nodes if n.op == "LayerNormalization"]
    assert len(scales) == 3
    for name in scales:
        assert graph.constants[name].mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("conv 3x3 64@56", 2 * 64 * 64 * 9 * 56 * 56 + 64 * 56 * 56),
        ("matmul 64", 2 * 64**3),
        ("gemv 2048", 2 * 2048**2),
        ("relu(a*b+c) 1K", 3 * 1024),
    ],
)
def test_operators_have_the_size_that_they_are_named_for(name: str, operations: float) -> None:
    assert sum(count(models.graph_of(name))["flops"].values()) == operations


@pytest.mark.parametrize(
    ("name", "giga"),
    # twice the multiplications and additions that the papers or their repositories give
    [("squeezenet", 0.78), ("mobilenet", 0.61), ("resnet50", 8.2), ("shufflenet", 0.29)],
)
def test_networks_have_the_size_of_the_papers(name: str, giga: float) -> None:
    graph = models.graph_of(name)
    assert sum(count(graph)["flops"].values()) / 1e9 == pytest.approx(giga, rel=0.03)
    assert graph.shape(graph.outputs[0]) == (1, 1000)


def test_a_quantised_form_holds_eight_bit_weights() -> None:
    import onnx

    graph = models.conv(8, 8, 3, 12)
    plain = models.to_onnx(models.weighted(graph)).SerializeToString()
    made = onnx.load_from_string(models.quantised(plain, graph))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {n.op_type for n in made.graph.node}
    assert onnx.TensorProto.INT8 in {t.data_type for t in made.graph.initializer}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_kernel_of_the_rate_does_the_operations_it_is_counted_for(steps: int) -> None:
    kernel = lang.load(ceilings.RATE, filename="rate.kern")
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 1, 4)
    found = interpret(kernel, {"A": x}, (1, 1, 1, 1), params={"N": steps})
    chains = [x.astype(np.float64) + i for i in range(ceilings.CHAINS)]
    for _ in range(steps * ceilings.UNROLLED):
        chains = [a * 0.999 + x for a in chains]
    np.testing.assert_allclose(found.reshape(-1), sum(chains).reshape(-1), rtol=1e-5)


# processes


CHILD = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "die":
        os.kill(os.getpid(), 11)
    if asked["do"] == "hang":
        time.sleep(600)
    print(json.dumps({"said": asked["do"], "at": time.time()}), flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path) -> Any:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    one = Process([sys.executable, str(script)], os.environ, tmp_path / "log")
    yield one
    one.close()


def test_a_peer_answers_again_and_again(peer: Process) -> None:
    assert [peer.ask(30, do=word)["said"] for word in ("a", "b")] == ["a", "b"]
    assert peer.is_alive


def test_a_peer_that_hangs_is_killed_at_the_deadline(peer: Process) -> None:
    assert peer.ask(30, do="a")["said"] == "a"
    begin = time.monotonic()
    assert peer.ask(0.5, do="hang") == {"failed": "no answer within 0.5 s"}
    assert time.monotonic() - begin < 20
    assert not peer.is_alive


def test_a_peer_that_dies_is_named(peer: Process) -> None:
    assert peer.ask(30, do="die") == {"failed": f"its process ended: {signal.SIGSEGV.name}"}
    assert not peer.is_alive


def test_a_peer_that_died_between_two_questions_is_named(peer: Process) -> None:
    os.killpg(peer.pid, signal.SIGKILL)
    assert peer.ask(30, do="a") == {"failed": f"its process ended: {signal.SIGKILL.name}"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state from /proc")
def test_a_peer_is_stopped_while_it_is_not_asked(peer: Process) -> None:
    peer.ask(30, do="a")
    stat, end = Path(f"/proc/{peer.pid}/stat"), time.monotonic() + 20
    while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < end, state
        time.sleep(0.01)


PARENT = """
import os, sys
from pathlib import Path
from benchmarks.peers.process import Process
command = [sys.executable, "-m", "benchmarks.peers.child", "onnxruntime"]
one = Process(command, os.environ, Path(sys.argv[1]))
assert "FileNotFoundError" in one.ask(60, load="/nowhere")["failed"]
print(one.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_a_peer_goes_with_the_process_that_asked_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        cwd=run.ROOT, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    end = time.monotonic() + 20
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


# cells


def test_error_is_in_units_of_the_largest_number() -> None:
    wanted = [np.array([[0.0, -4.0]]), np.array([1.0])]
    assert error_of([np.array([1.0, -4.0]), np.array([1.0])], wanted) == 0.25
    assert error_of([np.array([0.0]), np.array([1.0])], wanted) == float("inf")
    assert error_of([np.array([0.0, np.nan]), np.array([1.0])], wanted) == float("inf")


def test_a_long_message_keeps_its_end() -> None:
    assert short("one\ntwo") == "one"
    assert short("") == "no message"
    assert short(f"{Path.cwd()}/out/model.onnx: bad") == "out/model.onnx: bad"
    assert short("x" * 500 + " no adapter").endswith(" no adapter")
    assert len(short("x" * 500)) < 200


@pytest.mark.parametrize(
    ("answer", "is_quantised", "why"),
    [
        ({"failed": "gone"}, False, "gone"),
        ({"on_cpu": ["MatMul"], "error": 0.0}, False, "ran on the CPU: MatMul"),
        ({"on_cpu": [], "error": 0.05}, False, "wrong: off by 0.05 of the largest number"),
        (
            {"on_cpu": [], "error": float("inf")},
            True,
            "wrong: results of another size, or not finite",
        ),
        ({"on_cpu": [], "error": 0.05}, True, ""),
        ({"on_cpu": [], "error": 1e-6}, False, ""),
    ],
)
def test_only_right_results_from_the_gpu_are_timed(
    answer: dict[str, Any], is_quantised: bool, why: str
) -> None:
    assert cells.verdict(answer, is_quantised) == why


def test_cells_are_kept_whole_and_damage_is_as_good_as_none(tmp_path: Path) -> None:
    file = cells.place(tmp_path, "relu(a*b+c) 1K", VULKAN, "code")
    assert cells.read(file) == {"samples": []}
    cells.write(file, cell(1.0))
    assert cells.read(file) == cell(1.0)
    file.write_text('{"samples": [[')
    assert cells.read(file) == {"samples": []}
    assert file != cells.place(tmp_path, "relu(a*b+c) 1M", VULKAN, "code")


def test_names_of_works_and_peers_are_different_files() -> None:
    for names in (models.WORK, PEERS):
        assert len({cells.plain(n) for n in names}) == len(names)


def test_medians_and_minima_are_of_rounds_that_count() -> None:
    one = cell(3.0, 1.0, 2.0)
    assert cells.seconds(one) == 2.0
    assert cells.seconds(one, cells.WALL, min) == 2.0
    assert cells.seconds(one | {"failed": "hung"}) is None
    assert cells.seconds({"samples": []}) is None
    assert [cells.missing(c, 4) for c in (one, cell(), {"failed": "x", "samples": []})] == [1, 4, 0]


def test_the_fastest_peer_is_one_on_the_same_driver() -> None:
    row = {
        VULKAN: cell(1.0), GLES: cell(0.5), "onnxruntime": cell(0.1, device="CPU"),
        "ncnn": cell(3.0), "iree": cell(2.0, device=f"{DRIVER} (more)"),
        "tinygrad": cell(4.0, device=""), "other": cell(0.2, device="hard"),
    }  # fmt: skip
    assert cells.fastest(row, DRIVER, GPUEDGE) == ("iree", 2.0)
    assert cells.fastest({VULKAN: cell(1.0)}, DRIVER, GPUEDGE) is None


def test_the_share_is_of_the_limit_that_is_nearer() -> None:
    ceiling = {"gflops_cpu": 10.0, "gbytes_cpu": 2.0}
    assert cells.fraction({"flops": 5e9, "bytes": 1e6}, ceiling, 1.0) == 0.5
    assert cells.fraction({"flops": 1e6, "bytes": 3e9}, ceiling, 2.0) == 0.75


def test_geometric_mean() -> None:
    assert cells.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert cells.geometric_mean([]) is None


# a run


class Fake:
    """Peers that answer at once; one of them hangs in its second round."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, peer: str) -> None:
        self.peer, self.is_alive = peer, True

    def ask(self, deadline_s: float, **what: Any) -> dict[str, Any]:
        Fake.asked.append((self.peer, next(iter(what))))
        times = [one for one in Fake.asked if one == (self.peer, "time")]
        if self.peer == "iree" and len(times) == 2:
            self.is_alive = False
            return {"failed": "hung"}
        if "load" in what:
            left = ["MatMul"] if self.peer == "ncnn" else []
            return {"error": 0.0, "device": "d", "version": "1", "on_cpu": left, "cpu_s": 2.0}
        return {"calls": 4, "wall_s": 0.8, "cpu_s": 0.4}

    def close(self) -> None:
        self.is_alive = False


def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> run.Runner:
    arguments = run.parsed(["--rounds", str(rounds), "--output", str(tmp_path)])
    made = run.Runner(["onnxruntime", "ncnn", "iree"], arguments)
    monkeypatch.setattr(made, "start", lambda peer, _: Fake(peer))
    Fake.asked = []
    return made


def test_rounds_are_interleaved_and_kept_and_a_second_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path, monkeypatch, 2)
    one.measure("matmul 64")
    timed = [peer for peer, what in Fake.asked if what == "time"]
    assert timed == ["onnxruntime", "iree", "onnxruntime", "iree"]
    assert one.cell("matmul 64", "onnxruntime")["samples"] == [[0.2, 0.1]] * 2
    assert one.cell("matmul 64", "ncnn")["failed"] == "ran on the CPU: MatMul"
    assert one.cell("matmul 64", "iree")["failed"] == "hung"
    again = runner(tmp_path, monkeypatch, 3)
    again.measure("matmul 64")
    assert Fake.asked == [("onnxruntime", "load"), ("onnxruntime", "time")]
    assert len(again.cell("matmul 64", "onnxruntime")["samples"]) == 3


def test_first_results_are_cold_then_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = runner(tmp_path, monkeypatch, 1)
    one.measure("matmul 64")
    Fake.asked = []
    one.first_results("matmul 64")
    assert Fake.asked == [("onnxruntime", "load")] * 2 + [("iree", "load")] * 2
    assert one.cell("matmul 64", "onnxruntime")["warm_cpu"] == 2.0


def test_onnxruntime_alone_is_measured_where_no_peers_are_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--devices", "", "--venv", str(tmp_path / "none"), "--output", str(tmp_path)]
    run.main([*given, "--work", "gemv 2048", "matmul 64", "--rounds", "2"])
    said = capsys.readouterr()
    assert "only onnxruntime is measured" in said.err
    assert said.out.count("error 0e+00, CPU") == 2
    page = next(tmp_path.glob("peers-*.md")).read_text()
    assert "| work | onnxruntime |" in page
    assert "| cpu | CPU |" in page


def test_a_word_takes_the_works_that_begin_with_it() -> None:
    assert list(run.chosen(run.parsed(["--work", "squeeze", "gemv"]), models.WORK)) == [
        "gemv 2048", "squeezenet", "squeezenet int8",
    ]  # fmt: skip
    assert list(run.chosen(run.parsed([]), models.WORK)) == list(models.WORK)


def test_a_peer_that_is_not_known_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such peer: abacus"):
        run.main(["--peers", "abacus"])


# the page


@pytest.fixture
def found() -> report.Found:
    row = {
        VULKAN: cell(0.004, 0.006), "onnxruntime": cell(0.001, device="CPU"), "ncnn": cell(0.010),
        "iree": {"failed": "hung", "samples": []},
    }  # fmt: skip
    limits = {"vulkan:0": {"device": DRIVER, "driver": "7", "gflops_cpu": 10.0, "gbytes_cpu": 1.0,
                           "gflops": 9.0, "gbytes": 0.5}, "samples": []}  # fmt: skip
    works = {"matmul 64": {"flops": 1e7, "bytes": 1e5, "digest": "d"}}
    return report.Found({"matmul 64": row}, works, limits, 2, 0.2)


def test_the_page_has_ratios_times_and_what_was_not_counted(found: report.Found) -> None:
    lines = report.page(found, "2026-01-02").splitlines()
    assert "| matmul 64 | vulkan:0 | 5 | ncnn | 0.50 | 5.00 | 20% |" in lines
    assert "| matmul 64 | 5 (4) | 1 (1) | 10 (10) |" in lines
    assert "| matmul 64 | 10 (8) | 2 (2) | 20 (20) |" in lines
    assert "| vulkan:0 | soft (256 bits) | 7 | 10.0 | 1.0 | 9.0 | 0.5 |" in lines
    assert "* iree: `hung`: all" in lines


def test_page_numbers_and_plot_are_written(found: report.Found, tmp_path: Path) -> None:
    report.write(found, tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} == {".md", ".json", ".svg"}
    written = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert written["table"]["matmul 64"]["ncnn"]["samples"] == [[0.02, 0.01]]
    assert ".svg)" in next(tmp_path.glob("*.md")).read_text()


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.23456, "1,235"), (0.0123456, "12.3"), (1e-5, "0.01"), (None, "-")]
)
def test_milliseconds_have_three_digits(seconds: float | None, text: str) -> None:
    assert report.ms(seconds) == text
