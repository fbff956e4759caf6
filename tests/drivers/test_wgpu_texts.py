"""Every kernel as WGSL, compiled by both implementations there are: Dawn and wgpu's naga.

Each refuses things that the other takes, so each is also shown to refuse what it must.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daily
import pytest
from lang_kernels import lane_kernel
from wgpu_kernels import DRIVERS, fetch, open_on
from wgsl_corpus import texts

from gpuedge import lang
from gpuedge.backends.device import OpenDevice
from gpuedge.core.errors import DriverError
from gpuedge.core.kernel import KernelBlob, SpecArg, TensorArg
from gpuedge.core.storage import BUFFER, IMAGE, TEXTURE
from gpuedge.plan import library

pytestmark = [pytest.mark.driver, daily.day(1, of=4)]
CHECK = Path(__file__).resolve().parents[1] / "dawn" / "check.mjs"

DECLARED = """
@group(0) @binding(0) var<storage, read> t_A: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> t_O: array<vec4<f32>>;
struct Push { d_A: vec4<i32>, d_O: vec4<i32> }
@group(0) @binding(2) var<uniform> u: Push;
@id(3) override s_D: i32 = 0;
var<workgroup> m: array<f32, 64>;
"""


def main(body: str, size: str = "8", more: str = "") -> str:
    ids = "@builtin(local_invocation_index) i: u32"
    return f"{DECLARED}{more}@compute @workgroup_size({size}) fn main({ids}) {{ {body} }}"


GOOD = main("m[i] = 1.0; workgroupBarrier(); t_O[i] = vec4<f32>(m[0]) * t_A[i];")
BAD_EVERYWHERE = {
    "syntax": main("t_O[i] = ;"),
    "type": main("t_O[i] = vec4<i32>(1);"),
    "write to a read buffer": main("t_A[i] = t_O[i];"),
    "assigned parameter": main("t_O[0].x = f(2.0);", more="fn f(x: f32) -> f32 { x = 1.0; "
                               "return x; }\n"),
    "reserved word": main("let active = 1.0; t_O[i].x = active;"),
    "int out of range": main("t_O[i].x = f32(-2147483648i);"),
    "division by an override of 0": main("t_O[i].x = f32(7 / s_D);"),
    "constant overflow": main("t_O[i].x = 3.0e38f * 10.0f;"),
}  # fmt: skip
BAD_FOR_DAWN = {
    "barrier under an if": main("if (i > 3u) { workgroupBarrier(); } t_O[i].x = 1.0;"),
    "loop round a barrier with a bound from a buffer": main(
        "for (var j = 0; j < i32(t_O[0].x); j += 1) { workgroupBarrier(); } t_O[i].x = 1.0;"
    ),
    "too many invocations": main("t_O[i].x = 1.0;", size="600"),
    "too much shared memory": main(
        "b[i] = 1.0; t_O[i].x = b[0];", more="var<workgroup> b: array<f32, 5000>;\n"
    ),
}


def dawn_package() -> Path:
    """Return Dawn's npm package."""
    found = Path(os.environ.get("GPUEDGE_TEST_DAWN") or DRIVERS / "dawn" / "package")
    if not (found / "index.js").is_file():
        fetch("Dawn")
    if shutil.which("node") is None:
        fetch("node")
    return found


def by_dawn(requests: list[dict[str, Any]]) -> list[str]:
    """Compile all texts in one process and return a message for each; empty is good."""
    done = subprocess.run(
        ["node", str(CHECK), str(dawn_package())],
        input=json.dumps(requests), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    assert len(answers) == len(requests)
    return answers


def request(blob: KernelBlob, specs: dict[str, Any]) -> dict[str, Any]:
    read = {BUFFER: "read-only-storage", TEXTURE: "unfilterable-float", IMAGE: "read-only"}
    kinds = [read[t.storage] if t.access == "read" else "storage" for t in blob.tensors]
    values = {str(s.spec_id): float(specs.get(s.name, s.default)) for s in blob.specs}
    code = blob.code.decode()
    return {"code": code, "entry": blob.entry, "kinds": [*kinds, "uniform"], "constants": values}


def hand_written(code: str) -> KernelBlob:
    tensors = (TensorArg("A", "read", 0), TensorArg("O", "write", 1))
    specs = (SpecArg("D", "int", 3, 0),) if "/ s_D" in code else ()
    return KernelBlob("hand", "wgsl", code.encode(), "main", tensors, specs, (), 32, code)


def test_dawn_accepts_every_kernel() -> None:
    blobs = [
        (f"{text.name} {kind}", text.reading(kind), text.specs)
        for text in texts()
        for kind in (BUFFER, TEXTURE, IMAGE)
        if kind != IMAGE or len(text.kernel.tensors) <= 5
    ]  # the default limit is 4
    answers = by_dawn([request(blob, specs) for _, blob, specs in blobs])
    assert {name: a for (name, *_), a in zip(blobs, answers, strict=True) if a} == {}


def test_dawn_accepts_lanes_of_subgroups() -> None:
    """With the directive that naga refuses; without it Dawn does."""
    names = {v.kernel: v.consts for v in library.variants() if v.has_lanes}
    kernels = [lang.load(library.texts()[n], filename=n, consts=c) for n, c in names.items()]
    blobs = [lang.print_kernel(k, "wgsl") for k in (lane_kernel(8), *kernels)]
    plain = [request(blob, {"LX": 8}) for blob in blobs]
    assert all("subgroup" in answer for answer in by_dawn(plain))
    whole = [{**one, "code": f"enable subgroups;\n{one['code']}"} for one in plain]
    assert by_dawn(whole) == [""] * len(whole)
    assert len(whole) == 6


def test_dawn_refuses_what_it_must() -> None:
    bad = {**BAD_EVERYWHERE, **BAD_FOR_DAWN}
    answers = by_dawn([request(hand_written(code), {}) for code in (GOOD, *bad.values())])
    assert answers[0] == ""
    assert [name for name, answer in zip(bad, answers[1:], strict=True) if not answer] == []


@pytest.fixture(scope="module", params=["lavapipe", "gl"])
def device(request: pytest.FixtureRequest) -> Iterator[OpenDevice]:
    made = open_on(request.param)
    yield made
    made.close()


def test_naga_accepts_every_kernel(device: OpenDevice) -> None:
    refusals = {}
    for text in texts():
        for kind in (BUFFER, TEXTURE, IMAGE):
            try:
                device.release(device.build(text.reading(kind), text.specs))
            except DriverError as error:
                refusals[f"{text.name} {kind}"] = str(error)
    assert refusals == {}


@pytest.mark.parametrize("name", BAD_EVERYWHERE)
def test_naga_refuses_what_it_must(
    name: str, device: OpenDevice, capfd: pytest.CaptureFixture[str]
) -> None:
    device.release(device.build(hand_written(GOOD), {}))
    with pytest.raises(DriverError, match="refused") as caught:
        device.build(hand_written(BAD_EVERYWHERE[name]), {})
    assert caught.value.known is not None
    assert caught.value.asked_by == "kernel 'hand'"
    device.release(device.build(hand_written(GOOD), {}))
    assert capfd.readouterr() == ("", "")
