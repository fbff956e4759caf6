"""What printing a kernel costs: every kernel of every variant, in three dialects.

    python benchmarks/printing.py [--rounds 10] [--most 5]

Prints milliseconds of processor time, the least of some rounds: parsing and checking the text, and
printing it as SPIR-V, ESSL 3.10 and WGSL. With --most, ends with status 1 where parsing and
printing in one dialect take longer than so many milliseconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuedge.lang import load, print_kernel
from gpuedge.plan.library import Variant, texts, variants

DIALECTS = ("spirv", "essl310", "wgsl")


def least_ms(work: Callable[[], Any], rounds: int) -> float:
    """Return the least milliseconds of processor time that some work takes."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def row(variant: Variant, kernel: str, rounds: int) -> list[float]:
    """Return what parsing, and printing in each dialect, take."""
    text = texts()[kernel]
    consts = variant.consts if kernel == variant.kernel else {}

    def parse() -> Any:
        return load(text, filename=kernel, consts=consts)

    parsed = parse()
    prints = [lambda d=d: print_kernel(parsed, d) for d in DIALECTS]
    return [least_ms(work, rounds) for work in (parse, *prints)]


def main() -> int:
    """Measure, and print a line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--most", type=float, default=float("inf"))
    given = parser.parse_args()
    print(f"{'kernel':<52}{'parse':>8}" + "".join(f"{d:>8}" for d in DIALECTS) + f"{'most':>8}")
    slowest = 0.0
    for variant in variants():
        for kernel in variant.kernels:
            parse, *prints = row(variant, kernel, given.rounds)
            most = parse + max(prints)
            slowest = max(slowest, most)
            figures = "".join(f"{ms:>8.2f}" for ms in (parse, *prints, most))
            print(f"{variant.id + ' ' + kernel:<52}{figures}")
    return int(slowest > given.most)


if __name__ == "__main__":
    sys.exit(main())
