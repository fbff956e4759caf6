"""The ONNX backend interface (`onnx.backend.base.Backend`) over `gpuedge.Session`.

Device strings are ``CPU``, ``VULKAN``, ``GLES31``, ``GLES30``, ``GLES20``, ``WGPU`` and ``AUTO``,
and names of plug-ins, in any case, with an optional ``:index``. A named GPU is strict: what it
cannot run raises `BackendIsNotSupposedToImplementIt` and is never handed to the CPU, so a
conformance run over a GPU tests that GPU and nothing else. Host arithmetic on shapes shows in
`placement` as device ``host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from gpuedge import backends
from gpuedge.core.errors import (
    InexactError,
    InputError,
    ModelError,
    NotFiniteError,
    UnknownDeviceError,
    UnsupportedOpError,
)
from gpuedge.executors.base import PlacementRow
from gpuedge.safety.packages import needed

with needed("onnx", "gpuedge.onnx_backend"):
    import onnx
    from onnx.backend.base import Backend, BackendRep

__all__ = ["GpuEdgeBackend", "GpuEdgeRep", "is_compatible", "prepare", "run_model", "run_node",
           "supports_device"]  # fmt: skip

DEVICES = ("CPU", "VULKAN", "GLES31", "GLES30", "GLES20", "WGPU", "AUTO")
_DEVICE = re.compile(r"(\w+)(:\d+)?")


def parse_device(device: str) -> str:
    """Return the device string of `gpuedge.Session` for one of this interface.

    Raises
    ------
    UnknownDeviceError (GE-102)
        It names no device of this interface.
    """
    named = _DEVICE.fullmatch(device)
    name = named.group(1) if named else ""
    if name.upper() not in DEVICES and name.lower() not in backends.names():
        raise UnknownDeviceError(
            f"{device!r} is not a device of the ONNX backend.",
            known=", ".join(DEVICES) + ", each with an optional :index",
        )
    return device.lower()


def _is_strict(device: str) -> bool:
    return not device.startswith(("cpu", "auto"))


def _skip(error: object) -> NoReturn:
    """Raise what ONNX's test runner takes for "not my operator"."""
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

    text = str(getattr(error, "what", error))
    if isinstance(error, BaseException):
        raise BackendIsNotSupposedToImplementIt(text) from error
    raise BackendIsNotSupposedToImplementIt(text)


