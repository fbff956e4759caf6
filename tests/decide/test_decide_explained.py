"""What a decision prints: its table and its sentence say the same, and what decided is told."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from decide_fakes import MS, ms
from test_decide_golden import CASES

from gpuedge.decide import words
from gpuedge.decide.attempts import in_service
from gpuedge.decide.belief import Belief
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.explain import view
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import BY_NAME, Evidence, Record

LLVMPIPE = Evidence("vulkan:0", name="llvmpipe", is_software=True)


def gpu(at: float, device: str = "vulkan:0", **more: Any) -> Evidence:
    return Evidence(device, is_software=False, prediction=ms(at), **more)


def cpu(at: float | None = 6.0, **more: Any) -> Evidence:
    return Evidence("cpu", is_software=False, prediction=None if at is None else ms(at), **more)


def made(*candidates: Evidence, asked: str = "auto", **policy: Any) -> Decision:
    how = "cached" if asked == "auto" else BY_NAME
    return decide(Record(asked, Policy(**policy), candidates, "0.1.0", how))


def line(decision: Decision, start: str) -> str:
    return next((x for x in str(decision).splitlines() if x.startswith(start)), "")


# -- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_figures_of_the_sentence_are_those_of_the_table(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    decision = CASES[name]()
    said, _, below = str(decision).partition("\n")
    table = below.partition("\n\n")[0]
    shown = {row.split("  ")[0]: row for row in table.splitlines()}
    subject = re.search(r"(vulkan|wgpu):\d", said)
    for mine, host in re.findall(r"at p90, ([\d.]+ \w+) against ([\d.]+ \w+)", said):
        assert subject is not None
        assert f"  {mine} " in shown[subject[0]] and f"  {host} " in shown["cpu"]
    for word in ("predicted", "measured"):
        if f": {word}" in said:
            assert subject is not None
            is_new = word == "predicted" or name != "in-service"
            assert f" {word if is_new else 'in service'} " in shown[subject[0]]


def test_table_says_where_its_figures_are_from() -> None:
    def sources(decision: Decision) -> list[str]:
        return [f.source for f in view(decision.record).figures if f is not None]

    assert sources(CASES["prior-only"]()) == ["predicted"] * 3
    assert sources(CASES["measured-faster"]()) == ["measured"] * 2
    assert sources(CASES["kept"]()) == ["earlier launch"] * 2
    assert sources(CASES["in-service"]()) == ["in service"] * 2
    assert sources(CASES["later-window"]()) == ["measured"] * 2
    timed = replace(cpu(), prediction=replace(ms(6.0), confidence=words.TIMED))
    assert sources(made(gpu(2.0), timed)) == ["predicted", "measured"]
    assert sources(made(gpu(2.0), timed, asked="vulkan:0")) == ["predicted", "measured"]


def test_cpu_row_shows_what_was_measured_and_not_what_was_predicted() -> None:
    """A prediction of 6 ms was wrong: the CPU takes 20 ms, in service."""
    decision = in_service(made(gpu(7.0), cpu()), "vulkan:0", Belief(-900_000, 4_000, 9), 20 * MS, 5)
    row = line(decision, "cpu ")
    assert "20 ms" in row and "in service" in row and "6 ms" not in row
    assert "vulkan:0 was measured to be faster" in str(decision.rows[-1].reason)
    assert line(decision, "cpu: ") == ""  # the prediction's error is of no use any more


@pytest.mark.parametrize("at", [0.5, 2.0, 5.0, 5.9, 6.1, 50.0])
@pytest.mark.parametrize("limit", [None, 0.0001, 0.0055, 0.0059, 1.0])
def test_no_row_calls_a_slower_device_faster(at: float, limit: float | None) -> None:
    decision = made(gpu(at), cpu(), deadline_s=limit)
    assert "another device" not in str(decision)
    if decision.device == "cpu":
        assert "to be faster" not in str(decision)
    elif "to be faster" in decision.rows[-1].reason:
        assert at < 6.0


# -- the deadline -----------------------------------------------------------------------------


def test_deadline_that_nothing_meets_is_told() -> None:
    limit = 0.001
    slow = made(gpu(7.0), cpu(), deadline_s=limit)
    assert slow.reason == (
        "Runs on cpu: vulkan:0 was left out: needs 7 ms, and the deadline is 1 ms; nothing meets "
        "the deadline of 1 ms, and the CPU path is the fastest, with 6 ms."
    )
    assert slow.rows[-1].reason == "needs 6 ms, and the deadline is 1 ms, but nothing is faster"
    assert line(slow, "deadline:") == (
        "deadline: 1 ms at p90, met by nothing; missed by vulkan:0 (predicted 7 ms), "
        "cpu (predicted 6 ms)"
    )
    fast = made(gpu(5.5), cpu(), deadline_s=limit)
    assert "nothing meets the deadline of 1 ms, and this device is the fastest" in fast.reason


def test_deadline_is_the_reason_also_where_speed_alone_would_do() -> None:
    decision = made(gpu(1.0), cpu(), deadline_s=0.002)
    assert "the CPU path misses the deadline of 2 ms, and this device meets it" in decision.reason
    assert decision.rows[-1].code == "misses-deadline"
    kept = made(gpu(3.0), cpu(2.4), deadline_s=0.0025)
    assert kept.reason == (
        "Runs on cpu: vulkan:0 was left out: needs 3 ms, and the deadline is 2.5 ms; the CPU path "
        "meets the deadline of 2.5 ms, with 2.4 ms."
    )
    assert "deadline" not in made(gpu(1.0), cpu(), deadline_s=1.0).reason  # it decided nothing


def test_deadline_that_was_not_checked_says_so() -> None:
    aside = made(LLVMPIPE, cpu(None), deadline_s=0.001)
    assert aside.reason.endswith(
        "; whether the CPU path meets the deadline of 1 ms is not known, as nothing was measured."
    )
    assert line(aside, "deadline:").endswith("nothing was measured, as no GPU came into question")
    known = made(LLVMPIPE, cpu(), deadline_s=0.001)
    assert known.reason.endswith("; the CPU path misses the deadline of 1 ms, with 6 ms, but "
                                 "nothing else came into question.")  # fmt: skip
    named = made(gpu(5.0), cpu(), asked="vulkan:0", deadline_s=0.001)
    assert named.reason == "Runs on vulkan:0: asked for by name."
    assert line(named, "deadline:") == (
        "deadline: 1 ms at p90, not checked, as a device was asked for by name"
    )


# -- the policy and the words -----------------------------------------------------------------


def test_policy_is_told_where_it_is_not_the_usual_one() -> None:
    usual = line(made(gpu(1.0), cpu()), "policy:")
    for part, given in (
        ("at most 5 % probability of being over a tenth slower (caution)", {"caution": 0.05}),
        ("0.5 s for calibration and trial", {"calibration_s": 0.5}),
        ("not watched in service", {"monitor": False}),
    ):
        assert part not in usual
        assert line(made(gpu(1.0), cpu(), **given), "policy:").endswith(f", {part}")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(2.34, "2.3x as fast as the CPU path"), (0.5, "0.5x as fast as the CPU path"),
     (0.4, "about 2.5 times slower than the CPU path"),
     (0.002, "about 500 times slower than the CPU path"),
     (1e-8, "over 1000000 times slower than the CPU path")],
)  # fmt: skip
def test_a_slow_device_is_so_many_times_slower(ratio: float, text: str) -> None:
    assert words.pace(ratio) == text


def test_range_of_speeds_takes_the_form_of_the_speed() -> None:
    """A factor of exp(1.645 * sqrt(ln(2)**2 + 0.24**2)) = 3.34 to either side."""
    assert "(0.9x to 10x in 9 of 10 cases)" in str(made(gpu(2.0), cpu()))
    hopeless = str(made(gpu(3000.0), cpu(), allow_software=True))
    assert "about 500 times slower than the CPU path (150 to 1700 times in 9 of 10" in hopeless
    assert "expected loss per inference: over 100 times the CPU path's time" in hopeless
    assert "(10 times slower to 1.1x as fast in 9 of 10 cases)" in str(made(gpu(18.0), cpu()))


def test_labels_are_told_in_words() -> None:
    assert words.rests_on("screened", 0) == words.rests_on("prior only", 0)
    assert words.rests_on("2 windows", 0) == "measured with this model, 2 windows"
    assert words.rests_on("in service", 1) == "measured in service, 1 request"


@pytest.mark.parametrize(
    ("label", "text"),
    [("1 ae70a3920baf", "version 1 (ae70a3920baf)"),
     ("1 ae70a3920bafffff", "version 1 (ae70a3920baf)"),
     ("12 (embedded)", "version 12 (embedded)"), ("3", "version 3"), ("of a test", "of a test")],
)  # fmt: skip
def test_label_of_a_database(label: str, text: str) -> None:
    assert words.database(label) == text


def test_conditions_in_words() -> None:
    now = {"load_milli": 808, "is_on_battery": False, "battery_percent": None, "power_mw": 12_340}
    assert words.conditions(now) == "load 80.8 %, on mains, draws 12.3 W"
    assert words.conditions({}) == ""
    assert (words.percent(9), words.percent(0), words.percent(350)) == (
        "under 0.01 %",
        "0 %",
        "0.035 %",
    )
