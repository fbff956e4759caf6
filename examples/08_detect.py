"""What you will see: out/found.png, a photograph with boxes around the digits found in it.

One model from a camera's frame (bytes, blue first) to boxes that do not overlap; all on the GPU.

Usage: python examples/08_detect.py [DEVICE] [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from photo import boxed, save_png
from train_detector import scene

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")
model = Path(__file__).parent / "models" / "detector.onnx"

frame, there = scene(seed=1)  # a photograph that ten unseen digits are painted into
with gpuedge.Session(model, device=device) as session:
    results = session.run({"frame": frame})
    used = sorted({row.device for row in session.placement})

kept = results["kept"][:, 2]  # (batch, class, number) of each, best first
boxes, labels = results["boxes"][0, kept], results["labels"][0, kept]
scores = results["scores"][0, 0, kept]

right = 0
for (top, left, _, _), label, score in zip(boxes, labels, scores, strict=True):
    near = [d for y, x, d in there if max(abs(y - top), abs(x - left)) <= 6]
    right += near == [label]
    print(f"{label} at row {top:3.0f}, column {left:3.0f}: {score:.2f}")
print(f"found {len(kept)} of {len(there)} digits, {right} of them read right, on", *used)

colours = frame[..., ::-1].transpose(2, 0, 1)  # red first, (3, height, width)
large = gpuedge.resize(gpuedge.to_float(colours, device=device), (480, 640), device=device)
save_png(folder / "found.png", boxed(large, 2 * boxes, list(map(str, np.asarray(labels)))))
print("wrote", folder / "found.png")
