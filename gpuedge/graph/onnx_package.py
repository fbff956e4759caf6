"""The ONNX package, imported by the first function that needs it.

Raises MissingPackageError where the extra ``models`` is not installed.
"""

from gpuedge.safety.packages import needed

with needed("onnx", "a model"):
    import onnx
    from onnx import TensorProto, helper, inliner, numpy_helper, version_converter

__all__ = ["TensorProto", "helper", "inliner", "numpy_helper", "onnx", "version_converter"]
