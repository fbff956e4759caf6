"""What is shown of a decision: rules that every state keeps, and the text and HTML themselves."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
from decide_states import CPU, MS, decided, measured, ppm, predicted
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuedge.core.reasons import SENTENCES
from gpuedge.core.text import duration
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision
from gpuedge.decide.decision_record import DeviceCandidate, Phase

STATISTICS = re.compile(
    r"belief|loss|sigma|confiden|window|posterior|prior|percentile|\bp\d\d\b|deviation|probab|"
    r"quantile|median|sample|calibrat|nats?\b|expected",
    re.IGNORECASE,
)
RATIO = re.compile(r"(over )?([\d.,]+) times as (fast|slow)")

thetas = st.floats(-8, 8)


def gpu_in(device: str, phase: Phase, belief: Belief, **more: Any) -> DeviceCandidate:
    """Return a GPU; only one that was measured is ready."""
    is_wrong = phase == "ready" and not belief.windows
    return DeviceCandidate(device, phase="trial" if is_wrong else phase, belief=belief, **more)


gpus = partial(
    st.builds,
    gpu_in,
    code=st.sampled_from(["ok"] * 6 + ["quirk", "open-failed", "run-failed", "unsupported-op"]),
    name=st.sampled_from(["", "Mali-G52"]),
    is_software=st.sampled_from([False] * 4 + [True, None]),
    physical=st.sampled_from(["", "a", "b"]),
    is_demoted=st.sampled_from([False] * 3 + [True]),
    memory_bytes=st.sampled_from([0, 1 << 20, 1 << 31]),
    predicted_ns=st.sampled_from([0, 10**5, 10**7]),
    startup_ns=st.sampled_from([0, 10**8, 10**11]),
    belief=st.builds(
        Belief, thetas.map(ppm), st.floats(0.001, 3).map(ppm), st.sampled_from([0, 0, 1, 5])
    ),
    latency_ns=st.one_of(st.just(0), st.integers(10**4, 10**9)),
    at_ns=st.sampled_from([0, 10**6, 10**9]),
    phase=st.sampled_from([*get_args(Phase), "ready", "ready"]),
    since=st.integers(0, 10**10),
    waited_ns=st.integers(0, 10**11),
    retry_ns=st.integers(0, 10**11),
)
states = st.builds(
    decided,
    gpus(device=st.just("vulkan:0")),
    gpus(device=st.sampled_from(["wgpu:0", "gles31:0"])),
    st.sampled_from([CPU, replace(CPU, latency_ns=0), replace(CPU, at_ns=30 * MS)]),
    requests=st.integers(0, 10**6),
    min_speedup=st.sampled_from([1.0, 1.1, 2.0]),
    deadline_s=st.sampled_from([None, None, 0.02]),
    max_memory_bytes=st.sampled_from([None, 1 << 30]),
    decide=st.sampled_from(["service", "load"]),
    allow_software=st.booleans(),
    in_use=st.sampled_from(["cpu", "vulkan:0"]),
    has_switched=st.booleans(),
    waits_ns=st.sampled_from([None, None, 0, 34 * 10**9]),
)


def above_the_fold(found: Decision) -> list[str]:
    lines = found.explain().splitlines()
    assert lines[0] == found.reason and lines[1] == ""
    return [lines[0], *(row.reason for row in found.rows)]


@settings(max_examples=150, deadline=None)
@given(states)
def test_every_state_is_told_by_the_rules(found: Decision) -> None:
    by_name = [row for row in found.rows if row.status == "selected"]
    assert len({row.device for row in by_name}) == 1
    assert by_name[0].device == found.device
    assert found.reason.startswith(f"Runs on {found.device}")
    for line in above_the_fold(found):
        assert not STATISTICS.search(line), line
        assert len(RATIO.findall(line)) <= 1, line
        assert "\0" not in line and "None" not in line and ".." not in line and "  " not in line
    assert found.explain().count(found.reason) == 1
    assert not STATISTICS.search(found.explain())
    again = found.replay()
    assert again == found and again.to_json() == found.to_json()


@settings(max_examples=150, deadline=None)
@given(states)
def test_no_sentence_contradicts_its_code_or_the_choice(found: Decision) -> None:
    for row in found.rows:
        fast = re.search(r"times as fast|a little faster", row.reason)
        slow = "times as slow" in row.reason
        if row.code in ("slower", "measured-slower"):
            assert slow and not fast, row
        elif row.code in ("selected", "too-little"):
            is_kept = row.status == "selected" and row.device == found.record.in_use
            assert not slow or is_kept, row
        if row.code == "too-little" and fast:
            assert "too little" in row.reason
        number = RATIO.search(row.reason)
        is_new = row.device != found.record.in_use
        if number and number.group(3) == "fast" and row.code == "selected" and is_new:
            assert float(number.group(2).replace(",", "")) >= found.record.policy.min_speedup
        if number and row.code == "too-little" and not found.record.has_switched:
            # the number is rounded down to hundredths or to two digits
            assert float(number.group(2)) <= found.record.policy.min_speedup
        if row.status == "waiting":
            assert row.code in ("not-yet", "opening", "on-trial", "open-late", "takes-over")
        if row.device != found.device and row.device != "cpu":
            assert row.status != "selected"


@settings(max_examples=150, deadline=None)
@given(st.integers(10**4, 10**9), st.integers(10**4, 10**9))
def test_ratio_is_that_of_the_times_beside_it(gpu_ns: int, cpu_ns: int) -> None:
    found = decided(measured(gpu_ns / MS, cpu_ns / MS), replace(CPU, latency_ns=cpu_ns))
    number = RATIO.search(found.reason)
    if number is None or number.group(1):
        assert 0.95 < cpu_ns / gpu_ns < 1.06 or cpu_ns / gpu_ns >= 999 or gpu_ns / cpu_ns >= 999
        return
    true = cpu_ns / gpu_ns if number.group(3) == "fast" else gpu_ns / cpu_ns
    assert float(number.group(2)) == pytest.approx(true, rel=0.051)
    times = [row.time_ns for row in found.rows]
    assert times[1] == cpu_ns and not found.rows[1].is_rough
    if not found.rows[0].is_rough:
        assert times[0] == gpu_ns


def test_what_is_measured_is_told_unless_it_contradicts_the_choice() -> None:
    odd = measured(1.9, belief=Belief(ppm(0.3), ppm(0.02), 3))
    found = decided(odd, CPU)
    assert found.device == "cpu" and found.rows[0].code == "measured-slower"
    assert found.rows[0].is_rough and "about 1.4 times as slow" in found.reason


def test_text_is_a_sentence_then_a_table_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found = decided(predicted(), DeviceCandidate("gles20", "no-device"),
                    DeviceCandidate("wgpu", "no-loader", "wgpu is not installed"), CPU)  # fmt: skip
    assert str(found).splitlines() == [
        "Runs on cpu: vulkan:0 (Mali-G52) should be about 3 times as fast as the CPU, but opening "
        "it takes about 200 ms, which pays after about 120 requests; 12 were served.",
        "",
        "device    result    time per request  why",
        "vulkan:0  not yet   about 1.2 ms      should be about 3 times as fast as the CPU, but "
        "opening it takes about 200 ms,",
        " " * 38 + "which pays after about 120 requests; 12 were served",
        "wgpu      not used  -                 wgpu is not installed",
        "cpu       used      3.7 ms            no other device has proved enough faster",
    ]
    assert found.explain() == str(found)
    assert repr(found) == f"<Decision cpu: {found.reason}>"


def test_details_come_on_request_in_four_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    gpu = measured(1.2, entries=("mali-0012",), memory_bytes=5 << 20)
    software = DeviceCandidate("vulkan:1", name="llvmpipe", is_software=True)
    bare = DeviceCandidate("gles20", "no-device")
    found = decided(gpu, software, bare, CPU, previous_requests=(100, 2000), isolation="process",
                    deadline_s=0.02)  # fmt: skip
    short, details = found.explain(), found.explain(verbose=True)
    assert details.startswith(short + "\n\n")
    assert details[len(short) :].strip().splitlines() == [
        "What was known",
        "start     12 requests so far, in earlier application starts 100, 2,000; "
        "Policy(deadline_s=0.02); isolation process;",
        "          gpuedge 0.1.0; capability database 12 (embedded)",
        "vulkan:0  Mali-G52; entries of the capability database in force: mali-0012; the model "
        "takes 5 MiB",
        "vulkan:1  llvmpipe; a software rasteriser",
        "",
        "What was predicted before anything was opened",
        "vulkan:0  1.2 ms a request",
        "",
        "What was measured",
        "vulkan:0  1.2 ms a request (median); 0.28 to 0.37 times as long as the CPU (two times in "
        "three), by 3 comparisons in",
        "          this application start and earlier ones; 200 ms to open it, compile and warm up",
        "cpu       3.7 ms a request (median); answered 12 requests",
        "",
        "What would change the pick",
        "any GPU   is worth it below 3.4 ms a request",
        "vulkan:0  a request is expected to lose 2.1 ms on the CPU, 0 ns there",
        "vulkan:1  Policy(allow_software=True), or asking for it by name",
    ]


@pytest.mark.parametrize(("gpu", "more", "told"), [
    (predicted(), {}, "it is opened after about 120 requests; a request is"),
    (predicted(phase="failed", code="run-failed"), {}, "vulkan:0  another application start"),
    (predicted(code="unsupported-op"), {}, "what gpuedge check MODEL says of its operators"),
    (predicted(code="crashed"), {}, "vulkan:0  what gpuedge doctor advises"),
    (predicted(memory_bytes=2), {"max_memory_bytes": 1}, "a larger Policy(max_memory_bytes=...)"),
    (predicted(), {"asked": "vulkan:0"}, "vulkan:0  device='auto'"),
    (predicted(code="crashed"), {"asked": "vulkan:0"}, "nothing"),
])  # fmt: skip
def test_details_say_what_would_change_the_pick(
    gpu: DeviceCandidate, more: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    details = decided(gpu, CPU, **more).explain(verbose=True)
    assert told in details.partition("What would change the pick\n")[2]
    assert "200 ms to open it, compile and warm up" in details.partition("What was measured")[0]


def test_of_gpus_that_wait_the_one_that_pays_first_is_told_of() -> None:
    other = predicted(device="gles31:0", startup_ns=100 * MS)
    assert "gles31:0 (Mali-G52) should" in decided(predicted(), other, CPU).reason
    sooner = predicted(startup_ns=50 * MS)
    assert "vulkan:0 (Mali-G52) should" in decided(sooner, other, CPU).reason


def test_html_is_escaped_and_says_the_same() -> None:
    found = decided(predicted(name="<b>&"), CPU)
    html = found._repr_html_()
    assert "<b>" not in html and "&lt;b&gt;&amp;" in html
    assert html.count("<tr>") == 3 and "should be about 3 times as fast" in html
    assert "belief" not in html


def test_names_cannot_steer_a_terminal() -> None:
    found = decided(predicted(name="GPU\x1b[2J\n\udc80", code="quirk", detail="a\nb"), CPU)
    assert "\x1b" not in str(found) and "\n\n" in str(found)
    assert found.reason == (
        r"Runs on cpu: vulkan:0 (GPU\x1b[2J\n\udc80) was left out: a\nb."
    )  # fmt: skip


def test_sentences_of_the_codes_hold_no_statistics_either() -> None:
    start = list(SENTENCES).index("selected")
    assert not [s for s in list(SENTENCES.values())[start:] if STATISTICS.search(s)]


def test_duration() -> None:
    shown = [duration(n) for n in (0, 850, 1_250_000, 999_999, 2 * 10**9, 61 * 10**9, 10**15)]
    assert shown == ["0 ns", "850 ns", "1.25 ms", "1 ms", "2 s", "61 s", "1000000 s"]
    assert duration(1_236_000, 2) == "1.2 ms"
