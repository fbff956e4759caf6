"""Every example runs as a user would run it, and what it prints and writes is right."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import daily
import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image
from scipy.ndimage import correlate

from gpuedge.cli.cache import cache_files

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBERED = sorted(EXAMPLES.glob("[0-9]*.py"))
MODEL = EXAMPLES / "models" / "digits.onnx"
HIDDEN = {
    "VK_DRIVER_FILES": "/nonexistent",
    "VK_ICD_FILENAMES": "/nonexistent",
    "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent",
    "GPUEDGE_EGL": "",
}

sys.path.insert(0, str(EXAMPLES))
import photo  # noqa: E402
import train_digits  # noqa: E402


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(script: str | Path, *arguments: object, cwd: Path, cache: Path, **extra: str) -> str:
    environment = {**os.environ, "GPUEDGE_CACHE_DIR": str(cache), "NO_COLOR": "1", **extra}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / script, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if done.returncode:
        pytest.fail(f"{script} gave {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def pixels(path: Path) -> train_digits.Array:
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


@pytest.mark.parametrize("path", NUMBERED, ids=lambda p: p.stem)
def test_example_is_short_and_says_what_you_will_see(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert (ast.get_docstring(ast.parse(text)) or "").startswith("What you will see: ")


def test_examples_import_onnx_runtime_in_one_place_without_its_telemetry() -> None:
    """It starts a thread where it is imported before somebody turned that off (version 1.32)."""
    for path in sorted(EXAMPLES.glob("*.py")):
        names = [
            name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in (getattr(node, "module", None), *(one.name for one in node.names))
        ]  # fmt: skip
        assert ("onnxruntime" in names) == (path.name == "oracle.py"), path.name
    code = "import os, oracle; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    clean = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, env=clean, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"1"]


def test_examples_are_numbered_without_gaps() -> None:
    assert [int(p.name[:2]) for p in NUMBERED] == list(range(1, len(NUMBERED) + 1))


@pytest.mark.parametrize("name", ["06_policy.py", "07_database.py"])
def test_example_runs(name: str, tmp_path: Path, cache: Path) -> None:
    """Other tests run the others with drivers, and look at what they print."""
    assert run(name, cwd=tmp_path, cache=cache)


IN_TURN = """
import contextlib, os, runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path]
    sys.path[0] = os.path.dirname(path)
    with open(os.path.basename(path) + ".out", "w") as out, contextlib.redirect_stdout(out):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            assert not end.code, (path, end)
