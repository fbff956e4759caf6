"""What you will see: the same model under three policies, and what each one decides."""

from collections import Counter
from pathlib import Path

from train_digits import load_split

import gpuedge

model = Path(__file__).parent / "models" / "digits.onnx"
_, _, images, _ = load_split()

policies = {
    "default": gpuedge.Policy(),
    "careful: the GPU must be three times as fast": gpuedge.Policy(min_speedup=3.0),
    "software rasterisers may compete": gpuedge.Policy(allow_software=True),
}

for title, policy in policies.items():
    with gpuedge.Session(model, policy=policy) as session:
        session.run({"image": images})  # what is best depends on the batch, so run first
        decision = session.explain()
        print(f"--- {title}")
        print(decision.reason)
        alike = Counter((row.device, row.status, row.code) for row in decision.rows)
        for (device, status, code), count in alike.items():
            drivers = f" ({count} drivers)" if count > 1 else ""
            print(f"    {device:10s} {status:9s} {code}{drivers}")
