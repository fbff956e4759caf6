"""The null backend: what tests of the layers above rely on."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any, cast

import pytest

import gpuedge.backends.null
from gpuedge import backends
from gpuedge.backends.base import Binding, Dispatch, Usage
from gpuedge.backends.null import POISON, Failure, NullBackend, NullBuffer, NullDevice, NullTicket
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    InputError,
    OutOfMemoryError,
)
from gpuedge.core.kernel import KernelBlob, PushArg, SpecArg, TensorArg

BLOB = KernelBlob(
    name="copy",
    dialect="spirv",
    code=b"",
    entry="main",
    tensors=(TensorArg("x", "read", 0), TensorArg("y", "write", 1)),
    specs=(SpecArg("LX", "int", 0, 1), SpecArg("K", "float", 3, 0.5)),
    push=(PushArg("n", "int", 0),),
    push_bytes=4,
    digest="0",
)


def opened(**options: Any) -> NullDevice:
    backend = NullBackend(**options)
    return backend.open(backend.enumerate(backend.candidates({})[0])[0])


def work(device: NullDevice, **changes: Any) -> Dispatch:
    x, y = device.alloc(1024, Usage.INPUT), device.alloc(1024, Usage.OUTPUT)
    bindings = (Binding(x, 0, 1024), Binding(y, 256, 512))
    whole = Dispatch(device.build(BLOB, {"LX": 8}), bindings, bytes(4), (4, 1, 1))
    return replace(whole, **changes)


def test_registry_makes_it_without_arguments() -> None:
    assert isinstance(backends.load("null"), NullBackend)


def test_doctest_of_the_class_holds() -> None:
    assert doctest.testmod(gpuedge.backends.null).failed == 0


def test_every_call_is_recorded_in_order() -> None:
    device = opened()
    dispatch = work(device)
    recording = device.record([dispatch], [dispatch.bindings[0].buffer])
    device.wait(device.submit(recording), 2.5)
    device.release(recording)
    device.close()
    names = [call.method for call in device.calls]
    assert names == ["alloc", "alloc", "build", "record", "submit", "wait", "release", "close"]
    assert device.calls[0].args == (1024, Usage.INPUT)
    assert device.calls[5].args[1] == 2.5
    expected = {"allocations": 2, "compilations": 1, "recordings": 1, "submits": 1}
    assert device.counters.snapshot() == expected


def test_reads_give_what_the_host_wrote_else_poison() -> None:
    device = opened()
    buffer = device.alloc(8, Usage.OUTPUT)
    device.write(buffer, memoryview(b"ab"), offset=3)
    into = bytearray(6)
    device.read(buffer, memoryview(into), offset=1)
    assert into == bytes([POISON, POISON]) + b"ab" + bytes([POISON, POISON])


def test_specs_are_kept_with_defaults() -> None:
    program = cast(Any, opened().build(BLOB, {"LX": 8}))
    assert program.specs == {"LX": 8, "K": 0.5}


def test_hook_can_compute() -> None:
    def copy(dispatch: Dispatch) -> None:
        x, y = (cast(NullBuffer, b.buffer) for b in dispatch.bindings)
        y.data[256:768] = x.data[:512]

    device = opened(on_dispatch=copy)
    dispatch = work(device)
    source, target = (binding.buffer for binding in dispatch.bindings)
    recording = device.record([dispatch], [source], [target])
    for fill in (b"1", b"2"):
        device.write(source, memoryview(fill * 1024))
        ticket = device.submit(recording)
        assert cast(NullTicket, ticket).recording is recording
        device.wait(ticket, 1.0)
        into = bytearray(1024)
        device.read(target, memoryview(into))
        assert into == bytes([POISON] * 256) + fill * 512 + bytes([POISON] * 256)


@pytest.mark.parametrize(
    ("failure", "outcomes"),
    [
        (OutOfMemoryError("full"), "xxx"),
        ([None, OutOfMemoryError("full")], ".x."),
        ([], "..."),
    ],
)
def test_failures_follow_the_script(failure: Failure, outcomes: str) -> None:
    device = opened(fail={"alloc": failure})
    seen = ""
    for _ in outcomes:
        try:
            device.alloc(4, Usage.INPUT)
            seen += "."
        except OutOfMemoryError:
            seen += "x"
    assert seen == outcomes
    assert device.counters.allocations == outcomes.count(".")
    assert len(device.calls) == len(outcomes)


def test_any_call_can_fail() -> None:
    device = opened(fail={"submit": DeviceLostError("gone"), "wait": DeviceTimeoutError("late")})
    recording = device.record([work(device)])
    with pytest.raises(DeviceLostError):
        device.submit(recording)
    with pytest.raises(DeviceTimeoutError):
        device.wait(cast(Any, None), 1.0)
    for name in ("enumerate", "open"):
        with pytest.raises(DeviceLostError):
            opened(fail={name: DeviceLostError("gone")})


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"push": bytes(8)}, "4 push bytes"),
        ({"groups": (0, 1, 1)}, "group counts"),
        ({"groups": (1, 65536, 1)}, "group counts"),
        ({"bindings": ()}, "one binding per tensor"),
    ],
)
def test_broken_rules_are_reported(changes: dict[str, Any], rule: str) -> None:
    device = opened()
    with pytest.raises(InputError, match=rule):
        device.record([work(device, **changes)])


@pytest.mark.parametrize(
    ("offset", "nbytes", "rule"),
    [
        (128, 128, "multiples of 256"),
        (256, 1024, "of a buffer of 1024"),
        (-256, 256, "of a buffer of 1024"),
        (0, 0, "1 to 512 bytes"),
        (0, 1024, "1 to 512 bytes"),
    ],
)
def test_broken_binding_rules_are_reported(offset: int, nbytes: int, rule: str) -> None:
    device = opened(caps=replace(VULKAN_MINIMUM, max_storage_buffer_bytes=512))
    buffer = device.alloc(1024, Usage.INPUT)
    good, bad = Binding(buffer, 0, 512), Binding(buffer, offset, nbytes)
    with pytest.raises(InputError, match=rule):
        device.record([work(device, bindings=(good, bad))])


def test_freed_buffers_are_noticed() -> None:
    device = opened()
    dispatch = work(device)
    recording = device.record([dispatch])
    device.free(dispatch.bindings[0].buffer)
    with pytest.raises(InputError, match="after they were freed"):
        device.submit(recording)
    with pytest.raises(InputError, match="after they were freed"):
        device.free(dispatch.bindings[0].buffer)
