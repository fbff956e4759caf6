"""A worker that does not do what it should: ``python farm_worker.py FATE ARGUMENTS-OF-FARM``.

``lie`` answers its first shard honestly and returns a forged row in each later one; ``claim``
announces a device that it has not.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpuedge.cli.main import main
from gpuedge.farm import devices, work

FATE = sys.argv.pop(1)
answer, found_here = work.answer, devices.found_here
answered: list[str] = []


def lying(asked: dict[str, Any], desk: devices.Desk) -> str:
    lines = answer(asked, desk).splitlines()
    answered.append(asked["task"])
    if len(answered) > 1:
        lines.append(lines[-1])
    return "\n".join(lines)


def claiming(*given: Any) -> devices.Announcement:
    here = found_here(*given)
    made = [d.replace(identity={**d.identity, "name": "Adreno (TM) 999"}) for d in here.devices]
    return here.replace(devices=tuple(made))


if FATE == "lie":
    work.answer = lying
elif FATE == "claim":
    devices.found_here = claiming
elif FATE == "old":
    devices.found_here = lambda *given: found_here(*given).replace(version="0.0.9")
else:
    sys.exit(json.dumps({"unknown": FATE}))
sys.exit(main())
