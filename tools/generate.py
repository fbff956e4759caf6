"""Writes what follows from the code: descriptions of operators in gpuedge/opset, and docstrings.

* gpuedge/ops/elementwise.py: the public functions that are one operator
* the names of operations in gpuedge/__init__.py
* docs/tables/operators.md: which functions and ONNX operators run where
* docs/tables/api.md, settings.md and files.md: see tools/reference.py

Usage: make generate    (a test compares the files with what this makes)
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import onnx.defs

import gpuedge
from gpuedge import ops
from gpuedge.core.dtypes import INTEGERS
from gpuedge.opset import FUNCTIONS, OPERATORS
from gpuedge.opset.operator import ANY, Function, Operator

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100

MODULE = '''"""Functions that are one elementwise operator. Made by tools/generate.py: do not edit.

Their rows are in `gpuedge.opset.elementwise`. Operands are array_like, float32 or float16, and
broadcast by numpy's rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuedge.ops.call import Array, one_operator, warm

if TYPE_CHECKING:
    from gpuedge.device import Device
'''

INTRODUCTION = """# Operators

This page is made from the code by `make generate`; a test compares them. How far results may
be from the exact ones is in [numerics](../numerics.md).

## Functions on numpy arrays

Each takes `device=` and runs on every device, the CPU included: `gpuedge.relu(x, device="vulkan")`.
A device that is named computes the result or raises; it is never left for another.

`elementwise("relu(a * b + c)")` makes one kernel of a formula, printed for whatever level the
device has. It is the way to a kernel of your own on every level; kernels in GLSL (`Device.kernel`)
run on Vulkan only.
"""

ONNX = """
## ONNX operators

Of the default domain `ai.onnx`. On the CPU, ONNX Runtime runs these and all others it knows. On a
GPU an operator takes float32 and float16, where marked also others or these only, and shapes known
when those of the inputs are. Integers are computed in float32: 8 and 16 bits as ONNX has it, larger
ones as far as 2^24, beyond which they are refused ([devices](../devices.md#numbers)). With
`fallback="error"`, small inputs that only parametrise nodes (a shape, axes) may be inputs of the
model: it is compiled for their values. What a GPU named by `device=` cannot run goes to the CPU, or
is an error with `fallback="error"`. `auto` cuts such a model into segments and places them where
that pays ([decision](../decision.md)). Nodes that depend on constants only are evaluated
while planning, on the host. Operators that ONNX defines by a function of these (ReduceL2,
GroupNormalization, RMSNormalization, MeanVarianceNormalization, ...) run by that function.

| operator | remark |
|---|---|
"""


def function_text(one: Function) -> str:
    """Return the source of a public function."""
    operands = ", ".join(f"{name}: Any" for name in one.operands)
    numbers = "".join(f", {name}: float = {value!r}" for name, value in one.numbers.items())
    head = f"def {one.name}({operands}{numbers}, *, device: str | Device | None = None) -> Array:"
    if len(head) > WIDTH:
        inner = f"    {operands}{numbers}, *, device: str | Device | None = None"
        head = f"def {one.name}(\n{inner}\n) -> Array:"
    given = ", ".join([*one.operands, ""]) if len(one.operands) == 1 else ", ".join(one.operands)
    values = ", ".join(f'"{name}": {name}' for name in one.numbers)
    also = f" Takes {' and '.join(sorted(one.dtypes))} as well." if one.dtypes else ""
    bound = textwrap.fill(f"Error bound: {one.bound}.", WIDTH - 8)
    body = f'''    """{one.summary}.{also}

{textwrap.indent(bound, "    ")}
    """
    return one_operator("{one.name}", ({given.strip()}), {{{values}}}, device)
