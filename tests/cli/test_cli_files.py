"""Arrays, photographs, names of classes and pictures of ``gpuedge run``."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from PIL import Image

import gpuedge
from gpuedge.cli import images, labels
from gpuedge.cli.arrays import read_array, read_arrays, write_outputs
from gpuedge.cli.main import main
from gpuedge.core.errors import GpuEdgeError, InputError, UsageError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
RNG = np.random.default_rng(8)
PIXELS = RNG.integers(0, 256, (5, 7, 3), np.uint8)
NCHW = ("float32", (1, 3, 5, 7))
PLAIN = images.Preparing()


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a session was opened")

    monkeypatch.setattr(gpuedge, "Session", refuse, raising=False)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "photo.png"
    Image.fromarray(PIXELS).save(file)
    return file


def copying(folder: Path, dims: list[Any], kind: int = TensorProto.FLOAT) -> Path:
    """Write a model whose output `y` is its input `x`."""
    node = helper.make_node("Identity", ["x"], ["y"])
    info = [helper.make_tensor_value_info(n, kind, dims) for n in "xy"]
    graph = helper.make_graph([node], "copy", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "copy.onnx")
    return folder / "copy.onnx"


def read(path: Path, signature: Any, **how: Any) -> np.ndarray[Any, Any]:
    return images.read_image(str(path), "x", signature, images.Preparing(**how))


def test_layouts_follow_the_shape_of_the_input(photo: Path) -> None:
    wanted = (PIXELS / 255.0).astype(np.float32)
    for dims in ((1, 3, 5, 7), ("N", 3, None, None), (3, 5, 7), (None, 3, "H", "W")):
        found = read(photo, ("float32", dims))
        assert found.dtype == np.float32
        assert found.ndim == len(dims)
        np.testing.assert_array_equal(found.reshape(3, 5, 7), wanted.transpose(2, 0, 1))
    np.testing.assert_array_equal(read(photo, ("uint8", (1, 5, 7, 3)))[0], PIXELS)
    open_ = ("uint8", (None, None, None, None))
    np.testing.assert_array_equal(read(photo, open_, layout="nhwc")[0], PIXELS)
    np.testing.assert_array_equal(
        read(photo, open_, layout="nchw", channels="bgr")[0], PIXELS.transpose(2, 0, 1)[::-1]
    )


def test_values_are_scaled_then_centred_in_the_order_of_the_model(photo: Path) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    found = read(photo, NCHW, mean=mean, std=std, channels="bgr")
    wanted = (PIXELS[..., ::-1] / 255.0 - mean) / std
    np.testing.assert_array_equal(found[0], wanted.transpose(2, 0, 1).astype(np.float32))
    raw = read(photo, ("float16", (1, 3, 5, 7)), scale=1.0)
    np.testing.assert_array_equal(raw[0], PIXELS.transpose(2, 0, 1))


def test_sizes_grey_and_cuts_are_as_pillow_has_them(tmp_path: Path, photo: Path) -> None:
    big = RNG.integers(0, 256, (40, 80, 3), np.uint8)
    Image.fromarray(big).save(tmp_path / "big.png")
    smooth = Image.Resampling.BILINEAR
    wanted = np.asarray(Image.fromarray(big).resize((7, 5), smooth))
    np.testing.assert_array_equal(read(tmp_path / "big.png", ("uint8", (1, 5, 7, 3)))[0], wanted)
    cut = np.asarray(Image.fromarray(big).resize((8, 8), smooth, box=(20, 0, 60, 40)))
    found = read(tmp_path / "big.png", ("uint8", (1, 8, 8, 3)), crop=True)[0]
    np.testing.assert_array_equal(found, cut)
    found = read(tmp_path / "big.png", ("uint8", (1, None, None, 3)), size=(5, 7))[0]
    np.testing.assert_array_equal(found, wanted)
    grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
    for dims in ((1, 1, 5, 7), (1, 5, 7, 1), (5, 7), (1, 5, 7)):
        np.testing.assert_array_equal(read(photo, ("uint8", dims)).reshape(5, 7), grey)


def test_a_photograph_that_lies_on_its_side_is_put_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the left when taken
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    found = read(tmp_path / "turned.png", ("uint8", (1, None, None, 3)))[0]
    np.testing.assert_array_equal(found, np.rot90(PIXELS, -1))


@pytest.mark.parametrize(
    ("signature", "how", "said"),
    [
        (("float32", (4, 3, 5, 7)), {}, "a batch of one"),
        (("float32", (1, 4, 5, 7)), {}, "where are its channels"),
        (("float32", (1, 3, 5, 3)), {}, "where are its channels"),
        (("float32", None), {}, "2, 3 or 4"),
        (("float32", (1, 10)), {"size": (2, 2)}, "2x2 is asked for"),
        (("float32", (10,)), {}, "2, 3 or 4"),
        (("int64", (1, 3, 5, 7)), {}, "uint8 or floating"),
        (("uint8", (1, 3, 5, 7)), {"mean": (1.0,)}, "as they are"),
        (("float32", (1, 3, 5, 7)), {"channels": "grey"}, "cannot be grey"),
        (("float32", (1, 1, 5, 7)), {"channels": "bgr"}, "cannot be bgr"),
        (("float32", (1, 1, 5, 7)), {"mean": (1.0, 2.0, 3.0)}, "has 3 numbers"),
        (("float32", (1, 3, 5, 7)), {"layout": "nhwc"}, "not nhwc"),
    ],
)
def test_an_image_that_fits_no_input(
    signature: Any, how: dict[str, Any], said: str, photo: Path
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read(photo, signature, **how)
    assert "the model takes" in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_truncated_image_is_refused_or_whole(kind: str, tmp_path: Path) -> None:
    buffer, file = io.BytesIO(), tmp_path / "cut"
    Image.fromarray(PIXELS).save(buffer, kind)
    data = buffer.getvalue()
    file.write_bytes(data)
    whole, refused = read(file, NCHW), 0
    for length in range(9, len(data), 3):
        file.write_bytes(data[:length])
        try:
            found = read(file, NCHW)
        except InputError as error:
            assert "not an intact" in str(error)
            refused += 1
            continue
        np.testing.assert_array_equal(found, whole)  # all pixels were there
    assert refused > 0.8 * len(data) / 3


def test_what_has_more_than_8_bits_is_not_cut_down(tmp_path: Path) -> None:
    deep = RNG.integers(0, 65536, (5, 7)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    with pytest.raises(InputError, match="more than 8 bits"):
        read(tmp_path / "deep.png", ("float32", (1, 1, 5, 7)))


def test_an_image_of_too_many_pixels_is_refused(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InputError, match="exceeds limit"):
        read(photo, NCHW)


def test_without_pillow_the_command_that_installs_it_is_named(
    photo: Path, tmp_path: Path, no_session: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "PIL", None)
    model = copying(tmp_path, [1, 3, 5, 7])
    assert main(["run", str(model), "--input", f"x={photo}"]) == 2
    assert "pip install 'gpuedge[images]'" in capsys.readouterr().err


def test_a_photograph_goes_in_and_the_same_comes_out(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = copying(tmp_path, ["N", 3, "H", "W"]), tmp_path / "out"
    arguments = ["run", str(model), "--input", f"x={photo}", "--device", "cpu", "--json"]
    assert main([*arguments, "--output", str(out), "--images", "--channels", "bgr"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["outputs"][0]["file"] == str(out / "y.npy")
    assert body["outputs"][0]["pictures"] == [str(out / "y.png")]
    with Image.open(out / "y.png") as image:
        np.testing.assert_array_equal(np.asarray(image), PIXELS)
    wanted = (PIXELS[..., ::-1] / 255.0).transpose(2, 0, 1).astype(np.float32)
    np.testing.assert_array_equal(np.load(out / "y.npy")[0], wanted)


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
    for suffix, kind in (("gif", "a GIF image"), ("bmp", "a BMP image"), ("tif", "a TIFF image")):
        Image.new("RGB", (8, 8)).save(tmp_path / f"a.{suffix}")
        with pytest.raises(InputError, match=f"is {kind}, which is not read") as caught:
            read_array(str(tmp_path / f"a.{suffix}"))
        assert ".npy, .npz, PNG and JPEG files are read" in str(caught.value)
    np.savez(tmp_path / "none.npz")
    for read in (read_array, read_arrays):
        with pytest.raises(InputError, match=r"intact \.npz file of numbers: it holds no array"):
            read(str(tmp_path / "none.npz"))
    (tmp_path / "empty.npy").touch()
    with pytest.raises(InputError, match=r"intact \.npy file of numbers: the file is empty"):
        read_array(str(tmp_path / "empty.npy"))


def test_bombs_are_refused_by_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of 300 MiB of zeros, and a PNG of 1 x 100,000,000 pixels."""
    bomb, tall = tmp_path / "bomb.npz", tmp_path / "tall.png"
    np.savez_compressed(bomb, x=np.zeros(300 << 20, np.uint8))
    start = struct.pack(">IIBBBBB", 1, 100_000_000, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", start), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))
    tall.write_bytes(images.MAGIC[0] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ))  # fmt: skip
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"its \d{6} bytes would become 3145\d{5}"):
        read_array(str(bomb))
    signature = ("float32", (1, 1, 8, 8))
    with pytest.raises(InputError, match="1 x 100000000 pixels, over 65535 a side"):
        images.read_image(str(tall), "x", signature, images.Preparing())


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


