"""``gpuedge run``: files in, files out, and every bad file refused before any driver is touched."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import gpuedge
from gpuedge.cli.arrays import read_array, write_outputs
from gpuedge.cli.main import main
from gpuedge.cli.run import grouped
from gpuedge.core.errors import InputError

MODEL = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    file = tmp_path / "images.npy"
    rng = np.random.default_rng(5)
    np.save(file, rng.random((3, 1, 8, 8), np.float32))
    return file


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a session was opened")

    monkeypatch.setattr(gpuedge, "Session", refuse, raising=False)


def test_outputs_are_those_of_onnxruntime(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--input", f"image={images}", "--output", str(out), "--device", "cpu"]
    assert main(["run", str(MODEL), *arguments, "--repeat", "3", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [p.name for p in out.iterdir()] == ["probabilities.npy"]
    oracle = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    wanted = oracle.run(None, {"image": np.load(images)})[0]
    np.testing.assert_array_equal(np.load(out / "probabilities.npy"), wanted)
    assert (body["schema"], body["device"]) == ("gpuedge.run/1", "cpu")
    assert {row["device"] for row in body["placement"]} <= {"cpu", "host"}
    assert body["outputs"][0]["shape"] == [3, 10]
    assert body["warm_ms"] > 0
    assert body["isolation"] == "inline"
    assert body["health"]["on_cpu"] == 3


def test_options_of_a_session_are_passed_on(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []
    real = gpuedge.Session

    def note(model: Any, **options: Any) -> gpuedge.Session:
        asked.append({n: v for n, v in options.items() if n != "progress"})
        assert callable(options["progress"])
        return real(model, **options)

    monkeypatch.setattr(gpuedge, "Session", note)
    arguments = ["run", str(MODEL), "--input", f"image={images}", "--device", "cpu"]
    assert main([*arguments, "--isolation", "process"]) == 0
    assert asked == [{"device": "cpu", "isolation": "process", "policy": gpuedge.Policy()}]
    assert main([*arguments[:-2], "--allow-software"]) == 0
    assert asked.pop() == {"policy": gpuedge.Policy(allow_software=True)}
    assert main([*arguments, "--isolation", "cage"]) == 2
    assert main([*arguments, "--allow-software"]) == 2
    assert "--device cpu is not auto" in capsys.readouterr().err
    assert len(asked) == 1


def placed(device: str, kernel: str, *ops: str) -> dict[str, Any]:
    return {"nodes": ops, "ops": ops, "device": device, "kernel": kernel}


def test_neighbours_of_one_kernel_share_a_row() -> None:
    rows = [placed("cpu", "ort", f"Op{i}") for i in range(7)]
    rows += [placed("vulkan:0", "k", "Conv", "Relu"), placed("cpu", "ort", "Gemm")]
    assert grouped(rows) == [
        ("7 nodes: Op0 Op1 Op2 Op3 Op4 Op5 ...", "cpu", "ort"),
        ("Conv Relu", "vulkan:0", "k"),
        ("Gemm", "cpu", "ort"),
    ]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


INTACT = npy(np.arange(64, dtype=np.float32))
HUGE = INTACT.replace(b"(64,)", b"(9999999999999,)", 1)

DAMAGED = {
    "empty": b"",
    "text": b"these are not numbers",
    "cut header": INTACT[:20],
    "cut data": INTACT[:-1],
    "huge shape": HUGE,
    "broken header": INTACT.replace(b"'descr'", b"'de\0cr'", 1),
    "pickle": pickle.dumps([1.0, 2.0]),
    "zip": b"PK\x03\x04" + bytes(60),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_refused(
    kind: str, tmp_path: Path, no_session: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.npy"
    file.write_bytes(DAMAGED[kind])
    assert main(["run", str(MODEL), "--input", f"image={file}"]) == 2
    error = capsys.readouterr().err
    assert "[GE-203]" in error
    assert str(file) in error


def test_every_truncation_of_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.npy"
    for length in range(len(INTACT)):
        file.write_bytes(INTACT[:length])
        with pytest.raises(InputError):
            read_array(str(file))


class Evil:
    """Would make a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / "evil.npy"
    np.save(file, np.array([Evil(trace)], dtype=object), allow_pickle=True)
    with pytest.raises(InputError):
        read_array(str(file))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("trace", "output", "named"),
    [
        ("digits.onnx", None, "--trace"), ("images.npy", None, "--trace"),
        ("out.npz", "out.npz", "--trace"), ("out/y.npy", "out", "--trace"),
        (None, "images.npy", "--output"),
    ],
)  # fmt: skip
def test_a_run_does_not_write_over_what_it_reads_or_writes(
    trace: str | None, output: str | None, named: str, images: Path, no_session: None,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = images.parent
    monkeypatch.chdir(folder)
    (folder / "digits.onnx").write_bytes(MODEL.read_bytes())
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    arguments = [f"--{n}={v}" for n, v in (("trace", trace), ("output", output)) if v]
    assert main(["run", "digits.onnx", "--input", f"image={images}", *arguments]) == 2
    assert named in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_output_names_become_safe_files(tmp_path: Path) -> None:
    names = {"../up/Softmax:0": "_._up_Softmax_0.npy", ".hidden": "_hidden.npy", "ok": "ok.npy"}
    written = write_outputs({n: np.zeros(2) for n in names}, tmp_path)
    assert {n: Path(p).name for n, p in written.items()} == names
    assert sorted(Path(p).parent for p in written.values()) == [tmp_path] * 3


def test_outputs_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_outputs({"a/b": np.zeros(1), "a:b": np.zeros(1)}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_model_of_these_tests_is_intact() -> None:
    onnx.checker.check_model(str(MODEL), full_check=True)
