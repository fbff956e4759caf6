"""An isolated device does what an inline one does: the null device, in a worker and here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import isolation_fakes as fakes
import pytest

from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import ClosedError, DriverError, InputError, OutOfMemoryError
from gpuedge.core.kernel import KernelBlob, SpecArg, TensorArg
from gpuedge.isolation import open_isolated, shared
from gpuedge.isolation.device import IsolatedDevice
from gpuedge.isolation.shared import CONTROL, PIECE, TOTAL

BLOB = KernelBlob(
    "copy", "spirv", bytes(range(256)) * 300, "main",
    (TensorArg("x", "read", 0), TensorArg("y", "write", 1)),
    (SpecArg("LX", "int", 0, 64),), (), 8, "digest",
)  # fmt: skip


@pytest.fixture(scope="module")
def device() -> Iterator[IsolatedDevice]:
    """One hosted null device for tests that leave it well."""
    with_worker = open_isolated(fakes.info())
    yield with_worker
    with_worker.close()


def read(device: IsolatedDevice, buffer: object, nbytes: int, offset: int = 0) -> bytes:
    into = bytearray(nbytes)
    device.read(buffer, memoryview(into), offset)  # type: ignore[arg-type]
    return bytes(into)


def test_a_worker_tells_what_its_device_can_do(device: IsolatedDevice) -> None:
    assert device.caps == VULKAN_MINIMUM
    assert device.info == fakes.info()
    assert device.pid != 0
    assert fakes.is_alive(device.pid)


def test_what_is_written_is_read_back_and_the_rest_is_not_touched(device: IsolatedDevice) -> None:
    buffer = device.alloc(64, Usage.OUTPUT)
    device.write(buffer, memoryview(b"0123456789abcdef"), 16)
    assert read(device, buffer, 64) == b"\xab" * 16 + b"0123456789abcdef" + b"\xab" * 32
    assert read(device, buffer, 4, 18) == b"2345"
    device.free(buffer)


def test_views_of_other_shapes_and_types_travel_as_bytes(device: IsolatedDevice) -> None:
    buffer = device.alloc(16, Usage.OUTPUT)
    numbers = memoryview(bytes(range(16))).cast("f").cast("B").cast("I", (2, 2))
    device.write(buffer, numbers)
    into = memoryview(bytearray(16)).cast("d")
    device.read(buffer, into)
    assert into.cast("B").tobytes() == bytes(range(16))
    device.free(buffer)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE - 1, PIECE + 1, TOTAL + PIECE + 5])
def test_tensors_of_every_size_travel(device: IsolatedDevice, nbytes: int) -> None:
    data = random.Random(nbytes).randbytes(min(nbytes, 1 << 16))
    data = (data * (nbytes // max(1, len(data)) + 1))[:nbytes]
    assert fakes.run_once(device, data) == data


def test_what_was_fetched_with_a_run_is_not_older_than_what_was_written_after_it(
    device: IsolatedDevice,
) -> None:
    """Outputs are fetched together with a run; writes in between must not be overlooked."""
    out, other = device.alloc(32, Usage.OUTPUT), device.alloc(32, Usage.OUTPUT)
    recording = device.record([], [], [out, other])

    def run(turn: int) -> None:
        for buffer, base in ((out, 0), (other, 100)):
            device.write(buffer, memoryview(bytes([base + turn]) * 32))
        device.wait(device.submit(recording), 5.0)

    for turn in range(3):
        run(turn)
        assert read(device, out, 32) == bytes([turn]) * 32
        assert read(device, other, 32) == bytes([100 + turn]) * 32
    run(50)
    device.write(out, memoryview(b"w" * 32))
    assert read(device, out, 32) == b"w" * 32
    assert read(device, other, 32) == bytes([150]) * 32
    for turn in range(2):
        run(turn)
        assert read(device, out, 32) == bytes([turn]) * 32
        assert read(device, other, 32) == bytes([100 + turn]) * 32
    run(60)
    device.submit(recording)
    device.write(out, memoryview(b"v" * 32))
    assert read(device, out, 32) == b"v" * 32
    assert read(device, other, 32) == bytes([160]) * 32
    device.release(recording)
    for buffer in (out, other):
        device.free(buffer)


def test_the_source_of_a_write_may_change_after_it(device: IsolatedDevice) -> None:
    buffer, source = device.alloc(8, Usage.OUTPUT), bytearray(b"original")
    device.write(buffer, memoryview(source))
    source[:] = b"changed!"
    assert read(device, buffer, 8) == b"original"
    device.free(buffer)


def test_kernels_and_work_reach_the_device_as_they_were_given(device: IsolatedDevice) -> None:
    before = dict(device.counters.snapshot())
    program = device.build(BLOB, {"LX": 32})
    assert program.blob is BLOB
    x, y = device.alloc(1024, Usage.INPUT), device.alloc(1024, Usage.OUTPUT)
    bindings = (Binding(x, 256, 512), Binding(y, 0, 1024))
    good = Dispatch(program, bindings, bytes(8), (1, 2, 3), False)
    recording = device.record([good, good], [x], [y])
    device.wait(device.submit(recording), 5.0)
    after = device.counters.snapshot()
    assert {k: after[k] - before[k] for k in after} == {
        "allocations": 2, "compilations": 1, "recordings": 1, "submits": 1,
    }  # fmt: skip
    misaligned = Dispatch(program, (Binding(x, 100, 512), bindings[1]), bytes(8), (1, 1, 1))
    with pytest.raises(InputError, match="rule of the device seam") as refused:
        device.record([misaligned])
    assert refused.value.known == "copy: offsets are multiples of 256"
    with pytest.raises(InputError, match="rule"):
        device.record([Dispatch(program, bindings, bytes(8), (1, 0, 1))])
    with pytest.raises(InputError, match="rule"):
        device.record([Dispatch(program, bindings, bytes(4), (1, 1, 1))])
    for thing in (recording, program):
        device.release(thing)
    for buffer in (x, y):
        device.free(buffer)


def test_waiting_twice_for_the_same_work_is_no_second_question(device: IsolatedDevice) -> None:
    recording = device.record([])
    ticket = device.submit(recording)
    device.wait(ticket, 5.0)
    device.wait(ticket, 5.0)
    device.release(recording)


def test_error_of_a_queued_call_ends_the_batch_and_not_the_worker(
    device: IsolatedDevice,
) -> None:
    out = device.alloc(16, Usage.OUTPUT)
    recording = device.record([], [], [out])
    submits = device.counters.submits
    device.write(out, memoryview(bytes(32)))  # longer than the buffer
    with pytest.raises(InputError, match="rule of the device seam"):
        device.wait(device.submit(recording), 5.0)
    assert device.counters.submits == submits  # what came after the error was not done
    assert fakes.run_once(device, b"still there") == b"still there"


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("raise:MemoryError", OutOfMemoryError, "no memory left"),
        ("raise:TypeError", DriverError, "unexpected TypeError"),
    ],
)
def test_what_no_backend_should_raise_arrives_as_an_error_of_the_device(
    what: str, kind: type[Exception], words: str
) -> None:
    device = fakes.isolated(f"build={what}")
    with pytest.raises(kind, match=words):
        device.build(BLOB, {})
    assert device.counters.compilations == 0
    assert fakes.run_once(device, b"abc") == b"abc"
    device.close()


@pytest.mark.parametrize("does", ["submit=flood:3000000", "submit=grab:"])
def test_what_a_driver_does_with_standard_streams_disturbs_nothing(does: str) -> None:
    device = fakes.isolated(does)
    assert fakes.run_once(device, b"0123" * 100) == b"0123" * 100
    device.close()


def test_full_memory_is_an_error_and_the_device_goes_on(
    device: IsolatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = open_isolated(fakes.info())

    def full(fd: int, begin: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    big = bytes(4 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(shared.os, "posix_fallocate", full)
        with pytest.raises(OutOfMemoryError, match="No space left"):
            fakes.run_once(fresh, big)
        with pytest.raises(OutOfMemoryError, match="No space left"):
            open_isolated(fakes.info())
    assert fakes.run_once(fresh, big) == big
    fresh.close()


def shared_memory() -> dict[int, int]:
    """Return the bytes of each shared memory of ours that this process has open, by inode."""
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(fd.readlink()).startswith("/memfd:gpuedge"):
                found[fd.stat().st_ino] = fd.stat().st_blocks * 512
    return found


def test_memory_that_only_constants_needed_is_given_back() -> None:
    before = shared_memory()
    device = open_isolated(fakes.info())
    (own,) = shared_memory().keys() - before.keys()
    data = bytes(range(256)) * (40 << 12)
    constants, out = device.alloc(len(data), Usage.OUTPUT), device.alloc(16, Usage.OUTPUT)
    device.write(constants, memoryview(data))
    assert shared_memory()[own] > 39 << 20
    device.record([], [], [out])
    assert shared_memory()[own] <= shared.KEPT
    assert read(device, constants, len(data)) == data  # and taken again where it is needed
    device.close()


def test_an_inference_is_one_question(device: IsolatedDevice) -> None:
    """After the first run its outputs are fetched with it; what nobody reads is not."""
    buffers = [device.alloc(1000, Usage.OUTPUT) for _ in range(3)]
    recording = device.record([], [], buffers)

    def infer(reads: int, turn: int) -> int:
        before = device._client._sequence
        for buffer in buffers:
            device.write(buffer, memoryview(bytes([turn]) * 1000))
        device.wait(device.submit(recording), 5.0)
        for buffer in buffers[:reads]:
            assert read(device, buffer, 1000) == bytes([turn]) * 1000
        return device._client._sequence - before

    assert [infer(2, turn) for turn in range(3)] == [3, 1, 1]
    assert [infer(1, turn) for turn in range(3, 6)] == [1, 1, 1]
    assert list(recording.reads) == [(buffers[0].number, 0, 1000)]  # type: ignore[attr-defined]
    assert [infer(3, turn) for turn in range(6, 9)] == [3, 1, 1]
    device.release(recording)
    for buffer in buffers:
        device.free(buffer)


def test_a_closed_device_says_so_and_closes_again() -> None:
    device = open_isolated(fakes.info())
    buffer = device.alloc(16, Usage.OUTPUT)
    pid = device.pid
    device.close()
    assert fakes.gone_within(pid, 20.0)
    device.close()
    device.free(buffer)
    with pytest.raises(ClosedError, match="closed"):
        device.alloc(16, Usage.OUTPUT)


def test_shared_memory_has_no_name_and_cannot_be_cut_short() -> None:
    arena = shared.Arena()
    link = Path(f"/proc/self/fd/{arena.fd}").readlink()
    assert str(link).endswith("(deleted)")
    with pytest.raises(OSError):
        shared.os.ftruncate(arena.fd, 100)
    with pytest.raises(OSError):
        shared.os.ftruncate(arena.fd, TOTAL * 2)
    reserved = shared.os.fstat(arena.fd).st_blocks * 512
    arena.grow(5 << 20)
    assert reserved < shared.os.fstat(arena.fd).st_blocks * 512 < 7 << 20
    for place, nbytes in ((0, 8), (CONTROL, TOTAL), (CONTROL, -1), (6 << 20, 1 << 20)):
        with pytest.raises(ValueError, match="bytes at"):
            arena.view(place, nbytes)
    arena.close()
    arena.close()
