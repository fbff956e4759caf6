"""How gpuedge and other runtimes load a model: numpy in, numpy out.

A part of the process that is timed (`worker`), so nothing of gpuedge is imported but what is timed,
which may be another version of it. Each runtime is one function, imported when it is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

Feeds = Mapping[str, Any]


class LoadedModel(NamedTuple):
    """A model that is ready.

    Attributes
    ----------
    run : callable
        Runs it once; returns its outputs by name.
    device : str
        What it runs on, by its own name.
    version : str
    file : str
        Where the runtime was imported from.
    """

    run: Callable[[], Mapping[str, Any]]
    device: str
    version: str
    file: str


class Peer(NamedTuple):
    """A runtime: its Python module, what loads a model, and the device it is asked for."""

    module: str
    load: Callable[[Any, str, Feeds, str], Callable[[], LoadedModel]]
    device: str = "cpu"


def _gpuedge(module: Any, model: str, feeds: Feeds, device: str) -> Callable[[], LoadedModel]:
    """Open the device without fallback, checks in service and comparisons: it is what is timed."""
    wanted = {"allow_software": True, "crosscheck": 0, "monitor": False}
    known = inspect.signature(module.Policy).parameters  # an older version may lack some
    policy = module.Policy(**{n: v for n, v in wanted.items() if n in known})
    opened = module.open(device, policy=policy)

    def load() -> LoadedModel:
        session = module.Session(model, device=opened, policy=policy, fallback="error")
        name = opened.identity.name if opened.identity else "CPU"
        return LoadedModel(lambda: session.run(feeds), name, module.__version__, module.__file__)

    return load


def _onnxruntime(module: Any, model: str, feeds: Feeds, device: str) -> Callable[[], LoadedModel]:
    """The CPU provider; threads wait without spinning, which would take cores from what runs."""
    options = module.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    def load() -> LoadedModel:
        session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        return LoadedModel(
            lambda: dict(zip(names, session.run(None, feeds), strict=True)),
            "CPU", module.__version__, module.__file__,
        )  # fmt: skip

    return load


def _openvino(module: Any, model: str, feeds: Feeds, device: str) -> Callable[[], LoadedModel]:
    """OpenVINO's CPU plug-in in float32, which it would leave for less on some processors."""
    core = module.Core()

    def load() -> LoadedModel:
        precision = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(model, device.upper(), precision)
        names = [one.get_any_name() for one in compiled.outputs]
        request = compiled.create_infer_request()

        def run() -> Mapping[str, Any]:
            found = request.infer(dict(feeds))
            return dict(zip(names, found.to_tuple(), strict=True))

        version = module.get_version().partition("-")[0]
        return LoadedModel(run, "CPU", version, module.__file__)

    return load


GPUEDGE = Peer("gpuedge", _gpuedge)
PEERS = {
    "onnxruntime": Peer("onnxruntime", _onnxruntime),
    "openvino": Peer("openvino", _openvino),
}
"""Other runtimes by the names that subjects have."""


def begin(peer: str, model: str, feeds: Feeds, device: str) -> Callable[[], LoadedModel]:
    """Import a runtime and open its device; what is returned loads the model.

    `peer` is one of `PEERS`, or ``gpuedge`` with its `device`. Raises whatever the runtime raises.
    """
    chosen = PEERS.get(peer, GPUEDGE)
    where = device if chosen is GPUEDGE else chosen.device
    return chosen.load(import_module(chosen.module), model, feeds, where)
