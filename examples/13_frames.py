"""What you will see: out/frame.png, part of a camera's frame beside what a network draws of it.

A frame of OpenCV (`cv2.VideoCapture(0).read()[1]`) is such an array too: bytes, blue first.

Usage: python examples/13_frames.py [DEVICE] [FOLDER]
"""

import sys
import time
from pathlib import Path

import numpy as np
from oracle import by_onnxruntime
from photo import load_photo, save_png
from train_pencil import MODEL

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")

colours = (load_photo("flower.jpg")[:, 0] * 255).round().astype(np.uint8)
frame = np.ascontiguousarray(colours[::-1].transpose(1, 2, 0))  # (height, width, 3), blue first

model = gpuedge.for_frames(MODEL, frame.shape[:2], to=(240, 320), crop=True, swap_rb=True)
with gpuedge.Session(model, device=device) as session:
    drawn = session.run({"frame": frame})["drawing"]
    start = time.perf_counter()
    for _ in range(5):
        session.run({"frame": frame})
    each = (time.perf_counter() - start) / 5
    print(f"{each * 1e3:.0f} ms a frame, on", *sorted({row.device for row in session.placement}))

middle = frame[:, 35:604, ::-1].transpose(
    2, 0, 1
)  # 427 rows and 4 / 3 times as many columns, red first
middle = gpuedge.resize(gpuedge.to_float(middle, device="cpu"), (240, 320), device="cpu")
wanted = by_onnxruntime(MODEL, {"photo": middle[None]})
print(f"largest difference to onnxruntime: {np.abs(drawn - wanted).max():.1e}")

save_png(folder / "frame.png", np.concatenate([middle, drawn[0]], axis=2))
print("wrote", folder / "frame.png")
