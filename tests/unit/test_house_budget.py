"""What keeps the house small: lines and late imports per room, and one file and one name per class.

Numbers and lists only shrink. A number in `tests/budget.toml` that must grow needs a record in
`docs/decisions/`; one that the code stays far below is lowered with the change that made it so.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from gpuedge.opset import OPERATORS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpuedge"
BUDGET = tomllib.loads((ROOT / "tests" / "budget.toml").read_text(encoding="utf-8"))
LINES_EACH = 25
"""Lines that an operator may bring to the room of their descriptions."""

SLACK = 600
"""Lines that a budget may lie above the room it is for, before it must be lowered."""

SAME_NAMES = {
    "Api",
    "Block",
    "Function",
    "Instance",
    "Layout",
    "Op",
    "Pool",
    "Programs",
    "Queue",
    "Record",
    "Recorder",
    "Store",
    "Tensor",
}
"""Class names that several files define today. Take a name out once it is unique."""

CONTINUED: set[str] = set()
"""Classes that another file of their room continues by inheritance today."""


def room(path: Path) -> str:
    """Return the folder of the package a file lies in; `api` for the files beside the folders."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "api"


@cache
def texts() -> dict[Path, str]:
    """Return every file of the package, read once."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every file."""
    return {path: ast.parse(text) for path, text in texts().items()}


@cache
def lines_by_room() -> Counter[str]:
    counted: Counter[str] = Counter()
    for path, text in texts().items():
        if "Made by tools/" not in text[:300]:  # it grows with what it is made from
            counted[room(path)] += len(text.splitlines())
    return counted


def late_imports(tree: ast.AST) -> int:
    """Return how many import statements stand inside functions."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = {
        id(inner)
        for function in functions
        for inner in ast.walk(function)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    return len(imports)


@cache
def late_by_room() -> Counter[str]:
    counted: Counter[str] = Counter()
    for path, tree in trees().items():
        counted[room(path)] += late_imports(tree)
    return counted


def classes() -> dict[str, list[tuple[Path, ast.ClassDef]]]:
    found: dict[str, list[tuple[Path, ast.ClassDef]]] = defaultdict(list)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append((path, node))
    return found


def bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(b).partition("[")[0].rpartition(".")[2] for b in node.bases}


def continued() -> set[str]:
    """Return classes whose only base of ours is a plain class that nothing else inherits from.

    Such a pair is one class cut in two. Interfaces (`Protocol`, `ABC`) and bases in another room
    are what they should be.
    """
    known = classes()
    children = Counter(base for nodes in known.values() for _, n in nodes for base in bases(n))
    found = set()
    for nodes in known.values():
        for path, node in nodes:
            for base in bases(node) & set(known):
                homes = [(p, n) for p, n in known[base] if room(p) == room(path) and p != path]
                plain = [n for _, n in homes if not {"ABC", "Protocol"} & bases(n)]
                if plain and children[base] == 1:
                    found.add(f"{path.relative_to(PACKAGE).as_posix()}: {node.name}")
    return found


def test_every_room_has_a_budget() -> None:
    assert set(BUDGET["rooms"]) == set(lines_by_room())


@pytest.mark.parametrize("name", sorted(BUDGET["rooms"]))
def test_room_keeps_its_budget(name: str) -> None:
    budget, lines = BUDGET["rooms"][name], lines_by_room()[name]
    if "operators" in budget:  # an operator more is no mechanism more
        lines -= LINES_EACH * (len(OPERATORS) - budget["operators"])
    assert lines <= budget["lines"], f"{name}/ has {lines} lines; see CONTRIBUTING.md"
    assert budget["lines"] <= lines + SLACK, f"lower the budget of {name}/: it has {lines} lines"
    assert late_by_room()[name] <= budget["late_imports"], f"{name}/: import at the top of the file"


def test_no_class_name_twice() -> None:
    twice = {name for name, places in classes().items() if len(places) > 1}
    assert twice - SAME_NAMES == set(), "another file has a class of this name"
    assert SAME_NAMES - twice == set(), "take these out of SAME_NAMES"


def test_no_class_is_continued_in_another_file() -> None:
    assert continued() == CONTINUED


def test_late_import_is_counted_once() -> None:
    text = "import a\ndef f():\n    import b\n    def g():\n        from c import d\n"
    assert late_imports(ast.parse(text)) == 2
