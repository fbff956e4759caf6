"""The contract of an open device, checked on one driver: `test_device_contract` runs it on all.

``python device_contract.py LEVEL REQUEST`` prints a JSON object per check: its name, and what
failed. A process is one driver configuration, since drivers read their environment when they are
loaded. What only one API has is checked in files of that API.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import contract_life
import contract_work
import validation
from contract import RULES, Check, Site
from seam_kernels import info_of

ROOMS = (contract_work, contract_life)
"""Where checks are; they run in this order."""

STAGED = "staged "
"""Put before the name of a check on a device whose memory is used as if the host did not see it."""


def names(level: str) -> list[str]:
    """Return the names of all checks of a level, in their order."""
    plain = [name for name, rule in RULES.items() if level in rule.levels]
    staged = [STAGED + name for name in plain if RULES[name].staged and level == "vulkan"]
    return [*plain[:-1], *staged, plain[-1]]


def terminal(level: str) -> Any:
    """Send what drivers write on the terminal to a file, which is returned.

    Mesa's OpenGL ES may speak on standard output.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115
    for descriptor in (2,) if level.startswith("gles") else (1, 2):
        os.dup2(file.fileno(), descriptor)
    return file


def outcome(check: Check, site: Site, file: Any) -> str | None:
    """Run a check; return what failed, or what was written that should not have been."""
    file.truncate(0)
    try:
        check(site)
        gc.collect()
    except BaseException:
        return traceback.format_exc()
    file.seek(0)
    said = file.read().decode(errors="replace") + validation.messages()
    return f"it wrote: {said}" if said.strip("\0") else None


def main(level: str, request: dict[str, Any]) -> None:
    """Run the checks of a request."""
    for name in [n for n in os.environ if n.startswith(("XDG_", "WAYLAND"))]:
        del os.environ[name]  # drivers that miss them would say so, were they not kept quiet
    replies = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryDirectory() as folder:
        validation.log_in(Path(folder))
        file = terminal(level)
        info = info_of(level)
        sites = {"": Site(level, info, request)}
        if level == "vulkan":
            sites[STAGED] = Site(level, validation.staged(info), request)
        for name in request["checks"]:
            started = time.process_time()
            plain = name.removeprefix(STAGED)
            failure = outcome(RULES[plain].check, sites[name[: -len(plain)]], file)
            seconds = time.process_time() - started
            print(json.dumps([name, failure, round(seconds, 2)]), file=replies, flush=True)
        for site in sites.values():
            site.close()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
