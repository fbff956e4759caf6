"""gpuedge and its peers on the same work: ``python -m benchmarks.peers.run``.

Every peer is a process of its own. Of each work all peers load the model and are compared with ONNX
Runtime; then rounds of bursts are taken, peer after peer, so that whatever else the machine does
hits all alike. Each cell is kept as a file under ``out/peers/``, so an interrupted run goes on
where it was. The driver is the one that the environment chooses, the same for all.

``--install`` makes the peers' virtual environment; ``--save`` writes the page into the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from . import cells, report
from .adapters import GPUEDGE, PEERS
from .cells import Cell
from .process import ROOT, Process

REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"
RESULTS = ROOT / "benchmarks" / "results"
OURS = "onnxruntime"
"""The peer that is a dependency of gpuedge and runs under the same Python."""

QUIET = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads of OpenMP that wait for each other do not spin."""

BURST_S = 0.2
LOAD_S, CEILING_S = 240.0, 120.0
"""Deadlines: loading with conversion and a first run (or a burst), a ceiling."""

SLOW_S = 5.0
"""A work that takes a peer that long is timed in one round only."""


def prepared(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return a folder with a work's model, inputs and ONNX Runtime's outputs, and its costs."""
    from . import models  # noqa: PLC0415 - what only reports or shows its usage needs no models

    place = folder / "models" / cells.plain(name)
    made = place / "work.json"
    if not made.exists():
        import numpy as np  # noqa: PLC0415
        import onnxruntime  # noqa: PLC0415

        from gpuedge.graph.cost import count  # noqa: PLC0415

        place.mkdir(parents=True, exist_ok=True)
        graph, model = models.graph_of(name), models.model_of(name)
        feeds = models.inputs_of(graph)
        (place / "model.onnx").write_bytes(model)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        held = {f"in {n}": x for n, x in feeds.items()}
        held |= {f"out {i}": y for i, y in enumerate(session.run(None, feeds))}
        np.savez(place / "data.npz", **held)
        costs = count(graph)
        size = costs["bytes_in"] + costs["bytes_out"]
        size += sum(a.nbytes for a in graph.constants.values())
        digest = hashlib.sha256(model).hexdigest()[:8]
        made.write_text(json.dumps(
            {"flops": sum(costs["flops"].values()), "bytes": size, "digest": digest}
        ), encoding="utf-8")  # fmt: skip
    return place, json.loads(made.read_text(encoding="utf-8"))


@cache
def code_of(is_gpuedge: bool) -> str:
    """Return a digest of the code that decides a peer's numbers."""
    files = [REQUIREMENTS]
    if is_gpuedge:
        files = sorted((ROOT / "gpuedge").rglob("*.py")) + sorted((ROOT / "shaders").iterdir())
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes() if file.is_file() else b"")
    return found.hexdigest()[:8]


class Runner:
    """The peers' processes and the cells of a run."""

    def __init__(self, peers: Sequence[str], given: argparse.Namespace) -> None:
        self.peers, self.rounds, self.deadline_s = peers, given.rounds, given.deadline
        self.folder, self.venv = given.output.resolve(), given.venv.absolute()
        self._running: dict[str, Process] = {}

    def cell_file(self, work: str, peer: str) -> Path:
        """Return where a cell lies."""
        model = prepared(self.folder, work)[1]["digest"]
        code = f"{model}-{code_of(peer.startswith(GPUEDGE))}"
        return cells.place(self.folder, work, peer, code)

    def cell(self, work: str, peer: str) -> Cell:
        """Return what is known of a peer and a work."""
        return cells.read(self.cell_file(work, peer))

    def start(self, peer: str, cache_folder: Path) -> Process:
        """Start a peer whose caches lie in a folder."""
        is_ours = peer == OURS or peer.startswith(GPUEDGE)
        python = Path(sys.executable) if is_ours else self.venv / "bin" / "python"
        cache_folder.mkdir(parents=True, exist_ok=True)
        caches = {"GPUEDGE_CACHE_DIR": "gpuedge", "MESA_SHADER_CACHE_DIR": "mesa",
                  "XDG_CACHE_HOME": "xdg"}  # fmt: skip
        environ = {**os.environ, **QUIET, **{k: str(cache_folder / v) for k, v in caches.items()}}
        # Packages are installed with their bytecode; the checkout keeps its own after one start.
        for one in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            environ.pop(one, None)
        command = [str(python), "-m", "benchmarks.peers.child", peer]
        return Process(command, environ, self.folder / f"{cells.plain(peer)}.log")

    def asked(self, peer: str, **what: Any) -> dict[str, Any]:
        """Ask a peer; one that does not run is started to load a model, not to be timed."""
        one = self._running.get(peer)
        if one is None or ("load" in what and not one.is_alive):
            one = self._running[peer] = self.start(peer, self.folder / "caches" / cells.plain(peer))
        return one.ask(self.deadline_s, **what)

    def measure(self, work: str) -> None:
        """Take the rounds that are missing of a work."""
        place, _ = prepared(self.folder, work)
        found = {p: self.cell(work, p) for p in self.peers}
        todo = [p for p in self.peers if cells.missing(found[p], self.rounds)]
        for peer in todo:
            answer = self.asked(peer, load=str(place))
            why = cells.verdict(answer, work.endswith("int8"))
            found[peer].update({"failed": why} if why else {"error": answer["error"]})
            found[peer].update({k: answer[k] for k in ("device", "version") if k in answer})
        for _ in range(self.rounds):
            for peer in todo:
                if cells.missing(found[peer], self.rounds):
                    self._burst(peer, found[peer])
                cells.write(self.cell_file(work, peer), found[peer])
        for peer in self.peers:
            print(f"    {peer:20} {report.shown(found[peer])}", flush=True)

    def _burst(self, peer: str, cell: Cell) -> None:
        """Add a round to a cell; one that takes long stands for the others too."""
        answer = self.asked(peer, time=BURST_S)
        if "failed" in answer:
            cell["failed"] = answer["failed"]
            return
        cell["samples"].append([answer[k] / answer["calls"] for k in ("wall_s", "cpu_s")])
        if answer["wall_s"] > SLOW_S:
            cell["samples"] += cell["samples"][-1:] * (self.rounds - len(cell["samples"]))
            cell["is_slow"] = True

    def first_results(self, work: str) -> None:
        """Measure the first result of a new process, with empty caches and with its own."""
        place, _ = prepared(self.folder, work)
        for peer in self.peers:
            cell = self.cell(work, peer)
            if "failed" in cell or "warm" in cell or not cell["samples"]:
                continue
            caches = self.folder / "once" / cells.plain(peer)
            shutil.rmtree(caches, ignore_errors=True)
            for when in ("cold", "warm"):
                begin, one = time.perf_counter(), self.start(peer, caches)
                answer = one.ask(self.deadline_s, load=str(place))
                cell[when] = time.perf_counter() - begin
                cell[f"{when}_cpu"] = answer.get("cpu_s")
                one.close()
                if "failed" in answer:
                    cell[when] = cell[f"{when}_cpu"] = None
            cells.write(self.cell_file(work, peer), cell)

    def ceilings(self, devices: Sequence[str]) -> dict[str, Any]:
        """Return the ceilings of the processor and of devices; measured once per folder."""
        file = self.folder / "ceilings.json"
        found = cells.read(file)
        for device in (d for d in devices if d not in found):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.peers.ceilings", device], cwd=ROOT,
                capture_output=True, text=True, check=False, timeout=CEILING_S,
            )  # fmt: skip
            if done.returncode:
                print(f"{device}: no ceilings: {done.stderr.splitlines()[-1:]}", file=sys.stderr)
                continue
            found[device] = json.loads(done.stdout.splitlines()[-1])
            cells.write(file, found)
        return found

    def close(self) -> None:
        """End all peers."""
        for one in self._running.values():
            one.close()


