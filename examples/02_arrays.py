"""What you will see: sums, a convolution and a formula of your own, right on every device here."""

import numpy as np

import gpuedge

rng = np.random.default_rng(0)
a = rng.integers(-8, 9, (2, 3, 16, 16)).astype(np.float32)
b = rng.integers(-8, 9, (1, 3, 1, 1)).astype(np.float32)  # broadcasts as in numpy
w = rng.integers(-3, 4, (4, 3, 3, 3)).astype(np.float32)

formula = gpuedge.elementwise("relu(a * b + 1)")  # one kernel, however long the formula

for device in ["cpu", *(row.device for row in gpuedge.probe().devices)]:
    total = gpuedge.add(a, b, device=device)
    filtered = gpuedge.conv2d(a, w, padding="same", device=device)
    own = formula(a=a, b=b, device=device)
    print(
        f"{device:10s}",
        "add right:", bool((total == a + b).all()),
        "| formula right:", bool((own == np.maximum(a * b + 1, 0)).all()),
        "| conv2d:", filtered.shape, "sum", int(filtered.sum()),
    )  # fmt: skip
