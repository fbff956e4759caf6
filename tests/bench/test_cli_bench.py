"""``gpuedge bench``: wrong arguments before any driver, the trace, JSON, and being interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trace_fakes import GRAPH_NAMES, traced

from gpuedge.bench import trace
from gpuedge.cli import main as cli
from gpuedge.core.errors import DeviceLostError

MADE = traced(np.random.default_rng(4))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Makes measuring answer at once; records its arguments."""
    calls: list[dict[str, Any]] = []

    def measure(device: str, **more: Any) -> trace.Trace:
        calls.append({"device": device, **more})
        more["say"]("half way")
        return MADE

    monkeypatch.setattr("gpuedge.bench.measure.measure", measure)
    monkeypatch.setattr(
        "gpuedge.cli.bench.named_gpu", lambda named, *_: SimpleNamespace(device=named)
    )
    return calls


def run(*arguments: str | Path) -> int:
    return cli.main(["bench", "--device", "vulkan", *map(str, arguments)])


def test_a_trace_is_written_whole(
    tmp_path: Path, measured: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.trace"
    assert run("--trace", path, "--rounds", "3") == 0
    assert trace.read(path) == MADE
    assert measured[0]["device"] == "vulkan" and measured[0]["rounds"] == 3
    shown = capsys.readouterr()
    assert "mali-valhall" in shown.out and all(name in shown.out for name in GRAPH_NAMES)
    assert f"{MADE.runs} runs" in shown.err


def test_json_is_one_document(
    tmp_path: Path, measured: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "gpuedge.bench/1" and body["class"] == "mali-valhall"
    assert [row["graph"] for row in body["rows"]] == [*GRAPH_NAMES]
    assert all(0.3 < row["gpu_ns"] / row["predicted_ns"] < 3 for row in body["rows"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceLostError("gone")])
def test_an_interrupted_run_leaves_what_was_there(
    error: BaseException, tmp_path: Path, measured: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise error

    path = tmp_path / "t.trace"
    path.write_text("before")
    monkeypatch.setattr("gpuedge.bench.measure.measure", stopped)
    assert run("--trace", path) == (130 if isinstance(error, KeyboardInterrupt) else 4)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["t.trace"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rounds", "0"), "whole number from 1"),
        (("--trace", "/dev/null/t"), "cannot be written"),
        (("--trace", ""), "without a name"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: tuple[str, ...], words: str, measured: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err and not measured


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_the_device_is_a_gpu_by_name(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--device", device]) == 2
    assert f"not '{device}'" in capsys.readouterr().err


def test_wrong_formats_are_not_written(tmp_path: Path) -> None:
    from dataclasses import replace

    from gpuedge.core.errors import InputError

    with pytest.raises(InputError, match=r"device_class: .*Bob.s phone"):
        trace.write(replace(MADE, device_class="Bob's phone"), str(tmp_path / "t"))
    assert not [*tmp_path.iterdir()]