'''
    return f"\n\n@warm\n{head}\n{body}"


def functions_module() -> str:
    """Return the source of gpuedge/ops/elementwise.py."""
    names = f"\n__all__ = [\n{listed(sorted(FUNCTIONS))}\n]  # fmt: skip\n"
    texts = (function_text(FUNCTIONS[name]) for name in sorted(FUNCTIONS))
    return MODULE + names + "".join(texts)


def operations() -> dict[str, str]:
    """Return the module of each operation: of rows as they are now, else as the package has it."""
    found = {name: getattr(ops, name).__module__.rpartition(".")[2] for name in ops.__all__}
    written = {name: module for name, module in found.items() if module != "elementwise"}
    return written | dict.fromkeys(FUNCTIONS, "elementwise")


def package_module(text: str) -> str:
    """Return the source of gpuedge/__init__.py with the names of all operations."""
    known = [n for n in gpuedge._LAZY if gpuedge._LAZY[n] != ops.__name__]
    everything = sorted({"__version__", *known, *operations()})
    for head, names, end in (("_OPS = (", sorted(operations()), ")"),
                             ("__all__ = [", everything, "]")):  # fmt: skip
        block = f"{head}\n{listed(names)}\n{end}  # fmt: skip\n"
        old = rf"^{re.escape(head)}\n.*?\n{re.escape(end)}  # fmt: skip\n"
        text = re.sub(old, block, text, count=1, flags=re.DOTALL | re.MULTILINE)
    return text


def listed(names: Iterable[str]) -> str:
    """Return names as the lines of a list."""
    text = textwrap.fill(", ".join(f'"{n}"' for n in names), WIDTH - 4)
    return f"{textwrap.indent(text, '    ')},"


def remark(one: Operator) -> str:
    """Return what a reader should know of an operator: integers it takes on a GPU, restrictions."""
    taken = set(ANY) if one.moves and one.name != "Dropout" else set(one.dtypes)
    found = []
    if taken.issuperset(INTEGERS):
        found, taken = ["integers"], taken - {*INTEGERS}
    *most, last = [*found, *sorted(taken)] or [""]
    listed = f"{', '.join(most)} and {last}" if most else last
    if listed:
        listed = f"also {listed}" if takes_floats(one) else f"{listed} only"
    where = f"of `{one.domain}`" if one.domain else ""
    return "; ".join(filter(None, (where, listed, one.remark))) or "-"


def takes_floats(one: Operator) -> bool:
    """Return whether the first input, unless it parametrises the node or selects, may be floats."""
    if 0 in one.parameters or 0 in one.others or not onnx.defs.has(one.name, one.domain):
        return True
    schema = onnx.defs.get_schema(one.name, domain=one.domain)
    kinds = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    first = next((each.type_str for each in schema.inputs), "")
    return "tensor(float)" in kinds.get(first, ["tensor(float)"])


def page() -> str:
    """Return the text of docs/tables/operators.md."""
    groups: dict[str, list[str]] = {}
    for name, module in sorted(operations().items()):
        groups.setdefault(module, []).append(f"`{name}`")
    functions = [f"* {module}: {', '.join(names)}\n" for module, names in sorted(groups.items())]
    known = sorted(OPERATORS.values(), key=lambda one: (one.name, one.domain))
    rows = [f"| `{one.name}` | {remark(one)} |\n" for one in known]
    return "".join([INTRODUCTION, "\n", *functions, ONNX, *rows])


def files() -> dict[str, str]:
    """Return what this writes, by path in the repository."""
    package = (ROOT / "gpuedge" / "__init__.py").read_text(encoding="utf-8")
    return {
        "gpuedge/ops/elementwise.py": functions_module(),
        "gpuedge/__init__.py": package_module(package),
        "docs/tables/operators.md": page(),
        **runpy.run_path(str(ROOT / "tools" / "reference.py"))["pages"](),
    }


def write() -> list[str]:
    """Write what is not up to date; return the suffixes of what was written."""
    made = {ROOT / path: text for path, text in files().items()}
    old = [p for p, text in made.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in old:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return [path.suffix for path in old]


if __name__ == "__main__" and ".py" in write():
    os.execv(sys.executable, [sys.executable, *sys.argv])  # pages show docstrings just written
