"""What keeps the house small: its lines of code, and one file and one name per class.

`LINES_OF_CODE` and the lists only shrink. The number grows only with a record in `docs/decisions/`;
it is lowered with the change that made the package smaller.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

from lines import lines_of_code, written
from syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpuedge"
LINES_OF_CODE = 59_386
"""Lines of gpuedge/ that hold code, without docstrings, comments and blank lines."""

SLACK = 1000
"""Lines that the number may lie above the package before it must be lowered."""

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
    return {path: parsed(text) for path, text in texts().items()}


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


def test_the_package_keeps_its_size() -> None:
    lines = sum(map(lines_of_code, written(PACKAGE).values()))
    assert lines <= LINES_OF_CODE, f"{lines} lines of code; see CONTRIBUTING.md"
    assert lines + SLACK >= LINES_OF_CODE, f"lower LINES_OF_CODE: there are {lines}"


def test_lines_of_code_are_what_remains_without_words() -> None:
    text = 'def f():\n    """One.\n\n    Two."""\n\n    # why\n    x = """a\n    b"""\n    return\n'
    assert lines_of_code(text) == 4


def test_no_class_name_twice() -> None:
    twice = {name for name, places in classes().items() if len(places) > 1}
    assert twice - SAME_NAMES == set(), "another file has a class of this name"
    assert SAME_NAMES - twice == set(), "take these out of SAME_NAMES"


def test_no_class_is_continued_in_another_file() -> None:
    assert continued() == CONTINUED
