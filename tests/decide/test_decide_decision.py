"""The choice itself: golden decisions for every branch, properties, and byte-identical replay."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from decide_fakes import ms

from gpuedge.core.errors import InputError, NoUsableDeviceError
from gpuedge.core.reasons import SENTENCES
from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import Evidence, Record
from gpuedge.decide.words import duration


def cpu(at: float | None = 6.0) -> Evidence:
    return Evidence("cpu", is_software=False, prediction=None if at is None else ms(at))


def gpu(at: float | None, startup: float = 0.0, device: str = "vulkan:0", **more: Any) -> Evidence:
    known = None if at is None else ms(at, startup)
    fields: dict[str, Any] = {"name": "Mali-G78", "is_software": False, **more}
    return Evidence(device, prediction=known, **fields)


def record(*candidates: Evidence, asked: str = "auto", **policy: Any) -> Record:
    return Record(asked, Policy(**policy), candidates, "0.1.0", "cached")


LLVMPIPE = Evidence("vulkan:0", name="llvmpipe", is_software=True)
ABSENT = Evidence("vulkan", "no-loader", "libvulkan.so.1 was not found")
BARE = Evidence(
    "vulkan", "no-device", "the driver loads but offers no device: ERROR", name="a.json"
)

GOLDEN: dict[str, tuple[Record, str, list[str], str]] = {
    "software": (
        record(LLVMPIPE, cpu(None)), "cpu", ["software", "fallback"],
        "Runs on cpu: vulkan:0 (llvmpipe) is a software rasteriser, excluded unless "
        "Policy(allow_software=True).",
    ),
    "no driver": (record(cpu(None)), "cpu", ["fallback"], "Runs on cpu: no GPU driver was found."),
    "absent": (
        record(ABSENT, cpu(None)), "cpu", ["no-loader", "fallback"],
        "Runs on cpu: vulkan was left out: libvulkan.so.1 was not found.",
    ),
    "a driver without a device": (
        record(BARE, cpu(None)), "cpu", ["no-device", "fallback"],
        "Runs on cpu: vulkan (a.json) was left out: the driver loads but offers no device: ERROR.",
    ),
    "drivers without a device": (
        record(BARE, BARE, cpu(None)), "cpu", ["no-device", "no-device", "fallback"],
        "Runs on cpu: none of 2 drivers offers a device here.",
    ),
    "software beside drivers without a device": (
        record(BARE, LLVMPIPE, BARE, cpu(None)),
        "cpu", ["no-device", "software", "no-device", "fallback"],
        "Runs on cpu: vulkan:0 (llvmpipe) is a software rasteriser, excluded unless "
        "Policy(allow_software=True).",
    ),
    "measured": (
        record(gpu(None, code="measured-slower", detail="9 ms against 6 ms"), LLVMPIPE, cpu()),
        "cpu", ["measured-slower", "software", "fallback"],
        "Runs on cpu: vulkan:0 (Mali-G78) was measured on this model and left out: 9 ms against "
        "6 ms; 1 other candidate was rejected too.",
    ),
    "gpu wins": (
        record(gpu(2.0, 100.0), cpu()), "vulkan:0", ["selected", "not-best"],
        "Runs on vulkan:0 (Mali-G78): predicted 2.9x as fast as the CPU path at p90, 2 ms against "
        "6 ms, with 100 ms of start-up spread over 1000 inferences.",
    ),
    "not enough faster": (
        record(gpu(5.5), cpu()), "cpu", ["slower", "selected"],
        "Runs on cpu: vulkan:0 (Mali-G78) is predicted 5.5 ms at p90 with 0 ns of start-up spread "
        "over 1000 inferences, against 6 ms on the CPU path; 1.2x as fast is asked for.",
    ),
    "start-up eats it": (
        record(gpu(2.0, 100.0), cpu(), inferences=1), "cpu", ["slower", "selected"],
        "Runs on cpu: vulkan:0 (Mali-G78) is predicted 2 ms at p90 with 100 ms of start-up spread "
        "over 1 inference, against 6 ms on the CPU path; 1.2x as fast is asked for.",
    ),
    "nearest of several": (
        record(gpu(5.5), replace(LLVMPIPE, device="vulkan:1"), ABSENT, cpu()),
        "cpu", ["slower", "software", "no-loader", "selected"],
        "Runs on cpu: vulkan:0 (Mali-G78) is predicted 5.5 ms at p90 with 0 ns of start-up spread "
        "over 1000 inferences, against 6 ms on the CPU path; 1.2x as fast is asked for; 1 other "
        "candidate was rejected too.",
    ),
    "two gpus": (
        record(gpu(3.0), gpu(2.0, device="vulkan:1"), cpu()),
        "vulkan:1", ["not-best", "selected", "not-best"],
        "Runs on vulkan:1 (Mali-G78): predicted 3x as fast as the CPU path at p90, 2 ms against "
        "6 ms, with 0 ns of start-up spread over 1000 inferences.",
    ),
    "unsupported": (
        record(gpu(None, code="unsupported-op", detail="no Einsum here"), cpu(None)),
        "cpu", ["unsupported-op", "fallback"],
        "Runs on cpu: vulkan:0 (Mali-G78) was left out: no Einsum here.",
    ),
    "hung": (
        record(gpu(None, code="deadline", detail=""), cpu()), "cpu", ["deadline", "fallback"],
        "Runs on cpu: vulkan:0 (Mali-G78) was left out: the driver did not answer before the "
        "deadline.",
    ),
    "no cpu figure": (
        record(gpu(2.0), cpu(None)), "cpu", ["not-calibrated", "fallback"],
        "Runs on cpu: vulkan:0 (Mali-G78) was left out: the CPU path has no prediction.",
    ),
    "software allowed": (
        record(replace(LLVMPIPE, prediction=ms(2.0)), cpu(), allow_software=True),
        "vulkan:0", ["selected", "not-best"],
        "Runs on vulkan:0 (llvmpipe): predicted 3x as fast as the CPU path at p90, 2 ms against "
        "6 ms, with 0 ns of start-up spread over 1000 inferences.",
    ),
    "named": (
        record(LLVMPIPE, cpu(None), asked="vulkan:0"), "vulkan:0", ["named", "not-named"],
        "Runs on vulkan:0 (llvmpipe): asked for by name.",
    ),
    "named cpu": (
        record(gpu(1.0), ABSENT, cpu(None), asked="cpu"),
        "cpu", ["not-named", "no-loader", "named"], "Runs on cpu: asked for by name.",
    ),
    "named family": (
        record(ABSENT, replace(LLVMPIPE, device="vulkan:1"), cpu(None), asked="vulkan"),
        "vulkan:1", ["no-loader", "named", "not-named"],
        "Runs on vulkan:1 (llvmpipe): asked for by name.",
    ),
    "named, with operators it lacks": (
        record(gpu(None, code="unsupported-op", detail="no Einsum here"), cpu(None),
               asked="vulkan:0"),
        "vulkan:0", ["named", "not-named"],
        "Runs on vulkan:0 (Mali-G78): asked for by name, although no Einsum here.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_decision(name: str) -> None:
    given_record, device, codes, sentence = GOLDEN[name]
    found = decide(given_record)
    assert found.device == device
    assert [r.code for r in found.rows] == codes
    assert found.reason == sentence
    assert [r.device for r in found.rows if r.status == "selected"] == [device]
    assert all(r.reason and r.code in SENTENCES for r in found.rows)


@pytest.mark.parametrize("name", GOLDEN)
def test_replay_is_byte_identical(name: str) -> None:
    found = decide(GOLDEN[name][0])
    text = found.to_json()
    loaded = Decision.from_dict(json.loads(text))
    assert loaded == found
    assert loaded.to_json() == text
    assert loaded.replay().to_json() == text
    assert json.loads(text)["schema"] == "gpuedge.decision/3"


def test_replay_does_not_trust_the_saved_answer() -> None:
    saved = json.loads(decide(GOLDEN["gpu wins"][0]).to_json())
    saved["device"] = "cpu"
    assert Decision.from_dict(saved).device == "cpu"
    assert Decision.from_dict(saved).replay().device == "vulkan:0"


def test_times_in_the_record_are_whole_numbers() -> None:
    saved = json.loads(decide(GOLDEN["gpu wins"][0]).to_json())
    times = saved["record"]["candidates"][0]["prediction"]
    assert all(type(v) is int for k, v in times.items() if k.endswith("_ns"))
    assert times["startup_ns"] == 100_000_000


def test_text_is_a_sentence_then_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found = decide(GOLDEN["nearest of several"][0])
    assert str(found).splitlines() == [
        found.reason,
        "",
        "device    verdict   code       p90     from       start-up  reason",
        "vulkan:0  rejected  slower     5.5 ms  predicted  0 ns      predicted 5.5 ms at p90 with "
        "0 ns of start-up spread over",
        " " * 60 + "1000 inferences, against 6 ms on the CPU path; 1.2x as fast",
        " " * 60 + "is asked for",
        "vulkan:1  rejected  software   -       -          -         a software rasteriser, "
        "excluded unless",
        " " * 60 + "Policy(allow_software=True)",
        "vulkan    rejected  no-loader  -       -          -         libvulkan.so.1 was not found",
        "cpu       selected  selected   6 ms    predicted  0 ns      no device is enough faster",
        "",
        "policy: at least 1.2x as fast at p90, start-up over 1000 inferences, software "
        "rasterisers excluded",
        "calibration: cached",
        "vulkan:0: by prediction alone: 1.1x as fast as the CPU path (0.33x to 3.6x in 9 of 10 "
        "cases); made up for a test",
        "vulkan:0: expected loss per inference: 51 % of the CPU path's time if it is taken, 14 % "
        "of it if not; more than a tenth slower than the CPU path with a probability of 40 %",
        "vulkan:0: with as much doubt, it would be taken if it needed less than 3.82 ms at p90",
        "cpu: made up for a test",
    ]
    assert repr(found) == f"<Decision cpu: {found.reason}>"


def test_text_leaves_out_empty_columns_and_counts_drivers_without_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = decide(record(BARE, LLVMPIPE, BARE, cpu(None), inferences=1))
    assert str(found).splitlines()[2:] == [
        "device    verdict   code      reason",
        "vulkan:0  rejected  software  a software rasteriser, excluded unless",
        "                              Policy(allow_software=True)",
        "cpu       selected  fallback  the safe choice",
        "2 drivers without a device",
        "",
        "policy: at least 1.2x as fast at p90, start-up over 1 inference, software "
        "rasterisers excluded",
        "calibration: cached",
    ]
    assert "2 drivers without a device" in found._repr_html_()
    assert len(found.rows) == 4  # collapsed in print only


def test_html_escapes_what_a_driver_says() -> None:
    found = decide(record(gpu(2.0, name="<script>alert(1)</script>"), cpu()))
    html = found._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == 3


def test_control_characters_of_a_driver_reach_no_terminal() -> None:
    found = decide(record(gpu(2.0, name="GPU\x1b[31m\nX"), cpu()))
    assert "\x1b" not in str(found)
    assert found.reason.startswith("Runs on vulkan:0 (GPU [31m X)")


@pytest.mark.parametrize("asked", ["vulkan:3", "gles31", "vulkan"])
def test_named_device_that_cannot_be_used_is_an_error(asked: str) -> None:
    with pytest.raises(NoUsableDeviceError) as caught:
        decide(record(ABSENT, cpu(None), asked=asked))
    assert caught.value.code == "GE-103"
    known = str(caught.value.known)
    assert ("libvulkan.so.1 was not found" if asked == "vulkan" else "usable here: cpu") in known


def test_properties_of_a_decision() -> None:
    found = decide(GOLDEN["gpu wins"][0])
    assert found.predicted is not None
    assert found.predicted.at_ns == 2_000_000
    assert (found.percentile, found.version, found.calibration) == (90, "0.1.0", "cached")
    assert found.rows[0].startup_s == 0.1
    assert decide(GOLDEN["absent"][0]).predicted is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("schema"), lambda d: d.update(schema="gpuedge.decision/9"),
        lambda d: d.pop("record"), lambda d: d["record"].pop("policy"),
        lambda d: d["rows"].pop(), lambda d: d["rows"][0].pop("code"),
        lambda d: d["record"]["policy"].update(percentile=0),
        lambda d: d["record"]["candidates"][0].update(code="because"),
        lambda d: d["record"]["candidates"][0].update(extra=1),
        lambda d: d["record"]["candidates"][0]["prediction"].update(at_ns=1.5),
        lambda d: d["record"]["candidates"][0]["prediction"].update(at_ns=-1),
        lambda d: d["record"].update(method="belief/0"),
        lambda d: d["record"]["conditions"].update(thermal="cold"),
        lambda d: d["record"]["candidates"][0].update(belief=[0, 0, 0]),
        lambda d: d["record"]["candidates"][0].update(runs=[["gpu", 0, 5, True]]),
        lambda d: d["record"]["candidates"][0].update(runs=[["cpu", 0, -5, True]]),
        lambda d: d["record"]["candidates"][0].update(memory_bytes=1.5),
        lambda d: d["record"]["candidates"][0].pop("entries"),
        lambda d: d["rows"][0].update(verdict={}), lambda d: d["rows"][0].pop("belief"),
        lambda d: d["rows"][0]["verdict"].update(loss_gpu_ppm=math.inf),
        lambda d: d["rows"][0]["verdict"].update(harm_ppm="x"),
        lambda d: d["rows"][0]["verdict"].update(use_gpu=1),
        lambda d: d["rows"][0].update(reason=7),
        lambda d: d["record"]["candidates"][0].update(restrictions={"x": math.nan}),
        lambda d: d["record"]["candidates"][0].update(restrictions={"x": nested(3000)}),
        lambda d: d["record"].update(candidates=3), lambda d: d["record"].update(asked=None),
    ],
)  # fmt: skip
def test_damaged_record_is_refused(damage: Any) -> None:
    saved = json.loads(decide(GOLDEN["gpu wins"][0]).to_json())
    damage(saved)
    with pytest.raises(InputError):
        Decision.from_dict(saved)


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "place",
    [
        lambda d, x: d.update(reason=x, device=x),
        lambda d, x: d["rows"][0].update(reason=x, device=x, confidence=x),
        lambda d, x: d["record"].update(calibration=x, database=x, version=x, previous=x),
        lambda d, x: d["record"]["candidates"][0].update(entries=[x]),
        lambda d, x: d["record"]["candidates"][0]["prediction"].update(confidence=x),
    ],
)
def test_saved_decision_steers_no_terminal(place: Any) -> None:
    saved = json.loads(decide(GOLDEN["gpu wins"][0]).to_json())
    place(saved, "\x1b[31mred\n")
    made = Decision.from_dict(saved)
    shown = f"{made}{made!r}{made._repr_html_()}{made.replay()}"
    assert "red" in f"{shown}{made.to_json()}"
    assert "\x1b" not in shown
    assert "\\u001b" not in made.to_json()


def test_decision_of_an_earlier_version_is_refused_with_its_version() -> None:
    saved = json.loads(decide(GOLDEN["gpu wins"][0]).to_json())
    saved["schema"] = "gpuedge.decision/1"
    with pytest.raises(InputError, match="of another version") as caught:
        Decision.from_dict(saved)
    assert "'gpuedge.decision/1'; this version reads 'gpuedge.decision/3'" in str(caught.value)


@pytest.mark.parametrize("saved", [None, [], "text", {}])
def test_what_is_no_decision_at_all_is_refused(saved: Any) -> None:
    with pytest.raises(InputError):
        Decision.from_dict(saved)


def test_boundary_is_where_the_expected_losses_are_equal() -> None:
    """E(X) = exp(m + V / 2) must stay below 1 / 1.2 with V = ln(2)**2 + 0.24**2 at p90."""
    turn = 6e6 / 1.2 * math.exp(-(math.log(2) ** 2 + 0.24**2) / 2)
    for at, device in ((turn * 0.9999, "vulkan:0"), (turn * 1.0001, "cpu")):
        known = replace(gpu(5.0), prediction=replace(ms(5.0), at_ns=round(at)))
        assert decide(record(known, cpu(6.0))).device == device


def test_tie_goes_to_the_cpu() -> None:
    assert decide(record(gpu(6.0), cpu(6.0), min_speedup=1.0)).device == "cpu"
    assert decide(record(gpu(0.0), cpu(0.0))).device == "cpu"


def test_equal_gpus_go_to_the_first() -> None:
    assert decide(record(gpu(2.0), gpu(2.0, device="vulkan:1"), cpu())).device == "vulkan:0"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1 us"), (1_250_000, "1.25 ms"), (999_999, "1 ms"),
     (123_456, "123 us"), (2_000_000_000, "2 s"), (61 * 10**9, "61 s"), (999_500_000, "1 s"),
     (5_000 * 10**9, "5000 s")],
)  # fmt: skip
def test_durations_have_three_digits(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_storage_is_told_as_a_wish_not_as_a_fact() -> None:
    made = decide(record(cpu(), gpu(1.0), storage="fixed16"))
    assert "fixed16 storage asked for (exact where a device does not offer it)" in str(made)
    assert "storage" not in str(decide(record(cpu(), gpu(1.0))))
