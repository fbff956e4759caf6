"""gpuedge: use the GPU of an unknown device safely, and the CPU where it is not worth it.

Importing this loads no driver and no numpy; every name below loads what it needs when first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take this name as true; importing typing costs 10 ms
__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuedge.binding import BoundSession as BoundSession
    from gpuedge.core.caps import Caps as Caps
    from gpuedge.core.config import config as config
    from gpuedge.core.errors import *
    from gpuedge.core.identity import Identity as Identity
    from gpuedge.core.reasons import Reason as Reason
    from gpuedge.core.words import *
    from gpuedge.decide.decision import CandidateRow as CandidateRow
    from gpuedge.decide.decision import Decision as Decision
    from gpuedge.decide.decision_record import DecisionRecord as DecisionRecord
    from gpuedge.decide.policy import Policy as Policy
    from gpuedge.device import Device as Device
    from gpuedge.device import open as open
    from gpuedge.executors.base import PlacementRow as PlacementRow
    from gpuedge.executors.quantiser import quantize as quantize
    from gpuedge.ops import *
    from gpuedge.ops.array import DeviceArray as DeviceArray
    from gpuedge.ops.array import array as array
    from gpuedge.ops.elementwise import *
    from gpuedge.ops.explaining import explain as explain
    from gpuedge.ops.expression import Elementwise as Elementwise
    from gpuedge.ops.frames import for_frames as for_frames
    from gpuedge.probing.api import probe as probe
    from gpuedge.probing.api import probe_async as probe_async
    from gpuedge.probing.report import ProbeProgress as ProbeProgress
    from gpuedge.probing.report import ProbeReport as ProbeReport
    from gpuedge.probing.report import ProbeRow as ProbeRow
    from gpuedge.quantising import OutputDeviation as OutputDeviation
    from gpuedge.quantising import QuantizationReport as QuantizationReport
    from gpuedge.quantising import quantization_error as quantization_error
    from gpuedge.runtime.check import DeviceCheck as DeviceCheck
    from gpuedge.runtime.check import ModelCheck as ModelCheck
    from gpuedge.runtime.check import NodeCheck as NodeCheck
    from gpuedge.runtime.check import PackCheck as PackCheck
    from gpuedge.runtime.check import Place as Place
    from gpuedge.runtime.check import SegmentCheck as SegmentCheck
    from gpuedge.runtime.check import check as check
    from gpuedge.runtime.health import Failure as Failure
    from gpuedge.runtime.health import Health as Health
    from gpuedge.runtime.pack import Packed as Packed
    from gpuedge.runtime.pack import pack as pack
    from gpuedge.runtime.user_kernel import UserKernel as UserKernel
    from gpuedge.safety.future import Answer as Answer
    from gpuedge.safety.interpreter import freeze_support as freeze_support
    from gpuedge.session import Session as Session
    from gpuedge.sharing import SharedModel as SharedModel

_LAZY = {
    "Answer": "gpuedge.safety.future",
    "BoundSession": "gpuedge.binding",
    "CandidateRow": "gpuedge.decide.decision",
    "Caps": "gpuedge.core.caps",
    "Decision": "gpuedge.decide.decision",
    "DecisionRecord": "gpuedge.decide.decision_record",
    "Device": "gpuedge.device",
    "DeviceArray": "gpuedge.ops.array",
    "DeviceCheck": "gpuedge.runtime.check",
    "Elementwise": "gpuedge.ops.expression",
    "Failure": "gpuedge.runtime.health",
    "Health": "gpuedge.runtime.health",
    "Identity": "gpuedge.core.identity",
    "ModelCheck": "gpuedge.runtime.check",
    "NodeCheck": "gpuedge.runtime.check",
    "Place": "gpuedge.runtime.check",
    "OutputDeviation": "gpuedge.quantising",
    "PackCheck": "gpuedge.runtime.check",
    "Packed": "gpuedge.runtime.pack",
    "PlacementRow": "gpuedge.executors.base",
    "Policy": "gpuedge.decide.policy",
    "ProbeProgress": "gpuedge.probing.report",
    "ProbeReport": "gpuedge.probing.report",
    "ProbeRow": "gpuedge.probing.report",
    "QuantizationReport": "gpuedge.quantising",
    "Reason": "gpuedge.core.reasons",
    "SegmentCheck": "gpuedge.runtime.check",
    "Session": "gpuedge.session",
    "SharedModel": "gpuedge.sharing",
    "UserKernel": "gpuedge.runtime.user_kernel",
    "array": "gpuedge.ops.array",
    "check": "gpuedge.runtime.check",
    "config": "gpuedge.core.config",
    "explain": "gpuedge.ops.explaining",
    "for_frames": "gpuedge.ops.frames",
    "freeze_support": "gpuedge.safety.interpreter",
    "open": "gpuedge.device",
    "pack": "gpuedge.runtime.pack",
    "probe": "gpuedge.probing.api",
    "probe_async": "gpuedge.probing.api",
    "quantization_error": "gpuedge.quantising",
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
    "DeviceTimeoutError", "DriverError", "InexactError", "InputError", "KernelError",
    "KernelLimitError", "KernelSyntaxError", "MissingPackageError", "MixedDevicesError",
    "ModelError", "NoUsableDeviceError", "NotFiniteError", "OutOfMemoryError", "PackError",
    "RequestTimeoutError", "ShapeError", "UnknownDeviceError", "UnsupportedOpError", "UpdateError",
    "UsageError",
)  # fmt: skip
_WORDS = (
    "Activation", "Arithmetic", "DeviceName", "Fallback", "Isolation", "PadMode", "ProbeStatus",
    "ResizeMode", "StoragePrecision", "Tuning", "WhenToDecide",
)  # fmt: skip
_LAZY.update(dict.fromkeys(_OPS, "gpuedge.ops"))
_LAZY.update(dict.fromkeys(_ERRORS, "gpuedge.core.errors"))
_LAZY.update(dict.fromkeys(_WORDS, "gpuedge.core.words"))
__all__ = [
    "Activation", "Answer", "Arithmetic", "BackendUnavailableError", "BoundSession", "CandidateRow",
    "Caps", "ClosedError", "CompilerUnavailableError", "ConfigError", "DTypeError", "DatabaseError",
    "Decision", "DecisionRecord", "Device", "DeviceArray", "DeviceCheck", "DeviceError",
    "DeviceLostError", "DeviceName", "DeviceTimeoutError", "DriverError", "Elementwise", "Failure",
    "Fallback", "GpuEdgeError", "Health", "Identity", "InexactError", "InputError", "Isolation",
    "KernelError", "KernelLimitError", "KernelSyntaxError", "MissingPackageError",
    "MixedDevicesError", "ModelCheck", "ModelError", "NoUsableDeviceError", "NodeCheck",
    "NotFiniteError", "OutOfMemoryError", "OutputDeviation", "PackCheck", "PackError", "Packed",
    "PadMode", "Place", "PlacementRow", "Policy", "ProbeProgress", "ProbeReport", "ProbeRow",
    "ProbeStatus", "QuantizationReport", "Reason", "RequestTimeoutError", "ResizeMode",
    "SegmentCheck", "Session", "ShapeError", "SharedModel", "StoragePrecision", "Tuning",
    "UnknownDeviceError", "UnsupportedOpError", "UpdateError", "UsageError", "UserKernel",
    "WhenToDecide", "__version__", "abs", "add", "argmax", "array", "avg_pool2d", "batch_norm",
    "ceil", "celu", "check", "clip", "concat", "config", "conv2d", "conv_transpose2d", "cos",
    "crop", "div", "elementwise", "elu", "equal", "erf", "exp", "explain", "flatten", "flip",
    "floor", "for_frames", "freeze_support", "gelu", "gemm", "global_avg_pool2d",
    "global_max_pool2d", "greater", "greater_equal", "hard_sigmoid", "hard_swish", "leaky_relu",
    "less", "less_equal", "log", "log_softmax", "matmul", "max_pool2d", "maximum", "mean",
    "minimum", "mish", "mul", "neg", "non_max_suppression", "nonzero", "open", "pack", "pad", "pow",
    "prelu", "probe", "probe_async", "quantization_error", "quantize", "reciprocal", "relu",
    "relu6", "reshape", "resize", "round", "selu", "sigmoid", "sign", "silu", "sin", "sinh",
    "slice", "softmax", "softplus", "softsign", "sqrt", "sub", "sum", "take", "tanh",
    "thresholded_relu", "to_float", "topk", "transpose", "where",
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
