"""What a camera frame needs, as functions on arrays, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from planrun import TEXTURES, plan_device

import gpuedge
from gpuedge.core.errors import DTypeError, InputError, ShapeError

DEVICES = {
    "cpu": lambda: "cpu",
    "minimum": plan_device,
    "textures": lambda: plan_device(TEXTURES),
}
RNG = np.random.default_rng(12)
FRAME = RNG.integers(0, 256, (5, 7, 3)).astype(np.uint8)
WHOLE = RNG.integers(-9, 10, (2, 3, 7)).astype(np.float32)
OTHER = RNG.integers(-9, 10, (3, 1)).astype(np.float32)
ANCHORS = np.array([[0, 0, 4, 4], [0, 1, 4, 5], [6, 6, 9, 9], [5, 5, 9, 9]], np.float32)

Call = Callable[..., Any]
G = gpuedge

EXACT: dict[str, tuple[Call, Any]] = {
    "flip all": (lambda d: G.flip(WHOLE, device=d), WHOLE[::-1, ::-1, ::-1]),
    "slice of bytes": (lambda d: G.slice(FRAME, (1, 2), (4, -1), device=d), FRAME[1:4, 2:-1]),
    "pad": (lambda d: G.pad(FRAME, ((1, 0), (2, 3), (0, 0)), constant_values=7, device=d),
            np.pad(FRAME, ((1, 0), (2, 3), (0, 0)), constant_values=7)),
    "pad by one": (lambda d: G.pad(WHOLE, 1, device=d), np.pad(WHOLE, 1)),
    **{f"pad {mode}": (lambda d, mode=mode: G.pad(WHOLE, (1, 2)[:1], mode, device=d),
                       np.pad(WHOLE, 1, mode)) for mode in ("edge", "reflect", "wrap")},
    "take": (lambda d: G.take(FRAME, [[2, 0], [-1, 1]], 1, device=d), FRAME[:, [[2, 0], [-1, 1]]]),
    "take of all": (lambda d: G.take(WHOLE, [0, 41, -1], device=d), WHOLE.ravel()[[0, 41, -1]]),
    "where": (lambda d: G.where(WHOLE > 0, WHOLE, OTHER, device=d),
              np.where(WHOLE > 0, WHOLE, OTHER)),
    "where by numbers": (lambda d: G.where(WHOLE, 1.0, [2, 3, 4, 5, 6, 7, 8], device=d),
                         np.where(WHOLE != 0, 1, np.arange(2, 9)).astype(np.float32)),
    "where of bytes": (lambda d: G.where(FRAME, FRAME, np.full(3, 9, np.uint8), device=d),
                       np.where(FRAME != 0, FRAME, 9).astype(np.uint8)),
    "less": (lambda d: G.less(FRAME, FRAME[::-1], device=d), FRAME[::-1] > FRAME),
    "maximum with a number": (lambda d: G.maximum(FRAME, 17, device=d), np.maximum(FRAME, 17)),
    "maximum of a view": (
        lambda d: G.maximum(FRAME[:, ::-1], FRAME, device=d), np.maximum(FRAME[:, ::-1], FRAME)),
    "clip from above": (lambda d: G.clip(FRAME, None, 9, device=d), np.minimum(FRAME, 9)),
    "flatten of bytes": (lambda d: G.flatten(FRAME, device=d), FRAME.reshape(5, -1)),
    "sum": (lambda d: G.sum(WHOLE, device=d), WHOLE.sum()),
    "sum of bytes": (
        lambda d: G.sum(FRAME, (0, 1), device=d), FRAME.sum((0, 1)).astype(np.float32)),
    "sum along": (
        lambda d: G.sum(WHOLE, (0, -1), keepdims=True, device=d), WHOLE.sum((0, 2), keepdims=True)),
    "argmax of all": (lambda d: G.argmax(WHOLE, device=d), np.array(WHOLE.argmax())),
    "argmax kept": (
        lambda d: G.argmax(WHOLE, keepdims=True, device=d), WHOLE.argmax(keepdims=True)),
    "expression of bytes": (
        lambda d: G.elementwise("where(x >= 128, x - 128, 0) * 2")(FRAME, device=d),
        np.where(FRAME >= 128, FRAME - 128.0, 0).astype(np.float32) * 2),
    "comparisons as numbers": (
        lambda d: G.elementwise("(a > b) + (a == b) * (a < 0)")(WHOLE, OTHER, device=d),
        (WHOLE > OTHER) + (((WHOLE == OTHER) & (WHOLE < 0)).astype(np.float32))),
    "comparison alone": (lambda d: G.elementwise("a <= 2")(WHOLE, device=d), WHOLE <= 2),
    "mask": (lambda d: G.elementwise("where(m, a, -1)")(WHOLE > 0, WHOLE, device=d),
             np.where(WHOLE > 0, WHOLE, -1).astype(np.float32)),
    "boxes": (lambda d: G.non_max_suppression(ANCHORS, [0.5, 0.75, 0.25, 1], 3, 0.4, device=d),
              np.array([3, 1])),
    "boxes of classes": (
        lambda d: G.non_max_suppression(ANCHORS, [[0.5, 0.75, 0.25, 1], [1, 0, 0.5, 0]], 2, 0.4,
                                        0.1, device=d),
        np.array([[0, 3], [0, 1], [1, 0], [1, 2]])),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EXACT)
def test_results_are_those_of_numpy(name: str, device: str) -> None:
    call, wanted = EXACT[name]
    got = call(DEVICES[device]())
    assert (got.dtype, got.shape) == (np.asarray(wanted).dtype, np.shape(wanted))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_become_numbers(device: str) -> None:
    where = DEVICES[device]()
    scale, offset = np.float32([1 / 58.4, 1 / 57.1, 1 / 57.4]), np.float32([-2.1, -2.0, -1.8])
    for got, by, plus in (
        (gpuedge.to_float(FRAME, device=where), np.float32(1 / 255), 0.0),
        (gpuedge.to_float(FRAME, scale, offset, device=where), scale, offset),
    ):
        product = FRAME.astype(np.float64) * np.float64(by)
        wanted = product + np.float64(plus)
        assert got.dtype == np.float32
        bound = 2.0**-22 * np.maximum(np.abs(product), np.abs(wanted))
        assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("device", DEVICES)
def test_mean_topk_and_nonzero(device: str) -> None:
    where = DEVICES[device]()
    got = gpuedge.mean(FRAME, (0, 1), device=where)
    wanted = FRAME.astype(np.float64).mean((0, 1))
    assert (np.abs(got - wanted) <= 2.0**-21 * wanted).all()
    for largest in (True, False):
        values, indices = gpuedge.topk(WHOLE, 3, 1, largest=largest, device=where)
        order = np.argsort(-WHOLE if largest else WHOLE, axis=1, kind="stable")
        np.testing.assert_array_equal(indices, order[:, :3])
        np.testing.assert_array_equal(values, np.take_along_axis(WHOLE, order[:, :3], axis=1))
    for x in (WHOLE, FRAME, WHOLE > 0, WHOLE * 0):
        for found, right in zip(gpuedge.nonzero(x, device=where), np.nonzero(x), strict=True):
            np.testing.assert_array_equal(found, right)


def taps(size: int, new: int, *, antialias: bool) -> Any:
    """Return the weights of pixels for each new one: a triangle as wide as the step, in float64."""
    wide = max(1.0, size / new) if antialias else 1.0
    places = np.arange(-size, 2 * size)
    centres = (np.arange(new) + 0.5) * size / new - 0.5
    weights = np.maximum(0, 1 - np.abs(places - centres[:, None]) / wide)
    weights /= weights.sum(1, keepdims=True)
    found = np.zeros((new, size))
    np.add.at(found, (slice(None), np.clip(places, 0, size - 1)), weights)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_resize(device: str) -> None:
    image = RNG.uniform(0, 1, (3, 9, 12)).astype(np.float32)
    for size, antialias in (((5, 7), True), ((18, 11), True), ((5, 7), False), ((13, 12), False)):
        got = gpuedge.resize(image, size, antialias=antialias, device=DEVICES[device]())
        down, across = (taps(image.shape[i + 1], size[i], antialias=antialias) for i in (0, 1))
        wanted = down @ image.astype(np.float64) @ across.T
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6)
    twice = gpuedge.resize(image[0], (18, 24), "nearest", device=DEVICES[device]())
    np.testing.assert_array_equal(twice, image[0].repeat(2, 0).repeat(2, 1))


def test_float16_stays() -> None:
    half = WHOLE.astype(np.float16)
    assert gpuedge.where(half > 0, half, half, device="cpu").dtype == np.float16
    assert gpuedge.topk(half, 1, device="cpu")[0].dtype == np.float16
    assert gpuedge.resize(half, 4, device="cpu").dtype == np.float16
    assert gpuedge.greater(half, half, device="cpu").dtype == np.bool_


BAD: dict[str, tuple[Call, type[Exception], str]] = {
    "axis": (lambda: G.flip(FRAME, 3), ShapeError, "axis=3"),
    "axis twice": (lambda: G.sum(WHOLE, (1, -2)), ShapeError, "each once"),
    "no integer": (lambda: G.mean(WHOLE, 0.5), InputError, "integer"),
    "nothing": (lambda: G.mean(np.zeros((0, 3), np.float32)), ShapeError, "nothing"),
    "slices": (lambda: G.slice(FRAME, (0,), (1, 2)), ShapeError, "slice has"),
    "step": (lambda: G.slice(FRAME, (0,), (1,), (0,)), ShapeError, "step"),
    "crop": (lambda: G.crop(WHOLE, 2, 0, 2, 2), ShapeError, "3 rows and 7 columns"),
    "widths": (lambda: G.pad(WHOLE, ((1, 2), (3, 4))), ShapeError, "rank 3"),
    "mode": (lambda: G.pad(WHOLE, 1, "symmetric"), InputError, "modes: constant"),
    "too far": (lambda: G.pad(WHOLE, 2, "reflect"), ShapeError, "reflect"),
    "fill": (lambda: G.pad(FRAME, 1, constant_values=0.5), InputError, "does not fit uint8"),
    "index": (lambda: G.take(WHOLE, 3, 1), InputError, "outside"),
    "index of floats": (lambda: G.take(WHOLE, [0.0]), DTypeError, "float64"),
    "scalar": (lambda: G.nonzero(1.0), ShapeError, "scalar"),
    "k": (lambda: G.topk(WHOLE, 8), ShapeError, "first"),
    "size": (lambda: G.resize(WHOLE, 0), ShapeError, "pixels"),
    "filter": (lambda: G.resize(WHOLE, 3, "lanczos"), InputError, "modes: linear"),
    "share": (lambda: G.non_max_suppression(ANCHORS, np.ones(4, "f4"), 3, 1.5), InputError, "1.5"),
    "scores": (lambda: G.non_max_suppression(ANCHORS, np.ones(3, "f4"), 3), ShapeError, "boxes"),
    "mixed": (lambda: G.where(True, FRAME, FRAME.astype(np.int8)), DTypeError, "mixes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_told(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call()
