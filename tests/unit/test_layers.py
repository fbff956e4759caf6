"""The rules of the house about imports, checked on the syntax tree of every file.

Rooms are numbered by level; a file may import its own room, and rooms of a lower level. `core` is
plain data that backends speak too, so it lies below the seam.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from syntax import parsed

PACKAGE = Path(__file__).resolve().parents[2] / "gpuedge"

LEVELS = {
    "core": 0,
    "safety": 1,
    "backends": 2,
    "capdb": 3,
    "lang": 4,
    "opset": 5,
    "graph": 6,
    "plan": 7,
    "oracle": 7,
    "executors": 8,
    "isolation": 9,
    "probing": 10,
    "decide": 11,
    "runtime": 12,
    "device": 13,
    "ops": 14,
    "binding": 15,
    "session": 16,
    "sharing": 17,
    "quantising": 17,
    "onnx_backend": 17,
    "conformance": 17,
    "bench": 17,
    "farm": 18,
    "cli": 19,
    "__main__": 20,
}
"""Rooms, lowest first. Rooms of one level may not import each other, without exception."""

SHARED = {"base", "common", "device", "manifests", "loading"}
"""What backends share: the seam, and Vulkan drivers as files, which three of them run on."""

HOMES = {
    "vulkan": "backends/vulkan",
    "moderngl": "backends/gles",
    "wgpu": "backends/wgpu",
    "onnxruntime": "executors",
    "rich": "cli",
    "jinja2": "conformance",
}
"""Libraries that one folder alone may import."""

ONNX_HOMES = ("graph/onnx_package.py", "graph/reference.py", "onnx_backend.py")

VENDOR_IDS = {0x10DE, 0x1002, 0x1022, 0x8086, 0x13B5, 0x5143, 0x1010, 0x106B, 0x10005, 0x1AE0}
"""PCI and Khronos ids of NVIDIA, AMD, Intel, Alternative, Qualcomm, Imagination, Apple, Mesa,
Google."""


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def inner(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def texts() -> dict[str, str]:
    """Return every file of the package by its path there, read once."""
    return {inner(path): path.read_text(encoding="utf-8") for path in files()}


def room(inner_path: str) -> str:
    return inner_path.split("/", maxsplit=1)[0].removesuffix(".py")


def modules(tree: ast.AST, path: str) -> Iterator[tuple[str, int]]:
    """All imported modules as absolute names with their lines; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ["gpuedge", *path.split("/")][: -node.level]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def type_only_lines(tree: ast.AST) -> set[int]:
    """Lines under ``if TYPE_CHECKING:``: they name types and load nothing."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner_node in node.body
        for line in range(inner_node.lineno, (inner_node.end_lineno or inner_node.lineno) + 1)
    }


def breaches(path: str, text: str) -> list[str]:
    """The rules that a file with this text would break."""
    found = []
    tree = parsed(text)
    type_only = type_only_lines(tree)
    for module, line in modules(tree, path):
        top, *rest = module.split(".")
        if top != "gpuedge":
            why = None if line in type_only else _foreign(path, top)
        else:
            why = _own(path, rest)
        if why:
            found.append(f"{path}:{line}: {why}")
    return found


def _own(path: str, rest: list[str]) -> str | None:
    here, there = room(path), rest[0] if rest else ""
    if here == "__init__" or there not in LEVELS:
        return None  # names of the package itself, such as gpuedge.__version__
    if here == "backends":
        return _from_backend(path, rest)
    if here == there or LEVELS[there] < LEVELS[here]:
        return None
    return f"{here} imports {there}, which is not below it"


def _from_backend(path: str, rest: list[str]) -> str | None:
    if rest[0] in {"core", "safety"}:
        return None
    if rest[0] != "backends":
        return f"a backend imports {rest[0]}, which is above the seam"
    folder = path.split("/")[1]
    if len(rest) > 1 and rest[1] not in {*SHARED, folder.removesuffix(".py")}:
        return f"the backend {folder} imports the backend {rest[1]}"
    return None


def _foreign(path: str, top: str) -> str | None:
    if top in HOMES and not path.startswith(HOMES[top] + "/"):
        return f"{top} is imported outside {HOMES[top]}/"
    if top == "onnx" and not path.startswith(ONNX_HOMES):
        return f"onnx is imported outside {', '.join(ONNX_HOMES)}, where handlers wait"
    return None


def test_files_import_only_what_their_room_may() -> None:
    assert [why for path, text in texts().items() for why in breaches(path, text)] == []


def test_every_room_has_a_level() -> None:
    rooms = {room(inner(p)) for p in files()} - {"__init__"}
    assert rooms <= set(LEVELS)


def test_files_hold_no_vendor_id() -> None:
    found = [
        f"{path}:{node.lineno} {node.value:#x}"
        for path, text in texts().items()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Constant) and node.value in VENDOR_IDS
    ]
    assert found == []


def backend_names() -> set[str]:
    folders = {p.name for p in (PACKAGE / "backends").iterdir() if p.is_dir()}
    return folders - {"__pycache__"} | {"gles", "gles20", "gles30", "gles31", "wgpu"}


def asks_which_backend(tree: ast.AST) -> list[int]:
    """Lines that compare something with the name of a backend."""
    names = backend_names()
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(
            isinstance(o, (ast.Eq, ast.NotEq)) for o in node.ops
        ):
            sides = [node.left, *node.comparators]
            if any(isinstance(s, ast.Constant) and s.value in names for s in sides):
                lines.append(node.lineno)
    return lines


def test_nobody_above_the_seam_asks_which_backend_this_is() -> None:
    found = {
        path: asks_which_backend(parsed(text))
        for path, text in texts().items()
        if room(path) != "backends"
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/caps.py", "import gpuedge.lang"),
        ("core/caps.py", "def f():\n    from gpuedge import graph"),
        ("graph/read.py", "from gpuedge.executors.base import Work"),
        ("probing/api.py", "from gpuedge import decide"),
        ("executors/gpu.py", "import vulkan"),
        ("backends/gles/api.py", "from vulkan import vkCreateInstance"),
        ("backends/vulkan/api.py", "from gpuedge.plan import plan"),
        ("backends/vulkan/api.py", "from ..null import NullBackend"),
        ("backends/vulkan/api.py", "from gpuedge.backends import null"),
        ("decide/model.py", "import onnxruntime as ort"),
        ("plan/plan.py", "from onnx import helper"),
        ("session.py", "from rich.table import Table"),
        ("session.py", "if TYPE_CHECKING:\n    pass\nimport onnx"),
        ("graph/ir.py", "if TYPE_CHECKING:\n    from gpuedge.session import Session"),
        ("ops.py", "from gpuedge.cli.main import main"),
    ],
)
def test_forbidden_import_is_seen(path: str, text: str) -> None:
    assert len(breaches(path, text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("graph/onnx_package.py", "import onnx, numpy"),
        ("onnx_backend.py", "from onnx.backend.base import Backend"),
        ("backends/vulkan/api.py", "import vulkan\nfrom gpuedge.core import errors"),
        ("backends/vulkan/api.py", "from gpuedge.backends.base import Usage\nfrom . import conv"),
        ("executors/cpu.py", "import onnxruntime\nfrom gpuedge.graph.ir import Graph"),
        ("cli/output.py", "from rich.table import Table\nfrom gpuedge import __version__"),
        ("session.py", "if TYPE_CHECKING:\n    import onnx"),
    ],
)
def test_allowed_import_passes(path: str, text: str) -> None:
    assert breaches(path, text) == []


def test_question_for_a_backend_is_seen() -> None:
    assert asks_which_backend(ast.parse("if row.backend == 'vulkan':\n    pass")) == [1]


def test_architecture_page_lists_every_room() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {room(inner(p)) for p in files()} - {"__main__"}
    missing = [r for r in sorted(rooms) if not re.search(rf"\b{re.escape(r)}\b", page)]
    assert missing == []
