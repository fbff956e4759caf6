"""One step of one configuration, in a process of its own: ``python -m truth.child``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from truth.measure import measured
from truth.serve import served

NUMPY = "numpy"


def main(step: str, engine: str, place: str) -> None:
    """Do a step with one CPU path and write what it found to a file, all of it or nothing."""
    if engine == NUMPY:
        sys.modules["onnxruntime"] = None  # type: ignore[assignment]  # as if it were not installed
    begin = os.getloadavg()[0]
    work = measured if step == "measure" else served
    found = work(lambda line: print(f"  {line}", flush=True))
    body = found | {"load": [round(begin, 1), round(os.getloadavg()[0], 1)]}
    unfinished = Path(f"{place}.part")
    unfinished.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(place)


if __name__ == "__main__":
    main(*sys.argv[1:4])
