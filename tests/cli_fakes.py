"""Probe reports for the tests of the command line."""

from __future__ import annotations

from gpuedge.probing.report import ProbeRow

GOOD = ProbeRow(
    device="vulkan:0",
    backend="vulkan",
    status="ok",
    code="ok",
    reason="answered with the right numbers",
    name="Test GPU",
    identity={"api": "vulkan", "name": "Test GPU", "os": "linux", "device_type": "discrete"},
    is_software=False,
    key="/drivers/good.json",
    index=0,
    seconds=0.25,
)
BAD = ProbeRow("vulkan", "vulkan", "crashed", "crashed", "the driver killed the probe process: 11")
LOADERLESS = ProbeRow("vulkan", "vulkan", "absent", "no-loader", "no loader here")
