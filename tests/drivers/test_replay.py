"""What a second run costs: no compilation, no allocation, no recording, one submit. Counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proving import ProvedExecutor, proved

import gpuedge
from gpuedge.backends.device import OpenDevice
from gpuedge.device import Device

pytestmark = pytest.mark.driver
MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
RNG = np.random.default_rng(3)
REPLAY = {"allocations": 0, "compilations": 0, "recordings": 0, "submits": 1}


@pytest.fixture(scope="module")
def gpu(vulkan_device: OpenDevice) -> Iterator[Device]:
    with proved(vulkan_device) as device:
        yield device


def counted(device: Device, call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """Return the result of a call and what the device counted meanwhile."""
    assert isinstance(device.executor, ProvedExecutor)
    counters = device.executor.guard.impl.counters
    before = counters.snapshot()
    result = call()
    return result, {name: count - before[name] for name, count in counters.snapshot().items()}


def random(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal(shape).astype(np.float32)


def test_session_is_replayed(gpu: Device) -> None:
    with gpuedge.Session(MODEL, device=gpu, fallback="error") as session:
        ((name, (dtype, shape)),) = session.inputs.items()
        assert dtype == "float32"
        fixed = [d if isinstance(d, int) else 5 for d in shape]
        first, second = random(*fixed), random(*fixed)
        (out,) = session.outputs
        one, cold = counted(gpu, lambda: session.run({name: first})[out])
        two, warm = counted(gpu, lambda: session.run({name: second})[out])
        again, hot = counted(gpu, lambda: session.run({name: first})[out])
        assert cold["submits"] == 1
        assert warm == hot == REPLAY
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, two)
        assert {row.device for row in session.placement} <= {"vulkan:0", "host"}
    on_cpu = gpuedge.Session(MODEL, device="cpu").run({name: second})[out]
    np.testing.assert_allclose(two, on_cpu, rtol=1e-4, atol=1e-5)


CALLS: dict[str, Callable[[Device], Any]] = {
    "conv2d": lambda d: gpuedge.conv2d(
        random(1, 5, 9, 9), random(6, 5, 3, 3), random(6), padding=1, activation="relu", device=d
    ),
    "matmul": lambda d: gpuedge.matmul(random(2, 33, 35), random(35, 34), device=d),
    "softmax": lambda d: gpuedge.softmax(random(3, 2000), device=d),
    "concat": lambda d: gpuedge.concat([random(2, 3), random(2, 4), random(2, 1)], 1, device=d),
    "elementwise": lambda d: gpuedge.elementwise("a * b + sigmoid(c)")(
        random(7, 5), random(5), random(7, 1), device=d
    ),
    "reshape": lambda d: gpuedge.reshape(random(6, 4), (3, -1), device=d),
}


@pytest.mark.parametrize("name", CALLS)
def test_operation_is_replayed(gpu: Device, name: str) -> None:
    first, cold = counted(gpu, lambda: CALLS[name](gpu))
    second, warm = counted(gpu, lambda: CALLS[name](gpu))
    assert cold["submits"] == 1 and cold["recordings"] == 1
    assert cold["allocations"] > 0
    assert warm == REPLAY
    assert not np.array_equal(first, second)


def test_other_shape_is_compiled_anew(gpu: Device) -> None:
    counted(gpu, lambda: gpuedge.softmax(random(3, 20), device=gpu))
    _, cold = counted(gpu, lambda: gpuedge.softmax(random(4, 20), device=gpu))
    assert cold["recordings"] == 1 and cold["submits"] == 1
