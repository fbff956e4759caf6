"""What you will see: out/pencil.png, a photograph beside the pencil drawing a network makes of it.

Usage: python examples/10_style.py [DEVICE] [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from oracle import by_onnxruntime
from photo import load_photo, save_png
from train_pencil import MODEL, drawing

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")

photo = load_photo("flower.jpg")[:, 0, 60:380, 160:600]  # not what it was trained on

with gpuedge.Session(MODEL, device=device) as session:
    drawn = session.run({"photo": photo[None]})["drawing"]
    print("ran on", *sorted({row.device for row in session.placement}))

wanted = by_onnxruntime(MODEL, {"photo": photo[None]})
print(f"largest difference to onnxruntime: {np.abs(drawn - wanted).max():.1e}")

print(f"mean difference to the drawing it imitates: {np.abs(drawn[0] - drawing(photo)).mean():.3f}")
save_png(folder / "pencil.png", np.concatenate([photo, drawn[0]], axis=2))
print("wrote", folder / "pencil.png")
