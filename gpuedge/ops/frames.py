"""From a camera's frame to what a model takes: `gpuedge.for_frames`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gpuedge.core.dtypes import ACCEPTED
from gpuedge.core.errors import InputError, ModelError, ShapeError
from gpuedge.core.text import shown
from gpuedge.graph.build import GraphBuilder
from gpuedge.graph.ir import TensorType
from gpuedge.graph.parse import raised
from gpuedge.graph.reader import Dim, OnnxModel, Signature, takes
from gpuedge.graph.writer import to_onnx
from gpuedge.ops.arguments import flag, number, pair
from gpuedge.runtime.inputs import brief

if TYPE_CHECKING:
    import os

    import onnx

    from gpuedge.graph.ir import Array

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto

LEAST_OPSET = 13
"""Operator set from which Unsqueeze takes its axes as an input; older models are raised."""

FrameMode = Literal["linear", "nearest"]
MODES = get_args(FrameMode)
COLOURS = 3
Pixels = tuple[int, int]
"""Height and width."""


FLOAT, FLOAT16 = 1, 10
"""As ONNX numbers element types."""


def for_frames(
    model: Model,
    size: Any,
    *,
    to: Any = None,
    resize: FrameMode = "linear",
    crop: bool = False,
    swap_rb: bool = False,
    scale: float = 1 / 255,
    mean: Any = 0.0,
    std: Any = 1.0,
    image: str | None = None,
) -> onnx.ModelProto:
    """Return a model that takes frames of a camera, with the preprocessing in it.

    Its input `frame` is uint8 of shape (height, width, 3), as OpenCV, picamera2 and
    ``numpy.asarray`` of a Pillow image give it; it takes the place of `image`. What comes between
    is a few ONNX operators: resizing, ``(frame * scale - mean) / std``, and the order of axes and
    colours. They stand in the order in which ONNX Runtime is fast; a GPU needs one or two kernels.

    Error bound: that of `resize` (exact for ``nearest``), then that of `to_float`.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        One that takes a batch of images of 3 channels, (N, 3, H, W) or (N, H, W, 3), of float32 or
        float16, with N open or 1. It is not modified. Below operator set 13 it is raised to that.
    size : (int, int)
        Height and width of the frames, pixels.
    to : (int, int), optional
        Height and width of the images, where the model leaves them open; by default `size`.
    resize : {"linear", "nearest"}
        As `gpuedge.resize` does it, without antialiasing; of two pixels that are equally near
        the first.
    crop : bool
        Whether to take the largest middle part of the frame with the proportions of the image.
        Otherwise all of it is stretched.
    swap_rb : bool
        Whether red and blue change places, as for a frame of OpenCV (blue first) and a model that
        takes red first.
    scale : float
    mean, std : float or sequence of 3
        One for each channel in the order of the model, applied after `scale`.
    image : str, optional
        Name of the input that takes the image; needed where the model has several.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError (GE-500)
        The model cannot be read or raised to operator set 13, or takes no such images.
    ShapeError (GE-201), InputError (GE-203)
        An argument: sizes without pixels or other than the model's, an unknown input or mode.

    Examples
    --------
    >>> model = gpuedge.for_frames("net.onnx", (480, 640), swap_rb=True)  # doctest: +SKIP
    >>> with gpuedge.Session(model) as session:  # doctest: +SKIP
    ...     scores = session.run({"frame": frame})
    """
    if resize not in MODES:
        raise InputError(
            f"resize={brief(resize)} is not known.", known=f"modes: {', '.join(MODES)}"
        )
    proto = raised(model, LEAST_OPSET)
    read = OnnxModel.load(proto)
    name = _named(read.inputs, image)
    dtype, dims, first = _image(name, read.inputs[name])
    given = pair("size", size)
    target = given if to is None else pair("to", to)
    down, across = (d if isinstance(d, int) else n for d, n in zip(dims, target, strict=True))
    wanted = (down, across)
    if min(*given, *wanted) < 1 or (to is not None and wanted != target):
        raise ShapeError(
            f"Frames of {list(given)} pixels cannot become images of {list(target)}.",
            asked_by="for_frames", known=takes(read.inputs),
        )  # fmt: skip
    divisor = _three("std", std)
    if not divisor.all():
        raise InputError(f"std={brief(std)} divides by 0.")
    b = GraphBuilder(read.opset[""])
    x = b.input("frame", TensorType("uint8", (*given, COLOURS)))
    x = _resized(
        b, x, wanted, resize, is_cropped=flag("crop", crop), is_swapped=flag("swap_rb", swap_rb)
    )
    x = b.add("Mul", [x, b.constant("factor", np.float32(number("scale", scale) / divisor))])
    x = b.add("Add", [x, b.constant("shift", np.float32(-_three("mean", mean) / divisor))])
    if first == 1:
        x = b.add("Transpose", [x], {"perm": (0, 2, 3, 1)})
    if dtype != "float32":
        x = b.add("Cast", [x], {"to": FLOAT16})
    b.output(x)
    _put_before(proto.graph, name, to_onnx(b.build()).graph)
    return proto


def _named(inputs: Mapping[str, Signature], image: str | None) -> str:
    """Return the name of the input that takes the image."""
    if image is None and len(inputs) == 1:
        return next(iter(inputs))
    if image is None or image not in inputs:
        which = "several inputs" if image is None else f"no input {shown(str(image))}"
        raise InputError(
            f"The model has {which}.", asked_by="for_frames", known=takes(inputs),
            hint="image='...' names the one that takes the image",
        )  # fmt: skip
    return image


def _image(name: str, signature: Signature) -> tuple[str, tuple[Dim, ...], int]:
    """Return dtype, height and width of the image, and the number of the first of these axes."""
    dtype, dims = signature
    if dims is not None and len(dims) == 4 and dims[1] == dims[3] == COLOURS:
        raise ModelError(
            f"The channels of the input {shown(name)} may be its second axis or its last.",
            asked_by="for_frames", known=takes({name: signature}),
            hint="leave the height or width of 3 pixels open in the model",
        )  # fmt: skip
    for axis, first in ((1, 2), (3, 1)):
        is_one = dims is not None and len(dims) == 4 and dims[0] in (1, None, str(dims[0]))
        if dims is not None and is_one and dims[axis] == COLOURS and dtype in ACCEPTED:
            return dtype, dims[first : first + 2], first
    raise ModelError(
        f"The input {shown(name)} takes no image of {COLOURS} channels.",
        asked_by="for_frames", known=takes({name: signature}),
        hint="such inputs are float32 or float16, [N, 3, H, W] or [N, H, W, 3]",
    )  # fmt: skip


def _three(name: str, value: Any) -> Array:
    """Return numbers for the channels, float64 of shape (3, 1, 1)."""
    given = tuple(value) if hasattr(value, "__iter__") else (value,) * COLOURS
    if len(given) != COLOURS:
        raise InputError(f"{name}={brief(value)} is neither a number nor {COLOURS} of them.")
    return np.array([number(name, v) for v in given]).reshape(COLOURS, 1, 1)


def _middle(given: Pixels, wanted: Pixels) -> tuple[Pixels, Pixels]:
    """Return the first pixel and the size of the largest part with the proportions of `wanted`."""
    (h, w), (down, across) = given, wanted
    size = min(h, max(1, round(w * down / across))), min(w, max(1, round(h * across / down)))
    return ((h - size[0]) // 2, (w - size[1]) // 2), size


def _nearest(size: int, new: int) -> Array:
    """Return which of `size` pixels has its middle nearest to that of each new one.

    That is the first pixel at or above (2 i + 1) size / (2 new) - 1, in integers.
    """
    return ((2 * np.arange(new) + 1) * size - 1) // (2 * new)


def _resized(
    b: GraphBuilder, x: str, wanted: Pixels, mode: str, *, is_cropped: bool, is_swapped: bool
) -> str:
    """Add what makes (1, 3, *wanted) in float32 of a frame.

    Bytes are moved as bytes: ONNX Runtime takes whole pixels of three, and then transposes, twice
    to five times as fast as other orders; it is slow to resize such frames itself.
    """
    given = (b.type(x).shape[0], b.type(x).shape[1])
    start, size = _middle(given, wanted) if is_cropped else ((0, 0), given)
    for axis in (0, 1):
        places = np.arange(size[axis])
        if mode == "nearest":
            places = _nearest(size[axis], wanted[axis])
        if len(places) != given[axis] or (places != np.arange(given[axis])).any():
            taken = b.constant(f"taken{axis}", start[axis] + places)
            x = b.add("Gather", [x, taken], {"axis": axis})
    x = b.add("Transpose", [x], {"perm": (2, 0, 1)})
    if is_swapped:
        x = b.add("Gather", [x, b.constant("order", np.array([2, 1, 0]))], {"axis": 0})
    x = b.add("Cast", [x], {"to": FLOAT})
    x = b.add("Unsqueeze", [x, b.constant("batch", np.array([0]))])
    if b.type(x).shape[2:] == wanted:
        return x
    return b.add("Resize", [x, "", "", b.constant("size", np.array((1, COLOURS, *wanted)))],
                 {"mode": mode})  # fmt: skip


def _put_before(graph: onnx.GraphProto, name: str, before: onnx.GraphProto) -> None:
    """Let `before` compute the input `name` of a graph, from an input of its own."""
    taken = {v for n in graph.node for v in (*n.input, *n.output)} | {v.name for v in graph.input}
    start = before.input[0].name
    while start in taken:
        start += "_"
    names = {"": "", before.input[0].name: start, before.output[0].name: name}
    for node in before.node:
        node.name = f"{start}/{node.name}"
        for values in (node.input, node.output):
            values[:] = [names.get(v, f"{start}/{v}") for v in values]
    for tensor in before.initializer:
        tensor.name = f"{start}/{tensor.name}"
    before.input[0].name = start
    next(v for v in graph.input if v.name == name).CopyFrom(before.input[0])
    before.node.extend(graph.node)
    graph.ClearField("node")
    graph.node.extend(before.node)
    graph.initializer.extend(before.initializer)
