"""Quantising models to int8 by ONNX Runtime's quantiser: `gpuedge.quantize`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuedge.core.errors import InputError, ModelError, UsageError
from gpuedge.core.interchange import as_array
from gpuedge.core.text import counted, said, shown
from gpuedge.executors.cpu import the_runtime
from gpuedge.graph.batchnorm import fold
from gpuedge.graph.gemm import split_gemm
from gpuedge.graph.integers import is_quantised
from gpuedge.graph.parse import load, raised
from gpuedge.graph.reader import OnnxModel, takes
from gpuedge.safety import temporary
from gpuedge.safety.packages import needed

if TYPE_CHECKING:
    import os

    import onnx

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto

log = logging.getLogger("gpuedge")

LEAST_OPSET = 13
"""Operator set from which scales may differ from channel to channel; older models are raised."""


BITS: Final = {"int4": 4, "int8": 8}
"""Weights of few bits beside activations of float32."""

BLOCK_SIZES: Final = (16, 32, 64, 128, 256)
BLOCK_SIZE: Final = 32


def quantize(
    model: Model,
    calibration: Iterable[Mapping[str, Any]] | None = None,
    *,
    per_channel: bool = True,
    weights: str | None = None,
    block_size: int = BLOCK_SIZE,
) -> onnx.ModelProto:
    """Return a model of fewer bits, by ONNX Runtime's quantisers.

    With `weights`, only the constant matrices of MatMul and Gemm become integers, of 4 or 8 bits
    with a scale for each block of a column, symmetric about zero; all else stays float32, and no
    calibration data are needed. They lie in memory as they are, and kernels unpack them
    (MatMulNBits of ``com.microsoft``). A weight is off by at most 1/16 (int4) or 1/256 (int8) of
    the largest of its block; towards the other end of the range, by twice that.

    Otherwise the model computes in 8 bits. Weights become int8, symmetric about zero, and
    activations uint8, each between the lowest and the highest value that the calibration data make
    it take. The result is an ONNX model with QuantizeLinear and DequantizeLinear around what it
    computes, of float inputs and outputs as before. A `Session` computes what stands between these
    as integers: the same bits on every level and every processor. BatchNormalization behind a
    Conv, ConvTranspose or Gemm is first folded into its weights.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        Of float32. It is not modified. Below operator set 13 it is raised to that.
    calibration : iterable of mappings of str to array_like
        Inputs such as `Session.run` takes; some dozen typical ones. Read once. Not with `weights`.
    per_channel : bool
        Whether each filter has a scale of its own.
    weights : str, optional
        ``int4`` or ``int8``.
    block_size : int
        With `weights`, how many of them share a scale: 16, 32, 64, 128 or 256.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        There are no calibration data, or they do not fit the model.
    ModelError (GE-500)
        The model cannot be read, raised to operator set 13, or quantised.
    UsageError (GE-200)
        `per_channel` is no bool; `weights` or `block_size` is none of these, or there are
        calibration data for `weights`.
    MissingPackageError (GE-104)
        There is no ONNX Runtime here, or one without its quantiser or what that needs; `weights`
        needs the extra ``quantize``.

    Examples
    --------
    >>> small = gpuedge.quantize("net.onnx", ({"x": image} for image in images))  # doctest: +SKIP
    >>> with gpuedge.Session(small, device="gles20") as session:  # doctest: +SKIP
    ...     scores = session.run({"x": image})
    """
    if not isinstance(per_channel, bool):
        raise UsageError(f"per_channel is a bool, not a {type(per_channel).__name__}.")
    if weights is not None:
        return _by_weights(model, calibration, weights, block_size)
    tools = _tools()
    read = OnnxModel.load(model)
    samples = _Samples(read, () if calibration is None else calibration)
    proto = _floats(model)
    fold(proto)
    with _quiet(), temporary.folder("gpuedge-quantise-") as folder:
        out = folder / "quantised.onnx"
        with _refused((InputError, MemoryError)):
            tools.quantize_static(
                proto, str(out), samples, quant_format=tools.QuantFormat.QDQ,
                activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
                per_channel=per_channel,
            )  # fmt: skip
        return load(out)[0]


def _floats(model: Model) -> onnx.ModelProto:
    """Return a copy of a model that is not quantised yet, of operator set 13 or later."""
    proto = raised(model, LEAST_OPSET)
    node = next((n for n in proto.graph.node if is_quantised(n.op_type)), None)
    if node is not None:
        raise ModelError(
            "The model is quantised already.", asked_by="quantize",
            known=f"it holds {node.op_type} node {shown(node.name or node.output[0])}",
            hint="quantise the model of floats that it was made from",
        )  # fmt: skip
    return proto


def _by_weights(model: Model, calibration: Any, weights: str, block_size: int) -> onnx.ModelProto:
    """Return a model whose weights alone are integers."""
    is_known = isinstance(weights, str) and weights in BITS
    is_fit = isinstance(block_size, int) and block_size in BLOCK_SIZES
    if not (is_known and is_fit) or calibration is not None:
        raise UsageError(
            f"quantize takes no weights={shown(repr(weights))[1:-1]}, "
            f"block_size={shown(repr(block_size))[1:-1]}"
            f"{'' if calibration is None else ' with calibration data'}.",
            known=f"weights: {', '.join(BITS)}; blocks: {', '.join(map(str, BLOCK_SIZES))}",
            hint="for weights of few bits no calibration data are needed",
        )
    the_runtime()
    with _quiet(), needed("onnx_ir", "quantize(weights=...)"):  # it sets up the root logger
        tools = import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    proto = _floats(model)
    split_gemm(proto)
    before = _packed(proto)
    with _quiet(), _refused((MemoryError,)):
        work = tools.MatMulNBitsQuantizer(
            proto, bits=BITS[weights], block_size=block_size, is_symmetric=True
        )
        work.process()
        made: onnx.ModelProto = work.model.model
    if _packed(made) == before:
        raise ModelError(
            "The model has no weights to quantise.", asked_by="quantize",
            known="MatMul and Gemm by a constant matrix are quantised"
            + (f"; {counted(before, 'product')} of it are MatMulNBits already" if before else ""),
        )  # fmt: skip
    return made


def _packed(proto: onnx.ModelProto) -> int:
    """Return how many products of a model take weights of few bits."""
    return sum(node.op_type == "MatMulNBits" for node in proto.graph.node)


@contextmanager
def _refused(let_through: tuple[type[BaseException], ...]) -> Iterator[None]:
    try:
        yield
    except let_through:
        raise
    except Exception as error:  # whatever it raises of models that it does not know
        raise ModelError(f"ONNX Runtime cannot quantise the model: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the quantiser's warnings out of the application's log; they are gpuedge's, at DEBUG.

    It uses the functions of `logging` itself, which also set up the root logger where nobody did
    yet: the application's own `basicConfig` would do nothing any more.
    """
    root, me = logging.getLogger(), threading.get_ident()
    stand_in = logging.lastResort if not root.handlers else None

    def is_ours(record: logging.LogRecord) -> bool:
        if record.thread != me or "onnxruntime" not in record.pathname:
            return True
        log.debug("ONNX Runtime's quantiser: %s", record.getMessage())
        return False

    root.addFilter(is_ours)
    if stand_in is not None:
        root.addHandler(stand_in)
    try:
        yield
    finally:
        root.removeFilter(is_ours)
        if stand_in is not None:
            root.removeHandler(stand_in)


