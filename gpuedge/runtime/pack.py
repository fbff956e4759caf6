"""Packing a model: what a device needs of it, in one file that is read without the onnx package."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuedge import __version__
from gpuedge.core import config
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import InputError, ModelError, PackError
from gpuedge.core.text import shown
from gpuedge.executors.kernels import key_of, printed
from gpuedge.graph.container import About, is_packed, opened, written
from gpuedge.graph.ir import Array, Graph
from gpuedge.graph.packed import (
    FORMAT,
    KERNELS,
    MODEL,
    ModelRecord,
    OriginalRecord,
    PackedModel,
    PackWriter,
    document,
    joined,
    original_of,
    signatures,
)
from gpuedge.graph.reader import OnnxModel
from gpuedge.lang.cache import LANGUAGE_VERSION, encoded
from gpuedge.lang.cache import packed as packed_kernel
from gpuedge.plan.storages import kernel_kinds
from gpuedge.probing.report import ProbeRow
from gpuedge.runtime.devices import POOL
from gpuedge.runtime.forecast import Forecast
from gpuedge.runtime.golden import golden
from gpuedge.runtime.inputs import shapes_for
from gpuedge.runtime.request import make_request
from gpuedge.runtime.strings import parse
from gpuedge.safety.paths import save_named

if TYPE_CHECKING:
    import onnx

    Shapes = Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]]

LEAST = ProbeRow(
    "vulkan", "vulkan", "ok", "ok", "the least that Vulkan guarantees", "any Vulkan device",
    identity={"api": "vulkan", "name": "", "os": ""}, caps=VULKAN_MINIMUM.to_dict(),
)  # fmt: skip
"""What is planned for where no device is named: nothing of this machine counts."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What `pack` wrote.

    Attributes
    ----------
    path : str
    nbytes : int
        Size of the file.
    sha256 : str
        Of the model that was packed.
    format, language : int
        Versions of the file and of the kernels in it.
    shapes : tuple of dict
        Sets of shapes, by the names of inputs.
    weights : int
        Bytes of arrays in it.
    kernels : dict of str to int
        How many kernels were printed for each device, by its string and name.
    golden : tuple of str
        For each set of shapes why there are no golden values; empty where there are.
    """

    path: str
    nbytes: int
    sha256: str
    format: int
    language: int
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    weights: int
    kernels: Mapping[str, int]
    golden: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {"schema": "gpuedge.pack/1", **asdict(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)


def pack(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    path: str | os.PathLike[str],
    *,
    devices: Sequence[str | ProbeRow] = (),
    shapes: Shapes | None = None,
    calibration: Iterable[Mapping[str, Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Packed:
    """Write a model to one file, which sessions read without the onnx package.

    The file holds the graph as it is after reading and rewriting, the weights, the original for
    ONNX Runtime, golden inputs and outputs, and printed kernels. It is a safetensors file.

    Parameters
    ----------
    model : str, os.PathLike, bytes or onnx.ModelProto
        An ONNX model, or a packed one, whose original is packed anew.
    path : str or os.PathLike
        The file to write, in one step: ``model.gpuedge``.
    devices : sequence of str or ProbeRow, optional
        What kernels are printed for: levels (``vulkan``: every usable device of it here; the least
        that Vulkan guarantees where there is none), device strings, or rows of a probe report of
        another machine. Sessions print what is missing.
    shapes : mapping of str to sequence of int, or a sequence of such mappings, optional
        Shapes of inputs that the model leaves open: a graph is packed for each. A session asked for
        others needs the onnx package.
    calibration : iterable of mappings of str to array_like, optional
        With these the model is quantised first (`gpuedge.quantize`).
    inputs : mapping of str to array_like, optional
        Inputs of the golden values, of the first shapes. By default seeded random numbers.

    Returns
    -------
    Packed

    Raises
    ------
    ModelError (GE-500), UnsupportedOpError (GE-501)
        The model cannot be read, or holds what a packed model cannot: operators with graphs inside,
        inputs on which it depends whether ONNX Runtime is right, weights of rare dtypes.
    PackError (GE-502)
        A packed model that is to be packed anew is damaged, or holds no original.
    InputError (GE-203), ShapeError (GE-201)
        A shape is missing or does not fit; the file cannot be written.
    UnknownDeviceError (GE-102), NoUsableDeviceError (GE-103)
        A device.

    Examples
    --------
    >>> gpuedge.pack("model.onnx", "model.gpuedge", devices=["vulkan"])  # doctest: +SKIP
    >>> with gpuedge.Session("model.gpuedge") as session:  # doctest: +SKIP
    ...     result = session.run({"image": image})
    """
    config.check_environment()
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"The file to write is given as a path, not as {type(path).__name__}.")
    if not isinstance(devices, (list, tuple)):
        raise InputError(f"Devices are given as a list of names, not as {type(devices).__name__}.")
    source, name, digest = _source(model)
    if calibration is not None:
        from gpuedge.executors.quantiser import quantize

        source = quantize(source, calibration)
    read = OnnxModel.load(source)
    if read.contested:
        raise ModelError(
            f"{read.contested_node} cannot be packed: its graph depends on the values of inputs.",
            known=f"values of {', '.join(sorted(map(shown, read.contested)))} decide whether ONNX "
            "Runtime computes it as ONNX has it",
            hint="give sessions the ONNX file, or make these inputs constants",
        )
    sides = signatures(read.inputs), signatures(read.outputs)
    sets = [*shapes] if isinstance(shapes, (list, tuple)) and shapes else [shapes]
    sizes = list(dict.fromkeys(shapes_for(each, read) for each in sets))
    graphs = [read.with_shapes(each) for each in sizes]
    rows = [row for device in devices for row in _rows(device)]
    writer, right, why = PackWriter(), list[Mapping[str, Array]](), list[str]()
    for number, shaped in enumerate(graphs):
        values, missing = golden(read, shaped, inputs if number == 0 else None)
        right.append(values)
        why.append(missing)
    records = tuple(writer.graph(g.graph, v) for g, v in zip(graphs, right, strict=True))
    weights = sum(array.nbytes for array in writer.parts.values())
    given = read.serialised
    data = read.data if given is None else given.read()
    kept = original_of(data, writer, is_settled=given is not None)
    record = ModelRecord(*sides, records, kept, tuple(sorted(read.parameters)))
    writer.parts[MODEL] = document(record)
    kernels, counts = _kernels([shaped.graph for shaped in graphs], rows)
    if kernels:
        writer.parts[KERNELS] = np.frombuffer(encoded(list(kernels.items())), np.uint8)
    about = About(FORMAT, __version__, LANGUAGE_VERSION, name, digest, ())
    contents = written(about, writer.parts)
    _ = PackedModel.load(contents).graph(sizes[0])  # what is written can be read
    save_named(Path(path), contents, "the packed model")
    return Packed(
        os.fspath(path), len(contents), digest, FORMAT, LANGUAGE_VERSION,
        tuple(dict(zip(read.inputs, each, strict=True)) for each in sizes), weights, counts,
        tuple(why),
    )  # fmt: skip


def _source(model: Any) -> tuple[Any, str, str]:
    """Return what is to be packed, the name of its file, and its SHA-256."""
    if is_packed(model):
        file = opened(model)
        data = joined(file, _original(file.document(MODEL), file.source))
        return data, file.about.model, file.about.sha256
    if isinstance(model, (str, os.PathLike)):
        from gpuedge.graph.parse import contents

        data = contents(Path(model))
        return model, Path(model).name, hashlib.sha256(data).hexdigest()
    if isinstance(model, (bytes, bytearray, memoryview)):
        data = bytes(model)
    else:  # what is no model at all, the reader says
        data = model.SerializeToString() if hasattr(model, "SerializeToString") else b""
    return model, "", hashlib.sha256(data).hexdigest()


def _original(record: Any, source: str) -> OriginalRecord:
    """Return where the original is, in a file of any format. Raises PackError."""
    from gpuedge.core.record import UnfitError, read

    with suppress(UnfitError, AttributeError, LookupError, TypeError):
        return read(OriginalRecord, record["original"])
    raise PackError(
        f"The packed model ({source}) holds no original that this gpuedge reads.",
        hint="gpuedge pack the ONNX file that it was made from",
    )


def _rows(device: str | ProbeRow) -> Iterator[ProbeRow]:
    """Yield what kernels are printed for. Raises UnknownDeviceError, NoUsableDeviceError."""
    if isinstance(device, ProbeRow):
        yield device
        return
    request = make_request(device)
    _, _, index = parse(device).partition(":")
    there = POOL.current(request.backends).devices
    known = [] if index else [row for row in there if row.backend == request.device]
    if not known and request.device == LEAST.backend:
        known = [LEAST]
    yield from known or [POOL.named(request.device, request.backends)]


def _kernels(
    graphs: Sequence[Graph], rows: Sequence[ProbeRow]
) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return the kernels of graphs on devices by key, and how many each device has."""
    kernels, counts = dict[str, bytes](), dict[str, int]()
    for row in rows:
        keys = set()
        for graph in graphs:
            forecast = Forecast(graph, row)
            for plan in filter(None, forecast.plans):
                for launch in plan.passes:
                    kinds = kernel_kinds(launch, plan.tensors, forecast.caps)
                    key = key_of(launch, kinds, forecast.caps.dialect)
                    if key not in kernels:
                        blob = printed(launch, kinds, forecast.caps.dialect)
                        kernels[key] = packed_kernel(blob)
                    keys.add(key)
        counts[f"{row.device} ({row.name})"] = len(keys)
    return kernels, counts
