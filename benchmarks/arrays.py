"""Arrays that stay on a device: chains against one formula, bound sessions against plain ones.

Processor time of this process in milliseconds, the least of several calls in turn: other programs
on the machine add little to it. It is that of software rasterisers, too.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from bare import opened
from common import devices, processor, report
from overhead import relu_model
from truth.models import MODELS, NETWORKS, sample

import gpuedge

ELEMENTS = 1 << 20
FORMULA = "relu(((a + b) * a - b) * b) + a"


def chains(device: str) -> list[object]:
    """Six operations on 4 MB: one by one, as a formula, and on arrays that stay there."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(ELEMENTS).astype(np.float32) for _ in range(2))
    x, y = (gpuedge.array(each, device=device) for each in (a, b))
    formula = gpuedge.elementwise(FORMULA)

    def one_by_one() -> Any:
        c = gpuedge.mul(gpuedge.add(a, b, device=device), a, device=device)
        d = gpuedge.mul(gpuedge.sub(c, b, device=device), b, device=device)
        return gpuedge.add(gpuedge.relu(d, device=device), a, device=device)

    def chain() -> gpuedge.DeviceArray:
        return gpuedge.relu(((x + y) * x - y) * y) + x

    np.testing.assert_allclose(chain().numpy(), one_by_one(), rtol=1e-4, atol=1e-4)
    found = processor(
        {
            "one by one": one_by_one,
            "formula": lambda: formula(a, b, device=device),
            "formula there": lambda: formula(x, y).compute(),
            "chain there": lambda: chain().compute(),
            "chain": lambda: chain().numpy(),
        }
    )
    ratios = [found["chain"] / found["formula"], found["chain there"] / found["formula there"]]
    return [device, *(f"{s * 1e3:.2f}" for s in found.values()), *(f"{r:.2f}" for r in ratios)]


def smallest(device: str) -> list[object]:
    """The smallest operation, over 16 values, against a copy of 16 values by the bare binding.

    The latter has the process to itself: two users of OpenGL ES in one thread disturb each other.
    """
    x, y = (gpuedge.array(np.ones(16, np.float32), device=device) for _ in range(2))
    given = {"x": np.ones(16, np.float32)}
    with gpuedge.Session(relu_model(16), device=device) as session:
        bound = session.bind({"x": x})

        def added() -> gpuedge.DeviceArray:
            return (x + y).compute()

        calls = {"array": added, "bound": bound.run, "session": lambda: session.run(given)}
        found = processor(calls, rounds=100, calls=20)
    command = [sys.executable, __file__, "--bare", device.partition(":")[0]]
    found["bare"] = float(subprocess.run(command, capture_output=True, check=True).stdout)
    rows = [f"{found[name] * 1e6:.0f}" for name in ("bare", "array", "bound", "session")]
    return [device, *rows, f"{found['bound'] / found['bare']:.2f}"]


def sessions(device: str) -> list[object]:
    """Relu of 4 MB, bound to an array on the device, to memory of the host, and not at all."""
    x = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    into = np.empty_like(x)
    with gpuedge.Session(relu_model(ELEMENTS), device=device) as session:
        there = session.bind({"x": gpuedge.array(x, device=device)})
        given = session.input("x")  # memory of the device, where it shares that
        given[:] = x
        memory = session.bind({"x": given}, {"y": into})
        found = processor(
            {
                "run": lambda: session.run({"x": x}),
                "memory": memory.run,
                "there": there.run,
            }
        )
    return [device, *(f"{s * 1e3:.2f}" for s in found.values())]


def networks(device: str) -> list[list[object]]:
    """Ten networks, unbound and bound to arrays; results are the same bits."""
    rows: list[list[object]] = []
    for name in NETWORKS:
        plain = gpuedge.Policy(crosscheck=0.0)
        with gpuedge.Session(MODELS[name](), device=device, policy=plain) as session:
            x = sample(session.inputs["x"][1])
            there = session.bind({"x": gpuedge.array(x, device=device)})
            for output, wanted in session.run({"x": x}).items():
                np.testing.assert_array_equal(there.run()[output].numpy(), wanted)
            found = processor({"run": lambda s=session, x=x: s.run({"x": x}), "there": there.run})
        ratio = found["there"] / found["run"]
        rows.append([device, name, *(f"{s * 1e3:.2f}" for s in found.values()), f"{ratio:.2f}"])
    return rows


def main() -> None:
    """Measure and print."""
    if "--bare" in sys.argv:
        print(processor({"bare": opened(sys.argv[-1]).work()}, rounds=100, calls=20)["bare"])
        return
    gpus = devices()
    report(
        f"six chained operations on {ELEMENTS} float32, ms of processor time",
        ("device", "one by one", "formula", "formula there", "chain there", "chain",
         "chain / formula", "there"),
        [chains(device) for device in ("cpu", *gpus)],
    )  # fmt: skip
    report(
        "the smallest operation, microseconds of processor time",
        ("device", "bare binding", "array", "bound session", "session", "bound / bare"),
        [smallest(device) for device in gpus if device.endswith(":0")],
    )
    report(
        f"a session over {ELEMENTS} float32, ms of processor time",
        ("device", "run", "bound to memory", "bound to arrays"),
        [sessions(device) for device in ("cpu", *gpus)],
    )
    report(
        "ten networks, ms of processor time",
        ("device", "network", "run", "bound to arrays", "ratio"),
        networks(gpus[0]) if gpus else [],
    )


if __name__ == "__main__":
    main()
