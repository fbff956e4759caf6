"""What a row says: right only where the device did the work, and did it as was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuedge
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.conformance import bench as module
from gpuedge.conformance.bench import Bench, Watched
from gpuedge.conformance.case import Built, Case, repeated
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.layers import matmul
from gpuedge.conformance.long import long
from gpuedge.conformance.networks import network
from gpuedge.conformance.units import binary, unary
from gpuedge.core.caps import VULKAN_MINIMUM, Caps
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    NoUsableDeviceError,
    OutOfMemoryError,
)
from gpuedge.ops import call as ops_call
from gpuedge.opset.bounds import Num

ADD = binary("add", (3, 5), (5,))


class Answering(NullDevice):
    """A device that runs nothing, but gives back the numbers it was told to."""

    answer: np.ndarray[Any, Any] | None = None

    def read(self, buffer: Any, into: memoryview, offset: int = 0) -> None:
        """Give the answer instead of the buffer."""
        super().read(buffer, into, offset)
        if self.answer is not None:
            into[:] = self.answer.astype(np.float32).tobytes()


def made(caps: Caps = VULKAN_MINIMUM) -> tuple[Bench, Answering]:
    backend = NullBackend()
    info = backend.enumerate(backend.candidates({})[0])[0]
    device = Answering(info, caps, {}, None)
    bench = object.__new__(Bench)
    bench.repeats = False
    bench.executor, bench.is_spent = Watched(device, "null:0"), False
    return bench, device


def right(spec: Case) -> Any:
    from gpuedge.conformance.storing import KEEPERS

    return spec.build().reference(KEEPERS["float32"]).v


def test_other_bits_the_second_time_fail() -> None:
    bench, device = made()
    answers = [right(ADD), right(ADD) + 0]
    answers[1][0, 0] = np.nextafter(np.float32(answers[1][0, 0]), np.float32(9))
    read = device.read

    def alternating(buffer: Any, into: memoryview, offset: int = 0) -> None:
        device.answer = answers.pop(0)
        read(buffer, into, offset)

    device.read = alternating  # type: ignore[method-assign]
    bench.repeats = True
    row = bench.run(ADD)
    assert (row["status"], row["reason"]) == ("failed", "a second run gave other bits")


def test_kernels_stay_built_for_the_next_cases() -> None:
    bench, device = made()
    built = []
    build = device.build
    device.build = lambda blob, specs: built.append(blob.digest) or build(blob, specs)  # type: ignore
    for case in (ADD, binary("add", (3, 5), (5,)), ADD):
        device.answer = right(case)
        assert bench.run(case)["status"] == "passed"
    assert len(built) == 1


def test_the_right_answer_passes_and_says_how() -> None:
    bench, device = made()
    device.answer = right(ADD)
    row = bench.run(ADD)
    assert (row["status"], row["id"], row["op"]) == ("passed", ADD.id, "add")
    assert row["kernels"] == ["elementwise_map"] and row["worst"] is None
    assert not any(c.request.executor is bench.executor for _, c in ops_call.models.items())


def test_a_device_that_writes_nothing_fails() -> None:
    bench, _ = made()
    row = bench.run(ADD)
    assert row["status"] == "failed" and "wrong, first at" in row["reason"]


def case_of(call: Callable[[Any], Any]) -> Case:
    """Return a case that computes elsewhere."""
    return Case("add", "elsewhere", lambda *_: Built(repeated(call), lambda _: Num.of(np.zeros(4))))


def test_numbers_that_the_device_did_not_make_fail() -> None:
    zero = np.zeros(4, np.float32)
    for call in (lambda d: zero.copy(), lambda d: gpuedge.add(zero, zero, device="cpu")):
        row = made()[0].run(case_of(call))
        assert (row["status"], row["reason"]) == ("failed", "the device did not do the work")


def test_work_compiled_but_not_submitted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, device = made()
    device.answer = right(ADD)
    submit = device.submit

    def uncounted(recording: Any) -> Any:
        before = device.counters.submits
        ticket = submit(recording)
        device.counters.submits = before
        return ticket

    monkeypatch.setattr(device, "submit", uncounted)
    assert bench.run(ADD)["reason"] == "the device did not do the work"


MUL = matmul((4, 5), (5, 4))


def test_a_forced_variant_must_be_the_one() -> None:
    bench, device = made()
    device.answer = np.pad(right(MUL), ((0, 0), (0, 0)))
    rivals = ("matmul_map", "matmul_tile")
    good = replace(MUL, variant="matmul_rows", rivals=rivals)
    assert bench.run(good)["status"] == "passed"
    ruled = bench.run(replace(good, rivals=("matmul_rows", "matmul_tile")))
    assert (ruled["status"], ruled["reason"]) == ("failed", "it was not served by matmul_rows")
    assert bench.run(MUL)["status"] == "passed"  # what was ruled out is back


def test_what_does_not_apply_is_skipped_with_its_reason() -> None:
    bench, _ = made(replace(VULKAN_MINIMUM, forms=frozenset({"map"})))
    row = bench.run(replace(MUL, variant="matmul_rows"))
    reason = "matmul_rows: the vulkan level has no group kernels"
    assert (row["status"], row["reason"]) == ("skipped", reason)
    row = bench.run(replace(ADD, storage="fixed16"))
    kinds = "buffer, buffer_f16, buffer_u8, buffer_s8"
    assert row["reason"] == f"the device offers no rgba8_fixed16 (it has {kinds})"
    small, _ = made(replace(VULKAN_MINIMUM, max_shared_bytes=1024))
    row = small.run(replace(MUL, variant="matmul_tile"))
    assert row["reason"] == "matmul_tile: needs max_shared_bytes >= 8192, the device has 1024"
    row = small.run(replace(MUL, variant="matmul_block8x4_lanes"))
    reason = "matmul_block8x4_lanes: needs subgroup_lanes == 8, the device has 0"
    assert (row["status"], row["reason"]) == ("skipped", reason)


@pytest.mark.parametrize(
    ("error", "status", "spent"),
    [
        (DeviceLostError("gone"), "error", True),
        (DeviceTimeoutError("late"), "timeout", True),
        (OutOfMemoryError("full"), "error", False),
        (ValueError("a bug"), "error", False),
    ],
)
def test_errors_become_rows(error: Exception, status: str, spent: bool) -> None:
    bench, device = made()

    def refuse(_: Any) -> Any:
        raise error

    device.submit = refuse  # type: ignore[method-assign]
    row = bench.run(ADD)
    assert row["status"] == status
    assert row["code"] == getattr(error, "code", "ValueError")
    assert (
        row["reason"].startswith(row["code"]) and str(error).splitlines()[0][-4:] in row["reason"]
    )
    assert bench.is_spent is spent


def test_only_large_cases_may_be_refused() -> None:
    tiny = replace(VULKAN_MINIMUM, max_storage_buffer_bytes=64)
    bench, _ = made(tiny)
    row = bench.run(unary("relu", 1003))
    assert row["status"] == "error" and row["code"] == "GE-501"
    row = bench.run(long("maximum"))
    assert row["status"] == "skipped" and "too large" in row["reason"]


def test_a_network_goes_through_a_session() -> None:
    bench, device = made()
    spec = network("residual")
    device.answer = right(spec)
    row = bench.run(spec)
    assert row["status"] == "passed" and row["kernels"]


def test_the_cpu_is_no_gpu() -> None:
    with pytest.raises(NoUsableDeviceError, match="'cpu' is not a GPU"):
        module.Bench("cpu")


def test_described_is_what_the_header_needs() -> None:
    body = made()[0].described()
    assert set(body) == {"device", "identity", "caps", "versions"}
    assert body["caps"]["level"] == "vulkan" and body["versions"]["gpuedge"]


def test_variants_of_the_catalogue_name_their_rivals() -> None:
    for spec in everything("smoke"):
        assert bool(spec.variant) == bool(spec.rivals)
        assert spec.variant not in spec.rivals
