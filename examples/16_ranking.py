"""What you will see: the five best of 64 candidates, and how far scores are from ONNX Runtime's.

A model of look-ups in tables, interactions and two small networks (ranking.py) scores candidates:
python examples/16_ranking.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np
from oracle import by_onnxruntime
from ranking import model, requests

import gpuedge


def main() -> None:
    """Rank candidates on a device and compare."""
    device = sys.argv[1] if len(sys.argv) > 1 else "auto"
    rng = np.random.default_rng(2019)
    proto, feed = model(rng), requests(rng, 64)
    with gpuedge.Session(proto, device=device) as session:
        scores = session.run(feed)["score"]
        print("computed by", *sorted({row.device for row in session.placement}))
    theirs = by_onnxruntime(proto.SerializeToString(), feed)
    best = np.argsort(-scores[:, 0])[:5]
    print("best candidates:", ", ".join(f"{i} ({scores[i, 0]:.3f})" for i in best))
    print(f"largest difference from ONNX Runtime: {np.abs(scores - theirs).max():.1e}")


if __name__ == "__main__":
    main()
