"""Nothing is ever unpickled: what lies in a cache folder can be damaged, but it cannot run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax import parsed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpuedge"
MODULES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
LOADERS = {"load", "read_array"}
"""Functions of numpy that unpickle if they are allowed to."""


def faults(text: str) -> Iterator[str]:
    """Yield what in a file could unpickle."""
    for node in ast.walk(parsed(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (f"line {node.lineno}: {n}" for n in names if n.split(".")[0] in MODULES)  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_numpy = ast.unparse(node.func.value) in {"np", "numpy", "np.lib.format"}
            allowed = [k.value for k in node.keywords if k.arg == "allow_pickle"]
            is_safe = allowed and isinstance(allowed[0], ast.Constant) and allowed[0].value is False
            if of_numpy and node.func.attr in LOADERS and not is_safe:
                yield f"line {node.lineno}: {ast.unparse(node.func)}"
            yield from (
                f"line {node.lineno}: allow_pickle"
                for value in allowed
                if not (isinstance(value, ast.Constant) and value.value is False)
            )


FILES = sorted(p for folder in ("gpuedge", "tools") for p in (ROOT / folder).rglob("*.py"))


def test_nothing_in_the_package_can_unpickle() -> None:
    found = {str(p.relative_to(ROOT)): list(faults(p.read_text(encoding="utf-8"))) for p in FILES}
    assert len(found) > 100
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import numpy as np\nnp.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.lib.format.read_array(f, allow_pickle=x)",
        "np.savez('x', allow_pickle=True)",
    ],
)
def test_what_could_is_seen(text: str) -> None:
    assert list(faults(text))
