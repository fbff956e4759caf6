"""Kernels on real drivers, against numpy: exact numbers, under the validation layer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from lang_kernels import lane_kernel, lane_values
from validation import validated
from vulkan_kernels import (
    ADD,
    HEAD,
    INDEX,
    SCALE,
    SPECS,
    add_on,
    dispatch,
    download,
    kernel,
    push,
    run,
    upload,
)

from gpuedge import lang
from gpuedge.backends.base import Binding, DeviceInfo, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.vulkan import physical
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import ClosedError, InputError

RNG = np.random.default_rng(7)
pytestmark = pytest.mark.driver


def values(n: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return RNG.standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 100_003])
def test_add_is_exact(vulkan_device: OpenDevice, n: int) -> None:
    a, b = values(n), values(n)
    np.testing.assert_array_equal(add_on(vulkan_device, a, b), a + b)


def test_identity_and_caps_are_what_the_driver_says(vulkan_device: OpenDevice) -> None:
    caps, identity = vulkan_device.caps, vulkan_device.info.identity
    assert caps.is_software and vulkan_device.info.is_software
    assert identity.device_type == "CPU"
    assert identity.apiVersion is not None and identity.apiVersion.startswith("1.3.")
    assert identity.driverID is not None and identity.name
    # Every device is at least as able as the specification's minimum (Required Limits).
    assert caps.max_invocations >= VULKAN_MINIMUM.max_invocations
    assert caps.max_shared_bytes >= VULKAN_MINIMUM.max_shared_bytes
    assert caps.offset_alignment <= VULKAN_MINIMUM.offset_alignment


def test_specialisation_values_reach_the_kernel(vulkan_device: OpenDevice) -> None:
    result = vulkan_device.alloc(4 * 16, Usage.OUTPUT)
    for width, whole, part, flag in ((8, 3, 0.5, True), (16, -2, 7.25, False), (4, 1, 0.25, True)):
        specs = {"WHOLE": whole, "PART": part, "FLAG": flag}
        work = dispatch(vulkan_device, SPECS, [result], 16, width=width, specs=specs)
        run(vulkan_device, [work], [], [result])
        expected = width * whole + (part if flag else 0.0)
        np.testing.assert_array_equal(download(vulkan_device, result), np.float32(expected))


def test_specialisation_defaults_are_the_blobs(vulkan_device: OpenDevice) -> None:
    result = vulkan_device.alloc(4, Usage.OUTPUT)
    run(vulkan_device, [dispatch(vulkan_device, SPECS, [result], 1, width=1)], [], [result])
    assert download(vulkan_device, result)[0] == 1.25


def test_unknown_specialisation_name_is_refused(vulkan_device: OpenDevice) -> None:
    with pytest.raises(InputError, match="no specialisation constant 'TYPO'"):
        vulkan_device.build(ADD, {"TYPO": 1})


def test_each_dispatch_has_its_own_push_constants(vulkan_device: OpenDevice) -> None:
    x = values(50)
    source = upload(vulkan_device, x)
    results = [vulkan_device.alloc(x.nbytes, Usage.OUTPUT) for _ in range(3)]
    work = [
        dispatch(vulkan_device, SCALE, [source, r], 50 - i, k=i / 2, depends=False)
        for i, r in enumerate(results)
    ]
    for result in results:
        vulkan_device.write(result, memoryview(np.zeros_like(x)))
    run(vulkan_device, work, [source], results)
    for i, result in enumerate(results):
        expected = np.where(np.arange(50) < 50 - i, x * 2 + np.float32(i / 2), 0)
        np.testing.assert_array_equal(download(vulkan_device, result), expected)


@pytest.mark.parametrize("staging", [False, True])
def test_chain_of_dependent_dispatches(vulkan_info: DeviceInfo, staging: bool) -> None:
    device = validated(vulkan_info, staging=staging)
    x = RNG.integers(-8, 8, 5000).astype(np.float32)
    source = upload(device, x)
    scratch = [device.alloc(x.nbytes, Usage.SCRATCH) for _ in range(2)]
    result = device.alloc(x.nbytes, Usage.OUTPUT)
    steps = [source, scratch[0], scratch[1], scratch[0], scratch[1], result]
    work = [
        dispatch(device, SCALE, [a, b], x.size, k=float(i))
        for i, (a, b) in enumerate(pairwise(steps))
    ]
    expected = x
    for i in range(len(work)):
        expected = expected * 2 + np.float32(i)
    recording = device.record(work, [source], [result])
    for _ in range(3):
        device.wait(device.submit(recording), 60.0)
        np.testing.assert_array_equal(download(device, result), expected)
    np.testing.assert_array_equal(download(device, scratch[1]), (expected - 4) / 2)
    device.close()


@pytest.mark.parametrize("staging", [False, True])
def test_replays_cost_one_submit_each_and_nothing_else(
    vulkan_info: DeviceInfo, staging: bool
) -> None:
    device = validated(vulkan_info, staging=staging)
    a, b = values(64), values(64)
    first, second = upload(device, a), upload(device, b)
    result = device.alloc(a.nbytes, Usage.OUTPUT)
    recording = device.record(
        [dispatch(device, ADD, [first, second, result], 64)], [first, second], [result]
    )
    before, blocks = device.counters.snapshot(), len(device.memory.blocks)
    for i in range(50):
        a[0] = i
        device.write(first, memoryview(a))
        device.wait(device.submit(recording), 60.0)
        assert download(device, result)[0] == np.float32(i) + b[0]
    after = device.counters.snapshot()
    assert after == {**before, "submits": before["submits"] + 50}
    assert len(device.memory.blocks) == blocks
    device.close()


def test_forced_staging_is_exact_at_offsets(vulkan_info: DeviceInfo) -> None:
    device = validated(vulkan_info, staging=True)
    a, b = values(1000), values(1000)
    np.testing.assert_array_equal(add_on(device, a, b), a + b)
    kept = device.alloc(4000, Usage.CONSTANT)
    device.write(kept, memoryview(a))
    device.write(kept, memoryview(b[:10]), offset=400)
    expected = np.concatenate([a[:100], b[:10], a[110:]])
    np.testing.assert_array_equal(download(device, kept), expected)
    part = np.zeros(7, np.float32)
    device.read(kept, memoryview(part), offset=4 * 99)
    np.testing.assert_array_equal(part, expected[99:106])
    device.close()


@pytest.mark.parametrize("staging", [False, True])
def test_output_poison_survives_where_no_kernel_writes(
    vulkan_info: DeviceInfo, staging: bool
) -> None:
    device = validated(vulkan_info, staging=staging)
    x = values(32)
    source, result = upload(device, x), device.alloc(x.nbytes, Usage.OUTPUT)
    device.write(result, memoryview(bytes([0xAB]) * x.nbytes))
    run(device, [dispatch(device, SCALE, [source, result], 8)], [source], [result])
    poison = np.frombuffer(b"\xab" * 4, np.float32)[0]
    np.testing.assert_array_equal(download(device, result)[:8], x[:8] * 2)
    np.testing.assert_array_equal(download(device, result)[8:], poison)
    device.close()


def test_bindings_at_offsets(vulkan_device: OpenDevice) -> None:
    align = vulkan_device.caps.offset_alignment
    step = max(align, 256) // 4
    x = values(step * 3)
    source, result = upload(vulkan_device, x), vulkan_device.alloc(x.nbytes, Usage.OUTPUT)
    vulkan_device.write(result, memoryview(np.zeros_like(x)))
    program = vulkan_device.build(SCALE, {"LX": 64})
    places = (Binding(source, step * 8, step * 4), Binding(result, step * 4, step * 4))
    work = Dispatch(program, places, push(step), (step // 64, 1, 1))
    run(vulkan_device, [work], [source], [result])
    expected = np.zeros_like(x)
    expected[step : 2 * step] = x[2 * step :] * 2
    np.testing.assert_array_equal(download(vulkan_device, result), expected)


def test_values_of_every_lane_of_a_subgroup(vulkan_device: OpenDevice) -> None:
    lanes = vulkan_device.caps.subgroup_lanes
    assert lanes in (4, 8, 16)
    blob = lang.print_kernel(lane_kernel(lanes))
    count = 3 * lanes
    x = RNG.integers(-99, 99, (count, 4)).astype(np.float32)
    source, result = upload(vulkan_device, x), vulkan_device.alloc(x.nbytes * lanes, Usage.OUTPUT)
    places = (Binding(source, 0, source.nbytes), Binding(result, 0, result.nbytes))
    pushed = blob.pack_push([(count, 1, 1, 1), (count * lanes, 1, 1, 1)], {})
    work = Dispatch(vulkan_device.build(blob, {}), places, pushed, (3, 1, 1))
    run(vulkan_device, [work], [source], [result])
    found = download(vulkan_device, result).reshape(-1, 4)
    np.testing.assert_array_equal(found, lane_values(x, lanes))


def test_vulkan_1_0_with_storage_buffer_class(
    vulkan_info: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(physical, "MAX_VERSION", (1, 0))
    device = validated(vulkan_info)
    assert device.caps.has_fp16_storage is None
    assert device.caps.subgroup_lanes == 0
    head = HEAD.replace("layout", "#pragma use_storage_buffer\nlayout", 1)
    modern = kernel("modern", f"{INDEX} t1[i] = t0[i] * 2.0 + k;", 2, head=head)
    assert b"SPV_KHR_storage_buffer_storage_class" in modern.code
    x = values(100)
    source, result = upload(device, x), device.alloc(x.nbytes, Usage.OUTPUT)
    run(device, [dispatch(device, modern, [source, result], 100, k=1.5)], [source], [result])
    np.testing.assert_array_equal(download(device, result), x * 2 + np.float32(1.5))
    device.close()


def test_programs_are_counted_and_released(vulkan_device: OpenDevice) -> None:
    before = vulkan_device.counters.compilations
    made = [vulkan_device.build(SCALE, {"LX": n}) for n in (32, 16)]
    assert vulkan_device.counters.compilations == before + 2
    with pytest.raises(InputError, match="no specialisation constant 'TYPO'"):
        vulkan_device.build(SCALE, {"TYPO": 1})
    for program in (*made, made[0]):
        vulkan_device.release(program)  # a second time does nothing


def test_closed_device_says_so(vulkan_info: DeviceInfo) -> None:
    device = validated(vulkan_info)
    x = upload(device, values(4))
    device.close()
    device.close()
    device.free(x)
    for call in (lambda: device.alloc(4, Usage.INPUT), lambda: device.build(ADD, {})):
        with pytest.raises(ClosedError):
            call()
