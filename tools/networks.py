"""Runs whole networks on driver configurations against onnxruntime; writes docs/tables/networks.md.

Usage: python tools/networks.py --run [--only NETWORK...] [CONFIGURATION...]
       python tools/networks.py

The networks are the light models of the onnx package, whose weights are all alike there and come
from a seed here (He et al., "Delving deep into rectifiers", 2015), and the U-Net of
`examples/models`. A named device computes all of a network, or it is `unsupported`. Results, and
those before a last softmax, are compared with onnxruntime's within the running errors of the
operators, as the cross-check of `gpuedge.runtime.crosscheck` allows them. Rows go to
out/networks/CONFIGURATION.jsonl, one for each network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from workers import CPU, Worker  # noqa: E402

import gpuedge  # noqa: E402
from gpuedge.core.errors import UnsupportedOpError  # noqa: E402
from gpuedge.executors.cpu import CpuExecutor  # noqa: E402
from gpuedge.graph.reader import OnnxModel  # noqa: E402
from gpuedge.opset.bounds import TINY  # noqa: E402
from gpuedge.runtime.crosscheck import FACTOR, RunningErrors  # noqa: E402

OUT = ROOT / "out" / "networks"
PAGE = ROOT / "docs" / "tables" / "networks.md"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
UNET = ROOT / "examples" / "models" / "shapes.onnx"
NETWORKS = (
    "squeezenet", "shufflenet", "resnet50", "inception_v1", "inception_v2", "densenet121",
    "bvlc_alexnet", "zfnet512", "vgg19", "u-net",
)  # fmt: skip
CONFIGURATIONS = ("vulkan-lavapipe", "vulkan-swiftshader", "gles31-llvmpipe", "gles30-llvmpipe",
                  "gles20-llvmpipe", "wgpu-lavapipe", CPU)  # fmt: skip
PROBE_S = 60.0
PATIENCE_S = 1800.0
"""Longest case: two runs of vgg19 on OpenGL ES 2.0."""

INTRODUCTION = """\
# Networks

Made by `make networks` (tools/networks.py); do not edit. The light models of the onnx package with
weights from a seed, and the U-Net of `examples/models` (192 x 256), on configurations of
`tests/drivers/farm.py`. A device computes all of a network. Results, and those before a last
softmax, are compared with onnxruntime's: `of bound` is the largest difference in units of what the
running errors of the operators allow ([numerics](../numerics.md)), `error` the largest difference
as a share of the largest number. Seconds are of a shared machine with two processor cores, and say
what to expect of software drivers, no more.

| network | configuration | | nodes | of bound | error | opens (s) | runs (s) | peak (MiB) |
|---|---|---|---|---|---|---|---|---|
"""


# --- networks ------------------------------------------------------------------------------------


def weights(model: onnx.ModelProto, seed: int = 1) -> None:
    """Replace constant weights by random ones that keep activations in range."""
    rng, graph = np.random.default_rng(seed), model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    users = {name: (n, i) for n in graph.node for i, name in enumerate(n.input)}
    made = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]
    for node in made:
        name = node.output[0]
        shape = tuple(int(n) for n in shapes[node.input[0]])
        user, place = users[name]
        if user.op_type == "Unsqueeze":
            user, place = users[user.output[0]]
        array = _weight(rng, shape, user.op_type, place)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        graph.node.remove(node)


def _weight(
    rng: np.random.Generator, shape: tuple[int, ...], op: str, place: int
) -> np.ndarray[Any, Any]:
    """Return a parameter: the scale, shift, mean and variance of a norm, a bias or a weight."""
    if op == "BatchNormalization" and place == 4:
        return rng.uniform(0.5, 1.5, shape)
    if op == "Mul" or (op == "BatchNormalization" and place == 1):
        return rng.uniform(0.4, 0.8, shape)
    if len(shape) < 2:
        return rng.normal(0, 0.1, shape)
    return rng.normal(0, (2 / prod(shape[1:])) ** 0.5, shape)


def network(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """Return a network and inputs for it."""
    if name == "u-net":
        model = onnx.load(UNET)
        shape: tuple[int, ...] = (1, 3, 192, 256)
    else:
        model = onnx.load(LIGHT / f"light_{name}.onnx")
        weights(model)
        last = model.graph.node[-1]
        if last.op_type == "Softmax":
            model.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
        shape = (1, 3, 224, 224)
    held = {t.name for t in model.graph.initializer}
    (given,) = (i.name for i in model.graph.input if i.name not in held)
    image = np.random.default_rng(2).uniform(0, 1, shape).astype(np.float32)
    return model, {given: image}


def reference(name: str) -> tuple[Path, Path]:
    """Return the files of a network, and of its inputs, onnxruntime's results and their bounds."""
    OUT.mkdir(parents=True, exist_ok=True)
    model_file, known_file = OUT / f"{name}.onnx", OUT / f"{name}.npz"
    if not known_file.exists():
        model, feeds = network(name)
        onnx.save(model, model_file)
        session = onnxruntime.InferenceSession(model_file, providers=["CPUExecutionProvider"])
        results = session.run(None, feeds)
        graph = OnnxModel.load(model).specialise({n: a.shape for n, a in feeds.items()})
        bounds = RunningErrors(graph, feeds, CpuExecutor())
        kept = {f"in:{n}": a for n, a in feeds.items()}
        for output, found in zip(session.get_outputs(), results, strict=True):
            if not np.isfinite(found).all():
                raise ValueError(f"{name} gives numbers that are not finite")
            kept[f"out:{output.name}"] = np.asarray(found)
            kept[f"allowed:{output.name}"] = FACTOR * bounds.values[output.name].e + TINY
        np.savez(known_file, **kept)  # type: ignore[arg-type]
    return model_file, known_file


