"""What you will see: out/flower.png, a photograph with its blur, its sharpened copy and its edges.

Usage: python examples/03_photo.py [DEVICE] [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from photo import FILTERS, contact_sheet, framed, load_photo, save_png

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")

photo = load_photo("flower.jpg")  # (3 colours, 1, height, width), from 0 to 1
weights = np.stack(list(FILTERS.values()))[:, None]  # (4 filters, 1, 5, 5)

filtered = gpuedge.conv2d(framed(photo), weights, padding="valid", device=device)
print("filtered", photo.shape, "into", filtered.shape, "on", device)

save_png(folder / "flower.png", contact_sheet(photo, filtered))
print("wrote", folder / "flower.png")
