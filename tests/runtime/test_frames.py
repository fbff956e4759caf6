"""Models that take a camera's frames, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from planrun import TEXTURES, plan_device

import gpuedge
from gpuedge.core.errors import InputError, ModelError, ShapeError

DEVICES: dict[str, Callable[[], Any]] = {
    "cpu": lambda: "cpu",
    "auto": lambda: "auto",
    "minimum": plan_device,
    "textures": lambda: plan_device(TEXTURES),
}
H, W = 12, 20
FRAME = np.random.default_rng(29).integers(0, 256, (H, W, 3), dtype=np.uint8)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Array = Any


def taking(
    shape: Sequence[int | str], dtype: int = TensorProto.FLOAT, *, name: str = "x", opset: int = 17
) -> onnx.ModelProto:
    """Return a model that gives back the image that it takes."""
    node = helper.make_node("Identity", [name], ["y"])
    image, result = (helper.make_tensor_value_info(n, dtype, shape) for n in (name, "y"))
    graph = helper.make_graph([node], "model", [image], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto, device: str = "cpu", frame: Array = FRAME) -> Array:
    with gpuedge.Session(model, device=DEVICES[device]()) as session:
        return session.run({"frame": frame})["y"]


def whole(frame: Array) -> Array:
    """Return a frame as a batch of float64, channels first."""
    return frame.transpose(2, 0, 1)[None].astype(np.float64)


def middles(size: int, new: int) -> Array:
    """Return where the middles of new pixels lie among the old ones."""
    return (np.arange(new) + 0.5) * size / new - 0.5


def nearest(image: Array, new: tuple[int, int]) -> Array:
    """Take the pixel whose middle is nearest; of two the first."""
    rows, columns = (
        np.abs(np.arange(n)[None] - middles(n, m)[:, None]).argmin(1)
        for n, m in zip(image.shape[2:], new, strict=True)
    )
    return image[:, :, rows][..., columns]


def linear(image: Array, new: tuple[int, int]) -> Array:
    """Weigh the two pixels around each new middle; beyond the border lies its last pixel."""
    for axis, size in ((2, new[0]), (3, new[1])):
        old = image.shape[axis]
        places = np.clip(middles(old, size), 0, old - 1)
        below = np.minimum(places.astype(int), old - 2)
        part = (places - below).reshape([-1 if i == axis else 1 for i in range(4)])
        image = (1 - part) * image.take(below, axis) + part * image.take(below + 1, axis)
    return image


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(7, 9), (12, 20), (24, 31), (1, 20)])
def test_nearest_pixels_are_exact(device: str, size: tuple[int, int]) -> None:
    model = gpuedge.for_frames(taking((1, 3, *size)), (H, W), resize="nearest", scale=1)
    got = run(model, device)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, nearest(whole(FRAME), size))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(7, 9), (12, 20), (25, 31)])
def test_linear_pixels_are_within_the_bound(device: str, size: tuple[int, int]) -> None:
    model = gpuedge.for_frames(taking(("N", 3, *size)), (H, W), mean=MEAN, std=STD)
    got = run(model, device)
    mean, std = (np.reshape(v, (3, 1, 1)) for v in (MEAN, STD))
    resized = linear(whole(FRAME), size)
    wanted = (resized / 255 - mean) / std
    # gpuedge.resize of 4 pixels up to 255, and gpuedge.to_float with a rounded factor and shift
    product, shift = resized / 255 / std, mean / std
    bound = (4 + 4 * (H + W)) * 2.0**-24 * 255 / 255 / std
    bound = bound + 2.0**-22 * np.maximum(product, np.abs(wanted)) + 2.0**-24 * (product + shift)
    assert (np.abs(got - wanted) <= bound).all()


def test_of_two_pixels_equally_near_it_is_the_first() -> None:
    frame = np.random.default_rng(1).integers(0, 256, (4, 640, 3), dtype=np.uint8)
    model = gpuedge.for_frames(taking((1, 3, 4, 224)), (4, 640), resize="nearest", scale=1)
    got = run(model, frame=frame)
    assert middles(640, 224)[3] == 9.5  # 3.5 / (224 / 640) - 0.5 is a little more
    np.testing.assert_array_equal(got, nearest(whole(frame), (4, 224)))


def test_linear_at_the_size_of_the_frame_is_exact() -> None:
    model = gpuedge.for_frames(taking((1, 3, H, W)), (H, W), scale=2)
    np.testing.assert_array_equal(run(model), whole(FRAME) * 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("size", "part"),
    [((6, 6), np.s_[:, :, :, 4:16]), ((4, 16), np.s_[:, :, 3:8])],
    ids=["square", "wide"],
)
def test_the_middle_is_cut_and_colours_change_places(
    device: str, mode: str, size: tuple[int, int], part: Any
) -> None:
    model = gpuedge.for_frames(
        taking((1, 3, *size)), (H, W), resize=mode, crop=True, swap_rb=True, scale=1
    )
    resized = {"nearest": nearest, "linear": linear}[mode](whole(FRAME)[part], size)
    error = 0 if mode == "nearest" else (4 + 4 * (H + W)) * 2.0**-24 * 255
    np.testing.assert_allclose(run(model, device), resized[:, ::-1], rtol=0, atol=error)


def test_channels_last_halves_and_open_sides() -> None:
    for shape, to, axes in (
        (("N", 6, 10, 3), None, (0, 2, 3, 1)),
        (("N", "height", "width", 3), (6, 10), (0, 2, 3, 1)),
        ((1, 3, "height", "width"), (6, 10), (0, 1, 2, 3)),
    ):
        for dtype, kind in ((TensorProto.FLOAT, np.float32), (TensorProto.FLOAT16, np.float16)):
            model = taking(shape, dtype)
            model = gpuedge.for_frames(model, (H, W), to=to, resize="nearest", scale=0.5)
            got = run(model)
            assert got.dtype == kind
            wanted = nearest(whole(FRAME), (6, 10)) / 2
            np.testing.assert_array_equal(got, wanted.transpose(axes))
    same = gpuedge.for_frames(taking((1, 3, "height", "width")), (H, W), scale=1)
    np.testing.assert_array_equal(run(same), whole(FRAME))


def test_any_strides_of_a_frame_will_do() -> None:
    model = gpuedge.for_frames(taking((1, 3, H, W)), (H, W), scale=1)
    mirrored = FRAME[:, ::-1]
    np.testing.assert_array_equal(run(model, frame=mirrored), whole(mirrored))


def test_names_of_the_model_and_other_inputs_stay() -> None:
    model = taking((1, 3, H, W), name="frame", opset=9)  # raised to 13
    made = gpuedge.for_frames(model, (H, W), scale=1)
    assert [v.name for v in model.graph.input] == ["frame"], "the model is not modified"
    assert [v.name for v in made.graph.input] == ["frame_"]
    with gpuedge.Session(made, device="cpu") as session:
        np.testing.assert_array_equal(session.run([FRAME])["y"], whole(FRAME))
    model = taking((1, 3, H, W))
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "by"], ["y"]))
    by = helper.make_tensor_value_info("by", TensorProto.FLOAT, [1])
    model.graph.input.insert(0, by)
    made = gpuedge.for_frames(model, (H, W), scale=1, image="x")
    assert [v.name for v in made.graph.input] == ["by", "frame"]
    got = ort.InferenceSession(made.SerializeToString()).run(
        None, {"frame": FRAME, "by": np.float32([3])}
    )
    np.testing.assert_array_equal(got[0], whole(FRAME) + 3)
    with pytest.raises(InputError, match="several inputs"):
        gpuedge.for_frames(model, (H, W))
    with pytest.raises(InputError, match="no input 'z'"):
        gpuedge.for_frames(model, (H, W), image="z")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_onnx_runtime_computes_all_of_it_on_the_cpu(mode: str) -> None:
    # numpy would take ten times as long for what ONNX Runtime does not do as ONNX has it
    model = gpuedge.for_frames(taking((1, 3, 224, 224)), (480, 640), resize=mode)
    with gpuedge.Session(model, device="cpu") as session:
        assert {row.kernel.partition(" ")[0] for row in session.placement} == {"onnxruntime"}


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "mode": ({"resize": "cubic"}, InputError, "modes: linear, nearest"),
    "no pixels": ({"size": (0, 4)}, ShapeError, "cannot become images"),
    "no pair": ({"size": (1, 2, 3)}, InputError, "size="),
    "other size": ({"to": (6, 7)}, ShapeError, r"\[6, 7\]"),
    "flag": ({"crop": 1}, InputError, "crop=1"),
    "two means": ({"mean": (1, 2)}, InputError, "mean="),
    "zero": ({"std": (1, 0, 1)}, InputError, "divides by 0"),
    "no number": ({"scale": float("nan")}, InputError, "scale="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_told(name: str) -> None:
    options, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        gpuedge.for_frames(taking((1, 3, 6, 6)), **{"size": (H, W), **options})


def test_models_whose_channels_may_be_two_axes_are_refused() -> None:
    with pytest.raises(ModelError, match="second axis or its last"):
        gpuedge.for_frames(taking((1, 3, 6, 3)), (H, W))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 1, 6, 6), TensorProto.FLOAT),
        ((2, 3, 6, 6), TensorProto.FLOAT),
        ((3, 6, 6), TensorProto.FLOAT),
        ((1, 3, 6, 6), TensorProto.UINT8),
    ],
)
def test_models_of_other_inputs_are_refused(shape: Sequence[int], dtype: int) -> None:
    with pytest.raises(ModelError, match="no image of 3 channels"):
        gpuedge.for_frames(taking(shape, dtype), (H, W))
