"""gpuedge: use the GPU of an unknown device safely, and the CPU where it is not worth it.

Importing this loads no driver and no numpy; every name below loads what it needs when first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name as true; importing typing costs 10 ms
__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuedge.binding import BoundSession as BoundSession
    from gpuedge.core.config import config as config
    from gpuedge.core.errors import *
    from gpuedge.decide.decision import Decision as Decision
    from gpuedge.decide.policy import Policy as Policy
    from gpuedge.device import Device as Device
    from gpuedge.device import open as open
    from gpuedge.executors.quantiser import quantize as quantize
    from gpuedge.ops import *
    from gpuedge.ops.array import DeviceArray as DeviceArray
    from gpuedge.ops.array import array as array
    from gpuedge.ops.explaining import explain as explain
    from gpuedge.ops.frames import for_frames as for_frames
    from gpuedge.probing.api import probe as probe
    from gpuedge.probing.api import probe_async as probe_async
    from gpuedge.probing.report import ProbeProgress as ProbeProgress
    from gpuedge.probing.report import ProbeReport as ProbeReport
    from gpuedge.runtime.check import ModelCheck as ModelCheck
    from gpuedge.runtime.check import check as check
    from gpuedge.safety.interpreter import freeze_support as freeze_support
    from gpuedge.session import Session as Session
    from gpuedge.sharing import SharedModel as SharedModel

_LAZY = {
    "BoundSession": "gpuedge.binding",
    "Decision": "gpuedge.decide.decision",
    "DeviceArray": "gpuedge.ops.array",
    "Device": "gpuedge.device",
    "ModelCheck": "gpuedge.runtime.check",
    "Policy": "gpuedge.decide.policy",
    "ProbeProgress": "gpuedge.probing.report",
    "ProbeReport": "gpuedge.probing.report",
    "Session": "gpuedge.session",
    "SharedModel": "gpuedge.sharing",
    "array": "gpuedge.ops.array",
    "check": "gpuedge.runtime.check",
    "config": "gpuedge.core.config",
    "explain": "gpuedge.ops.explaining",
    "for_frames": "gpuedge.ops.frames",
    "freeze_support": "gpuedge.safety.interpreter",
    "open": "gpuedge.device",
    "probe": "gpuedge.probing.api",
    "probe_async": "gpuedge.probing.api",
    "quantize": "gpuedge.executors.quantiser",
}
_OPS = (
    "abs", "add", "argmax", "avg_pool2d", "batch_norm", "ceil", "celu", "clip", "concat", "conv2d",
    "conv_transpose2d", "cos", "crop", "div", "elementwise", "elu", "equal", "erf", "exp",
    "flatten", "flip", "floor", "gelu", "gemm", "global_avg_pool2d", "global_max_pool2d", "greater",
    "greater_equal", "hard_sigmoid", "hard_swish", "leaky_relu", "less", "less_equal", "log",
    "log_softmax", "matmul", "max_pool2d", "maximum", "mean", "minimum", "mish", "mul", "neg",
    "non_max_suppression", "nonzero", "pad", "pow", "prelu", "reciprocal", "relu", "relu6",
    "reshape", "resize", "round", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "slice",
    "softmax", "softplus", "softsign", "sqrt", "sub", "sum", "take", "tanh", "thresholded_relu",
    "to_float", "topk", "transpose", "where",
)  # fmt: skip
_ERRORS = (
    "GpuEdgeError", "BackendUnavailableError", "ClosedError", "CompilerUnavailableError",
    "ConfigError", "DTypeError", "DatabaseError", "DeviceError", "DeviceLostError",
    "DeviceTimeoutError", "DriverError", "InputError", "KernelError", "KernelLimitError",
    "KernelSyntaxError", "MissingPackageError", "MixedDevicesError", "ModelError",
    "NoUsableDeviceError", "OutOfMemoryError", "RequestTimeoutError", "ShapeError",
    "UnknownDeviceError", "UnsupportedOpError", "UsageError",
)  # fmt: skip
_LAZY.update(dict.fromkeys(_OPS, "gpuedge.ops"))
_LAZY.update(dict.fromkeys(_ERRORS, "gpuedge.core.errors"))
__all__ = [
    "BackendUnavailableError", "BoundSession", "ClosedError", "CompilerUnavailableError",
    "ConfigError", "DTypeError", "DatabaseError", "Decision", "Device", "DeviceArray",
    "DeviceError", "DeviceLostError", "DeviceTimeoutError", "DriverError", "GpuEdgeError",
    "InputError", "KernelError", "KernelLimitError", "KernelSyntaxError", "MissingPackageError",
    "MixedDevicesError", "ModelCheck", "ModelError", "NoUsableDeviceError", "OutOfMemoryError",
    "Policy", "ProbeProgress", "ProbeReport", "RequestTimeoutError", "Session", "ShapeError",
    "SharedModel", "UnknownDeviceError", "UnsupportedOpError", "UsageError", "__version__", "abs",
    "add", "argmax", "array", "avg_pool2d", "batch_norm", "ceil", "celu", "check", "clip", "concat",
    "config", "conv2d", "conv_transpose2d", "cos", "crop", "div", "elementwise", "elu", "equal",
    "erf", "exp", "explain", "flatten", "flip", "floor", "for_frames", "freeze_support", "gelu",
    "gemm", "global_avg_pool2d", "global_max_pool2d", "greater", "greater_equal", "hard_sigmoid",
    "hard_swish", "leaky_relu", "less", "less_equal", "log", "log_softmax", "matmul", "max_pool2d",
    "maximum", "mean", "minimum", "mish", "mul", "neg", "non_max_suppression", "nonzero", "open",
    "pad", "pow", "prelu", "probe", "probe_async", "quantize", "reciprocal", "relu", "relu6",
    "reshape", "resize", "round", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "slice",
    "softmax", "softplus", "softsign", "sqrt", "sub", "sum", "take", "tanh", "thresholded_relu",
    "to_float", "topk", "transpose", "where",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        module = _LAZY.get(name)
        if module is None:
            import sys  # with name and obj, Python itself adds "Did you mean: ..."

            text = f"module 'gpuedge' has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[__name__])
        if module != _LAZY["probe"]:  # with all others numpy may come
            from gpuedge.safety.interrupts import held

            with held:  # an import of numpy that is cut short cannot be repeated
                import_module(module)
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