def install(venv: Path) -> None:
    """Make the virtual environment of the peers; a package that this Python lacks is left out."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        command = [str(venv / "bin" / "pip"), "install", "--quiet", "--no-deps", line]
        if subprocess.run(command, check=False).returncode:
            print(f"not installed, its peer will be named as failed: {line}", file=sys.stderr)


def chosen(arguments: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Yield the works that were asked for: each word takes those whose names begin with it."""
    for name in names:
        if not arguments.work or any(name.startswith(word) for word in arguments.work):
            yield name


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.run", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    out = ROOT / "out" / "peers"
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default: all")
    parser.add_argument("--work", nargs="*", help="beginnings of names; default: all")
    parser.add_argument("--devices", default="vulkan:0,gles31:0", help="gpuedge's devices")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--deadline", type=float, default=LOAD_S, help="seconds after which an answer is given up"
    )
    parser.add_argument("--output", type=Path, default=out / "measured", help="folder of the cells")
    parser.add_argument("--venv", type=Path, default=out / "venv", help="the peers' environment")
    parser.add_argument("--install", action="store_true", help="make that environment first")
    parser.add_argument("--no-first", action="store_true", help="leave first results out")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--save", action="store_true", help="write the page and its plots")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Measure what is missing, then report."""
    from . import models  # noqa: PLC0415 - only now, so that --help is quick

    arguments = parsed(given)
    if arguments.install:
        install(arguments.venv)
    devices = [d for d in arguments.devices.split(",") if d]
    asked = [p for p in arguments.peers.split(",") if p]
    unknown = [p for p in asked if p not in PEERS]
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; known are {', '.join(PEERS)}")
    has_venv = (arguments.venv / "bin" / "python").exists()
    if not has_venv:
        print(f"no {arguments.venv}: only {OURS} is measured; --install makes it", file=sys.stderr)
    peers = [GPUEDGE + d for d in devices] + [p for p in asked if has_venv or p == OURS]
    arguments.output.mkdir(parents=True, exist_ok=True)
    runner = Runner(peers, arguments)
    names = list(chosen(arguments, models.WORK))
    try:
        if not arguments.report:
            runner.ceilings(("cpu", *devices))
            _all(runner, names, arguments)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on from here") from None
    finally:
        runner.close()
    works = {n: prepared(runner.folder, n)[1] for n in names}
    table = {n: {p: runner.cell(n, p) for p in peers} for n in names}
    found = report.Found(table, works, runner.ceilings(()), arguments.rounds, BURST_S)
    report.write(found, RESULTS if arguments.save else arguments.output)


def _all(runner: Runner, names: Sequence[str], arguments: argparse.Namespace) -> None:
    """Measure all works, then all first results; say how far it is."""
    begin = time.perf_counter()
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}, {time.perf_counter() - begin:.0f} s] {name}", flush=True)
        runner.measure(name)
    runner.close()
    for name in names if not arguments.no_first else ():
        if name in report.FIRST:
            print(f"first results, {time.perf_counter() - begin:.0f} s: {name}", flush=True)
            runner.first_results(name)


if __name__ == "__main__":
    main()
