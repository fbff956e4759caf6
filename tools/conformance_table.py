"""Turns conformance results into pages of docs/tables/; runs the cases if asked to.

Usage: python tools/conformance_table.py --run [--full] [CONFIGURATION...]
       python tools/conformance_table.py --resume [--full] [CONFIGURATION...]
       python tools/conformance_table.py [--full] FILE.jsonl...

With --run every configuration of the driver farm (tests/drivers/farm.py), or each that is named,
runs the smoke profile into out/conformance/CONFIGURATION.jsonl; conformance-results.md is then made
of all files there. With --full it is the full profile, on one driver of each level, the folder
out/conformance/full and the page conformance-full.md. --resume goes on where an interrupted --run
ended. A file's name is the name of its configuration. The exit status is 1 unless every case of
every file passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "drivers")]

from farm import EXTRA, FARM, environment_of  # noqa: E402

from gpuedge.conformance.bench import PASSED, SKIPPED  # noqa: E402
from gpuedge.conformance.results import Results, families, only  # noqa: E402

EVERY = (*FARM, *EXTRA)
LEVELS = ("gles20-llvmpipe", "gles30-llvmpipe", "gles31-llvmpipe", "vulkan-lavapipe",
          "wgpu-lavapipe")  # fmt: skip
TABLES = ROOT / "docs" / "tables"


class Profile(NamedTuple):
    """A profile of cases, where its results lie, the page of them, and what makes it."""

    name: str
    configurations: Sequence[str]
    out: Path
    page: Path
    title: str
    made_by: str


SMOKE = Profile(
    "smoke", EVERY, ROOT / "out" / "conformance", TABLES / "conformance-results.md",
    "Conformance results", "make conformance",
)  # fmt: skip
FULL = Profile(
    "full", LEVELS, SMOKE.out / "full", TABLES / "conformance-full.md",
    "Conformance results of the full profile", "make release-check",
)  # fmt: skip
PAGE = SMOKE.page

GROUPS: dict[str, tuple[str, ...]] = {
    "convolution": ("conv2d", "conv_transpose2d"),
    "products": ("matmul", "gemm"),
    "pooling": ("max_pool2d", "avg_pool2d", "global_max_pool2d", "global_avg_pool2d"),
    "softmax": ("softmax", "log_softmax"),
    "movement": ("concat", "transpose", "reshape", "flatten"),
    "expressions": ("elementwise",),
    "networks": ("network",),
}
"""Columns and their operations; what else is no operator of ONNX is a function."""

FUNCTIONS, OPERATORS = "functions", "operators of ONNX"
OF_OP = {op: group for group, ops in GROUPS.items() for op in ops}
COLUMNS = (*GROUPS, FUNCTIONS, OPERATORS)
INTRODUCTION = """\
# {title}