def _tools() -> Any:
    the_runtime()
    with needed("onnxruntime", "quantize"):  # and onnx, which it imports
        return import_module("onnxruntime.quantization")


class _Samples:
    """Calibration data as ONNX Runtime reads them: one mapping at a time, None at the end."""

    def __init__(self, model: OnnxModel, samples: Iterable[Mapping[str, Any]]) -> None:
        self._samples = _checked(model, samples)
        self._first: Mapping[str, Any] | None = next(self._samples, None)
        if self._first is None:
            raise InputError(
                "There are no calibration data.", known=takes(model.inputs),
                hint="give a list of what Session.run takes, such as [{'x': image}, ...]",
            )  # fmt: skip

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next inputs."""
        first, self._first = self._first, None
        return next(self._samples, None) if first is None else first


def _by_name(model: OnnxModel, number: int, sample: Any) -> Mapping[str, Any]:
    """Return a sample by name that may have been given in the model's order."""
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, (list, tuple)) and len(sample) == len(model.inputs):
        return dict(zip(model.inputs, sample, strict=True))
    raise InputError(
        f"Calibration sample {number}, a {type(sample).__name__}, is not the inputs by name or in "
        "order.",
        known=takes(model.inputs),
        hint="give a list of samples, such as [{name: array}, ...]",
    )


def check_samples(samples: Any) -> None:
    """Raise InputError (GE-203) for what cannot be a list of inputs."""
    if isinstance(samples, (str, bytes, Mapping)) or not isinstance(samples, Iterable):
        raise InputError(
            f"Samples of inputs are not given as a {type(samples).__name__}.",
            hint="give a list of samples, such as [{name: array}, ...]",
        )


def _checked(model: OnnxModel, samples: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    check_samples(samples)
    for number, given in enumerate(samples):
        sample = {
            name: as_array(value, f"{shown(name)} of calibration sample {number}")
            for name, value in _by_name(model, number, given).items()
        }
        arrays = {}
        for name, (dtype, _) in model.inputs.items():
            if name not in sample:
                raise InputError(f"Calibration sample {number} lacks {shown(name)}.",
                                 known=takes(model.inputs))  # fmt: skip
            try:
                arrays[name] = np.ascontiguousarray(sample[name], dtype)
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{shown(name)} of calibration sample {number} is no {dtype}: {said(error)}.",
                    known=takes(model.inputs),
                ) from None
            if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
                raise InputError(f"Calibration sample {number} holds NaN or infinity.")
            if not arrays[name].size:
                raise InputError(
                    f"{shown(name)} of calibration sample {number} holds no numbers.",
                    known=f"its shape is {arrays[name].shape}",
                )
        shapes = {name: array.shape for name, array in sample.items()}
        model.bind(shapes | {name: array.shape for name, array in arrays.items()})
        yield arrays
