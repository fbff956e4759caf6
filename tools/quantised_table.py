"""Computes 8-bit products everywhere and writes docs/tables/quantised.md.

Usage: python tools/quantised_table.py

The cases are those of `tests/products_cases.py`: on the CPU as this processor's ONNX Runtime has it
and as one that saturates has it, and on every level (`tests/drivers/products_levels.py`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "drivers")]

from products_cases import cases  # noqa: E402
from products_levels import HIDDEN, PROCESSORS, computed, places  # noqa: E402

PAGE = ROOT / "docs" / "tables" / "quantised.md"
INTRODUCTION = """# Quantised operators

Made by `python tools/quantised_table.py`; do not edit. Products of numbers at the ends of their
types, with a constant and with a computed second operand, compared with sums in int64. `same` means
the same bits, `numpy` that numpy computed at least one of the two. Processors: this one;
`saturating`, an ONNX Runtime that adds up pairs in 16 bits, as on x86 with AVX2 and without VNNI;
`VNNI hidden`, the real one on this processor, which is told that it has no VNNI. Levels:
configurations of `tests/drivers/farm.py`, with `fallback="error"`.
"""


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each operator and pair of types; `found` has what each place computed."""
    pairs = dict.fromkeys((case.op, case.first, case.second) for case in cases())
    for pair in pairs:
        own = [str(c) for c in cases() if (c.op, c.first, c.second) == pair]
        yield (*pair, *(cell([one["cases"][name] for name in own]) for one in found.values()))


def cell(results: list[dict[str, Any]]) -> str:
    """Return what became of the cases of one row in one place."""
    wrong = sum(one["wrong"] for one in results)
    is_numpy = any("numpy" in one["kernels"] for one in results)
    return f"{wrong} wrong" if wrong else "same (numpy)" if is_numpy else "same"


def page(found: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    heads = ("operator", "first", "second", *found)
    lines = [heads, ("---",) * len(heads), *rows(found)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    mended = {name: found[name]["mended"] for name in (*PROCESSORS, HIDDEN) if name in found}
    said = ", ".join(f"{name} {count}" for name, count in mended.items())
    return (
        f"{INTRODUCTION}\nKinds of products that ONNX Runtime gets wrong by itself: {said}.\n\n"
        f"{table}\n"
    )


def main() -> None:
    """Compute and write."""
    found = {}
    for name in places():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = computed(name, Path(folder))
        print(f"{name}: {sum(bool(c['wrong']) for c in found[name]['cases'].values())} wrong")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
