"""How each peer loads a model and runs it, numpy in and numpy out.

Imported by `child.py` under the Python that has the peer: only gpuedge's own adapter may import
gpuedge. A peer that was asked for the GPU says what it left on the CPU (`Loaded.on_cpu`):

* gpuedge: nothing, for ``fallback="error"`` refuses it
* ncnn: layers that compute and have no Vulkan form once the model is loaded (`support_vulkan`)
* onnxruntime-webgpu: the session lists its providers, and is told to refuse nodes on the CPU and
  to retry nothing there; by default it would do both, with a line on the terminal at most
* iree: nothing, for the module holds code for one target only
* tinygrad: the device that the result lies on

Threads of the CPU peers wait for each other without spinning (here and in `run.QUIET`), for that
is processor time in which nothing is computed, and on a busy machine most of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Feeds = Mapping[str, Any]

CONVERT_S = 240.0
"""A conversion ahead of time that takes longer has failed."""


@dataclass(frozen=True)
class Loaded:
    """A model that is ready: what runs it, where it runs, and what of it does not."""

    run: Callable[[], list[Any]]
    device: str
    version: str
    on_cpu: tuple[str, ...] = ()


Load = Callable[[Path, Feeds, str], Loaded]
"""Of a model's file, its inputs, and the device that the peer's name holds."""


def gpuedge(model: Path, feeds: Feeds, device: str) -> Loaded:
    """Load with gpuedge on a device, without the CPU and without sampled cross-checks."""
    import gpuedge  # noqa: PLC0415

    policy = gpuedge.Policy(allow_software=True, crosscheck=0, monitor=False)
    opened = gpuedge.open(device, policy=policy)
    session = gpuedge.Session(str(model), device=opened, policy=policy, fallback="error")
    name = opened.identity.name if opened.identity else "CPU"
    return Loaded(lambda: list(session.run(feeds).values()), name, gpuedge.__version__)


def onnxruntime(model: Path, feeds: Feeds, device: str) -> Loaded:
    """Load with ONNX Runtime: its CPU provider, or WebGPU."""
    import onnxruntime as ort  # noqa: PLC0415

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    wanted = {"cpu": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider"}[device]
    if device != "cpu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(str(model), options, providers=[wanted], enable_fallback=0)
    has = wanted in session.get_providers()
    return Loaded(
        lambda: session.run(None, feeds), "CPU" if device == "cpu" else "",
        ort.__version__, () if has else ("every node",),
    )  # fmt: skip


MOVES = {
    "Input", "MemoryData", "Split", "Noop", "Reshape", "Flatten", "Permute", "Squeeze",
    "ExpandDims",
}  # fmt: skip
"""Layers of ncnn that compute nothing."""


def ncnn(model: Path, feeds: Feeds, device: str) -> Loaded:
    """Load with ncnn in float32, on all cores or on Vulkan's first device."""
    import ncnn  # noqa: PLC0415

    made = model.with_suffix(".ncnn.param")
    if not made.exists():
        shapes = ",".join(str(list(x.shape)).replace(" ", "") for x in feeds.values())
        # the program itself: the package around it imports torch
        pnnx = Path(find_spec("pnnx").origin).parent / "pnnx"  # type: ignore[union-attr,arg-type]
        _convert([str(pnnx), str(model), f"inputshape={shapes}", "fp16=0"], made)
    net = ncnn.Net()
    options = net.opt
    options.use_vulkan_compute = device == "vulkan"
    options.num_threads = os.cpu_count() or 1
    for kind in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(options, f"use_{kind}", False)
    net.opt = options
    if net.load_param(str(made)) or net.load_model(str(made.with_suffix(".bin"))):
        raise RuntimeError("ncnn does not load what pnnx made of the model")
    names, results = list(net.input_names()), list(net.output_names())
    arrays = [x[0] if x.ndim > 2 else x for x in feeds.values()]  # ncnn has no batches

    def run() -> list[Any]:
        extractor = net.create_extractor()
        for name, array in zip(names, arrays, strict=True):
            # a copy, for layers that compute in place must own what they overwrite
            extractor.input(name, ncnn.Mat(array).clone())
        found = []
        for name in results:
            failed, mat = extractor.extract(name)
            if failed:
                raise RuntimeError(f"ncnn could not compute {name}")
            found.append(np.array(mat))
        return found

    if device == "cpu":
        return Loaded(run, "CPU", version("ncnn"))
    left = [one.type for one in net.layers() if not one.support_vulkan and one.type not in MOVES]
    name = ncnn.get_gpu_info(0).device_name()
    return Loaded(run, name, version("ncnn"), tuple(sorted(set(left))))


IREE = {
    "vulkan": ("vulkan", ["--iree-hal-target-device=vulkan"]),
    "cpu": ("local-task", ["--iree-hal-target-device=local",
                           "--iree-hal-local-target-device-backends=llvm-cpu",
                           "--iree-llvmcpu-target-cpu=host"]),
}  # fmt: skip
"""The driver that runs a module, and for which target it is compiled."""


