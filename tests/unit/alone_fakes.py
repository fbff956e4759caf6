"""The child that is started alone, with the backend of `zygote_fakes`."""

from __future__ import annotations

import os
import sys

import zygote_fakes

from gpuedge import backends
from gpuedge.probing import child

COMMAND = (sys.executable, __file__)

if __name__ == "__main__":
    backends.BUILTIN["forked"] = zygote_fakes.BACKEND
    with open(os.environ["PROBE_COUNT"], "a") as log:
        log.write("c")
    sys.exit(child.main())
