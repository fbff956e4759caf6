"""The networks of the examples: their training library, the committed models, the pictures.

The oracle is the training library in float64: it shares nothing with ONNX Runtime and with us.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import daily
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from farm import FARM, require
from onnx import numpy_helper
from test_examples import EXAMPLES, pixels, run

sys.path.insert(0, str(EXAMPLES))
import learn
import train_beats
import train_pencil
import train_shapes
from photo import load_photo

Array = np.ndarray[Any, Any]
NETS = {"shapes": train_shapes.unet, "pencil": train_pencil.transformer, "beats": train_beats.tcn}
SCRIPTS = {"shapes": "09_segmentation.py", "pencil": "10_style.py", "beats": "11_signal.py"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def model(name: str) -> Path:
    return EXAMPLES / "models" / f"{name}.onnx"


def given(name: str) -> Array:
    """Return an input that training never saw."""
    if name == "beats":
        return train_beats.signal(np.random.default_rng(5), 700)[0][None, None]
    return load_photo("flower.jpg")[None, :, 0, 100:172, 200:296]


def described(name: str, x: Array, dtype: Any = np.float64) -> Array:
    """Return what a network of the examples computes, in float64 by default."""
    net = learn.Net(dtype=dtype)
    for tensor in onnx.load(model(name)).graph.initializer:
        net.weights[tensor.name] = numpy_helper.to_array(tensor).astype(dtype)
    return NETS[name](net, x).data


def allowed(name: str, x: Array) -> tuple[Array, float]:
    """Return the exact result, and how far one in float32 may be from it.

    How much a network makes of rounding errors is measured: numpy in float32 adds the same products
    in another order. Another order again may be some times as unlucky.
    """
    exact = described(name, x)
    return exact, 8 * float(np.abs(described(name, x, np.float32) - exact).max())


def by_onnxruntime(name: str, x: Array) -> Array:
    session = ort.InferenceSession(model(name), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


@pytest.mark.parametrize("name", NETS)
def test_models_compute_what_was_described(name: str) -> None:
    x = given(name)
    exact, bound = allowed(name, x)
    assert bound < 1e-4 * np.abs(exact).max()
    assert np.abs(by_onnxruntime(name, x) - exact).max() < bound
    assert exact.std() > 0.05


@pytest.mark.parametrize("name", NETS)
def test_committed_models_are_small(name: str) -> None:
    onnx.checker.check_model(str(model(name)), full_check=True)
    assert 10_000 < model(name).stat().st_size < 130_000


def test_committed_models_are_good() -> None:
    image, classes = train_shapes.scene(
        np.random.default_rng(11), train_shapes.backdrop("flower.jpg"), (192, 256)
    )
    found = by_onnxruntime("shapes", image[None])[0].argmax(0)
    assert train_shapes.overlap(found, classes) > 0.7
    photo = load_photo("flower.jpg")[:, 0, 100:292, 200:456]
    drawn, wanted = by_onnxruntime("pencil", photo[None])[0], train_pencil.drawing(photo)
    assert np.abs(drawn - wanted).mean() < 0.5 * np.abs(wanted - wanted.mean()).mean()
    x, beats = train_beats.signal(np.random.default_rng(11), 6000)
    found = train_beats.found_in(by_onnxruntime("beats", x[None, None])[0, 0])
    assert train_beats.score(found, beats) > 0.95


def test_the_signal_network_sees_only_the_past() -> None:
    x = given("beats")
    changed = x.copy()
    changed[..., 400:] += 1
    before, after = (by_onnxruntime("beats", one) for one in (x, changed))
    np.testing.assert_array_equal(before[..., :400], after[..., :400])
    assert np.abs(before - after)[..., 400:].max() > 0.01


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_differences(name: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 1, 40) if name == "beats" else (2, 3, 8, 12))
    net = learn.Net(5, np.float64)
    direction = rng.standard_normal(NETS[name](net, x).data.shape)

    def value() -> float:
        return float((NETS[name](net, x).data * direction).sum())

    net.step(NETS[name](net, x), direction, 0.0)
    grads, trained = net.grads, [n for n in net.weights if n != "twice"]
    assert sorted(grads) == sorted(trained)
    for one in trained:
        start, way = net.weights[one], rng.standard_normal(net.weights[one].shape)
        net.weights[one] = start + 1e-6 * way
        above = value()
        net.weights[one] = start - 1e-6 * way
        slope = (above - value()) / 2e-6
        net.weights[one] = start
        assert slope == pytest.approx(float((grads[one] * way).sum()), rel=2e-4, abs=1e-5), one


@pytest.mark.parametrize(
    "name", ["beats", *(pytest.param(n, marks=pytest.mark.long) for n in ("shapes", "pencil"))]
)
def test_a_training_script_makes_a_model(name: str, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "new" / f"{name}.onnx"
    run(f"train_{name}.py", "--steps", 2, "--output", file, cwd=tmp_path, cache=cache)
    assert file.stat().st_size == model(name).stat().st_size


def shown(name: str) -> Array:
    """Return what the example of a network gives it."""
    if name == "pencil":
        return load_photo("flower.jpg")[None, :, 0, 60:380, 160:600]
    if name == "beats":
        return train_beats.signal(np.random.default_rng(8), 3000)[0][None, None]
    return seen()[0][None]


def seen() -> tuple[Array, Array]:
    photo = train_shapes.backdrop("flower.jpg")
    return train_shapes.scene(np.random.default_rng(7), photo, (192, 256))


@pytest.mark.driver
def test_an_example_shows_what_the_network_computes(tmp_path: Path, cache: Path) -> None:
    """One of them each day."""
    check_example(list(NETS)[daily.turn(len(NETS))], tmp_path, cache)


@pytest.mark.driver
@pytest.mark.long
@pytest.mark.parametrize("name", NETS)
def test_every_example_shows_what_the_network_computes(
    name: str, tmp_path: Path, cache: Path
) -> None:
    check_example(name, tmp_path, cache)


def check_example(name: str, tmp_path: Path, cache: Path) -> None:
    """On a GPU: the picture, and how far it is from ONNX Runtime."""
    require("vulkan-lavapipe")
    variables = FARM["vulkan-lavapipe"].environment()
    out = run(SCRIPTS[name], "vulkan", tmp_path, cwd=tmp_path, cache=cache,
              GPUEDGE_FALLBACK="error", **variables)  # fmt: skip
    assert "ran on vulkan:0" in out
    away = float(out.split("largest difference to onnxruntime: ")[1].split()[0])
    assert 0 < away < 2 * allowed(name, shown(name))[1]
    picture = pixels(tmp_path / f"{name}.png")
    if name == "beats":
        assert picture.shape == (220, 1000, 3)
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 4
    elif name == "pencil":
        wanted = by_onnxruntime(name, shown(name))[0].transpose(1, 2, 0) * 255
        assert picture.shape == (320, 880, 3)
        assert np.abs(picture[:, 440:] - wanted).max() < 0.6
    else:
        assert picture.shape == (192, 3 * 256, 3)
        image, truth = seen()
        assert np.abs(picture[:, :256] - image.transpose(1, 2, 0) * 255).max() < 0.6
        right = (picture[:, 256:512] == picture[:, 512:]).all(axis=2)
        found = by_onnxruntime(name, image[None])[0].argmax(0)
        assert abs(right.mean() - (found == truth).mean()) < 1e-3
