"""What you will see: frames of a camera, each with the drawing that a network makes of it.

SOURCE is a folder of pictures, a video file or the number of a webcam. Without it a landscape
passes by, which needs no file. Pictures are scaled and cut to 480 x 360, and come round again.

The text in a picture says which device answers and why, how many frames come in a second, and how
long it takes from a frame to its picture. When the driver fails, the CPU answers the same frame.

Usage: python examples/camera.py [SOURCE] [--device D] [--isolation process] [--frames N]
                                 [--every N] [--out FOLDER] [--show]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import textwrap
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpuedge

try:
    from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError
except ImportError:
    sys.exit("This example needs Pillow: pip install pillow")

Frame = npt.NDArray[np.uint8]
"""Of shape (height, width, 3), red first."""
MODEL = Path(__file__).parent / "models" / "pencil.onnx"
DRAWN = (144, 192)
"""Height and width of a drawing, pixels."""
LINE = 16
"""Height of a line of text, pixels."""
TELL_S = 10
"""Seconds after which the times are printed again."""
FONT = ImageFont.load_default(12)


def camera(source: str | None) -> Iterator[Frame]:
    """Return frames of what stands for a camera, all of one size."""
    if not source:
        return landscape()
    if not (source.isdigit() or "://" in source or Path(source).exists()):
        sys.exit(f"There is no {source} (current folder: {Path.cwd()}).")
    return pictures(Path(source)) if Path(source).is_dir() else captured(source)


def landscape(height: int = 360, width: int = 480) -> Iterator[Frame]:
    """Yield what a camera sees that turns round, by 4 pixels a frame."""
    y, x = np.mgrid[:height, : 2 * width]
    scene = np.repeat(np.linspace((70, 130, 220), (250, 225, 190), height)[:, None], 2 * width, 1)
    scene[np.hypot(y - 105, x - 300) < 34] = 255, 235, 120
    for k in range(5):  # hills, from the farthest to the nearest
        turn = x * np.pi / width
        hill = np.sin((k + 2) * turn + 3 * k) + np.sin((3 * k + 5) * turn + k) / 3
        below = y - 150 - 34 * k + (38 - 5 * k) * hill
        grass = 6 * np.sin((0.9 - 0.1 * k) * y + 4 * np.sin(40 * turn + k))
        colour = np.multiply((150, 165, 190), 1 - k / 4) + np.multiply((45, 110, 40), k / 4)
        lit = (colour + grass[..., None]) * (0.8 + np.clip(below, 0, 60) / 300)[..., None]
        scene = np.where(below[..., None] > 0, lit, scene)
    around = np.tile(scene.clip(0, 255).astype(np.uint8), (1, 2, 1))
    for start in itertools.cycle(range(0, 2 * width, 4)):
        yield around[:, start : start + width]


def pictures(folder: Path) -> Iterator[Frame]:
    """Yield the pictures of a folder in the order of their names, again and again."""
    known = Image.registered_extensions()
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    paths = [path for path in files if path.suffix.lower() in known]
    for path in itertools.cycle(paths):
        try:
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            sys.exit(f"{path} cannot be read as a picture: {error}")
        yield np.asarray(ImageOps.fit(upright, (480, 360)))


def opencv() -> Any:
    """Return the module of OpenCV."""
    try:
        import cv2  # noqa: PLC0415
    except ImportError:
        sys.exit("Videos, webcams and windows need OpenCV: pip install opencv-python")
    return cv2


def captured(source: str) -> Iterator[Frame]:
    """Yield what OpenCV reads of a video file or a webcam, until that ends."""
    capture = opencv().VideoCapture(int(source) if source.isdigit() else source)
    if not capture.isOpened():
        sys.exit(f"OpenCV can open no video or webcam {source}.")
    while (read := capture.read())[0]:
        yield read[1][..., ::-1]  # OpenCV has blue first


class Times:
    """How long the latest 300 frames took, and how many there were in a second."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=300)
        self._ends: deque[float] = deque(maxlen=300)

    def note(self, start: float) -> None:
        """Add a frame that was there at `start` and is drawn now (`time.monotonic`)."""
        self._ends.append(time.monotonic())
        self._took.append(self._ends[-1] - start)

    def __str__(self) -> str:
        if len(self._ends) < 2:
            return "not measured yet"
        rate = (len(self._ends) - 1) / (self._ends[-1] - self._ends[0])
        half, most = np.percentile(self._took, (50, 99)) * 1e3
        shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"  # a slow device makes less than 1
        return f"{shown} frames/s, p50 {half:.0f} ms, p99 {most:.0f} ms"