# --- in a process of its own ---------------------------------------------------------------------


def one(name: str, device: str) -> dict[str, Any]:
    """Return the row of a network."""
    model_file, known_file = reference(name)
    known = dict(np.load(known_file, allow_pickle=False))
    feeds = {n[3:]: a for n, a in known.items() if n.startswith("in:")}
    policy = gpuedge.Policy(crosscheck=0.0)
    start = time.monotonic()
    with gpuedge.Session(model_file, device=device, policy=policy, fallback="error") as session:
        session.run(feeds)
        opened = time.monotonic()
        found = session.run(feeds)
        ended = time.monotonic()
        row: dict[str, Any] = {"opens": opened - start, "runs": ended - opened}
        places = {r.device for r in session.placement}
        row["on"], row["nodes"] = sorted(places), sum(len(r.nodes) for r in session.placement)
        memory = session.profile()["memory"]
    if memory is not None:
        row["peak"] = sum(memory[k] for k in ("constant", "input", "output", "scratch"))
    away = {n: np.abs(a.astype(np.float64) - known[f"out:{n}"]) for n, a in found.items()}
    row["worst"] = max(float((a / known[f"allowed:{n}"]).max()) for n, a in away.items())
    row["error"] = max(float(a.max() / np.abs(known[f"out:{n}"]).max()) for n, a in away.items())
    is_whole = device == CPU or not any(p.startswith(CPU) for p in places)
    row["status"] = "passed" if is_whole and row["worst"] <= 1 else "wrong"
    return row


def child(device: str) -> None:
    """Run the networks whose names come in on standard input."""
    if device != CPU:
        gpuedge.probe(deadline_s=PROBE_S)
    for line in sys.stdin:
        name = line.strip()
        try:
            row = one(name, device)
        except UnsupportedOpError as error:
            row = {"status": "unsupported", "why": str(error)}
        except Exception as error:  # whatever it is, it is a finding
            row = {"status": "wrong", "why": f"{type(error).__name__}: {error}"}
        print(json.dumps({"network": name, **row}), flush=True)


# --- over all networks ---------------------------------------------------------------------------


def results(configuration: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, each from a process of its own."""
    for name in names:
        worker = Worker(configuration, __file__)
        row = worker.ask(name, PATIENCE_S)
        worker.close()
        yield {"network": name, "status": "wrong", **row}


def run(configuration: str, names: Sequence[str]) -> None:
    """Run networks into the file of a configuration."""
    file = OUT / f"{configuration}.jsonl"
    rows = read(file)
    for row in results(configuration, names):
        rows[row["network"]] = row
        file.write_text("".join(json.dumps(r) + "\n" for r in rows.values()), encoding="utf-8")
        print(configuration, json.dumps(row), file=sys.stderr, flush=True)


def read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by network."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {row["network"]: row for row in map(json.loads, lines)}


def page(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the page of rows by configuration and network."""
    lines = []
    for name in NETWORKS:
        for configuration, rows in found.items():
            if name in rows:
                lines.append(f"| {name} | {configuration} | {_cells(rows[name])} |\n")
    return INTRODUCTION + "".join(lines)


def _cells(row: Mapping[str, Any]) -> str:
    if "worst" not in row:
        return f"{row['status']}: {' '.join(row['why'].split())[:200]}" + " |" * 6
    peak = f"{row['peak'] / 2**20:.0f}" if "peak" in row else ""
    return (
        f"{row['status']} | {row['nodes']} | {row['worst']:.2g} | {row['error']:.1e} | "
        f"{row['opens']:.1f} | {row['runs']:.2f} | {peak}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 if a network is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--child", metavar="DEVICE", help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("configurations", nargs="*", default=CONFIGURATIONS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        child(chosen.child)
        return 0
    if chosen.run:
        for configuration in chosen.configurations:
            run(configuration, chosen.only)
    found = {name: rows for name in CONFIGURATIONS if (rows := read(OUT / f"{name}.jsonl"))}
    PAGE.write_text(page(found), encoding="utf-8")
    return int(any(r["status"] == "wrong" for rows in found.values() for r in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
