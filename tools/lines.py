"""Count the package's lines of code by room, and its tests: ``python tools/lines.py``.

Lines of code are those without docstrings, comments and blank lines. The whole number is bounded by
``tests/unit/test_house_budget.py``; how the rooms share it is only told.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "gpuedge"
GENERATED = "Made by tools/"
"""What begins a file that a tool writes: it counts for nobody."""


def lines_of_code(text: str) -> int:
    """Return how many lines of a file hold code: no docstrings, comments or blank lines."""
    numbered = enumerate((line.strip() for line in text.splitlines()), 1)
    lines = {number for number, line in numbered if line and line[0] != "#"}
    for node in ast.walk(ast.parse(text)):  # strings that stand alone describe what is above them
        alone = node.value if isinstance(node, ast.Expr) else None
        if isinstance(alone, ast.Constant) and isinstance(alone.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def written(folder: Path) -> dict[Path, str]:
    """Return the files of a folder that people wrote, with their texts."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    return {path: text for path, text in texts.items() if GENERATED not in text[:300]}


def main() -> None:
    """Print a row for each room, then the package and the tests."""
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, text in written(PACKAGE).items():
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "api"
        rooms[room] += lines_of_code(text)
        files[room] += 1
    tests = written(ROOT / "tests")
    rows = [(name, count, files[name]) for name, count in sorted(rooms.items())]
    rows.append(("gpuedge", sum(rooms.values()), sum(files.values())))
    rows.append(("tests", sum(map(lines_of_code, tests.values())), len(tests)))
    for name, count, number in rows:
        print(f"{name:12}{count:8,} lines of code in {number:3} files")


if __name__ == "__main__":
    main()
