"""Profiles a model on a device; run by test_profile for each level.

``python profile_child.py DEVICE ISOLATION`` prints the steps and the placement as a JSON object,
and "same": whether the outputs of the run step by step are those of one run, to the bit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

import gpuedge

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"


def main() -> None:
    gpuedge.probe(deadline_s=60)
    feed = {"image": np.random.default_rng(3).random((3, 1, 8, 8), np.float32)}
    device, isolation = sys.argv[1:]
    with gpuedge.Session(DIGITS, device=device, isolation=isolation, fallback="error") as session:
        wanted = session.run(feed)
        steps = session.profile(feed)["steps"]
        (part,) = session._server.decided().parts
        found, _ = part.executable.timed(feed)
        same = all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
        rows = [asdict(row) for row in session.placement]
    print(json.dumps({"steps": steps, "rows": rows, "same": same}))


if __name__ == "__main__":
    main()
