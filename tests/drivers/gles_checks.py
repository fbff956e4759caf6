"""What only OpenGL ES has: levels that a driver lacks, kernels' powers; see `gles_child`."""

from __future__ import annotations

import os

import numpy as np
from seam_kernels import SCALE, downloaded, info_of, launch, opened, printed, run, tensor, uploaded

from gpuedge.backends.base import Usage
from gpuedge.core.errors import BackendUnavailableError


def caps(level: str, /, **wanted: object) -> None:
    """The device reports exactly these limits and facts."""
    device = opened(level)
    facts = device.caps.to_dict()
    device.close()
    found = {k: facts[k] for k in wanted}
    assert found == wanted, found


def absent(_: str, wanted: str, code: str) -> None:
    """The driver does not have a level, for this reason."""
    try:
        info_of(wanted)
    except BackendUnavailableError as error:
        assert error.reason.code == code, error.reason.sentence  # type: ignore[attr-defined]
    else:
        raise AssertionError("it has the level")


def shell(level: str, path: str) -> None:
    """A library without functions is refused for what it is."""
    os.environ["GPUEDGE_EGL"] = path
    try:
        info_of(level)
    except BackendUnavailableError as error:
        assert error.reason.code == "missing-library"  # type: ignore[attr-defined]
        assert "eglGetProcAddress" in str(error)
    else:
        raise AssertionError("it is usable")


def powers(level: str) -> None:
    """Kernels use exp2 where it is exact of whole numbers, and only there."""
    from gpuedge.backends.gles import formats, program

    texts: list[str] = []
    link, exact = program.link, formats._POWERS
    program.link = lambda gl, level, text: texts.append(text) or link(gl, level, text)  # type: ignore[func-returns-value]
    wrong = ("exp2(n + 1e-5)", "(n == 127.0 ? 1.7e38 : exp2(n))", "(n < -125.0 ? 0.0 : exp2(n))")
    x = np.arange(-512, 512, dtype=np.float32)
    for call in ("exp2(n)", *wrong):
        formats._POWERS = exact.replace("exp2(n)", call)
        texts.clear()
        device = opened(level)
        source, result = uploaded(device, x), tensor(device, x.size // 4, Usage.OUTPUT)
        work = launch(device, printed(device, SCALE), [source, result], params={"K": 1, "G": 0.5})
        run(device, [work])
        np.testing.assert_array_equal(downloaded(device, result), x * 2 + np.float32(1.5))
        device.close()
        assert texts and all(("#define EXP2" in one) is (call == "exp2(n)") for one in texts), call
