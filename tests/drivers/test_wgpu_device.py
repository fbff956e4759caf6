"""What only WebGPU has: its validation, adapters that are missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from seam_kernels import ADD, downloaded, launch, printed, run, tensor, uploaded
from wgpu_kernels import ADAPTERS, BACKEND, info_of, open_on

from gpuedge.backends.base import Usage
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import BackendUnavailableError, DriverError

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