def test_nothing_is_written_where_one_output_cannot_be(tmp_path: Path) -> None:
    results = {"a": np.zeros((1, 3, 4, 4), np.float32), "b": np.zeros(2)}
    with pytest.raises(InputError, match="No output is a picture"):
        write_outputs({"b": results["b"]}, tmp_path, lambda *_: [])
    with pytest.raises(UsageError, match="pillow"):
        write_outputs(results, tmp_path, lambda *_: images._pillow() and _refuse())
    assert list(tmp_path.iterdir()) == []


def _refuse() -> list[bytes]:
    raise UsageError("no pillow")


def test_shapes_are_checked_before_a_session_is_opened(
    tmp_path: Path, no_session: None, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 8), np.float32))
    model = copying(tmp_path, [1, 3, 4, 9])
    assert main(["run", str(model), "--input", f"x={tmp_path / 'x.npy'}", "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "[GE-201]" in said
    assert "[1, 3, 4, 8]" in said
    assert "requested by: --input" in said


@pytest.mark.parametrize(
    "more",
    [
        ["--images"], ["--size", "5"], ["--size", "0x4"], ["--std", "0"], ["--mean", "1,2"],
        ["--mean", "nan"], ["--scale", "0"], ["--scale", "x"], ["--size", "4x4"], ["--crop"],
        ["--images", "1,1", "--output", "o"], ["--labels", "/nonexistent"],
        ["--labels", "/dev/zero"], ["--layout", "abc"], ["--channels", "rgba"],
        ["--output", "/dev/null/x.npz"],
    ],
)  # fmt: skip
def test_options_that_make_no_sense(
    more: list[str], tmp_path: Path, no_session: None, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
    assert main(["run", str(DIGITS), "--input", f"image={tmp_path / 'x.npy'}", *more]) == 2
    assert more[0] in capsys.readouterr().err


# -- pictures --------------------------------------------------------------------------------------


def shown(array: np.ndarray[Any, Any], **how: Any) -> list[np.ndarray[Any, Any]]:
    limits = how.pop("limits", (0.0, 1.0))
    made = images.pictures(array, images.Preparing(**how), limits, lambda _: None)
    return [np.asarray(Image.open(io.BytesIO(one))) for one in made]


def test_outputs_as_pictures() -> None:
    first = PIXELS.transpose(2, 0, 1)
    float_ = first.astype(np.float32) / 255
    for array in (float_, float_[None], first, PIXELS, PIXELS[None] / np.float32(255)):
        np.testing.assert_array_equal(shown(array)[0], PIXELS)
    np.testing.assert_array_equal(shown(float_, channels="bgr")[0], PIXELS[..., ::-1])
    np.testing.assert_array_equal(shown(float_[:1])[0], PIXELS[..., 0])
    assert len(shown(np.stack([float_] * 4))) == 4
    signed = float_ * 2 - 1
    np.testing.assert_array_equal(shown(signed, limits=(-1.0, 1.0))[0], PIXELS)
    wild = np.array([[[-5, 0.5, np.nan], [np.inf, 1, 0]]], np.float32)
    np.testing.assert_array_equal(shown(wild)[0], [[0, 128, 0], [255, 255, 0]])
    for shape in ((1, 2, 5, 7), (5,), (1, 10), (1, 21, 5, 7), (1, 3, 0, 4)):
        assert shown(np.zeros(shape, np.float32)) == []


# -- classes ---------------------------------------------------------------------------------------

NAMES = [f"name {i}" for i in range(10)]


def test_the_five_most_probable_classes_have_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = RNG.random((2, 1, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", image)
    (tmp_path / "names.txt").write_text("\ufeff" + "\r\n".join(NAMES) + "\n\n", encoding="utf-8")
    given = ["--input", f"image={tmp_path / 'x.npy'}", "--labels", str(tmp_path / "names.txt")]
    assert main(["run", str(DIGITS), *given, "--device", "cpu", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["classes"]
    oracle = ort.InferenceSession(DIGITS, providers=["CPUExecutionProvider"])
    for row, top in zip(oracle.run(None, {"image": image})[0], found["top"], strict=True):
        best = sorted(range(10), key=lambda i: -row[i])[:5]
        assert [c["index"] for c in top] == best
        assert [c["name"] for c in top] == [NAMES[i] for i in best]
        np.testing.assert_allclose([c["probability"] for c in top], row[best], atol=5e-7)
    assert not found["softmax"]
    assert main(["run", str(DIGITS), *given, "--device", "cpu"]) == 0
    assert NAMES[best[0]] in capsys.readouterr().out


def test_logits_become_probabilities_and_nan_none() -> None:
    logits = RNG.normal(0, 3, (2, 10, 1, 1)).astype(np.float32)
    logits[1, 3] = np.nan
    (found,) = labels.classes({"y": logits, "z": np.zeros((2, 4), np.float32)}, NAMES)
    exact = np.exp(logits[0, :, 0, 0].astype(np.float64))
    exact /= exact.sum()
    order = np.argsort(-exact)[:5]
    assert found["softmax"]
    assert [c["index"] for c in found["top"][0]] == list(order)
    np.testing.assert_allclose([c["probability"] for c in found["top"][0]], exact[order], atol=5e-7)
    assert found["top"][1] == []
    assert "not finite" in str(labels.tables([found]))


def test_names_that_fit_no_output_are_refused_before_the_run(
    tmp_path: Path, no_session: None, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 9), np.float32))
    (tmp_path / "names.txt").write_text("a\nb\n", encoding="utf-8")
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--labels", str(tmp_path / "names.txt")]
    assert main(["run", str(copying(tmp_path, [1, 3, 4, 9])), *given]) == 2
    assert "No output has 2 classes" in capsys.readouterr().err
    with pytest.raises(GpuEdgeError, match="No output has 2 classes"):
        labels.classes({"y": np.zeros((1, 3), np.float32)}, ["a", "b"])
