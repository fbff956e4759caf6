"""Arrays from and to files, as ``gpuedge run`` reads and writes them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

import gpuedge
from gpuedge.cli.arrays import read_array, read_arrays
from gpuedge.cli.main import main
from gpuedge.core.errors import InputError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
RNG = np.random.default_rng(8)
KINDS = {
    "png": "a PNG image", "jpg": "a JPEG image", "gif": "a GIF image", "bmp": "a BMP image",
    "tif": "a TIFF image",
}  # fmt: skip


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a session was opened")

    monkeypatch.setattr(gpuedge, "Session", refuse, raising=False)


def test_npz_files_go_in_and_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_session: None
) -> None:
    arrays = {"image": RNG.random((2, 1, 8, 8), np.float32), "other": np.arange(3)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    for name, array in read_arrays(str(tmp_path / "a.npz")).items():
        np.testing.assert_array_equal(array, arrays[name], strict=True)
    np.testing.assert_array_equal(read_array(str(tmp_path / "a.npz"), "image"), arrays["image"])
    np.savez(tmp_path / "one.npz", whatever=arrays["image"])
    np.testing.assert_array_equal(read_array(str(tmp_path / "one.npz"), "x"), arrays["image"])
    with pytest.raises(InputError, match="has no array 'x'") as caught:
        read_array(str(tmp_path / "a.npz"), "x")
    assert "image, other" in str(caught.value)
    # both arrays are taken as inputs, and the model has no input `other`
    assert main(["run", str(DIGITS), "--input", str(tmp_path / "a.npz")]) == 2
    assert "other" in capsys.readouterr().err


def test_other_files_are_told_by_their_kind(tmp_path: Path) -> None:
    for suffix, kind in KINDS.items():
        Image.new("RGB", (8, 8)).save(tmp_path / f"a.{suffix}")
        with pytest.raises(InputError, match=f"is {kind}, which is not read") as caught:
            read_array(str(tmp_path / f"a.{suffix}"))
        assert ".npy and .npz files are read" in str(caught.value)
    np.savez(tmp_path / "none.npz")
    for read in (read_array, read_arrays):
        with pytest.raises(InputError, match=r"intact \.npz file of numbers: it holds no array"):
            read(str(tmp_path / "none.npz"))
    (tmp_path / "empty.npy").touch()
    with pytest.raises(InputError, match=r"intact \.npy file of numbers: the file is empty"):
        read_array(str(tmp_path / "empty.npy"))


def test_an_archive_that_grows_too_much_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, x=np.zeros(300 << 20, np.uint8))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"its \d{6} bytes would become 3145\d{5}"):
        read_array(str(bomb))


def test_outputs_go_to_one_npz_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, out = RNG.random((2, 1, 8, 8), np.float32), tmp_path / "new" / "out.npz"
    np.savez(tmp_path / "in.npz", image=image)
    given = ["--input", str(tmp_path / "in.npz"), "--device", "cpu", "--output", str(out)]
    assert main(["run", str(DIGITS), *given]) == 0
    oracle = ort.InferenceSession(DIGITS, providers=["CPUExecutionProvider"])
    with np.load(out) as found:
        assert list(found) == ["probabilities"]
        wanted = oracle.run(None, {"image": image})[0]
        np.testing.assert_array_equal(found["probabilities"], wanted)
    assert [p.name for p in out.parent.iterdir()] == ["out.npz"]


def test_every_truncation_of_an_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.arange(6.0))
    data = (tmp_path / "a.npz").read_bytes()
    for length in range(0, len(data), 3):
        (tmp_path / "a.npz").write_bytes(data[:length])
        with pytest.raises(InputError):
            read_array(str(tmp_path / "a.npz"), "image")
    broken = bytearray(data)
    broken[data.index(np.arange(6.0).tobytes()) + 20] ^= 1
    (tmp_path / "a.npz").write_bytes(broken)
    with pytest.raises(InputError, match="CRC"):
        read_array(str(tmp_path / "a.npz"), "image")


def test_objects_in_archives_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="Object arrays"):
        read_arrays(str(tmp_path / "a.npz"))
