"""Packs a model and runs it without the onnx package; run by test_packed_run for each level.

``python packed_child.py DEVICE pack FILE`` writes FILE, with kernels for the device. ``run FILE
PACKAGES`` runs it where PACKAGES, with commas between, cannot be imported. ``forged FILE`` makes
its kernels wrong first: Relu gives 9 for 0. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx"
SHAPE = (3, 1, 8, 8)
FEED = {"image": np.random.default_rng(3).random(SHAPE, np.float32)}


def packed(device: str, path: str) -> dict[str, Any]:
    import gpuedge

    gpuedge.probe(deadline_s=60)
    done = gpuedge.pack(DIGITS, path, devices=[device], shapes={"image": SHAPE})
    with gpuedge.Session(DIGITS, device=device, fallback="error") as session:
        wanted = session.run(FEED)["probabilities"]
        rows = len(session.placement)
    return {"kernels": list(done.kernels.values()), "wanted": wanted.tolist(), "rows": rows}


def ran(device: str, path: str, packages: str) -> dict[str, Any]:
    for name in packages.split(","):
        sys.modules[name] = None  # type: ignore[assignment]
    import gpuedge
    from gpuedge.executors import gpu

    prints: list[str] = []
    real = gpu.printed

    def printed(launch: Any, *rest: Any) -> Any:
        prints.append(launch.variant)
        return real(launch, *rest)

    gpu.printed = printed
    gpuedge.probe(deadline_s=60)
    with gpuedge.Session(path, device=device, fallback="error") as session:
        found = session.run(FEED)["probabilities"]
        health, devices = session.health, {row.device for row in session.placement}
    printed_for_it = [*prints]  # `check` times kernels of its own
    with gpuedge.Session(path, device="cpu") as session:
        cpu = session.run(FEED)["probabilities"]
        engine = {row.kernel.partition(" ")[0] for row in session.placement}
    page = gpuedge.check(path, device=device)
    assert page.pack is not None
    return {
        "found": found.tolist(), "cpu": cpu.tolist(), "devices": sorted(devices),
        "on_device": health.on_device, "crosschecks": health.crosschecks, "prints": printed_for_it,
        "failed": health.failed + health.crosschecks_failed, "engine": sorted(engine),
        "golden": page.pack.golden, "is_ok": page.is_ok,
        "onnx": [m for m in sys.modules if m.partition(".")[0] == "onnx" and sys.modules[m]],
    }  # fmt: skip


def forged(device: str, path: str) -> dict[str, Any]:
    import gpuedge
    from gpuedge.graph.container import opened, written
    from gpuedge.graph.packed import KERNELS
    from gpuedge.lang.cache import decoded, encoded

    file = opened(path)
    kernels = decoded(file.parts[KERNELS].tobytes())
    changed = {
        key: data.replace(b", vec4(0.0));", b", vec4(9.0));") for key, data in kernels.items()
    }
    parts = {**file.parts, KERNELS: np.frombuffer(encoded([*changed.items()]), np.uint8)}
    Path(path).write_bytes(written(file.about, parts))
    gpuedge.probe(deadline_s=60)
    page = gpuedge.check(path, device=device)
    with gpuedge.Session(path, device=device) as session:
        found = session.run(FEED)["probabilities"]
        health = session.health
    assert page.pack is not None
    return {
        "found": found.tolist(), "golden": page.pack.golden, "is_ok": page.is_ok,
        "crosschecks_failed": health.crosschecks_failed, "told": str(page),
        "changed": sum(changed[key] != kernels[key] for key in kernels),
    }  # fmt: skip


def main() -> None:
    device, what, *rest = sys.argv[1:]
    told = {"pack": packed, "run": ran, "forged": forged}[what](device, *rest)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
