"""Resident tensors on a device that computes nothing: what it is asked for, and given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from gpuedge.backends.base import Usage
from gpuedge.backends.null import NullBackend, NullDevice
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import (
    ClosedError,
    DeviceTimeoutError,
    DriverError,
    OutOfMemoryError,
)
from gpuedge.core.storage import FLOAT32
from gpuedge.executors.gpu import OTHER_PLACES, GpuExecutable, GpuExecutor
from gpuedge.executors.resident import DeviceTensor, Resident, Residents
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType

FULL = OutOfMemoryError("Full.")


def opened(**fail: object) -> tuple[NullDevice, GpuExecutor]:
    backend = NullBackend(VULKAN_MINIMUM, fail=fail)  # type: ignore[arg-type]
    device = backend.open(backend.enumerate(backend.candidates({})[0])[0])
    return device, GpuExecutor(device, "vulkan:0")


def relu(executor: GpuExecutor) -> GpuExecutable:
    builder = GraphBuilder()
    builder.output(builder.add("Relu", [builder.input("x", TensorType("float32", (4, 4)))]))
    return executor.compile(builder.build(), stays=True)


def ones() -> Resident:
    return Resident.of(np.ones((4, 4), np.float32))


def count(device: NullDevice, method: str) -> int:
    return sum(call.method == method for call in device.calls)


@pytest.fixture
def pair() -> Iterator[tuple[NullDevice, GpuExecutor]]:
    yield opened()


def test_nothing_goes_up_or_comes_back_twice(pair: tuple[NullDevice, GpuExecutor]) -> None:
    device, executor = pair
    made, x = relu(executor), ones()
    for _ in range(3):
        (result,) = made.run(Residents({"x": x})).values()
        assert isinstance(result, Resident) and not result.is_on_host
        del result
    calls = {name: count(device, name) for name in ("alloc", "write", "read", "record", "submit")}
    assert calls == {"alloc": 2, "write": 1, "read": 0, "record": 1, "submit": 3}


def test_inputs_of_the_host_get_buffers_of_the_executable(
    pair: tuple[NullDevice, GpuExecutor],
) -> None:
    device, executor = pair
    made = relu(executor)
    assert count(device, "alloc") == 0
    made.run({"x": np.ones((4, 4), np.float32)})
    assert count(device, "alloc") == 2 and count(device, "read") == 1


def test_recordings_over_other_buffers_are_bounded(pair: tuple[NullDevice, GpuExecutor]) -> None:
    device, executor = pair
    made = relu(executor)
    inputs = [ones() for _ in range(2 * OTHER_PLACES)]
    for x in inputs:
        made.run(Residents({"x": x}))
    assert count(device, "record") == 2 * OTHER_PLACES
    assert count(device, "release") == OTHER_PLACES


def test_what_is_recorded_over_a_freed_buffer_is_dropped(
    pair: tuple[NullDevice, GpuExecutor],
) -> None:
    device, executor = pair
    made, x = relu(executor), ones()
    made.run(Residents({"x": x}))
    del x
    gc.collect()
    with executor.lock:
        executor.tensors.tidy(most_bytes=0)
    assert count(device, "free") == 2 and count(device, "release") == 1
    made.run(Residents({"x": ones()}))
    assert count(device, "record") == 2


def test_a_buffer_of_a_run_that_failed_is_not_used_again() -> None:
    device, executor = opened(wait=[DeviceTimeoutError("Late.")])
    made, x = relu(executor), ones()
    with pytest.raises(DeviceTimeoutError):
        made.run(Residents({"x": x}))
    gc.collect()
    with executor.lock:
        executor.tensors.tidy()
    assert executor.tensors.unused_bytes == 0 and count(device, "free") == 0


def test_memory_that_is_kept_makes_room_for_other_sizes() -> None:
    device, executor = opened(alloc=[None, None, FULL])
    kept = [DeviceTensor(executor, 64, FLOAT32), DeviceTensor(executor, 64, FLOAT32)]
    del kept
    assert DeviceTensor(executor, 128, FLOAT32).nbytes == 128
    assert count(device, "free") == 2
    _, executor = opened(alloc=FULL)
    with pytest.raises(OutOfMemoryError):
        DeviceTensor(executor, 128, FLOAT32)


def test_memory_that_the_host_writes_serves_nothing_else(
    pair: tuple[NullDevice, GpuExecutor],
) -> None:
    """Where the host does not see a device's memory, such a buffer has a second one beside it."""
    device, executor = pair
    written = DeviceTensor(executor, 64, FLOAT32, Usage.INPUT)
    buffer = written.buffer
    del written
    assert DeviceTensor(executor, 64, FLOAT32).buffer is not buffer
    assert DeviceTensor(executor, 64, FLOAT32, Usage.INPUT).buffer is buffer
    assert count(device, "alloc") == 2


