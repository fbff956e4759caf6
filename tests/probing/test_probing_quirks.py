"""Entries of the capability database in a probe: blocked, tested, restricted, or cleared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quirk_db
from planrun import FLOAT_TEXTURES
from quirk_db import demand, entry
from quirk_fakes import Interpreted, Rasteriser, Told, be_quick, broken, info, variants

from gpuedge.backends.base import Candidate
from gpuedge.capdb.restrict import apply
from gpuedge.cli import doctor
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.driver import DeviceInfo
from gpuedge.core.errors import DeviceLostError, DriverError, NoUsableDeviceError
from gpuedge.core.record import plain, read
from gpuedge.probing import child, kat, protocol, quirks, report, trials
from gpuedge.probing.protocol import RUNS
from gpuedge.runtime.strings import find


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the interpreter do with smaller tensors."""
    be_quick(monkeypatch, tmp_path)


def test_device_that_no_entry_is_about_is_as_before(tmp_path: Path) -> None:
    other = [{"api": ["vulkan"], "vendor": ["arm"]}]
    found = Told(tmp_path, entry(1, "crash", {"disable_backend": True}, match=other))
    assert found.event["status"] == "ok"
    assert found.event["restrictions"] == {}
    assert found.caps == replace(VULKAN_MINIMUM, device_class="cpu-llvm")
    assert "entries" not in found.event["evidence"]
    assert len(found.impl.opened) == 1
    assert found.impl.opened[0].disabled == frozenset()


def test_crash_blocks_and_nothing_is_opened(tmp_path: Path) -> None:
    rows = (
        entry(1, "crash", {"disable_backend": True}),
        entry(2, "hang", {"disable_levels": ["vulkan"]}),
    )
    found = Told(tmp_path, *rows)
    assert (found.event["status"], found.event["code"]) == ("blocked", "quirk")
    assert found.event["detail"].startswith("mesa-0001, mesa-0002: Entry 1 of a test")
    assert found.outcomes == {"mesa-0001": "applies", "mesa-0002": "applies"}
    assert found.impl.opened == []
    assert not any(e["event"] == "step" for e in found.channel.events)


def test_entry_about_another_level_does_not_block(tmp_path: Path) -> None:
    found = Told(tmp_path, entry(1, "crash", {"disable_levels": ["gles31"]}))
    assert found.event["status"] == "ok"
    assert found.event["restrictions"] == {}


def test_ignored_entry_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEDGE_IGNORE", "mesa-0001")
    rows = (
        entry(1, "crash", {"disable_backend": True}),
        entry(2, "wrong_result", {"disable_kernels": [BEST]}),
    )
    found = Told(tmp_path, *rows)
    assert (found.event["status"], found.outcomes) == ("ok", {"mesa-0002": "applies"})
    monkeypatch.setenv("GPUEDGE_IGNORE", "all")
    assert Told(tmp_path, *rows).event["restrictions"] == {}


def test_restrictions_reach_caps_kernels_and_backend(tmp_path: Path) -> None:
    action = {
        "disable_kernels": [BEST], "disable_features": ["pipeline-cache", "group-kernels"],
        "limits": {"max_storage_buffer_bytes": 1 << 20},
    }  # fmt: skip
    seen: set[str] = set()
    spy = Interpreted(lambda plan, number, array: seen.update(variants(plan)))
    found = Told(tmp_path, entry(1, "feature_broken", action), executor=spy)
    assert found.event["status"] == "ok"
    assert found.caps.forms == VULKAN_MINIMUM.forms - {"group"}
    assert found.caps.max_storage_buffer_bytes == 1 << 20
    assert found.caps.ruled_out == {BEST}
    assert "conv2d_map" in seen
    assert BEST not in seen
    (opened,) = found.impl.opened
    assert opened.disabled == {"pipeline-cache", "group-kernels"}
    assert opened.limits == {"max_storage_buffer_bytes": 1 << 20}


