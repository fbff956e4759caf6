"""`probe()` over all levels of real drivers, and what its known-answer tests notice on textures.

Run as a program this file is the child that opens one level and spoils what its shaders say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import farm
import pytest

from gpuedge.backends.base import Candidate
from gpuedge.probing.api import probe

pytestmark = pytest.mark.driver

DEADLINE = 240.0
"""Far above what good drivers need: these tests are about verdicts, not about a busy machine."""

LEVELS = ("vulkan", "gles31", "wgpu", "gles30", "gles20")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own, and no driver that it does not name."""
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "GPUEDGE_EGL", "GPUEDGE_BACKENDS"):
        monkeypatch.delenv(name, raising=False)


def test_one_rasteriser_on_every_level_is_one_device(
    monkeypatch: pytest.MonkeyPatch, lavapipe: Candidate
) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", lavapipe.key)
    report = probe(backends=LEVELS, deadline_s=DEADLINE)
    reached = [r for r in report.tried if r.index is not None]
    assert {r.backend for r in reached} == set(LEVELS)
    assert {(r.status, r.physical, r.caps["device_class"]) for r in reached} == {
        ("ok", "llvmpipe", "cpu-llvm")
    }
    assert all(r.is_software for r in reached)
    ranks = {r.backend: r.route for r in reversed(reached)}
    assert sorted(ranks, key=lambda name: ranks[name] or 0) == list(LEVELS)
    assert report.best is not None
    assert report.best.device == "vulkan:0"
    again = probe(backends=LEVELS)
    assert all(r.is_cached for r in again.tried)
    assert [r.replace(is_cached=False) for r in again.tried] == list(report.tried)


def test_two_rasterisers_are_told_apart_under_layers(
    monkeypatch: pytest.MonkeyPatch, lavapipe: Candidate, swiftshader: Candidate
) -> None:
    farm.require("gles20-angle")
    monkeypatch.setenv("VK_DRIVER_FILES", os.pathsep.join((lavapipe.key, swiftshader.key)))
    monkeypatch.setenv("GPUEDGE_EGL", str(farm.file_of("angle")))
    report = probe(backends=["vulkan", "gles20"], deadline_s=DEADLINE)
    found = {(r.backend, r.physical): r.route for r in report.devices}
    assert found == {
        ("vulkan", "llvmpipe"): 1,
        ("gles20", "llvmpipe"): 2,
        ("vulkan", "swiftshader"): 1,
        ("gles20", "swiftshader"): 2,
    }


@pytest.mark.parametrize(
    ("level", "storage", "old", "new", "noticed"),
    [
        ("gles30", "rgba16f", "", "", "elementwise random"),
        ("gles20", "rgba8_float", "", "", None),
        ("gles20", "rgba8_float", "(k + 0.25) / 255.0", "(k + 0.5) / 255.0", "elementwise"),
        ("gles20", "rgba8_float", "exp2(n - 127.0)", "exp2(min(n, 200.0) - 127.0)",
         "every exponent"),
        ("gles20", "rgba8_float", "floor(f * (1.0 / ROW))", "floor(f * (1.0 / ROW) + 0.01)",
         "elementwise"),
        ("gles20", "rgba8_float", "float row = k_div(q, d.x);",
         "float row = k_div(min(q, 9000.0), d.x);", "every place"),
    ],
)  # fmt: skip
def test_what_textures_can_get_wrong_is_noticed(
    level: str, storage: str, old: str, new: str, noticed: str | None
) -> None:
    farm.require(f"{level}-llvmpipe")
    request = {"level": level, "storage": storage, "old": old, "new": new}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(request)],
        env={**farm.environment_of(f"{level}-llvmpipe"), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if noticed is None:
        assert found is None
    else:
        assert found["code"] == "wrong-numbers"
        assert found["detail"].startswith(noticed)


def child(request: dict[str, str]) -> dict[str, Any] | None:
    """Run the known-answer tests with spoilt shaders; return what they find."""
    from gpuedge import backends
    from gpuedge.capdb.restrict import with_storages
    from gpuedge.core.kernel import KernelBlob
    from gpuedge.executors.gpu import GpuExecutor
    from gpuedge.probing import kat
    from gpuedge.probing.trials import CaseTrial

    original = KernelBlob.specialised
    found: set[bool] = set()

    def spoilt(self: KernelBlob, *args: Any, **kwargs: Any) -> str:
        text = original(self, *args, **kwargs)
        found.add(request["old"] in text)
        return text.replace(request["old"], request["new"]) if request["old"] else text

    KernelBlob.specialised = spoilt  # type: ignore[method-assign]
    backend: Any = backends.load(request["level"])
    info = backend.enumerate(backend.candidates(os.environ)[0])[0]
    impl = backend.open(info)
    impl.caps = with_storages(impl.caps, (request["storage"],))
    executor = GpuExecutor(impl, "spoilt")
    try:
        for case in kat.cases(executor.caps):
            if case.dtype != "float32":
                continue  # bytes have a storage of their own, which is not offered here
            made = executor.compile(case.graph)
            finding = CaseTrial(case).judge(made.run(case.inputs)[case.output])
            made.close()
            if finding is not None:
                return {"code": finding.code, "detail": finding.detail}
    finally:
        executor.close()
        if True not in found:
            raise ValueError(f"no shader says {request['old']!r}")
    return None


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
