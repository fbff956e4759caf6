"""What you will see: out/shapes.png, a scene, what a U-Net takes each pixel for, and the truth.

Usage: python examples/09_segmentation.py [DEVICE] [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from oracle import by_onnxruntime
from photo import save_png
from train_shapes import CLASSES, MODEL, backdrop, overlap, scene

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")
PAINT = np.float32([[0, 0, 0], [1, 0.3, 0.2], [0.2, 0.8, 0.3], [0.3, 0.5, 1]])

# a photograph that the network never saw, with shapes that it never saw
image, truth = scene(np.random.default_rng(7), backdrop("flower.jpg"), (192, 256))

with gpuedge.Session(MODEL, device=device) as session:
    scores = session.run({"image": image[None]})["scores"]
    print("ran on", *sorted({row.device for row in session.placement}))

wanted = by_onnxruntime(MODEL, {"image": image[None]})
print(f"largest difference to onnxruntime: {np.abs(scores - wanted).max():.1e}")

found = scores[0].argmax(axis=0)
for kind, name in enumerate(CLASSES):
    print(f"{name:10s} {(found == kind).mean():6.1%} of the pixels, {(truth == kind).mean():6.1%}")
print(f"mean intersection over union: {overlap(found, truth):.3f}")


def painted(classes: np.ndarray) -> np.ndarray:
    """Return the scene in grey with its classes in colours."""
    return 0.35 * image.mean(axis=0) + 0.65 * PAINT[classes].transpose(2, 0, 1)


save_png(folder / "shapes.png", np.concatenate([image, painted(found), painted(truth)], axis=2))
print("wrote", folder / "shapes.png")