def test_operator_without_a_kernel_left_is_not_tested(tmp_path: Path) -> None:
    """So it is in use: such operators run on the CPU, and the device keeps the others."""
    found = Told(tmp_path, entry(1, "wrong_result", {"disable_kernels": ["pool_map"]}))
    assert found.event["status"] == "ok"
    names = [check["name"] for check in found.event["evidence"]["checks"]]
    assert "every place" not in names
    assert "convolution random" in names


def test_no_storage_left_blocks(tmp_path: Path) -> None:
    impl = Rasteriser(storages=("rgba32f", "rgba16f"))
    found = Told(tmp_path, entry(1, "wrong_result", {"disable_storages": ["rgba32f"]}), impl=impl)
    assert (found.event["status"], found.event["code"]) == ("blocked", "quirk")
    assert "mesa-0001" in found.event["detail"]


def _largest(array: Any) -> None:
    array[np.isinf(array)] = np.copysign(np.finfo(np.float32).max, array[np.isinf(array)])


def _zero(array: Any) -> None:
    array[np.isnan(array)] = 0


def _infinite(array: Any) -> None:
    array[np.isnan(array)] = np.inf


def _none(array: Any) -> None:
    array[np.isinf(array)] = np.nan


@pytest.mark.parametrize("loss", [None, _largest, _zero, _infinite, _none])
def test_known_answers_tell_whether_infinities_are_kept(
    tmp_path: Path, loss: Callable[[Any], None] | None
) -> None:
    def spoil(plan: Any, number: int, array: Any) -> None:
        if loss is not None and array.dtype == np.float32:
            loss(array)

    impl = Rasteriser()
    impl.caps = FLOAT_TEXTURES
    gone = entry(1, "wrong_result", {"disable_storages": ["rgba32f", "rgba32ui"]})
    found = Told(tmp_path, gone, executor=Interpreted(spoil), impl=impl)
    assert found.event["status"] == "ok"
    assert found.caps.is_finite_only is (loss is not None)
    assert ("not_kept" in found.event["evidence"]) is (loss is not None)
    # that an entry is in force does not take back what was found under it
    assert apply(found.caps, found.quirks.judgement.restrictions) == found.caps
    free = Told(tmp_path, executor=Interpreted(spoil), impl=impl)
    assert not free.caps.is_finite_only
    assert "infinities and NaN" not in str(free.event["evidence"])


BEST = "conv2d_shared4x8"
"""The kernel that the convolution of the known answers gets."""

ASKS = {"probe": demand("standard", "kernels", "repeat")}


def test_good_device_is_cleared(tmp_path: Path) -> None:
    found = Told(tmp_path, entry(1, "wrong_result", {"disable_backend": True}, **ASKS))
    assert found.event["status"] == "ok"
    assert found.outcomes == {"mesa-0001": "cleared"}
    assert found.event["restrictions"] == {}
    assert "is_unfinished" not in found.event["evidence"]
    checks = found.event["evidence"]["required"]
    assert {check["runs"] for check in checks} == {4}
    assert {check["test"] for check in checks} == {"kernels", "standard, repeat"}
    assert "matmul_block8x4" in {kernel for check in checks for kernel in check["kernels"]}
    marks = [e["entries"] for e in found.channel.events if e["event"] == "demand"]
    assert marks == [["mesa-0001"], []]
    assert len(found.impl.opened) == 1


def test_confirming_probe_clears_nothing(tmp_path: Path) -> None:
    probe = demand("kernels", may="confirm")
    action = {"disable_kernels": [BEST]}
    found = Told(tmp_path, entry(1, "wrong_result", action, probe=probe))
    assert found.event["restrictions"]["kernels"] == [BEST]


