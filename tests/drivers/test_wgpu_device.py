"""What only WebGPU has: its validation, adapters that are missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from seam_kernels import ADD, downloaded, launch, printed, run, tensor, uploaded
from wgpu_kernels import ADAPTERS, BACKEND, info_of, open_on

from gpuedge.backends.base import Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.backends.wgpu import device as wgpu_device
from gpuedge.core.errors import BackendUnavailableError, DriverError
from gpuedge.core.storage import BUFFER, HALF_BUFFER

pytestmark = pytest.mark.driver


@pytest.fixture(scope="module", params=sorted(ADAPTERS))
def device(request: pytest.FixtureRequest) -> Iterator[OpenDevice]:
    made = open_on(request.param)
    yield made
    made.close()


def test_reading_and_writing_one_buffer_is_refused_and_ends_nothing(device: OpenDevice) -> None:
    blob, a = printed(device, ADD), tensor(device, 16, Usage.OUTPUT)
    recording = device.record([launch(device, blob, [a, a, a])], [a], [a])
    with pytest.raises(DriverError, match="refused"):
        device.submit(recording)
    device.release(recording)
    b = uploaded(device, np.full(64, 4, np.float32))
    run(device, [launch(device, blob, [b, b, a])], [b], [a])
    np.testing.assert_array_equal(downloaded(device, a), 8.0)


def test_missing_adapter_has_a_reason() -> None:
    for key, code in (("metal", "no-device"), ("/nonexistent/icd.json", "bad-manifest")):
        backend_candidate = info_of("lavapipe").candidate.replace(key=key)
        with pytest.raises(BackendUnavailableError) as caught:
            BACKEND.enumerate(backend_candidate)
        assert caught.value.reason.code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_float16_is_offered_where_its_functions_are_accepted(
    adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lavapipe on arm64 refuses them all; this stands in for that
    refused = wgpu_device.HALVES.replace(b"pack2x16float", b"pack2x17float")
    for text, is_offered in ((wgpu_device.HALVES, True), (refused, False)):
        monkeypatch.setattr(wgpu_device, "HALVES", text)
        device = open_on(adapter)
        try:
            assert (HALF_BUFFER in device.caps.storages) == is_offered
            assert device.caps.storages[0] == BUFFER
            a = uploaded(device, np.full(64, 3, np.float32))
            b = tensor(device, 16, Usage.OUTPUT)
            run(device, [launch(device, printed(device, ADD), [a, a, b])], [a], [b])
            np.testing.assert_array_equal(downloaded(device, b), 6.0)
        finally:
            device.close()
