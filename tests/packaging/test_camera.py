"""The example of a camera: the same pictures everywhere, also when the driver is lost midway."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import daily
import farm
import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image
from required import absent
from test_docs import same_everywhere
from test_example_nets import described
from test_examples import EXAMPLES, HIDDEN, pixels, run

import gpuedge
from gpuedge.executors.cpu import CpuExecutor
from gpuedge.graph.reader import OnnxModel
from gpuedge.runtime.crosscheck import FACTOR, RunningErrors

sys.path.insert(0, str(EXAMPLES))
sys.path.insert(0, str(EXAMPLES.parent / "tests" / "faults"))
import camera
import kit

pytestmark = daily.day(2, of=4)

Array = np.ndarray[Any, Any]
DOCS = EXAMPLES.parent / "docs"
LEVELS = ("vulkan-lavapipe", "wgpu-lavapipe", "gles31-llvmpipe", "gles30-llvmpipe",
          "gles20-llvmpipe")  # fmt: skip
TEXT = 6 * camera.LINE
"""Rows at the top that text may cover; it holds times."""


FRAMES = itertools.islice(camera.landscape(), 2000)
SEEN: list[Array] = []


def frame(number: int) -> Array:
    """Return what the example sees, from 1 on; all are parts of one array."""
    SEEN.extend(itertools.islice(FRAMES, max(0, number - len(SEEN))))
    return SEEN[number - 1]


def taps(size: int, new: int) -> Array:
    """Return the weights of linear resizing, (new, size) in float64."""
    places = (np.arange(new) + 0.5) * size / new - 0.5
    return np.maximum(0, 1 - np.abs(np.clip(places, 0, size - 1)[:, None] - np.arange(size)))


@cache
def drawing(number: int) -> Array:
    """Return the exact drawing of a frame, 0 to 255 in float64, (height, width, 3)."""
    image = frame(number).transpose(2, 0, 1) / 255
    height, width = camera.DRAWN
    image = taps(image.shape[1], height) @ image @ taps(image.shape[2], width).T
    return 255 * described("pencil", image[None])[0].clip(0, 1).transpose(1, 2, 0)


@cache
def model() -> Any:
    return gpuedge.for_frames(camera.MODEL, frame(1).shape[:2], to=camera.DRAWN, crop=True)


@cache
def error(number: int) -> float:
    """Return how far 255 times a result in float32 may be from the exact one.

    That is the running error of the operators for this frame (`gpuedge.opset.errors`), and the
    rounding of the product by 255.
    """
    feeds = {"frame": frame(number)}
    graph = OnnxModel.load(model()).specialise({"frame": frame(number).shape})
    found = RunningErrors(graph, feeds, CpuExecutor()).values["drawing"]
    exact = drawing(number).transpose(2, 0, 1)
    assert np.abs(255 * found.v[0].clip(0, 1) - exact).max() < 1e-6
    return 255 * (FACTOR * float(found.e.max()) + 2.0**-24)


def check(picture: Array, number: int) -> None:
    """Compare with float64: a frame as it was, and in its corner the drawing.

    A byte is the integer nearest to a number that is at most `error` from the exact one. So it is
    at most 1/2 + `error` from that, and two devices differ by 1 at most, where a half is near.
    """
    height, width = camera.DRAWN
    np.testing.assert_array_equal(picture[TEXT:-height], frame(number)[TEXT:-height])
    np.testing.assert_array_equal(picture[TEXT:, :-width], frame(number)[TEXT:, :-width])
    assert error(number) < 0.1
    drawn = picture[-height:, -width:]
    assert np.abs(drawn - drawing(number)).max() <= 0.5 + error(number)
    assert drawn.std() > 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_pictures_of_the_cpu_are_right(tmp_path: Path, store: Path) -> None:
    lines = run("camera.py", "--frames", 2, cwd=tmp_path, cache=store, **HIDDEN)
    assert lines.startswith("frame 1: Runs on cpu: ")
    assert re.search(r"2 frames: [\d.]+ frames/s, p50 \d+ ms, p99 \d+ ms, \d+ ms of proc", lines)
    check(pixels(tmp_path / "out" / "camera.png"), 2)


@pytest.mark.driver
@pytest.mark.parametrize("name", daily.in_turn(LEVELS))
def test_pictures_are_the_same_on_every_level(name: str, tmp_path: Path) -> None:
    device = farm.FARM[name].device
    options = ("--frames", 2, "--device", device)
    farm.require(name)
    environment = farm.FARM[name].environment()
    lines = run("camera.py", *options, cwd=tmp_path, cache=farm.cache(name), **environment)
    assert lines.startswith(f"frame 1: Runs on {device}:0 ")
    assert "Failures" not in lines
    check(pixels(tmp_path / "out" / "camera.png"), 2)


@cache
def oracle() -> ort.InferenceSession:
    return ort.InferenceSession(model().SerializeToString())


def check_drawing(picture: Array, seen: Array, text: int) -> None:
    """Compare a picture with ONNX Runtime's, which is right, too: at most one step apart."""
    height, width = camera.DRAWN
    assert picture.shape == seen.shape
    np.testing.assert_array_equal(picture[text:-height], seen[text:-height])
    np.testing.assert_array_equal(picture[text:, :-width], seen[text:, :-width])
    (drawn,) = oracle().run(None, {"frame": np.ascontiguousarray(seen)})
    drawn = np.rint(255 * drawn[0].clip(0, 1).transpose(1, 2, 0))
    assert np.abs(picture[-height:, -width:] - drawn).max() <= 1


