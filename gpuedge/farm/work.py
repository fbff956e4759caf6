"""What a worker does with a shard: cases on one of its devices, by the runner of conformance."""

from __future__ import annotations

import json
import platform
import time
from typing import Any, cast

from gpuedge.conformance import SCHEMA
from gpuedge.conformance.bench import versions
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import Results
from gpuedge.conformance.runner import Runner
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.text import utc_now
from gpuedge.farm.devices import Desk

DESK = "gpuedge"
"""Name under which Dask calls a worker's desk, for what it announces and for how far it is."""


def shard(request: str) -> str:
    """Run the cases of a shard and return what a file of results holds, or why there is none.

    Parameters
    ----------
    request : str
        JSON with ``name``, ``task``, ``key``, ``profile``, ``shard``, ``ids`` and ``case_s``.

    Returns
    -------
    text : str
        Lines as `gpuedge.conformance.results` has them, the header with ``farm``; or an object with
        ``error``, the parts of an error of gpuedge.
    """
    from distributed import get_worker

    desk = cast(Desk, get_worker().startup_information[DESK])
    try:
        return answer(json.loads(request), desk)
    except GpuEdgeError as error:
        return json.dumps({"error": {"code": error.code, "what": error.what, "known": error.known}})


def answer(asked: dict[str, Any], desk: Desk) -> str:
    """Return the results of a shard. Raises what `Runner.rows` does."""
    wanted, start = set(asked["ids"]), time.monotonic()
    cases = [case for case in everything(asked["profile"]) if case.id in wanted]
    header: dict[str, Any] = {
        "schema": SCHEMA, "profile": asked["profile"], "shard": asked["shard"],
        "versions": versions(), "started": utc_now(), "host": platform.node() or None,
    }  # fmt: skip
    results = Results(header)
    with desk.lent(asked["key"], asked["name"]) as device:
        runner = Runner(device, asked["profile"], cases, desk.jobs, asked["case_s"])
        for row in runner.rows():
            results.add(row)
            desk.step(asked["name"])
    header |= {k: v for k, v in (runner.header or {}).items() if k != "versions"}
    header["seconds"] = round(time.monotonic() - start, 2)
    who = desk.announcement
    header["farm"] = {"task": asked["task"], "serial": who.serial, "labels": dict(who.labels)}
    return results.lines().decode()
