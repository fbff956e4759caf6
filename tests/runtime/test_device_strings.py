"""Device strings of every level, and which backends are probed where."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gpuedge
from gpuedge import backends
from gpuedge.cli.main import build_parser
from gpuedge.core.config import config
from gpuedge.core.errors import NoUsableDeviceError, UnknownDeviceError
from gpuedge.core.times import ADVISED_S, NAMED_S
from gpuedge.onnx_backend import parse_device
from gpuedge.probing.report import ProbeReport, ProbeRow
from gpuedge.runtime.strings import find, parse

LEVELS = ("vulkan", "gles31", "gles30", "gles20", "wgpu", "metal", "dx12")


@pytest.mark.parametrize("name", LEVELS)
def test_every_level_has_its_string(name: str) -> None:
    assert parse(name) == name
    assert parse(f" {name.upper()}:12 ") == f"{name}:12"


def test_a_level_of_this_system_is_known_without_asking_for_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[int]()
    monkeypatch.setattr(backends, "_plugins", lambda: asked.append(1) or {"plug": "in:Plug"})
    assert [parse(name) for name in backends.PROBED] == list(backends.PROBED)
    assert not asked
    assert parse("plug:1") == "plug:1"
    assert asked


@pytest.mark.parametrize(
    "text",
    ["gles", "gles32", "webgpu", "null", "gles20:", "wgpu:-1", "dx11",
     "gles20:\u0660", "gles20:00", "gles20:01", "vul\u212aan", "wgpu:12345"],
)  # fmt: skip
def test_other_strings_are_refused_with_the_levels_named(text: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        parse(text)
    for name in LEVELS:
        assert f"{name}[:N]" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "linux", "darwin", "win32"),
    [("gpu", "vulkan", "metal", "dx12"), ("gpu0", "vulkan", "metal", "dx12"),
     ("cuda", "vulkan", "metal", "dx12"), ("opencl", "vulkan", "metal", "dx12"),
     ("opengl", "gles31", "gles31", "gles31"), ("gles", "gles31", "gles31", "gles31"),
     ("gles2", "gles20", "gles20", "gles20"), ("webgpu", "wgpu", "wgpu", "wgpu"),
     ("vk", "vulkan", "vulkan", "vulkan"), ("directx", "vulkan", "metal", "dx12"),
     ("mps", "vulkan", "metal", "dx12"), ("metal", "vulkan", None, "dx12"),
     ("dx12", "vulkan", "metal", None), ("gles30", None, None, None), ("tpu", None, None, None)],
)  # fmt: skip
def test_names_from_elsewhere_are_answered_with_what_to_write(
    name: str, linux: str | None, darwin: str | None, win32: str | None
) -> None:
    for platform, wanted in (("linux", linux), ("darwin", darwin), ("win32", win32)):
        hint = backends.instead(name, platform)
        assert hint is None if wanted is None else str(hint).startswith(f"write '{wanted}'")


@pytest.mark.skipif(sys.platform != "linux", reason="what is written depends on the system")
def test_a_plug_in_may_have_a_name_that_is_answered_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "install its plug-in: pip install ./examples/plugins/gpuedge-opencl" in str(
        backends.instead("opencl")
    )
    with pytest.raises(UnknownDeviceError) as caught:
        parse("armnn")  # like no name, and no name of another library's either
    assert "plug-in" in str(caught.value.hint)
    with pytest.raises(UnknownDeviceError) as caught:
        parse("vulcan")
    assert caught.value.hint == "did you mean 'vulkan'?"
    monkeypatch.setattr(backends, "_plugins", lambda: {"opencl": "package:Backend"})
    assert backends.instead("opencl") is None and parse("OpenCL:1") == "opencl:1"


def test_a_device_of_another_library_is_refused_with_what_to_write() -> None:
    x = np.zeros(2, np.float32)
    for text, wanted in (
        ("gpu", "vulkan"), ("CUDA:1", "vulkan"), ("opengl", "gles31"), ("tensorrt", "vulkan"),
        ("npu", "vulkan"), ("nnapi", "vulkan"), ("CUDAExecutionProvider", "vulkan"),
    ):  # fmt: skip
        with pytest.raises(UnknownDeviceError) as caught:
            gpuedge.relu(x, device=text)
        assert str(caught.value.hint).startswith(f"write '{wanted}'; 'auto' takes")
    with pytest.raises(UnknownDeviceError, match="names no device") as caught:
        parse("cpu:0")
    assert caught.value.hint == "'cpu', which has no number"
    with pytest.raises(UnknownDeviceError) as caught:
        parse("CPUExecutionProvider")
    assert caught.value.hint == "write 'cpu'"
    for call in (lambda: parse("a" * 5000), lambda: gpuedge.probe(backends=["a" * 5000])):
        with pytest.raises(UnknownDeviceError) as caught:
            call()
        assert len(caught.value.what) < 200
    with pytest.raises(UnknownDeviceError, match="No backend is called") as caught:
        gpuedge.probe(backends=["opengl"])
    assert "write 'gles31'" in str(caught.value.hint)
    row = ProbeRow("metal", "metal", "absent", "no-candidates", "none", "metal")
    with pytest.raises(NoUsableDeviceError) as unusable:
        find("metal", ProbeReport((row,), "0.1.0"))
    assert unusable.value.hint is not None and "metal is on macOS only" in unusable.value.hint


@pytest.mark.parametrize("name", ["VULKAN", "GLES31", "GLES30", "GLES20", "WGPU"])
def test_onnx_backend_takes_every_level(name: str) -> None:
    assert parse_device(name) == name.lower()
    assert parse(parse_device(f"{name}:1")) == f"{name.lower()}:1"


@pytest.mark.parametrize(
    ("platform", "first", "absent"),
    [("linux", "vulkan", {"metal", "dx12"}), ("darwin", "metal", {"dx12"}),
     ("win32", "dx12", {"metal"})],
)  # fmt: skip
def test_levels_are_probed_best_first(platform: str, first: str, absent: set[str]) -> None:
    names = backends.probed(platform)
    assert names[0] == first
    assert {*LEVELS} - {*names} == absent
    assert [n for n in names if n not in ("metal", "dx12")] == [
        "vulkan", "gles31", "wgpu", "gles30", "gles20",
    ]  # fmt: skip


def test_level_of_another_system_says_so() -> None:
    with pytest.raises(NoUsableDeviceError, match="no driver of metal was found"):
        find("metal", ProbeReport((), "1"))


@pytest.mark.parametrize("device", ["gles30", "gles30:0", "gles30:7"])
@pytest.mark.parametrize(
    ("code", "words"),
    [("deadline", "gpuedge probe --refresh --deadline 600"), ("forked", "when it forks"),
     ("no-context", "gpuedge ")],
)  # fmt: skip
def test_hint_follows_the_reason(device: str, code: str, words: str) -> None:
    refused = ProbeRow("gles30:0", "gles30", "timeout", code, "too slow", "Slow")
    with pytest.raises(NoUsableDeviceError) as caught:
        find(device, ProbeReport((refused,), "1"))
    assert words in (caught.value.hint or "")
    assert ("--deadline" in (caught.value.hint or "")) == (code == "deadline")


def test_deadline_that_is_hinted_at_is_an_option_of_probe() -> None:
    options = build_parser("probe").parse_args(["probe", "--deadline", str(ADVISED_S)])
    assert options.deadline == ADVISED_S > NAMED_S  # what was given already is no advice


def test_bare_level_means_its_best_device() -> None:
    def row(device: str, kind: str) -> ProbeRow:
        level = device.partition(":")[0]
        identity = {"api": level, "name": device, "os": "linux", "device_type": kind}
        return ProbeRow(device, level, "ok", "ok", "", device, identity, False, index=0)

    rows = (row("gles20:0", "INTEGRATED_GPU"), row("gles20:1", "DISCRETE_GPU"))
    assert find("gles20", ProbeReport(rows, "1")).device == "gles20:1"
    assert find("gles20:0", ProbeReport(rows, "1")).device == "gles20:0"


BARE = ProbeRow("vulkan", "vulkan", "absent", "no-device", "offers no device", "intel_icd.json")
HELD = ProbeRow(
    "vulkan:0", "vulkan", "blocked", "crash-blocklist",
    "using this driver ended earlier processes: 2 times; to try now: clear", "Test GPU", index=0,
)  # fmt: skip
BROKEN = ProbeRow("vulkan:1", "vulkan", "broken", "open-failed", "refused", "Old GPU", index=1)


def refusal(device: str, *rows: ProbeRow) -> NoUsableDeviceError:
    with pytest.raises(NoUsableDeviceError) as caught:
        find(device, ProbeReport(rows, "1"))
    return caught.value


def test_device_that_is_held_back_is_told_first_and_its_remedy_is_the_hint() -> None:
    error = refusal("vulkan", BARE, BROKEN, HELD)
    assert error.known == (
        "Test GPU: using this driver ended earlier processes: 2 times; Old GPU: refused"
    )
    remedy = "gpuedge cache clear --crashes, or GPUEDGE_PIN=vulkan:0=always"
    assert error.hint == remedy
    assert refusal("vulkan:0", BARE, BROKEN, HELD).hint == remedy
    assert refusal("vulkan:0", BARE, BROKEN, HELD).known == error.known.partition("; Old")[0]
    assert "clear" not in (refusal("vulkan:1", BARE, BROKEN, HELD).hint or "")


def test_drivers_without_a_device_are_told_of_where_there_is_nothing_else() -> None:
    assert refusal("vulkan", BARE).known == "intel_icd.json: offers no device"


@pytest.mark.parametrize("device", ["vulkan", "vulkan:0", "vulkan:3"])
def test_pinned_backend_names_the_pin(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its devices are not counted, so a number is no reason to say that there is no such device."""
    monkeypatch.setenv("GPUEDGE_PIN", "vulkan=never")
    rows = [
        ProbeRow("vulkan", "vulkan", "blocked", "pinned", "ruled out by a setting", name)
        for name in ("one.json", "two.json")
    ]
    error = refusal(device, *rows)
    assert error.known == "vulkan: ruled out by vulkan=never (GPUEDGE_PIN)"
    assert error.hint == "unset the pin vulkan=never (GPUEDGE_PIN)"


def test_pinned_device_names_where_the_pin_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ProbeRow("vulkan:0", "vulkan", "blocked", "pinned", "ruled out", "GPU", index=0)
    with config(pin="vulkan:0=never"):
        assert refusal("vulkan:0", row).known == (
            "GPU: ruled out by vulkan:0=never (gpuedge.config())"
        )
    file = tmp_path / "gpuedge.toml"
    file.write_text('pin = "vulkan:0=never"\n')
    monkeypatch.setenv("GPUEDGE_CONFIG", str(file))
    where = f"vulkan:0=never (pin in {file})"
    assert refusal("vulkan", row).hint == f"unset the pin {where}"
