"""gpuedge beside an application that draws with moderngl: shared results, untouched state."""

from __future__ import annotations

import daily
import farm
import pytest
from gles_child import run

import gpuedge
from gpuedge.core.errors import UsageError

pytestmark = [pytest.mark.driver, daily.day(3, of=4)]


def test_context_that_moderngl_makes() -> None:
    run("gles31-llvmpipe", "beside_desktop", "refusals_of_contexts")


@pytest.mark.parametrize("configuration", ["gles31-llvmpipe", "gles31-zink", "gles30-llvmpipe"])
def test_context_of_opengl_es(configuration: str) -> None:
    run(configuration, "beside_es")


def test_other_devices_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    farm.require("vulkan-lavapipe")
    for name, value in farm.FARM["vulkan-lavapipe"].environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="cannot share with a context"):
        gpuedge.open("vulkan", context=object())
    with (
        gpuedge.open("cpu") as device,
        pytest.raises(UsageError, match="cpu shares nothing"),
    ):
        gpuedge.SharedModel(b"", device)