def check_all(folder: Path) -> None:
    """Check all pictures of a folder, of which none may be missing."""
    files = sorted(folder.iterdir())
    assert [p.name for p in files] == [f"camera-{n + 1:04}.png" for n in range(len(files))]
    for number, path in enumerate(files, 1):
        check_drawing(pixels(path), frame(number), TEXT)


@pytest.mark.driver
def test_a_device_that_is_lost_midway_costs_no_picture(tmp_path: Path) -> None:
    try:
        built = kit.build()
    except kit.BuildError as failed:
        absent(str(failed))
    variables = built.environment("vulkan", "lost@submit:40") | {"GPUEDGE_BACKENDS": "vulkan"}
    fault = variables.pop("GPUFAULT")
    store = tmp_path / "cache"
    run("01_probe.py", cwd=tmp_path, cache=store, **variables)  # tried without the fault
    options = ("--device", "vulkan", "--frames", 60, "--every", 1)
    lines = run("camera.py", *options, cwd=tmp_path, cache=store, GPUFAULT=fault, **variables)
    assert lines.startswith("frame 1: Runs on vulkan:0 ")
    (when,) = re.findall(r"^frame (\d+): Runs on cpu: vulkan:0 .* was left out: ", lines, re.M)
    assert 20 < int(when) < 45
    check_all(tmp_path / "out")


