"""The matrix of `gpuedge doctor`: lines, cells, limits, and its width."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuedge.cli import doctor
from gpuedge.cli.main import main
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.probing.report import ProbeReport, ProbeRow, number

TEXTURES = replace(
    VULKAN_MINIMUM, level="gles20", storages=("rgba8_float", "rgba8_u8"), max_texture_size=8192,
    max_storage_buffer_bytes=1 << 26, max_storage_buffers=9, is_finite_only=True, max_outputs=4,
)  # fmt: skip


def row(backend: str, status: str = "ok", name: str = "A GPU", key: str = "/a.json") -> ProbeRow:
    code = {"ok": "ok", "wrong": "wrong-numbers", "timeout": "deadline"}[status]
    caps = (TEXTURES if backend.startswith("gles") else VULKAN_MINIMUM).to_dict()
    identity = {"api": backend, "name": name, "os": "linux"}
    return ProbeRow(
        backend, backend, status, code, "because", name, identity, False, caps, key, "f",
        index=0, model=name.lower(),
    )  # fmt: skip


def bare(backend: str, code: str = "no-device", key: str = "/b.json") -> ProbeRow:
    return ProbeRow(backend, backend, "absent", code, "nothing", "b.json", key=key)


@pytest.fixture
def report() -> ProbeReport:
    rows = [
        row("vulkan"), bare("vulkan"), row("gles31", "wrong"), row("wgpu"), row("wgpu", key="gl"),
        bare("wgpu"), row("gles20"), row("gles30", "timeout", "Another GPU with a long name"),
        bare("gles20", "no-context", "/a.json"), bare("gles31", "no-candidates", ""),
    ]  # fmt: skip
    return ProbeReport(number(rows), "1")


@pytest.fixture
def doctor_says(report: ProbeReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `gpuedge doctor` find these drivers."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: report)


LEVELS = """
vulkan  gles31    wgpu       gles30       gles20          driver or device
ok :0   wrong :0  ok :0 :1   -            ok :0, absent   A GPU
-       -         -          timeout :0   -               Another GPU with a long name
absent  -         absent     -            -               b.json
"""
LIMITS = """
device    tensor   texture  bindings   numbers  storage, exact one first
vulkan:0  128 MiB  -        4          all      buffer buffer_f16 buffer_u8 buffer_s8
wgpu:0    128 MiB  -        4          all      buffer buffer_f16 buffer_u8 buffer_s8
wgpu:1    128 MiB  -        4          all      buffer buffer_f16 buffer_u8 buffer_s8
gles20:0  64 MiB   8192\u00b2    9 (4 out)  finite   rgba8_float rgba8_u8
"""


@pytest.mark.parametrize("columns", [80, 120])
def test_matrix_and_limits_keep_to_the_terminal(
    columns: int,
    doctor_says: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    main(["doctor"])
    out = capsys.readouterr().out
    shown = out[out.index("Drivers and levels") :].splitlines()
    assert max(map(len, shown)) <= columns
    words = " ".join(" ".join(shown).split())
    for wanted in (LEVELS, LIMITS):
        head, *lines = (" ".join(line.split()) for line in wanted.strip().splitlines())
        assert head in words and " ".join(lines) in words


def test_json_holds_the_matrix(doctor_says: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["matrix"]
    assert found["levels"][:2] == ["vulkan", "gles31"]
    first = found["lines"][0]
    assert (first["name"], first["physical"]) == ("A GPU", "a gpu")
    assert first["levels"]["gles31"] == [
        {"device": "gles31:0", "status": "wrong", "code": "wrong-numbers", "reason": "because",
         "route": None, "restrictions": {}},
    ]  # fmt: skip
    assert [cell["route"] for cell in first["levels"]["wgpu"]] == [2, 3]
    assert found["limits"]["gles20:0"]["storages"] == ["rgba8_float", "rgba8_u8"]
    assert found["limits"]["gles20:0"]["is_finite_only"] is True


def test_missing_api_is_no_worry_where_another_works(report: ProbeReport) -> None:
    checks = {c.name: c for c in doctor.report_checks(report)}
    assert checks["gles31 driver"].result == "INFO"
    assert "libegl1" in checks["gles31 driver"].fix
    assert checks["vulkan, wgpu driver"].result == "INFO"
    alone = ProbeReport(number([bare("gles31", "no-candidates", "")]), "1")
    assert [c.result for c in doctor.report_checks(alone)] == ["WARN", "WARN"]
