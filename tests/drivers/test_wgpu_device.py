"""The seam over WebGPU: replays, memory, waiting, refusals, closing."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from wgpu_kernels import (
    ADAPTERS,
    BACKEND,
    BIG,
    BLOB,
    add,
    info_of,
    open_on,
    read,
    row,
    run,
    upload,
)
from wgsl_corpus import HEAD

from gpuedge import lang
from gpuedge.backends.base import Binding, Dispatch, Recording, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import (
    BackendUnavailableError,
    ClosedError,
    DeviceLostError,
    DeviceTimeoutError,
    DriverError,
    InputError,
    OutOfMemoryError,
)
from gpuedge.core.kernel import KernelBlob

pytestmark = pytest.mark.driver
SLOW = lang.load(
    f"{HEAD}param int N;\nvec4 main(ivec4 p) {{ vec4 v = load4(A, p);\n"
    "for (int i = 0; i < N; i++) { v = v * 0.5 + sin(v); } return v; }",
    filename="slow.kern",
)
SLOW_BLOB = lang.print_kernel(SLOW, "wgsl")


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    info_of(name)
    return name


@pytest.fixture(scope="module")
def device(adapter: str) -> Iterator[OpenDevice]:
    made = open_on(adapter)
    yield made
    made.close()


def slow(device: OpenDevice, texels: int, turns: int) -> Recording:
    a, o = upload(device, row(texels, 1.0)), device.alloc(texels * 16, Usage.OUTPUT)
    push = SLOW_BLOB.pack_push([(texels, 1, 1, 1)] * 2, {"N": turns})
    bindings = (Binding(a, 0, a.nbytes), Binding(o, 0, o.nbytes))
    program = device.build(SLOW_BLOB, {"LX": 8})
    return device.record([Dispatch(program, bindings, push, (-(-texels // 8), 1, 1))], [a], [o])


# --- what the device says of itself -----------------------------------------------------------
def test_identity_and_caps_are_what_the_adapter_says(device: OpenDevice, adapter: str) -> None:
    identity, caps = device.info.identity, device.caps
    assert identity.api == "wgpu" and identity.device_type == "CPU"
    assert device.info.is_software and caps.is_software
    assert identity.backend == ("OpenGL" if adapter == "gl" else "Vulkan")
    assert identity.name.startswith("SwiftShader" if "swift" in adapter else "llvmpipe")
    assert (caps.level, caps.dialect, caps.forms) == ("wgpu", "wgsl", {"map", "group"})
    assert caps.max_texture_size is None
    assert not caps.has_suballocation and caps.storages == ("buffer", "buffer_f16")
    # What every WebGPU device must offer (specification, Limits), but for the smaller kind of
    # OpenGL device, which has half the buffers and invocations.
    assert caps.max_storage_buffers >= 4
    assert caps.max_invocations >= 128 and caps.max_groups == (65535, 65535, 65535)
    assert caps.max_shared_bytes >= 16384
    assert caps.max_storage_buffer_bytes >= 1 << 27
    assert (caps.max_texel_buffers, caps.max_texel_elements) == (0, 0)
    assert caps.max_texture_copies >= 8 and caps.max_copied_elements >= 1 << 22
    lanes = (4,) if "swift" in adapter else (0,) if adapter == "gl" else (4, 8, 16)
    assert caps.subgroup_lanes in lanes
    assert caps.offset_alignment in (32, 64, 128, 256)
    assert caps.max_allocation_bytes is not None
    assert caps.max_allocation_bytes >= caps.max_storage_buffer_bytes


# --- replays ------------------------------------------------------------------------------------
def test_replays_cost_one_submit_each_and_nothing_else(device: OpenDevice) -> None:
    a, b = upload(device, row(16)), upload(device, row(16, 2.0), Usage.CONSTANT)
    o = device.alloc(256, Usage.OUTPUT)
    recording = device.record([add(device, a, b, o, 0.5)], [a], [o])
    before, buffers = device.counters.snapshot(), len(device._live)
    for i in range(50):
        device.write(a, memoryview(row(16, i)))
        run(device, recording)
        np.testing.assert_array_equal(read(device, o), i + 2.5)
    assert device.counters.snapshot() == {**before, "submits": before["submits"] + 50}
    assert len(device._live) == buffers


def test_chain_of_dependent_dispatches(device: OpenDevice) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (500, 4)).astype(np.float32)
    source, result = upload(device, x), device.alloc(x.nbytes, Usage.OUTPUT)
    s, t = (device.alloc(x.nbytes, Usage.SCRATCH) for _ in range(2))
    work = [add(device, source, source, s, 1.0), add(device, s, source, t, 2.0)]
    work += [add(device, s, t, result, 3.0), add(device, t, t, s)]
    recording = device.record(work, [source], [result])
    for _ in range(3):
        run(device, recording)
        np.testing.assert_array_equal(read(device, result), 5 * x + 7)
        np.testing.assert_array_equal(read(device, s), 2 * (3 * x + 3))


def test_several_submits_in_flight(device: OpenDevice) -> None:
    a, b = upload(device, row(64, 1.0)), upload(device, row(64, 2.0), Usage.CONSTANT)
    o, p = (device.alloc(1024, Usage.OUTPUT) for _ in range(2))
    first = device.record([add(device, a, b, o)], [a], [o])
    second = device.record([add(device, a, o, p)], [a], [p])
    tickets = [device.submit(r) for r in (first, second, first, second)]
    for ticket in reversed(tickets):
        device.wait(ticket, 60.0)
    for ticket in tickets:
        device.wait(ticket, 0.0)
    np.testing.assert_array_equal(read(device, o), 3.0)
    np.testing.assert_array_equal(read(device, p), 4.0)


def test_output_that_a_later_recording_changes_is_read_anew(device: OpenDevice) -> None:
    a, o, p = upload(device, row(8, 1.0)), *(device.alloc(128, Usage.OUTPUT) for _ in range(2))
    run(device, device.record([add(device, a, a, o)], [a], [o]))
    np.testing.assert_array_equal(read(device, o), 2.0)
    run(device, device.record([add(device, a, a, o, 5.0), add(device, o, a, p)], [a], [p]))
    np.testing.assert_array_equal(read(device, p), 8.0)
    np.testing.assert_array_equal(read(device, o), 7.0)


def test_programs_are_counted_and_released(device: OpenDevice) -> None:
    before = device.counters.compilations
    made = [device.build(SLOW_BLOB, {"LX": n}) for n in (32, 16)]
    assert device.counters.compilations == before + 2
    for program in (*made, made[0]):
        device.release(program)  # a second time does nothing


# --- refusals -----------------------------------------------------------------------------------
def test_unknown_constant_is_refused(device: OpenDevice) -> None:
    with pytest.raises(InputError, match="no specialisation constant 'TYPO'"):
        device.build(BLOB, {"TYPO": 1})


def test_reading_and_writing_one_buffer_is_refused_and_ends_nothing(device: OpenDevice) -> None:
    a = upload(device, row(16), Usage.OUTPUT)
    recording = device.record([add(device, a, a, a)], [a], [a])
    with pytest.raises(DriverError, match="refused"):
        device.submit(recording)
    device.release(recording)
    b = upload(device, row(16, 4.0))
    run(device, device.record([add(device, b, b, a)], [b], [a]))
    np.testing.assert_array_equal(read(device, a), 8.0)


@pytest.mark.parametrize("code", [b"\0", b"", bytes(20), b"fn f() {}"])
def test_code_that_is_no_kernel_is_refused(code: bytes, device: OpenDevice) -> None:
    with pytest.raises(DriverError, match="refused"):
        device.build(KernelBlob("bad", "wgsl", code, "main", (), (), (), 0, repr(code)), {})


def test_closed_device_says_so(adapter: str) -> None:
    device = open_on(adapter)
    a = upload(device, row(4))
    device.close()
    device.close()
    device.free(a)
    for call in (lambda: device.alloc(16, Usage.INPUT), lambda: device.build(BLOB, {})):
        with pytest.raises(ClosedError):
            call()


# --- time ---------------------------------------------------------------------------------------
def test_timeout_then_the_same_work_finishes(device: OpenDevice, adapter: str) -> None:
    recording, texels = slow(device, 64, 1000), 64
    while True:
        start = time.process_time()
        ticket = device.submit(recording)
        submitted = time.process_time() - start
        device.wait(ticket, 60.0)
        taken = time.process_time() - start
        if taken > 0.5:
            break
        texels *= 4
        recording = slow(device, texels, 1000)
    if adapter == "gl":  # this driver computes within the submit: there is nothing to wait for
        assert submitted > taken / 2
        return
    ticket = device.submit(recording)
    start = time.perf_counter()
    with pytest.raises(DeviceTimeoutError, match=r"0\.01 s"):
        device.wait(ticket, 0.01)
    waited = time.perf_counter() - start
    device.wait(ticket, 60.0)
    assert waited < (time.perf_counter() - start) / 2
    device.wait(ticket, 0.0)


def test_second_thread(device: OpenDevice) -> None:
    failed: list[BaseException] = []

    def work(value: float) -> None:
        try:
            a, o = upload(device, row(64, value)), device.alloc(1024, Usage.OUTPUT)
            with device.entered():
                recording = device.record([add(device, a, a, o)], [a], [o])
                for _ in range(10):
                    run(device, recording)
                    np.testing.assert_array_equal(read(device, o), 2 * value)
            device.release(recording)
        except BaseException as error:
            failed.append(error)

    for i in range(3):
        thread = threading.Thread(target=work, args=(float(i),))
        thread.start()
        thread.join()
        work(float(i) + 0.5)
    assert failed == []


# --- life and death -----------------------------------------------------------------------------
def test_destroyed_device_is_reported_as_lost_then_and_after(adapter: str) -> None:
    device = open_on(adapter)
    a, o = upload(device, row(16)), device.alloc(256, Usage.OUTPUT)
    recording = device.record([add(device, a, a, o)], [a], [o])
    run(device, recording)
    device.queue.api.lib.wgpuDeviceDestroy(device.queue.device)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            device.submit(recording)
    with pytest.raises(DeviceLostError):
        device.alloc(16, Usage.INPUT)
    device.close()
    device.close()


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


LARGE = 16 * BIG


def test_opening_and_closing_leaves_nothing_behind(adapter: str) -> None:
    def cycle() -> None:
        device = open_on(adapter)
        a, o = upload(device, row(LARGE, 1.0)), device.alloc(LARGE * 16, Usage.OUTPUT)
        recording = device.record([add(device, a, a, o, 1.0)], [a], [o])
        run(device, recording)
        assert read(device, o)[-1, 0] == 3.0
        device.close()

    for _ in range(2):
        cycle()
    files, threads = _open_files(), threading.active_count()
    sizes = []
    for _ in range(4):
        for _ in range(3):
            cycle()
        gc.collect()
        sizes.append(_resident())
    assert _open_files() <= files
    assert threading.active_count() <= threads  # those of tests before this may end meanwhile
    # What is lost is lost in every round; the allocator's own appetite is not. A driver's threads
    # and compiled code may still grow by some hundred KiB a device: a buffer is 16 times as large.
    assert min(b - a for a, b in pairwise(sizes)) < 3 * LARGE * 16 // 4


def test_freed_buffers_give_their_memory_back(device: OpenDevice) -> None:
    def use() -> None:
        a, o = upload(device, row(BIG, 1.0)), device.alloc(BIG * 16, Usage.OUTPUT)
        work = add(device, a, a, o)
        recording = device.record([work], [a], [o])
        run(device, recording)
        device.release(recording)
        device.release(work.program)
        device.free(a)
        device.free(o)

    sizes = []
    for _ in range(3):
        for _ in range(10):
            use()
        sizes.append(_resident())
    assert min(b - a for a, b in pairwise(sizes)) < 10 * BIG * 16 // 4


def test_missing_adapter_has_a_reason() -> None:
    for key, code in (("metal", "no-device"), ("/nonexistent/icd.json", "bad-manifest")):
        backend_candidate = info_of("lavapipe").candidate.replace(key=key)
        with pytest.raises(BackendUnavailableError) as caught:
            BACKEND.enumerate(backend_candidate)
        assert caught.value.reason.code == code  # type: ignore[attr-defined]


def test_nothing_is_written_to_stderr(adapter: str, capfd: pytest.CaptureFixture[str]) -> None:
    device = open_on(adapter)
    with pytest.raises(OutOfMemoryError):
        device.alloc(1 << 50, Usage.INPUT)
    broken = KernelBlob("broken", "wgsl", b"fn main( {", "main", (), (), (), 0, "broken")
    with pytest.raises(Exception, match="refused"):
        device.build(broken, {})
    device.close()
    assert capfd.readouterr() == ("", "")
