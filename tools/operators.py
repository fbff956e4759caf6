"""Writes docs/operators.md from the code: which functions and ONNX operators run where.

Usage: python tools/operators.py    (a test compares the page with what this makes)
"""

from __future__ import annotations

from pathlib import Path

from gpuedge import ops
from gpuedge.core.dtypes import BYTES
from gpuedge.graph.canon import CLOSED, KNOWN, MOVING
from gpuedge.graph.elementwise import ELEMENTWISE, VARIADIC
from gpuedge.kernels.expressions import SUPPORTED

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"

INTRODUCTION = """# Operators

This page is made from the code by `tools/operators.py`; a test compares them. How far results may
be from the exact ones is in [numerics](numerics.md).

## Functions on numpy arrays

Each takes `device=` and runs on every device, the CPU included: `gpuedge.relu(x, device="vulkan")`.
A device that is named computes the result or raises; it is never left for another.

`elementwise("relu(a * b + c)")` makes one kernel of a formula, printed for whatever level the
device has. It is the way to a kernel of your own on every level; kernels in GLSL (`Device.kernel`)
run on Vulkan only.
"""

ONNX = """
## ONNX operators

Of the default domain `ai.onnx`. On the CPU, ONNX Runtime runs these and all others it knows. On a
GPU an operator needs float32 or float16 values, where marked also int8 and uint8, and shapes that
are known when those of the inputs are. What a GPU named by `device=` cannot run goes to the CPU, or
is an error with `fallback="error"`; `auto` takes a GPU only if it runs all of the model. Nodes that
depend on constants only are evaluated while planning, on the host.

| operator | GPU | remark |
|---|---|---|
"""

REMARKS = {
    "BatchNormalization": "with constant parameters; it becomes a scale and a shift",
    "Clip": "with constant bounds",
    "Dropout": "as in inference: it does nothing",
    "Gemm": "becomes a matrix product and an addition",
    "MaxPool": "without the indices of the maxima",
    "Mean": "becomes additions and a division",
    "Reshape": "with a constant shape",
    "Squeeze": "with constant axes",
    "Sum": "becomes additions",
    "ThresholdedRelu": "has no kernel",
    "Unsqueeze": "with constant axes",
}
"""What a reader should know besides yes and no."""


def runs_on_gpu(op: str) -> bool:
    """Return whether there are kernels for an operator, of its own or of what it becomes."""
    if op not in ELEMENTWISE or op in SUPPORTED:
        return op in KNOWN
    return ELEMENTWISE[op] == VARIADIC


def remark(op: str) -> str:
    """Return what a reader should know of an operator: integers it takes on a GPU, restrictions."""
    taken = BYTES if op in MOVING else CLOSED.get(op, ())
    # ONNX knows Dropout for floats only
    integers = f"also {' and '.join(sorted(taken))}" if taken and op != "Dropout" else ""
    return "; ".join(filter(None, (integers, REMARKS.get(op)))) or "-"


def page() -> str:
    """Return the text of the page."""
    groups: dict[str, list[str]] = {}
    for name in ops.__all__:
        module = getattr(ops, name).__module__.rpartition(".")[2]
        groups.setdefault(module, []).append(f"`{name}`")
    functions = [f"* {module}: {', '.join(names)}\n" for module, names in sorted(groups.items())]
    rows = [
        f"| `{op}` | {'yes' if runs_on_gpu(op) else 'no'} | {remark(op)} |\n"
        for op in sorted(KNOWN)
    ]
    return "".join([INTRODUCTION, "\n", *functions, ONNX, *rows])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