def test_broken_kernel_is_found_by_a_demand_only(tmp_path: Path) -> None:
    """The known answers have no matrix product; without an entry the device passes."""
    assert Told(tmp_path, executor=broken("matmul_block8x4")).event["status"] == "ok"
    action = {"disable_kernels": ["matmul_block8x4"]}
    found = Told(
        tmp_path, entry(1, "wrong_result", action, **ASKS), executor=broken("matmul_block8x4")
    )
    assert found.event["status"] == "ok"
    assert found.outcomes == {"mesa-0001": "failed"}
    assert "is_unfinished" not in found.event["evidence"]
    (about,) = found.event["evidence"]["entries"]
    assert "wrong-numbers, product of rows" in about["detail"]
    assert found.caps.ruled_out == {"matmul_block8x4"}
    assert len(found.impl.opened) == 2  # once more, under what is to be used


def test_failed_demand_of_the_whole_backend_blocks(tmp_path: Path) -> None:
    row = entry(1, "wrong_result", {"disable_backend": True}, **ASKS)
    found = Told(tmp_path, row, executor=broken("matmul_block8x4"))
    assert (found.event["status"], found.event["code"]) == ("blocked", "quirk")
    assert "mesa-0001 (its test failed)" in found.event["detail"]
    again = Told(tmp_path, row, answers={"mesa-0001": False})
    assert again.event["status"] == "blocked"
    assert again.impl.opened == []
    assert again.outcomes == {"mesa-0001": "failed"}


def test_device_that_is_wrong_is_tried_as_its_entries_would_have_it(tmp_path: Path) -> None:
    row = entry(1, "wrong_result", {"disable_kernels": [BEST]}, **ASKS)
    found = Told(tmp_path, row, executor=broken(BEST))
    assert found.event["status"] == "ok"
    assert found.outcomes == {"mesa-0001": "failed"}
    assert found.caps.ruled_out == {BEST}
    other = entry(1, "wrong_result", {"disable_kernels": ["matmul_block8x4"]}, **ASKS)
    found = Told(tmp_path, other, executor=broken(BEST))
    assert (found.event["status"], found.event["code"]) == ("wrong", "wrong-numbers")


def test_demands_are_judged_one_by_one(tmp_path: Path) -> None:
    rows = (
        entry(1, "wrong_result", {"disable_kernels": ["matmul_block8x4"]}, probe=demand("kernels")),
        entry(2, "wrong_result", {"disable_backend": True}, probe=demand("standard")),
    )
    found = Told(tmp_path, *rows, executor=broken("matmul_block8x4"))
    assert found.outcomes == {"mesa-0001": "failed", "mesa-0002": "cleared"}
    assert found.event["restrictions"]["entries"] == ["mesa-0001"]


def test_unsteady_numbers_are_found_by_repeating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "REPEAT_S", 60.0)  # the interpreter of kernels is slow

    def spoil(plan: Any, number: int, array: Any) -> None:
        # Of random numbers, whose bound leaves room: right each time, and not the same.
        if number == 17 and (array != np.round(array)).any() and abs(array).max() < 9:
            place = array.reshape(-1)[5:6]
            place[...] = np.nextafter(place, np.float32(9))

    for runs, outcome in ((16, "cleared"), (20, "failed")):
        row = entry(1, "wrong_result", {"demote": True}, probe=demand("repeat", runs=runs))
        found = Told(tmp_path, row, executor=Interpreted(spoil))
        assert found.outcomes == {"mesa-0001": outcome}
        detail = found.event["evidence"]["entries"][0].get("detail", "")
        assert ("unstable-numbers" in detail) is (outcome == "failed")