def test_an_executable_that_was_dropped_is_closed_by_the_next_that_is_made(
    pair: tuple[NullDevice, GpuExecutor],
) -> None:
    device, executor = pair
    made = relu(executor)
    made.run({"x": np.ones((4, 4), np.float32)})
    del made
    gc.collect()
    assert count(device, "free") == 0, "a call of the driver may be under way"
    relu(executor).close()
    assert count(device, "free") == 2 and count(device, "release") >= 1
    assert not executor.dropped


def test_a_closed_device_has_lost_what_it_had(pair: tuple[NullDevice, GpuExecutor]) -> None:
    device, executor = pair
    (result,) = relu(executor).run(Residents({"x": ones()})).values()
    assert result.device == "vulkan:0" and not result.is_lost
    executor.close()
    assert result.device is None and result.is_lost
    with pytest.raises(ClosedError):
        result.array()
    del result
    gc.collect()
    assert count(device, "free") == 0


def larger(executor: GpuExecutor, dtype: str = "uint8") -> GpuExecutable:
    """Return the larger of a byte and three."""
    builder = GraphBuilder()
    x = builder.input("x", TensorType(dtype, (5, 3)))
    builder.output(builder.add("Max", [x, builder.constant("c", np.full((), 3, dtype))]))
    return executor.compile(builder.build(), stays=True)


def test_bytes_go_up_as_bytes_in_whole_words(pair: tuple[NullDevice, GpuExecutor]) -> None:
    device, executor = pair
    made, x = larger(executor), np.arange(15, dtype=np.uint8).reshape(3, 5).T
    x.flags.writeable = False
    made.run(Residents({"x": x}))
    (buffer,) = (b for b in made._buffers.values() if b.nbytes == 16)
    assert bytes(buffer.data) == x.tobytes() + b"\0"
    result = made.run(Residents({"x": Resident.of(np.ascontiguousarray(x))}))
    assert count(device, "write") == 2 and all(isinstance(r, Resident) for r in result.values())


def test_bytes_that_a_kernel_made_are_taken_as_the_floats_that_they_are(
    pair: tuple[NullDevice, GpuExecutor],
) -> None:
    """The same plan over floats is built once, for all of them."""
    device, executor = pair
    made, y = larger(executor), Resident.of(np.ones((5, 3), np.uint8))
    for _ in range(4):
        (y,) = made.run(Residents({"x": y})).values()
    assert y.device == "vulkan:0" and not y.is_on_host
    assert (count(device, "write"), count(device, "read"), count(device, "build")) == (1, 0, 2)
    other = np.ones((5, 3), np.uint8)
    made.run(Residents({"x": other}))
    assert (count(device, "write"), count(device, "build")) == (2, 2)
    made.close()
    del y
    gc.collect()
    with executor.lock:
        executor.tensors.tidy(most_bytes=0)
    assert count(device, "free") == count(device, "alloc")


def test_a_driver_may_refuse_the_kernels_over_floats() -> None:
    """Then bytes are made of them by way of the host."""
    device, executor = opened(build=[None, DriverError("No.")])
    made, y = larger(executor), Resident.of(np.ones((5, 3), np.uint8))
    for _ in range(3):
        (y,) = made.run(Residents({"x": y})).values()
    assert (count(device, "write"), count(device, "read"), count(device, "build")) == (3, 2, 2)