class GpuEdgeRep(BackendRep):
    """A prepared model. Made by `prepare`."""

    def __init__(self, model: Any, device: str) -> None:
        from gpuedge import Policy, Session

        self._device = parse_device(device)
        try:
            # Whoever runs this interface compares the results with something better.
            rules = Policy(crosscheck=0.0)
            self._session = Session(model, device=self._device, policy=rules, fallback="error")
        except (UnsupportedOpError, NotFiniteError) as error:  # the latter of its constants
            _skip(error)
        self._inputs = tuple(self._session.inputs)
        self._outputs = tuple(self._session.outputs)
        self._check_strict()

    @property
    def placement(self) -> tuple[PlacementRow, ...]:
        """A row per executed node or fused group, as `gpuedge.Session.placement`."""
        return tuple(self._session.placement)

    def _check_strict(self) -> None:
        if not _is_strict(self._device):
            return
        for row in self.placement:
            if row.device.startswith("cpu"):
                _skip(f"{', '.join(row.ops)} would run on the CPU instead of {self._device}")

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence or Mapping of ndarray
            In the order of the model's inputs, or by name. One array alone is taken as it is.
        **kwargs
            Ignored, as the interface asks.

        Returns
        -------
        tuple of ndarray
            In the order of the model's outputs.

        Raises
        ------
        InputError (GE-203)
            There are more or fewer arrays than inputs.
        onnx.backend.test.runner.BackendIsNotSupposedToImplementIt
            The named GPU cannot run all of it, or does not keep what an input or a result holds.
        """
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given: Sequence[Any] = list(inputs)
            if len(given) != len(self._inputs):
                raise InputError(
                    f"The model takes {len(self._inputs)} inputs, but {len(given)} are given.",
                    known="inputs: " + ", ".join(self._inputs),
                )
            feeds = dict(zip(self._inputs, given, strict=True))
        try:
            results = self._session.run(feeds)
        except (UnsupportedOpError, NotFiniteError, InexactError) as error:
            _skip(error)
        # With open shapes the placement is only known now.
        self._check_strict()
        return tuple(results[name] for name in self._outputs)


class GpuEdgeBackend(Backend):
    """ONNX backend that runs models through gpuedge."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the model can be read: valid, tensors only, operators that exist.

        Whether a device runs all of it is for `prepare` to say.
        """
        from gpuedge.graph.reader import OnnxModel

        try:
            OnnxModel.load(model)
        except ModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> GpuEdgeRep:
        """Return the model ready to run.

        Parameters
        ----------
        model : onnx.ModelProto
            A path or bytes are fine too.
        device : str
            ``CPU``, ``VULKAN``, ``GLES31``, ``GLES30``, ``GLES20``, ``WGPU`` or ``AUTO``, with an
            optional ``:index``.
        **kwargs
            Ignored, as the interface asks.

        Raises
        ------
        onnx.backend.test.runner.BackendIsNotSupposedToImplementIt
            The device cannot run an operator of the model.
        GpuEdgeError
            As from `gpuedge.Session`.
        """
        return GpuEdgeRep(model, device)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Prepare and run a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node as a model of its own.

        Parameters
        ----------
        node : onnx.NodeProto
            Read at the version its operator has in the operator set `opset_version` (a keyword),
            by default the newest.
        inputs : sequence or Mapping of ndarray
            For the node's inputs in order, or by name.
        device : str
            As for `prepare`.
        outputs_info : sequence of (dtype, shape), optional
            Needed only where ONNX cannot infer the types of the outputs.
        **kwargs
            ``opset_version``; the rest is ignored.
        """
        names = [name for name in dict.fromkeys(node.input) if name]
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            inputs = dict(zip((n for n in node.input if n), inputs, strict=True))
        arrays = {name: np.asarray(inputs[name]) for name in names}
        model = _single(node, arrays, outputs_info, kwargs.get("opset_version"))
        return cls.run_model(model, arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether the device string is known and such a device works here."""
        try:
            name = parse_device(device)
        except UnknownDeviceError:
            return False
        if not _is_strict(name):
            return True
        import gpuedge

        rows: Iterable[Mapping[str, Any]] = gpuedge.probe(backends=[name.split(":")[0]]).to_dict()[
            "tried"
        ]
        usable = [row["device"] for row in rows if row["status"] == "ok"]
        return any(name in (named, named.split(":")[0]) for named in usable)


def _single(
    node: onnx.NodeProto,
    arrays: Mapping[str, Any],
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    """Return a model of one node, at the oldest operator set with the same meaning."""
    from onnx import defs, helper

    newest = defs.onnx_opset_version() if node.domain in ("", "ai.onnx") else 1
    try:
        schema = defs.get_schema(node.op_type, opset or newest, node.domain)
    except defs.SchemaError:
        raise UnsupportedOpError(
            f"There is no operator {node.op_type} in operator set {opset or newest}."
        ) from None

    def info(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, element, shape)

    names = [name for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    if outputs_info is not None:
        outputs = [info(n, d, s) for n, (d, s) in zip(names, outputs_info, strict=True)]
    graph = helper.make_graph(
        [node], "node", [info(n, a.dtype, a.shape) for n, a in arrays.items()], outputs
    )
    imports = [helper.make_opsetid(node.domain, schema.since_version)]
    if node.domain not in ("", "ai.onnx"):
        imports.append(helper.make_opsetid("", defs.onnx_opset_version()))
    model = helper.make_model(
        graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports, True)
    )
    return onnx.shape_inference.infer_shapes(model)


is_compatible = GpuEdgeBackend.is_compatible
prepare = GpuEdgeBackend.prepare
run_model = GpuEdgeBackend.run_model
run_node = GpuEdgeBackend.run_node
supports_device = GpuEdgeBackend.supports_device
