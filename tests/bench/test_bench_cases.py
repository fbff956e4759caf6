"""Cases: inputs from files or made up, and what outputs are compared with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_fakes import open_model

from gpuedge.bench import cases
from gpuedge.bench.cases import BenchCase, ReadyCase, cases_of, prepared
from gpuedge.bench.spec import SpecPlaces
from gpuedge.core.errors import GpuEdgeError, InputError

Write = Callable[..., str]


@pytest.fixture
def spec(tmp_path: Path) -> Write:
    """Writes a model y = x + x of shape [N, 4], files beside it, and a specification of all."""
    model = open_model()
    (tmp_path / "net.onnx").write_bytes(model)

    def entry(name: str, value: Any) -> dict[str, str]:
        path = tmp_path / name
        if name.endswith(".txt"):
            np.savetxt(path, np.ravel(value))
        else:
            np.save(path, value)
        return {"file": name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}

    def write(kind: str = "npy", inputs: Any = None, outputs: Any = None, **test: Any) -> str:
        if inputs is not None:
            test["inputs"] = {"x": entry(f"x.{kind}", inputs)}
        if outputs is not None:
            test["outputs"] = {"y": entry(f"y.{kind}", outputs)}
        sha = hashlib.sha256(model).hexdigest()
        body = {"model": "net.onnx", "sha256": sha, "tests": [test]}
        (tmp_path / "spec.json").write_text(json.dumps(body))
        return str(tmp_path / "spec.json")

    return write


def ready(path: str, folder: Path) -> ReadyCase:
    (case,) = cases_of(path, SpecPlaces())
    assert isinstance(case, BenchCase)
    return prepared(case, folder)


def feeds(made: ReadyCase) -> dict[str, Any]:
    with np.load(made.feeds) as file:
        return {name: file[f"arr_{at}"] for at, name in enumerate(made.names)}


def test_inputs_are_made_up_for_given_shapes_and_outputs_are_exact(
    spec: Write, tmp_path: Path
) -> None:
    made = ready(spec(shapes={"x": [3, 4]}), tmp_path)
    x = feeds(made)["x"]
    assert x.shape == (3, 4) and x.dtype == np.float32 and x.std() > 0
    assert made.reference == "float64" and made.wanted is not None
    np.testing.assert_array_equal(made.wanted["y"], x.astype(np.float64) * 2)
    assert made.work is not None
    assert made.work == {
        "flops": 12, "bytes_moved": 144, "bytes_in": 48, "bytes_out": 48, "launches": 1
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["npy", "txt"])
def test_golden_files_are_what_counts(spec: Write, tmp_path: Path, kind: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    golden = x * 2 + 0.25  # not what the model computes
    path = spec(kind, inputs=x, outputs=golden, shapes={"x": [2, 4]})
    made = ready(path, tmp_path)
    np.testing.assert_array_equal(feeds(made)["x"], x)
    assert feeds(made)["x"].dtype == np.float32
    assert made.reference == "golden outputs" and made.wanted is not None
    np.testing.assert_array_equal(made.wanted["y"], golden)


def test_large_models_are_compared_with_the_cpu(
    spec: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "MOST_EXACT", 1.0)
    made = ready(spec(shapes={"x": [3, 4]}), tmp_path)
    assert made.reference == "the CPU path in float32" and made.wanted is not None
    assert made.wanted["y"].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "N"),
        ({"shapes": {"z": [1]}}, "z"),
        ({"shapes": {"x": [3, 5]}}, "5"),
        ({"kind": "txt", "inputs": np.zeros(7), "shapes": {"x": [2, 4]}}, "holds 7 numbers"),
        ({"inputs": np.zeros((2, 4), np.int32)}, "int32"),
        ({"inputs": np.zeros((2, 4), "f4"), "outputs": np.zeros(3)}, "holds 3 numbers"),
    ],
)
def test_what_does_not_fit_is_an_error_of_ours(
    spec: Write, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(GpuEdgeError) as caught:
        ready(spec(**change), tmp_path)
    assert words in str(caught.value)


def test_files_that_hold_no_numbers_are_refused(spec: Write, tmp_path: Path) -> None:
    path = spec(inputs=np.array([{"a": 1}], object))
    with pytest.raises(InputError, match="no array of numbers"):
        ready(path, tmp_path)
