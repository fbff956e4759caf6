"""What you will see: the same model under three policies, and what each one decides."""

from pathlib import Path

from train_digits import load_split

import gpuedge

model = Path(__file__).parent / "models" / "digits.onnx"
_, _, images, _ = load_split()

policies = {
    "default": gpuedge.Policy(),
    "careful: the GPU must be three times as fast": gpuedge.Policy(min_speedup=3.0, percentile=99),
    "software rasterisers may compete": gpuedge.Policy(allow_software=True),
}

for title, policy in policies.items():
    with gpuedge.Session(model, policy=policy) as session:
        session.run({"image": images})  # what is best depends on the batch, so run first
        decision = session.explain()
        print(f"--- {title}")
        print(decision.reason)
        for row in decision.rows:
            print(f"    {row.device:10s} {row.status:9s} {row.code}")
