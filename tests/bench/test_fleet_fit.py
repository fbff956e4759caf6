"""What is fitted to traces is what they were made with; replaying them gives their runs again."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
from trace_fakes import CLASS, GRAPH_NAMES, traced

from benchmarks.fleet import fit, traces
from benchmarks.fleet.traces import CPU, GPU, Replay, load, pairs_of
from gpuedge.bench import trace

SAMPLES = Path(traces.__file__).resolve().parents[1] / "results" / "traces"


def fleet(**constants: float) -> list[traces.TracedPair]:
    """Ten devices, four launches each."""
    rng = np.random.default_rng(12)
    return [
        pair
        for device in range(10)
        for launch in range(4)
        for pair in pairs_of(traced(rng, **constants), f"d{device}", launch)  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize(
    ("window", "run", "lasting"), [(0.21, 0.05, 0.10), (0.35, 0.30, 0.02), (0.05, 0.10, 0.30)]
)
def test_known_constants_are_found_again(window: float, run: float, lasting: float) -> None:
    found = {f.name: f for f in fit.fit(fleet(window=window, run=run, lasting=lasting))}
    assert found["trial.run"].value == pytest.approx(run, rel=0.05)
    assert found["trial.window"].value == pytest.approx(window, abs=0.02)
    assert found["lasting"].value == pytest.approx(lasting, abs=0.05)
    for name, truth in (("trial.window", window), ("lasting", lasting)):
        one = found[name]
        assert one.low <= one.value <= one.high
        assert one.low - 0.03 <= truth <= one.high + 0.03
    assert found["trial.window"].count == 240 and found["lasting"].count == 60


def test_the_error_of_predictions_is_found_again() -> None:
    found = {f.name: f for f in fit.fit(fleet(error=math.log(2.0), window=0.05, lasting=0.0))}
    assert found["prior_factor"].value == pytest.approx(2.0, rel=0.05)
    assert found["prior bias"].value == pytest.approx(math.log(2.0), abs=0.05)
    # opened in 80 ms and compiled in 50; the table says 120 and 4 times 20
    assert found["startup_factor"].value == pytest.approx(200 / 130, rel=1e-9)


def test_one_launch_says_nothing_of_what_lasts() -> None:
    one = pairs_of(traced(np.random.default_rng(1)))
    found = {f.name: f for f in fit.fit(one)}
    assert found["lasting"].count == 0 and math.isnan(found["lasting"].value)
    assert found["trial.window"].count == len(GRAPH_NAMES)


def test_traces_in_one_folder_are_launches_of_one_device(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for folder, launches in (("a", 2), ("b", 1)):
        (tmp_path / folder).mkdir()
        for launch in range(launches):
            trace.write(traced(rng), str(tmp_path / folder / f"{launch}.trace"))
    pairs = load([tmp_path])
    assert len(pairs) == 3 * len(GRAPH_NAMES)
    assert {(Path(p.device).name, p.launch) for p in pairs} == {("a", 0), ("a", 1), ("b", 0)}
    assert {p.device_class for p in pairs} == {CLASS}


def test_a_replay_serves_the_runs_of_its_trace() -> None:
    pair = pairs_of(traced(np.random.default_rng(6), windows=3, runs=5))[0]
    replay = Replay(pair, random.Random(1))
    cpu, gpu = ({ns for window in pair.windows for ns in window[side]} for side in (0, 1))
    assert replay.run(GPU) == pair.cold_ns[0]
    seen = [replay.run(side) for _ in range(50) for side in (CPU, GPU)]
    assert set(seen[::2]) <= cpu and set(seen[1::2]) <= gpu
    assert np.median(seen[1::2]) == pytest.approx(pair.median_ns(GPU), rel=0.3)


def test_the_samples_are_whole_and_the_script_prints_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fit.main([str(SAMPLES)]) == 0
    shown = capsys.readouterr().out
    assert "cpu-llvm vulkan" in shown
    for name in ("trial.window", "lasting", "trial.run", "prior_factor"):
        assert name in shown


def test_a_damaged_trace_stops_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trace.dumped(traced(np.random.default_rng(8)))
    (tmp_path / "a.trace").write_bytes(whole)
    (tmp_path / "b.trace").write_bytes(whole[:-9])
    assert fit.main([str(tmp_path)]) == 2
    assert "b.trace" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert fit.main([]) == 2 and fit.main([str(tmp_path / "empty")]) == 2
