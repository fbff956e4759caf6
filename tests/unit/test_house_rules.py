"""Sizes, documentation and public names: the rules of the house that a program can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import syntax

import gpuedge

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES = 900
FUNCTION_LINES = 60
TYPICAL_FUNCTION_LINES = 40
LONG_FUNCTION_SHARE = 0.02
"""Of all functions, how many may lie between the typical and the hard limit."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return syntax.parsed(path.read_text(encoding="utf-8"))


@cache
def functions(path: Path) -> list[Function]:
    return [n for n in ast.walk(parsed(path)) if isinstance(n, Function)]


def code_lines(node: Function) -> int:
    """Lines from `def` to the end, without the docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def test_no_file_is_long() -> None:
    everything = sources("gpuedge", "tests", "examples", "benchmarks", "tools")
    sizes = {name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in everything}
    assert {k: n for k, n in sizes.items() if n > FILE_LINES} == {}


def test_functions_are_short() -> None:
    sizes = {
        f"{name(p)}:{f.lineno} {f.name}": code_lines(f)
        for p in sources("gpuedge", "examples", "benchmarks", "tools")
        for f in functions(p)
    }
    assert {k: n for k, n in sizes.items() if n > FUNCTION_LINES} == {}
    long = {k: n for k, n in sizes.items() if n > TYPICAL_FUNCTION_LINES}
    assert len(long) <= LONG_FUNCTION_SHARE * len(sizes), long


def test_docstring_does_not_count_as_code() -> None:
    node = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body[0]
    assert isinstance(node, ast.FunctionDef)
    assert code_lines(node) == 2


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Public classes and functions of a module, and public methods of its public classes."""
    for node in body:
        if not isinstance(node, (*Function.__args__, ast.ClassDef)) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(d) for d in getattr(node, "decorator_list", [])}
        if "overload" in decorators or any(d.endswith(".setter") for d in decorators):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node.body, f"{prefix}{node.name}.")


def test_modules_and_public_names_are_documented() -> None:
    bare = [
        f"{name(path)}: {what}"
        for path in sources("gpuedge")
        for what, node in [("the module", parsed(path)), *public(parsed(path).body)]
        if not ast.get_docstring(node)  # type: ignore[arg-type]
    ]
    assert bare == []


def test_functions_are_annotated() -> None:
    assert [f"{name(path)}:{line}" for path in sources("gpuedge") for line in untyped(path)] == []


def untyped(path: Path) -> list[str]:
    """Return the line and name of each function that is not fully annotated."""
    bare = []
    for node in functions(path):
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        unknown = [a.arg for a in args if a.annotation is None and a.arg not in {"self", "cls"}]
        if unknown or node.returns is None:
            bare.append(f"{node.lineno} {node.name}")
    # `__init__` without arguments may leave its None away, as mypy allows. The package's own
    # `__getattr__` is hidden from type checkers, so that they still flag a misspelled name.
    hidden = {"__getattr__"} if path == ROOT / "gpuedge" / "__init__.py" else set()
    return [b for b in bare if b.split()[1] not in {"__init__", *hidden}]


@pytest.mark.parametrize("folder", ["shaders", "capability_db"])
def test_data_folders_hold_no_python(folder: str) -> None:
    # With one, `pip install -e .` fails: hatchling cannot rewrite prefixes in editable mode.
    assert list((ROOT / folder).rglob("*.py")) == []


def narrows_a_type(test: ast.expr) -> bool:
    """Whether a condition only tells mypy a type: ``x is not None`` or ``isinstance(x, T)``."""
    if isinstance(test, ast.Compare):
        return ast.unparse(test).endswith(" is not None")
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def test_user_errors_are_not_asserts() -> None:
    found = [
        f"{name(p)}:{n.lineno}"
        for p in sources("gpuedge")
        for n in ast.walk(parsed(p))
        if isinstance(n, ast.Assert) and not narrows_a_type(n.test)
    ]
    assert found == []


def spells_an_operator(node: ast.AST) -> bool:
    """Tell whether a test looks at how an operator's name is spelt."""

    def is_op(at: ast.AST) -> bool:
        return isinstance(at, ast.Attribute) and at.attr in ("op", "op_type")

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("startswith", "endswith", "find") and is_op(node.func.value)
    is_in = isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn))
    return is_in and is_op(node.comparators[0])


def test_what_an_operator_is_does_not_depend_on_how_it_is_spelt() -> None:
    assert spells_an_operator(ast.parse('n.op.startswith("Random")', mode="eval").body)
    assert spells_an_operator(ast.parse('"Integer" in node.op', mode="eval").body)
    assert not spells_an_operator(ast.parse('node.op in ("Shape", "Size")', mode="eval").body)
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources("gpuedge")
        for node in ast.walk(parsed(path))
        if spells_an_operator(node)
    ]
    assert found == []


def test_public_names_of_the_package_are_exactly_all() -> None:
    exported = set(gpuedge.__all__)
    assert len(exported) == len(gpuedge.__all__)
    assert set(dir(gpuedge)) == exported
    missing = [n for n in exported if getattr(gpuedge, n, None) is None]
    assert missing == []


def test_public_name_is_not_a_module_of_the_package() -> None:
    # Importing the module would overwrite the function of the same name.
    modules = {p.stem for p in (ROOT / "gpuedge").iterdir() if not p.name.startswith("_")}
    clash = {n for n in gpuedge.__all__ if n in modules}
    assert clash <= {"onnx_backend"}, "only onnx_backend is meant to be the module itself"


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = gpuedge.no_such_name


def test_import_loads_no_numpy_and_no_driver() -> None:
    code = (
        "import sys, gpuedge; gpuedge.__version__;"
        "print([m for m in ('numpy', 'vulkan', 'onnx', 'onnxruntime', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280
    )
    assert done.stdout.strip() == "[]"


def test_nothing_names_a_path_of_a_developers_machine() -> None:
    words = ("/" + "work/", "/" + "tmp/bash", "/home/" + "user")
    texts = [
        p
        for p in ROOT.rglob("*")
        if p.suffix in {".py", ".md", ".toml", ".sh", ".json", ".kern", ".yml"}
        and not any(
            part.startswith(".") or part in {"out", "dist"} for part in p.relative_to(ROOT).parts
        )
    ]
    found = [name(p) for p in texts if any(w in p.read_text(encoding="utf-8") for w in words)]
    assert found == []