def iree(model: Path, feeds: Feeds, device: str) -> Loaded:
    """Load with IREE, compiled ahead of time."""
    from iree import runtime  # noqa: PLC0415

    driver, target = IREE[device]
    made = model.with_suffix(f".{device}.vmfb")
    if not made.exists():
        mlir = model.with_suffix(".mlir")
        _convert([_tool("iree-import-onnx"), str(model), "-o", str(mlir)], mlir)
        part = made.with_suffix(".part")  # a compiler that was killed leaves no module behind
        _convert([_tool("iree-compile"), str(mlir), *target, "-o", str(part)], part)
        part.replace(made)
        mlir.unlink()
    one = runtime.get_device(driver)
    config = runtime.Config(device=one)
    module = runtime.VmModule.mmap(config.vm_instance, str(made))
    context = runtime.SystemContext(config=config)
    context.add_vm_module(module)
    names = [n for n in module.function_names if not n.startswith("__") and "$" not in n]
    function = context.modules[module.name][names[0]]

    def run() -> list[Any]:
        found = function(*feeds.values())
        found = found if isinstance(found, (list, tuple)) else [found]
        return [np.array(_staged(one, array)) for array in found]

    known = runtime.get_driver(driver).query_available_devices()
    name = str(known[0].get("name") or "") if device == "vulkan" else "CPU"
    return Loaded(run, name, version("iree-base-runtime"))


def _staged(device: Any, array: Any) -> Any:
    """Return a result's numbers through a buffer of IREE's own.

    Its `to_host` imports numpy's memory into Vulkan, which software drivers refuse unless it is
    aligned to pages.
    """
    from iree.runtime import BufferUsage, HalFence, MemoryType  # noqa: PLC0415

    source = array._buffer_view.get_buffer()
    host = device.allocator.allocate_buffer(
        memory_type=int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(BufferUsage.TRANSFER_TARGET | BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    done = device.create_semaphore(0)
    device.queue_copy(
        source, host, wait_semaphores=HalFence.create_at(done, 0),
        signal_semaphores=HalFence.create_at(done, 1),
    )  # fmt: skip
    HalFence.create_at(done, 1).wait()
    return host.map().asarray(array._buffer_view.shape, array._get_raw_dtype())


def tinygrad(model: Path, feeds: Feeds, device: str) -> Loaded:
    """Load with tinygrad's ONNX front end, recorded once and replayed, on WebGPU (Dawn)."""
    import pydawn  # noqa: PLC0415

    library = next(Path(pydawn.__file__).parent.glob(f"lib/*{os.uname().machine}.so"))
    os.environ.update(DEV=device.upper(), WEBGPU_PATH=str(library))
    from tinygrad import Tensor, TinyJit  # noqa: PLC0415
    from tinygrad.nn.onnx import OnnxRunner  # noqa: PLC0415

    runner = OnnxRunner(str(model))

    @TinyJit
    def compute(*arrays: Any) -> list[Any]:
        given = dict(zip(feeds, arrays, strict=True))
        return [t.realize() for t in runner(given).values()]

    def run() -> list[Any]:
        return [t.numpy() for t in compute(*(Tensor(x).realize() for x in feeds.values()))]

    where = {str(t.device) for t in compute(*(Tensor(x).realize() for x in feeds.values()))}
    return Loaded(run, "", version("tinygrad"), tuple(sorted(where - {device.upper()})))


def _tool(name: str) -> str:
    """Return a program that the peer's package installed."""
    return str(Path(sys.executable).parent / name)


def _convert(command: list[str], made: Path) -> None:
    """Run a conversion; raise with its last words unless it made the file."""
    done = subprocess.run(
        command, cwd=made.parent, capture_output=True, text=True, check=False, timeout=CONVERT_S
    )
    if done.returncode or not made.exists():
        words = [w for w in (done.stderr + done.stdout).splitlines() if w.strip()]
        errors = [w for w in words if "error" in w.lower()] or words[-1:] or ["no message"]
        raise RuntimeError(f"{Path(command[0]).name}: {errors[0].strip()}")


PEERS: dict[str, tuple[Load, str]] = {
    "onnxruntime": (onnxruntime, "cpu"),
    "ncnn": (ncnn, "vulkan"),
    "ncnn-cpu": (ncnn, "cpu"),
    "onnxruntime-webgpu": (onnxruntime, "webgpu"),
    "iree": (iree, "vulkan"),
    "iree-cpu": (iree, "cpu"),
    "tinygrad": (tinygrad, "webgpu"),
}
"""Peers by name: their adapter, and the device they are asked for."""

GPUEDGE = "gpuedge "
"""What the names of gpuedge's own runs begin with; the device follows."""


def load(peer: str, model: Path, feeds: Feeds) -> Loaded:
    """Load a model with a peer; raises whatever the peer raises."""
    if peer.startswith(GPUEDGE):
        return gpuedge(model, feeds, peer.removeprefix(GPUEDGE))
    how, device = PEERS[peer]
    return how(model, feeds, device)
