"""What a decision says where a device was asked for by name, and after that device failed."""

from __future__ import annotations

from dataclasses import replace

from gpuedge.decide.decision import Decision, decide
from gpuedge.decide.policy import Policy
from gpuedge.decide.record import AUTO, BY_NAME, Evidence, Record

CPU = Evidence("cpu", is_software=False)
LLVMPIPE = Evidence("vulkan:0", name="llvmpipe", is_software=True)
OTHER = replace(LLVMPIPE, device="gles31:0")
AWAY = replace(LLVMPIPE, code="recovering", detail="the driver lost the device")


def decided(asked: str, *candidates: Evidence, calibration: str = BY_NAME) -> Decision:
    return decide(Record(asked, Policy(), (*candidates, CPU), "0.1.0", calibration))


def test_policy_is_not_said_to_choose_where_a_device_was_named() -> None:
    for asked in ("vulkan:0", "cpu"):
        shown = str(decided(asked, LLVMPIPE))
        assert "policy: not applied to the choice, as a device was asked for by name\n" in shown
        assert "excluded" not in shown
    assert "rasterisers excluded" in str(decided(AUTO, LLVMPIPE, calibration="not needed"))


def test_other_devices_stay_not_named_while_the_named_one_is_away() -> None:
    codes = [r.code for r in decided("vulkan:0", OTHER, LLVMPIPE).rows]
    assert codes == ["not-named", "named", "not-named"]
    found = decided(AUTO, OTHER, AWAY)  # as the runtime decides again without the device
    assert [r.code for r in found.rows] == ["not-named", "recovering", "fallback"]
    assert found.reason == (
        "Runs on cpu: vulkan:0 (llvmpipe) was left out: the driver lost the device."
    )
    assert "software" not in str(found)
    assert found.replay().to_json() == found.to_json()


def test_devices_are_judged_as_ever_where_none_was_named() -> None:
    found = decided(AUTO, OTHER, AWAY, calibration="not needed: no GPU came into question")
    assert [r.code for r in found.rows] == ["software", "recovering", "fallback"]
