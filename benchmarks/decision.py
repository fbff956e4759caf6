"""Decisions against the truth, on this machine's drivers.

Twenty models and single operators (`truth/models.py`) on every driver, in processes of their own:

* truth: device and CPU path take turns for 0.4 s per model (`truth/measure.py`);
* launches: three launches of an application, the first without any cache, which serves each model
  for three seconds under the default policy (`truth/serve.py`), with the CPU path that is there
  (ONNX Runtime) and as it would be without it (numpy on one thread), where a software rasteriser
  can be the faster one.

Usage: python benchmarks/decision.py [CONFIGURATION ...] [--fresh] [--report] [--save]

What was found is kept in ``out/decision/``, one file per configuration and step, so an interrupted
run goes on where it was. ``--fresh`` measures anew, ``--report`` measures nothing; ``--save``
writes the tables into the repository.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "drivers"))

from farm import FARM, environment_of  # noqa: E402
from truth import report  # noqa: E402
from truth.models import MODELS  # noqa: E402

KEPT = ROOT / "out" / "decision"
TIMEOUT_S = 400.0
LAUNCHES = ("launch 1", "launch 2", "launch 3")
STEPS = ("measure", *LAUNCHES)
ONNXRUNTIME, NUMPY = "onnxruntime", "numpy"

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "vulkan-lavapipe": (ONNXRUNTIME, NUMPY),
    "vulkan-swiftshader": (ONNXRUNTIME, NUMPY),
    "gles31-llvmpipe": (ONNXRUNTIME, NUMPY),
    "gles30-llvmpipe": (ONNXRUNTIME,),
    "gles20-llvmpipe": (ONNXRUNTIME,),
    "wgpu-lavapipe": (ONNXRUNTIME, NUMPY),
    "gles31-angle": (ONNXRUNTIME,),
}
"""Drivers (tests/drivers/farm.py), and the CPU paths they are compared with."""


def jobs(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield configuration, CPU path and step of everything there is to do."""
    for name in names:
        for engine in CONFIGURATIONS.get(name, (ONNXRUNTIME,)):
            for step in STEPS:
                yield name, engine, step


def kept(configuration: str, engine: str, step: str) -> Path:
    """Return where the findings of a step are kept."""
    return KEPT / f"{configuration}-{engine}-{step.replace(' ', '-')}.json"


def found(configuration: str, engine: str, step: str) -> dict[str, Any] | None:
    """Return what a step found, None unless it has all of today's models."""
    try:
        body: dict[str, Any] = json.loads(kept(configuration, engine, step).read_text())
    except (OSError, ValueError):
        return None
    return body if list(body.get("cases", ())) == list(MODELS) else None


def child(configuration: str, engine: str, step: str) -> bool:
    """Do a step in a process of its own, with the configuration's driver; False if that failed.

    The first launch begins without caches, the later ones find what it left.
    """
    place = kept(configuration, engine, step)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    cache = KEPT / f"cache-{configuration}-{engine}"
    if step in ("measure", "launch 1"):
        shutil.rmtree(cache, ignore_errors=True)
    environment = environment_of(configuration) | {
        "GPUEDGE_CACHE_DIR": str(cache),
        "MESA_SHADER_CACHE_DIR": str(cache / "mesa"),
    }
    if engine == NUMPY:
        # Its products busy-wait for each other's threads, which the driver's threads delay:
        # on two cores one takes 0.2 ms or 16.
        environment["OPENBLAS_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "truth.child", step, engine, str(place)]
    try:
        done = subprocess.run(command, env=environment, cwd=HERE, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"  not done within {TIMEOUT_S:g} s", file=sys.stderr)
        return False
    if done.returncode:
        print(f"  ended with exit status {done.returncode}", file=sys.stderr)
    return not done.returncode


def work_through(names: list[str], arguments: list[str]) -> None:
    """Do what is not done yet, or what was asked for anew."""
    missing = {n: FARM[n].missing() for n in names}
    wanted = jobs([n for n in names if not missing[n]])
    todo = [job for job in wanted if found(*job) is None or "--fresh" in arguments]
    for name, hint in missing.items():
        if hint:
            print(f"{name}: left out, no driver: {hint}", file=sys.stderr)
    begin = time.perf_counter()
    for done, job in enumerate(todo):
        spent = time.perf_counter() - begin
        print(f"[{done + 1}/{len(todo)}, {spent:.0f} s] {' '.join(job)}", flush=True)
        child(*job)


def main(arguments: list[str]) -> None:
    """Measure and serve what is missing, then report."""
    names = [a for a in arguments if a in FARM] or list(CONFIGURATIONS)
    if "--report" not in arguments:
        try:
            work_through(names, arguments)
        except KeyboardInterrupt:
            sys.exit("interrupted; the next run goes on from here")
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for name, engine, step in jobs(names):
        body = found(name, engine, step)
        if body is not None:
            pairs.setdefault((name, engine), {})[step] = body
    text = report.text(pairs, LAUNCHES)
    print(text)
    if "--save" in arguments:
        report.save(pairs, text, ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