"""
"""Examples one after the other in one process: what takes a second to import is imported once."""


def test_every_example_runs_without_any_driver(tmp_path: Path, cache: Path) -> None:
    program = tmp_path / "in_turn.py"
    program.write_text(IN_TURN)
    run(program, *NUMBERED, cwd=tmp_path, cache=cache, **HIDDEN)
    assert [p.stem for p in NUMBERED if not (tmp_path / f"{p.name}.out").stat().st_size] == []


def test_arrays_are_right_everywhere(tmp_path: Path, cache: Path) -> None:
    lines = run("02_arrays.py", cwd=tmp_path, cache=cache).splitlines()
    assert lines[0].startswith("cpu")
    for line in lines:
        assert "add right: True" in line
        assert "formula right: True" in line
    assert len({line.partition("conv2d:")[2] for line in lines}) == 1


def test_photo_is_what_scipy_makes_of_it(tmp_path: Path, cache: Path) -> None:
    run("03_photo.py", "auto", tmp_path, cwd=tmp_path, cache=cache)
    picture = pixels(tmp_path / "flower.png")
    source = photo.load_photo("flower.jpg").astype(np.float64)[:, 0]
    blur, sharp, across, down = (
        np.stack([correlate(colour, f, mode="nearest") for colour in source])
        for f in photo.FILTERS.values()
    )
    _, height, width = source.shape
    line = picture.shape[0] // 2 - height
    assert picture.shape == (2 * (height + line), 2 * width, 3)
    tiles = {(0, 0): source, (0, 1): blur, (1, 0): sharp, (1, 1): np.hypot(across, down)}
    for (row, column), wanted in tiles.items():
        top, left = row * (height + line), column * width
        found = picture[top : top + height, left : left + width].transpose(2, 0, 1)
        # Rounding to whole steps may fall either way where the two disagree in the last bits.
        assert np.abs(found - np.clip(wanted, 0, 1) * 255).max() <= 0.5 + 1e-3
        label = picture[top + height : top + height + line, left : left + width]
        assert 20 < (label < 128).sum() < label.size / 10, "dark text on light ground"


def test_borders_are_not_framed() -> None:
    flat = np.full((3, 1, 9, 9), 0.5, np.float32)
    blur, sharp, across, down = photo.filtered_exactly(flat).transpose(1, 0, 2, 3)
    assert (np.abs(blur - 0.5) < 1e-6).all()
    assert (np.abs(sharp - 0.5) < 1e-6).all()
    assert not across.any()
    assert not down.any()


@pytest.mark.parametrize(
    "name",
    daily.some(["03_photo.py", "04_onnx.py", "06_policy.py", "09_segmentation.py", "10_style.py",
                "11_signal.py", "12_image.py", "13_frames.py", "demo.py"], 3),
)  # fmt: skip
def test_example_without_its_packages_says_what_to_install(name: str, tmp_path: Path) -> None:
    code = (
        "import runpy, sys\nsys.modules['sklearn'] = sys.modules['PIL'] = None\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\nrunpy.run_path({str(EXAMPLES / name)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("This example needs ")
    assert done.stderr.rstrip().endswith('pip install ".[examples]"')


@pytest.mark.parametrize(
    "asked",
    [("12_image.py", EXAMPLES / "models" / "pencil.onnx", EXAMPLES.parent / "docs/images/demo.jpg"),
     ("11_signal.py",)],
    ids=["image", "signal"],
)  # fmt: skip
def test_example_with_data_of_its_own_needs_no_scikit_learn(
    asked: tuple[str | Path, ...], tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError(name='sklearn')")
    lines = run(*asked, cwd=tmp_path, cache=cache, PYTHONPATH=str(tmp_path), **HIDDEN)
    (picture,) = (tmp_path / "out").iterdir()
    assert f"wrote {picture.relative_to(tmp_path)}" in lines
    assert pixels(picture).std() > 10


def test_onnx_example_reads_what_onnxruntime_reads(tmp_path: Path, cache: Path) -> None:
    lines = run("04_onnx.py", cwd=tmp_path, cache=cache).splitlines()
    _, _, images, labels = train_digits.load_split()
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    wanted = session.run(["probabilities"], {"image": images[:10]})[0].argmax(axis=1)
    assert lines[0].split()[1:] == [str(n) for n in wanted]
    assert lines[1].split()[1:] == [str(n) for n in labels[:10]]


def test_an_image_of_the_users_own_goes_through_a_model_of_their_own(
    tmp_path: Path, cache: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"name {i}" for i in range(10)), encoding="utf-8")
    lines = run("12_image.py", "--labels", names, cwd=tmp_path, cache=cache).splitlines()
    _, _, images, _ = train_digits.load_split()
    digit = (np.asarray(images[:1] * 255, np.float64).round() / 255).astype(np.float32)
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    wanted = session.run(["probabilities"], {"image": digit})[0][0]
    best = wanted.argmax()
    assert lines[0].startswith("ran on ")
    assert lines[1] == f"{wanted[best]:7.2%}  class {best} name {best}"

    picture, pencil = tmp_path / "mine.png", EXAMPLES / "models" / "pencil.onnx"
    photo.save_png(picture, photo.load_photo("flower.jpg")[:, 0, :64, :96])
    asked = ("--device", "cpu", "--output", tmp_path / "drawn")
    run("12_image.py", pencil, picture, *asked, cwd=tmp_path, cache=cache)
    (drawn,) = (tmp_path / "drawn").iterdir()
    net = ort.InferenceSession(pencil, providers=["CPUExecutionProvider"])
    given = (pixels(picture) / 255).astype(np.float32).transpose(2, 0, 1)[None]
    exact = 255 * np.clip(net.run(None, {net.get_inputs()[0].name: given})[0][0], 0, 1)
    assert np.abs(pixels(drawn).transpose(2, 0, 1) - exact).max() <= 0.51


def test_own_kernel_agrees_or_says_what_is_missing(tmp_path: Path, cache: Path) -> None:
    found = run("01_probe.py", cwd=tmp_path, cache=cache)
    out = run("05_own_kernel.py", cwd=tmp_path, cache=cache)
    if "best device: none" in found:
        assert "no GPU device can be used here" in out
    elif "GE-302" in out:
        assert not any(shutil.which(tool) for tool in ("glslangValidator", "glslang", "glslc"))
    else:
        assert out.splitlines()[-1] == "they agree: True"


def test_committed_model_is_accurate_and_small() -> None:
    _, _, images, labels = train_digits.load_split()
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    guesses = session.run(["probabilities"], {"image": images})[0].argmax(axis=1)
    assert len(labels) == 359
    assert (guesses == labels).mean() >= 0.975
    assert 80_000 < MODEL.stat().st_size < 130_000


def test_held_out_digits_are_never_trained_on() -> None:
    train, _, held, _ = train_digits.load_split()
    seen = {image.tobytes() for image in train}
    assert [i for i, image in enumerate(held) if image.tobytes() in seen] == []


@pytest.mark.long
def test_training_script_makes_a_model(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "new" / "digits.onnx"
    out = run("train_digits.py", "--epochs", 1, "--output", file, cwd=tmp_path, cache=cache)
    accuracy = float(out.split("held-out accuracy: ")[1].split()[0])
    assert accuracy > 0.5, "one epoch learns far more than guessing (0.1)"
    assert file.stat().st_size == MODEL.stat().st_size


def test_gradients_are_those_of_finite_differences() -> None:
    rng = np.random.default_rng(3)
    params = {k: v.astype(np.float64) for k, v in train_digits.init(rng).items()}
    x, labels = rng.random((4, 1, 8, 8)), np.array([1, 5, 5, 9])

    def loss() -> float:
        a = np.maximum(train_digits.conv(x, params["w1"], params["b1"])[0], 0)
        a = train_digits.pool(a)[0]
        a = np.maximum(train_digits.conv(a, params["w2"], params["b2"])[0], 0)
        a = train_digits.pool(a)[0].reshape(4, -1)
        a = np.maximum(a @ params["w3"].T + params["b3"], 0)
        logits = a @ params["w4"].T + params["b4"]
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return float(-np.log(chances[np.arange(4), labels]).mean())

    for name, grad in train_digits.gradients(params, x, labels).items():
        # A random direction involves every element of the gradient.
        start, direction = params[name], rng.standard_normal(grad.shape)
        params[name] = start + 1e-6 * direction
        above = loss()
        params[name] = start - 1e-6 * direction
        slope = (above - loss()) / 2e-6
        params[name] = start
        assert slope == pytest.approx(float((grad * direction).sum()), rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize(
    "hide",
    [pytest.param(False, marks=pytest.mark.long), True],  # .ci/run calls make demo, too
    ids=["with drivers", "without drivers"],
)
def test_demo_agrees_everywhere(hide: bool, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    out = run(
        "demo.py", "--output", tmp_path, cwd=tmp_path, cache=cache, **(HIDDEN if hide else {})
    )
    assert out.splitlines()[-1].startswith("OK: ")
    assert ("No GPU can be used here" in out) or not hide
    assert pixels(tmp_path / "before.png").shape == (427, 640, 3)
    assert pixels(tmp_path / "after.png").shape == (2 * (427 + photo.LABEL), 1280, 3)
    # and the cache command knows every file that was left
    files = {p for p in cache.rglob("*") if p.is_file()}
    assert files == set(cache_files(cache))
    assert "verdicts.json" in {p.name for p in files}


def test_digits_are_found_in_the_photograph(tmp_path: Path, cache: Path) -> None:
    lines = run("08_detect.py", "vulkan", tmp_path, cwd=tmp_path, cache=cache).splitlines()
    assert lines[-2].startswith("found 10 of 10 digits, 9 of them read right, on ")
    assert set(lines[-2].partition(", on ")[2].split()) <= {"vulkan:0", "host"}
    picture = pixels(tmp_path / "found.png")
    assert picture.shape == (480, 640, 3)
    for line in lines[:-2]:  # a yellow line runs where a box begins
        top, left = (2 * int(line.split(word)[1].split(",")[0].split(":")[0])
                     for word in (" row ", " column "))  # fmt: skip
        assert (picture[top, left : left + 48] == (255, 220, 0)).all()


def test_a_frame_is_drawn_on_the_gpu(tmp_path: Path, cache: Path) -> None:
    lines = run("13_frames.py", "vulkan", tmp_path, cwd=tmp_path, cache=cache).splitlines()
    assert set(lines[0].partition(", on ")[2].split()) <= {"vulkan:0", "host"}
    # 30 convolutions of the same numbers in another order
    assert float(lines[1].removeprefix("largest difference to onnxruntime: ")) < 1e-3
    picture = pixels(tmp_path / "frame.png")
    assert picture.shape == (240, 640, 3)
    flower, background = picture[110:130, 140:160, :].mean((0, 1)), picture[:20, :20].mean((0, 1))
    assert flower[0] > flower[2], "red first"
    assert flower[0] > 2 * background[0]


def test_a_ranking_on_the_gpu(tmp_path: Path, cache: Path) -> None:
    lines = run("16_ranking.py", "vulkan", tmp_path, cwd=tmp_path, cache=cache).splitlines()
    assert set(lines[0].removeprefix("computed by ").split()) <= {"vulkan:0", "host"}
    assert lines[1].startswith("best candidates: 62 (0.703)")
    # scores below 1 of sums of some hundred products; a row of a table missed moves them by 1e-2
    assert float(lines[2].removeprefix("largest difference from ONNX Runtime: ")) < 1e-5
