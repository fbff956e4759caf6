"""The ONNX package, imported with handlers held by the first function that needs it.

An import that an exception of a handler cuts short leaves modules without their submodules, for as
long as the process lives.
"""

from gpuedge.safety.interrupts import held

with held:
    import onnx
    from onnx import TensorProto, helper, inliner, numpy_helper, version_converter

__all__ = ["TensorProto", "helper", "inliner", "numpy_helper", "onnx", "version_converter"]
