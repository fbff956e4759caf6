"""What you will see: out/beats.png, a noisy signal and where a temporal convolution finds beats.

Usage: python examples/11_signal.py [DEVICE] [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
from oracle import by_onnxruntime
from photo import Image, ImageDraw
from train_beats import DELAY, MODEL, RATE, found_in, score, signal

import gpuedge

device = sys.argv[1] if len(sys.argv) > 1 else "auto"
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "out")

x, beats = signal(np.random.default_rng(8), 30 * RATE)  # half a minute, never seen in training
with gpuedge.Session(MODEL, device=device) as session:
    chances = session.run({"signal": x[None, None]})["beat"][0, 0]
    print("ran on", *sorted({row.device for row in session.placement}))

wanted = by_onnxruntime(MODEL, {"signal": x[None, None]})[0, 0]
print(f"largest difference to onnxruntime: {np.abs(chances - wanted).max():.1e}")

found = found_in(chances)
print(f"{len(beats)} beats, {len(found)} found, F1 score {score(found, beats):.3f}")

# ten seconds: the signal in grey, the chance of a beat in red, its delay taken off, beats as dots
shown, height = 10 * RATE, 220
picture = Image.new("RGB", (shown, height), "white")
draw = ImageDraw.Draw(picture)
ground = height - 20
for line, colour, size, shift in ((x, "grey", 60, 0), (chances, "red", 40, DELAY)):
    base = 110 if shift == 0 else ground
    draw.line([(t, base - size * float(line[t + shift])) for t in range(shown)], colour, 1)
for beat in found[found < shown]:
    draw.ellipse((beat - 3, 6, beat + 3, 12), "red")
for beat in beats[beats < shown]:
    draw.ellipse((beat - 3, 16, beat + 3, 22), "black")
folder.mkdir(parents=True, exist_ok=True)
picture.save(folder / "beats.png")
print("wrote", folder / "beats.png")