def test_half_storage_that_loses_bits_is_found(tmp_path: Path) -> None:
    def spoil(plan: Any, number: int, array: Any) -> None:
        if any(t.storage.kind == "rgba16f" for t in plan.tensors.values()):
            array *= np.float32(1 + 2.0**-8)

    kinds = ("rgba32f", "rgba16f")
    impl = Rasteriser(level="gles30", dialect="essl300", storages=kinds, max_texture_size=4096,
                      has_suballocation=False, forms=frozenset({"map"}))  # fmt: skip
    row = entry(1, "wrong_result", {"disable_features": ["fp16"]}, probe=demand("storages"))
    found = Told(tmp_path, row, executor=Interpreted(spoil), impl=impl)
    assert found.outcomes == {"mesa-0001": "failed"}
    assert found.caps.storages == ("rgba32f",)
    assert Told(tmp_path, row, impl=impl).outcomes == {"mesa-0001": "cleared"}


def test_probe_that_time_is_too_short_for_is_cut(tmp_path: Path) -> None:
    row = entry(1, "wrong_result", {"disable_kernels": ["matmul_block8x4"]}, **ASKS)
    found = Told(tmp_path, row, seconds=0.0)
    assert found.event["status"] == "ok"
    assert found.outcomes == {"mesa-0001": "cut"}
    assert found.event["evidence"]["is_unfinished"] is True
    assert found.caps.ruled_out == {"matmul_block8x4"}