Made by `{made_by}` (tools/conformance_table.py); do not edit. Every configuration is a real
driver for a processor, not a phone or a graphics card; what each is stands in
`tests/drivers/farm.py`. A cell says how many cases passed of those that apply, then the worst error
in units of its bound (1 is the bound itself; see [numerics](../numerics.md)); where a cell has no
such figure, every case is exact.
"""


def run(names: Sequence[str], profile: Profile, *, resume: bool) -> None:
    """Run a profile on configurations, one after the other."""
    profile.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        chosen = (FARM | EXTRA)[name]
        file = profile.out / f"{name}.jsonl"
        command = [
            sys.executable, "-m", "gpuedge", "conformance", "run", "--device", chosen.device,
            "--profile", profile.name, "--jsonl", str(file),
            "--junit", str(file.with_suffix(".xml")),
            *(["--resume", str(file)] if resume and file.exists() else []),
        ]  # fmt: skip
        environment = {**environment_of(name), "PYTHONPATH": str(ROOT)}
        print(f"== {name}", file=sys.stderr, flush=True)
        if not resume:
            file.unlink(missing_ok=True)
        if chosen.missing():
            print(f"its driver is missing: {chosen.missing()}", file=sys.stderr)
            continue
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                              check=False)  # fmt: skip
        print(done.stdout.decode().rstrip().rpartition("\n")[2], file=sys.stderr, flush=True)


def page(found: dict[str, Results], profile: Profile = SMOKE) -> str:
    """Return the page of results by configuration."""
    whole = [
        (name, *_driver(results.header), *_total(results), _version(results.header))
        for name, results in found.items()
    ]
    cells = [
        (name, *(_cell(rows) for rows in _grouped(results).values()))
        for name, results in found.items()
    ]
    head = ("configuration", "device", "driver", "passed", "do not apply", "time", "date",
            "gpuedge")  # fmt: skip
    introduction = INTRODUCTION.format(**profile._asdict())
    return "\n".join(
        [introduction, *_table(head, whole), "", _failures(found.values()), "",
         "## By kind of operation", "",
         *_table(("configuration", *COLUMNS), cells), ""]
    )  # fmt: skip


def _failures(found: Iterable[Results]) -> str:
    """Return the sentence on how often a right driver fails: all of these are taken as right."""
    tallies = [_passed(results) for results in found]
    ran = sum(count for _, count in tallies)
    failed = ran - sum(passed for passed, _ in tallies)
    rate = f"{failed / max(ran, 1) * 1e5:.1f} in 100,000"
    # the rule of three: Hanley and Lippman-Hand, JAMA 249 (1983)
    bound = "" if failed or not ran else f" (below {3 / ran * 1e5:.1f} with 95 % confidence)"
    return f"Of {ran:,} cases that ran, {failed:,} did not pass: {rate}{bound}."


def _grouped(results: Results) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in COLUMNS}
    for row in results.rows.values():
        other = OPERATORS if row["op"].startswith(("onnx-", "ort-")) else FUNCTIONS
        groups[OF_OP.get(row["op"], other)].append(row)
    return groups


def _cell(rows: Iterable[dict[str, Any]]) -> str:
    found = list(families(rows).values())
    passed, run_count = (sum(one[key] for one in found) for key in ("passed", "run"))
    worst = max((one["worst"] for one in found if one["worst"] is not None), default=None)
    return f"{passed}/{run_count}" + ("" if worst is None else f" ({worst:.2f})")


def _total(results: Results) -> tuple[str, str, str, str]:
    passed, ran = _passed(results)
    return (
        f"{passed}/{ran}",
        str(len(results.rows) - ran),
        f"{float(results.header.get('seconds', 0)):.0f} s",
        str(results.header.get("started", ""))[:10],
    )


def _passed(results: Results) -> tuple[int, int]:
    """Return how many cases passed, and how many ran."""
    statuses = [row["status"] for row in results.rows.values()]
    return statuses.count(PASSED), len(statuses) - statuses.count(SKIPPED)


def _driver(header: dict[str, Any]) -> tuple[str, str]:
    identity = header.get("identity", {})
    facts = (identity.get(key) for key in ("name", "driverInfo", "GL_VERSION"))
    return str(header.get("device", "")), "; ".join(dict.fromkeys(str(f) for f in facts if f))


def _version(header: dict[str, Any]) -> str:
    return str(header.get("versions", {}).get("gpuedge", ""))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]


def main(arguments: list[str]) -> int:
    """Write the page; return the exit status."""
    profile = FULL if "--full" in arguments else SMOKE
    arguments = [word for word in arguments if word != "--full"]
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    action, absent = arguments[0], list[str]()
    files = [Path(a) for a in arguments]
    if action in ("--run", "--resume"):
        names = arguments[1:] or profile.configurations
        unknown = [name for name in names if name not in EVERY]
        if unknown:
            known = ", ".join(EVERY)
            print(f"no such configuration: {unknown[0]}; there are {known}", file=sys.stderr)
            return 2
        run(names, profile, resume=action == "--resume")
        files = [f for name in EVERY if (f := profile.out / f"{name}.jsonl").exists()]
        absent = [name for name in names if not (profile.out / f"{name}.jsonl").exists()]
    found = {file.stem: only(str(file)) for file in files}
    profile.page.write_text(page(found, profile), encoding="utf-8")
    print(f"wrote {os.path.relpath(profile.page)}", file=sys.stderr)
    return 0 if not absent and all(r.is_good for r in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
