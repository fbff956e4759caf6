"""What you will see: ten digits read by an ONNX model, where each part of it ran, and why there.

Usage: python examples/04_onnx.py [DEVICE]
"""

import sys
from pathlib import Path

from train_digits import load_split

import gpuedge

model = Path(__file__).parent / "models" / "digits.onnx"
_, _, images, labels = load_split()

with gpuedge.Session(model, device=sys.argv[1] if len(sys.argv) > 1 else "auto") as session:
    probabilities = session.run({"image": images[:10]})["probabilities"]
    print("read:  ", *probabilities.argmax(axis=1))
    print("really:", *labels[:10])
    print()
    for row in session.placement:
        print(f"{row.device:10s} {' + '.join(row.ops):24s} {row.kernel}")
    print()
    print(session.explain())
