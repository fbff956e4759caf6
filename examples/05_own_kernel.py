"""What you will see: a GLSL kernel of your own, called with arrays by name, against numpy.

Needs a Vulkan device (a software rasteriser will do) and a GLSL compiler; says what is missing.
Usage: python examples/05_own_kernel.py [DEVICE]
"""

import sys

import numpy as np

import gpuedge

STEPS_OF_THE_LOGISTIC_MAP = """
#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Start { float start[]; };
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Params { float rate; int steps; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= result.length()) return;  // the last workgroup may stick out
    float x = start[i];
    for (int k = 0; k < steps; k++) x = rate * x * (1.0 - x);
    result[i] = x;
}
"""

# GLSL becomes SPIR-V, which only Vulkan takes; on the other levels, write a gpuedge.elementwise.
found = [row.device for row in gpuedge.probe(backends=["vulkan"]).devices]
device = sys.argv[1] if len(sys.argv) > 1 else (found or [None])[0]
if device is None:
    print("no Vulkan device can be used here, so there is nothing to run GLSL on")
    sys.exit()

start = np.linspace(0, 1, 1000, dtype=np.float32)
try:
    with gpuedge.open(device) as gpu:
        kernel = gpu.kernel(
            STEPS_OF_THE_LOGISTIC_MAP,
            inputs=["start"],
            outputs={"result": ("start.shape", "float32")},
        )
        result = kernel(start=start, rate=2.5, steps=20)
        print("ran on", gpu)
except gpuedge.GpuEdgeError as error:
    print(error)
    sys.exit(0 if error.code == "GE-302" else 1)  # without a compiler there is nothing to show

wanted = start.astype(np.float64)
for _ in range(20):
    wanted = 2.5 * wanted * (1 - wanted)
print("largest difference to numpy:", np.abs(result - wanted).max())
print("they agree:", bool(np.abs(result - wanted).max() < 1e-6))