def overlaid(frame: Frame, drawing: Frame, text: list[str]) -> Frame:
    """Return a frame with a drawing in its corner and text on a darker strip at its top."""
    out = frame.copy()
    height, width, _ = drawing.shape
    out[-height:, -width:] = drawing
    lines = [part for line in text for part in textwrap.wrap(line, out.shape[1] // 7)]
    strip = out[: LINE * len(lines) + 4]
    strip //= 3
    image = Image.fromarray(strip)
    ImageDraw.Draw(image).text((6, 2), "\n".join(lines), (255, 255, 255), FONT)
    strip[:] = np.asarray(image)
    return out


def write(picture: Frame, path: Path) -> None:
    """Write a picture to a file."""
    Image.fromarray(picture).save(path)
    print("wrote", path)


def is_escaped(picture: Frame) -> bool:
    """Show a picture in a window, and return whether Escape was pressed there."""
    cv2 = opencv()
    cv2.imshow("gpuedge", np.ascontiguousarray(picture[..., ::-1]))
    return bool(cv2.waitKey(1) == 27)


def codes(decision: gpuedge.Decision) -> tuple[object, ...]:
    """Return the device in use and the codes of those that the reason names.

    The reason itself may count requests, so it changes with every frame.
    """
    named = [(row.device, row.code) for row in decision.rows if row.device in decision.reason]
    return decision.device, *named


def drawn(session: gpuedge.Session, frames: Iterable[Frame]) -> Generator[Frame]:
    """Yield a picture of each frame; print what is new, and at the end how long frames took."""
    known: tuple[object, ...] = ()
    times, count, why = Times(), 0, ""
    told, used = time.monotonic(), -time.process_time()
    try:
        for count, frame in enumerate(frames, 1):
            start = time.monotonic()
            drawing = session.run({"frame": frame})["drawing"][0].clip(0, 1)  # (3, height, width)
            in_bytes = np.rint(255 * drawing.transpose(1, 2, 0)).astype(np.uint8)
            decision, health = session.explain(), session.health
            if (new := codes(decision)) != known:
                known, why = new, decision.reason
                print(f"frame {count}: {why}", flush=True)
            lost = f" Failures: {health.failed}; frames by the CPU: {health.on_cpu}."
            picture = overlaid(frame, in_bytes, [why + (lost if health.failed else ""), str(times)])
            times.note(start)
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                print(f"frame {count}: {times}", flush=True)
            yield picture
    finally:  # also after Escape and Ctrl-C
        used += time.process_time()
        each = f", {1e3 * used / count:.0f} ms of processor time each" if count else ""
        print(f"{count} frames: {times}{each}")


def positive(text: str) -> int:
    """Return a number of frames."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    about, _, _ = (__doc__ or "").partition("\nUsage")
    add = (parser := argparse.ArgumentParser(description=about)).add_argument
    add("source", nargs="?", help="folder of pictures, video file or number of a webcam")
    add("--device", help="by default auto")
    add("--isolation", choices=("inline", "process"), help="process: survive crashes too")
    add("--frames", type=positive, default=100)
    add("--every", type=positive, help="write each N-th picture, not the last")
    add("--out", type=Path, default=Path("out"), help="folder of the pictures")
    add("--show", action="store_true", help="in a window, until Escape is pressed")
    return parser.parse_args()


def watch(asked: argparse.Namespace) -> None:
    """Draw what the camera sees, and write or show it."""
    asked.out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    frames = itertools.islice(camera(asked.source), asked.frames)
    if (first := next(frames, None)) is None:
        sys.exit(f"No frame came from {asked.source or 'the landscape'}.")
    size = first.shape[:2]
    model = gpuedge.for_frames(MODEL, size, to=np.minimum(size, DRAWN), crop=True)
    with gpuedge.Session(model, device=asked.device, isolation=asked.isolation) as session:
        session.warm_up()
        session.explain()  # under auto this looks for GPUs, which takes seconds the first time
        with closing(drawn(session, itertools.chain([first], frames))) as seen:
            for number, picture in enumerate(seen, 1):
                if asked.show and is_escaped(picture):
                    break
                if asked.every and number % asked.every == 0:
                    write(picture, asked.out / f"camera-{number:04}.png")
    if not asked.every:
        write(picture, asked.out / "camera.png")


def main() -> None:
    """Run it, and end without a traceback where the user stops it or gpuedge says what is wrong."""
    try:
        watch(parsed())
    except KeyboardInterrupt:
        sys.exit(130)  # as shells say
    except (gpuedge.GpuEdgeError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
