"""The right numbers: float64 values, with a bound on how far float32 on a GPU may be from them.

Known answers, conformance cases and generated models read it. `nodes` says what operators of ONNX
give, whole graphs too; `layers` has sums, products, windows and norms by their definitions, with
bounds from ``docs/numerics.md``; `functions` has those of single elements. All else is what ONNX's
own reference evaluator makes of float64. Nothing here computes a value by `gpuedge.opset`, the
kernels or the CPU executor: these are what it checks. Only the reference evaluator needs onnx.
"""
