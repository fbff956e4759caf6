"""How far a quantised model is from the one of floats: `gpuedge.quantization_error`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge.core.errors import InputError, ModelError
from gpuedge.core.text import shown
from gpuedge.executors.quantiser import check_samples
from gpuedge.graph.ir import Array
from gpuedge.session import Session

if TYPE_CHECKING:
    import os

    import onnx

    from gpuedge.core.words import DeviceName

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(frozen=True, slots=True)
class OutputDeviation:
    """How far one output of a quantised model is from that of the floats, over all samples.

    Attributes
    ----------
    largest : float or None
        The largest absolute difference, by the largest absolute value of the floats.
    rms : float or None
        The root mean square of the differences, by that of the floats.

    Both are None where nothing can be compared: text, other shapes, values that are not finite, or
    floats that are all zero.
    """

    largest: float | None
    rms: float | None


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What `quantization_error` found: the samples compared, and every output by name."""

    samples: int
    outputs: Mapping[str, OutputDeviation]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {"schema": "gpuedge.quantization_error/1", **asdict(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)


def quantization_error(
    model: Model,
    quantized: Model,
    samples: Iterable[Mapping[str, Any]],
    *,
    device: DeviceName = "cpu",
) -> QuantizationReport:
    """Compare the outputs of a quantised model with those of the model of floats.

    Parameters
    ----------
    model, quantized : str, os.PathLike, bytes or onnx.ModelProto
        The model of floats, which the CPU computes, and what `quantize` made of it.
    samples : iterable of mappings of str to array_like
        Inputs such as `Session.run` takes: best ones that the model was not calibrated with. Read
        once.
    device : str
        What computes the quantised model.

    Returns
    -------
    QuantizationReport

    Raises
    ------
    InputError (GE-203), ShapeError (GE-201)
        There are no samples, or they do not fit.
    ModelError (GE-500)
        A model cannot be read, or the two have different outputs.

    Examples
    --------
    >>> small = gpuedge.quantize("net.onnx", weights="int4")  # doctest: +SKIP
    >>> report = gpuedge.quantization_error("net.onnx", small, samples)  # doctest: +SKIP
    >>> report.outputs["scores"].rms  # doctest: +SKIP
    0.021
    """
    check_samples(samples)
    with Session(model, device="cpu") as floats, Session(quantized, device=device) as other:
        if floats.outputs.keys() != other.outputs.keys():
            raise ModelError(
                "The models have different outputs.", asked_by="quantization_error",
                known=f"{', '.join(map(shown, floats.outputs))}; "
                f"{', '.join(map(shown, other.outputs))}",
            )  # fmt: skip
        sums = {name: _Sums() for name in floats.outputs}
        count = 0
        for sample in samples:
            wanted, got = floats.run(sample), other.run(sample)
            for name, each in sums.items():
                each.add(wanted[name], got[name])
            count += 1
    if not count:
        raise InputError("There are no samples.", asked_by="quantization_error")
    return QuantizationReport(count, {name: each.deviation() for name, each in sums.items()})


class _Sums:
    """What is known of an output so far."""

    def __init__(self) -> None:
        self._most = self._off = self._squares = self._off_squares = 0.0
        self._is_comparable = True

    def add(self, wanted: Array, got: Array) -> None:
        if wanted.shape != got.shape or wanted.dtype.kind not in "fiub":
            self._is_comparable = False
        if not self._is_comparable or not wanted.size:
            return
        right = wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity less infinity is told below
            off = got.astype(np.float64) - right
        self._is_comparable = bool(np.isfinite(off).all() and np.isfinite(right).all())
        self._most = max(self._most, float(np.abs(right).max()))
        self._off = max(self._off, float(np.abs(off).max()))
        self._squares += float(np.square(right).sum())
        self._off_squares += float(np.square(off).sum())

    def deviation(self) -> OutputDeviation:
        if not self._is_comparable or not self._squares:
            return OutputDeviation(None, None)
        rms = float(np.sqrt(self._off_squares / self._squares))
        return OutputDeviation(self._off / self._most, rms)
