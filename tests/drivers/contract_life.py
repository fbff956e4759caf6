"""The contract of an open device: what it says of itself, its life, and what ends it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from contract import ALL, BIG, GPUS, TEXTURES, Site, ints, raises, rule
from contract_work import resident
from seam_kernels import (
    ADD,
    COPY,
    SPIN,
    add,
    downloaded,
    finish,
    launch,
    printed,
    tensor,
    uploaded,
)  # fmt: skip

from gpuedge import backends
from gpuedge.backends import device as base
from gpuedge.backends.base import Buffer, DeviceImpl, Dispatch, Usage
from gpuedge.core.errors import ClosedError, DeviceLostError, DeviceTimeoutError, DriverError


# --- what a device says of itself -----------------------------------------------------------------
@rule(GPUS)
def facts(site: Site) -> None:
    """The device reports what its configuration is known to be."""
    identity, wanted = site.info.identity, dict(site.request["facts"])
    found = {**site.device.caps.to_dict(), **site.device.info.identity.to_dict()}
    found["software"] = site.info.is_software
    assert wanted.pop("name") in identity.name, identity.name
    lanes, least = wanted.pop("lanes", [0]), wanted.pop("least", {})
    told_at_all = wanted.pop("known")
    told = {name: found[name] for name in wanted}
    assert told == wanted, told
    assert site.device.caps.subgroup_lanes in lanes
    assert [name for name in told_at_all if not found.get(name)] == []
    alignment = site.device.caps.offset_alignment
    assert alignment <= 256 and alignment & (alignment - 1) == 0
    assert {n: found[n] for n, bound in least.items() if found[n] < bound} == {}
    assert site.device.info.identity == identity and identity.api == site.level


@rule(GPUS)
def other_device_is_refused(site: Site) -> None:
    """A device that is no longer the one that was listed, or is gone, is not opened."""
    backend, identity = backends.load(site.level), site.info.identity
    identifier = "GL_RENDERER" if site.level.startswith("gles") else "vendorID"
    changed: dict[str, Any] = {"name": "X", identifier: "X" if identifier[0] == "G" else 1}
    stranger = site.info.replace(identity=identity.replace(**changed))
    with raises(DriverError, f"{identifier}: expected {changed[identifier]!r}, found"):
        backend.open(stranger)
    if site.level in ("vulkan", "wgpu"):  # an EGL display is one device
        with raises(DriverError, "GE-405"):
            backend.open(site.info.replace(index=7))


@rule(GPUS)
def environment_is_restored(site: Site) -> None:
    """Loading a driver takes the variables that it needs, and puts back what was there."""
    kept, others = dict(os.environ), dict.fromkeys(site.info.candidate.env, "/nowhere.json")
    os.environ.update({**others, "VK_ADD_DRIVER_FILES": "/elsewhere.json"})
    before = dict(os.environ)
    backend = backends.load(site.level)
    backend.open(backend.enumerate(site.info.candidate)[0]).close()
    assert dict(os.environ) == before
    os.environ.clear()
    os.environ.update(kept)


# --- life -----------------------------------------------------------------------------------------
def handles() -> int:
    """Return the open files and threads of this process."""
    return sum(1 for name in ("fd", "task") for _ in Path("/proc/self", name).iterdir())


@rule(GPUS)
def cycles(site: Site) -> None:
    """Opening, using and closing leaves no file, no thread and no memory behind."""

    def once() -> None:
        device = backends.load(site.level).open(site.info)  # the layer leaves files behind
        add(device, 4 * BIG)
        device.close()
        device.close()

    for _ in range(2):
        once()
    before, sizes = handles(), []
    for _ in range(6):  # one without growth is enough: on a busy machine allocators keep more
        for _ in range(2):
            once()
        gc.collect()
        sizes.append(resident())
    end = time.monotonic() + 30.0
    while handles() > before and time.monotonic() < end:
        time.sleep(0.01)  # a thread that was joined may be listed a moment longer
    assert handles() <= before, (before, handles())
    # a round keeps six such buffers if they are lost, or some hundred KiB of compiled code
    is_kept = min(b - a for a, b in pairwise(sizes)) > 4 * BIG * 16
    assert not is_kept or site.request["keeps_memory"], sizes


@rule(GPUS)
def two_devices(site: Site) -> None:
    """Closing one of two devices leaves the other working; a closed one says so."""
    first, second = site.open(), site.open()
    add(first)
    add(second)
    first.close()
    add(second)
    with raises(ClosedError, "GE-204"):
        add(first)
    second.close()


@rule(ALL)
def closed(site: Site) -> None:
    """A device is closed any number of times; afterwards everything but freeing says so."""
    device = site.open()
    blob, buffer = printed(device, ADD), tensor(device, 4, Usage.OUTPUT)
    recording = device.record([])
    ticket = device.submit(recording)
    device.wait(ticket, 60.0)
    device.close()
    device.close()
    for call in every_call(device, blob, buffer, recording, ticket):
        with raises(ClosedError, "closed"):
            call()
    if site.level != "null":  # which tells of all that is used after its end
        device.free(buffer)
        device.release(recording)


def every_call(
    device: DeviceImpl, blob: Any, buffer: Buffer, recording: Any, ticket: Any
) -> list[Callable[[], Any]]:
    """Return a call of each kind that a closed or a lost device refuses."""
    data = memoryview(bytearray(16))
    return [
        lambda: device.submit(recording),
        lambda: device.wait(ticket, 1.0),
        lambda: device.write(buffer, data),
        lambda: device.read(buffer, data),
        lambda: device.alloc(64, Usage.INPUT),
        lambda: device.build(blob, {}),
        lambda: device.record([]),
    ]


@rule(GPUS)
def freed_twice(site: Site) -> None:
    """Freeing what is freed does nothing, to others either."""
    first, second = (uploaded(site.device, np.full(16, i, np.float32)) for i in (1, 2))
    site.device.free(first)
    third = uploaded(site.device, np.full(16, 3, np.float32))
    site.device.free(first)
    add(site.device)
    np.testing.assert_array_equal(downloaded(site.device, second), 2)
    np.testing.assert_array_equal(downloaded(site.device, third), 3)


@rule(GPUS)
def threads(site: Site) -> None:
    """A device works in other threads than the one that opened it, one at a time."""
    failures: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(4):
                add(site.device)
            with site.device.entered(), site.device.entered():
                add(site.device)
        except BaseException as error:
            failures.append(error)

    for _ in range(2):
        worker = threading.Thread(target=many)
        worker.start()
        worker.join(60)
        many()
    assert failures == []


@rule(("gles31", *TEXTURES))  # the others' drivers are told of a fork by the layers above
def fork(site: Site) -> None:
    """A forked child is told; the parent's device goes on, and takes turns among threads."""
    device = site.open()
    add(device)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            add(device)
        except ClosedError as error:
            status = 0 if "forked" in str(error) else 2
        device.close()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    workers = [threading.Thread(target=add, args=(device,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    add(device)
    device.close()


# --- faults and time ------------------------------------------------------------------------------
def lose(device: Any, level: str) -> Callable[[], None]:
    """Make the driver say that the device is lost; returns what ends that."""
    queue = device.queue
    if level == "wgpu":
        queue.api.lib.wgpuDeviceDestroy(queue.device)
        return lambda: None
    room, name, answer = queue.gl if level != "vulkan" else queue, "GetError", 0x0507
    if level == "vulkan":
        name, answer = "_submit", -4
    real = getattr(room, name)
    setattr(room, name, lambda *_: answer)
    return lambda: setattr(room, name, real)


@rule(GPUS, staged=True)
def lost(site: Site) -> None:
    """A lost device is lost ever after, for every call; it can be closed, and opened again."""
    device, blob = site.open(), printed(site.device, COPY)
    buffers = [uploaded(device, ints(256)), tensor(device, 64, Usage.OUTPUT)]
    recording = device.record([launch(device, blob, buffers)], buffers[:1], buffers[1:])
    finish(device, recording)
    ticket = device.submit(recording)
    device.wait(ticket, 60.0)
    end = lose(device, site.level)
    words = {"vulkan": "VK_ERROR_DEVICE_LOST", "wgpu": "GE-401"}.get(site.level, "GL_CONTEXT_LOST")
    for call in every_call(device, blob, buffers[1], recording, ticket):
        with raises(DeviceLostError, words):
            call()
        end()
    device.free(buffers[0])
    device.release(recording)
    device.close()
    device.close()
    add(site.device)


def spinning(device: DeviceImpl, seconds: float) -> tuple[Any, Buffer]:
    """Record work that takes about that long; returns the buffer that holds its results, too."""
    result, blob = tensor(device, 20_000, Usage.OUTPUT), printed(device, SPIN)
    turns, taken = 16, 0.0

    def work() -> Dispatch:
        return launch(device, blob, [result], params={"N": turns})

    while taken < 0.05 and turns < 10_000:
        turns *= 4
        recording = device.record([work()], (), [result])
        finish(device, recording)
        start = time.perf_counter()
        finish(device, recording)
        taken = time.perf_counter() - start
    return device.record([work()] * max(1, int(seconds / taken)), (), [result]), result


@rule(GPUS)
def deadline(site: Site) -> None:
    """Waiting has an end; the work goes on, and can be waited for again."""
    recording, result = spinning(site.device, 0.7)
    wanted = downloaded(site.device, result)
    site.device.write(result, memoryview(np.zeros_like(wanted)))
    start = time.perf_counter()
    ticket = site.device.submit(recording)
    submitted = time.perf_counter() - start
    if site.request["synchronous"]:  # it computes within the submit: nothing is to be waited for
        site.device.wait(ticket, 60.0)
        assert submitted > (time.perf_counter() - start) / 2
        return
    with raises(DeviceTimeoutError, "within 0.02 s"):
        site.device.wait(ticket, 0.02)
    waited = time.perf_counter() - start
    site.device.wait(ticket, 60.0)
    assert waited < (time.perf_counter() - start) / 2, submitted
    site.device.wait(ticket, 0.0)
    np.testing.assert_array_equal(downloaded(site.device, result), wanted)
    add(site.device)


@rule(GPUS)
def busy(site: Site) -> None:
    """Closing a busy device does not wait longer than it is told, and says so.

    The last check: what still runs is left to the end of the process.
    """
    if site.request["synchronous"]:
        return
    device = backends.load(site.level).open(site.info)
    recording, _ = spinning(device, 1.0)
    base.CLOSE_TIMEOUT_S = 0.05
    device.submit(recording)
    start = time.perf_counter()
    with logged() as said:
        device.close()
    assert time.perf_counter() - start < 0.8
    assert ["still busy" in line for line in said] == [True]


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the backends log."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    log, handler = logging.getLogger("gpuedge"), Handler()
    log.addHandler(handler)
    yield said
    log.removeHandler(handler)
