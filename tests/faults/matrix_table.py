"""The fault matrix as tables in docs/tables/faults.md, made from the results of a run."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kit
import matrix_plan

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
TITLES = {
    "probe": "Probed: fault x point, by API",
    "process": 'In service, `isolation="process"`',
    "inline": "In service, in the application's own process",
}

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def summary(results: Results) -> str:
    """Return one sentence of totals."""
    runs = [r for rows in results.values() for r in rows]
    wrong = [r for r in runs if r["wrong"]]
    fewest = min((len(rows) for rows in results.values()), default=0)
    return (
        f"{len(results)} cells, {len(runs)} runs, at least {fewest} of each; "
        f"{len(wrong)} runs were not right."
    )


def tables(results: Results) -> str:
    """Return the tables of all parts."""
    made = [summary(results)]
    for part, title in TITLES.items():
        names = [n for n in results if n.startswith(f"{part} ")]
        if names:
            made += ["", f"## {title}", "", *_table(names, results)]
    return "\n".join(made)


def _table(names: Iterable[str], results: Results) -> list[str]:
    by_fault: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        _, api, fault = name.split(" ")
        by_fault[fault][api] = _cell(results[name])
    apis = [a for a in kit.APIS if any(a in row for row in by_fault.values())]
    lines = [f"| fault | {' | '.join(apis)} |", "|---" * (len(apis) + 1) + "|"]
    for fault in sorted(by_fault, key=_order):
        cells = [by_fault[fault].get(api, "") for api in apis]
        lines.append(f"| `{fault}` | {' | '.join(cells)} |")
    return lines


def _order(text: str) -> tuple[str, int]:
    fault = kit.Fault.parse(text)
    return fault.name, kit.POINTS.index(fault.point) if fault.point in kit.POINTS else 99


def _cell(rows: Sequence[Mapping[str, Any]]) -> str:
    codes = sorted({_short(code) for row in rows for code in row["found"]})
    wrong = sum(1 for row in rows if row["wrong"])
    text = f"{', '.join(codes)} {len(rows)}"
    return f"**{text}, {wrong} wrong**" if wrong else text


def _short(code: str) -> str:
    """Leave the status out: the code says more."""
    return code.rpartition("/")[2]


def write(path: Path, results: Iterable[Mapping[str, Any]]) -> int:
    """Put the tables between the marks of a page; 1 if a cell of the plan is missing or wrong."""
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        by_name[result["name"]].append(result)
    planned = [cell.name for cell in matrix_plan.plan()]
    missing = [name for name in planned if name not in by_name]
    known = {name: by_name[name] for name in planned if name in by_name}
    text = path.read_text(encoding="utf-8")
    inside = f"{BEGIN}\n{tables(known)}\n{END}"
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{path} has no marks {BEGIN} and {END}")
    path.write_text(pattern.sub(lambda _: inside, text), encoding="utf-8")
    for name in missing:
        print(f"no result: {name}", file=sys.stderr)
    return 1 if missing or any(r["wrong"] for rows in known.values() for r in rows) else 0