class Clock:
    """Goes on by a second with each run of a kernel, and by nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def __call__(self, plan: Any, number: int, array: Any) -> None:
        """Be what spoils an output."""
        self.now += 1.0


CASES = len(kat.cases(VULKAN_MINIMUM))
ALWAYS = 2 * CASES
"""Seconds of the known answers by this clock."""


@pytest.mark.parametrize(("essential", "outcome"), [(3, "cut"), (4, "cleared")])
def test_few_runs_of_each_case_clear_where_time_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, essential: int, outcome: str
) -> None:
    """Levels that come after this one take none of the time that essential runs need."""
    clock = Clock(monkeypatch)
    row = entry(1, "wrong_result", {"disable_backend": True}, probe=demand("standard", runs=1000))
    seconds = (ALWAYS + (essential - RUNS) * CASES + 1) / (1 - child.LEAST_SHARE)
    found = Told(tmp_path, row, executor=Interpreted(clock), seconds=seconds)
    assert found.outcomes == {"mesa-0001": outcome}
    assert clock.now <= seconds
    (about,) = found.event["evidence"]["entries"]
    checks = found.event["evidence"]["required"]
    assert [check["runs"] for check in checks] == [essential] * CASES
    if outcome == "cleared":
        assert about["detail"] == "passed with 4 of 1000 runs"
        assert found.event["restrictions"] == {}
    else:
        assert about["detail"].startswith("time was over after 3 runs of ")
        assert found.event["status"] == "blocked"
        assert found.event["detail"].startswith("mesa-0001 (no time was left for its test)")
        told = report.ProbeRow("vulkan:0", "vulkan", "blocked", "quirk", found.event["detail"])
        told = told.replace(index=0, evidence=found.event["evidence"])
        with pytest.raises(NoUsableDeviceError) as caught:
            find("vulkan:0", report.ProbeReport((told,), "1"))
        assert "no time was left for its test" in (caught.value.known or "")
        assert "--deadline 600" in (caught.value.hint or "")
        assert "IGNORE" not in str(caught.value)
        (check,) = (
            c
            for c in doctor.report_checks(report.ProbeReport((told,), "1"))
            if c.name == "vulkan:0"
        )
        assert "--deadline 600" in check.fix


def test_further_runs_take_no_time_that_a_launch_would_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    row = entry(1, "wrong_result", {"demote": True}, probe=demand("repeat", runs=1000))
    Told(tmp_path, row, executor=Interpreted(clock), seconds=40.0 * CASES)
    # A run is a second here: those that are essential are made, and none besides.
    essential = trials.ESSENTIAL * CASES
    assert essential <= clock.now <= essential + 1


def test_all_cases_take_turns_so_that_a_fault_shows_at_once(tmp_path: Path) -> None:
    order: list[int] = []

    def spoil(plan: Any, number: int, array: Any) -> None:
        order.append(number)

    row = entry(1, "wrong_result", {"demote": True}, probe=demand("kernels", "repeat", runs=5))
    Told(tmp_path, row, executor=Interpreted(spoil))
    asked_for = order[ALWAYS:]
    assert asked_for == sorted(asked_for)
    assert set(asked_for) == set(range(5))


def test_device_that_was_wrong_once_must_be_right_in_many_runs(tmp_path: Path) -> None:
    """Wrong in the twelfth run: two find nothing, sixteen do."""

    def spoil(plan: Any, number: int, array: Any) -> None:
        if number == 11:
            array.reshape(-1)[0] += 1

    assert Told(tmp_path, executor=Interpreted(spoil)).event["status"] == "ok"
    runs = protocol.HARDER_RUNS
    found = Told(tmp_path, executor=Interpreted(spoil), runs=runs)
    assert (found.event["status"], found.event["code"]) == ("wrong", "wrong-numbers")
    checks = Told(tmp_path, runs=runs).event["evidence"]["checks"]
    assert {check["runs"] for check in checks} == {runs}


@pytest.mark.parametrize("error", [DriverError("refused"), DeviceLostError("gone")])
def test_driver_that_fails_in_a_demand_fails_the_demand(tmp_path: Path, error: Exception) -> None:
    def spoil(plan: Any, number: int, array: Any) -> None:
        if "matmul_block8x4" in variants(plan):
            raise error

    row = entry(1, "wrong_result", {"disable_kernels": ["matmul_block8x4"]}, **ASKS)
    found = Told(tmp_path, row, executor=Interpreted(spoil))
    assert (found.event["status"], found.outcomes) == ("ok", {"mesa-0001": "failed"})
    assert "kernels" in found.event["evidence"]["entries"][0]["detail"]


PHONE = {"os": "android", "soc": "SM0000", "device": "brick", "android_sdk": "30"}


@pytest.mark.parametrize(
    ("match", "effect", "is_barred"),
    [
        ({"api": ["vulkan"], "soc": ["SM0000"]}, "crash_at_load", True),
        ({"api": ["vulkan"], "device": ["BRICK"], "os": ["android"]}, "crash_at_load", True),
        ({"api": ["vulkan"], "soc": ["SM0000"], "vendor": ["qualcomm"]}, "crash_at_load", False),
        ({"api": ["vulkan"], "soc": ["SM0001"]}, "crash_at_load", False),
        ({"api": ["vulkan"], "soc": ["SM0000"]}, "crash", False),
        ({"api": ["gles"], "soc": ["SM0000"]}, "crash_at_load", False),
    ],
)
def test_driver_is_not_loaded_where_the_machine_alone_forbids_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    match: dict[str, Any],
    effect: str,
    is_barred: bool,
) -> None:
    monkeypatch.setattr(quirks, "host_facts", lambda: PHONE)
    row = entry(1, effect, {"disable_backend": True}, match=[match])
    monkeypatch.setenv("GPUEDGE_DB", str(quirk_db.folder(tmp_path / "db", row)))
    found = quirks.barred_row(Candidate("vulkan", "/a/lib.so", "f"))
    assert (found is not None) is is_barred
    if found is not None:
        assert (found.status, found.code, found.index) == ("blocked", "quirk", None)
        assert found.evidence["entries"][0]["id"] == "mesa-0001"
        assert report.ProbeRow.from_dict(found.to_dict()) == found
        monkeypatch.setenv("GPUEDGE_IGNORE", "mesa-0001")
        assert quirks.barred_row(Candidate("vulkan", "/a/lib.so", "f")) is None


def test_host_process_is_told_what_to_leave() -> None:
    restricted = info().replace(disabled=frozenset({"fp16"}), limits={"max_texture_size": 512})
    assert read(DeviceInfo, json.loads(json.dumps(plain(restricted)))) == restricted
