"""Memory over WebGPU: what is written is read, whole and in part, whatever the usage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from wgpu_kernels import ADAPTERS, BIG, BLOB, add, open_on, read, row, run, upload

from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import OutOfMemoryError

pytestmark = pytest.mark.driver


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def device(request: pytest.FixtureRequest) -> Iterator[OpenDevice]:
    made = open_on(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("texels", [1, 16, BIG])
@pytest.mark.parametrize("usage", [Usage.INPUT, Usage.CONSTANT, Usage.OUTPUT, Usage.SCRATCH])
def test_every_buffer_keeps_what_is_written_at_offsets(
    usage: Usage, texels: int, device: OpenDevice
) -> None:
    x = np.arange(texels * 4, dtype=np.float32).reshape(-1, 4)
    kept = upload(device, x, usage)
    device.write(kept, memoryview(x[:1] + 0.5), offset=kept.nbytes - 16)
    x = x.copy()
    x[-1] = np.arange(4) + 0.5
    np.testing.assert_array_equal(read(device, kept), x)
    part = np.zeros(3, np.float32)
    device.read(kept, memoryview(part), offset=kept.nbytes - 12)
    np.testing.assert_array_equal(part, x.reshape(-1)[-3:])
    device.write(kept, memoryview(b"\xab\xcd\xef"), offset=5)
    some = bytearray(12)
    device.read(kept, memoryview(some), offset=0)
    assert bytes(some[5:8]) == b"\xab\xcd\xef"
    assert bytes(some[:5]) == x.tobytes()[:5] and bytes(some[8:]) == x.tobytes()[8:12]
    device.free(kept)
    device.free(kept)


@pytest.mark.parametrize("texels", [16, BIG])
def test_parts_of_an_input_written_between_submits(texels: int, device: OpenDevice) -> None:
    a, b = upload(device, row(texels)), upload(device, row(texels, 1.0), Usage.CONSTANT)
    o = device.alloc(texels * 16, Usage.OUTPUT)
    recording = device.record([add(device, a, b, o)], [a], [o])
    want = row(texels)
    for i in range(6):
        at = i * (texels // 6)
        device.write(a, memoryview(row(1, i + 1.0)), offset=16 * at)
        want[at] = i + 1.0
        if i == 3:  # written again before it was sent, in part
            device.write(a, memoryview(row(1, 40.0)), offset=16 * at)
            want[at] = 40.0
        run(device, recording)
        np.testing.assert_array_equal(read(device, o), want + 1)
    tickets = []
    for i in range(3):  # written while the last run may still read its staging memory
        device.write(a, memoryview(row(texels, i)))
        tickets.append(device.submit(recording))
    device.wait(tickets[-1], 60.0)
    np.testing.assert_array_equal(read(device, o), 3.0)


def test_poison_survives_where_no_kernel_writes(device: OpenDevice) -> None:
    a, o = upload(device, row(32, 1.0)), upload(device, row(32, -7.0), Usage.OUTPUT)
    push = BLOB.pack_push([(32, 1, 1, 1), (32, 1, 1, 1), (8, 1, 1, 1)], {"K": 0.0})
    bindings = tuple(Binding(x, 0, x.nbytes) for x in (a, a, o))
    work = Dispatch(device.build(BLOB, {"LX": 8}), bindings, push, (4, 1, 1))
    run(device, device.record([work], [a], [o]))
    np.testing.assert_array_equal(
        read(device, o), np.repeat([[2.0] * 4, [-7.0] * 4], [8, 24], axis=0)
    )


def test_bindings_at_offsets(device: OpenDevice) -> None:
    step = max(device.caps.offset_alignment, 64)
    x = np.arange(3 * step // 4, dtype=np.float32)
    a, o = upload(device, x), upload(device, np.zeros_like(x), Usage.OUTPUT)
    n = step // 16
    push = BLOB.pack_push([(n, 1, 1, 1)] * 3, {"K": 0.0})
    places = (Binding(a, 2 * step, step), Binding(a, step, step), Binding(o, step, step))
    work = Dispatch(device.build(BLOB, {"LX": 8}), places, push, (-(-n // 8), 1, 1))
    run(device, device.record([work], [a], [o]))
    want = np.zeros_like(x).reshape(3, -1)
    want[1] = x.reshape(3, -1)[2] + x.reshape(3, -1)[1]
    np.testing.assert_array_equal(read(device, o).reshape(3, -1), want)


def test_too_large_allocation_is_out_of_memory(device: OpenDevice) -> None:
    for usage in Usage:
        with pytest.raises(OutOfMemoryError, match="does not fit"):
            device.alloc(1 << 50, usage)
    a, o = upload(device, row(16, 1.0)), device.alloc(256, Usage.OUTPUT)
    run(device, device.record([add(device, a, a, o)], [a], [o]))
    np.testing.assert_array_equal(read(device, o), 2.0)