@contextmanager
def started(*options: str, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "camera.py"), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **arguments)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def awaited(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the next line that the example prints and that has a pattern."""
    assert process.stdout is not None
    return next(line for line in process.stdout if re.search(pattern, line))


@pytest.mark.driver
def test_a_worker_that_is_killed_midway_costs_no_picture(tmp_path: Path) -> None:
    name = "vulkan-lavapipe"
    farm.require(name)
    environment = farm.environment_of(name) | {"GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}
    options = ("--device", "vulkan", "--isolation", "process", "--frames", "2000", "--every", "1")
    with started(*options, cwd=tmp_path, env=environment) as process:
        assert "frame 1: Runs on vulkan:0 " in awaited(process, ": Runs on")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (worker,) = (int(c) for c in children)
        os.kill(worker, signal.SIGKILL)
        assert re.search("Runs on cpu: vulkan:0 .* SIGKILL ", awaited(process, ": Runs on"))
        back = awaited(process, ": Runs on")
        assert ": Runs on vulkan:0 " in back
        last = int(back.split()[1].rstrip(":"))
        awaited(process, f"wrote .*{last:04}")
    for late in sorted((tmp_path / "out").iterdir())[last:]:  # one may not have been finished
        late.unlink()
    check_all(tmp_path / "out")


def shown(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: object) -> None:
    """Run the example in this process, on the CPU."""
    arguments = ["camera.py", *map(str, options), "--device", "cpu", "--out", str(folder)]
    monkeypatch.setattr(sys, "argv", arguments)
    camera.main()


def test_a_folder_of_pictures_of_different_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "pictures", tmp_path / "out"
    folder.mkdir()
    (folder / "notes.txt").write_text("no picture")
    Image.fromarray(frame(2)).save(folder / "a.png")
    Image.new("RGB", (1000, 300), (200, 100, 50)).save(folder / "b.bmp")
    Image.new("L", (60, 200), 77).save(folder / "c.gif")
    shown(monkeypatch, out, folder, "--frames", 4, "--every", 1)
    assert "4 frames: " in capsys.readouterr().out
    first, second, third, fourth = (pixels(out / f"camera-{n:04}.png") for n in (1, 2, 3, 4))
    check(first, 2)
    check(fourth, 2)  # they come round again
    for picture, colour in ((second, (200, 100, 50)), (third, (77, 77, 77))):
        assert picture.shape == first.shape
        assert (picture[TEXT:, : -camera.DRAWN[1]] == colour).all()


def test_what_is_no_camera_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(SystemExit, match=re.escape(f"No frame came from {tmp_path}.")):
        shown(monkeypatch, tmp_path, tmp_path)
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"no picture either")
    with pytest.raises(SystemExit, match=r"damaged\.png cannot be read as a picture: "):
        shown(monkeypatch, tmp_path, tmp_path)
    Image.fromarray(frame(1)).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:5000])
    with pytest.raises(SystemExit, match=r"damaged\.png cannot be read as a picture: "):
        shown(monkeypatch, tmp_path, tmp_path)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SystemExit, match="need OpenCV: pip install opencv-python"):
        shown(monkeypatch, tmp_path, tmp_path / "notes.txt")
    monkeypatch.chdir(tmp_path)
    for missing in ("photos/", "film.mp4"):
        there = re.escape(f"There is no {missing} (current folder: {tmp_path}).")
        with pytest.raises(SystemExit, match=there):
            shown(monkeypatch, tmp_path, missing)


def test_a_folder_that_cannot_be_made_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["camera.py", "--out", str(tmp_path / "file")])
    monkeypatch.setattr(camera, "camera", lambda _: pytest.fail("frames were asked for"))
    with pytest.raises(SystemExit, match="File exists"):
        camera.main()


@pytest.mark.parametrize("option", ["--frames", "--every"])
@pytest.mark.parametrize("number", [0, -3])
def test_a_number_of_frames_is_positive(
    option: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit):
        shown(monkeypatch, tmp_path, option, number)
    assert f"argument {option}: {number} is not 1 or more" in capsys.readouterr().err


def test_an_unknown_device_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["camera.py", "--device", "vulcan"])
    with pytest.raises(SystemExit, match="vulcan") as ended:
        camera.main()
    assert isinstance(ended.value.code, str)


class Session:
    """What stands in for a session: a reason that counts, and a device that takes over."""

    health = types.SimpleNamespace(failed=0, on_cpu=0)

    def __init__(self, took_s: float = 0, now: Any = None) -> None:
        self._count, self._took_s, self._now = 0, took_s, now

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        self._count += 1
        if self._now is not None:
            self._now[0] += self._took_s
        return {"drawing": np.zeros((1, 3, *camera.DRAWN), np.float32)}

    def explain(self) -> Any:
        is_gpu = self._count > 3
        gpu = types.SimpleNamespace(device="vulkan:0", code="selected" if is_gpu else "not-yet")
        other = types.SimpleNamespace(
            device="gles31:0", code=("slower", "not-yet")[self._count % 2]
        )
        used = "vulkan:0" if is_gpu else "cpu"
        reason = f"Runs on {used}: vulkan:0, {self._count} served."
        return types.SimpleNamespace(device=used, reason=reason, rows=(gpu, other))


def test_a_reason_that_counts_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []
    draw = camera.overlaid
    monkeypatch.setattr(
        camera, "overlaid", lambda f, d, text: (texts.append(text[0]), draw(f, d, text))[1]
    )
    list(camera.drawn(Session(), map(frame, range(1, 7))))
    first, second = "Runs on cpu: vulkan:0, 1 served.", "Runs on vulkan:0: vulkan:0, 4 served."
    assert capsys.readouterr().out.splitlines()[:-1] == [f"frame 1: {first}", f"frame 4: {second}"]
    assert texts == [first] * 3 + [second] * 3


def test_a_slow_device_is_told_of_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(camera.time, "monotonic", lambda: now[0])
    list(camera.drawn(Session(4, now), map(frame, range(1, 7))))
    lines = capsys.readouterr().out.splitlines()
    told = "0.25 frames/s, p50 4000 ms, p99 4000 ms"
    assert [line for line in lines if told in line][:2] == [f"frame {n}: {told}" for n in (3, 6)]
    assert lines[-1].startswith(f"6 frames: {told}, ")


def test_ctrl_c_ends_with_the_summary(tmp_path: Path) -> None:
    environment = {**os.environ, **HIDDEN, "GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}
    options = ("--device", "cpu", "--frames", "100000")
    # programs that run in the background are started with the signal ignored
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with started(
        *options, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, preexec_fn=heeds
    ) as process:
        awaited(process, "frame 1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert re.match(r"\d+ frames: ", out.splitlines()[-1])
    assert (err, process.returncode) == ("", 130)


class Capture:
    """What stands in for OpenCV's: a film of two frames, blue first."""

    def __init__(self, source: str | int) -> None:
        self._left = iter((1, 2))
        self.isOpened = lambda: source in ("film.mp4", 0)

    def read(self) -> tuple[bool, Array | None]:
        number = next(self._left, None)
        return (False, None) if number is None else (True, frame(number)[..., ::-1].copy())


@pytest.mark.parametrize("source", ["film.mp4", "0"])
def test_a_film_or_webcam_is_shown_until_it_ends(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    windows: list[Array] = []
    cv2 = types.SimpleNamespace(
        VideoCapture=Capture, imshow=lambda _, picture: windows.append(picture), waitKey=lambda _: 0
    )
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    monkeypatch.chdir(tmp_path)
    Path("film.mp4").touch()
    shown(monkeypatch, tmp_path, source, "--show")
    check(pixels(tmp_path / "camera.png"), 2)
    assert len(windows) == 2
    check(windows[1][..., ::-1].astype(int), 2)
    cv2.waitKey = lambda _: 27
    shown(monkeypatch, tmp_path, source, "--show")
    assert len(windows) == 3, "until Escape"
    with pytest.raises(SystemExit, match="OpenCV can open no video or webcam 7"):
        shown(monkeypatch, tmp_path, "7")


def test_times_are_percentiles_of_the_latest_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    times, now = camera.Times(), 100.0
    monkeypatch.setattr(camera.time, "monotonic", lambda: now)
    for number in range(1000):  # of the latest 300 three take 90 ms and all others 20
        now += 0.04
        times.note(now - (0.09 if number < 500 or number >= 996 else 0.02))
    assert str(times) == "25 frames/s, p50 20 ms, p99 90 ms"


def test_the_picture_in_the_docs_is_the_one_that_the_example_makes() -> None:
    check_drawing(pixels(DOCS / "images" / "camera.png"), frame(60), TEXT)


def test_without_pillow_it_says_what_to_install(tmp_path: Path) -> None:
    code = f"import sys; sys.modules['PIL'] = None; sys.path[:0] = [{str(EXAMPLES)!r}]"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import camera"], capture_output=True, text=True,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "This example needs Pillow: pip install pillow\n"


def test_the_tutorial_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    parts = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    program = "\n".join([*parts, "np.save('frame.npy', frame)"])
    environment = farm.environment_of("vulkan-lavapipe")
    environment |= {"GPUEDGE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "(1, 3, 144, 192) float32"
    assert re.fullmatch(r"\d+ frames/s, p50 \d+\.\d ms, p99 \d+\.\d ms", lines[1])
    told = text.partition("the second line is\n\n")[2].partition("\n\n")[0]
    assert same_everywhere(lines[2]) == same_everywhere(" ".join(told.split()))
    assert re.search(r"^state +cpu$", done.stdout, re.M)
    given = np.load(tmp_path / "frame.npy")
    check_drawing(pixels(tmp_path / "out" / "first.png"), given, 20)
    check_drawing(pixels(tmp_path / "out" / "turned.png"), np.roll(given, 60 * 4, axis=1), 20)
