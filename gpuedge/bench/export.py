"""Results in the formats of others: pytest-benchmark's JSON, and asv's folder of results."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from gpuedge.bench.estimates import quantile
from gpuedge.bench.results import BenchResult
from gpuedge.core.errors import InputError
from gpuedge.safety.paths import save_named

PYTEST_BENCHMARK = "5.0.0"
"""The version whose format is written."""

NS = 1e-9

ASV_API, ASV_MACHINE_API, ASV_BENCHMARKS_API = 2, 1, 2
"""Versions of asv's three kinds of files."""

ASV_LEVEL = 0.99
"""Confidence of asv's intervals of medians."""

UNKNOWN_COMMIT = "0" * 40
"""Where a result has no commit, which asv cannot do without."""


def pytest_benchmark(results: Sequence[BenchResult]) -> dict[str, Any]:
    """Return a document that ``pytest-benchmark compare`` reads: seconds of all warm runs."""
    measured = [result for result in results if result.blocks]
    first = measured[0] if measured else None
    return {
        "machine_info": {
            "node": first.machine if first else "", "processor": platform.processor(),
            "machine": platform.machine(),
            "python_implementation": platform.python_implementation(),
            "python_version": first.python if first else "", "release": platform.release(),
            "system": platform.system(), "cpu": {},
        },
        "commit_info": {
            "id": first.commit or "unversioned" if first else "unversioned", "time": None,
            "author_time": None, "dirty": False, "project": "gpuedge", "branch": "(unknown)",
        },
        "benchmarks": [_one(result) for result in measured],
        "datetime": first.when if first else "",
        "version": PYTEST_BENCHMARK,
    }  # fmt: skip


def _one(result: BenchResult) -> dict[str, Any]:
    x = np.sort(np.asarray(result.warm, np.float64)) * NS
    q1, middle, q3 = (float(np.quantile(x, p)) for p in (0.25, 0.5, 0.75))
    mean, deviation = float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else 0.0
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    outside = int(((x < low) | (x > high)).sum())
    far = int((np.abs(x - mean) > deviation).sum())
    name = f"{result.case}[{result.subject}]"
    return {
        "group": result.case, "name": name, "fullname": f"gpuedge bench::{name}",
        "params": {"subject": result.subject}, "param": result.subject,
        "extra_info": {"device": result.device, "version": result.version},
        "options": {
            "disable_gc": False, "timer": "perf_counter", "min_rounds": len(result.blocks),
            "max_time": 0.0, "min_time": 0.0, "warmup": True,
        },
        "stats": {
            "min": float(x[0]), "max": float(x[-1]), "mean": mean, "stddev": deviation,
            "rounds": len(x), "median": middle, "iqr": q3 - q1, "q1": q1, "q3": q3,
            "iqr_outliers": outside, "stddev_outliers": far, "outliers": f"{far};{outside}",
            "ld15iqr": float(x[x >= low][0]), "hd15iqr": float(x[x <= high][-1]),
            "ops": 1 / mean, "total": float(x.sum()), "iterations": 1,
            "data": [ns * NS for ns in result.warm],
        },
    }  # fmt: skip


def write_asv(results: Sequence[BenchResult], folder: Path, option: str) -> int:
    """Write what ``asv compare``, ``show`` and ``publish`` read; return the files of results.

    One file for each machine and commit; of several results of a case the latest is taken.
    """
    measured = [result for result in results if result.blocks]
    cases = sorted({result.case for result in measured})
    machines: dict[str, dict[str, list[BenchResult]]] = {}
    for result in measured:
        commits = machines.setdefault(_word(result.machine), {})
        commits.setdefault(result.commit or UNKNOWN_COMMIT, []).append(result)
    subjects = sorted({result.subject for result in measured})
    _save(folder / "benchmarks.json", {
        **{_asv_name(case): _benchmark(case, subjects) for case in cases},
        "version": ASV_BENCHMARKS_API}, option)  # fmt: skip
    for machine, commits in machines.items():
        _save(folder / machine / "machine.json", {
            "machine": machine, "arch": platform.machine(), "cpu": "", "num_cpu": "", "os":
            platform.system(), "ram": "", "version": ASV_MACHINE_API}, option)  # fmt: skip
        for commit, members in commits.items():
            body = _asv_results(machine, commit, members, subjects)
            _save(folder / machine / f"{commit[:8]}-{body['env_name']}.json", body, option)
    return sum(map(len, machines.values()))


ASV_COLUMNS = ("result", "params", "version", "started_at", "duration", "stats_ci_99_a",
               "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat",
               "samples", "profile")  # fmt: skip


def _asv_results(
    machine: str, commit: str, results: Sequence[BenchResult], subjects: Sequence[str]
) -> dict[str, Any]:
    latest = {(r.case, r.subject): r for r in sorted(results, key=lambda r: r.when)}
    python = next(iter(latest.values())).python
    rows = {}
    for case in sorted({name for name, _ in latest}):
        found = [latest.get((case, subject)) for subject in subjects]
        x = [None if r is None else np.asarray(r.warm, np.float64) * NS for r in found]
        begin = min(_millis(r.when) for r in found if r is not None)

        def at(p: float, arrays: Sequence[Any] = x) -> list[float | None]:
            return [None if a is None else float(np.quantile(a, p)) for a in arrays]

        middles = [None if r is None else quantile(r.warm, 0.5, ASV_LEVEL) for r in found]
        bounds = [
            [None if m is None else (getattr(m, name) or m.value) * NS for m in middles]
            for name in ("low", "high")
        ]
        runs = [None if a is None else len(a) for a in x]
        rows[_asv_name(case)] = [
            at(0.5), [[repr(s) for s in subjects]], "1", begin, None, *bounds, at(0.25), at(0.75),
            [None if n is None else 1 for n in runs], runs,
        ]  # fmt: skip
    when = min(_millis(r.when) for r in results)
    return {
        "commit_hash": commit, "env_name": f"existing-py{python}", "date": when,
        "params": {"arch": platform.machine(), "cpu": "", "machine": machine, "num_cpu": "",
                   "os": platform.system(), "ram": "", "python": python},
        "python": python, "requirements": {}, "env_vars": {}, "result_columns": list(ASV_COLUMNS),
        "results": rows, "durations": {}, "version": ASV_API,
    }  # fmt: skip


def _benchmark(case: str, subjects: Sequence[str]) -> dict[str, Any]:
    name = _asv_name(case)
    return {
        "code": f"gpuedge bench run {case}", "name": name, "param_names": ["subject"],
        "params": [[repr(s) for s in subjects]], "pretty_name": case, "type": "time",
        "unit": "seconds", "version": "1", "timeout": 60.0, "number": 1, "repeat": 0,
        "rounds": 2, "sample_time": 0.01, "min_run_count": 2, "warmup_time": 0.1,
    }  # fmt: skip


def _asv_name(case: str) -> str:
    return f"gpuedge_bench.time_{_word(case)}"


def _word(text: str) -> str:
    return re.sub(r"^\.|[^\w.-]", "_", text)  # no name of a folder above


def _millis(when: str) -> int:
    """Return the milliseconds since 1970 of a result's time."""
    return math.floor(datetime.fromisoformat(when).timestamp() * 1000)


def _save(path: Path, body: dict[str, Any], option: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be made: {error}.", asked_by=option) from None
    save_named(path, json.dumps(body, indent=1).encode() + b"\n", option)
