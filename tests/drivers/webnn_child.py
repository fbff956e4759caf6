"""Runs a share of WebNN's conformance cases on a device; prints a row of JSON for each, in a list.

Usage: python webnn_child.py DEVICE SHARE SHARES
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from webnn_cases import judged, share

device, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = [judged(name, device) for name in share(number, count)]
print(json.dumps({"rows": rows, "cpu_s": time.process_time()}))
