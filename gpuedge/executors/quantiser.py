"""Quantising models to int8 by ONNX Runtime's quantiser: `gpuedge.quantize`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import InputError, ModelError
from gpuedge.core.interchange import as_array
from gpuedge.core.text import shown
from gpuedge.executors.cpu import the_runtime
from gpuedge.graph.batchnorm import fold
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


def quantize(
    model: Model, calibration: Iterable[Mapping[str, Any]], *, per_channel: bool = True
) -> onnx.ModelProto:
    """Return a model that computes in 8 bits, by ONNX Runtime's quantiser.

    Weights become int8, symmetric about zero, and activations uint8, each between the lowest and
    the highest value that the calibration data make it take. The result is an ONNX model with
    QuantizeLinear and DequantizeLinear around what it computes, of float inputs and outputs as
    before. A `Session` computes what stands between these as integers: the same bits on every
    level and every processor. BatchNormalization behind a Conv, ConvTranspose or Gemm is first
    folded into its weights.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        Of float32. It is not modified. Below operator set 13 it is raised to that.
    calibration : iterable of mappings of str to array_like
        Inputs such as `Session.run` takes; some dozen typical ones. Read once.
    per_channel : bool
        Whether each filter has a scale of its own.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        There are no calibration data, or they do not fit the model.
    ModelError (GE-500)
        The model cannot be read, raised to operator set 13, or quantised.
    MissingPackageError (GE-104)
        There is no ONNX Runtime here, or one without its quantiser or what that needs.

    Examples
    --------
    >>> small = gpuedge.quantize("net.onnx", ({"x": image} for image in images))  # doctest: +SKIP
    >>> with gpuedge.Session(small, device="gles20") as session:  # doctest: +SKIP
    ...     scores = session.run({"x": image})
    """
    tools = _tools()
    read = OnnxModel.load(model)
    samples = _Samples(read, calibration)
    proto = raised(model, LEAST_OPSET)
    node = next((n for n in proto.graph.node if is_quantised(n.op_type)), None)
    if node is not None:
        raise ModelError(
            "The model is quantised already.", asked_by="quantize",
            known=f"it holds {node.op_type} node {shown(node.name or node.output[0])}",
            hint="quantise the model of floats that it was made from",
        )  # fmt: skip
    fold(proto)
    with _quiet(), temporary.folder("gpuedge-quantise-") as folder:
        out = folder / "quantised.onnx"
        try:
            tools.quantize_static(
                proto, str(out), samples, quant_format=tools.QuantFormat.QDQ,
                activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
                per_channel=per_channel,
            )  # fmt: skip
        except (InputError, MemoryError):
            raise
        except Exception as error:  # whatever it raises of models that it does not know
            raise ModelError(f"ONNX Runtime cannot quantise the model: {error}") from error
        return load(out)[0]


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


def _checked(model: OnnxModel, samples: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
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
            arrays[name] = np.ascontiguousarray(sample[name], dtype)
            if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
                raise InputError(f"Calibration sample {number} holds NaN or infinity.")
        shapes = {name: array.shape for name, array in sample.items()}
        model.bind(shapes | {name: array.shape for name, array in arrays.items()})
        yield arrays
